//! `check` fails exactly when `serve` does: both are run on the same folder, for each kind of fault.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Output, Stdio};

use crate::support::{Answer, Gateway, POOL, program};

/// Success and output of a command.
struct Came {
    well: bool,
    said: String,
}

impl Came {
    fn from_output(output: Output) -> Self {
        Self {
            well: output.status.success(),
            said: String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
        }
    }
}

/// Runs `serve` until it listens or fails.
fn serve(gateway: &Gateway) -> Came {
    let mut child = program()
        .arg("serve")
        .arg("--config")
        .arg(gateway.path("gateway.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        said.push_str(&line);
        said.push('\n');
        if line.contains("listening on ") {
            child.kill().unwrap();
            child.wait().unwrap();
            return Came { well: true, said };
        }
    }
    let expected = if said.contains("has store schema 1000") { 2 } else { 1 };
    assert_eq!(child.wait().unwrap().code(), Some(expected), "{said}");
    Came { well: false, said }
}

/// Runs both on a changed gateway, and verifies that they agree. `expected` is the beginning of `check`'s line.
#[track_caller]
fn agree(what: &str, expected: &str, named: &str, change: impl FnOnce(&Gateway)) {
    let gateway = Gateway::init();
    change(&gateway);
    let checked = Came::from_output(gateway.try_command(&["check"]));
    let found = match expected {
        // Settings that cannot be read are all that there is to say.
        "attest-gateway" => checked.said.contains(named),
        _ => checked.said.lines().any(|line| line.contains(named) && line.starts_with(expected)),
    };
    assert!(found, "{what}: no line {expected:?} with {named:?} in:\n{}", checked.said);
    let fails = matches!(expected, "ERROR" | "attest-gateway");
    assert_eq!(checked.well, !fails, "{what}, check:\n{}", checked.said);
    let strict = Came::from_output(gateway.try_command(&["check", "--strict"]));
    assert!(!strict.well, "{what}, check --strict:\n{}", strict.said);
    let served = serve(&gateway);
    assert_eq!(served.well, !fails, "{what}, serve:\n{}", served.said);
    assert!(
        served.said.contains(named),
        "{what}: serve does not say {named:?}:\n{}",
        served.said
    );
    // Not only before the first start.
    if served.well {
        let checked = Came::from_output(gateway.try_command(&["check"]));
        assert!(checked.well, "{what}, check after a start:\n{}", checked.said);
    }
}

fn occupied(gateway: &Gateway, path: &str) {
    drop(fs::remove_file(gateway.path(path)));
    fs::create_dir_all(gateway.path(path)).unwrap();
}

fn file(gateway: &Gateway, path: &str, text: impl AsRef<[u8]>) {
    let path = gateway.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(fs::remove_dir_all(&path));
    fs::write(path, text).unwrap();
}

fn mode(gateway: &Gateway, path: &str, mode: u32) {
    fs::set_permissions(gateway.path(path), fs::Permissions::from_mode(mode)).unwrap();
}

const SECRET: u32 = 0o600;

#[test]
fn check_fails_for_the_settings_that_serve_refuses() {
    agree("unknown key", "attest-gateway", "unknown", |gateway| {
        gateway.settings("unknown = 1")
    });
    agree("log.filter", "attest-gateway", "log.filter", |gateway| {
        gateway.settings("[log]\nfilter = \"a=b=c\"");
    });
}

#[test]
fn check_fails_for_addresses_that_serve_does_not_get() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    agree("listen", "ERROR", &format!("cannot listen on {address}"), |gateway| {
        fs::write(gateway.path("gateway.toml"), format!("listen = \"{address}\"\n")).unwrap();
    });
    agree("metrics.listen", "ERROR", &format!("cannot listen on {address}"), |gateway| {
        gateway.settings(&format!("[metrics]\nlisten = \"{address}\""));
    });
    agree("one address for both", "ERROR", "cannot listen on", |gateway| {
        gateway.settings(&format!("[metrics]\nlisten = \"{}\"", gateway.address()));
    });
}

