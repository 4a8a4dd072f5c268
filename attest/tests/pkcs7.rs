//! PKCS#7 messages made by the test: what is accepted, and one refusal for each thing that can be wrong.

use std::sync::LazyLock;

use attest::pkcs7::{CERTIFICATES_LIMIT, MESSAGE_LIMIT_BYTES, Pkcs7Error, SignedContent, SignedData, SigningCertificate, from_base64};
use cloud_fixtures::aws::region_certificate;
use cloud_fixtures::der::*;
use cloud_fixtures::pkcs7::*;
use proptest::prelude::*;
use rcgen::{KeyIdMethod, KeyPair, RsaKeySize, SerialNumber};
use rustls_pki_types::CertificateDer;

const CONTENT: &[u8] = b"{\"a\": 1}";

static CERTIFICATE: LazyLock<CertificateDer<'static>> = LazyLock::new(|| region_certificate(&SIGNER, 0xbd9b_3a06_fe76_af6b));
static SIGNING: LazyLock<SigningCertificate> = LazyLock::new(|| SigningCertificate::parse(&CERTIFICATE).unwrap());

fn aws() -> TestMessage {
    TestMessage::aws(CONTENT, &CERTIFICATE)
}

fn azure() -> TestMessage {
    TestMessage::azure(CONTENT, &CERTIFICATE)
}

fn verify_by(message: &[u8], certificate: &SigningCertificate) -> Result<Vec<u8>, Pkcs7Error> {
    SignedData::parse(message)?
        .verify(certificate, SignedContent::Attached)
        .map(<[u8]>::to_vec)
}

fn verify(message: &[u8]) -> Result<Vec<u8>, Pkcs7Error> {
    verify_by(message, &SIGNING)
}

fn accepted(message: &TestMessage) {
    assert_eq!(verify(&message.sign(&SIGNER)).as_deref(), Ok(CONTENT));
}

fn refused(message: &TestMessage) -> Pkcs7Error {
    verify(&message.sign(&SIGNER)).expect_err("the message must be refused")
}

#[track_caller]
fn structure(error: &Pkcs7Error) {
    assert!(matches!(error, Pkcs7Error::Structure { .. }), "{error}");
}

#[test]
fn accepts_aws_and_azure_message_forms() {
    accepted(&aws());
    accepted(&azure());
    accepted(&aws().but(|message| message.ber = false));
    accepted(&azure().but(|message| message.ber = true));
    accepted(&azure().but(|message| message.attributes = Some(message.usual_attributes())));
}

#[test]
fn accepted_algorithms() {
    for (hash, with_rsa) in [(SHA256, SHA256_RSA), (SHA384, SHA384_RSA), (SHA512, SHA512_RSA)] {
        for digest in [hash, with_rsa] {
            for signature in [RSA, with_rsa] {
                for parameters in [&[], NULL] {
                    let message = azure().but(|message| {
                        message.hash = hash.to_vec();
                        message.digest_algorithm = algorithm(digest, parameters);
                        message.digest_algorithms = vec![algorithm(digest, parameters)];
                        message.signature_algorithm = algorithm(signature, parameters);
                    });
                    accepted(&message);
                    accepted(&message.but(|message| message.attributes = Some(message.usual_attributes())));
                }
            }
        }
    }
}

