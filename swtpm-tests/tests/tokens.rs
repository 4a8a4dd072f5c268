//! A machine whose pointer has the token from before the last rotation. Within the grace period it boots, and the log says so; after it,
//! the machine is refused. The gateway runs in this process, because the test sets its clock.
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use attest_gateway::server::Server;
use attest_gateway::settings::Settings;
use attest_system::clock::Clock;
use swtpm_tests::scenario::Site;
use swtpm_tests::{TestFolder, TestGateway};
use tokio::sync::oneshot;

const HOUR: u64 = 3600;

/// Gateway that serves a folder at a time of its own, until it is dropped.
struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    fn at(gateway: &TestGateway, time: u64) -> Self {
        let settings = Settings::load(&gateway.settings()).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (bound, ready) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(settings, Clock::Fixed(time)).await.unwrap();
                bound.send(()).unwrap();
                server.serve(async { drop(stopped.await) }).await;
            });
        });
        ready.blocking_recv().unwrap();
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn previous_tokens_are_valid_in_their_grace_period() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let gateway = site.gateway();
    let token = ["token", "create", "--pool", "worker", "--name", "rack7", "--ttl", "30d"];
    let previous = gateway.command(&token).unwrap();
    let rotated = now();
    gateway.command(&["token", "rotate", "rack7", "--grace", "24h"]).unwrap();
    let pointer = gateway.pointer(Some(previous.trim())).unwrap();

    let serving = Serving::at(site.gateway(), rotated + HOUR);
    let run = site
        .boot(site.vm().pointer(&pointer), &site.vm_folder("in-grace").unwrap())
        .unwrap();
    site.prove_exactly("full", &run.outcome).unwrap();
    let [record] = run.records.as_slice() else {
        unreachable!("{:?}", run.records)
    };
    assert_eq!(
        (record.shown(), record.verdict(), record.grant()),
        ("token", "served", Some("full"))
    );
    let alert = record.text("/alerts/0").unwrap();
    assert!(alert.starts_with("stale pointer: token \"rack7\" was rotated at "), "{alert}");
    drop(serving);

    let serving = Serving::at(site.gateway(), rotated + 25 * HOUR);
    let run = site
        .boot(site.vm().pointer(&pointer), &site.vm_folder("after-grace").unwrap())
        .unwrap();
    assert!(!run.outcome.ignition_succeeded(), "{:?}", run.outcome.exit_codes);
    assert_ne!(
        run.outcome.exit_codes.get("ignition-fetch"),
        Some(&0),
        "{:?}",
        run.outcome.exit_codes
    );
    assert!(run.outcome.files.is_empty(), "{:?}", run.outcome.files);
    let [record] = run.records.as_slice() else {
        unreachable!("{:?}", run.records)
    };
    assert_eq!((record.verdict(), record.code()), ("refused", Some("token-expired")));
    assert!(record.reason().contains("its pointer is stale"), "{}", record.reason());
    drop(serving);
}
