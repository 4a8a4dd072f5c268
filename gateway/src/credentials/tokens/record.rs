//! Records of tokens in the store.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use attest::UnixTime;
use attest_store::{EntryKind, StoreEntry, StoreError};
use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use url::Url;

/// A token, all but its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// Name that the administrator gave it. A token and those that it has replaced have one name.
    pub name: String,
    /// The pools it is for; at least one.
    #[serde(deserialize_with = "at_least_one")]
    pub pools: BTreeSet<String>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// The last second at which it is valid, since 1970; 0 if it was rotated without a grace period, and is never valid.
    pub expires: u64,
    /// Maximum number of uses; `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Time after a use in which another one from the same address counts as the same, in seconds; `None` is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<u64>,
    /// From where it may be used; empty is from everywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpNet>,
    /// Replacement of this token, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded: Option<Superseded>,
    /// Automatic rotation: its interval, and its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
}

/// Replacement of a token by rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Superseded {
    /// Time of the rotation, in seconds since 1970.
    pub at: u64,
    /// The id of the token that took its place.
    pub by: String,
}

/// Settings of a token's automatic rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// Age at which a token is replaced, in seconds.
    pub every: u64,
    /// Grace period of the token before, in seconds.
    pub grace: u64,
    /// The folder that it is written into; an absolute path.
    pub into: PathBuf,
    /// URL at which nodes reach the gateway, for the pointers that are written.
    pub url: Url,
    /// Replica that rotates it: the folder is on its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
}

impl Rotation {
    /// Returns whether another replica rotates it.
    pub(super) fn is_of_another(&self, replica: Option<&str>) -> bool {
        replica.is_some() && self.replica.is_some() && self.replica.as_deref() != replica
    }
}

/// Validity of a token at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenState {
    /// It is valid, and was not rotated.
    Current,
    /// It was rotated, and is valid for its grace period.
    Previous,
    Expired,
    /// It was used as often as it may be.
    Spent,
}

fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let pools = BTreeSet::deserialize(deserializer)?;
    match pools.is_empty() {
        true => Err(D::Error::custom("a token is for one pool at least")),
        false => Ok(pools),
    }
}

impl TokenRecord {
    /// Returns whether it has expired at `now`.
    #[must_use]
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now.as_secs() > self.expires
    }

    /// Returns the time at which it ends, or has ended, in seconds since 1970.
    #[must_use]
    pub fn ends(&self) -> u64 {
        let rotated = self.superseded.as_ref().map(|superseded| superseded.at);
        rotated.filter(|_| self.expires == 0).unwrap_or(self.expires)
    }

    /// Returns whether it is the token of its name that pointers should have.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.superseded.is_none()
    }

    /// Returns whether it may be used from this address.
    #[must_use]
    pub fn may_come_from(&self, peer: IpAddr) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|network| network.contains(&peer))
    }

    /// Returns its lifetime unless it is replaced, in seconds.
    #[must_use]
    pub const fn lifetime(&self) -> u64 {
        self.expires.saturating_sub(self.created)
    }

    /// Returns its state at `now`, after `used` uses.
    #[must_use]
    pub fn state(&self, used: u32, now: UnixTime) -> TokenState {
        if self.is_expired(now) {
            TokenState::Expired
        } else if self.uses.is_some_and(|limit| used >= limit) {
            TokenState::Spent
        } else if self.is_current() {
            TokenState::Current
        } else {
            TokenState::Previous
        }
    }

    /// Returns the time of its replacement, in seconds since 1970, if it rotates by itself.
    #[must_use]
    pub fn rotates_at(&self) -> Option<u64> {
        let rotation = self.rotation.as_ref().filter(|_| self.is_current())?;
        Some(self.created.saturating_add(rotation.every))
    }

    /// Its entry in the store.
    pub(super) fn entry(&self, id: &str) -> Result<StoreEntry, StoreError> {
        match serde_json::to_string(self) {
            Ok(value) => Ok(StoreEntry { id: id.to_owned(), value }),
            Err(source) => Err(unreadable(id, source)),
        }
    }

    /// Reads the token of an entry.
    pub(super) fn read(entry: &StoreEntry) -> Result<Self, StoreError> {
        serde_json::from_str(&entry.value).map_err(|source| unreadable(&entry.id, source))
    }
}

