//! Provisioning tokens, for machines that cannot attest: 32 random bytes, shown once, kept only as a hash.

use attest::UnixTime;
use aws_lc_rs::digest;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::store::{Entry, Kind, Spend, Spendable, Store, StoreError};

/// Length of a token before encoding.
const TOKEN_BYTES: usize = 32;

/// What the store keeps of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// What the administrator calls it.
    pub name: String,
    /// The pool it is for.
    pub pool: String,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// The last second at which it is good, since 1970.
    pub expires: u64,
    /// How often it may be used; none is no limit.
    pub uses: Option<u32>,
}

/// A token just made: the only time that its text exists here.
pub struct Created {
    /// The text. A secret.
    pub text: Zeroizing<String>,
    /// What was stored.
    pub record: TokenRecord,
}

/// Makes a token and stores its hash.
///
/// # Errors
/// [`StoreError`]; a failing random generator shows as [`StoreError::Closed`].
pub async fn create(store: &dyn Store, record: TokenRecord) -> Result<Created, StoreError> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    SystemRandom::new().fill(&mut *bytes).map_err(|_| StoreError::Closed)?;
    let text = Zeroizing::new(BASE64URL_NOPAD.encode(&*bytes));
    let id = hash(&*bytes);
    let value = serde_json::to_string(&record).map_err(|source| StoreError::Entry {
        kind: Kind::Token.as_str(),
        id: id.clone(),
        source,
    })?;
    store.put(Kind::Token, Entry { id, value }).await?;
    Ok(Created { text, record })
}

/// All tokens, by name. Their text is nowhere.
///
/// # Errors
/// [`StoreError`].
pub async fn list(store: &dyn Store) -> Result<Vec<TokenRecord>, StoreError> {
    let mut all = Vec::new();
    for entry in store.list(Kind::Token).await? {
        all.push(read(entry)?.1);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Makes every token of this name worthless; says how many there were.
///
/// # Errors
/// [`StoreError`].
pub async fn revoke(store: &dyn Store, name: &str) -> Result<usize, StoreError> {
    let mut revoked = 0;
    for entry in store.list(Kind::Token).await? {
        let (id, record) = read(entry)?;
        if record.name == name && store.remove(Kind::Token, &id).await? {
            revoked += 1;
        }
    }
    Ok(revoked)
}

fn read(entry: Entry) -> Result<(String, TokenRecord), StoreError> {
    match serde_json::from_str(&entry.value) {
        Ok(record) => Ok((entry.id, record)),
        Err(source) => Err(StoreError::Entry {
            kind: Kind::Token.as_str(),
            id: entry.id,
            source,
        }),
    }
}

/// Looked up by hash, so that nothing is compared byte by byte with what a guesser sent.
fn hash(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// A token that was good for this fetch. Only [`redeem`] makes one.
#[derive(Debug, Clone)]
pub struct Redeemed {
    name: String,
    pool: String,
    use_number: u32,
}

impl Redeemed {
    /// What the administrator calls the token.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool it is for.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Which use this was; the first is 1.
    #[must_use]
    pub const fn use_number(&self) -> u32 {
        self.use_number
    }
}

/// Why a token is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// There is no such token.
    #[error("there is no such token")]
    Invalid,
    /// It is too old.
    #[error("token {name:?} expired at {expires}, it is now {now} (seconds since 1970)")]
    Expired {
        /// Its name.
        name: String,
        /// Its last second.
        expires: u64,
        /// Now.
        now: u64,
    },
    /// It is for another pool.
    #[error("token {name:?} is for pool {token}, asked for was {asked}")]
    WrongPool {
        /// Its name.
        name: String,
        /// Its pool.
        token: String,
        /// The pool asked for.
        asked: String,
    },
    /// It was used as often as it may be.
    #[error("the {uses} uses of token {name:?} are spent")]
    Spent {
        /// Its name.
        name: String,
        /// Its limit.
        uses: u32,
    },
    /// The store cannot tell.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Uses a token once, for the config of `pool`.
///
/// # Errors
/// [`TokenError`].
pub async fn redeem(store: &dyn Store, text: &str, pool: &str, now: UnixTime) -> Result<Redeemed, TokenError> {
    let bytes = BASE64URL_NOPAD
        .decode(text.as_bytes())
        .map(Zeroizing::new)
        .map_err(|_| TokenError::Invalid)?;
    if bytes.len() != TOKEN_BYTES {
        return Err(TokenError::Invalid);
    }
    let id = hash(&bytes);
    let entry = store.get(Kind::Token, &id).await?.ok_or(TokenError::Invalid)?;
    let (id, record) = read(entry)?;
    let TokenRecord {
        name,
        pool: own,
        expires,
        uses,
        ..
    } = record;
    if now.as_secs() > expires {
        return Err(TokenError::Expired {
            name,
            expires,
            now: now.as_secs(),
        });
    }
    if own != pool {
        return Err(TokenError::WrongPool {
            name,
            token: own,
            asked: pool.to_owned(),
        });
    }
    let limit = uses.unwrap_or(u32::MAX);
    match store
        .spend(Spendable {
            kind: Kind::TokenUse,
            id,
            limit,
            remember_until: expires,
        })
        .await?
    {
        Spend::Granted { use_number } => Ok(Redeemed {
            name,
            pool: own,
            use_number,
        }),
        Spend::Exhausted => Err(TokenError::Spent { name, uses: limit }),
    }
}
