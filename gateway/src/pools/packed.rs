//! A config as it is kept while nobody asks for it: as JSON, entry by entry, so that two configs keep once what both have.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::ignition::Config;

/// A config in a fraction of the memory that its values take.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Packed {
    /// The config with empty lists.
    rest: Arc<[u8]>,
    lists: Vec<List>,
}

/// A list of files, units and so on: the texts of its entries.
#[derive(Clone, PartialEq, Eq)]
struct List {
    section: String,
    name: String,
    entries: Vec<Arc<[u8]>>,
}

/// Entries that are kept already.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeSet<Arc<[u8]>>);

impl Kept {
    fn keep(&mut self, text: Vec<u8>) -> Arc<[u8]> {
        if let Some(known) = self.0.get(text.as_slice()) {
            return Arc::clone(known);
        }
        let text: Arc<[u8]> = text.into();
        self.0.insert(Arc::clone(&text));
        text
    }
}

impl Packed {
    pub fn of(config: &Config, kept: &mut Kept) -> Result<Self, serde_json::Error> {
        let (mut rest, mut lists) = (Map::new(), Vec::new());
        for (section, value) in config.value() {
            let Value::Object(fields) = value else {
                rest.insert(section.clone(), value.clone());
                continue;
            };
            let mut others = Map::new();
            for (name, value) in fields {
                let Value::Array(entries) = value else {
                    others.insert(name.clone(), value.clone());
                    continue;
                };
                let entries = entries.iter().map(|entry| Ok(kept.keep(serde_json::to_vec(entry)?)));
                lists.push(List {
                    section: section.clone(),
                    name: name.clone(),
                    entries: entries.collect::<Result<_, serde_json::Error>>()?,
                });
                others.insert(name.clone(), Value::Array(Vec::new()));
            }
            rest.insert(section.clone(), Value::Object(others));
        }
        let rest = serde_json::to_vec(&rest)?.into();
        Ok(Self { rest, lists })
    }

    /// The config again.
    pub fn config(&self) -> Result<Config, serde_json::Error> {
        let mut config: Map<String, Value> = serde_json::from_slice(&self.rest)?;
        for List { section, name, entries } in &self.lists {
            let list = config.get_mut(section).and_then(|section| section.get_mut(name));
            let entries = entries.iter().map(|entry| serde_json::from_slice(entry));
            if let Some(list) = list {
                *list = Value::Array(entries.collect::<Result<_, _>>()?);
            }
        }
        Ok(Config::packed(config))
    }
}

/// Shows sizes only: a config holds secrets.
impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed").field("lists", &self.lists.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_two_configs_share_what_both_have() {
        let config = |rest: &str| {
            let text = format!(
                r#"{{"ignition":{{"version":"3.4.0","timeouts":{{"httpTotal":3}},"config":{{"merge":[{{"source":"data:,"}}]}}}},"kernelArguments":{{"shouldExist":["b","a"]}},"storage":{{"files":[{{"path":"/a","mode":420}}{rest}],"links":[{{"path":"/l","target":"/a"}}]}}}}"#
            );
            Config::parse(text.as_bytes()).unwrap()
        };
        let mut kept = Kept::default();
        let (first, second) = (config(""), config(r#",{"path":"/b"}"#));
        let packed = [&first, &second].map(|config| Packed::of(config, &mut kept).unwrap());
        for (config, packed) in [&first, &second].into_iter().zip(&packed) {
            assert!(packed.config().unwrap() == *config);
            assert_eq!(
                packed.config().unwrap().express(crate::ignition::SpecVersion::NEWEST),
                config.express(crate::ignition::SpecVersion::NEWEST)
            );
        }
        let file = |packed: &Packed| packed.lists.iter().find(|list| list.name == "files").unwrap().entries[0].as_ptr();
        assert_eq!(file(&packed[0]), file(&packed[1]));
        assert!(packed[0] != packed[1] && packed[0] == packed[0].clone());
        let empty = Packed::of(&Config::empty(), &mut kept).unwrap();
        assert!(empty.config().unwrap() == Config::empty());
    }

    #[test]
    fn no_debug_output_shows_a_value() {
        let text = br#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,hunter2"}}]}}"#;
        let packed = Packed::of(&Config::parse(text).unwrap(), &mut Kept::default()).unwrap();
        assert!(!format!("{packed:?}").contains("hunter"));
    }
}
