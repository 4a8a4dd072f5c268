//! Reasons why evidence is refused: the fact, with both values if there are two.
//!
//! There are three readers. The node gets [`Reject::code`], the next step and [`Reject::client_message`]; the log gets [`Reject::detail`]; the audit
//! record gets all of it, with the evidence itself. `docs/errors.md` lists the codes for people.

use std::collections::BTreeSet;

use crate::advice::{Advice, advice};
use crate::combination;
use crate::condition::{self, ConditionRefusal};
use crate::kinds::{EvidenceKind, Kind, KindRefusal, Verifier, match_refusal, of_room, refusals};
use crate::token::NoToken;
use crate::tpm::TpmEvidenceError;
use crate::tpm::ek::EkAreaError;
use crate::tpm::rules::BootRefusal;
use crate::withheld::Withheld;

refusals! {
    #[derive(Debug, Clone, PartialEq, thiserror::Error)]
    pub enum Reject {
        ..#[error(transparent)] EvidenceKind::Error,
        /// A field of the request that is out of its bounds.
        #[error("{field}: {problem}")]
        Request {
            field: &'static str,
            /// The problem with the field, in words.
            problem: &'static str,
        },
        /// The evidence came after the challenge had expired.
        #[error("the challenge expired at {expires}, it is now {now} (seconds since 1970)")]
        ChallengeExpired {
            expires: u64,
            now: u64,
        },
        /// The node can show nothing that the pool accepts.
        #[error("the node can show {}, which is not enough", combination::list(.offered))]
        KindsOffered {
            /// The kinds that the node offers.
            offered: BTreeSet<Kind>,
            /// The combinations that the pool accepts.
            accepted: Withheld,
        },
        /// The evidence is of other kinds than were asked for.
        #[error("the challenge asked for {}, the evidence is {}", combination::list(.asked), combination::list(.shown))]
        KindsShown {
            /// The kinds that the challenge asked for.
            asked: BTreeSet<Kind>,
            /// The kinds that the evidence has.
            shown: BTreeSet<Kind>,
        },
        /// The evidence is of kinds that the pool does not accept any more.
        #[error("the evidence is {}, which is not accepted any more", combination::list(.shown))]
        KindsAccepted {
            /// The kinds that the evidence has.
            shown: BTreeSet<Kind>,
            /// The combinations that the pool accepts.
            accepted: Withheld,
        },
        /// There is nothing to verify or to compare evidence of this kind with.
        #[error("the gateway has nothing to hold evidence of the kind {kind} against")]
        NothingToHoldAgainst {
            kind: Kind,
        },
        /// Evidence of different machines.
        #[error("the evidence is about different machines: {first} and {second}")]
        IdentitiesDiffer {
            /// Identity according to one kind.
            first: String,
            /// Identity according to another kind.
            second: String,
        },
        /// The evidence has no claimant for the instance.
        #[error("the first to show an instance's evidence has the instance, and this node does not say who it is: it has sent no claimant")]
        ClaimantMissing,
        /// Another claimant than the one who asked for the challenge.
        #[error("the claimant is another one than the challenge was for")]
        Claimant,
        /// The pool's condition does not hold.
        #[error(transparent)]
        Condition(#[from] ConditionRefusal),
        /// The provisioning token that the evidence needs was not accepted, or not looked up.
        #[error("the evidence needs a provisioning token beside it, and none was taken")]
        TokenMissing,
        /// The machine is not in the pool's inventory.
        #[error("{machine} is not in the pool's inventory")]
        NotInInventory {
            /// Identity of the machine.
            machine: String,
        },
        /// The TPM shown with an instance is not the one that the pool's inventory names.
        #[error("{machine} shows the TPM {found}, which the pool's inventory does not name beside it")]
        InventoryTpm {
            machine: String,
            /// Its TPM: `tpm:<EkDigest>`, or `none`.
            found: String,
            /// The TPM that the inventory names.
            accepted: Withheld,
        },
        /// More than one Machine object names the machine: one of them is wrong, and it is not known which.
        #[error("{machine} is named by {objects} Machine objects of the cluster")]
        NamedTwice {
            machine: String,
            objects: usize,
        },
        /// The machine's Machine object is of no machine set of the pool's.
        #[error("the Machine object of {machine} is none of the pool's")]
        OfAnotherSet {
            machine: String,
            /// Selection of the pool's Machine objects.
            accepted: Withheld,
        },
        /// Another pool would have the machine as well.
        #[error("{machine} is another pool's as well")]
        OfTwoPools {
            machine: String,
            /// The pool that also has the machine.
            accepted: Withheld,
        },
        /// The machine's Machine object is on its way out.
        #[error("the Machine object of {machine} is being deleted, or has failed")]
        MachineEnds {
            machine: String,
        },
        /// The machine has joined before.
        #[error("a Node of the cluster is {machine} already")]
        HasNode {
            machine: String,
        },
        /// The machine was there before its Machine object, so it is not the one that the cluster has made for that.
        #[error("{machine} was made at {instance}, its Machine object at {object} (seconds since 1970)")]
        OlderThanMachine {
            machine: String,
            /// Creation time of the instance according to its cloud.
            instance: u64,
            /// Creation time of the object.
            object: u64,
        },
    }
}

impl<E> From<KindRefusal<E>> for Reject
where
    Self: From<E>,
{
    fn from(refusal: KindRefusal<E>) -> Self {
        match refusal {
            KindRefusal::Own(error) => error.into(),
            KindRefusal::Request { field, problem } => Self::Request { field, problem },
            KindRefusal::NothingToHoldAgainst(kind) => Self::NothingToHoldAgainst { kind },
        }
    }
}

impl From<NoToken> for Reject {
    fn from(NoToken: NoToken) -> Self {
        Self::TokenMissing
    }
}

advice! {
    /// The codes of a [`Reject`], without those of the clouds' modules: see [`advices`].
    pub MALFORMED_REQUEST = "malformed-request", "The request cannot be read", "Use an attest-node of the gateway's release.";
    pub CHALLENGE_EXPIRED = "challenge-expired", "The evidence came too late", "attest-node asks for a new challenge by itself; if this repeats, the TPM is very slow: raise the gateway's challenge lifetime.";
    EVIDENCE_NOT_ACCEPTED = "evidence-not-accepted", "The node cannot show what the pool accepts", "Compare what the node can show with `accepts` in the pool's pool.toml: the gateway's log names both.";
    pub EVIDENCE_INCOMPLETE = "evidence-incomplete", "The evidence is not what the gateway asked for", "Use an attest-node of the gateway's release.";
    EVIDENCE_NOT_CONFIGURED = "evidence-not-configured", "The gateway has no trust anchors for this kind of evidence", "Give the gateway the trust anchors of this kind: docs/evidence says where they come from, `attest-gateway check` which are missing.";
    IDENTITIES_DIFFER = "identities-differ", "The evidence is about different machines", "Boot again; if it stays, somebody may be presenting another machine's evidence.";
    NOT_IN_INVENTORY = "instance-not-in-inventory", "The machine is not in the pool's inventory", "If the machine is this pool's, add it to the pool's inventory: one line, as the gateway's log names it. It is read again at once.";
    INVENTORY_TPM = "instance-tpm-not-in-inventory", "The TPM is not the one that the inventory lists for the instance", "If the machine has this TPM, put it behind the instance in the pool's inventory, as the gateway's log names both.";
    NAMED_TWICE = "instance-named-twice", "More than one Machine object names the machine", "Find out which of the Machine objects with this providerID is wrong, and delete it; then boot again.";
    OF_ANOTHER_SET = "instance-of-another-set", "The machine's Machine object does not belong to the pool", "If the machine is this pool's, name its machine set in inventory.machines of pool.toml; otherwise let its pointer config name the pool of its machine set.";
    OF_TWO_POOLS = "instance-of-two-pools", "The machine belongs to another pool as well", "Name its machine set, or the machine, in the inventory of one pool only: the gateway's log names the other.";
    MACHINE_ENDS = "instance-machine-ends", "The machine's Machine object is being deleted, or has failed", "Nothing, if the machine is to go; otherwise let its machine set make another.";
    HAS_NODE = "instance-has-node", "The machine is already a Node of the cluster", "If the machine was provisioned anew: delete its Machine object, so that its machine set makes another; if not, somebody shows another machine's identity.";
    OLDER_THAN_MACHINE = "instance-older-than-machine", "The machine is older than its Machine object", "Delete the Machine object, so that its machine set makes another; if nobody has made this instance by hand, look for who has.";
    CLAIMANT_MISSING = "claimant-missing", "The node sent no claim for the instance", "Use an attest-node of the gateway's release.";
    CLAIMANT_MISMATCH = "claimant-mismatch", "Another claimant asked for the challenge", "Use the unmodified attest-node.";
}

/// The EK that a node presents is not the public area of an EK.
impl From<EkAreaError> for Reject {
    fn from(error: EkAreaError) -> Self {
        TpmEvidenceError::from(error).into()
    }
}

impl From<BootRefusal> for Reject {
    fn from(refusal: BootRefusal) -> Self {
        TpmEvidenceError::from(refusal).into()
    }
}

impl Reject {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match_refusal! { self, error => error.advice(), {
            Self::Request { .. } => MALFORMED_REQUEST,
            Self::ChallengeExpired { .. } => CHALLENGE_EXPIRED,
            Self::KindsOffered { .. } | Self::KindsAccepted { .. } => EVIDENCE_NOT_ACCEPTED,
            Self::KindsShown { .. } | Self::TokenMissing => EVIDENCE_INCOMPLETE,
            Self::NothingToHoldAgainst { .. } => EVIDENCE_NOT_CONFIGURED,
            Self::IdentitiesDiffer { .. } => IDENTITIES_DIFFER,
            Self::NotInInventory { .. } => NOT_IN_INVENTORY,
            Self::InventoryTpm { .. } => INVENTORY_TPM,
            Self::NamedTwice { .. } => NAMED_TWICE,
            Self::OfAnotherSet { .. } => OF_ANOTHER_SET,
            Self::OfTwoPools { .. } => OF_TWO_POOLS,
            Self::MachineEnds { .. } => MACHINE_ENDS,
            Self::HasNode { .. } => HAS_NODE,
            Self::OlderThanMachine { .. } => OLDER_THAN_MACHINE,
            Self::Condition(refusal) => refusal.advice(),
            Self::ClaimantMissing => CLAIMANT_MISSING,
            Self::Claimant => CLAIMANT_MISMATCH,
        } }
    }

    /// Returns the text for the client that is refused: it reveals nothing that the pool accepts. It is the `Display` text.
    #[must_use]
    pub fn client_message(&self) -> String {
        self.to_string()
    }

    /// Everything, for the log and the record.
    #[must_use]
    pub fn detail(&self) -> String {
        match self.withheld() {
            Some(accepted) => format!("{self}; the pool accepts {}", accepted.reveal()),
            None => self.to_string(),
        }
    }

    const fn withheld(&self) -> Option<&Withheld> {
        match_refusal! { self, error => error.withheld(), {
            Self::KindsOffered { accepted, .. }
            | Self::KindsAccepted { accepted, .. }
            | Self::InventoryTpm { accepted, .. }
            | Self::OfAnotherSet { accepted, .. }
            | Self::OfTwoPools { accepted, .. } => Some(accepted),
            Self::Condition(refusal) => refusal.withheld(),
        } else None }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}

/// Every code that a [`Reject`] can have: those of all evidence, then those of each kind.
pub fn advices() -> impl Iterator<Item = &'static Advice> {
    let tables = Kind::ALL.into_iter().flat_map(|kind| of_room!(kind, Verifier::ADVICE));
    ADVICE.iter().chain(condition::ADVICE).chain(tables.copied().flatten())
}
