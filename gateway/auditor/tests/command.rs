//! Tests for the auditor's search for files, and its messages if it finds nothing.

use std::fs;

use crate::program;

/// Returns the exit code and the output, in a folder without a gateway's files.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("log.jsonl"), "").unwrap();
    let output = program().args(arguments).current_dir(folder.path()).output().unwrap();
    (
        output.status.code(),
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
    )
}

#[test]
fn error_names_the_missing_option() {
    for (arguments, option) in [
        (&["log", "audit"][..], "--state FOLDER"),
        (&["log", "audit", "--without-checkpoints"], "--state FOLDER"),
        (&["policy", "test", "worker", "--record", "0123456789abcdef"], "--pools FOLDER"),
        (&["policy", "simulate", "worker"], "--pools FOLDER"),
        (&["policy", "propose", "worker"], "--pools FOLDER"),
        (&["log", "show-config", "0123456789abcdef", "--folder", "."], "--state FOLDER"),
        (&["log", "compare-boots", "0123456789abcdef", "0123456789abcdef"], "--state FOLDER"),
        (
            &["reference-values", "record", "node", "--name", "a", "--to", "a.json"],
            "--state FOLDER",
        ),
    ] {
        let (code, said) = run(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(
            said.starts_with("attest-audit: ") && said.contains("gateway.toml: ") && said.contains(option),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn log_audit_works_without_gateway_settings() {
    let (code, said) = run(&["log", "audit", "--log", "log.jsonl", "--continued", "--log-key", "none.pub"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("none.pub"), "{said}");
    let (code, said) = self::run(&["log", "audit", "--log", "log.jsonl", "--continued"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("pass --log-key"), "{said}");
}

#[test]
fn rejects_an_invalid_checkpoint_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("attestation.jsonl"), "").unwrap();
    for (text, expected) in [
        (
            "{\"v\":1}\n",
            "line 1: not a checkpoint in the form of `attest-gateway log list-checkpoints`",
        ),
        ("no JSON", "line 1"),
    ] {
        fs::write(folder.path().join("signed.jsonl"), text).unwrap();
        let mut audit = program();
        audit.args(["--state", ".", "log", "audit", "--checkpoints", "signed.jsonl"]);
        let output = audit.current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("signed.jsonl") && said.contains(expected), "{said}");
    }
}

#[test]
fn every_help_shows_an_example() {
    for command in [
        "log audit",
        "policy test",
        "policy simulate",
        "policy propose",
        "log show-config",
        "log compare-boots",
        "reference-values predict",
        "reference-values record",
    ] {
        let output = program().args(command.split(' ')).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(help.contains(&format!("attest-audit {command}")), "{command}:\n{help}");
    }
}