#[test]
fn attack_06_rejects_weak_and_unsupported_algorithms() {
    let digest = |oid: &[u8], name: &str| {
        let message = aws().but(|message| {
            message.digest_algorithm = algorithm(oid, &[]);
            message.digest_algorithms = vec![algorithm(oid, &[])];
        });
        let found = name.to_owned();
        assert_eq!(refused(&message), Pkcs7Error::Digest { found });
    };
    digest(SHA1, "1.3.14.3.2.26");
    digest(SHA1_RSA, "1.2.840.113549.1.1.5");
    digest(RSA, "1.2.840.113549.1.1.1");
    digest(RSA_PSS, "1.2.840.113549.1.1.10");
    let signature = |oid: &[u8], name: &str| {
        let message = aws().but(|message| message.signature_algorithm = algorithm(oid, NULL));
        let (found, digest) = (name.to_owned(), "SHA-256");
        let error = refused(&message);
        assert_eq!(error, Pkcs7Error::SignatureAlgorithm { found, digest });
        assert!(error.is_algorithm());
    };
    signature(SHA1_RSA, "1.2.840.113549.1.1.5");
    signature(RSA_PSS, "1.2.840.113549.1.1.10");
    signature(SHA512_RSA, "1.2.840.113549.1.1.13");
    // ecdsa-with-SHA256, and a digest in its place.
    signature(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], "1.2.840.10045.4.3.2");
    signature(SHA256, "2.16.840.1.101.3.4.2.1");
    let parameters = aws().but(|message| message.signature_algorithm = algorithm(RSA, &der(SEQUENCE, &[])));
    assert!(matches!(refused(&parameters), Pkcs7Error::Parameters { .. }));
    let parameters = aws().but(|message| message.digest_algorithm = algorithm(SHA256, &der(OCTETS, &[b"x"])));
    assert!(matches!(refused(&parameters), Pkcs7Error::Parameters { .. }));
}

#[test]
fn attack_06_rejects_weak_keys_and_non_rsa_keys() {
    let p256 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let ec: CertificateDer<'static> = params("EC", 1).self_signed(&p256).unwrap().into();
    let found = "of algorithm 1.2.840.10045.2.1".to_owned();
    assert_eq!(SigningCertificate::parse(&ec), Err(Pkcs7Error::Key { found }));
    assert!(SigningCertificate::parse(&region_certificate(&Pkcs7Key::new(RsaKeySize::_4096), 1)).is_ok());
}

#[test]
fn rejects_oversized_and_malformed_certificates() {
    let long = [&CERTIFICATE, [0; 9000].as_slice()].concat();
    assert_eq!(
        SigningCertificate::parse(&long),
        Err(Pkcs7Error::CertificateTooLarge { bytes: long.len() })
    );
    for bytes in [&long[..CERTIFICATE.len() + 1], &long[..CERTIFICATE.len() - 1], b"", b"\x30\x00"] {
        assert!(matches!(SigningCertificate::parse(bytes), Err(Pkcs7Error::Certificate { .. })));
    }
}

#[test]
fn attack_11_rejects_replaced_content() {
    let other = b"{\"a\": 2}".to_vec();
    let message = aws().but(|message| message.shown = Some(other.clone()));
    let error = refused(&message);
    assert!(
        matches!(&error, Pkcs7Error::MessageDigest { .. }) && error.is_signature(),
        "{error}"
    );
    let error = refused(&azure().but(|message| message.shown = Some(other.clone())));
    assert!(matches!(&error, Pkcs7Error::Signature { .. }) && error.is_signature(), "{error}");
    // The attributes go with the other content, and the signature with the first attributes.
    let first = aws();
    let exchanged = aws().but(|message| {
        message.content = other;
        message.attributes = Some(message.usual_attributes());
        message.signed = Some(first.to_be_signed());
    });
    assert!(matches!(refused(&exchanged), Pkcs7Error::Signature { .. }));
}

/// The signature over attributes is also one over a content of the same bytes. It must not become one over JSON.
#[test]
fn attack_11_signed_attributes_do_not_verify_as_content() {
    let attributes = aws().to_be_signed();
    let message = azure().but(|message| message.content = attributes.clone());
    let content = verify(&message.sign(&SIGNER)).unwrap();
    assert_eq!(content, attributes);
    assert_eq!(content[0], SET, "no JSON object begins like this");
    // And the other way round: a document that was signed as a content is no set of attributes.
    let message = aws().but(|message| message.signed = Some(CONTENT.to_vec()));
    assert!(matches!(refused(&message), Pkcs7Error::Signature { .. }));
}

