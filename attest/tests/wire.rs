//! The wire structures: an encoded structure is read back, and nothing else is accepted.

use attest::HashAlg;
use attest::protocol::{Blob, EvidenceRequest, HexDigest};
use attest::tpm::wire::{
    Attributes, ClockInfo, Curve, EncryptedSecret, IdObject, KeyParameters, Public, QuoteAttest, SelectedBank, SymmetricCipher, TpmScheme,
    TpmSignature, WireError,
};
use attest::values::printable;
use proptest::collection::vec;
use proptest::prelude::*;

fn hash() -> impl Strategy<Value = HashAlg> {
    prop_oneof![Just(HashAlg::Sha256), Just(HashAlg::Sha384), Just(HashAlg::Sha512)]
}

fn scheme() -> impl Strategy<Value = TpmScheme> {
    prop_oneof![
        Just(TpmScheme::Null),
        hash().prop_map(TpmScheme::RsaSsa),
        hash().prop_map(TpmScheme::RsaPss),
        hash().prop_map(TpmScheme::Ecdsa)
    ]
}

fn symmetric() -> impl Strategy<Value = SymmetricCipher> {
    prop_oneof![
        Just(SymmetricCipher::Null),
        Just(SymmetricCipher::Aes128Cfb),
        Just(SymmetricCipher::Aes256Cfb)
    ]
}

fn key() -> impl Strategy<Value = KeyParameters> {
    let rsa = (any::<u16>(), any::<u32>(), vec(any::<u8>(), 0..=512));
    let p256 = (vec(any::<u8>(), 0..=32), vec(any::<u8>(), 0..=32));
    let p384 = (vec(any::<u8>(), 0..=48), vec(any::<u8>(), 0..=48));
    prop_oneof![
        rsa.prop_map(|(key_bits, exponent, modulus)| KeyParameters::Rsa {
            key_bits,
            exponent,
            modulus
        }),
        p256.prop_map(|(x, y)| KeyParameters::Ecc { curve: Curve::P256, x, y }),
        p384.prop_map(|(x, y)| KeyParameters::Ecc { curve: Curve::P384, x, y }),
    ]
}

fn public() -> impl Strategy<Value = Public> {
    (hash(), any::<u32>(), vec(any::<u8>(), 0..=32), symmetric(), scheme(), key()).prop_map(
        |(name_alg, attributes, auth_policy, symmetric, scheme, key)| Public {
            name_alg,
            attributes: Attributes(attributes),
            auth_policy,
            symmetric,
            scheme,
            key,
        },
    )
}

fn quoted() -> impl Strategy<Value = QuoteAttest> {
    let clock =
        (any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(clock_ms, reset_count, restart_count, safe)| ClockInfo {
            clock_ms,
            reset_count,
            restart_count,
            safe,
        });
    let bank = (any::<u16>(), vec(any::<u8>(), 0..=4)).prop_map(|(bank, bitmap)| SelectedBank { bank, bitmap });
    (
        vec(any::<u8>(), 0..=66),
        vec(any::<u8>(), 0..=66),
        clock,
        any::<u64>(),
        vec(bank, 0..=16),
        vec(any::<u8>(), 0..=64),
    )
        .prop_map(
            |(qualified_signer, extra_data, clock, firmware_version, selection, pcr_digest)| QuoteAttest {
                qualified_signer,
                extra_data,
                clock,
                firmware_version,
                selection,
                pcr_digest,
            },
        )
}

/// `bytes` is read as `value`; shorter and longer ones are refused.
fn exact<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    value: &T,
    parse: impl Fn(&[u8]) -> Result<T, WireError>,
) -> Result<(), TestCaseError> {
    let read = parse(bytes);
    prop_assert_eq!(read.as_ref(), Ok(value));
    for length in 0..bytes.len() {
        prop_assert!(parse(&bytes[..length]).is_err(), "accepted {} of {} bytes", length, bytes.len());
    }
    let longer = [bytes, &[0]].concat();
    prop_assert!(parse(&longer).is_err(), "accepted a trailing byte");
    Ok(())
}

