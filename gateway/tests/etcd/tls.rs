//! Authentication of the gateway to etcd, and of etcd to the gateway: TLS with client certificates, and users.

use std::path::Path;

use cloud_fixtures::tls::TestCa;

use super::*;

/// Returns settings for refusals, which may come only after etcd's timeout.
fn quick(settings: EtcdSettings) -> EtcdSettings {
    EtcdSettings {
        timeout: Duration::from_secs(2),
        ..settings
    }
}

fn encrypted(site: &Site, ca: &Path, client: Option<&str>) -> EtcdSettings {
    EtcdSettings {
        ca: Some(ca.to_owned()),
        identity: client.map(|name| (site.etcd.path(&format!("{name}.crt")), site.etcd.path(&format!("{name}.key")))),
        ..site.settings()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_etcd_and_gateway_refuse_wrong_certificates() {
    let site = Site {
        etcd: etcd::EtcdServer::start_encrypted(),
        states: tempfile::tempdir().unwrap(),
    };
    let ca = site.etcd.path("ca.crt");
    let store = site.open_by("one", &encrypted(&site, &ca, Some("client"))).unwrap();
    put(&store, "a", "1").await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));

    let stranger = TestCa::new("a stranger's CA");
    let strange = site.states.path().join("strange.crt");
    std::fs::write(&strange, stranger.pem()).unwrap();
    stranger.issue(&site.etcd.path(""), "stranger", 2040);
    let refused = |(ca, client): (&Path, Option<&str>)| {
        let settings = quick(encrypted(&site, ca, client));
        let refused = site.open_by(client.unwrap_or("none"), &settings).unwrap_err().to_string();
        assert!(refused.contains(&site.etcd.endpoint()), "{refused}");
        assert!(
            refused.contains("ertificate") && refused.contains("store.ca, store.certificate"),
            "{client:?}: {refused}"
        );
    };
    // At once: each takes as long as etcd has.
    std::thread::scope(|scope| {
        for wrong in [
            (&*strange, Some("client")),
            (&ca, None),
            (&ca, Some("expired")),
            (&ca, Some("stranger")),
        ] {
            let refused = &refused;
            scope.spawn(move || refused(wrong));
        }
    });
    let missing = site.open_by("one", &encrypted(&site, &ca, Some("missing"))).unwrap_err();
    assert!(missing.to_string().contains("missing.crt"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_user_limited_to_the_prefix_suffices() {
    let site = Site::start();
    for arguments in [
        "user add root:secret",
        "user grant-role root root",
        "role add gateway",
        "role grant-permission gateway readwrite --prefix a/gateway/",
        "user add gateway:password",
        "user grant-role gateway gateway",
        "auth enable",
    ] {
        site.etcd.ctl(&arguments.split(' ').collect::<Vec<_>>());
    }
    let file = site.states.path().join("password");
    let user = |name: &str, password: &str| {
        std::fs::write(&file, format!("{password}\n")).unwrap();
        EtcdSettings {
            user: Some((name.to_owned(), file.clone())),
            ..site.settings()
        }
    };
    let store = site.open_by("one", &user("gateway", "password")).unwrap();
    put(&store, "a", "1").await.unwrap();
    assert_eq!(store.count(range("a", "b")).await.unwrap(), 1);
    assert!(store.acquire_lease("rotate", Duration::from_secs(2)).await.unwrap().is_some());
    let wrong = site.open_by("one", &user("gateway", "wrong")).unwrap_err().to_string();
    assert!(wrong.contains("store.password_file") && !wrong.contains("wrong"), "{wrong}");
    let nobody = site.try_open("one").unwrap_err().to_string();
    assert!(nobody.contains("store.user"), "{nobody}");
    let elsewhere = EtcdSettings {
        prefix: "b".to_owned(),
        ..user("gateway", "password")
    };
    let refused = site.open_by("two", &elsewhere).unwrap_err().to_string();
    assert!(
        refused.contains("permission denied") && refused.contains("store.prefix"),
        "{refused}"
    );
}
