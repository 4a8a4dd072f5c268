//! A jump of the gateway's clock does not make a spent credential valid.

use crate::support::served::serve;
use crate::support::{Gateway, POOL, bearer, next_boot, now, tpm};

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_a_fast_clock_revives_no_spent_credential() {
    const TWO_DAYS: u64 = 2 * 24 * 3600;
    let gateway = Gateway::init();
    gateway.settings("[ticket]\nuses = 1\n");
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let case = tpm();
    let first = serve(&gateway, now()).await;
    let start = first.gateway.clock.now().as_secs();
    first.ahead(0).await;
    gateway.endorse(&case, &[]);
    let token = bearer(&gateway.token(&["--uses", "1", "--ttl", "30d"]));
    let full = gateway.rendered(POOL, "full");
    let evidence = {
        let case = next_boot(&case);
        let challenge = gateway.challenge(&case, None);
        gateway.answer(case, &challenge)
    };
    let ticket = bearer(&gateway.post("/v1/attest/evidence", &evidence).await.ticket());
    for credential in [&ticket, &token] {
        gateway.config("/config/worker", &[credential]).await.is_config(&full);
    }
    first.stop().await;
    let wrong = serve(&gateway, start + TWO_DAYS).await;
    wrong.ahead(TWO_DAYS).await;
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-expired");
    wrong.stop().await;
    let right = serve(&gateway, start).await;
    right.ahead(0).await;
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-spent");
    gateway.config("/config/worker", &[&token]).await.refused(403, "token-spent");
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "challenge-spent");
    // And nobody else has to wait for that.
    let ticket = bearer(&gateway.attest(next_boot(&case), None).await.ticket());
    gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    right.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_ticket_is_accepted_after_a_long_outage() {
    let gateway = Gateway::init();
    let case = tpm();
    let full = gateway.rendered(POOL, "full");
    let fetch = async |at: u64, ticket: &str| {
        let served = serve(&gateway, at).await;
        let answer = gateway.config("/config/worker", &[ticket]).await;
        served.stop().await;
        answer
    };
    // Ahead of the challenges that are made here, by no more than they can be answered.
    let first = serve(&gateway, now() + 60).await;
    let start = first.gateway.clock.now().as_secs();
    gateway.endorse(&case, &[]);
    let [waits, fetches, forgotten] = [
        gateway.attest(next_boot(&case), None).await.ticket(),
        gateway.attest(next_boot(&case), None).await.ticket(),
        gateway.attest(next_boot(&case), None).await.ticket(),
    ]
    .map(|ticket| bearer(&ticket));
    gateway.config("/config/worker", &[&fetches]).await.is_config(&full);
    first.stop().await;
    // One was used in its time, and one was not; an hour later they are not the same.
    fetch(start + 4000, &fetches).await.refused(403, "ticket-expired");
    fetch(start + 4000, &waits).await.is_config(&full);
    fetch(start + 4600, &waits).await.is_config(&full);
    fetch(start + 4601, &waits).await.refused(403, "ticket-expired");
    fetch(start + 600 + 86_401, &forgotten).await.refused(403, "ticket-expired");
    let records = gateway.records();
    let late: Vec<_> = records.iter().filter(|record| record.get("late_seconds").is_some()).collect();
    let said: Vec<_> = late
        .iter()
        .map(|record| (&record["late_seconds"], &record["use_number"], &record["reason"]))
        .collect();
    let first = "a ticket was shown, use 1, 3400 s after it expired; it was not used before";
    let second = "a ticket was shown, use 2, 4000 s after it expired; its first use was late, too";
    assert_eq!(
        said,
        [(&3400.into(), &1.into(), &first.into()), (&4000.into(), &2.into(), &second.into())]
    );
    assert!(late.iter().all(|record| record.get("alerts").is_none()));
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}
