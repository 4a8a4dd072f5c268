//! Error for data in a format that only newer releases read.

use serde::Deserialize;
use serde_json::Value;

/// Longest name of a release, in characters.
const RELEASE_LIMIT_CHARACTERS: usize = 32;

/// Data has a version of its format that this release does not read. A command that ends with it has changed nothing, and exits with 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewerFormat {
    /// Name of the format, for messages.
    pub format: &'static str,
    /// Version that the data has.
    pub found: i64,
    /// Newest version that this release reads.
    pub known: i64,
    /// First release that reads the data, if the data names one. It is not verified.
    pub release: Option<String>,
}

/// Members that a JSON document has in each version.
#[derive(Deserialize)]
struct VersionedDocument {
    v: i64,
    release: Option<Value>,
}

impl NewerFormat {
    /// Returns the error for a JSON document whose version, member `v`, is newer than the `known` one; `None` for any other text.
    #[must_use]
    pub fn in_json(format: &'static str, known: i64, text: &[u8]) -> Option<Self> {
        let VersionedDocument { v: found, release } = serde_json::from_slice(text).ok()?;
        (found > known).then(|| Self {
            format,
            found,
            known,
            release: release.and_then(|release| Some(release.as_str()?.to_owned())),
        })
    }

    /// Returns the error for a file whose first line is `head` with a higher number at its end; `None` for any other text.
    #[must_use]
    pub fn in_head(format: &'static str, head: &str, text: &str) -> Option<Self> {
        let (name, known) = head.rsplit_once(' ')?;
        let found = text.lines().next()?.strip_prefix(name)?.strip_prefix(' ')?;
        let (found, known) = (found.parse().ok()?, known.parse().ok()?);
        (found > known).then_some(Self {
            format,
            found,
            known,
            release: None,
        })
    }
}

impl std::fmt::Display for NewerFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            format,
            found,
            known,
            release,
        } = self;
        let this = env!("CARGO_PKG_VERSION");
        write!(f, "{format} {found}, and release {this} reads {known}: run ")?;
        match release.as_deref().filter(|release| could_be_a_release(release)) {
            Some(release) => write!(f, "release {release} or a newer one"),
            None => f.write_str("the release that wrote it, or a newer one"),
        }
    }
}

impl std::error::Error for NewerFormat {}

fn could_be_a_release(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    !text.is_empty() && text.len() <= RELEASE_LIMIT_CHARACTERS && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_both_versions_and_the_release_that_reads_it() {
        let newer = |release: Option<&str>| {
            let release = release.map(str::to_owned);
            let (format, found, known) = ("store schema", 2, 1);
            NewerFormat {
                format,
                found,
                known,
                release,
            }
            .to_string()
        };
        let this = env!("CARGO_PKG_VERSION");
        let text = newer(Some("0.2.0"));
        assert_eq!(
            text,
            format!("store schema 2, and release {this} reads 1: run release 0.2.0 or a newer one")
        );
        for unusable in [
            None,
            Some(""),
            Some("0.2.0\u{1b}[31m"),
            Some("0.2.0; curl example.com"),
            Some(&"1".repeat(33)),
        ] {
            assert!(
                newer(unusable).ends_with("reads 1: run the release that wrote it, or a newer one"),
                "{unusable:?}"
            );
        }
    }

    #[test]
    fn reads_the_version_of_a_document_whatever_else_it_holds() {
        let found = |text: &str| NewerFormat::in_json("log", 1, text.as_bytes()).map(|newer| (newer.found, newer.release));
        assert_eq!(found(r#"{"v":2,"x":[1]}"#), Some((2, None)));
        assert_eq!(found(r#"{"x":0,"release":"0.2.0","v":3}"#), Some((3, Some("0.2.0".to_owned()))));
        assert_eq!(found(r#"{"v":2,"release":7}"#), Some((2, None)));
        for other in [r#"{"v":1,"x":1}"#, r#"{"v":0}"#, r#"{"v":"2"}"#, r#"{"x":2}"#, r#"{"v":2"#, "2", ""] {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn reads_the_version_at_the_end_of_a_first_line() {
        let found = |text: &str| NewerFormat::in_head("version", "a key 2", text).map(|newer| (newer.found, newer.known));
        assert_eq!(found("a key 3\nmore"), Some((3, 2)));
        assert_eq!(found("a key 10"), Some((10, 2)));
        for other in ["a key 2\n", "a key 1", "a key", "a key x", "a keys 3", "b key 3", "\na key 3", ""] {
            assert_eq!(found(other), None, "{other:?}");
        }
    }
}
