//! Several kinds of evidence together, one after the other, and together with a provisioning token.

use attest::Kind;
use attest::protocol::{Evidence, SecretText, TokenEvidence};
use serde_json::json;

use super::machine::{Asked, Machine, gcp_evidence};
use super::site::{self, AZURE_RULES, DOCUMENT, GCP, NITRO_TPM, TPM};
use crate::support::{Gateway, bearer, digest, next_boot, tpm};

const GCP_IDENTITY: &str = "gcp:example-project/152986662232938449";
const AWS_IDENTITY: &str = "aws:123456789012/i-0123456789abcdef0";

/// Returns a machine with an endorsed TPM.
fn with_tpm(gateway: &Gateway) -> Machine {
    let case = tpm();
    gateway.endorse(&case, &[]);
    Machine::new().but(|machine| machine.tpm = Some(case))
}

/// Returns the next boot of the same machine.
fn booted(machine: &Machine) -> Machine {
    let case = next_boot(machine.tpm.as_ref().unwrap());
    Machine::new().but(|machine| machine.tpm = Some(case))
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_an_instance_stays_bound_to_its_tpm() {
    let gateway = site::start(r#"[["tpm", "gcp"], ["gcp"]]"#, &[TPM, GCP]);
    let both = [Kind::Tpm, Kind::Gcp];
    let node = with_tpm(&gateway);
    let identity = format!("tpm:{}", digest(node.tpm.as_ref().unwrap()));
    let record = site::trusted(&gateway, &node.attest(&gateway, &both).await, &identity, &both);
    assert_eq!(record["instance"], GCP_IDENTITY);
    site::trusted(&gateway, &booted(&node).attest(&gateway, &both).await, &identity, &both);
    // Whoever can hear what Google says of the instance, and has not its TPM, or has another one.
    let weaker = Machine::new().attest(&gateway, &[Kind::Gcp]).await;
    let record = site::refused(&gateway, &weaker, "instance-claimed");
    let alert = record["alerts"][0].as_str().unwrap();
    assert!(alert.contains("claimed by claimant:") && alert.contains(&identity), "{alert}");
    let other = with_tpm(&gateway);
    site::refused(&gateway, &other.attest(&gateway, &both).await, "instance-claimed");
    let shown = gateway.command(&["machines", "show", GCP_IDENTITY]);
    assert!(shown.contains(&format!("{GCP_IDENTITY} belongs to {identity} since ")), "{shown}");
    // The machine got another TPM, the administrator says.
    gateway.command(&["node", "release", GCP_IDENTITY]);
    let new = format!("tpm:{}", digest(other.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &booted(&other).attest(&gateway, &both).await, &new, &both);
    site::refused(&gateway, &booted(&node).attest(&gateway, &both).await, "instance-claimed");
    // Another instance is another's.
    let elsewhere = Machine::new().but(|machine| machine.google.instance_id = 7);
    site::trusted(
        &gateway,
        &elsewhere.attest(&gateway, &[Kind::Gcp]).await,
        "gcp:example-project/7",
        &[Kind::Gcp],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_29_a_trusted_tpm_cannot_claim_a_second_instance() {
    let gateway = site::start(r#"[["tpm", "azure"], ["tpm", "gcp"]]"#, &[TPM, AZURE_RULES, GCP]);
    let both = [Kind::Tpm, Kind::Gcp];
    // A machine that was broken into, after it has attested: its TPM is trusted.
    let own = |machine: &mut Machine| machine.google.instance_id = 7;
    let thief = with_tpm(&gateway).but(own);
    let identity = format!("tpm:{}", digest(thief.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &thief.attest(&gateway, &both).await, &identity, &both);
    // It shows what Google says of an instance that has not come yet, and what Azure says of another.
    let answer = booted(&thief).attest(&gateway, &both).await;
    let record = site::refused(&gateway, &answer, "instance-claimed");
    assert!(record["alerts"][0].as_str().unwrap().contains(&identity));
    let azure = [Kind::Tpm, Kind::Azure];
    let answer = booted(&booted(&thief)).attest(&gateway, &azure).await;
    site::refused(&gateway, &answer, "instance-claimed");
    // That instance is not locked out by it.
    let node = with_tpm(&gateway);
    let node_identity = format!("tpm:{}", digest(node.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &node.attest(&gateway, &both).await, &node_identity, &both);
    // Who wants what belongs to another takes nothing by it, and loses nothing.
    let late = with_tpm(&gateway);
    site::refused(&gateway, &late.attest(&gateway, &both).await, "instance-claimed");
    let next = booted(&late).but(|machine| machine.google.instance_id = 8);
    drop(next.attest(&gateway, &both).await.ticket());
    // The administrator has moved the TPM to another machine.
    let list = gateway.command(&["machines", "list"]);
    assert!(list.contains("tpm:"), "{list}");
    gateway.command(&["node", "release", "gcp:example-project/7"]);
    let moved = booted(&booted(&booted(&thief)));
    drop(moved.attest(&gateway, &azure).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_29_nitro_tpms_cannot_join_one_tpm_twice() {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let gateway = site::start(r#"[["tpm", "aws-nitro-tpm"], ["aws-nitro-tpm"]]"#, &[TPM, &unchecked]);
    let both = [Kind::Tpm, Kind::AwsNitroTpm];
    let node = with_tpm(&gateway);
    let identity = format!("tpm:{}", digest(node.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &node.attest(&gateway, &both).await, &identity, &both);
    site::trusted(&gateway, &booted(&node).attest(&gateway, &both).await, &identity, &both);
    // The NitroTPM says which instance that is, and nothing of the TPM beside it.
    let other = |machine: Machine| machine.but(|machine| machine.aws.instance_id = "i-00000000000000009".to_owned());
    let answer = other(booted(&booted(&node))).attest(&gateway, &both).await;
    let record = site::refused(&gateway, &answer, "instance-claimed");
    assert!(record["alerts"][0].as_str().unwrap().contains(&identity));
    // The other instance is not locked out by it.
    let alone = [Kind::AwsNitroTpm];
    let answer = other(Machine::new()).attest(&gateway, &alone).await;
    site::trusted(&gateway, &answer, "aws-nitrotpm:i-00000000000000009", &alone);
    // Nor does the TPM come beside it now that it belongs to its NitroTPM.
    let thief = booted(&booted(&booted(&node)));
    let record = site::refused(&gateway, &other(thief).attest(&gateway, &both).await, "instance-claimed");
    assert!(record["alerts"][0].as_str().unwrap().contains(&identity));
    // Revoked is the TPM with the instance that it was beside, to whomever that belongs.
    let revoked = gateway.command(&["node", "revoke", "aws-nitrotpm:i-0123456789abcdef0"]);
    assert!(revoked.contains(&identity), "{revoked}");
    // A TPM that is in no machine yet does, and is beside no other from then on, until the administrator says otherwise.
    let second = with_tpm(&gateway);
    let second_identity = format!("tpm:{}", digest(second.tpm.as_ref().unwrap()));
    let record = other(booted(&second)).attest(&gateway, &both).await;
    site::trusted(&gateway, &record, &second_identity, &both);
    let third = |machine: Machine| machine.but(|machine| machine.aws.instance_id = "i-00000000000000003".to_owned());
    let answer = third(booted(&booted(&second))).attest(&gateway, &both).await;
    site::refused(&gateway, &answer, "instance-claimed");
    gateway.command(&["node", "release", "aws-nitrotpm:i-00000000000000009"]);
    let answer = third(booted(&booted(&booted(&second)))).attest(&gateway, &both).await;
    site::trusted(&gateway, &answer, &second_identity, &both);
}

#[tokio::test(flavor = "multi_thread")]
async fn tpm_attests_with_or_without_its_nitro_tpm() {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let accepts = r#"[["tpm", "aws-nitro-tpm"], ["tpm", "aws-identity-document"]]"#;
    let ways = [[Kind::Tpm, Kind::AwsNitroTpm], [Kind::Tpm, Kind::AwsIdentityDocument]];
    for [first, later] in [ways, [ways[1], ways[0]]] {
        let gateway = site::start(accepts, &[TPM, DOCUMENT, &unchecked]);
        let (node, other) = (with_tpm(&gateway), with_tpm(&gateway));
        let identity = format!("tpm:{}", digest(node.tpm.as_ref().unwrap()));
        site::trusted(&gateway, &node.attest(&gateway, &first).await, &identity, &first);
        site::trusted(&gateway, &booted(&node).attest(&gateway, &later).await, &identity, &later);
        // It is its machine's, whichever way it is shown, and no other's.
        site::refused(
            &gateway,
            &other.attest(&gateway, &[Kind::Tpm, Kind::AwsIdentityDocument]).await,
            "instance-claimed",
        );
        let elsewhere = booted(&booted(&node)).but(|machine| machine.aws.instance_id = "i-00000000000000009".to_owned());
        site::refused(&gateway, &elsewhere.attest(&gateway, &later).await, "instance-claimed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_29_refuses_a_tpm_with_a_secret_claimed_instance() {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let gateway = site::start(
        r#"[["tpm", "aws-identity-document", "aws-nitro-tpm"], ["aws-identity-document"]]"#,
        &[TPM, DOCUMENT, &unchecked],
    );
    let all = [Kind::Tpm, Kind::AwsIdentityDocument, Kind::AwsNitroTpm];
    let node = with_tpm(&gateway);
    let identity = format!("tpm:{}", digest(node.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &node.attest(&gateway, &all).await, &identity, &all);
    let other = |machine: Machine| machine.but(|machine| machine.aws.instance_id = "i-00000000000000009".to_owned());
    let document = [Kind::AwsIdentityDocument];
    let claimed = "aws:123456789012/i-00000000000000009";
    site::trusted(
        &gateway,
        &other(Machine::new()).attest(&gateway, &document).await,
        claimed,
        &document,
    );
    let answer = other(booted(&node)).attest(&gateway, &all).await;
    let record = site::refused(&gateway, &answer, "instance-claimed");
    assert!(record["alerts"][0].as_str().unwrap().contains(&identity));
    // It is its holder's as before.
    site::trusted(
        &gateway,
        &other(Machine::new()).attest(&gateway, &document).await,
        claimed,
        &document,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_log_omits_documents_of_unclaimed_instances() {
    let gateway = site::start(r#"[["tpm", "aws-identity-document"]]"#, &[TPM, DOCUMENT]);
    let both = [Kind::Tpm, Kind::AwsIdentityDocument];
    let thief = with_tpm(&gateway);
    let identity = format!("tpm:{}", digest(thief.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &thief.attest(&gateway, &both).await, &identity, &both);
    let other = |machine: Machine| machine.but(|machine| machine.aws.instance_id = "i-00000000000000009".to_owned());
    let record = site::refused(&gateway, &other(booted(&thief)).attest(&gateway, &both).await, "instance-claimed");
    assert!(record["basis"].get("digests").is_some() && record["basis"].get("evidence").is_none());
    // Once it is somebody's, it helps nobody.
    drop(other(with_tpm(&gateway)).attest(&gateway, &both).await.ticket());
    let answer = other(booted(&booted(&thief))).attest(&gateway, &both).await;
    let record = site::refused(&gateway, &answer, "instance-claimed");
    assert!(record["basis"].get("evidence").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_refuses_a_copied_document_with_another_tpm() {
    let gateway = site::start(r#"[["tpm", "aws-identity-document"], ["aws-identity-document"]]"#, &[TPM, DOCUMENT]);
    let both = [Kind::Tpm, Kind::AwsIdentityDocument];
    let node = with_tpm(&gateway);
    let identity = format!("tpm:{}", digest(node.tpm.as_ref().unwrap()));
    site::trusted(&gateway, &node.attest(&gateway, &both).await, &identity, &both);
    // At its next boot it has another claimant's secret, and the same TPM.
    site::trusted(&gateway, &booted(&node).attest(&gateway, &both).await, &identity, &both);
    let thief = with_tpm(&gateway);
    site::refused(&gateway, &thief.attest(&gateway, &both).await, "instance-claimed");
    let copy = Machine::new().attest(&gateway, &[Kind::AwsIdentityDocument]).await;
    site::refused(&gateway, &copy, "instance-claimed");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_13_refuses_documents_of_different_instances() {
    let gateway = site::start(
        r#"[["aws-identity-document", "aws-nitro-tpm"]]"#,
        &[&DOCUMENT.replace("accept_replayable = true", ""), NITRO_TPM],
    );
    let kinds = [Kind::AwsIdentityDocument, Kind::AwsNitroTpm];
    let of_another = |evidence: &mut Evidence, asked: &Asked| {
        let thief = Machine::new().but(|machine| machine.aws.instance_id = "i-00000000000000001".to_owned());
        evidence.aws_nitro_tpm = thief.evidence(asked).aws_nitro_tpm;
    };
    let answer = Machine::new().attest_altered(&gateway, &kinds, of_another).await;
    site::refused(&gateway, &answer, "nitro-tpm-other-instance");
    // What the pool says of accounts is said of the document.
    let account = |machine: &mut Machine| machine.aws.account = "210987654321".to_owned();
    let answer = Machine::new().but(account).attest(&gateway, &kinds).await;
    site::refused(&gateway, &answer, "aws-account-not-accepted");
    // Its NitroTPM is the claimant: each boot is the same instance.
    for _ in 0..2 {
        site::trusted(&gateway, &Machine::another().attest(&gateway, &kinds).await, AWS_IDENTITY, &kinds);
    }
    let stale = Machine::new().but(|machine| machine.aws.pending_time -= 7200);
    site::refused(&gateway, &stale.attest(&gateway, &kinds).await, "aws-document-age");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_required_kind_of_evidence_is_verified() {
    let gateway = site::start(r#"[["tpm", "gcp"]]"#, &[TPM, GCP]);
    let both = [Kind::Tpm, Kind::Gcp];
    let check = async |alter: fn(&mut Evidence, &Asked), code: &str| {
        let answer = with_tpm(&gateway).attest_altered(&gateway, &both, alter).await;
        site::refused(&gateway, &answer, code);
    };
    check(|evidence, _| evidence.tpm.as_mut().unwrap().signature.0[20] ^= 1, "quote-signature").await;
    check(
        |evidence, _| evidence.gcp = Some(gcp_evidence("a.b.c".to_owned())),
        "gcp-identity-malformed",
    )
    .await;
    check(
        |evidence, asked| {
            let elsewhere = Machine::new().but(|machine| machine.google.project_id = "other-project".to_owned());
            evidence.gcp = Some(gcp_evidence(elsewhere.identity_token(asked)));
        },
        "gcp-project-refused",
    )
    .await;
    let unendorsed = Machine::new().but(|machine| machine.tpm = Some(tpm()));
    let answer = gateway.post("/v1/attest/challenge", &unendorsed.request(&both)).await;
    site::refused(&gateway, &answer, "ek-not-endorsed");
    // Nothing of that has taken the instance.
    drop(with_tpm(&gateway).attest(&gateway, &both).await.ticket());
}

/// Starts a gateway with a pool that requires a token together with the identity document. Returns it with a token for the pool.
fn with_token(arguments: &[&str]) -> (Gateway, String) {
    let gateway = site::start(r#"[["aws-identity-document", "token"]]"#, &[DOCUMENT]);
    let token = gateway.token(arguments);
    (gateway, token)
}

#[tokio::test(flavor = "multi_thread")]
async fn spends_the_token_only_after_all_other_checks() {
    let (gateway, token) = with_token(&["--name", "rack-7", "--uses", "1"]);
    let kinds = [Kind::AwsIdentityDocument, Kind::Token];
    let node = Machine::new().but(|machine| machine.token.clone_from(&token));
    let broken = |machine: Machine| machine.but(|machine| machine.token.clone_from(&token));
    let image = broken(Machine::new()).but(|machine| machine.aws.image_id = "ami-00000000000000000".to_owned());
    for _ in 0..3 {
        site::refused(&gateway, &image.attest(&gateway, &kinds).await, "aws-image-not-accepted");
    }
    let altered = |evidence: &mut Evidence, _: &Asked| evidence.aws_identity_document.as_mut().unwrap().pkcs7.0.clear();
    let answer = node.attest_altered(&gateway, &kinds, altered).await;
    site::refused(&gateway, &answer, "aws-document-malformed");
    // Whose name is taken, or who is revoked, is refused for that, and uses nothing up.
    gateway.command(&["node", "revoke", "--anyway", "aws:123456789012/i-00000000000000009"]);
    let revoked = broken(Machine::new()).but(|machine| machine.aws.instance_id = "i-00000000000000009".to_owned());
    site::refused(&gateway, &revoked.attest(&gateway, &kinds).await, "node-revoked");
    let record = site::trusted(&gateway, &node.attest(&gateway, &kinds).await, AWS_IDENTITY, &kinds);
    assert_eq!(record["claims"]["token"], "rack-7");
    // Used up, for the next machine and for the same one.
    let next = broken(Machine::new()).but(|machine| machine.aws.instance_id = "i-00000000000000001".to_owned());
    site::refused(&gateway, &next.attest(&gateway, &kinds).await, "token-spent");
    // The same machine is, whose first boot began anew.
    node.attest(&gateway, &kinds).await.ticket();
    let record = gateway.records().pop().unwrap();
    assert_eq!((&record["use_number"], &record["again"]), (&1.into(), &true.into()));
    // What was refused for the token has not taken the instance.
    let list = gateway.command(&["machines", "list"]);
    assert!(!list.contains("i-00000000000000001"), "{list}");
    let fresh = gateway.token(&[]);
    let next = next.but(|machine| machine.token.clone_from(&fresh));
    drop(next.attest(&gateway, &kinds).await.ticket());

    let log = std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    for secret in [&token, &fresh] {
        assert!(!log.contains(secret.as_str()) && !gateway.output().contains(secret.as_str()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_wrong_token_and_a_token_alone() {
    let (gateway, token) = with_token(&[]);
    let of_infra = gateway.command(&["token", "create", "--pool", "infra"]).trim().to_owned();
    let kinds = [Kind::AwsIdentityDocument, Kind::Token];
    let check = async |token: &str, code: &str| {
        let node = Machine::new().but(|machine| machine.token = token.to_owned());
        site::refused(&gateway, &node.attest(&gateway, &kinds).await, code);
    };
    check(&of_infra, "token-wrong-pool").await;
    for wrong in ["", "x", &token[..token.len() - 1], &format!("{token}0"), &token.to_uppercase()] {
        check(wrong, "token-invalid").await;
    }
    // The pool gives nothing for a token alone.
    let answer = gateway.config("/config/worker", &[&bearer(&token)]).await;
    answer.refused(403, "token-not-accepted");
    // Nor for a document alone.
    let offer = Machine::new().request(&[Kind::AwsIdentityDocument]);
    let answer = gateway.post("/v1/attest/challenge", &offer).await;
    site::refused(&gateway, &answer, "evidence-not-accepted");
    let empty = |evidence: &mut Evidence, _: &Asked| evidence.token = None;
    let node = Machine::new().but(|machine| machine.token.clone_from(&token));
    let answer = node.attest_altered(&gateway, &kinds, empty).await;
    site::refused(&gateway, &answer, "evidence-incomplete");
    drop(node.attest(&gateway, &kinds).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn token_guesses_with_evidence_are_rate_limited() {
    let (gateway, token) = with_token(&[]);
    let kinds = [Kind::AwsIdentityDocument, Kind::Token];
    let node = Machine::new().but(|machine| machine.token = "guess".to_owned());
    let mut codes = Vec::new();
    for _ in 0..30 {
        codes.push(node.attest(&gateway, &kinds).await.code());
    }
    assert!(codes.iter().any(|code| code == "token-invalid"));
    assert_eq!(codes.last().unwrap(), "unavailable");
    // A right one is taken, from the same address.
    let node = Machine::new().but(|machine| machine.token.clone_from(&token));
    drop(node.attest(&gateway, &kinds).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_missing_or_additional_kinds_of_evidence() {
    let gateway = site::start(r#"[["tpm", "gcp"], ["gcp"]]"#, &[TPM, GCP]);
    let check = async |offer: &[Kind], alter: fn(&mut Evidence, &Asked)| {
        let answer = with_tpm(&gateway).attest_altered(&gateway, offer, alter).await;
        site::refused(&gateway, &answer, "evidence-incomplete");
    };
    let both = [Kind::Tpm, Kind::Gcp];
    check(&both, |evidence, _| evidence.tpm = None).await;
    check(&both, |evidence, _| evidence.gcp = None).await;
    check(&both, |evidence, _| *evidence = Evidence::default()).await;
    check(&[Kind::Gcp], |evidence, asked| {
        evidence.aws_nitro_tpm = {
            let document = Machine::new().nitro_document(asked).document();
            Some(super::machine::nitro_evidence(document))
        }
    })
    .await;
    check(&[Kind::Gcp], |evidence, _| {
        evidence.token = Some(TokenEvidence {
            token: SecretText::default(),
        });
    })
    .await;
    check(&[Kind::Gcp], |evidence, _| {
        *evidence = Evidence {
            gcp: None,
            token: Some(TokenEvidence {
                token: SecretText::default(),
            }),
            ..Evidence::default()
        };
    })
    .await;
    let none = gateway
        .post("/v1/attest/challenge", &json!({"pool": "worker", "attester": {}}))
        .await;
    site::refused(&gateway, &none, "evidence-not-accepted");
}
