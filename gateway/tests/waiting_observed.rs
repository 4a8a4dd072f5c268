//! An observing pool: values without a reference value lead to a question, for which no node waits. A TPM that differs from its last
//! trusted state is refused as usual.

use crate::history::{WAYS, Way, booted, record_first_boot};
use crate::log_builder::{LogBuilder, SHA256};
use crate::observe::{codes, last};
use crate::support::node::Node;
use crate::support::{Case, Gateway, POOL, tpm};
use crate::waiting::{SECTION, audit, boots, pending, question, set_waiting, strict, updated};

fn is_served(line: &str) -> bool {
    line.contains("pool worker: serving a new state")
}

/// Changes the pool of a running gateway. Returns when it serves the change.
fn change(gateway: &Gateway, from: &str, to: &str) {
    let before = gateway.how_often(is_served);
    gateway.edit_pool(POOL, from, to);
    gateway.lines(before + 1, is_served);
}

fn observes(gateway: &Gateway) {
    change(gateway, "[grants]\n", "observe = true\n\n[grants]\n");
}

/// Returns the alerts of the last record of evidence, as text; empty if it has none.
fn alerts(gateway: &Gateway) -> String {
    last(gateway).get("alerts").map(ToString::to_string).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_pools_ask_about_new_values_without_waiting() {
    let mut gateway = Gateway::init();
    let mut nodes = [Node::new(), Node::new(), Node::new()];
    for node in &nodes {
        gateway.command(&["ek", "add", &node.ek()]);
    }
    gateway.run();
    strict(&mut gateway, &mut nodes[0], &LogBuilder::typical(&[SHA256]), SECTION).await;
    observes(&gateway);
    let words = gateway.command(&["policy", "explain", POOL]);
    assert!(
        words.contains("the machine is trusted, because the pool observes. The gateway asks the administrator once 2 machines"),
        "{words}"
    );

    // The first that has something new is let in, recorded as what it is, and counted.
    let new = updated("loader 2");
    assert_eq!(boots(&gateway, &mut nodes[1], &new).await.status, 200);
    let record = last(&gateway);
    assert_eq!((&record["verdict"], codes(&record)), (&"trusted".into(), vec!["boot-not-accepted"]));
    let rows = pending(&gateway);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].contains("  1 of 2 ") && rows[0].ends_with("counted"), "{rows:?}");
    let asked = question(&gateway);
    let told = alerts(&gateway);
    assert!(
        told.contains(&format!(
            "not told to wait for the answer to question {asked} (1 of 2 machines have these values): the pool observes"
        )),
        "{told}"
    );
    let is_let_in = |line: &str| line.contains("trusted, because the pool observes") && line.contains(&asked);
    gateway.line(is_let_in);
    // That is told once of it.
    assert_eq!(boots(&gateway, &mut nodes[1], &new).await.status, 200);
    assert_eq!(
        (alerts(&gateway), codes(&last(&gateway))),
        (String::new(), vec!["boot-not-accepted"])
    );
    assert_eq!(gateway.how_often(is_let_in), 1);
    assert!(gateway.acts("waiting.ask").is_empty());

    // The second has the administrator asked.
    assert_eq!(boots(&gateway, &mut nodes[2], &new).await.status, 200);
    gateway.line(|line| line.contains("WARN") && line.contains("pool worker: 2 machines wait for an answer"));
    assert_eq!(gateway.wait_for_acts(1, "waiting.ask").len(), 1);
    assert!(pending(&gateway)[0].ends_with("asked"));
    // Whose boot is known is none of it.
    assert_eq!(boots(&gateway, &mut nodes[0], &LogBuilder::typical(&[SHA256])).await.status, 200);
    assert_eq!((alerts(&gateway), codes(&last(&gateway))), (String::new(), vec![]));

    // The pool is strict from now on: now they wait, from now on, and are trusted when somebody says so.
    change(&gateway, "observe = true\n", "");
    boots(&gateway, &mut nodes[1], &new).await.refused(503, "answer-pending");
    let told = alerts(&gateway);
    assert!(told.contains("told to retry for 1800 s") && told.contains("2 of 2"), "{told}");
    assert_eq!(gateway.acts("waiting.ask").len(), 1, "it was asked before");
    let before = gateway.how_often(is_served);
    gateway.command(&["waiting", "accept", &asked, "--set", "update.json"]);
    gateway.lines(before + 1, is_served);
    assert_eq!(boots(&gateway, &mut nodes[1], &new).await.status, 200);
    gateway.line(|line| line.contains("trusted, after waiting since ") && line.contains(&asked));
    assert_eq!(boots(&gateway, &mut nodes[2], &new).await.status, 200);
    assert_eq!(codes(&last(&gateway)), [""; 0]);
    assert_eq!(
        gateway.how_often(|line| line.contains("trusted, after waiting since ")),
        1,
        "this one was let in"
    );

    // What is denied is let in while the pool observes, and the record says that it is denied.
    observes(&gateway);
    let other = updated("loader 3");
    assert_eq!(boots(&gateway, &mut nodes[1], &other).await.status, 200);
    let asked = question(&gateway);
    gateway.command(&["waiting", "refuse", &asked, "--reason", "nobody has rolled this out"]);
    for node in [1, 2] {
        assert_eq!(boots(&gateway, &mut nodes[node], &other).await.status, 200);
        let told = alerts(&gateway);
        assert!(
            told.contains(&format!("question {asked} was refused by ")) && told.contains("rolled this out; the pool observes"),
            "{told}"
        );
    }
    assert!(pending(&gateway).is_empty());
    change(&gateway, "observe = true\n", "");
    boots(&gateway, &mut nodes[1], &other).await.refused(403, "boot-not-accepted");
    audit(&mut gateway);
}