#[test]
fn check_fails_for_state_that_serve_cannot_use() {
    agree("a file in its place", "ERROR", "state", |gateway| {
        fs::remove_dir_all(gateway.path("state")).unwrap();
        file(gateway, "state", "");
    });
    agree("a link to nowhere", "ERROR", "state", |gateway| {
        fs::remove_dir_all(gateway.path("state")).unwrap();
        symlink("nowhere", gateway.path("state")).unwrap();
    });
    agree("below a file", "ERROR", "file", |gateway| {
        file(gateway, "file", "");
        gateway.settings("state = \"file/state\"");
    });
    for path in [
        "state/gateway.db",
        "state/attestation.jsonl",
        "state/attestation.lock",
        "state/seal.key",
    ] {
        agree("a folder in its place", "ERROR", path, |gateway| occupied(gateway, path));
        agree("a link to where nothing can be", "ERROR", path, |gateway| {
            drop(fs::remove_file(gateway.path(path)));
            symlink("/proc/of/nobody", gateway.path(path)).unwrap();
        });
    }
    // What nobody reads there, and somebody makes, renames or removes.
    for path in [
        "state/attestation.next",
        "state/gateway.db-wal",
        "state/gateway.db-shm",
        "state/gateway.db-journal",
        "state/.store.mark.part",
        "state/.log.key.part",
        "state/.seal.key.part",
    ] {
        agree("a folder where nobody reads", "ERROR", path, |gateway| {
            occupied(gateway, path);
        });
    }
    for path in ["state/attestation.next", "state/gateway.db-shm"] {
        agree("a folder beside what is there", "ERROR", path, |gateway| {
            assert!(serve(gateway).well);
            occupied(gateway, path);
        });
    }
    agree("a file in the place of a folder", "ERROR", "evidence", |gateway| {
        file(gateway, "state/evidence", "")
    });
    agree("no store", "ERROR", "gateway.db", |gateway| {
        file(gateway, "state/gateway.db", [b'x'; 4096])
    });
    for schema in [
        "CREATE TABLE entries (kind TEXT, id TEXT, content BLOB)",
        "CREATE TABLE uses (kind TEXT, id TEXT, used INTEGER)",
    ] {
        agree("a store of another schema", "ERROR", "gateway.db", |gateway| {
            let other = rusqlite::Connection::open(gateway.path("state/gateway.db")).unwrap();
            other.execute_batch(schema).unwrap();
        });
    }
    agree("a store of a newer release", "ERROR", "store schema 1000", |gateway| {
        let other = rusqlite::Connection::open(gateway.path("state/gateway.db")).unwrap();
        other.pragma_update(None, "application_id", 0x4174_4777).unwrap();
        other.pragma_update(None, "user_version", 1000).unwrap();
    });
    agree("a store that is lost", "ERROR", "store accept", |gateway| {
        file(gateway, "state/seal.key", "0")
    });
    agree("open state", "warning", "mode 0755", |gateway| mode(gateway, "state", 0o755));
    agree("no seal", "ERROR", "seal.key", |gateway| {
        file(gateway, "state/seal.key", "abc");
        mode(gateway, "state/seal.key", SECRET);
    });
    agree("no log key", "ERROR", "log.key", |gateway| {
        file(gateway, "state/log.key", "abc");
        mode(gateway, "state/log.key", SECRET);
    });
    let shared = "[store]\nkey_file = \"store.key\"";
    agree("no key of the store", "ERROR", "store.key", |gateway| gateway.settings(shared));
    agree("a key of the store that is none", "ERROR", "store.key", |gateway| {
        gateway.settings(shared);
        file(gateway, "store.key", "abc");
        mode(gateway, "store.key", SECRET);
    });
    agree("another key of the store", "ERROR", "store.key", |gateway| {
        gateway.settings(shared);
        gateway.command(&["store", "create-key"]);
        assert!(serve(gateway).well);
        fs::remove_file(gateway.path("store.key")).unwrap();
        gateway.command(&["store", "create-key"]);
    });
    agree("everybody's key of the store", "ERROR", "store.key", |gateway| {
        gateway.settings(shared);
        gateway.command(&["store", "create-key"]);
        mode(gateway, "store.key", 0o604);
    });
    agree("everybody's seal", "ERROR", "seal.key", |gateway| {
        file(gateway, "state/seal.key", "0".repeat(64));
        mode(gateway, "state/seal.key", 0o644);
    });
}

