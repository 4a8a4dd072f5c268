//! Endorsement of a TPM by the allowlist or by a manufacturer that the pool trusts, or none; at the challenge and at the evidence.

use std::fs;

use crate::support::soft_tpm::Case;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Answer, Gateway, challenge_request, digest, next_boot, now, tpm};
use attest::protocol::ChallengeResponse;

/// Returns a TPM with a certificate of this manufacturer.
fn certified(maker: &Maker) -> Case {
    let (area, certificate) = maker.ek();
    tpm().but(|case| {
        case.ek_area = area;
        case.ek_certificate = Some(certificate);
    })
}

/// Makes the pool of workers accept any TPM of a trusted manufacturer.
fn takes_makers(gateway: &Gateway) {
    let any = "endorsement = \"any-tpm-of-a-trusted-maker\"";
    gateway.edit_pool("worker", "endorsement = \"allowlist\"", any);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_03_refuses_a_challenge_for_an_unendorsed_tpm() {
    let gateway = Gateway::start();
    let case = tpm();
    let ek = digest(&case);
    let request = challenge_request(&case, "worker");
    let answer = gateway.post("/v1/attest/challenge", &request).await;
    answer.refused(403, "ek-not-endorsed");
    let line = gateway.line(|line| line.contains("NOT TRUSTED") && line.contains(&ek));
    assert!(
        line.contains("code=ek-not-endorsed") && line.contains(&format!("attest-gateway ek add {ek}")),
        "{line}"
    );
    assert!(
        answer.problem().next_step.contains(&format!("attest-gateway ek add {ek}")),
        "{answer:?}"
    );
    let record = gateway.records().pop().unwrap();
    assert_eq!(
        (record["decision"].as_str(), record["verdict"].as_str()),
        (Some("challenge"), Some("refused"))
    );
    assert_eq!(record["code"], "ek-not-endorsed");
    assert_eq!(record["identity"], format!("tpm:{ek}"));

    // The administrator does just that, while the gateway serves.
    gateway.endorse(&case, &["--name", "worker-7"]);
    let answer = gateway.post("/v1/attest/challenge", &request).await;
    let response: ChallengeResponse = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((response.nonce.0.len(), response.purpose.as_str()), (32, "ignition-config"));
    assert!(response.expires > now());
    assert_eq!(gateway.records().len(), 1, "a challenge given decides nothing");

    // And takes it back: a challenge that was given before is worth nothing either.
    let challenge = gateway.challenge(&case, None);
    let evidence = gateway.answer(case, &challenge);
    gateway.command(&["ek", "remove", &ek]);
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "ek-not-endorsed");
}

/// A pool accepts any TPM of a manufacturer, another one the allowlist, and the administrator has admitted a machine to one pool only.
#[tokio::test(flavor = "multi_thread")]
async fn attack_32_accepts_manufacturer_endorsed_tpms_only_in_trusting_pools() {
    let mut gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    takes_makers(&gateway);
    gateway.run();
    gateway.line(|line| line.contains("pool worker gives its full config to any TPM of a manufacturer in the EK roots"));
    let bought = certified(&maker);
    let asked = async |case: &Case, pool: &str| gateway.post("/v1/attest/challenge", &challenge_request(case, pool)).await;
    let given = |answer: &Answer| assert!(serde_json::from_slice::<ChallengeResponse>(&answer.body).is_ok(), "{answer:?}");
    given(&asked(&bought, "worker").await);
    asked(&bought, "infra").await.refused(403, "ek-not-endorsed");
    let record = gateway.records().pop().unwrap();
    assert!(
        record["reason"]
            .as_str()
            .unwrap()
            .contains("or the pool has no root of TPM manufacturers"),
        "{record}"
    );
    // Also of a challenge that was given while the pool took it.
    let into = |pool: &str| {
        next_boot(&bought).but(|case| {
            case.pool = pool.to_owned();
            case.ek_certificate.clone_from(&bought.ek_certificate);
        })
    };
    gateway.attest(into("infra"), None).await.refused(403, "ek-not-endorsed");
    drop(gateway.attest(into("worker"), None).await.ticket());

    // A machine that is let into one pool may not join another, whoever has made its TPM.
    let restricted = certified(&maker);
    given(&asked(&restricted, "worker").await);
    gateway.endorse(&restricted, &["--pool", "infra"]);
    given(&asked(&restricted, "infra").await);
    asked(&restricted, "worker").await.refused(403, "ek-not-endorsed");
    gateway.endorse(&restricted, &["--pool", "infra", "--pool", "worker"]);
    given(&asked(&restricted, "worker").await);
    // Another TPM's certificate does not help.
    let borrowed = certified(&maker).but(|case| case.ek_certificate.clone_from(&bought.ek_certificate));
    asked(&borrowed, "worker").await.refused(403, "ek-certificate-mismatch");
}

