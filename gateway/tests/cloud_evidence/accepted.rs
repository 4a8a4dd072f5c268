//! Accepted evidence and its identity. A replay of the record alone gives the same result.

use attest::Kind;
use cloud_fixtures::aws::StsServer;
use serde_json::json;

use super::machine::Machine;
use super::site::{self, AZURE_RULES, DOCUMENT, GCP, NITRO_TPM, STS, TPM};
use crate::support::{Gateway, digest, tpm};

const AWS_IDENTITY: &str = "aws:123456789012/i-0123456789abcdef0";
const GCP_IDENTITY: &str = "gcp:example-project/152986662232938449";
const AZURE_IDENTITY: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";

/// Attests with these kinds, and verifies that the log's line names them and has this text for people.
async fn accepted(gateway: &Gateway, machine: &Machine, kinds: &[Kind], identity: &str, reason: &str) -> serde_json::Value {
    let answer = machine.attest(gateway, kinds).await;
    let record = site::trusted(gateway, &answer, identity, kinds);
    let said = record["reason"].as_str().unwrap();
    assert!(said.contains(reason), "{reason:?} is not in {said:?}");
    site::gets_the_full_config(gateway, &answer).await;
    record
}

/// Alters the recorded anchors, and verifies that a replay of the record is a refusal with this code.
fn without(gateway: &Gateway, record: &serde_json::Value, alter: impl FnOnce(&mut serde_json::Value), code: &str) {
    let mut altered = record.clone();
    alter(&mut altered["basis"]);
    assert_eq!(site::replay_code(gateway, &altered), code);
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_a_google_identity_token() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let record = accepted(
        &gateway,
        &Machine::new(),
        &[Kind::Gcp],
        GCP_IDENTITY,
        "identity token of Google: instance worker-7 in europe-west3-a",
    )
    .await;
    assert_eq!(record["shown"], "cloud");
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["google_keys"] = json!(null),
        "evidence-not-configured",
    );
    without(
        &gateway,
        &record,
        |basis| basis["server_keys"] = json!(["ab".repeat(32)]),
        "gcp-identity-audience",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_aws_documents_alone_and_combined() {
    const DOCUMENT_KIND: Kind = Kind::AwsIdentityDocument;
    let mut gateway = site::init(r#"[["aws-identity-document"]]"#, &[DOCUMENT]);
    let machine = Machine::new();
    let sts = StsServer::start("eu-central-1", vec![machine.session.clone()]);
    site::reach_sts(&gateway, &sts);
    let of = |name: &str, accepts: &str, rules: &[&str]| site::pool(&gateway, name, accepts, rules);
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    of("nitro", r#"[["aws-nitro-tpm"]]"#, &[&unchecked]);
    of("both", r#"[["aws-identity-document", "aws-nitro-tpm"]]"#, &[DOCUMENT, NITRO_TPM]);
    of("sts", r#"[["aws-sts"]]"#, &[STS]);
    of("live", r#"[["aws-identity-document", "aws-sts"]]"#, &[DOCUMENT, STS]);
    of("token", r#"[["aws-identity-document", "token"]]"#, &[DOCUMENT]);
    for name in ["nitro", "both", "sts", "live", "token"] {
        site::configs(&gateway, name);
    }
    gateway.run();
    let token = gateway.command(&["token", "create", "--pool", "token", "--name", "rack-7"]);
    let machine = machine.but(|machine| machine.token = token.trim().to_owned());
    let mut machine = Some(machine);
    let mut of = async |pool: &str, kinds: &[Kind], identity: &str, reason: &str| {
        let asking = machine.take().unwrap().but(|machine| machine.pool = pool.to_owned());
        let record = accepted(&gateway, &asking, kinds, identity, reason).await;
        machine = Some(asking);
        record
    };

    let record = of(
        "worker",
        &[DOCUMENT_KIND],
        AWS_IDENTITY,
        "identity document of AWS: image ami-0b76fe9a9986f66a7",
    )
    .await;
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["region_certificates"] = json!({}),
        "evidence-not-configured",
    );

    let record = of(
        "nitro",
        &[Kind::AwsNitroTpm],
        "aws-nitrotpm:i-0123456789abcdef0",
        "NitroTPM document of AWS: 24 PCRs",
    )
    .await;
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["nitro_roots"] = json!([]),
        "evidence-not-configured",
    );
    without(
        &gateway,
        &record,
        |basis| basis["server_keys"] = json!(["ab".repeat(32)]),
        "nitro-tpm-user-data",
    );
    // What belongs to its NitroTPM is not accepted without it.
    gateway.command(&["node", "release", "aws-nitrotpm:i-0123456789abcdef0"]);

    let record = of(
        "both",
        &[DOCUMENT_KIND, Kind::AwsNitroTpm],
        AWS_IDENTITY,
        "in eu-central-1; NitroTPM document of AWS",
    )
    .await;
    assert_eq!(record["claims"]["aws_nitro_tpm"]["account"], "123456789012");
    gateway.command(&["node", "release", AWS_IDENTITY]);

    let record = of("sts", &[Kind::AwsSts], AWS_IDENTITY, "AWS STS in eu-central-1: role worker-role").await;
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["sts_answer"]["status"] = json!(403),
        "sts-refused",
    );
    without(
        &gateway,
        &record,
        |basis| basis["server_keys"] = json!(["ab".repeat(32)]),
        "sts-server-id",
    );
    assert_eq!(sts.requests().len(), 1);

    of("live", &[DOCUMENT_KIND, Kind::AwsSts], AWS_IDENTITY, "AWS STS in eu-central-1").await;
    let record = of(
        "token",
        &[DOCUMENT_KIND, Kind::Token],
        AWS_IDENTITY,
        "provisioning token \"rack-7\"",
    )
    .await;
    without(
        &gateway,
        &record,
        |basis| drop(basis["cloud"].as_object_mut().unwrap().remove("token")),
        "evidence-incomplete",
    );
    // Nothing of this is worth anything to who reads the log.
    let (log, machine) = (
        std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap(),
        machine.unwrap(),
    );
    let secrets = [&machine.token, &machine.session.token, &machine.session.secret_access_key];
    for secret in secrets {
        assert!(!log.contains(secret.as_str()) && !gateway.output().contains(secret.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_an_azure_attested_document() {
    let gateway = site::start(r#"[["azure"]]"#, &[AZURE_RULES]);
    let record = accepted(
        &gateway,
        &Machine::new(),
        &[Kind::Azure],
        AZURE_IDENTITY,
        "attested document of Azure, signed in eastus",
    )
    .await;
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["azure_certificates"] = json!([]),
        "evidence-not-configured",
    );
    let root = record["basis"]["cloud"]["azure_certificates"][0].clone();
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["azure_certificates"] = json!([root]),
        "azure-document-issuer",
    );
    without(
        &gateway,
        &record,
        |basis| basis["server_keys"] = json!(["ab".repeat(32)]),
        "azure-document-nonce",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_a_tpm_with_an_identity_token() {
    let gateway = site::start(r#"[["tpm", "gcp"]]"#, &[TPM, GCP]);
    let case = tpm();
    let identity = format!("tpm:{}", gateway.endorse(&case, &[]));
    let machine = Machine::new().but(|machine| machine.tpm = Some(case));
    let record = accepted(
        &gateway,
        &machine,
        &[Kind::Tpm, Kind::Gcp],
        &identity,
        "EK endorsed by the allowlist",
    )
    .await;
    assert_eq!((&record["instance"], &record["shown"]), (&json!(GCP_IDENTITY), &json!("tpm")));
    without(&gateway, &record, |basis| basis["allowlisted"] = json!(false), "ek-not-endorsed");
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_a_vtpm_certified_by_google() {
    let of_google = TPM.replace("allowlist", "gcp-instance");
    let of_instance = "[gcp]\nprojects = [{ id = \"example-project\", number = 739419398126 }]\n";
    let mut gateway = site::init(r#"[["tpm"]]"#, &[&of_google, of_instance]);
    site::pool(&gateway, "both", r#"[["tpm", "gcp"]]"#, &[&of_google, GCP]);
    site::configs(&gateway, "both");
    gateway.run();
    let machine = site::with_vtpm(Machine::new());
    let identity = format!("tpm:{}", digest(machine.tpm.as_ref().unwrap()));
    let record = accepted(
        &gateway,
        &machine,
        &[Kind::Tpm],
        &identity,
        "endorsed by Google as the vTPM of gcp:",
    )
    .await;
    assert_eq!(record["instance"], GCP_IDENTITY);
    without(
        &gateway,
        &record,
        |basis| basis["cloud"]["vtpm_roots"] = json!([]),
        "gcp-vtpm-not-endorsed",
    );
    let machine = machine.but(|machine| machine.pool = "both".to_owned());
    accepted(&gateway, &machine, &[Kind::Tpm, Kind::Gcp], &identity, "identity token of Google").await;
}