#[test]
fn check_fails_for_certificates_that_serve_refuses() {
    agree("no key", "ERROR", "mcs.key", |gateway| {
        fs::remove_file(gateway.path("tls/mcs.key")).unwrap()
    });
    agree("everybody's key", "ERROR", "mcs.key", |gateway| mode(gateway, "tls/mcs.key", 0o604));
    agree("everybody's CA", "ERROR", "mcs-ca.key", |gateway| {
        mode(gateway, "tls/mcs-ca.key", 0o644)
    });
    agree("a group's key", "warning", "mcs.key", |gateway| mode(gateway, "tls/mcs.key", 0o640));
    agree("another's CA", "ERROR", "mcs.crt", |gateway| {
        let other = Gateway::init();
        fs::copy(other.path("tls/mcs-ca.crt"), gateway.path("tls/mcs-ca.crt")).unwrap();
    });
    agree("no client CA", "ERROR", "client.crt", |gateway| {
        gateway.settings("[tls]\nclient_ca = \"client.crt\"");
    });
    agree("a client CA that is none", "ERROR", "mcs.crt", |gateway| {
        gateway.settings("[tls]\nclient_ca = \"tls/mcs.crt\"");
    });
    agree("EK roots that are no folder", "ERROR", "roots", |gateway| {
        file(gateway, "roots", "");
        gateway.settings("ek_roots = \"roots\"");
    });
    agree("Google's keys that are none", "ERROR", "keys.json", |gateway| {
        file(gateway, "keys.json", "{");
        gateway.settings("[gcp]\njwks = \"keys.json\"");
    });
    agree("no CA for outgoing connections", "ERROR", "outgoing.crt", |gateway| {
        gateway.settings("[outgoing]\nca = \"outgoing.crt\"");
    });
}

/// Adds an upstream server that does not run to `pool.toml`.
fn add_unreachable_upstream(gateway: &Gateway, pool: &str, ca: &str) {
    for folder in ["full", "pre-approved"] {
        fs::remove_dir_all(gateway.path("pools").join(pool).join(folder)).unwrap();
    }
    // Nobody listens on port 1.
    let upstream = format!(
        "\n[upstream]\nurl = \"https://127.0.0.1:1\"\nca = {:?}\n[upstream.include]\nfiles = [\"/a\"]\n",
        gateway.path(ca)
    );
    let file = gateway.path("pools").join(pool).join("pool.toml");
    fs::write(&file, fs::read_to_string(&file).unwrap() + &upstream).unwrap();
}

const OF_AZURE: &str = r#"
[grants]
[attestation]
accepts = [["azure", "azure-vtpm"]]
[azure]
subscriptions = ["8a205152-b25a-417f-a676-80465535a6c9"]
[azure_vtpm.pcrs]
"0-7" = "not checked"
"#;
const OF_GOOGLE: &str = r#"
[attestation]
accepts = [["tpm", "gcp"]]
[gcp]
projects = [{ id = "example-project", number = 739419398126 }]
"#;

/// Returns the rules of a pool that accepts TPMs with this endorsement.
fn of_tpms(endorsement: &str, more: &str) -> String {
    format!("[grants]\n[tpm]\nendorsement = \"{endorsement}\"\npcrs = {{ \"0-7\" = \"not checked\" }}\n{more}")
}

