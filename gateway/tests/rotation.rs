//! Rotation under load: nodes continue to boot while the certificate, the CA and the token are replaced.

use std::sync::Arc;

use crate::support::{Gateway, LIMIT, POOL, SPEC, accept};
use attest_certificates::Fingerprint;
use reqwest::tls::TlsInfo;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tokio::sync::watch;

/// Number of nodes that boot repeatedly.
const NODES: usize = 20;
/// Number of nodes that get each pointer only when the next one exists.
const LATE: usize = 8;

/// Pointer that a node was given.
#[derive(Clone)]
struct Pointer {
    name: &'static str,
    /// Client that trusts the pointer's CAs only. Each request is a connection of its own, with a full handshake.
    client: reqwest::Client,
    source: String,
    authorization: String,
}

impl Pointer {
    fn parse(name: &'static str, text: &str) -> Self {
        let pointer: Value = serde_json::from_str(text).unwrap();
        let at = |path: &str| pointer.pointer(path).unwrap().clone();
        let authorities = at("/ignition/security/tls/certificateAuthorities");
        let authorities = authorities.as_array().unwrap().iter().map(|authority| {
            let (_, encoded) = authority.get("source").unwrap().as_str().unwrap().split_once("base64,").unwrap();
            reqwest::Certificate::from_pem(&data_encoding::BASE64.decode(encoded.as_bytes()).unwrap()).unwrap()
        });
        Self {
            name,
            client: reqwest::Client::builder()
                .tls_certs_only(authorities)
                .https_only(true)
                .no_proxy()
                .pool_max_idle_per_host(0)
                .tls_info(true)
                .timeout(LIMIT)
                .build()
                .unwrap(),
            source: at("/ignition/config/merge/0/source").as_str().unwrap().to_owned(),
            authorization: at("/ignition/config/merge/0/httpHeaders/0/value").as_str().unwrap().to_owned(),
        }
    }
}

/// Last observation of a node: the pointer, and the server's certificate.
#[derive(Clone, PartialEq)]
struct Seen {
    pointer: &'static str,
    certificate: Fingerprint,
    fetches: usize,
}

/// Boots a node repeatedly until the pointers end. Any answer but the full config ends the test.
async fn node(late: bool, mut pointers: watch::Receiver<Option<[Pointer; 2]>>, full: Arc<Vec<u8>>, seen: watch::Sender<Option<Seen>>) {
    let mut fetches = 0;
    loop {
        let Some([newest, before]) = pointers.borrow_and_update().clone() else {
            return;
        };
        let pointer = if late { before } else { newest };
        let answer = pointer
            .client
            .get(&pointer.source)
            .header("accept", accept(SPEC))
            .header("authorization", &pointer.authorization)
            .send()
            .await
            .unwrap_or_else(|error| panic!("pointer {}: {error:?}", pointer.name));
        let certificate = answer.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate).unwrap();
        let certificate = Fingerprint::of(&CertificateDer::from(certificate));
        let status = answer.status();
        let body = answer.bytes().await.unwrap();
        assert!(status == 200 && body == **full, "pointer {}: {status}", pointer.name);
        fetches += 1;
        let pointer = pointer.name;
        seen.send_replace(Some(Seen {
            pointer,
            certificate,
            fetches,
        }));
    }
}

/// Nodes, with the channel that gives them pointers.
struct Fleet {
    pointers: watch::Sender<Option<[Pointer; 2]>>,
    seen: Vec<watch::Receiver<Option<Seen>>>,
    nodes: tokio::task::JoinSet<()>,
}

impl Fleet {
    fn boot(pointer: &Pointer, full: Vec<u8>) -> Self {
        let (pointers, handed_out) = watch::channel(Some([pointer.clone(), pointer.clone()]));
        let (full, mut nodes, mut all) = (Arc::new(full), tokio::task::JoinSet::new(), Vec::new());
        for number in 0..NODES {
            let (sender, seen) = watch::channel(None);
            nodes.spawn(node(number < LATE, handed_out.clone(), Arc::clone(&full), sender));
            all.push(seen);
        }
        Self {
            pointers,
            seen: all,
            nodes,
        }
    }

    /// Gives the nodes a pointer; the late ones get the previous one.
    fn hand_out(&self, pointer: &Pointer) {
        self.pointers.send_modify(|pointers| {
            let before = pointers.as_ref().unwrap()[0].clone();
            *pointers = Some([pointer.clone(), before]);
        });
    }

