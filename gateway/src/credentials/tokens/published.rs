//! Tokens that another makes and ends: the cluster's bootstrap tokens, in whose steps the store follows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use attest::UnixTime;
use attest_store::{EntryKind, Store, StoreEntry, StoreError};

use super::import::{ImportError, Imported};
use super::record::TokenRecord;
use super::{bootstrap, secret};

/// Prefix of such tokens' names: the namespace in which the cluster has them. No other token may have it.
const PREFIX: &str = "kube-system/";

/// Returns whether a token of this name is the cluster's, and not an administrator's.
#[must_use]
pub fn is_followed(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// A bootstrap token as the store knows it: without its text.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// Hash of the token, which is its id.
    id: String,
    /// Public half of the token.
    token_id: String,
    expires: u64,
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapToken")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Reason why a Secret is not a token to follow; never its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// It is not a token for authentication, or it can be guessed.
    #[error(transparent)]
    Token(#[from] ImportError),
    /// It is not of the type.
    #[error("is not a bootstrap token")]
    NotOne,
    /// It would be good for ever.
    #[error("has no expiration: not imported")]
    Endless,
    /// The cluster itself would not find it.
    #[error("its name is not bootstrap-token-ID, so the cluster ignores it, too: not imported")]
    Name,
}

impl BootstrapToken {
    /// Reads the manifest of a Secret of this name.
    ///
    /// # Errors
    /// [`FollowError`].
    pub fn read(name: &str, manifest: &str) -> Result<Self, FollowError> {
        if !bootstrap::is_one(manifest) {
            return Err(FollowError::NotOne);
        }
        let token = Imported::read(manifest)?;
        let expires = token.expires().ok_or(FollowError::Endless)?;
        let text = token.into_text();
        let (token_id, _) = text.split_once('.').unwrap_or_default();
        if name.strip_prefix("bootstrap-token-") != Some(token_id) {
            return Err(FollowError::Name);
        }
        Ok(Self {
            id: secret::hash_of_imported(&text),
            token_id: token_id.to_owned(),
            expires,
        })
    }
}

/// A token that the store should have, and its pools; at least one.
#[derive(Debug, Clone)]
pub struct PublishedToken {
    pub token: BootstrapToken,
    pub pools: BTreeSet<String>,
}

impl PublishedToken {
    /// Returns the token's name in the store.
    fn name(&self) -> String {
        format!("{PREFIX}bootstrap-token-{}", self.token.token_id)
    }
}

/// Change that was made to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenStep {
    Made,
    Changed,
    Ended,
    /// An administrator has imported it by hand: it is left alone.
    Theirs,
}

/// Makes the store's tokens match the wanted ones: adds missing ones, changes those that differ, ends those that are gone. Returns the
/// changes, by name. Tokens that are not the cluster's are left alone, whatever they are.
///
/// # Errors
/// [`StoreError`]; what was done by then is done.
pub async fn follow(store: &dyn Store, wanted: &[PublishedToken], now: UnixTime) -> Result<Vec<(String, TokenStep)>, StoreError> {
    let wanted: BTreeMap<&str, &PublishedToken> = wanted.iter().map(|followed| (followed.token.id.as_str(), followed)).collect();
    let (mut steps, mut known) = (Vec::new(), BTreeMap::new());
    for entry in store.list(EntryKind::Token).await? {
        // What cannot be read is for a person to look at.
        let Ok(record) = TokenRecord::read(&entry) else { continue };
        if is_followed(&record.name) && !wanted.contains_key(entry.id.as_str()) {
            if store.remove(EntryKind::Token, &entry.id).await? {
                steps.push((record.name, TokenStep::Ended));
            }
            continue;
        }
        known.insert(entry.id.clone(), (entry, record));
    }
    for (id, followed) in wanted {
        match known.remove(id) {
            Some((_, record)) if !is_followed(&record.name) => steps.push((record.name, TokenStep::Theirs)),
            Some((entry, record)) => steps.extend(change(store, entry, record, followed).await?),
            None => steps.extend(make(store, id, followed, now).await?),
        }
    }
    Ok(steps)
}

async fn make(store: &dyn Store, id: &str, followed: &PublishedToken, now: UnixTime) -> Result<Option<(String, TokenStep)>, StoreError> {
    let record = TokenRecord {
        name: followed.name(),
        pools: followed.pools.clone(),
        created: now.as_secs(),
        expires: followed.token.expires,
        uses: None,
        again: None,
        networks: Vec::new(),
        superseded: None,
        rotation: None,
    };
    // The cluster removes it when it comes to that.
    if record.is_expired(now) {
        return Ok(None);
    }
    let there = store.insert(EntryKind::Token, record.entry(id)?).await?;
    Ok(there.is_none().then_some((record.name, TokenStep::Made)))
}

async fn change(
    store: &dyn Store,
    entry: StoreEntry,
    record: TokenRecord,
    followed: &PublishedToken,
) -> Result<Option<(String, TokenStep)>, StoreError> {
    let after = TokenRecord {
        pools: followed.pools.clone(),
        expires: followed.token.expires,
        ..record.clone()
    };
    if after == record {
        return Ok(None);
    }
    let write = vec![after.entry(&entry.id)?];
    // Who has changed it meanwhile is followed the next time.
    let changed = store.change(EntryKind::Token, vec![entry], write).await?;
    Ok(changed.then_some((after.name, TokenStep::Changed)))
}
