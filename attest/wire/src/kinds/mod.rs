//! Kinds of evidence: their list, and each kind's properties in its own module ([`Messages`]).
//!
//! Nothing else names all kinds. Structures with a member for each kind are made by [`members!`](crate::members), loops over the kinds by
//! [`each_kind!`](crate::each_kind): these macros only fan out, to generic functions and to the kinds' modules. `attest` uses them, too,
//! for its own modules.

mod messages;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::of_room;

pub use messages::{MachineCloud, Messages, Parts};

/// Lists all kinds of evidence. It passes them to the macro in brackets, after the content of the braces: first those that identify a
/// machine, then those that are only valid together with others. Each entry has:
///
/// - its variant of [`Kind`], and that of a refusal;
/// - its member of messages, which is its section of `pool.toml` too;
/// - its word: in `accepts` of `pool.toml`, on the wire and in the log;
/// - the type in its room that implements [`Messages`], and what `attest` asks of a room.
///
/// Its order is that of messages, and the one in which evidence is verified. A new kind goes before those that are only valid together with
/// others.
#[macro_export]
macro_rules! with_kinds {
    ([$($then:tt)+] { $($given:tt)* }) => {
        $($then)+! {
            { $($given)* }
            machine {
                /// A TPM's quote ([`crate::tpm`]).
                Tpm, tpm, "tpm", tpm::Tpm;
                /// An identity token of Google Compute Engine ([`crate::gcp`]).
                Gcp, gcp, "gcp", gcp::Gcp;
                /// An instance identity document of AWS ([`crate::aws::identity_document`]).
                AwsIdentityDocument, aws_identity_document, "aws-identity-document", aws::identity_document::IdentityDocument;
                /// A NitroTPM attestation document of AWS ([`crate::aws::nitro_tpm`]).
                AwsNitroTpm, aws_nitro_tpm, "aws-nitro-tpm", aws::nitro_tpm::NitroTpm;
                /// A signed request to AWS STS ([`crate::aws::sts`]).
                AwsSts, aws_sts, "aws-sts", aws::sts::Sts;
                /// An attested document of Azure ([`crate::azure::attested_document`]).
                Azure, azure, "azure", azure::attested_document::AttestedDocument;
                /// A quote by the AK of a vTPM of Azure's ([`crate::azure::vtpm`]).
                AzureVtpm, azure_vtpm, "azure-vtpm", azure::vtpm::AzureVtpm;
            }
            beside {
                /// A provisioning token, beside evidence of another kind ([`crate::token`]).
                Token, token, "token", token::Token;
            }
        }
    };
}

macro_rules! kind {
    ({} $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        /// A kind of evidence.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $($($(#[$doc])* #[serde(rename = $word)] $kind,)*)*
        }

        impl Kind {
            pub const ALL: [Self; [$($(Self::$kind,)*)*].len()] = [$($(Self::$kind,)*)*];

            /// The kind's word: in `pool.toml`, on the wire and in the log.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$kind => $word,)*)* }
            }

            /// The member of messages, and the section of `pool.toml`, that is about this kind.
            #[must_use]
            pub const fn section(self) -> &'static str {
                match self { $($(Self::$kind => stringify!($member),)*)* }
            }
        }
    };
}
with_kinds! { [kind] {} }

impl Kind {
    /// The cloud that says it of an instance.
    #[must_use]
    pub const fn cloud(self) -> Option<MachineCloud> {
        of_room!(self, Messages::CLOUD)
    }

    /// Returns whether a cloud vouches for the instance.
    #[must_use]
    pub const fn is_of_a_cloud(self) -> bool {
        self.cloud().is_some()
    }

    /// Returns whether the signed data includes the purpose of the evidence.
    #[must_use]
    pub const fn signs_purpose(self) -> bool {
        of_room!(self, Messages::SIGNS_PURPOSE)
    }