#[test]
fn signed_attributes_must_occur_exactly_once() {
    let usual = aws().usual_attributes();
    let error = |attributes: Vec<Vec<u8>>| refused(&aws().but(|message| message.attributes = Some(attributes)));
    let attribute_error = |attribute, found, values| Pkcs7Error::Attribute { attribute, found, values };
    assert_eq!(error(vec![usual[0].clone()]), attribute_error("messageDigest", 0, 0));
    assert_eq!(error(vec![usual[1].clone()]), attribute_error("contentType", 0, 0));
    assert_eq!(error(vec![]), attribute_error("contentType", 0, 0));
    let (data, signed_data) = (der(OID, &[DATA]), der(OID, &[SIGNED_DATA]));
    let twice = [usual.clone(), vec![attribute(CONTENT_TYPE, &[&signed_data])]].concat();
    assert_eq!(error(twice), attribute_error("contentType", 2, 2));
    let two_values = vec![attribute(CONTENT_TYPE, &[&data, &signed_data]), usual[1].clone()];
    assert_eq!(error(two_values), attribute_error("contentType", 1, 2));
    let no_value = vec![attribute(CONTENT_TYPE, &[]), usual[1].clone()];
    assert_eq!(error(no_value), attribute_error("contentType", 1, 0));
    let other_digest = attribute(MESSAGE_DIGEST, &[&der(OCTETS, &[&[7; 32]])]);
    let twice = [usual.clone(), vec![other_digest.clone()]].concat();
    assert_eq!(error(twice), attribute_error("messageDigest", 2, 2));
    assert!(matches!(
        error(vec![usual[0].clone(), other_digest]),
        Pkcs7Error::MessageDigest { .. }
    ));
    let other_type = vec![attribute(CONTENT_TYPE, &[&signed_data]), usual[1].clone()];
    assert!(matches!(error(other_type), Pkcs7Error::ContentType { .. }));
    // The very same attribute twice is no set.
    structure(&error([usual.clone(), usual.clone()].concat()));
    structure(&error(vec![usual[0].clone(), attribute(MESSAGE_DIGEST, &[NULL])]));
    let short = attribute(MESSAGE_DIGEST, &[&der(OCTETS, &[&aws().digest()[..31]])]);
    assert!(matches!(error(vec![usual[0].clone(), short]), Pkcs7Error::MessageDigest { .. }));
}

#[test]
fn signed_attributes_are_verified_in_der_order() {
    let reversed: Vec<_> = aws().usual_attributes().into_iter().rev().collect();
    accepted(&aws().but(|message| message.attributes = Some(reversed.clone())));
    let as_sent = der(SET, &[&reversed.concat()]);
    let message = aws().but(|message| {
        message.attributes = Some(reversed);
        message.signed = Some(as_sent);
    });
    assert!(matches!(refused(&message), Pkcs7Error::Signature { .. }));
    // Inside of an attribute too.
    let with = |values: &[&[u8]]| {
        let more = attribute(&[0x2a, 0x03, 0x04], values);
        aws().but(|message| message.attributes = Some([message.usual_attributes(), vec![more]].concat()))
    };
    let (one, two) = (der(OCTETS, &[&[1]]), der(OCTETS, &[&[2]]));
    accepted(&with(&[&one, &two]));
    structure(&refused(&with(&[&two, &one])));
    structure(&refused(&with(&[&one, &one])));
}

