#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use attest::EkDigest;
use attest_machines::enrolment::EkRecord;
use attest_store::{DecisionRecord, Embedded, Store, Tick, Transact};

use super::*;

const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1000));
const SETTINGS: TicketSettings = TicketSettings {
    lifetime: Duration::from_secs(600),
    late: Duration::ZERO,
    uses: 1,
};

struct Case {
    folder: tempfile::TempDir,
    seal: SealKeyRing,
    store: Embedded,
    ek: EkDigest,
}

fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    Case {
        store: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
        seal: SealKeyRing::open(&folder.path().join("seal.key")).unwrap(),
        ek: "ab".repeat(32).parse().unwrap(),
        folder,
    }
}

impl Case {
    fn issue(&self, by_allowlist: bool) -> String {
        self.issue_as(&SETTINGS, by_allowlist)
    }

    fn issue_as(&self, settings: &TicketSettings, by_allowlist: bool) -> String {
        let earned = TicketGrant {
            identity: &NodeIdentity::from_ek(self.ek),
            instance: None,
            holder: None,
            name: None,
            pool: "worker",
            decision: "d",
            endorsed_by: by_allowlist.then_some(&EndorsedBy::Allowlist),
            object: None,
            config: &TicketConfig::default(),
        };
        issue(&self.seal, settings, &earned, NOW).unwrap().text
    }

    async fn redeem(&self, text: &str) -> Result<RedeemedTicket, TicketError> {
        self.redeem_as(&SETTINGS, text, NOW.as_secs(), "c").await
    }

    async fn redeem_as(&self, settings: &TicketSettings, text: &str, at: u64, decision: &str) -> Result<RedeemedTicket, TicketError> {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
        let ticket = open(&self.seal, settings, text, "worker", now)?;
        let kept = DecisionRecord {
            decision: decision.to_owned(),
            at,
            record: "{}".to_owned(),
        };
        let decided = self.store.decide(decision, move |transaction| {
            let redeemed = ticket.redeem(transaction)?;
            transaction.decide(kept.clone())?;
            Ok::<_, TicketError>(redeemed)
        });
        let redeemed = decided.await?;
        if decision.starts_with('c') {
            self.store.settle(decision);
        }
        Ok(redeemed)
    }

    /// Returns how often it was used, as far as the store remembers.
    async fn uses(&self, settings: &TicketSettings, text: &str) -> u32 {
        let content = open(&self.seal, settings, text, "worker", NOW).unwrap().content;
        self.store.uses(EntryKind::Ticket, &content.id).await.unwrap()
    }

    async fn allow(&self, pools: &[&str]) {
        let record = EkRecord {
            name: None,
            added: 0,
            pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
            note: None,
            removed: None,
        };
        enrolment::allow(&self.store, self.ek, record, false).await.unwrap();
    }
}

#[tokio::test]
async fn each_ticket_has_its_own_uses() {
    let case = case();
    let (one, two) = (case.issue(false), case.issue(false));
    case.redeem(&one).await.unwrap();
    assert!(matches!(case.redeem(&one).await, Err(TicketError::Spent { uses: 1 })));
    assert_eq!(case.redeem(&two).await.unwrap().use_number(), 1);
}

#[test]
fn a_ticket_is_valid_through_its_last_second() {
    let case = case();
    let text = case.issue(false);
    let at = |seconds: u64| {
        open(
            &case.seal,
            &SETTINGS,
            &text,
            "worker",
            UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
        )
    };
    at(1600).unwrap();
    assert!(matches!(at(1601), Err(TicketError::Expired { expires: 1600, now: 1601 })));
}

