//! Leaves: objects with what was written earlier, which are made once and never changed.
//!
//! A compaction puts recent changes into new leaves, next to those that have their keys so far. One change of the head then replaces the
//! names of the old ones by the new ones. Others commit meanwhile. Before the first leaf is made, the head names the compaction by a random
//! id, with which its leaves' names begin. The change that names the leaves requires that entry to be there still, and removes it.
//!
//! So a leaf that no later head names, and whose name does not begin with the id in the head, will never be named. A process that was
//! killed, or was too late, has left it, and any process may remove it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use super::super::schema;
use super::api::{RequestFailure, StoreLocation};
use super::changes::PendingChanges;
use super::head::{Folding, Head, LeafReference};
use super::open_store::KubernetesTrouble;
use super::plan::Context;
use super::swap::HeadWriter;
use super::view::{Missing, Pairs};

/// Maximum unpacked bytes of a leaf, unless a single key has more: to change one key, the whole leaf is written.
pub(super) const LEAF_BYTES: usize = 64 * 1024;
/// Maximum of concurrent requests about leaves: an API gives each client a share of its places.
const AT_ONCE: usize = 8;
/// Number of compactions between two searches for leaves that are not named.
const SWEEP_EVERY: u32 = 64;

impl HeadWriter {
    /// Fetches leaves of the known state. Returns `false` if another state is current.
    pub(super) async fn fetch(&mut self, missing: &Missing, until: Instant) -> Result<bool, KubernetesTrouble> {
        let wanted = self.view.head.leaves.iter().filter(|leaf| missing.contains(&leaf.name)).cloned();
        let fetched = fetch(&self.opened.place, wanted.collect(), until).await?;
        let mut gone = None;
        for (name, pairs) in fetched {
            match pairs {
                Some(pairs) => drop(self.view.leaves.insert(name, Arc::new(pairs))),
                None => gone = Some(name),
            }
        }
        let Some(name) = gone else { return Ok(true) };
        // It was put into another one meanwhile.
        if !self.confirm(until).await? {
            return Ok(false);
        }
        Err(lost(&name).into())
    }

    /// Puts the changes into leaves. Returns `false` if another process does so.
    pub(super) async fn fold(&mut self) -> Result<bool, KubernetesTrouble> {
        let id = schema::new_id()?;
        let until = Instant::now() + self.opened.timeout;
        let (mut begun, claim) = (false, id.clone());
        let begin = |head: &mut Head, context: &Context<'_>| {
            let is_others = head.folding.as_ref().is_some_and(|folding| {
                let session = head.sessions.get(&folding.session);
                session.is_some_and(|session| folding.session != context.session && !(context.is_dead)(&folding.session, session.number))
            });
            begun = !is_others;
            head.folding = Some(Folding {
                id: claim.clone(),
                session: context.session.to_owned(),
            });
            begun
        };
        self.change(until, begin).await?;
        if !begun {
            return Ok(false);
        }
        let base = Arc::clone(&self.view.head);
        let runs = runs(&base);
        let wanted: Missing = runs.iter().flat_map(|run| run.old.iter().map(|leaf| leaf.name.clone())).collect();
        let unknown: Missing = wanted
            .iter()
            .filter(|name| !self.view.leaves.contains_key(*name))
            .cloned()
            .collect();
        // They are those of a state that holds no others until this has ended.
        let held: BTreeMap<String, Arc<Pairs>> = self.view.leaves.clone();
        let known: Vec<LeafReference> = base.leaves.iter().filter(|leaf| unknown.contains(&leaf.name)).cloned().collect();
        let mut fetched = fetch(&self.opened.place, known, until).await?;
        let mut made = Vec::new();
        for run in &runs {
            let mut pairs = Pairs::new();
            for leaf in &run.old {
                match (held.get(&leaf.name), fetched.remove(&leaf.name)) {
                    (Some(known), _) => pairs.extend((**known).clone()),
                    (None, Some(Some(found))) => pairs.extend(found),
                    (None, _) => return Err(lost(&leaf.name).into()),
                }
            }
            run.apply(&mut pairs, &base.changes);
            for (from, pairs) in cut(&run.from, pairs) {
                let name = format!("{}-{id}-{}", self.opened.place.name, made.len());
                made.push((from, name, pairs));
            }
        }
        let place = &self.opened.place;
        let written = stream::iter(made).map(|made| create(place, made, until));
        let made: Vec<(LeafReference, Pairs)> = written.buffer_unordered(AT_ONCE).try_collect().await?;
        let leaves = replaced(&base.leaves, &runs, made.iter().map(|(leaf, _)| leaf.clone()));
        let mut done = false;
        let end = |head: &mut Head, _: &Context<'_>| {
            done = head.folding.as_ref().is_some_and(|folding| folding.id == id);
            if done {
                head.leaves.clone_from(&leaves);
                head.changes = head.changes.without(&base.changes);
                head.folding = None;
            }
            done
        };
        self.change(until, end).await?;
        if !done {
            return Ok(false);
        }
        for (leaf, pairs) in made {
            self.view.leaves.insert(leaf.name, Arc::new(pairs));
        }
        remove(&self.opened.place, wanted.into_iter().collect(), until).await;
        self.folds += 1;
        if self.folds % SWEEP_EVERY == 1 {
            self.sweep(until).await?;
        }
        Ok(true)
    }

    /// Removes leaves that are not named, whichever process has left them.
    async fn sweep(&mut self, until: Instant) -> Result<(), KubernetesTrouble> {
        // What is named from here on and was there before is named by what stands now, or by who folds now: see the module.
        let there = self.opened.place.leaves(until).await?;
        let head = self.opened.place.head(until).await?.ok_or(KubernetesTrouble::Replaced)?;
        // Of another store's, or of one that is being taken, nothing is known here.
        self.opened.check(&head)?;
        let of_now = head
            .folding
            .as_ref()
            .map(|folding| format!("{}-{}-", self.opened.place.name, folding.id));
        let is_named = |name: &String| {
            head.leaves.iter().any(|leaf| leaf.name == *name) || of_now.as_ref().is_some_and(|of_now| name.starts_with(of_now))
        };
        let left = there.into_iter().filter(|name| !is_named(name)).collect();
        remove(&self.opened.place, left, until).await;
        Ok(())
    }
}

