//! Error for data in a format that only newer releases read.

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
}
