//! Tests of the cost of a chain from an unauthenticated client, counted in signatures. `attest/tests/ek_certificate.rs` has the rest.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, date_time_ymd};
use x509_parser::extensions::ParsedExtension;

use super::*;

/// Time of verification, 2027-01-15.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));

fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

fn ca(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2060, 1, 1);
    params
}

fn issued(name: &str, issuer: &str, issuer_key: &KeyPair, key: &KeyPair) -> CertificateDer<'static> {
    ca(name)
        .signed_by(key, &Issuer::from_params(&ca(issuer), issuer_key))
        .unwrap()
        .into()
}

fn ca_with_key_identifiers(name: &str) -> CertificateParams {
    let mut params = ca(name);
    params.use_authority_key_identifier_extension = true;
    params
}

fn with_key_identifiers(name: &str, issuer_key: &KeyPair, key: &KeyPair) -> CertificateDer<'static> {
    let params = ca_with_key_identifiers(name);
    params.signed_by(key, &Issuer::from_params(&params, issuer_key)).unwrap().into()
}

fn leaf(issuer: &str, issuer_key: &KeyPair) -> CertificateDer<'static> {
    let params = CertificateParams::default();
    params
        .signed_by(&key(), &Issuer::from_params(&ca(issuer), issuer_key))
        .unwrap()
        .into()
}

/// Signatures verified, and whether a path was found.
fn cost(leaf: &CertificateDer<'_>, sent: &[CertificateDer<'_>], roots: &EkRoots) -> (usize, bool) {
    let budget = SignatureBudget::new(SIGNATURES_LIMIT);
    let sent: Vec<&[u8]> = sent.iter().map(AsRef::as_ref).collect();
    let found = verify_path_within(&budget, leaf, &sent, roots, USAGE, NOW).is_ok();
    (budget.spent(), found)
}

fn self_signed(name: &str, key: &KeyPair) -> CertificateDer<'static> {
    ca(name).self_signed(key).unwrap().into()
}

#[test]
fn attack_36_signature_cost_of_a_chain() {
    let root_key = key();
    let roots = EkRoots::new(vec![self_signed("Root", &root_key)], Vec::new()).unwrap();

    // An honest one: its own, and one for each CA.
    assert_eq!(cost(&leaf("Root", &root_key), &[], &roots), (1, true));
    let (first, second) = (key(), key());
    let sent = [
        issued("First", "Root", &root_key, &first),
        issued("Second", "First", &first, &second),
    ];
    assert_eq!(cost(&leaf("Second", &second), &sent, &roots), (3, true));
    // Nothing leads to a root, or there is none: none at all.
    assert_eq!(cost(&leaf("Second", &second), &sent[1..], &roots), (0, false));
    assert_eq!(cost(&leaf("Second", &second), &sent, &EkRoots::default()), (0, false));

    // Eight that name themselves, or the root, with different keys.
    let maze = |name: &str, issuer: &str| -> Vec<CertificateDer<'static>> {
        let one = |_| issued(name, issuer, &key(), &key());
        (0..INTERMEDIATES_LIMIT).map(one).collect()
    };
    for (name, issuer) in [("Maze", "Maze"), ("Root", "Root"), ("Maze", "Root"), ("Root", "Maze")] {
        for leaf in [leaf("Maze", &key()), leaf("Root", &key())] {
            let (spent, found) = cost(&leaf, &maze(name, issuer), &roots);
            assert!(!found && spent <= 1, "{name} by {issuer}: {spent}");
        }
    }
    // The root itself is no way past the root, and what it has not signed costs no more for being sent twice.
    let itself = self_signed("Root", &root_key);
    assert_eq!(cost(&leaf("Root", &key()), &[itself.clone(), itself], &roots), (1, false));
    // A root that was rolled over, and a CA that two have certified: each way is tried once.
    let rolled = key();
    let sent = [
        self_signed("Root", &rolled),
        issued("Root", "Root", &root_key, &rolled),
        issued("First", "Root", &rolled, &first),
        issued("First", "Elsewhere", &key(), &first),
    ];
    let (spent, found) = cost(&leaf("First", &first), &sent, &roots);
    assert!(found && spent <= SIGNATURES_LIMIT, "{spent}");
    // Eight under the root's name that key identifiers tell apart, each issued by the next, and the last one by nobody.
    let keys: Vec<KeyPair> = (0..=INTERMEDIATES_LIMIT).map(|_| key()).collect();
    let stairs: Vec<_> = keys.windows(2).map(|two| with_key_identifiers("Root", &two[1], &two[0])).collect();
    let mut params = CertificateParams::default();
    params.use_authority_key_identifier_extension = true;
    let bottom = params.signed_by(&key(), &Issuer::from_params(&ca_with_key_identifiers("Root"), &keys[0]));
    let bottom = bottom.unwrap().into();
    assert_eq!(cost(&bottom, &stairs, &roots), (SIGNATURES_LIMIT, false));
    assert_eq!(cost(&bottom, &stairs, &EkRoots::default()), (0, false));
    // A line of CAs, the last of which the root has not signed: looked at from the root, so nothing further is.
    let keys: Vec<KeyPair> = (0..5).map(|_| key()).collect();
    let mut line = vec![issued("0", "Root", &key(), &keys[0])];
    line.extend((1..5).map(|at| issued(&at.to_string(), &(at - 1).to_string(), &keys[at - 1], &keys[at])));
    assert_eq!(cost(&leaf("4", &keys[4]), &line, &roots), (1, false));
}

