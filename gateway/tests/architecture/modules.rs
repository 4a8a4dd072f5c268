//! Imports between modules, and the places where a kind of evidence may be named.

use super::*;

/// Returns the names that follow `crate::` in a file's code without its tests, including those in braces.
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

/// Returns the imports between the top modules of a crate, including those through re-exports of its root.
pub fn imports_of(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
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

/// Verifies that the imports have no cycle, by removing modules without remaining imports.
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
        imports["api"].contains("recording") && imports["pools"].contains("policy"),
        "{imports:?}"
    );
    assert_no_cycle(imports);
    let imports = imports_of("gateway/ignition/src");
    assert!(
        imports["machine_config"].contains("config") && imports["spec2"].contains("version"),
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

/// Returns whether a file contains `mod name;`.
fn has_room(file: &Path, name: &str) -> bool {
    let room = format!("mod {name};");
    file.is_file() && code(file).lines().any(|line| line.trim_end().ends_with(&room))
}

/// Returns the crate roots of a package's tests, and of its benchmarks that have a folder, as its manifest names them.
fn test_targets(package: &Path) -> Vec<PathBuf> {
    let manifest: toml::Table = text(&package.join("Cargo.toml")).parse().unwrap();
    let targets = ["test", "bench"].map(|kind| manifest.get(kind).and_then(toml::Value::as_array));
    let path = |target: &toml::Value| Some(package.join(target.get("path")?.as_str()?));
    targets.into_iter().flatten().flatten().filter_map(path).collect()
}

#[test]
fn every_file_is_part_of_a_target() {
    let packages = [
        "attest",
        "attest/node",
        "cloud-fixtures",
        "gateway",
        "gateway/attestation-log",
        "gateway/auditor",
        "gateway/certificates",
        "gateway/cluster-api",
        "gateway/controller",
        "gateway/command-line",
        "gateway/ignition",
        "gateway/machines",
        "gateway/plain-http",
        "gateway/pointers",
        "gateway/pool",
        "gateway/recording",
        "gateway/store",
        "gateway/system",
        "swtpm-tests",
    ];
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

/// Returns the words in names that denote a cloud's kind of evidence.
fn names_of_clouds(code: &str) -> BTreeSet<String> {
    let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let named = |word: &&str| {
        let capital = ["Gcp", "Azure", "Aws"].iter().any(|cloud| word.contains(cloud));
        *word != "aws_lc_rs" && (capital || word.split('_').any(|part| ["gcp", "azure", "aws"].contains(&part)))
    };
    words.filter(named).map(str::to_owned).collect()
}

#[test]
fn only_allowed_files_name_an_evidence_kind() {
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
        ("attest/src/machine_objects.rs", "what a cluster calls an instance of each cloud"),
        (
            "attest/src/quotes.rs",
            "which kinds quote PCRs, and which of them with an event log",
        ),
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
