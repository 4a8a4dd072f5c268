//! Claims: what Evidence has proven.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kinds::{Counters, EvidenceKind, Kind, Pcrs, Proofs, Verifier, each_kind, each_machine, members};
use crate::nonce::SpkiSha256;
use crate::tpm::ek::EkDigest;
use crate::values::HexDigest;

/// The stable identity of a node: `tpm:<EkDigest>`, `gcp:<project>/<instance id>`, `aws:<account>/<instance>`,
/// `aws-nitrotpm:<instance>` (a document that says no account), `azure:<subscription>/<vmId>`, `azure-vtpm:<vmId>` (a vTPM that says no subscription). The same machine has the same one at
/// every boot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeIdentity(String);

impl NodeIdentity {
    /// The identity that an EK gives a node.
    #[must_use]
    pub fn from_ek(ek: EkDigest) -> Self {
        Self(ek.identity())
    }

    /// The identity that evidence gives a machine.
    pub(crate) const fn from_evidence(identity: String) -> Self {
        Self(identity)
    }

    /// Returns the identity as text, in the form `<prefix>:<id>`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The proven claims about a node. Serialised into audit records; they cannot be read back from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claims {
    pub(crate) identity: NodeIdentity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instance: Option<NodeIdentity>,
    pub(crate) kinds: BTreeSet<Kind>,
    pub(crate) pool: String,
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_key: Option<SpkiSha256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) claimant_sha256: Option<HexDigest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubelet_key_sha256: Option<SpkiSha256>,
    #[serde(flatten)]
    pub(crate) proven: Proven,
}

members! {
    /// The proof of each kind of evidence.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
    pub(crate) struct Proven {
        ..#[serde(skip_serializing_if = "Option::is_none")] pub(crate) EvidenceKind::Proof,
    }
}

macro_rules! proof {
    ($kind:ident, $member:ident, $room:ty) => {
        /// Returns what the evidence of this kind has proven.
        #[must_use]
        pub const fn $member(&self) -> Option<&<$room as EvidenceKind>::Proof> {
            self.proven.$member.as_ref()
        }
    };
}

macro_rules! proofs {
    ($kind:ident, $member:ident, $room:ty) => {
        impl Proofs<$room> for Proven {
            fn proof(&self) -> Option<&<$room as EvidenceKind>::Proof> {
                self.$member.as_ref()
            }
        }
    };
}
each_kind!(proofs);

impl Claims {
    /// Returns the node's identity: its TPM's, if that has attested, or else the one from its cloud.
    #[must_use]
    pub const fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    /// Returns the identity of the cloud instance, if known. Equal to [`Claims::identity`] if no TPM has attested.
    #[must_use]
    pub const fn instance(&self) -> Option<&NodeIdentity> {
        self.instance.as_ref()
    }

    /// The kinds of evidence that were verified.
    #[must_use]
    pub const fn kinds(&self) -> &BTreeSet<Kind> {
        &self.kinds
    }

    /// The pool the evidence was made for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns the name that the node asks for. It is bound to the challenge, but not proven: a caller that stores names must ensure that
    /// one name stays with one identity.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The server key that the node saw, where the evidence says it by itself.
    #[must_use]
    pub const fn server_key(&self) -> Option<&SpkiSha256> {
        self.server_key.as_ref()
    }

    /// The key that the node's kubelet will ask a certificate for, where the evidence has it in what is signed.
    #[must_use]
    pub const fn kubelet_key_sha256(&self) -> Option<&SpkiSha256> {
        self.kubelet_key_sha256.as_ref()
    }

    /// Returns the claimant of the instance: SHA-256 of a secret that the node has generated. Another claim on the instance must prove
    /// knowledge of that secret.
    #[must_use]
    pub const fn claimant_sha256(&self) -> Option<&HexDigest> {
        self.claimant_sha256.as_ref()
    }

    /// Returns the reasons for which the node was trusted, for a person: the proof of each kind, and the result for the PCRs.
    #[must_use]
    pub fn reasons(&self, pcrs: Pcrs) -> Vec<String> {
        let mut reasons = Vec::new();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                reasons.extend(self.proven.$member.as_ref().map(|proof| <$room>::reason(proof, pcrs)));
            };
        }
        each_kind!(one);
        reasons
    }

    /// Returns the counters of the TPMs that have attested, each with the identity that it is known by: its own, or that of its instance.
    #[must_use]
    pub fn counters(&self) -> Vec<(&NodeIdentity, Counters)> {
        let mut all = Vec::new();
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if let Some(proof) = &self.proven.$member
                    && let Some(counters) = <$room>::counters(proof)
                {
                    let instance = self.instance.as_ref().filter(|_| <$room>::machine(proof).is_none());
                    all.push((instance.unwrap_or(&self.identity), counters));
                }
            };
        }
        each_kind!(one);
        all
    }

    /// Returns whether the instance's own TPM has attested, by Google's certificate or as its NitroTPM: no other client can have been first
    /// with it. Another TPM, shown with a NitroTPM's document, may belong to any machine.
    #[must_use]
    pub fn is_of_the_instances_own_tpm(&self) -> bool {
        macro_rules! one {
            ($kind:ident, $member:ident, $room:ty) => {
                if self.proven.$member.as_ref().is_some_and(<$room>::is_of_the_instances_own_tpm) {
                    return true;
                }
            };
        }
        each_kind!(one);
        false
    }

    /// Returns whether the EK that has attested belongs to the instance, by its certificate.
    #[must_use]
    pub fn has_the_instances_ek(&self) -> bool {
        self.tpm().is_some_and(|tpm| tpm.instance().is_some())
    }

    each_machine!(proof);

    /// Returns the name of the provisioning token that the gateway has accepted.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.proven.token.as_deref()
    }
}

/// Member of a kind's claims that records do not have: a condition that names it gets the measured boot, in parts.
pub(crate) const BOOT: &str = "boot";

/// Returns whether `claims.<kind>.<field>` belongs to the measured boot, either as records have it or as a condition gets it.
pub(crate) fn is_what_was_booted(kind: &str, field: &str) -> bool {
    macro_rules! one {
        ($kind:ident, $member:ident, $room:ty) => {
            if kind == stringify!($member) {
                return <$room>::BOOTED.contains(&field);
            }
        };
    }
    each_machine!(one);
    false
}
