//! Rollback detection. A store that was restored to an old state trusts nodes that were revoked since, and what was spent is valid again.
//!
//! The mark shows it only until others, who did not know the latest mark, have written as much again. So each gateway has its own counter
//! of its commits. A gateway that finds the store behind records that in the store itself. Then no gateway uses it, even one that could not
//! tell. `store accept` makes it another store, and ends this.

use std::path::Path;

use crate::expected_store::{ExpectedStore, StoreFile};
use crate::{StoreError, StoreMark, Wrote};

/// State that a store reports of itself.
pub(crate) trait RollbackStatement {
    fn file(&self) -> StoreFile;
    fn mark(&self) -> StoreMark;
    /// The host of a gateway that has found it to be one from before.
    fn set_back_by(&self) -> Option<&str>;
    /// Returns the number of commits by this gateway; `None` if that was forgotten.
    fn commits(&self, replica: &str) -> Option<u64>;
    /// Returns whether it replaces the store with this id, and is in use.
    fn is_instead_of(&self, id: &str) -> bool;
}

/// Part of the known state that a store lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The mark that the store had reached.
    Mark(u64),
    /// The number of commits that this gateway had made.
    Commits(Wrote),
}

/// Returns what the store lacks, if anything.
pub(crate) fn lack(known: &ExpectedStore, told: &impl RollbackStatement) -> Option<Lack> {
    let mark = told.mark();
    let furthest = known.furthest_of(&mark.id);
    furthest
        .filter(|furthest| *furthest > mark.mark)
        .map(Lack::Mark)
        .or_else(|| lacking_commits(known, told).map(|wrote| Lack::Commits(wrote.clone())))
}

fn lacking_commits<'k>(known: &'k ExpectedStore, told: &impl RollbackStatement) -> Option<&'k Wrote> {
    let lacks = |wrote: &&Wrote| told.commits(&wrote.replica).is_some_and(|found| found < wrote.commits);
    known.wrote(&told.mark().id).find(lacks)
}

/// Checks that the store in this place is the known one.
///
/// # Errors
/// Like [`ExpectedStore::check`], and [`StoreError::SetBack`].
pub(crate) fn check(known: &ExpectedStore, place: &Path, told: Option<&impl RollbackStatement>) -> Result<(), StoreError> {
    check_by(known, place, told, ExpectedStore::check)
}

/// Like [`check`], to move the store to another place.
///
/// # Errors
/// Like [`ExpectedStore::check_to_move`], and [`StoreError::SetBack`].
pub(crate) fn check_to_move(known: &ExpectedStore, place: &Path, told: Option<&impl RollbackStatement>) -> Result<(), StoreError> {
    check_by(known, place, told, ExpectedStore::check_to_move)
}

fn check_by(
    known: &ExpectedStore,
    place: &Path,
    told: Option<&impl RollbackStatement>,
    check: impl Fn(&ExpectedStore, &Path, &StoreFile) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let Some(told) = told else {
        return check(known, place, &StoreFile::Nothing);
    };
    check(known, place, &told.file())?;
    let set_back = |why| StoreError::SetBack {
        path: place.to_owned(),
        why,
    };
    if let Some(host) = told.set_back_by() {
        return Err(set_back(format!("a gateway on {host} detected this")));
    }
    match lacking_commits(known, told) {
        Some(Wrote { replica, commits }) => Err(set_back(format!(
            "of {commits} commits of replica {replica} it has {}, and others have written to it since",
            told.commits(replica).unwrap_or_default()
        ))),
        None => Ok(()),
    }
}
