//! Patterns for the node names of a pool, since a kubelet's certificate names a node and no pool.

/// Longest name of a node (DNS-1123 subdomain), and of a pattern.
const NAME_LIMIT_BYTES: usize = 253;
/// Maximum number of patterns of one pool. Each is compared for each request, and is part of its record.
const PATTERNS_LIMIT: usize = 100;

/// Reason why patterns are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// More patterns than the limit.
    #[error("{found} patterns, at most {PATTERNS_LIMIT} are read")]
    TooMany { found: usize },
    /// A pattern that no node name can match.
    #[error("{0:?} is not a pattern of node names: at most 253 lower-case letters, digits, '-', '.' and '*'")]
    Pattern(String),
}

/// A node whose name matches no pattern of the pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {name} does not belong to pool {pool}, whose kubelet.names are {}", names.join(", "))]
pub struct WrongPool {
    /// The name in the node's certificate.
    pub name: String,
    pub pool: String,
    /// The patterns of the pool's names.
    pub names: Vec<String>,
}

impl WrongPool {
    /// The code of the refusal.
    pub const CODE: &'static str = "kubelet-wrong-pool";
}

/// Patterns of the names of a pool's nodes; `*` matches any characters, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamePatterns(Vec<String>);

impl NamePatterns {
    /// Checks the patterns' number and syntax.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn new(patterns: Vec<String>) -> Result<Self, PatternError> {
        if patterns.len() > PATTERNS_LIMIT {
            return Err(PatternError::TooMany { found: patterns.len() });
        }
        match patterns.iter().find(|pattern| !is_pattern(pattern)) {
            Some(wrong) => Err(PatternError::Pattern(wrong.clone())),
            None => Ok(Self(patterns)),
        }
    }

    /// Returns whether there are no patterns.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that a node of that name belongs to `pool`, by its patterns.
    ///
    /// # Errors
    /// [`WrongPool`].
    pub fn check(&self, name: &str, pool: &str) -> Result<(), WrongPool> {
        if self.0.iter().any(|pattern| matches(pattern, name)) {
            return Ok(());
        }
        Err(WrongPool {
            name: name.to_owned(),
            pool: pool.to_owned(),
            names: self.0.clone(),
        })
    }

    /// Returns the patterns as written in `pool.toml`.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// Returns whether some node name can match: whether replacing each `*` by a letter gives a valid name.
fn is_pattern(pattern: &str) -> bool {
    pattern.len() <= NAME_LIMIT_BYTES && is_subdomain(&pattern.replace('*', "a"))
}

/// Returns whether the name matches, in time linear in its length per piece of the pattern. The first piece is at the beginning, the last
/// at the end, the others in between, each as early as possible.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(first) else { return false };
    let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut name) = name.strip_suffix(last) else { return false };
    for piece in between.split('*') {
        match name.split_once(piece) {
            Some((_, after)) => name = after,
            None => return false,
        }
    }
    true
}

/// Returns whether the name is a DNS-1123 subdomain, as Kubernetes requires of a node name.
pub(super) fn is_subdomain(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
    };
    name.len() <= NAME_LIMIT_BYTES && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, name: &str, expected: bool) {
        let patterns = NamePatterns::new(vec![pattern.to_owned()]).unwrap();
        assert_eq!(patterns.check(name, "worker").is_ok(), expected, "{pattern:?} {name:?}");
    }

    #[test]
    fn star_matches_any_characters_in_a_node_name() {
        check("worker-*", "worker-1", true);
        check("worker-*", "worker-", true);
        check("worker-*", "worker", false);
        check("worker-*", "a-worker-1", false);
        check("worker-1", "worker-1", true);
        check("worker-1", "worker-10", false);
        check("*", "x", true);
        check("*.example.com", "a.b.example.com", true);
        check("*.example.com", "example.com", false);
        check("a*b*c", "abc", true);
        check("a*b*c", "axxbyyc", true);
        check("a*b*c", "axxyyc", false);
        check("a*bb*b", "abb", false);
        check("a*a", "a", false);
        check("w**r", "wr", true);
        check("worker.x", "workerax", false);
    }

    #[test]
    fn rejects_patterns_that_no_node_name_can_match() {
        for wrong in [
            "",
            " ",
            "Worker-*",
            "worker_*",
            "worker-[1]",
            "worker-?",
            ".worker",
            "worker-",
            "-*",
            "a..b",
            "a/b",
            "a\n",
        ] {
            assert_eq!(
                NamePatterns::new(vec!["ok".to_owned(), wrong.to_owned()]),
                Err(PatternError::Pattern(wrong.to_owned()))
            );
        }
        assert!(NamePatterns::new(vec!["a".repeat(254)]).is_err());
        assert!(NamePatterns::new(vec!["a".to_owned(); 101]).is_err());
    }
}
