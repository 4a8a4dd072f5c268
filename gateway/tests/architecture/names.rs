//! Names of types: each has one meaning in the whole workspace.

use super::*;

/// Names that several types may have, with the reason.
const SHARED_TYPE_NAMES: &[(&str, &str)] = &[
    ("Arguments", "one for each module of a command"),
    ("Attester", "the node's side of the TPM, and the attester in the protocol"),
    ("Bytes", "a range of a boot image, and the reader of a log file"),
    ("Command", "one for each module of commands"),
    ("Create", "arguments of each `create` command"),
    ("Verified", "the alias of one kind's result, and the result of all kinds"),
];

/// Returns the name of the type that a line defines. A `type` in a block is an associated type and defines none.
fn defined_type(line: &str) -> Option<&str> {
    let is_in_block = line.starts_with(' ');
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = public
            .strip_prefix('(')
            .and_then(|scope| scope.split_once(')'))
            .map_or(public, |(_, item)| item);
        rest = rest.trim_start();
    }
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, name) = rest.split_once(' ')?;
    if !matches!(keyword, "struct" | "enum" | "trait") && (keyword != "type" || is_in_block) {
        return None;
    }
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .next()
        .filter(|name| name.starts_with(|letter: char| letter.is_ascii_uppercase()))
}

/// Returns whether a file belongs to tests or benchmarks.
fn is_test_file(path: &Path) -> bool {
    let inside = path.strip_prefix(root()).unwrap();
    inside
        .components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "benches")))
}

#[test]
fn type_names_are_unique() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in ["attest", "cloud-fixtures", "gateway", "swtpm-tests"] {
        for path in rust_files(folder).into_iter().filter(|path| !is_test_file(path)) {
            let code = code(&path);
            let code = code.split("mod tests {").next().unwrap_or_default();
            for name in code.lines().filter_map(defined_type) {
                let place = path.strip_prefix(root()).unwrap().display().to_string();
                found.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    assert!(found.contains_key("Gateway") && found.len() > 500, "{} types", found.len());
    let twice = found.iter().filter(|(_, places)| places.len() > 1);
    let twice: BTreeMap<&str, &Vec<String>> = twice.map(|(name, places)| (name.as_str(), places)).collect();
    let shared: BTreeSet<&str> = SHARED_TYPE_NAMES.iter().map(|(name, _)| *name).collect();
    let unexpected = twice.iter().filter(|(name, _)| !shared.contains(*name));
    let unexpected: BTreeMap<_, _> = unexpected.collect();
    assert!(unexpected.is_empty(), "type names with two meanings: {unexpected:#?}");
    for name in shared {
        assert!(twice.contains_key(name), "{name} is unique and needs no exception");
    }
}

#[test]
fn finds_the_definitions_of_types() {
    assert_eq!(defined_type("pub(super) struct Store<'s> {"), Some("Store"));
    assert_eq!(defined_type("    enum Step {"), Some("Step"));
    assert_eq!(defined_type("pub trait Engine: Send {"), Some("Engine"));
    assert_eq!(defined_type("type Bytes = Vec<u8>;"), Some("Bytes"));
    assert_eq!(defined_type("    type Error = StoreError;"), None);
    assert_eq!(defined_type("pub fn structure() {"), None);
    assert_eq!(defined_type("pub const TYPE: &str = \"type\";"), None);
}
