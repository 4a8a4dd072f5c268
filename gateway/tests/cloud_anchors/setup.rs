//! Settings of a gateway in a folder of their own, and a time that tests choose.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use attest::UnixTime;
use attest_gateway::cloud::{CloudSettingsError, Clouds};
use attest_gateway::metrics::Metrics;
use attest_gateway::settings::{CloudSettings, Settings};
use tempfile::TempDir;

/// Time of the tests, in seconds since 1970.
pub const NOW: u64 = 1_795_000_000;

pub fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

pub struct Setup {
    pub folder: TempDir,
    pub settings: CloudSettings,
    pub metrics: Arc<Metrics>,
}

impl Setup {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::defaults(folder.path()).unwrap().clouds;
        Self {
            folder,
            settings,
            metrics: Arc::default(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, and the folders that it needs.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Connects these hosts to this address, with certificates by this CA.
    pub fn connect(&mut self, hosts: &[&str], address: SocketAddr, ca_pem: Option<&str>) {
        let hosts = hosts.iter().map(|host| ((*host).to_owned(), address));
        self.settings.outgoing.connect.extend(hosts);
        if let Some(ca_pem) = ca_pem {
            self.write("outgoing-ca.pem", ca_pem);
            self.settings.outgoing.ca = Some(self.path("outgoing-ca.pem"));
        }
    }

    /// Sets a minimal wait for requests.
    pub fn impatient(&mut self) {
        self.settings.wait = Duration::from_millis(1);
    }

    pub fn try_open(&self) -> Result<Clouds, CloudSettingsError> {
        Clouds::open_counted(&self.settings, Some("api-int.example.com"), Arc::clone(&self.metrics))
    }

    pub fn open(&self) -> Clouds {
        self.try_open().unwrap()
    }

    /// Verifies that the metrics contain this line.
    pub fn measured(&self, line: &str) {
        let text = self.metrics.text().unwrap();
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
}

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Log output of this thread.
pub struct Log;

struct Lines;

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Starts to capture this thread's output.
    pub fn start() -> Self {
        static ONCE: Once = Once::new();
        // One for all threads: what a thread without one has said first, tracing leaves out everywhere.
        ONCE.call_once(|| {
            tracing_subscriber::fmt()
                .with_env_filter("attest_gateway=info")
                .with_ansi(false)
                .with_writer(|| Lines)
                .init();
        });
        LINES.take();
        Self
    }

    /// Verifies the lines since the last call: their number, and a part of each.
    pub fn check_lines(&self, expected: &[&str]) {
        let text = String::from_utf8(LINES.take()).unwrap();
        assert_eq!(text.lines().count(), expected.len(), "{text}");
        for (line, expected) in text.lines().zip(expected) {
            assert!(line.contains(expected), "{expected:?} is not in {line}");
        }
    }
}
