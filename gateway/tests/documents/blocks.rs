//! Blocks of settings in the pages about platforms: the gateway's own parser accepts them.

use std::collections::BTreeMap;
use std::path::Path;

use attest_gateway::settings::Settings;
use toml::{Table, Value};

use super::document;

/// Pages whose blocks are whole rules of a pool, or changes of the block before.
const PAGES: [&str; 5] = ["aws", "azure", "bare-metal", "gcp", "vsphere"];
/// First line of a block of other settings than those of a pool.
const OF_GATEWAY: &str = "# gateway.toml";

/// Returns the blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&*fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Replaces the words that stand for digests.
fn with_digests(block: &str) -> String {
    let text = block.replace("96-HEXADECIMAL-DIGITS", &"ab".repeat(48));
    text.replace("64-HEXADECIMAL-DIGITS", &"ab".repeat(32))
}

/// Changes the rules as a block says. PCRs are replaced as a whole.
fn change(rules: &mut Table, block: Table) {
    for (key, value) in block {
        match (rules.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) if key != "pcrs" => change(old, new),
            (_, value) => drop(rules.insert(key, value)),
        }
    }
}

#[test]
fn settings_in_the_pages_about_platforms_are_accepted() {
    let mut count = BTreeMap::new();
    for name in PAGES {
        let page = document(&format!("docs/how-to/{name}.md"));
        let mut rules = Table::new();
        for block in blocks(&page, "toml") {
            *count.entry(name).or_insert(0) += 1;
            if block.starts_with(OF_GATEWAY) {
                Settings::parse(block, Path::new("gateway.toml")).unwrap_or_else(|error| panic!("{name}: {error}:\n{block}"));
                continue;
            }
            let block: Table = with_digests(block)
                .parse()
                .unwrap_or_else(|error| panic!("{name}: {error}:\n{block}"));
            // A block with the accepted kinds has all rules.
            if block.contains_key("attestation") {
                rules = Table::new();
            }
            change(&mut rules, block);
            let text = format!("[grants]\n{rules}");
            attest_pool::policy_of(Path::new("worker"), Path::new("pool.toml"), &text, Vec::new())
                .unwrap_or_else(|error| panic!("{name}: {error}:\n{text}"));
        }
    }
    for name in ["aws", "azure", "gcp"] {
        assert!(count.get(name) > Some(&1), "{name}: {count:?}");
    }
}

/// The machine sets in `examples/` name user data as each platform's provider reads it, and what the pages say of them.
#[test]
fn machine_sets_of_the_examples_have_what_attestation_needs() {
    for (name, fields) in [
        (
            "aws",
            &[
                ("/kind", "AWSMachineProviderConfig"),
                ("/userDataSecret/name", "worker-user-data"),
                ("/metadataServiceOptions/authentication", "Required"),
                ("/iamInstanceProfile/id", "mycluster-x7k2p-worker-profile"),
            ][..],
        ),
        (
            "aws-nitro-tpm",
            &[
                ("/kind", "AWSMachineProviderConfig"),
                ("/userDataSecret/name", "worker-user-data"),
                ("/metadataServiceOptions/authentication", "Required"),
            ],
        ),
        (
            "azure",
            &[
                ("/kind", "AzureMachineProviderSpec"),
                ("/userDataSecret/name", "worker-user-data"),
                ("/securityProfile/settings/securityType", "TrustedLaunch"),
                (
                    "/securityProfile/settings/trustedLaunch/uefiSettings/virtualizedTrustedPlatformModule",
                    "Enabled",
                ),
            ],
        ),
        (
            "google-cloud",
            &[
                ("/kind", "GCPMachineProviderSpec"),
                ("/userDataSecret/name", "worker-user-data"),
                ("/shieldedInstanceConfig/virtualizedTrustedPlatformModule", "Enabled"),
                ("/serviceAccounts/0/email", "mycluster-x7k2p-w@my-project.iam.gserviceaccount.com"),
            ],
        ),
    ] {
        let text = document(&format!("examples/{name}/machine-set.yaml"));
        let set: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(set["kind"], "MachineSet", "{name}");
        let labels = |pointer: &str| set.pointer(pointer).unwrap()["machine.openshift.io/cluster-api-machineset"].clone();
        assert_eq!(labels("/spec/selector/matchLabels"), set["metadata"]["name"], "{name}");
        assert_eq!(labels("/spec/template/metadata/labels"), set["metadata"]["name"], "{name}");
        for (pointer, value) in fields {
            let found = set.pointer(&format!("/spec/template/spec/providerSpec/value{pointer}"));
            assert_eq!(found, Some(&serde_json::json!(value)), "{name}: {pointer}");
        }
    }
}
