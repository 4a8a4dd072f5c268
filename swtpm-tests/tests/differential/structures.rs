//! Structures that a TPM writes, as read by attest and by the TSS.

use super::*;

/// Number of altered inputs for each pair of results.
#[derive(Debug, Default)]
struct Tally {
    both_read: usize,
    both_refused: usize,
    only_attest_refused: usize,
    only_attest_read: usize,
}

/// Alters every byte of `original` in many ways. Verifies that attest reads what the TSS reads, and writes it alike, except for inputs
/// about which attest is strict, or which `tolerates` accepts.
fn alike<T: UnMarshall>(
    original: &[u8],
    rewritten: impl Fn(&[u8]) -> Result<Vec<u8>, WireError>,
    again: impl Fn(&T) -> Vec<u8>,
    tolerates: impl Fn(&[u8]) -> bool,
    tally: &mut Tally,
) {
    same_bytes(original, &rewritten);
    assert_eq!(again(&T::unmarshall(original).unwrap()), original);
    for at in 0..original.len() {
        for xor in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
            let mut bytes = original.to_vec();
            bytes[at] ^= xor;
            match (rewritten(&bytes), T::unmarshall(&bytes)) {
                (Ok(ours), Ok(theirs)) => {
                    tally.both_read += 1;
                    assert_eq!(ours, bytes, "byte {at} ^ {xor:#x}");
                    assert_eq!(again(&theirs), bytes, "byte {at} ^ {xor:#x}");
                }
                (Err(_), Err(_)) => tally.both_refused += 1,
                (Err(error), Ok(_)) => {
                    tally.only_attest_refused += 1;
                    assert!(is_strictness(&error), "byte {at} ^ {xor:#x}: {error}");
                }
                (Ok(ours), Err(_)) if tolerates(&bytes) => {
                    tally.only_attest_read += 1;
                    assert_eq!(ours, bytes, "byte {at} ^ {xor:#x}");
                }
                (Ok(_), Err(error)) => panic!("byte {at} ^ {xor:#x}: only attest reads it: {error}"),
            }
        }
    }
}

/// Returns whether attest refuses by design an input that the TSS reads. Such inputs have bytes behind the structure, weak hashes, or
/// algorithms and kinds of attestation that the verifier does not handle. Others have sizes beyond the need of those algorithms.
fn is_strictness(error: &WireError) -> bool {
    matches!(
        error,
        WireError::TrailingBytes { .. }
            | WireError::HashRefused { .. }
            | WireError::Unsupported { .. }
            | WireError::NotAQuote { .. }
            | WireError::TooLarge { .. }
    )
}

/// Returns whether the quote selects an unknown bank. attest reads it, so that the refusal can say which bank was signed.
fn has_unknown_bank(quote: &[u8]) -> bool {
    let quoted = QuoteAttest::parse(quote).unwrap();
    quoted.selection.iter().any(|selected| HashAlg::from_id(selected.bank).is_none())
}

/// Returns whether the key is neither an EK nor an AK, for example because of its size. It is read, and refused one step later with a code
/// of its own.
fn is_neither_ek_nor_ak(area: &[u8]) -> bool {
    EkPublic::parse(area).is_err() && AkPublic::parse(area).is_err()
}

