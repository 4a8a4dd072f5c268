//! Identity documents of AWS and NitroTPM documents that must be refused.

use std::sync::LazyLock;
use std::time::Instant;

use attest::protocol::{Blob, Evidence};
use attest::{Kind, SpkiSha256};
use ciborium::Value as Cbor;
use cloud_fixtures::aws::{NitroAuthority, NitroDocument, RegionAuthority, WeakAuthority};
use cloud_fixtures::clock::{self, rfc3339};
use cloud_fixtures::pkcs7::{OTHER, Pkcs7Key};
use cloud_fixtures::tampering::{self, each_member_removed, each_value};
use serde_json::{Value, json};

use super::machine::{Asked, Machine, NITRO, REGION, nitro_evidence};
use super::site::{self, DOCUMENT, NITRO_TPM};
use crate::support::{Answer, Gateway, LIMIT};

/// Key of another region, which the gateway trusts for that region.
static VIRGINIA: LazyLock<RegionAuthority> = LazyLock::new(|| RegionAuthority::new(2));

const KIND: Kind = Kind::AwsIdentityDocument;

/// Starts a gateway with a pool that accepts identity documents alone.
fn documents() -> Gateway {
    let mut gateway = site::init(r#"[["aws-identity-document"]]"#, &[DOCUMENT]);
    site::write(&gateway, "aws-region-certificates/us-east-1.pem", VIRGINIA.certificate_pem());
    gateway.run();
    gateway
}

/// Returns the machine's document as JSON.
fn document(machine: &Machine) -> Value {
    machine.aws.identity_document()
}

/// Presents this instead of the machine's document. It is always a machine that has attested before, so that only the document is in
/// question.
async fn show(gateway: &Gateway, machine: &Machine, pkcs7: String) -> Answer {
    let alter = |evidence: &mut Evidence, _: &Asked| evidence.aws_identity_document = Some(machine.document(pkcs7));
    machine.attest_altered(gateway, &[KIND], alter).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_11_refuses_an_altered_identity_document() {
    let gateway = documents();
    let machine = Machine::new();
    let signed = document(&machine);
    let check = async |shown: Value, path: &str| {
        let pkcs7 = tampering::unsigned_identity_document(&REGION, &signed, &shown);
        let answer = show(&gateway, &machine, pkcs7).await;
        assert_ne!(answer.status.as_u16(), 200, "{path}");
        site::refused(&gateway, &answer, "aws-document-signature");
    };
    for (path, shown) in each_value(&signed).into_iter().chain(each_member_removed(&signed)) {
        check(shown, &path).await;
    }
    // What SPIRE took: another document beside the signed one is not even part of the protocol.
    let asked = machine.ask(&gateway, &[KIND]).await;
    let mut body = serde_json::to_value(asked.body(machine.evidence(&asked))).unwrap();
    body["evidence"]["aws_identity_document"]["document"] = json!(signed.to_string());
    gateway.post("/v1/attest/evidence", &body).await.refused(400, "malformed-request");
    for part in 0..24 {
        let answer = show(&gateway, &machine, site::flipped(&REGION.sign(&signed), part)).await;
        assert_ne!(answer.status.as_u16(), 200, "{part}");
        site::refused(&gateway, &answer, &answer.code());
    }
    drop(show(&gateway, &machine, REGION.sign(&signed)).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_refuses_signed_documents_outside_the_pools_rules() {
    let gateway = documents();
    let machine = Machine::new();
    let check = async |field: &str, value: Value, code: &str| {
        let mut altered = document(&machine);
        altered[field] = value;
        let answer = show(&gateway, &machine, REGION.sign(&altered)).await;
        site::refused(&gateway, &answer, code);
    };
    let now = clock::now();
    check("accountId", json!("210987654321"), "aws-account-not-accepted").await;
    check("accountId", json!("12"), "aws-document-malformed").await;
    check("region", json!("us-east-1"), "aws-document-region").await;
    check("availabilityZone", json!("eu-central-1b"), "aws-availability-zone-not-accepted").await;
    check("imageId", json!("ami-00000000000000000"), "aws-image-not-accepted").await;
    check("instanceType", json!("p5.48xlarge"), "aws-instance-type-not-accepted").await;
    check("instanceId", json!("i-x"), "aws-document-malformed").await;
    check("pendingTime", json!(rfc3339(now - 7200)), "aws-document-age").await;
    check("pendingTime", json!(rfc3339(now + 7200)), "aws-document-age").await;
    check("pendingTime", json!("yesterday"), "aws-document-malformed").await;
    for field in [
        "accountId",
        "region",
        "availabilityZone",
        "imageId",
        "instanceId",
        "instanceType",
        "architecture",
        "pendingTime",
    ] {
        check(field, Value::Null, "aws-document-malformed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_12_refuses_a_signer_of_no_trusted_region() {
    let gateway = documents();
    let machine = Machine::new();
    let signed = document(&machine);
    let check = async |pkcs7: String, code: &str| {
        site::refused(&gateway, &show(&gateway, &machine, pkcs7).await, code);
    };
    check(
        tampering::foreign_identity_document(&REGION, &OTHER, &signed),
        "aws-document-signature",
    )
    .await;
    let stranger = RegionAuthority::new(3);
    check(stranger.sign(&signed), "aws-document-signer").await;
    let content = RegionAuthority::text(&signed);
    // His certificate in the bag, which is where a verifier that searches the bag finds it.
    let bag = |signer: &RegionAuthority, key: &Pkcs7Key, certificates: &[&RegionAuthority]| {
        let certificates = certificates.iter().map(|authority| authority.certificate().to_vec()).collect();
        let message = signer
            .message(content.as_bytes())
            .but(|message| message.certificates = certificates);
        data_encoding::BASE64.encode(&message.sign(key))
    };
    check(bag(&stranger, stranger.key(), &[&stranger]), "aws-document-signer").await;
    check(bag(&stranger, stranger.key(), &[&REGION, &stranger]), "aws-document-signer").await;
    check(bag(&REGION, stranger.key(), &[&stranger, &REGION]), "aws-document-signature").await;
    // Two signers, whichever of them is good.
    let second = stranger.message(content.as_bytes()).signer_info(stranger.key());
    let two = REGION
        .message(content.as_bytes())
        .but(|message| message.extra_signers = vec![second]);
    check(data_encoding::BASE64.encode(&two.sign(REGION.key())), "aws-document-malformed").await;
    // No signed attributes that say another digest, no content that is elsewhere.
    let detached = REGION.message(content.as_bytes()).but(|message| message.detached = true);
    check(data_encoding::BASE64.encode(&detached.sign(REGION.key())), "aws-document-malformed").await;
    check(String::new(), "aws-document-malformed").await;
    check("A".repeat(60_000), "aws-document-malformed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_14_refuses_other_regions_certificates_and_rsa_1024() {
    let gateway = documents();
    let machine = Machine::new();
    let check = async |machine: &Machine, pkcs7: String, code: &str| {
        site::refused(&gateway, &show(&gateway, machine, pkcs7).await, code);
    };
    // The key of a region that is trusted, for an instance in another.
    check(&machine, VIRGINIA.sign(&document(&machine)), "aws-document-region").await;
    // An instance where it says that it is, which the pool does not take.
    let virginian = Machine::new().but(|machine| {
        machine.aws.region = "us-east-1".to_owned();
        machine.aws.availability_zone = "us-east-1a".to_owned();
    });
    check(&virginian, VIRGINIA.sign(&document(&virginian)), "aws-region-not-accepted").await;
    check(&virginian, REGION.sign(&document(&virginian)), "aws-document-region").await;
    // The old forms.
    let weak = WeakAuthority::new();
    let content = RegionAuthority::text(&document(&machine));
    check(&machine, weak.message(content.as_bytes()), "aws-document-signer").await;
    check(&machine, weak.signature(content.as_bytes()), "aws-document-malformed").await;
    check(&machine, weak.dsa(content.as_bytes()), "aws-document-algorithm").await;
    // Nor can the administrator bring the old certificate in.
    let mut other = site::init(r#"[["aws-identity-document"]]"#, &[DOCUMENT]);
    site::write(&other, "aws-region-certificates/eu-central-1.pem", weak.certificate_pem());
    let output = other.try_command(&["check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("the certificate's key is RSA-1024"), "{said}");
    assert!(
        said.contains("pool worker accepts aws-identity-document, which cannot be verified"),
        "{said}"
    );
    other.run();
    other.line(|line| line.contains("pool worker accepts aws-identity-document, which cannot be verified"));
    let answer = show(&other, &machine, weak.message(content.as_bytes())).await;
    site::refused(&other, &answer, "evidence-not-configured");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_refuses_a_second_claim_of_an_instance() {
    let gateway = documents();
    let node = Machine::new();
    let identity = "aws:123456789012/i-0123456789abcdef0";
    site::trusted(&gateway, &node.attest(&gateway, &[KIND]).await, identity, &[KIND]);
    // An answer that was lost on its way, and every later one.
    site::trusted(&gateway, &node.attest(&gateway, &[KIND]).await, identity, &[KIND]);

    let thief = Machine::another();
    let answer = thief.attest(&gateway, &[KIND]).await;
    let record = site::refused(&gateway, &answer, "instance-claimed");
    let alert = record["alerts"][0].as_str().unwrap();
    let first = format!("claimant:{}", super::machine::sha256(&node.claimant));
    assert!(
        alert.contains(identity) && alert.contains("another claimant presents") && alert.contains(&first),
        "{alert}"
    );
    gateway.line(|line| line.contains("ALERT") && line.contains(identity));
    assert!(!String::from_utf8_lossy(&answer.body).contains(&first));
    assert!(
        answer
            .problem()
            .next_step
            .contains(&format!("attest-gateway node release {identity}"))
    );
    // That is what the store says; the evidence held, and the auditor sees both.
    assert_eq!(
        (&record["decided_by"], site::replay_code(&gateway, &record).as_str()),
        (&"store".into(), "accepted")
    );
    let table = gateway.command(&["log", "audit"]);
    assert!(
        table.contains(" instance-claimed  trusted ") && !table.contains("DIFFERENT"),
        "{table}"
    );
    // Who knows the claimant's digest, which is in the log, does not know the claimant.
    let asked = thief.ask(&gateway, &[KIND]).await;
    let mut other = thief.evidence(&asked);
    other.claimant = Some(Blob(node.claimant.to_vec()));
    site::refused(&gateway, &asked.show(&gateway, other).await, "claimant-mismatch");
    for claimant in [vec![], thief.claimant.to_vec(), [node.claimant, node.claimant].concat()] {
        let alter = |evidence: &mut Evidence, _: &Asked| evidence.claimant = Some(Blob(claimant));
        let answer = node.attest_altered(&gateway, &[KIND], alter).await;
        site::refused(&gateway, &answer, "claimant-mismatch");
    }

    let shown = gateway.command(&["machines", "show", identity]);
    assert!(shown.contains(&format!("{identity} belongs to {first} since ")), "{shown}");
    assert!(gateway.command(&["node", "release", identity]).contains(identity));
    assert!(!gateway.try_command(&["node", "release", identity]).status.success());
    site::trusted(&gateway, &thief.attest(&gateway, &[KIND]).await, identity, &[KIND]);
    site::refused(&gateway, &node.attest(&gateway, &[KIND]).await, "instance-claimed");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_only_one_concurrent_instance_claim_succeeds() {
    let gateway = documents();
    let mut claiming = Vec::new();
    for _ in 0..12 {
        let machine = Machine::another();
        let asked = machine.ask(&gateway, &[KIND]).await;
        let body = asked.body(machine.evidence(&asked));
        let request = gateway.client.post(gateway.url("/v1/attest/evidence")).json(&body);
        claiming.push((machine, tokio::spawn(Answer::send(request))));
    }
    let (mut won, mut come_again) = (0, Vec::new());
    for (machine, answer) in claiming {
        let answer = answer.await.unwrap();
        match answer.status.as_u16() {
            200 => won += 1,
            // Who comes while another's claim is not decided yet is told to come again.
            503 => {
                answer.refused(503, "undecided");
                come_again.push(machine);
            }
            _ => answer.refused(403, "instance-claimed"),
        }
    }
    assert_eq!(won, 1, "whoever was first, at once");
    let begun = Instant::now();
    for machine in come_again {
        let mut answer = machine.attest(&gateway, &[KIND]).await;
        while answer.status == 503 {
            assert!(begun.elapsed() < LIMIT, "nothing is decided");
            answer = machine.attest(&gateway, &[KIND]).await;
        }
        answer.refused(403, "instance-claimed");
    }
    let claimed = gateway.records().into_iter().filter(|record| record["code"] == "instance-claimed");
    assert_eq!(claimed.count(), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_a_refused_document_claims_no_instance() {
    let gateway = documents();
    let thief = Machine::another();
    let mut altered = document(&thief);
    altered["imageId"] = json!("ami-00000000000000000");
    let refused = show(&gateway, &thief, REGION.sign(&altered)).await;
    site::refused(&gateway, &refused, "aws-image-not-accepted");
    drop(Machine::new().attest(&gateway, &[KIND]).await.ticket());
}

/// Starts a gateway with a pool that accepts NitroTPM documents of any account.
fn nitro() -> Gateway {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    site::start(r#"[["aws-nitro-tpm"]]"#, &[&unchecked])
}

async fn show_nitro(gateway: &Gateway, make: impl FnOnce(NitroDocument, &Asked) -> Vec<u8>) -> Answer {
    let machine = Machine::new();
    let alter = |evidence: &mut Evidence, asked: &Asked| {
        evidence.aws_nitro_tpm = Some(nitro_evidence(make(machine.nitro_document(asked), asked)));
    };
    machine.attest_altered(gateway, &[Kind::AwsNitroTpm], alter).await
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_11_refuses_an_altered_nitro_tpm_document() {
    let gateway = nitro();
    let check = async |field: &str, value: Option<Cbor>| {
        let alter = |document: &mut NitroDocument| document.set(field, value);
        let answer = show_nitro(&gateway, |document, _| tampering::unsigned_nitro_document(document, alter)).await;
        site::refused(&gateway, &answer, "nitro-tpm-signature");
    };
    check("module_id", Some("i-0000000000000000f-tpm0000000000000000".into())).await;
    check("digest", Some("SHA256".into())).await;
    check("timestamp", Some(1.into())).await;
    check("nitrotpm_pcrs", Some(Cbor::Map(vec![]))).await;
    check("public_key", Some(Cbor::Bytes(vec![1]))).await;
    check("user_data", Some(Cbor::Bytes(vec![1; 32]))).await;
    check("nonce", Some(Cbor::Bytes(vec![1; 32]))).await;
    for field in ["module_id", "digest", "timestamp", "nitrotpm_pcrs", "user_data", "nonce"] {
        check(field, None).await;
    }
    let pcr = |document: &mut NitroDocument| document.set_pcr(7, Some(vec![9; 48]));
    let answer = show_nitro(&gateway, |document, _| tampering::unsigned_nitro_document(document, pcr)).await;
    site::refused(&gateway, &answer, "nitro-tpm-signature");
    let signed = async |alter: &dyn Fn(&mut NitroDocument), code: &str| {
        let make = |mut document: NitroDocument, _: &Asked| {
            alter(&mut document);
            document.document()
        };
        site::refused(&gateway, &show_nitro(&gateway, make).await, code);
    };
    signed(&|document| document.protected = vec![0xa1, 0x01, 0x26], "nitro-tpm-algorithm").await;
    signed(
        &|document| document.unprotected = Cbor::Map(vec![(1.into(), 1.into())]),
        "nitro-tpm-malformed",
    )
    .await;
    signed(&|document| document.signature = Some(vec![0; 96]), "nitro-tpm-signature").await;
    signed(&|document| document.signature = Some(vec![0; 64]), "nitro-tpm-malformed").await;
    signed(&|document| document.appended = vec![0], "nitro-tpm-malformed").await;
    signed(&|document| document.appended_to_payload = vec![0], "nitro-tpm-malformed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_records_the_previous_nitro_tpm_pcr_value() {
    let gateway = nitro();
    let show = async |pcr_7: u8| {
        let make = |mut document: NitroDocument, _: &Asked| {
            document.set_pcr(7, Some(vec![pcr_7; 48]));
            document.document()
        };
        show_nitro(&gateway, make).await
    };
    drop(show(7).await.ticket());
    let record = site::refused(&gateway, &show(9).await, "nitro-tpm-pcr-mismatch");
    let before = record["booted_before"].as_str().unwrap();
    assert!(
        before.starts_with(&format!("PCR 7 of this machine was {}… until ", "07".repeat(8))),
        "{before}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_nitro_tpm_documents_with_wrong_fields() {
    let gateway = nitro();
    let signed = async |field: &str, value: Option<Cbor>, code: &str| {
        let make = |mut document: NitroDocument, _: &Asked| {
            document.set(field, value);
            document.document()
        };
        site::refused(&gateway, &show_nitro(&gateway, make).await, code);
    };
    let milliseconds = |seconds: u64| Some((seconds * 1000).into());
    signed(
        "module_id",
        Some("i-0000000000000000f-tpm0000000000000000".into()),
        "nitro-tpm-shape",
    )
    .await;
    signed(
        "module_id",
        Some("i-0123456789abcdef0-enc0123456789abcdef".into()),
        "nitro-tpm-shape",
    )
    .await;
    signed("digest", Some("SHA256".into()), "nitro-tpm-malformed").await;
    signed("timestamp", milliseconds(clock::now() - 900), "nitro-tpm-age").await;
    signed("timestamp", milliseconds(clock::now() + 900), "nitro-tpm-age").await;
    signed("nonce", Some(Cbor::Bytes(vec![1; 32])), "nitro-tpm-nonce").await;
    signed("nonce", None, "nitro-tpm-nonce").await;
    signed("user_data", Some(Cbor::Bytes(vec![1; 32])), "nitro-tpm-user-data").await;
    signed("user_data", None, "nitro-tpm-user-data").await;
    let pcr = async |value: Option<Vec<u8>>, code: &str| {
        let make = |mut document: NitroDocument, _: &Asked| {
            document.set_pcr(7, value);
            document.document()
        };
        site::refused(&gateway, &show_nitro(&gateway, make).await, code);
    };
    pcr(Some(vec![9; 48]), "nitro-tpm-pcr-mismatch").await;
    pcr(None, "nitro-tpm-pcr-mismatch").await;
    pcr(Some(vec![7; 32]), "nitro-tpm-malformed").await;

    let issued = async |make: &dyn Fn(&Machine, &Asked) -> Vec<u8>, code: &str| {
        let machine = Machine::new();
        let alter = |evidence: &mut Evidence, asked: &Asked| evidence.aws_nitro_tpm = Some(nitro_evidence(make(&machine, asked)));
        let answer = machine.attest_altered(&gateway, &[Kind::AwsNitroTpm], alter).await;
        site::refused(&gateway, &answer, code);
    };
    let by = |authority: &NitroAuthority, region: &str, made: u64, asked: &Asked| {
        let document = authority.document("i-0123456789abcdef0", region, &asked.nonce, &asked.binding(), made);
        document.document()
    };
    let stranger = NitroAuthority::new();
    // By a root of the same name, and of another.
    issued(
        &|_, asked| by(&stranger, "eu-central-1", clock::now(), asked),
        "nitro-tpm-certificate-invalid",
    )
    .await;
    let named = |_: &Machine, asked: &Asked| {
        let mut document = stranger.document("i-0123456789abcdef0", "eu-central-1", &asked.nonce, &asked.binding(), clock::now());
        document.levels[0].params.distinguished_name = cloud_fixtures::named("another");
        document.document()
    };
    issued(&named, "nitro-tpm-not-endorsed").await;
    issued(&|_, asked| by(&NITRO, "us-east-1", clock::now(), asked), "nitro-tpm-region").await;
    // Of yesterday, with certificates of three hours.
    issued(
        &|_, asked| by(&NITRO, "eu-central-1", clock::now() - 86_400, asked),
        "nitro-tpm-certificate-time",
    )
    .await;
    issued(&|_, _| vec![], "nitro-tpm-malformed").await;
    issued(&|_, _| vec![0; 20_000], "nitro-tpm-malformed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_refuses_a_nitro_tpm_document_bound_elsewhere() {
    let gateway = nitro();
    let other = async |change: fn(&mut Asked), code: &str| {
        let machine = Machine::new();
        let asked = machine.ask(&gateway, &[Kind::AwsNitroTpm]).await;
        let evidence = machine.evidence(&asked.but(change));
        site::refused(&gateway, &asked.show(&gateway, evidence).await, code);
    };
    other(|asked| asked.key = SpkiSha256([1; 32]), "nitro-tpm-user-data").await;
    other(|asked| asked.pool = "infra".to_owned(), "nitro-tpm-user-data").await;
    other(|asked| asked.purpose = "other".to_owned(), "nitro-tpm-user-data").await;
    other(|asked| asked.nonce = vec![1; 32], "nitro-tpm-nonce").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_25_log_omits_secrets_and_unclaimed_instances_documents() {
    let gateway = documents();
    let log = || std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    let holds = |text: &str| log().contains(text);
    let node = Machine::new();
    let pkcs7 = |evidence: &Evidence| serde_json::to_string(&evidence.aws_identity_document.as_ref().unwrap().pkcs7).unwrap();
    let claimant = data_encoding::BASE64.encode(&node.claimant);
    // Refused by the pool's rules, so that it is nobody's: who reads it must not be able to claim it.
    let other = Machine::new().but(|other| {
        other.claimant = node.claimant;
        other.aws.image_id = "ami-00000000000000000".to_owned();
    });
    let asked = node.ask(&gateway, &[KIND]).await;
    let evidence = other.evidence(&asked);
    let document = pkcs7(&evidence);
    let answer = asked.show(&gateway, evidence).await;
    site::refused(&gateway, &answer, "aws-image-not-accepted");
    assert!(!holds(&document) && !holds(&claimant));
    // Accepted: it is verified again without the claimant.
    let asked = node.ask(&gateway, &[KIND]).await;
    let evidence = node.evidence(&asked);
    let document = pkcs7(&evidence);
    let answer = asked.show(&gateway, evidence).await;
    let record = site::trusted(&gateway, &answer, "aws:123456789012/i-0123456789abcdef0", &[KIND]);
    assert!(holds(&document) && !holds(&claimant));
    let mut altered = record;
    altered["basis"]["cloud"]["claimant_sha256"] = "ab".repeat(32).into();
    assert_eq!(site::replay_code(&gateway, &altered), "claimant-mismatch");
}
