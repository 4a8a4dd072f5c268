//! Endorsements of an EK: by a maker's certificate for this very key, or by the allowlist. Also the Name in the request for the AK.

use std::sync::Arc;
use std::time::Duration;

use crate::support::maker::Maker;
use crate::support::{Case, NOW, SoftKey, accepting, at};
use attest::challenge::Drawn;
use attest::protocol::{Attester, ChallengeRequest};
use attest::tpm::ak::AkPublic;
use attest::tpm::vtpm::VtpmRoots;
use attest::{Challenge, Claims, EkDigest, EkRoots, EndorsedBy, Endorsements, HashAlg, Reject, Submission};

/// Attests with these endorsements. Returns the results of the challenge, and of evidence for a challenge that is issued in any case.
fn attest(case: &Case, endorsements: &Endorsements) -> [Result<Option<Claims>, Reject>; 2] {
    let request = ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: case.pool.clone(),
        name: None,
        attester: Attester::from(case.attester()),
    };
    let policy = accepting(&case.selection);
    let issued = Challenge::issue(
        &request,
        endorsements,
        &policy,
        "gateway.test",
        &Drawn::draw().unwrap(),
        at(NOW),
        Duration::from_secs(60),
    );
    let (challenge, evidence) = (case.challenge(), case.evidence());
    let submission = Submission::new(&challenge, &evidence, &case.server_keys);
    [issued.map(|_| None), attest::verify(&submission, endorsements, at(NOW)).map(Some)]
}

#[track_caller]
fn refused(case: &Case, endorsements: &Endorsements, code: &str) {
    for result in attest(case, endorsements) {
        assert_eq!(result.unwrap_err().code(), code);
    }
}

fn certified(by: &Maker) -> Case {
    let (area, certificate) = by.ek();
    Case::new(SoftKey::p256()).but(|case| {
        case.ek_area = area;
        case.ek_certificate = Some(certificate);
    })
}

fn trusting(maker: &Maker) -> Endorsements {
    Endorsements::new(Arc::new(EkRoots::new(vec![maker.root().into()], Vec::new()).unwrap()))
}

#[test]
fn attack_03_certificate_endorses_only_its_own_ek() {
    let maker = Maker::new("A maker of TPMs");
    let [challenge, evidence] = attest(&certified(&maker), &trusting(&maker));
    challenge.unwrap();
    let by = evidence.unwrap().unwrap().tpm().unwrap().endorsed_by.clone();
    assert!(matches!(by, EndorsedBy::Root { root_subject, .. } if root_subject == "CN=A maker of TPMs"));

    // Another TPM's, by the same maker: it can be had from any machine.
    let borrowed = certified(&maker).but(|case| case.ek_certificate = certified(&maker).ek_certificate);
    refused(&borrowed, &trusting(&maker), "ek-certificate-mismatch");
    // A maker that calls itself by a trusted one's name, and one that is not known.
    refused(
        &certified(&Maker::new("A maker of TPMs")),
        &trusting(&maker),
        "ek-certificate-invalid",
    );
    refused(&certified(&Maker::new("Another")), &trusting(&maker), "ek-not-endorsed");
    refused(
        &certified(&maker).but(|case| case.ek_certificate = None),
        &trusting(&maker),
        "ek-not-endorsed",
    );
}

/// The node's report of a certificate that it could not read is for people: it endorses nothing, and prevents no endorsement.
#[test]
fn unread_ek_certificate_is_reported() {
    let maker = Maker::new("A maker of TPMs");
    let unread = |case: &mut Case| case.ek_certificate_unread = true;
    let bare = || certified(&maker).but(|case| case.ek_certificate = None);
    refused(&bare().but(unread), &trusting(&maker), "ek-certificate-unread");
    let [_, reject] = attest(&bare().but(unread), &trusting(&maker));
    let detail = reject.unwrap_err().detail();
    assert!(detail.contains("the node could not read"), "{detail}");
    // With a certificate, that is what counts.
    refused(&certified(&Maker::new("Another")).but(unread), &trusting(&maker), "ek-not-endorsed");
    attest(&certified(&maker).but(unread), &trusting(&maker))[1].as_ref().unwrap();
    let listed = bare().but(unread);
    let digest = EkDigest::from_public_area(&listed.ek_area.to_bytes()).unwrap();
    attest(&listed, &trusting(&maker).allow(digest))[1].as_ref().unwrap();
}

