//! Invariants of `docs/architecture.md`: forbidden and required parts of the code.

#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod dependencies;
mod folders;
mod load;
mod modules;
mod names;
mod page;
mod proofs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns every Rust file under a folder of the repository, without build results.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !matches!(name, "target" | "build") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{folder} holds no Rust");
    files
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a file's code, without its comments.
fn code(path: &Path) -> String {
    let text = text(path);
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn servers_are_verified_in_one_place() {
    let packages = ["attest", "gateway/src", "gateway/ignition/src", "swtpm-tests/src"]
        .map(rust_files)
        .concat();
    let with = |words: &str| -> BTreeSet<String> {
        let found = packages.iter().filter(|path| code(path).contains(words));
        found.map(|path| path.strip_prefix(root()).unwrap().display().to_string()).collect()
    };
    // The probe believes anybody, and shows nothing.
    assert_eq!(
        with("ServerCertVerifier for "),
        ["attest/tls/src/lib.rs", "gateway/src/probe/tls.rs"].map(str::to_owned).into()
    );
    // Nobody takes more than the CAs have signed; but the node, what stands in its pointer.
    assert_eq!(
        with("fn trusted(&self, "),
        ["attest/node/src/gateway/tls.rs", "attest/tls/src/lib.rs"]
            .map(str::to_owned)
            .into()
    );
}

#[test]
fn attest_does_no_io_reads_no_clock_and_never_awaits() {
    let absent = [
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "std::thread",
        "std::io",
        "SystemTime",
        "Instant",
        "UnixTime::now",
        "async fn",
        ".await",
        "tokio",
        "println!",
        "static mut",
        "OnceLock",
        "LazyLock",
        "Mutex",
    ];
    for path in ["attest/src", "attest/wire/src"].map(rust_files).concat() {
        let code = code(&path);
        for word in absent {
            assert!(!code.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn configs_are_rendered_without_io_and_without_the_gateway() {
    let absent = [
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "std::thread",
        "SystemTime",
        "Instant",
        "async fn",
        ".await",
        "println!",
        "static mut",
    ];
    for path in rust_files("gateway/ignition/src") {
        let code = code(&path);
        for word in absent {
            assert!(!code.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn one_place_reads_the_clock() {
    for path in rust_files("gateway")
        .iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "src"))
    {
        let reads = code(path).contains("SystemTime::now") || code(path).contains("UnixTime::now");
        assert!(
            !reads || path.ends_with("gateway/system/src/clock.rs"),
            "{} reads the clock",
            path.display()
        );
    }
}

#[test]
fn every_attack_of_the_threat_model_is_carried_out() {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for folder in ["attest", "gateway", "swtpm-tests"] {
        for path in rust_files(folder) {
            // Split, so that this file does not find itself.
            for attack in code(&path).split(concat!("fn ", "attack_")).skip(1) {
                *found.entry(attack.chars().take(2).collect()).or_default() += 1;
            }
        }
    }
    let page = text(&root().join("docs/explanation/threat-model.md"));
    let mut rows = BTreeSet::new();
    for line in page.lines() {
        let Some((number, cells)) = line.strip_prefix("| ").and_then(|line| line.split_once(" |")) else {
            continue;
        };
        let Ok(row) = number.parse::<usize>() else {
            continue;
        };
        rows.insert(row);
        assert!(
            found.contains_key(&format!("{row:02}")),
            "no test carries out attack {row:02}: {found:?}"
        );
        // The last column names files with tests of this attack.
        let tests = cells.rsplit(" | ").next().unwrap_or_default();
        let files: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!files.is_empty(), "{line}");
        let function = ["fn ", "attack_", &format!("{row:02}_")].concat();
        for file in files {
            assert!(
                code(&root().join(file)).contains(&function),
                "{file} does not carry out attack {row:02}"
            );
        }
    }
    assert!((1..=59).all(|row| rows.contains(&row)), "threat-model.md lacks rows: {rows:?}");
}

#[test]
fn only_the_probe_skips_certificate_verification() {
    // What stands beside the CAs may take one, as a node takes one that stands in its pointer: after its dates, its names and its purpose.
    let checked = "trusted.map(|()| ServerCertVerified::assertion())";
    let takes_any: Vec<PathBuf> = [
        rust_files("gateway/src"),
        rust_files("attest/node/src"),
        rust_files("attest/tls/src"),
    ]
    .concat()
    .into_iter()
    .filter(|path| code(path).replace(checked, "").contains("ServerCertVerified::assertion()"))
    .collect();
    assert_eq!(takes_any, [root().join("gateway/src/probe/tls.rs")]);
    for path in rust_files("gateway/src/probe") {
        let code = code(&path).to_lowercase();
        for credential in ["authorization", "bearer", "token", "ticket", "with_client_auth", "cookie"] {
            assert!(!code.contains(credential), "{credential} in {}", path.display());
        }
    }
}
