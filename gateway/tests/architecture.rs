//! The invariants of `docs/architecture.md`: what must not be there, and what must not be missing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every Rust file under a folder of the repository; what is built is not.
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

/// A file's code, without its comments.
fn code(path: &Path) -> String {
    let text = text(path);
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

/// A package depends on these, and on nothing else.
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
        // The type of openidconnect's times; its clock is not used.
        "chrono",
        "ciborium-ll",
        "data-encoding",
        "der",
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
fn servers_are_verified_in_one_place() {
    let packages = ["attest", "gateway/src", "swtpm-tests/src"].map(rust_files).concat();
    let verifiers: Vec<String> = packages
        .iter()
        .filter(|path| code(path).contains("ServerCertVerifier for "))
        .map(|path| path.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    // The probe believes anybody, and shows nothing.
    assert_eq!(verifiers, ["attest/tls/src/lib.rs", "gateway/src/probe/tls.rs"]);
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

/// The names that follow `crate::` in a file's code, those in braces too; its tests aside.
fn imported(path: &Path) -> BTreeSet<String> {
    let code = code(path);
    let code = code.split("mod tests {").next().unwrap_or_default();
    let names = |after: &str| {
        let (list, single) = (after.strip_prefix('{'), after);
        let words = match list {
            Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
            None => vec![single],
        };
        let name = |word: &str| {
            let word = word.trim();
            word.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .next()
                // `$crate::$room` names whatever a macro is given.
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
        };
        words.into_iter().filter_map(name).collect::<Vec<_>>()
    };
    code.split("crate::").skip(1).flat_map(names).collect()
}

/// Which of the top modules of a crate imports which, also by what its root passes on.
fn imports_of(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = root().join(folder);
    let lib = code(&root.join("lib.rs"));
    let modules: BTreeSet<&str> = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let passed_on = |name: &str| {
        let uses = lib.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';'));
        let named = |path: &str| {
            path.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .any(|word| word == name)
        };
        let from = uses.filter(|path| named(path)).filter_map(|path| path.split("::").next()).next();
        from.unwrap_or(name).to_owned()
    };
    let mut imports = BTreeMap::new();
    for path in rust_files(folder) {
        let place = path.strip_prefix(&root).unwrap();
        if place
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")))
        {
            continue;
        }
        let module = Path::new(&place.components().next().unwrap())
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        if modules.contains(module.as_str()) {
            let used = imported(&path).iter().map(|name| passed_on(name)).collect::<BTreeSet<_>>();
            let used = used.into_iter().filter(|name| modules.contains(name.as_str()) && *name != module);
            imports.entry(module.clone()).or_insert_with(BTreeSet::new).extend(used);
        }
    }
    assert_eq!(imports.len(), modules.len(), "each module has a file: {modules:?}");
    imports
}

/// Takes away what imports nothing that is left, until nothing is.
#[track_caller]
fn assert_no_cycle(mut left: BTreeMap<String, BTreeSet<String>>) {
    while !left.is_empty() {
        let before = left.len();
        let names: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, imports| !imports.is_disjoint(&names));
        assert!(left.len() < before, "a cycle is among {left:#?}");
    }
}

#[test]
fn the_top_modules_of_attest_have_no_import_cycle() {
    let imports = imports_of("attest/src");
    assert!(
        imports["appraisal"].contains("tpm") && imports["tpm"].contains("advice"),
        "{imports:?}"
    );
    assert_no_cycle(imports);
    let imports = imports_of("attest/wire/src");
    assert!(
        imports["protocol"].contains("kinds") && imports["nonce"].contains("values"),
        "{imports:?}"
    );
    assert_no_cycle(imports);
}

#[test]
fn the_top_modules_of_the_gateway_have_no_import_cycle() {
    let imports = imports_of("gateway/src");
    assert!(
        imports["api"].contains("audit") && imports["store"].contains("files"),
        "{imports:?}"
    );
    assert_no_cycle(imports);
}

#[test]
fn the_top_modules_of_the_node_have_no_import_cycle() {
    let imports = imports_of("attest/node/src");
    assert!(
        imports["boot"].contains("attestation") && imports["gateway"].contains("failure"),
        "{imports:?}"
    );
    assert_no_cycle(imports);
}

