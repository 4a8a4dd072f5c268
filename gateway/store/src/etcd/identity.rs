//! Identity of the store: reads it, creates it, renames it.

use std::collections::BTreeMap;

use aws_lc_rs::rand;
use data_encoding::HEXLOWER;
use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::moved::Moved;
use super::super::schema::{self, StoreSchema};
use super::super::{StoreError, StoreMark};
use super::diagnosis;
use super::keys::KeyPrefix;
use super::members::{MemberFailure, Members};
use super::requests::revision;
use crate::settings::EtcdSettings;

/// Key of the store time, which is reset under another id.
const TIME: &str = "time";
/// Bytes of the id of a store or a process: no id can be guessed, and no two are the same.
const ID_BYTES: usize = 16;
/// Maximum number of replaced stores that a store names. For gateways that knew an earlier one, and were away meanwhile, the store has to
/// be accepted again.
const MOST_REPLACED: usize = 16;

/// The store's own entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreIdentity {
    id: String,
    /// The mark before the first commit: what it was where the store came from.
    began: u64,
    /// Ids of the stores that it replaces, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<String>,
    /// Place that the store was moved to. A process that has it open finds another text in place of the one that every request requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    moved: Option<Moved>,
}

/// A store that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExistingStore {
    /// The identity entry, as it is in etcd.
    pub identity: String,
    pub schema: StoreSchema,
    pub began: u64,
    pub mark: StoreMark,
    pub moved: Option<Moved>,
    pub replaced: Vec<String>,
    /// Number of commits by each gateway.
    wrote: BTreeMap<String, i64>,
    /// The host of the gateway that has found it to be one from before.
    pub set_back_by: Option<String>,
}

impl ExistingStore {
    /// Returns the number of commits by this gateway.
    pub(super) fn wrote(&self, replica: &str) -> i64 {
        self.wrote.get(replica).copied().unwrap_or(0)
    }

    /// Returns how often the mark was put.
    pub(super) fn puts(&self) -> i64 {
        i64::try_from(self.mark.mark.saturating_sub(self.began)).unwrap_or(i64::MAX)
    }

    /// Returns the store's identity entry with that new place, or the original entry.
    pub(super) fn identity_moved(&self, moved: Option<&Moved>) -> String {
        let identity = StoreIdentity {
            id: self.mark.id.clone(),
            began: self.began,
            replaced: self.replaced.clone(),
            moved: moved.cloned(),
        };
        serde_json::to_string(&identity).unwrap_or_default()
    }
}

/// Returns the new place of a store, if its identity entry has one.
pub(super) fn moved(identity: &str) -> Option<Moved> {
    serde_json::from_str::<StoreIdentity>(identity).ok()?.moved
}

pub(super) fn new_id() -> Result<String, StoreError> {
    let mut id = [0; ID_BYTES];
    rand::fill(&mut id).map_err(|_| StoreError::Random)?;
    Ok(HEXLOWER.encode(&id))
}

/// Reads the identity of the store below the prefix. Writes nothing.
pub(super) async fn read_identity(settings: &EtcdSettings, members: &Members, until: Instant) -> Result<Option<ExistingStore>, StoreError> {
    Ok(read_identity_at(settings, members, until).await?.0)
}