#[test]
fn attack_32_only_the_allowlist_endorses_without_roots() {
    let maker = Maker::new("A maker of TPMs");
    let case = certified(&maker);
    let none = Endorsements::new(Arc::default());
    refused(&case, &none, "ek-not-endorsed");
    let [_, reject] = attest(&case, &none);
    let detail = reject.unwrap_err().detail();
    assert!(
        detail.contains("the gateway or the pool has no root of TPM manufacturers"),
        "{detail}"
    );
    let digest = EkDigest::from_public_area(&case.ek_area.to_bytes()).unwrap();
    let [challenge, evidence] = attest(&case, &none.clone().allow(digest));
    challenge.unwrap();
    assert!(matches!(
        evidence.unwrap().unwrap().tpm().unwrap().endorsed_by,
        EndorsedBy::Allowlist
    ));
    // The list is about one EK, whoever else the maker has certified.
    refused(&certified(&maker), &none.allow(digest), "ek-not-endorsed");
}

/// A pool that requires Google to name the instance does not accept a certificate of its CA that names none.
#[test]
fn gcp_instance_pool_requires_an_instance_certificate() {
    let maker = Maker::new("Google");
    let roots = VtpmRoots::new(vec![maker.root().into()], Vec::new()).unwrap();
    refused(
        &certified(&maker),
        &Endorsements::for_gcp_instances(Arc::new(roots)),
        "gcp-vtpm-no-instance",
    );
}

/// TPM 2.0 Part 1, "Names": the hash algorithm's identifier, and by that the digest of the public area as it is on the wire. A TPM gives the
/// secret out for the key of this Name only.
#[test]
fn the_name_of_an_ak_is_computed_from_its_public_area() {
    for (hash, id) in [(HashAlg::Sha256, 0x0b), (HashAlg::Sha384, 0x0c), (HashAlg::Sha512, 0x0d)] {
        let case = Case::new(SoftKey::p256()).but(|case| case.ak_area.name_alg = hash);
        let bytes = case.ak_area.to_bytes();
        let name = AkPublic::parse(&bytes).unwrap().name().as_bytes().to_vec();
        assert_eq!(name, [&[0, id], hash.digest(&[&bytes]).as_ref()].concat());
        assert_eq!(case.verify().unwrap().tpm().unwrap().ak_name, data_encoding::HEXLOWER.encode(&name));
        // Every bit of the area is in it.
        let other = case.but(|case| case.ak_area.auth_policy = vec![0; 32]);
        assert_ne!(AkPublic::parse(&other.ak_area.to_bytes()).unwrap().name().as_bytes(), name);
    }
    // A TPMT_PUBLIC written down by hand: an AK on P-256 with ECDSA and SHA-256, zeros and ones for its point.
    let area = [
        "0023000b00050072",
        "0000",
        "00100018000b00030010",
        "0020",
        &"00".repeat(32),
        "0020",
        &"01".repeat(32),
    ]
    .concat();
    let area = data_encoding::HEXLOWER.decode(area.as_bytes()).unwrap();
    let ak = AkPublic::parse(&area).unwrap();
    assert_eq!(ak.name().to_string(), NAME);
}

/// Computed elsewhere: the nameAlg, and SHA-256 of the bytes above.
const NAME: &str = "000b48a2b7eb9e1ab0e68fa39cc9d26bb7e15756da04c326ea58a8892f3bc4a2e446";
