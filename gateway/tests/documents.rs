//! Comparison of the documents with the code, as far as possible.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use attest::SpkiSha256;
use attest::advice::Advice;
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::reject::ADVICE;
use attest::tpm;
use attest_log::codes::CODES;

/// Returns a file of the repository.
fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the rows of the table in one section: the code in the first column, and the whole row.
fn rows<'a>(document: &'a str, section: &str) -> Vec<(&'a str, &'a str)> {
    let (_, rest) = document
        .split_once(&format!("\n## {section}\n"))
        .unwrap_or_else(|| panic!("no section {section:?}"));
    let section = rest.split("\n## ").next().unwrap_or_default();
    section
        .lines()
        .filter_map(|line| Some((line.strip_prefix("| `")?.split_once('`')?.0, line)))
        .collect()
}

fn check_section(section: &str, codes: &[Advice]) {
    let errors = document("docs/errors.md");
    let rows = rows(&errors, section);
    let listed: BTreeSet<&str> = rows.iter().map(|(code, _)| *code).collect();
    let known: BTreeSet<&str> = codes.iter().map(|advice| advice.code).collect();
    assert_eq!(listed, known, "section {section}");
    assert_eq!(rows.len(), listed.len(), "section {section} names a code twice");
    for Advice { code, title, next_step } in codes {
        let (_, row) = rows.iter().find(|(listed, _)| listed == code).unwrap();
        assert!(row.contains(title), "{code}: {title:?} is not in {row:?}");
        assert!(row.contains(next_step), "{code}: {next_step:?} is not in {row:?}");
    }
}

#[test]
fn every_code_of_the_gateway_is_explained() {
    check_section("Codes of the gateway", CODES);
}

#[test]
fn every_code_of_refused_evidence_is_explained() {
    check_section(
        "Codes of refused evidence",
        &[ADVICE, tpm::ADVICE, tpm::rules::ADVICE, attest::condition::ADVICE].concat(),
    );
}

#[test]
#[cfg(feature = "cluster")]
fn every_reason_for_which_a_csr_is_left_is_explained() {
    let errors = document("docs/errors.md");
    let rows = rows(&errors, "CSRs of kubelets");
    let listed: Vec<&str> = rows.iter().map(|(code, _)| *code).collect();
    assert_eq!(listed, attest_controller::approval::reason::Reason::CODES);
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders = [
        "",
        "docs",
        "docs/evidence",
        "docs/night",
        "docs/reference",
        "examples",
        "cloud-fixtures",
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
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
