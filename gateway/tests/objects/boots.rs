//! API requests of a boot, which docs/how-to/replicas.md states; and gateways that serve from one store there.

use std::fs;

use attest_gateway::credentials::seal::SealKeyRing;
use attest_store::settings::{EngineSettings, StoreSettings};

use super::*;
use crate::support::{Gateway, POOL, bearer, now, tpm};

/// Creates a gateway whose store is on this API, with additional settings.
pub(super) fn gateway(site: &Site, name: &str, more: &str) -> Gateway {
    let gateway = Gateway::init();
    let ClusterApi::Kubeconfig(kubeconfig) = site.settings(name).cluster.api else {
        panic!()
    };
    let cluster = format!("[cluster]\napi = {kubeconfig:?}\nnamespace = \"{NAMESPACE}\"\nconfigs = false\n");
    gateway.settings(&format!(
        "{cluster}[store]\nengine = \"kubernetes\"\nprefix = \"{HEAD}\"\nkey_file = \"store.key\"\ntimeout_seconds = 3\n{more}"
    ));
    gateway
}

/// Returns the number of changes of the head.
pub(super) fn commits(site: &Site) -> usize {
    let is_commit =
        |asked: &cloud_fixtures::kubernetes::ResourceRequest| asked.verb == "patch" && asked.name == HEAD && asked.status == 200;
    site.api.asked().iter().filter(|asked| is_commit(asked)).count()
}

/// Measures single boots: concurrent ones share commits. Of three, one is without what a gateway does every few seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_boot_takes_the_documented_number_of_requests() {
    const BOOTS: usize = 3;
    let site = Site::start();
    let mut gateway = gateway(&site, "one", "");
    gateway.command(&["store", "create-key"]);
    let cases = [(); BOOTS].map(|()| tpm());
    for case in &cases {
        gateway.endorse(case, &[]);
    }
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/replicas.md")).unwrap();
    let store: Arc<dyn attest_store::Store> = Arc::new(site.open("reader"));
    let seal = SealKeyRing::open_shared(store, &gateway.path("store.key"), now()).await.unwrap();
    let mut requests = Vec::new();
    for case in cases {
        let before = site.api.asked().len();
        let challenge = gateway.challenge(&case, None);
        let answer = gateway.answer_sealed(case, &challenge, &seal);
        let ticket = gateway.post("/v1/attest/evidence", &answer).await.ticket();
        gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
        requests.push(site.api.asked().len() - before);
    }
    let (before, _) = document.split_once(" requests of its own at most").unwrap();
    let most: usize = before.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((2..=most).contains(requests.iter().min().unwrap()), "{requests:?}");
}

/// A node may reach another gateway at each step.
#[tokio::test(flavor = "multi_thread")]
async fn attack_18_two_gateways_share_a_tokens_uses() {
    let site = Site::start();
    let mut gateways = [gateway(&site, "one", ""), gateway(&site, "two", "")];
    gateways[0].command(&["store", "create-key"]);
    fs::copy(gateways[0].path("store.key"), gateways[1].path("store.key")).unwrap();
    for gateway in &mut gateways {
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        gateway.run();
    }
    let token = gateways[1].token(&["--name", "few", "--uses", "5"]);
    let asked = (0..20).map(|number| {
        let (gateway, token) = (&gateways[number % 2], bearer(&token));
        async move { gateway.config("/config/worker", &[&token]).await.status }
    });
    let answers = futures_util::future::join_all(asked).await;
    let of = |status: u16| answers.iter().filter(|answer| **answer == status).count();
    assert_eq!((of(200), of(403)), (5, 15), "{answers:?}");
    // Away is away for nodes, too; and back is back.
    use cloud_fixtures::kubernetes::Disturbance;
    site.api.disturb(Disturbance::Down);
    let more = gateways[1].config("/config/worker", &[&bearer(&token)]).await;
    assert_eq!(more.status, 503, "nothing is answered that nobody knows");
    site.api.recover();
    let begun = std::time::Instant::now();
    while gateways[1].config("/config/worker", &[&bearer(&token)]).await.status != 403 {
        assert!(begun.elapsed() < crate::support::LIMIT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_releases_serve_until_the_schema_is_raised() {
    let site = Site::start();
    let (old, new) = (gateway(&site, "one", ""), gateway(&site, "two", ""));
    for gateway in [&old, &new] {
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    }
    old.command(&["store", "create-key"]);
    fs::copy(old.path("store.key"), new.path("store.key")).unwrap();
    crate::upgrade::mixed_releases_serve_until_the_schema_is_raised(old, new).await;
}

/// It must not find itself with a schema that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn the_controller_is_a_user_of_the_store() {
    let site = Site::start();
    drop(site.open("one"));
    let ClusterApi::Kubeconfig(kubeconfig) = site.settings("controller").cluster.api else {
        panic!()
    };
    // It has pools.
    let gateway = Gateway::init();
    let port = cloud_fixtures::port::ReservedPort::reserve();
    let text = format!(
        "listen = \"{}\"\n[cluster]\napi = {kubeconfig:?}\nnamespace = \"{NAMESPACE}\"\n[store]\nengine = \"kubernetes\"\nprefix = \"{HEAD}\"\n[approval]\nenabled = true\n",
        port.address()
    );
    let settings = attest_controller::settings::ControllerSettings::parse(&text, &gateway.path("controller.toml")).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stop = async { drop(stopped.await) };
        runtime.block_on(attest_controller::run(settings, attest_system::clock::Clock::System, stop))
    });
    let read = StoreSettings {
        engine: EngineSettings::Kubernetes(site.settings("reader")),
        file: site.mark_path("reader"),
    };
    let users = async || {
        let read = read.clone();
        tokio::task::spawn_blocking(move || attest_store::schema_status(&read).unwrap().users)
            .await
            .unwrap()
    };
    let begun = std::time::Instant::now();
    while users().await.is_empty() {
        assert!(!running.is_finished() && begun.elapsed() < crate::support::LIMIT);
    }
    assert_eq!(users().await.first().map(|user| user.schema), Some(attest_store::SCHEMA));
    drop(stop);
    running.join().unwrap().unwrap();
    while !users().await.is_empty() {
        assert!(begun.elapsed() < crate::support::LIMIT);
    }
}
