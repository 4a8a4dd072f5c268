//! Quotes of other people's TPMs: read from the vectors folder (`ATTEST_VECTORS`), skipped if it is absent.

use std::collections::BTreeMap;

use crate::vectors::vector;
use attest::tpm::ak::AkPublic;
use attest::tpm::wire::{Public, QuoteAttest, TpmSignature};
use attest::{EkDigest, HashAlg, TpmEvidenceError};

/// The length-delimited and varint fields of a protobuf message, in order.
fn protobuf(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn bytes_of<'a>(message: &[(u64, Field<'a>)], number: u64) -> Vec<&'a [u8]> {
    message
        .iter()
        .filter(|(field, _)| *field == number)
        .filter_map(|(_, field)| if let Field::Bytes(bytes) = field { Some(*bytes) } else { None })
        .collect()
}

/// Returns the hierarchy of the AK, according to the Qualified Name that it has signed.
fn hierarchy(ak: &AkPublic, quoted: &QuoteAttest) -> String {
    match ak.check_hierarchy(&quoted.qualified_signer) {
        Ok(()) => "endorsement".to_owned(),
        Err(TpmEvidenceError::AkHierarchy { found, .. }) => found,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn quotes_of_a_gce_instance_verify() {
    let Some(bytes) = vector("tpm-full/gce-cos-85-nonce9009.pb") else {
        return;
    };
    let attestation = protobuf(&bytes);
    let ak = AkPublic::parse(bytes_of(&attestation, 1)[0]).unwrap();
    let quotes = bytes_of(&attestation, 2);
    assert_eq!(quotes.len(), 3);
    for quote in quotes {
        let quote = protobuf(quote);
        let (quoted, signature, pcrs) = (bytes_of(&quote, 1)[0], bytes_of(&quote, 2)[0], protobuf(bytes_of(&quote, 3)[0]));
        let signed = ak.verify(quoted, signature).unwrap();
        let read = QuoteAttest::parse(signed.bytes()).unwrap();
        assert_eq!(read.to_bytes(), quoted);
        assert_eq!(TpmSignature::parse(signature).unwrap().to_bytes(), signature);
        assert_eq!(read.extra_data, [0x90, 0x09]);
        assert_eq!(hierarchy(&ak, &read), "endorsement");

        let values: BTreeMap<u64, &[u8]> = bytes_of(&pcrs, 2)
            .into_iter()
            .map(|entry| {
                let entry = protobuf(entry);
                let index = entry.iter().find_map(|(field, value)| {
                    if let (1, Field::Number(index)) = (field, value) {
                        Some(*index)
                    } else {
                        None
                    }
                });
                (index.unwrap_or(0), bytes_of(&entry, 2)[0])
            })
            .collect();
        let parts: Vec<&[u8]> = values.values().copied().collect();
        assert_eq!(
            HashAlg::Sha256.digest(&parts).as_ref(),
            read.pcr_digest,
            "the digest is by the hash of the scheme, whatever the bank"
        );
        assert!(read.selection[0].pcrs().map(u64::from).eq(values.keys().copied()));

        for bit in 0..quoted.len() * 8 {
            let mut altered = quoted.to_vec();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(ak.verify(&altered, signature).is_err());
        }
    }
}

#[test]
fn files_of_tpm2_tools_are_read() {
    let Some(ak_file) = vector("tpm-quotes/keylime/ak.pub") else {
        return;
    };
    let file = |name: &str| vector(&format!("tpm-quotes/keylime/{name}")).unwrap();
    let area = Public::parse_sized(&ak_file).unwrap();
    assert_eq!(area.to_bytes(), ak_file[2..]);
    let ak = AkPublic::parse(&ak_file[2..]).unwrap();
    assert_eq!(ak.name().as_bytes(), file("ak.name"));
    let (quoted, signature) = (file("quote.out"), file("quotesig.out"));
    let read = QuoteAttest::parse(ak.verify(&quoted, &signature).unwrap().bytes()).unwrap();
    assert!(read.selection[0].pcrs().eq([15, 16, 22]), "{:?}", read.selection);
    // tpm2_createak puts its AK below the EK: such a one is refused.
    assert_eq!(hierarchy(&ak, &read), "below another object");

    // An EK digest is over the SubjectPublicKeyInfo: what openssl shows of the same key.
    let pem = String::from_utf8(file("ekpub.pem")).unwrap();
    let base64: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let spki = data_encoding::BASE64.decode(base64.as_bytes()).unwrap();
    let expected = HashAlg::Sha256.digest(&[&spki]);
    assert_eq!(EkDigest::from_public_area(&file("ek.pub")).unwrap().as_bytes(), expected.as_ref());
}
