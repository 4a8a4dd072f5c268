//! Machines that are refused for one thing: they wait until an administrator accepts or refuses it. No question is asked about other
//! machines.

mod acceptance;
mod unknown;

use std::fs;

use attest::{HashAlg, SpkiSha256};
use attest_store::{EntryKind, Store, StoreEntry};
use serde_json::Value;

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use crate::support::kubelet::embedded;
use crate::support::node::Node;
use crate::support::{Answer, Gateway, POOL, auditor, bearer};

/// Section of a pool whose machines wait; two of them must show a new value.
pub const SECTION: &str = "\n[waiting]\nmachines = 2\nwindow_hours = 24\nwait_minutes = 30\n";

/// Replaces the section `[waiting]` of the pool.
pub fn set_waiting(gateway: &Gateway, section: &str) {
    let file = gateway.path(&format!("pools/{POOL}/pool.toml"));
    let text = fs::read_to_string(&file).unwrap();
    let (before, after) = text.split_once("\n# [inventory]\n").unwrap();
    let before = before
        .split_once("[waiting]\n")
        .map_or(before, |(before, _)| before.trim_end_matches("# "));
    fs::write(&file, format!("{before}\n{section}\n# [inventory]\n{after}")).unwrap();
}

/// Makes a pool accept this machine's boot, and wait for answers about values that are new to it. Returns when the gateway serves the
/// change.
pub async fn strict(gateway: &mut Gateway, node: &mut Node, log: &LogBuilder, section: &str) {
    assert_eq!(boots(gateway, node, log).await.status, 200);
    let file = gateway.path(&format!("pools/{POOL}/reference-values/known.json"));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let identity = format!("tpm:{}", node.ek());
    gateway.command(&[
        "reference-values",
        "record",
        &identity,
        "--name",
        "known",
        "--to",
        file.to_str().unwrap(),
    ]);
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.edit_pool(POOL, "\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n");
    let sections = "\n[reference_values]\nfolder = \"reference-values\"\n\n[kubelet]\n";
    gateway.edit_pool(POOL, "\n[kubelet]\n", sections);
    set_waiting(gateway, section);
    gateway.run();
}

/// Boots the machine with this log. Returns the answer.
pub async fn boots(gateway: &Gateway, node: &mut Node, log: &LogBuilder) -> Answer {
    sends(gateway, node, log, log).await
}

/// Boots the machine with one log, and sends another. Returns the answer.
async fn sends(gateway: &Gateway, node: &mut Node, booted: &LogBuilder, sent: &LogBuilder) -> Answer {
    let key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    let (client, url) = (gateway.client.clone(), gateway.url(""));
    node.has_booted(sent.build(), &booted.pcrs(HashAlg::Sha256));
    let challenged = Answer::send(node.challenge(&client, &url)).await;
    if challenged.status != 200 {
        return challenged;
    }
    let evidence = node.evidence(&challenged, &key);
    Answer::send(Node::send(&client, &url, &evidence)).await
}

fn known_log() -> LogBuilder {
    LogBuilder::typical(&[SHA256])
}

/// Returns the known log with an additional boot loader.
pub fn updated(loader: &str) -> LogBuilder {
    known_log().event(4, EV_IPL, loader.as_bytes())
}

/// Pool whose unknown machines wait.
const UNKNOWN: &str = "\n[waiting]\nmachines = 1\nunknown = \"wait\"\n";

/// Starts a gateway whose pool lets unknown machines wait. Its pool is changed by `edit` before.
fn for_unknown(edit: impl FnOnce(&Gateway)) -> Gateway {
    let mut gateway = Gateway::init();
    set_waiting(&gateway, UNKNOWN);
    edit(&gateway);
    gateway.run();
    gateway
}

/// Gateway that waits for new values, and machines that it knows.
struct Site {
    gateway: Gateway,
    nodes: Vec<Node>,
}

impl Site {
    async fn start(section: &str) -> Self {
        let mut site = Self {
            gateway: Gateway::init(),
            nodes: vec![Node::new(), Node::new(), Node::new()],
        };
        for node in &site.nodes {
            site.gateway.command(&["ek", "add", &node.ek()]);
        }
        site.gateway.run();
        strict(&mut site.gateway, &mut site.nodes[0], &known_log(), section).await;
        site
    }

