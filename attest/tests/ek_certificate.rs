//! EK certificates on generated CAs: what is accepted, and one refusal for each thing that can be wrong.

mod authorities;
mod leaf;
mod names;
mod path;

use std::sync::LazyLock;
use std::time::Duration;

use attest::UnixTime;
use attest::tpm::ek_certificate::{
    self, CERTIFICATE_LIMIT_BYTES, EkCertificateError, EkKey, EkRootProblem, EkRoots, EkRootsError, INTERMEDIATES_LIMIT,
    VerifiedEkCertificate,
};
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData, RsaKeySize, SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Time of verification: 2027-01-15, 08:00 UTC.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));

static CA_KEY: LazyLock<KeyPair> = LazyLock::new(p256);
static EK: LazyLock<KeyPair> = LazyLock::new(p256);

fn p256() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

fn rsa(algorithm: &'static SignatureAlgorithm, size: RsaKeySize) -> KeyPair {
    KeyPair::generate_rsa_for(algorithm, size).unwrap()
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2060, 1, 1);
    params
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    [&[tag, u8::try_from(content.len()).unwrap()], content.as_slice()].concat()
}

/// subjectAltName with one directoryName: manufacturer, model and version.
fn tpm_name(critical: bool) -> CustomExtension {
    let attribute = |number: u8, value: &str| {
        let oid = der(0x06, &[&[0x67, 0x81, 0x05, 0x02, number]]);
        der(0x31, &[&der(0x30, &[&oid, &der(0x0c, &[value.as_bytes()])])])
    };
    let name = der(
        0x30,
        &[
            &attribute(1, "id:54455354"),
            &attribute(2, "a \u{1b}[31mmodel"),
            &attribute(3, "id:00010002"),
        ],
    );
    let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], der(0x30, &[&der(0xa4, &[&name])]));
    extension.set_criticality(critical);
    extension
}

fn extended_key_usage(oid: &[u64]) -> Vec<ExtendedKeyUsagePurpose> {
    vec![ExtendedKeyUsagePurpose::Other(oid.to_vec())]
}

/// Returns parameters like those of manufacturers: empty subject, critical subjectAltName, never expiring.
fn ek_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 1]);
    params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    params.custom_extensions = vec![tpm_name(true)];
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
    params
}

fn root() -> CertificateDer<'static> {
    ca_params("Test TPM Root").self_signed(&*CA_KEY).unwrap().into()
}

fn roots() -> EkRoots {
    EkRoots::new(vec![root()], vec![]).unwrap()
}

/// Issued by the root.
fn issued(params: &CertificateParams, key: &impl PublicKeyData) -> CertificateDer<'static> {
    params
        .signed_by(key, &Issuer::from_params(&ca_params("Test TPM Root"), &*CA_KEY))
        .unwrap()
        .into()
}

fn ek_with(alter: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = ek_params();
    alter(&mut params);
    issued(&params, &*EK)
}

fn verify(certificate: &[u8]) -> Result<VerifiedEkCertificate, EkCertificateError> {
    ek_certificate::verify(certificate, &[], &roots(), NOW)
}

fn refused(certificate: &[u8]) -> EkCertificateError {
    verify(certificate).expect_err("the certificate must be refused")
}

/// A key of which only the public half exists: its algorithm and the content of subjectPublicKey.
struct PublicHalf(&'static SignatureAlgorithm, Vec<u8>);

impl PublicHalf {
    fn rsa(bits: usize) -> Self {
        let mut n = vec![0xc5; bits / 8];
        n[bits / 8 - 1] |= 1;
        let spki = EkKey::Rsa { n, e: vec![1, 0, 1] }.spki_der();
        let (_, spki) = SubjectPublicKeyInfo::from_der(&spki).unwrap();
        Self(&rcgen::PKCS_RSA_SHA256, spki.subject_public_key.data.to_vec())
    }
}

impl PublicKeyData for PublicHalf {
    fn der_bytes(&self) -> &[u8] {
        &self.1
    }
    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0
    }
}

