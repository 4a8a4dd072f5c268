//! Machines of the three clouds. Real Ignition, with that cloud's platform, and attest-node have only the data of the metadata server at
//! the cloud's own address, including the pointer.
pub mod estate;

use std::path::Path;

use estate::{Estate, Metadata};
use serde_json::json;
use swtpm_tests::scenario::{Scenario, Site, VmRun};
use swtpm_tests::{ANY_TPM, LogRecord, Swtpm, TestCloud, TestFolder};

/// Program that QEMU starts for each connection to a metadata server.
const CONNECT: &str = env!("CARGO_BIN_EXE_connect");

/// Extras of a machine that needs only its metadata server.
const NOTHING_ELSE: Extra<'_> = Extra { tpm: None, disc: None };

/// Devices of a machine in addition to its metadata server.
struct Extra<'e> {
    tpm: Option<&'e Swtpm>,
    disc: Option<&'e Path>,
}

/// Returns a gateway that is not started yet, and a cloud.
fn prepared(cloud: TestCloud) -> (TestFolder, Site, Estate) {
    let folder = TestFolder::new().unwrap();
    let site = Site::new(folder.path()).unwrap();
    (folder, site, Estate::new(cloud))
}

/// Boots the machine with the metadata server of its cloud.
fn boot(site: &Site, estate: &Estate, extra: &Extra<'_>) -> VmRun {
    let cloud = estate.metadata.cloud();
    let metadata = estate.metadata.server().address();
    let mut vm = site.vm().cloud(cloud).metadata(metadata, Path::new(CONNECT));
    if let Some(tpm) = extra.tpm {
        vm = vm.tpm(tpm);
    }
    if let Some(disc) = extra.disc {
        vm = vm.disc(disc);
    }
    site.boot(vm, &site.vm_folder(cloud.platform_id()).unwrap()).unwrap()
}

/// Verifies that the node has the full config, and that the log has its identity and the kinds of evidence that earned it. Returns the
/// decision about them.
fn proven(site: &Site, run: &VmRun, shown: &str, kinds: &[&str]) -> LogRecord {
    let node = &run.outcome.node_lines;
    site.prove_exactly("full", &run.outcome)
        .unwrap_or_else(|error| panic!("{error}; {node:?}"));
    let [trusted, served] = run.records.as_slice() else {
        panic!("not two decisions: {:?}; {node:?}", run.records);
    };
    assert_eq!(
        (trusted.decision(), trusted.verdict(), trusted.grant()),
        ("evidence", "trusted", Some("full"))
    );
    assert_eq!((trusted.shown(), &trusted.json()["kinds"]), (shown, &json!(kinds)));
    assert_eq!(
        (served.decision(), served.shown(), served.grant()),
        ("config", "ticket", Some("full"))
    );
    // The node says the same about itself as the gateway does.
    let identity = trusted.identity().unwrap();
    assert!(
        run.outcome.node_verdict().unwrap().contains(identity),
        "{identity} is not in {node:?}"
    );
    assert_eq!(run.outcome.exit_codes.get("attest-node"), Some(&0));
    trusted.clone()
}

fn check(cloud: TestCloud, kinds: &[&str]) {
    let (_folder, mut site, estate) = prepared(cloud);
    estate.accept(kinds, site.gateway());
    site.gateway().start(None).unwrap();
    estate.metadata.set_user_data(&site.gateway().pointer(None).unwrap());
    let run = boot(&site, &estate, &NOTHING_ELSE);
    let trusted = proven(&site, &run, "cloud", kinds);
    assert_eq!(trusted.identity(), Some(estate.identity.as_str()));
}

#[test]
fn a_gcp_instance_gets_the_full_config_for_its_identity_token() {
    check(TestCloud::Gcp, &["gcp"]);
}

#[test]
fn an_aws_instance_gets_the_full_config_for_its_identity_document_and_its_role() {
    check(TestCloud::Aws, &["aws-identity-document", "aws-sts"]);
}

#[test]
fn an_azure_machine_gets_the_full_config_for_its_attested_document() {
    check(TestCloud::Azure, &["azure"]);
}

#[test]
fn an_azure_machine_finds_its_pointer_in_its_custom_data_too() {
    let (folder, mut site, estate) = prepared(TestCloud::Azure);
    estate.accept(&["azure"], site.gateway());
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let disc = site.images().azure_disc(&pointer, folder.path()).unwrap();
    let extra = Extra {
        disc: Some(&disc),
        ..NOTHING_ELSE
    };
    let run = boot(&site, &estate, &extra);
    proven(&site, &run, "cloud", &["azure"]);
}

#[test]
fn gcp_instance_attests_by_tpm_and_identity_token() {
    let (folder, mut site, estate) = prepared(TestCloud::Gcp);
    estate.accept(&["tpm", "gcp"], site.gateway());
    // Nothing but the administrator says that this TPM is that instance's.
    site.gateway().edit_pool(ANY_TPM, "endorsement = \"allowlist\"").unwrap();
    site.gateway().start(None).unwrap();
    estate.metadata.set_user_data(&site.gateway().pointer(None).unwrap());
    let with = |site: &Site, tpm: Swtpm| {
        let extra = Extra {
            tpm: Some(&tpm),
            ..NOTHING_ELSE
        };
        boot(site, &estate, &extra)
    };
    let first = with(&site, site.tpm(Scenario::EndorsedTpm, folder.path()).unwrap().unwrap());
    let refused = first.records.iter().find(|record| record.verdict() == "refused").unwrap();
    assert_eq!(refused.code(), Some("ek-not-endorsed"));
    let digest = refused.identity().unwrap().strip_prefix("tpm:").unwrap();
    site.gateway().command(&["ek", "add", digest]).unwrap();
    let run = with(&site, Swtpm::restart(folder.path()).unwrap());
    let trusted = proven(&site, &run, "tpm", &["tpm", "gcp"]);
    assert!(trusted.identity().unwrap().starts_with("tpm:"));
    assert_eq!(trusted.text("/instance"), Some(estate.identity.as_str()));
}

#[test]
fn a_gcp_instance_of_another_project_is_refused_and_gets_the_pre_approved_config() {
    let (_folder, mut site, estate) = prepared(TestCloud::Gcp);
    estate.accept(&["gcp"], site.gateway());
    site.gateway().start(None).unwrap();
    estate.metadata.set_user_data(&site.gateway().pointer(None).unwrap());
    let Metadata::Gcp(server) = &estate.metadata else { unreachable!() };
    server.change_instance(|instance| instance.project_number += 1);
    let run = boot(&site, &estate, &NOTHING_ELSE);
    site.prove_exactly("pre-approved", &run.outcome).unwrap();
    let decisions: Vec<_> = run
        .records
        .iter()
        .map(|record| (record.decision(), record.code(), record.grant()))
        .collect();
    assert_eq!(
        decisions,
        [
            ("evidence", Some("gcp-project-refused"), None),
            ("config", None, Some("pre-approved"))
        ]
    );
}

#[test]
fn a_token_serves_an_unknown_aws_instance() {
    let (_folder, mut site, estate) = prepared(TestCloud::Aws);
    site.gateway().start(None).unwrap();
    let token = site.gateway().create_token("rack7").unwrap();
    estate.metadata.set_user_data(&site.gateway().pointer(Some(&token)).unwrap());
    let run = boot(&site, &estate, &NOTHING_ELSE);
    site.prove_exactly("full", &run.outcome).unwrap();
    let served = run.records.last().unwrap();
    assert_eq!(
        (served.decision(), served.shown(), served.grant()),
        ("config", "token", Some("full"))
    );
}
