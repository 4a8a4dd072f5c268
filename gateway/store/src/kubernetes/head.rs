//! The head: the store's one object that changes. It has the store's identity, the latest changes, and the names of the leaves.
//!
//! The head determines everything that a store says. Leaves hold what was written earlier; they never change, and count only as long as the
//! head names them. So a process that replaces the head as it was when read commits all its changes at one moment. A process that reads it
//! has a snapshot.

use std::collections::BTreeMap;
use std::io::Read;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::super::StoreError;
use super::super::moved::Moved;
use super::super::schema::{self, StoreSchema};
use super::changes::PendingChanges;

/// Processes whose progress is recorded, in addition to those that hold something: enough for those whose commits are in doubt at a time.
const MOST_SESSIONS: usize = 64;
/// Gateways whose numbers of commits are recorded: a gateway that begins with an empty state counts as another.
const MOST_REPLICAS: usize = 256;
/// Maximum number of replaced stores that a store names. For gateways that knew an earlier one, and were away meanwhile, the store has to
/// be accepted again.
const MOST_REPLACED: usize = 16;
/// A process that has changed the head within this number of turns counts as about to change it again.
const RECENT_TURNS: u64 = 16;
/// Upper limit of all counters: a million commits a second for a hundred thousand years.
const MOST_COUNT: u64 = 1 << 62;
/// Key of the store time, which is reset under another id.
const TIME: &str = super::super::keys::TIME;
/// The largest of what is read, unpacked: far more than what fits into an object is of what this writes.
const MOST_UNPACKED_BYTES: u64 = 32 * 1024 * 1024;
/// Compression level: zstd's own default.
const LEVEL: i32 = 3;

/// Progress of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplicaProgress {
    /// Of its last change.
    pub number: u64,
    /// Number of that change among all changes of the head.
    pub turn: u64,
    /// Keys that only one process holds at a time, with their values: for serving, and for leading.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub holds: BTreeMap<String, String>,
}

/// Number of commits by one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commits {
    pub commits: u64,
    pub turn: u64,
}

/// An object that holds the keys from one on, until the next leaf's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeafReference {
    pub from: String,
    pub name: String,
    /// Digest of the object's data, in hexadecimal.
    pub sha256: String,
}

/// A running compaction: the leaves that it has made count only while this entry remains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Folding {
    /// Random: of no two.
    pub id: String,
    pub session: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub v: i64,
    /// First release that reads the store; the member stays in each later version.
    pub release: String,
    /// Random id of this state. It is unique even if an old state of the API's own store has come back, and gives its numbers again.
    pub commit: String,
    /// Which store it is.
    pub id: String,
    /// Number of transactions that have written.
    pub mark: u64,
    /// Number of changes of this object.
    pub turn: u64,
    /// Ids of the stores that it replaces, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// The host of the gateway that has found it to be one from before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_back: Option<String>,
    /// Session of the process that imports: until it finishes, there is only an incomplete store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taking: Option<String>,
    #[serde(default)]
    pub wrote: BTreeMap<String, Commits>,
    /// Set if a gateway was left out of `wrote`.
    #[serde(default)]
    pub left_out: bool,
    #[serde(default)]
    pub sessions: BTreeMap<String, ReplicaProgress>,
    /// The last change of those sessions that were left out.
    #[serde(default)]
    pub dropped: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folding: Option<Folding>,
    #[serde(default)]
    pub leaves: Vec<LeafReference>,
    #[serde(default)]
    pub changes: PendingChanges,
}

/// Reason why the content cannot be read as a head.
#[derive(Debug)]
pub(super) enum HeadError {
    Newer { found: i64, release: Option<String> },
    Foreign(String),
}