/// What is compiled, for whatever target, by name: everything that `arguments` select and what they need, tests aside.
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

/// The packages that are about cryptography, by what they say of themselves.
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

/// What computes with keys is aws-lc-rs. openidconnect brings more of it, which is never asked: what it gets to see was verified before.
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
fn libraries_that_read_what_was_signed_are_imported_by_one_file_each() {
    for (library, file) in [
        ("openidconnect::", "attest/src/gcp/openid.rs"),
        ("aws_nitro_enclaves_cose::", "attest/src/aws/nitro_tpm/cose.rs"),
    ] {
        let mut files = ["attest/src", "attest/tls/src", "attest/wire/src", "attest/node/src", "gateway/src"]
            .map(rust_files)
            .concat();
        files.retain(|path| code(path).contains(library));
        assert_eq!(files, [root().join(file)], "{library}");
    }
}

/// The types that must be earned: their file, their definition, and how their first field begins, which must not be `pub`.
const EARNED: [(&str, &str, &str); 12] = [
    ("attest/src/verified.rs", "pub struct Verified<T>", "(T);"),
    ("attest/src/tpm/vtpm/mod.rs", "pub struct VerifiedInstance {\n", "    instance:"),
    ("attest/src/aws/sts/request.rs", "pub struct CheckedRequest {\n", "    url:"),
    (
        "attest/src/azure/vtpm/verifier.rs",
        "pub struct VerifiedAzureVtpm {\n",
        "    vm_id:",
    ),
    ("attest/src/azure/vtpm/certificate.rs", "pub struct AkCertificate {\n", "    name:"),
    ("attest/src/claims.rs", "pub struct Claims {\n", "    pub(crate) identity:"),
    (
        "attest/src/aws/identity_document/document.rs",
        "pub struct ClaimedDocument {\n",
        "    pub(super) document:",
    ),
    ("attest/src/appraisal.rs", "pub struct AttestationResult {\n", "    claims:"),
    ("gateway/src/credentials/kubelet/verify.rs", "pub struct Verified {\n", "    name:"),
    (
        "gateway/src/credentials/kubelet/member.rs",
        "pub struct Member {\n",
        "    verified:",
    ),
    ("gateway/src/policy/mod.rs", "pub struct Grant {\n", "    pool:"),
    ("gateway/src/audit/journal.rs", "pub struct Recorded<T> {\n", "    outcome:"),
];

#[test]
fn what_must_be_earned_has_no_public_constructor() {
    for (file, definition, first_field) in EARNED {
        let code = code(&root().join(file));
        let (before, fields) = code.split_once(definition).unwrap_or_else(|| panic!("{file} has no {definition}"));
        let fields = fields.split_inclusive(['}', ';']).next().unwrap_or_default();
        assert!(fields.starts_with(first_field), "{file}: {definition}{fields}");
        assert!(!fields.contains("    pub "), "{file}: {definition}{fields}");
        // What stands between the item before it and this one.
        let own = before.rsplit("\n}\n").next().unwrap_or_default();
        let derives = own.rsplit_once("#[derive(").map_or("", |(_, derives)| derives);
        for constructor in ["Deserialize", "Default"] {
            assert!(!derives.contains(constructor), "{file}: {definition} derives {constructor}");
        }
    }
}

#[test]
fn what_must_be_earned_is_made_in_one_place() {
    let makers = [
        ("attest/src", "Ok(Claims {", "attest/src/evidence.rs"),
        ("attest/src", "Ok(AttestationResult {", "attest/src/appraisal.rs"),
        ("gateway/src", "Ok(Verified {", "gateway/src/credentials/kubelet/verify.rs"),
        ("gateway/src", "Ok(Member {", "gateway/src/credentials/kubelet/member.rs"),
        ("gateway/src", "Some(Grant {", "gateway/src/policy/mod.rs"),
        ("gateway/src", "Ok(Recorded {", "gateway/src/audit/journal.rs"),
    ];
    for (folder, made, maker) in makers {
        let found: Vec<PathBuf> = rust_files(folder).into_iter().filter(|path| code(path).contains(made)).collect();
        assert_eq!(found, [root().join(maker)], "{made}");
        // `Name {` with anything else before it than what is looked for above would be another way.
        let (_, name) = made.split_once('(').unwrap_or_default();
        let elsewhere = format!(" = {name}");
        for path in rust_files(folder) {
            assert!(!code(&path).contains(&elsewhere), "{} makes {name}", path.display());
        }
    }
}

