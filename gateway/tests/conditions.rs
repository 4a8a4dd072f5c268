//! A condition on the boot, by the real program: it has the same result in attestations, in replays of records, and in each command. Also
//! records of earlier releases, which have other words for the same refusals.

use std::collections::BTreeMap;
use std::fs;

use attest::protocol::HexDigest;
use attest::{HashAlg, SpkiSha256};
use serde_json::Value;

use crate::booted::{Parts, grub_machine, sha256, uki_machine};
use crate::log_builder::{EV_IPL, LogBuilder};
use crate::support::node::Node;
use crate::support::{Answer, Gateway, POOL};

/// Gateway whose pool has these PCRs quoted, and a machine that it knows.
struct Site {
    gateway: Gateway,
    node: Node,
    pcrs: &'static [u8],
}

impl Site {
    fn new(pcrs: &'static [u8]) -> Self {
        let (gateway, node) = (Gateway::init(), Node::new());
        gateway.command(&["ek", "add", &node.ek()]);
        let quoted: Vec<String> = pcrs.iter().map(|pcr| format!("{pcr} = \"not checked\"")).collect();
        gateway.edit_pool(POOL, "\"0-7\" = \"not checked\"", &quoted.join("\n"));
        Self { gateway, node, pcrs }
    }

    /// Boots the machine with one log, and sends another, or none. Returns the answer.
    async fn boots(&mut self, log: &LogBuilder, sends: Option<&LogBuilder>) -> Answer {
        let key = SpkiSha256::from_certificate(&self.gateway.certificate()).unwrap();
        let (client, url) = (self.gateway.client.clone(), self.gateway.url(""));
        let values = log.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| self.pcrs.contains(pcr));
        let values: BTreeMap<u8, HexDigest> = values.collect();
        self.node.quotes(&values);
        match sends {
            Some(sends) => self.node.has_booted(sends.build(), &values),
            None => self.node.sends_no_event_log(),
        }
        let challenged = Answer::send(self.node.challenge(&client, &url)).await;
        assert_eq!(challenged.status, 200, "{}", String::from_utf8_lossy(&challenged.body));
        let evidence = self.node.evidence(&challenged, &key);
        Answer::send(Node::send(&client, &url, &evidence)).await
    }

    async fn trusted(&mut self, log: &LogBuilder) -> Value {
        let answer = self.boots(log, Some(log)).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        self.last_evidence()
    }

    async fn refused(&mut self, log: &LogBuilder, sends: Option<&LogBuilder>, code: &str) -> Value {
        self.boots(log, sends).await.refused(403, code);
        self.last_evidence()
    }

    /// Changes the pool by replacing text.
    fn change(&mut self, from: &str, to: &str) {
        self.gateway.edit_pool(POOL, from, to);
        self.stop();
        self.gateway.run();
    }

    /// Accepts exactly what the machine has booted: writes it as a reference value and makes the pool require this check.
    fn accept(&mut self, check: &str) {
        let folder = self.gateway.path(&format!("pools/{POOL}/reference-values"));
        fs::create_dir_all(&folder).unwrap();
        let (node, file) = (format!("tpm:{}", self.node.ek()), folder.join("recorded.json"));
        let record = [
            "reference-values",
            "record",
            &node,
            "--name",
            "first",
            "--to",
            file.to_str().unwrap(),
        ];
        self.command_output(&record, true);
        let section = "\n[reference_values]\nfolder = \"reference-values\"\n\n[kubelet]\n";
        self.gateway.edit_pool(POOL, "\n[kubelet]\n", section);
        self.change("\n[tpm]\n", &format!("\n[tpm]\nboot = [\"{check}\"]\n"));
    }

    fn last_evidence(&self) -> Value {
        let mut records = self.gateway.records().into_iter();
        records.rfind(|record| record["decision"] == "evidence").unwrap()
    }

    fn command_output(&self, arguments: &[&str], succeeds: bool) -> String {
        let output = self.gateway.try_command(arguments);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.success(), succeeds, "{arguments:?}: {said}");
        said
    }

    fn stop(&mut self) {
        self.gateway.terminate();
        assert!(self.gateway.wait().success());
    }

    /// Returns the output of `audit` for the log, with some words replaced in each line.
    fn audited(&self, words: &[(&str, &str)], sound: bool) -> String {
        let lines = self.gateway.records().into_iter().map(|mut line| {
            line.as_object_mut().unwrap().remove("chain");
            let mut text = line.to_string();
            for (now, then) in words {
                let quoted = |words: &str| Value::from(words).to_string().trim_matches('"').to_owned();
                text = text.replace(&quoted(now), &quoted(then));
            }
            text
        });
        let file = self.gateway.path("altered.jsonl");
        fs::write(&file, lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
        self.command_output(&["log", "audit", "--unchained", "--log", file.to_str().unwrap()], sound)
    }
}

