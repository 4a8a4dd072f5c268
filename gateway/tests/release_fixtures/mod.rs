//! State and messages that each release has written, in `release/fixtures`: this build reads them, and writes them in the same form as long
//! as the versions of the formats are the same. `make release-fixtures` writes those of this release.

mod life;
mod reading;
mod shape;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cloud_fixtures::etcd::EtcdServer;
use cloud_fixtures::kubernetes::KubernetesApi;
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Gateway, program};

const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Engines of the store, and the name of each folder with a gateway whose store is there.
const ENGINES: [Engine; 3] = [Engine::Embedded, Engine::Etcd, Engine::Kubernetes];
/// File of a gateway's folder with its keys in etcd, or with the objects of the cluster's API.
const KEYS: &str = "etcd.json";
const OBJECTS: &str = "objects.json";
/// File of a gateway's folder with the facts of its life.
const FACTS: &str = "facts.json";
/// File of a gateway's folder with its backup, if the store is embedded.
const BACKUP: &str = "gateway.backup";
/// File of a release's folder with the messages of nodes and gateway.
const MESSAGES: &str = "messages.json";
/// Folder of a release with a log whose first segments were removed by the rule of retention.
const SEGMENTS: &str = "segments";
/// Namespace and service account of the gateway in the cluster.
const NAMESPACE: &str = "attest-gateway";
const ACCOUNT: &str = "attest-gateway";
/// Files that are of no use without the process or the machine that made them.
const TRANSIENT: [&str; 5] = ["attestation.lock", "gateway.db-shm", "gateway.db-wal", "kubeconfig", "signed.jsonl"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Embedded,
    Etcd,
    Kubernetes,
}

impl Engine {
    const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Etcd => "etcd",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// Facts about a gateway's life, as its release knew them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    release: String,
    /// Versions of the formats, by the names of `--version`.
    formats: BTreeMap<String, String>,
    /// Time of its last request, in seconds since 1970.
    at: u64,
    /// Names of nodes that have attested, and of the revoked ones.
    nodes: Vec<String>,
    revoked: Vec<String>,
    tokens: Vec<String>,
    /// A ticket and a challenge that were not used.
    ticket: String,
    challenge: String,
}

/// The store of a gateway that is outside of its folder.
enum Place {
    Folder,
    Etcd(EtcdServer),
    Cluster(Box<KubernetesApi>),
}

/// A key of etcd, with the number of its writes: the mark of a store is one.
#[derive(Serialize, Deserialize)]
struct EtcdKey {
    key: String,
    value: String,
    writes: u64,
}

impl Place {
    fn start(engine: Engine) -> Self {
        match engine {
            Engine::Embedded => Self::Folder,
            Engine::Etcd => Self::Etcd(EtcdServer::start()),
            Engine::Kubernetes => Self::Cluster(Box::new(start_api())),
        }
    }

    /// Returns the settings of the store and of the cluster. Writes the kubeconfig.
    fn settings(&self, gateway: &Gateway) -> String {
        let store = |engine: &str| {
            format!("[store]\nengine = \"{engine}\"\nprefix = \"gateway\"\nkey_file = \"store.key\"\ntimeout_seconds = 20\n")
        };
        match self {
            Self::Folder => String::new(),
            Self::Etcd(etcd) => format!("{}endpoints = [\"{}\"]\n", store("etcd"), etcd.endpoint()),
            Self::Cluster(api) => {
                let kubeconfig = api.kubeconfig(&api.token(NAMESPACE, ACCOUNT));
                fs::write(gateway.path("kubeconfig"), kubeconfig).unwrap();
                let cluster =
                    format!("[cluster]\napi = \"kubeconfig\"\nnamespace = \"{NAMESPACE}\"\nconfigs = false\nattested_nodes = \"edit\"\n");
                cluster + &store("kubernetes")
            }
        }
    }

    /// Writes the content of the store to a file of this folder.
    fn save(&self, folder: &Path) {
        match self {
            Self::Folder => {}
            Self::Etcd(etcd) => write_json(&folder.join(KEYS), &keys(etcd)),
            Self::Cluster(api) => {
                let objects: Vec<Value> = ["secrets", "attestednodes"].iter().flat_map(|kind| api.all(kind)).collect();
                write_json(&folder.join(OBJECTS), &objects);
            }
        }
    }

