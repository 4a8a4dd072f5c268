//! Where things are: the repository, the programs that are tested.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The folder with the programs to test, instead of building them: for trying a release build, or a package's binaries. Seen from the
/// repository's root.
const PROGRAMS_VARIABLE: &str = "ATTEST_PROGRAMS";

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// The programs under test, built from this very source.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `attest-gateway`.
    pub gateway: PathBuf,
    /// `attest-node`.
    pub node: PathBuf,
}

impl Programs {
    /// Builds them if the source is newer, once for each process: release builds for a release build of this harness (the demo), else
    /// those that `cargo test` has built for the packages' own tests.
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
            node: folder.join("attest-node"),
        };
        for program in [&programs.gateway, &programs.node] {
            if !program.is_file() {
                bail!("there is no {}", program.display());
            }
        }
        Ok(programs)
    }
}

fn build() -> Result<PathBuf> {
    let (profile, targets): (_, &[_]) = if cfg!(debug_assertions) {
        // A test of the packages among the targets: without one, cargo leaves the features out that the dependencies of tests ask for, and
        // compiles dozens of crates once more.
        ("debug", &["--bins", "--test=documents"])
    } else {
        ("release", &["--bins", "--release"])
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(repository())
        .args(["build", "--quiet", "--locked", "--package=attest-gateway", "--package=attest-node"])
        .args(targets);
    let status = command.status().context("starting cargo")?;
    if !status.success() {
        bail!("building the programs that are tested failed ({status}): {command:?}");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), |target| repository().join(target));
    Ok(target.join(profile))
}
