//! Parts of requests to etcd, and of its answers.

use etcd_client::{Compare, CompareOp, GetOptions, TxnOp, TxnOpResponse, TxnResponse};

use super::super::StoreError;
use super::super::engine::KeyValue;
use super::keys::KeyPrefix;
use super::overlay::ReadValue;

/// Compares how often a key was put: it must be less than is known.
pub(super) fn comes_short(key: String, known: u64) -> Compare {
    Compare::version(key, CompareOp::Less, i64::try_from(known).unwrap_or(i64::MAX))
}

pub(super) fn get(key: &str) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new()))
}

/// Returns a key of the store, and its value. Text that is not UTF-8 was not written by a gateway, and is an error.
pub(super) fn pair(keys: &KeyPrefix, found: &etcd_client::KeyValue) -> Result<KeyValue, StoreError> {
    let Ok(key) = std::str::from_utf8(found.key()) else {
        return Err(StoreError::Key {
            key: String::from_utf8_lossy(found.key()).into_owned(),
        });
    };
    let key = keys.without(key).to_owned();
    match std::str::from_utf8(found.value()) {
        Ok(value) => Ok(KeyValue {
            key,
            value: value.to_owned(),
        }),
        Err(error) => Err(StoreError::Document {
            key,
            source: serde::de::Error::custom(error),
        }),
    }
}

/// Returns the value and the revision in an answer to a get of one key.
pub(super) fn read_value(answer: &TxnOpResponse) -> ReadValue {
    let found = match answer {
        TxnOpResponse::Get(found) => found.kvs().first(),
        _ => None,
    };
    ReadValue {
        value: found.map(|found| String::from_utf8_lossy(found.value()).into_owned()),
        mod_revision: found.map_or(0, etcd_client::KeyValue::mod_revision),
    }
}

pub(super) fn version(answer: &TxnOpResponse) -> i64 {
    match answer {
        TxnOpResponse::Get(found) => found.kvs().first().map_or(0, etcd_client::KeyValue::version),
        _ => 0,
    }
}

pub(super) fn revision(answer: &TxnResponse) -> i64 {
    answer.header().map_or(0, etcd_client::ResponseHeader::revision)
}