/// Like [`read_identity`], and also returns the revision of that state.
pub(super) async fn read_identity_at(
    settings: &EtcdSettings,
    members: &Members,
    until: Instant,
) -> Result<(Option<ExistingStore>, i64), StoreError> {
    let keys = KeyPrefix::below(&settings.prefix);
    let (from, end) = keys.all();
    let anything = GetOptions::new().with_range(end).with_count_only();
    // What is below a prefix is counted only where no store is: etcd walks through all of it for that.
    let read = Txn::new()
        .when([Compare::create_revision(keys.schema(), CompareOp::Greater, 0)])
        .and_then([
            TxnOp::get(keys.schema(), None),
            TxnOp::get(keys.identity(), None),
            TxnOp::get(keys.mark(), None),
            TxnOp::get(keys.wrote(""), Some(GetOptions::new().with_prefix().with_keys_only())),
            TxnOp::get(keys.set_back(""), Some(GetOptions::new().with_prefix())),
        ])
        .or_else([TxnOp::get(from, Some(anything)), TxnOp::get(keys.taking(), None)]);
    let asked = members.ask(until, |mut client| {
        let read = read.clone();
        async move { client.txn(read).await }
    });
    let answer = match asked.await {
        Ok(answer) => answer,
        Err(failure) => {
            let problem = diagnosis::diagnose_tls(settings, &failure.endpoint).await;
            let problem = problem.unwrap_or(failure.problem);
            return Err(members.explain(&MemberFailure { problem, ..failure }, false));
        }
    };
    let (revision, answers) = (revision(&answer), answer.op_responses());
    let gets: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            TxnOpResponse::Get(get) => Some(get),
            _ => None,
        })
        .collect();
    let text = |get: &etcd_client::GetResponse| get.kvs().first().map(|found| String::from_utf8_lossy(found.value()).into_owned());
    let without = || foreign(members, "the answer lacks the requested keys");
    if !answer.succeeded() {
        let [anything, taking] = gets.as_slice() else {
            return Err(without());
        };
        return match anything.count() {
            0 => Ok((None, revision)),
            _ if !taking.kvs().is_empty() => Err(StoreError::Unfinished(members.place.clone().into())),
            _ => Err(foreign(members, "it has keys, but no key `schema`")),
        };
    }
    let [schema, identity, mark, wrote, set_back] = gets.as_slice() else {
        return Err(without());
    };
    let schema = text(schema).ok_or_else(without)?;
    let (number, release) = schema::parse(&schema).ok_or_else(|| foreign(members, "its `schema` cannot be read"))?;
    if schema::is_newer(number) {
        return Err(newer(members, number, release));
    }
    // Each transaction compares the whole text.
    let known = StoreSchema::find(number).filter(|known| schema::text(*known) == schema);
    let schema = known.ok_or_else(|| foreign(members, "this release does not know its `schema`"))?;
    let identity = text(identity).ok_or_else(|| foreign(members, "it has no readable identity"))?;
    let StoreIdentity {
        id,
        began,
        replaced,
        moved,
    } = serde_json::from_str(&identity).map_err(|_| {
        foreign(
            members,
            "its identity cannot be read; if a newer release has written it, run that release",
        )
    })?;
    let puts = mark.kvs().first().map_or(0, etcd_client::KeyValue::version).unsigned_abs();
    let below = |found: &etcd_client::KeyValue, folder: &str| Some(std::str::from_utf8(found.key()).ok()?.strip_prefix(folder)?.to_owned());
    let wrote = wrote
        .kvs()
        .iter()
        .filter_map(|found| Some((below(found, &keys.wrote(""))?, found.version())));
    let told = set_back.kvs().iter().find(|found| found.key() == keys.set_back(&id).as_bytes());
    let found = ExistingStore {
        identity,
        schema,
        began,
        wrote: wrote.collect(),
        set_back_by: told.map(|told| String::from_utf8_lossy(told.value()).into_owned()),
        mark: StoreMark {
            id,
            mark: began.saturating_add(puts),
            wrote: None,
        },
        moved,
        replaced,
    };
    Ok((Some(found), revision))
}

/// Creates a store, unless another process is faster.
pub(super) async fn begin(settings: &EtcdSettings, members: &Members, until: Instant) -> Result<(), StoreError> {
    replace(settings, members, None, &StoreIdentity::new(new_id()?, 0, Vec::new()), until).await
}

