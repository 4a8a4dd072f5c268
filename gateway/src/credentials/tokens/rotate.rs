//! A token in the place of another, which dies after its grace period.

use std::path::Path;

use attest::UnixTime;
use attest_store::{EntryKind, Store, StoreEntry};

use super::issue::{Created, IssueError, StoredToken, all, check_lifetime, prepare, publish};
use super::published::is_followed;
use super::record::{Rotation, Superseded, TokenRecord};
use super::{GRACE_SECONDS, secret};

/// Maximum number of tokens that are changed at once: an engine takes few keys in one transaction (etcd 120).
const AT_ONCE: usize = 50;

/// A token in the place of others.
pub struct Rotated {
    /// The token that replaces the others.
    pub created: Created,
    /// The last second at which the last of the tokens before is valid, since 1970; `None` if they are no longer valid.
    pub previous_until: Option<u64>,
}

/// Options of one rotation, which override the token's.
#[derive(Debug, Clone, Copy, Default)]
pub struct RotateOptions {
    /// Grace period of the tokens before, in seconds; `None` is the token's own, or [`GRACE_SECONDS`].
    pub grace: Option<u64>,
    /// Lifetime of the new token, in seconds; `None` is that of the one before.
    pub lifetime: Option<u64>,
}

/// Replaces the token of that name by a new one with the same name, pools, uses and networks. Those before it are valid for the grace
/// period only. All of that is done or nothing. But tokens that were replaced earlier, and would be valid for longer, have their end first.
///
/// # Errors
/// [`IssueError`]; then no token was made, and the one that it would have replaced is as it was.
pub async fn rotate(store: &dyn Store, name: &str, options: RotateOptions, ca: &Path, now: UnixTime) -> Result<Rotated, IssueError> {
    let known = all(store).await?;
    rotate_known(store, &known, name, options, ca, now).await
}

/// Like [`rotate`], for tokens that were read already.
pub(super) async fn rotate_known(
    store: &dyn Store,
    known: &[StoredToken],
    name: &str,
    options: RotateOptions,
    ca: &Path,
    now: UnixTime,
) -> Result<Rotated, IssueError> {
    if is_followed(name) {
        return Err(IssueError::Followed(name.to_owned()));
    }
    let named: Vec<&StoredToken> = known.iter().filter(|known| known.record.name == name).collect();
    let template = template(&named, name, now)?;
    let rotation = template.rotation.as_ref();
    let lifetime = options.lifetime.unwrap_or(template.lifetime());
    if let (Some(rotation), Some(lifetime)) = (rotation, options.lifetime) {
        check_lifetime(rotation, lifetime)?;
    }
    let grace = options
        .grace
        .unwrap_or_else(|| rotation.map_or(GRACE_SECONDS, |rotation| rotation.grace));
    let (text, id) = secret::generate().ok_or(IssueError::Random)?;
    let record = TokenRecord {
        created: now.as_secs(),
        expires: now.as_secs().saturating_add(lifetime),
        superseded: None,
        // Whoever rotates it does so from now on: its files are in the folder of this machine.
        rotation: rotation.map(|rotation| Rotation {
            replica: store.serves_as().map(str::to_owned),
            ..rotation.clone()
        }),
        ..template.clone()
    };
    // The second before the grace period ends is its last. Without one it has none: a fetch that began before is judged by the time at which it began.
    let last = match grace {
        0 => 0,
        grace => now.as_secs().saturating_add(grace).saturating_sub(1),
    };
    let (mut current, mut older, mut previous_until) = (TokenChanges::default(), TokenChanges::default(), None);
    current.write.push(record.entry(&id)?);
    for before in named {
        let expires = before.record.expires.min(last);
        let superseded = before.record.superseded.clone().unwrap_or_else(|| Superseded {
            at: now.as_secs(),
            by: id.clone(),
        });
        previous_until = previous_until.max(Some(expires).filter(|expires| *expires >= now.as_secs()));
        let after = TokenRecord {
            expires,
            superseded: Some(superseded),
            rotation: None,
            ..before.record.clone()
        };
        // Most have been replaced long ago, and stay as they are.
        if after != before.record {
            let changes = if before.record.is_current() { &mut current } else { &mut older };
            changes.expected.push(before.entry.clone());
            changes.write.push(after.entry(&before.entry.id)?);
        }
    }
    let prepared = prepare(&record, &text, ca, now).await?;
    for changes in older.in_parts().chain([current]) {
        if !store.change(EntryKind::Token, changes.expected, changes.write).await? {
            return Err(IssueError::Changed(name.to_owned()));
        }
    }
    let created = Created {
        text,
        record,
        published: publish(prepared).await,
    };
    Ok(Rotated { created, previous_until })
}

/// Entries, and what they become.
#[derive(Default)]
struct TokenChanges {
    expected: Vec<StoreEntry>,
    write: Vec<StoreEntry>,
}

impl TokenChanges {
    fn in_parts(&self) -> impl Iterator<Item = Self> {
        let (expected, write) = (self.expected.chunks(AT_ONCE), self.write.chunks(AT_ONCE));
        expected.zip(write).map(|(expected, write)| Self {
            expected: expected.to_vec(),
            write: write.to_vec(),
        })
    }
}

/// Returns the token to be replaced: the current one of that name, or of expired ones the newest.
fn template<'k>(named: &[&'k StoredToken], name: &str, now: UnixTime) -> Result<&'k TokenRecord, IssueError> {
    let current = named.iter().map(|known| &known.record).filter(|record| record.is_current());
    let newest = current.max_by_key(|record| (!record.is_expired(now), record.created));
    newest.ok_or_else(|| IssueError::Unknown(name.to_owned()))
}
