//! `policy propose` for boots of clouds' machines: strict rules for each section that can have some, and a note about each that cannot.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use attest::protocol::{Blob, Evidence};
use attest::{HashAlg, Kind};
use cloud_fixtures::azure::vtpm::Vtpm;

use super::machine::{Asked, Machine, nitro_evidence};
use super::site::{self, DOCUMENT, GCP, NITRO_TPM, TPM};
use crate::log_builder::{EV_SEPARATOR, LogBuilder, SHA256};
use crate::support::{Answer, Gateway, POOL};

const APPLICATION: u32 = 0x8000_0003;

fn command_output(gateway: &Gateway, arguments: &[&str], succeeds: bool) -> String {
    let output = gateway.try_command(arguments);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.success(), succeeds, "{arguments:?}: {said}");
    said
}

/// Returns the proposed policy in words, and the file of reference values, if there is one. Verifies that the proposal refuses none of the
/// recorded nodes.
fn proposed(gateway: &Gateway, out: &str) -> (String, Option<String>) {
    let folder = gateway.path(out);
    let words = command_output(gateway, &["policy", "propose", POOL, "--out", folder.to_str().unwrap()], true);
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let set = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    let set = set.map(|file| file.display().to_string()).next();
    let file = folder.join("pool.toml").display().to_string();
    let with = set.iter().flat_map(|set| ["--with", set]);
    let arguments: Vec<&str> = ["policy", "simulate", POOL, &file].into_iter().chain(with).collect();
    let simulated = command_output(gateway, &arguments, true);
    assert!(simulated.contains(" 0 refused (0 of them were trusted)"), "{simulated}");
    (words, set)
}

/// Makes the proposal the pool's policy.
fn adopt(gateway: &Gateway, out: &str, set: &str) {
    let folder = gateway.path(&format!("pools/{POOL}"));
    fs::create_dir_all(folder.join("reference-values")).unwrap();
    fs::copy(set, folder.join("reference-values/proposed.json")).unwrap();
    let is_served = |line: &str| line.contains("pool worker: serving a new state");
    let before = gateway.how_often(is_served);
    fs::copy(gateway.path(out).join("pool.toml"), folder.join("pool.toml")).unwrap();
    gateway.lines(before + 1, is_served);
}

/// Verifies that a row has all of these parts.
#[track_caller]
fn row(words: &str, parts: &[&str]) {
    let found = words.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no row has {parts:?}: {words}");
}

/// Machine in Azure with the same firmware and boot loader as the others.
struct InAzure {
    vm_id: String,
    machine: Machine,
}

impl InAzure {
    fn new(number: usize) -> Self {
        let vm_id = format!("b1310a36-d400-46f6-82cb-6217df84658{number}");
        let vtpm = Vtpm::new(&vm_id);
        let machine = Machine::another().but(|machine| {
            machine.azure.vm_id.clone_from(&vm_id);
            machine.vtpm = vtpm.into();
        });
        Self { vm_id, machine }
    }

