//! Acceptances by an administrator: names, histories, machines outside the inventory, and records of refusals.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_outside_the_inventory_waits_and_is_accepted() {
    let mut gateway = for_unknown(|gateway| {
        fs::write(gateway.path(&format!("pools/{POOL}/machines.txt")), "# ours").unwrap();
        gateway.edit_pool(POOL, "\n[kubelet]\n", "\n[inventory]\ninstances = \"machines.txt\"\n\n[kubelet]\n");
    });
    let mut node = Node::new();
    gateway.command(&["ek", "add", &node.ek()]);
    boots(&gateway, &mut node, &known_log()).await.refused(503, "answer-pending");
    let record = evidence(&gateway).pop().unwrap();
    assert_eq!(
        (&record["code"], &record["acceptable"]["machine"]["identity"]),
        (&"instance-not-in-inventory".into(), &format!("tpm:{}", node.ek()).into())
    );
    let before = gateway.how_often(|line| line.contains("serving a new state"));
    gateway.command(&["waiting", "accept", &question(&gateway)]);
    gateway.lines(before + 1, |line| line.contains("serving a new state"));
    let text = fs::read_to_string(gateway.path(&format!("pools/{POOL}/machines.txt"))).unwrap();
    assert!(text.starts_with(&format!("# ours\ntpm:{} # accepted ", node.ek())), "{text}");
    assert_eq!(boots(&gateway, &mut node, &known_log()).await.status, 200);
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_name_waits_and_is_moved() {
    let mut gateway = for_unknown(|_| {});
    let case = crate::support::tpm();
    let mut old = Node::new();
    gateway.command(&["ek", "add", &old.ek(), "--name", "worker-7"]);
    assert_eq!(boots(&gateway, &mut old, &known_log()).await.status, 200);
    gateway.endorse(&case, &[]);
    let again = crate::support::next_boot(&case);
    gateway.attest(case, Some("worker-7")).await.refused(503, "answer-pending");
    let record = evidence(&gateway).pop().unwrap();
    assert_eq!(
        (&record["code"], &record["acceptable"]["name"]["name"]),
        (&"node-name-taken".into(), &"worker-7".into())
    );
    for option in [["--name", "worker-8"], ["--set", "other.json"], ["--until", "2999-01-01T00:00:00Z"]] {
        let output = gateway.try_command(&[&["waiting", "accept", &question(&gateway)][..], &option].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(" for booted values"), "{error}");
    }
    // A machine that waits is listed with the pool of its question.
    let listed = gateway.command(&["machines", "list", "--waiting", "--pool", "worker", "--output", "json"]);
    assert_eq!(
        serde_json::from_str::<Vec<serde_json::Value>>(&listed).unwrap().len(),
        1,
        "{listed}"
    );
    gateway.command(&["waiting", "accept", &question(&gateway)]);
    gateway.attest(again, Some("worker-7")).await.ticket();
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_went_backwards_waits_and_is_accepted() {
    let mut gateway = for_unknown(|gateway| {
        gateway.edit_pool(POOL, "\n[kubelet]\n", "\n[history]\ncounters_back = \"refuse\"\n\n[kubelet]\n");
    });
    let case = crate::support::tpm();
    gateway.endorse(&case, &[]);
    let after = |resets: u32| crate::support::next_boot(&case).but(|next| next.quoted.clock.reset_count = resets);
    gateway.attest(after(1008), None).await.ticket();
    gateway.attest(after(1005), None).await.refused(503, "answer-pending");
    let asked = listed(&gateway).remove(0);
    assert!(
        asked["values"][0]["value"].as_str().unwrap().starts_with("resets 1008 to 1005, "),
        "{asked}"
    );
    // In the same boot it is the same question.
    gateway.attest(after(1005), None).await.refused(503, "answer-pending");
    assert_eq!(pending(&gateway).len(), 1);
    gateway.command(&["waiting", "accept", asked["id"].as_str().unwrap()]);
    gateway.attest(after(1005), None).await.ticket();
    gateway.attest(after(1004), None).await.refused(503, "answer-pending");
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_accepted_by_its_record() {
    let mut site = Site::start("").await;
    let said = |site: &Site, arguments: &[&str]| site.command_output(arguments, true);
    // New values: the pool lets nobody wait.
    let answer = site.boots(1, &updated("loader 2")).await;
    answer.refused(403, "boot-not-accepted");
    let problem = answer.problem();
    let id = problem.decision.unwrap();
    let command = format!("attest-gateway waiting accept --record {id}");
    assert!(
        problem.next_step.ends_with(&format!("To accept it: `{command}`.")),
        "{}",
        problem.next_step
    );
    site.gateway.line(|line| line.contains("NOT TRUSTED") && line.contains(&command));
    let shown = said(&site, &["log", "show", "--record", &id]);
    assert!(shown.contains(&format!("to accept it: `{command}`")), "{shown}");
    assert!(said(&site, &["log", "show", "--verdict", "refused"]).contains(&command));
    let accept = ["waiting", "accept", "--record", &id];
    let dry = said(&site, &accept);
    assert!(
        dry.contains("PCR 4, boot loader or kernel: sha256 ") && dry.contains("nothing was accepted"),
        "{dry}"
    );
    let named = said(
        &site,
        &[&accept[..], &["--name", "spring roll-out", "--set", "spring.json"]].concat(),
    );
    let command = format!("--record {id} --name 'spring roll-out' --set spring.json --yes`");
    assert!(named.contains(&command), "{named}");
    site.boots(1, &updated("loader 2")).await.refused(403, "boot-not-accepted");
    let before = site.gateway.how_often(|line| line.contains("serving a new state"));
    said(&site, &[&accept[..], &["--yes"]].concat());
    site.gateway.lines(before + 1, |line| line.contains("serving a new state"));
    assert_eq!(site.boots(1, &updated("loader 2")).await.status, 200);
    // An unknown TPM, which is refused before it has shown evidence.
    let mut stranger = Node::new();
    let answer = boots(&site.gateway, &mut stranger, &known_log()).await;
    answer.refused(403, "ek-not-endorsed");
    let id = answer.problem().decision.unwrap();
    said(&site, &["waiting", "accept", "--record", &id[..10], "--yes", "--name", "worker-9"]);
    assert_eq!(boots(&site.gateway, &mut stranger, &known_log()).await.status, 200);
    // What is no refusal, or not to be accepted.
    let trusted = site.evidence().pop().unwrap()["id"].as_str().unwrap().to_owned();
    for (id, why) in [
        (trusted.as_str(), "it is no refusal"),
        ("0123456789", "no decision has the id"),
        ("01", "is not a decision id"),
    ] {
        let refused = site.command_output(&["waiting", "accept", "--record", id, "--yes"], false);
        assert!(refused.contains(why), "{refused}");
    }
    audit(&mut site.gateway);
}

/// An acceptance that the store refuses is written into no file of the pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_acceptance_changes_nothing() {
    let mut gateway = Gateway::init();
    let mut known = Node::new();
    gateway.command(&["ek", "add", &known.ek(), "--name", "worker-3"]);
    gateway.run();
    strict(&mut gateway, &mut known, &known_log(), UNKNOWN).await;
    boots(&gateway, &mut known, &updated("loader 2"))
        .await
        .refused(503, "answer-pending");
    boots(&gateway, &mut Node::new(), &known_log()).await.refused(503, "answer-pending");
    let ids: Vec<String> = listed(&gateway)
        .iter()
        .map(|question| question["id"].as_str().unwrap().to_owned())
        .collect();
    let accepts = |options: &[&str]| gateway.try_command(&[&["waiting", "accept", &ids[0], &ids[1]], options].concat());
    // One name for two things, and one that another machine has.
    assert!(!accepts(&["--name", "worker-3"]).status.success());
    let unknown = listed(&gateway)
        .into_iter()
        .find(|question| question["about"]["ek"].is_string())
        .unwrap();
    let output = gateway.try_command(&["waiting", "accept", unknown["id"].as_str().unwrap(), "--name", "worker-3"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("the name worker-3 belongs to"));
    assert_eq!(listed(&gateway).len(), 2);
    assert!(!gateway.path(&format!("pools/{POOL}/reference-values/accepted.json")).exists());
    assert!(accepts(&[]).status.success());
    assert!(
        listed(&gateway)
            .iter()
            .all(|question| question["answer"]["said"]["accepted"].is_object())
    );
    audit(&mut gateway);
}

/// An acceptance by a record names what an administrator has removed or refused before, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_lifts_no_removal_and_no_refusal() {
    let mut gateway = for_unknown(|_| {});
    let mut removed = Node::new();
    gateway.command(&["ek", "add", &removed.ek()]);
    gateway.command(&["ek", "remove", &removed.ek()]);
    let answer = boots(&gateway, &mut removed, &known_log()).await;
    answer.refused(403, "ek-not-endorsed");
    assert!(!answer.problem().next_step.contains("waiting accept"));
    let mut stolen = Node::new();
    boots(&gateway, &mut stolen, &known_log()).await.refused(503, "answer-pending");
    let id = question(&gateway);
    gateway.command(&["waiting", "refuse", &id, "--reason", "stolen"]);
    let answer = boots(&gateway, &mut stolen, &known_log()).await;
    answer.refused(403, "ek-not-endorsed");
    let record = answer.problem().decision.unwrap();
    let output = gateway.try_command(&["waiting", "accept", "--record", &record, "--yes"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("stolen") && said.contains(&id), "{said}");
    boots(&gateway, &mut stolen, &known_log()).await.refused(403, "ek-not-endorsed");
    // By its id it can be accepted all the same.
    gateway.command(&["waiting", "accept", &id]);
    assert_eq!(boots(&gateway, &mut stolen, &known_log()).await.status, 200);
    // It is removed after it waited: that holds, too.
    gateway.command(&["ek", "remove", &stolen.ek()]);
    let output = gateway.try_command(&["waiting", "accept", &id]);
    assert!(!output.status.success());
    boots(&gateway, &mut stolen, &known_log()).await.refused(403, "ek-not-endorsed");
    audit(&mut gateway);
}

/// An entry that cannot be read keeps no trusted machine out.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_entry_keeps_no_trusted_machine_waiting() {
    let mut gateway = for_unknown(|_| {});
    let mut node = Node::new();
    boots(&gateway, &mut node, &known_log()).await.refused(503, "answer-pending");
    gateway.command(&["ek", "add", &node.ek()]);
    gateway.terminate();
    assert!(gateway.wait().success());
    {
        let store = embedded(&gateway);
        let entries = store.list(EntryKind::Waiting).await.unwrap();
        let entry = entries.into_iter().find(|entry| entry.id.starts_with("machine:")).unwrap();
        let value = entry.value.replacen('{', "{\"later\":1,", 1);
        store.put(EntryKind::Waiting, StoreEntry { id: entry.id, value }).await.unwrap();
    }
    gateway.run();
    assert_eq!(boots(&gateway, &mut node, &known_log()).await.status, 200);
    gateway.line(|line| line.contains("cannot update the waiting list"));
}

/// A name that was accepted for a machine, and then given to another one, is asked about again.
#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_name_that_moved_on_is_asked_about_again() {
    let mut gateway = for_unknown(|_| {});
    let case = crate::support::tpm();
    let other = Node::new();
    gateway.command(&["ek", "add", &other.ek(), "--name", "worker-7"]);
    gateway.endorse(&case, &[]);
    let next = || crate::support::next_boot(&case);
    gateway.attest(next(), Some("worker-7")).await.refused(503, "answer-pending");
    let id = question(&gateway);
    let owner = format!("it belongs to tpm:{} now, from which an acceptance takes it", other.ek());
    assert!(shown(&gateway, &id).contains(&owner), "{:?}", shown(&gateway, &id));
    gateway.command(&["waiting", "accept", &id]);
    gateway.attest(next(), Some("worker-7")).await.ticket();
    gateway.command(&["ek", "add", &other.ek(), "--name", "worker-7", "--replace"]);
    gateway.attest(next(), Some("worker-7")).await.refused(503, "answer-pending");
    let asked = listed(&gateway).remove(0);
    assert_eq!((&asked["id"], &asked["answer"]), (&id.as_str().into(), &Value::Null));
    assert_eq!(gateway.wait_for_acts(2, "waiting.ask").len(), 2);
    gateway.command(&["waiting", "refuse", &id, "--reason", "no"]);
    gateway.attest(next(), Some("worker-7")).await.refused(403, "node-name-taken");
    audit(&mut gateway);
}

/// Acceptances at the same time lose none of each other.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_acceptances_are_all_written() {
    let site = Site::start(UNKNOWN).await;
    let mut nodes: Vec<Node> = (0..8).map(|_| Node::new()).collect();
    for (number, node) in nodes.iter_mut().enumerate() {
        site.gateway.command(&["ek", "add", &node.ek()]);
        let log = updated(&format!("loader {number}"));
        boots(&site.gateway, node, &log).await.refused(503, "answer-pending");
    }
    let questions = listed(&site.gateway);
    assert_eq!(questions.len(), 8);
    std::thread::scope(|scope| {
        for question in &questions {
            let gateway = &site.gateway;
            scope.spawn(|| gateway.command(&["waiting", "accept", question["id"].as_str().unwrap()]));
        }
    });
    let file = site.gateway.path(&format!("pools/{POOL}/reference-values/accepted.json"));
    let written: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(written["generations"].as_array().unwrap().len(), 8, "{written:#}");
}
