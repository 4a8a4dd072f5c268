//! TLS with client certificates, as clusters have it.

use std::path::Path;

use super::*;

fn encrypted(site: &Site, ca: &Path, client: Option<&str>) -> EtcdSettings {
    EtcdSettings {
        ca: Some(ca.to_owned()),
        identity: client.map(|name| (site.etcd.path(&format!("{name}.crt")), site.etcd.path(&format!("{name}.key")))),
        timeout: Duration::from_secs(2),
        ..site.settings()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_only_the_right_certificates_are_taken_on_both_sides() {
    let site = Site {
        etcd: etcd::Etcd::start_encrypted(),
        states: tempfile::tempdir().unwrap(),
    };
    let ca = site.etcd.path("ca.crt");
    let store = site.open_by("one", &encrypted(&site, &ca, Some("client"))).unwrap();
    put(&store, "a", "1").await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));

    let stranger = etcd::Authority::new("a stranger's CA");
    let strange = site.states.path().join("strange.crt");
    std::fs::write(&strange, stranger.pem()).unwrap();
    stranger.issue(&site.etcd.path(""), "stranger", 2040);
    for (ca, client) in [
        (&strange, Some("client")),
        (&ca, None),
        (&ca, Some("expired")),
        (&ca, Some("stranger")),
    ] {
        let refused = site.open_by("one", &encrypted(&site, ca, client)).unwrap_err().to_string();
        assert!(refused.contains(&site.etcd.endpoint()), "{refused}");
        assert!(
            refused.contains("ertificate") && refused.contains("store.ca, store.certificate"),
            "{client:?}: {refused}"
        );
    }
    let missing = site.open_by("one", &encrypted(&site, &ca, Some("missing"))).unwrap_err();
    assert!(missing.to_string().contains("missing.crt"), "{missing}");
}
