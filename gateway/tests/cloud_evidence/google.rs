//! Identity tokens of Google and certificates of vTPMs that must be refused.

use attest::{Kind, SpkiSha256};
use aws_lc_rs::rsa::KeySize;
use cloud_fixtures::clock;
use cloud_fixtures::google::{GoogleInstance, JwtSigner, vtpm};
use cloud_fixtures::tampering::{self, each_member_removed, each_value};
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::machine::{GOOGLE, Machine, gcp_evidence};
use super::site::{self, GCP, TPM, VTPM};
use crate::support::{Answer, Gateway, tpm};

/// Presents this instead of the identity token.
async fn show(gateway: &Gateway, token: impl FnOnce(&str) -> String) -> Answer {
    let alter = |evidence: &mut attest::protocol::Evidence, _: &_| {
        let good = evidence.gcp.as_ref().unwrap().token.0.clone();
        evidence.gcp = Some(gcp_evidence(token(&good)));
    };
    Machine::new().attest_altered(gateway, &[Kind::Gcp], alter).await
}

async fn check(gateway: &Gateway, token: impl FnOnce(&str) -> String, code: &str) {
    let answer = show(gateway, token).await;
    site::refused(gateway, &answer, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_16_refuses_an_altered_identity_token() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let claims = GoogleInstance::example(0).claims("", 0);
    for (path, _) in each_value(&claims) {
        let alter = |claims: &mut Value| *claims.pointer_mut(&path).unwrap() = altered(claims, &path);
        // The audience is looked for before the challenge is spent; all else is read after the signature holds.
        let code = match path.as_str() {
            "/aud" => "gcp-identity-audience",
            _ => "gcp-identity-signature",
        };
        check(&gateway, |token| tampering::unsigned_identity_token(token, alter), code).await;
    }
    for bit in [0, 100, 255] {
        let flipped = |token: &str| {
            let (signed, signature) = token.rsplit_once('.').unwrap();
            let signature = data_encoding::BASE64URL_NOPAD.decode(signature.as_bytes()).unwrap();
            let flipped = tampering::each_byte(&signature).nth(bit).unwrap();
            format!("{signed}.{}", data_encoding::BASE64URL_NOPAD.encode(&flipped))
        };
        check(&gateway, flipped, "gcp-identity-signature").await;
    }
}

/// Returns the value at this path, altered.
fn altered(document: &Value, path: &str) -> Value {
    let (_, altered) = each_value(document).into_iter().find(|(found, _)| found == path).unwrap();
    altered.pointer(path).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_16_refuses_signed_tokens_outside_the_pools_rules() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let signed = async |path: &str, value: Value, code: &str| {
        let alter = |claims: &mut Value| *claims.pointer_mut(path).unwrap() = value;
        check(&gateway, |token| tampering::identity_token(token, &GOOGLE, alter), code).await;
    };
    let now = clock::now();
    let instance = |field: &str| format!("/google/compute_engine/{field}");
    signed("/iss", json!("https://accounts.example.com"), "gcp-identity-issuer").await;
    signed("/iss", json!("accounts.google.com"), "gcp-identity-malformed").await;
    signed("/aud", json!("https://vault/role"), "gcp-identity-audience").await;
    signed("/aud", json!([]), "gcp-identity-audience").await;
    signed("/exp", json!(now - 100), "gcp-identity-time").await;
    signed("/exp", json!(now + 100_000), "gcp-identity-time").await;
    signed("/iat", json!(now - 1200), "gcp-identity-time").await;
    signed("/iat", json!(now + 600), "gcp-identity-time").await;
    signed("/azp", json!("1"), "gcp-identity-service-account").await;
    signed("/email_verified", json!(false), "gcp-identity-service-account").await;
    signed("/email", json!("other@example.com"), "gcp-service-account-refused").await;
    signed(&instance("project_id"), json!("other-project"), "gcp-project-refused").await;
    signed(&instance("project_number"), json!(1), "gcp-project-refused").await;
    signed(&instance("zone"), json!("us-central1-a"), "gcp-location-refused").await;
    signed(&instance("instance_name"), json!("master-7"), "gcp-name-refused").await;
    signed(&instance("instance_id"), json!("x"), "gcp-identity-not-an-instance").await;
    signed(&instance("license_id"), json!(["1000204"]), "gcp-license-refused").await;
    signed(&instance("instance_creation_timestamp"), json!(now - 7200), "gcp-instance-too-old").await;
    signed(&instance("instance_creation_timestamp"), json!(now + 7200), "gcp-identity-time").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_16_a_token_without_one_of_its_claims_is_refused() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let claims = GoogleInstance::example(0).claims("", 0);
    // What no rule is about.
    let optional = ["/google/compute_engine/instance_confidentiality"];
    for (path, _) in each_member_removed(&claims) {
        let remove = |claims: &mut Value| {
            let (parent, name) = path.rsplit_once('/').unwrap();
            claims.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
        };
        let answer = show(&gateway, |token| tampering::identity_token(token, &GOOGLE, remove)).await;
        if optional.contains(&path.as_str()) {
            drop(answer.ticket());
        } else {
            assert_ne!(answer.status.as_u16(), 200, "{path}");
            site::refused(&gateway, &answer, &answer.code());
        }
    }
    // What Vault took: a service account has itself a token signed that names an instance, and says for nobody.
    let forged = |claims: &mut Value| drop(claims.as_object_mut().unwrap().remove("aud"));
    check(
        &gateway,
        |token| tampering::identity_token(token, &GOOGLE, forged),
        "gcp-identity-audience",
    )
    .await;
    let standard = |claims: &mut Value| drop(claims.as_object_mut().unwrap().remove("google"));
    check(
        &gateway,
        |token| tampering::identity_token(token, &GOOGLE, standard),
        "gcp-identity-not-an-instance",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_16_the_header_of_a_token_chooses_neither_algorithm_nor_key() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let stranger = JwtSigner::new(KeySize::Rsa2048);
    let header = async |signer: &JwtSigner, header: Value, code: &str| {
        let sign = |token: &str| signer.sign_with(&header, &tampering::claims(token));
        check(&gateway, sign, code).await;
    };
    let kid = GOOGLE.kid();
    header(&stranger, json!({"alg": "RS256", "kid": kid}), "gcp-identity-signature").await;
    header(&stranger, json!({"alg": "RS256", "kid": "another"}), "gcp-identity-key-unknown").await;
    header(&GOOGLE, json!({"alg": "RS256"}), "gcp-identity-key-unknown").await;
    for alg in ["none", "HS256", "RS384", "RS512", "PS256", "ES256", "rs256"] {
        header(&GOOGLE, json!({"alg": alg, "kid": kid}), "gcp-identity-algorithm").await;
    }
    let jwk = stranger.jwk(kid);
    for (field, value) in [
        ("jwk", jwk),
        ("jku", json!("https://evil.example/keys")),
        ("x5u", json!("https://evil.example/chain")),
        ("x5c", json!(["MIIB"])),
        ("crit", json!(["exp"])),
    ] {
        header(
            &stranger,
            json!({"alg": "RS256", "kid": kid, field: value}),
            "gcp-identity-algorithm",
        )
        .await;
    }
    // The key that everybody knows is no secret to sign with.
    let symmetric = |token: &str| {
        use aws_lc_rs::hmac;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &GOOGLE.public_der());
        let header = json!({"alg": "HS256", "kid": kid}).to_string();
        let sign = |input: &[u8]| hmac::sign(&key, input).as_ref().to_vec();
        let claims = tampering::claims(token).to_string();
        cloud_fixtures::google::identity_token::compact(header.as_bytes(), claims.as_bytes(), sign)
    };
    check(&gateway, symmetric, "gcp-identity-algorithm").await;
    let unsigned = |token: &str| format!("{}.", token.rsplit_once('.').unwrap().0);
    check(&gateway, unsigned, "gcp-identity-signature").await;
    check(&gateway, |_| String::new(), "gcp-identity-malformed").await;
    check(&gateway, |token| format!("{token}.{token}"), "gcp-identity-malformed").await;
    check(&gateway, |_| "a".repeat(9000), "gcp-identity-malformed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_refuses_an_identity_token_bound_elsewhere() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let other = async |change: fn(&mut super::machine::Asked)| {
        let machine = Machine::new();
        let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
        let evidence = machine.evidence(&asked.but(change));
        let answer = asked.show(&gateway, evidence).await;
        site::refused(&gateway, &answer, "gcp-identity-audience");
    };
    other(|asked| asked.key = SpkiSha256([1; 32])).await;
    other(|asked| asked.nonce = vec![1; 32]).await;
    other(|asked| asked.pool = "infra".to_owned()).await;
    other(|asked| asked.purpose = "other".to_owned()).await;
    other(|asked| asked.task.gcp.as_mut().unwrap().gateway = "other.example.com".to_owned()).await;
    // And what was accepted once, for the next challenge.
    let machine = Machine::new();
    let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
    let evidence = machine.evidence(&asked);
    drop(asked.show(&gateway, evidence.clone()).await.ticket());
    site::refused(&gateway, &asked.show(&gateway, evidence.clone()).await, "challenge-spent");
    let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
    site::refused(&gateway, &asked.show(&gateway, evidence).await, "gcp-identity-audience");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_17_refuses_a_recreated_instance_with_same_name() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let named = |machine: &mut Machine| machine.name = Some("worker-7".to_owned());
    let first = Machine::new().but(named);
    let identity = "gcp:example-project/152986662232938449";
    site::trusted(&gateway, &first.attest(&gateway, &[Kind::Gcp]).await, identity, &[Kind::Gcp]);
    let recycled = Machine::new().but(named).but(|machine| machine.google.instance_id = 1);
    let answer = recycled.attest(&gateway, &[Kind::Gcp]).await;
    let record = site::refused(&gateway, &answer, "node-name-taken");
    assert_eq!(record["identity"], "gcp:example-project/1");
    assert!(!String::from_utf8_lossy(&answer.body).contains(identity));
    // Nor does the first collect another name.
    let renamed = first.but(|machine| machine.name = Some("worker-8".to_owned()));
    site::refused(&gateway, &renamed.attest(&gateway, &[Kind::Gcp]).await, "node-name-taken");
    // What is revoked is the machine, whether it says its name or not.
    gateway.command(&["node", "revoke", "worker-7"]);
    let nameless = Machine::new().attest(&gateway, &[Kind::Gcp]).await;
    site::refused(&gateway, &nameless, "node-revoked");
    gateway.command(&["node", "restore", "worker-7"]);
    gateway.command(&["node", "forget", "worker-7"]);
    let answer = recycled.attest(&gateway, &[Kind::Gcp]).await;
    site::trusted(&gateway, &answer, "gcp:example-project/1", &[Kind::Gcp]);
}

/// Starts a gateway with a pool that accepts the vTPMs of the project's instances, and no other TPMs.
fn vtpms() -> Gateway {
    let of_google = TPM.replace("allowlist", "gcp-instance");
    let of_instance = "[gcp]\nprojects = [{ id = \"example-project\", number = 739419398126 }]\nregions = [\"europe-west3\"]\n\
                       instance_names = [\"worker-*\"]\n";
    let mut gateway = site::init(r#"[["tpm", "gcp"], ["tpm"]]"#, &[&of_google, of_instance]);
    gateway.run();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_03_refuses_a_vtpm_not_certified_by_google() {
    let gateway = vtpms();
    let check = async |machine: Machine, code: &str| {
        let answer = gateway.post("/v1/attest/challenge", &machine.request(&[Kind::Tpm])).await;
        let answer = if answer.status.as_u16() == 200 {
            machine.attest(&gateway, &[Kind::Tpm]).await
        } else {
            answer
        };
        site::refused(&gateway, &answer, code);
    };
    let instance = |change: fn(&mut GoogleInstance)| site::with_vtpm(Machine::new().but(|machine| change(&mut machine.google)));
    check(instance(|instance| instance.project_id = "other".to_owned()), "gcp-project-refused").await;
    check(instance(|instance| instance.project_number = 1), "gcp-project-refused").await;
    check(
        instance(|instance| instance.zone = "us-central1-a".to_owned()),
        "gcp-location-refused",
    )
    .await;
    check(
        instance(|instance| instance.instance_name = "master".to_owned()),
        "gcp-name-refused",
    )
    .await;

    let stranger = vtpm::VtpmCa::new(KeyPair::generate().unwrap());
    let key = KeyPair::generate().unwrap();
    let certified = |ca: &vtpm::VtpmCa, change: fn(&mut rcgen::CertificateParams)| {
        let machine = site::with_vtpm(Machine::new());
        let mut params = vtpm::ek_params(&machine.google);
        change(&mut params);
        let certificate = ca.issue(&params, &key);
        machine.but(|machine| machine.ek_certificate = Some(certificate))
    };
    // By somebody who calls himself Google; for another's EK; for no instance; for none at all.
    check(certified(&stranger, |_| ()), "gcp-vtpm-certificate").await;
    check(certified(&VTPM, |_| ()), "gcp-ek-mismatch").await;
    check(certified(&VTPM, |params| params.custom_extensions.clear()), "gcp-vtpm-no-instance").await;
    let uncertified = Machine::new().but(|machine| machine.tpm = Some(tpm()));
    check(uncertified, "ek-not-endorsed").await;
    // The administrator's word about the EK does not say which instance it is.
    let case = tpm();
    gateway.endorse(&case, &[]);
    check(Machine::new().but(|machine| machine.tpm = Some(case)), "ek-not-endorsed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_vtpm_and_identity_token_of_different_instances() {
    let gateway = vtpms();
    let kinds = [Kind::Tpm, Kind::Gcp];
    let check = async |change: fn(&mut GoogleInstance)| {
        let machine = site::with_vtpm(Machine::new()).but(|machine| change(&mut machine.google));
        let answer = machine.attest(&gateway, &kinds).await;
        site::refused(&gateway, &answer, "gcp-instance-mismatch");
    };
    check(|instance| instance.instance_id += 1).await;
    check(|instance| instance.project_number += 1).await;
}
