//! Dependencies of the packages, and imports of the files.

use super::*;

/// Verifies that a package depends on these, and on nothing else.
fn assert_depends_on(package: &str, allowed: &[&str]) {
    let manifest: toml::Table = text(&root().join(package).join("Cargo.toml")).parse().unwrap();
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table).unwrap();
    let dependencies: BTreeSet<&str> = dependencies.keys().map(String::as_str).collect();
    assert_eq!(dependencies, allowed.iter().copied().collect(), "{package}");
    assert!(!manifest.contains_key("build-dependencies") && !manifest.contains_key("target"));
}

#[test]
fn attest_depends_on_nothing_that_does_io() {
    let wire = [
        "aws-lc-rs",
        "data-encoding",
        "serde",
        "serde_json",
        "thiserror",
        // Parses; opens nothing.
        "url",
        "x509-parser",
        "zeroize",
    ];
    assert_depends_on("attest/wire", &wire);
    assert_depends_on("attest/tls", &["rustls", "rustls-pki-types"]);
    let allowed = [
        "attest-wire",
        "aws-lc-rs",
        "aws-nitro-enclaves-cose",
        "cel",
        // The type of openidconnect's times; its clock is not used.
        "chrono",
        "ciborium",
        "ciborium-ll",
        "data-encoding",
        "der",
        // Reads the headers of images that a boot is predicted of; from memory.
        "object",
        // Without its HTTP clients.
        "openidconnect",
        "rustls-pki-types",
        "rustls-webpki",
        "serde",
        "serde_json",
        "subtle",
        "thiserror",
        // Parses; opens nothing.
        "url",
        "x509-parser",
        "zeroize",
    ];
    assert_depends_on("attest", &allowed);
}

#[test]
fn ignition_depends_on_nothing_of_the_gateway() {
    let allowed = [
        // Hashes.
        "aws-lc-rs",
        "data-encoding",
        "flate2",
        "ignition-config",
        "memchr",
        "regex",
        "serde",
        "serde-saphyr",
        "serde_ignored",
        "serde_json",
        "serde_path_to_error",
        "thiserror",
        // Parses; opens nothing.
        "url",
    ];
    assert_depends_on("gateway/ignition", &allowed);
}

/// Returns the names of all compiled packages, for any target: those that `arguments` select and their dependencies, without those of
/// tests.
fn compiled(arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal,build", "--target", "all"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    tree.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

#[test]
fn the_gateway_links_no_c_tss() {
    let gateway = compiled(&["--package", "attest-gateway"]);
    assert!(gateway.contains("attest"), "{gateway:?}");
    for absent in ["tss-esapi", "tss-esapi-sys", "attest-node"] {
        assert!(!gateway.contains(absent), "the gateway is built with {absent}");
    }
    assert!(
        compiled(&["--package", "attest-node"]).contains("tss-esapi"),
        "this test would see it"
    );
}

#[test]
fn the_node_links_no_verifier() {
    let (node, gateway) = (compiled(&["--package", "attest-node"]), compiled(&["--package", "attest-gateway"]));
    assert!(node.contains("attest-wire") && node.contains("attest-tls"), "{node:?}");
    let verifiers = [
        "attest",
        "aws-nitro-enclaves-cose",
        "chrono",
        "ciborium",
        "ciborium-ll",
        "der",
        "ed25519-dalek",
        "oauth2",
        "openidconnect",
        "p256",
        "p384",
        "rsa",
    ];
    for absent in verifiers {
        assert!(!node.contains(absent), "attest-node is built with {absent}");
        assert!(gateway.contains(absent), "this test would not see {absent}");
    }
}

#[test]
fn the_log_links_no_store() {
    let (log, recording) = (compiled(&["--package", "attest-log"]), compiled(&["--package", "attest-recording"]));
    for absent in ["attest-store", "libsqlite3-sys", "rusqlite"] {
        assert!(!log.contains(absent), "attest-log is built with {absent}");
        assert!(recording.contains(absent), "this test would not see {absent}");
    }
}

/// Returns the packages about cryptography, by their own descriptions.
fn cryptographic() -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let says = |package: &serde_json::Value, field: &str| {
        let said = package.get(field).and_then(serde_json::Value::as_array);
        let said = said.into_iter().flatten();
        said.filter_map(serde_json::Value::as_str).any(|word| word.contains("crypto"))
    };
    let packages = metadata.get("packages").and_then(serde_json::Value::as_array).unwrap().iter();
    let named = packages.filter(|package| says(package, "categories") || says(package, "keywords"));
    named
        .filter_map(|package| Some(package.get("name")?.as_str()?.to_owned()))
        .collect()
}

