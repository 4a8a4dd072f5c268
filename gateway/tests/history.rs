//! Comparison of a machine with its last trusted state: the report of changes, a pool's refusals, and the end of these refusals.

use std::collections::BTreeMap;
use std::fs;

use attest::HashAlg;
use serde_json::Value;

use crate::log_builder::{LogBuilder, SHA256};
use crate::support::soft_tpm::pcr_digest;
use crate::support::{Answer, Case, Gateway, POOL, next_boot, tpm};
use crate::waiting::{SECTION, pending, set_waiting};

const APPLICATION: u32 = 0x8000_0003;

/// Starts a gateway whose pool has these rules about machines' history, and which knows one machine.
fn start(history: &str) -> (Gateway, Case) {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "\n[kubelet]\n", &format!("\n{history}\n[kubelet]\n"));
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-7"]);
    gateway.run();
    (gateway, case)
}

/// Returns the machine's next boot, with this log.
pub fn booted(case: &Case, log: &LogBuilder) -> Case {
    next_boot(case).but(|next| {
        let values = log.pcrs(HashAlg::Sha256);
        next.pcrs = values.into_iter().filter(|(pcr, _)| next.pcrs.contains_key(pcr)).collect();
        let values: BTreeMap<u8, Vec<u8>> = next.pcrs.iter().map(|(pcr, value)| (*pcr, value.as_bytes().to_vec())).collect();
        next.quoted.pcr_digest = pcr_digest(&next.ak, &values);
        next.event_log = Some(log.build());
    })
}

/// Returns a `UEFI_IMAGE_LOAD_EVENT` of an image at this place in memory, with a path of one file.
fn image_event(at: u64, path: &str) -> Vec<u8> {
    let name: Vec<u8> = path.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let length = u16::try_from(4 + name.len()).unwrap().to_le_bytes();
    let node = [&[4, 4, length[0], length[1]][..], &name, &[0x7f, 0xff, 4, 0]].concat();
    let length = u64::try_from(node.len()).unwrap().to_le_bytes();
    [&at.to_le_bytes()[..], &[0; 16], &length, &node].concat()
}

/// Returns the log of a machine that has booted this image, under this path.
fn loaded(at: u64, path: &str) -> LogBuilder {
    LogBuilder::typical(&[SHA256]).measured(4, APPLICATION, b"a loader", &image_event(at, path))
}

fn last(gateway: &Gateway) -> Value {
    let mut records = gateway.records().into_iter();
    records.rfind(|record| record["decision"] == "evidence").unwrap()
}

