//! Kinds of evidence: the list of them, and what each of them says of itself in its own room ([`EvidenceKind`]).
//!
//! Nothing else names all kinds. What has a member for each of them is made by [`members!`], what goes through them by [`each_kind!`]: these macros
//! only fan out, to generic functions and to the rooms.

mod room;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use room::{Asked, Asking, Beside, Cloud, IdentityForm, Parts, Proofs, Refusal, Rulebook, Verified, Verifier};
pub use room::{Counters, EvidenceKind};

/// The list. It hands all kinds to the macro in brackets, after what stands in the braces: those that say which machine a node is, and then what can only
/// stand beside them. Of each it says:
///
/// - its variant of [`Kind`], and that of [`crate::Reject`];
/// - its member of messages, which is its section of `pool.toml` too;
/// - its word: in `accepts` of `pool.toml`, on the wire and in the log;
/// - the type in its room that implements [`EvidenceKind`].
///
/// Its order is that of messages, and the one in which evidence is verified. A new kind stands before those that can only stand beside others.
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
pub(crate) use with_kinds;

macro_rules! kind {
    ({} $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        /// A kind of evidence.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $($($(#[$doc])* #[serde(rename = $word)] $kind,)*)*
        }

        impl Kind {
            /// All kinds.
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A structure with an optional member for each kind, where `..` stands in it: of the type of the trait that is named there, with the attribute and the
/// visibility that stand before it. `..` with `of machines` leaves out what can only stand beside others.
macro_rules! members {
    ($($structure:tt)*) => { $crate::kinds::with_kinds! { [$crate::kinds::structure] { $($structure)* } } };
}
pub(crate) use members;

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
        $crate::kinds::structure! {
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
                $each_vis $member: Option<<$crate::$($room)::+ as $crate::kinds::$trait>::$type>,
            )*)*
            $($(#[$after_about])* $after_vis $after: $after_type,)*
        }
    };
}
pub(crate) use structure;

/// An enumeration with a variant for each kind that says which machine a node is: of the type of the trait that `..` names, with the
/// attribute that stands before it. The others are its own.
macro_rules! refusals {
    ($($enumeration:tt)*) => { $crate::kinds::with_kinds! { [$crate::kinds::enumeration] { $($enumeration)* } } };
}
pub(crate) use refusals;

macro_rules! enumeration {
    (
        { $(#[$about:meta])* $vis:vis enum $name:ident { ..#[$each:meta] $trait:ident::$type:ident, $($own:tt)* } }
        machine { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* } beside { $($beside:tt)* }
    ) => {
        $(#[$about])*
        $vis enum $name {
            $($own)*
            $($(#[$doc])* #[$each] $kind(#[from] <$crate::$($room)::+ as $crate::kinds::$trait>::$type),)*
        }
    };
}
pub(crate) use enumeration;

/// A `match` over such an enumeration: `match_refusal! { of, error => what is done with that of a kind, { its own arms } }`, and perhaps `else` the rest.
macro_rules! match_refusal {
    ($($arms:tt)*) => { $crate::kinds::with_kinds! { [$crate::kinds::arms] { $($arms)* } } };
}
pub(crate) use match_refusal;

macro_rules! arms {
    (
        { $of:expr, $error:ident => $then:expr, { $($own:tt)* } $(else $rest:expr)? }
        machine { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* } beside { $($beside:tt)* }
    ) => {
        match $of {
            $($own)*
            $(Self::$kind($error) => $then,)*
            $(_ => $rest,)?
        }
    };
}
pub(crate) use arms;

/// `held_against!(Structure)`: what evidence of each kind is held against, borrowed for `'a`.
macro_rules! held_against {
    ($name:ident) => {
        $crate::kinds::with_kinds! { [$crate::kinds::borrowed] { $name } }
    };
}
pub(crate) use held_against;

macro_rules! borrowed {
    ({ $name:ident } $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        /// What evidence of each kind is held against. Of what there is nothing for, evidence is refused.
        #[derive(Clone, Copy)]
        pub(crate) struct $name<'a> {
            $($(
                $(#[$doc])*
                pub(crate) $member: Option<<$crate::$($room)::+ as $crate::kinds::Verifier>::HeldAgainst<'a>>,
            )*)*
        }
    };
}
pub(crate) use borrowed;

/// `moved! { Structure { before, ..from, after } }`: a structure of machines made of another, member by member.
macro_rules! moved {
    ($($structure:tt)*) => { $crate::kinds::with_kinds! { [$crate::kinds::moved_members] { $($structure)* } } };
}
pub(crate) use moved;

macro_rules! moved_members {
    (
        { $name:ident { $($before:ident,)* ..$from:ident $(, $after:ident)* } }
        machine { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* } beside { $($beside:tt)* }
    ) => {
        $name { $($before,)* $($member: $from.$member,)* $($after,)* }
    };
}
pub(crate) use moved_members;

/// `each_kind!(one)` is `one!(Kind, member, Room);` for each kind, as statements or as items.
macro_rules! each_kind {
    ($one:path) => {
        $crate::kinds::with_kinds! { [$crate::kinds::fan_out] { $one } }
    };
}
pub(crate) use each_kind;

/// The same without what can only stand beside others.
macro_rules! each_machine {
    ($one:path) => {
        $crate::kinds::with_kinds! { [$crate::kinds::fan_out] { of machines, $one } }
    };
}
pub(crate) use each_machine;

macro_rules! fan_out {
    ({ of machines, $one:path } machine { $($machine:tt)* } beside { $($beside:tt)* }) => {
        $crate::kinds::fan_out! { { $one } machine { $($machine)* } }
    };
    ({ $one:path } $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        $($($one!($kind, $member, $crate::$($room)::+);)*)*
    };
}
pub(crate) use fan_out;

/// `of_room!(kind, CONSTANT)`: what the kind's room says of it.
macro_rules! of_room {
    ($kind:expr, $constant:ident) => {
        $crate::kinds::with_kinds! { [$crate::kinds::constant_of] { $kind, $constant } }
    };
}
pub(crate) use of_room;

macro_rules! constant_of {
    (
        { $of:expr, $constant:ident }
        $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*
    ) => {
        match $of {
            $($($crate::Kind::$kind => <$crate::$($room)::+ as $crate::kinds::Verifier>::$constant,)*)*
        }
    };
}
pub(crate) use constant_of;

/// Gives a message the set of kinds that it has.
macro_rules! kinds_of {
    ($type:ty) => {
        $crate::kinds::with_kinds! { [$crate::kinds::set_of] { $type } }
    };
}
pub(crate) use kinds_of;

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
pub(crate) use set_of;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_everywhere() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(kind.section(), kind.as_str().replace('-', "_"));
        }
    }
}
