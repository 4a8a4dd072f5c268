//! Reference values with a history: sets of them, each a file of several generations.
//!
//! A set is JSON. Each of its generations has the time of its addition, its author and source, and an optional expiry. Its values are
//! digests of PCRs, and of the events of a boot. An update adds a new generation next to the old one, which expires when the nodes are
//! updated.
//!
//! A value is accepted if **any** unexpired generation has it: values of several generations may be mixed.

mod corim;
mod error;
mod generation;
mod loaded;
mod new_value;
mod time;
mod values;

use serde::{Deserialize, Serialize};

pub use corim::{CorimError, from_corim, to_corim};
pub use error::ReferenceSetError;
pub use generation::{Generation, ValueOrigin};
pub use loaded::{ListedValue, ReferenceKind, ReferenceQuery, ReferenceSets};
pub use new_value::{Is, NewValue};
pub use time::Time;
pub use values::{Digests, EventValue, PcrValue, SectionValue, Values};

/// Largest file of a set, in bytes.
pub const SET_LIMIT_BYTES: usize = 1024 * 1024;

/// Maximum number of generations in a set. One that expired long ago can be removed.
pub const GENERATIONS_LIMIT: usize = 64;

/// Most values of a generation, all lists together: some hundred drivers of a boot loader and commands of its, some hundred hashes of a dbx.
pub const VALUES_LIMIT: usize = 4096;

/// Longest name, and longest word on where something comes from, in bytes.
pub const NAME_LIMIT_BYTES: usize = 256;

/// Longest name of a value, in bytes. A command of GRUB's and a command line are named by their text, so that a message can say in what another one differs; those
/// of RHEL CoreOS have some 400.
pub const VALUE_NAME_LIMIT_BYTES: usize = 1024;

/// A set of reference values: what one file says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceSet {
    format: SetFormat,
    /// In the order in which they were added.
    pub generations: Vec<Generation>,
}

/// The format's name and version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum SetFormat {
    #[default]
    #[serde(rename = "attest-reference-values/1")]
    V1,
}

impl ReferenceSet {
    /// A set of these generations.
    ///
    /// # Errors
    /// [`ReferenceSetError`].
    pub fn new(generations: Vec<Generation>) -> Result<Self, ReferenceSetError> {
        let set = Self {
            format: SetFormat::V1,
            generations,
        };
        set.check()?;
        Ok(set)
    }

    /// Reads a set from the text of its file.
    ///
    /// # Errors
    /// [`ReferenceSetError`].
    pub fn parse(text: &str) -> Result<Self, ReferenceSetError> {
        if text.len() > SET_LIMIT_BYTES {
            return Err(ReferenceSetError::TooLarge { found: text.len() });
        }
        let set: Self = serde_json::from_str(text).map_err(|error| ReferenceSetError::Json(error.to_string()))?;
        set.check()?;
        Ok(set)
    }

    /// The file, for people to review: one line for each member.
    ///
    /// # Errors
    /// [`ReferenceSetError`], if it could not be read again.
    pub fn to_json(&self) -> Result<String, ReferenceSetError> {
        self.check()?;
        let mut text = serde_json::to_string_pretty(self).map_err(|error| ReferenceSetError::Json(error.to_string()))?;
        text.push('\n');
        match text.len() {
            0..=SET_LIMIT_BYTES => Ok(text),
            found => Err(ReferenceSetError::TooLarge { found }),
        }
    }

    fn check(&self) -> Result<(), ReferenceSetError> {
        let found = self.generations.len();
        if found > GENERATIONS_LIMIT {
            return Err(ReferenceSetError::TooManyGenerations { found });
        }
        for (place, generation) in self.generations.iter().enumerate() {
            if self.generations.iter().take(place).any(|earlier| earlier.name == generation.name) {
                return Err(ReferenceSetError::Repeated(generation.name.clone()));
            }
            generation.check()?;
        }
        Ok(())
    }
}
