//! JSON documents under the store's keys, each with the version of its format. Content that this release does not know is an error.

use std::collections::BTreeSet;

use attest_system::newer_format::NewerFormat;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::engine::{Transaction, WorkInterrupted};

/// The version of the documents below, `1`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub(super) struct DocumentVersion;

impl DocumentVersion {
    const NUMBER: i64 = 1;
}

impl TryFrom<i64> for DocumentVersion {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match number {
            Self::NUMBER => Ok(Self),
            other => Err(format!("it has version {other}, and this release reads {}", Self::NUMBER)),
        }
    }
}

impl From<DocumentVersion> for i64 {
    fn from(_: DocumentVersion) -> Self {
        DocumentVersion::NUMBER
    }
}

/// Document under `entry/KIND/ID`: an entry's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryDocument {
    pub v: DocumentVersion,
    pub value: String,
}

/// The uses of a thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UseDocument {
    pub v: DocumentVersion,
    pub used: Used,
}

/// Uses of one thing, with their expiry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Used {
    /// Highest number that a use ever had.
    pub highest: u32,
    /// Time until which the uses are remembered, in seconds since 1970.
    pub remember_until: u64,
    /// Numbers that were given back.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub freed: BTreeSet<u32>,
    /// Time of the first use, if the thing had expired by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_since: Option<u64>,
    /// Set if the holder of a use is remembered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holders: bool,
}

/// Document of a holder: its use of a thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HolderDocument {
    pub v: DocumentVersion,
    /// Number of the use.
    pub number: u32,
    /// When, seconds since 1970.
    pub at: u64,
    /// Number of times that the holder has repeated the use.
    pub repeats: u32,
}

/// A decision that is not recorded yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PendingDocument {
    pub v: DocumentVersion,
    /// Time of the decision, in seconds since 1970.
    pub at: u64,
    /// The gateway that has decided, where several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// Record for the attestation log, if the gateway ends before it has written its own.
    pub record: String,
    /// Set if another gateway's log may have the record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The use that it has made, until that is given back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<UseOfDecision>,
}

/// A use that a decision has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UseOfDecision {
    /// The key of the thing's uses.
    pub key: String,
    pub number: u32,
    /// The key of its holder, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Set if the holder had made the use earlier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Set if the use is never given back: its answer may have been sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

/// Document of the store time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeDocument {
    pub v: DocumentVersion,
    /// The store's own time, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub believed: Option<u64>,
    /// Latest expiry, in seconds since 1970, of uses that may have been forgotten.
    pub forgotten_until: u64,
}

/// Document that marks a thing as remembered until a time: all data is in its key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpiryDocument {
    pub v: DocumentVersion,
}

pub(super) fn read<D: DeserializeOwned>(transaction: &mut dyn Transaction, key: &str) -> Result<Option<D>, WorkInterrupted> {
    let text = transaction.get(key)?;
    Ok(text.map(|text| parse(key, &text)).transpose()?)
}

pub(super) fn parse<D: DeserializeOwned>(key: &str, text: &str) -> Result<D, StoreError> {
    serde_json::from_str(text).map_err(
        |source| match NewerFormat::in_json("version", DocumentVersion::NUMBER, text.as_bytes()) {
            Some(newer) => StoreError::Newer {
                key: key.to_owned(),
                newer,
            },
            None => unreadable(key, source),
        },
    )
}

pub(super) fn write(transaction: &mut dyn Transaction, key: &str, document: &impl Serialize) -> Result<(), WorkInterrupted> {
    let text = serde_json::to_string(document).map_err(|source| unreadable(key, source))?;
    transaction.put(key, &text)
}

fn unreadable(key: &str, source: serde_json::Error) -> StoreError {
    StoreError::Document {
        key: key.to_owned(),
        source,
    }
}