#[tokio::test]
async fn attack_28_revoking_any_identity_of_a_node_invalidates_tickets() {
    let case = case();
    let tpm = NodeIdentity::from_ek(case.ek);
    let instance: NodeIdentity = serde_json::from_str(r#""gcp:project/1""#).unwrap();
    let settings = TicketSettings { uses: 9, ..SETTINGS };
    // A TPM in an instance, and an instance that has none.
    for (identity, known_by) in [
        (&tpm, vec![tpm.as_str(), instance.as_str(), "worker-0"]),
        (&instance, vec![instance.as_str(), "worker-0"]),
    ] {
        let earned = TicketGrant {
            identity,
            instance: Some(&instance),
            holder: None,
            name: Some("worker-0"),
            pool: "worker",
            decision: "d",
            endorsed_by: None,
            object: None,
            config: &TicketConfig::default(),
        };
        let text = issue(&case.seal, &settings, &earned, NOW).unwrap().text;
        assert_eq!(open(&case.seal, &settings, &text, "worker", NOW).unwrap().name(), Some("worker-0"));
        for who in known_by {
            revocations::revoke(&case.store, &[who.to_owned()].into(), 1, None).await.unwrap();
            assert!(matches!(case.redeem(&text).await, Err(TicketError::Revocation(_))), "{who}");
            case.store.remove(EntryKind::Revoked, who).await.unwrap();
        }
        assert_eq!(case.redeem(&text).await.unwrap().use_number(), 1, "no refusal has used it up");
    }
}

#[tokio::test]
async fn attack_27_a_changed_instance_claim_invalidates_the_ticket() {
    let case = case();
    let instance: NodeIdentity = serde_json::from_str(r#""aws-nitrotpm:i-7""#).unwrap();
    let first = |holder: &str, at| InstanceRecord {
        holder: holder.to_owned(),
        at,
        peer: "::1".to_owned(),
    };
    let belongs = async |record: &InstanceRecord| {
        let value = serde_json::to_string(record).unwrap();
        let id = instance.as_str().to_owned();
        case.store
            .put(EntryKind::Instance, attest_store::StoreEntry { id, value })
            .await
            .unwrap();
    };
    let settings = TicketSettings { uses: 9, ..SETTINGS };
    let earned = TicketGrant {
        identity: &instance,
        instance: None,
        holder: Some(&first("nitro-tpm", 5)),
        name: None,
        pool: "worker",
        decision: "d",
        endorsed_by: None,
        object: None,
        config: &TicketConfig::default(),
    };
    let text = issue(&case.seal, &settings, &earned, NOW).unwrap().text;
    let check = async |record: &InstanceRecord, expect: bool| {
        belongs(record).await;
        let redeemed = case.redeem(&text).await;
        assert_eq!(redeemed.is_ok(), expect, "{record:?}: {redeemed:?}");
        assert!(expect || matches!(redeemed, Err(TicketError::Released { .. })), "{redeemed:?}");
    };
    check(&first("nitro-tpm", 5), true).await;
    check(&first("nitro-tpm", 6), false).await;
    check(&first("claimant:00", 5), false).await;
    check(&first("nitro-tpm", 5), true).await;
}

#[tokio::test]
async fn claiming_an_unclaimed_instance_invalidates_its_tickets() {
    let case = case();
    let instance: NodeIdentity = serde_json::from_str(r#""gcp:project/1""#).unwrap();
    let settings = TicketSettings { uses: 9, ..SETTINGS };
    let earned = TicketGrant {
        identity: &instance,
        instance: Some(&instance),
        holder: None,
        name: None,
        pool: "worker",
        decision: "d",
        endorsed_by: None,
        object: None,
        config: &TicketConfig::default(),
    };
    let text = issue(&case.seal, &settings, &earned, NOW).unwrap().text;
    case.redeem(&text).await.unwrap();
    let value = serde_json::json!({ "holder": "claimant:00", "at": 5, "peer": "::1" }).to_string();
    let id = instance.to_string();
    case.store
        .put(EntryKind::Instance, attest_store::StoreEntry { id, value })
        .await
        .unwrap();
    let redeemed = case.redeem(&text).await;
    assert!(matches!(redeemed, Err(TicketError::Released { .. })), "{redeemed:?}");
}

#[tokio::test]
async fn attack_28_a_withdrawn_endorsement_refuses_but_spends_no_ticket() {
    let case = case();
    let (by_list, by_root) = (case.issue(true), case.issue(false));
    let withdrawn = async |text: &str| matches!(case.redeem(text).await, Err(TicketError::Withdrawn { .. }));
    assert!(withdrawn(&by_list).await, "the entry is gone");
    case.allow(&["infra"]).await;
    assert!(withdrawn(&by_list).await && withdrawn(&by_root).await, "for another pool only");
    enrolment::disallow(&case.store, &case.ek.identity(), 1).await.unwrap();
    assert!(withdrawn(&by_list).await && withdrawn(&by_root).await, "off the list");
    enrolment::forget_entry(&case.store, &case.ek.identity()).await.unwrap();
    case.redeem(&by_root).await.unwrap();
    case.allow(&[]).await;
    case.redeem(&by_list).await.unwrap();
}

/// A ticket that is good for a while after it has expired.
const LATE: TicketSettings = TicketSettings {
    late: Duration::from_secs(1000),
    uses: 2,
    ..SETTINGS
};
/// Its last second if it was used, if it was not, and the last of all.
const EXPIRES: u64 = 1600;
const FIRST_UNTIL: u64 = EXPIRES + 1000;

impl Case {
    fn issue_late(&self, by_allowlist: bool) -> String {
        self.issue_as(&LATE, by_allowlist)
    }

    /// Uses the ticket at this time, at which that is recorded.
    async fn late(&self, text: &str, at: u64) -> Result<(u32, Option<u64>), TicketError> {
        let decision = format!("c{at}");
        let redeemed = self.redeem_as(&LATE, text, at, &decision).await?;
        Ok((redeemed.use_number(), redeemed.late_seconds()))
    }

    async fn is_too_late(&self, text: &str, at: u64) -> bool {
        match self.late(text, at).await {
            Err(TicketError::ExpiredAfterUse { expires: EXPIRES, now } | TicketError::Expired { expires: EXPIRES, now }) => now == at,
            _ => false,
        }
    }
}

#[tokio::test]
async fn an_unused_ticket_has_a_grace_period() {
    let case = case();
    let text = case.issue_late(false);
    assert_eq!(case.late(&text, EXPIRES + 900).await.unwrap(), (1, Some(900)));
    assert!(case.is_too_late(&text, EXPIRES + 1501).await);
    assert_eq!(case.late(&text, EXPIRES + 1500).await.unwrap(), (2, Some(1500)));
    assert!(matches!(
        case.late(&text, EXPIRES + 1500).await,
        Err(TicketError::Spent { uses: 2 })
    ));
    let last = case.issue_late(false);
    case.late(&last, FIRST_UNTIL).await.unwrap();
    case.late(&last, FIRST_UNTIL + 600).await.unwrap();
    assert!(case.is_too_late(&last, FIRST_UNTIL + 601).await);
    // In its last second it is in time, as before.
    let in_time = case.issue_late(false);
    assert_eq!(case.late(&in_time, EXPIRES).await.unwrap(), (1, None));
}

#[tokio::test]
async fn attack_41_a_used_ticket_has_no_grace_period() {
    let case = case();
    let text = case.issue_late(false);
    case.late(&text, 1000).await.unwrap();
    for at in [EXPIRES + 1, EXPIRES + 600, FIRST_UNTIL, FIRST_UNTIL + 600, FIRST_UNTIL + 601] {
        assert!(case.is_too_late(&text, at).await, "{at}");
    }
    let unused = case.issue_late(false);
    assert!(case.is_too_late(&unused, FIRST_UNTIL + 1).await, "never used, and too late");
    // Set back, the clock makes it what it was, and no more often.
    case.late(&text, EXPIRES).await.unwrap();
    assert!(matches!(case.late(&text, EXPIRES).await, Err(TicketError::Spent { .. })));
    case.late(&unused, FIRST_UNTIL).await.unwrap();
    case.late(&unused, 1000).await.unwrap();
    assert!(matches!(case.late(&unused, FIRST_UNTIL).await, Err(TicketError::Spent { .. })));
}

#[tokio::test]
async fn attack_41_keeps_uses_until_the_grace_period_ends() {
    const DAY: u64 = 24 * 3600;
    let mut case = case();
    let settings = TicketSettings {
        late: Duration::from_secs(7 * DAY),
        ..LATE
    };
    let text = case.issue_as(&settings, false);
    case.redeem_as(&settings, &text, 1000, "c").await.unwrap();
    case.store
        .forget_expired(Tick {
            now: 1000,
            passed: Duration::ZERO,
        })
        .await
        .unwrap();
    for day in 1..=9 {
        // A start, and a day in which the store's time follows the clock.
        case.store = Embedded::open(&case.folder.path().join("gateway.db")).unwrap();
        let now = 1000 + day * DAY;
        let tick = Tick {
            now,
            passed: Duration::from_secs(DAY),
        };
        assert_eq!(case.store.forget_expired(tick).await.unwrap(), now);
        let refused = case.redeem_as(&settings, &text, now, "c").await;
        assert!(
            matches!(refused, Err(TicketError::ExpiredAfterUse { .. } | TicketError::Expired { .. })),
            "{day}: {refused:?}"
        );
    }
    // By now it is forgotten; whatever the clock says then, it is not taken for unused.
    assert_eq!(case.uses(&settings, &text).await, 0);
    for at in [1000, EXPIRES + DAY, EXPIRES + 7 * DAY] {
        let refused = case.redeem_as(&settings, &text, at, "c").await;
        assert!(
            matches!(refused, Err(TicketError::Store(StoreError::Forgotten { .. }))),
            "{at}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn attack_28_revocation_invalidates_tickets_in_their_grace_period() {
    let case = case();
    case.allow(&[]).await;
    let text = case.issue_late(true);
    let tpm = NodeIdentity::from_ek(case.ek).to_string();
    revocations::revoke(&case.store, &[tpm.clone()].into(), 1, None).await.unwrap();
    assert!(matches!(case.late(&text, EXPIRES + 9).await, Err(TicketError::Revocation(_))));
    case.store.remove(EntryKind::Revoked, &tpm).await.unwrap();
    enrolment::disallow(&case.store, &case.ek.identity(), 1).await.unwrap();
    assert!(matches!(case.late(&text, EXPIRES + 9).await, Err(TicketError::Withdrawn { .. })));
    case.allow(&[]).await;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(EXPIRES + 9));
    let wrong = open(&case.seal, &LATE, &text, "infra", now);
    assert!(matches!(wrong, Err(TicketError::WrongPool { .. })));
    // It was not used up by any of that.
    assert_eq!(case.late(&text, EXPIRES + 9).await.unwrap(), (1, Some(9)));
}

#[tokio::test]
async fn attack_30_leaving_the_inventory_invalidates_late_tickets() {
    let case = case();
    let text = case.issue_late(false);
    let inventory = Inventory::parse(&format!("tpm:{}", "cd".repeat(32))).unwrap();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(EXPIRES + 9));
    let ticket = open(&case.seal, &LATE, &text, "worker", now).unwrap();
    let still = StillListed {
        inventory: Some(&inventory),
        machines: None,
    };
    let refused = ticket.is_listed(still);
    assert!(matches!(refused, Err(TicketError::NotInInventory { .. })), "{refused:?}");
    assert_eq!(case.late(&text, EXPIRES + 9).await.unwrap(), (1, Some(9)));
}

#[tokio::test]
async fn attack_18_concurrent_late_redemptions_respect_the_use_limit() {
    let case = case();
    let text = case.issue_late(false);
    let all = (0..20).map(|number| {
        let (case, text) = (&case, &text);
        async move { case.redeem_as(&LATE, text, EXPIRES + 9, &format!("c{number}")).await }
    });
    let all = futures_util::future::join_all(all).await;
    let mut won: Vec<u32> = all
        .iter()
        .filter_map(|redeemed| Some(redeemed.as_ref().ok()?.use_number()))
        .collect();
    won.sort_unstable();
    assert_eq!(won, [1, 2]);
}

#[tokio::test]
async fn attack_33_a_refunded_use_does_not_count() {
    let case = case();
    let text = case.issue_late(false);
    // In time, and its answer was not sent.
    case.redeem_as(&LATE, &text, EXPIRES, "pending").await.unwrap();
    assert!(case.is_too_late(&text, EXPIRES + 9).await);
    case.store.give_back("pending").await.unwrap();
    // Late, and given back: it was not used, so that the next one is the first.
    case.redeem_as(&LATE, &text, EXPIRES + 9, "pending").await.unwrap();
    case.store.give_back("pending").await.unwrap();
    assert_eq!(case.late(&text, EXPIRES + 900).await.unwrap(), (1, Some(900)));
    assert_eq!(case.late(&text, EXPIRES + 1500).await.unwrap(), (2, Some(1500)));
    // Given back with the clock set back: its first use is in time then, and late ones are none.
    let text = case.issue_late(false);
    case.redeem_as(&LATE, &text, EXPIRES + 9, "pending").await.unwrap();
    case.store.give_back("pending").await.unwrap();
    case.late(&text, EXPIRES).await.unwrap();
    assert!(case.is_too_late(&text, EXPIRES + 10).await);
}

#[tokio::test]
async fn reduced_ticket_settings_apply_to_issued_tickets() {
    let case = case();
    let text = case.issue_late(false);
    let refused = case.redeem_as(&SETTINGS, &text, EXPIRES + 1, "c").await;
    assert!(matches!(refused, Err(TicketError::Expired { .. })), "{refused:?}");
    let shorter = TicketSettings {
        late: Duration::from_secs(10),
        ..LATE
    };
    let refused = case.redeem_as(&shorter, &text, EXPIRES + 11, "c").await;
    assert!(matches!(refused, Err(TicketError::ExpiredAfterUse { .. })), "{refused:?}");
    // More is for tickets that are issued from now on.
    let before = case.issue(false);
    let refused = case.redeem_as(&LATE, &before, EXPIRES + 1, "c").await;
    assert!(matches!(refused, Err(TicketError::Expired { .. })), "{refused:?}");
}
