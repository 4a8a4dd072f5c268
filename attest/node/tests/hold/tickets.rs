//! Tickets that grow old while another gateway is waited for.

use super::*;

/// Returns an answer with a ticket of this lifetime and number.
fn ticket(number: usize, lasts: u64) -> Option<Instead> {
    // The challenge's `expires` is 0.
    let body = json!({"ticket": format!("ticket.{number}"), "expires": lasts, "url": "/config/worker"});
    Some(Some((200, String::new(), body.to_string())))
}

/// Runs with two gateways in one pointer: the first gives tickets that last `lasts` seconds, and answers `again` to a request for another
/// challenge; the second has this node wait for three seconds. Returns the number of challenge requests to the first, the run, and both
/// sources.
#[track_caller]
fn two_sources(lasts: u64, again: fn() -> Option<Instead>) -> (usize, Run, [Value; 2]) {
    let task = json!({"gcp": {"gateway": "api-int.example"}});
    let first = Gateway::answering(&json!(["gcp"]), &task, Some(LONG), move |path, before| match (path, before) {
        (CHALLENGE, 1..) => again(),
        (EVIDENCE, _) => ticket(before, lasts),
        _ => None,
    });
    let second = Gateway::answering(&json!(["gcp"]), &task, Some(LONG), move |path, before| match (path, before) {
        (CHALLENGE, 0) => retry_after(3),
        (EVIDENCE, _) => ticket(7, LONG),
        _ => None,
    });
    let [mut pointer, other] = [&first, &second].map(|gateway| serde_json::from_str::<Value>(&gateway.pointer()).unwrap());
    for list in ["/ignition/config/merge", "/ignition/security/tls/certificateAuthorities"] {
        let further = other.pointer(list).unwrap()[0].clone();
        pointer.pointer_mut(list).unwrap().as_array_mut().unwrap().push(further);
    }
    let run = run(&google(Some(pointer.to_string())), &["--deadline", "20"]);
    let asked = first.told.lock().unwrap().iter().filter(|(path, _)| path == CHALLENGE).count();
    let written = run.written.clone().unwrap_or_else(|| panic!("{}", run.stderr));
    let headers = [0, 1].map(|index| written["ignition"]["config"]["merge"][index]["httpHeaders"].clone());
    (asked, run, headers)
}

fn bearer(number: u32) -> Value {
    json!([{"name": "Authorization", "value": format!("Bearer ticket.{number}")}])
}

#[test]
fn ticket_expiring_during_a_hold_is_renewed() {
    let (asked, run, headers) = two_sources(2, || None);
    assert_eq!((asked, headers), (2, [bearer(1), bearer(7)]), "{}", run.stderr);
    assert!(run.success && !run.stderr.contains("ticket."), "{}", run.stderr);
}

#[test]
fn valid_ticket_is_kept_if_renewal_fails() {
    let refuse = || problem(403, "ek-not-endorsed");
    let (asked, run, headers) = two_sources(11, refuse);
    assert_eq!((asked, headers), (2, [bearer(0), bearer(7)]), "{}", run.stderr);
    assert!(
        run.success && run.stderr.contains("keeping the ticket of an earlier attestation"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("[ek-not-endorsed]"), "{}", run.stderr);
}

#[test]
fn expired_ticket_is_not_written() {
    let refuse = || problem(403, "ek-not-endorsed");
    let (asked, run, headers) = two_sources(2, refuse);
    let said = json!([{"name": "attestation-not-attested", "value": "ek-not-endorsed"}]);
    assert_eq!((asked, headers), (2, [said, bearer(7)]), "{}", run.stderr);
    run.failed(&["[ek-not-endorsed]", "the other sources have their tickets"]);
}
