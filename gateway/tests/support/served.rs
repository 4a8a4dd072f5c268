//! Gateway in this process, at a time that a test chooses.

use std::sync::Arc;
use std::time::Instant;

use attest_gateway::server::{ServeError, Server};
use attest_gateway::settings::Settings;
use attest_log::JournalError;
use attest_store::Store;
use attest_system::clock::Clock;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::kubelet::embedded;
use super::{Gateway, LIMIT};

/// Gateway in this process whose clock stands still.
pub struct Served {
    pub gateway: Arc<attest_gateway::api::Gateway>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

pub async fn serve(gateway: &Gateway, clock: u64) -> Served {
    let server = bind(gateway, Clock::Fixed(clock), || Arc::new(embedded(gateway))).await;
    let (stop, stopped) = oneshot::channel();
    let inner = Arc::clone(server.gateway());
    let done = tokio::spawn(server.serve(async { drop(stopped.await) }));
    Served {
        gateway: inner,
        stop,
        done,
    }
}

/// Binds a gateway, also if another one has just ended that releases its log a moment later.
pub async fn bind(gateway: &Gateway, clock: Clock, store: impl Fn() -> Arc<dyn Store>) -> Server {
    let begun = Instant::now();
    loop {
        let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
        match Server::bind_with(settings, clock, store()).await {
            Ok(server) => return server,
            Err(ServeError::Journal(JournalError::InUse(_)) | ServeError::Served(_)) if begun.elapsed() < LIMIT => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Served {
    /// Waits until the metrics report that the store time is this number of seconds ahead of the clock.
    pub async fn ahead(&self, seconds: u64) {
        let begun = Instant::now();
        let wanted = format!("attest_gateway_clock_ahead_seconds {seconds}\n");
        while !self.gateway.metrics.text().unwrap().contains(&wanted) {
            assert!(begun.elapsed() < LIMIT, "{}", self.gateway.metrics.text().unwrap());
            tokio::task::yield_now().await;
        }
    }

    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        self.done.await.unwrap();
    }
}