#[test]
fn attack_12_rejects_any_number_of_signers_but_one() {
    let other = azure().but(|message| message.signer = issuer_and_serial(&region_certificate(&OTHER, 5)));
    let two = azure().but(|message| message.extra_signers = vec![other.signer_info(&OTHER)]);
    let error = refused(&two);
    assert_eq!(error, Pkcs7Error::Signers { found: 2 });
    assert!(error.is_signer());
    // In the other order, and the very same one twice.
    let two = other.but(|message| message.extra_signers = vec![azure().signer_info(&SIGNER)]);
    assert_eq!(verify(&two.sign(&OTHER)), Err(Pkcs7Error::Signers { found: 2 }));
    let twice = azure().but(|message| message.extra_signers = vec![message.signer_info(&SIGNER)]);
    assert_eq!(refused(&twice), Pkcs7Error::Signers { found: 2 });
    let whole = azure().sign(&SIGNER);
    let none = [&whole[..whole.len() - azure().signer_info(&SIGNER).len()], &[]].concat();
    assert!(verify(&none).is_err());
}

#[test]
fn attack_12_rejects_a_certificate_that_is_not_the_signers() {
    let other = SigningCertificate::parse(&region_certificate(&OTHER, 5)).unwrap();
    assert!(matches!(
        verify_by(&azure().sign(&SIGNER), &other),
        Err(Pkcs7Error::OtherSigner { .. })
    ));
    // Same name and number, another key.
    let namesake = SigningCertificate::parse(&region_certificate(&OTHER, 0xbd9b_3a06_fe76_af6b)).unwrap();
    assert!(matches!(
        verify_by(&azure().sign(&SIGNER), &namesake),
        Err(Pkcs7Error::Signature { .. })
    ));
    assert_eq!(verify_by(&azure().sign(&OTHER), &namesake).as_deref(), Ok(CONTENT));
}

#[test]
fn attack_12_signer_certificate_is_unique_in_the_bag() {
    let signer_of = |certificates: &[&[u8]]| {
        let bag = certificates.iter().map(|certificate| certificate.to_vec()).collect();
        let message = azure().but(|message| message.certificates = bag).sign(&SIGNER);
        SignedData::parse(&message).and_then(|message| message.signer_certificate())
    };
    let other = region_certificate(&OTHER, 5);
    let namesake = region_certificate(&OTHER, 0xbd9b_3a06_fe76_af6b);
    for bag in [&[&CERTIFICATE[..]][..], &[&CERTIFICATE, &other], &[&other, &CERTIFICATE]] {
        assert_eq!(signer_of(bag).unwrap().der(), &*CERTIFICATE);
    }
    let count = |found: usize, all: usize, bag: &[&[u8]]| match signer_of(bag) {
        Err(error @ Pkcs7Error::SignerCertificate { found: f, all: a, .. }) => {
            assert!((f, a) == (found, all) && error.is_signer());
        }
        other => panic!("{other:?}"),
    };
    count(0, 0, &[]);
    count(0, 1, &[&other]);
    count(2, 2, &[&CERTIFICATE, &namesake]);
    count(2, 3, &[&namesake, &CERTIFICATE, &other]);
    // What cannot be read does not hide the signer's, and is named where it may be the signer's.
    assert_eq!(signer_of(&[&der(SEQUENCE, &[]), &CERTIFICATE]).unwrap().der(), &*CERTIFICATE);
    assert!(matches!(signer_of(&[&der(SEQUENCE, &[])]), Err(Pkcs7Error::Certificate { .. })));
    // The very same certificate twice is no set.
    structure(&signer_of(&[&CERTIFICATE, &CERTIFICATE]).unwrap_err());
    let many: Vec<Vec<u8>> = (0..=CERTIFICATES_LIMIT)
        .map(|n| der(SEQUENCE, &[&der(OCTETS, &[&vec![0; n]])]))
        .collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    let found = CERTIFICATES_LIMIT + 1;
    assert_eq!(signer_of(&many), Err(Pkcs7Error::TooManyCertificates { found }));
}

