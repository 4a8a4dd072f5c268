//! Ignition configs, as far as a gateway that does not render them needs to understand them.

pub mod pointer;

use ignition_config::Config;

/// What nodes would refuse to boot from.
#[derive(Debug, thiserror::Error)]
pub enum NotAConfig {
    /// Not JSON, not Ignition, or a spec version that does not exist.
    #[error("not an Ignition config of spec 3.x: {0}")]
    Parse(String),
    /// A config without a version: also what an empty file is to Ignition, which then boots the node unconfigured.
    #[error("the config is empty")]
    Empty,
}

/// Checks that a config is one that Ignition takes. Spec 3.0 to 3.5.
///
/// # Errors
/// [`NotAConfig`].
pub fn check(bytes: &[u8]) -> Result<(), NotAConfig> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(NotAConfig::Empty);
    }
    match Config::parse_slice(bytes) {
        Ok((Config::V3_0(_) | Config::V3_1(_) | Config::V3_2(_) | Config::V3_3(_) | Config::V3_4(_) | Config::V3_5(_), warnings)) => {
            match warnings.first() {
                None => Ok(()),
                // A misspelt key is silently dropped by Ignition: the node would boot without what it was meant to have.
                Some(warning) => Err(NotAConfig::Parse(warning.to_string())),
            }
        }
        Ok(_) => Err(NotAConfig::Parse("this spec version is not supported".to_owned())),
        Err(error) => Err(NotAConfig::Parse(error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn takes_what_ignition_takes() {
        for version in ["3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0"] {
            check(format!("{{\"ignition\":{{\"version\":\"{version}\"}}}}").as_bytes()).unwrap();
        }
        for bad in [
            "",
            " \n",
            "{}",
            "[]",
            "null",
            "x",
            r#"{"ignition":{}}"#,
            r#"{"ignition":{"version":"2.2.0"}}"#,
            r#"{"ignition":{"version":"3.99.0"}}"#,
            r#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":1}]}}"#,
            r#"{"ignition":{"version":"3.1.0"},"sotrage":{}}"#,
            r#"{"ignition":{"version":"3.1.0"}"#,
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
