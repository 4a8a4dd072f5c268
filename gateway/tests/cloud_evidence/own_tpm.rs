//! Instances that attest with their own TPM, and clients that present their cloud's document without it.

use attest::Kind;

use super::machine::Machine;
use super::site::{self, AZURE_RULES, AZURE_VTPM_RULES, DOCUMENT, GCP, NITRO_TPM, TPM};
use crate::support::{bearer, digest};

const GCP_IDENTITY: &str = "gcp:example-project/152986662232938449";
const AZURE_IDENTITY: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
const AWS_IDENTITY: &str = "aws:123456789012/i-0123456789abcdef0";
const VTPM_ALONE: &str = "azure-vtpm:b1310a36-d400-46f6-82cb-6217df846586";

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_an_own_tpm_takes_over_document_only_claims() {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let gateway = site::start(
        r#"[["aws-identity-document", "aws-nitro-tpm"], ["aws-identity-document"], ["aws-nitro-tpm"]]"#,
        &[DOCUMENT, &unchecked],
    );
    let (document, both) = ([Kind::AwsIdentityDocument], [Kind::AwsIdentityDocument, Kind::AwsNitroTpm]);
    site::trusted(
        &gateway,
        &Machine::another().attest(&gateway, &document).await,
        AWS_IDENTITY,
        &document,
    );
    let record = site::trusted(&gateway, &Machine::new().attest(&gateway, &both).await, AWS_IDENTITY, &both);
    let alert = record["alerts"][0].as_str().unwrap();
    assert!(alert.contains(AWS_IDENTITY) && alert.contains("attests by its own TPM"), "{alert}");
    // Once the TPM has it, nobody gets it without: neither who came first.
    site::refused(&gateway, &Machine::another().attest(&gateway, &document).await, "instance-claimed");
    let record = site::trusted(&gateway, &Machine::new().attest(&gateway, &both).await, AWS_IDENTITY, &both);
    assert!(record.get("alerts").is_none());
    site::refused(&gateway, &Machine::another().attest(&gateway, &document).await, "instance-claimed");
    let shown = gateway.command(&["machines", "show", AWS_IDENTITY]);
    assert!(shown.contains(&format!("{AWS_IDENTITY} belongs to nitro-tpm since ")), "{shown}");

    let of_google = TPM.replace("allowlist", "gcp-instance");
    let gateway = site::start(r#"[["tpm", "gcp"], ["gcp"]]"#, &[&of_google, GCP]);
    let both = [Kind::Tpm, Kind::Gcp];
    site::trusted(
        &gateway,
        &Machine::another().attest(&gateway, &[Kind::Gcp]).await,
        GCP_IDENTITY,
        &[Kind::Gcp],
    );
    let machine = site::with_vtpm(Machine::new());
    let identity = format!("tpm:{}", digest(machine.tpm.as_ref().unwrap()));
    let record = site::trusted(&gateway, &machine.attest(&gateway, &both).await, &identity, &both);
    assert!(record["alerts"][0].as_str().unwrap().contains("attests by its own TPM"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_refuses_an_aws_document_after_a_nitrotpm_attestation() {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let gateway = site::start(
        r#"[["aws-identity-document", "aws-nitro-tpm"], ["aws-nitro-tpm"], ["aws-identity-document"]]"#,
        &[DOCUMENT, &unchecked],
    );
    let (_, instance) = AWS_IDENTITY.split_once('/').unwrap();
    let identity = format!("aws-nitrotpm:{instance}");
    let alone = [Kind::AwsNitroTpm];
    site::trusted(&gateway, &Machine::new().attest(&gateway, &alone).await, &identity, &alone);
    let document = [Kind::AwsIdentityDocument];
    let answer = Machine::another().attest(&gateway, &document).await;
    let record = site::refused(&gateway, &answer, "instance-claimed");
    assert!(record["basis"].get("evidence").is_some(), "it helps nobody who reads it");
    let both = [Kind::AwsIdentityDocument, Kind::AwsNitroTpm];
    site::trusted(&gateway, &Machine::new().attest(&gateway, &both).await, AWS_IDENTITY, &both);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_refuses_an_azure_document_after_a_vtpm_attestation() {
    let (document, alone, both) = ([Kind::Azure], [Kind::AzureVtpm], [Kind::Azure, Kind::AzureVtpm]);
    for (first, identity) in [(&alone[..], VTPM_ALONE), (&both[..], AZURE_IDENTITY)] {
        let gateway = site::start(
            r#"[["azure", "azure-vtpm"], ["azure-vtpm"], ["azure"]]"#,
            &[AZURE_RULES, AZURE_VTPM_RULES],
        );
        site::trusted(&gateway, &Machine::new().attest(&gateway, first).await, identity, first);
        let answer = Machine::another().attest(&gateway, &document).await;
        let record = site::refused(&gateway, &answer, "instance-claimed");
        assert!(record["basis"].get("evidence").is_some(), "it helps nobody who reads it");
        for (kinds, identity) in [(&alone[..], VTPM_ALONE), (&both[..], AZURE_IDENTITY)] {
            let record = site::trusted(&gateway, &Machine::new().attest(&gateway, kinds).await, identity, kinds);
            assert!(record.get("alerts").is_none(), "{record}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_azure_vtpm_takes_over_a_document_only_claim() {
    let gateway = site::start(r#"[["azure", "azure-vtpm"], ["azure"]]"#, &[AZURE_RULES, AZURE_VTPM_RULES]);
    let (document, both) = ([Kind::Azure], [Kind::Azure, Kind::AzureVtpm]);
    let answer = Machine::another().attest(&gateway, &document).await;
    site::trusted(&gateway, &answer, AZURE_IDENTITY, &document);
    let record = site::trusted(&gateway, &Machine::new().attest(&gateway, &both).await, AZURE_IDENTITY, &both);
    let alert = record["alerts"][0].as_str().unwrap();
    assert!(
        alert.contains(AZURE_IDENTITY) && alert.contains("attests by its own TPM"),
        "{alert}"
    );
    site::refused(&gateway, &Machine::another().attest(&gateway, &document).await, "instance-claimed");
    let shown = gateway.command(&["machines", "show", AZURE_IDENTITY]);
    assert!(shown.contains(&format!("{AZURE_IDENTITY} belongs to azure-vtpm since ")), "{shown}");
    // Released, it is the next one's.
    gateway.command(&["node", "release", AZURE_IDENTITY]);
    let answer = Machine::another().attest(&gateway, &document).await;
    site::trusted(&gateway, &answer, AZURE_IDENTITY, &document);
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_vtpm_and_azure_document_are_separate_identities() {
    let gateway = site::start(r#"[["azure-vtpm"], ["azure"]]"#, &[AZURE_RULES, AZURE_VTPM_RULES]);
    let (document, alone) = ([Kind::Azure], [Kind::AzureVtpm]);
    let answer = Machine::another().attest(&gateway, &document).await;
    site::trusted(&gateway, &answer, AZURE_IDENTITY, &document);
    let record = site::trusted(&gateway, &Machine::new().attest(&gateway, &alone).await, VTPM_ALONE, &alone);
    assert!(record.get("alerts").is_none(), "{record}");
    // From now on the machine is its vTPM's, also for who had it by the document.
    site::refused(&gateway, &Machine::another().attest(&gateway, &document).await, "instance-claimed");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_revoking_either_azure_identity_revokes_the_machine() {
    let (document, alone, both) = ([Kind::Azure], [Kind::AzureVtpm], [Kind::Azure, Kind::AzureVtpm]);
    for revoked in [AZURE_IDENTITY, VTPM_ALONE] {
        let gateway = site::start(
            r#"[["azure", "azure-vtpm"], ["azure-vtpm"], ["azure"]]"#,
            &[AZURE_RULES, AZURE_VTPM_RULES],
        );
        let ticket = bearer(&Machine::new().attest(&gateway, &alone).await.ticket());
        gateway.command(&["node", "revoke", revoked, "--anyway"]);
        for kinds in [&document[..], &alone, &both] {
            site::refused(&gateway, &Machine::new().attest(&gateway, kinds).await, "node-revoked");
        }
        gateway.config("/config/worker", &[&ticket]).await.refused(403, "node-revoked");
    }
}