/// Starts a gateway whose workers may have any TPM of this manufacturer.
fn trusting(maker: &Maker) -> Gateway {
    let mut gateway = Gateway::init();
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    takes_makers(&gateway);
    gateway.run();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_32_refuses_evidence_after_the_ek_root_was_removed() {
    for change in ["none", "restart", "while it runs", "SIGHUP"] {
        let maker = Maker::new("A maker of TPMs");
        let mut gateway = trusting(&maker);
        let root = gateway.path("ek-roots/maker.der");
        let case = certified(&maker);
        let asked = gateway.post("/v1/attest/challenge", &challenge_request(&case, "worker")).await;
        assert_eq!(asked.status, 200);
        let challenge = gateway.challenge(&case, None);
        let evidence = gateway.answer(case, &challenge);
        let other = Maker::new("Another maker");
        match change {
            "restart" => {
                gateway.kill();
                fs::write(&root, other.root()).unwrap();
                gateway.run();
            }
            "while it runs" => {
                fs::write(&root, other.root()).unwrap();
                gateway.line(|line| line.contains("reloaded the EK roots: 1 certificates"));
            }
            "SIGHUP" => {
                fs::write(&root, other.root()).unwrap();
                gateway.hang_up();
                gateway.line(|line| line.contains("reloaded the EK roots: 1 certificates"));
            }
            _ => {}
        }
        let answer = gateway.post("/v1/attest/evidence", &evidence).await;
        if change == "none" {
            drop(answer.ticket());
            continue;
        }
        answer.refused(403, "ek-not-endorsed");
        drop(gateway.attest(certified(&other), None).await.ticket());
        let record = gateway.records().pop().unwrap();
        assert!(record["basis"]["ek_roots"].is_string(), "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_last_good_ek_roots() {
    let maker = Maker::new("A maker of TPMs");
    let gateway = trusting(&maker);
    let broken = gateway.path("ek-roots/other.der");
    fs::write(&broken, "garbage").unwrap();
    let line = gateway.line(|line| line.contains("cannot reload the EK roots; keeping the previous ones"));
    assert!(line.contains("ERROR") && line.contains("other.der"), "{line}");
    gateway.hang_up();
    gateway.line(|line| line.contains("SIGHUP: reloaded nothing; broken, the last good state stays: EK roots"));
    drop(gateway.attest(certified(&maker), None).await.ticket());
    let other = Maker::new("Another maker");
    fs::write(&broken, other.root()).unwrap();
    gateway.line(|line| line.contains("reloaded the EK roots: 2 certificates"));
    drop(gateway.attest(certified(&other), None).await.ticket());
    // Without any, only the allowlist endorses.
    fs::remove_dir_all(gateway.path("ek-roots")).unwrap();
    gateway.line(|line| line.contains("reloaded the EK roots: 0 certificates"));
    gateway.attest(certified(&other), None).await.refused(403, "ek-not-endorsed");
    fs::create_dir(gateway.path("ek-roots")).unwrap();
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    gateway.lines(2, |line| {
        line.contains("reloaded the EK roots: 1 certificates") || line.contains("reloaded the EK roots: 2 certificates")
    });
    drop(gateway.attest(certified(&maker), None).await.ticket());
}
