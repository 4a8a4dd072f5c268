//! Verification of TPM evidence: what is accepted, and for each accepted thing one refusal per altered field.

use crate::support;
use crate::support::{Case, NOW, SERVER_KEY, SoftKey, ek_area};
use attest::challenge::INTERMEDIATES_LIMIT;
use attest::protocol::{Blob, HexDigest};
use attest::tpm::ak::{AkPublic, Hierarchy};
use attest::tpm::reference_values::Accepted;
use attest::tpm::wire::{Attributes, KeyParameters, Scheme, SelectedBank, Signature, SymmetricCipher};
use attest::{AppraisalPolicy, HashAlg, PcrSelection, ReferenceValues, Reject, SpkiSha256, TpmEvidenceError};

fn good() -> Case {
    Case::new(SoftKey::p256())
}

#[test]
fn accepts_every_kind_of_ak_and_says_what_was_proven() {
    let rsa = |scheme: fn(HashAlg) -> Scheme, hash| SoftKey::rsa(scheme(hash));
    for ak in [
        SoftKey::p256(),
        SoftKey::p384(),
        rsa(Scheme::RsaSsa, HashAlg::Sha256),
        rsa(Scheme::RsaSsa, HashAlg::Sha384),
        rsa(Scheme::RsaSsa, HashAlg::Sha512),
        rsa(Scheme::RsaPss, HashAlg::Sha256),
        rsa(Scheme::RsaPss, HashAlg::Sha384),
        rsa(Scheme::RsaPss, HashAlg::Sha512),
    ] {
        let case = Case::new(ak);
        let claims = case.verify().unwrap_or_else(|reject| panic!("{:?}: {reject}", case.ak.scheme()));
        assert_eq!(
            claims.identity().as_str(),
            format!("tpm:{}", attest::EkDigest::from_public_area(&case.ek_area.to_bytes()).unwrap())
        );
        assert_eq!(
            (claims.pool(), claims.name(), *claims.server_key().unwrap()),
            ("worker", Some("worker-0"), SERVER_KEY)
        );
        let tpm = claims.tpm().unwrap();
        assert_eq!(
            (tpm.clock_ms, tpm.reset_count, tpm.restart_count, tpm.clock_safe),
            (123_456, 7, 1, true)
        );
        assert_eq!(
            (tpm.firmware_version, &tpm.pcrs, tpm.pcr_bank),
            (0x2019_1023_0016_3636, &case.pcrs, HashAlg::Sha256)
        );
    }
}

#[test]
fn accepts_other_banks_and_a_previous_server_key() {
    let sha384 = (0..8).map(|pcr| (pcr, vec![pcr; 48])).collect();
    Case::with_pcrs(SoftKey::p256(), HashAlg::Sha384, sha384).verify().unwrap();
    let claims = good()
        .but(|case| case.server_keys = vec![SpkiSha256([1; 32]), SERVER_KEY])
        .verify()
        .unwrap();
    assert_eq!(*claims.server_key().unwrap(), SERVER_KEY);
}

