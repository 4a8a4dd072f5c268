//! What the store keeps of logs: of each chain its last checkpoint, so that a log that has lost lines is noticed.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::chain::{LineHash, Point, link_of};
use super::checkpoint::CheckpointLine;
use super::log_end::lines_from_end;
use super::log_key::LogPublicKey;
use super::reading::{LogFile, rotated};
use crate::store::{Entry, EntryKind, Store, StoreError};

/// Chains of one gateway that are kept although another has taken their place: more than any has begun for a reason.
const SUPERSEDED_LIMIT: usize = 16;
/// The version of what is kept.
const VERSION: u32 = 1;

/// What is kept of a chain.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    v: u32,
    /// The chains in whose place it has begun.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    after: BTreeSet<String>,
    /// Its last checkpoint: the line, as the log has it.
    checkpoint: String,
}

/// The last checkpoint of a chain.
#[derive(Debug, Clone)]
pub struct Kept {
    /// As the log has it.
    pub text: String,
    pub line: CheckpointLine,
    after: BTreeSet<String>,
}

impl Kept {
    fn read(entry: &Entry) -> Result<Self, serde_json::Error> {
        let Value { v, after, checkpoint } = serde_json::from_str(&entry.value)?;
        if v != VERSION {
            return Err(serde::de::Error::custom(format!(
                "it has version {v}, and this release knows {VERSION} only"
            )));
        }
        let line = serde_json::from_str(&checkpoint)?;
        Ok(Self {
            text: checkpoint,
            line,
            after,
        })
    }

    /// The line that it is.
    #[must_use]
    pub fn point(&self) -> Point {
        Point {
            chain: self.line.chain.id.clone(),
            number: self.line.chain.number,
            sha256: LineHash::of(self.text.as_bytes()),
        }
    }

    fn entry(&self) -> Result<Entry, serde_json::Error> {
        let value = Value {
            v: VERSION,
            after: self.after.clone(),
            checkpoint: self.text.clone(),
        };
        Ok(Entry {
            id: self.line.chain.id.clone(),
            value: serde_json::to_string(&value)?,
        })
    }
}

/// What became of a checkpoint that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    Kept,
    /// The store has one that comes later, or another one in its place: somebody else writes this chain.
    Behind,
}

fn unreadable(id: String) -> impl FnOnce(serde_json::Error) -> StoreError {
    move |source| StoreError::Entry {
        kind: EntryKind::Checkpoint.as_str(),
        id,
        source,
    }
}

/// The last checkpoints of all chains that the store knows.
///
/// # Errors
/// [`StoreError`].
pub async fn kept(store: &dyn Store) -> Result<Vec<Kept>, StoreError> {
    let entries = store.list(EntryKind::Checkpoint).await?;
    let read = |entry: Entry| Kept::read(&entry).map_err(unreadable(entry.id));
    entries.into_iter().map(read).collect()
}

/// Keeps a checkpoint, a line of the log, unless the store has a later one of its chain.
///
/// # Errors
/// [`StoreError`].
pub async fn keep(store: &dyn Store, text: &str) -> Result<Keeping, StoreError> {
    let line: CheckpointLine = serde_json::from_str(text).map_err(unreadable(String::new()))?;
    let id = line.chain.id.clone();
    let begins = line.chain.begins.iter().flat_map(|begins| &begins.after);
    let mut new = Kept {
        text: text.to_owned(),
        after: begins.map(|point| point.chain.clone()).collect(),
        line,
    };
    let write = |kept: &Kept| kept.entry().map_err(unreadable(id.clone()));
    loop {
        let Some(entry) = store.get(EntryKind::Checkpoint, &id).await? else {
            // Whether it holds those of before was looked at when it began.
            let before = own(store, new.line.checkpoint.key).await?;
            new.after.extend(before.into_iter().map(|kept| kept.line.chain.id));
            if store.insert(EntryKind::Checkpoint, write(&new)?).await?.is_some() {
                continue;
            }
            forget_superseded(store, new.line.checkpoint.key).await?;
            return Ok(Keeping::Kept);
        };
        let known = Kept::read(&entry).map_err(unreadable(id.clone()))?;
        if known.text == new.text {
            return Ok(Keeping::Kept);
        }
        if known.line.chain.number >= new.line.chain.number {
            return Ok(Keeping::Behind);
        }
        new.after.extend(known.after);
        let written = write(&new)?;
        if store.change(EntryKind::Checkpoint, vec![entry], vec![written]).await? {
            return Ok(Keeping::Kept);
        }
    }
}