    /// Waits until the condition holds for every node, at least twice.
    async fn all_have(&mut self, wanted: impl Fn(&Seen) -> bool) {
        for seen in &mut self.seen {
            let first = seen.wait_for(|seen| seen.as_ref().is_some_and(&wanted));
            let first = tokio::time::timeout(LIMIT, first).await;
            let first = first.expect("in time").expect("the node boots").clone().unwrap().fetches;
            let again = seen.wait_for(|seen| seen.as_ref().is_some_and(|seen| wanted(seen) && seen.fetches > first));
            drop(tokio::time::timeout(LIMIT, again).await.expect("in time").expect("the node boots"));
        }
    }

    /// Stops the nodes. Returns the total number of their boots, none of which failed.
    async fn stop(mut self) -> usize {
        self.pointers.send_replace(None);
        while let Some(node) = self.nodes.join_next().await {
            node.unwrap();
        }
        self.seen.iter().map(|seen| seen.borrow().as_ref().unwrap().fetches).sum()
    }
}

fn certificate(gateway: &Gateway) -> Fingerprint {
    Fingerprint::of(&gateway.certificate())
}

fn authorities(gateway: &Gateway) -> Vec<Fingerprint> {
    let bundle = CertificateDer::pem_file_iter(gateway.path("tls/mcs-ca.crt")).unwrap();
    bundle.map(|certificate| Fingerprint::of(&certificate.unwrap())).collect()
}

fn pointer(gateway: &Gateway, name: &'static str, token: &str) -> Pointer {
    let url = gateway.url("");
    Pointer::parse(
        name,
        &gateway.command(&["pointer", "create", "--pool", POOL, "--url", &url, "--token", token]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_boot_on_while_certificate_ca_and_token_are_replaced() {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let token = gateway.token(&["--name", "fleet"]);
    let first = pointer(&gateway, "first", &token);
    let mut fleet = Fleet::boot(&first, gateway.rendered(POOL, "full"));
    let old_authority = authorities(&gateway);
    let before = certificate(&gateway);
    fleet.all_have(|seen| seen.certificate == before).await;

    // The certificate, by the same CA.
    gateway.command(&["certificate", "renew"]);
    let renewed = certificate(&gateway);
    assert_ne!(renewed, before);
    fleet.all_have(|seen| seen.certificate == renewed).await;

    // The token; the late nodes go on with the previous one.
    let token = gateway.command(&["token", "rotate", "fleet"]).trim().to_owned();
    fleet.hand_out(&pointer(&gateway, "second token", &token));
    fleet.all_have(|_| true).await;
    gateway.line(|line| line.contains("ALERT") && line.contains("stale pointer: token \"fleet\""));

    // The CA: both in every new pointer. Pointers without the new one are in use, so nothing can follow yet.
    gateway.command(&["ca", "introduce"]);
    assert_eq!(authorities(&gateway).len(), 2);
    let both = pointer(&gateway, "both CAs", &token);
    fleet.hand_out(&both);
    fleet.all_have(|seen| seen.certificate == renewed).await;
    let refused = gateway.try_command(&["ca", "switch"]);
    assert!(!refused.status.success());
    assert_eq!(certificate(&gateway), renewed, "nothing was changed");

    // Now the late ones have it too.
    fleet.hand_out(&both);
    fleet.all_have(|seen| seen.pointer == "both CAs").await;
    gateway.command(&["ca", "switch", "--force"]);
    let switched = certificate(&gateway);
    assert_ne!(switched, renewed);
    fleet.all_have(|seen| seen.certificate == switched).await;

    // The old one goes.
    gateway.command(&["ca", "retire", "--force"]);
    let new_authority = authorities(&gateway);
    assert!(new_authority.len() == 1 && new_authority != old_authority);
    let token = gateway.command(&["token", "rotate", "fleet"]).trim().to_owned();
    let last = pointer(&gateway, "new CA only", &token);
    fleet.hand_out(&last);
    fleet.hand_out(&last);
    fleet
        .all_have(|seen| seen.pointer == "new CA only" && seen.certificate == switched)
        .await;

    // Who has the first pointer still does not get in, and the log says what to do.
    let refused = first.client.get(&first.source).send().await.unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    gateway.line(|line| line.contains("refuses the MCS certificate"));

    let boots = fleet.stop().await;
    let served = gateway
        .records()
        .iter()
        .filter(|record| record.get("verdict").unwrap() == "served")
        .count();
    assert_eq!(served, boots, "every boot was served, and nothing else was asked");
    assert!(gateway.records().iter().all(|record| record.get("verdict").unwrap() == "served"));
    println!("{NODES} nodes booted {boots} times");
}
