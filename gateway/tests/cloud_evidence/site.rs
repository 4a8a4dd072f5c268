//! Gateway that trusts the tests' clouds, its pools, and assertions about its log.

use std::fs;
use std::sync::LazyLock;

use attest::protocol::{CONFIG_PREFIX, EvidenceResponse};
use attest::{Kind, reject};
use attest_audit::replay::{ReplayError, replay};
use attest_log::Blobs;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use cloud_fixtures::aws::StsServer;
use cloud_fixtures::aws::session::sts_host;
use cloud_fixtures::google::vtpm;
use rcgen::KeyPair;
use serde_json::Value;

use super::machine::{AZURE, AZURE_VTPM, GOOGLE, Machine, NITRO, REGION};
use crate::support::{Answer, Gateway, SoftKey, bearer, soft_tpm, tpm};

/// Google's CA of vTPMs.
pub static VTPM: LazyLock<vtpm::VtpmCa> = LazyLock::new(|| vtpm::VtpmCa::new(KeyPair::generate().unwrap()));

/// Rules of each kind, for the tests' machine.
pub const TPM: &str = "[tpm]\nendorsement = \"allowlist\"\n[tpm.pcrs]\n\"0-7\" = \"not checked\"\n";
pub const GCP: &str = r#"
[gcp]
projects = [{ id = "example-project", number = 739419398126 }]
regions = ["europe-west3"]
instance_names = ["worker-*"]
service_accounts = ["739419398126-compute@developer.gserviceaccount.com"]
licenses = ["5926592092274602096"]
max_instance_age_seconds = 3600
"#;
pub const DOCUMENT: &str = r#"
[aws_identity_document]
accept_replayable = true
accounts = ["123456789012"]
regions = ["eu-central-1"]
availability_zones = ["eu-central-1a"]
image_ids = ["ami-0b76fe9a9986f66a7"]
instance_types = ["m7i.large"]
max_age_seconds = 3600
"#;
pub const NITRO_TPM: &str = r#"
[aws_nitro_tpm]
accounts = ["123456789012"]
regions = ["eu-central-1"]
age_limit_seconds = 300
[aws_nitro_tpm.pcrs]
"0-6" = "not checked"
7 = ["070707070707070707070707070707070707070707070707070707070707070707070707070707070707070707070707"]
"#;
pub const STS: &str = r#"
[aws_sts]
accounts = ["123456789012"]
roles = ["worker-role"]
regions = ["eu-central-1"]
"#;
pub const AZURE_RULES: &str = r#"
[azure]
subscriptions = ["8a205152-b25a-417f-a676-80465535a6c9"]
vm_ids = ["b1310a36-d400-46f6-82cb-6217df846586"]
skus = ["20_04-lts-gen2"]
locations = ["eastus"]
max_age_seconds = 600
"#;
pub const AZURE_VTPM_RULES: &str = r#"
[azure_vtpm]
vm_ids = ["b1310a36-d400-46f6-82cb-6217df846586"]
[azure_vtpm.pcrs]
"0-7" = "not checked"
"#;

/// Settings with Google's keys in a file, so that no request is made.
pub const KEYS_OF_FILE: &str = "[gcp]\njwks = \"google-jwks.json\"\n";

/// Creates a gateway whose pool accepts these combinations by these rules, not yet started.
pub fn init(accepts: &str, rules: &[&str]) -> Gateway {
    let gateway = Gateway::init();
    gateway.settings(KEYS_OF_FILE);
    for (path, content) in [
        ("google-jwks.json", GOOGLE.jwks().to_string()),
        ("aws-region-certificates/eu-central-1.pem", REGION.certificate_pem()),
        ("aws-nitro-roots/root.pem", NITRO.root_pem()),
        ("azure-roots/root.pem", AZURE.root_pem()),
        ("azure-intermediates/intermediate.pem", AZURE.intermediate_pem()),
        ("azure-vtpm-roots/root.pem", cloud_fixtures::pem(&AZURE_VTPM.root())),
        (
            "azure-vtpm-roots/intermediate.pem",
            cloud_fixtures::pem(&AZURE_VTPM.intermediates()[0]),
        ),
        ("gcp-vtpm-roots/root.pem", cloud_fixtures::pem(&VTPM.certificate())),
    ] {
        write(&gateway, path, content);
    }
    pool(&gateway, "worker", accepts, rules);
    gateway
}

/// Starts a gateway made by [`init`].
pub fn start(accepts: &str, rules: &[&str]) -> Gateway {
    let mut gateway = init(accepts, rules);
    gateway.run();
    gateway
}

/// Writes a file into the gateway's folder, and the folders that it needs.
pub fn write(gateway: &Gateway, path: &str, content: impl AsRef<[u8]>) {
    let path = gateway.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Makes a pool accept these combinations by these rules.
pub fn pool(gateway: &Gateway, name: &str, accepts: &str, rules: &[&str]) {
    let text = format!("[grants]\n[attestation]\naccepts = {accepts}\n{}", rules.concat());
    write(gateway, &format!("pools/{name}/pool.toml"), text);
}

/// Gives a pool the configs that `init` makes.
pub fn configs(gateway: &Gateway, name: &str) {
    for set in ["full", "pre-approved"] {
        let folder = gateway.path(&format!("pools/worker/{set}"));
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let path = format!("pools/{name}/{set}/{}", entry.file_name().to_str().unwrap());
            write(gateway, &path, fs::read(entry.path()).unwrap());
        }
    }
}

