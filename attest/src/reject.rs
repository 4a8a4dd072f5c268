//! Reasons why evidence is refused: the fact, with both values if there are two.
//!
//! There are three readers. The node gets [`Reject::code`], the next step and [`Reject::client_message`]; the log gets [`Reject::detail`]; the audit
//! record gets all of it, with the evidence itself. `docs/reference/codes.md` lists the codes.

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
        #[error("the node offers {}, which no combination that the pool accepts covers", combination::list(.offered))]
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
        #[error("the evidence is {}, which the pool no longer accepts", combination::list(.shown))]
        KindsAccepted {
            /// The kinds that the evidence has.
            shown: BTreeSet<Kind>,
            /// The combinations that the pool accepts.
            accepted: Withheld,
        },
        /// There is nothing to verify or to compare evidence of this kind with.
        #[error("the gateway has no trust anchors for evidence of the kind {kind}")]
        NothingToHoldAgainst {
            kind: Kind,
        },
        /// Evidence of different machines.
        #[error("the evidence identifies different machines: {first} and {second}")]
        IdentitiesDiffer {
            /// Identity according to one kind.
            first: String,
            /// Identity according to another kind.
            second: String,
        },
        /// The evidence has no claimant for the instance.
        #[error("an instance belongs to the first node that claims it, and this node has sent no instance claim")]
        ClaimantMissing,
        /// Another claimant than the one who asked for the challenge.
        #[error("the instance claim differs from the one that the challenge was for")]
        Claimant,
        /// The pool's condition does not hold.
        #[error(transparent)]
        Condition(#[from] ConditionRefusal),
        /// The provisioning token that the evidence needs was not accepted, or not looked up.
        #[error("the evidence requires a valid provisioning token, and the node sent none")]
        TokenMissing,
        /// The machine is not in the pool's inventory.
        #[error("{machine} is not in the pool's inventory")]
        NotInInventory {
            /// Identity of the machine.
            machine: String,
        },
        /// The TPM shown with an instance is not the one that the pool's inventory names.
        #[error("{machine} has the TPM {found}, and the pool's inventory lists another TPM for it")]
        InventoryTpm {
            machine: String,
            /// Its TPM: `tpm:<EkDigest>`, or `none`.
            found: String,
            /// The TPM that the inventory names.
            accepted: Withheld,
        },
        /// More than one Machine object names the machine: one of them is wrong, and it is not known which.
        #[error("{objects} Machine objects of the cluster name {machine}")]
        NamedTwice {
            machine: String,
            objects: usize,
        },
        /// The machine's Machine object is of no machine set of the pool's.
        #[error("the Machine object of {machine} does not belong to the pool")]
        OfAnotherSet {
            machine: String,
            /// Selection of the pool's Machine objects.
            accepted: Withheld,
        },
        /// Another pool would have the machine as well.
        #[error("{machine} also belongs to another pool")]
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
        #[error("the cluster already has a Node for {machine}")]
        HasNode {
            machine: String,
        },
        /// The machine was there before its Machine object, so it is not the one that the cluster has made for that.
        #[error("{machine} was created at {instance}, its Machine object at {object} (seconds since 1970)")]
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
    pub MALFORMED_REQUEST = "malformed-request", "The request is not valid JSON of the attestation protocol, or a field is out of bounds", "Use the attest-node of the gateway's release.";
    pub CHALLENGE_EXPIRED = "challenge-expired", "The challenge had expired when the evidence arrived", "attest-node requests a new challenge by itself. If this repeats, the TPM is slow: raise `challenge.lifetime_seconds` in gateway.toml.";
    EVIDENCE_NOT_ACCEPTED = "evidence-not-accepted", "The node has no combination of evidence that the pool accepts", "Compare the node's kinds of evidence with `accepts` in the pool's pool.toml. The gateway's log names both.";
    pub EVIDENCE_INCOMPLETE = "evidence-incomplete", "The evidence differs from what the challenge asked for", "Use the attest-node of the gateway's release.";
    EVIDENCE_NOT_CONFIGURED = "evidence-not-configured", "The gateway has no trust anchors for this kind of evidence", "Run `attest-gateway check`: it lists the missing trust anchors. The how-to page of the cloud or of TPMs says where to get them.";
    IDENTITIES_DIFFER = "identities-differ", "Two pieces of evidence identify different machines", "Boot again. If this repeats, somebody may be presenting another machine's evidence.";
    pub NOT_IN_INVENTORY = "instance-not-in-inventory", "The pool's inventory does not list the machine", "If the machine belongs to this pool, add it to the pool's inventory: one line, with the identity in the gateway's log. The gateway reloads the inventory at once.";
    INVENTORY_TPM = "instance-tpm-not-in-inventory", "The inventory lists another TPM for the instance", "If the machine has this TPM, write it after the instance in the pool's inventory. The gateway's log names both.";
    NAMED_TWICE = "instance-named-twice", "More than one Machine object has the machine's providerID", "Delete the wrong Machine object, then boot again.";
    OF_ANOTHER_SET = "instance-of-another-set", "The machine's Machine object does not belong to the pool", "If the machine belongs to this pool, add its machine set to `inventory.machines` in pool.toml. Otherwise change the pool in its pointer config.";
    OF_TWO_POOLS = "instance-of-two-pools", "The inventories of two pools select the machine", "Remove the machine, or its machine set, from one of the two inventories. The gateway's log names the other pool.";
    MACHINE_ENDS = "instance-machine-ends", "The machine's Machine object is being deleted, or has failed", "Do nothing if the machine should be removed. Otherwise delete its Machine object: the machine set creates another one.";
    HAS_NODE = "instance-has-node", "The cluster already has a Node for the machine", "If the machine was provisioned again, delete its Machine object: the machine set creates another one. If not, somebody presents another machine's identity.";
    OLDER_THAN_MACHINE = "instance-older-than-machine", "The cloud instance is older than its Machine object", "Delete the Machine object: the machine set creates another one. Then find out who created this instance.";
    CLAIMANT_MISSING = "claimant-missing", "The node sent no instance claim", "Use the attest-node of the gateway's release.";
    CLAIMANT_MISMATCH = "claimant-mismatch", "The instance claim differs from the one that the challenge was for", "Use the unmodified attest-node.";
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
