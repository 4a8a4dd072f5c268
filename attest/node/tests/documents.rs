//! Comparison of `docs/reference/node-codes.md` with the code. With `WRITE_DOCS` in the environment, the page is written.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use attest_node::codes::{CODES, NodeCode};

/// Returns the page of the codes that can appear on a node's console.
fn page() -> String {
    let mut page = "# Codes of attest-node\n\n\
                    `make docs` writes this page from the code.\n\n\
                    | Code | Meaning | Next step |\n\
                    |---|---|---|\n"
        .to_owned();
    for NodeCode { code, title, next_step } in CODES {
        assert!(
            !format!("{title}{next_step}").contains('|'),
            "{code}: a table's cell cannot have a |"
        );
        writeln!(page, "| `{code}` | {title} | {next_step} |").unwrap();
    }
    page
}

#[test]
fn the_page_of_the_nodes_codes_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/node-codes.md");
    if env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page(), "docs/reference/node-codes.md differs from the code: run make docs");
}
