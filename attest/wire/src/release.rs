//! Release of a program: its version, the commit that it was built from, and the versions of the formats that it reads and writes.

use std::fmt::Display;

/// Version of the protocol between a node and a gateway: the `v1` of its paths and signed texts.
pub const PROTOCOL_VERSION: u32 = 1;
/// Release of all programs of this workspace.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Commit that the program was built from, if the build had it in its environment.
const COMMIT: Option<&str> = option_env!("ATTEST_COMMIT");

/// Returns the release of all programs.
#[must_use]
pub const fn release() -> &'static str {
    RELEASE
}

/// Returns the commit that the program was built from; `unknown` if the build did not have it.
#[must_use]
pub fn commit() -> &'static str {
    COMMIT.filter(|commit| !commit.is_empty()).unwrap_or("unknown")
}

/// Returns the text of `--version` after the program's name: release, commit, and the version of each format, a line each.
#[must_use]
pub fn version_text(formats: &[(&str, &dyn Display)]) -> String {
    let commit = commit();
    let formats = formats.iter().map(|(name, version)| format!("\n{name}: {version}"));
    format!("{RELEASE}\ncommit: {commit}{}", formats.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{CHALLENGE_PATH, DISCOVERY_PATH, EVIDENCE_PATH};

    #[test]
    fn version_text_names_release_commit_and_formats() {
        let text = version_text(&[("protocol", &PROTOCOL_VERSION)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.first(), lines.last()), (Some(&RELEASE), Some(&"protocol: 1")));
        assert!(lines.get(1).is_some_and(|line| line.len() > "commit: ".len()), "{text}");
    }

    #[test]
    fn protocol_version_is_that_of_its_paths() {
        for path in [DISCOVERY_PATH, CHALLENGE_PATH, EVIDENCE_PATH] {
            assert!(path.starts_with(&format!("/v{PROTOCOL_VERSION}/")), "{path}");
        }
    }
}