impl Head {
    /// Returns the head of an empty store.
    pub(super) fn new(id: String) -> Result<Self, StoreError> {
        let schema = StoreSchema::newest();
        Ok(Self {
            v: schema.number,
            release: schema.release.to_owned(),
            commit: schema::new_id()?,
            id,
            mark: 0,
            turn: 0,
            replaced: Vec::new(),
            moved: None,
            set_back: None,
            taking: None,
            wrote: BTreeMap::new(),
            left_out: false,
            sessions: BTreeMap::new(),
            dropped: 0,
            folding: None,
            leaves: Vec::new(),
            changes: PendingChanges::default(),
        })
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        pack(self)
    }

    /// Decodes the head from an object that has this commit as its annotation.
    pub(super) fn decode(bytes: &[u8], commit: &str) -> Result<Self, HeadError> {
        #[derive(Deserialize)]
        struct Version {
            v: i64,
            release: Option<String>,
        }
        let foreign = |error: String| HeadError::Foreign(format!("its head is none: {error}"));
        let text = unpacked(bytes).map_err(foreign)?;
        let Version { v: found, release } = serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
        if schema::is_newer(found) {
            return Err(HeadError::Newer { found, release });
        }
        if StoreSchema::find(found).is_none() {
            return Err(foreign(format!("this release does not know its schema, {found}")));
        }
        let head: Self = serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
        if head.commit != commit {
            return Err(foreign("it says another commit than its object".to_owned()));
        }
        if head.counts().any(|count| count > MOST_COUNT) {
            return Err(foreign("it has come further than any store".to_owned()));
        }
        if !head.leaves.is_sorted_by(|one, next| one.from < next.from) {
            return Err(foreign("its leaves are in no order".to_owned()));
        }
        Ok(head)
    }

    /// The schema; the newest in place of one that is unknown, which is not decoded.
    pub(super) fn schema(&self) -> StoreSchema {
        StoreSchema::find(self.v).unwrap_or_else(StoreSchema::newest)
    }

    /// Gives the store this schema.
    pub(super) fn set_schema(&mut self, schema: StoreSchema) {
        (self.v, self.release) = (schema.number, schema.release.to_owned());
    }

    /// All that are counted on.
    fn counts(&self) -> impl Iterator<Item = u64> {
        let sessions = self.sessions.values().flat_map(|session| [session.number, session.turn]);
        let wrote = self.wrote.values().flat_map(|wrote| [wrote.commits, wrote.turn]);
        [self.mark, self.turn, self.dropped].into_iter().chain(sessions).chain(wrote)
    }

    /// The next state, after a change of this session, which may be none but that.
    pub(super) fn next(&self, session: &str, number: u64) -> Result<Self, StoreError> {
        let mut next = self.clone();
        next.commit = schema::new_id()?;
        next.turn += 1;
        let own = next.sessions.entry(session.to_owned()).or_insert_with(|| ReplicaProgress {
            number,
            turn: 0,
            holds: BTreeMap::new(),
        });
        (own.number, own.turn) = (number, next.turn);
        let idle = |next: &Self| {
            let idle = next
                .sessions
                .iter()
                .filter(|(id, of)| of.holds.is_empty() && id.as_str() != session);
            (idle.clone().count(), idle.min_by_key(|(_, of)| of.turn).map(|(id, _)| id.clone()))
        };
        while let (count, Some(oldest)) = idle(&next)
            && count >= MOST_SESSIONS
        {
            next.forget(&oldest);
        }
        Ok(next)
    }

    /// Counts a transaction that writes.
    pub(super) fn count(&mut self, replica: &str) {
        self.mark += 1;
        let turn = self.turn;
        let own = self.wrote.entry(replica.to_owned()).or_insert(Commits { commits: 0, turn });
        own.commits += 1;
        own.turn = turn;
        while self.wrote.len() > MOST_REPLICAS
            && let Some(oldest) = self.wrote.iter().min_by_key(|(_, wrote)| wrote.turn).map(|(id, _)| id.clone())
        {
            self.wrote.remove(&oldest);
            self.left_out = true;
        }
    }

    /// Forgets a process; what it holds is free.
    pub(super) fn forget(&mut self, session: &str) {
        if let Some(gone) = self.sessions.remove(session) {
            self.dropped = self.dropped.max(gone.turn);
        }
    }

