//! Predictions of PCR 7, from Secure Boot's variables.

use attest::HashAlg;
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::SecureBoot;
use attest::tpm::prediction::secure_boot::{SecureBootError, VARIABLE_LIMIT_BYTES, Variables};

const X509: [u8; 16] = [
    0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
];
const SHA256: [u8; 16] = [
    0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28,
];

/// A signature list with one signature, whose owner is eights.
fn list(kind: [u8; 16], header: &[u8], data: &[u8]) -> Vec<u8> {
    let size = |bytes: usize| u32::try_from(bytes).unwrap().to_le_bytes();
    let (list, signature) = (28 + header.len() + 16 + data.len(), 16 + data.len());
    [
        kind.as_slice(),
        &size(list),
        &size(header.len()),
        &size(signature),
        header,
        &[8; 16],
        data,
    ]
    .concat()
}

fn predict(variables: &Variables<'_>, secure_boot: SecureBoot, authorities: &[&[u8]]) -> Result<Prediction, SecureBootError> {
    let mut prediction = Prediction::new(&[HashAlg::Sha256]);
    variables.predict(secure_boot, authorities, &mut prediction)?;
    Ok(prediction)
}

fn event_descriptions(prediction: &Prediction) -> Vec<String> {
    prediction.events().iter().map(|event| event.what.to_string()).collect()
}

const VARIABLES: [&str; 6] = [
    "variable SecureBoot",
    "variable PK",
    "variable KEK",
    "variable db",
    "variable dbx",
    "separator",
];

#[test]
fn variables_come_before_authorities() {
    let db = [list(X509, &[], b"one"), list(X509, &[0; 4], b"two")].concat();
    let variables = Variables {
        db: &db,
        ..Variables::default()
    };
    let prediction = predict(&variables, SecureBoot::On, &[b"two", b"one", b"two"]).unwrap();
    let words = event_descriptions(&prediction);
    assert_eq!(words[..6], VARIABLES);
    // Each once, in the order of their first use.
    assert_eq!(words.len(), 8);
    // UEFI_VARIABLE_DATA: GUID, 2 characters, 16 and 3 bytes, "db", owner and certificate.
    let entry = [
        &[
            0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
        ],
        2_u64.to_le_bytes().as_slice(),
        &19_u64.to_le_bytes(),
        b"d\0b\0",
        &[8; 16],
        b"two",
    ]
    .concat();
    let digest = prediction.events()[6].digests.get(HashAlg::Sha256).unwrap();
    assert_eq!(digest.as_bytes(), HashAlg::Sha256.digest(&[&entry]).as_ref());
    assert_eq!(prediction.pcrs().len(), 1);
}

#[test]
fn authorities_are_not_measured_without_secure_boot() {
    let db = list(X509, &[], b"one");
    let variables = Variables {
        db: &db,
        ..Variables::default()
    };
    let off = predict(&variables, SecureBoot::Off, &[b"one"]).unwrap();
    assert_eq!(event_descriptions(&off), VARIABLES);
    let on = predict(&variables, SecureBoot::On, &[]).unwrap();
    assert_ne!(on.pcrs(), off.pcrs());
}

#[test]
fn each_secure_boot_variable_changes_pcr_7() {
    let value = |variables: &Variables<'_>| predict(variables, SecureBoot::On, &[]).unwrap().pcrs()[0].values.clone();
    let one = list(SHA256, &[], &[1; 32]);
    let none = Variables::default();
    let each = [
        none,
        Variables { pk: &one, ..none },
        Variables { kek: &one, ..none },
        Variables { db: &one, ..none },
        Variables { dbx: &one, ..none },
    ];
    for (position, variables) in each.iter().enumerate() {
        assert!(each[..position].iter().all(|other| value(other) != value(variables)));
    }
}

#[track_caller]
fn refused(db: &[u8], expected: &str) {
    let variables = Variables {
        db,
        ..Variables::default()
    };
    let error = predict(&variables, SecureBoot::On, &[]).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn rejects_a_malformed_signature_list() {
    let good = list(X509, &[], b"one");
    for length in 1..good.len() {
        refused(&good[..length], "db is not a signature list");
    }
    refused(&[good.as_slice(), &[0]].concat(), "not a signature list");
    let changed = |offset: usize, value: u32| {
        let mut list = good.clone();
        list[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        list
    };
    for value in [0, 27, 46, 48, u32::MAX] {
        refused(&changed(16, value), "not a signature list");
    }
    for value in [1, 20, u32::MAX] {
        refused(&changed(20, value), "not a signature list");
    }
    for value in [0, 16, 18, 20, u32::MAX] {
        refused(&changed(24, value), "not a signature list");
    }
    refused(&vec![0; VARIABLE_LIMIT_BYTES + 1], "more than 262144");
}

#[test]
fn authority_must_be_a_certificate_in_db() {
    let hash = list(SHA256, &[], &[1; 32]);
    let dbx = list(X509, &[], b"one");
    let refused = |variables: Variables<'_>, authority: &[u8]| {
        assert_eq!(predict(&variables, SecureBoot::On, &[authority]), Err(SecureBootError::NotInDb));
    };
    refused(Variables::default(), b"one");
    refused(
        Variables {
            db: &hash,
            ..Variables::default()
        },
        &[1; 32],
    );
    refused(
        Variables {
            dbx: &dbx,
            ..Variables::default()
        },
        b"one",
    );
    refused(
        Variables {
            db: &dbx,
            ..Variables::default()
        },
        b"on",
    );
    refused(
        Variables {
            db: &dbx,
            ..Variables::default()
        },
        b"two",
    );
}