/// What says that something was verified; and the one that joins two that were.
const VERIFIERS: [&str; 6] = [
    "attest/src/aws/identity_document/verifier.rs",
    "attest/src/aws/nitro_tpm/document.rs",
    "attest/src/aws/nitro_tpm/verifier.rs",
    "attest/src/aws/sts/answer.rs",
    "attest/src/azure/attested_document/verifier.rs",
    "attest/src/gcp/openid.rs",
];

#[test]
fn only_verifiers_say_that_something_was_verified() {
    let says_so = |path: &PathBuf| {
        let code = code(path);
        ["Verified::new", "Self::new(joined)", ".into_inner()"]
            .iter()
            .any(|made| code.contains(made))
    };
    let found: BTreeSet<PathBuf> = rust_files("attest/src").into_iter().filter(says_so).collect();
    assert_eq!(found, VERIFIERS.map(|path| root().join(path)).into());
    let proof = code(&root().join("attest/src/verified.rs"));
    for way in ["    pub(crate) const fn new(", "    pub(crate) fn into_inner("] {
        assert!(proof.contains(way), "{way}");
    }
    for way in ["DerefMut", "Deserialize", "    pub fn"] {
        assert!(!proof.contains(way), "{way}");
    }
}

#[test]
fn no_endpoint_reaches_a_config_without_a_grant() {
    let administrators = "for_administrator";
    assert!(code(&root().join("gateway/src/pools/mod.rs")).contains(administrators));
    for folder in ["gateway/src/api", "gateway/src/server", "gateway/src/policy"] {
        for path in rust_files(folder) {
            assert!(!code(&path).contains(administrators), "{} reaches past the grant", path.display());
        }
    }
}

#[test]
fn no_endpoint_has_the_whole_gateway() {
    let takes_its_part = ["use super::gateway::Gateway;", "pub(super) fn of(gateway: &Gateway) -> Self {"];
    let whole = ["gateway/src/api/gateway.rs", "gateway/src/api/mod.rs"].map(|file| root().join(file));
    for path in rust_files("gateway/src/api").into_iter().filter(|path| !whole.contains(path)) {
        for line in code(&path).lines().map(str::trim) {
            let names_it = ["gateway::Gateway", "super::Gateway", "&Gateway", "<Gateway>"]
                .iter()
                .any(|name| line.contains(name));
            let part = takes_its_part.contains(&line);
            assert!(!names_it || part, "{}: {line}", path.display());
        }
    }
}

#[test]
fn one_place_reads_the_clock() {
    for path in rust_files("gateway/src") {
        let reads = code(&path).contains("SystemTime::now") || code(&path).contains("UnixTime::now");
        assert!(
            !reads || path.ends_with("gateway/src/clock.rs"),
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
    let threats = text(&root().join("docs/threat-model.md"));
    let rows: BTreeSet<usize> = threats
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" |")?.0.parse().ok())
        .collect();
    assert!((1..=24).all(|row| rows.contains(&row)), "docs/threat-model.md lacks rows: {rows:?}");
    for row in rows {
        assert!(
            found.contains_key(&format!("{row:02}")),
            "no test carries out attack {row:02}: {found:?}"
        );
    }
}