#[test]
fn every_ca_and_ek_algorithm_is_accepted() {
    let cas = [
        p256(),
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(),
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA256).unwrap(),
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA384).unwrap(),
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap(),
        rsa(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
        rsa(&rcgen::PKCS_RSA_SHA384, RsaKeySize::_3072),
        rsa(&rcgen::PKCS_RSA_SHA512, RsaKeySize::_4096),
    ];
    // The same keys serve as EKs, but for those of a curve that no template has.
    for ca in &cas {
        let root: CertificateDer<'static> = ca_params("Test TPM Root").self_signed(ca).unwrap().into();
        let roots = EkRoots::new(vec![root.clone()], vec![]).unwrap();
        for ek in &cas {
            let no_template = ek.public_key_raw().len() == 133;
            let mut params = ek_params();
            params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
            params.serial_number = Some(SerialNumber::from_slice(&[0x01, 0x02, 0xab]));
            let leaf = params.signed_by(ek, &Issuer::from_params(&ca_params("Test TPM Root"), ca)).unwrap();
            let verified = ek_certificate::verify(leaf.der(), &[], &roots, NOW);
            if no_template {
                assert!(matches!(verified, Err(EkCertificateError::Key { .. })), "{verified:?}");
                continue;
            }
            let verified = verified.unwrap();
            let mut forged = leaf.der().to_vec();
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(
                ek_certificate::verify(&forged, &[], &roots, NOW),
                Err(EkCertificateError::Signature)
            );
            assert_eq!(
                verified.key().spki_der(),
                ek.subject_public_key_info(),
                "the canonical encoding is everybody's"
            );
            assert_eq!(verified.root_subject(), "CN=Test TPM Root");
            assert_eq!(verified.issuer(), "CN=Test TPM Root");
            assert_eq!(verified.serial(), "01:02:ab");
            assert_eq!(
                verified.root_sha256().as_slice(),
                aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &root).as_ref()
            );
        }
    }
}

#[test]
fn tpm_is_identified_by_the_subject_alternative_name() {
    for critical in [true, false] {
        let verified = verify(&ek_with(|params| params.custom_extensions = vec![tpm_name(critical)])).unwrap();
        assert_eq!(verified.tpm().manufacturer.as_deref(), Some("id:54455354"));
        assert_eq!(
            verified.tpm().model.as_deref(),
            Some("a \u{fffd}[31mmodel"),
            "no control characters for terminals"
        );
        assert_eq!(verified.tpm().version.as_deref(), Some("id:00010002"));
        assert_eq!(verified.subject(), "");
    }
    let without = verify(&ek_with(|params| params.custom_extensions.clear())).unwrap();
    assert_eq!(without.tpm(), &ek_certificate::TpmModel::default());
}

#[test]
fn padding_of_the_nv_index_is_stripped() {
    let leaf = ek_with(|_| {});
    for padding in [vec![0xff; 700], vec![0; 3], vec![0xff]] {
        assert!(verify(&[&leaf, padding.as_slice()].concat()).is_ok());
    }
}

#[test]
fn attack_23_trailing_bytes_are_refused() {
    let leaf = ek_with(|_| {});
    for (behind, offset, byte) in [
        (vec![0x30], 0, 0x30),
        (vec![0xff, 0xff, 0], 2, 0),
        (vec![0, 0xff], 1, 0xff),
        (leaf.to_vec(), 0, 0x30),
    ] {
        let error = EkCertificateError::TrailingByte {
            offset: leaf.len() + offset,
            byte,
        };
        assert_eq!(refused(&[&leaf, behind.as_slice()].concat()), error);
    }
}

#[test]
fn attack_23_truncated_and_oversized_certificates_are_refused() {
    let leaf = ek_with(|_| {});
    assert_eq!(refused(b""), EkCertificateError::Truncated { needed: 0, found: 0 });
    assert_eq!(
        refused(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]),
        EkCertificateError::Truncated { needed: 0, found: 6 }
    );
    for length in 4..leaf.len() {
        assert_eq!(
            refused(&leaf[..length]),
            EkCertificateError::Truncated {
                needed: leaf.len(),
                found: length
            }
        );
    }
    let bytes = CERTIFICATE_LIMIT_BYTES + 1;
    assert_eq!(
        refused(&[&leaf, vec![0xff; bytes - leaf.len()].as_slice()].concat()),
        EkCertificateError::TooLarge { bytes }
    );
    assert!(verify(&[&leaf, vec![0xff; bytes - 1 - leaf.len()].as_slice()].concat()).is_ok());
    let many = vec![leaf.as_ref(); INTERMEDIATES_LIMIT + 1];
    let error = ek_certificate::verify(&leaf, &many, &roots(), NOW).unwrap_err();
    assert_eq!(
        error,
        EkCertificateError::TooManyIntermediates {
            found: INTERMEDIATES_LIMIT + 1
        }
    );
    assert!(matches!(refused(&[0x30, 0x02, 0x05, 0x00]), EkCertificateError::Malformed { .. }));
}