fn alerts(record: &Value) -> Vec<&str> {
    record["alerts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|alert| alert.as_str().unwrap())
        .collect()
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

/// Verifies that a replay of each decision has the same result.
fn audit(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.command(&["log", "audit"]);
}

/// Deviation from the last trusted state: the rule, the code, a boot without it, and one with it.
pub struct Way {
    pub rule: &'static str,
    pub code: &'static str,
    pub good: fn(&Case) -> Case,
    pub bad: fn(&Case) -> Case,
    /// Text for the administrator, which the machine does not get.
    pub said: &'static str,
}

pub const WAYS: [Way; 3] = [
    Way {
        rule: "counters_back",
        code: "tpm-counters-decreased",
        good: |case| next_boot(case).but(|next| next.quoted.clock.reset_count = 1008),
        bad: |case| next_boot(case).but(|next| next.quoted.clock.reset_count = 1005),
        said: "resets 1008 to 1005",
    },
    Way {
        rule: "firmware_back",
        code: "tpm-firmware-downgraded",
        good: |case| next_boot(case).but(|next| next.quoted.firmware_version = 0xbee8),
        bad: |case| next_boot(case).but(|next| next.quoted.firmware_version = 0xbee5),
        said: "from 0x000000000000bee8 to 0x000000000000bee5",
    },
    Way {
        rule: "another_log",
        code: "tpm-event-log-changed",
        good: |case| booted(case, &loaded(0x7b0a_5018, "\\EFI\\one.efi")),
        bad: |case| booted(case, &loaded(7, "\\EFI\\other.efi")),
        said: "PCR 4 differs from that of ",
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_refuses_a_changed_tpm_until_forget_history() {
    for Way {
        rule,
        code,
        good,
        bad,
        said,
    } in WAYS
    {
        let (mut gateway, case) = start(&format!("[history]\n{rule} = \"refuse\"\n"));
        gateway.attest(good(&case), None).await.ticket();
        // Refused is refused: what it says of itself is not what it is compared with next.
        for _ in 0..3 {
            let answer = gateway.attest(bad(&case), None).await;
            answer.refused(403, code);
            let (told, record) = (answer.problem().detail.unwrap(), last(&gateway));
            assert!(!told.contains(said) && !told.contains("1008") && !told.contains("bee8"), "{told}");
            assert_eq!(
                (&record["code"], &record["decided_by"]),
                (&code.into(), &"store".into()),
                "{record}"
            );
            let reason = record["reason"].as_str().unwrap();
            let identity = record["identity"].as_str().unwrap();
            assert!(
                reason.contains(said) && reason.contains(&format!("node forget-history {identity}`")),
                "{reason}"
            );
            assert!(alerts(&record)[0].contains(said), "{record}");
            assert_eq!(record["name"], Value::Null, "nothing is taken");
        }
        gateway.attest(good(&case), None).await.ticket();
        gateway.attest(bad(&case), None).await.refused(403, code);
        assert!(!gateway.try_command(&["node", "forget-history", "worker-8"]).status.success());
        gateway.attest(bad(&case), None).await.refused(403, code);
        gateway.command(&["node", "forget-history", "worker-7"]);
        let acts = gateway.wait_for_acts(2, "node.forget-history");
        assert!(acts[0]["admin"]["refused"].as_str().unwrap().contains("worker-8"), "{acts:?}");
        let things = acts[1]["admin"]["things"].as_array().unwrap();
        assert!(
            things.iter().all(|thing| thing["kind"] == "clock") && !things.is_empty(),
            "{things:?}"
        );
        assert!(gateway.command(&["machines", "list"]).contains("worker-7"));
        gateway.attest(bad(&case), None).await.ticket();
        assert_eq!(alerts(&last(&gateway)), [""; 0]);
        // What it is now counts from here on; of the log that is the older one, too.
        gateway.attest(bad(&case), None).await.ticket();
        audit(&mut gateway);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_alerts_about_a_changed_tpm_by_default() {
    for rules in [
        "",
        "[history]\ncounters_back = \"alert\"\nfirmware_back = \"alert\"\nanother_log = \"alert\"\n",
    ] {
        let (mut gateway, case) = start(rules);
        for Way { good, bad, said, .. } in WAYS {
            gateway.attest(good(&case), None).await.ticket();
            gateway.attest(bad(&case), None).await.ticket();
            let record = last(&gateway);
            assert!(alerts(&record).iter().any(|alert| alert.contains(said)), "{record}");
            // That is what it is compared with next.
            gateway.attest(bad(&case), None).await.ticket();
            assert!(!alerts(&last(&gateway)).iter().any(|alert| alert.contains(said)));
            gateway.command(&["node", "forget-history", "worker-7"]);
        }
        audit(&mut gateway);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn event_log_alert_names_the_differing_boot() {
    let (mut gateway, case) = start("");
    gateway.attest(booted(&case, &loaded(1, "\\EFI\\one.efi")), None).await.ticket();
    let first = last(&gateway)["id"].as_str().unwrap().to_owned();
    // The same image at another address in memory.
    gateway.attest(booted(&case, &loaded(2, "\\EFI\\one.efi")), None).await.ticket();
    assert_eq!(alerts(&last(&gateway)), [""; 0]);
    gateway.attest(booted(&case, &loaded(2, "\\EFI\\other.efi")), None).await.ticket();
    let record = last(&gateway);
    assert!(alerts(&record)[0].contains(&first), "{record}");
    let second = record["id"].as_str().unwrap();
    let difference = gateway.command(&["log", "compare-boots", "--html", &first, second]);
    assert!(difference.contains("one.efi") && difference.contains("other.efi"), "{difference}");
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn boot_refusal_names_the_machines_last_trusted_boot() {
    let (mut gateway, case) = start("");
    let loader = |content: &[u8]| LogBuilder::typical(&[SHA256]).measured(4, APPLICATION, content, b"");
    let (first, second) = (loader(b"the first loader"), loader(b"the second loader"));
    let digest = |content: &[u8]| data_encoding::HEXLOWER.encode(HashAlg::Sha256.digest(&[content]).as_ref());
    // The pool checks images, of which it takes the first.
    gateway.attest(booted(&case, &first), None).await.ticket();
    let folder = gateway.path(&format!("pools/{POOL}/reference-values"));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("recorded.json").display().to_string();
    gateway.command(&["reference-values", "record", "worker-7", "--name", "first", "--to", &file]);
    gateway.edit_pool(POOL, "\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n");
    let section = "\n[reference_values]\nfolder = \"reference-values\"\n\n[kubelet]\n";
    gateway.edit_pool(POOL, "\n[kubelet]\n", section);
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.run();
    let refused = async |gateway: &Gateway, log: &LogBuilder, before: &str| {
        let answer = gateway.attest(booted(&case, log), None).await;
        answer.refused(403, "boot-not-accepted");
        let (told, record) = (text(&answer), last(gateway));
        let said = record["booted_before"].as_str().unwrap_or_default();
        assert!(said.starts_with(before), "{record}");
        assert!(!told.contains("this machine booted") && !told.contains("until"), "{told}");
        assert!(!record["reason"].as_str().unwrap().contains("this machine"), "{record}");
        let line = gateway.line(|line| line.contains("NOT TRUSTED") && line.contains(said));
        assert!(line.find(said) < line.find("; next: "), "{line}");
        let shown = gateway.command(&["log", "show", "--record", record["id"].as_str().unwrap()]);
        assert!(
            shown.lines().any(|line| line.contains(said) && line.contains("; next: ")),
            "{shown}"
        );
    };
    // Before a boot is trusted by that rule the PCR alone is known.
    let of_pcr = format!(
        "PCR 4 of this machine was {}… until ",
        &first.pcrs(HashAlg::Sha256)[&4].to_string()[..16]
    );
    refused(&gateway, &second, &of_pcr).await;
    gateway.attest(booted(&case, &first), None).await.ticket();
    let replaced = format!("this machine booted {}… until ", &digest(b"the first loader")[..16]);
    refused(&gateway, &second, &replaced).await;
    let more = first.clone().measured(4, APPLICATION, b"the second loader", b"");
    refused(&gateway, &more, "this machine booted without that until ").await;
    // Another machine's past is not this one's.
    let other = tpm();
    gateway.endorse(&other, &[]);
    gateway
        .attest(booted(&other, &second), None)
        .await
        .refused(403, "boot-not-accepted");
    assert_eq!(last(&gateway)["booted_before"], Value::Null);
    // What it booted lapses.
    gateway.command(&["reference-values", "lapse", &file, "first"]);
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.run();
    refused(&gateway, &first, "this machine booted that until ").await;
    audit(&mut gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_known_node_with_another_tpm() {
    let (gateway, case) = start("");
    gateway.attest(next_boot(&case), Some("worker-7")).await.ticket();
    let other = tpm();
    gateway.endorse(&other, &[]);
    let answer = gateway.attest(next_boot(&other), Some("worker-7")).await;
    answer.refused(403, "node-name-taken");
    let record = last(&gateway);
    let (owner, claimant) = (crate::support::digest(&case), crate::support::digest(&other));
    let [alert] = alerts(&record)[..] else { panic!("{record}") };
    assert!(
        alert.contains(&owner) && alert.contains(&claimant) && alert.contains("worker-7"),
        "{alert}"
    );
    assert!(!text(&answer).contains(&owner));
    // Whoever wants another name than its own is no other TPM of anybody's.
    gateway
        .attest(next_boot(&case), Some("worker-9"))
        .await
        .refused(403, "node-name-taken");
    assert_eq!(alerts(&last(&gateway)), [""; 0]);
}

/// Writes what worker-7 has booted into the pool's reference values, and stops the gateway.
pub(crate) fn record_first_boot(gateway: &mut Gateway) {
    let file = gateway.path(&format!("pools/{POOL}/reference-values/recorded.json"));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let file = file.display().to_string();
    gateway.command(&["reference-values", "record", "worker-7", "--name", "first", "--to", &file]);
    gateway.terminate();
    assert!(gateway.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_for_history_asks_for_no_approval() {
    let (mut gateway, case) = start("[history]\ncounters_back = \"refuse\"\n");
    let loader = |content: &[u8]| LogBuilder::typical(&[SHA256]).measured(4, APPLICATION, content, b"");
    let (first, second) = (loader(b"the first loader"), loader(b"the second loader"));
    let after = |log: &LogBuilder, resets: u32| booted(&case, log).but(|next| next.quoted.clock.reset_count = resets);
    gateway.attest(after(&first, 1008), None).await.ticket();
    record_first_boot(&mut gateway);
    gateway.edit_pool(POOL, "\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n");
    let sections = "\n[reference_values]\nfolder = \"reference-values\"\n\n[kubelet]\n";
    gateway.edit_pool(POOL, "\n[kubelet]\n", sections);
    set_waiting(&gateway, SECTION);
    gateway.run();
    gateway.attest(after(&second, 1005), None).await.refused(403, "boot-not-accepted");
    assert!(pending(&gateway).is_empty());
    gateway.attest(after(&second, 1009), None).await.refused(503, "answer-pending");
    assert_eq!(pending(&gateway).len(), 1);
}
