//! Pools that `attest-gateway manifests render` prints for each platform: by them, the real program accepts that platform's machines, and
//! no others.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use attest::protocol::Evidence;
use attest::{HashAlg, Kind};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use cloud_fixtures::aws::session::sts_host;
use cloud_fixtures::aws::{RoleSession, StsServer};
use cloud_fixtures::azure::vtpm::Vtpm;
use cloud_fixtures::clock;
use cloud_fixtures::google::vtpm;
use cloud_fixtures::kubernetes::KubernetesApi;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::machine::{Asked, Machine};
use super::machines::{self, AWS_PROVIDER_ID, GCP_PROVIDER_ID, put};
use super::site;
use crate::manifests::{object, objects};
use crate::support::{Case, Gateway, LIMIT, SoftKey, digest, program, soft_tpm};

const AWS: [&str; 8] = [
    "--account",
    "123456789012",
    "--region",
    "eu-central-1",
    "--role",
    "worker-role",
    "--with",
    "inventory",
];
const GCP: [&str; 4] = ["--project", "example-project=739419398126", "--with", "inventory"];
const AZURE: [&str; 2] = ["--subscription", "8a205152-b25a-417f-a676-80465535a6c9"];
const AZURE_IDENTITY: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
const AWS_KINDS: [Kind; 2] = [Kind::AwsIdentityDocument, Kind::AwsSts];
const GCP_KINDS: [Kind; 2] = [Kind::Tpm, Kind::Gcp];
const AZURE_KINDS: [Kind; 2] = [Kind::Azure, Kind::AzureVtpm];

/// Writes the pool that is printed for a platform, and the inventory of its ConfigMap. The pool's configs are those of its folder.
fn use_rendered(gateway: &Gateway, platform: &str, options: &[&str]) {
    let output = program()
        .args(["manifests", "render", "--only", "settings", "--host", "api-int.example.com"])
        .args(["--platform", platform])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let maps = objects(&String::from_utf8(output.stdout).unwrap());
    let pools = object(&maps, "ConfigMap", "attest-gateway-pools");
    let text = pools["data"]["worker.toml"].as_str().unwrap();
    let (rules, _) = text.split_once("# This host's own Machine Config Server").unwrap();
    site::write(
        gateway,
        "pools/worker/pool.toml",
        rules.replace("/etc/attest-gateway/settings/", "../../"),
    );
    let settings = object(&maps, "ConfigMap", "attest-gateway");
    if let Some(inventory) = settings["data"]["worker-instances.txt"].as_str() {
        site::write(gateway, "worker-instances.txt", inventory);
    }
}

/// Returns a gateway with the pool of a platform whose machines Machine objects name, not yet started.
fn with_machines(platform: &str, options: &[&str]) -> (Gateway, KubernetesApi) {
    let api = machines::api();
    let gateway = machines::init(&api, r#"[["gcp"]]"#, &[site::GCP]);
    use_rendered(&gateway, platform, options);
    (gateway, api)
}

/// Returns a TPM that is still booting: PCR 13 is zeros.
fn booting() -> Case {
    let pcrs: BTreeMap<u8, Vec<u8>> = (0..8).map(|pcr| (pcr, vec![pcr; 32])).chain([(13, vec![0; 32])]).collect();
    Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs)
}

/// Returns a machine with a vTPM that Google has certified for it, and one that Azure has.
fn machine() -> Machine {
    certified(Machine::new())
}

/// Gives a machine these vTPMs.
fn certified(machine: Machine) -> Machine {
    let key = KeyPair::generate().unwrap();
    let soft = SoftKey::P256(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der()).unwrap());
    machine.but(|machine| {
        machine.ek_certificate = Some(site::VTPM.issue(&vtpm::ek_params(&machine.google), &key));
        machine.tpm = Some(booting().but(|case| case.ek_area = soft_tpm::ek_area(&soft)));
        let mut vtpm = Vtpm::new(&machine.azure.vm_id);
        vtpm.pcrs.insert(13, vec![0; 32]);
        machine.vtpm = vtpm.into();
    })
}

/// Verifies that the pool asks a machine for nothing that can show only these kinds.
async fn asks_for_nothing(gateway: &Gateway, offers: &[&[Kind]]) {
    for offer in offers {
        let answer = gateway.post("/v1/attest/challenge", &machine().request(offer)).await;
        assert_eq!(answer.code(), "evidence-not-accepted", "{offer:?}");
    }
}

/// Attests. Returns `trusted` or the code of the refusal, of the challenge or of the evidence.
async fn outcome(gateway: &Gateway, machine: &Machine, kinds: &[Kind]) -> String {
    let mut answer = gateway.post("/v1/attest/challenge", &machine.request(kinds)).await;
    if answer.status == 200 {
        answer = machine.attest(gateway, kinds).await;
    }
    match answer.status.as_u16() {
        200 => "trusted".to_owned(),
        _ => answer.code(),
    }
}

