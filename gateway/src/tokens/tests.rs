//! Tokens over time, on a store and a folder of their own; the time is passed in.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attest::UnixTime;

use super::*;
use crate::pki::{Names, create as create_ca};
use crate::settings::Settings;
use crate::store::{Embedded, Entry, Kind, Store};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// When the tests' tokens are made.
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
    let names = Names {
        hosts: vec!["localhost".to_owned()],
        ..Names::default()
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
        networks: Vec::new(),
        rotation: None,
    }
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

    async fn redeem(&self, text: &str, now: u64) -> Result<Redeemed, TokenError> {
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

    async fn tick(&self, now: u64) -> Vec<(String, Done)> {
        tick(&self.store, &self.ca, at(now)).await.unwrap()
    }

    async fn entries(&self) -> Vec<Entry> {
        self.store.list(Kind::Token).await.unwrap()
    }

    /// A record as an older release wrote it.
    async fn old(&self, id: &str, name: &str, pool: &str, created: u64) {
        let value = format!(
            r#"{{"name":"{name}","pool":"{pool}","created":{created},"expires":{},"uses":null}}"#,
            created + DAY
        );
        let entry = Entry { id: id.to_owned(), value };
        self.store.put(Kind::Token, entry).await.unwrap();
    }
}

#[tokio::test]
async fn each_refusal_has_its_reason_and_costs_nothing() {
    let place = place();
    let limited = Draft {
        uses: Some(1),
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
async fn a_token_for_several_pools_and_networks_is_good_in_each() {
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
async fn what_was_rotated_is_good_for_the_grace_period_and_not_a_second_longer() {
    let place = place();
    let first = place
        .create(
            Draft {
                uses: Some(5),
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
    assert!(said.ends_with("is good until 2027-01-16T08:59:59Z still"), "{said}");
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
    assert_eq!(previous.state(1, at(START + HOUR)), State::Previous);
}

#[tokio::test]
async fn a_leaked_token_is_worthless_at_once_and_so_are_those_before_it() {
    let place = place();
    let first = place.create(draft("a"), START).await.unwrap();
    let second = place.rotate("a", None, START + 1).await.unwrap();
    place.redeem(&first, START + 2).await.unwrap();
    let third = place.rotate("a", Some(0), START + 2).await.unwrap();
    for leaked in [&first, &second] {
        assert!(matches!(place.redeem(leaked, START + 2).await, Err(TokenError::Expired { .. })));
    }
    place.redeem(&third, START + 2).await.unwrap();
}

#[tokio::test]
async fn grace_never_makes_a_life_longer() {
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
async fn tokens_of_older_releases_are_rotated_together_if_one_can_replace_them() {
    let place = place();
    place.old("1", "unnamed", "worker", START).await;
    place.old("2", "unnamed", "worker", START + 5).await;
    place.old("3", "mixed", "worker", START).await;
    place.old("4", "mixed", "infra", START).await;
    place.rotate("unnamed", None, START + 10).await.unwrap();
    let listed = list(&place.store).await.unwrap();
    let unnamed: Vec<bool> = listed
        .iter()
        .filter(|(record, _)| record.name == "unnamed")
        .map(|(record, _)| record.is_current())
        .collect();
    assert_eq!(unnamed, [true, false, false]);
    let before = place.entries().await;
    let refused = place.rotate("mixed", None, START + 10).await.unwrap_err();
    assert!(refused.to_string().contains("infra, worker"), "{refused}");
    assert_eq!(place.entries().await, before, "nothing was changed");
    assert!(matches!(place.rotate("nobody", None, START).await, Err(IssueError::Unknown(_))));
    // One that expired does not stand in the way.
    place.old("4", "mixed", "infra", START - 3 * DAY).await;
    place.rotate("mixed", None, START + 10).await.unwrap();
}

#[tokio::test]
async fn of_two_that_rotate_the_same_token_one_does() {
    let place = place();
    place.create(place.scheduled("a"), START).await.unwrap();
    let files = place.files();
    // Both have read the same before either writes.
    let known = issue::all(&place.store).await.unwrap();
    let now = at(START + 10);
    let options = RotateOptions::default();
    let winner = issue::rotate_known(&place.store, &known, "a", options, &place.ca, now)
        .await
        .unwrap();
    let text = winner.created.text.to_string();
    let before = place.entries().await;
    let loser = issue::rotate_known(&place.store, &known, "a", options, &place.ca, now).await;
    assert!(matches!(loser, Err(IssueError::Changed(_))));
    assert_eq!(place.entries().await, before);
    assert_eq!((place.files(), place.token("a")), (files, text), "what the loser wrote is gone");
    // Nor does a revoked token come back.
    assert_eq!(revoke(&place.store, "a").await.unwrap(), 2);
    let late = issue::rotate_known(&place.store, &known, "a", options, &place.ca, now).await;
    assert!(matches!(late, Err(IssueError::Changed(_))));
    assert_eq!(place.entries().await, []);
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
async fn a_token_that_could_not_be_kept_up_is_not_made() {
    let place = place();
    let check = async |draft: Draft, expected: &str| {
        let refused = place.create(draft, START).await.unwrap_err();
        assert!(format!("{refused:?}").starts_with(expected), "{refused:?}");
        refused.to_string()
    };
    let with = |name: &str, change: &dyn Fn(&mut Rotation)| {
        let mut draft = place.scheduled(name);
        draft.rotation.iter_mut().for_each(change);
        draft
    };
    for bad in ["../a", "a/b", ".a", "a b", "ä"] {
        check(place.scheduled(bad), "FileName").await;
    }
    check(with("a", &|rotation| rotation.into = "out".into()), "Relative").await;
    check(with("a", &|rotation| rotation.every = 299), "TooOften").await;
    check(
        with("a", &|rotation| rotation.into = place.folder.path().join("nowhere")),
        "Publish",
    )
    .await;
    check(with("a", &|rotation| rotation.url = "http://localhost".parse().unwrap()), "Publish").await;
    let short = Draft {
        lifetime: 31 * DAY - 1,
        ..place.scheduled("a")
    };
    let said = check(short, "TooShort").await;
    assert!(said.contains("every 30d") && said.contains("at least 31d (--ttl)"), "{said}");
    place
        .create(
            Draft {
                lifetime: 31 * DAY,
                ..place.scheduled("a")
            },
            START,
        )
        .await
        .unwrap();
    let options = RotateOptions {
        lifetime: Some(30 * DAY),
        grace: None,
    };
    let short = rotate(&place.store, "a", options, &place.ca, at(START)).await;
    assert!(matches!(short, Err(IssueError::TooShort { .. })));
    // a-b for worker and a for b-worker would be the same file.
    let twin = Draft {
        pools: BTreeSet::from(["b-worker".to_owned()]),
        ..place.scheduled("a")
    };
    revoke(&place.store, "a").await.unwrap();
    place.create(twin, START).await.unwrap();
    check(place.scheduled("a-b"), "FileTaken").await;
    assert_eq!(place.entries().await.len(), 1);
    assert!(place.files().iter().all(|file| !file.ends_with(".tmp")));
}

#[tokio::test]
async fn the_folder_has_the_token_in_every_form() {
    let place = place();
    let two = Draft {
        pools: ["worker", "infra"].map(str::to_owned).into(),
        ..place.scheduled("fleet")
    };
    let text = place.create(two, START).await.unwrap();
    let names = ["fleet-infra.ign", "fleet-worker.ign", "fleet.secret.yaml", "fleet.token"];
    assert_eq!(place.files(), names.map(str::to_owned).into());
    for name in names {
        let mode = fs::metadata(place.out().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(place.token("fleet"), text);
    assert_eq!(place.holds("fleet.secret.yaml"), *auth_secret(&text));
    for pool in ["infra", "worker"] {
        let pointer: serde_json::Value = serde_json::from_str(&place.holds(&format!("fleet-{pool}.ign"))).unwrap();
        let merge = pointer.pointer("/ignition/config/merge/0").unwrap();
        assert!(
            merge["source"]
                .as_str()
                .unwrap()
                .starts_with(&format!("https://localhost:22623/config/{pool}")),
            "{merge}"
        );
        assert_eq!(merge["httpHeaders"][0]["value"], format!("Bearer {text}"));
        assert_eq!(
            pointer
                .pointer("/ignition/security/tls/certificateAuthorities")
                .unwrap()
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }
}

#[tokio::test]
async fn a_token_rotates_when_it_is_due_and_not_before() {
    let place = place();
    let first = place.create(place.scheduled("a"), START).await.unwrap();
    place.create(draft("by-hand"), START).await.unwrap();
    for early in [0, 1, DAY, 30 * DAY - 1] {
        assert!(place.tick(START + early).await.is_empty(), "{early}");
    }
    let due = START + 30 * DAY;
    assert!(matches!(place.tick(due).await.as_slice(), [(name, Done::Rotated)] if name == "a"));
    let second = place.token("a");
    assert_ne!(second, first);
    assert_eq!(place.redeem(&second, due).await.unwrap().stale(), None);
    assert!(place.redeem(&first, due + DAY - 1).await.unwrap().stale().is_some());
    assert!(matches!(place.redeem(&first, due + DAY).await, Err(TokenError::Expired { .. })));
    assert!(place.tick(due + 1).await.is_empty() && place.tick(due + 30 * DAY - 1).await.is_empty());
    // After a long time in which nothing ran, once.
    let later = due + 400 * DAY;
    assert_eq!(place.tick(later).await.len(), 1);
    assert!(place.tick(later + 1).await.is_empty());
    assert_eq!(place.redeem(&place.token("a"), later).await.unwrap().use_number(), 1);
    // A clock that was set back rotates nothing.
    assert!(place.tick(START).await.is_empty());
    // By hand in between: the schedule begins anew.
    let by_hand = place.rotate("a", None, later + DAY).await.unwrap();
    assert_eq!(place.token("a"), by_hand);
    assert!(place.tick(later + 30 * DAY).await.is_empty());
}

#[tokio::test]
async fn a_folder_without_the_current_token_gets_another_one() {
    let damages: [fn(&Path); 4] = [
        |file| fs::remove_file(file).unwrap(),
        |file| fs::write(file, "").unwrap(),
        |file| fs::write(file, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n").unwrap(),
        |file| fs::write(file, [0xff; 5000]).unwrap(),
    ];
    for damage in damages {
        let place = place();
        let first = place.create(place.scheduled("a"), START).await.unwrap();
        damage(&place.out().join("a.token"));
        // Whoever has just made it may be about to give the file its name.
        assert!(place.tick(START + 59).await.is_empty());
        assert!(matches!(place.tick(START + 60).await.as_slice(), [(_, Done::Rotated)]));
        let second = place.token("a");
        place.redeem(&second, START + 60).await.unwrap();
        assert!(place.redeem(&first, START + 60).await.unwrap().stale().is_some());
        assert!(place.tick(START + 61).await.is_empty());
    }
}

#[tokio::test]
async fn a_crash_between_store_and_folder_is_made_good() {
    let place = place();
    let first = place.create(place.scheduled("a"), START).await.unwrap();
    // The store has changed, the files have not got their names: what is left of that is temporary files.
    let rotated = {
        let copy = place.folder.path().join("copy");
        fs::rename(place.out(), &copy).unwrap();
        fs::create_dir(place.out()).unwrap();
        let lost = place.rotate("a", None, START + DAY).await.unwrap();
        fs::remove_dir_all(place.out()).unwrap();
        fs::rename(&copy, place.out()).unwrap();
        lost
    };
    let leftover = place.out().join(".a.token.0123456789abcdef.tmp");
    let others = [".a.token.tmp", ".a.token.0123456789abcdeg.tmp", ".b.token.0123456789abcdef.tmp"].map(|name| place.out().join(name));
    for file in [&leftover].into_iter().chain(&others) {
        fs::write(file, "x").unwrap();
    }
    assert_eq!(place.token("a"), first);
    let now = START + DAY + 60;
    assert_eq!(place.tick(now).await.len(), 1);
    let third = place.token("a");
    assert_eq!(place.redeem(&third, now).await.unwrap().stale(), None);
    // Whoever fetched in between is not cut off.
    for before in [&first, &rotated] {
        place.redeem(before, now).await.unwrap();
    }
    // The tests' time is far ahead of the file's: it is old.
    assert!(!leftover.exists() && others.iter().all(|other| other.exists()));
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_kills_no_token() {
    let place = place();
    let text = place.create(place.scheduled("a"), START).await.unwrap();
    let away = place.folder.path().join("away");
    fs::rename(place.out(), &away).unwrap();
    let before = place.entries().await;
    for now in [START + DAY, START + 30 * DAY, START + 60 * DAY] {
        assert!(
            matches!(place.tick(now).await.as_slice(), [(_, Done::Failed(IssueError::Publish(_)))]),
            "{now}"
        );
    }
    // Nor is a CA that cannot be read a reason.
    fs::rename(&away, place.out()).unwrap();
    let ca = fs::read(&place.ca).unwrap();
    fs::write(&place.ca, "").unwrap();
    assert!(matches!(
        place.tick(START + 60 * DAY).await.as_slice(),
        [(_, Done::Failed(IssueError::Publish(_)))]
    ));
    assert_eq!(place.entries().await, before);
    assert_eq!(place.redeem(&text, START + 60 * DAY).await.unwrap().stale(), None);
    // Once all is well, it goes on. Even a token that died of old age in between comes back, and housekeeping leaves it its place.
    fs::write(&place.ca, ca).unwrap();
    let late = START + 200 * DAY;
    assert_eq!(forget_expired(&place.store, at(late)).await.unwrap(), 0);
    assert!(matches!(place.tick(late).await.as_slice(), [(_, Done::Rotated)]));
    place.redeem(&place.token("a"), late).await.unwrap();
}

#[tokio::test]
async fn a_file_that_could_not_be_replaced_is_found_out_before_anything_changes() {
    let place = place();
    let text = place.create(place.scheduled("a"), START).await.unwrap();
    let before = place.entries().await;
    for name in ["a.token", "a-worker.ign"] {
        let (file, away) = (place.out().join(name), place.folder.path().join("away"));
        fs::rename(&file, &away).unwrap();
        fs::create_dir(&file).unwrap();
        for now in [START + DAY, START + 30 * DAY] {
            assert!(
                matches!(place.tick(now).await.as_slice(), [(_, Done::Failed(IssueError::Publish(_)))]),
                "{name}"
            );
        }
        assert!(matches!(place.rotate("a", None, START + DAY).await, Err(IssueError::Publish(_))));
        fs::remove_dir(&file).unwrap();
        fs::rename(&away, &file).unwrap();
    }
    assert_eq!(place.entries().await, before);
    assert!(place.files().iter().all(|file| !file.ends_with(".tmp")), "{:?}", place.files());
    assert_eq!(place.redeem(&text, START + 30 * DAY).await.unwrap().stale(), None);
}

#[tokio::test]
async fn files_beside_the_token_are_kept_up_without_a_rotation() {
    let place = place();
    let text = place.create(place.scheduled("a"), START).await.unwrap();
    let (secret, pointer) = (place.holds("a.secret.yaml"), place.holds("a-worker.ign"));
    fs::remove_file(place.out().join("a.secret.yaml")).unwrap();
    fs::write(place.out().join("a-worker.ign"), "{}").unwrap();
    assert!(matches!(place.tick(START + 1).await.as_slice(), [(_, Done::Refreshed)]));
    assert_eq!(
        (place.holds("a.secret.yaml"), place.holds("a-worker.ign"), place.token("a")),
        (secret, pointer.clone(), text)
    );
    // A second CA stands in the pointers at the next occasion.
    let ca = fs::read_to_string(&place.ca).unwrap();
    let settings = Settings::defaults(&place.folder.path().join("other")).unwrap();
    let names = Names {
        hosts: vec!["localhost".to_owned()],
        ..Names::default()
    };
    create_ca(&settings.tls, &names, at(START)).unwrap();
    fs::write(&place.ca, format!("{ca}{}", fs::read_to_string(&settings.tls.ca).unwrap())).unwrap();
    assert!(matches!(place.tick(START + 2).await.as_slice(), [(_, Done::Refreshed)]));
    assert_ne!(place.holds("a-worker.ign"), pointer);
    assert!(place.tick(START + 3).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_gateways_that_find_a_token_due_one_rotates_it() {
    let place = Arc::new(place());
    // Before the files' own time, so that nobody takes another's temporary files for what a crash has left.
    let start = 1_700_000_000;
    place.create(place.scheduled("a"), start).await.unwrap();
    let due = start + 30 * DAY;
    let ticks: Vec<_> = (0..8)
        .map(|_| {
            let place = Arc::clone(&place);
            tokio::spawn(async move {
                // Each has the store open by itself, as processes do.
                let store = Embedded::open(&place.folder.path().join("gateway.db")).unwrap();
                tick(&store, &place.ca, at(due)).await.unwrap()
            })
        })
        .collect();
    let mut rotated = 0;
    for done in ticks {
        for (_, done) in done.await.unwrap() {
            match done {
                Done::Rotated => rotated += 1,
                Done::Overtaken | Done::Refreshed => {}
                Done::Failed(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(rotated, 1);
    assert_eq!(place.entries().await.len(), 2);
    assert_eq!(place.redeem(&place.token("a"), due).await.unwrap().stale(), None);
    assert!(place.files().iter().all(|file| !file.ends_with(".tmp")), "{:?}", place.files());
}

#[tokio::test]
async fn a_record_that_nobody_can_read_stops_no_rotation() {
    let place = place();
    place.create(place.scheduled("a"), START).await.unwrap();
    let odd = Entry {
        id: "odd".to_owned(),
        value: "{}".to_owned(),
    };
    place.store.put(Kind::Token, odd).await.unwrap();
    assert_eq!(place.tick(START + 30 * DAY).await.len(), 1);
    assert_eq!(
        forget_expired(&place.store, at(START + 400 * DAY)).await.unwrap(),
        1,
        "the one before"
    );
}

#[tokio::test]
async fn what_expired_is_forgotten_after_a_week() {
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
