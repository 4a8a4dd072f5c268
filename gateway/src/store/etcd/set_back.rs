//! A store that was set back: etcd has been given an old state of it, in which who was revoked since attests again, and what was spent is good once more.
//!
//! The mark says so only until others, who did not know how far it had come, have written as much again. So each gateway counts its own commits in a key
//! that no other puts, and whoever finds the store to be behind says so in the store itself: nobody goes on with it then, also who could not tell. It is for etcd to say,
//! in the transaction that writes this, that the store is behind. `store accept` makes it another store, and that is over.

use std::path::Path;
use std::sync::PoisonError;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::time::Instant;

use super::super::known::{Known, StoreFile};
use super::super::{StoreError, StoreMark, Wrote};
use super::identity::Found;
use super::keys::Keys;
use super::members::Members;
use super::opened::{Opened, Trouble};

/// Whether what is there, in this place, is what is known.
///
/// # Errors
/// As [`Known::check`], and [`StoreError::SetBack`].
pub(super) fn check(known: &Known, place: &Path, found: Option<&Found>) -> Result<(), StoreError> {
    check_by(known, place, found, Known::check)
}

/// As [`check`], for whoever takes what is there to another place.
///
/// # Errors
/// As [`Known::check_to_move`], and [`StoreError::SetBack`].
pub(super) fn check_to_move(known: &Known, place: &Path, found: Option<&Found>) -> Result<(), StoreError> {
    check_by(known, place, found, Known::check_to_move)
}

fn check_by(
    known: &Known,
    place: &Path,
    found: Option<&Found>,
    check: impl Fn(&Known, &Path, &StoreFile) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let Some(found) = found else {
        return check(known, place, &StoreFile::Nothing);
    };
    check(known, place, &found.file())?;
    let set_back = |why| StoreError::SetBack {
        path: place.to_owned(),
        why,
    };
    if let Some(host) = &found.set_back_by {
        return Err(set_back(format!("a gateway on {host} has found that")));
    }
    match known.wrote(&found.mark.id).find(|wrote| lacks(found, wrote)) {
        Some(Wrote { replica, commits }) => Err(set_back(format!(
            "of {commits} commits of replica {replica} it has {}, and others have written to it since",
            found.wrote(replica)
        ))),
        None => Ok(()),
    }
}

fn lacks(found: &Found, wrote: &Wrote) -> bool {
    found.wrote(&wrote.replica).unsigned_abs() < wrote.commits
}

/// What etcd says of a store that was found and that lacks something of what is known, if it does.
fn what_it_lacks(known: &Known, keys: &Keys, found: &Found) -> Option<Compare> {
    let is_it = |mark: &&StoreMark| mark.id == found.mark.id;
    let furthest = known.file.iter().chain(&known.log).filter(is_it).map(|known| known.mark).max();
    if let Some(furthest) = furthest.filter(|furthest| *furthest > found.mark.mark) {
        return Some(comes_short(keys.mark(), furthest.saturating_sub(found.began)));
    }
    let wrote = known.wrote(&found.mark.id).find(|wrote| lacks(found, wrote))?;
    Some(comes_short(keys.wrote(&wrote.replica), wrote.commits))
}

pub(super) fn comes_short(key: String, known: u64) -> Compare {
    Compare::version(key, CompareOp::Less, i64::try_from(known).unwrap_or(i64::MAX))
}

/// Tells all gateways that the store that was found is one from before, if it is: those that do not know better would go on with it.
pub(super) async fn tell(known: &Known, members: &Members, keys: &Keys, found: &Found, until: Instant) {
    if let Some(lack) = what_it_lacks(known, keys, found) {
        let is_it = Compare::value(keys.identity(), CompareOp::Equal, found.identity.as_str());
        write(members, keys, &found.mark.id, vec![is_it, lack], until).await;
    }
}

/// Tells all gateways that this store is one from before, if etcd finds so by this itself.
async fn write(members: &Members, keys: &Keys, id: &str, by: Vec<Compare>, until: Instant) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let txn = Txn::new().when(by).and_then([TxnOp::put(keys.set_back(id), host, None)]);
    let asked = members.ask(until, |mut client| {
        let txn = txn.clone();
        async move { client.txn(txn).await }
    });
    match asked.await {
        Ok(told) if told.succeeded() => tracing::error!("{} was set back: no gateway uses it from here on", members.place),
        // It is another one by now, or as it was.
        Ok(_) => {}
        Err(failure) => {
            let error = members.explain(&failure, true);
            tracing::error!("{} was set back, and other gateways cannot be told: {error}", members.place);
        }
    }
}

impl Opened {
    /// Tells all gateways if the trouble is that the store is one from before.
    pub(super) async fn told(&self, trouble: Trouble) -> Trouble {
        if let Trouble::SetBack(lack) = &trouble {
            self.tell_set_back((**lack).clone()).await;
        }
        trouble
    }

    /// Tells all gateways that the store that was opened is one from before, if etcd finds so by this itself.
    async fn tell_set_back(&self, lack: Compare) {
        let id = self.standing.lock().unwrap_or_else(PoisonError::into_inner).id.clone();
        let until = Instant::now() + self.timeout;
        write(&self.members, &self.keys, &id, vec![self.is_the_store(), lack], until).await;
    }
}
