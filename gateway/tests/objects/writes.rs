//! Writes to the cluster's API that unauthenticated clients cause, next to those of honest nodes.

use std::time::Instant;

use attest::challenge::Subject;
use attest::gcp::{Audience, GcpTask};
use attest::protocol::{Evidence, EvidenceRequest, HexDigest};
use attest::{Challenge, SpkiSha256};
use attest_gateway::credentials::challenges;
use attest_gateway::credentials::seal::SealKeyRing;
use data_encoding::BASE64URL_NOPAD;

use super::boots::{commits, gateway};
use super::*;
use crate::cloud_evidence::machine::{GOOGLE, gcp_evidence};
use crate::cloud_evidence::site::{GCP, KEYS_OF_FILE, TPM, pool, write};
use crate::support::{Case, Gateway, POOL, next_boot, now, tpm};

const EVIDENCE: &str = "/v1/attest/evidence";
/// Maximum number of the gateway's own writes during a test: renewals of its lease, and removals of expired entries.
const BESIDE: usize = 20;
/// Challenges that unauthenticated clients can spend at once, and per second beyond that.
const SPENDS: usize = 500;
const SPENDS_EACH_SECOND: u64 = 10;

struct Fixture {
    site: Site,
    gateway: Gateway,
    seal: SealKeyRing,
    node: Case,
}

async fn fixture() -> Fixture {
    let site = Site::start();
    let mut gateway = gateway(&site, "one", KEYS_OF_FILE);
    write(&gateway, "google-jwks.json", GOOGLE.jwks().to_string());
    pool(&gateway, POOL, r#"[["gcp"], ["tpm"]]"#, &[GCP, TPM]);
    gateway.command(&["store", "create-key"]);
    let node = tpm();
    gateway.endorse(&node, &[]);
    gateway.run();
    let store: Arc<dyn attest_store::Store> = Arc::new(site.open("reader"));
    let seal = SealKeyRing::open_shared(store, &gateway.path("store.key"), now()).await.unwrap();
    Fixture { site, gateway, seal, node }
}

impl Fixture {
    fn answer(&self) -> EvidenceRequest {
        let boot = next_boot(&self.node);
        let challenge = self.gateway.challenge(&boot, None);
        self.gateway.answer_sealed(boot, &challenge, &self.seal)
    }

    /// Returns an unauthenticated client's evidence for an identity token's challenge. Its token has no valid signature; the audience is
    /// the requested one, or an invented one.
    fn token(&self, is_for_it: bool) -> EvidenceRequest {
        let boot = next_boot(&self.node);
        let mut challenge: Challenge = self.gateway.challenge(&boot, None);
        let name = "gateway.example.com".to_owned();
        let key = SpkiSha256::from_certificate(&self.gateway.certificate()).unwrap();
        let audience = Audience::new(&name, &challenge.purpose, POOL, challenge.nonce.as_ref(), &key);
        challenge.subject = Subject {
            gcp: Some(GcpTask { gateway: name }),
            ..Subject::default()
        };
        let audience = if is_for_it { audience.as_str() } else { "https://example.com" };
        let parts = [
            r#"{"alg":"RS256","kid":"1"}"#.to_owned(),
            json!({ "aud": audience }).to_string(),
            "signature".to_owned(),
        ];
        let token = parts.map(|part| BASE64URL_NOPAD.encode(part.as_bytes())).join(".");
        EvidenceRequest {
            challenge: challenges::seal(&self.seal, &challenge).unwrap(),
            evidence: Evidence {
                gcp: Some(gcp_evidence(token)),
                ..Evidence::default()
            },
            config: None,
        }
    }

    async fn attests(&self) {
        drop(self.gateway.post(EVIDENCE, &self.answer()).await.ticket());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_56_mismatched_evidence_writes_nothing_and_keeps_its_challenge() {
    let fixture = fixture().await;
    let (honest, before) = (fixture.answer(), commits(&fixture.site));
    let altered = |alter: fn(&mut Evidence)| {
        let mut body = honest.clone();
        alter(&mut body.evidence);
        body
    };
    let rubbish = [
        (
            altered(|evidence| evidence.tpm.as_mut().unwrap().secret_sha256 = HexDigest::from([7; 32])),
            (403, "credential-mismatch"),
        ),
        (altered(|evidence| evidence.tpm = None), (400, "evidence-incomplete")),
        (
            altered(|evidence| evidence.gcp = Some(gcp_evidence(String::new()))),
            (400, "evidence-incomplete"),
        ),
        (
            altered(|evidence| evidence.gcp = Some(gcp_evidence("a".repeat(100_000)))),
            (400, "malformed-request"),
        ),
        (fixture.token(false), (403, "gcp-identity-audience")),
        (
            {
                let mut body = fixture.token(true);
                body.evidence.gcp = Some(gcp_evidence("not.a.token".to_owned()));
                body
            },
            (403, "gcp-identity-malformed"),
        ),
    ];
    for _ in 0..50 {
        for (body, (status, code)) in &rubbish {
            fixture.gateway.post(EVIDENCE, body).await.refused(*status, code);
        }
    }
    let written = commits(&fixture.site) - before;
    assert!(written <= BESIDE, "{written} commits for 300 pieces of rubbish");
    // The node that was asked answers still, once.
    drop(fixture.gateway.post(EVIDENCE, &honest).await.ticket());
    fixture.gateway.post(EVIDENCE, &honest).await.refused(403, "challenge-spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_56_limits_challenge_spends_of_unauthenticated_clients() {
    let fixture = fixture().await;
    let (begun, before) = (Instant::now(), commits(&fixture.site));
    let (mut spent, mut told) = (0, 0);
    while told < 100 {
        assert!(
            begun.elapsed() < crate::support::LIMIT,
            "nobody is told to retry, {spent} were spent"
        );
        let bodies: Vec<_> = (0..20).map(|_| fixture.token(true)).collect();
        let answers = bodies.iter().map(|body| fixture.gateway.post(EVIDENCE, body));
        for answer in futures_util::future::join_all(answers).await {
            match answer.status.as_u16() {
                503 => told += 1,
                _ => spent += 1,
            }
        }
    }
    let most = SPENDS + usize::try_from(SPENDS_EACH_SECOND * (begun.elapsed().as_secs() + 2)).unwrap();
    assert!(
        spent <= most && told > 0,
        "{spent} of at most {most} were spent, {told} were told to retry"
    );
    let written = commits(&fixture.site) - before;
    assert!(
        written <= spent + BESIDE + usize::try_from(begun.elapsed().as_secs()).unwrap(),
        "{written}"
    );
    for _ in 0..3 {
        fixture.attests().await;
    }
    // Whoever is told to retry is told when.
    let again = loop {
        let asked = fixture
            .gateway
            .client
            .post(fixture.gateway.url(EVIDENCE))
            .json(&fixture.token(true));
        let answer = asked.send().await.unwrap();
        if answer.status() == 503 {
            break answer.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap();
        }
        assert!(begun.elapsed() < crate::support::LIMIT, "nobody is told to retry");
    };
    assert!((1..=60).contains(&again), "{again}");
}
