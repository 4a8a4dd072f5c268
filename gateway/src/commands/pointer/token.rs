//! What the store says of a token that a pointer carries. It is looked up by its hash, and never spent.

use attest_gateway::clock::rfc3339;
use attest_gateway::store::{Kind, Store, StoreError};
use aws_lc_rs::digest;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::Deserialize;
use serde::de::IgnoredAny;
use zeroize::Zeroizing;

/// What a token is worth, in words without the token.
pub(super) enum Worth {
    /// It would be taken.
    Good(String),
    /// It would be refused.
    Bad(String),
}

/// As much of a stored token as is needed here.
#[derive(Deserialize)]
struct Stored {
    name: String,
    #[serde(default)]
    pool: Option<String>,
    #[serde(default)]
    pools: Vec<String>,
    expires: u64,
    #[serde(default)]
    uses: Option<u32>,
    #[serde(default)]
    superseded: Option<IgnoredAny>,
}

/// Describes a token that was shown for `pool`.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn describe(store: &dyn Store, text: &str, pool: &str, now: u64) -> Result<Worth, StoreError> {
    let unknown = || Worth::Bad("the token is unknown here".to_owned());
    let Ok(bytes) = BASE64URL_NOPAD.decode(text.as_bytes()).map(Zeroizing::new) else {
        return Ok(unknown());
    };
    let id = HEXLOWER.encode(digest::digest(&digest::SHA256, &bytes).as_ref());
    let Some(entry) = store.get(Kind::Token, &id).await? else {
        return Ok(unknown());
    };
    let stored: Stored = serde_json::from_str(&entry.value).map_err(|source| StoreError::Entry {
        kind: Kind::Token.as_str(),
        id: entry.id,
        source,
    })?;
    let (name, until) = (&stored.name, rfc3339(stored.expires));
    let used = store.uses(Kind::TokenUse, &id).await?;
    if now > stored.expires {
        return Ok(Worth::Bad(format!("token {name:?} expired at {until}")));
    }
    if let Some(limit) = stored.uses.filter(|limit| used >= *limit) {
        return Ok(Worth::Bad(format!("the {limit} uses of token {name:?} are spent")));
    }
    if stored.pool.iter().chain(&stored.pools).all(|own| own != pool) {
        return Ok(Worth::Bad(format!("token {name:?} is not for pool {pool}")));
    }
    Ok(Worth::Good(if stored.superseded.is_some() {
        format!("token {name:?} was rotated: this is the previous one, good until {until}")
    } else {
        format!("token {name:?} is current, until {until}")
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use attest_gateway::store::{Embedded, Entry, Spendable};

    use super::*;

    #[tokio::test]
    async fn a_token_is_described_and_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let text = BASE64URL_NOPAD.encode(&[7; 32]);
        let id = HEXLOWER.encode(digest::digest(&digest::SHA256, &[7; 32]).as_ref());
        let check = async |value: &str, text: &str, expected: &str| {
            let (id, value) = (id.clone(), value.to_owned());
            store.put(Kind::Token, Entry { id: id.clone(), value }).await.unwrap();
            let (good, found) = match describe(&store, text, "worker", 100).await.unwrap() {
                Worth::Good(found) => ("good: ", found),
                Worth::Bad(found) => ("bad: ", found),
            };
            assert_eq!(format!("{good}{found}"), expected);
            assert!(!found.contains(text));
        };
        let one_pool = r#"{"name":"a","pool":"worker","created":1,"expires":100,"uses":null}"#;
        let until = "1970-01-01T00:01:40Z";
        check(one_pool, &text, &format!("good: token \"a\" is current, until {until}")).await;
        check(one_pool, "guessed", "bad: the token is unknown here").await;
        check(one_pool, "not base64", "bad: the token is unknown here").await;
        check(one_pool, &BASE64URL_NOPAD.encode(&[8; 32]), "bad: the token is unknown here").await;
        let pools = r#"{"name":"a","pools":["infra","worker"],"created":1,"expires":100,"networks":["192.0.2.0/24"]}"#;
        check(pools, &text, &format!("good: token \"a\" is current, until {until}")).await;
        let previous = r#"{"name":"a","pools":["worker"],"created":1,"expires":100,"superseded":{"at":50,"by":"x"}}"#;
        let said = format!("good: token \"a\" was rotated: this is the previous one, good until {until}");
        check(previous, &text, &said).await;
        let expired = r#"{"name":"a","pool":"worker","created":1,"expires":99,"uses":null}"#;
        check(expired, &text, "bad: token \"a\" expired at 1970-01-01T00:01:39Z").await;
        let other = r#"{"name":"a","pool":"infra","created":1,"expires":100,"uses":null}"#;
        check(other, &text, "bad: token \"a\" is not for pool worker").await;
        let twice = r#"{"name":"a","pool":"worker","created":1,"expires":100,"uses":2}"#;
        for (used, expected) in [
            (0, format!("good: token \"a\" is current, until {until}")),
            (1, format!("good: token \"a\" is current, until {until}")),
            (2, "bad: the 2 uses of token \"a\" are spent".to_owned()),
        ] {
            check(twice, &text, &expected).await;
            assert_eq!(store.uses(Kind::TokenUse, &id).await.unwrap(), used);
            let use_of = Spendable {
                kind: Kind::TokenUse,
                id: id.clone(),
                limit: 9,
                remember_until: 100,
            };
            store.spend(use_of).await.unwrap();
        }
    }
}
