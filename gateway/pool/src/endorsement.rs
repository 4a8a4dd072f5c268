//! Sources of endorsement for a TPM.

use serde::Deserialize;

/// Endorsement of a TPM that a pool requires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Endorsement {
    /// The administrator's only. A TPM of a trusted manufacturer, which anyone can buy, does not suffice.
    #[default]
    Allowlist,
    /// The manufacturer's too, by the EK certificate: any TPM of a trusted manufacturer, in any machine and of any owner.
    AnyTpmOfATrustedMaker,
    /// Google's only, by the certificate of the vTPM of an instance that the pool's rules accept.
    GcpInstance,
}

impl Endorsement {
    /// Returns the value as written in `pool.toml`.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Allowlist => ALLOWLIST,
            Self::AnyTpmOfATrustedMaker => ANY_TPM,
            Self::GcpInstance => GCP_INSTANCE,
        }
    }
}

impl TryFrom<String> for Endorsement {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        match word.as_str() {
            ALLOWLIST => Ok(Self::Allowlist),
            ANY_TPM => Ok(Self::AnyTpmOfATrustedMaker),
            GCP_INSTANCE => Ok(Self::GcpInstance),
            _ => Err(format!(
                "tpm.endorsement cannot be {word:?}: say \"allowlist\" (`attest-gateway ek add` for each machine), \"gcp-instance\", or, if any TPM of a manufacturer in ek-roots may join, \"{ANY_TPM}\" (earlier releases: \"any\")"
            )),
        }
    }
}

const ALLOWLIST: &str = "allowlist";
const GCP_INSTANCE: &str = "gcp-instance";
/// The value for [`Endorsement::AnyTpmOfATrustedMaker`]; long, to make plain what it gives away.
pub(super) const ANY_TPM: &str = "any-tpm-of-a-trusted-maker";