/// Creates a leaf from its first key, its name, and its content.
async fn create(
    place: &StoreLocation,
    (from, name, pairs): (String, String, Pairs),
    until: Instant,
) -> Result<(LeafReference, Pairs), RequestFailure> {
    let sha256 = place.create_leaf(&name, &pairs, until).await?;
    Ok((LeafReference { from, name, sha256 }, pairs))
}

/// Removes leaves that no future state names. Those that cannot be removed are found by a later search.
async fn remove(place: &StoreLocation, names: Vec<String>, until: Instant) {
    let count = names.len();
    let gone = stream::iter(names).map(|name| async move { place.delete_leaf(&name, until).await });
    let failed = gone.buffer_unordered(AT_ONCE).filter_map(|gone| async move { gone.err() });
    let failed: Vec<RequestFailure> = failed.collect().await;
    if let Some(failure) = failed.first() {
        let error = place.error(failure, false);
        tracing::warn!("failed to delete {} of {count} obsolete leaf Secrets: {error}", failed.len());
    }
}

/// Leaves that lie side by side, and of which something has changed.
struct LeafRange {
    /// Key at which the first of them begins.
    from: String,
    /// Key at which the one behind them begins, if there is one.
    until: Option<String>,
    old: Vec<LeafReference>,
}

impl LeafRange {
    fn apply(&self, pairs: &mut Pairs, changes: &PendingChanges) {
        pairs.retain(|key, _| !changes.removes(key));
        let until = self.until.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, value) in changes.writes.range::<str, _>((Bound::Included(self.from.as_str()), until)) {
            match value {
                Some(value) => drop(pairs.insert(key.clone(), value.clone())),
                None => drop(pairs.remove(key)),
            }
        }
    }
}

/// Returns the runs of leaves that the changes affect.
fn runs(head: &Head) -> Vec<LeafRange> {
    let Head { leaves, changes, .. } = head;
    if leaves.is_empty() {
        return vec![LeafRange {
            from: String::new(),
            until: None,
            old: Vec::new(),
        }];
    }
    let mut runs: Vec<LeafRange> = Vec::new();
    for (place, leaf) in leaves.iter().enumerate() {
        let (from, until) = (leaf.from.as_str(), leaves.get(place + 1).map(|next| next.from.as_str()));
        let end = until.map_or(Bound::Unbounded, Bound::Excluded);
        let written = changes.writes.range::<str, _>((Bound::Included(from), end)).next().is_some();
        let removed = |(of, to): &(String, String)| until.is_none_or(|until| of.as_str() < until) && from < to.as_str();
        if !written && !changes.removed.iter().any(removed) {
            continue;
        }
        let until = until.map(str::to_owned);
        match runs.last_mut().filter(|run| run.until.as_deref() == Some(from)) {
            Some(run) => {
                run.until = until;
                run.old.push(leaf.clone());
            }
            None => runs.push(LeafRange {
                from: from.to_owned(),
                until,
                old: vec![leaf.clone()],
            }),
        }
    }
    runs
}