#[test]
fn key_identifier_selects_among_cas_of_one_name_and_proves_nothing() {
    let keys: Vec<KeyPair> = (0..3).map(|_| key()).collect();
    let params = ca_with_key_identifiers("Root");
    let roots: Vec<CertificateDer<'static>> = keys.iter().map(|key| params.self_signed(key).unwrap().into()).collect();
    let below: Vec<_> = keys.iter().map(|issuer| with_key_identifiers("Root", issuer, &key())).collect();
    assert_eq!(EkRoots::new(roots.clone(), below.clone()).unwrap().makers()["CN=Root"], 6);
    let (_, parsed) = X509Certificate::from_der(&roots[1]).unwrap();
    let identifier = parsed.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
        _ => None,
    });
    let mut names_second = params.clone();
    names_second.key_identifier_method = KeyIdMethod::PreSpecified(identifier.unwrap());
    let below_by = |issuer: &KeyPair| -> CertificateDer<'static> {
        let signed = ca_with_key_identifiers("Below").signed_by(&key(), &Issuer::from_params(&names_second, issuer));
        signed.unwrap().into()
    };
    // One without an identifier, one with that of another root, and one that no root has signed.
    let certificates = vec![issued("Below", "Root", &keys[2], &key()), below_by(&keys[0]), below_by(&key())];
    let (usable, refused) = EkRoots::load(roots, certificates);
    assert_eq!((usable.makers()["CN=Below"], refused.len()), (2, 1), "{refused:?}");
    assert!(matches!(refused[0].problem, EkRootProblem::IssuerSignature { .. }), "{refused:?}");
}

/// However many roots of one name an administrator has configured.
#[test]
fn attack_36_signature_budget_holds_for_any_root_count() {
    let keys: Vec<KeyPair> = (0..=SIGNATURES_LIMIT).map(|_| key()).collect();
    let roots = EkRoots::new(keys.iter().map(|key| self_signed("Root", key)).collect(), Vec::new()).unwrap();
    assert_eq!(
        cost(&leaf("Root", &keys[SIGNATURES_LIMIT - 1]), &[], &roots),
        (SIGNATURES_LIMIT, true)
    );
    // One too far: what the budget does not reach does not hold.
    let leaf = leaf("Root", &keys[SIGNATURES_LIMIT]);
    assert_eq!(cost(&leaf, &[], &roots), (SIGNATURES_LIMIT, false));
    assert_eq!(verify(&leaf, &[], &roots, NOW), Err(EkCertificateError::ChainTooLong));
}
