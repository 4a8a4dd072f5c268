//! Documents: the generated reference is that of the code, and links lead to something.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod blocks;
mod reference;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use attest::SpkiSha256;
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns a file of the repository.
fn document(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_protocols_test_vector_is_right() {
    let extra_data = qualifying_data(&[7; 32], PURPOSE_CONFIG, "worker", &SpkiSha256([9; 32]));
    let hex = data_encoding::HEXLOWER.encode(&extra_data);
    let page = "docs/reference/protocol.md";
    assert!(document(page).contains(&hex), "{hex} is not in {page}");
}

/// The pages of the repository, by their paths in it.
fn pages() -> Vec<String> {
    let root = root();
    let mut folders = [
        "",
        "docs",
        "docs/explanation",
        "docs/how-to",
        "docs/night",
        "docs/reference",
        "examples",
        "cloud-fixtures",
        "release/fixtures",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                pages.push(Path::new(&folder).join(name).to_str().unwrap().to_owned());
            }
        }
    }
    assert!(pages.len() > 40, "{pages:?}");
    pages
}

/// The anchors of a page's headings, as code hosts make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut in_code = false;
    for line in page.lines() {
        in_code ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !in_code) else {
            continue;
        };
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let text: String = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
        let anchor = text.replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone())
            .chain(numbered)
            .find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn links_between_documents_lead_to_a_file_and_a_heading() {
    let root = root();
    let mut wrong = Vec::new();
    for name in pages() {
        let folder = root.join(&name).parent().unwrap().to_owned();
        for link in document(&name).split("](").skip(1) {
            let target = link.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root.join(&name) } else { folder.join(file) };
            let leads = path.exists() && (anchor.is_empty() || anchors(&fs::read_to_string(&path).unwrap()).contains(anchor));
            if !leads {
                wrong.push(format!("{name}: {target}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn upgrades_has_the_formats_of_this_release() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_attest-gateway"))
        .arg("--version")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut lines = printed.lines();
    let release = lines.next().unwrap().strip_prefix("attest-gateway ").unwrap();
    assert!(lines.next().unwrap().starts_with("commit: "), "{printed}");
    let (names, versions): (Vec<_>, Vec<_>) = lines.map(|line| line.split_once(": ").unwrap()).unzip();
    let page = document("docs/upgrades.md");
    for row in [
        format!("| Release | {} |", names.join(" | ")),
        format!("| {release} | {} |", versions.join(" | ")),
    ] {
        assert!(page.lines().any(|line| line == row), "{row} is not in docs/upgrades.md");
    }
}
