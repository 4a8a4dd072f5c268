//! Trust anchors and keys of a gateway: each change is found, and recorded in one line that names it.

use std::fs;

use cloud_fixtures::aws::{NitroAuthority, RegionAuthority};
use cloud_fixtures::azure::AzureAuthority;
use cloud_fixtures::google::StandInKeys;
use cloud_fixtures::google::vtpm::VtpmCa;
use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384};
use serde_json::Value;

use crate::support::Gateway;

/// Files, with the name of each finding, and whether the certificate's digest is part of that name: then another certificate is another
/// object.
const FILES: [(&str, &str, bool); 7] = [
    ("keys.json", "gcp.jwks", false),
    ("gcp-vtpm-roots/root.der", "gcp.vtpm_roots ", true),
    ("aws-nitro-roots/root.pem", "aws.nitro_roots ", true),
    (
        "aws-region-certificates/eu-central-1.pem",
        "aws.region_certificates eu-central-1 ",
        true,
    ),
    ("azure-roots/root.pem", "azure.roots ", true),
    ("azure-intermediates/one.pem", "azure.intermediates ", true),
    ("azure-vtpm-roots/root.der", "azure.vtpm_roots ", true),
];

/// Returns the content of each file, different at each call.
fn contents() -> [Vec<u8>; 7] {
    let ca = || {
        VtpmCa::new(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap())
            .certificate()
            .to_vec()
    };
    let azure = AzureAuthority::new("eastus");
    [
        StandInKeys::new().jwks().to_string().into_bytes(),
        ca(),
        NitroAuthority::new().root_pem().into_bytes(),
        RegionAuthority::new(1).certificate_pem().into_bytes(),
        azure.root_pem().into_bytes(),
        azure.intermediate_pem().into_bytes(),
        ca(),
    ]
}

fn write(gateway: &Gateway, file: &str, content: &[u8]) {
    fs::create_dir_all(gateway.path(file).parent().unwrap()).unwrap();
    fs::write(gateway.path(file), content).unwrap();
}

fn admin_lines(gateway: &Gateway) -> Vec<Value> {
    let lines = gateway.log_lines().into_iter().filter(|line| line["decision"] == "admin");
    lines.collect()
}

/// Verifies that this line names the earlier and the current content of this file, and nothing else.
#[track_caller]
fn names(act: &Value, id: &str, by_certificate: bool) {
    let things = act["admin"]["things"].as_array().unwrap();
    let (digest, things): (Vec<&Value>, Vec<&Value>) = things.iter().partition(|thing| thing["kind"] == "standing");
    assert_eq!(digest.len(), 1, "{act}");
    let is_named = |thing: &Value| {
        let found = thing["id"].as_str().unwrap();
        thing["kind"] == "anchor"
            && match by_certificate {
                true => found.strip_prefix(id).is_some_and(|sha256| sha256.len() == 64),
                false => found == id,
            }
    };
    assert!(things.iter().all(|thing| is_named(thing)), "{id}: {act}");
    let of = |when: &str| -> Vec<&Value> { things.iter().filter_map(|thing| thing[when].get("sha256")).collect() };
    let (before, after) = (of("before"), of("after"));
    assert_eq!((before.len(), after.len()), (1, 1), "{id}: {act}");
    assert_ne!(before, after, "{id}");
    assert_eq!(things.len(), if by_certificate { 2 } else { 1 }, "{id}: {act}");
}

#[test]
fn records_each_changed_trust_anchor_in_one_event() {
    let mut gateway = Gateway::init();
    gateway.settings("[gcp]\njwks = \"keys.json\"");
    for ((file, ..), content) in FILES.iter().zip(contents()) {
        write(&gateway, file, &content);
    }
    gateway.run();
    for ((file, id, by_certificate), content) in FILES.into_iter().zip(contents()) {
        let before = admin_lines(&gateway).len();
        gateway.terminate();
        assert!(gateway.wait().success());
        write(&gateway, file, &content);
        gateway.run();
        let acts = admin_lines(&gateway).split_off(before);
        let [act] = &acts[..] else { panic!("{file}: {acts:?}") };
        assert_eq!(act["admin"]["verb"], "gateway.start", "{file}");
        names(act, id, by_certificate);
    }
    // Google's keys are read again while it serves.
    let [keys, ..] = contents();
    let before = admin_lines(&gateway).len();
    write(&gateway, "keys.json", &keys);
    gateway.wait_for_acts(1, "gateway.reload");
    let acts = admin_lines(&gateway).split_off(before);
    let [act] = &acts[..] else { panic!("{acts:?}") };
    names(act, "gcp.jwks", false);
    let said = ["state/attestation.jsonl", "state/standing.json"].map(|file| fs::read_to_string(gateway.path(file)).unwrap());
    let keys = ["state/log.key", "state/seal.key"].map(|file| fs::read_to_string(gateway.path(file)).unwrap());
    let secrets = keys.iter().flat_map(|key| key.lines()).filter(|line| !line.starts_with('-'));
    for secret in secrets {
        assert!(said.iter().all(|said| !said.contains(secret)), "{secret}");
    }
}
