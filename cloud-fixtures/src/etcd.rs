//! A real etcd, Debian's, on free ports of this machine and with data of its own; gone when dropped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::tls::Authority;

/// How long a start may take on a machine that is busy.
const START: Duration = Duration::from_secs(60);
/// How often other ports are tried: somebody may take those that were free.
const TRIES: usize = 5;

/// A cluster of one, or a member of a larger one.
pub struct Etcd {
    process: Option<Child>,
    name: String,
    /// All members, by name and peer address.
    cluster: String,
    folder: tempfile::TempDir,
    data: String,
    ports: [u16; 2],
    encrypted: bool,
    /// Bytes.
    quota: Option<u64>,
}

impl Etcd {
    /// Runs, over plain HTTP.
    #[must_use]
    pub fn start() -> Self {
        Self::run(false, None)
    }

    /// As [`Etcd::start`], with room for so much.
    #[must_use]
    pub fn start_with_quota(bytes: u64) -> Self {
        Self::run(false, Some(bytes))
    }

    /// Runs, over TLS, for clients whose certificate is of the same CA: [`Etcd::path`] has `ca.crt` and, for clients, `client.crt` and
    /// `client.key`.
    #[must_use]
    pub fn start_encrypted() -> Self {
        Self::run(true, None)
    }

    /// Runs a cluster of three.
    #[must_use]
    pub fn start_three() -> [Self; 3] {
        for _ in 0..TRIES {
            let mut members = ["one", "two", "three"].map(|name| Self::at_free_ports(name, false));
            let cluster = members
                .each_ref()
                .map(|member| format!("{}={}", member.name, member.peer()))
                .join(",");
            // None serves before most of them run.
            let serve = thread::scope(|scope| {
                let starting = members.each_mut().map(|member| {
                    member.cluster.clone_from(&cluster);
                    scope.spawn(|| member.try_start())
                });
                starting.into_iter().all(|started| started.join().unwrap())
            });
            if serve {
                return members;
            }
        }
        panic!("three members of etcd do not start");
    }

    fn at_free_ports(name: &str, encrypted: bool) -> Self {
        let mut member = Self {
            process: None,
            name: name.to_owned(),
            cluster: String::new(),
            folder: tempfile::tempdir().unwrap(),
            data: "data".to_owned(),
            ports: [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()),
            encrypted,
            quota: None,
        };
        member.cluster = format!("{name}={}", member.peer());
        member
    }

    fn run(encrypted: bool, quota: Option<u64>) -> Self {
        for _ in 0..TRIES {
            let mut etcd = Self::at_free_ports("one", encrypted);
            etcd.quota = quota;
            if encrypted {
                let (folder, authority) = (etcd.path(""), Authority::new("etcd's CA"));
                fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
                authority.issue(&folder, "server", 2040);
                authority.issue(&folder, "client", 2040);
                authority.issue(&folder, "expired", 2025);
            }
            if etcd.try_start() {
                return etcd;
            }
        }
        panic!("etcd does not start: are Debian's packages etcd-server and etcd-client there?");
    }

    /// A file of its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where clients come.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.encrypted { "https" } else { "http" }, self.ports[0])
    }

    /// Starts it again on the data that it has, and waits until it serves.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_start(), "etcd does not start again");
    }

    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Without warning.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A process that was stopped dies of this, too.
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops it, as if its machine stood still: connections stay.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// What `etcdctl` says.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(self.endpoint());
        if self.encrypted {
            command.arg("--cacert").arg(self.path("ca.crt"));
            command
                .arg("--cert")
                .arg(self.path("client.crt"))
                .arg("--key")
                .arg(self.path("client.key"));
        }
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Copies what it holds to a file of its folder.
    pub fn save(&self, name: &str) {
        self.ctl(&["snapshot", "save", self.path(name).to_str().unwrap()]);
    }

    /// Starts it again on what was saved, whatever came after.
    pub fn restore(&mut self, name: &str) {
        self.kill();
        self.data = format!("restored-{name}");
        let (data, saved) = (self.path(&self.data), self.path(name));
        // It may be there since the last time.
        drop(fs::remove_dir_all(&data));
        let peer = self.peer();
        let arguments = [
            "snapshot",
            "restore",
            saved.to_str().unwrap(),
            "--data-dir",
            data.to_str().unwrap(),
            "--name",
            &self.name,
            "--initial-cluster",
            &self.cluster,
            "--initial-advertise-peer-urls",
            &peer,
        ];
        let restored = Command::new("etcdctl").env("ETCDCTL_API", "3").args(arguments).output().unwrap();
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        assert!(self.try_start(), "etcd does not start on what was saved");
    }

    fn peer(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[1])
    }

    /// Whether it serves.
    fn try_start(&mut self) -> bool {
        let (endpoint, peer) = (self.endpoint(), self.peer());
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.path(&self.data)).args(["--logger", "zap"]);
        command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args([
            "--name",
            &self.name,
            "--initial-cluster",
            &self.cluster,
            "--enable-grpc-gateway=false",
        ]);
        if let Some(quota) = self.quota {
            command.arg(format!("--quota-backend-bytes={quota}"));
        }
        if self.encrypted {
            command
                .arg("--cert-file")
                .arg(self.path("server.crt"))
                .arg("--key-file")
                .arg(self.path("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.path("ca.crt"));
        }
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        self.process = Some(process);
        let (serves, served) = mpsc::channel();
        // To its end, or etcd would wait for somebody to read.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok).filter(|line| line.contains("serving client traffic")) {
                drop(serves.send(line));
            }
        });
        let serving = served.recv_timeout(START).is_ok();
        if !serving {
            self.kill();
        }
        serving
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to an etcd that runs.
pub fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &id.to_string()]).status().unwrap();
    assert!(sent.success());
}
