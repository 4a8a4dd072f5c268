//! A gateway without work, and one whose API is unavailable at its start.

use cloud_fixtures::kubernetes::Disturbance;

use super::boots::gateway;
use super::*;

/// Time during which the requests of an idle gateway are counted.
const COUNTED: Duration = Duration::from_secs(20);
/// Maximum number of requests that an idle gateway may send to the API for its store in that time. It renews its presence every 5 s, and
/// reads a few times.
const REQUESTS_LIMIT: usize = 15;

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_gateway_only_renews_its_lease() {
    let site = Site::start();
    let mut gateway = gateway(&site, "one", "");
    gateway.command(&["store", "create-key"]);
    gateway.run();
    // What a start has written is recorded once it is there.
    gateway.token(&["--name", "first", "--uses", "1"]);
    gateway.wait_for_acts(1, "token.create");
    let asked = || site.api.asked().into_iter().filter(|asked| asked.name == HEAD).count();
    // Nothing is waited for here: this is the time that is measured.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let before = asked();
    tokio::time::sleep(COUNTED).await;
    let requests = asked() - before;
    assert!((2..=REQUESTS_LIMIT).contains(&requests), "{requests} requests in {COUNTED:?}");
    // What a command changes is recorded all the same, and what is answered to nodes is of this moment.
    let token = gateway.token(&["--name", "second", "--uses", "1"]);
    gateway.wait_for_acts(2, "token.create");
    assert!(gateway.command(&["token", "list"]).contains("second"), "{token}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_before_its_api_waits_and_is_not_ready() {
    let site = Site::start();
    let mut gateway = gateway(&site, "one", "");
    gateway.command(&["store", "create-key"]);
    for disturbance in [Disturbance::Down, Disturbance::Status(503)] {
        site.api.disturb(disturbance);
        gateway.begin();
        gateway.line(|line| line.contains("waiting for the store"));
        let get = async |path: &str| {
            let answer = gateway.client_of_new_connections().get(gateway.url(path)).send();
            answer.await.unwrap().status().as_u16()
        };
        // Orchestrators let it live and send nobody; nodes that come all the same come again.
        assert_eq!((get("/healthz").await, get("/readyz").await), (200, 503), "{disturbance:?}");
        assert_eq!(gateway.config("/config/worker", &[]).await.status, 503);
        site.api.recover();
        gateway.line(|line| line.contains("listening on "));
        assert_eq!(get("/readyz").await, 200);
        gateway.terminate();
        assert!(gateway.wait().success());
    }
    // It is told to stop while it waits.
    site.api.disturb(Disturbance::Down);
    gateway.begin();
    gateway.line(|line| line.contains("waiting for the store"));
    gateway.terminate();
    assert!(gateway.wait().success());
    // What no waiting mends ends it at once, as before: a service account that may do nothing.
    site.api.recover();
    site.cut_off("one");
    gateway.begin();
    assert!(!gateway.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_api_certificate_ends_the_gateway() {
    let (site, another) = (Site::start(), Site::start());
    let mut gateway = gateway(&site, "one", "");
    gateway.command(&["store", "create-key"]);
    let ClusterApi::Kubeconfig(path) = site.settings("one").cluster.api else {
        panic!()
    };
    let mut kubeconfig: Value = serde_json::from_str(&site.api.kubeconfig("token")).unwrap();
    kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] =
        json!(data_encoding::BASE64.encode(another.api.ca_pem().as_bytes()));
    std::fs::write(path, kubeconfig.to_string()).unwrap();
    gateway.begin();
    gateway.line(|line| line.contains("compare the CA of the kubeconfig"));
    assert!(!gateway.wait().success());
}