#[test]
fn finds_the_signer_by_key_identifier() {
    let mut by_key = ca_params("By key", 9);
    by_key.key_identifier_method = KeyIdMethod::PreSpecified(b"identifier".to_vec());
    let certificate: CertificateDer<'static> = by_key.self_signed(&SIGNER.pair).unwrap().into();
    let signing = SigningCertificate::parse(&certificate).unwrap();
    let named = |identifier: &[u8]| {
        azure().but(|message| {
            message.signer = der(0x80, &[identifier]);
            (message.version, message.signer_version) = (3, 3);
        })
    };
    let message = named(b"identifier");
    assert_eq!(verify_by(&message.sign(&SIGNER), &signing).as_deref(), Ok(CONTENT));
    let other = verify_by(&named(b"identifieR").sign(&SIGNER), &signing).unwrap_err();
    assert!(matches!(other, Pkcs7Error::OtherSigner { .. }), "{other}");
    // By neither, and with more than there is to be.
    let named = |signer: Vec<u8>| refused(&azure().but(|message| message.signer = signer));
    structure(&named(der(0x81, &[b"identifier"])));
    structure(&named(der(CONTEXT_0, &[&der(OCTETS, &[b"identifier"])])));
    let usual = issuer_and_serial(&CERTIFICATE);
    structure(&named(der(SEQUENCE, &[&usual[2..], NULL])));
    structure(&named(der(
        SEQUENCE,
        &[&usual[2..usual.len() - 11], &der(OCTETS, &[&usual[usual.len() - 9..]])],
    )));
}

#[test]
fn serial_numbers_are_compared_as_a_whole() {
    for (serial, other) in [
        (vec![0x80], vec![0x00, 0x81]),
        (vec![1], vec![1, 1]),
        (vec![0x7f; 20], vec![0x7f; 19]),
    ] {
        let with = |serial: Vec<u8>| {
            let mut params = ca_params("Amazon", 0);
            params.serial_number = Some(SerialNumber::from(serial));
            CertificateDer::from(params.self_signed(&SIGNER.pair).unwrap())
        };
        let (certificate, other) = (with(serial), with(other));
        let message = azure()
            .but(|message| message.signer = issuer_and_serial(&certificate))
            .sign(&SIGNER);
        assert!(verify_by(&message, &SigningCertificate::parse(&certificate).unwrap()).is_ok());
        assert!(verify_by(&message, &SigningCertificate::parse(&other).unwrap()).is_err());
    }
}

#[test]
fn content_must_be_attached_or_detached_as_requested() {
    let detached = aws().but(|message| message.detached = true).sign(&SIGNER);
    let parsed = SignedData::parse(&detached).unwrap();
    assert_eq!(parsed.verify(&SIGNING, SignedContent::Detached(CONTENT)), Ok(CONTENT));
    assert!(matches!(
        parsed.verify(&SIGNING, SignedContent::Detached(b"{}")),
        Err(Pkcs7Error::MessageDigest { .. })
    ));
    let place = |found, expected| Err(Pkcs7Error::ContentPlace { found, expected });
    assert_eq!(
        parsed.verify(&SIGNING, SignedContent::Attached),
        place("not in the message", "attached")
    );
    let attached = SignedData::parse(&aws().sign(&SIGNER)).unwrap();
    assert_eq!(
        attached.verify(&SIGNING, SignedContent::Detached(CONTENT)),
        place("in the message", "detached")
    );
}

