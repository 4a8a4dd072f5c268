//! Program of the auditor, `attest-audit`, which is of another package than these tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{env, fs};

/// Sources of the auditor's program, relative to the repository's root.
const SOURCES: [&str; 10] = [
    "Cargo.lock",
    "attest/src",
    "attest/wire/src",
    "gateway/attestation-log/src",
    "gateway/auditor",
    "gateway/certificates/src",
    "gateway/command-line/src",
    "gateway/ignition/src",
    "gateway/pool/src",
    "gateway/system/src",
];
/// Arguments of its build. A test of this package is among them, so that no crate is compiled again with other features.
const BUILD: [&str; 9] = [
    "build",
    "--quiet",
    "--offline",
    "--locked",
    "--package=attest-audit",
    "--package=attest-gateway",
    "--bins",
    "--test=documents",
    "--message-format=short",
];

/// Returns a command of `attest-audit`, next to the program of this package; built if its source is newer.
pub fn auditor() -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    Command::new(PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_attest-gateway")).with_file_name("attest-audit");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let is_older = |built: SystemTime| SOURCES.iter().any(|source| newest(&root.join(source)) > built);
        if fs::metadata(&program).and_then(|built| built.modified()).map_or(true, is_older) {
            let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let built = Command::new(cargo).args(BUILD).current_dir(root).status().unwrap();
            assert!(built.success(), "attest-audit could not be built");
        }
        assert!(program.exists(), "there is no {}", program.display());
        program
    }))
}

/// Returns the time of the last change of a file, or of any file in a folder.
fn newest(path: &Path) -> SystemTime {
    if !path.is_dir() {
        return fs::metadata(path).unwrap().modified().unwrap();
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| newest(&entry.unwrap().path()));
    entries.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