/// Of the chains of one gateway that others have taken the place of, keeps the newest.
async fn forget_superseded(store: &dyn Store, key: LogPublicKey) -> Result<(), StoreError> {
    let all = own(store, key).await?;
    let superseded = superseded(&all);
    let mut old: Vec<&Kept> = all.iter().filter(|kept| superseded.contains(&kept.line.chain.id)).collect();
    old.sort_by_key(|kept| std::cmp::Reverse(kept.line.at));
    for kept in old.into_iter().skip(SUPERSEDED_LIMIT) {
        store.remove(EntryKind::Checkpoint, &kept.line.chain.id).await?;
    }
    Ok(())
}

async fn own(store: &dyn Store, key: LogPublicKey) -> Result<Vec<Kept>, StoreError> {
    let all = kept(store).await?.into_iter();
    Ok(all.filter(|kept| kept.line.checkpoint.key == key).collect())
}

fn superseded(all: &[Kept]) -> BTreeSet<String> {
    all.iter().flat_map(|kept| kept.after.iter().cloned()).collect()
}

/// Those of the chains in whose place no other has begun: a chain that has says itself what it misses of the one before it.
pub fn standing(all: &[Kept]) -> impl Iterator<Item = &Kept> {
    let superseded = superseded(all);
    all.iter().filter(move |kept| !superseded.contains(&kept.line.chain.id))
}

/// Forgets chains that are lost for good: this one, and those that it alone has taken the place of. Gives those that were forgotten.
///
/// # Errors
/// [`StoreError`].
pub async fn give_up(store: &dyn Store, chain: &str) -> Result<Vec<Kept>, StoreError> {
    let (mut left, mut given_up) = (kept(store).await?, Vec::new());
    let mut next = vec![chain.to_owned()];
    while let Some(id) = next.pop() {
        let Some(at) = left.iter().position(|kept| kept.line.chain.id == id) else {
            continue;
        };
        let gone = left.swap_remove(at);
        store.remove(EntryKind::Checkpoint, &id).await?;
        let superseded = superseded(&left);
        next.extend(gone.after.iter().filter(|before| !superseded.contains(*before)).cloned());
        given_up.push(gone);
    }
    Ok(given_up)
}

/// The chains of gateways with this name that are by another key, and that no other has taken the place of.
///
/// # Errors
/// [`StoreError`].
pub async fn of_other_keys(store: &dyn Store, replica: &str, key: LogPublicKey) -> Result<Vec<Point>, StoreError> {
    let all = kept(store).await?;
    let is_another = |kept: &&Kept| kept.line.checkpoint.replica == replica && kept.line.checkpoint.key != key;
    Ok(standing(&all).filter(is_another).map(Kept::point).collect())
}

/// The checkpoints that this gateway has signed, by what the store keeps, and that its log should hold and does not: lines were taken out, or altered.
///
/// # Errors
/// [`StoreError`], also if the log cannot be read.
pub async fn missing(store: &dyn Store, log: &Path, key: LogPublicKey) -> Result<Vec<Point>, StoreError> {
    let all = own(store, key).await?;
    let mut missing = Vec::new();
    for kept in standing(&all) {
        let holds = holds(log, kept).map_err(|source| StoreError::Io {
            path: log.to_owned(),
            source,
        })?;
        if !holds {
            missing.push(kept.point());
        }
    }
    Ok(missing)
}

