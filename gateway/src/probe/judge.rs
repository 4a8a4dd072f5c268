//! Comparison of the config that an unauthenticated client was given with the pre-approved config.

use std::collections::BTreeMap;

use attest_ignition::{Config, NotAConfig, SpecVersion};
use attest_log::ConfigSet;
use serde_json::Value;

use attest_pool::{ConfigDifference, EntryDifference, Pool, differences};

/// Most entries beyond the pre-approved config that are named.
const NAMED_LIMIT: usize = 3;

/// The pre-approved configs of this gateway's pools.
#[derive(Debug, Default)]
pub struct OwnConfigs {
    /// Configs in each version that can express them. One version states what another has by default.
    pre_approved: BTreeMap<String, Vec<Config>>,
}

/// Result of comparing an answer with the pre-approved config.
#[derive(Debug, PartialEq, Eq)]
pub enum ServedConfig {
    /// Something that the pre-approved config has not.
    Beyond(String),
    /// The pre-approved config, or a part of it.
    PreApproved,
    /// No config at all.
    NoConfig,
}

impl OwnConfigs {
    /// Adds a pool of this gateway's.
    pub fn add(&mut self, pool: &Pool) {
        let set = pool.for_administrator(ConfigSet::PreApproved);
        let configs = SpecVersion::ALL
            .into_iter()
            .filter_map(|version| Config::parse(&set.get(version).ok()?.bytes).ok());
        self.pre_approved.insert(pool.name().to_owned(), configs.collect());
    }

    /// Adds a pool by its pre-approved config alone, of any version, as `config render` prints it.
    ///
    /// # Errors
    /// [`NotAConfig`].
    pub fn add_config(&mut self, pool: &str, config: &[u8]) -> Result<(), NotAConfig> {
        let config = Config::parse(config)?;
        let versions = SpecVersion::ALL.into_iter();
        let configs = versions.filter_map(|version| Config::parse(&config.express(version).ok()?).ok());
        self.pre_approved.insert(pool.to_owned(), configs.collect());
        Ok(())
    }

    /// Returns the names of the pools that were added.
    pub fn pools(&self) -> impl Iterator<Item = &String> {
        self.pre_approved.keys()
    }

    /// Compares an answer with the pool's pre-approved config. Of a pool that this gateway has not, everything is too much.
    #[must_use]
    pub fn judge(&self, pool: &str, answer: &[u8]) -> ServedConfig {
        // The Machine Config Server, a load balancer's page: what is not even meant as a config gives nothing away that we know of.
        let meant = serde_json::from_slice::<Value>(answer).is_ok_and(|value| value.get("ignition").is_some());
        let bytes = answer.len();
        match Config::parse(answer) {
            Err(_) if !meant => ServedConfig::NoConfig,
            Err(error) => ServedConfig::Beyond(format!("{bytes} bytes that cannot be compared: {error}")),
            Ok(answer) => {
                let known = self.pre_approved.get(pool).map(Vec::as_slice).unwrap_or_default();
                let nothing = [Config::empty()];
                let least = known.iter().chain(&nothing).map(|ours| beyond(ours, &answer)).min_by_key(Vec::len);
                match least {
                    Some(beyond) if !beyond.is_empty() => ServedConfig::Beyond(describe(&beyond, bytes)),
                    _ => ServedConfig::PreApproved,
                }
            }
        }
    }
}

/// Returns the entries of the answer that our config does not have, or has differently.
fn beyond(ours: &Config, answer: &Config) -> Vec<ConfigDifference> {
    let mut differences = differences(ours, answer);
    differences.retain(|difference| difference.change != EntryDifference::Missing);
    differences
}

fn describe(beyond: &[ConfigDifference], bytes: usize) -> String {
    let named: Vec<String> = beyond
        .iter()
        .take(NAMED_LIMIT)
        .map(|difference| format!("{} {}", difference.kind, clean(&difference.name)))
        .collect();
    let more = if beyond.len() > NAMED_LIMIT { ", …" } else { "" };
    format!(
        "{bytes} bytes, with {} entries beyond the pre-approved config: {}{more}",
        beyond.len(),
        named.join(", ")
    )
}

/// Returns a foreign name in a form for one line of a terminal.
fn clean(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRE_APPROVED: &str = r#"{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,a"}},{"path":"/b","contents":{"source":"data:,b"}}]}}"#;

    #[track_caller]
    fn check(answer: &str, expect: Result<ServedConfig, &str>) {
        let ours = vec![Config::parse(PRE_APPROVED.as_bytes()).unwrap()];
        let known = OwnConfigs {
            pre_approved: BTreeMap::from([("worker".to_owned(), ours)]),
        };
        match (known.judge("worker", answer.as_bytes()), expect) {
            (ServedConfig::Beyond(what), Err(part)) => assert!(what.contains(part), "{part:?} is not in {what:?}"),
            (given, expect) => assert_eq!(Ok(given), expect, "{answer}"),
        }
    }

    #[test]
    fn reports_entries_beyond_the_pre_approved_config() {
        check(PRE_APPROVED, Ok(ServedConfig::PreApproved));
        check(r#"{"ignition":{"version":"3.6.0"}}"#, Ok(ServedConfig::PreApproved));
        let part = r#"{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/b","contents":{"source":"data:,b"}}]}}"#;
        check(part, Ok(ServedConfig::PreApproved));
        check(&part.replace("/b", "/c"), Err("1 entries beyond the pre-approved config: file /c"));
        // The same path with other contents is as good as another file.
        check(&part.replace("data:,b", "data:,SECRET"), Err("file /b"));
        let unit = r#"{"ignition":{"version":"3.4.0"},"systemd":{"units":[{"name":"x.service","enabled":true}]}}"#;
        check(unit, Err("unit x.service"));
        let merge = r#"{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"https://a/full"}]}}}"#;
        check(merge, Err("ignition config"));
        let spec2 =
            r#"{"ignition":{"version":"2.2.0"},"storage":{"files":[{"filesystem":"root","path":"/c","contents":{"source":"data:,c"}}]}}"#;
        check(spec2, Err("file /c"));
    }

    #[test]
    fn reports_incomparable_configs_and_ignores_other_bodies() {
        check(r#"{"ignition":{"version":"9.0.0"},"storage":{}}"#, Err("cannot be compared"));
        check(r#"{"ignition":{"version":"3.2.0"},"later":{}}"#, Err("cannot be compared"));
        for other in ["", "<html>", "[]", "{}", r#"{"storage":{}}"#] {
            check(other, Ok(ServedConfig::NoConfig));
        }
    }

    #[test]
    fn reports_every_entry_of_an_unknown_pool() {
        let known = OwnConfigs::default();
        assert!(matches!(known.judge("master", PRE_APPROVED.as_bytes()), ServedConfig::Beyond(_)));
        assert_eq!(
            known.judge("master", br#"{"ignition":{"version":"3.2.0"}}"#),
            ServedConfig::PreApproved
        );
    }
}
