//! Paths of the repository and of the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// Environment variable with a folder of programs to test, relative to the repository's root. They replace the built ones, for trying a
/// release build or a package's binaries.
const PROGRAMS_VARIABLE: &str = "ATTEST_PROGRAMS";

/// Arguments of the build for the demo and all tests: the whole workspace, with a test among its targets. With fewer packages, or without a
/// test, cargo leaves out features that others enable, and compiles dozens of crates again. The Makefile has the same.
const TARGETS: [&str; 4] = ["--workspace", "--locked", "--bins", "--test=documents"];

/// Returns the path of the repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// The programs under test, built from this very source.
#[derive(Debug, Clone)]
pub struct Programs {
    pub gateway: PathBuf,
    pub controller: PathBuf,
    pub node: PathBuf,
    /// Path of `attest-audit`, the auditor's program.
    pub auditor: PathBuf,
}

impl Programs {
    /// Builds the programs of `make demo` and `cargo test` if the source is newer, once for each process.
    pub fn build() -> Result<&'static Self> {
        static PROGRAMS: OnceLock<Result<Programs, String>> = OnceLock::new();
        PROGRAMS
            .get_or_init(|| Self::locate().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error}"))
    }

    fn locate() -> Result<Self> {
        let folder = match std::env::var_os(PROGRAMS_VARIABLE) {
            Some(folder) => repository().join(folder),
            None => build()?,
        };
        let programs = Self {
            gateway: folder.join("attest-gateway"),
            controller: folder.join("attest-controller"),
            node: folder.join("attest-node"),
            auditor: folder.join("attest-audit"),
        };
        for program in [&programs.gateway, &programs.controller, &programs.node, &programs.auditor] {
            if !program.is_file() {
                bail!("there is no {}", program.display());
            }
        }
        Ok(programs)
    }
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(repository()).args(["build", "--quiet"]).args(TARGETS);
    let status = command.status().context("starting cargo")?;
    if !status.success() {
        bail!("building the programs that are tested failed ({status}): {command:?}");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), |target| repository().join(target));
    Ok(target.join("debug"))
}