/// Whether the log holds this checkpoint, also in a file beside it, or begins after it.
fn holds(log: &Path, kept: &Kept) -> std::io::Result<bool> {
    let wanted = &kept.line.chain;
    let mut later = false;
    for line in lines_from_end(log)? {
        let line = line?;
        match link_of(&line) {
            Ok(Some(link)) if link.id == wanted.id => {
                if link.number <= wanted.number {
                    return Ok(line == kept.text.as_bytes());
                }
                later = true;
            }
            _ => {}
        }
    }
    let mut altered = false;
    // A copy that was made before a file was whole does not say what that holds.
    for file in rotated(log)?
        .iter()
        .rev()
        .filter(|file| file.begins_before(&wanted.id, wanted.number))
    {
        match held_by(file, kept) {
            Ok(Some(true)) => return Ok(true),
            Ok(held) => altered |= held.is_some(),
            Err(error) => file.warn(&error),
        }
    }
    if altered {
        return Ok(false);
    }
    // The file that held it was moved away.
    Ok(later)
}

/// Of a file that has a line of this number, whether it is the one that is kept.
fn held_by(file: &LogFile, kept: &Kept) -> std::io::Result<Option<bool>> {
    let wanted = &kept.line.chain;
    for line in file.open()?.split(b'\n') {
        let line = line?;
        let link = link_of(&line).ok().flatten().filter(|link| link.id == wanted.id);
        if link.is_some_and(|link| link.number == wanted.number) {
            return Ok(Some(line == kept.text.as_bytes()));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::super::chain::{Begins, Chain, Why};
    use super::super::checkpoint::Signer;
    use super::super::log_key::LogKey;
    use super::*;
    use crate::store::Embedded;

    struct Site {
        folder: tempfile::TempDir,
        store: Embedded,
        signer: Signer,
    }

    impl Site {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
            let key = LogKey::open(&folder.path().join("log.key")).unwrap();
            Self {
                folder,
                store,
                signer: Signer::new(key, Some("gw"), 1),
            }
        }

        fn chain(after: Vec<Point>) -> Chain {
            let begins = Begins {
                why: Why::New,
                before: None,
                after,
            };
            Chain::begin(begins).unwrap()
        }

        /// A checkpoint as the chain's next line.
        fn checkpoint(&self, chain: &mut Chain, at: u64) -> String {
            let (id, count, head) = chain.head();
            let record = self.signer.sign(id, count, head, at, None).unwrap();
            let line = chain.link(&serde_json::to_vec(&record).unwrap()).unwrap();
            String::from_utf8(line).unwrap().trim_end().to_owned()
        }

        async fn keep(&self, line: &str) -> Keeping {
            keep(&self.store, line).await.unwrap()
        }

        /// How many checkpoints a log of these lines should hold, and does not.
        async fn missing(&self, lines: &[&str]) -> usize {
            let log = self.folder.path().join("log");
            let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
            fs::write(&log, text).unwrap();
            missing(&self.store, &log, self.signer.key()).await.unwrap().len()
        }
    }

    #[tokio::test]
    async fn the_last_checkpoint_of_a_chain_is_kept_and_none_goes_back() {
        let site = Site::new();
        let mut chain = Site::chain(Vec::new());
        let [first, second] = [1, 2].map(|at| site.checkpoint(&mut chain, at));
        assert_eq!(site.keep(&first).await, Keeping::Kept);
        assert_eq!(site.keep(&second).await, Keeping::Kept);
        assert_eq!(site.keep(&second).await, Keeping::Kept);
        assert_eq!(site.keep(&first).await, Keeping::Behind);
        let all = kept(&site.store).await.unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].text, second);
    }

    #[tokio::test]
    async fn a_log_is_missed_that_does_not_hold_what_was_signed() {
        let site = Site::new();
        let mut chain = Site::chain(Vec::new());
        let lines = [1, 2, 3, 4].map(|at| site.checkpoint(&mut chain, at));
        let [a, b, c, d] = lines.each_ref().map(String::as_str);
        assert_eq!(site.missing(&[]).await, 0, "nothing is known of any");
        site.keep(c).await;
        for whole in [&[a, b, c][..], &[a, b, c, d], &[c], &[c, d], &[d], &["older", c]] {
            assert_eq!(site.missing(whole).await, 0, "{}", whole.len());
        }
        let altered = c.replace("chain had", "chain  had");
        for short in [
            &[][..],
            &[a],
            &[a, b],
            &["other"],
            &[a, b, &altered],
            &[a, b, &altered, d],
            &[&altered],
        ] {
            assert_eq!(site.missing(short).await, 1, "{}", short.len());
        }
        // The log of another gateway's state.
        let other = Site::new().checkpoint(&mut Site::chain(Vec::new()), 1);
        assert_eq!(site.missing(&[&other]).await, 1);
    }

    #[tokio::test]
    async fn what_a_file_beside_the_log_holds_is_not_missed() {
        let site = Site::new();
        let mut chain = Site::chain(Vec::new());
        let [a, b, c] = [1, 2, 3].map(|at| site.checkpoint(&mut chain, at) + "\n");
        site.keep(b.trim_end()).await;
        let beside = |name: &str, bytes: &[u8]| fs::write(site.folder.path().join(name), bytes).unwrap();
        beside("log.1", format!("{a}{b}").as_bytes());
        assert_eq!(site.missing(&[]).await, 0);
        // Beside it copies that are not whole, or cannot be read.
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zipped, a.as_bytes()).unwrap();
        let zipped = zipped.finish().unwrap();
        beside("log.2", a.as_bytes());
        beside("log.3.gz", &zipped[..zipped.len() - 4]);
        beside("log.4.gz", b"no gzip");
        assert_eq!(site.missing(&[]).await, 0);
        let altered = b.replace("chain had", "chain  had");
        beside("log.1", format!("{a}{altered}{c}").as_bytes());
        for log in [&[][..], &[c.trim_end()]] {
            assert_eq!(site.missing(log).await, 1);
        }
        fs::remove_file(site.folder.path().join("log.1")).unwrap();
        assert_eq!(site.missing(&[]).await, 1);
        assert_eq!(site.missing(&[c.trim_end()]).await, 0, "the log begins after it");
    }

    #[tokio::test]
    async fn a_chain_that_is_whole_and_over_is_not_missed_once_its_file_is_gone() {
        let site = Site::new();
        let old = site.checkpoint(&mut Site::chain(Vec::new()), 1);
        site.keep(&old).await;
        // As after lines of an older release.
        let new = site.checkpoint(&mut Site::chain(Vec::new()), 2);
        site.keep(&new).await;
        assert_eq!(site.missing(&[&new]).await, 0);
        let all = kept(&site.store).await.unwrap();
        let standing: Vec<&str> = standing(&all).map(|kept| kept.text.as_str()).collect();
        assert_eq!(standing, [new.as_str()]);
        // Another gateway's is not over.
        let mut another = Site::new();
        another.store = site.store;
        let other = another.checkpoint(&mut Site::chain(Vec::new()), 3);
        another.keep(&other).await;
        assert_eq!(super::standing(&kept(&another.store).await.unwrap()).count(), 2);
    }

    #[tokio::test]
    async fn what_another_chain_has_taken_the_place_of_is_missed_once() {
        let site = Site::new();
        let mut lost = Site::chain(Vec::new());
        site.keep(&site.checkpoint(&mut lost, 1)).await;
        let log = site.folder.path().join("log");
        fs::write(&log, "").unwrap();
        for at in 2..40 {
            let after = missing(&site.store, &log, site.signer.key()).await.unwrap();
            assert_eq!(after.len(), 1, "{at}");
            let mut new = Site::chain(after);
            let line = site.checkpoint(&mut new, at);
            site.keep(&line).await;
            assert_eq!(site.missing(&[&line]).await, 0);
            // A later checkpoint says no more why its chain has begun.
            let line = site.checkpoint(&mut new, at);
            site.keep(&line).await;
            assert_eq!(site.missing(&[&line]).await, 0);
            fs::write(&log, "").unwrap();
        }
        assert!(kept(&site.store).await.unwrap().len() <= 1 + SUPERSEDED_LIMIT + 1);
    }
}
