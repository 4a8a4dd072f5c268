//! Compact form of a config that is not in use: JSON per entry, so that two configs share the entries that both have.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use attest_ignition::Config;
use serde_json::{Map, Value};

/// A config in a fraction of the memory that its values take.
#[derive(Clone)]
pub(super) struct Packed {
    /// The texts of all configs that were packed together, in one allocation. Many small ones, between freed memory, would hold far more
    /// than their size.
    texts: Arc<[u8]>,
    places: PackedPositions,
}

/// Positions of a config's texts among those of others that were packed with it.
#[derive(Clone)]
pub(super) struct PackedPositions {
    /// The config with empty lists.
    rest: Range<usize>,
    lists: Vec<PackedList>,
}

/// A list of files, units and so on: the texts of its entries.
#[derive(Clone)]
struct PackedList {
    section: String,
    name: String,
    entries: Vec<Range<usize>>,
}

/// Configs that are being packed together.
#[derive(Default)]
pub(super) struct Packing {
    texts: Vec<u8>,
    /// Positions of the texts, sorted by content.
    positions: Vec<Range<usize>>,
}

/// Maximum memory reserved for texts in advance: more than nearly all pools need.
const ROOM_LIMIT_BYTES: usize = 1024 * 1024;

impl Packing {
    /// Creates a buffer of about this size, because growing it means a copy, and wiping the old memory.
    pub(crate) fn for_about(bytes: usize) -> Self {
        Self {
            texts: Vec::with_capacity(bytes.min(ROOM_LIMIT_BYTES)),
            ..Self::default()
        }
    }

    /// Packs a config; returns the positions of its texts.
    pub(crate) fn add(&mut self, config: &Config) -> Result<PackedPositions, serde_json::Error> {
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
                lists.push(PackedList {
                    section: section.clone(),
                    name: name.clone(),
                    entries: entries.iter().map(|entry| self.keep(entry)).collect::<Result<_, _>>()?,
                });
                others.insert(name.clone(), Value::Array(Vec::new()));
            }
            rest.insert(section.clone(), Value::Object(others));
        }
        let rest = self.keep(&Value::Object(rest))?;
        Ok(PackedPositions { rest, lists })
    }

    fn keep(&mut self, value: &Value) -> Result<Range<usize>, serde_json::Error> {
        let start = self.texts.len();
        serde_json::to_writer(&mut self.texts, value)?;
        let new = start..self.texts.len();
        let text = text_at(&self.texts, &new);
        match self.positions.binary_search_by(|known| text_at(&self.texts, known).cmp(text)) {
            Ok(found) => {
                self.texts.truncate(start);
                Ok(self.positions.get(found).cloned().unwrap_or_default())
            }
            Err(place) => {
                self.positions.insert(place, new.clone());
                Ok(new)
            }
        }
    }

    /// Returns the texts of all packed configs, to which their positions refer.
    pub(crate) fn texts(self) -> Arc<[u8]> {
        self.texts.into()
    }
}

/// Returns the text at a position.
fn text_at<'t>(texts: &'t [u8], place: &Range<usize>) -> &'t [u8] {
    texts.get(place.clone()).unwrap_or_default()
}

impl PackedPositions {
    /// Returns the config's size in bytes.
    pub(crate) fn size(&self) -> usize {
        let entries = self.lists.iter().flat_map(|list| &list.entries);
        self.rest.len() + entries.map(|entry| entry.len() + 1).sum::<usize>()
    }
}

impl Packed {
    /// Creates a packed config; `places` must come from the packing that returned `texts`.
    pub(crate) const fn new(texts: Arc<[u8]>, places: PackedPositions) -> Self {
        Self { texts, places }
    }

    /// Returns the config's size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.places.size()
    }

    /// Unpacks the whole config.
    pub(crate) fn config(&self) -> Result<Config, serde_json::Error> {
        let text = |place| text_at(&self.texts, place);
        let mut config: Map<String, Value> = serde_json::from_slice(text(&self.places.rest))?;
        for PackedList { section, name, entries } in &self.places.lists {
            let list = config.get_mut(section).and_then(|section| section.get_mut(name));
            let entries = entries.iter().map(|entry| serde_json::from_slice(text(entry)));
            if let Some(list) = list {
                *list = Value::Array(entries.collect::<Result<_, _>>()?);
            }
        }
        Ok(Config::packed(config))
    }

    /// Returns its texts in order, with the lists that they belong to.
    fn texts(&self) -> impl Iterator<Item = (&str, &str, &[u8])> {
        let entries = |list: &'_ PackedList| list.entries.clone();
        let lists = self.places.lists.iter().flat_map(move |list| {
            let entries = entries(list).into_iter();
            entries.map(move |entry| (list.section.as_str(), list.name.as_str(), text_at(&self.texts, &entry)))
        });
        lists.chain([("", "", text_at(&self.texts, &self.places.rest))])
    }
}

impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        self.texts().eq(other.texts())
    }
}

/// Shows sizes only: a config holds secrets.
impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed")
            .field("lists", &self.places.lists.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together<const N: usize>(configs: [&Config; N]) -> [Packed; N] {
        let mut packing = Packing::default();
        let places = configs.map(|config| packing.add(config).unwrap());
        let texts = packing.texts();
        places.map(|places| Packed::new(Arc::clone(&texts), places))
    }

    #[test]
    fn packed_configs_round_trip_and_share_common_parts() {
        let config = |rest: &str| {
            let text = format!(
                r#"{{"ignition":{{"version":"3.4.0","timeouts":{{"httpTotal":3}},"config":{{"merge":[{{"source":"data:,"}}]}}}},"kernelArguments":{{"shouldExist":["b","a"]}},"storage":{{"files":[{{"path":"/a","mode":420}}{rest}],"links":[{{"path":"/l","target":"/a"}}]}}}}"#
            );
            Config::parse(text.as_bytes()).unwrap()
        };
        let (first, second) = (config(""), config(r#",{"path":"/b"}"#));
        let packed = together([&first, &second]);
        for (config, packed) in [&first, &second].into_iter().zip(&packed) {
            assert!(packed.config().unwrap() == *config);
            assert_eq!(
                packed.config().unwrap().express(attest_ignition::SpecVersion::NEWEST),
                config.express(attest_ignition::SpecVersion::NEWEST)
            );
        }
        let file = |packed: &Packed| packed.places.lists.iter().find(|list| list.name == "files").unwrap().entries[0].clone();
        assert_eq!(file(&packed[0]), file(&packed[1]));
        assert!(Arc::ptr_eq(&packed[0].texts, &packed[1].texts));
        assert!(packed[0] != packed[1] && packed[0] == packed[0].clone());
        // What it was packed with says nothing of it.
        let [alone] = together([&first]);
        assert!(alone == packed[0] && alone.texts.len() < packed[0].texts.len());
        let [empty] = together([&Config::empty()]);
        assert!(empty.config().unwrap() == Config::empty());
    }

    #[test]
    fn no_debug_output_shows_a_value() {
        let text = br#"{"ignition":{"version":"3.1.0"},"storage":{"files":[{"path":"/a","contents":{"source":"data:,hunter2"}}]}}"#;
        let [packed] = together([&Config::parse(text).unwrap()]);
        assert!(!format!("{packed:?}").contains("hunter"));
    }
}
