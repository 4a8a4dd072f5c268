//! Messages of the gateway to systemd, and the log line of a reload.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use cloud_fixtures::port::ReservedPort;
use rusqlite::Connection;

use crate::support::{Gateway, POOL, program};

/// Interval of pings that the tests ask for, twice.
const WATCHDOG: Duration = Duration::from_millis(600);

/// The service manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    /// Starts the gateway under this manager.
    fn start(gateway: &mut Gateway) -> Self {
        let path = gateway.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut command = program();
        command.arg("serve").arg("--config").arg(gateway.path("gateway.toml"));
        command
            .env("NOTIFY_SOCKET", path)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        gateway.begin_as(command);
        Self(socket)
    }

    fn next(&self) -> Option<String> {
        let mut buffer = [0; 8192];
        let length = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    /// Returns the next message that is no ping.
    #[track_caller]
    fn message(&self) -> String {
        loop {
            let message = self.next().expect("a message");
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }

    /// Waits until this many pings have come.
    #[track_caller]
    fn pings(&self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.next().as_deref(), Some("WATCHDOG=1"));
        }
    }

    /// Verifies that no ping comes for longer than the watchdog waits.
    #[track_caller]
    fn silent(&self) {
        // Those that are under way.
        self.0.set_nonblocking(true).unwrap();
        while self.next().is_some() {}
        self.0.set_nonblocking(false).unwrap();
        self.0.set_read_timeout(Some(WATCHDOG * 2)).unwrap();
        assert_eq!(self.next(), None);
        self.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }
}

fn signal(gateway: &Gateway, signal: &str) {
    let id = gateway.process_id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
}

/// `WatchdogSec` without pings, or pings without it, would end a good gateway or keep a bad one.
#[test]
fn the_unit_is_of_type_notify_and_exposes_little() {
    let unit = include_str!("../dist/attest-gateway.service");
    for line in [
        "StartLimitIntervalSec=0",
        "Type=notify",
        "NotifyAccess=main",
        "ExecReload=/bin/sh -c 'kill -HUP $MAINPID'",
        "Restart=always",
        "TimeoutStartSec=infinity",
        "WatchdogSec=60s",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("attest-gateway.service");
    let exposed = |text: &str| {
        fs::write(&file, text).unwrap();
        let analyze = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=12"])
            .arg(&file)
            .output()
            .unwrap();
        (analyze.status.success(), String::from_utf8_lossy(&analyze.stdout).into_owned())
    };
    let (little, report) = exposed(unit);
    assert!(little, "{report}");
    assert!(!exposed(&unit.replace("NoNewPrivileges=yes\n", "").replace("ProtectSystem=strict\n", "")).0);
}

#[test]
fn notifies_readiness_reloads_and_the_end() {
    let mut gateway = Gateway::init();
    let manager = Manager::start(&mut gateway);
    assert_eq!(manager.message(), "READY=1\nSTATUS=serving");
    let reload = || {
        gateway.hang_up();
        let begun = manager.message();
        assert!(begun.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begun}");
        manager.message()
    };
    assert_eq!(reload(), "READY=1\nSTATUS=serving; last reload: nothing changed");
    gateway.settings("[limits]\nconnections = 77");
    assert_eq!(
        reload(),
        "READY=1\nSTATUS=serving; last reload: reloaded nothing; gateway.toml: limits.connections: changed, needs a restart"
    );
    gateway.terminate();
    assert_eq!(manager.message(), "STOPPING=1\nSTATUS=stopping");
    assert!(gateway.wait().success());
}

#[test]
fn a_stopped_gateway_pings_no_watchdog() {
    let mut gateway = Gateway::init();
    let manager = Manager::start(&mut gateway);
    assert!(manager.message().starts_with("READY=1"));
    manager.pings(2);
    signal(&gateway, "-STOP");
    manager.silent();
    signal(&gateway, "-CONT");
    manager.pings(2);
}

#[test]
fn pings_while_the_store_is_blocked() {
    let mut gateway = Gateway::init();
    let manager = Manager::start(&mut gateway);
    assert!(manager.message().starts_with("READY=1"));
    let store = Connection::open(gateway.path("state/gateway.db")).unwrap();
    store.execute_batch("BEGIN EXCLUSIVE").unwrap();
    manager.pings(8);
}

#[cfg(feature = "etcd")]
#[test]
fn a_gateway_that_waits_for_etcd_is_ready_and_pings() {
    let mut gateway = Gateway::init();
    let nobody = ReservedPort::reserve();
    gateway.settings(&format!(
        "[store]\nengine = \"etcd\"\nendpoints = [\"http://{}\"]\nkey_file = \"store.key\"\ntimeout_seconds = 1",
        nobody.address()
    ));
    gateway.command(&["store", "create-key"]);
    let manager = Manager::start(&mut gateway);
    assert_eq!(
        manager.message(),
        "READY=1\nSTATUS=waiting for the store; not ready until it answers"
    );
    manager.pings(5);
    gateway.terminate();
    assert_eq!(manager.message(), "STOPPING=1\nSTATUS=stopping");
    assert!(gateway.wait().success());
}

#[test]
fn sighup_names_all_that_needs_a_restart() {
    let mut gateway = Gateway::init();
    fs::copy(gateway.path("tls/mcs-ca.crt"), gateway.path("outgoing.crt")).unwrap();
    let settings = "[outgoing]\nca = \"outgoing.crt\"\n";
    gateway.settings(settings);
    gateway.run();
    let mut reloads = 0;
    let mut reload = || {
        gateway.hang_up();
        reloads += 1;
        let is_summary = |line: &str| line.contains("SIGHUP: ") && !line.contains("SIGHUP: reloading");
        gateway.lines(reloads, is_summary)
    };
    let unchanged = reload();
    assert!(
        unchanged.contains(" INFO ") && unchanged.ends_with("SIGHUP: nothing changed"),
        "{unchanged}"
    );
    // A default that is written out changes nothing.
    gateway.settings(&format!("{settings}[challenge]\nlifetime_seconds = 120"));
    let line = reload();
    assert!(line.ends_with("SIGHUP: nothing changed"), "{line}");
    gateway.settings(&format!(
        "{settings}[limits]\nconnections = 77\nrequests = 7\n[log]\nformat = \"json\""
    ));
    let line = reload();
    assert!(line.contains(" WARN "), "{line}");
    assert!(
        line.ends_with("gateway.toml: limits.connections, limits.requests, log.format: changed, needs a restart"),
        "{line}"
    );
    gateway.settings("[limit]");
    let line = reload();
    assert!(
        line.contains("gateway.toml is broken, a restart would fail: ") && line.contains("limit"),
        "{line}"
    );
    gateway.settings(settings);
    fs::write(gateway.path("outgoing.crt"), "garbage").unwrap();
    fs::create_dir_all(gateway.path("azure-roots")).unwrap();
    fs::write(gateway.path("azure-roots/root.pem"), "garbage").unwrap();
    let line = reload();
    assert!(
        line.ends_with("SIGHUP: reloaded nothing; files of azure.roots, outgoing.ca: changed, needs a restart"),
        "{line}"
    );
    fs::copy(gateway.path("tls/mcs-ca.crt"), gateway.path("outgoing.crt")).unwrap();
    fs::remove_dir_all(gateway.path("azure-roots")).unwrap();
    fs::write(gateway.path("pools").join(POOL).join("pool.toml"), "garbage").unwrap();
    let line = reload();
    assert!(line.ends_with("broken, the last good state stays: pool worker"), "{line}");
}
