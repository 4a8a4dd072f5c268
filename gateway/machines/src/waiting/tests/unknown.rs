//! Machines that nobody enrolled.

use super::super::ask::{UNKNOWN_LIMIT, UNKNOWN_OF_A_NETWORK_LIMIT};
use super::*;

/// A thousand TPMs of one network take its places and no more; another network has its own, and enrolled machines lose nothing.
#[tokio::test]
async fn attack_48_unknown_machines_are_bounded_for_each_network_and_in_all() {
    let room = Arc::new(Room::new());
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let room = Arc::clone(&room);
        asking.spawn(async move { room.unknown(number, "198.51.100.1", 0).await });
    }
    let all = asking.join_all().await;
    let begun = all.iter().filter(|step| matches!(step, MachineStep::Begins(_))).count();
    assert_eq!(begun, UNKNOWN_OF_A_NETWORK_LIMIT);
    let turned = all
        .into_iter()
        .filter(|step| matches!(step, MachineStep::NotWaiting(NotAwaited::UnknownOfANetwork)));
    assert_eq!(turned.count(), 1000 - UNKNOWN_OF_A_NETWORK_LIMIT);
    // An honest machine of another network is asked about at once.
    let honest = wait(room.unknown(5000, "192.0.2.1", 0).await);
    assert!(honest.is_put && honest.machines == 1);
    for network in 0..100 {
        for number in 0..2 {
            room.unknown(10_000 + network * 2 + number, &format!("203.0.113.{network}"), 1)
                .await;
        }
    }
    assert_eq!(refused(room.unknown(20_000, "192.0.2.2", 2).await), NotAwaited::Unknown);
    let rows = room.rows(2).await;
    assert_eq!(rows.len(), UNKNOWN_LIMIT);
    // Whoever waits goes on waiting, and an enrolled machine waits beside them.
    assert!(matches!(room.unknown(5000, "192.0.2.1", 3).await, MachineStep::Waits(_)));
    wait(room.shows("tpm:enrolled", &[1], 3).await);
    // A machine of which nothing is heard any more frees its place.
    wait(room.unknown(20_001, "192.0.2.3", 3700 + 600).await);
}

#[tokio::test]
async fn a_refused_unknown_machine_stays_refused_and_takes_no_place() {
    let room = Room::new();
    let question = wait(room.unknown(1, "192.0.2.1", 0).await).question;
    refuse(&*room.store, POOL, &question, "not ours", "alice", START).await.unwrap();
    for at in [1, 100_000] {
        assert!(matches!(
            room.unknown(1, "192.0.2.1", at).await,
            MachineStep::NotWaiting(NotAwaited::Refused { .. })
        ));
    }
    for number in 2..2 + UNKNOWN_OF_A_NETWORK_LIMIT {
        wait(room.unknown(number, "192.0.2.1", 100_000).await);
    }
    withdraw_refusal(&*room.store, POOL, &question).await.unwrap();
}