    /// Returns whether it comes from a TPM of the machine's, and not from a metadata server that every process can ask.
    #[must_use]
    pub const fn is_of_a_tpm(self) -> bool {
        of_room!(self, Messages::IS_OF_A_TPM)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Defines a structure with an optional member for each kind in the place of `..`: of the named associated type of the trait, which has to
/// be in scope, with the attribute and the visibility that precede it. `..` with `of machines` leaves out kinds that are only valid
/// together with others.
#[macro_export]
macro_rules! members {
    ($($structure:tt)*) => { $crate::with_kinds! { [$crate::structure] { $($structure)* } } };
}

#[doc(hidden)]
#[macro_export]
macro_rules! structure {
    // Of machines: again, without the others.
    (
        { $(#[$about:meta])* $vis:vis struct $name:ident {
            $($(#[$before_about:meta])* $before_vis:vis $before:ident: $before_type:ty,)*
            ..#[$each:meta] $each_vis:vis $trait:ident::$type:ident of machines,
            $($after:tt)*
        } }
        machine { $($machine:tt)* } beside { $($beside:tt)* }
    ) => {
        $crate::structure! {
            { $(#[$about])* $vis struct $name {
                $($(#[$before_about])* $before_vis $before: $before_type,)*
                ..#[$each] $each_vis $trait::$type,
                $($after)*
            } }
            machine { $($machine)* }
        }
    };
    (
        { $(#[$about:meta])* $vis:vis struct $name:ident {
            $($(#[$before_about:meta])* $before_vis:vis $before:ident: $before_type:ty,)*
            ..#[$each:meta] $each_vis:vis $trait:ident::$type:ident,
            $($(#[$after_about:meta])* $after_vis:vis $after:ident: $after_type:ty,)*
        } }
        $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*
    ) => {
        $(#[$about])*
        $vis struct $name {
            $($(#[$before_about])* $before_vis $before: $before_type,)*
            $($(
                $(#[$doc])*
                #[$each]
                $each_vis $member: Option<<$crate::$($room)::+ as $trait>::$type>,
            )*)*
            $($(#[$after_about])* $after_vis $after: $after_type,)*
        }
    };
}

/// `each_kind!(one)` is `one!(Kind, member, Room);` for each kind, as statements or as items.
#[macro_export]
macro_rules! each_kind {
    ($one:path) => {
        $crate::with_kinds! { [$crate::fan_out] { $one } }
    };
}

/// Expands like `each_kind!`, without kinds that are only valid together with others.
#[macro_export]
macro_rules! each_machine {
    ($one:path) => {
        $crate::with_kinds! { [$crate::fan_out] { of machines, $one } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! fan_out {
    ({ of machines, $one:path } machine { $($machine:tt)* } beside { $($beside:tt)* }) => {
        $crate::fan_out! { { $one } machine { $($machine)* } }
    };
    ({ $one:path } $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        $($($one!($kind, $member, $crate::$($room)::+);)*)*
    };
}

/// `of_room!(kind, Trait::CONSTANT)`: the constant of the kind's module, from a trait that has to be in scope.
#[macro_export]
macro_rules! of_room {
    ($kind:expr, $trait:ident::$constant:ident) => {
        $crate::with_kinds! { [$crate::constant_of] { $kind, $trait::$constant } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! constant_of {
    (
        { $of:expr, $trait:ident::$constant:ident }
        $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*
    ) => {
        match $of {
            $($($crate::Kind::$kind => <$crate::$($room)::+ as $trait>::$constant,)*)*
        }
    };
}

/// Implements the set of kinds for a message.
#[macro_export]
macro_rules! kinds_of {
    ($type:ty) => {
        $crate::with_kinds! { [$crate::set_of] { $type } }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! set_of {
    ({ $type:ty } $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        impl $type {
            /// The kinds of evidence in it.
            #[must_use]
            pub fn kinds(&self) -> std::collections::BTreeSet<$crate::Kind> {
                let members = [$($(($crate::Kind::$kind, self.$member.is_some()),)*)*];
                members.into_iter().filter_map(|(kind, there)| there.then_some(kind)).collect()
            }
        }
    };
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn kind_names_agree_in_json_and_config() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(kind.section(), kind.as_str().replace('-', "_"));
        }
    }
}
