use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use data_encoding::{BASE64, HEXLOWER};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256;
use rustls::crypto::hpke::Hpke;
use serde_json::{Value, json};

use super::*;

pub(super) const CONFIG: &[u8] =
    br#"{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/secret","contents":{"source":"data:,SECRET"}}]}}"#;

fn pem(folder: &Path, name: &str, label: &str, der: &[u8]) -> PathBuf {
    let file = folder.join(name);
    let text = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der));
    fs::write(&file, text).unwrap();
    file
}

/// The files of a key's halves.
pub(super) fn key_pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (public, private) = DH_KEM_X25519_HKDF_SHA256_AES_256.generate_key_pair().unwrap();
    let public = [b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x6e\x03\x21\x00".as_slice(), &public.0].concat();
    let private = [
        b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20".as_slice(),
        private.secret_bytes(),
    ];
    (
        pem(folder, &format!("{name}.pub"), "PUBLIC KEY", &public),
        pem(folder, &format!("{name}.key"), "PRIVATE KEY", &private.concat()),
    )
}

pub(super) fn sha256() -> String {
    Blobs::name(CONFIG)
}

struct Sealed {
    folder: tempfile::TempDir,
    key: OpeningKey,
    recipient: Recipient,
}

impl Sealed {
    fn copy_of(&self, config: &[u8]) -> ConfigCopy {
        ConfigCopy::of(&Document::sealed(config, &Blobs::name(config), &self.recipient).unwrap()).unwrap()
    }
}

fn sealed() -> Sealed {
    let folder = tempfile::tempdir().unwrap();
    let (public, private) = key_pair(folder.path(), "a");
    Sealed {
        key: OpeningKey::read(&private).unwrap(),
        recipient: Recipient::read(&public).unwrap(),
        folder,
    }
}

#[test]
fn what_is_sealed_is_opened_by_its_key_alone_and_nothing_of_it_can_be_altered() {
    let sealed = sealed();
    let (copy, Sealed { folder, key, .. }) = (sealed.copy_of(CONFIG), &sealed);
    assert_eq!((copy.form, copy.sha256.clone()), (ConfigForm::Sealed, Blobs::name(&copy.content)));
    let document = Document::read(&copy.content).unwrap();
    assert_eq!(document.open(key).unwrap(), CONFIG);
    let (_, other) = key_pair(folder.path(), "b");
    let other = OpeningKey::read(&other).unwrap();
    assert!(matches!(document.open(&other), Err(ConfigCopyError::AnotherKey { .. })));
    let value: Value = serde_json::from_slice(&copy.content).unwrap();
    let altered = |field: &str, to: Value| {
        let mut value = value.clone();
        value[field] = to;
        Document::read(value.to_string().as_bytes()).and_then(|document| document.open(key))
    };
    assert!(matches!(altered("v", json!(2)), Err(ConfigCopyError::NotACopy(_))));
    assert!(matches!(altered("more", json!(1)), Err(ConfigCopyError::NotACopy(_))));
    assert!(matches!(altered("form", json!("redacted")), Err(ConfigCopyError::NotACopy(_))));
    assert!(matches!(altered("enc", json!("?")), Err(ConfigCopyError::NotACopy(_))));
    assert!(matches!(altered("key_sha256", json!("0")), Err(ConfigCopyError::AnotherKey { .. })));
    // Of another config: what it is of is bound to it.
    assert!(matches!(
        altered("config_sha256", json!(Blobs::name(b"another"))),
        Err(ConfigCopyError::CannotOpen)
    ));
    for field in ["enc", "ciphertext"] {
        let bytes = BASE64.decode(value[field].as_str().unwrap().as_bytes()).unwrap();
        for place in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x01;
            let opened = altered(field, json!(BASE64.encode(&bytes)));
            assert!(matches!(opened, Err(ConfigCopyError::CannotOpen)), "{field} {place}");
        }
        for length in [0, 1, 31, bytes.len() - 1] {
            let opened = altered(field, json!(BASE64.encode(&bytes[..length])));
            assert!(matches!(opened, Err(ConfigCopyError::CannotOpen)), "{field} {length}");
        }
    }
}

#[test]
fn what_is_sealed_under_a_digest_that_is_not_its_own_is_not_given() {
    let Sealed { key, recipient, .. } = &sealed();
    let wrong = Document::sealed(CONFIG, &Blobs::name(b"another"), recipient).unwrap();
    assert!(matches!(wrong.open(key), Err(ConfigCopyError::WrongDigest { .. })));
}

#[test]
fn what_is_redacted_has_no_secret_and_no_key_opens_it() {
    let Sealed { folder, key, .. } = &sealed();
    let redaction_key = RedactionKey::open(&folder.path().join("redaction.key")).unwrap();
    let copy = ConfigCopy::of(&Document::redacted(CONFIG, &sha256(), &redaction_key).unwrap()).unwrap();
    assert!(!String::from_utf8_lossy(&copy.content).contains("SECRET"));
    let document = Document::read(&copy.content).unwrap();
    assert!(matches!(document.open(key), Err(ConfigCopyError::Redacted)));
    let Document::Redacted { config, key_sha256, .. } = document else {
        panic!("sealed")
    };
    assert_eq!(config["storage"]["files"][0]["path"], "/etc/secret");
    let text = fs::read_to_string(folder.path().join("redaction.key")).unwrap();
    assert_eq!(key_sha256, Blobs::name(&HEXLOWER.decode(text.trim().as_bytes()).unwrap()));
}

