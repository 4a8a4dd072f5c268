//! Membership of an account's machines in a pool.

use attest::Kind;
use serde_json::json;

use super::machine::Machine;
use super::site::{self, AZURE_RULES, DOCUMENT, GCP, TPM};
use crate::support::{Gateway, bearer, digest, tpm};

const GCP_IDENTITY: &str = "gcp:example-project/152986662232938449";
const AWS_IDENTITY: &str = "aws:123456789012/i-0123456789abcdef0";
const AZURE_IDENTITY: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
const INVENTORY: &str = "[inventory]\ninstances = \"instances.txt\"\n";
/// Rules without a condition on single machines.
const ANY_VM: &str = "[azure]\nsubscriptions = [\"8a205152-b25a-417f-a676-80465535a6c9\"]\n";

fn instances(gateway: &Gateway, pool: &str, lines: &[&str]) {
    site::write(gateway, &format!("pools/{pool}/instances.txt"), lines.join("\n"));
}

/// Waits until a pool has changed this number of times.
fn wait_for_changes(gateway: &Gateway, pool: &str, times: usize) {
    let news = format!("pool {pool}: serving a new state");
    gateway.lines(times, |line| line.contains(&news));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_refuses_machines_that_are_not_in_the_inventory() {
    let mut gateway = site::init(
        r#"[["gcp"], ["aws-identity-document"], ["azure"]]"#,
        &[GCP, DOCUMENT, ANY_VM, INVENTORY],
    );
    instances(
        &gateway,
        "worker",
        &["# the workers", GCP_IDENTITY, &format!("{AWS_IDENTITY} # rack 7"), AZURE_IDENTITY],
    );
    gateway.run();
    for (kind, identity) in [
        (Kind::Gcp, GCP_IDENTITY),
        (Kind::AwsIdentityDocument, AWS_IDENTITY),
        (Kind::Azure, AZURE_IDENTITY),
    ] {
        let record = site::trusted(&gateway, &Machine::new().attest(&gateway, &[kind]).await, identity, &[kind]);
        let other = Machine::new().but(|machine| {
            machine.google.instance_id = 7;
            machine.aws.instance_id = "i-00000000000000007".to_owned();
            machine.azure.vm_id = "00000000-0000-0000-0000-000000000007".to_owned();
        });
        let answer = other.attest(&gateway, &[kind]).await;
        let refused = site::refused(&gateway, &answer, "instance-not-in-inventory");
        // Who is in it, nobody learns.
        assert!(!String::from_utf8_lossy(&answer.body).contains(identity));
        // It has taken nothing.
        let list = gateway.command(&["machines", "list"]);
        assert!(!list.contains(refused["identity"].as_str().unwrap()), "{list}");

        // The record has the inventory, so that the decision can be made again: this one, and no other.
        // Of a document that nobody has claimed there is a digest only: whoever reads it could.
        if kind != Kind::AwsIdentityDocument {
            assert_eq!(record["basis"]["inventory"], refused["basis"]["inventory"]);
        }
        let mut swapped = record.clone();
        swapped["basis"]["inventory"] = json!("ab".repeat(32));
        assert!(
            site::replay_code(&gateway, &swapped).contains("Blob"),
            "{}",
            site::replay_code(&gateway, &swapped)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_inventory_changes_take_effect_immediately() {
    let mut gateway = site::init(r#"[["gcp"]]"#, &[GCP, INVENTORY]);
    instances(&gateway, "worker", &[]);
    gateway.run();
    let attest = async || Machine::new().attest(&gateway, &[Kind::Gcp]).await;
    site::refused(&gateway, &attest().await, "instance-not-in-inventory");
    instances(&gateway, "worker", &[GCP_IDENTITY]);
    wait_for_changes(&gateway, "worker", 1);
    let record = site::trusted(&gateway, &attest().await, GCP_IDENTITY, &[Kind::Gcp]);
    // One that cannot be read is nobody's: the last good one stays.
    instances(&gateway, "worker", &["worker-7"]);
    gateway.line(|line| {
        line.contains("instances.txt: line 1: \"worker-7\" is not a machine") && line.contains("still serving the last good state")
    });
    drop(attest().await.ticket());
    instances(&gateway, "worker", &["gcp:example-project/7"]);
    wait_for_changes(&gateway, "worker", 2);
    site::refused(&gateway, &attest().await, "instance-not-in-inventory");
    // What was decided then comes out as it did.
    assert_eq!(site::replay_code(&gateway, &record), "accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_removal_from_the_inventory_invalidates_tickets() {
    let mut gateway = site::init(r#"[["gcp"]]"#, &[GCP, INVENTORY]);
    instances(&gateway, "worker", &[GCP_IDENTITY]);
    gateway.run();
    let ticket = bearer(&Machine::new().attest(&gateway, &[Kind::Gcp]).await.ticket());
    let fetch = async || gateway.config("/config/worker", &[&ticket]).await;
    let full = gateway.rendered("worker", "full");
    fetch().await.is_config(&full);
    instances(&gateway, "worker", &["gcp:example-project/7"]);
    wait_for_changes(&gateway, "worker", 1);
    for _ in 0..5 {
        fetch().await.refused(403, "ticket-withdrawn");
    }
    let record = site::record(&gateway);
    assert_eq!(record["decided_by"], "store");
    assert!(record["reason"].as_str().unwrap().contains(GCP_IDENTITY), "{record}");
    // It was not used up by that.
    instances(&gateway, "worker", &[GCP_IDENTITY]);
    wait_for_changes(&gateway, "worker", 2);
    for _ in 0..3 {
        fetch().await.is_config(&full);
    }
    fetch().await.refused(403, "ticket-spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_refuses_control_plane_config_to_a_worker() {
    let mut gateway = site::init(r#"[["gcp"]]"#, &[GCP, INVENTORY]);
    site::pool(&gateway, "master", r#"[["gcp"]]"#, &[GCP, INVENTORY]);
    site::configs(&gateway, "master");
    instances(&gateway, "worker", &[GCP_IDENTITY]);
    instances(&gateway, "master", &["gcp:example-project/1", "gcp:example-project/2"]);
    gateway.run();
    let of_master = || Machine::new().but(|machine| machine.pool = "master".to_owned());
    let answer = of_master().attest(&gateway, &[Kind::Gcp]).await;
    site::refused(&gateway, &answer, "instance-not-in-inventory");
    drop(Machine::new().attest(&gateway, &[Kind::Gcp]).await.ticket());

    // In both it is in neither: the last good state of each is served, and a gateway that starts so serves neither.
    instances(&gateway, "master", &["gcp:example-project/1", GCP_IDENTITY]);
    gateway.line(|line| {
        line.contains(&format!(
            "pool master: its inventory names {GCP_IDENTITY}, and so does that of pool worker"
        ))
    });
    let answer = of_master().attest(&gateway, &[Kind::Gcp]).await;
    site::refused(&gateway, &answer, "instance-not-in-inventory");
    let output = gateway.try_command(&["check", "--strict"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "{said}");
    for (pool, other) in [("master", "worker"), ("worker", "master")] {
        let expect = format!("pool {pool}: its inventory names {GCP_IDENTITY}, and so does that of pool {other}");
        assert!(said.contains(&expect), "{said}");
    }
    // A machine that changes pools: out of the one, into the other.
    instances(&gateway, "worker", &[]);
    wait_for_changes(&gateway, "master", 1);
    drop(of_master().attest(&gateway, &[Kind::Gcp]).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_29_inventory_binds_a_tpm_to_its_instance() {
    let mut gateway = site::init(r#"[["tpm", "azure"], ["tpm"]]"#, &[TPM, AZURE_RULES, INVENTORY]);
    let (own, foreign) = (tpm(), tpm());
    for case in [&own, &foreign] {
        gateway.endorse(case, &[]);
    }
    let of = |case: &crate::support::Case| format!("tpm:{}", digest(case));
    let (identity, other) = (of(&own), of(&foreign));
    instances(&gateway, "worker", &[&format!("{AZURE_IDENTITY} {identity}")]);
    gateway.run();
    let both = [Kind::Tpm, Kind::Azure];
    let with = |case| Machine::new().but(|machine| machine.tpm = Some(case));
    // A TPM that is trusted, beside the document of an instance that has never attested.
    let thief = with(foreign);
    let answer = thief.attest(&gateway, &both).await;
    let record = site::refused(&gateway, &answer, "instance-tpm-not-in-inventory");
    assert!(record["reason"].as_str().unwrap().contains(&identity) && answer.problem().detail.unwrap().contains(&other));
    // Nor is it a machine by itself.
    site::refused(&gateway, &thief.attest(&gateway, &[Kind::Tpm]).await, "instance-not-in-inventory");
    // The instance is not locked out by that.
    let node = with(own);
    site::trusted(&gateway, &node.attest(&gateway, &both).await, &identity, &both);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_about_a_pool_without_inventory() {
    let gateway = site::init(r#"[["gcp"]]"#, &[GCP]);
    let warning = "pool worker: any instance of the account that meets the rules gets this pool's config";
    let check = || String::from_utf8_lossy(&gateway.try_command(&["check"]).stdout).into_owned();
    assert!(check().contains(warning), "{}", check());
    site::pool(&gateway, "worker", r#"[["gcp"]]"#, &[GCP, INVENTORY]);
    assert!(check().contains("instances.txt"), "{}", check());
    instances(&gateway, "worker", &[GCP_IDENTITY]);
    assert!(!check().contains(warning), "{}", check());
    site::pool(&gateway, "worker", r#"[["tpm"]]"#, &[TPM]);
    assert!(!check().contains(warning), "{}", check());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_an_imported_instance_gets_its_name_in_its_pools_only() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let import = |pools: &str| {
        let row = json!({ "instance": GCP_IDENTITY, "name": "worker-7", "pools": pools });
        site::write(&gateway, "machines.json", row.to_string());
        gateway.command(&["machines", "import", gateway.path("machines.json").to_str().unwrap()])
    };
    import("infra");
    let refused = site::refused(
        &gateway,
        &Machine::new().attest(&gateway, &[Kind::Gcp]).await,
        "instance-wrong-pool",
    );
    assert_eq!(refused["decided_by"], "store", "{refused}");
    import("infra worker");
    let answer = Machine::new().attest(&gateway, &[Kind::Gcp]).await;
    let record = site::trusted(&gateway, &answer, GCP_IDENTITY, &[Kind::Gcp]);
    assert_eq!(record["name"], "worker-7", "it gets its name unasked");
    // Another machine cannot have the name, and it can have no other.
    let machine = Machine::new().but(|machine| machine.name = Some("worker-8".to_owned()));
    site::refused(&gateway, &machine.attest(&gateway, &[Kind::Gcp]).await, "node-name-taken");
    let other = Machine::another().but(|machine| {
        machine.google.instance_id = 8;
        machine.name = Some("worker-7".to_owned());
    });
    site::refused(&gateway, &other.attest(&gateway, &[Kind::Gcp]).await, "node-name-taken");
    // What it has earned ends with its entry.
    let ticket = bearer(&answer.ticket());
    assert_eq!(gateway.config("/config/worker", &[&ticket]).await.status, 200);
    let removed = gateway.command(&["ek", "remove", GCP_IDENTITY]);
    assert!(removed.contains(GCP_IDENTITY), "{removed}");
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-withdrawn");
    site::refused(
        &gateway,
        &Machine::new().attest(&gateway, &[Kind::Gcp]).await,
        "instance-wrong-pool",
    );
    gateway.command(&["ek", "remove", "--leave-to-roots", GCP_IDENTITY]);
    site::trusted(
        &gateway,
        &Machine::new().attest(&gateway, &[Kind::Gcp]).await,
        GCP_IDENTITY,
        &[Kind::Gcp],
    );
}