/// Compares the fields of a public area, one by one.
fn same_public(ours: &Public, theirs: &TssPublic) {
    assert_eq!(hash_id(theirs.name_hashing_algorithm()), ours.name_alg.id());
    assert_eq!(TPMA_OBJECT::from(theirs.object_attributes()), ours.attributes.0);
    let symmetric = |theirs: SymmetricDefinitionObject| match theirs {
        SymmetricDefinitionObject::Null => SymmetricCipher::Null,
        SymmetricDefinitionObject::AES_128_CFB => SymmetricCipher::Aes128Cfb,
        SymmetricDefinitionObject::AES_256_CFB => SymmetricCipher::Aes256Cfb,
        other => panic!("{other:?}"),
    };
    match (theirs, &ours.key) {
        (
            TssPublic::Rsa {
                auth_policy,
                parameters,
                unique,
                ..
            },
            KeyParameters::Rsa {
                key_bits,
                exponent,
                modulus,
            },
        ) => {
            assert_eq!(auth_policy.value(), ours.auth_policy);
            assert_eq!(symmetric(parameters.symmetric_definition_object()), ours.symmetric);
            assert_eq!(u16::from(parameters.key_bits()), *key_bits);
            assert_eq!(parameters.exponent().value(), *exponent);
            assert_eq!(unique.value(), modulus);
            let scheme = match parameters.rsa_scheme() {
                RsaScheme::Null => TpmScheme::Null,
                RsaScheme::RsaSsa(hash) => TpmScheme::RsaSsa(our_hash(hash.hashing_algorithm())),
                RsaScheme::RsaPss(hash) => TpmScheme::RsaPss(our_hash(hash.hashing_algorithm())),
                other => panic!("{other:?}"),
            };
            assert_eq!(scheme, ours.scheme);
        }
        (
            TssPublic::Ecc {
                auth_policy,
                parameters,
                unique,
                ..
            },
            KeyParameters::Ecc { curve, x, y },
        ) => {
            assert_eq!(auth_policy.value(), ours.auth_policy);
            assert_eq!(symmetric(parameters.symmetric_definition_object()), ours.symmetric);
            assert_eq!((unique.x().value(), unique.y().value()), (x.as_slice(), y.as_slice()));
            let coordinate_bytes = match parameters.ecc_curve() {
                EccCurve::NistP256 => 32,
                EccCurve::NistP384 => 48,
                other => panic!("{other:?}"),
            };
            assert_eq!(coordinate_bytes, curve.coordinate_bytes());
            let scheme = match parameters.ecc_scheme() {
                EccScheme::Null => TpmScheme::Null,
                EccScheme::EcDsa(hash) => TpmScheme::Ecdsa(our_hash(hash.hashing_algorithm())),
                other => panic!("{other:?}"),
            };
            assert_eq!(scheme, ours.scheme);
        }
        other => panic!("{other:?}"),
    }
}

fn our_hash(theirs: HashingAlgorithm) -> HashAlg {
    HashAlg::from_id(hash_id(theirs)).unwrap()
}

fn hash_id(theirs: HashingAlgorithm) -> u16 {
    tss_esapi::constants::AlgorithmIdentifier::from(theirs).into()
}

/// Compares the fields of a quote, one by one.
fn same_quote(ours: &QuoteAttest, theirs: &Attest) {
    let AttestInfo::Quote { info } = theirs.attested() else {
        panic!("a quote")
    };
    let clock = theirs.clock_info();
    assert_eq!(theirs.qualified_signer().value(), ours.qualified_signer);
    assert_eq!(theirs.extra_data().value(), ours.extra_data);
    assert_eq!(
        (clock.clock(), clock.reset_count(), clock.restart_count(), clock.safe()),
        (
            ours.clock.clock_ms,
            ours.clock.reset_count,
            ours.clock.restart_count,
            ours.clock.safe
        )
    );
    assert_eq!(theirs.firmware_version(), ours.firmware_version);
    assert_eq!(info.pcr_digest().value(), ours.pcr_digest);
    let selections = info.pcr_selection().get_selections();
    assert_eq!(selections.len(), ours.selection.len());
    for (theirs, ours) in selections.iter().zip(&ours.selection) {
        assert_eq!(hash_id(theirs.hashing_algorithm()), ours.bank);
        let pcrs: Vec<u32> = theirs.selected().into_iter().map(|slot| u32::from(slot).trailing_zeros()).collect();
        assert_eq!(pcrs, ours.pcrs().map(u32::from).collect::<Vec<_>>());
    }
}

