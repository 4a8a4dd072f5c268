//! Administration of tokens: create, revoke, list. Rotation is in [`super::rotate`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use attest::UnixTime;
use attest_store::{EntryKind, Store, StoreEntry, StoreError};
use attest_system::clock::lasting;
use ipnet::IpNet;

use super::import::Imported;
use super::publication::{self, PreparedFiles, PublishError, Secret};
use super::published::is_followed;
use super::record::{Rotation, TokenRecord};
use super::secret;

/// Longest name of a token, which appears in lists, in logs and in file names.
const NAME_LIMIT_CHARACTERS: usize = 63;
/// Fewest characters of a token itself: 128 bits in Base64.
const TOKEN_LEAST_CHARACTERS: usize = 22;
/// Characters that are shown of a name that may be a token.
const SHOWN_CHARACTERS: usize = 4;

/// Returns a name that no token has, for messages. A long one may be a token that was typed in the place of its name, and the attestation log
/// has each refusal.
#[must_use]
pub fn shown_name(name: &str) -> String {
    match name.chars().count() {
        0..TOKEN_LEAST_CHARACTERS => format!("{name:?}"),
        count => format!(
            "{:?}… ({count} characters)",
            name.chars().take(SHOWN_CHARACTERS).collect::<String>()
        ),
    }
}

/// Time that an expired token stays in the list, in seconds, to show why a node was refused.
const KEEP_EXPIRED_SECONDS: u64 = 7 * 86_400;
/// Shortest interval of automatic rotation, in seconds: well above the interval at which the gateway looks.
const SHORTEST_ROTATION_SECONDS: u64 = 300;
/// Maximum number of times that revoking looks for a token that has replaced the revoked one meanwhile.
const REVOKE_ROUNDS: usize = 16;
/// Maximum number of derived names to try; with three random bytes each, one is free.
const NAME_TRIES: usize = 16;

/// A token to be made.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Name that the administrator gives it.
    pub name: String,
    /// The pools it is for; at least one.
    pub pools: BTreeSet<String>,
    /// Lifetime of the token, in seconds.
    pub lifetime: u64,
    /// Maximum number of uses; `None` is unlimited.
    pub uses: Option<u32>,
    /// Time after a use in which another one from the same address counts as the same, in seconds; `None` is never.
    pub again: Option<u64>,
    /// From where it may be used; empty is from everywhere.
    pub networks: Vec<IpNet>,
    /// Automatic rotation: its interval, and its folder.
    pub rotation: Option<Rotation>,
}

/// A token just made, or brought: the only time that its text exists here.
pub struct Created {
    pub text: Secret,
    /// The record that was stored.
    pub record: TokenRecord,
    /// Result of giving its files their names, if it has any. The token is valid either way.
    pub published: Result<(), PublishError>,
}