#[test]
fn attack_01_another_selection_is_signed_than_was_asked_for() {
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
fn attack_02_an_unrestricted_ak_signs_what_no_tpm_made() {
    for (bit, name) in [
        (Attributes::RESTRICTED, "restricted"),
        (Attributes::SIGN, "sign"),
        (Attributes::FIXED_TPM, "fixedTPM"),
        (Attributes::FIXED_PARENT, "fixedParent"),
        (Attributes::SENSITIVE_DATA_ORIGIN, "sensitiveDataOrigin"),
    ] {
        let case = good().but(|case| case.ak_area.attributes.0 &= !bit);
        case.refused("ak-attributes");
        assert_eq!(
            case.issue().unwrap_err().code(),
            "ak-attributes",
            "without {name}, at the challenge"
        );
    }
    good()
        .but(|case| case.ak_area.attributes.0 |= Attributes::DECRYPT)
        .refused("ak-attributes");
    good().but(|case| case.ak_area.attributes.0 |= 1 << 11).refused("ak-attributes");
    // A reserved bit beside stClear, which by itself only says that the key is gone sooner.
    good().but(|case| case.ak_area.attributes.0 |= 0b1100).refused("ak-attributes");
    assert!(
        good()
            .but(|case| case.ak_area.attributes.0 |= Attributes::ST_CLEAR)
            .verify()
            .is_ok()
    );
    // How use of it is authorised is the node's own business: userWithAuth (which it has), adminWithPolicy, noDA.
    good().but(|case| case.ak_area.attributes.0 &= !(1 << 6)).verify().unwrap();
    for bit in [7, 10] {
        good().but(|case| case.ak_area.attributes.0 |= 1 << bit).verify().unwrap();
    }
    good().but(|case| case.ak_area.attributes.0 |= 1).refused("ak-attributes");
    good()
        .but(|case| case.ak_area.symmetric = SymmetricCipher::Aes128Cfb)
        .refused("ak-attributes");
}

#[test]
fn attack_03_an_ek_that_nobody_endorsed() {
    good().but(|case| case.endorse = false).refused("ek-not-endorsed");
    assert_eq!(
        good().but(|case| case.endorse = false).issue().unwrap_err().code(),
        "ek-not-endorsed"
    );
    // Endorsed, but the credential was never activated: the AK is somewhere else.
    good().but(|case| case.secret_sha256[0] ^= 1).refused("credential-mismatch");
}

#[test]
fn attack_04_magic_and_type_confusion() {
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
fn attack_05_pcr_values_that_the_quote_does_not_cover() {
    good()
        .but(|case| drop(case.pcrs.insert(8, HexDigest::from([8; 32]))))
        .refused("pcr-not-quoted");
    good()
        .but(|case| drop(case.pcrs.insert(23, HexDigest::from([8; 32]))))
        .refused("pcr-not-quoted");
    good().but(|case| drop(case.pcrs.remove(&7))).refused("pcr-missing");
    good().but(|case| case.pcrs.clear()).refused("pcr-missing");
    good()
        .but(|case| drop(case.pcrs.insert(7, HexDigest::new(&[7; 48]).unwrap())))
        .refused("pcr-missing");
    for pcr in 0..8 {
        good()
            .but(|case| drop(case.pcrs.insert(pcr, HexDigest::from([0xaa; 32]))))
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
fn attack_06_weak_hashes_and_empty_nonces() {
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
fn attack_07_a_quote_for_another_challenge_purpose_or_pool() {
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
fn attack_10_evidence_relayed_through_another_server() {
    good()
        .but(|case| case.server_keys = vec![SpkiSha256([0x66; 32])])
        .refused("quote-extra-data");
    good().but(|case| case.server_keys = vec![]).refused("quote-extra-data");
}

#[test]
fn refuses_a_signature_that_is_not_the_aks() {
    good()
        .but(|case| case.signature = Some(SoftKey::p256().sign(&case.quoted().to_bytes())))
        .refused("quote-signature");
    good()
        .but(|case| case.signature = Some(SoftKey::rsa(Scheme::RsaSsa(HashAlg::Sha256)).sign(&case.quoted().to_bytes())))
        .refused("quote-signature");
    good().but(|case| case.signature = Some(Vec::new())).refused("tpm-malformed");
    for offset in [4 + 2, 4 + 2 + 31, 4 + 2 + 32 + 2] {
        let flipped = good().but(|case| {
            let mut signature = case.ak.sign(&case.quoted().to_bytes());
            signature[offset] ^= 0x80;
            case.signature = Some(signature);
        });
        flipped.refused("quote-signature");
    }
    // PSS presented as PKCS#1, of the same key.
    let pss = Case::new(SoftKey::rsa(Scheme::RsaPss(HashAlg::Sha256))).but(|case| {
        let mut signature = case.ak.sign(&case.quoted().to_bytes());
        signature[1] = 0x14;
        case.signature = Some(signature);
    });
    pss.refused("quote-signature");
}

/// Whatever the scheme: a signature of another key, over another message, or with one bit flipped.
#[test]
fn refuses_an_rsa_signature_that_is_not_the_aks() {
    use HashAlg::{Sha256, Sha384, Sha512};
    for scheme in [
        Scheme::RsaSsa(Sha256),
        Scheme::RsaSsa(Sha384),
        Scheme::RsaSsa(Sha512),
        Scheme::RsaPss(Sha256),
        Scheme::RsaPss(Sha384),
        Scheme::RsaPss(Sha512),
    ] {
        let mut case = Case::new(SoftKey::rsa(scheme));
        let quoted = case.quoted().to_bytes();
        let mut flipped = case.ak.sign(&quoted);
        *flipped.last_mut().unwrap() ^= 1;
        for signature in [SoftKey::rsa(scheme).sign(&quoted), case.ak.sign(b"another message"), flipped] {
            case.signature = Some(signature);
            case.refused("quote-signature");
        }
        case.signature = Some(case.ak.sign(&quoted));
        case.verify().unwrap();
    }
}

/// The scheme is the AK's, not the signature's: its hash is that of the PCR digest, and a key is not to be used with two.
#[test]
fn refuses_a_true_signature_of_another_scheme_by_the_same_key() {
    use HashAlg::{Sha256, Sha384};
    use Scheme::{RsaPss, RsaSsa};
    for (signed, said) in [
        (RsaPss(Sha256), RsaSsa(Sha256)),
        (RsaSsa(Sha256), RsaPss(Sha256)),
        (RsaSsa(Sha384), RsaSsa(Sha256)),
        (RsaPss(Sha256), RsaPss(Sha384)),
    ] {
        let case = Case::new(SoftKey::rsa(signed)).but(|case| case.ak_area.scheme = said);
        let reject = case.verify().unwrap_err();
        assert!(
            matches!(reject, Reject::Tpm(TpmEvidenceError::SignatureScheme { .. })),
            "{signed:?} by an AK with {said:?}: {reject}"
        );
        assert_eq!(reject.code(), "quote-signature");
    }
}

/// TPMs leave leading zeros away, and none puts more in front of a scalar than the curve has.
#[test]
fn refuses_scalars_longer_than_the_curves() {
    // No structure is longer than P-384's.
    for (ak, longer) in [
        (SoftKey::p256 as fn() -> SoftKey, "quote-signature"),
        (SoftKey::p384, "tpm-malformed"),
    ] {
        let with = |lengthen: fn(&mut Vec<u8>, &mut Vec<u8>)| {
            Case::new(ak()).but(|case| {
                let signature = case.ak.sign(&case.quoted().to_bytes());
                let Ok(Signature::Ecdsa { scheme, r, s }) = Signature::parse(&signature) else {
                    panic!("an ECDSA signature")
                };
                let (mut r, mut s) = (r.to_vec(), s.to_vec());
                lengthen(&mut r, &mut s);
                case.signature = Some(Signature::Ecdsa { scheme, r: &r, s: &s }.to_bytes());
            })
        };
        with(|_, _| ()).verify().unwrap();
        with(|r, _| r.insert(0, 0)).refused(longer);
        with(|_, s| s.insert(0, 0)).refused(longer);
        with(|r, s| {
            r.insert(0, 0);
            s.insert(0, 0);
        })
        .refused(longer);
        // The same number of bytes in all, divided otherwise.
        with(|r, s| s.insert(0, r.pop().unwrap())).refused(longer);
        with(|r, s| r.push(s.remove(0))).refused(longer);
        with(|r, _| r.clear()).refused("quote-signature");
    }
}

#[test]
fn takes_scalars_without_their_leading_zeros() {
    for ak in [SoftKey::p256 as fn() -> SoftKey, SoftKey::p384] {
        let mut case = Case::new(ak());
        let quoted = case.quoted().to_bytes();
        let (mut short_r, mut short_s) = (false, false);
        // Each begins with a zero once in 256 signatures.
        while !(short_r && short_s) {
            let signature = case.ak.sign(&quoted);
            let Ok(Signature::Ecdsa { scheme, r, s }) = Signature::parse(&signature) else {
                panic!("an ECDSA signature")
            };
            let (r_begins, s_begins) = (r[0] == 0, s[0] == 0);
            if r_begins || s_begins {
                let (r, s) = (&r[usize::from(r_begins)..], &s[usize::from(s_begins)..]);
                case.signature = Some(Signature::Ecdsa { scheme, r, s }.to_bytes());
                case.verify().unwrap();
            }
            short_r |= r_begins;
            short_s |= s_begins;
        }
    }
}

/// For an AK elsewhere, the TPM obfuscates the counters and the firmware version that it signs.
#[test]
fn attack_31_an_ak_of_another_hierarchy() {
    let signed_by = |signer: &dyn Fn(&AkPublic) -> Vec<u8>| {
        good().but(|case| case.quoted.qualified_signer = signer(&AkPublic::parse(&case.ak_area.to_bytes()).unwrap()))
    };
    signed_by(&|ak| ak.qualified_name(Hierarchy::Endorsement).as_bytes().to_vec())
        .verify()
        .unwrap();
    for hierarchy in [Hierarchy::Owner, Hierarchy::Platform, Hierarchy::Null] {
        let case = signed_by(&|ak| ak.qualified_name(hierarchy).as_bytes().to_vec());
        case.refused("ak-hierarchy");
        let reject = case.verify().unwrap_err().to_string();
        assert!(reject.contains(&format!("the {hierarchy} hierarchy")), "{reject}");
    }
    // Below a primary object of the endorsement hierarchy, such as the EK itself: H(QN of the parent, Name).
    let child = signed_by(&|ak| {
        let parent = ak.qualified_name(Hierarchy::Endorsement);
        let digest = HashAlg::Sha256.digest(&[parent.as_bytes(), ak.name().as_bytes()]);
        [&[0x00, 0x0b], digest.as_ref()].concat()
    });
    child.refused("ak-hierarchy");
    signed_by(&|ak| ak.name().as_bytes().to_vec()).refused("ak-hierarchy");
    signed_by(&|_| 0x4000_000b_u32.to_be_bytes().to_vec()).refused("ak-hierarchy");
    signed_by(&|_| vec![0]).refused("ak-hierarchy");
    // Another AK of the right hierarchy.
    signed_by(&|_| {
        let other = AkPublic::parse(&SoftKey::p256().ak_area().to_bytes()).unwrap();
        other.qualified_name(Hierarchy::Endorsement).as_bytes().to_vec()
    })
    .refused("ak-hierarchy");
    // The hash is the AK's nameAlg, whatever its scheme's.
    let sha384 = good().but(|case| case.ak_area.name_alg = HashAlg::Sha384);
    assert_eq!(sha384.quoted().qualified_signer.len(), 2 + 48);
    sha384.verify().unwrap();
}

/// What a challenge asked for is not what the pool speaks of any more: the administrator has changed it meanwhile.
#[test]
fn a_quote_of_other_pcrs_than_the_pool_speaks_of_now_is_not_accepted() {
    let policy = |bank: HashAlg, pcrs: &[u8], checked: Option<u8>| {
        let accepted = |pcr: &u8| {
            let digest = HexDigest::new(&vec![*pcr; bank.digest_bytes()]).unwrap();
            let accepted = if checked == Some(*pcr) {
                Accepted::AnyOf(vec![digest])
            } else {
                Accepted::NotChecked
            };
            (*pcr, accepted)
        };
        AppraisalPolicy::of_tpm(ReferenceValues::new(bank, pcrs.iter().map(accepted).collect()).unwrap())
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
fn a_pcr_of_another_value_than_the_pool_accepts_is_refused() {
    let digest = |byte: u8| HexDigest::from([byte; 32]);
    let appraise = |accepted: &dyn Fn(u8) -> Vec<HexDigest>| {
        let pcrs = (0..8).map(|pcr| (pcr, Accepted::AnyOf(accepted(pcr)))).collect();
        let policy = AppraisalPolicy::of_tpm(ReferenceValues::new(HashAlg::Sha256, pcrs).unwrap());
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

fn good_with(original: &Case, quoted: Vec<u8>, signature: &[u8]) -> Case {
    let mut case = good();
    case.ak_area = original.ak_area.clone();
    case.raw_quoted = Some(quoted);
    case.signature = Some(signature.to_vec());
    case
}

#[test]
fn refuses_aks_of_other_algorithms() {
    let with = |change: fn(&mut Case)| good().but(change).refused("ak-algorithm");
    with(|case| case.ak_area.scheme = Scheme::Null);
    with(|case| case.ak_area.scheme = Scheme::Ecdsa(HashAlg::Sha384));
    with(|case| case.ak_area.scheme = Scheme::RsaSsa(HashAlg::Sha256));
    let rsa = |change: fn(&mut u16, &mut u32, &mut Vec<u8>)| {
        Case::new(SoftKey::rsa(Scheme::RsaSsa(HashAlg::Sha256)))
            .but(|case| {
                let KeyParameters::Rsa {
                    key_bits,
                    exponent,
                    modulus,
                } = &mut case.ak_area.key
                else {
                    panic!("an RSA key")
                };
                change(key_bits, exponent, modulus);
            })
            .refused("ak-algorithm");
    };
    rsa(|bits, _, _| *bits = 1024);
    rsa(|bits, _, _| *bits = 3072);
    rsa(|_, exponent, _| *exponent = 3);
    rsa(|_, _, modulus| modulus.truncate(255));
    rsa(|_, _, modulus| modulus[0] = 0);
    rsa(|_, _, modulus| modulus.clear());
}

#[test]
fn refuses_eks_of_no_template() {
    let with = |change: fn(&mut Case)| {
        let case = good().but(change);
        case.refused("ek-template");
        assert_eq!(case.issue().unwrap_err().code(), "ek-template");
    };
    for bit in [1, 4, 5, 7, 16, 17] {
        let case = good().but(|case| case.ek_area.attributes.0 &= !(1 << bit));
        case.refused("ek-template");
    }
    with(|case| case.ek_area.attributes.0 |= Attributes::SIGN);
    with(|case| case.ek_area.attributes.0 |= 1 << 2);
    with(|case| case.ek_area.symmetric = SymmetricCipher::Null);
    with(|case| case.ek_area.scheme = Scheme::Ecdsa(HashAlg::Sha256));
    let rsa = |change: fn(&mut u16, &mut u32, &mut Vec<u8>)| {
        good()
            .but(|case| {
                case.ek_area = ek_area(&SoftKey::rsa(Scheme::RsaSsa(HashAlg::Sha256)));
                let KeyParameters::Rsa {
                    key_bits,
                    exponent,
                    modulus,
                } = &mut case.ek_area.key
                else {
                    panic!("an RSA key")
                };
                change(key_bits, exponent, modulus);
            })
            .refused("ek-template");
    };
    rsa(|bits, _, _| *bits = 1024);
    rsa(|_, exponent, _| *exponent = 17);
    rsa(|_, _, modulus| modulus.truncate(255));
    rsa(|_, _, modulus| modulus[0] &= 0x7f);
    // The high range's templates add userWithAuth, and some TPMs noDA.
    for bit in [6, 10] {
        good().but(|case| case.ek_area.attributes.0 |= 1 << bit).verify().unwrap();
    }
}

#[test]
fn a_point_off_the_curve_costs_nothing_but_a_refusal() {
    let case = good().but(|case| {
        let KeyParameters::Ecc { y, .. } = &mut case.ek_area.key else {
            panic!("a point")
        };
        y[31] ^= 1;
    });
    assert_eq!(case.issue().unwrap_err().code(), "malformed-request");
    let case = good().but(|case| {
        let KeyParameters::Ecc { y, .. } = &mut case.ak_area.key else {
            panic!("a point")
        };
        y[31] ^= 1;
    });
    case.refused("quote-signature");
}

#[test]
fn as_many_intermediates_come_along_as_the_limit_says() {
    let with = |count: usize| {
        let case = good();
        let mut attester = case.attester();
        attester.ek_intermediates = vec![Blob(vec![0x30, 0x00]); count];
        let request = attest::protocol::ChallengeRequest {
            pool: "worker".to_owned(),
            name: None,
            attester: attester.into(),
        };
        let policy = support::accepting(&case.selection);
        let lifetime = std::time::Duration::from_secs(60);
        let drawn = attest::challenge::Drawn::draw().unwrap();
        attest::Challenge::issue(
            &request,
            &case.endorsements(),
            &policy,
            "gateway.test",
            &drawn,
            support::at(NOW),
            lifetime,
        )
        .map(|_| ())
        .map_err(|reject| reject.code())
    };
    assert_eq!(with(INTERMEDIATES_LIMIT), Ok(()));
    assert_eq!(with(INTERMEDIATES_LIMIT + 1), Err("malformed-request"));
}

#[test]
fn names_and_pools_are_dns_names() {
    let pool = |pool: &str| {
        good()
            .but(|case| case.pool = pool.to_owned())
            .issue()
            .map(|_| ())
            .map_err(|reject| reject.code())
    };
    assert_eq!(pool("worker"), Ok(()));
    assert_eq!(pool("gpu-2.rack"), Ok(()));
    for bad in ["", "../worker", "a/b", "Worker", "-x", "w\n", "wörker", &"x".repeat(64)] {
        assert_eq!(pool(bad), Err("malformed-request"), "{bad:?}");
    }
}