#[test]
fn one_place_takes_any_certificate_and_it_shows_nothing() {
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

/// Whether a file says `mod name;`.
fn has_room(file: &Path, name: &str) -> bool {
    let room = format!("mod {name};");
    file.is_file() && code(file).lines().any(|line| line.trim_end().ends_with(&room))
}

/// The crate roots of a package's tests, as its manifest names them.
fn test_targets(package: &Path) -> Vec<PathBuf> {
    let manifest: toml::Table = text(&package.join("Cargo.toml")).parse().unwrap();
    let targets = manifest.get("test").and_then(toml::Value::as_array).unwrap();
    let file = |target: &toml::Value| {
        let name = target.get("name").unwrap().as_str().unwrap();
        package.join("tests").join(name).with_extension("rs")
    };
    targets.iter().map(file).collect()
}

#[test]
fn every_file_is_part_of_a_target() {
    let packages = ["attest", "attest/node", "cloud-fixtures", "gateway", "swtpm-tests"];
    let tests: Vec<PathBuf> = packages.iter().flat_map(|package| test_targets(&root().join(package))).collect();
    let is_root = |file: &Path| {
        let folder = file.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let of_a_package = matches!((folder, name), ("src", "lib.rs" | "main.rs") | (_, "build.rs"));
        of_a_package || matches!(folder, "benches" | "bin" | "examples" | "fuzz_targets") || tests.iter().any(|target| target == file)
    };
    let files: Vec<PathBuf> = packages.into_iter().flat_map(rust_files).collect();
    let mut forgotten = Vec::new();
    for file in files.iter().filter(|file| !is_root(file)) {
        let room = if file.ends_with("mod.rs") { file.parent().unwrap() } else { file };
        let (folder, name) = (room.parent().unwrap(), room.file_stem().unwrap().to_str().unwrap());
        let roots = files.iter().filter(|file| file.parent() == Some(folder) && is_root(file)).cloned();
        let mut houses = roots.chain([folder.join("mod.rs"), folder.with_extension("rs")]);
        if !houses.any(|house| has_room(&house, name)) {
            forgotten.push(file);
        }
    }
    assert!(forgotten.is_empty(), "{forgotten:?}");
}

/// What a request comes to, one after the other: the words behind the arrows of a text's first block that has them.
fn way(text: &str) -> Vec<&str> {
    let block = text.split("```").find(|block| block.contains("TlsStream")).unwrap();
    let steps = block.split('→').skip(1);
    steps.filter_map(|step| step.split_whitespace().next()).collect()
}

#[test]
fn the_crate_page_tells_the_same_way() {
    let (page, document) = (text(&root().join("gateway/src/lib.rs")), text(&root().join("docs/architecture.md")));
    let told = way(&page);
    assert!(told.len() > 10, "{told:?}");
    assert_eq!(told, way(&document));
}

/// Words that name a kind of evidence of a cloud, as parts of names.
fn names_of_clouds(code: &str) -> BTreeSet<String> {
    let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let named = |word: &&str| {
        let capital = ["Gcp", "Azure", "Aws"].iter().any(|cloud| word.contains(cloud));
        *word != "aws_lc_rs" && (capital || word.split('_').any(|part| ["gcp", "azure", "aws"].contains(&part)))
    };
    words.filter(named).map(str::to_owned).collect()
}

#[test]
fn a_kind_is_named_in_its_room_and_in_the_list() {
    let packages = ["attest/src", "attest/wire/src"];
    let rooms = packages.map(|package| ["gcp", "aws", "azure"].map(|room| root().join(package).join(room)));
    let allowed = [
        ("attest/wire/src/kinds/mod.rs", "the list"),
        ("attest/wire/src/lib.rs", "the rooms are modules"),
        ("attest/src/lib.rs", "likewise"),
        (
            "attest/wire/src/protocol/mod.rs",
            "passes on the messages under the names that they had",
        ),
        (
            "attest/src/endorsements.rs",
            "which of the administrator's anchors each kind is held against",
        ),
        ("attest/src/evidence.rs", "what STS has answered comes with a submission"),
        // Google's certificate for the vTPM of an instance is an EK's.
        ("attest/src/tpm/claims.rs", "it may have endorsed the EK"),
        ("attest/src/tpm/endorsements.rs", "likewise"),
        ("attest/src/tpm/kind.rs", "it stands beside an identity token"),
        ("attest/src/tpm/vtpm/mod.rs", "it is verified"),
        ("attest/src/tpm/vtpm/error.rs", "likewise"),
    ];
    let mut named = BTreeSet::new();
    for path in packages.map(rust_files).concat() {
        let code = code(&path);
        let production = code.split("#[cfg(test)]").next().unwrap_or_default();
        let names = names_of_clouds(production);
        if rooms.as_flattened().iter().any(|room| path.starts_with(room)) || names.is_empty() {
            continue;
        }
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        assert!(allowed.iter().any(|(allowed, _)| *allowed == file), "{file} names {names:?}");
        named.insert(file);
    }
    let needless: Vec<_> = allowed.iter().filter(|(file, _)| !named.contains(*file)).collect();
    assert!(needless.is_empty(), "these name none: {needless:?}");
}
