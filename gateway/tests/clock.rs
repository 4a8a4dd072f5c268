//! A clock that jumps under the gateway makes nothing good that was spent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::time::Instant;

use attest_gateway::audit::JournalError;
use attest_gateway::clock::Clock;
use attest_gateway::server::{ServeError, Server};
use attest_gateway::settings::Settings;
use support::kubelet::embedded;
use support::{Gateway, LIMIT, POOL, bearer, next_boot, now, tpm};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A gateway in this process whose clock stands still.
struct Served {
    gateway: Arc<attest_gateway::api::Gateway>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

async fn serve(gateway: &Gateway, clock: u64) -> Served {
    let begun = Instant::now();
    loop {
        let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
        let server = match Server::bind_with(settings, Clock::Fixed(clock), Arc::new(embedded(gateway))).await {
            Ok(server) => server,
            // The one before lets go of its log.
            Err(ServeError::Journal(JournalError::InUse(_))) if begun.elapsed() < LIMIT => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let (stop, stopped) = oneshot::channel();
        let inner = Arc::clone(server.gateway());
        let done = tokio::spawn(server.serve(async { drop(stopped.await) }));
        return Served {
            gateway: inner,
            stop,
            done,
        };
    }
}

impl Served {
    /// Waits until it has forgotten what it would forget.
    async fn ahead(&self, seconds: u64) {
        let begun = Instant::now();
        let wanted = format!("attest_gateway_clock_ahead_seconds {seconds}\n");
        while !self.gateway.metrics.text().unwrap().contains(&wanted) {
            assert!(begun.elapsed() < LIMIT, "{}", self.gateway.metrics.text().unwrap());
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.done.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_41_a_start_with_a_clock_two_days_ahead_makes_nothing_good_again() {
    const TWO_DAYS: u64 = 2 * 24 * 3600;
    let gateway = Gateway::init();
    gateway.settings("[ticket]\nuses = 1\n");
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let case = tpm();
    let first = serve(&gateway, now()).await;
    let start = first.gateway.clock.now().as_secs();
    first.ahead(0).await;
    gateway.endorse(&case, &[]);
    let token = bearer(&gateway.token(&["--uses", "1", "--ttl", "30d"]));
    let full = gateway.rendered(POOL, "full");
    let evidence = {
        let case = next_boot(&case);
        let challenge = gateway.challenge(&case, None);
        gateway.answer(case, &challenge)
    };
    let ticket = bearer(&gateway.post("/v1/attest/evidence", &evidence).await.ticket());
    for credential in [&ticket, &token] {
        gateway.config("/config/worker", &[credential]).await.is_config(&full);
    }
    first.stop().await;
    let wrong = serve(&gateway, start + TWO_DAYS).await;
    wrong.ahead(TWO_DAYS).await;
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-expired");
    wrong.stop().await;
    let right = serve(&gateway, start).await;
    right.ahead(0).await;
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-spent");
    gateway.config("/config/worker", &[&token]).await.refused(403, "token-spent");
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "challenge-spent");
    // And nobody else has to wait for that.
    let ticket = bearer(&gateway.attest(next_boot(&case), None).await.ticket());
    gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    right.stop().await;
}
