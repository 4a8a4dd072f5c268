//! The four VMs: same image, same pool, and each gets exactly the config for its evidence.
use swtpm_tests::TestFolder;
use swtpm_tests::scenario::{Scenario, Site, VmRun};

/// Expected fields of a record: kind of decision, presented evidence, verdict, code, grant.
type Decision<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, Option<&'a str>);

fn check(scenario: Scenario, node_verdict: &str, node_exit_code: i32, decisions: &[Decision<'_>]) -> VmRun {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let run = site.run(scenario, None).unwrap();
    site.prove_exactly(scenario.expected_grant(), &run.outcome).unwrap();

    let verdict = run.outcome.node_verdict().unwrap();
    assert!(verdict.contains(node_verdict), "{node_verdict:?} is not in {verdict:?}");
    assert_eq!(run.outcome.exit_codes.get("attest-node"), Some(&node_exit_code));
    let records: Vec<Decision<'_>> = run
        .records
        .iter()
        .map(|record| (record.decision(), record.shown(), record.verdict(), record.code(), record.grant()))
        .collect();
    assert_eq!(records, decisions);
    run
}

#[test]
fn an_endorsed_tpm_gets_the_full_config() {
    let run = check(
        Scenario::EndorsedTpm,
        "attested as tpm:",
        0,
        &[
            ("evidence", "tpm", "trusted", None, Some("full")),
            ("config", "ticket", "served", None, Some("full")),
        ],
    );
    // The gateway knows the node by the name that the node itself printed.
    let [trusted, served] = run.records.as_slice() else {
        unreachable!()
    };
    let identity = trusted.identity().unwrap();
    assert!(run.outcome.node_verdict().unwrap().contains(identity), "{identity}");
    assert_eq!(served.identity(), Some(identity));
}

#[test]
fn vm_without_evidence_gets_the_pre_approved_config() {
    check(
        Scenario::Nothing,
        "[tpm-absent]",
        1,
        &[("config", "nothing", "served", None, Some("pre-approved"))],
    );
}

#[test]
fn a_token_gets_the_full_config() {
    check(
        Scenario::Token,
        "nothing to do: ",
        0,
        &[("config", "token", "served", None, Some("full"))],
    );
}

#[test]
fn an_unendorsed_tpm_is_refused_and_gets_the_pre_approved_config() {
    let run = check(
        Scenario::UnendorsedTpm,
        "[ek-not-endorsed]",
        1,
        &[
            ("challenge", "tpm", "refused", Some("ek-not-endorsed"), None),
            ("config", "nothing", "served", None, Some("pre-approved")),
        ],
    );
    let [refused, _] = run.records.as_slice() else { unreachable!() };
    assert!(refused.identity().unwrap().starts_with("tpm:"));
    assert!(!refused.reason().is_empty());
}
