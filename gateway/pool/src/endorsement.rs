//! Whose word for a TPM counts.

use serde::Deserialize;

/// Whose endorsement of a TPM a pool takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Endorsement {
    /// The administrator's only: whoever buys a TPM of a trusted maker is not thereby a node.
    #[default]
    Allowlist,
    /// A maker's too, by the EK certificate: any TPM of that maker, in whatever it is and whoever bought it.
    AnyTpmOfATrustedMaker,
    /// Google's only, by the certificate of the vTPM of an instance that the pool's rules accept.
    GcpInstance,
}

impl Endorsement {
    /// As `pool.toml` says it.
    pub(super) const fn word(self) -> &'static str {
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
                "tpm.endorsement cannot be {word:?}: say \"allowlist\" (`ek add` for each machine), \"gcp-instance\", or, if whoever buys a TPM of a maker in ek-roots may be a node, \"{ANY_TPM}\" (earlier releases: \"any\")"
            )),
        }
    }
}

const ALLOWLIST: &str = "allowlist";
const GCP_INSTANCE: &str = "gcp-instance";
/// The words for [`Endorsement::AnyTpmOfATrustedMaker`], so long because of what they give away.
pub(super) const ANY_TPM: &str = "any-tpm-of-a-trusted-maker";
