//! Kinds of evidence: what each of them implements in its own module ([`EvidenceKind`]), by the list of them ([`attest_wire::kinds`]).
//!
//! Nothing else names all kinds: these macros only fan out, to generic functions and to the modules of the kinds.

mod room;

pub use attest_wire::kinds::Kind;
pub(crate) use attest_wire::{each_kind, each_machine, kinds_of, members, of_room};
pub(crate) use room::{Asked, Asking, IdentityForm, KindRefusal, OtherKinds, Proofs, Rulebook, Verified, Verifier};
pub use room::{Counters, EvidenceKind, Pcrs};

/// An enumeration with a variant for each kind that says which machine a node is: of the type of the trait that `..` names, with the
/// attribute that stands before it. The others are its own.
macro_rules! refusals {
    ($($enumeration:tt)*) => { attest_wire::with_kinds! { [$crate::kinds::enumeration] { $($enumeration)* } } };
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
            $($(#[$doc])* #[$each] $kind(#[from] <$crate::$($room)::+ as $trait>::$type),)*
        }
    };
}
pub(crate) use enumeration;

/// A `match` over such an enumeration: `match_refusal! { of, error => what is done with that of a kind, { its own arms } }`, and perhaps `else` the rest.
macro_rules! match_refusal {
    ($($arms:tt)*) => { attest_wire::with_kinds! { [$crate::kinds::arms] { $($arms)* } } };
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

/// `held_against!(Structure)`: the verification input for each kind of evidence, borrowed for `'a`.
macro_rules! held_against {
    ($name:ident) => {
        attest_wire::with_kinds! { [$crate::kinds::borrowed] { $name } }
    };
}
pub(crate) use held_against;

macro_rules! borrowed {
    ({ $name:ident } $($group:ident { $($(#[$doc:meta])* $kind:ident, $member:ident, $word:literal, $($room:ident)::+;)* })*) => {
        /// Verification input for each kind of evidence. Evidence of a kind without any is refused.
        #[derive(Clone, Copy)]
        pub(crate) struct $name<'a> {
            $($(
                $(#[$doc])*
                pub(crate) $member: Option<<$crate::$($room)::+ as $crate::kinds::Verifier>::VerificationInput<'a>>,
            )*)*
        }
    };
}
pub(crate) use borrowed;

/// `moved! { Structure { before, ..from, after } }`: a structure of machines made of another, member by member.
macro_rules! moved {
    ($($structure:tt)*) => { attest_wire::with_kinds! { [$crate::kinds::moved_members] { $($structure)* } } };
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
