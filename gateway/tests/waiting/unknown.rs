//! Machines that nobody enrolled: they wait only if the pool says so, and take few places.

use super::*;
use crate::support::WAITING;

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_tpm_waits_and_is_accepted() {
    let mut gateway = for_unknown(|_| {});
    let mut node = Node::new();
    let answer = boots(&gateway, &mut node, &known_log()).await;
    answer.refused(503, "answer-pending");
    let problem = answer.problem();
    let id = question(&gateway);
    assert!(problem.detail.unwrap().starts_with(&format!("nobody endorses EK {}", node.ek())));
    assert!(problem.next_step.contains(&format!("attest-gateway waiting show {id}")));
    // The record is the refusal that it is, and repeats.
    let record = evidence(&gateway).pop().unwrap();
    assert_eq!(
        (&record["code"], &record["verdict"]),
        (&"ek-not-endorsed".into(), &"refused".into())
    );
    assert_eq!(record["acceptable"]["ek"], node.ek());
    assert!(record.get("claims").is_none(), "nobody has vouched for them: {record}");
    boots(&gateway, &mut node, &known_log()).await.refused(503, "answer-pending");
    assert_eq!(evidence(&gateway).len(), 1);
    let acts = gateway.wait_for_acts(1, "waiting.ask");
    assert!(acts[0]["admin"]["things"][0]["id"].as_str().unwrap().ends_with(&id), "{acts:?}");

    let listed = &listed(&gateway)[0];
    assert_eq!((&listed["values"][0]["value"], &listed["releases"]), (&node.ek().into(), &1.into()));
    assert_eq!(listed["waiting"][0]["identity"], format!("tpm:{}", node.ek()));
    let lines = shown(&gateway, &id);
    let accept = format!("waiting accept {id} --name NODE`");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("to accept: `attest-gateway ") && line.ends_with(&accept)),
        "{lines:#?}"
    );

    gateway.command(&["waiting", "accept", &id[..8], "--name", "worker-7"]);
    assert_eq!(boots(&gateway, &mut node, &known_log()).await.status, 200);
    gateway.line(|line| line.contains("trusted, after waiting since ") && line.contains(&id));
    assert_eq!(evidence(&gateway).pop().unwrap()["name"], "worker-7");
    assert!(pending(&gateway).is_empty());
    let acts = gateway.wait_for_acts(1, "waiting.accept");
    assert!(acts[0]["admin"]["things"].to_string().contains(&node.ek()), "{acts:?}");
    // Another unknown one is refused at once where the pool says so.
    let before = gateway.how_often(|line| line.contains("serving a new state"));
    set_waiting(&gateway, SECTION);
    gateway.lines(before + 1, |line| line.contains("serving a new state"));
    boots(&gateway, &mut Node::new(), &known_log())
        .await
        .refused(403, "ek-not-endorsed");
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_48_unknown_machines_wait_only_with_acceptable_evidence() {
    let mut gateway = for_unknown(|gateway| {
        let pcrs = format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", "cd".repeat(32));
        gateway.edit_pool(POOL, "\"0-7\" = \"not checked\"", &pcrs);
    });
    // The pool would refuse it with an endorsement, too.
    let mut node = Node::new();
    boots(&gateway, &mut node, &known_log()).await.refused(403, "ek-not-endorsed");
    assert!(pending(&gateway).is_empty());
    // One that the administrator has removed, revoked, or allowed elsewhere only, is not unknown.
    let before = gateway.how_often(|line| line.contains("serving a new state"));
    gateway.edit_pool(
        POOL,
        &format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", "cd".repeat(32)),
        "\"0-7\" = \"not checked\"",
    );
    gateway.lines(before + 1, |line| line.contains("serving a new state"));
    let mut removed = Node::new();
    gateway.command(&["ek", "add", &removed.ek()]);
    gateway.command(&["ek", "remove", &removed.ek()]);
    boots(&gateway, &mut removed, &known_log()).await.refused(403, "ek-not-endorsed");
    let mut revoked = Node::new();
    gateway.command(&["node", "revoke", &revoked.ek(), "--anyway"]);
    boots(&gateway, &mut revoked, &known_log()).await.refused(403, "node-revoked");
    // The quote of another boot, and another machine's answer.
    let answer = sends(&gateway, &mut node, &updated("loader 2"), &known_log()).await;
    assert_eq!(answer.status, 403);
    assert!(pending(&gateway).is_empty(), "{:?}", pending(&gateway));
    // With evidence that would be accepted it waits.
    boots(&gateway, &mut node, &known_log()).await.refused(503, "answer-pending");
    assert_eq!(pending(&gateway).len(), 1);
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_48_strangers_cannot_fill_the_waiting_list() {
    let mut gateway = for_unknown(|_| {});
    let mut own = Node::new();
    gateway.command(&["ek", "add", &own.ek()]);
    let mut waiting = 0;
    for _ in 0..40 {
        let answer = boots(&gateway, &mut Node::new(), &known_log()).await;
        if answer.code() == "answer-pending" {
            waiting += 1;
        } else {
            answer.refused(403, "ek-not-endorsed");
        }
    }
    assert_eq!(waiting, 16);
    assert_eq!(pending(&gateway).len(), 16);
    assert_eq!(gateway.wait_for_acts(16, "waiting.ask").len(), 16);
    assert_eq!(boots(&gateway, &mut own, &known_log()).await.status, 200);
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_tpm_with_new_values_waits_twice() {
    let mut gateway = Gateway::init();
    let mut known = Node::new();
    gateway.command(&["ek", "add", &known.ek()]);
    gateway.run();
    strict(&mut gateway, &mut known, &known_log(), UNKNOWN).await;
    let mut node = Node::new();
    boots(&gateway, &mut node, &updated("loader 2"))
        .await
        .refused(503, "answer-pending");
    let first = listed(&gateway).remove(0);
    assert_eq!((&first["then_values"], &first["releases"]), (&1.into(), &0.into()));
    let id = first["id"].as_str().unwrap().to_owned();
    assert!(
        shown(&gateway, &id).contains(&"if accepted, these machines wait next for 1 booted values:".to_owned()),
        "{:?}",
        shown(&gateway, &id)
    );
    gateway.command(&["waiting", "accept", &id]);
    boots(&gateway, &mut node, &updated("loader 2"))
        .await
        .refused(503, "answer-pending");
    let second = question(&gateway);
    assert_ne!(second, id);
    let before = gateway.how_often(|line| line.contains("serving a new state"));
    gateway.command(&["waiting", "accept", &second]);
    gateway.lines(before + 1, |line| line.contains("serving a new state"));
    assert!(gateway.path(&format!("pools/{POOL}/reference-values/accepted.json")).exists());
    assert_eq!(boots(&gateway, &mut node, &updated("loader 2")).await.status, 200);
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn init_lets_endorsed_machines_wait_and_refuses_unknown_ones() {
    let mut gateway = Gateway::init();
    let sample = attest_pool::SAMPLE.replace("\nonly_while_booting = true\n", "\n");
    assert!(WAITING.iter().all(|line| sample.contains(&format!("\n{line}\n"))));
    fs::write(gateway.path(&format!("pools/{POOL}/pool.toml")), sample).unwrap();
    gateway.run();
    boots(&gateway, &mut Node::new(), &known_log())
        .await
        .refused(403, "ek-not-endorsed");
    let words = gateway.command(&["policy", "explain", POOL]);
    assert!(
        words.contains("The gateway asks the administrator once 1 machines have booted them") && !words.contains("nobody has enrolled"),
        "{words}"
    );
}
