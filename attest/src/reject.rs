//! Why Evidence is refused: the fact, with both values where there are two.
//!
//! Three readers: the node gets [`Reject::code`], the next step and [`Reject::told`], the log [`Reject::detail`], the audit record all
//! of it beside the evidence itself. `docs/errors.md` lists the codes for people.

use std::collections::BTreeSet;

use crate::advice::{Advice, advice};
use crate::aws::identity_document::IdentityDocumentError;
use crate::aws::nitro_tpm::NitroTpmError;
use crate::aws::sts::StsError;
use crate::azure::AttestedDocumentError;
use crate::gcp::GcpError;
use crate::kind::{self, Kind};
use crate::tpm::ek_certificate::EkCertificateError;
use crate::tpm::event_log::EventLogError;
use crate::tpm::wire::{HashAlg, WireError};
use crate::withheld::Withheld;

/// A refusal.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Reject {
    /// A TPM structure that cannot be read.
    #[error("{structure} cannot be read: {error}")]
    Wire {
        /// The structure, by its name in TPM 2.0 Part 2 and its role.
        structure: &'static str,
        /// What is wrong with it.
        error: WireError,
    },
    /// A field of the request that is out of its bounds.
    #[error("{field}: {problem}")]
    Request {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The EK's public area is not of a TCG EK template.
    #[error("the EK's {field} is {found}, the TCG EK template has {required}")]
    EkTemplate {
        /// The field.
        field: &'static str,
        /// What the area has.
        found: String,
        /// What the template has.
        required: &'static str,
    },
    /// Neither a certificate nor the allowlist vouches for the EK.
    #[error("no configured root and no allowlist entry vouches for EK {ek_digest}: {reason}")]
    EkNotEndorsed {
        /// [`crate::EkDigest`], hexadecimal: what `attest-gateway ek add` takes.
        ek_digest: String,
        /// What was looked for.
        reason: EkCertificateError,
    },
    /// The TPM presents no certificate, and the allowlist does not know the EK.
    #[error("EK {ek_digest} comes without a certificate and is not on the allowlist")]
    EkUnknown {
        /// [`crate::EkDigest`], hexadecimal.
        ek_digest: String,
    },
    /// The EK certificate does not hold.
    #[error("the EK certificate is refused: {0}")]
    EkCertificate(EkCertificateError),
    /// The certificate is about another key.
    #[error("the EK certificate is about key {certificate}, the TPM presents EK {presented}")]
    EkCertificateMismatch {
        /// Digest of the certificate's key, hexadecimal.
        certificate: String,
        /// Digest of the presented key, hexadecimal.
        presented: String,
    },
    /// The AK could sign what no TPM made, or could leave the TPM.
    #[error("the AK's {field} is {found}, required is {required}")]
    AkAttributes {
        /// The field.
        field: &'static str,
        /// What the area has.
        found: String,
        /// What an AK must have.
        required: &'static str,
    },
    /// The AK's algorithm or key size is not one that is accepted.
    #[error("the AK's key is {found}; accepted are RSA-2048 with RSASSA or RSAPSS, P-256 with ECDSA-SHA256, P-384 with ECDSA-SHA384")]
    AkAlgorithm {
        /// What it is.
        found: String,
    },
    /// The AK is in a hierarchy for which the TPM obfuscates what it signs.
    #[error("the AK is {found}, required is a primary object of the endorsement hierarchy (qualifiedSigner is {qualified_signer})")]
    AkHierarchy {
        /// What it is.
        found: String,
        /// Its Qualified Name, as the TPM has signed it, hexadecimal.
        qualified_signer: String,
    },
    /// Too late.
    #[error("the challenge expired at {expires}, it is now {now} (seconds since 1970)")]
    ChallengeExpired {
        /// Its last second.
        expires: u64,
        /// The time of verification.
        now: u64,
    },
    /// The credential was not activated: the AK is not in the TPM that holds the EK.
    #[error("the secret is not the one that only the endorsed TPM could have recovered")]
    CredentialMismatch,
    /// The signature was made with another scheme than the AK's.
    #[error("the signature is {signature}, the AK's scheme is {ak}")]
    SignatureScheme {
        /// The signature's scheme.
        signature: String,
        /// The AK's scheme.
        ak: String,
    },
    /// The signature does not verify.
    #[error("the quote's signature does not verify under the AK")]
    Signature,
    /// The quote was made for something else.
    #[error("extraData is {found}, none of {} server keys of this gateway gives that for this challenge", .keys)]
    ExtraData {
        /// What was signed, hexadecimal.
        found: String,
        /// How many keys were tried.
        keys: usize,
    },
    /// Other PCRs were signed than were asked for.
    #[error("the signed PCR selection is {signed}, asked for was {asked}")]
    Selection {
        /// What the TPM signed.
        signed: String,
        /// What the challenge asked for.
        asked: String,
    },
    /// The values presented are not the values signed.
    #[error("the presented PCRs hash to {computed}, the TPM signed {signed}")]
    PcrDigest {
        /// Digest over the presented values, hexadecimal.
        computed: String,
        /// pcrDigest, hexadecimal.
        signed: String,
    },
    /// A value for a PCR that was not quoted.
    #[error("a value is presented for PCR {index}, which was not quoted")]
    PcrNotQuoted {
        /// The PCR.
        index: u8,
    },
    /// A quoted PCR without its value.
    #[error("PCR {index} was quoted, but its value is missing")]
    PcrMissing {
        /// The PCR.
        index: u8,
    },
    /// A PCR value that is no digest of the bank.
    #[error("the value of PCR {index} has {found} bytes, a {bank} digest has {}", .bank.digest_bytes())]
    PcrLength {
        /// The PCR.
        index: u8,
        /// The bank.
        bank: HashAlg,
        /// Length presented, in bytes.
        found: usize,
    },
    /// There is no event log.
    #[error("no event log was sent")]
    EventLogMissing,
    /// The event log cannot be read.
    #[error("the event log cannot be read: {0}")]
    EventLog(EventLogError),
    /// The event log does not lead to the quoted PCRs.
    #[error("the event log does not explain the quote: {0}")]
    EventLogMismatch(EventLogError),
    /// A PCR has a value that the pool does not accept.
    #[error("PCR {index} ({bank}) is {quoted}, which is not accepted")]
    PcrMismatch {
        /// The PCR.
        index: u8,
        /// The bank.
        bank: HashAlg,
        /// The quoted value, hexadecimal.
        quoted: String,
        /// The accepted values, hexadecimal.
        accepted: Withheld,
    },
    /// The node can show nothing that the pool accepts.
    #[error("the node can show {}, which is not enough", kind::list(.offered))]
    KindsOffered {
        /// What the node offers.
        offered: BTreeSet<Kind>,
        /// What the pool accepts.
        accepted: Withheld,
    },
    /// The evidence is of other kinds than were asked for.
    #[error("the challenge asked for {}, the evidence is {}", kind::list(.asked), kind::list(.shown))]
    KindsShown {
        /// What the challenge asked for.
        asked: BTreeSet<Kind>,
        /// What there is.
        shown: BTreeSet<Kind>,
    },
    /// The evidence is of kinds that the pool does not accept any more.
    #[error("the evidence is {}, which is not accepted any more", kind::list(.shown))]
    KindsAccepted {
        /// What was shown.
        shown: BTreeSet<Kind>,
        /// What the pool accepts.
        accepted: Withheld,
    },
    /// There is nothing to verify or to compare evidence of this kind with.
    #[error("the gateway has nothing to hold evidence of the kind {kind} against")]
    NothingToHoldAgainst {
        /// The kind.
        kind: Kind,
    },
    /// Evidence of different machines.
    #[error("the evidence is about different machines: {first} and {second}")]
    IdentitiesDiffer {
        /// What one kind says.
        first: String,
        /// What another kind says.
        second: String,
    },
    /// Nobody says who claims the instance.
    #[error("the first to show an instance's evidence has the instance, and this node does not say who it is: it has sent no claimant")]
    ClaimantMissing,
    /// Another claimant than the one who asked for the challenge.
    #[error("the claimant is another one than the challenge was for")]
    Claimant,
    /// The provisioning token beside the evidence was not taken, or not looked up.
    #[error("the evidence needs a provisioning token beside it, and none was taken")]
    TokenMissing,
    /// The machine is none of those that may join the pool.
    #[error("{machine} is not in the pool's inventory")]
    NotInInventory {
        /// Which machine it is.
        machine: String,
    },
    /// The TPM beside an instance is not the one that the pool's inventory names there.
    #[error("{machine} shows the TPM {found}, which the pool's inventory does not name beside it")]
    InventoryTpm {
        /// The instance.
        machine: String,
        /// Its TPM: `tpm:<EkDigest>`, or `none`.
        found: String,
        /// What the inventory names.
        accepted: Withheld,
    },
    /// Evidence of Google Compute Engine.
    #[error(transparent)]
    Gcp(#[from] GcpError),
    /// An identity document of AWS.
    #[error(transparent)]
    AwsIdentityDocument(#[from] IdentityDocumentError),
    /// A NitroTPM document of AWS.
    #[error(transparent)]
    AwsNitroTpm(#[from] NitroTpmError),
    /// A request to AWS STS, or its answer.
    #[error(transparent)]
    AwsSts(#[from] StsError),
    /// An attested document of Azure.
    #[error(transparent)]
    Azure(#[from] AttestedDocumentError),
    /// The quote covers other PCRs than the pool's reference values speak of.
    #[error("the quote covers {quoted}, the pool's reference values are about other PCRs")]
    ReferenceSelection {
        /// What was quoted.
        quoted: String,
        /// What the pool wants.
        accepted: Withheld,
    },
}

advice! {
    /// The codes of a [`Reject`], without those of the clouds' rooms: see [`advices`].
    MALFORMED_REQUEST = "malformed-request", "The request cannot be read", "Use an attest-node of the gateway's release.";
    TPM_MALFORMED = "tpm-malformed", "A TPM structure cannot be read", "Use an attest-node of the gateway's release; a TPM with other algorithms than RSA-2048, P-256 or P-384 is not supported.";
    ALGORITHM_REFUSED = "algorithm-refused", "A hash algorithm is too weak", "Use the unmodified attest-node; SHA-1 is never accepted, neither as a key's name algorithm nor in a signature.";
    EK_TEMPLATE = "ek-template", "The EK is not of a TCG template", "Let attest-node choose the EK; if it did, clear the TPM in the firmware setup.";
    EK_NOT_ENDORSED = "ek-not-endorsed", "Nobody the gateway trusts vouches for this TPM", "If this machine is yours: run `attest-gateway ek add` with the EK digest of the gateway's log, or let the pool trust the TPM's maker (docs/evidence/tpm.md), then boot again.";
    EK_CERTIFICATE_INVALID = "ek-certificate-invalid", "The TPM's EK certificate does not hold", "Compare the gateway's clock and ek-roots with the certificate (the gateway's log names it).";
    EK_CERTIFICATE_MISMATCH = "ek-certificate-mismatch", "The EK certificate is about another key", "The certificate in the TPM's NV memory is not this TPM's: re-provision the TPM, or endorse the EK by `attest-gateway ek add`.";
    AK_ATTRIBUTES = "ak-attributes", "The AK could be used outside the TPM's rules", "Use the unmodified attest-node.";
    AK_ALGORITHM = "ak-algorithm", "The AK's algorithm is not accepted", "Use --ak ecc-p256 or --ak rsa-2048 of attest-node.";
    AK_HIERARCHY = "ak-hierarchy", "The AK is not in the TPM's endorsement hierarchy", "Use the unmodified attest-node.";
    CHALLENGE_EXPIRED = "challenge-expired", "The evidence came too late", "attest-node asks for a new challenge by itself; if this repeats, the TPM is very slow: raise the gateway's challenge lifetime.";
    CREDENTIAL_MISMATCH = "credential-mismatch", "The AK is not in the TPM that was endorsed", "Boot again; if it stays, somebody may be presenting another machine's EK.";
    QUOTE_MAGIC = "quote-magic", "The quote was not made by a TPM", "Use the unmodified attest-node.";
    QUOTE_TYPE = "quote-type", "The attestation is not a quote", "Use the unmodified attest-node.";
    QUOTE_SIGNATURE = "quote-signature", "The quote's signature is wrong", "Boot again; if it stays, the TPM or something between it and the gateway is broken.";
    QUOTE_EXTRA_DATA = "quote-extra-data", "The quote is not for this challenge and this server", "Boot again; if it stays, something between node and gateway ends the TLS connection: nodes must reach the gateway directly.";
    QUOTE_SELECTION = "quote-selection", "Other PCRs were quoted than asked for", "Enable the pool's PCR bank in the firmware setup, or choose another bank in pool.toml.";
    QUOTE_PCR_DIGEST = "quote-pcr-digest", "The PCR values are not the ones quoted", "Boot again; if it stays, use the unmodified attest-node.";
    PCR_NOT_QUOTED = "pcr-not-quoted", "A PCR value comes without a quote", "Use the unmodified attest-node.";
    PCR_MISSING = "pcr-missing", "A quoted PCR's value is missing", "Use the unmodified attest-node.";
    EVENT_LOG_MISSING = "event-log-missing", "The pool requires the firmware's event log, and none was sent", "Mount securityfs in the initramfs, or say event_log = \"checked\" in [tpm] of the pool's pool.toml.";
    EVENT_LOG_MALFORMED = "event-log-malformed", "The firmware's event log cannot be read", "Update the machine's firmware; the gateway's log says at which byte the event log breaks. event_log = \"recorded\" in [tpm] of the pool's pool.toml has nothing depend on it.";
    EVENT_LOG_MISMATCH = "event-log-mismatch", "The event log does not lead to the quoted PCRs", "Boot again; if it stays, the log was altered, or something is measured that the firmware does not log. event_log = \"recorded\" in [tpm] of the pool's pool.toml has nothing depend on it.";
    EVIDENCE_NOT_ACCEPTED = "evidence-not-accepted", "The node cannot show what the pool accepts", "Compare what the node can show with `accepts` in the pool's pool.toml: the gateway's log names both.";
    EVIDENCE_INCOMPLETE = "evidence-incomplete", "The evidence is not what was asked for", "Use an attest-node of the gateway's release.";
    EVIDENCE_NOT_CONFIGURED = "evidence-not-configured", "The gateway has nothing to verify this kind of evidence with", "Give the gateway the trust anchors of this kind: docs/evidence says where they come from, `attest-gateway check` which are missing.";
    IDENTITIES_DIFFER = "identities-differ", "The evidence is about different machines", "Boot again; if it stays, somebody may be presenting another machine's evidence.";
    NOT_IN_INVENTORY = "instance-not-in-inventory", "The machine is none of those that may join the pool", "If the machine is this pool's, add it to the pool's inventory: one line, as the gateway's log names it. It is read again at once.";
    INVENTORY_TPM = "instance-tpm-not-in-inventory", "The TPM is not the one that the inventory names beside the instance", "If the machine has this TPM, put it behind the instance in the pool's inventory, as the gateway's log names both.";
    CLAIMANT_MISSING = "claimant-missing", "The node does not say who claims the instance", "Use an attest-node of the gateway's release.";
    CLAIMANT_MISMATCH = "claimant-mismatch", "Another claimant asked for the challenge", "Use the unmodified attest-node.";
    PCR_MISMATCH = "pcr-mismatch", "The machine booted something the pool does not accept", "Compare firmware and boot chain with the pool's reference values; after an update of either, add the new digest to pool.toml.";
}

impl Reject {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Wire {
                error: WireError::HashRefused { .. },
                ..
            } => ALGORITHM_REFUSED,
            Self::Wire {
                error: WireError::Magic { .. },
                ..
            } => QUOTE_MAGIC,
            Self::Wire {
                error: WireError::NotAQuote { .. },
                ..
            } => QUOTE_TYPE,
            Self::Wire { .. } => TPM_MALFORMED,
            Self::Request { .. } => MALFORMED_REQUEST,
            Self::EkTemplate { .. } => EK_TEMPLATE,
            Self::EkNotEndorsed { .. } | Self::EkUnknown { .. } => EK_NOT_ENDORSED,
            Self::EkCertificate(_) => EK_CERTIFICATE_INVALID,
            Self::EkCertificateMismatch { .. } => EK_CERTIFICATE_MISMATCH,
            Self::AkAttributes { .. } => AK_ATTRIBUTES,
            Self::AkAlgorithm { .. } => AK_ALGORITHM,
            Self::AkHierarchy { .. } => AK_HIERARCHY,
            Self::ChallengeExpired { .. } => CHALLENGE_EXPIRED,
            Self::CredentialMismatch => CREDENTIAL_MISMATCH,
            Self::SignatureScheme { .. } | Self::Signature => QUOTE_SIGNATURE,
            Self::ExtraData { .. } => QUOTE_EXTRA_DATA,
            Self::Selection { .. } | Self::ReferenceSelection { .. } => QUOTE_SELECTION,
            Self::PcrDigest { .. } => QUOTE_PCR_DIGEST,
            Self::PcrNotQuoted { .. } => PCR_NOT_QUOTED,
            Self::PcrMissing { .. } | Self::PcrLength { .. } => PCR_MISSING,
            Self::EventLogMissing => EVENT_LOG_MISSING,
            Self::EventLog(_) => EVENT_LOG_MALFORMED,
            Self::EventLogMismatch(_) => EVENT_LOG_MISMATCH,
            Self::PcrMismatch { .. } => PCR_MISMATCH,
            Self::KindsOffered { .. } | Self::KindsAccepted { .. } => EVIDENCE_NOT_ACCEPTED,
            Self::KindsShown { .. } | Self::TokenMissing => EVIDENCE_INCOMPLETE,
            Self::NothingToHoldAgainst { .. } => EVIDENCE_NOT_CONFIGURED,
            Self::IdentitiesDiffer { .. } => IDENTITIES_DIFFER,
            Self::NotInInventory { .. } => NOT_IN_INVENTORY,
            Self::InventoryTpm { .. } => INVENTORY_TPM,
            Self::ClaimantMissing => CLAIMANT_MISSING,
            Self::Claimant => CLAIMANT_MISMATCH,
            Self::Gcp(error) => error.advice(),
            Self::AwsIdentityDocument(error) => error.advice(),
            Self::AwsNitroTpm(error) => error.advice(),
            Self::AwsSts(error) => error.advice(),
            Self::Azure(error) => error.advice(),
        }
    }

    /// What whoever is refused may know: nothing of what the pool accepts. It is the `Display` text.
    #[must_use]
    pub fn told(&self) -> String {
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
        match self {
            Self::PcrMismatch { accepted, .. }
            | Self::KindsOffered { accepted, .. }
            | Self::KindsAccepted { accepted, .. }
            | Self::ReferenceSelection { accepted, .. }
            | Self::InventoryTpm { accepted, .. } => Some(accepted),
            Self::Gcp(error) => error.withheld(),
            Self::AwsIdentityDocument(error) => error.withheld(),
            Self::AwsNitroTpm(error) => error.withheld(),
            Self::AwsSts(error) => error.withheld(),
            Self::Azure(error) => error.withheld(),
            _ => None,
        }
    }

    /// Whether nobody vouches for the EK, which otherwise is one.
    #[must_use]
    pub const fn is_not_endorsed(&self) -> bool {
        match self {
            Self::EkNotEndorsed { .. } | Self::EkUnknown { .. } => true,
            Self::EkCertificate(error) | Self::Gcp(GcpError::VtpmCertificate(error)) => error.is_unknown_issuer() || error.is_unreadable(),
            _ => false,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}

/// Every code that a [`Reject`] can have: those of TPMs and of all evidence, then those of each cloud's kinds.
pub fn advices() -> impl Iterator<Item = &'static Advice> {
    let clouds = [
        crate::gcp::ADVICE,
        crate::aws::identity_document::ADVICE,
        crate::aws::nitro_tpm::ADVICE,
        crate::aws::sts::ADVICE,
        crate::azure::ADVICE,
    ];
    ADVICE.iter().chain(clouds.into_iter().flatten())
}