#[test]
fn check_names_missing_trust_anchors_of_pools_that_cannot_be_fetched() {
    let gateway = Gateway::init();
    file(&gateway, "pools/worker/pool.toml", OF_AZURE);
    file(&gateway, "pools/infra/pool.toml", of_tpms("gcp-instance", OF_GOOGLE));
    for pool in ["infra", POOL] {
        add_unreachable_upstream(&gateway, pool, "tls/mcs-ca.crt");
    }
    let said = Came::from_output(gateway.try_command(&["check"])).said;
    for expected in [
        "pool worker: ",
        "pool infra: ",
        "pool worker accepts azure, which cannot be verified: ",
        "pool worker accepts azure-vtpm, which cannot be verified: ",
        "pool infra accepts TPMs that Google endorses, but ",
    ] {
        let is_warned = |line: &str| line.starts_with("warning") && line.contains(expected);
        assert!(said.lines().any(is_warned), "{expected}: {said}");
    }
    let needless = said
        .lines()
        .find(|line| line.contains("not needed unless a pool accepts it"))
        .unwrap();
    assert!(needless.contains("aws-nitro-tpm (") && !needless.contains("azure"), "{said}");
}

#[test]
fn check_misses_ek_roots_only_for_pools_that_use_them() {
    for (rules, is_missed) in [
        (of_tpms("any-tpm-of-a-trusted-maker", ""), true),
        (of_tpms("allowlist", ""), false),
        (of_tpms("gcp-instance", OF_GOOGLE), false),
        (OF_AZURE.to_owned(), false),
    ] {
        let gateway = Gateway::init();
        for pool in ["infra", POOL] {
            file(&gateway, &format!("pools/{pool}/pool.toml"), &rules);
        }
        let checked = Came::from_output(gateway.try_command(&["check"]));
        assert!(
            checked.well && checked.said.contains("pool worker: attested earns full"),
            "{}",
            checked.said
        );
        assert_eq!(checked.said.contains("no EK roots: "), is_missed, "{rules}: {}", checked.said);
    }
}

#[test]
fn check_fails_for_pools_only_if_serve_has_none() {
    let only = |gateway: &Gateway| fs::remove_dir_all(gateway.path("pools/infra")).unwrap();
    agree("no folder", "ERROR", "pools", |gateway| {
        fs::remove_dir_all(gateway.path("pools")).unwrap()
    });
    agree("no pool", "ERROR", "holds no pools", |gateway| {
        fs::remove_dir_all(gateway.path("pools")).unwrap();
        fs::create_dir(gateway.path("pools")).unwrap();
    });
    agree("the only one is broken", "ERROR", "pool.toml", |gateway| {
        only(gateway);
        file(gateway, "pools/worker/pool.toml", "broken");
    });
    agree("all are broken", "ERROR", "full/config.ign", |gateway| {
        for pool in ["infra", POOL] {
            file(gateway, &format!("pools/{pool}/full/config.ign"), "");
        }
    });
    agree("one is broken", "DEGRADED", "pool worker:", |gateway| {
        file(gateway, "pools/worker/full/config.ign", "");
    });
    agree("one is misnamed", "DEGRADED", "lost+found", |gateway| {
        fs::create_dir(gateway.path("pools/lost+found")).unwrap();
    });
    agree("the only server is away", "warning", "pool worker:", |gateway| {
        only(gateway);
        add_unreachable_upstream(gateway, POOL, "tls/mcs-ca.crt");
    });
    agree("one server is away", "warning", "pool worker:", |gateway| {
        add_unreachable_upstream(gateway, POOL, "tls/mcs-ca.crt")
    });
    agree("one is broken, one server is away", "DEGRADED", "pool infra:", |gateway| {
        add_unreachable_upstream(gateway, POOL, "tls/mcs-ca.crt");
        file(gateway, "pools/infra/pool.toml", "broken");
    });
    agree("one server cannot even be asked", "DEGRADED", "none.crt", |gateway| {
        add_unreachable_upstream(gateway, POOL, "none.crt")
    });
}

