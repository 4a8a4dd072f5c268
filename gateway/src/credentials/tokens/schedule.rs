//! Tokens that rotate by themselves: what is due at a moment.

use std::path::Path;

use attest::UnixTime;
use attest_store::{EntryKind, Store, StoreError};
use attest_system::clock::rfc3339;

use super::issue::{IssueError, StoredToken};
use super::publication::{self, PublishError};
use super::record::{Rotation, TokenRecord};
use super::rotate::{RotateOptions, Rotated, rotate_known};
use super::secret;

/// Time in which the maker of a token gives its files their names, in seconds. Until then, a folder without it is not a sign of a crash.
const SETTLE_SECONDS: u64 = 60;

/// Time after a token was due until gateways that do not rotate it report that, in seconds.
const OVERDUE_SECONDS: u64 = 600;

/// Outcome for one token.
#[derive(Debug)]
pub enum RotationResult {
    /// A new token has replaced it.
    Rotated,
    /// Its other files were written again.
    Refreshed,
    /// Another gateway or the administrator was faster.
    Overtaken,
    /// It is another gateway's to rotate, and that has not done so in time.
    Overdue,
    /// It was left as it is; the next time may be better.
    Failed(IssueError),
}

/// Rotates the tokens that are due, and those whose folder does not hold them, except those of other gateways. Returns what was done, by
/// name. To be called regularly, by each gateway that has this store.
///
/// # Errors
/// [`StoreError`]. What fails for one token is in the answer and in the console, and keeps no other from its turn.
pub async fn tick(store: &dyn Store, ca: &Path, now: UnixTime) -> Result<Vec<(String, RotationResult)>, StoreError> {
    let mut known = Vec::new();
    for entry in store.list(EntryKind::Token).await? {
        match TokenRecord::read(&entry) {
            Ok(record) => known.push(StoredToken { entry, record }),
            Err(error) => tracing::error!(%error, "cannot read a token's entry; not rotating that token"),
        }
    }
    let mut all = Vec::new();
    for StoredToken { entry, record } in &known {
        let Some(rotation) = record.rotation.as_ref().filter(|_| record.is_current()) else {
            continue;
        };
        if let Some(done) = one(store, &known, &entry.id, record, rotation, ca, now).await {
            report(&record.name, &done);
            all.push((record.name.clone(), done));
        }
    }
    Ok(all)
}

async fn one(
    store: &dyn Store,
    known: &[StoredToken],
    id: &str,
    record: &TokenRecord,
    rotation: &Rotation,
    ca: &Path,
    now: UnixTime,
) -> Option<RotationResult> {
    let age = now.as_secs().saturating_sub(record.created);
    let overdue = || (age >= rotation.every.saturating_add(OVERDUE_SECONDS)).then_some(RotationResult::Overdue);
    if rotation.is_of_another(store.serves_as()) {
        return overdue();
    }
    let is_due = age >= rotation.every;
    // Made on an embedded store, which several gateways have now: it is the one's whose folder holds it.
    let is_anybodys = rotation.replica.is_none() && store.serves_as().is_some();
    if !is_due || is_anybodys {
        match check_folder(id, record, rotation, ca).await {
            Ok(TokenFolder::Whole | TokenFolder::Mended) if is_due => {}
            Ok(TokenFolder::Whole) => return None,
            Ok(TokenFolder::Mended) => return Some(RotationResult::Refreshed),
            Ok(TokenFolder::AnotherToken) if is_anybodys => return overdue(),
            Ok(TokenFolder::AnotherToken) if age < SETTLE_SECONDS => return None,
            Ok(TokenFolder::AnotherToken) => tracing::warn!(
                "token {:?}: {} holds another token, after a crash or a change by hand; rotating it",
                record.name,
                rotation.into.display()
            ),
            Err(error) => return Some(RotationResult::Failed(error.into())),
        }
    }
    Some(
        match rotate_known(store, known, &record.name, RotateOptions::default(), ca, now).await {
            Ok(Rotated { created, previous_until }) => {
                if let Err(error) = created.published {
                    tracing::error!(%error, "token {:?} rotated, but not all of its files could be written", record.name);
                }
                let until = previous_until.map_or_else(
                    || "is no longer valid".to_owned(),
                    |until| format!("is valid until {}", rfc3339(until)),
                );
                tracing::info!("token {:?} rotated; the previous one {until}", record.name);
                RotationResult::Rotated
            }
            Err(IssueError::Changed(_)) => RotationResult::Overtaken,
            Err(error) => RotationResult::Failed(error),
        },
    )
}

fn report(name: &str, done: &RotationResult) {
    match done {
        RotationResult::Rotated => {}
        RotationResult::Refreshed => tracing::info!("token {name:?}: rewrote its files"),
        RotationResult::Overtaken => tracing::info!("token {name:?}: already rotated by another gateway or command"),
        RotationResult::Overdue => tracing::error!(
            "token {name:?} is overdue: the gateway that rotates it has not done so. To move its rotation to another gateway, run there: \
             `attest-gateway token rotate {name}`"
        ),
        RotationResult::Failed(error) => tracing::error!("cannot rotate token {name:?}; keeping the current one: {error}"),
    }
}

/// State of a token's folder.
enum TokenFolder {
    Whole,
    Mended,
    AnotherToken,
}

/// Checks that the folder holds the token with this hash, and repairs its other files.
async fn check_folder(id: &str, record: &TokenRecord, rotation: &Rotation, ca: &Path) -> Result<TokenFolder, PublishError> {
    let (id, record, rotation, ca) = (id.to_owned(), record.clone(), rotation.clone(), ca.to_owned());
    let looked = tokio::task::spawn_blocking(move || {
        let text = publication::published(&record, &rotation)?;
        match text.filter(|text| secret::hash_of_text(text).is_some_and(|hash| secret::is_same(&hash, &id))) {
            None => Ok(TokenFolder::AnotherToken),
            Some(text) if publication::refresh(&record, &rotation, &text, &ca)? > 0 => Ok(TokenFolder::Mended),
            Some(_) => Ok(TokenFolder::Whole),
        }
    });
    looked.await.map_err(|_| PublishError::Interrupted)?
}
