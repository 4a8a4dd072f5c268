//! Tokens over time, on a store and a folder of their own; the time is passed in.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest::UnixTime;
use attest_store::{Embedded, EntryKind, Store, StoreEntry, Transact};

use super::*;
use crate::network::network;
use crate::pki::{GatewayNames, create as create_ca};
use crate::settings::Settings;

mod folder;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Creation time of the tests' tokens.
const START: u64 = 1_800_000_000;
const PEER: &str = "192.0.2.1";

struct Place {
    folder: tempfile::TempDir,
    store: Embedded,
    ca: PathBuf,
}

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::defaults(folder.path()).unwrap();
    let names = GatewayNames {
        hosts: vec!["localhost".to_owned()],
        ..GatewayNames::default()
    };
    create_ca(&settings.tls, &names, at(START)).unwrap();
    fs::create_dir(folder.path().join("out")).unwrap();
    Place {
        store: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        ca: settings.tls.ca,
        folder,
    }
}

fn draft(name: &str) -> Draft {
    Draft {
        name: name.to_owned(),
        pools: BTreeSet::from(["worker".to_owned()]),
        lifetime: 100 * DAY,
        uses: None,
        again: None,
        networks: Vec::new(),
        rotation: None,
    }
}

/// Redeems a token in one transaction.
async fn redeem(store: &dyn Store, text: &str, pool: &str, peer: IpAddr, now: UnixTime) -> Result<RedeemedToken, TokenError> {
    let (text, pool) = (text.to_owned(), pool.to_owned());
    let redeemed = store.transact(move |transaction| open(transaction, &text, &pool, peer, now)?.redeem(transaction, TokenHolder::Unknown));
    redeemed.await
}

impl Place {
    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Rotates every 30 days, with a day of grace.
    fn scheduled(&self, name: &str) -> Draft {
        Draft {
            rotation: Some(Rotation {
                every: 30 * DAY,
                grace: DAY,
                into: self.out(),
                url: "https://localhost:22623".parse().unwrap(),
                replica: None,
            }),
            ..draft(name)
        }
    }

    async fn create(&self, draft: Draft, now: u64) -> Result<String, IssueError> {
        let created = create(&self.store, draft, &self.ca, at(now)).await?;
        created.published?;
        Ok(created.text.to_string())
    }

    async fn rotate(&self, name: &str, grace: Option<u64>, now: u64) -> Result<String, IssueError> {
        let options = RotateOptions { grace, lifetime: None };
        let rotated = rotate(&self.store, name, options, &self.ca, at(now)).await?;
        Ok(rotated.created.text.to_string())
    }

    async fn redeem(&self, text: &str, now: u64) -> Result<RedeemedToken, TokenError> {
        redeem(&self.store, text, "worker", PEER.parse().unwrap(), at(now)).await
    }

    #[track_caller]
    fn holds(&self, file: &str) -> String {
        fs::read_to_string(self.out().join(file)).unwrap()
    }

    fn token(&self, name: &str) -> String {
        self.holds(&format!("{name}.token")).trim().to_owned()
    }

    fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.out()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    async fn tick(&self, now: u64) -> Vec<(String, RotationResult)> {
        tick(&self.store, &self.ca, at(now)).await.unwrap()
    }

    async fn entries(&self) -> Vec<StoreEntry> {
        self.store.list(EntryKind::Token).await.unwrap()
    }
}

#[tokio::test]
async fn refused_tokens_have_a_reason_and_spend_nothing() {
    let place = place();
    let limited = Draft {
        uses: Some(1),
        again: None,
        networks: vec![network("192.0.2.0/24").unwrap(), network("2001:db8::/48").unwrap()],
        lifetime: HOUR,
        ..draft("a")
    };
    let text = place.create(limited, START).await.unwrap();
    let check = async |text: &str, pool: &str, peer: &str, now: u64, expected: &str| {
        let peer: IpAddr = peer.parse().unwrap();
        let refused = redeem(&place.store, text, pool, peer, at(now)).await.unwrap_err();
        let found = format!("{refused:?}");
        assert!(found.starts_with(expected), "{found} is not {expected}");
    };
    let other = if text.starts_with('A') { "B" } else { "A" };
    let flipped = format!("{other}{}", &text[1..]);
    check(&flipped, "worker", PEER, START, "Invalid").await;
    check(&text[1..], "worker", PEER, START, "Invalid").await;
    check("", "worker", PEER, START, "Invalid").await;
    check(&text, "worker", PEER, START + HOUR + 1, "Expired").await;
    check(&text, "infra", PEER, START, "WrongPool").await;
    check(&text, "worker", "192.0.3.1", START, "WrongNetwork").await;
    check(&text, "worker", "2001:db8:1::1", START, "WrongNetwork").await;
    // Of several reasons, in this order.
    check(&text, "infra", "192.0.3.1", START + HOUR + 1, "Expired").await;
    check(&text, "infra", "192.0.3.1", START, "WrongPool").await;
    let used = place.redeem(&text, START + HOUR).await.unwrap();
    assert_eq!(
        (used.name(), used.pool(), used.use_number(), used.stale()),
        ("a", "worker", 1, None)
    );
    check(&text, "worker", PEER, START, "Spent").await;
    check(&text, "worker", "192.0.3.1", START, "WrongNetwork").await;
    // What was refused may say where it came from, and never what was shown.
    for (pool, peer) in [("infra", PEER), ("worker", "192.0.3.1"), ("worker", PEER)] {
        let refused = redeem(&place.store, &text, pool, peer.parse().unwrap(), at(START))
            .await
            .unwrap_err();
        assert!(!format!("{refused} {refused:?}").contains(&text[..8]), "{refused}");
    }
}

