//! `attest-node` on this machine, in the conditions of an initramfs. Its TPM is a server, and the files that it reads and writes are in a
//! folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::Process;
use crate::programs::Programs;
use crate::swtpm::TpmServer;

/// File names, with the options that name them.
const FILES: [(&str, &str); 6] = [
    ("--pointer", "pointer.ign"),
    ("--out", "user.ign"),
    ("--cmdline", "cmdline"),
    ("--event-log", "event-log"),
    ("--state", "state"),
    ("--kept", "kept"),
];

/// A machine that attests.
#[derive(Debug)]
pub struct TestNode {
    folder: PathBuf,
    tcti: String,
    /// Arguments other than those that name files.
    options: Vec<String>,
}

impl TestNode {
    /// Creates a node with this TPM and this pointer config, without a firmware event log.
    pub fn new(folder: &Path, tpm: &TpmServer, pointer: &str) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let node = Self {
            folder: folder.to_path_buf(),
            tcti: tpm.tcti(),
            options: Vec::new(),
        };
        fs::write(node.path("pointer.ign"), pointer)?;
        fs::write(node.path("cmdline"), "quiet\n")?;
        node.has_log(None)?;
        Ok(node)
    }

    /// Replaces the TPM by the one at this TCTI.
    #[must_use]
    pub fn with_tcti(mut self, tcti: String) -> Self {
        self.tcti = tcti;
        self
    }

    /// Adds arguments to the command.
    #[must_use]
    pub fn with_options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// Sets or removes the firmware event log that the node reads from this call on.
    pub fn has_log(&self, log: Option<&[u8]>) -> Result<()> {
        let file = self.path("event-log");
        match log {
            Some(log) => fs::write(&file, log)?,
            None if file.exists() => fs::remove_file(&file)?,
            None => {}
        }
        Ok(())
    }

    /// Runs attest-node to its end. Returns whether it attested, and its output.
    pub fn attests(&self) -> Result<(bool, String)> {
        let output = Command::new(&Programs::build()?.node).args(self.arguments()).output()?;
        Ok((output.status.success(), String::from_utf8(output.stderr)?))
    }

    /// Starts attest-node, after removing the files that an earlier attempt has left for Ignition.
    pub fn begins(&self) -> Result<Process> {
        if self.written().exists() {
            fs::remove_file(self.written())?;
        }
        Process::spawn(&Programs::build()?.node, self.arguments(), &self.path("console"), None)
    }

    /// Returns the path of the config for Ignition after an attestation.
    #[must_use]
    pub fn written(&self) -> PathBuf {
        self.path("user.ign")
    }

    fn arguments(&self) -> Vec<String> {
        let files = FILES
            .iter()
            .flat_map(|(option, file)| [(*option).to_owned(), self.path(file).display().to_string()]);
        ["attest".to_owned(), "--tcti".to_owned(), self.tcti.clone()]
            .into_iter()
            .chain(files)
            .chain(self.options.iter().cloned())
            .collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
