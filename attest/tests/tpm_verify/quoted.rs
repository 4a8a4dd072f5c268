//! Checks of the signed quote.

use super::*;

#[test]
fn attack_01_rejects_a_quote_with_another_pcr_selection() {
    let selected = |banks: Vec<SelectedBank>| good().but(|case| case.quoted.selection = banks);
    // Golden digests extended into resettable PCRs, and presented under other numbers.
    selected(vec![SelectedBank::new(HashAlg::Sha256, [0, 1, 2, 3, 5, 6, 16, 23])]).refused("quote-selection");
    selected(vec![SelectedBank::new(HashAlg::Sha256, 0..7)]).refused("quote-selection");
    selected(vec![SelectedBank::new(HashAlg::Sha256, 0..9)]).refused("quote-selection");
    selected(vec![SelectedBank::new(HashAlg::Sha384, 0..8)]).refused("quote-selection");
    selected(vec![]).refused("quote-selection");
    // One bank listed twice, or split in two, or another one beside it.
    selected(vec![
        SelectedBank::new(HashAlg::Sha256, 0..8),
        SelectedBank::new(HashAlg::Sha256, 0..8),
    ])
    .refused("quote-selection");
    selected(vec![
        SelectedBank::new(HashAlg::Sha256, 0..4),
        SelectedBank::new(HashAlg::Sha256, 4..8),
    ])
    .refused("quote-selection");
    selected(vec![
        SelectedBank::new(HashAlg::Sha256, 0..8),
        SelectedBank::new(HashAlg::Sha512, []),
    ])
    .refused("quote-selection");
    selected(vec![SelectedBank {
        bank: 0x0004,
        bitmap: vec![0xff, 0, 0],
    }])
    .refused("quote-selection");
    // A fourth byte that selects more.
    selected(vec![SelectedBank {
        bank: 0x000b,
        bitmap: vec![0xff, 0, 0, 1],
    }])
    .refused("quote-selection");
    // Nothing resettable can even be asked for.
    for pcr in 16..=255 {
        assert!(PcrSelection::new(HashAlg::Sha256, [0, pcr]).is_err(), "PCR {pcr}");
    }
}

#[test]
fn attack_04_rejects_wrong_magic_and_attestation_types() {
    let altered = |offset: usize, value: u8| {
        good().but(|case| {
            let mut bytes = case.quoted().to_bytes();
            bytes[offset] = value;
            case.raw_quoted = Some(bytes);
        })
    };
    for offset in 0..4 {
        altered(offset, 0x00).refused("quote-magic");
    }
    // TPM_ST_ATTEST_CERTIFY, _CREATION, _TIME, _NV and nonsense.
    for kind in [0x17, 0x1a, 0x19, 0x14, 0x00] {
        altered(5, kind).refused("quote-type");
    }
    altered(4, 0x00).refused("quote-type");
}

#[test]
fn attack_05_rejects_pcr_values_outside_the_quote() {
    good()
        .but(|case| _ = case.pcrs.insert(8, HexDigest::from([8; 32])))
        .refused("pcr-not-quoted");
    good()
        .but(|case| _ = case.pcrs.insert(23, HexDigest::from([8; 32])))
        .refused("pcr-not-quoted");
    good().but(|case| _ = case.pcrs.remove(&7)).refused("pcr-missing");
    good().but(|case| case.pcrs.clear()).refused("pcr-missing");
    good()
        .but(|case| _ = case.pcrs.insert(7, HexDigest::new(&[7; 48]).unwrap()))
        .refused("pcr-missing");
    for pcr in 0..8 {
        good()
            .but(|case| _ = case.pcrs.insert(pcr, HexDigest::from([0xaa; 32])))
            .refused("quote-pcr-digest");
    }
    // Two values swapped.
    good()
        .but(|case| {
            case.pcrs.insert(0, HexDigest::from([1; 32]));
            case.pcrs.insert(1, HexDigest::from([0; 32]));
        })
        .refused("quote-pcr-digest");
    good().but(|case| case.quoted.pcr_digest[0] ^= 1).refused("quote-pcr-digest");
    good().but(|case| case.quoted.pcr_digest.clear()).refused("quote-pcr-digest");
}

#[test]
fn attack_06_rejects_weak_hashes_and_empty_nonces() {
    const SHA1: [u8; 2] = [0x00, 0x04];
    // The scheme's hash, in the AK and in the signature; the AK's nameAlg. Offsets: TPMT_PUBLIC type, nameAlg, attributes, policy, symmetric, scheme, hash.
    let weak_scheme = good().but(|case| {
        let mut signature = case.ak.sign(&case.quoted().to_bytes());
        signature[2..4].copy_from_slice(&SHA1);
        case.signature = Some(signature);
    });
    weak_scheme.refused("algorithm-refused");
    let challenge = |offset: usize| {
        let case = good();
        let mut attester = case.attester();
        attester.ak_public.0[offset..offset + 2].copy_from_slice(&SHA1);
        let request = attest::protocol::ChallengeRequest {
            kubelet_key_sha256: None,
            rehearsal: false,
            pool: "worker".to_owned(),
            name: None,
            attester: attester.into(),
        };
        attest::Challenge::issue(
            &request,
            &case.endorsements(),
            &support::accepting(&case.selection),
            "gateway.test",
            &attest::challenge::Drawn::draw().unwrap(),
            support::at(NOW),
            std::time::Duration::from_secs(60),
        )
    };
    assert_eq!(challenge(2).unwrap_err().code(), "algorithm-refused", "nameAlg");
    assert_eq!(challenge(14).unwrap_err().code(), "algorithm-refused", "scheme hash");
    // The SHA-1 bank cannot be asked for, and is not what was asked for.
    assert!("sha1".parse::<HashAlg>().is_err());
    good()
        .but(|case| {
            case.quoted.selection = vec![SelectedBank {
                bank: 0x0004,
                bitmap: vec![0xff, 0, 0],
            }]
        })
        .refused("quote-selection");
    good().but(|case| case.quoted.extra_data.clear()).refused("quote-extra-data");
    // A nonce is the gateway's own and always 32 bytes.
    let issued = good().issue().unwrap();
    assert_eq!(issued.challenge.nonce.0.len(), 32);
    assert_ne!(good().issue().unwrap().challenge.nonce, issued.challenge.nonce);
}