#[test]
fn a_copy_is_read_as_what_was_kept_or_not_at_all() {
    let sealed = sealed();
    let (copy, Sealed { folder, key, .. }) = (sealed.copy_of(CONFIG), &sealed);
    let blobs = Blobs::open(&folder.path().join("configs")).unwrap();
    assert!(matches!(
        copy.read(&blobs, &sha256()),
        Err(ConfigCopyError::Blob(BlobError::Io { .. }))
    ));
    blobs.put(&copy.sha256, &copy.content).unwrap();
    assert_eq!(copy.read(&blobs, &sha256()).unwrap().open(key).unwrap(), CONFIG);
    assert!(matches!(copy.read(&blobs, "0"), Err(ConfigCopyError::OfAnother { .. })));
    let form = ConfigForm::Redacted;
    let as_another = ConfigCopy { form, ..copy.clone() };
    assert!(matches!(as_another.read(&blobs, &sha256()), Err(ConfigCopyError::NotACopy(_))));
    let file = folder.path().join("configs").join(format!("{}.gz", copy.sha256));
    let whole = fs::read(&file).unwrap();
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        assert!(
            matches!(copy.read(&blobs, &sha256()), Err(ConfigCopyError::Blob(_))),
            "{length} bytes"
        );
    }
    let other = sealed.copy_of(b"{}");
    blobs.put(&other.sha256, &other.content).unwrap();
    fs::copy(folder.path().join("configs").join(format!("{}.gz", other.sha256)), &file).unwrap();
    assert!(matches!(
        copy.read(&blobs, &sha256()),
        Err(ConfigCopyError::Blob(BlobError::Altered(_)))
    ));
}

#[test]
fn only_a_public_key_that_can_be_sealed_to_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (public, private) = key_pair(folder.path(), "a");
    Recipient::read(&public).unwrap();
    let head = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x6e\x03\x21\x00".as_slice();
    let read = |der: &[u8]| Recipient::read(&pem(folder.path(), "other.pub", "PUBLIC KEY", der));
    assert!(matches!(Recipient::read(&private), Err(ConfigCopyError::PrivateKeyHere(_))));
    let both = folder.path().join("both.pub");
    fs::write(&both, [&public, &private].map(|file| fs::read_to_string(file).unwrap()).concat()).unwrap();
    assert!(matches!(Recipient::read(&both), Err(ConfigCopyError::PrivateKeyHere(_))));
    // An Ed25519 key, one byte less, one more.
    let ed25519 = [b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00".as_slice(), &[9; 32]].concat();
    for der in [ed25519, [head, &[9; 31]].concat(), [head, &[9; 33]].concat(), Vec::new()] {
        assert!(matches!(read(&der), Err(ConfigCopyError::NoPublicKey(_))), "{der:?}");
    }
    // Points of small order: zero and one.
    let mut one = [0; 32];
    one[0] = 1;
    for point in [[0; 32], one] {
        assert!(matches!(read(&[head, &point].concat()), Err(ConfigCopyError::UnusableKey(_))));
    }
    assert!(matches!(
        Recipient::read(&folder.path().join("none")),
        Err(ConfigCopyError::Io { .. })
    ));
    for file in [&public, &both.with_extension("none")] {
        assert!(OpeningKey::read(file).is_err(), "{}", file.display());
    }
    let key = OpeningKey::read(&private).unwrap();
    assert!(!format!("{key:?}").contains("key:"), "{key:?}");
}

#[test]
fn the_redaction_key_is_made_once_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redaction.key");
    let made = RedactionKey::open(&file).unwrap();
    assert_eq!(RedactionKey::open(&file).unwrap().id(), made.id());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    for wrong in [
        "",
        "00",
        &text[1..],
        &format!("0{text}"),
        &text.to_uppercase().replace(char::is_numeric, "A"),
    ] {
        fs::write(&file, wrong).unwrap();
        assert!(
            matches!(RedactionKey::open(&file), Err(ConfigCopyError::NoRedactionKey(_))),
            "{wrong}"
        );
    }
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(RedactionKey::open(&file), Err(ConfigCopyError::Mode { mode: 0o640, .. })));
}

#[test]
fn of_a_copy_a_record_has_form_and_digest() {
    let copy = sealed().copy_of(CONFIG);
    let value = serde_json::to_value(&copy).unwrap();
    assert_eq!(value, json!({"form": "sealed", "sha256": copy.sha256}));
    let read: ConfigCopy = serde_json::from_value(value).unwrap();
    assert_eq!((read.form, read.sha256, read.content.len()), (copy.form, copy.sha256, 0));
}
