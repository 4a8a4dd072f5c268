//! Tokens that are replaced frequently.

use std::collections::BTreeSet;
use std::path::Path;

use attest::UnixTime;
use attest_gateway::credentials::tokens::{Draft, RotateOptions, create, list, rotate};

use super::*;

const MINUTE: u64 = 60;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Rotates a token so often that more of its values are valid than an engine changes in one transaction.
pub async fn a_token_that_is_rotated_each_minute_is_rotated_on_and_ended_at_once<P: Place>() {
    const ROTATIONS: u64 = 300;
    let place = P::empty().await;
    let store = place.open().await;
    let draft = Draft {
        name: "t".to_owned(),
        pools: BTreeSet::from(["worker".to_owned()]),
        lifetime: 30 * DAY,
        uses: None,
        again: None,
        networks: Vec::new(),
        rotation: None,
    };
    let ca = Path::new("/none");
    create(&*store, draft, ca, at(0)).await.unwrap();
    let rotate = async |grace, now| {
        let options = RotateOptions { grace, lifetime: None };
        rotate(&*store, "t", options, ca, at(now)).await.unwrap()
    };
    for round in 1..=ROTATIONS {
        rotate(None, round * MINUTE).await;
    }
    let good = async |now: u64| {
        let tokens = list(&*store).await.unwrap();
        tokens.iter().filter(|(token, _)| token.expires >= now).count()
    };
    let now = (ROTATIONS + 1) * MINUTE;
    assert_eq!(good(now).await, 301, "each is good for its day");
    assert_eq!(rotate(Some(0), now).await.previous_until, None);
    assert_eq!(good(now).await, 1);
}
