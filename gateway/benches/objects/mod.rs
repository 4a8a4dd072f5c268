//! Boots with the store on objects of a cluster's API.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_store::kubernetes::{Kubernetes as Objects, KubernetesLimits};
use attest_store::settings::{ClusterAccess, ClusterApi, KubernetesSettings};
use attest_store::{EntryKind, Spendable, Store};
use aws_lc_rs::digest::{SHA256, digest};
use cloud_fixtures::kubernetes::{KubernetesApi, ResourceRequest};
use serde_json::json;
use tokio::task::JoinSet;

use super::results::Figure;
use super::support::Gateway;
use super::support::soft_tpm::maker::Maker;
use super::{ALONE, AT_ONCE, BEFORE, BOOTS, CROWD, Far, Site, count, gateway, process};

/// Namespace of the store's objects and of the gateways' service account.
const NAMESPACE: &str = "attest-gateway";
/// Name of the store's one object that changes.
const HEAD: &str = "store";
/// Object for requests without the store, whose duration is the floor.
const FLOOR: &str = "floor";
/// Number of such requests.
const ROUND_TRIPS: usize = 100;
/// Size of that object: the mean size of a head.
const FLOOR_BYTES: usize = 12 * 1024;

/// Results of the measurements.
pub struct Found {
    pub figures: Vec<Figure>,
    /// Maximum duration of a single boot, as a ratio to its round trips.
    pub round_trips: f64,
}

/// Measures with one gateway and with three, for each of these durations of a write.
pub fn measure(writes: &[Duration], boots: usize) -> Found {
    println!(
        "\n{:<32} {:>9} {:>12} {:>15} {:>15} {:>12} {:>12} {:>10}",
        "on objects", "boots/s", "in a crowd", "commits a boot", "refused a boot", "KiB a boot", "alone, ms", "ratio"
    );
    let mut found = Found {
        figures: Vec::new(),
        round_trips: 0.0,
    };
    for write in writes {
        for gateways in [1, 3] {
            with(*write, gateways, boots, &mut found);
        }
    }
    challenges(boots, &mut found);
    found
}

/// Measures the cost of another spent challenge when a tenth of the maximum is remembered, and when the maximum is.
fn challenges(boots: usize, found: &mut Found) {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(0);
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(&kubeconfig, cluster.api.kubeconfig(&cluster.api.token(NAMESPACE, "gateway"))).unwrap();
    let settings = KubernetesSettings {
        cluster: ClusterAccess {
            api: ClusterApi::Kubeconfig(kubeconfig),
            namespace: Some(NAMESPACE.to_owned()),
        },
        name: HEAD.to_owned(),
        timeout: Duration::from_secs(60),
    };
    let store = Objects::open(&settings, &folder.path().join("gateway.db")).unwrap();
    let most = if boots == BOOTS {
        KubernetesLimits::default().challenges
    } else {
        100
    };
    let mut there = 0;
    for (part, measured) in [(most / 10, most / 20), (most, most / 20)] {
        there = spend(&cluster, &store, there..part).1;
        let (asked, now) = spend(&cluster, &store, there..there + measured);
        there = now;
        let each = |value: f64| value / count(usize::try_from(measured).unwrap());
        let leaves = cluster.api.all("secrets").len() - 1;
        println!(
            "{part} challenges: {leaves} leaves; one more writes {:.1} KiB in {:.2} requests",
            each(asked.kib()),
            each(asked.count(is_write))
        );
        let name = format!("on objects, {part} challenges remembered");
        let mut tell =
            |what: &str, unit: &str, value: f64| found.figures.push(Figure::from_runs(format!("{name}: {what}"), unit, &[value]));
        tell("leaves", "", count(leaves));
        tell("sent to be written for one more", "KiB", each(asked.kib()));
        tell("writes for one more", "", each(asked.count(is_write)));
    }
}

/// Spends many challenges at once, with random ids like real ones. Returns the number of remembered ones afterwards.
fn spend(cluster: &Cluster, store: &Objects, numbers: Range<u64>) -> (Counted, u64) {
    cluster.api.compact();
    cluster.api.forget_asked();
    let (begun, end) = (Instant::now(), numbers.end);
    cluster.nodes.block_on(async {
        for first in numbers.step_by(200) {
            let spends = (first..(first + 200).min(end)).map(|number| {
                let id = digest(&SHA256, &number.to_be_bytes());
                store.spend(Spendable {
                    kind: EntryKind::Challenge,
                    id: data_encoding::HEXLOWER.encode(id.as_ref()),
                    limit: 1,
                    remember_until: 2_000_000_000 + number,
                })
            });
            for spent in futures_util::future::join_all(spends).await {
                spent.unwrap();
            }
            cluster.api.compact();
        }
    });
    let asked = cluster.api.asked();
    (
        Counted {
            took: begun.elapsed(),
            asked,
        },
        end,
    )
}

