//! Azure's vTPM: alone, together with the attested document, and refused. A replay of each record gives the same result.

use attest::Kind;
use attest::protocol::Evidence;
use cloud_fixtures::azure::vtpm::{Vtpm, VtpmCas, ak_params, nv_contents};
use serde_json::json;

use super::machine::{Asked, Machine};
use super::site::{self, AZURE_RULES};
use crate::support::Gateway;

const VM_ID: &str = "b1310a36-d400-46f6-82cb-6217df846586";
const ALONE: &str = "azure-vtpm:b1310a36-d400-46f6-82cb-6217df846586";
const WITH_DOCUMENT: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
const OTHER_VM_ID: &str = "3c18c97a-0d2a-4565-969d-166cdcef26a3";
const PCRS: &str = "[azure_vtpm.pcrs]\n\"0-3\" = \"not checked\"\n4 = [\"0404040404040404040404040404040404040404040404040404040404040404\"]\n\"5-7\" = \"not checked\"\n";

const VTPM: [Kind; 1] = [Kind::AzureVtpm];
const BOTH: [Kind; 2] = [Kind::Azure, Kind::AzureVtpm];

fn rules(of: &str) -> String {
    format!("[azure_vtpm]\n{of}\n{PCRS}")
}

fn alone() -> Gateway {
    site::start(r#"[["azure-vtpm"]]"#, &[&rules(&format!("vm_ids = [\"{VM_ID}\"]"))])
}

fn both() -> Gateway {
    site::start(r#"[["azure", "azure-vtpm"]]"#, &[AZURE_RULES, &rules("")])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_vm_attests_by_its_vtpm_alone() {
    let gateway = alone();
    let answer = Machine::new().attest(&gateway, &VTPM).await;
    let record = site::trusted(&gateway, &answer, ALONE, &VTPM);
    site::gets_the_full_config(&gateway, &answer).await;
    let said = record["reason"].as_str().unwrap();
    assert!(
        said.contains("vTPM of Azure: AK certified as f859864a6a31, 8 PCRs accepted"),
        "{said}"
    );
    let mut altered = record.clone();
    altered["basis"]["cloud"]["azure_vtpm_roots"] = json!([]);
    assert_eq!(site::replay_code(&gateway, &altered), "evidence-not-configured");
    altered = record.clone();
    altered["basis"]["server_keys"] = json!(["ab".repeat(32)]);
    assert_eq!(site::replay_code(&gateway, &altered), "quote-extra-data");
    altered = record.clone();
    assert_eq!(record["basis"]["evidence"]["azure_vtpm"]["pcrs"], json!({}), "the claims have them");
    altered["claims"]["azure_vtpm"]["pcrs"]["0"] = json!("ab".repeat(32));
    assert_eq!(site::replay_code(&gateway, &altered), "quote-pcr-digest");
    altered["claims"]["azure_vtpm"]["pcrs"] = json!({});
    assert_eq!(site::replay_code(&gateway, &altered), "pcr-missing");
    // Its own vTPM stands for the machine: whoever comes with it is the machine.
    let answer = Machine::another().attest(&gateway, &VTPM).await;
    site::trusted(&gateway, &answer, ALONE, &VTPM);
}

#[tokio::test(flavor = "multi_thread")]
async fn attested_document_proves_the_subscription_of_the_vtpm() {
    let gateway = both();
    let answer = Machine::new().attest(&gateway, &BOTH).await;
    let record = site::trusted(&gateway, &answer, WITH_DOCUMENT, &BOTH);
    site::gets_the_full_config(&gateway, &answer).await;
    assert_eq!(
        record["claims"]["azure_vtpm"]["subscription_id"],
        "8a205152-b25a-417f-a676-80465535a6c9"
    );
    assert_eq!(record["claims"]["azure_vtpm"]["vm_id"], VM_ID);
}

/// Attests with evidence that is altered on its way.
async fn altered(gateway: &Gateway, kinds: &[Kind], alter: impl FnOnce(&mut Evidence, &Asked), code: &str) {
    let answer = Machine::new().attest_altered(gateway, kinds, alter).await;
    site::refused(gateway, &answer, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_refuses_evidence_of_another_vm() {
    let gateway = both();
    let machine = Machine::new();
    // The document of another machine, whose metadata server the thief can reach.
    let stolen = |evidence: &mut Evidence, asked: &Asked| {
        let other = Machine::new().but(|machine| machine.azure.vm_id = OTHER_VM_ID.to_owned());
        evidence.azure = other.evidence(asked).azure;
    };
    altered(&gateway, &BOTH, stolen, "identities-differ").await;
    altered(&gateway, &BOTH, |evidence, _| evidence.azure_vtpm = None, "evidence-incomplete").await;
    // A quote of another vTPM, of the same PCRs.
    let of_another = |evidence: &mut Evidence, asked: &Asked| {
        let quoted = evidence.azure_vtpm.as_mut().unwrap();
        quoted.signature.0 = Vtpm::new(VM_ID).sign(&machine.vtpm.quoted(&asked.binding(), &[0, 1, 2, 3, 4, 5, 6, 7]));
    };
    altered(&gateway, &BOTH, of_another, "quote-signature").await;
    let earlier = |evidence: &mut Evidence, asked: &Asked| {
        let before = asked.but(|asked| asked.nonce[0] ^= 1);
        evidence.azure_vtpm = Some(Machine::new().vtpm_evidence(&before, &[0, 1, 2, 3, 4, 5, 6, 7]));
    };
    altered(&gateway, &BOTH, earlier, "quote-extra-data").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_vtpm_evidence_outside_the_pools_rules() {
    let gateway = alone();
    // Another machine says to be this one.
    let thief = Machine::new().but(|machine| machine.vtpm = Vtpm::new(OTHER_VM_ID).into());
    let answer = thief.attest(&gateway, &VTPM).await;
    site::refused(&gateway, &answer, "azure-vtpm-vm-id");
    let of_others = Machine::new().but(|machine| {
        machine.vtpm = Vtpm::new(OTHER_VM_ID).into();
        machine.azure.vm_id = OTHER_VM_ID.to_owned();
    });
    let answer = of_others.attest(&gateway, &VTPM).await;
    site::refused(&gateway, &answer, "azure-vm-not-accepted");
    let booted_other = Machine::new().but(|machine| {
        let mut vtpm = Vtpm::new(VM_ID);
        vtpm.pcrs.insert(4, vec![5; 32]);
        machine.vtpm = vtpm.into();
    });
    let answer = booted_other.attest(&gateway, &VTPM).await;
    site::refused(&gateway, &answer, "pcr-mismatch");
}

/// Returns a vTPM that has been reset this number of times.
fn reset(times: u32) -> Machine {
    Machine::new().but(|machine| {
        let mut vtpm = Vtpm::new(VM_ID);
        vtpm.pcrs.insert(4, vec![4; 32]);
        vtpm.resets = times;
        machine.vtpm = vtpm.into();
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_decreasing_vtpm_counters_raise_an_alert() {
    let named = rules(&format!("vm_ids = [\"{VM_ID}\"]"));
    let mut gateway = site::init(r#"[["azure", "azure-vtpm"]]"#, &[AZURE_RULES, &rules("")]);
    site::pool(&gateway, "alone", r#"[["azure-vtpm"]]"#, &[&named]);
    site::configs(&gateway, "alone");
    gateway.run();
    for (resets, backwards) in [(2, false), (3, false), (3, false), (1, true), (2, false)] {
        let answer = reset(resets).attest(&gateway, &BOTH).await;
        let record = site::trusted(&gateway, &answer, WITH_DOCUMENT, &BOTH);
        let alerts = record.get("alerts").map(ToString::to_string).unwrap_or_default();
        let told = alerts.contains("the TPM's counters ran backwards: resets 3 to 1");
        assert_eq!(told, backwards, "{resets}: {alerts}");
    }
    // It is the same one where nothing says whose it is.
    let elsewhere = reset(0).but(|machine| machine.pool = "alone".to_owned());
    let answer = elsewhere.attest(&gateway, &VTPM).await;
    let record = site::trusted(&gateway, &answer, ALONE, &VTPM);
    assert!(record["alerts"].to_string().contains("resets 2 to 0"), "{record}");
    let shown = gateway.command(&["machines", "show", WITH_DOCUMENT]);
    assert!(shown.contains(&format!("instance   {WITH_DOCUMENT} belongs to ")), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_records_the_previous_vtpm_pcr_value() {
    let gateway = both();
    let booted_other = || {
        reset(2).but(|machine| {
            let mut vtpm = Vtpm::new(VM_ID);
            vtpm.pcrs.insert(4, vec![5; 32]);
            machine.vtpm = vtpm.into();
        })
    };
    let answer = booted_other().attest(&gateway, &BOTH).await;
    let record = site::refused(&gateway, &answer, "pcr-mismatch");
    assert!(record["booted_before"].is_null(), "it was never trusted");
    let answer = reset(2).attest(&gateway, &BOTH).await;
    site::trusted(&gateway, &answer, WITH_DOCUMENT, &BOTH);
    let answer = booted_other().attest(&gateway, &BOTH).await;
    let record = site::refused(&gateway, &answer, "pcr-mismatch");
    let before = record["booted_before"].as_str().unwrap();
    assert!(
        before.starts_with(&format!("PCR 4 of this machine was {}… until ", "04".repeat(8))),
        "{before}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_an_ak_not_certified_by_azure() {
    let gateway = alone();
    let machine = Machine::new();
    let forged = VtpmCas::regional().certify(&ak_params("f859864a6a31.TrustedVM.Azure.windows.net"), &machine.vtpm.ak.pair);
    let mut request = machine.request(&VTPM);
    request.attester.azure_vtpm.as_mut().unwrap().ak_certificate.0 = nv_contents(&forged);
    let asked = machine.ask_with(&gateway, &request).await;
    let answer = asked.show(&gateway, machine.evidence(&asked)).await;
    site::refused(&gateway, &answer, "azure-vtpm-not-endorsed");
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_at_start_without_azure_vtpm_roots() {
    let mut gateway = site::init(r#"[["azure-vtpm"]]"#, &[&rules("accept_any_subscription = true")]);
    std::fs::remove_dir_all(gateway.path("azure-vtpm-roots")).unwrap();
    gateway.run();
    gateway.line(|line| line.contains("accepts azure-vtpm, which cannot be verified: ") && line.contains(" holds no CA"));
    let answer = Machine::new().attest(&gateway, &VTPM).await;
    site::refused(&gateway, &answer, "evidence-not-configured");
}