#[tokio::test]
async fn redeems_a_token_in_each_pool_and_network() {
    let place = place();
    let wide = Draft {
        pools: ["worker", "infra"].map(str::to_owned).into(),
        networks: vec![network("192.0.2.0/24").unwrap(), network("2001:db8::/48").unwrap()],
        ..draft("a")
    };
    let text = place.create(wide, START).await.unwrap();
    for (pool, peer) in [("worker", "192.0.2.7"), ("infra", "2001:db8::7")] {
        let used = redeem(&place.store, &text, pool, peer.parse().unwrap(), at(START)).await.unwrap();
        assert_eq!(used.pool(), pool);
    }
}

#[tokio::test]
async fn rotated_tokens_are_valid_during_the_grace_period() {
    let place = place();
    let first = place
        .create(
            Draft {
                uses: Some(5),
                again: None,
                ..draft("a")
            },
            START,
        )
        .await
        .unwrap();
    let second = place.rotate("a", None, START + HOUR).await.unwrap();
    assert_ne!(first, second);
    let stale = place.redeem(&first, START + HOUR + DAY - 1).await.unwrap();
    let said = stale.stale().unwrap();
    assert!(
        said.starts_with("stale pointer: token \"a\" was rotated at 2027-01-15T09:00:00Z"),
        "{said}"
    );
    assert!(said.ends_with("is valid until 2027-01-16T08:59:59Z"), "{said}");
    let refused = place.redeem(&first, START + HOUR + DAY).await.unwrap_err();
    assert!(refused.to_string().contains("its pointer is stale"), "{refused}");
    // The one that took its place is as the first was.
    assert_eq!(place.redeem(&second, START + HOUR).await.unwrap().stale(), None);
    let listed = list(&place.store).await.unwrap();
    let [(current, 1), (previous, 1)] = listed.as_slice() else {
        panic!("{listed:?}")
    };
    assert_eq!(
        (current.lifetime(), current.uses, &current.pools),
        (100 * DAY, Some(5), &previous.pools)
    );
    let superseded = previous.superseded.as_ref().unwrap();
    assert_eq!(superseded.at, START + HOUR);
    assert!(place.entries().await.iter().any(|entry| entry.id == superseded.by));
    assert_eq!(previous.state(1, at(START + HOUR)), TokenState::Previous);
}

#[tokio::test]
async fn rotation_without_grace_invalidates_all_previous_tokens() {
    let place = place();
    let first = place.create(draft("a"), START).await.unwrap();
    let second = place.rotate("a", None, START + 1).await.unwrap();
    place.redeem(&first, START + 2).await.unwrap();
    let third = place.rotate("a", Some(0), START + 2).await.unwrap();
    // Also by a fetch that had begun before, or by a gateway whose clock is behind.
    for now in [START, START + 1, START + 2] {
        for leaked in [&first, &second] {
            let refused = place.redeem(leaked, now).await;
            assert!(
                matches!(refused, Err(TokenError::Expired { expires, .. }) if expires > START),
                "{refused:?}"
            );
        }
    }
    place.redeem(&third, START + 2).await.unwrap();
    // What was rotated is listed as long as what expires by itself.
    let week = 7 * DAY;
    assert_eq!(forget_expired(&place.store, at(START + 1 + week)).await.unwrap(), 0);
    assert_eq!(forget_expired(&place.store, at(START + 3 + week)).await.unwrap(), 2);
}

#[tokio::test]
async fn grace_period_never_extends_the_token_lifetime() {
    let place = place();
    let short = Draft {
        lifetime: HOUR,
        ..draft("a")
    };
    let first = place.create(short, START).await.unwrap();
    let second = place.rotate("a", Some(10 * DAY), START + 10).await.unwrap();
    place.redeem(&first, START + HOUR).await.unwrap();
    assert!(matches!(
        place.redeem(&first, START + HOUR + 1).await,
        Err(TokenError::Expired { .. })
    ));
    // Nor does a second rotation give the first one more than it had.
    let third = place.rotate("a", Some(1), START + 20).await.unwrap();
    place.rotate("a", Some(10 * DAY), START + 21).await.unwrap();
    for dead in [&first, &second] {
        assert!(matches!(place.redeem(dead, START + 21).await, Err(TokenError::Expired { .. })));
    }
    place.redeem(&third, START + 21).await.unwrap();
}