    async fn boots(&mut self, node: usize, log: &LogBuilder) -> Answer {
        boots(&self.gateway, &mut self.nodes[node], log).await
    }

    fn command_output(&self, arguments: &[&str], succeeds: bool) -> String {
        let output = self.gateway.try_command(arguments);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.success(), succeeds, "{arguments:?}: {said}");
        said
    }

    fn evidence(&self) -> Vec<Value> {
        let records = self.gateway.records().into_iter();
        records.filter(|record| record["decision"] == "evidence").collect()
    }

    /// Returns the alerts of the last record of evidence.
    fn alerts(&self) -> String {
        self.evidence().pop().unwrap()["alerts"].to_string()
    }

    fn pending(&self) -> Vec<String> {
        pending(&self.gateway)
    }

    /// Returns the only open question.
    fn question(&self) -> String {
        assert_eq!(self.pending().len(), 1);
        question(&self.gateway)
    }
}

/// Returns the open questions, as programs read them.
pub fn listed(gateway: &Gateway) -> Vec<Value> {
    serde_json::from_str(&gateway.command(&["waiting", "list", "--for", POOL, "--output", "json"])).unwrap()
}

/// Returns the id of the first open question.
pub fn question(gateway: &Gateway) -> String {
    listed(gateway)[0]["id"].as_str().unwrap().to_owned()
}

