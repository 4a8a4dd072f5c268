//! Quotes of clouds' TPMs in the output of commands: rule by rule, compared with another boot, and as reference values.

use attest::Kind;
use attest::protocol::Evidence;

use super::azure_event_log::{REQUIRED, VM_ID, VTPM, log, machine, with_log};
use super::machine::{Asked, Machine};
use super::site::{self, NITRO_TPM};
use crate::support::{Gateway, POOL};

fn command_output(gateway: &Gateway, arguments: &[&str], succeeds: bool) -> String {
    let output = gateway.try_command(arguments);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.success(), succeeds, "{arguments:?}: {said}");
    said
}

/// Verifies whether the row with this rule says that it holds.
fn check(table: &str, rule: &str, holds: bool) {
    let mut rows = table.lines().filter(|row| row.starts_with(rule));
    let row = rows.next().unwrap_or_else(|| panic!("{rule} is not in {table}"));
    assert_eq!(rows.next(), None, "{table}");
    let rest: Vec<&str> = row[rule.len()..].split_whitespace().collect();
    assert_eq!(rest.contains(&"NO"), !holds, "{row}");
    assert_eq!(rest.contains(&"yes"), holds, "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_test_explains_an_azure_vtpm_quote() {
    let gateway = site::start(r#"[["azure-vtpm"]]"#, &[REQUIRED]);
    let alter = |evidence: &mut Evidence, _: &Asked| with_log(evidence, Some(log("more").build()));
    let identity = format!("azure-vtpm:{VM_ID}");
    let answer = machine().attest_altered(&gateway, &VTPM, alter).await;
    let record = site::trusted(&gateway, &answer, &identity, &VTPM);
    let id = record["id"].as_str().unwrap();
    let test = ["policy", "test", POOL, "--record", id];
    let table = command_output(&gateway, &test, true);
    check(&table, "azure_vtpm: the PCRs 0, 1, 2, 3, 4, 5, 6, 7 of sha256 are quoted", true);
    check(&table, "azure_vtpm: PCR 7: not checked", true);
    check(&table, "azure_vtpm: the node sends an event log", true);
    check(&table, "whole policy", true);

    // What it has booted, as that of any TPM.
    command_output(&gateway, &["log", "compare-boots", id, id], true);
    let recorded = gateway.path("recorded.json").display().to_string();
    command_output(
        &gateway,
        &["reference-values", "record", &identity, "--name", "it", "--pcrs", "--to", &recorded],
        true,
    );
    let values = command_output(&gateway, &["reference-values", "show", &recorded, "it"], true);
    assert!(values.contains("\"pcr\": 7"), "{values}");

    let other = REQUIRED.replace("\"0-7\" =", &format!("7 = [\"{}\"]\n\"0-6\" =", "ab".repeat(32)));
    let other = other.replace("[azure_vtpm.pcrs]", "boot = [\"secure-boot\"]\n[azure_vtpm.pcrs]");
    site::pool(&gateway, POOL, r#"[["azure-vtpm"]]"#, &[&other]);
    let table = command_output(&gateway, &test, false);
    check(&table, "azure_vtpm: PCR 6: not checked", true);
    check(&table, "azure_vtpm: PCR 7 has one of 1 digests of pool.toml", false);
    check(&table, "azure_vtpm: the node sends an event log", true);
    check(&table, "azure_vtpm: Secure Boot is on", false);
    check(&table, "whole policy", false);
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_test_explains_a_nitro_tpm_quote() {
    let rules = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let gateway = site::start(r#"[["aws-nitro-tpm"]]"#, &[&rules]);
    let kinds = [Kind::AwsNitroTpm];
    let answer = Machine::new().attest(&gateway, &kinds).await;
    let record = site::trusted(&gateway, &answer, "aws-nitrotpm:i-0123456789abcdef0", &kinds);
    let test = ["policy", "test", POOL, "--record", record["id"].as_str().unwrap()];
    let table = command_output(&gateway, &test, true);
    check(&table, "aws_nitro_tpm: PCR 6: not checked", true);
    check(&table, "aws_nitro_tpm: PCR 7 has one of 1 digests of pool.toml", true);
    // A document has all PCRs, and no event log comes with it: nothing is said of either.
    assert!(!table.contains("are quoted") && !table.contains("event log"), "{table}");

    let other = rules.replace(
        "\"0-6\" =",
        &format!("4 = [\"{}\"]\n\"0-3\" = \"not checked\"\n\"5-6\" =", "ab".repeat(48)),
    );
    let other = other.replace("regions =", "only_while_booting = true\nregions =");
    site::pool(&gateway, POOL, r#"[["aws-nitro-tpm"]]"#, &[&other]);
    let table = command_output(&gateway, &test, false);
    check(&table, "aws_nitro_tpm: PCR 4 has one of 1 digests of pool.toml", false);
    check(&table, "aws_nitro_tpm: PCR 7 has one of 1 digests of pool.toml", true);
    // Its PCR 13 is not zeros.
    check(&table, "aws_nitro_tpm: the machine is still booting", false);
    check(&table, "whole policy", false);
}
