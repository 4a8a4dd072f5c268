//! Checks that `docs/errors.md` explains each code that can appear on a node's console.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use attest_node::failure::CODES;

#[test]
fn every_code_of_the_node_is_explained() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    let errors = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (_, rest) = errors.split_once("\n## Codes of the node\n").unwrap();
    let section = rest.split("\n## ").next().unwrap_or_default();
    let listed: Vec<&str> = section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0))
        .collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(unique, CODES.into_iter().collect());
    assert_eq!(listed.len(), unique.len(), "a code is there twice");
}
