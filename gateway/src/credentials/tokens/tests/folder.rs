//! Tokens that rotate by themselves: the schedule, the folder, and what may come between.

use std::sync::Arc;

use super::*;

#[tokio::test]
async fn refuses_an_unmaintainable_rotation_schedule() {
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
    for bad in ["../a", "a/b", ".a", "-a", "a b", "ä"] {
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
    assert!(said.contains("every 30d") && said.contains("--ttl of at least 31d"), "{said}");
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
async fn publishes_token_secret_and_pointer_files() {
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
async fn rotates_a_token_when_due() {
    let place = place();
    let first = place.create(place.scheduled("a"), START).await.unwrap();
    place.create(draft("by-hand"), START).await.unwrap();
    for early in [0, 1, DAY, 30 * DAY - 1] {
        assert!(place.tick(START + early).await.is_empty(), "{early}");
    }
    let due = START + 30 * DAY;
    assert!(matches!(place.tick(due).await.as_slice(), [(name, RotationResult::Rotated)] if name == "a"));
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
async fn rotates_when_a_published_token_is_damaged() {
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
        assert!(matches!(place.tick(START + 60).await.as_slice(), [(_, RotationResult::Rotated)]));
        let second = place.token("a");
        place.redeem(&second, START + 60).await.unwrap();
        assert!(place.redeem(&first, START + 60).await.unwrap().stale().is_some());
        assert!(place.tick(START + 61).await.is_empty());
    }
}

#[tokio::test]
async fn recovers_from_a_crash_between_store_and_folder() {
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
async fn an_unwritable_folder_invalidates_no_token() {
    let place = place();
    let text = place.create(place.scheduled("a"), START).await.unwrap();
    let away = place.folder.path().join("away");
    fs::rename(place.out(), &away).unwrap();
    let before = place.entries().await;
    for now in [START + DAY, START + 30 * DAY, START + 60 * DAY] {
        assert!(
            matches!(
                place.tick(now).await.as_slice(),
                [(_, RotationResult::Failed(IssueError::Publish(_)))]
            ),
            "{now}"
        );
    }
    // Nor is a CA that cannot be read a reason.
    fs::rename(&away, place.out()).unwrap();
    let ca = fs::read(&place.ca).unwrap();
    fs::write(&place.ca, "").unwrap();
    assert!(matches!(
        place.tick(START + 60 * DAY).await.as_slice(),
        [(_, RotationResult::Failed(IssueError::Publish(_)))]
    ));
    assert_eq!(place.entries().await, before);
    assert_eq!(place.redeem(&text, START + 60 * DAY).await.unwrap().stale(), None);
    // Once all is well, it goes on. Even a token that died of old age in between comes back, and housekeeping leaves it its place.
    fs::write(&place.ca, ca).unwrap();
    let late = START + 200 * DAY;
    assert_eq!(forget_expired(&place.store, at(late)).await.unwrap(), 0);
    assert!(matches!(place.tick(late).await.as_slice(), [(_, RotationResult::Rotated)]));
    place.redeem(&place.token("a"), late).await.unwrap();
}

#[tokio::test]
async fn checks_that_files_are_replaceable_before_rotating() {
    let place = place();
    let text = place.create(place.scheduled("a"), START).await.unwrap();
    let before = place.entries().await;
    for name in ["a.token", "a-worker.ign"] {
        let (file, away) = (place.out().join(name), place.folder.path().join("away"));
        fs::rename(&file, &away).unwrap();
        fs::create_dir(&file).unwrap();
        for now in [START + DAY, START + 30 * DAY] {
            assert!(
                matches!(
                    place.tick(now).await.as_slice(),
                    [(_, RotationResult::Failed(IssueError::Publish(_)))]
                ),
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
async fn refuses_a_world_writable_folder() {
    let place = place();
    let open = |mode| fs::set_permissions(place.out(), fs::Permissions::from_mode(mode)).unwrap();
    open(0o777);
    assert!(matches!(
        place.create(place.scheduled("a"), START).await,
        Err(IssueError::Publish(error)) if error.to_string().contains("all users can write to the folder")
    ));
    assert!(place.files().is_empty() && place.entries().await.is_empty());
    // Nobody can replace another's file in such a folder.
    open(0o1777);
    place.create(place.scheduled("a"), START).await.unwrap();
}

#[tokio::test]
async fn refreshes_secret_and_pointer_files_without_rotation() {
    let place = place();
    let text = place.create(place.scheduled("a"), START).await.unwrap();
    let (secret, pointer) = (place.holds("a.secret.yaml"), place.holds("a-worker.ign"));
    fs::remove_file(place.out().join("a.secret.yaml")).unwrap();
    fs::write(place.out().join("a-worker.ign"), "{}").unwrap();
    assert!(matches!(place.tick(START + 1).await.as_slice(), [(_, RotationResult::Refreshed)]));
    assert_eq!(
        (place.holds("a.secret.yaml"), place.holds("a-worker.ign"), place.token("a")),
        (secret, pointer.clone(), text)
    );
    // A second CA stands in the pointers at the next occasion.
    let ca = fs::read_to_string(&place.ca).unwrap();
    let settings = Settings::defaults(&place.folder.path().join("other")).unwrap();
    let names = GatewayNames {
        hosts: vec!["localhost".to_owned()],
        ..GatewayNames::default()
    };
    create_ca(&settings.tls, &names, at(START)).unwrap();
    fs::write(&place.ca, format!("{ca}{}", fs::read_to_string(&settings.tls.ca).unwrap())).unwrap();
    assert!(matches!(place.tick(START + 2).await.as_slice(), [(_, RotationResult::Refreshed)]));
    assert_ne!(place.holds("a-worker.ign"), pointer);
    assert!(place.tick(START + 3).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_many_gateways_rotates_a_token() {
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
                RotationResult::Rotated => rotated += 1,
                RotationResult::Overtaken | RotationResult::Refreshed | RotationResult::Overdue => {}
                RotationResult::Failed(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(rotated, 1);
    assert_eq!(place.entries().await.len(), 2);
    assert_eq!(place.redeem(&place.token("a"), due).await.unwrap().stale(), None);
    assert!(place.files().iter().all(|file| !file.ends_with(".tmp")), "{:?}", place.files());
}

#[tokio::test]
async fn a_malformed_record_does_not_block_rotation() {
    let place = place();
    place.create(place.scheduled("a"), START).await.unwrap();
    let odd = StoreEntry {
        id: "odd".to_owned(),
        value: "{}".to_owned(),
    };
    place.store.put(EntryKind::Token, odd).await.unwrap();
    assert_eq!(place.tick(START + 30 * DAY).await.len(), 1);
    assert_eq!(
        forget_expired(&place.store, at(START + 400 * DAY)).await.unwrap(),
        1,
        "the one before"
    );
}