/// Returns the rows of `waiting list`.
pub fn pending(gateway: &Gateway) -> Vec<String> {
    let said = gateway.command(&["waiting", "list", "--for", POOL]);
    let table = said.lines().skip(1).take_while(|line| !line.is_empty());
    table.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn new_values_wait_for_the_administrators_approval() {
    let mut site = Site::start(SECTION).await;
    let before = site.evidence().len();
    let answer = site.boots(1, &updated("loader 2")).await;
    answer.refused(503, "answer-pending");
    assert_eq!(answer.header("retry-after"), Some("60"));
    let problem = answer.problem();
    let told = problem.detail.unwrap();
    assert!(
        told.starts_with("PCR 4, boot loader or kernel: sha256 ") && told.contains("fewer machines"),
        "{told}"
    );
    let question = site.question();
    assert!(
        problem.next_step.contains(&format!("`attest-gateway waiting show {question}`")),
        "{}",
        problem.next_step
    );
    // Its evidence is on record, as the refusal that it is; and it is once, however often it comes again.
    let record = site.evidence().pop().unwrap();
    assert_eq!(
        (&record["code"], &record["verdict"]),
        (&"boot-not-accepted".into(), &"refused".into())
    );
    assert_eq!(record["id"], problem.decision.unwrap());
    let reason = record["alerts"][0].as_str().unwrap();
    assert!(
        reason.contains("told to retry for 1800 s, until question ") && reason.contains("(1 of 2 machines have these values)"),
        "{reason}"
    );
    assert!(reason.contains(&format!("`attest-gateway waiting show {question}`")), "{reason}");
    site.boots(1, &updated("loader 2")).await.refused(503, "answer-pending");
    assert_eq!(site.evidence().len(), before + 1);
    assert_eq!(site.question(), question);
    assert!(site.gateway.acts("waiting.ask").is_empty());
    assert!(
        site.pending()[0].contains("  1 of 2 ") && site.pending()[0].ends_with("counted"),
        "{:?}",
        site.pending()
    );

    let words = site.command_output(&["policy", "explain", POOL], true);
    assert!(
        words.contains("waits for at most 30 min. The gateway asks the administrator once 2 machines have booted them"),
        "{words}"
    );

    // A second machine with the same: one question, one line, one act.
    let answer = site.boots(2, &updated("loader 2")).await;
    answer.refused(503, "answer-pending");
    assert!(answer.problem().detail.unwrap().contains("nobody has accepted or refused this yet"));
    site.gateway
        .line(|line| line.contains("WARN") && line.contains("pool worker: 2 machines wait for an answer"));
    let acts = site.gateway.wait_for_acts(1, "waiting.ask");
    assert!(
        acts[0]["admin"]["things"][0]["id"].as_str().unwrap().ends_with(&question),
        "{acts:?}"
    );
    assert_eq!(acts[0]["admin"]["things"][0]["after"]["machines"], 2);
    for node in [1, 2, 1] {
        site.boots(node, &updated("loader 2")).await.refused(503, "answer-pending");
    }
    assert_eq!(site.question(), question);
    assert!(site.pending()[0].ends_with("asked"));
    // Who has booted what is known is let in meanwhile.
    assert_eq!(site.boots(0, &known_log()).await.status, 200);

    let accept =
        |set: &str, id: &str, succeeds| site.command_output(&["waiting", "accept", id, "--set", set, "--name", "loader 2"], succeeds);
    accept("update.json", "0123", false);
    accept("update.txt", &question, false);
    accept("/tmp/update.json", &question, false);
    accept("update.json", &question, true);
    site.gateway.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(site.boots(1, &updated("loader 2")).await.status, 200);
    let waited = |line: &str| line.contains("trusted, after waiting since ") && line.contains(&question);
    site.gateway.line(waited);
    assert_eq!(site.boots(2, &updated("loader 2")).await.status, 200);
    assert_eq!(site.boots(1, &updated("loader 2")).await.status, 200);
    assert_eq!(site.gateway.how_often(waited), 2, "each once");
    let acts = site.gateway.wait_for_acts(1, "waiting.accept");
    assert!(
        acts[0]["admin"]["things"][0]["after"]["said"]["accepted"]["to"]
            .as_str()
            .unwrap()
            .ends_with("update.json")
    );
    assert!(site.pending().is_empty());
    let file = site.gateway.path(&format!("pools/{POOL}/reference-values/update.json"));
    let written = fs::read_to_string(&file).unwrap();
    let id = record["id"].as_str().unwrap();
    assert!(written.contains("\"loader 2\"") && written.contains(id), "{written}");

    // Each decision comes out the same again.
    site.gateway.terminate();
    assert!(site.gateway.wait().success());
    let said = site.command_output(&["log", "audit"], true);
    assert!(said.contains(" 0 different"), "{said}");
}

/// Returns the lines of `waiting show`.
fn shown(gateway: &Gateway, question: &str) -> Vec<String> {
    let said = gateway.command(&["waiting", "show", question]);
    said.lines().map(|line| line.trim().to_owned()).collect()
}

/// Returns the question that has this number of values.
fn question_with_values(gateway: &Gateway, values: usize) -> String {
    let questions = listed(gateway).into_iter();
    let mut found = questions.filter(|question| question["values"].as_array().unwrap().len() == values);
    found.next().unwrap()["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_waiting_machines_and_deadlines() {
    let mut site = Site::start(SECTION).await;
    let ek = site.nodes[1].ek();
    site.gateway.command(&["ek", "add", &ek, "--name", "worker-1"]);
    let more = |log: LogBuilder, loader: &str| log.event(4, EV_IPL, loader.as_bytes());
    let (one, both) = (updated("loader 2"), more(updated("loader 2"), "loader 3"));
    site.boots(1, &one).await.refused(503, "answer-pending");
    site.boots(2, &both).await.refused(503, "answer-pending");
    assert_eq!(site.pending().len(), 3);
    let [first, second] = [1, 2].map(|values| question_with_values(&site.gateway, values));
    let lines = shown(&site.gateway, &first);
    let waits = format!("- worker-1 (tpm:{ek}): waits since ");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with(&waits) && line.contains(", until ") && line.ends_with("m left)")),
        "{lines:#?}"
    );
    let not_enough = format!("not enough for 1 machines of question {second}, which also booted: images sha256 ");
    assert!(lines.iter().any(|line| line.starts_with(&not_enough)), "{lines:#?}");
    let within = format!("- 1 machines of question {first}, whose values are all in this question");
    let of_second = shown(&site.gateway, &second);
    assert!(of_second.contains(&within), "{of_second:#?}");
    assert!(
        !lines.contains(&within) && !of_second.iter().any(|line| line.contains("not enough")),
        "{of_second:#?}"
    );
    // What it advises says how the recorded boot stands with the rules of now.
    let printed: Vec<&str> = lines.last().unwrap().split('`').nth(1).unwrap().split(' ').collect();
    let advised = printed.strip_prefix(&["attest-audit"]).unwrap();
    let output = auditor().args(advised).output().unwrap();
    let tested = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success() && tested.contains("boot-not-accepted"), "{tested}");

    // It is as it says.
    let accept = |site: &Site, id: &str, set: &str| {
        let before = site.gateway.how_often(|line| line.contains("serving a new state"));
        site.command_output(&["waiting", "accept", id, "--set", set], true);
        site.gateway.lines(before + 1, |line| line.contains("serving a new state"));
    };
    accept(&site, &first, "first.json");
    assert_eq!(site.boots(1, &one).await.status, 200);
    site.boots(2, &both).await.refused(503, "answer-pending");
    let left = site.pending();
    assert!(
        left.len() == 1 && !second.starts_with(left[0].split(' ').next().unwrap()),
        "{left:?}"
    );
    // And where it is enough for others, too.
    let (one, both) = (updated("loader 4"), more(updated("loader 4"), "loader 5"));
    site.boots(1, &one).await.refused(503, "answer-pending");
    site.boots(2, &both).await.refused(503, "answer-pending");
    accept(&site, &question_with_values(&site.gateway, 2), "second.json");
    for (node, log) in [(1, &one), (2, &both)] {
        assert_eq!(site.boots(node, log).await.status, 200);
    }
    assert!(site.pending().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_values_are_refused_at_once() {
    let mut site = Site::start(SECTION).await;
    site.boots(1, &updated("loader 2")).await.refused(503, "answer-pending");
    let question = site.question();
    let refuse = ["waiting", "refuse", &question];
    site.command_output(&refuse, false);
    site.command_output(&[&refuse[..], &["--reason", "nobody has rolled this out"]].concat(), true);
    assert!(site.pending().is_empty());
    for node in [1, 2] {
        let answer = site.boots(node, &updated("loader 2")).await;
        answer.refused(403, "boot-not-accepted");
        assert!(!String::from_utf8(answer.body).unwrap().contains("rolled"), "the node is not told");
        let reason = site.alerts();
        assert!(
            reason.contains(&format!("question {question} was refused by ")) && reason.contains("nobody has rolled this out"),
            "{reason}"
        );
    }
    let acts = site.gateway.wait_for_acts(1, "waiting.refuse");
    assert_eq!(
        acts[0]["admin"]["things"][0]["after"]["said"]["refused"]["reason"],
        "nobody has rolled this out"
    );
    let all = site.command_output(&["waiting", "list", "--for", POOL, "--all"], true);
    assert!(all.contains(&question[..12]) && all.contains("refused by "), "{all}");
    site.command_output(&[&refuse[..], &["--take-back"]].concat(), true);
    site.boots(2, &updated("loader 2")).await.refused(503, "answer-pending");
    let nowhere = site.command_output(&["waiting", "list", "--for", "nowhere"], false);
    assert!(nowhere.contains("no pool \"nowhere\""), "{nowhere}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_48_unentitled_machines_cause_no_pending_values() {
    let mut site = Site::start(SECTION).await;
    let new = updated("loader 2");
    // A TPM that nobody vouches for.
    let mut stranger = Node::new();
    let answer = boots(&site.gateway, &mut stranger, &new).await;
    answer.refused(403, "ek-not-endorsed");
    // Another log than that of this boot, and one of the known boot.
    for sent in [updated("loader 3"), known_log()] {
        let answer = sends(&site.gateway, &mut site.nodes[1], &new, &sent).await;
        assert_eq!(answer.status, 403, "{}", answer.code());
        assert!(answer.code().starts_with("event-log-mismatch"), "{}", answer.code());
    }
    // Whoever shows a token, or nothing.
    let token = site.gateway.token(&[]);
    assert_eq!(site.gateway.config("/config/worker", &[&bearer(&token)]).await.status, 403);
    // One that is revoked.
    let revoked = site.nodes[2].ek();
    site.gateway.command(&["node", "revoke", &revoked]);
    site.boots(2, &new).await.refused(403, "node-revoked");
    site.gateway.command(&["node", "restore", &revoked]);
    assert!(site.pending().is_empty());
    // One that is not in the pool's inventory.
    fs::write(
        site.gateway.path(&format!("pools/{POOL}/machines.txt")),
        format!("tpm:{}\n", site.nodes[0].ek()),
    )
    .unwrap();
    site.gateway
        .edit_pool(POOL, "\n[kubelet]\n", "\n[inventory]\ninstances = \"machines.txt\"\n\n[kubelet]\n");
    site.gateway.line(|line| line.contains("pool worker: serving a new state"));
    site.boots(1, &new).await.refused(403, "boot-not-accepted");
    assert!(site.pending().is_empty());
    assert!(site.gateway.acts("waiting.ask").is_empty());
    // The pool's own is asked about.
    site.boots(0, &new).await.refused(503, "answer-pending");
    assert_eq!(site.pending().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_after_the_waiting_limit_also_across_restarts() {
    let mut site = Site::start(SECTION).await;
    site.boots(1, &updated("loader 2")).await.refused(503, "answer-pending");
    let question = site.question();
    site.gateway.terminate();
    assert!(site.gateway.wait().success());
    {
        // Half an hour ago.
        let store = embedded(&site.gateway);
        let entries = store.list(EntryKind::Waiting).await.unwrap();
        let entry = entries.into_iter().find(|entry| entry.id.starts_with("machine:")).unwrap();
        let mut waiting: Value = serde_json::from_str(&entry.value).unwrap();
        waiting["since"] = (waiting["since"].as_u64().unwrap() - 1800).into();
        let value = waiting.to_string();
        store.put(EntryKind::Waiting, StoreEntry { id: entry.id, value }).await.unwrap();
    }
    site.gateway.run();
    site.boots(1, &updated("loader 2")).await.refused(403, "boot-not-accepted");
    let reason = site.alerts();
    assert!(
        reason.contains("the machine has waited since ") && reason.contains(&question),
        "{reason}"
    );
    let said = shown(&site.gateway, &question);
    assert!(said.iter().any(|line| line.contains(": refused; it waited from ")), "{said:#?}");
    // It counts still: the next one has the administrator asked.
    site.boots(2, &updated("loader 2")).await.refused(503, "answer-pending");
    site.gateway
        .line(|line| line.contains("pool worker: 2 machines wait for an answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_without_waiting_section_refuse_at_once() {
    let mut site = Site::start("").await;
    site.boots(1, &updated("loader 2")).await.refused(403, "boot-not-accepted");
    assert!(site.pending().is_empty());
    let pool = site.gateway.path(&format!("pools/{POOL}/pool.toml"));
    let text = fs::read_to_string(&pool).unwrap();
    let check = |edited: String, expect: &str| {
        fs::write(&pool, edited).unwrap();
        let said = site.command_output(&["check"], true);
        assert_eq!(said.contains("DEGRADED pool worker"), !expect.is_empty(), "{said}");
        assert!(said.contains(expect), "{expect} is not in {said}");
    };
    let with = |keys: &str| text.replace("\n[kubelet]\n", &format!("\n[waiting]\n{keys}\n\n[kubelet]\n"));
    check(with(""), "");
    check(with("wait_minutes = 60"), "");
    check(with("machines = 0"), "[waiting]: machines is 0; allowed are 1 to 1000");
    check(with("machines = 1001"), "[waiting]: machines is 1001");
    check(with("window_hours = 0"), "window_hours is 0; allowed are 1 to 720");
    check(with("window_hours = 721"), "window_hours is 721");
    check(with("wait_minutes = 0"), "wait_minutes is 0; it must be at least 1");
    check(with("wait_minutes = 61"), "attestation.hold_seconds, 3600");
    check(with("wait_minutes = 18446744073709551615"), "[waiting]");
    check(with("unknown = \"yes\""), "unknown variant `yes`");
    check(with("wait_hours = 1"), "unknown field `wait_hours`");
    let refusing = with("").replace("attested = \"full\"", "attested = \"refuse\"");
    check(refusing, "[waiting]: grants.attested is \"refuse\"");
}

fn evidence(gateway: &Gateway) -> Vec<Value> {
    let records = gateway.records().into_iter();
    records.filter(|record| record["decision"] == "evidence").collect()
}

/// Stops the gateway, and verifies that a replay of each decision has the same result.
pub fn audit(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.wait().success());
    let said = gateway.command(&["log", "audit"]);
    assert!(said.contains(" 0 different"), "{said}");
}
