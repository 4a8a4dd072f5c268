//! A real etcd, Debian's, on free ports of this machine and with data of its own; gone when dropped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::port::ReservedPort;
use crate::tls::TestCa;

/// Maximum time for a start on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A cluster of one, or a member of a larger one.
pub struct EtcdServer {
    process: Option<Child>,
    name: String,
    /// All members, by name and peer address.
    cluster: String,
    folder: tempfile::TempDir,
    data: String,
    /// For clients, and for peers.
    ports: [ReservedPort; 2],
    encrypted: bool,
    /// Quota of the database, in bytes.
    quota: Option<u64>,
    /// Value of etcd's option `--auth-token`.
    auth_token: Option<String>,
}

impl EtcdServer {
    /// Runs, over plain HTTP.
    #[must_use]
    pub fn start() -> Self {
        Self::run(false, None)
    }

    /// Starts etcd like [`EtcdServer::start`], with this quota.
    #[must_use]
    pub fn start_with_quota(bytes: u64) -> Self {
        Self::run(false, Some(bytes))
    }

    /// Starts etcd as [`EtcdServer::start`] does; once it has users, clients get JSON Web Tokens.
    #[must_use]
    pub fn start_with_jwt() -> Self {
        let mut etcd = Self::named("one", false);
        let key = etcd.path("jwt.key");
        fs::write(&key, [7; 32]).unwrap();
        etcd.auth_token = Some(format!("jwt,priv-key={},sign-method=HS256,ttl=10m", key.display()));
        etcd.begin();
        etcd
    }

    /// Runs, over TLS, for clients whose certificate is of the same CA: [`EtcdServer::path`] has `ca.crt` and, for clients, `client.crt` and
    /// `client.key`.
    #[must_use]
    pub fn start_encrypted() -> Self {
        Self::run(true, None)
    }

    /// Runs a cluster of three.
    #[must_use]
    pub fn start_three() -> [Self; 3] {
        let mut members = ["one", "two", "three"].map(|name| Self::named(name, false));
        let cluster = members
            .each_ref()
            .map(|member| format!("{}={}", member.name, member.peer()))
            .join(",");
        // None serves before most of them run.
        thread::scope(|scope| {
            for member in &mut members {
                member.cluster.clone_from(&cluster);
                scope.spawn(|| member.begin());
            }
        });
        members
    }

    fn named(name: &str, encrypted: bool) -> Self {
        let mut member = Self {
            process: None,
            name: name.to_owned(),
            cluster: String::new(),
            folder: tempfile::tempdir().unwrap(),
            data: "data".to_owned(),
            ports: [ReservedPort::reserve(), ReservedPort::reserve()],
            encrypted,
            quota: None,
            auth_token: None,
        };
        member.cluster = format!("{name}={}", member.peer());
        member
    }

    fn run(encrypted: bool, quota: Option<u64>) -> Self {
        let mut etcd = Self::named("one", encrypted);
        etcd.quota = quota;
        if encrypted {
            let (folder, authority) = (etcd.path(""), TestCa::new("etcd's CA"));
            fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
            authority.issue(&folder, "server", 2040);
            authority.issue(&folder, "client", 2040);
            authority.issue(&folder, "expired", 2025);
        }
        etcd.begin();
        etcd
    }

    /// Returns the path of a file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the URL for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://{}", if self.encrypted { "https" } else { "http" }, self.ports[0].address())
    }

    /// Starts it again on the data that it has, and waits until it serves.
    pub fn restart(&mut self) {
        self.kill();
        self.begin();
    }

    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Kills it, without a shutdown.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A process that was stopped dies of this, too.
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops the process without closing its connections. All threads are stopped when this returns: the signal reaches one thread at its
    /// turn, and the others run until then.
    pub fn pause(&self) {
        self.signal("STOP");
        while !stands_still(self.id()) {
            thread::yield_now();
        }
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Returns the id of its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Runs `etcdctl`, and returns its output.
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

    /// Restarts it with the saved data, without later changes.
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
        self.begin();
    }

    fn peer(&self) -> String {
        format!("http://{}", self.ports[1].address())
    }

    /// Waits until it serves.
    fn begin(&mut self) {
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
        if let Some(auth_token) = &self.auth_token {
            command.args(["--auth-token", auth_token]);
        }
        if self.encrypted {
            command
                .arg("--cert-file")
                .arg(self.path("server.crt"))
                .arg("--key-file")
                .arg(self.path("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.path("ca.crt"));
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("Debian's etcd-server: make deps installs it");
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        self.process = Some(process);
        let (serves, served) = mpsc::channel();
        // To its end, or etcd would wait for somebody to read.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok).filter(|line| line.contains("serving client traffic")) {
                drop(serves.send(line));
            }
        });
        served.recv_timeout(START).expect("etcd serves");
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns whether all threads of a process are stopped.
fn stands_still(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    // One may have ended meanwhile.
    let mut states = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).ok());
    // The name may have anything in it.
    states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

/// Sends a signal to an etcd that runs.
pub fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &id.to_string()]).status().unwrap();
    assert!(sent.success());
}