    async fn boots(&mut self, gateway: &Gateway, loader: &[u8]) -> Answer {
        let mut log = LogBuilder::new(&[SHA256]);
        for pcr in 0..8 {
            if pcr == 6 {
                log = log.event(6, 12, format!("UUID: {}", self.vm_id.to_ascii_uppercase()).as_bytes());
            }
            log = log.event(pcr, EV_SEPARATOR, &[0; 4]);
        }
        let log = log.measured(4, APPLICATION, loader, b"");
        let pcrs = log.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr < 8);
        let pcrs: BTreeMap<u8, Vec<u8>> = pcrs.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
        Arc::get_mut(&mut self.machine.vtpm).unwrap().pcrs.extend(pcrs);
        let alter = |evidence: &mut Evidence, _: &Asked| evidence.azure_vtpm.as_mut().unwrap().event_log = Some(Blob(log.build()));
        self.machine.attest_altered(gateway, &[Kind::AzureVtpm], alter).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proposes_rules_for_azure_vtpm_events_and_pcrs() {
    let mut machines = [4, 5, 6, 7].map(InAzure::new);
    let ids: Vec<String> = machines.iter().map(|machine| format!("{:?}", machine.vm_id)).collect();
    let rules = format!(
        "[azure_vtpm]\nvm_ids = [{}]\n[azure_vtpm.pcrs]\n\"0-7\" = \"not checked\"\n",
        ids.join(", ")
    );
    let gateway = site::start(r#"[["azure-vtpm"]]"#, &[&rules]);
    for machine in &mut machines {
        machine.boots(&gateway, b"a loader").await.ticket();
    }
    let (words, set) = proposed(&gateway, "proposed");
    assert!(words.starts_with("From the boots of 4 machines.\n"), "{words}");
    row(&words, &["+boot = [\"images\""]);
    row(&words, &["+event_log = \"required\""]);
    row(&words, &["azure_vtpm: PCR 6", "4 different values on 4 machines"]);
    // Secure Boot is nothing that such a log speaks of.
    row(&words, &["azure_vtpm: boot: secure-boot", " 4 "]);
    row(&words, &["azure_vtpm: only_while_booting", "PCR 13 is not quoted"]);
    adopt(&gateway, "proposed", &set.unwrap());
    machines[1].boots(&gateway, b"a loader").await.ticket();
    machines[1]
        .boots(&gateway, b"another loader")
        .await
        .refused(403, "boot-not-accepted");
}

/// Returns an instance of AWS.
fn instance(number: usize) -> Machine {
    Machine::another().but(|machine| machine.aws.instance_id = format!("i-0123456789abcdef{number}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn proposes_whole_pcr_rules_for_nitro_tpms() {
    const KINDS: [Kind; 2] = [Kind::AwsIdentityDocument, Kind::AwsNitroTpm];
    let unchecked = NITRO_TPM.replace("\"0-6\" = \"not checked\"\n", "\"0-7\" = \"not checked\"\n");
    let unchecked: String = unchecked
        .lines()
        .filter(|line| !line.starts_with("7 ="))
        .map(|line| format!("{line}\n"))
        .collect();
    let gateway = site::start(r#"[["aws-identity-document", "aws-nitro-tpm"]]"#, &[DOCUMENT, &unchecked]);
    let boots = async |machine: &Machine, pcr: u8, value: u8| {
        let alter = |evidence: &mut Evidence, asked: &Asked| {
            let mut document = machine.nitro_document(asked);
            document.set_pcr(pcr, Some(vec![value; 48]));
            evidence.aws_nitro_tpm = Some(nitro_evidence(document.document()));
        };
        machine.attest_altered(&gateway, &KINDS, alter).await
    };
    let machines: Vec<Machine> = (0..4).map(instance).collect();
    for (number, machine) in machines.iter().enumerate() {
        // Of its own each has PCR 1.
        boots(machine, 1, 0x40 + u8::try_from(number).unwrap()).await.ticket();
    }
    let (words, set) = proposed(&gateway, "proposed");
    row(&words, &["+\"2-7\" = \"reference values\""]);
    row(&words, &["aws_nitro_tpm: PCR 0", "all zero: nothing was measured into it"]);
    row(&words, &["aws_nitro_tpm: PCR 1", "4 different values on 4 machines"]);
    row(&words, &["aws_nitro_tpm: boot, event_log", " 4 ", "such evidence has no event log"]);
    row(&words, &["aws_nitro_tpm: only_while_booting", "PCR 13"]);
    row(
        &words,
        &["aws_identity_document: whole section", " 4 ", "does not measure the boot"],
    );
    let set = set.unwrap();
    assert!(
        fs::read_to_string(&set)
            .unwrap()
            .contains(&format!("\"sha384\": \"{}\"", "04".repeat(48)))
    );
    adopt(&gateway, "proposed", &set);
    boots(&machines[2], 1, 0x77).await.ticket();
    boots(&machines[2], 4, 0x77).await.refused(403, "nitro-tpm-pcr-mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn proposes_tpm_rules_for_google_vtpms() {
    let of_google = TPM.replace("allowlist", "gcp-instance");
    let gateway = site::start(
        r#"[["tpm", "gcp"], ["azure-vtpm"], ["gcp"]]"#,
        &[&of_google, GCP, site::AZURE_VTPM_RULES],
    );
    // An instance that has no vTPM says nothing of what it has booted.
    let number = |number: u64| {
        move |machine: &mut Machine| {
            machine.google.instance_id += number;
            machine.google.instance_name = format!("worker-{number}");
        }
    };
    let without = Machine::another().but(number(1));
    without.attest(&gateway, &[Kind::Gcp]).await.ticket();
    let nothing = command_output(&gateway, &["policy", "propose", POOL], false);
    assert!(
        nothing.contains(&format!(
            "no trusted evidence of pool {POOL} in that time can be used: gcp does not measure the boot"
        )),
        "{nothing}"
    );
    let with = [2, 3, 4].map(|of| site::with_vtpm(Machine::another().but(number(of))));
    for machine in &with {
        machine.attest(&gateway, &[Kind::Tpm, Kind::Gcp]).await.ticket();
    }
    let (words, set) = proposed(&gateway, "proposed");
    assert!(words.starts_with("From the boots of 3 machines.\n"), "{words}");
    row(&words, &["+\"1-7\" = \"reference values\""]);
    row(&words, &["tpm: PCR 0", "all zero: nothing was measured into it"]);
    row(&words, &["not counted", " 1 ", "gcp does not measure the boot"]);
    row(
        &words,
        &[
            "gcp: whole section",
            " 4 ",
            "this evidence does not measure the boot: left unchanged",
        ],
    );
    row(
        &words,
        &["azure_vtpm: whole section", " 0 ", "no such evidence was trusted in that time"],
    );
    row(&words, &["tpm: event_log", " 3 ", "no event log was sent"]);
    adopt(&gateway, "proposed", &set.unwrap());
    with[0].attest(&gateway, &[Kind::Tpm, Kind::Gcp]).await.ticket();
}