/// Returns all leaves, with new ones in place of the runs. The first one begins at the empty key.
fn replaced(old: &[LeafReference], runs: &[LeafRange], new: impl Iterator<Item = LeafReference>) -> Vec<LeafReference> {
    let is_old = |leaf: &&LeafReference| !runs.iter().any(|run| run.old.iter().any(|old| old.name == leaf.name));
    let kept = old.iter().filter(is_old).cloned();
    let mut leaves: Vec<LeafReference> = kept.chain(new).collect();
    leaves.sort_by(|one, other| one.from.cmp(&other.from));
    if let Some(first) = leaves.first_mut() {
        first.from.clear();
    }
    leaves
}

/// Splits the content of a run into leaves, each with its first key.
fn cut(from: &str, pairs: Pairs) -> Vec<(String, Pairs)> {
    let (mut leaves, mut leaf, mut bytes, mut from) = (Vec::new(), Pairs::new(), 0, from.to_owned());
    for (key, value) in pairs {
        let more = key.len() + value.len();
        if bytes + more > LEAF_BYTES
            && let Some((last, _)) = leaf.last_key_value()
        {
            let next = separator(last, &key);
            leaves.push((std::mem::replace(&mut from, next), std::mem::take(&mut leaf)));
            bytes = 0;
        }
        bytes += more;
        leaf.insert(key, value);
    }
    if !leaf.is_empty() {
        leaves.push((from, leaf));
    }
    leaves
}

/// Returns the shortest prefix of `key` that sorts after `last`, which sorts before `key`. Each commit writes the first key of each leaf,
/// and the rest of a key is usually random, so that it does not compress.
fn separator(last: &str, key: &str) -> String {
    let ends = key.char_indices().map(|(at, char)| at + char.len_utf8());
    let mut beginnings = ends.filter_map(|end| key.get(..end));
    beginnings.find(|beginning| *beginning > last).unwrap_or(key).to_owned()
}

/// Fetches the content of these leaves; `None` for a leaf that does not exist.
pub(super) async fn fetch(
    place: &StoreLocation,
    leaves: Vec<LeafReference>,
    until: Instant,
) -> Result<BTreeMap<String, Option<Pairs>>, RequestFailure> {
    let asked = stream::iter(leaves).map(|leaf| async move {
        let pairs = place.leaf(&leaf.name, &leaf.sha256, until).await?;
        Ok((leaf.name, pairs))
    });
    asked.buffer_unordered(AT_ONCE).try_collect().await
}

/// Said of a leaf that the state names, and that is not there.
pub(super) fn lost(name: &str) -> RequestFailure {
    RequestFailure::Damaged(format!("secret {name}, which holds a part of the store, is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separator_is_the_shortest_prefix_after_previous_leaf() {
        for (last, key, expected) in [
            ("use/challenge/0a11", "use/challenge/0b22", "use/challenge/0b"),
            ("entry/x", "use/challenge/0b22", "u"),
            ("use/a", "use/a/b", "use/a/"),
            ("use/é1", "use/ü2", "use/ü"),
            ("a", "ab", "ab"),
            ("", "b", "b"),
        ] {
            assert_eq!(separator(last, key), expected);
            assert!(last < expected && expected <= key);
        }
    }

    #[test]
    fn each_key_lies_within_its_leafs_range() {
        let name = |number: u32| format!("use/challenge/{:08x}", number.wrapping_mul(2_654_435_761));
        let pairs: Pairs = (0..5_000).map(|number| (name(number), "x".repeat(64))).collect();
        let leaves = cut("", pairs.clone());
        assert!(leaves.len() > 3 && leaves.is_sorted_by(|(one, _), (next, _)| one < next));
        // What each commit writes of it is the beginning only.
        assert!(leaves.iter().skip(1).all(|(from, _)| from.len() < name(0).len()));
        for (at, (from, held)) in leaves.iter().enumerate() {
            let until = leaves.get(at + 1).map(|(next, _)| next);
            assert!(held.keys().all(|key| from <= key && until.is_none_or(|until| key < until)));
        }
        assert_eq!(leaves.into_iter().flat_map(|(_, held)| held).collect::<Pairs>(), pairs);
    }
}