    /// Puts the content of the file of this folder into the store.
    fn load(&self, folder: &Path) {
        match self {
            Self::Folder => {}
            Self::Etcd(etcd) => {
                for EtcdKey { key, value, writes } in read_json::<Vec<EtcdKey>>(&folder.join(KEYS)) {
                    for _ in 0..writes {
                        etcd.ctl(&["put", "--", &key, &value]);
                    }
                }
            }
            Self::Cluster(api) => read_json::<Vec<Value>>(&folder.join(OBJECTS))
                .into_iter()
                .for_each(|object| api.put(object)),
        }
    }
}

/// Starts an API with the kind AttestedNode, and the rights of a gateway.
fn start_api() -> KubernetesApi {
    let api = KubernetesApi::start();
    let part = include_str!("../../dist/kubernetes/parts/attested-nodes/roles.yaml");
    part.split("---\n")
        .for_each(|object| api.put(serde_saphyr::from_str(object).unwrap()));
    let verbs = ["get", "list", "create", "patch", "delete"];
    api.grant(
        NAMESPACE,
        ACCOUNT,
        &json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}]),
    );
    api
}

/// Returns the keys in etcd, without those that go with a lease.
fn keys(etcd: &EtcdServer) -> Vec<EtcdKey> {
    let found: Value = serde_json::from_str(&etcd.ctl(&["get", "--prefix", "gateway/", "--write-out", "json"])).unwrap();
    let text = |value: &Value| String::from_utf8(BASE64.decode(value.as_str().unwrap_or_default().as_bytes()).unwrap()).unwrap();
    let all = found["kvs"].as_array().unwrap().iter().filter(|found| found["lease"].is_null());
    let key = |found: &Value| EtcdKey {
        key: text(&found["key"]),
        value: text(&found["value"]),
        writes: found["version"].as_u64().unwrap(),
    };
    all.map(key).collect()
}

