//! Filters: the lines that they choose, those that they cannot choose from, and those that they do not hide.

use serde_json::json;

use super::{Folder, plain, record, refused};

/// Returns an aggregated record of decisions.
fn counted(number: u64, decisions: u64) -> String {
    record(number, |record| {
        record["decision"] = "counted".into();
        record["verdict"] = "refused".into();
        record["peer"] = "192.0.2.0/24".into();
        record["pool"] = "".into();
        record["counted"] = decisions.into();
    })
}

/// Returns an event in which an administrator has named a machine.
fn named(number: u64) -> String {
    record(number, |record| {
        record["decision"] = "admin".into();
        record["verdict"] = "refused".into();
        record["pool"] = "".into();
        record["admin"] = json!({"v": 1, "verb": "ek.add", "at": 1, "by": {}, "things": [
            {"kind": "ek", "id": "45c9302c".repeat(8), "after": {"name": "worker-7"}},
        ]});
    })
}

#[test]
fn verdict_filter_ignores_aggregated_records() {
    let mut lines: Vec<String> = (1..=60)
        .map(|number| if number == 3 { refused(3) } else { counted(number, 0) })
        .collect();
    lines.push(record(61, |record| {
        record["decision"] = "checkpoint".into();
        record["verdict"] = "refused".into();
    }));
    lines.push(named(62));
    let folder = Folder::with(&lines);
    assert_eq!(folder.listed(&["--verdict", "refused"]), [3]);
    assert_eq!(folder.listed(&["--verdict", "refused", "--last", "1"]), [3]);
    assert_eq!(folder.listed(&["--decision", "checkpoint"]), [61]);
}

#[test]
fn finds_administrator_acts_by_node() {
    let folder = Folder::with(&[plain(1), named(2)]);
    for node in ["worker-7", "45c9302c", &"45c9302c".repeat(8)] {
        assert_eq!(folder.listed(&["--node", node]), [2], "{node}");
    }
    for node in ["worker", "45c9302", "45c9302d", "ek.add"] {
        assert_eq!(folder.listed(&["--node", node]).len(), 0, "{node}");
    }
}

#[test]
fn mentions_aggregated_records_that_filters_hide() {
    let folder = Folder::with(&[plain(1), counted(2, 0), counted(3, 40), refused(4), counted(5, 2), plain(6)]);
    let said = |arguments: &[&str]| {
        let output = folder.run(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for arguments in [
        &["show", "--pool", "infra"][..],
        &["show", "--verdict", "refused"],
        &["show", "--code", "ek-not-endorsed", "--all"],
        &["export", "--node", "worker-7"],
        &["export", "--decision", "config"],
    ] {
        assert!(
            said(arguments).contains("42 decisions, refusals among them, are in aggregated records"),
            "{arguments:?}: {}",
            said(arguments)
        );
    }
    assert!(said(&["show", "--verdict", "refused", "--until", "2026-11-21T11:00:04Z"]).contains("40 decisions"));
    for arguments in [&["show"][..], &["show", "--decision", "counted"], &["export"]] {
        assert_eq!(said(arguments), "", "{arguments:?}");
    }
    let nothing = said(&["show", "--until", "2026-11-21T11:00:02Z", "--pool", "infra"]);
    assert_eq!(nothing, "no record of the log matches\n");
}

#[test]
fn a_log_without_valid_records_is_an_error() {
    for lines in [
        vec!["rubbish\n".to_owned(); 3],
        vec!["rubbish\n".to_owned(), "{}\n".to_owned(), "\n".to_owned(), plain(4)],
    ] {
        let folder = Folder::with(&lines);
        for arguments in [
            &["show"][..],
            &["show", "--last", "2"],
            &["show", "--record", "4"],
            &["export", "--pool", "worker", "--last", "7"],
        ] {
            let output = folder.run(arguments);
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains("3 lines are unreadable"), "{arguments:?}: {said}");
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        }
    }
    // What comes before the last of them is not looked at.
    let folder = Folder::with(&["rubbish\n".to_owned(), plain(2), plain(3)]);
    assert_eq!(folder.listed(&["--last", "2"]), [2, 3]);
}

#[test]
fn node_filter_matches_identities_of_a_named_node() {
    let identity = format!("tpm:{}", "45c9302c".repeat(8));
    let refused_of = |number, proven: bool| {
        let identity = identity.clone();
        record(number, move |record| {
            record["decision"] = "evidence".into();
            record["verdict"] = "refused".into();
            record["code"] = "pcr-mismatch".into();
            record["identity"] = identity.into();
            if proven {
                record["claims"] = json!({"tpm": {}});
            }
        })
    };
    let another = record(4, |record| {
        record["decision"] = "challenge".into();
        record["verdict"] = "refused".into();
        record["code"] = "ek-not-endorsed".into();
        // Whoever wants to may ask to be called so.
        record["name"] = "worker-7".into();
        record["identity"] = format!("tpm:{}", "17bdc2c5".repeat(8)).into();
    });
    let foreign = record(6, |record| {
        record["decision"] = "challenge".into();
        record["verdict"] = "refused".into();
        record["identity"] = format!("tpm:{}", "17bdc2c5".repeat(8)).into();
    });
    for known in [super::attested(1), named(1)] {
        let folder = Folder::with(&[
            known,
            refused_of(2, false),
            plain(3),
            another.clone(),
            refused_of(5, true),
            foreign.clone(),
        ]);
        let log = folder.log();
        for log in [&[][..], &["--log", log.to_str().unwrap()]] {
            let arguments = [&["--node", "worker-7", "--all"], log].concat();
            assert_eq!(folder.listed(&arguments), [1, 2, 4, 5]);
            let shown = folder.good(&[&["show"], &arguments[..]].concat());
            let claimed: Vec<bool> = shown.lines().skip(1).map(|line| line.contains("worker-7 (claimed)")).collect();
            assert_eq!(claimed, [false, true, true, false], "{shown}");
        }
        assert_eq!(folder.listed(&["--node", "worker-8", "--all"]).len(), 0);
    }
}