/// No question is asked if the boot has another fault, because no file of reference values would make it acceptable.
#[tokio::test(flavor = "multi_thread")]
async fn no_question_about_boots_with_other_faults() {
    let mut gateway = Gateway::init();
    let mut nodes = [Node::new(), Node::new()];
    for node in &nodes {
        gateway.command(&["ek", "add", &node.ek()]);
    }
    gateway.run();
    strict(&mut gateway, &mut nodes[0], &LogBuilder::typical(&[SHA256]), SECTION).await;
    observes(&gateway);
    change(
        &gateway,
        "\"0-7\" = \"not checked\"",
        &format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", "cd".repeat(32)),
    );
    assert_eq!(boots(&gateway, &mut nodes[1], &updated("loader 2")).await.status, 200);
    assert_eq!(codes(&last(&gateway)), ["pcr-mismatch", "boot-not-accepted"]);
    assert_eq!(alerts(&gateway), "");
    assert!(pending(&gateway).is_empty());
    audit(&mut gateway);
}

/// Starts a gateway whose observing pool requires another boot loader than any machine has, with these rules about histories. Returns it
/// with a machine.
fn observing(history: &str) -> (Gateway, Case) {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "[grants]\n", "observe = true\n\n[grants]\n");
    let pcrs = format!(
        "\"0-3\" = \"not checked\"\n4 = [\"{}\"]\n\"5-7\" = \"not checked\"",
        "ab".repeat(32)
    );
    gateway.edit_pool(POOL, "\"0-7\" = \"not checked\"", &pcrs);
    gateway.edit_pool(POOL, "\n[kubelet]\n", &format!("\n{history}\n[kubelet]\n"));
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-7"]);
    gateway.run();
    (gateway, case)
}

/// A TPM's continuity with its last trusted state identifies the attester: it is never merely observed.
#[tokio::test(flavor = "multi_thread")]
async fn attack_07_an_observing_pool_refuses_a_changed_tpm() {
    for Way {
        rule,
        code,
        good,
        bad,
        said,
        ..
    } in WAYS
    {
        let (mut gateway, case) = observing(&format!("[history]\n{rule} = \"refuse\"\n"));
        gateway.attest(good(&case), None).await.ticket();
        assert_eq!(codes(&last(&gateway)), ["pcr-mismatch"]);
        gateway.attest(bad(&case), None).await.refused(403, code);
        let record = last(&gateway);
        assert_eq!(
            (&record["verdict"], &record["code"], &record["decided_by"]),
            (&"refused".into(), &code.into(), &"store".into())
        );
        assert!(record.get("would_refuse").is_none() && alerts(&gateway).contains(said), "{record}");
        gateway.line(|line| line.contains("NOT TRUSTED") && line.contains(code));
        // What it is compared with is the boot that was let in.
        gateway.attest(good(&case), None).await.ticket();
        gateway.attest(bad(&case), None).await.refused(403, code);
        gateway.command(&["node", "forget-history", "worker-7"]);
        gateway.attest(bad(&case), None).await.ticket();
        assert_eq!(codes(&last(&gateway)), ["pcr-mismatch"]);
        audit(&mut gateway);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_about_a_changed_tpm_before_its_values() {
    let mut gateway = Gateway::init();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-7"]);
    gateway.run();
    let (first, second) = (LogBuilder::typical(&[SHA256]), updated("loader 2"));
    let after = |log: &LogBuilder, resets: u32| booted(&case, log).but(|next| next.quoted.clock.reset_count = resets);
    gateway.attest(after(&first, 1008), None).await.ticket();
    record_first_boot(&mut gateway);
    gateway.edit_pool(POOL, "[grants]\n", "observe = true\n\n[grants]\n");
    gateway.edit_pool(POOL, "\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n");
    let sections = "\n[reference_values]\nfolder = \"reference-values\"\n\n[history]\ncounters_back = \"refuse\"\n\n[kubelet]\n";
    gateway.edit_pool(POOL, "\n[kubelet]\n", sections);
    set_waiting(&gateway, SECTION);
    gateway.run();
    gateway.attest(after(&second, 1005), None).await.refused(503, "answer-pending");
    let rows = pending(&gateway);
    assert!(rows.len() == 1 && rows[0].contains("history of a TPM"), "{rows:?}");
    gateway.attest(after(&second, 1009), None).await.ticket();
    assert_eq!(codes(&last(&gateway)), ["boot-not-accepted"]);
    let rows = pending(&gateway);
    assert!(rows.len() == 1 && !rows[0].contains("history of a TPM"), "{rows:?}");
    audit(&mut gateway);
}
