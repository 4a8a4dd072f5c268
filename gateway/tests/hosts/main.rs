//! Three gateways on an etcd cluster of three, each on a host of its own, and possible failures of each while nodes boot.
//!
//! Hosts are network namespaces, so these tests need root; otherwise they are skipped with a message.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may panic, and says what it does"
)]

mod address;
mod control_plane;
mod disturbed;
mod fleet;
mod lost;
mod members;
#[allow(dead_code, reason = "tests with VMs use the rest")]
mod network;
mod program;
mod raced;
mod replica;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use attest::SpkiSha256;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use self::fleet::Gateways;
use self::members::{Member, members};
use self::network::{Host, Network};
use self::replica::{Replica, prepare};
use crate::support::node::Node;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{LIMIT, POOL, SPEC};

/// Network with all hosts and programs.
struct Site {
    // Dropped in this order: who runs, and then where.
    replicas: Vec<Replica>,
    members: Vec<Member>,
    gateways: Arc<Gateways>,
    network: Network,
    maker: Maker,
    folder: tempfile::TempDir,
}

impl Site {
    /// Starts a site whose gateways have these settings and the store.
    fn new(settings: &str) -> Self {
        // Where they are reached may go from host to host.
        Self::prepared(settings, "0.0.0.0:22623", |_, _| {})
    }

    /// Like [`Site::new`], with another listening address and a step that prepares folder and hosts before any program starts.
    fn prepared(settings: &str, listen: &str, prepared: impl FnOnce(&Path, &[Host])) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let (network, folder) = (Network::new(), tempfile::tempdir().unwrap());
        let members = members(&network, 3, 11);
        let hosts: Vec<Host> = (21..24).map(|number| network.host(number)).collect();
        let path = folder.path().join("gateway");
        prepare(&path, &hosts.iter().collect::<Vec<_>>());
        let maker = Maker::new("A maker of TPMs");
        fs::write(path.join("ek-roots/maker.der"), maker.root()).unwrap();
        let pool = path.join("pools").join(POOL).join("pool.toml");
        let text = fs::read_to_string(&pool).unwrap();
        let any = text.replace("endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
        // The TPMs in software of these tests have the PCRs 0 to 7.
        let any = any.replace("\nonly_while_booting = true\n", "\n");
        fs::write(&pool, any.replace("token = \"refuse\"", "token = \"full\"")).unwrap();
        prepared(&path, &hosts);
        let endpoints: Vec<String> = members.iter().map(Member::endpoint).collect();
        let settings = format!("{settings}\n[store]\nengine = \"etcd\"\nendpoints = {endpoints:?}\nkey_file = \"store.key\"");
        let replica = |host| Replica::new(host, &path, listen, &settings);
        let mut replicas: Vec<Replica> = hosts.into_iter().map(replica).collect();
        replicas[0].command_output(&["store", "create-key"]);
        replicas.iter_mut().for_each(Replica::start);
        let ca = reqwest::Certificate::from_pem(&fs::read(path.join("tls/mcs-ca.crt")).unwrap()).unwrap();
        let certificate = CertificateDer::from_pem_file(path.join("tls/mcs.crt")).unwrap();
        let full = replicas[0].command_output(&["config", "render", "--pool", POOL, "--set", "full", "--spec", SPEC]);
        let gateways = Arc::new(Gateways {
            client: reqwest::Client::builder()
                .tls_certs_only([ca])
                .no_proxy()
                .connect_timeout(LIMIT / 20)
                .timeout(LIMIT / 6)
                // Each step may be somebody else's, and each on a connection of its own as a node's are.
                .pool_max_idle_per_host(0)
                .build()
                .unwrap(),
            urls: replicas.iter().map(Replica::url).collect(),
            server_key: SpkiSha256::from_certificate(&certificate).unwrap(),
            full: full.into_bytes(),
            turn: AtomicUsize::new(0),
        });
        Self {
            replicas,
            members,
            gateways,
            network,
            maker,
            folder,
        }
    }

    /// Returns nodes that none of the gateways has seen.
    fn nodes(&self, count: usize) -> Vec<Node> {
        (0..count).map(|_| Node::made_by(&self.maker)).collect()
    }

    /// Stops all gateways in order. Returns their records, which an auditor finds whole and can replay.
    fn recorded(&mut self) -> Vec<Value> {
        self.replicas.iter_mut().for_each(Replica::stop);
        let said = self.audited();
        let whole = said.lines().filter(|line| line.ends_with("  whole")).count();
        assert_eq!(whole, self.replicas.len(), "{}", said.lines().rev().take(20).collect::<String>());
        self.replicas.iter().flat_map(Replica::records).collect()
    }

    /// Returns the report of an auditor with the logs, the keys and the evidence of all replicas.
    fn audited(&self) -> String {
        let auditor = &self.replicas[0];
        let mut arguments = vec!["log".to_owned(), "audit".to_owned()];
        for replica in &self.replicas {
            let key = replica.state().join("log-key.pem");
            fs::write(&key, replica.command_output(&["log", "show-key"])).unwrap();
            arguments.push(format!("--log-key={}", key.display()));
            arguments.push(format!("--log={}", replica.log().display()));
            for blob in fs::read_dir(replica.state().join("evidence")).unwrap() {
                let blob = blob.unwrap();
                let kept = auditor.state().join("evidence").join(blob.file_name());
                // It is named by what is in it.
                if !kept.exists() {
                    fs::copy(blob.path(), kept).unwrap();
                }
            }
        }
        auditor.audit(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a future on the nodes' host.
    fn run<T: Send + 'static>(&self, nodes: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.network.runtime();
        let nodes = runtime.spawn(nodes);
        runtime.block_on(nodes).unwrap()
    }
}

fn hosts(members: &[Member]) -> Vec<&Host> {
    members.iter().map(|member| &member.host).collect()
}

/// Returns whether this process can create hosts, which needs root.
fn can_make_hosts() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: network namespaces are root's");
    }
    root
}