/// Compares the fields of a signature, one by one.
fn same_signature(ours: &TpmSignature<'_>, theirs: &TssSignature) {
    match (theirs, ours) {
        (TssSignature::RsaSsa(theirs), TpmSignature::Rsa { scheme, signature }) => {
            assert_eq!(*scheme, TpmScheme::RsaSsa(our_hash(theirs.hashing_algorithm())));
            assert_eq!(theirs.signature().value(), *signature);
        }
        (TssSignature::RsaPss(theirs), TpmSignature::Rsa { scheme, signature }) => {
            assert_eq!(*scheme, TpmScheme::RsaPss(our_hash(theirs.hashing_algorithm())));
            assert_eq!(theirs.signature().value(), *signature);
        }
        (TssSignature::EcDsa(theirs), TpmSignature::Ecdsa { scheme, r, s }) => {
            assert_eq!(*scheme, TpmScheme::Ecdsa(our_hash(theirs.hashing_algorithm())));
            assert_eq!((theirs.signature_r().value(), theirs.signature_s().value()), (*r, *s));
        }
        other => panic!("{other:?}"),
    }
}

fn rewrite_public(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    Public::parse(bytes).map(|public| public.to_bytes())
}

#[test]
fn attest_and_the_tss_read_the_tpms_structures_alike() {
    let (_folder, _server, mut tpm) = tpm();
    let mut tally = Tally::default();
    let mut publics = Vec::new();
    for template in ek_templates() {
        let (ek, bytes, _) = create(&mut tpm, template);
        flush(&mut tpm, ek);
        publics.push(bytes);
    }
    for (scheme, template) in ak_templates() {
        let (ak, bytes, name) = create(&mut tpm, template);
        let public = AkPublic::parse(&bytes).unwrap();
        assert_eq!(public.name().as_bytes(), name, "{scheme}");
        publics.push(bytes);

        let selection = tss_esapi::structures::PcrSelectionListBuilder::new()
            .with_selection(
                HashingAlgorithm::Sha256,
                &[tss_esapi::structures::PcrSlot::Slot0, tss_esapi::structures::PcrSlot::Slot7],
            )
            .build()
            .unwrap();
        let data = Data::try_from(sha256(b"nonce").to_vec()).unwrap();
        let quote = |context: &mut tss_esapi::Context| context.quote(ak, data, SignatureScheme::Null, selection);
        let (attest, signature) = with_password(&mut tpm, quote).unwrap();
        flush(&mut tpm, ak);
        let (quoted, signed) = (attest.marshall().unwrap(), signature.marshall().unwrap());
        public.verify(&quoted, &signed).unwrap();
        same_quote(&QuoteAttest::parse(&quoted).unwrap(), &attest);
        same_signature(&TpmSignature::parse(&signed).unwrap(), &signature);
        alike::<Attest>(
            &quoted,
            rewrite_quote,
            |attest| attest.marshall().unwrap(),
            has_unknown_bank,
            &mut tally,
        );
        alike::<TssSignature>(
            &signed,
            rewrite_signature,
            |signature| signature.marshall().unwrap(),
            |_| false,
            &mut tally,
        );
        // Whatever is altered, it is no longer what the AK signed.
        for at in 0..quoted.len() {
            let mut altered = quoted.clone();
            altered[at] ^= 1;
            public.verify(&altered, &signed).unwrap_err();
        }
    }
    for bytes in publics {
        same_public(&Public::parse(&bytes).unwrap(), &TssPublic::unmarshall(&bytes).unwrap());
        let with_size = sized(&bytes);
        assert_eq!(Public::parse_sized(&with_size).unwrap().to_bytes(), bytes);
        alike::<TssPublic>(
            &bytes,
            rewrite_public,
            |public| public.marshall().unwrap(),
            is_neither_ek_nor_ak,
            &mut tally,
        );
    }
    println!("{tally:?}");
}