proptest! {
    #[test]
    fn public_areas_round_trip(value in public()) {
        let bytes = value.to_bytes();
        exact(&bytes, &value, Public::parse)?;
        let sized = [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat();
        exact(&sized, &value, Public::parse_sized)?;
    }

    #[test]
    fn quotes_round_trip(value in quoted()) {
        exact(&value.to_bytes(), &value, QuoteAttest::parse)?;
    }

    #[test]
    fn rsa_signatures_round_trip(pss in any::<bool>(), hash in hash(), signature in vec(any::<u8>(), 0..=512)) {
        let scheme = if pss { TpmScheme::RsaPss(hash) } else { TpmScheme::RsaSsa(hash) };
        let value = TpmSignature::Rsa { scheme, signature: &signature };
        let bytes = value.to_bytes();
        prop_assert_eq!(TpmSignature::parse(&bytes), Ok(value));
        prop_assert!(TpmSignature::parse(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn ecdsa_signatures_round_trip(hash in hash(), r in vec(any::<u8>(), 0..=48), s in vec(any::<u8>(), 0..=48)) {
        let value = TpmSignature::Ecdsa { scheme: TpmScheme::Ecdsa(hash), r: &r, s: &s };
        let bytes = value.to_bytes();
        prop_assert_eq!(TpmSignature::parse(&bytes), Ok(value));
        prop_assert!(TpmSignature::parse(&bytes[..bytes.len() - 1]).is_err());
        prop_assert!(TpmSignature::parse(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn credentials_round_trip(integrity in vec(any::<u8>(), 0..=64), encrypted_identity in vec(any::<u8>(), 0..=66)) {
        let value = IdObject { integrity, encrypted_identity };
        exact(&value.to_bytes(), &value, IdObject::parse)?;
    }

    #[test]
    fn encrypted_secrets_round_trip(ciphertext in vec(any::<u8>(), 0..=512), x in vec(any::<u8>(), 0..=48), y in vec(any::<u8>(), 0..=48)) {
        let rsa = EncryptedSecret::Rsa(ciphertext);
        exact(&rsa.to_bytes(), &rsa, EncryptedSecret::parse_rsa)?;
        let ecc = EncryptedSecret::Ecc { x, y };
        exact(&ecc.to_bytes(), &ecc, EncryptedSecret::parse_ecc)?;
    }

    #[test]
    fn attack_23_arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..600)) {
        let _ = (Public::parse(&bytes), Public::parse_sized(&bytes), QuoteAttest::parse(&bytes), TpmSignature::parse(&bytes));
        let _ = (IdObject::parse(&bytes), EncryptedSecret::parse_rsa(&bytes), EncryptedSecret::parse_ecc(&bytes));
        let _ = attest::EkDigest::from_public_area(&bytes);
        // A prefix that gets past the magic, the type, the algorithm.
        let _ = QuoteAttest::parse(&[&[0xff, 0x54, 0x43, 0x47, 0x80, 0x18], &bytes[..]].concat());
        let _ = Public::parse(&[&[0, 1, 0, 0x0b], &bytes[..]].concat());
        let _ = Public::parse(&[&[0, 0x23, 0, 0x0b], &bytes[..]].concat());
    }

    #[test]
    fn attack_23_altered_structures_never_panic(value in public(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = value.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = Public::parse(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes, "what is accepted is written back the same");
        }
    }
}

/// A Name, a nonce, an HMAC: no longer than those of SHA-512.
#[test]
fn buffers_are_limited_to_sha_512_sizes() {
    let quoted = |qualified_signer: usize, extra_data: usize| {
        let quoted = QuoteAttest {
            qualified_signer: std::vec![1; qualified_signer],
            extra_data: std::vec![2; extra_data],
            clock: ClockInfo {
                clock_ms: 0,
                reset_count: 0,
                restart_count: 0,
                safe: true,
            },
            firmware_version: 0,
            selection: Vec::new(),
            pcr_digest: Vec::new(),
        };
        QuoteAttest::parse(&quoted.to_bytes()).map(|_| ())
    };
    assert_eq!(quoted(66, 66), Ok(()));
    for refused in [quoted(67, 66), quoted(66, 67)] {
        assert!(
            matches!(refused, Err(WireError::TooLarge { found: 67, limit: 66, .. })),
            "{refused:?}"
        );
    }
    let credential = |integrity: usize, encrypted_identity: usize| {
        let credential = IdObject {
            integrity: std::vec![1; integrity],
            encrypted_identity: std::vec![2; encrypted_identity],
        };
        IdObject::parse(&credential.to_bytes()).map(|_| ())
    };
    assert_eq!(credential(64, 66), Ok(()));
    for refused in [credential(65, 66), credential(65, 65), credential(64, 67), credential(63, 67)] {
        assert!(matches!(refused, Err(WireError::TooLarge { .. })), "{refused:?}");
    }
}

#[test]
fn attack_23_rejects_oversized_fields_before_reading_them() {
    let too_large = |result: Result<Public, WireError>| assert!(matches!(result, Err(WireError::TooLarge { .. })), "{result:?}");
    let head = [0, 1, 0, 0x0b, 0, 0, 0, 0];
    too_large(Public::parse(&[&head[..], &[0, 33]].concat()));
    too_large(Public::parse(&[&head[..], &[0xff, 0xff]].concat()));
    too_large(Public::parse(
        &[&head[..], &[0, 0], &[0, 0x10, 0, 0x10, 8, 0, 0, 0, 0, 0], &[2, 1]].concat(),
    ));
    assert!(matches!(
        TpmSignature::parse(&[0, 0x14, 0, 0x0b, 2, 1]),
        Err(WireError::TooLarge {
            found: 513,
            limit: 512,
            ..
        })
    ));
    assert!(matches!(IdObject::parse(&[0xff, 0xff]), Err(WireError::TooLarge { .. })));
}

#[test]
fn attack_23_json_of_the_wire_is_strict() {
    let blob = |text: &str| serde_json::from_str::<Blob>(text);
    assert_eq!(blob("\"AAE=\"").unwrap(), Blob(vec![0, 1]));
    for bad in ["\"AAE\"", "\"AAF=\"", "\"AA E=\"", "\"_-8=\"", "[0,1]", "null"] {
        assert!(blob(bad).is_err(), "{bad}");
    }
    let digest = |text: &str| serde_json::from_str::<HexDigest>(text);
    assert!(digest(&format!("\"{}\"", "aA".repeat(32))).is_ok());
    for bad in [String::new(), "aa".repeat(31), "aa".repeat(33), "zz".repeat(32), "a".repeat(65)] {
        assert!(digest(&format!("\"{bad}\"")).is_err(), "{bad}");
    }
    let evidence = |extra: &str| {
        let hex = "00".repeat(32);
        let text = format!(
            r#"{{"challenge":"x","evidence":{{"tpm":{{"secret_sha256":"{hex}","quoted":"","signature":"","pcrs":{{}}{extra}}}}}}}"#
        );
        serde_json::from_str::<EvidenceRequest>(&text)
    };
    evidence("").unwrap();
    for bad in [
        r#","trusted":true"#,
        r#","pcrs":{}"#,
        r#","pcrs":{"256":""}"#,
        r#","pcrs":{"-1":""}"#,
    ] {
        assert!(evidence(bad).is_err(), "{bad}");
    }
}

#[test]
fn printable_text_has_no_control_characters_and_no_more_than_the_limit() {
    let plain = |text: &str, limit: usize| -> String {
        let replaced = |char: char| if char.is_control() { '\u{fffd}' } else { char };
        text.chars().take(limit).map(replaced).collect()
    };
    for text in ["", "a", "abc", "ä€😀", "a\nb\u{85}c", "\u{0}\u{1b}[31m", "ab\u{7f}", "äöü\r"] {
        for limit in 0..8 {
            assert_eq!(printable(text, limit), plain(text, limit), "{text:?}, {limit}");
        }
    }
}