const OF_UKI: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 12];
const OF_GRUB: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14];

fn hex(content: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&sha256(content))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_condition_decides_alike_in_every_command() {
    let condition = format!(
        "claims.tpm.boot.secure_boot && claims.tpm.boot.uki_sections.all(s, s.section != 'linux' || s.digest == '{}')",
        hex(b"kernel")
    );
    let mut site = Site::new(OF_UKI);
    let section = format!("\n[attestation]\ncondition = \"{condition}\"\n\n[tpm]\n");
    site.gateway.edit_pool(POOL, "\n[tpm]\n", &section);
    site.gateway.run();
    let trusted = site.trusted(&uki_machine()).await;
    assert!(trusted["claims"]["tpm"].get("boot").is_none(), "{trusted}");
    let other = uki_machine().section(".linux", b"another kernel");
    let not_met = site.refused(&other, Some(&other), "condition-not-met").await;
    assert!(
        not_met["reason"].as_str().unwrap().contains("claims.tpm.boot.uki_sections"),
        "{not_met}"
    );
    let undecided = site.refused(&uki_machine(), None, "condition-undecided").await;
    let missing = "claims.tpm.boot is absent: no event log gives the quoted PCRs";
    assert!(undecided["reason"].as_str().unwrap().contains(missing), "{undecided}");
    // Of one PCR the log does not lead to, the parts that are read from it are missing.
    let booted = uki_machine().event(11, EV_IPL, b"systemd's own");
    let unexplained = site.refused(&booted, Some(&uki_machine()), "condition-undecided").await;
    let said = "claims.tpm.boot.uki_sections is absent: the log's events do not give the quoted PCR 11";
    assert!(unexplained["reason"].as_str().unwrap().contains(said), "{unexplained}");

    let id = |record: &Value| record["id"].as_str().unwrap().to_owned();
    for (record, succeeds, said) in [
        (&trusted, true, "yes"),
        (&not_met, false, "it is false"),
        (&undecided, false, missing),
    ] {
        let tested = site.command_output(&["policy", "test", POOL, "--record", &id(record)], succeeds);
        let row = tested.lines().find(|line| line.contains("condition: ")).unwrap();
        assert!(row.contains(said), "{tested}");
    }
    // By whose quote it was booted.
    let same = id(&trusted);
    let diff = |by: &str, succeeds: bool| site.command_output(&["log", "compare-boots", &same, &same, "--by", by], succeeds);
    diff("tpm", true);
    assert!(diff("azure-vtpm", false).contains("no event log that matches the quote"));
    assert!(diff("vtpm", false).contains("expected a kind of evidence, such as tpm or azure-vtpm"));
    assert!(
        site.command_output(&["policy", "explain", POOL], true)
            .contains("- claims.tpm.boot.secure_boot && ")
    );
    let simulated = site.command_output(&["policy", "simulate", POOL], true);
    assert!(
        simulated.contains("condition-undecided") && simulated.contains("1 refused"),
        "{simulated}"
    );
    site.stop();
    site.command_output(&["log", "audit"], true);
    // With another condition in the record it comes out otherwise.
    let audited = site.audited(&[(&hex(b"kernel"), &hex(b"another kernel"))], false);
    assert!(audited.contains("comes out as condition-not-met"), "{audited}");

    site.gateway
        .edit_pool(POOL, "claims.tpm.boot.secure_boot", "claims.tpm.boot.grub == []");
    let checked = site.command_output(&["check"], true);
    assert!(
        checked.contains("claims.tpm.boot.grub comes from PCR 8, which is not in pcrs of [tpm]"),
        "{checked}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn audits_records_with_shortened_long_texts() {
    let text = format!("linux /vmlinuz root=LABEL=root ro {}", "a".repeat(300));
    let shown = format!("(\"{}\"…\"{}\")", &text[..60], &text[text.len() - 180..]);
    let mut site = Site::new(OF_GRUB);
    site.gateway.run();
    let good = grub_machine(true);
    site.trusted(&good).await;
    site.accept("grub");
    let other = good.grub(&text);
    let record = site.refused(&other, Some(&other), "boot-not-accepted").await;
    assert!(record["reason"].as_str().unwrap().contains(&shown), "{record}");
    site.change("[grants]\n", "observe = true\n\n[grants]\n");
    let observed = site.trusted(&other).await;
    let reason = observed["would_refuse"][0]["reason"].as_str().unwrap();
    assert!(reason.contains(&shown), "{observed}");
    site.stop();
    site.command_output(&["log", "audit"], true);
    site.audited(&[], true);
    let other = site.audited(&[(&shown, &format!("(\"{}\")", &text[..120]))], false);
    assert!(other.contains("reason is ") && other.contains("would_refuse is "), "{other}");
}