/// Reason why a token was not made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The name cannot be shown in a line.
    #[error("the token's name is invalid: use 1 to {NAME_LIMIT_CHARACTERS} printable characters")]
    Name,
    /// The name cannot be a file's.
    #[error("the name {0:?} cannot name files: use letters, digits, '.', '_' and '-', and begin with a letter or digit")]
    FileName(String),
    /// The name is one of those that the cluster's tokens have.
    #[error("the name {0:?} is reserved for the cluster's bootstrap tokens: create, change and delete those in the cluster")]
    Followed(String),
    /// The name is in use.
    #[error(
        "token {0:?} exists; replace it: `attest-gateway token rotate {0}`, or revoke it: `attest-gateway token revoke {0}`, or use another name"
    )]
    NameTaken(String),
    /// The token is in the store.
    #[error("this token exists already, as {0:?}; to remove it: `attest-gateway token revoke {0}`")]
    Known(String),
    #[error("a token is for at least one pool")]
    NoPool,
    /// It rotates more often than anything looks at it.
    #[error("a token rotates every {} at most, not every {}", lasting(SHORTEST_ROTATION_SECONDS), lasting(*.0))]
    TooOften(u64),
    /// It would die before it is rotated.
    #[error(
        "a token with rotation every {} and a grace period of {} needs --ttl of at least {}, not {}",
        lasting(*.every), lasting(*.grace), lasting(.every.saturating_add(*.grace)), lasting(*.lifetime)
    )]
    TooShort {
        /// Interval of its rotation, in seconds.
        every: u64,
        /// Grace period after that, in seconds.
        grace: u64,
        /// Lifetime that was asked for, in seconds.
        lifetime: u64,
    },
    /// Another token is written into the same file.
    #[error("token {name:?} already uses the file {file}: choose another name or another folder")]
    FileTaken {
        /// Name of the other token.
        name: String,
        file: PathBuf,
    },
    /// The folder of the files is relative, to whatever folder the gateway was started in.
    #[error("{0}: the folder of a token's files must be an absolute path")]
    Relative(PathBuf),
    /// There is nothing to rotate.
    #[error("no token is named {}; to list all tokens: `attest-gateway token list`", shown_name(.0))]
    Unknown(String),
    /// Another gateway or administrator was faster.
    #[error("token {0:?} was rotated or revoked by another command at the same time; no new token was created")]
    Changed(String),
    /// Its files cannot be written.
    #[error("the token's files cannot be written, so nothing was changed: {0}")]
    Publish(#[from] PublishError),
    /// The system's random generator fails.
    #[error("the system's random generator failed")]
    Random,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes a token and stores its hash; `ca` is what its pointers carry, if it is written into a folder.
///
/// # Errors
/// [`IssueError`]; then no token was made.
pub async fn create(store: &dyn Store, draft: Draft, ca: &Path, now: UnixTime) -> Result<Created, IssueError> {
    let token = secret::generate().ok_or(IssueError::Random)?;
    issue(store, draft, token, ca, now).await
}

/// Like [`create`], for a token that was made elsewhere.
///
/// # Errors
/// [`IssueError`]; then nothing has changed.
pub async fn import(store: &dyn Store, draft: Draft, token: Imported, ca: &Path, now: UnixTime) -> Result<Created, IssueError> {
    let text = token.into_text();
    let id = secret::hash_of_imported(&text);
    issue(store, draft, (text, id), ca, now).await
}

async fn issue(store: &dyn Store, draft: Draft, (text, id): (Secret, String), ca: &Path, now: UnixTime) -> Result<Created, IssueError> {
    let Draft {
        name,
        pools,
        lifetime,
        uses,
        again,
        networks,
        rotation,
    } = draft;
    if name.is_empty() || name.chars().count() > NAME_LIMIT_CHARACTERS || name.chars().any(char::is_control) {
        return Err(IssueError::Name);
    }
    if is_followed(&name) {
        return Err(IssueError::Followed(name));
    }
    if pools.is_empty() {
        return Err(IssueError::NoPool);
    }
    let record = TokenRecord {
        name,
        pools,
        created: now.as_secs(),
        expires: now.as_secs().saturating_add(lifetime),
        uses,
        again,
        networks,
        superseded: None,
        rotation: rotation.map(|rotation| Rotation {
            replica: store.serves_as().map(str::to_owned),
            ..rotation
        }),
    };
    let others = all(store).await?;
    if is_taken(&others, &record.name, now) {
        return Err(IssueError::NameTaken(record.name));
    }
    if let Some(rotation) = &record.rotation {
        check_rotation(&record, rotation, &others)?;
    }
    if let Some(known) = others.iter().find(|known| known.entry.id == id) {
        return Err(IssueError::Known(known.record.name.clone()));
    }
    let prepared = prepare(&record, &text, ca, now).await?;
    if store.insert(EntryKind::Token, record.entry(&id)?).await?.is_some() {
        return Err(IssueError::Changed(record.name));
    }
    // Others make tokens at the same time, also on other hosts: of those of one name whoever sees another takes its own back. Nobody
    // was told of it yet.
    let mut others = all(store).await?;
    others.retain(|known| known.entry.id != id);
    let alone = match &record.rotation {
        _ if is_taken(&others, &record.name, now) => Err(IssueError::NameTaken(record.name.clone())),
        Some(rotation) => check_rotation(&record, rotation, &others),
        None => Ok(()),
    };
    if let Err(error) = alone {
        store.remove(EntryKind::Token, &id).await?;
        return Err(error);
    }
    Ok(Created {
        text,
        record,
        published: publish(prepared).await,
    })
}

/// Returns whether a current token has the name.
fn is_taken(all: &[StoredToken], name: &str, now: UnixTime) -> bool {
    let taken = |known: &StoredToken| known.record.name == name && known.record.is_current();
    // One that rotates by itself comes to life again at the next occasion.
    all.iter()
        .any(|known| taken(known) && (known.record.rotation.is_some() || !known.record.is_expired(now)))
}

fn check_rotation(record: &TokenRecord, rotation: &Rotation, others: &[StoredToken]) -> Result<(), IssueError> {
    let name = &record.name;
    let named = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) || !name.chars().all(named) {
        return Err(IssueError::FileName(name.clone()));
    }
    if !rotation.into.is_absolute() {
        return Err(IssueError::Relative(rotation.into.clone()));
    }
    if rotation.every < SHORTEST_ROTATION_SECONDS {
        return Err(IssueError::TooOften(rotation.every));
    }
    check_lifetime(rotation, record.lifetime())?;
    let files = publication::files(record);
    for other in others.iter().map(|known| &known.record).filter(|other| other.is_current()) {
        let same_folder = other.rotation.as_ref().is_some_and(|other| other.into == rotation.into);
        if let Some(file) = publication::files(other).iter().find(|file| same_folder && files.contains(file)) {
            return Err(IssueError::FileTaken {
                name: other.name.clone(),
                file: rotation.into.join(file),
            });
        }
    }
    Ok(())
}

