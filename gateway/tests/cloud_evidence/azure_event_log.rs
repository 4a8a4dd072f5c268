//! Event log of an Azure machine: in its TPM's evidence or, without that, in its vTPM's; and the record of it.

use std::collections::BTreeMap;

use attest::protocol::{Blob, Evidence};
use attest::{HashAlg, Kind};
use attest_log::Blobs;
use cloud_fixtures::azure::vtpm::Vtpm;
use serde_json::{Value, json};

use super::machine::{Asked, Machine};
use super::site::{self, TPM};
use crate::log_builder::{EV_SEPARATOR, LogBuilder, SHA256};
use crate::support::log_schema::LOG;
use crate::support::{Case, Gateway, SoftKey, digest};

pub const VM_ID: &str = "b1310a36-d400-46f6-82cb-6217df846586";
pub const VTPM: [Kind; 1] = [Kind::AzureVtpm];
const BOTH: [Kind; 2] = [Kind::Tpm, Kind::AzureVtpm];
pub const REQUIRED: &str = "[azure_vtpm]\nvm_ids = [\"b1310a36-d400-46f6-82cb-6217df846586\"]\nevent_log = \"required\"\n[azure_vtpm.pcrs]\n\"0-7\" = \"not checked\"\n";
const ALTERED: [&str; 2] = ["event_log_sha256", "azure_vtpm_event_log_sha256"];

/// Returns the log of firmware that measures additional events after the vmId, so that the log is needed to find the vmId.
pub fn log(later: &str) -> LogBuilder {
    let mut log = LogBuilder::new(&[SHA256]);
    for pcr in 0..8 {
        if pcr == 6 {
            log = log.event(6, 12, format!("UUID: {}", VM_ID.to_ascii_uppercase()).as_bytes());
            log = log.event(6, 12, later.as_bytes());
        }
        log = log.event(pcr, EV_SEPARATOR, &[0; 4]);
    }
    log
}

/// Returns a machine whose firmware has written this log.
pub fn machine() -> Machine {
    let pcrs = log("more").pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr < 8);
    let pcrs: BTreeMap<u8, Vec<u8>> = pcrs.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
    let mut vtpm = Vtpm::new(VM_ID);
    vtpm.pcrs.extend(pcrs.clone());
    let tpm = Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs).but(|case| case.event_log = Some(log("more").build()));
    Machine::new().but(|machine| {
        machine.vtpm = vtpm.into();
        machine.tpm = Some(tpm);
    })
}

/// Starts a gateway with a pool that requires both together, and this machine's TPM.
fn both(machine: &Machine) -> Gateway {
    let gateway = site::start(
        r#"[["tpm", "azure-vtpm"]]"#,
        &[&TPM.replace("[tpm]", "[tpm]\nevent_log = \"required\""), REQUIRED],
    );
    gateway.command(&["ek", "add", &digest(machine.tpm.as_ref().unwrap())]);
    gateway
}

fn alone() -> Gateway {
    site::start(r#"[["azure-vtpm"]]"#, &[REQUIRED])
}

pub fn with_log(evidence: &mut Evidence, log: Option<Vec<u8>>) {
    evidence.azure_vtpm.as_mut().unwrap().event_log = log.map(Blob);
}

/// Verifies that the record matches the schema, contains no log, and has these logs' names.
fn check(record: &Value, logs: [Option<&[u8]>; 2]) {
    LOG.check(record).unwrap_or_else(|error| panic!("{error}\n{record}"));
    for kind in ["tpm", "azure_vtpm"] {
        assert_eq!(record["basis"]["evidence"][kind].get("event_log"), None);
    }
    for (field, log) in ALTERED.iter().zip(logs) {
        assert_eq!(record["basis"][field], json!(log.map(Blobs::name)), "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_a_vtpms_event_log_with_the_record() {
    let (gateway, machine, log) = (alone(), machine(), log("more").build());
    let alter = |evidence: &mut Evidence, _: &Asked| with_log(evidence, Some(log.clone()));
    let answer = machine.attest_altered(&gateway, &VTPM, alter).await;
    let mut record = site::trusted(&gateway, &answer, &format!("azure-vtpm:{VM_ID}"), &VTPM);
    check(&record, [Some(&log), None]);
    assert_eq!(record["claims"]["azure_vtpm"]["event_log"]["events"], 10);
    record["basis"].as_object_mut().unwrap().remove("event_log_sha256");
    assert_eq!(site::replay_code(&gateway, &record), "azure-vtpm-vm-id");
    let answer = machine.attest(&gateway, &VTPM).await;
    site::refused(&gateway, &answer, "azure-vtpm-vm-id");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_log_serves_tpm_and_vtpm() {
    let (machine, log) = (machine(), log("more").build());
    let gateway = both(&machine);
    let identity = format!("tpm:{}", digest(machine.tpm.as_ref().unwrap()));
    let answer = machine.attest(&gateway, &BOTH).await;
    let mut record = site::trusted(&gateway, &answer, &identity, &BOTH);
    check(&record, [Some(&log), None]);
    for kind in ["tpm", "azure_vtpm"] {
        assert_eq!(record["claims"][kind]["event_log"]["events"], 10, "{kind}");
    }
    record["basis"].as_object_mut().unwrap().remove("event_log_sha256");
    assert_eq!(site::replay_code(&gateway, &record), "azure-vtpm-vm-id");
    // Without one, and with another machine's.
    for other in [None, Some(self::log("something else").build())] {
        let alter = |evidence: &mut Evidence, _: &Asked| evidence.tpm.as_mut().unwrap().event_log = other.map(Blob);
        let answer = machine.attest_altered(&gateway, &BOTH, alter).await;
        site::refused(&gateway, &answer, "azure-vtpm-vm-id");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_separate_event_logs_of_tpm_and_vtpm() {
    let (machine, log) = (machine(), log("more").build());
    let gateway = both(&machine);
    let identity = format!("tpm:{}", digest(machine.tpm.as_ref().unwrap()));
    let alter = |evidence: &mut Evidence, _: &Asked| with_log(evidence, Some(log.clone()));
    let answer = machine.attest_altered(&gateway, &BOTH, alter).await;
    let record = site::trusted(&gateway, &answer, &identity, &BOTH);
    check(&record, [Some(&log), Some(&log)]);
    // Each is judged by itself.
    let other = self::log("something else").build();
    let alter = |evidence: &mut Evidence, _: &Asked| with_log(evidence, Some(other.clone()));
    let answer = machine.attest_altered(&gateway, &BOTH, alter).await;
    site::refused(&gateway, &answer, "azure-vtpm-vm-id");
    // The vTPM's alone is not the TPM's: whoever has a TPM shows the log with it.
    let alter = |evidence: &mut Evidence, _: &Asked| {
        evidence.tpm.as_mut().unwrap().event_log = None;
        with_log(evidence, Some(log.clone()));
    };
    let answer = machine.attest_altered(&gateway, &BOTH, alter).await;
    let record = site::refused(&gateway, &answer, "event-log-missing");
    check(&record, [None, Some(&log)]);
}
