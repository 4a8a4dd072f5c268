//! Rules for keys, and their signatures.

use super::*;

#[test]
fn attack_02_rejects_an_ak_without_required_attributes() {
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
    // How use of it is authorised is the node's own business: userWithAuth (which it has), adminWithPolicy, noDA. An AK without noDA signs the same, and is locked out
    // with its TPM: that is its node's loss.
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
fn refuses_a_signature_that_is_not_the_aks() {
    good()
        .but(|case| case.signature = Some(SoftKey::p256().sign(&case.quoted().to_bytes())))
        .refused("quote-signature");
    good()
        .but(|case| case.signature = Some(SoftKey::rsa(TpmScheme::RsaSsa(HashAlg::Sha256)).sign(&case.quoted().to_bytes())))
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
    let pss = Case::new(SoftKey::rsa(TpmScheme::RsaPss(HashAlg::Sha256))).but(|case| {
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
        TpmScheme::RsaSsa(Sha256),
        TpmScheme::RsaSsa(Sha384),
        TpmScheme::RsaSsa(Sha512),
        TpmScheme::RsaPss(Sha256),
        TpmScheme::RsaPss(Sha384),
        TpmScheme::RsaPss(Sha512),
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
fn rejects_a_signature_with_another_scheme() {
    use HashAlg::{Sha256, Sha384};
    use TpmScheme::{RsaPss, RsaSsa};
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
                let Ok(TpmSignature::Ecdsa { scheme, r, s }) = TpmSignature::parse(&signature) else {
                    panic!("an ECDSA signature")
                };
                let (mut r, mut s) = (r.to_vec(), s.to_vec());
                lengthen(&mut r, &mut s);
                case.signature = Some(TpmSignature::Ecdsa { scheme, r: &r, s: &s }.to_bytes());
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
            let Ok(TpmSignature::Ecdsa { scheme, r, s }) = TpmSignature::parse(&signature) else {
                panic!("an ECDSA signature")
            };
            let (r_begins, s_begins) = (r[0] == 0, s[0] == 0);
            if r_begins || s_begins {
                let (r, s) = (&r[usize::from(r_begins)..], &s[usize::from(s_begins)..]);
                case.signature = Some(TpmSignature::Ecdsa { scheme, r, s }.to_bytes());
                case.verify().unwrap();
            }
            short_r |= r_begins;
            short_s |= s_begins;
        }
    }
}

/// For an AK elsewhere, the TPM obfuscates the counters and the firmware version that it signs.
#[test]
fn attack_31_rejects_an_ak_outside_the_endorsement_hierarchy() {
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

#[test]
fn refuses_aks_of_other_algorithms() {
    let with = |change: fn(&mut Case)| good().but(change).refused("ak-algorithm");
    with(|case| case.ak_area.scheme = TpmScheme::Null);
    with(|case| case.ak_area.scheme = TpmScheme::Ecdsa(HashAlg::Sha384));
    with(|case| case.ak_area.scheme = TpmScheme::RsaSsa(HashAlg::Sha256));
    let rsa = |change: fn(&mut u16, &mut u32, &mut Vec<u8>)| {
        Case::new(SoftKey::rsa(TpmScheme::RsaSsa(HashAlg::Sha256)))
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
fn rejects_eks_outside_the_tcg_templates() {
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
    with(|case| case.ek_area.scheme = TpmScheme::Ecdsa(HashAlg::Sha256));
    let rsa = |change: fn(&mut u16, &mut u32, &mut Vec<u8>)| {
        good()
            .but(|case| {
                case.ek_area = ek_area(&SoftKey::rsa(TpmScheme::RsaSsa(HashAlg::Sha256)));
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
fn rejects_a_point_off_the_curve() {
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
