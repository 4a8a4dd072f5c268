//! The load generator of the benchmark `storm` stands for real nodes.

use super::{code, root};

#[test]
fn the_load_generator_waits_as_attest_node_does() {
    let generator = code(&root().join("gateway/benches/storm/attest_node.rs"));
    let program = ["gateway/exchange.rs", "gateway/http.rs", "attestation/mod.rs"];
    let program: String = program.map(|file| code(&root().join("attest/node/src").join(file))).concat();
    let figures = |code: &str| -> Vec<String> {
        let lines = code.lines().filter_map(|line| line.strip_prefix("const "));
        lines.map(str::to_owned).collect()
    };
    let theirs = figures(&program);
    // These two are no figure of that code: one is the command line's, the other a part of a longer list.
    let apart = ["SILENCE", "WORTH_ANOTHER_CHALLENGE"];
    let ours = figures(&generator).into_iter();
    let ours: Vec<String> = ours.filter(|figure| !apart.iter().any(|name| figure.starts_with(name))).collect();
    assert_eq!(ours.len(), 7, "{ours:?}");
    for figure in ours {
        assert!(theirs.contains(&figure), "attest-node has another {figure:?}");
    }
    let main = code(&root().join("attest/node/src/main.rs"));
    let deadline = main.split("deadline: u64").next().unwrap().lines().rev().nth(1).unwrap_or_default();
    assert!(deadline.contains("default_value_t = 60,"), "{deadline}");
    assert!(generator.contains("const SILENCE: Duration = Duration::from_secs(60);"));
}