/// Gateways with one store, and the API.
struct Cluster {
    api: KubernetesApi,
    gateways: Vec<Gateway>,
    sites: Vec<Arc<Site>>,
    nodes: tokio::runtime::Runtime,
}

/// Requests to the API during a measurement.
struct Counted {
    took: Duration,
    asked: Vec<ResourceRequest>,
}

impl Counted {
    fn count(&self, which: impl Fn(&&ResourceRequest) -> bool) -> f64 {
        count(self.asked.iter().filter(which).count())
    }

    fn kib(&self) -> f64 {
        count(self.asked.iter().filter(is_write).map(|asked| asked.bytes).sum()) / 1024.0
    }
}

fn is_write(asked: &&ResourceRequest) -> bool {
    !matches!(asked.verb, "get" | "list" | "watch")
}

fn is_commit(asked: &&ResourceRequest) -> bool {
    asked.verb == "patch" && asked.name == HEAD && asked.status == 200
}

fn is_refused(asked: &&ResourceRequest) -> bool {
    asked.verb == "patch" && asked.name == HEAD && asked.status == 422
}

impl Cluster {
    fn start(gateways: usize) -> Self {
        let api = KubernetesApi::start();
        let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "patch", "delete"]}]);
        api.grant(NAMESPACE, "gateway", &rules);
        let mut cluster = Self {
            api,
            gateways: Vec::new(),
            sites: Vec::new(),
            nodes: tokio::runtime::Runtime::new().unwrap(),
        };
        for _ in 0..gateways {
            let maker = Maker::new("A maker of TPMs");
            let mut one = gateway("", &maker);
            let kubeconfig = one.path("kubeconfig");
            fs::write(&kubeconfig, cluster.api.kubeconfig(&cluster.api.token(NAMESPACE, "gateway"))).unwrap();
            one.settings(&format!(
                "[cluster]\napi = {kubeconfig:?}\nnamespace = \"{NAMESPACE}\"\nconfigs = false\n\
                 [store]\nengine = \"kubernetes\"\nprefix = \"{HEAD}\"\nkey_file = \"store.key\"\n"
            ));
            match cluster.gateways.first() {
                None => drop(one.command(&["store", "create-key"])),
                Some(first) => drop(fs::copy(first.path("store.key"), one.path("store.key")).unwrap()),
            }
            one.run();
            cluster.sites.push(Arc::new(Site::new(&one, maker)));
            cluster.gateways.push(one);
        }
        cluster
    }

    /// Makes this number of boots, with the gateways in turn.
    fn boots(&self, boots: usize, at_once: usize) -> Counted {
        // What it keeps of how things came to be is not what is measured.
        self.api.compact();
        self.api.forget_asked();
        let begun = Instant::now();
        self.nodes.block_on(async {
            let mut booting = JoinSet::new();
            for number in 0..boots {
                if booting.len() == at_once {
                    booting.join_next().await.unwrap().unwrap();
                }
                let site = Arc::clone(&self.sites[number % self.sites.len()]);
                booting.spawn(async move { site.boot(Far::Config).await });
            }
            booting.join_all().await;
        });
        Counted {
            took: begun.elapsed(),
            asked: self.api.asked(),
        }
    }

    fn spent(&self) -> Duration {
        self.gateways.iter().map(|gateway| process::spent(gateway.process_id())).sum()
    }

    /// Returns the durations of a single write and a single read, without concurrent requests.
    fn round_trips(&self) -> (Duration, Duration) {
        let data = data_encoding::BASE64.encode(&[0x5a; FLOOR_BYTES]);
        let metadata = json!({"name": FLOOR, "namespace": NAMESPACE});
        self.api
            .put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"data": data}}));
        let ca = reqwest::Certificate::from_pem(self.api.ca_pem().as_bytes()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]).no_proxy().build().unwrap();
        let url = format!("{}/api/v1/namespaces/{NAMESPACE}/secrets/{FLOOR}", self.api.url());
        let asks = |request: fn(&reqwest::Client, &str) -> reqwest::RequestBuilder, body: Option<String>| {
            self.nodes.block_on(async {
                let begun = Instant::now();
                for number in 0..ROUND_TRIPS {
                    let mut asked = request(&client, &url).bearer_auth(self.api.admin());
                    if let Some(body) = &body {
                        asked = asked
                            .header("content-type", "application/merge-patch+json")
                            .header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
                            .body(body.replace("NUMBER", &number.to_string()));
                    } else {
                        asked = asked.header("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
                    }
                    let answer = asked.send().await.unwrap();
                    assert_eq!(answer.status(), 200);
                    drop(answer.bytes().await.unwrap());
                }
                begun.elapsed() / u32::try_from(ROUND_TRIPS).unwrap()
            })
        };
        let patch = json!({"metadata": {"annotations": {"number": "NUMBER"}}, "data": {"data": data}}).to_string();
        let written = asks(|client, url| client.patch(url), Some(patch));
        (written, asks(|client, url| client.get(url), None))
    }
}