#[tokio::test]
async fn rotates_the_current_or_newest_expired_token() {
    let place = place();
    let short = |lifetime| Draft { lifetime, ..draft("a") };
    assert!(matches!(place.rotate("a", None, START).await, Err(IssueError::Unknown(_))));
    place.create(short(HOUR), START).await.unwrap();
    place.create(short(2 * HOUR), START + HOUR + 1).await.unwrap();
    let rotated = async |now: u64| {
        place.rotate("a", None, now).await.unwrap();
        let current = list(&place.store).await.unwrap().into_iter().map(|(record, _)| record);
        let newest = current.filter(TokenRecord::is_current).max_by_key(|record| record.created);
        newest.unwrap().lifetime()
    };
    assert_eq!(rotated(START + HOUR + 2).await, 2 * HOUR);
    assert_eq!(rotated(START + 9 * HOUR).await, 2 * HOUR);
}

#[tokio::test]
async fn only_one_of_two_concurrent_rotations_succeeds() {
    let place = place();
    place.create(place.scheduled("a"), START).await.unwrap();
    let files = place.files();
    // Both have read the same before either writes.
    let known = issue::all(&place.store).await.unwrap();
    let now = at(START + 10);
    let options = RotateOptions::default();
    let winner = rotate::rotate_known(&place.store, &known, "a", options, &place.ca, now)
        .await
        .unwrap();
    let text = winner.created.text.to_string();
    let before = place.entries().await;
    let loser = rotate::rotate_known(&place.store, &known, "a", options, &place.ca, now).await;
    assert!(matches!(loser, Err(IssueError::Changed(_))));
    assert_eq!(place.entries().await, before);
    assert_eq!((place.files(), place.token("a")), (files, text), "what the loser wrote is gone");
    // Nor does a revoked token come back.
    assert_eq!(revoke(&place.store, "a").await.unwrap(), 2);
    let late = rotate::rotate_known(&place.store, &known, "a", options, &place.ca, now).await;
    assert!(matches!(late, Err(IssueError::Changed(_))));
    assert_eq!(place.entries().await, []);
}

#[tokio::test]
async fn concurrent_creations_of_one_name_conflict() {
    let place = place();
    // Each has looked before the other writes.
    let (one, two) = tokio::join!(place.create(draft("a"), START), place.create(draft("a"), START));
    let made = [one, two].into_iter().filter(|made| match made {
        Ok(_) => true,
        Err(IssueError::NameTaken(name)) => {
            assert_eq!(name, "a");
            false
        }
        Err(error) => panic!("{error}"),
    });
    let made = made.count();
    assert!(made <= 1, "{made}");
    assert_eq!(place.entries().await.len(), made);
    // Of two that are written into one file, too.
    let (one, two) = tokio::join!(place.create(place.scheduled("b"), START), place.create(place.scheduled("b"), START));
    assert!(one.is_err() || two.is_err());
}

#[tokio::test]
async fn a_name_belongs_to_one_current_token() {
    let place = place();
    place
        .create(
            Draft {
                lifetime: HOUR,
                ..draft("a")
            },
            START,
        )
        .await
        .unwrap();
    assert!(matches!(
        place.create(draft("a"), START + HOUR).await,
        Err(IssueError::NameTaken(_))
    ));
    place.create(draft("a"), START + HOUR + 1).await.unwrap();
    for bad in ["", "a\nb", &"x".repeat(64)] {
        assert!(matches!(place.create(draft(bad), START).await, Err(IssueError::Name)), "{bad:?}");
    }
    let name = free_name(&place.store, "worker").await.unwrap();
    assert!(name.starts_with("worker-") && name.len() == "worker-".len() + 6, "{name}");
    assert!(matches!(
        place
            .create(
                Draft {
                    pools: BTreeSet::new(),
                    ..draft("b")
                },
                START
            )
            .await,
        Err(IssueError::NoPool)
    ));
}

#[tokio::test]
async fn deletes_expired_tokens_after_a_week() {
    let place = place();
    place
        .create(
            Draft {
                lifetime: HOUR,
                ..draft("a")
            },
            START,
        )
        .await
        .unwrap();
    place.create(draft("b"), START).await.unwrap();
    let week = 7 * DAY;
    assert_eq!(forget_expired(&place.store, at(START + HOUR + week)).await.unwrap(), 0);
    assert_eq!(forget_expired(&place.store, at(START + HOUR + week + 1)).await.unwrap(), 1);
    let listed = list(&place.store).await.unwrap();
    assert!(matches!(listed.as_slice(), [(record, 0)] if record.name == "b"));
}
