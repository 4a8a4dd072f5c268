//! The records distinguish a node that attests in vain from a trusted one: no file that Ignition reads can be written.
use swtpm_tests::TestFolder;
use swtpm_tests::scenario::{Scenario, Site};

#[test]
fn reports_a_ticket_that_cannot_be_delivered() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let folder = site.vm_folder("read-only").unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &folder).unwrap().unwrap();
    // Without systemd around it attest-node has the mounts of all, so that it changes nothing about them.
    let vm = site.vm().pointer(&pointer).tpm(&tpm).kernel_argument("usr-read-only");

    let run = site.boot(vm, &folder).unwrap();

    site.prove_exactly("pre-approved", &run.outcome).unwrap();
    assert_eq!(run.outcome.exit_codes["attest-node"], 1);
    let verdict = run.outcome.node_lines.last().unwrap();
    for part in [
        "not attested: ",
        "/usr/lib/ignition/user.ign cannot be written",
        "[ticket-undeliverable]; next: ",
        "; the pointer config is unchanged",
    ] {
        assert!(verdict.contains(part), "{part:?} is not in {verdict}");
    }
    // It has told so before Ignition came, and has spent nobody's time on evidence.
    let seen: Vec<_> = run
        .records
        .iter()
        .map(|record| (record.decision(), record.verdict(), record.grant()))
        .collect();
    assert_eq!(seen, [("config", "served", Some("pre-approved")); 2]);
    let told = run.records[0].json();
    assert!(told["user_agent"].as_str().unwrap().starts_with("attest-node/"), "{told}");
    assert!(
        told["alerts"][0]
            .as_str()
            .unwrap()
            .contains("this node reports ticket-undeliverable: "),
        "{told}"
    );
    assert!(run.records[1].json()["user_agent"].as_str().unwrap().starts_with("Ignition/"));
}