/// Attests until this is the outcome: the gateway has received a change.
async fn comes_to(gateway: &Gateway, machine: impl Fn() -> Machine, kinds: &[Kind], expect: &str) {
    let begun = Instant::now();
    loop {
        let found = outcome(gateway, &machine(), kinds).await;
        if found == expect {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{found} in place of {expect}");
    }
}

/// Makes a Machine object of the installer's machine set in this zone.
fn of_the_installer(object: &mut Value) {
    object["metadata"]["ownerReferences"][0]["name"] = json!("mycluster-x7k2p-worker-eu-central-1a");
}

#[tokio::test(flavor = "multi_thread")]
async fn rendered_aws_pool_accepts_instances_of_the_clusters_machine_sets() {
    let (mut gateway, api) = with_machines("aws", &AWS);
    let session = Machine::new().session;
    let sts = StsServer::start("eu-central-1", vec![session.clone()]);
    let instance = || machine().but(|machine| machine.session = session.clone());
    site::write(&gateway, "outgoing-ca.pem", sts.ca_pem());
    let settings = fs::read_to_string(gateway.path("gateway.toml")).unwrap();
    let outgoing = format!(
        "[outgoing]\nca = \"outgoing-ca.pem\"\n[outgoing.connect]\n\"{}\" = \"{}\"\n",
        sts_host("eu-central-1"),
        sts.address()
    );
    site::write(&gateway, "gateway.toml", format!("{settings}\n{outgoing}"));
    gateway.run();
    let others: [&[Kind]; 5] = [
        &[Kind::Tpm],
        &GCP_KINDS,
        &AZURE_KINDS,
        &[Kind::AwsIdentityDocument, Kind::AwsNitroTpm],
        &[Kind::AwsSts],
    ];
    asks_for_nothing(&gateway, &others).await;
    // No object names it yet, then one of another machine set.
    comes_to(&gateway, instance, &AWS_KINDS, "machine-pending").await;
    put(&api, "worker-8", AWS_PROVIDER_ID, |_| {});
    comes_to(&gateway, instance, &AWS_KINDS, "instance-of-another-set").await;
    put(&api, "worker-8", AWS_PROVIDER_ID, of_the_installer);
    comes_to(&gateway, instance, &AWS_KINDS, "trusted").await;
    let of_others = machine().but(|machine| {
        machine.aws.account = "210987654321".to_owned();
        machine.session = RoleSession::for_instance(&machine.aws, clock::now());
        sts.add(machine.session.clone());
    });
    assert_eq!(outcome(&gateway, &of_others, &AWS_KINDS).await, "aws-account-not-accepted");
    let without_sts = |evidence: &mut Evidence, _: &Asked| evidence.aws_sts = None;
    let answer = instance().attest_altered(&gateway, &AWS_KINDS, without_sts).await;
    site::refused(&gateway, &answer, "evidence-incomplete");
}

#[tokio::test(flavor = "multi_thread")]
async fn rendered_gcp_pool_accepts_shielded_vms_of_the_clusters_machine_sets() {
    let (mut gateway, api) = with_machines("gcp", &GCP);
    gateway.run();
    asks_for_nothing(&gateway, &[&[Kind::Tpm], &[Kind::Gcp], &AWS_KINDS, &AZURE_KINDS]).await;
    // Each boot has the vTPM of the instance.
    let instance = machine();
    let boot = || {
        let mut boot = Machine::new();
        boot.ek_certificate.clone_from(&instance.ek_certificate);
        let ek_area = instance.tpm.as_ref().unwrap().ek_area.clone();
        boot.but(|machine| machine.tpm = Some(booting().but(|case| case.ek_area = ek_area)))
    };
    comes_to(&gateway, boot, &GCP_KINDS, "machine-pending").await;
    put(&api, "worker-7", GCP_PROVIDER_ID, of_the_installer);
    comes_to(&gateway, boot, &GCP_KINDS, "trusted").await;
    let of_others = certified(Machine::new().but(|machine| machine.google.project_number = 1));
    assert_eq!(outcome(&gateway, &of_others, &GCP_KINDS).await, "gcp-project-refused");
    // A TPM of the allowlist is no TPM of an instance.
    let own = booting();
    gateway.endorse(&own, &[]);
    let own = Machine::new().but(|machine| machine.tpm = Some(own));
    assert_ne!(outcome(&gateway, &own, &GCP_KINDS).await, "trusted");
}

#[tokio::test(flavor = "multi_thread")]
async fn rendered_azure_pool_lets_machines_wait_for_a_line_of_their_own() {
    let mut gateway = site::init(r#"[["gcp"]]"#, &[site::GCP]);
    use_rendered(&gateway, "azure", &AZURE);
    gateway.run();
    asks_for_nothing(
        &gateway,
        &[&[Kind::Tpm], &[Kind::Azure], &[Kind::AzureVtpm], &AWS_KINDS, &GCP_KINDS],
    )
    .await;
    assert_eq!(outcome(&gateway, &machine(), &AZURE_KINDS).await, "answer-pending");
    let of_others = machine().but(|machine| machine.azure.subscription_id = "11111111-2222-3333-4444-555555555555".to_owned());
    assert_eq!(outcome(&gateway, &of_others, &AZURE_KINDS).await, "azure-subscription-not-accepted");
    let file = gateway.path("worker-instances.txt");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}{AZURE_IDENTITY}\n")).unwrap();
    comes_to(&gateway, machine, &AZURE_KINDS, "trusted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rendered_vsphere_pool_accepts_tpms_of_the_allowlist() {
    let mut gateway = site::init(r#"[["gcp"]]"#, &[site::GCP]);
    use_rendered(&gateway, "vsphere", &[]);
    gateway.run();
    asks_for_nothing(&gateway, &[&[Kind::Gcp], &AWS_KINDS, &AZURE_KINDS]).await;
    let own = Machine::new().but(|machine| machine.tpm = Some(booting()));
    assert_eq!(outcome(&gateway, &own, &[Kind::Tpm]).await, "ek-not-endorsed");
    gateway.command(&["ek", "add", &digest(own.tpm.as_ref().unwrap())]);
    assert_eq!(outcome(&gateway, &own, &[Kind::Tpm]).await, "trusted");
}