fn unreadable(id: &str, source: serde_json::Error) -> StoreError {
    StoreError::Entry {
        kind: EntryKind::Token.as_str(),
        id: id.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::network;

    fn read(value: &str) -> Result<TokenRecord, StoreError> {
        TokenRecord::read(&StoreEntry {
            id: "id".to_owned(),
            value: value.to_owned(),
        })
    }

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn token_record_round_trips() {
        let record = read(r#"{"name":"rack7","pools":["worker"],"created":100,"expires":200}"#).unwrap();
        assert_eq!(record.pools, BTreeSet::from(["worker".to_owned()]));
        assert_eq!((record.created, record.expires, record.uses), (100, 200, None));
        assert!(record.networks.is_empty() && record.is_current() && record.rotation.is_none());
        let entry = record.entry("id").unwrap();
        assert_eq!(entry.value, r#"{"name":"rack7","pools":["worker"],"created":100,"expires":200}"#);
        assert_eq!(TokenRecord::read(&entry).unwrap(), record);
    }

    #[test]
    fn refuses_malformed_token_records() {
        for value in [
            r#"{"name":"a","created":1,"expires":2}"#,
            r#"{"name":"a","pool":"x","created":1,"expires":2}"#,
            r#"{"name":"a","pools":[],"created":1,"expires":2}"#,
            r#"{"name":"a","pool":"x","pools":["y"],"created":1,"expires":2}"#,
            r#"{"name":"a","pools":["y"],"created":1,"expires":2,"network":["10.0.0.0/8"]}"#,
            r#"{"name":"a","pools":["y"],"created":1,"expires":2,"networks":["10.0.0.0/33"]}"#,
            r#"{"name":"a","pools":["y"],"created":1,"expires":2,"superseded":{"at":1}}"#,
            r#"{"name":"a","pools":["y"],"created":1,"expires":2,"rotation":{"every":1,"grace":1,"into":"/x"}}"#,
        ] {
            read(value).unwrap_err();
        }
    }

    #[test]
    fn token_is_limited_to_its_networks() {
        let mut record = read(r#"{"name":"a","pools":["x"],"created":1,"expires":2}"#).unwrap();
        let allowed = |record: &TokenRecord, peer: &str| record.may_come_from(peer.parse().unwrap());
        assert!(allowed(&record, "203.0.113.9") && allowed(&record, "2001:db8::1"));
        record.networks = ["192.0.2.0/24", "2001:db8:1::/48"].map(|text| network(text).unwrap()).to_vec();
        for (peer, expected) in [
            ("192.0.2.0", true),
            ("192.0.2.255", true),
            ("192.0.3.0", false),
            ("192.0.1.255", false),
            ("2001:db8:1:ffff::1", true),
            ("2001:db8:2::1", false),
            ("::", false),
        ] {
            assert_eq!(allowed(&record, peer), expected, "{peer}");
        }
    }

    #[test]
    fn derives_the_token_state_from_its_record() {
        let mut record = read(r#"{"name":"a","pools":["x"],"created":100,"expires":200,"uses":2}"#).unwrap();
        assert_eq!(record.state(0, at(200)), TokenState::Current);
        assert_eq!(record.state(2, at(200)), TokenState::Spent);
        assert_eq!(record.state(2, at(201)), TokenState::Expired);
        record.superseded = Some(Superseded {
            at: 150,
            by: "b".to_owned(),
        });
        assert_eq!(record.state(1, at(200)), TokenState::Previous);
        assert_eq!(record.rotates_at(), None);
    }
}