#[test]
fn rejects_nonstandard_content_types_and_versions() {
    let error = refused(&aws().but(|message| message.content_info_type = DATA.to_vec()));
    assert!(matches!(error, Pkcs7Error::ContentType { .. }), "{error}");
    let error = refused(&aws().but(|message| message.content_type = SIGNED_DATA.to_vec()));
    assert!(matches!(error, Pkcs7Error::ContentType { .. }), "{error}");
    for version in [0, 2, 3, 4, 5] {
        let error = refused(&aws().but(|message| message.version = version));
        assert!(matches!(error, Pkcs7Error::Version { found, required: 1, .. } if found == version));
        let error = refused(&aws().but(|message| message.signer_version = version));
        assert!(matches!(error, Pkcs7Error::Version { found, required: 1, .. } if found == version));
    }
    let twice = azure().but(|message| message.extra_signers = vec![message.signer_info(&SIGNER)]);
    assert_eq!(refused(&twice), Pkcs7Error::Signers { found: 2 });
    let digests = |all: Vec<Vec<u8>>| refused(&aws().but(|message| message.digest_algorithms = all));
    for all in [
        vec![],
        vec![algorithm(SHA256, NULL)],
        vec![algorithm(SHA512, &[])],
        vec![algorithm(SHA256, &[]), algorithm(SHA512, &[])],
    ] {
        assert!(matches!(digests(all), Pkcs7Error::DigestAlgorithms { .. }));
    }
    structure(&refused(&aws().but(|message| message.crls = der(CONTEXT_1, &[]))));
    // Unsigned attributes are left unread.
    accepted(&aws().but(|message| message.unsigned = attribute(&[0x2a, 0x03, 0x04], &[NULL])));
}

#[test]
fn base64_is_bounded_and_strict() {
    let message = aws().sign(&SIGNER);
    let text = in_lines(&message);
    assert_eq!(from_base64(&text).unwrap(), message);
    assert_eq!(
        from_base64(&text.iter().copied().filter(|byte| *byte != b'\n').collect::<Vec<_>>()).unwrap(),
        message
    );
    let windows = String::from_utf8(text.clone()).unwrap().replace('\n', "\r\n");
    assert_eq!(from_base64(windows.as_bytes()).unwrap(), message);
    for bad in [
        &text[1..],
        b"AAAA\rAAAA",
        b"AAAA\r\r\nAAAA",
        b"!!!!",
        b"AA==AA==",
        b"AAA",
        b"AB==",
        b"AA AA",
        "ääää".as_bytes(),
    ] {
        assert!(matches!(from_base64(bad), Err(Pkcs7Error::Base64 { .. })));
    }
    assert!(matches!(
        from_base64(&vec![b'A'; 2 * MESSAGE_LIMIT_BYTES]),
        Err(Pkcs7Error::TooLarge { .. })
    ));
    assert_eq!(from_base64(b""), Ok(vec![]));
    assert!(verify(b"").is_err());
}

#[test]
fn attack_23_rejects_every_truncation_and_trailing_data() {
    for message in [aws().sign(&SIGNER), azure().sign(&SIGNER)] {
        for length in 0..message.len() {
            assert!(verify(&message[..length]).is_err(), "{length} bytes");
        }
        for more in [&[0][..], &[0, 0], &[0x30, 0x00]] {
            assert!(verify(&[&message, more].concat()).is_err());
        }
    }
}

#[test]
fn attack_23_rejects_every_flipped_bit() {
    for message in [
        aws().sign(&SIGNER),
        aws().but(|message| message.ber = false).sign(&SIGNER),
        azure().but(|message| message.certificates.clear()).sign(&SIGNER),
    ] {
        for at in 0..message.len() {
            for bit in 0..8 {
                let mut flipped = message.clone();
                flipped[at] ^= 1 << bit;
                assert!(verify(&flipped).is_err(), "byte {at}, bit {bit}");
            }
        }
    }
}

static VALID: LazyLock<Vec<u8>> = LazyLock::new(|| aws().sign(&SIGNER));

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(verify(&bytes).is_err());
        prop_assert!(SigningCertificate::parse(&bytes).is_err());
        let _ = from_base64(&bytes);
    }

    /// Parts of valid messages, put together wrongly.
    #[test]
    fn attack_23_splices_never_panic(from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..8)) {
        let (from, to) = (from.index(VALID.len()), to.index(VALID.len()));
        let spliced = [&VALID[..from], &bytes, &VALID[to..]].concat();
        if spliced != *VALID {
            prop_assert!(verify(&spliced).is_err());
        }
    }
}