    /// Returns, for each process whose last change of the state was recent, and before this one's, the number of turns between them.
    pub(super) fn waiting_longer(&self, session: &str) -> impl Iterator<Item = u64> {
        let own = self.sessions.get(session).map_or(0, |own| own.turn);
        let lately = self.turn.saturating_sub(RECENT_TURNS)..own;
        let others = self.sessions.values().filter(move |other| lately.contains(&other.turn));
        others.map(move |other| own - other.turn)
    }

    /// Returns the session that holds a key, and the key's value.
    pub(super) fn holder(&self, key: &str) -> Option<(&str, &str)> {
        let mut sessions = self.sessions.iter();
        sessions.find_map(|(id, session)| Some((id.as_str(), session.holds.get(key)?.as_str())))
    }

    /// Becomes another store, in the place of these.
    pub(super) fn rename<'a>(&mut self, id: String, mark: u64, instead_of: impl Iterator<Item = &'a str>) {
        for other in instead_of {
            self.replaced.retain(|id| id != other);
            self.replaced.push(other.to_owned());
        }
        self.replaced = self.replaced.split_off(self.replaced.len().saturating_sub(MOST_REPLACED));
        self.id = id;
        self.mark = self.mark.max(mark).saturating_add(1);
        (self.moved, self.set_back) = (None, None);
        self.changes.writes.insert(TIME.to_owned(), None);
    }

    /// Returns the index of the leaf with a key.
    pub(super) fn leaf_of(&self, key: &str) -> Option<usize> {
        self.leaves.partition_point(|leaf| leaf.from.as_str() <= key).checked_sub(1)
    }
}

/// Packs a value, as JSON.
pub(super) fn pack(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let text = serde_json::to_vec(value).map_err(|source| StoreError::Document {
        key: "head".to_owned(),
        source,
    })?;
    zstd::bulk::compress(&text, LEVEL).map_err(|source| StoreError::Io {
        path: "head".into(),
        source,
    })
}

fn unpacked(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let read = zstd::Decoder::new(bytes).and_then(|unpacked| unpacked.take(MOST_UNPACKED_BYTES + 1).read_to_end(&mut text));
    match read {
        Err(error) => Err(error.to_string()),
        Ok(_) if u64::try_from(text.len()).unwrap_or(u64::MAX) > MOST_UNPACKED_BYTES => {
            Err(format!("it has more than {MOST_UNPACKED_BYTES} bytes"))
        }
        Ok(_) => Ok(text),
    }
}

pub(super) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(&unpacked(bytes)?).map_err(|error| error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Otherwise counting on from there would overflow.
    #[test]
    fn refuses_a_head_with_an_excessive_counter() {
        let head = Head::new("id".to_owned()).unwrap();
        let check = |change: &dyn Fn(&mut Value), is_one: bool| {
            let mut changed = serde_json::to_value(&head).unwrap();
            change(&mut changed);
            let found = Head::decode(&pack(&changed).unwrap(), &head.commit);
            assert_eq!(found.is_ok(), is_one, "{changed}");
        };
        for (count, is_one) in [(MOST_COUNT, true), (MOST_COUNT + 1, false), (u64::MAX, false)] {
            check(&|head| head["mark"] = json!(count), is_one);
            check(&|head| head["turn"] = json!(count), is_one);
            check(&|head| head["dropped"] = json!(count), is_one);
            check(&|head| head["sessions"] = json!({"a": {"number": count, "turn": 1}}), is_one);
            check(&|head| head["sessions"] = json!({"a": {"number": 1, "turn": count}}), is_one);
            check(&|head| head["wrote"] = json!({"a": {"commits": count, "turn": 1}}), is_one);
            check(&|head| head["wrote"] = json!({"a": {"commits": 1, "turn": count}}), is_one);
        }
        check(
            &|head| head["leaves"] = json!([{"from": "b", "name": "1", "sha256": ""}, {"from": "a", "name": "2", "sha256": ""}]),
            false,
        );
    }
}
