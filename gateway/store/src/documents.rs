//! What stands under the keys: JSON, each with the version that it is written in. What this release does not know is not taken for something else.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::engine::{Transaction, Unfinished};

/// The version of the documents below, `1`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub(super) struct Version;

impl Version {
    const NUMBER: u64 = 1;
}

impl TryFrom<u64> for Version {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match number {
            Self::NUMBER => Ok(Self),
            newer => Err(format!("it has version {newer}, and this release knows {} only", Self::NUMBER)),
        }
    }
}

impl From<Version> for u64 {
    fn from(_: Version) -> Self {
        Version::NUMBER
    }
}

/// An entry. Also what is left of one that is gone while decisions stand on what it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryDocument {
    pub v: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What each decision has written that is not recorded yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub decisions: BTreeMap<String, Written>,
}

/// What a decision has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    pub value: String,
    /// What was there before, and will be again if the decision comes to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// The uses of a thing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UseDocument {
    pub v: Version,
    /// Gone when they are forgotten; who stands on them may be there still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
    /// The decisions that are not recorded yet, by the number of the use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pending: BTreeMap<u32, Standing>,
}

/// How often a thing was used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Used {
    /// The highest number that a use of it ever had.
    pub highest: u32,
    /// Seconds since 1970.
    pub remember_until: u64,
    /// Numbers that were given back.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub freed: BTreeSet<u32>,
    /// When it was used first, if it had expired by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_since: Option<u64>,
    /// Whether it is remembered of somebody to have made a use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holders: bool,
}

/// Who stands on one use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Standing {
    /// The key of who has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    pub decisions: BTreeSet<String>,
}

/// Who has made a use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HolderDocument {
    pub v: Version,
    /// Of the use.
    pub number: u32,
    /// When, seconds since 1970.
    pub at: u64,
    /// How often it was made again.
    pub repeats: u32,
}

/// A decision that is not recorded yet. What it stands on says so, too, and counts: others may have settled it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PendingDocument {
    pub v: Version,
    /// Seconds since 1970.
    pub at: u64,
    /// Which of several gateways decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Keys of entries that it has written, or shares.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub entries: BTreeSet<String>,
    /// Keys of uses that it stands on.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub uses: BTreeSet<String>,
    /// Uses that it has made again, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub repeats: BTreeMap<String, Repeat>,
}

/// A use that was made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Repeat {
    /// The key of who has made it.
    pub holder: String,
    pub number: u32,
}

/// What a store says of the time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeDocument {
    pub v: Version,
    /// The store's own time, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub believed: Option<u64>,
    /// What expired no later than that may have been forgotten.
    pub forgotten_until: u64,
}

/// That something is remembered until then: the key says all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpiryDocument {
    pub v: Version,
}

/// A document that says nothing any more need not be there.
pub(super) trait Empty {
    fn is_empty(&self) -> bool;
}

impl Empty for EntryDocument {
    fn is_empty(&self) -> bool {
        self.value.is_none() && self.decisions.is_empty()
    }
}

impl Empty for UseDocument {
    fn is_empty(&self) -> bool {
        self.used.is_none() && self.pending.is_empty()
    }
}

pub(super) fn read<D: DeserializeOwned>(transaction: &mut dyn Transaction, key: &str) -> Result<Option<D>, Unfinished> {
    let text = transaction.get(key)?;
    Ok(text.map(|text| parse(key, &text)).transpose()?)
}

pub(super) fn parse<D: DeserializeOwned>(key: &str, text: &str) -> Result<D, StoreError> {
    serde_json::from_str(text).map_err(|source| unreadable(key, source))
}

pub(super) fn write(transaction: &mut dyn Transaction, key: &str, document: &impl Serialize) -> Result<(), Unfinished> {
    let text = serde_json::to_string(document).map_err(|source| unreadable(key, source))?;
    transaction.put(key, &text)
}

/// Writes it, or removes what is there if it says nothing.
pub(super) fn write_or_remove(transaction: &mut dyn Transaction, key: &str, document: &(impl Serialize + Empty)) -> Result<(), Unfinished> {
    if document.is_empty() {
        transaction.delete(key)
    } else {
        write(transaction, key, document)
    }
}

fn unreadable(key: &str, source: serde_json::Error) -> StoreError {
    StoreError::Document {
        key: key.to_owned(),
        source,
    }
}