fn with(write: Duration, gateways: usize, boots: usize, found: &mut Found) {
    let cluster = Cluster::start(gateways);
    cluster.api.takes(write);
    cluster.boots(BEFORE.min(boots), AT_ONCE);
    let before = cluster.spent();
    let together = cluster.boots(boots, AT_ONCE);
    let spent = (cluster.spent() - before).as_secs_f64() * 1e3 / count(boots);
    let crowd = cluster.boots(boots, CROWD);
    let alone = cluster.boots(ALONE.min(boots), 1);
    let (written, read) = cluster.round_trips();
    let alone_ms = alone.took.as_secs_f64() * 1e3 / count(ALONE.min(boots));
    let trips = (alone.count(is_write) * written.as_secs_f64() + alone.count(|asked| !is_write(asked)) * read.as_secs_f64()) * 1e3;
    let trips_ms = trips / count(ALONE.min(boots));
    let ratio = alone_ms / trips_ms;
    found.round_trips = found.round_trips.max(ratio);
    let each = |counted: &Counted, value: f64| value / count(counted_boots(counted, &alone, boots));
    let rate = |counted: &Counted| count(boots) / counted.took.as_secs_f64();
    let name = format!("on objects, a write {} ms, {gateways} gateway(s)", write.as_millis());
    println!(
        "{name:<32} {:>9.1} {:>12.1} {:>15.2} {:>15.2} {:>12.1} {:>12.1} {ratio:>10.2}",
        rate(&together),
        rate(&crowd),
        each(&together, together.count(is_commit)),
        each(&together, together.count(is_refused)),
        each(&together, together.kib()),
        alone_ms
    );
    let mut tell = |what: &str, unit: &str, value: f64| found.figures.push(Figure::from_runs(format!("{name}: {what}"), unit, &[value]));
    tell("boots a second", "/s", rate(&together));
    tell("boots a second, in a crowd", "/s", rate(&crowd));
    tell("gateways' processor time of a boot", "ms", spent);
    for (how, counted) in [("", &together), (", in a crowd", &crowd), (", alone", &alone)] {
        tell(&format!("commits of a boot{how}"), "", each(counted, counted.count(is_commit)));
        tell(
            &format!("commits refused of a boot{how}"),
            "",
            each(counted, counted.count(is_refused)),
        );
        tell(&format!("writes of a boot{how}"), "", each(counted, counted.count(is_write)));
        tell(
            &format!("reads of a boot{how}"),
            "",
            each(counted, counted.count(|asked| !is_write(asked))),
        );
        tell(&format!("sent to be written for a boot{how}"), "KiB", each(counted, counted.kib()));
        tell(
            &format!("commits a second{how}"),
            "/s",
            counted.count(is_commit) / counted.took.as_secs_f64(),
        );
    }
    tell("one write by itself", "ms", written.as_secs_f64() * 1e3);
    tell("one read by itself", "ms", read.as_secs_f64() * 1e3);
    tell("a boot alone", "ms", alone_ms);
    tell("a boot alone, its round trips by themselves", "ms", trips_ms);
    tell("a boot alone, as a ratio to its round trips", "x", ratio);
}

/// Returns the number of boots in this measurement.
fn counted_boots(counted: &Counted, alone: &Counted, boots: usize) -> usize {
    if std::ptr::eq(counted, alone) { ALONE.min(boots) } else { boots }
}
