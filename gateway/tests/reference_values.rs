//! Reference values from the first recording to the last expiry, by the real program; and replays of records.

use std::fs;

use attest::{HashAlg, SpkiSha256};
use serde_json::Value;

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use crate::support::node::Node;
use crate::support::{Answer, Gateway, POOL};

/// Gateway, a machine that it knows, and the machine's event log.
struct Site {
    gateway: Gateway,
    node: Node,
    log: LogBuilder,
}

impl Site {
    fn new() -> Self {
        let (gateway, node) = (Gateway::init(), Node::new());
        gateway.command(&["ek", "add", &node.ek()]);
        Self {
            gateway,
            node,
            log: LogBuilder::typical(&[SHA256]),
        }
    }

    /// Makes the pool check images.
    fn check_images(&self) {
        self.gateway.edit_pool(POOL, "\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n");
        let section = "\n[reference_values]\nfolder = \"reference-values\"\n\n[kubelet]\n";
        self.gateway.edit_pool(POOL, "\n[kubelet]\n", section);
    }

    fn file(&self) -> String {
        let folder = self.gateway.path(&format!("pools/{POOL}/reference-values"));
        fs::create_dir_all(&folder).unwrap();
        folder.join("recorded.json").display().to_string()
    }

    fn command_output(&self, arguments: &[&str], succeeds: bool) -> String {
        let output = self.gateway.try_command(arguments);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.success(), succeeds, "{arguments:?}: {said}");
        said
    }

    /// Boots the machine with this log. Returns the answer.
    async fn boots(&mut self, log: &LogBuilder) -> Answer {
        let key = SpkiSha256::from_certificate(&self.gateway.certificate()).unwrap();
        let (client, url) = (self.gateway.client.clone(), self.gateway.url(""));
        self.node.has_booted(log.build(), &log.pcrs(HashAlg::Sha256));
        let challenged = Answer::send(self.node.challenge(&client, &url)).await;
        assert_eq!(challenged.status, 200, "{}", String::from_utf8_lossy(&challenged.body));
        let evidence = self.node.evidence(&challenged, &key);
        Answer::send(Node::send(&client, &url, &evidence)).await
    }

    fn restart(&mut self) {
        self.gateway.terminate();
        assert!(self.gateway.wait().success());
        self.gateway.run();
    }

    fn last_evidence(&self) -> Value {
        let mut records = self.gateway.records().into_iter();
        records.rfind(|record| record["decision"] == "evidence").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reference_values_are_recorded_accepted_expired_and_replayed() {
    let mut site = Site::new();
    let (log, file) = (site.log.clone(), site.file());
    site.gateway.run();
    assert_eq!(site.boots(&log).await.status, 200);
    let identity = format!("tpm:{}", site.node.ek());
    site.command_output(&["reference-values", "record", "nobody", "--name", "first", "--to", &file], false);
    // Who does it is whose process it is, whatever the environment says.
    let recorded = crate::support::auditor()
        .env_remove("SUDO_USER")
        .env("USER", "somebody")
        .env_remove("LOGNAME")
        .arg("--config")
        .arg(site.gateway.path("gateway.toml"))
        .args(["reference-values", "record", &identity, "--name", "first", "--to", &file])
        .output()
        .unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let user = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
    let set: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(set["generations"][0]["by"], String::from_utf8(user).unwrap().trim());
    site.check_images();
    site.restart();
    assert_eq!(site.boots(&log).await.status, 200);
    let accepted = site.last_evidence();
    let digests = &accepted["basis"]["policy"]["reference_sets"];
    let name = digests[0].as_str().unwrap().to_owned();
    assert!(site.gateway.path(&format!("state/evidence/{name}.gz")).exists(), "{digests}");

    // Something more is booted: the record says what, and what is accepted; the machine is told its own.
    let more = log.clone().event(4, EV_IPL, b"another loader");
    let refused = site.boots(&more).await;
    let told = String::from_utf8(refused.body.clone()).unwrap();
    assert_eq!(refused.status, 403);
    let record = site.last_evidence();
    assert_eq!(record["code"], "boot-not-accepted");
    let reason = record["reason"].as_str().unwrap();
    let number = more.events.len();
    assert!(
        reason.contains(&format!("event {number}, PCR 4, boot loader or kernel: sha256 ")),
        "{reason}"
    );
    assert!(
        reason.contains("\"first\"") && !told.contains("\"first\"") && !told.contains("since"),
        "{reason} {told}"
    );

    let copy = site.gateway.path("imported.json");
    site.command_output(&["reference-values", "import", &file, "--to", copy.to_str().unwrap()], true);
    assert!(fs::read_to_string(&copy).unwrap().contains("\"imported\""));
    let corim = site
        .gateway
        .try_command(&["reference-values", "export", &file, "--corim", "first"])
        .stdout;
    let from = site.gateway.path("first.corim");
    fs::write(&from, corim).unwrap();
    let copy = site.gateway.path("from-corim.json");
    site.command_output(
        &["reference-values", "import", from.to_str().unwrap(), "--to", copy.to_str().unwrap()],
        true,
    );

    // It lapses while the gateway serves.
    let at = record["at"].as_u64().unwrap();
    site.command_output(&["reference-values", "lapse", &file, "second"], false);
    site.command_output(&["reference-values", "lapse", &file, "first"], true);
    site.restart();
    assert_eq!(site.boots(&log).await.status, 403);
    let record = site.last_evidence();
    assert!(
        record["reason"].as_str().unwrap().contains("until it expired at") && record["at"].as_u64() >= Some(at),
        "{record}"
    );

    // By the rules as they are now, and as they were.
    let id = accepted["id"].as_str().unwrap();
    let now = site.command_output(&["policy", "test", POOL, "--record", id], false);
    assert!(now.contains("NO") && now.contains("until it expired at"), "{now}");
    assert_eq!(site.command_output(&["policy", "test", POOL, "--record", &id[..8]], false), now);
    for wrong in [&id[..7], "worker-0", "ffffffff"] {
        let said = site.command_output(&["policy", "test", POOL, "--record", wrong], false);
        assert!(said.contains("decision") && !said.contains("NO"), "{said}");
    }
    // Of all machines, before a file is the pool's: this one's last evidence was refused, and would be taken without the rule.
    let simulated = site.command_output(&["policy", "simulate", POOL], true);
    assert!(
        simulated.contains("boot-not-accepted") && simulated.contains("images: sha256 "),
        "{simulated}"
    );
    let ends = "1 machines: 0 would be accepted (0 of them were refused), 1 refused (0 of them were trusted)\n";
    assert!(simulated.contains(&site.node.ek()) && simulated.ends_with(ends), "{simulated}");
    let looser = site.gateway.path("looser.toml");
    let pool = fs::read_to_string(site.gateway.path(&format!("pools/{POOL}/pool.toml"))).unwrap();
    let section = "[reference_values]\nfolder = \"reference-values\"\n";
    fs::write(&looser, pool.replace("boot = [\"images\"]", "").replace(section, "")).unwrap();
    let simulated = site.command_output(&["policy", "simulate", POOL, looser.to_str().unwrap()], true);
    assert_eq!(
        simulated,
        "1 machines: 1 would be accepted (1 of them were refused), 0 refused (0 of them were trusted)\n"
    );
    let evidence = site.gateway.path("evidence.json");
    fs::write(&evidence, accepted.to_string()).unwrap();
    let by_file = ["policy", "test", POOL, "--evidence", evidence.to_str().unwrap()];
    assert_eq!(site.command_output(&by_file, false), now);
    let words = site.command_output(&["policy", "explain", POOL], true);
    assert!(
        words.contains("every boot loader, kernel and unified kernel image (PCR 4) is accepted"),
        "{words}"
    );
    let listed = site.command_output(&["reference-values", "list", &file], true);
    assert!(listed.contains("first") && listed.contains("lapsed"), "{listed}");
    assert_eq!(site.command_output(&["reference-values", "list", POOL], true), listed);
    let unknown = site.command_output(&["reference-values", "list", "nowhere"], false);
    assert!(unknown.contains("there is no pool \"nowhere\""), "{unknown}");
    assert!(
        site.command_output(&["reference-values", "show", &file, "first"], true)
            .contains("\"images\"")
    );
    assert!(!site.command_output(&["reference-values", "export", &file], true).contains("first"));
    let copy = site.gateway.path("copy.json");
    site.command_output(&["reference-values", "import", &file, "--to", copy.to_str().unwrap()], false);

    // Nothing of that changes what was decided.
    site.command_output(&["reference-values", "remove", &file, "first"], true);
    site.gateway.terminate();
    assert!(site.gateway.wait().success());
    site.command_output(&["log", "audit"], true);
    let blob = site.gateway.path(&format!("state/evidence/{name}.gz"));
    fs::remove_file(blob).unwrap();
    assert!(site.command_output(&["log", "audit"], false).contains(&name));
    let name = record["basis"]["policy"]["reference_sets"][0].as_str().unwrap();
    fs::remove_file(site.gateway.path(&format!("state/evidence/{name}.gz"))).unwrap();
    let simulated = site.command_output(&["policy", "simulate", POOL, looser.to_str().unwrap()], false);
    assert!(
        simulated.contains("cannot be verified again") && simulated.contains(name),
        "{simulated}"
    );
}

#[test]
fn pools_with_unusable_reference_values_are_not_served() {
    let site = Site::new();
    site.check_images();
    let file = site.file();
    let check = |content: Option<&str>, expect: &str| {
        drop(fs::remove_file(&file));
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let said = site.command_output(&["check"], true);
        assert!(
            said.contains("DEGRADED pool worker") && said.contains(expect),
            "{expect} is not in {said}"
        );
    };
    check(None, "no generation has a value for images (sha256)");
    check(Some("{}"), "recorded.json: [reference_values]: missing field `format`");
    let generations = |values: &str| {
        format!(
            "{{\"format\": \"attest-reference-values/1\", \"generations\": [{{\"name\": \"n\", \"added\": \"2026-05-03T10:00:00Z\", \"by\": \"root\", \"from\": \"by_hand\", \"values\": {values}}}]}}"
        )
    };
    let digest = "ab".repeat(32);
    check(Some(&generations("{}")), "generation \"n\" has no values");
    check(
        Some(&generations(&format!("{{\"dbx\": [\"{digest}\"]}}"))),
        "no generation has a value for images",
    );
    fs::write(
        &file,
        generations(&format!("{{\"images\": [{{\"digests\": {{\"sha256\": \"{digest}\"}}}}]}}")),
    )
    .unwrap();
    let said = site.command_output(&["check"], true);
    assert!(!said.contains("DEGRADED") && !said.contains("the last reference values"), "{said}");
    // The last one lapses: in a month, in a week, now; and one of two.
    let at = |days: i64| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        attest::reference_sets::Time {
            at: now.saturating_add_signed(days * 24 * 3600),
        }
    };
    let lapses = |days: i64| site.command_output(&["reference-values", "lapse", &file, "n", "--at", &at(days).to_string()], true);
    for (days, expect) in [
        (30, ""),
        (7, "warning  pool worker: the last reference values for images (sha256) expire at "),
        (0, "DEGRADED pool worker: the last reference values for images (sha256) expire at "),
    ] {
        lapses(days);
        let said = site.command_output(&["check"], true);
        assert_eq!(said.contains("the last reference values"), !expect.is_empty(), "{said}");
        assert!(said.contains(expect), "{expect} is not in {said}");
    }
    let another = generations(&format!("{{\"images\": [{{\"digests\": {{\"sha256\": \"{digest}\"}}}}]}}"));
    fs::write(file.replace("recorded", "another"), another).unwrap();
    assert!(!site.command_output(&["check"], true).contains("the last reference values"));
    fs::write(format!("{file}.txt"), "").unwrap();
    assert!(site.command_output(&["check"], true).contains("*.json is read here"));
}

