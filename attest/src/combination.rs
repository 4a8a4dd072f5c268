//! Combinations of kinds of evidence that a pool requires together.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kinds::Kind;

/// Kinds of evidence that a node has to show together. At least one of them says who the node is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Vec<Kind>", into = "Vec<Kind>")]
pub struct Combination(BTreeSet<Kind>);

/// Kinds that cannot be asked for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CombinationError {
    /// A kind is listed twice.
    #[error("{0} is named twice")]
    Repeated(Kind),
    /// No kind in the combination identifies the node.
    #[error("a combination needs at least one kind that identifies the node: any but \"token\"")]
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
    #[must_use]
    pub const fn kinds(&self) -> &BTreeSet<Kind> {
        &self.0
    }

    /// Returns whether the combination contains a kind.
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
}