/// Returns the versions of the formats of this release.
fn formats() -> BTreeMap<String, String> {
    let printed = String::from_utf8(program().arg("--version").output().unwrap().stdout).unwrap();
    let lines = printed.lines().skip(2).map(|line| line.split_once(": ").unwrap());
    lines.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write_json(path: &Path, value: &impl Serialize) {
    fs::write(path, serde_json::to_string_pretty(value).unwrap() + "\n").unwrap();
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../release/fixtures")
}

/// Returns the folder of each release.
fn releases() -> Vec<PathBuf> {
    let entries = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(
        folders.iter().any(|folder| folder.ends_with(RELEASE)),
        "there are no fixtures of release {RELEASE}: run `make release-fixtures`"
    );
    folders
}

/// Returns whether the fixtures of a release may be written: none are there, or the release is not out.
fn may_be_written(release: &str, folder: &Path, changelog: &str) -> bool {
    !folder.exists() || changelog.lines().any(|line| line == format!("## [{release}] - unreleased"))
}

/// Copies files and folders. Private keys in the copy are readable by the owner only, as a gateway requires: git keeps no such modes.
fn copy(from: &Path, to: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else if !TRANSIENT.iter().any(|transient| name == *transient) {
            let target = to.join(name);
            fs::copy(path, &target).unwrap();
            fs::set_permissions(target, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_what_each_release_has_written() {
    for release in releases() {
        for engine in ENGINES {
            reading::gateway(&release.join(engine.name()), engine).await;
        }
        reading::messages(&release.join(MESSAGES));
        reading::segments(&release.join(SEGMENTS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_what_each_release_reads_unless_a_version_is_raised() {
    let today = tempfile::tempdir().unwrap();
    let mut messages = Vec::new();
    for engine in ENGINES {
        let said = life::live(engine, &today.path().join(engine.name())).await;
        messages.extend((engine == Engine::Embedded).then_some(said));
    }
    write_json(&today.path().join(MESSAGES), &messages.remove(0));
    life::segments(&today.path().join(SEGMENTS)).await;
    if std::env::var_os("WRITE_FIXTURES").is_some() {
        let folder = root().join(RELEASE);
        let changelog = fs::read_to_string(root().join("../../CHANGELOG.md")).unwrap();
        assert!(
            may_be_written(RELEASE, &folder, &changelog),
            "{} holds what release {RELEASE} has written, and CHANGELOG.md says that it is out: raise the version in Cargo.toml first",
            folder.display()
        );
        drop(fs::remove_dir_all(&folder));
        copy(today.path(), &folder);
    }
    for release in releases() {
        let different = shape::differences(&release, today.path());
        assert!(
            different.is_empty(),
            "this build writes what the fixtures in {} do not have:\n{}\nRaise the version of the format (docs/upgrades.md), so that older \
             releases refuse it. If release {RELEASE} is not out yet, and no other differs, run `make release-fixtures` instead.",
            release.display(),
            different.join("\n"),
        );
    }
}

#[test]
fn fixtures_of_a_release_that_is_out_are_never_replaced() {
    let (unreleased, released) = ("## [0.1.0] - unreleased\n", "## [0.2.0] - unreleased\n\n## [0.1.0] - 2026-12-24\n");
    let folder = tempfile::tempdir().unwrap();
    let (there, absent) = (folder.path(), folder.path().join("0.1.0"));
    assert!(may_be_written("0.1.0", there, unreleased));
    assert!(!may_be_written("0.1.0", there, released));
    assert!(may_be_written("0.1.0", &absent, released));
}

/// A change of one file of the fixtures.
type Change = dyn Fn(&Path);

#[test]
fn a_changed_form_is_found_unless_its_version_is_raised() {
    let release = root().join(RELEASE);
    let in_json = |alter: fn(&mut Value)| {
        move |file: &Path| {
            let mut value: Value = read_json(file);
            alter(&mut value);
            write_json(file, &value);
        }
    };
    let in_lines = |from: &'static str, to: &'static str| {
        move |file: &Path| {
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(from));
            fs::write(file, text.replace(from, to)).unwrap();
        }
    };
    let in_sql = |sql: &'static str| move |file: &Path| rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap();
    let cases: [(&str, &str, Box<Change>, bool); 11] = [
        (
            "protocol",
            MESSAGES,
            Box::new(in_json(|all| all[0]["body"]["more"] = 1.into())),
            true,
        ),
        (
            "protocol",
            MESSAGES,
            Box::new(in_json(|all| all[0]["body"]["kinds"] = "tpm".into())),
            true,
        ),
        (
            "store",
            "embedded/state/gateway.db",
            Box::new(in_sql("ALTER TABLE pairs ADD more TEXT")),
            true,
        ),
        (
            "store",
            "embedded/state/gateway.db",
            Box::new(in_sql("UPDATE pairs SET value = '{\"v\":2}' WHERE key = 'time'")),
            true,
        ),
        (
            "store",
            "etcd/etcd.json",
            Box::new(in_json(|all| all[0]["key"] = "gateway/more".into())),
            true,
        ),
        (
            "AttestedNode",
            "kubernetes/objects.json",
            Box::new(in_lines("\"nodeName\"", "\"name\"")),
            true,
        ),
        (
            "log entry",
            "etcd/state/attestation.jsonl",
            Box::new(in_lines("\"verb\":", "\"more\":[{}],\"verb\":")),
            true,
        ),
        (
            "log entry",
            "etcd/state/attestation.jsonl",
            Box::new(in_lines("\"decision\":\"config\",", "\"decision\":\"config\",\"more\":{\"a\":1},")),
            false,
        ),
        ("seal", "etcd/store.key", Box::new(in_lines("key 1", "key 2")), true),
        (
            "standing.json",
            "etcd/state/standing.json",
            Box::new(in_lines("\"id\":", "\"name\":")),
            true,
        ),
        (
            "standing.json",
            "etcd/state/standing.json",
            Box::new(in_lines("{\"v\":1", "{\"v\":2,\"more\":1")),
            false,
        ),
    ];
    for (format, file, alter, expected) in cases {
        let today = tempfile::tempdir().unwrap();
        copy(&release, today.path());
        assert_eq!(shape::differences(&release, today.path()), Vec::<String>::new());
        alter(&today.path().join(file));
        let found = shape::differences(&release, today.path());
        assert!(
            found.is_empty() != expected && found.iter().all(|line| line.starts_with(format)),
            "{format}, {file}: {found:#?}"
        );
        in_json(|facts| {
            facts["formats"]
                .as_object_mut()
                .unwrap()
                .values_mut()
                .for_each(|version| *version = "9".into())
        })(&today.path().join("embedded").join(FACTS));
        let found = shape::differences(&release, today.path());
        assert!(found.is_empty() || format == "standing.json", "{format}: {found:#?}");
    }
}