/// Returns CAs below the root, each issued by the previous one, and a leaf.
fn chain(length: usize, alter: impl Fn(usize, &mut CertificateParams)) -> (Vec<CertificateDer<'static>>, CertificateDer<'static>) {
    let mut issuer = (ca_params("Test TPM Root"), None::<KeyPair>);
    let mut certificates = Vec::new();
    for position in 0..length {
        let mut params = ca_params(&format!("Intermediate {position}"));
        alter(position, &mut params);
        let key = p256();
        let signer = Issuer::from_params(&issuer.0, issuer.1.as_ref().unwrap_or(&CA_KEY));
        certificates.push(params.signed_by(&key, &signer).unwrap().into());
        issuer = (params, Some(key));
    }
    let signer = Issuer::from_params(&issuer.0, issuer.1.as_ref().unwrap_or(&CA_KEY));
    (certificates, ek_params().signed_by(&*EK, &signer).unwrap().into())
}

/// Verifies with the intermediates configured, and with the TPM sending them.
fn both_ways(chain: &(Vec<CertificateDer<'static>>, CertificateDer<'static>)) -> [Result<VerifiedEkCertificate, EkCertificateError>; 2] {
    let (configured, _) = EkRoots::load(vec![root()], chain.0.clone());
    let sent: Vec<&[u8]> = chain.0.iter().map(AsRef::as_ref).collect();
    [
        ek_certificate::verify(&chain.1, &[], &configured, NOW),
        ek_certificate::verify(&chain.1, &sent, &roots(), NOW),
    ]
}

fn ca_refused(root: CertificateDer<'static>, intermediates: Vec<CertificateDer<'static>>) -> EkRootProblem {
    EkRoots::new(vec![root], intermediates)
        .map(drop)
        .map_err(|EkRootsError { problem, .. }| problem)
        .unwrap_err()
}

static LEAF: LazyLock<CertificateDer<'static>> = LazyLock::new(|| ek_with(|_| {}));
static ROOTS: LazyLock<EkRoots> = LazyLock::new(roots);

proptest! {
    /// Any bit of the certificate: it is signed, or it is the signature.
    #[test]
    fn attack_23_altered_certificate_is_refused(at in any::<prop::sample::Index>(), xor in 1..=255_u8) {
        let mut altered = LEAF.to_vec();
        let at = at.index(altered.len());
        altered[at] ^= xor;
        prop_assert!(ek_certificate::verify(&altered, &[], &ROOTS, NOW).is_err());
    }

    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(ek_certificate::verify(&bytes, &[&bytes], &ROOTS, NOW).is_err());
        prop_assert!(EkRoots::new(vec![bytes.into()], vec![]).is_err());
    }

    /// The encoding is one-to-one with the key, leading zeros or not.
    #[test]
    fn keys_encode_as_der(n in proptest::collection::vec(any::<u8>(), 1..520)) {
        let spki = EkKey::Rsa { n: n.clone(), e: vec![1, 0, 1] }.spki_der();
        let (rest, parsed) = SubjectPublicKeyInfo::from_der(&spki).unwrap();
        prop_assert!(rest.is_empty());
        let PublicKey::RSA(key) = parsed.parsed().unwrap() else { panic!("an RSA key") };
        let zeros = |bytes: &[u8]| bytes.iter().take_while(|&&byte| byte == 0).count();
        prop_assert_eq!(&key.modulus[zeros(key.modulus)..], &n[zeros(&n)..]);
        prop_assert!(key.modulus.len() == 1 || key.modulus[0] != 0 || key.modulus[1] & 0x80 != 0);
    }
}
