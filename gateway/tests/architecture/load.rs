//! The load generator of the benchmark `storm` represents real nodes, and its figures are explained.

use super::{code, root, text};

#[test]
fn the_load_generator_waits_as_attest_node_does() {
    let generator = ["storm/waits", "storm"].map(|room| code(&root().join("gateway/benches").join(room).join("attest_node.rs")));
    let generator = generator.concat();
    let program = ["gateway/exchange.rs", "gateway/http.rs", "attestation/mod.rs"];
    let program: String = program.map(|file| code(&root().join("attest/node/src").join(file))).concat();
    let figures = |code: &str| -> Vec<String> {
        let lines = code.lines().map(|line| line.strip_prefix("pub ").unwrap_or(line));
        let lines = lines.filter_map(|line| line.strip_prefix("const "));
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
    let options = code(&root().join("attest/node/src/options.rs"));
    let deadline = options
        .split("deadline: u64")
        .next()
        .unwrap()
        .lines()
        .rev()
        .nth(1)
        .unwrap_or_default();
    assert!(deadline.contains("default_value_t = 60,"), "{deadline}");
    assert!(generator.contains("const SILENCE: Duration = Duration::from_secs(60);"));
}

#[test]
fn every_figure_of_the_storm_is_explained() {
    let document = text(&root().join("docs/explanation/performance.md"));
    let figures = code(&root().join("gateway/benches/storm/figures.rs"));
    let added = figures.lines().filter_map(|line| line.trim().strip_prefix("add(\""));
    let named = figures
        .lines()
        .filter_map(|line| line.strip_prefix("const ")?.split_once(": &str = \"").map(|(_, name)| name));
    let names: Vec<&str> = added.chain(named).map(|line| line.split('"').next().unwrap()).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(
            document.contains(&format!("\n| {name} |")),
            "docs/explanation/performance.md does not explain {name:?}"
        );
    }
    for bench in ["attest", "gateway"].map(|package| text(&root().join(package).join("Cargo.toml"))) {
        let manifest: toml::Table = bench.parse().unwrap();
        for target in manifest["bench"].as_array().unwrap() {
            let name = target["name"].as_str().unwrap();
            assert!(
                document.contains(&format!("`{name}`")) || document.contains(&format!("--bench {name}`")) || name == "report",
                "{name}"
            );
        }
    }
}
