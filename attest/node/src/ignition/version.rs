//! Which order an Ignition has, by what it says of its version.

/// The orders that Ignition has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One folder, and a URL on the kernel command line.
    UpTo2_26,
    /// Three folders, and also a file on a device.
    From2_27,
    /// It does not say.
    Unknown,
}

impl Version {
    /// By what `ignition --version` says: `Ignition 2.14.0`, `Ignition Debian 2.14.0+ds1-1`, or of a build between releases `Ignition
    /// v2.26.0-74-ga5d574a8`, or of one by hand `Ignition was not built properly`. What stands there is the distribution's to choose.
    #[must_use]
    pub fn of(said: &str) -> Self {
        let version = said
            .split_whitespace()
            .map(|word| word.trim_start_matches('v'))
            .find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()));
        let Some(version) = version else { return Self::Unknown };
        let mut parts = version.split(['.', '-', '+']);
        let mut number = || parts.next()?.parse::<u32>().ok();
        match (number(), number()) {
            // What 2.27 has came soon after 2.26.
            (Some(2), Some(26)) if version.contains("-g") => Self::From2_27,
            (Some(major), Some(minor)) if (major, minor) > (2, 26) => Self::From2_27,
            (Some(_), Some(_)) => Self::UpTo2_26,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: Version, said: &[&str]) {
        for said in said {
            assert_eq!(Version::of(said), version, "{said}");
        }
    }

    #[test]
    fn versions_of_ignition_are_understood() {
        check(
            Version::From2_27,
            &[
                "Ignition 2.27.0\n",
                "Ignition v2.26.0-74-ga5d574a8",
                "Ignition Debian 2.27.0+ds1-1",
                "Ignition 3.0.0",
                "Ignition 2.100.0-rc1",
            ],
        );
        check(
            Version::UpTo2_26,
            &[
                "Ignition 2.26.0\n",
                "Ignition Debian 2.14.0+ds1-1+b19",
                "Ignition 2.9.0-5-gabcdef0",
                "Ignition 0.36.0",
            ],
        );
        check(Version::Unknown, &["", "Ignition was not built properly", "Ignition 2"]);
    }
}
