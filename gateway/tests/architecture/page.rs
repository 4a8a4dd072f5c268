//! `docs/architecture.md` and `CONTRIBUTING.md`, compared with the repository.

use super::modules::imports_of;
use super::*;

fn page() -> String {
    text(&root().join("docs/architecture.md"))
}

/// Returns the cells of a section's table, row by row, without its head.
fn rows(page: &str, section: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = |row: &str| row.split(" | ").map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = rows.skip(1).map(cells).collect();
    assert!(rows.len() > 5, "{rows:?}");
    rows
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_page_has_each_crate_with_its_dependencies() {
    let workspace: toml::Table = text(&root().join("Cargo.toml")).parse().unwrap();
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let members: BTreeSet<&str> = members.iter().map(|member| member.as_str().unwrap()).collect();
    let known = workspace["workspace"]["dependencies"].as_table().unwrap();
    let is_ours = |name: &str| known.get(name).is_some_and(|dependency| dependency.get("path").is_some());
    let page = page();
    let rows = rows(&page, "Crates");
    let listed = rows.iter().map(|row| row[0].trim_matches('`'));
    assert_eq!(listed.collect::<BTreeSet<_>>(), members);
    for row in &rows {
        let manifest: toml::Table = text(&root().join(row[0].trim_matches('`')).join("Cargo.toml")).parse().unwrap();
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let names = dependencies.into_iter().flat_map(toml::Table::keys).map(String::as_str);
        assert_eq!(
            names.filter(|name| is_ours(name)).collect::<BTreeSet<_>>(),
            quoted(&row[2]),
            "{row:?}"
        );
    }
}

#[test]
fn architecture_page_orders_gateway_folders_by_imports() {
    let page = page();
    let rows = rows(&page, "Folders of the gateway");
    let listed: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let entries = fs::read_dir(root().join("gateway/src")).unwrap();
    let entries = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let entries: BTreeSet<String> = entries.filter(|name| !["lib.rs", "main.rs"].contains(&name.as_str())).collect();
    assert_eq!(listed.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), entries);
    let mut imports = imports_of("gateway/src");
    for (place, name) in listed.iter().enumerate() {
        let name = name.trim_end_matches(".rs");
        let below: BTreeSet<&str> = listed.iter().skip(place + 1).map(|name| name.trim_end_matches(".rs")).collect();
        for imported in imports.remove(name).unwrap_or_default() {
            assert!(
                below.contains(imported.as_str()),
                "{name} imports {imported}, which is not below it"
            );
        }
    }
    assert!(imports.is_empty(), "{imports:?}");
}

/// Returns whether a file at or below a path has a function of this name; a name that ends with `_` is a prefix.
fn has_function(path: &Path, name: &str) -> bool {
    let files = match path.is_dir() {
        true => rust_files(path.strip_prefix(root()).unwrap().to_str().unwrap()),
        false => vec![path.to_owned()],
    };
    let ends = |rest: &str| name.ends_with('_') || rest.starts_with(['(', '<']);
    let is_it = |rest: &str| rest.strip_prefix(name).is_some_and(ends);
    files.iter().any(|file| code(file).split("fn ").skip(1).any(is_it))
}

#[test]
fn the_pages_name_files_and_tests_that_exist() {
    let pages = [page(), text(&root().join("CONTRIBUTING.md"))].concat();
    let mut found = 0;
    for name in quoted(&pages) {
        let (path, function) = name
            .split_once("::")
            .map_or((name, None), |(path, function)| (path, Some(function)));
        let Some((folder, _)) = path.split_once('/').filter(|_| !path.contains(' ')) else {
            continue;
        };
        if !root().join(folder).exists() || ["target", "build"].contains(&folder) {
            continue;
        }
        let file = root().join(path);
        assert!(file.exists(), "there is no {path}");
        if let Some(function) = function {
            assert!(has_function(&file, function), "{path} has no test {function}");
        }
        found += 1;
    }
    assert!(found > 60, "{found}");
}

#[test]
fn each_invariant_has_a_test() {
    for row in rows(&page(), "Invariants") {
        assert!(!quoted(&row[1]).is_empty(), "{row:?}");
    }
}

/// Returns the steps of a request: the words behind the arrows in a text's first block with arrows.
fn way(text: &str) -> Vec<&str> {
    let block = text.split("```").find(|block| block.contains("TlsStream")).unwrap();
    let steps = block.split('→').skip(1);
    steps.filter_map(|step| step.split_whitespace().next()).collect()
}

#[test]
fn crate_docs_and_page_describe_the_same_path() {
    let (page, document) = (text(&root().join("gateway/src/lib.rs")), page());
    let told = way(&page);
    assert!(told.len() > 10, "{told:?}");
    assert_eq!(told, way(&document));
}
