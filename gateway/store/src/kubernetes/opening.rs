//! Opening of a store: reads it, creates it, records that it was rolled back, and renames it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use attest_system::files;
use tokio::time::{Instant, sleep};

use super::super::expected_store::ExpectedStore;
use super::super::remote::serving::host_of_this;
use super::super::remote::set_back::{self, RollbackStatement, lack};
use super::super::threads::under_lock;
use super::super::{Replacement, StoreError, StoreMark, Wrote, replica, schema};
use super::KubernetesLimits;
use super::api::{AGAIN_AFTER, RequestFailure, StoreLocation, Swapped};
use super::head::Head;
use super::open_store::OpenKubernetesStore;
use crate::settings::KubernetesSettings;

/// Returns the head, if there is a store. Writes nothing.
pub(super) async fn read_head(place: &StoreLocation, until: Instant) -> Result<Option<Head>, StoreError> {
    let head = place.head(until).await.map_err(|failure| place.error(&failure, false))?;
    match head {
        Some(head) if head.taking.is_some() => Err(StoreError::Unfinished(place.place.clone().into())),
        head => Ok(head),
    }
}

/// Opens the store, and what it is now.
pub(super) async fn open(
    settings: &KubernetesSettings,
    known: &ExpectedStore,
    beside: &Path,
    limits: KubernetesLimits,
) -> Result<(OpenKubernetesStore, Head), StoreError> {
    let place = StoreLocation::from_settings(settings).await?;
    let path = PathBuf::from(&place.place);
    let until = Instant::now() + settings.timeout;
    let found = match read_head(&place, until).await? {
        Some(found) => found,
        None => {
            set_back::check(known, &path, None::<&Head>)?;
            begin(&place, &Head::new(schema::new_id()?)?, until).await?;
            let begun = read_head(&place, until).await?;
            begun.ok_or_else(|| StoreError::Replaced(path.clone()))?
        }
    };
    if found.set_back.is_none() && lack(known, &found).is_some() {
        let session = schema::new_id()?;
        if let Err(error) = report_rollback(&place, &found, &session, until).await {
            tracing::error!("store {} was rolled back; cannot tell the other gateways: {error}", place.place);
        }
    }
    set_back::check(known, &path, Some(&found))?;
    let replica = under_lock(beside, || replica::load_or_create_id(files::folder(beside)))?;
    let wrote = Wrote {
        replica: replica.clone(),
        commits: found.commits(&replica).unwrap_or(0),
    };
    let opened = OpenKubernetesStore {
        id: found.id.clone(),
        replica,
        session: schema::new_id()?,
        mark: Mutex::new(StoreMark {
            wrote: Some(wrote),
            ..found.mark()
        }),
        confirmed: Mutex::default(),
        timeout: settings.timeout,
        limits,
        leaves: found.leaves.len().into(),
        serving: OnceLock::new(),
        leads: Mutex::default(),
        place,
    };
    Ok((opened, found))
}

/// Creates the object; another process may be faster.
pub(super) async fn begin(place: &StoreLocation, head: &Head, until: Instant) -> Result<(), StoreError> {
    match place.create(head, head.encode()?, until).await {
        // Whatever is there is looked at.
        Ok(_) | Err(RequestFailure::Unanswered(_)) => Ok(()),
        Err(failure) => Err(place.error(&failure, false)),
    }
}

/// Reports to all gateways that the store that was found was rolled back, if it is still the current state.
pub(super) async fn report_rollback(place: &StoreLocation, found: &Head, session: &str, until: Instant) -> Result<(), StoreError> {
    let mut next = found.next(session, 1)?;
    next.forget(session);
    next.set_back = Some(host_of_this());
    let told = place.swap(&found.commit, &next, &next.encode()?, until).await;
    match told {
        Ok(Swapped::Done) => tracing::error!("store {} was rolled back; all gateways have stopped using it", place.place),
        // It is another one by now; or it cannot be changed, and is not used on, either.
        Ok(Swapped::Refused(_)) => {}
        Err(failure) => return Err(place.error(&failure, true)),
    }
    Ok(())
}

/// Gives another id to the store that was found, or creates one.
pub(super) async fn rename(
    place: &StoreLocation,
    replacement: &Replacement,
    furthest: u64,
    until: Instant,
) -> Result<StoreMark, StoreError> {
    let replaced = || StoreError::Replaced(place.place.clone().into());
    let known = replacement.known.as_ref().map(|known| known.id.as_str());
    let id = schema::new_id()?;
    // Why the API did not let it be changed: that says more than that there was no time for another try.
    let mut why = None;
    loop {
        let there = match (read_head(place, until).await, &why) {
            (Err(_), Some(why)) => return Err(place.error(why, true)),
            (there, _) => there?,
        };
        if let Some(now) = there.as_ref().filter(|there| there.id == id) {
            // An answer was lost.
            return Ok(now.mark());
        }
        if there.as_ref().map(|there| &there.id) != replacement.found.as_ref().map(|found| &found.id) {
            return Err(replaced());
        }
        let sent = match &there {
            None => {
                let mut head = Head::new(String::new())?;
                head.rename(id.clone(), furthest, known.into_iter());
                let made = place.create(&head, head.encode()?, until).await;
                made.map(|is_made| {
                    if is_made {
                        Swapped::Done
                    } else {
                        Swapped::Refused("it is there by now".to_owned())
                    }
                })
            }
            Some(there) => {
                let mut next = there.next(&id, 1)?;
                next.forget(&id);
                next.rename(id.clone(), furthest, [there.id.as_str()].into_iter().chain(known));
                place.swap(&there.commit, &next, &next.encode()?, until).await
            }
        };
        let failure = match sent {
            Ok(Swapped::Done) if Instant::now() < until => continue,
            Ok(Swapped::Done) => return Err(replaced()),
            Ok(Swapped::Refused(message)) => &*why.insert(RequestFailure::Refused { code: 422, message }),
            Err(RequestFailure::Unanswered(told)) => why.get_or_insert(RequestFailure::Unanswered(told)),
            Err(failure) => return Err(place.error(&failure, true)),
        };
        if Instant::now() + AGAIN_AFTER >= until {
            return Err(place.error(failure, true));
        }
        sleep(AGAIN_AFTER).await;
    }
}
