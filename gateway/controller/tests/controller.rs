//! The program in a folder of its own, killed on drop.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use attest_controller::settings::ControllerSettings;
use cloud_fixtures::port::ReservedPort;

/// Everything here takes milliseconds; a loaded machine may need seconds.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// A pool that gives nothing to clients that show nothing.
const POOL: &str = "[grants]\nnothing = \"refuse\"\n";

/// A controller's folder, and the program while it runs.
pub(super) struct Controller {
    folder: tempfile::TempDir,
    port: ReservedPort,
    process: Option<(Child, Arc<Lines>)>,
}

/// The lines of the program's log so far, and whether it has ended.
#[derive(Default)]
struct Lines {
    all: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Controller {
    /// Creates a controller with the pools `worker` and `infra`, next to an embedded store.
    pub(super) fn new(kubeconfig: &str, settings: &str) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let controller = Self {
            folder: tempfile::tempdir().unwrap(),
            port: ReservedPort::reserve(),
            process: None,
        };
        for pool in ["worker", "infra"] {
            fs::create_dir_all(controller.path("pools").join(pool)).unwrap();
            controller.pool(pool, POOL);
        }
        fs::create_dir(controller.path("state")).unwrap();
        fs::write(controller.path("kubeconfig"), kubeconfig).unwrap();
        controller.settings(settings);
        controller
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Writes a pool's file, which begins with this text.
    pub(super) fn pool(&self, name: &str, text: &str) {
        let text = format!("{text}[tpm.pcrs]\n\"0-7\" = \"not checked\"\n");
        fs::write(self.path("pools").join(name).join("pool.toml"), text).unwrap();
    }

    /// Writes the settings: the address, the API, and these.
    pub(super) fn settings(&self, text: &str) {
        let text = format!("listen = \"{}\"\n[cluster]\napi = \"kubeconfig\"\n{text}", self.port.address());
        fs::write(self.path("controller.toml"), &text).unwrap();
        drop(ControllerSettings::load(&self.path("controller.toml")));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attest-controller"));
        command.arg("--config").arg(self.path("controller.toml"));
        command
    }

    /// Starts the program with `serve`.
    pub(super) fn run(&mut self) {
        let mut child = self.command().arg("serve").stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::<Lines>::default();
        let (stderr, told) = (child.stderr.take().unwrap(), Arc::clone(&lines));
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                told.all.lock().unwrap().0.push(line);
                told.changed.notify_all();
            }
            told.all.lock().unwrap().1 = true;
            told.changed.notify_all();
        });
        self.process = Some((child, lines));
        self.line(|line| line.contains("health and metrics"));
    }

    /// Runs another command of the program to its end.
    pub(super) fn output(&self, command: &str) -> Output {
        self.command().args(command.split(' ')).output().unwrap()
    }

    /// Waits for a line of the log.
    #[track_caller]
    pub(super) fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        let (_, lines) = self.process.as_ref().unwrap();
        let deadline = Instant::now() + LIMIT;
        let mut all = lines.all.lock().unwrap();
        loop {
            if let Some(line) = all.0.iter().find(|line| wanted(line)) {
                return line.clone();
            }
            assert!(!all.1 && Instant::now() < deadline, "no such line in:\n{}", all.0.join("\n"));
            all = lines.changed.wait_timeout(all, Duration::from_millis(200)).unwrap().0;
        }
    }

    pub(super) fn process_id(&self) -> u32 {
        self.process.as_ref().unwrap().0.id()
    }

    /// Sends SIGTERM, and waits for the end.
    pub(super) fn stop(&mut self) -> ExitStatus {
        let id = self.process_id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        self.process.take().unwrap().0.wait().unwrap()
    }

    /// Kills the program, and waits for its end.
    pub(super) fn kill(&mut self) {
        if let Some((mut child, _)) = self.process.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// An answer over plain HTTP: the status, and the body.
    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = client.get(format!("http://{}{path}", self.port.address())).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}