#[test]
fn serve_restricts_the_mode_of_its_state() {
    let gateway = Gateway::init();
    mode(&gateway, "state", 0o2775);
    let served = serve(&gateway);
    assert!(served.well && served.said.contains("had mode 2775"), "{}", served.said);
    assert_eq!(fs::metadata(gateway.path("state")).unwrap().permissions().mode() & 0o7777, 0o2700);
}

#[test]
fn check_creates_no_files() {
    let gateway = Gateway::init();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(gateway.path("state"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert!(gateway.command(&["check"]).contains("the gateway creates it at its start"));
    assert!(names().is_empty(), "{:?}", names());
    // Links may lead to other disks.
    fs::create_dir(gateway.path("disk")).unwrap();
    symlink("../disk/attestation.jsonl", gateway.path("state/attestation.jsonl")).unwrap();
    gateway.command(&["check"]);
    assert_eq!(fs::read_dir(gateway.path("disk")).unwrap().count(), 0);
    assert!(serve(&gateway).well);
    assert!(gateway.path("disk/attestation.jsonl").exists());
    fs::remove_dir_all(gateway.path("state")).unwrap();
    assert!(gateway.command(&["check"]).contains("state does not exist yet"));
    assert!(!gateway.path("state").exists());
}

#[test]
fn check_leaves_a_serving_gateway_alone() {
    let gateway = Gateway::start();
    let said = gateway.command(&["check"]);
    assert!(said.contains("a gateway is running"), "{said}");
    let second = serve(&gateway);
    assert!(!second.well && second.said.contains("a gateway is writing"), "{}", second.said);
    // What it would not start with again is found all the same.
    file(&gateway, "tls/mcs.key", "");
    assert!(!Came::from_output(gateway.try_command(&["check"])).well);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_pool_does_not_stop_other_pools() {
    let mut gateway = Gateway::start();
    let good = fs::read(gateway.path("pools/worker/full/config.ign")).unwrap();
    let expected = gateway.rendered("infra", "pre-approved");
    gateway.kill();
    file(&gateway, "pools/worker/full/config.ign", "{");
    gateway.run();
    gateway.config("/config/infra", &[]).await.is_config(&expected);
    gateway.config("/config/worker", &[]).await.check_retry();
    gateway.config("/config/nowhere", &[]).await.refused(404, "pool-unknown");
    assert!(gateway.output().contains("pool worker:") && gateway.output().contains("full/config.ign"));
    let ready = Answer::send(gateway.client.get(gateway.url("/readyz"))).await;
    let text = String::from_utf8(ready.body).unwrap();
    assert_eq!(ready.status, 200, "{text}");
    assert!(
        text.starts_with("ready\npool worker: not served") && !text.contains("config.ign"),
        "{text}"
    );
    // It comes back without a restart.
    file(&gateway, "pools/worker/full/config.ign", good);
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let expected = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&expected);
}

/// `check` lists the manufacturers whose TPMs a pool accepts, by the certificates' contents, not their files' names.
#[test]
fn check_lists_manufacturers_endorsed_by_ek_roots() {
    let gateway = Gateway::init();
    let root = |organisation: Option<&str>, name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        if let Some(organisation) = organisation {
            params.distinguished_name.push(rcgen::DnType::OrganizationName, organisation);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    };
    for (file, organisation, name) in [
        ("a.der", Some("A maker"), "Root 1"),
        ("b.der", Some("A maker"), "Root 2"),
        ("c.der", None, "Another"),
    ] {
        fs::write(gateway.path("ek-roots").join(file), root(organisation, name)).unwrap();
    }
    let said = gateway.command(&["check"]);
    let line = said.lines().find(|line| line.contains("ek-roots")).unwrap();
    assert!(
        line.ends_with("3 certificates, which endorse TPMs of A maker (2), CN=Another (1)"),
        "{line}"
    );
}
