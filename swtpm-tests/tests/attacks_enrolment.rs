//! Names and pools that an endorsed TPM may not have. Live TPMs against a running gateway.

use crate::bench::{Bench, endorsement_key, extend, named, request, sha256};
use attest::protocol::{ChallengeRequest, HexDigest};
use attest_node::tpm::{AkKind, Attester, TpmDevice};
use swtpm_tests::ANY_TPM;

#[test]
fn attack_08_another_tpm_takes_over_a_nodes_name() {
    let bench = Bench::new();
    let second = bench.second_tpm();
    let (mut tpm_a, mut tpm_b) = (bench.tpm(), TpmDevice::open(&second.tcti()).unwrap());
    let (ek_a, ek_b) = (endorsement_key(&mut tpm_a), endorsement_key(&mut tpm_b));
    let mut a = tpm_a.attester(&ek_a, AkKind::EccP256).unwrap();
    let mut b = tpm_b.attester(&ek_b, AkKind::EccP256).unwrap();
    let (request_a, request_b) = (request(&ek_a, a.ak_public()), request(&ek_b, b.ak_public()));
    let refused = |attester: &mut Attester<'_>, request: &ChallengeRequest| {
        bench.refuses_altered(attester, request, "node-name-taken", |_, _, _| {});
    };

    bench.trusts(&mut a, &named(&request_a, "node-1"));
    refused(&mut b, &named(&request_b, "node-1"));
    bench.trusts(&mut b, &named(&request_b, "node-2"));
    refused(&mut b, &named(&request_b, "node-1"));
    // Nor can one machine collect the names of others that have yet to boot.
    refused(&mut a, &named(&request_a, "node-9"));
    bench.trusts(&mut a, &named(&request_a, "node-1"));

    // Only the administrator hands a name on.
    bench.gateway.command(&["node", "forget", "node-1"]).unwrap();
    refused(&mut b, &named(&request_b, "node-1"));
    bench.gateway.command(&["node", "forget", "node-2"]).unwrap();
    bench.trusts(&mut b, &named(&request_b, "node-1"));
    refused(&mut a, &named(&request_a, "node-1"));
    let list = bench.gateway.command(&["machines", "list"]).unwrap();
    assert!(list.contains("node-1") && list.contains(&ek_b.digest.to_string()), "{list}");
    assert!(!list.contains("node-2") && !list.contains("node-9"), "{list}");

    // Names that the administrator gives with an EK.
    let (a_digest, b_digest) = (ek_a.digest.to_string(), ek_b.digest.to_string());
    bench.gateway.command(&["ek", "add", &a_digest, "--name", "node-3"]).unwrap();
    refused(&mut b, &named(&request_b, "node-3"));
    let conflict = bench.gateway.command(&["ek", "add", &b_digest, "--name", "node-3"]).unwrap_err();
    assert!(format!("{conflict:#}").contains("--replace"), "{conflict:#}");
    refused(&mut b, &named(&request_b, "node-3"));
    // The machine itself gets its name unasked, and no other.
    bench.trusts(&mut a, &request_a);
    assert_eq!(bench.last_record().text("/name"), Some("node-3"));
    refused(&mut a, &named(&request_a, "node-4"));
    bench
        .gateway
        .command(&["ek", "add", &b_digest, "--name", "node-3", "--replace"])
        .unwrap();
    bench.trusts(&mut b, &named(&request_b, "node-3"));
    // The first one is still endorsed, and has no name any more.
    refused(&mut a, &named(&request_a, "node-3"));
    bench.trusts(&mut a, &request_a);
    assert_eq!(bench.last_record().text("/name"), None);
}

#[test]
fn attack_21_a_node_asks_for_a_pool_that_it_may_not_join() {
    let bench = Bench::new();
    let second = bench.second_tpm();
    let (mut tpm_a, mut tpm_b) = (bench.tpm(), TpmDevice::open(&second.tcti()).unwrap());
    let (ek_a, ek_b) = (endorsement_key(&mut tpm_a), endorsement_key(&mut tpm_b));
    let mut a = tpm_a.attester(&ek_a, AkKind::EccP256).unwrap();
    let mut b = tpm_b.attester(&ek_b, AkKind::EccP256).unwrap();
    let (request_a, request_b) = (request(&ek_a, a.ak_public()), request(&ek_b, b.ak_public()));
    bench.trusts(&mut a, &request_a);
    // The maker's root vouches for it everywhere, but the administrator has let it into another pool only.
    bench
        .gateway
        .command(&["ek", "add", &ek_a.digest.to_string(), "--pool", "infra"])
        .unwrap_err();
    bench.add_pool("infra");
    bench
        .gateway
        .command(&["ek", "add", &ek_a.digest.to_string(), "--pool", "infra"])
        .unwrap();
    bench.refuses_request(&request_a, "ek-not-endorsed");
    bench.trusts(&mut b, &request_b);
    bench
        .gateway
        .command(&["ek", "add", &ek_a.digest.to_string(), "--pool", "infra", "--pool", "worker"])
        .unwrap();
    bench.trusts(&mut a, &request_a);
}

#[test]
fn attack_03_refuses_a_bought_tpm_in_an_allowlist_pool() {
    let bench = Bench::with(|gateway| gateway.edit_pool(ANY_TPM, "endorsement = \"allowlist\"").unwrap());
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    bench.refuses_request(&request, "ek-not-endorsed");
    bench.gateway.command(&["ek", "add", &ek.digest.to_string()]).unwrap();
    bench.trusts(&mut attester, &request);
}

/// A TPM on a header has nothing in its PCRs, and its owner can extend them with anything: here the digests of a good boot.
#[test]
fn attack_32_a_bought_tpm_replays_a_good_boots_pcrs() {
    let digests = [[0x61; 32], [0x62; 32]];
    let good = digests.iter().fold([0; 32], |pcr, digest| sha256(&[pcr, *digest].concat()));
    let checked = format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", HexDigest::from(good));
    for (allowlist, warned) in [(true, 0), (false, 1)] {
        let bench = Bench::with(|gateway| {
            gateway.edit_pool("\"0-7\" = \"not checked\"", &checked).unwrap();
            if allowlist {
                gateway.edit_pool(ANY_TPM, "endorsement = \"allowlist\"").unwrap();
            }
        });
        let report = bench.gateway.command(&["check"]).unwrap();
        assert_eq!(report.matches("any TPM of a manufacturer").count(), warned, "{report}");
        let mut tpm = bench.tpm();
        let ek = endorsement_key(&mut tpm);
        for digest in digests {
            extend(&mut tpm, 7, digest);
        }
        let mut bought = tpm.attester(&ek, AkKind::EccP256).unwrap();
        let request = request(&ek, bought.ak_public());
        if allowlist {
            bench.refuses_request(&request, "ek-not-endorsed");
        } else {
            // The pool has said so.
            let earned = bench.trusts(&mut bought, &request);
            bench.gives("full", Some(&earned.ticket));
        }
    }
}
