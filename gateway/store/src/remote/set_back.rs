//! A store that was set back: what keeps it has been given an old state of it, in which who was revoked since attests again, and what was spent is good once more.
//!
//! The mark says so only until others, who did not know how far it had come, have written as much again. So each gateway counts its own commits where no
//! other does, and whoever finds the store to be behind says so in the store itself: nobody goes on with it then, also who could not tell. `store accept` makes it another
//! store, and that is over.

use std::path::Path;

use crate::known::{Known, StoreFile};
use crate::{StoreError, StoreMark, Wrote};

/// What a store says of itself.
pub(crate) trait Told {
    fn file(&self) -> StoreFile;
    fn mark(&self) -> StoreMark;
    /// The host of a gateway that has found it to be one from before.
    fn set_back_by(&self) -> Option<&str>;
    /// How often this gateway has written; `None` if that is not known any more.
    fn commits(&self, replica: &str) -> Option<u64>;
    /// Whether it is in the place of the one of this id, and is used.
    fn is_instead_of(&self, id: &str) -> bool;
}

/// What a store lacks of what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lack {
    /// It had come so far.
    Mark(u64),
    /// This gateway had written so often.
    Commits(Wrote),
}

/// What is lacking, if something is.
pub(crate) fn lack(known: &Known, told: &impl Told) -> Option<Lack> {
    let mark = told.mark();
    let furthest = known.furthest_of(&mark.id);
    furthest
        .filter(|furthest| *furthest > mark.mark)
        .map(Lack::Mark)
        .or_else(|| lacking_commits(known, told).map(|wrote| Lack::Commits(wrote.clone())))
}

fn lacking_commits<'k>(known: &'k Known, told: &impl Told) -> Option<&'k Wrote> {
    let lacks = |wrote: &&Wrote| told.commits(&wrote.replica).is_some_and(|found| found < wrote.commits);
    known.wrote(&told.mark().id).find(lacks)
}

/// Whether what is there, in this place, is what is known.
///
/// # Errors
/// As [`Known::check`], and [`StoreError::SetBack`].
pub(crate) fn check(known: &Known, place: &Path, told: Option<&impl Told>) -> Result<(), StoreError> {
    check_by(known, place, told, Known::check)
}

/// As [`check`], for whoever takes what is there to another place.
///
/// # Errors
/// As [`Known::check_to_move`], and [`StoreError::SetBack`].
pub(crate) fn check_to_move(known: &Known, place: &Path, told: Option<&impl Told>) -> Result<(), StoreError> {
    check_by(known, place, told, Known::check_to_move)
}

fn check_by(
    known: &Known,
    place: &Path,
    told: Option<&impl Told>,
    check: impl Fn(&Known, &Path, &StoreFile) -> Result<(), StoreError>,
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
        return Err(set_back(format!("a gateway on {host} has found that")));
    }
    match lacking_commits(known, told) {
        Some(Wrote { replica, commits }) => Err(set_back(format!(
            "of {commits} commits of replica {replica} it has {}, and others have written to it since",
            told.commits(replica).unwrap_or_default()
        ))),
        None => Ok(()),
    }
}
