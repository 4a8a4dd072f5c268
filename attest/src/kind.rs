//! Kinds of evidence, and which of them a pool wants to see together.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A TPM's quote ([`crate::tpm`]).
    Tpm,
    /// An identity token of Google Compute Engine ([`crate::gcp`]).
    Gcp,
    /// An instance identity document of AWS ([`crate::aws::identity_document`]).
    AwsIdentityDocument,
    /// A NitroTPM attestation document of AWS ([`crate::aws::nitro_tpm`]).
    AwsNitroTpm,
    /// A signed request to AWS STS ([`crate::aws::sts`]).
    AwsSts,
    /// An attested document of Azure ([`crate::azure`]).
    Azure,
    /// A provisioning token, beside evidence of another kind. The gateway looks it up; nothing here verifies it.
    Token,
}

/// Who runs the machine, by the evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cloud {
    Google,
    Amazon,
    Microsoft,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Tpm,
        Self::Gcp,
        Self::AwsIdentityDocument,
        Self::AwsNitroTpm,
        Self::AwsSts,
        Self::Azure,
        Self::Token,
    ];

    /// The kind's word: in `pool.toml`, on the wire and in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::Gcp => "gcp",
            Self::AwsIdentityDocument => "aws-identity-document",
            Self::AwsNitroTpm => "aws-nitro-tpm",
            Self::AwsSts => "aws-sts",
            Self::Azure => "azure",
            Self::Token => "token",
        }
    }

    /// The member of messages, and the section of `pool.toml`, that is about this kind.
    #[must_use]
    pub const fn section(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::Gcp => "gcp",
            Self::AwsIdentityDocument => "aws_identity_document",
            Self::AwsNitroTpm => "aws_nitro_tpm",
            Self::AwsSts => "aws_sts",
            Self::Azure => "azure",
            Self::Token => "token",
        }
    }

    /// Whether a cloud says it of an instance.
    #[must_use]
    pub const fn is_of_a_cloud(self) -> bool {
        self.cloud().is_some()
    }

    /// Whether it comes from a TPM of the machine's, and not from a metadata server that every process can ask.
    #[must_use]
    pub const fn is_of_a_tpm(self) -> bool {
        matches!(self, Self::Tpm | Self::AwsNitroTpm)
    }

    const fn cloud(self) -> Option<Cloud> {
        match self {
            Self::Tpm | Self::Token => None,
            Self::Gcp => Some(Cloud::Google),
            Self::AwsIdentityDocument | Self::AwsNitroTpm | Self::AwsSts => Some(Cloud::Amazon),
            Self::Azure => Some(Cloud::Microsoft),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Kinds of evidence that a node has to show together. At least one of them says who the node is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Vec<Kind>", into = "Vec<Kind>")]
pub struct Combination(BTreeSet<Kind>);

/// Kinds that cannot be asked for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CombinationError {
    /// A kind twice.
    #[error("{0} is named twice")]
    Repeated(Kind),
    /// Nothing in it says who the node is.
    #[error("a combination needs at least one kind that says who the node is: any but \"token\"")]
    Nobody,
    /// A machine is in one cloud.
    #[error("{0} and {1} are evidence of different clouds: no machine has both")]
    Clouds(Kind, Kind),
}

impl TryFrom<Vec<Kind>> for Combination {
    type Error = CombinationError;

    fn try_from(list: Vec<Kind>) -> Result<Self, CombinationError> {
        let mut kinds = BTreeSet::new();
        for kind in list {
            if !kinds.insert(kind) {
                return Err(CombinationError::Repeated(kind));
            }
        }
        if kinds.iter().all(|kind| *kind == Kind::Token) {
            return Err(CombinationError::Nobody);
        }
        let mut clouds = kinds.iter().filter_map(|kind| Some((*kind, kind.cloud()?)));
        if let Some((first, cloud)) = clouds.next()
            && let Some((other, _)) = clouds.find(|(_, other)| *other != cloud)
        {
            return Err(CombinationError::Clouds(first, other));
        }
        Ok(Self(kinds))
    }
}

impl From<Combination> for Vec<Kind> {
    fn from(combination: Combination) -> Self {
        combination.0.into_iter().collect()
    }
}

impl From<Kind> for Combination {
    fn from(kind: Kind) -> Self {
        Self(BTreeSet::from([kind]))
    }
}

impl Combination {
    /// The kinds.
    #[must_use]
    pub const fn kinds(&self) -> &BTreeSet<Kind> {
        &self.0
    }

    /// Whether a kind is among them.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.0.contains(&kind)
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(&self.0))
    }
}

/// Kinds for a message: `tpm + gcp`.
pub(crate) fn list(kinds: &BTreeSet<Kind>) -> String {
    if kinds.is_empty() {
        return "nothing".to_owned();
    }
    let words: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    words.join(" + ")
}

/// Gives a message with one optional member for each kind of evidence the set of kinds that it has.
macro_rules! kinds_of {
    ($type:ty) => {
        impl $type {
            /// The kinds of evidence in it.
            #[must_use]
            pub fn kinds(&self) -> std::collections::BTreeSet<$crate::Kind> {
                let members = [
                    ($crate::Kind::Tpm, self.tpm.is_some()),
                    ($crate::Kind::Gcp, self.gcp.is_some()),
                    ($crate::Kind::AwsIdentityDocument, self.aws_identity_document.is_some()),
                    ($crate::Kind::AwsNitroTpm, self.aws_nitro_tpm.is_some()),
                    ($crate::Kind::AwsSts, self.aws_sts.is_some()),
                    ($crate::Kind::Azure, self.azure.is_some()),
                    ($crate::Kind::Token, self.token.is_some()),
                ];
                members
                    .into_iter()
                    .filter_map(|(kind, there)| there.then_some(kind))
                    .collect()
            }
        }
    };
}
pub(crate) use kinds_of;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(json: &str, expect: Result<&str, &str>) {
        let read = serde_json::from_str::<Combination>(json).map(|combination| combination.to_string());
        match expect {
            Ok(text) => assert_eq!(read.unwrap(), text),
            Err(part) => {
                let error = read.unwrap_err().to_string();
                assert!(error.contains(part), "{json}: {error}");
            }
        }
    }

    #[test]
    fn combinations_name_one_machine() {
        check(r#"["tpm"]"#, Ok("tpm"));
        check(r#"["gcp", "tpm"]"#, Ok("tpm + gcp"));
        check(
            r#"["aws-sts", "aws-identity-document", "aws-nitro-tpm", "token"]"#,
            Ok("aws-identity-document + aws-nitro-tpm + aws-sts + token"),
        );
        check("[]", Err("at least one kind"));
        check(r#"["token"]"#, Err("at least one kind"));
        check(r#"["tpm", "tpm"]"#, Err("tpm is named twice"));
        check(r#"["gcp", "azure"]"#, Err("gcp and azure are evidence of different clouds"));
        check(r#"["aws-sts", "gcp", "tpm"]"#, Err("different clouds"));
        check(r#"["sgx"]"#, Err("unknown variant"));
    }

    #[test]
    fn words_are_the_same_everywhere() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
    }
}