/// Connects the region's STS at this address.
pub fn reach_sts(gateway: &Gateway, sts: &StsServer) {
    write(gateway, "outgoing-ca.pem", sts.ca_pem());
    let host = sts_host("eu-central-1");
    let outgoing = format!(
        "[outgoing]\nca = \"outgoing-ca.pem\"\n[outgoing.connect]\n\"{host}\" = \"{}\"\n",
        sts.address()
    );
    gateway.settings(&format!("{KEYS_OF_FILE}{outgoing}"));
}

/// Gives a machine a vTPM with Google's certificate of the instance that it is.
pub fn with_vtpm(machine: Machine) -> Machine {
    let key = KeyPair::generate().unwrap();
    let soft = SoftKey::P256(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der()).unwrap());
    let certificate = VTPM.issue(&vtpm::ek_params(&machine.google), &key);
    machine.but(|machine| {
        machine.tpm = Some(tpm().but(|case| case.ek_area = soft_tpm::ek_area(&soft)));
        machine.ek_certificate = Some(certificate);
    })
}

/// Returns the last record of the attestation log, as text.
fn last_line(gateway: &Gateway) -> String {
    gateway.record_lines().pop().unwrap()
}

/// Returns the last record.
pub fn record(gateway: &Gateway) -> Value {
    serde_json::from_str(&last_line(gateway)).unwrap()
}

fn blobs(gateway: &Gateway) -> Blobs {
    Blobs::open(&gateway.path("state/evidence")).unwrap()
}

/// Replays a record. Returns the code of the refusal, or `accepted`.
pub fn replay_code(gateway: &Gateway, record: &Value) -> String {
    match replay(&record.to_string(), &blobs(gateway)) {
        Ok(_) => "accepted".to_owned(),
        Err(ReplayError::Reject(reject)) => reject.code().to_owned(),
        Err(other) => format!("{other:?}"),
    }
}

/// Verifies that the answer has a ticket for the full config, and that the record has this identity and a replay with the same result.
/// Returns the record.
#[track_caller]
pub fn trusted(gateway: &Gateway, answer: &Answer, identity: &str, kinds: &[Kind]) -> Value {
    drop(answer.ticket());
    let line = last_line(gateway);
    let record: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&record["decision"], &record["verdict"]), (&"evidence".into(), &"trusted".into()));
    assert_eq!((&record["identity"], &record["grant"]), (&identity.into(), &"full".into()));
    let shown: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(record["kinds"], serde_json::json!(shown));
    let result = replay(&line, &blobs(gateway)).unwrap();
    assert_eq!(serde_json::to_value(result.claims()).unwrap(), record["claims"]);
    gateway.line(|line| line.contains("TRUSTED") && !line.contains("NOT TRUSTED") && line.contains(identity));
    record
}

/// Verifies that the answer's ticket gets the full config.
pub async fn gets_the_full_config(gateway: &Gateway, answer: &Answer) {
    let response: EvidenceResponse = serde_json::from_slice(&answer.body).unwrap();
    let pool = response.url.strip_prefix(CONFIG_PREFIX).unwrap();
    let full = gateway.rendered(pool, "full");
    let answer = gateway.config(&response.url, &[&bearer(&response.ticket)]).await;
    answer.is_config(&full);
}

/// Verifies that the answer is a refusal with this code, and that the record has it and a replay with the same result. Returns the record.
#[track_caller]
pub fn refused(gateway: &Gateway, answer: &Answer, code: &str) -> Value {
    let status = match code {
        "evidence-incomplete" | "malformed-request" => 400,
        _ => 403,
    };
    answer.refused(status, code);
    let record = record(gateway);
    // Which accounts, images and roles are the cluster's is for the administrator to know: the record has it.
    let (told, reason) = (answer.problem().detail.unwrap_or_default(), record["reason"].as_str().unwrap());
    if let Some((fact, _)) = reason.split_once("; the pool accepts ") {
        assert_eq!(told, fact, "{code}");
    }
    assert_eq!((&record["verdict"], &record["code"]), (&"refused".into(), &code.into()));
    // Of what proved nothing, or would help a reader, there are digests.
    if record["basis"].get("digests").is_some() {
        assert_eq!((record["basis"].get("evidence"), record["basis"].get("challenge")), (None, None));
        return record;
    }
    // What the store said is no part of the record.
    if record["decision"] == "evidence" && reject::advices().any(|advice| advice.code == code) {
        assert_eq!(replay_code(gateway, &record), code);
    }
    record
}

/// Flips a bit of a Base64 message in one of 24 places that are spread over it.
pub fn flipped(base64: &str, part: usize) -> String {
    let joined: String = base64.split_ascii_whitespace().collect();
    let mut bytes = data_encoding::BASE64.decode(joined.as_bytes()).unwrap();
    let position = bytes.len() * part / 24;
    bytes[position] ^= 1 << (part % 8);
    data_encoding::BASE64.encode(&bytes)
}