/// Cryptography is computed by aws-lc-rs only. `openidconnect` depends on more of it, which is never called: it gets verified input only.
#[test]
fn there_is_one_cryptographic_library() {
    let cryptographic = cryptographic();
    let without_openidconnect = compiled(&["--workspace", "--prune", "openidconnect"]);
    let found: BTreeSet<&str> = cryptographic.intersection(&without_openidconnect).map(String::as_str).collect();
    let compute = ["aws-lc-rs", "tss-esapi", "tss-esapi-sys"];
    let read_and_write = [
        "aws-nitro-enclaves-cose",
        "base64ct",
        "const-oid",
        "der",
        "oid",
        "pem",
        "pem-rfc7468",
        "rustls",
        "rustls-native-certs",
        "rustls-pki-types",
        "rustls-webpki",
        // What kube keeps tokens in; it computes nothing.
        "secrecy",
        // Where rustls-native-certs finds certificates on macOS.
        "security-framework",
        "security-framework-sys",
        "subtle",
        "tokio-rustls",
        "x509-parser",
        "zeroize",
        "zeroize_derive",
    ];
    assert_eq!(found, compute.into_iter().chain(read_and_write).collect());
    let all = compiled(&["--workspace"]);
    assert!(
        all.contains("rsa") && cryptographic.contains("rsa"),
        "this test would see it: {all:?}"
    );
    // Cargo.lock names `ring`, because rustls-webpki could use it; nothing is built with it.
    for absent in ["ring", "openssl", "openssl-sys", "native-tls", "boring-sys"] {
        assert!(!all.contains(absent), "something is built with {absent}");
    }
    let lock = text(&root().join("Cargo.lock"));
    for absent in ["openssl", "openssl-sys", "native-tls", "boring-sys"] {
        assert!(!lock.contains(&format!("name = \"{absent}\"\n")), "Cargo.lock has {absent}");
    }
}

#[test]
fn each_signed_format_parser_is_imported_once() {
    for (library, file) in [
        ("openidconnect::", "attest/src/gcp/openid.rs"),
        ("aws_nitro_enclaves_cose::", "attest/src/aws/nitro_tpm/cose.rs"),
        ("cel::parser", "attest/src/condition/cel.rs"),
    ] {
        let mut files = [
            "attest/src",
            "attest/tls/src",
            "attest/wire/src",
            "attest/node/src",
            "gateway/src",
            "gateway/attestation-log/src",
            "gateway/auditor/src",
            "gateway/certificates/src",
            "gateway/cluster-api/src",
            "gateway/controller/src",
            "gateway/command-line/src",
            "gateway/ignition/src",
            "gateway/machines/src",
            "gateway/plain-http/src",
            "gateway/pointers/src",
            "gateway/pool/src",
            "gateway/recording/src",
            "gateway/store/src",
        ]
        .map(rust_files)
        .concat();
        files.retain(|path| code(path).contains(library));
        assert_eq!(files, [root().join(file)], "{library}");
    }
}

#[test]
fn only_the_command_line_uses_anyhow() {
    let commands = root().join("gateway/src/commands");
    assert!(code(&commands.join("mod.rs")).contains("anyhow"), "this test would see it");
    let libraries = rust_files("gateway/src")
        .into_iter()
        .filter(|path| !path.starts_with(&commands))
        .chain(
            ["replay", "proposal"]
                .map(|folder| rust_files(&format!("gateway/auditor/src/{folder}")))
                .concat(),
        );
    for path in libraries {
        assert!(!code(&path).contains("anyhow"), "{} uses anyhow", path.display());
    }
}

/// Returns the manifests of all crates of the workspace.
fn manifests() -> BTreeMap<String, toml::Table> {
    let workspace: toml::Table = text(&root().join("Cargo.toml")).parse().unwrap();
    let members = workspace["workspace"]["members"].as_array().unwrap().iter();
    let manifest = |member: &toml::Value| {
        let member = member.as_str().unwrap();
        (member.to_owned(), text(&root().join(member).join("Cargo.toml")).parse().unwrap())
    };
    members.map(manifest).collect()
}

#[test]
fn each_crate_takes_the_workspaces_lints() {
    let workspace: toml::Table = text(&root().join("Cargo.toml")).parse().unwrap();
    let shared = &workspace["workspace"]["lints"];
    for (member, manifest) in manifests() {
        let lints = &manifest["lints"];
        if member == "gateway/alloc" {
            // The one crate with unsafe code has the same lints but that.
            assert_eq!(lints["rust"]["unsafe_code"].as_str(), Some("deny"));
            let own = lints["clippy"].as_table().unwrap();
            for (lint, level) in shared["clippy"].as_table().unwrap() {
                assert_eq!(own.get(lint), Some(level), "{member}: {lint}");
            }
        } else {
            assert_eq!(lints["workspace"].as_bool(), Some(true), "{member}");
        }
    }
}

#[test]
fn libraries_deny_unreachable_pub_items() {
    let tests_only = ["cloud-fixtures", "swtpm-tests"];
    for member in manifests().into_keys().filter(|member| !tests_only.contains(&member.as_str())) {
        let library = code(&root().join(&member).join("src/lib.rs"));
        assert!(library.contains("#![deny(unreachable_pub)]"), "{member}");
    }
}

#[test]
fn each_engine_and_server_library_is_linked_through_one_crate() {
    for (library, users) in [
        (
            "axum",
            &["cloud-fixtures", "gateway", "gateway/controller", "gateway/plain-http"][..],
        ),
        ("ext4-view", &["gateway/auditor"]),
        ("fatfs", &["gateway/auditor", "swtpm-tests"]),
        ("gpt", &["gateway/auditor", "swtpm-tests"]),
        ("etcd-client", &["gateway/store"]),
        ("rusqlite", &["gateway/store"]),
        ("kube", &["gateway", "gateway/cluster-api", "gateway/controller", "gateway/store"]),
    ] {
        let dependents = manifests().into_iter().filter(|(_, manifest)| {
            let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
            dependencies.is_some_and(|dependencies| dependencies.contains_key(library))
        });
        let dependents: Vec<String> = dependents.map(|(member, _)| member).collect();
        assert_eq!(dependents, users, "{library}");
    }
}