/// An administrator begins with an observing pool that has rules and no values.
#[tokio::test(flavor = "multi_thread")]
async fn record_fails_if_a_rule_would_lack_values() {
    let mut site = Site::new();
    let (log, file) = (site.log.clone(), site.file());
    site.check_images();
    let refused = site.command_output(&["check"], true);
    assert!(
        refused.contains("no generation has a value for images") && refused.contains("observe = true"),
        "{refused}"
    );
    site.gateway.edit_pool(POOL, "[grants]\n", "observe = true\n\n[grants]\n");
    site.gateway
        .edit_pool(POOL, "boot = [\"images\"]", "boot = [\"images\", \"authorities\"]");
    let warned = site.command_output(&["check"], true);
    for rule in ["images", "authorities"] {
        assert!(
            warned.contains(&format!("no generation has a value for {rule} (sha256)")),
            "{warned}"
        );
    }
    site.gateway.run();
    assert_eq!(site.boots(&log).await.status, 200);
    let would_refuse = site.last_evidence()["would_refuse"].to_string();
    assert!(
        would_refuse.contains("boot-not-accepted") && would_refuse.contains("boot-not-proven"),
        "{would_refuse}"
    );

    // Its PCR 7 is rubbish: nothing is written by which the pool would refuse it.
    let identity = format!("tpm:{}", site.node.ek());
    let record = ["reference-values", "record", &identity, "--name", "first", "--to", &file];
    let said = site.command_output(&record, false);
    for words in [
        "left out: no values for \"authorities\": ",
        "--pcr-7-events lists it",
        "nothing was written",
        "--partial",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!fs::exists(&file).unwrap(), "{said}");
    let said = site.command_output(&[&record[..], &["--partial"]].concat(), true);
    assert!(said.contains("left out"), "{said}");
    assert!(
        site.command_output(&["check"], true)
            .contains("no generation has a value for authorities (sha256)")
    );
    // Without that rule the values are enough, and the pool may be strict.
    site.gateway
        .edit_pool(POOL, "boot = [\"images\", \"authorities\"]", "boot = [\"images\"]");
    fs::remove_file(&file).unwrap();
    site.command_output(&record, true);
    site.gateway.edit_pool(POOL, "observe = true\n", "");
    site.command_output(&["check"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_test_accepts_evidence_with_additional_pcrs() {
    let mut site = Site::new();
    let (fewer, more) = ("\"0-7\" = \"not checked\"", "\"0-9\" = \"not checked\"");
    site.gateway.edit_pool(POOL, fewer, more);
    site.gateway.run();
    let log = site.log.clone();
    let quoted = log.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr <= 9);
    site.node.quotes(&quoted.collect());
    assert_eq!(site.boots(&log).await.status, 200);
    let id = site.last_evidence()["id"].as_str().unwrap().to_owned();
    let test = ["policy", "test", POOL, "--record", &id];
    assert!(!site.command_output(&test, true).contains("ignoring quoted PCRs"));
    site.gateway.edit_pool(POOL, more, fewer);
    let said = site.command_output(&test, true);
    let further = format!("ignoring quoted PCRs that pool {POOL} does not ask for: tpm 8, tpm 9");
    assert!(said.contains(&further), "{said}");
    let simulated = site.command_output(&["policy", "simulate", POOL], true);
    assert!(simulated.starts_with("1 machines: 1 would be accepted"), "{simulated}");
    // What was not quoted is not there, whatever else was.
    site.gateway.edit_pool(POOL, fewer, "\"0-10\" = \"not checked\"");
    let said = site.command_output(&test, false);
    assert!(said.contains("NO") && !said.contains("ignoring quoted PCRs"), "{said}");
}