/// Makes it another store with the same content, which replaces the `known` one and has at least `mark` as its mark; or creates a store.
/// Resets the store time.
pub(super) async fn rename(
    settings: &EtcdSettings,
    members: &Members,
    found: Option<&ExistingStore>,
    known: Option<&StoreMark>,
    mark: u64,
    until: Instant,
) -> Result<StoreMark, StoreError> {
    let began = found.map_or(0, |found| found.mark.mark).max(mark);
    let mut replaced = found.map_or_else(Vec::new, |found| found.replaced.clone());
    for other in found.map(|found| &found.mark).into_iter().chain(known) {
        replaced.retain(|id| *id != other.id);
        replaced.push(other.id.clone());
    }
    let replaced = replaced.split_off(replaced.len().saturating_sub(MOST_REPLACED));
    replace(settings, members, found, &StoreIdentity::new(new_id()?, began, replaced), until).await?;
    let now = read_identity(settings, members, until)
        .await?
        .filter(|now| found.is_none_or(|found| found.mark.id != now.mark.id));
    Ok(now.ok_or_else(|| StoreError::Replaced(members.place.clone().into()))?.mark)
}

impl StoreIdentity {
    fn new(id: String, began: u64, replaced: Vec<String>) -> Self {
        Self {
            id,
            began,
            replaced,
            moved: None,
        }
    }
}

/// Returns the writes that make a store of what is below the prefix.
pub(super) fn writes(keys: &KeyPrefix, schema: StoreSchema, identity: &StoreIdentity) -> [TxnOp; 3] {
    [
        TxnOp::put(keys.schema(), schema::text(schema), None),
        TxnOp::put(keys.identity(), serde_json::to_string(identity).unwrap_or_default(), None),
        TxnOp::put(keys.mark(), "", None),
    ]
}

/// A store of this name that has taken what another held, in the place of these, and its mark.
pub(super) fn taken<'m>(id: &str, mark: u64, instead_of: impl Iterator<Item = &'m StoreMark>) -> (StoreIdentity, StoreMark) {
    let mut replaced: Vec<String> = instead_of.map(|mark| mark.id.clone()).collect();
    replaced.dedup();
    let identity = StoreIdentity::new(id.to_owned(), mark, replaced);
    let now = StoreMark {
        id: identity.id.clone(),
        mark: mark.saturating_add(1),
        wrote: None,
    };
    (identity, now)
}

/// Replaces the identity entry that was found. If it is repeated because an answer was lost, it takes effect once: then another entry is
/// there.
async fn replace(
    settings: &EtcdSettings,
    members: &Members,
    found: Option<&ExistingStore>,
    identity: &StoreIdentity,
    until: Instant,
) -> Result<(), StoreError> {
    let keys = KeyPrefix::below(&settings.prefix);
    let unchanged = match found {
        Some(found) => Compare::value(keys.identity(), CompareOp::Equal, found.identity.as_str()),
        None => Compare::create_revision(keys.identity(), CompareOp::Equal, 0),
    };
    // Somebody may have begun to copy something there.
    let not_taken = Compare::create_revision(keys.taking(), CompareOp::Equal, 0);
    let every = DeleteOptions::new().with_prefix();
    let begins_anew = [
        TxnOp::delete(keys.full_key(TIME), None),
        TxnOp::delete(keys.set_back(""), Some(every)),
    ];
    let schema = found.map_or_else(StoreSchema::newest, |found| found.schema);
    let writes: Vec<TxnOp> = writes(&keys, schema, identity).into_iter().chain(begins_anew).collect();
    let write = Txn::new().when([unchanged, not_taken]).and_then(writes);
    let asked = members.ask(until, |mut client| {
        let write = write.clone();
        async move { client.txn(write).await }
    });
    asked.await.map(drop).map_err(|failure| members.explain(&failure, false))
}

/// Returns the error for a store whose version a newer release has raised.
pub(super) fn newer(members: &Members, found: i64, release: &str) -> StoreError {
    StoreError::Schema {
        path: members.place.clone().into(),
        newer: schema::newer(found, Some(release.to_owned())),
    }
}

fn foreign(members: &Members, missing: &str) -> StoreError {
    StoreError::Foreign {
        path: members.place.clone().into(),
        missing: missing.to_owned(),
    }
}