pub(super) fn check_lifetime(rotation: &Rotation, lifetime: u64) -> Result<(), IssueError> {
    let Rotation { every, grace, .. } = *rotation;
    if lifetime < every.saturating_add(grace) {
        return Err(IssueError::TooShort { every, grace, lifetime });
    }
    Ok(())
}

/// Returns a name that no token has, derived from a pool's.
///
/// # Errors
/// [`IssueError::Random`], [`IssueError::Store`].
pub async fn free_name(store: &dyn Store, pool: &str) -> Result<String, IssueError> {
    let all = all(store).await?;
    for _ in 0..NAME_TRIES {
        let mut random = [0; 3];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| IssueError::Random)?;
        let pool: String = pool.chars().take(NAME_LIMIT_CHARACTERS - 7).collect();
        let name = format!("{pool}-{}", data_encoding::HEXLOWER.encode(&random));
        if all.iter().all(|known| known.record.name != name) {
            return Ok(name);
        }
    }
    Err(IssueError::Random)
}

/// Makes every token of this name worthless, current and previous; says how many there were.
///
/// # Errors
/// [`StoreError`]. [`IssueError::Changed`] if it is rotated as fast as it is revoked.
pub async fn revoke(store: &dyn Store, name: &str) -> Result<usize, IssueError> {
    let mut revoked = 0;
    // A rotation may have come between reading and removing; it finds nothing to start from once all are gone.
    for _ in 0..REVOKE_ROUNDS {
        let known = all(store).await?;
        let named: Vec<&StoredToken> = known.iter().filter(|known| known.record.name == name).collect();
        if named.is_empty() {
            return Ok(revoked);
        }
        for known in named {
            if store.remove(EntryKind::Token, &known.entry.id).await? {
                revoked += 1;
            }
        }
    }
    Err(IssueError::Changed(name.to_owned()))
}

/// Removes a token that was not delivered: its text could not be given to the administrator who asked for it.
///
/// # Errors
/// [`StoreError`].
pub async fn withdraw(store: &dyn Store, created: &Created) -> Result<(), StoreError> {
    store
        .remove(EntryKind::Token, &secret::hash_of_imported(&created.text))
        .await
        .map(drop)
}

/// Returns all tokens by name, the newest of each first, and how often each was used. Their text is nowhere.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<(TokenRecord, u32)>, StoreError> {
    let mut listed = Vec::new();
    for StoredToken { entry, record } in all(store).await? {
        let used = store.uses(EntryKind::TokenUse, &entry.id).await?;
        listed.push((record, used));
    }
    listed.sort_by(|(a, _), (b, _)| (&a.name, !a.is_current(), b.created).cmp(&(&b.name, !b.is_current(), a.created)));
    Ok(listed)
}

/// Returns the tokens that pointers should have.
///
/// # Errors
/// [`StoreError`].
pub async fn current(store: &dyn Store) -> Result<Vec<TokenRecord>, StoreError> {
    let records = all(store).await?.into_iter().map(|token| token.record);
    Ok(records.filter(TokenRecord::is_current).collect())
}

/// Removes tokens that expired some time ago; returns how many. A token that rotates by itself stays: it is rotated when its folder is
/// back.
///
/// # Errors
/// [`StoreError`].
pub async fn forget_expired(store: &dyn Store, now: UnixTime) -> Result<usize, StoreError> {
    let mut forgotten = 0;
    for entry in store.list(EntryKind::Token).await? {
        // What cannot be read is for a person to look at.
        let Ok(record) = TokenRecord::read(&entry) else { continue };
        let old = now.as_secs() > record.ends().saturating_add(KEEP_EXPIRED_SECONDS);
        if old && record.rotates_at().is_none() && store.remove(EntryKind::Token, &entry.id).await? {
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

/// A token as it is in the store.
pub(super) struct StoredToken {
    pub(super) entry: StoreEntry,
    pub(super) record: TokenRecord,
}

pub(super) async fn all(store: &dyn Store) -> Result<Vec<StoredToken>, StoreError> {
    let mut all = Vec::new();
    for entry in store.list(EntryKind::Token).await? {
        let record = TokenRecord::read(&entry)?;
        all.push(StoredToken { entry, record });
    }
    Ok(all)
}

/// Writes the files of a token, if it has any, under temporary names.
pub(super) async fn prepare(record: &TokenRecord, text: &Secret, ca: &Path, now: UnixTime) -> Result<Option<PreparedFiles>, PublishError> {
    let Some(rotation) = record.rotation.clone() else { return Ok(None) };
    let (record, text, ca) = (record.clone(), text.clone(), ca.to_owned());
    let prepared = tokio::task::spawn_blocking(move || publication::prepare(&record, &rotation, &text, &ca, now)).await;
    prepared.map_err(|_| PublishError::Interrupted)?.map(Some)
}

pub(super) async fn publish(prepared: Option<PreparedFiles>) -> Result<(), PublishError> {
    let Some(prepared) = prepared else { return Ok(()) };
    let published = tokio::task::spawn_blocking(|| prepared.publish()).await;
    published.map_err(|_| PublishError::Interrupted)?
}