#[test]
fn attack_07_rejects_a_quote_for_another_challenge() {
    good().but(|case| case.nonce[31] ^= 1).refused("quote-extra-data");
    good().but(|case| case.pool = "master".to_owned()).refused("quote-extra-data");
    good().but(|case| case.purpose = "report".to_owned()).refused("quote-extra-data");
    good().but(|case| case.quoted.extra_data[0] ^= 1).refused("quote-extra-data");
    good().but(|case| case.quoted.extra_data.push(0)).refused("quote-extra-data");
    good().but(|case| case.quoted.extra_data.truncate(31)).refused("quote-extra-data");
    good().but(|case| case.now = NOW + 120).verify().unwrap();
    good().but(|case| case.now = NOW + 121).refused("challenge-expired");
}

#[test]
fn attack_10_rejects_evidence_relayed_through_another_server() {
    good()
        .but(|case| case.server_keys = vec![SpkiSha256([0x66; 32])])
        .refused("quote-extra-data");
    good().but(|case| case.server_keys = vec![]).refused("quote-extra-data");
}

/// The administrator has changed the pool since the challenge: the quote does not have the PCRs that the pool requires.
#[test]
fn rejects_a_quote_lacking_newly_required_pcrs() {
    let policy = |bank: HashAlg, pcrs: &[u8], checked: Option<u8>| {
        let accepted = |pcr: &u8| {
            let digest = HexDigest::new(&vec![*pcr; bank.digest_bytes()]).unwrap();
            let accepted = if checked == Some(*pcr) {
                AcceptedValues::AnyOf(vec![digest])
            } else {
                AcceptedValues::NotChecked
            };
            (*pcr, accepted)
        };
        AppraisalPolicy::for_tpm(ReferenceValues::new(bank, pcrs.iter().map(accepted).collect()).unwrap())
    };
    let appraise = |policy: &AppraisalPolicy| {
        let claims = good().verify().unwrap();
        attest::appraise(claims, policy, support::at(NOW))
            .map(|_| ())
            .map_err(|reject| reject.code())
    };
    let quoted: Vec<u8> = (0..8).collect();
    assert_eq!(appraise(&policy(HashAlg::Sha256, &quoted, Some(7))), Ok(()));
    let changed = |bank: HashAlg, pcrs: &[u8], checked: Option<u8>| {
        assert_eq!(appraise(&policy(bank, pcrs, checked)), Err("quote-selection"), "{bank} {pcrs:?}");
    };
    // One more, which nobody has quoted: that it is checked must not be forgotten.
    changed(HashAlg::Sha256, &[0, 1, 2, 3, 4, 5, 6, 7, 14], Some(14));
    changed(HashAlg::Sha256, &[0, 1, 2, 3, 4, 5, 6, 7, 14], None);
    changed(HashAlg::Sha256, &[0, 1, 2, 3, 4, 5, 6], Some(6));
    changed(HashAlg::Sha256, &[0, 1, 2, 3, 4, 5, 6, 8], None);
    changed(HashAlg::Sha384, &quoted, None);
    changed(HashAlg::Sha512, &quoted, Some(0));
}

#[test]
fn rejects_an_unaccepted_pcr_value() {
    let digest = |byte: u8| HexDigest::from([byte; 32]);
    let appraise = |accepted: &dyn Fn(u8) -> Vec<HexDigest>| {
        let pcrs = (0..8).map(|pcr| (pcr, AcceptedValues::AnyOf(accepted(pcr)))).collect();
        let policy = AppraisalPolicy::for_tpm(ReferenceValues::new(HashAlg::Sha256, pcrs).unwrap());
        attest::appraise(good().verify().unwrap(), &policy, support::at(NOW)).map(drop)
    };
    appraise(&|pcr| vec![digest(0xaa), digest(pcr)]).unwrap();
    for wrong in 0..8 {
        let reject = appraise(&|pcr| vec![digest(0xaa), digest(if pcr == wrong { 0xbb } else { pcr })]).unwrap_err();
        assert!(
            matches!(reject, Reject::Tpm(TpmEvidenceError::PcrMismatch { index, .. }) if index == wrong),
            "{reject}"
        );
    }
}

#[test]
fn refuses_every_change_to_the_signed_bytes() {
    let case = good();
    let quoted = case.quoted().to_bytes();
    let signature = case.ak.sign(&quoted);
    for bit in 0..quoted.len() * 8 {
        let mut bytes = quoted.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        good_with(&case, bytes, &signature).refused("quote-signature");
    }
}
