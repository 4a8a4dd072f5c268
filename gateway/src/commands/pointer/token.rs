//! Describes a pointer's token by the store. It is looked up by its hash, and never spent.

use attest::UnixTime;
use attest_gateway::credentials::tokens::{self, TokenState};
use attest_store::{Store, StoreError, Transact};
use attest_system::clock::rfc3339;
use zeroize::Zeroizing;

/// Validity of a token, in words without the token.
pub(super) enum Worth {
    /// It would be accepted.
    Good(String),
    /// It would be refused.
    Bad(String),
}

/// Describes a token that was shown for `pool`.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn describe(store: &dyn Store, text: &str, pool: &str, now: UnixTime) -> Result<Worth, StoreError> {
    let shown = Zeroizing::new(text.to_owned());
    let found = store.read(move |transaction| tokens::look_up(transaction, &shown));
    let Some((token, used)) = found.await? else {
        return Ok(Worth::Bad("the store does not know the token".to_owned()));
    };
    let (name, until) = (&token.name, rfc3339(token.expires));
    if !token.pools.contains(pool) {
        return Ok(Worth::Bad(format!("token {name:?} is not for pool {pool}")));
    }
    let networks: Vec<String> = token.networks.iter().map(ToString::to_string).collect();
    let from = if networks.is_empty() {
        String::new()
    } else {
        format!(", from {} only", networks.join(", "))
    };
    Ok(match token.state(used, now) {
        TokenState::Current => Worth::Good(format!("token {name:?} is current, valid until {until}{from}")),
        TokenState::Previous => Worth::Good(format!(
            "token {name:?} was rotated; the pointer has the previous one, valid until {until}{from}"
        )),
        TokenState::Expired => Worth::Bad(format!("token {name:?} expired at {until}")),
        TokenState::Spent => Worth::Bad(format!("all {used} uses of token {name:?} are spent")),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use attest_store::{Embedded, EntryKind, Spendable, StoreEntry};
    use aws_lc_rs::digest;
    use data_encoding::{BASE64URL_NOPAD, HEXLOWER};

    use super::*;

    #[tokio::test]
    async fn a_token_is_described_and_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let text = BASE64URL_NOPAD.encode(&[7; 32]);
        let id = HEXLOWER.encode(digest::digest(&digest::SHA256, &[7; 32]).as_ref());
        let check = async |value: &str, text: &str, expected: &str| {
            let (id, value) = (id.clone(), value.to_owned());
            store.put(EntryKind::Token, StoreEntry { id: id.clone(), value }).await.unwrap();
            let (good, found) = match describe(&store, text, "worker", UnixTime::since_unix_epoch(Duration::from_secs(100)))
                .await
                .unwrap()
            {
                Worth::Good(found) => ("good: ", found),
                Worth::Bad(found) => ("bad: ", found),
            };
            assert_eq!(format!("{good}{found}"), expected);
            assert!(!found.contains(text));
        };
        let one_pool = r#"{"name":"a","pools":["worker"],"created":1,"expires":100,"uses":null}"#;
        let until = "1970-01-01T00:01:40Z";
        check(one_pool, &text, &format!("good: token \"a\" is current, valid until {until}")).await;
        check(one_pool, "guessed", "bad: the store does not know the token").await;
        check(one_pool, "not base64", "bad: the store does not know the token").await;
        check(
            one_pool,
            &BASE64URL_NOPAD.encode(&[8; 32]),
            "bad: the store does not know the token",
        )
        .await;
        let pools = r#"{"name":"a","pools":["infra","worker"],"created":1,"expires":100,"networks":["192.0.2.0/24"]}"#;
        check(
            pools,
            &text,
            &format!("good: token \"a\" is current, valid until {until}, from 192.0.2.0/24 only"),
        )
        .await;
        let previous = r#"{"name":"a","pools":["worker"],"created":1,"expires":100,"superseded":{"at":50,"by":"x"}}"#;
        let said = format!("good: token \"a\" was rotated; the pointer has the previous one, valid until {until}");
        check(previous, &text, &said).await;
        let expired = r#"{"name":"a","pools":["worker"],"created":1,"expires":99,"uses":null}"#;
        check(expired, &text, "bad: token \"a\" expired at 1970-01-01T00:01:39Z").await;
        let other = r#"{"name":"a","pools":["infra"],"created":1,"expires":100,"uses":null}"#;
        check(other, &text, "bad: token \"a\" is not for pool worker").await;
        let twice = r#"{"name":"a","pools":["worker"],"created":1,"expires":100,"uses":2}"#;
        for (used, expected) in [
            (0, format!("good: token \"a\" is current, valid until {until}")),
            (1, format!("good: token \"a\" is current, valid until {until}")),
            (2, "bad: all 2 uses of token \"a\" are spent".to_owned()),
        ] {
            check(twice, &text, &expected).await;
            assert_eq!(store.uses(EntryKind::TokenUse, &id).await.unwrap(), used);
            let use_of = Spendable {
                kind: EntryKind::TokenUse,
                id: id.clone(),
                limit: 9,
                remember_until: 100,
            };
            store.spend(use_of).await.unwrap();
        }
    }
}
