//! Derives Ignition's order of config sources from its version output.

/// The orders that Ignition has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnitionVersion {
    /// Order with one folder, and a URL on the kernel command line.
    UpTo2_26,
    /// Three folders, and also a file on a device.
    From2_27,
    /// The version is not reported.
    Unknown,
}

impl IgnitionVersion {
    /// Parses the output of `ignition --version`: `Ignition 2.14.0`, `Ignition Debian 2.14.0+ds1-1`, of a build between releases `Ignition
    /// v2.26.0-74-ga5d574a8`, or of one by hand `Ignition was not built properly`. The distribution chooses the text.
    #[must_use]
    pub fn parse(said: &str) -> Self {
        match (release(said), version_token(said)) {
            // What 2.27 has came soon after 2.26.
            (Some((2, 26)), Some(version)) if version.contains("-g") => Self::From2_27,
            (Some(release), _) if release > (2, 26) => Self::From2_27,
            (Some(_), _) => Self::UpTo2_26,
            (None, _) => Self::Unknown,
        }
    }
}

/// Parses the release from that output; for a build between releases, the one before.
#[must_use]
pub fn release(said: &str) -> Option<(u32, u32)> {
    let mut parts = version_token(said)?.split(['.', '-', '+']);
    let mut number = || parts.next()?.parse::<u32>().ok();
    Some((number()?, number()?))
}

/// The newest version of the config spec that a release reads, but for experimental ones (`config/` of coreos/ignition, by its tags from 2.14 on).
#[must_use]
pub fn newest_spec(release: (u32, u32)) -> Option<&'static str> {
    match release {
        (2, 14) => Some("3.3.0"),
        (2, 15..=19) => Some("3.4.0"),
        (2, 20..=25) => Some("3.5.0"),
        (2, 26..) | (3.., _) => Some("3.6.0"),
        _ => None,
    }
}

fn version_token(said: &str) -> Option<&str> {
    said.split_whitespace()
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: IgnitionVersion, said: &[&str]) {
        for said in said {
            assert_eq!(IgnitionVersion::parse(said), version, "{said}");
        }
    }

    fn check_spec(said: &str, spec: Option<&str>) {
        assert_eq!(release(said).and_then(newest_spec), spec, "{said}");
    }

    #[test]
    fn ignition_release_determines_the_highest_spec() {
        check_spec("Ignition Debian 2.14.0+ds1-1+b19", Some("3.3.0"));
        check_spec("Ignition 2.19.0", Some("3.4.0"));
        check_spec("Ignition v2.20.0-3-gabcdef0", Some("3.5.0"));
        check_spec("Ignition 2.25.1", Some("3.5.0"));
        check_spec("Ignition 2.27.0", Some("3.6.0"));
        check_spec("Ignition 2.9.0", None);
        check_spec("Ignition was not built properly", None);
    }

    #[test]
    fn versions_of_ignition_are_understood() {
        check(
            IgnitionVersion::From2_27,
            &[
                "Ignition 2.27.0\n",
                "Ignition v2.26.0-74-ga5d574a8",
                "Ignition Debian 2.27.0+ds1-1",
                "Ignition 3.0.0",
                "Ignition 2.100.0-rc1",
            ],
        );
        check(
            IgnitionVersion::UpTo2_26,
            &[
                "Ignition 2.26.0\n",
                "Ignition Debian 2.14.0+ds1-1+b19",
                "Ignition 2.9.0-5-gabcdef0",
                "Ignition 0.36.0",
            ],
        );
        check(IgnitionVersion::Unknown, &["", "Ignition was not built properly", "Ignition 2"]);
    }
}
