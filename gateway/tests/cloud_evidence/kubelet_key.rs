//! Key of the node's kubelet, as each kind of evidence signs it: the record has it, and no other key is accepted.

use attest::nonce::PURPOSE_CONFIG;
use attest::{Kind, SpkiSha256, purpose};
use cloud_fixtures::aws::StsServer;

use super::machine::Machine;
use super::site::{self, AZURE_RULES, AZURE_VTPM_RULES, DOCUMENT, GCP, NITRO_TPM, STS, TPM};
use crate::support::{Gateway, tpm};

const KEY: SpkiSha256 = SpkiSha256([0x4b; 32]);

/// Attests for a pool with this key in the request, and evidence for this purpose.
async fn shows(gateway: &Gateway, machine: &Machine, kind: Kind, purpose: &str) -> crate::support::Answer {
    let mut request = machine.request(&[kind]);
    request.kubelet_key_sha256 = Some(KEY.into());
    let asked = machine.ask_with(gateway, &request).await;
    assert_eq!(asked.purpose, purpose::with_kubelet_key(&KEY));
    let asked = asked.but(|asked| asked.purpose = purpose.to_owned());
    let evidence = machine.evidence(&asked);
    asked.show(gateway, evidence).await
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_evidence_binds_the_kubelet_key() {
    let mut gateway = site::init(r#"[["tpm"]]"#, &[TPM]);
    let nitro = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let case = tpm();
    let of_tpm = format!("tpm:{}", crate::support::digest(&case));
    gateway.endorse(&case, &[]);
    let machine = Machine::new().but(|machine| machine.tpm = Some(case));
    let sts = StsServer::start("eu-central-1", vec![machine.session.clone()]);
    site::reach_sts(&gateway, &sts);
    let of_instance = "aws:123456789012/i-0123456789abcdef0";
    let of_azure = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
    let kinds = [
        (Kind::Tpm, TPM, of_tpm.as_str(), "quote-extra-data"),
        (Kind::Gcp, GCP, "gcp:example-project/152986662232938449", "gcp-identity-audience"),
        (Kind::AwsNitroTpm, &nitro, "aws-nitrotpm:i-0123456789abcdef0", "nitro-tpm-user-data"),
        (Kind::AwsSts, STS, of_instance, "sts-server-id"),
        (Kind::Azure, AZURE_RULES, of_azure, "azure-document-nonce"),
        (
            Kind::AzureVtpm,
            AZURE_VTPM_RULES,
            "azure-vtpm:b1310a36-d400-46f6-82cb-6217df846586",
            "quote-extra-data",
        ),
        // Bound to nothing: it is taken as ever, and the key is nobody's word.
        (Kind::AwsIdentityDocument, DOCUMENT, of_instance, ""),
    ];
    for (kind, rules, _, _) in kinds {
        site::pool(&gateway, kind.as_str(), &format!("[[\"{kind}\"]]"), &[rules]);
        site::configs(&gateway, kind.as_str());
    }
    gateway.run();
    let mut other = KEY;
    other.0[0] ^= 1;
    let mut machine = Some(machine);
    for (kind, _, identity, code) in kinds {
        let asking = machine.take().unwrap().but(|machine| machine.pool = kind.to_string());
        for wrong in [PURPOSE_CONFIG, &purpose::with_kubelet_key(&other)] {
            if !code.is_empty() {
                let answer = shows(&gateway, &asking, kind, wrong).await;
                site::refused(&gateway, &answer, code);
            }
        }
        let answer = shows(&gateway, &asking, kind, &purpose::with_kubelet_key(&KEY)).await;
        let record = site::trusted(&gateway, &answer, identity, &[kind]);
        let recorded = record["claims"].get("kubelet_key_sha256").and_then(serde_json::Value::as_str);
        let signed = (!code.is_empty()).then(|| KEY.to_string());
        assert_eq!(recorded, signed.as_deref(), "{kind}");
        if kind != Kind::Tpm {
            gateway.command(&["node", "release", identity]);
        }
        machine = Some(asking);
    }
}
