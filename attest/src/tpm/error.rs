//! Reasons why a TPM's evidence is refused: the fact, with both values if there are two.

use crate::advice::{Advice, advice};
use crate::tpm::boot_complete::BootCompleteError;
use crate::tpm::ek::EkAreaError;
use crate::tpm::ek_certificate::EkCertificateError;
use crate::tpm::event_log::EventLogError;
use crate::tpm::rules::{BootLocation, BootRefusal};
use crate::tpm::vtpm::VtpmError;
use crate::tpm::wire::{HashAlg, WireError};
use crate::withheld::Withheld;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TpmEvidenceError {
    /// A TPM structure that cannot be read.
    #[error("{structure} cannot be read: {error}")]
    Wire {
        /// The structure, by its name in TPM 2.0 Part 2 and its role.
        structure: &'static str,
        /// The problem with the structure.
        error: WireError,
    },
    /// The EK's public area is not of a TCG EK template.
    #[error("the EK's {field} is {found}, the TCG EK template has {required}")]
    EkTemplate {
        field: &'static str,
        /// Value in the public area.
        found: String,
        /// Value in the template.
        required: &'static str,
    },
    /// Neither a certificate nor the allowlist vouches for the EK.
    #[error("no configured root and no allowlist entry endorses EK {ek_digest}: {reason}")]
    EkNotEndorsed {
        /// [`crate::EkDigest`], hexadecimal: what `attest-gateway ek add` takes.
        ek_digest: String,
        /// Reason why its certificate does not endorse it.
        reason: EkCertificateError,
    },
    /// The TPM presents no certificate, and the allowlist does not know the EK.
    #[error("EK {ek_digest} has no certificate and is not on the allowlist")]
    EkUnknown {
        /// The digest of the EK ([`crate::EkDigest`]), hexadecimal.
        ek_digest: String,
    },
    /// The node could not read the certificate that its TPM has, and the allowlist does not know the EK.
    #[error("the node could not read the certificate of EK {ek_digest} in its TPM, and the EK is not on the allowlist")]
    EkCertificateUnread {
        /// The EK's digest ([`crate::EkDigest`]), in hexadecimal.
        ek_digest: String,
    },
    /// The EK certificate does not hold.
    #[error("the EK certificate is refused: {0}")]
    EkCertificate(EkCertificateError),
    /// The certificate is about another key.
    #[error("the EK certificate is for key {certificate}, but the TPM presents EK {presented}")]
    EkCertificateMismatch {
        /// Digest of the certificate's key, hexadecimal.
        certificate: String,
        /// Digest of the presented key, hexadecimal.
        presented: String,
    },
    /// The AK could sign what no TPM made, or could leave the TPM.
    #[error("the AK's {field} is {found}, required is {required}")]
    AkAttributes {
        field: &'static str,
        /// Value in the public area.
        found: String,
        /// Value that an AK must have.
        required: &'static str,
    },
    /// The AK's algorithm or key size is not one that is accepted.
    #[error("the AK's key is {found}; accepted are RSA-2048 with RSASSA or RSAPSS, P-256 with ECDSA-SHA256, P-384 with ECDSA-SHA384")]
    AkAlgorithm { found: String },
    /// The AK is in a hierarchy for which the TPM obfuscates what it signs.
    #[error("the AK is {found}, required is a primary object of the endorsement hierarchy (qualifiedSigner is {qualified_signer})")]
    AkHierarchy {
        found: String,
        /// Its Qualified Name, as the TPM has signed it, hexadecimal.
        qualified_signer: String,
    },
    /// The credential was not activated: the AK is not in the TPM that holds the EK.
    #[error("the returned secret is wrong: only the endorsed TPM can recover it")]
    CredentialMismatch,
    /// The signature was made with another scheme than the AK's.
    #[error("the signature is {signature}, the AK's scheme is {ak}")]
    SignatureScheme {
        /// Scheme of the signature.
        signature: String,
        /// Scheme of the AK.
        ak: String,
    },
    /// The signature does not verify.
    #[error("the quote's signature does not verify under the AK")]
    Signature,
    /// The quote was made for something else.
    #[error("extraData is {found}, which none of this gateway's {} server keys gives for this challenge", .keys)]
    ExtraData {
        /// The signed value, hexadecimal.
        found: String,
        /// Number of keys that were tried.
        keys: usize,
    },
    /// Other PCRs were signed than were asked for.
    #[error("the quote covers the PCRs {signed}, the challenge asked for {asked}")]
    Selection {
        signed: String,
        /// Selection that the challenge asked for.
        asked: String,
    },
    /// The values presented are not the values signed.
    #[error("the presented PCRs hash to {computed}, but the TPM signed {signed}")]
    PcrDigest {
        /// Digest over the presented values, hexadecimal.
        computed: String,
        /// The signed `pcrDigest`, hexadecimal.
        signed: String,
    },
    /// A value for a PCR that was not quoted.
    #[error("the evidence has a value of PCR {index}, which the quote does not cover")]
    PcrNotQuoted { index: u8 },
    /// A quoted PCR without its value.
    #[error("the quote covers PCR {index}, but its value is missing")]
    PcrMissing { index: u8 },
    /// A PCR's value does not have the length of the bank's digests.
    #[error("the value of PCR {index} has {found} bytes, a {bank} digest has {}", .bank.digest_bytes())]
    PcrLength {
        index: u8,
        bank: HashAlg,
        /// Length presented, in bytes.
        found: usize,
    },
    /// The node has sent no event log.
    #[error("the node sent no event log")]
    EventLogMissing,
    /// The event log cannot be read.
    #[error("the event log cannot be read: {0}")]
    EventLog(EventLogError),
    /// The event log does not lead to the quoted PCRs.
    #[error("the event log does not match the quote: {0}")]
    EventLogMismatch(EventLogError),
    /// A PCR has a value that the pool does not accept.
    #[error("PCR {index} ({bank}) is {quoted}, which is not accepted")]
    PcrMismatch {
        index: u8,
        bank: HashAlg,
        /// The quoted value, hexadecimal.
        quoted: String,
        /// The accepted values, hexadecimal.
        accepted: Withheld,
    },
    /// The quote was not made while the machine boots.
    #[error("the machine's boot is over: {0}")]
    BootIsOver(#[from] BootCompleteError),
    /// The measured boot is not accepted.
    #[error(transparent)]
    Boot(#[from] BootRefusal),
    /// The quote covers other PCRs than the pool's reference values.
    #[error("the quote covers {quoted}, but the pool's reference values are for other PCRs")]
    ReferenceSelection {
        /// The quoted PCRs and their bank.
        quoted: String,
        /// The PCRs that the pool requires, and their bank.
        accepted: Withheld,
    },
    /// Google's certificate for the vTPM of an instance does not hold.
    #[error(transparent)]
    Vtpm(#[from] VtpmError),
}

impl From<EkAreaError> for TpmEvidenceError {
    fn from(error: EkAreaError) -> Self {
        match error {
            EkAreaError::Wire { structure, error } => Self::Wire { structure, error },
            EkAreaError::Template { field, found, required } => Self::EkTemplate { field, found, required },
        }
    }
}

advice! {
    /// The codes of a [`TpmEvidenceError`], without those of a vTPM's certificate.
    pub TPM_MALFORMED = "tpm-malformed", "A TPM structure cannot be parsed", "Use the attest-node of the gateway's release. The gateway supports TPM keys of RSA-2048, P-256 and P-384 only.";
    ALGORITHM_REFUSED = "algorithm-refused", "A TPM structure uses a weak hash algorithm, such as SHA-1", "Use the unmodified attest-node. The gateway never accepts SHA-1 as a key's name algorithm or in a signature.";
    EK_TEMPLATE = "ek-template", "The EK does not match a TCG template", "Use `attest-node attest --ek auto`. If the node used it already, run `attest-node ek list` on the node, and remove the persistent key that is not the manufacturer's.";
    EK_NOT_ENDORSED = "ek-not-endorsed", "No configured root and no allowlist entry endorses this TPM's EK", "If this machine is yours: run `attest-gateway ek add EK` with the EK digest in the gateway's log, or let the pool trust the TPM's manufacturer (docs/how-to/endorse-tpms.md). Then boot again.";
    EK_CERTIFICATE_UNREAD = "ek-certificate-unread", "The node could not read its TPM's EK certificate", "Boot again; the node's console has the TPM's answer. If this repeats and the machine is yours: run `attest-gateway ek add EK` with the EK digest in the gateway's log, then boot again.";
    EK_CERTIFICATE_INVALID = "ek-certificate-invalid", "The TPM's EK certificate is expired, badly signed or for another purpose", "Compare the gateway's clock and ek-roots with the certificate that the gateway's log names.";
    EK_CERTIFICATE_MISMATCH = "ek-certificate-mismatch", "The EK certificate is for another key", "The certificate in the TPM's NV memory is not this TPM's. Provision the TPM again, or run `attest-gateway ek add EK` with the EK digest in the gateway's log.";
    AK_ATTRIBUTES = "ak-attributes", "The AK's attributes do not restrict it to quotes", "Use the unmodified attest-node.";
    AK_ALGORITHM = "ak-algorithm", "The gateway does not accept the AK's algorithm", "Use `attest-node attest --ak ecc-p256` or `--ak rsa-2048`.";
    AK_HIERARCHY = "ak-hierarchy", "The AK is not in the TPM's endorsement hierarchy", "Use the unmodified attest-node.";
    CREDENTIAL_MISMATCH = "credential-mismatch", "The AK is not in the TPM that has the EK", "Boot again. If this repeats, somebody may be presenting another machine's EK.";
    QUOTE_MAGIC = "quote-magic", "The quote was not made by a TPM", "Use the unmodified attest-node.";
    QUOTE_TYPE = "quote-type", "The attestation is not a quote", "Use the unmodified attest-node.";
    QUOTE_SIGNATURE = "quote-signature", "The quote's signature does not verify", "Boot again. If this repeats, the TPM is defective, or something between TPM and gateway alters the quote.";
    QUOTE_EXTRA_DATA = "quote-extra-data", "The quote is for another challenge, pool or server", "Boot again. If this repeats, a proxy terminates TLS: nodes must connect to the gateway directly.";
    QUOTE_SELECTION = "quote-selection", "The quote covers other PCRs than the challenge asked for", "Boot again: the pool's PCRs may have changed since the challenge. If this repeats, enable the pool's PCR bank in the firmware setup, or change `bank` in pool.toml.";
    QUOTE_PCR_DIGEST = "quote-pcr-digest", "The PCR values do not match the quote", "Boot again. If this repeats, use the unmodified attest-node.";
    PCR_NOT_QUOTED = "pcr-not-quoted", "The evidence has a PCR value that the quote does not cover", "Use the unmodified attest-node.";
    PCR_MISSING = "pcr-missing", "The value of a quoted PCR is missing, or has the wrong length", "Use the unmodified attest-node.";
    EVENT_LOG_MISSING = "event-log-missing", "The pool requires the firmware's event log, and the node sent none", "Mount securityfs in the initramfs, or set event_log = \"checked\" in [tpm] of the pool's pool.toml.";
    EVENT_LOG_MALFORMED = "event-log-malformed", "The firmware's event log cannot be parsed", "Update the machine's firmware. The gateway's log has the byte of the error. With event_log = \"recorded\" in [tpm] of the pool's pool.toml, no decision depends on the event log.";
    EVENT_LOG_MISMATCH = "event-log-mismatch", "Replaying the event log does not give the quoted PCRs", "Boot again. If this repeats, the log was altered, or something extends a PCR that the firmware does not log. With event_log = \"recorded\" in [tpm] of the pool's pool.toml, no decision depends on the event log.";
    EVENT_LOG_SHA1 = "event-log-sha1-only", "The firmware measures in SHA-1 only", "The event log has SHA-1 digests only, which prove nothing; the SHA-256 PCRs contain nothing of the boot. Choose SHA-256 as the TPM's algorithm or PCR bank in the firmware setup, or update the firmware.";
    PCR_MISMATCH = "pcr-mismatch", "A PCR has a value that the pool does not accept", "Compare firmware and boot chain with the pool's reference values. After an update of either, add the new digest to pool.toml.";
    BOOT_IS_OVER = "tpm-boot-is-over", "The machine attests after its boot, and the pool accepts only booting machines", "Reset the machine: it attests during the boot. If it was just reset, something in its boot extends PCR 13 outside the firmware's event log, or the node sent no event log.";
}

/// The last PCR that firmware extends on every boot: with a separator, if with nothing else.
const FIRMWARE_PCR_LAST: u8 = 7;

/// Returns true for a PCR that nothing was extended into, in hexadecimal.
const fn is_zeros(quoted: &str) -> bool {
    let mut digits = quoted.as_bytes();
    while let [b'0', rest @ ..] = digits {
        digits = rest;
    }
    digits.is_empty()
}

impl TpmEvidenceError {
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
            Self::EkTemplate { .. } => EK_TEMPLATE,
            Self::EkNotEndorsed { .. } | Self::EkUnknown { .. } => EK_NOT_ENDORSED,
            Self::EkCertificateUnread { .. } => EK_CERTIFICATE_UNREAD,
            Self::EkCertificate(_) => EK_CERTIFICATE_INVALID,
            Self::EkCertificateMismatch { .. } => EK_CERTIFICATE_MISMATCH,
            Self::AkAttributes { .. } => AK_ATTRIBUTES,
            Self::AkAlgorithm { .. } => AK_ALGORITHM,
            Self::AkHierarchy { .. } => AK_HIERARCHY,
            Self::CredentialMismatch => CREDENTIAL_MISMATCH,
            Self::SignatureScheme { .. } | Self::Signature => QUOTE_SIGNATURE,
            Self::ExtraData { .. } => QUOTE_EXTRA_DATA,
            Self::Selection { .. } | Self::ReferenceSelection { .. } => QUOTE_SELECTION,
            Self::PcrDigest { .. } => QUOTE_PCR_DIGEST,
            Self::PcrNotQuoted { .. } => PCR_NOT_QUOTED,
            Self::PcrMissing { .. } | Self::PcrLength { .. } => PCR_MISSING,
            Self::EventLogMissing => EVENT_LOG_MISSING,
            Self::EventLog(error) | Self::EventLogMismatch(error) if error.is_of_sha1_only() => EVENT_LOG_SHA1,
            Self::EventLogMismatch(EventLogError::BankMissing { .. }) => Advice {
                next_step: "The firmware measures into other banks than the pool's. The reason names them by TPM_ALG_ID (000b is sha256, 000c sha384, 000d sha512). Enable the pool's bank in the firmware setup, or set `bank` in [tpm] of the pool's pool.toml to one of them.",
                ..EVENT_LOG_MISMATCH
            },
            Self::EventLog(_) => EVENT_LOG_MALFORMED,
            Self::EventLogMismatch(_) => EVENT_LOG_MISMATCH,
            Self::PcrMismatch { index, quoted, .. } if *index <= FIRMWARE_PCR_LAST && is_zeros(quoted.as_str()) => Advice {
                next_step: "The firmware measured nothing into this PCR: it measures into another bank, such as SHA-1 only, or not at all. Choose the pool's bank as the TPM's algorithm in the firmware setup, or update the firmware.",
                ..PCR_MISMATCH
            },
            Self::PcrMismatch { .. } => PCR_MISMATCH,
            Self::BootIsOver(_) => BOOT_IS_OVER,
            Self::Boot(refusal) => refusal.advice(),
            Self::Vtpm(error) => error.advice(),
        }
    }

    /// Returns the values that the pool accepts, if the refusal is about them.
    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::PcrMismatch { accepted, .. } | Self::ReferenceSelection { accepted, .. } => Some(accepted),
            Self::Boot(refusal) => refusal.withheld(),
            Self::Vtpm(VtpmError::Instance(error)) => error.withheld(),
            _ => None,
        }
    }

    /// Returns the part of a boot that the refusal is about, if it is about one.
    #[must_use]
    pub fn place(&self) -> Option<BootLocation> {
        match self {
            Self::PcrMismatch { index, .. } => Some(BootLocation::Pcr(*index)),
            Self::Boot(refusal) => Some(refusal.place()),
            _ => None,
        }
    }

    /// Returns whether the EK is well-formed, but not endorsed.
    #[must_use]
    pub const fn is_not_endorsed(&self) -> bool {
        match self {
            Self::EkNotEndorsed { .. } | Self::EkUnknown { .. } | Self::EkCertificateUnread { .. } => true,
            Self::EkCertificate(error) | Self::Vtpm(VtpmError::Certificate(error)) => error.is_unknown_issuer() || error.is_unreadable(),
            _ => false,
        }
    }

    /// The stable code: [`Advice::code`].
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.advice().code
    }
}
