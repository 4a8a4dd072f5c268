//! Pools for each platform, and options without which they would accept nothing or too much.

use std::fs;

use attest::aws::identity_document::AwsPartition;
use attest::{Combination, Kind};
use attest_pool::{Endorsement, PoolFile, UnknownMachines};

use super::*;

/// Runs the command for a platform, with `--only settings` and a host.
fn settings(platform: &str, options: &[&str]) -> Output {
    program()
        .args(["manifests", "render", "--only", "settings", "--host", "api-int.example.com"])
        .args(["--platform", platform])
        .args(options)
        .output()
        .unwrap()
}

/// Returns a pool of the printed ConfigMap, read by the gateway's own parser.
fn pool(platform: &str, options: &[&str], name: &str) -> PoolFile {
    let output = settings(platform, options);
    assert!(output.status.success(), "{platform}: {}", String::from_utf8_lossy(&output.stderr));
    let objects = objects(&String::from_utf8(output.stdout).unwrap());
    let pools = object(&objects, "ConfigMap", "attest-gateway-pools");
    let folder = tempfile::tempdir().unwrap();
    let text = pools["data"][format!("{name}.toml")].as_str().unwrap();
    fs::write(folder.path().join("pool.toml"), text).unwrap();
    attest_pool::pool_file(folder.path()).unwrap()
}

const AWS: [&str; 8] = [
    "--account",
    "123456789012",
    "--region",
    "eu-central-1",
    "--role",
    "mycluster-worker-role",
    "--with",
    "inventory",
];

/// Returns AWS's options without one, and its value.
fn without(option: &str) -> Vec<&'static str> {
    let pairs = AWS.chunks(2).filter(|pair| pair[0] != option);
    pairs.flatten().copied().collect()
}

#[test]
fn each_platform_has_the_evidence_of_its_machines() {
    let accepts = |pool: &PoolFile| pool.policy.accepts().to_vec();
    let both = |first: Kind, second: Kind| -> Vec<Combination> { vec![vec![first, second].try_into().unwrap()] };
    let aws = pool("aws", &AWS, "worker");
    assert_eq!(accepts(&aws), both(Kind::AwsIdentityDocument, Kind::AwsSts));
    let machines = aws.machines.unwrap().of;
    assert_eq!(
        serde_json::to_value(&machines).unwrap(),
        serde_json::json!({"machine_sets": ["*-worker-*"]})
    );

    let gcp = pool("gcp", &["--project", "my-project=123456789012", "--with", "inventory"], "worker");
    assert_eq!(
        (accepts(&gcp), gcp.endorsement),
        (both(Kind::Tpm, Kind::Gcp), Some(Endorsement::GcpInstance))
    );
    assert!(gcp.machines.is_some() && gcp.policy.reference_values().unwrap().is_only_while_booting());

    let azure = pool("azure", &["--subscription", "8a205152-b25a-417f-a676-80465535a6c9"], "worker");
    assert_eq!(accepts(&azure), both(Kind::Azure, Kind::AzureVtpm));
    assert!(azure.inventory.unwrap().ends_with("settings/worker-instances.txt"));
    assert_eq!(azure.waiting.unwrap().unknown, UnknownMachines::Wait);

    for platform in ["baremetal", "vsphere", "openstack", "none"] {
        let pool = pool(platform, &[], "worker");
        let alone = vec![Combination::from(Kind::Tpm)];
        assert_eq!(
            (accepts(&pool), pool.endorsement),
            (alone, Some(Endorsement::Allowlist)),
            "{platform}"
        );
        assert!(pool.machines.is_none() && pool.inventory.is_none(), "{platform}");
    }
}

#[test]
fn control_plane_pools_accept_control_plane_machines_only() {
    let options: Vec<&str> = AWS.iter().copied().chain(["--pool", "master", "--pool", "infra"]).collect();
    let of = |name: &str| serde_json::to_value(pool("aws", &options, name).machines.unwrap().of).unwrap();
    assert_eq!(of("master"), serde_json::json!({"control_plane": true}));
    assert_eq!(of("infra"), serde_json::json!({"machine_sets": ["*-infra-*"]}));
}

#[test]
fn each_region_selects_its_partition() {
    for (region, partition) in [
        ("eu-central-1", AwsPartition::Aws),
        ("cn-north-1", AwsPartition::AwsCn),
        ("us-gov-west-1", AwsPartition::AwsUsGov),
        ("eusc-de-east-1", AwsPartition::AwsEusc),
    ] {
        let mut options = without("--region");
        options.extend(["--region", region]);
        let rules = pool("aws", &options, "worker").policy;
        assert_eq!(rules.aws_identity_document().unwrap().partitions, [partition], "{region}");
    }
}

#[test]
fn refuses_missing_misplaced_and_malformed_values() {
    let refused = |platform: &str, options: &[&str], expected: &str| {
        let output = settings(platform, options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{platform} {options:?}");
        assert!(said.contains(expected), "{platform} {options:?}: {said}");
    };
    for option in ["--account", "--region", "--role"] {
        refused("aws", &without(option), &format!("{option} is missing"));
    }
    refused("aws", &without("--with"), "--with inventory is missing");
    refused("gcp", &["--with", "inventory"], "--project is missing");
    refused("gcp", &["--project", "my-project=1"], "--with inventory is missing");
    refused("azure", &[], "--subscription is missing");
    refused(
        "baremetal",
        &["--account", "123456789012"],
        "--account belongs to another --platform",
    );
    refused("azure", &["--project", "a=1"], "--project belongs to another --platform");
    let aws = |option: &str, value: &str, expected: &str| {
        let mut options = without(option);
        options.extend([option, value]);
        refused("aws", &options, expected);
    };
    aws("--account", "12345", "--account \"12345\": not an account of AWS");
    aws("--account", "123456789012\"]\n[grants]\nnothing = \"full", "not an account of AWS");
    aws("--role", "path/to/role", "--role \"path/to/role\": not the name of an IAM role");
    aws("--region", "us-iso-east-1", "not a region of the partitions");
    aws("--region", "eu-central-1a", "not a region of the partitions");
    let two: Vec<&str> = AWS.iter().copied().chain(["--region", "cn-north-1"]).collect();
    refused("aws", &two, "different partitions");
    for project in ["my-project", "my-project=", "my-project=x", "=1", "My_Project=1"] {
        refused("gcp", &["--project", project, "--with", "inventory"], "project");
    }
    refused("azure", &["--subscription", "mine"], "mine");
}
