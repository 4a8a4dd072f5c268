//! Google's keys are unavailable, or have changed: nodes wait, and none is accepted wrongly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attest::Kind;
use cloud_fixtures::google::identity_provider::{ISSUER_HOST, KEYS_HOST};
use cloud_fixtures::google::{IdentityProvider, JwtSigner, StandInKeys};
use cloud_fixtures::server::ServerFault;

use super::machine::Machine;
use super::site::{self, GCP};
use crate::support::{Gateway, LIMIT};

const KINDS: [Kind; 1] = [Kind::Gcp];
const IDENTITY: &str = "gcp:example-project/152986662232938449";

/// Google's services, and a gateway that gets its keys from there.
struct Google {
    keys: Arc<StandInKeys>,
    provider: IdentityProvider,
    gateway: Gateway,
}

impl Google {
    fn start() -> Self {
        Self::start_with(|_| ())
    }

    /// Starts both with a fault of Google's from the beginning.
    fn start_with(wrong: impl FnOnce(&IdentityProvider)) -> Self {
        let keys = StandInKeys::new();
        let provider = IdentityProvider::start(keys.clone());
        wrong(&provider);
        let mut gateway = site::init(r#"[["gcp"]]"#, &[GCP]);
        site::write(&gateway, "outgoing-ca.pem", provider.ca_pem());
        let hosts = [ISSUER_HOST, KEYS_HOST].map(|host| format!("\"{host}\" = \"{}\"\n", provider.address()));
        gateway.settings(&format!(
            "[outgoing]\nca = \"outgoing-ca.pem\"\n[outgoing.connect]\n{}",
            hosts.concat()
        ));
        gateway.run();
        Self { keys, provider, gateway }
    }

    /// Returns a machine whose tokens this key signs.
    fn machine(signer: &Arc<JwtSigner>) -> Machine {
        Machine::new().but(|machine| machine.signer = signer.clone())
    }

    async fn trusted(&self, signer: &Arc<JwtSigner>) {
        let answer = Self::machine(signer).attest(&self.gateway, &KINDS).await;
        site::trusted(&self.gateway, &answer, IDENTITY, &KINDS);
    }

    async fn refused(&self, signer: &Arc<JwtSigner>, code: &str) {
        let answer = Self::machine(signer).attest(&self.gateway, &KINDS).await;
        site::refused(&self.gateway, &answer, code);
    }

    /// Boots repeatedly like a node, until it is trusted.
    async fn trusted_in_the_end(&self, signer: &Arc<JwtSigner>) {
        let deadline = Instant::now() + LIMIT;
        let mut pause = tokio::time::interval(Duration::from_secs(1));
        loop {
            pause.tick().await;
            let answer = Self::machine(signer).attest(&self.gateway, &KINDS).await;
            if answer.status.as_u16() == 200 {
                site::trusted(&self.gateway, &answer, IDENTITY, &KINDS);
                return;
            }
            let code = answer.code();
            assert!(["cloud-unavailable", "gcp-identity-key-unknown"].contains(&code.as_str()), "{code}");
            assert!(Instant::now() < deadline, "{code} for ever");
        }
    }
}

/// Returns a signer with a forged key under the id of Google's.
fn forger(signer: &JwtSigner) -> Arc<JwtSigner> {
    Arc::new(JwtSigner::with_id(aws_lc_rs::rsa::KeySize::Rsa2048, signer.kid()))
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_google_keys_and_detects_their_rotation() {
    let (dead, rotating) = (Google::start_with(|google| google.fail(ServerFault::Down)), Google::start());
    let at_first = async {
        let signer = dead.keys.current();
        let begun = Instant::now();
        let answer = Google::machine(&signer).attest(&dead.gateway, &KINDS).await;
        answer.refused(503, "cloud-unavailable");
        assert!(begun.elapsed() < LIMIT);
        assert_eq!(dead.gateway.records().len(), 0, "no verdict on the node");
        dead.gateway.line(|line| line.contains("cannot fetch Google's keys"));
        dead.provider.recover();
        dead.trusted_in_the_end(&signer).await;
        dead.refused(&forger(&signer), "gcp-identity-signature").await;
    };
    let in_the_middle = async {
        let old = rotating.keys.current();
        rotating.trusted(&old).await;
        let new = rotating.keys.rotate();
        rotating.trusted_in_the_end(&new).await;
        rotating.trusted(&old).await;
        // Discovery and keys, twice.
        assert_eq!(rotating.provider.requests().len(), 4);
        rotating.refused(&forger(&new), "gcp-identity-signature").await;
    };
    tokio::join!(at_first, in_the_middle);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_google_keys_are_used_during_an_outage() {
    let google = Google::start();
    let signer = google.keys.current();
    google.trusted(&signer).await;
    google.provider.fail(ServerFault::Down);
    for _ in 0..3 {
        google.trusted(&signer).await;
        google.refused(&forger(&signer), "gcp-identity-signature").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_16_trusts_nobody_while_google_keys_are_malformed() {
    let google = Google::start_with(|google| google.fail(ServerFault::Garbage));
    let signer = google.keys.current();
    for signer in [&signer, &forger(&signer)] {
        let answer = Google::machine(signer).attest(&google.gateway, &KINDS).await;
        answer.refused(503, "cloud-unavailable");
    }
    google
        .gateway
        .line(|line| line.contains("cannot fetch Google's keys") && line.contains("cannot be read"));
    assert!(google.gateway.records().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_19_a_flood_of_invented_key_ids_costs_google_two_requests() {
    let google = Google::start();
    google.trusted(&google.keys.current()).await;
    google.provider.forget_requests();
    let flood = Arc::new(JwtSigner::with_id(aws_lc_rs::rsa::KeySize::Rsa2048, "invented"));
    let begun = Instant::now();
    for _ in 0..40 {
        google.refused(&flood, "gcp-identity-key-unknown").await;
    }
    // One fetch, of two requests, in each half minute that this took.
    let most = 2 * (1 + begun.elapsed().as_secs() / 30);
    let requests = google.provider.requests().len();
    assert!(requests <= usize::try_from(most).unwrap(), "{requests} of {most}");
}
