//! EK certificates on generated CAs: what is accepted, and one refusal for each thing that can be wrong.

use std::sync::LazyLock;
use std::time::Duration;

use attest::UnixTime;
use attest::tpm::ek_certificate::{
    self, CERTIFICATE_LIMIT_BYTES, CaProblem, EkCertificateError, EkKey, EkRoots, EkRootsError, INTERMEDIATES_LIMIT, VerifiedEkCertificate,
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

/// 2027-01-15.
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

/// As manufacturers make them: empty subject, critical subjectAltName, never expiring.
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
fn every_kind_of_ca_and_of_ek_is_taken() {
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
fn the_tpm_is_described_by_the_subject_alternative_name() {
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
fn attack_23_bytes_behind_the_certificate() {
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
fn attack_23_truncated_and_oversized() {
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

#[test]
fn attack_03_a_ca_that_nobody_configured() {
    let theirs = p256();
    let params = ca_params("Their Root");
    let issuer = Issuer::from_params(&params, &theirs);
    let leaf = ek_params().signed_by(&*EK, &issuer).unwrap();
    let unknown = EkCertificateError::UnknownIssuer {
        issuer: "CN=Their Root".to_owned(),
    };
    assert_eq!(refused(leaf.der()), unknown);
    assert!(unknown.is_unknown_issuer());
    // Sending the root along does not make it trusted.
    let their_root = ca_params("Their Root").self_signed(&theirs).unwrap();
    assert_eq!(ek_certificate::verify(leaf.der(), &[their_root.der()], &roots(), NOW), Err(unknown));
    let nobody = ek_certificate::verify(&ek_with(|_| {}), &[], &EkRoots::default(), NOW).unwrap_err();
    assert!(nobody.is_unknown_issuer() && EkRoots::default().is_empty());
}

#[test]
fn attack_03_a_ca_of_the_same_name() {
    let theirs = p256();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("Test TPM Root"), &theirs))
        .unwrap();
    assert_eq!(refused(leaf.der()), EkCertificateError::Signature);
}

#[test]
fn attack_03_a_self_signed_certificate() {
    let mut params = ek_params();
    params.distinguished_name = named("Myself");
    let leaf = params.self_signed(&*EK).unwrap();
    assert!(refused(leaf.der()).is_unknown_issuer());
}

#[test]
fn dates_are_those_of_now() {
    let days = |days: u64| UnixTime::since_unix_epoch(Duration::from_secs(days * 86_400));
    let leaf = ek_with(|params| (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 12, 31)));
    let at = |now| ek_certificate::verify(&leaf, &[], &roots(), now);
    assert!(at(days(20_500)).is_ok());
    let (not_before, not_after) = (20_454 * 86_400, 20_818 * 86_400);
    let certificate = || "it, or a CA above it,".to_owned();
    let early = EkCertificateError::NotYetValid {
        certificate: certificate(),
        not_before,
        now: not_before - 1,
    };
    assert_eq!(at(UnixTime::since_unix_epoch(Duration::from_secs(not_before - 1))), Err(early));
    let late = EkCertificateError::Expired {
        certificate: certificate(),
        not_after,
        now: not_after + 1,
    };
    assert_eq!(at(UnixTime::since_unix_epoch(Duration::from_secs(not_after + 1))), Err(late));

    // The root's own dates count too.
    let forever = ek_with(|params| params.not_before = date_time_ymd(1990, 1, 1));
    let at = |now| ek_certificate::verify(&forever, &[], &roots(), now);
    let certificate = || "CA \"CN=Test TPM Root\"".to_owned();
    let (not_before, not_after) = (18_262 * 86_400, 32_872 * 86_400);
    let early = EkCertificateError::NotYetValid {
        certificate: certificate(),
        not_before,
        now: 86_400 * 18_000,
    };
    assert_eq!(at(days(18_000)), Err(early));
    let late = EkCertificateError::Expired {
        certificate: certificate(),
        not_after,
        now: 86_400 * 33_000,
    };
    assert_eq!(at(days(33_000)), Err(late));
    // To the second.
    let second = |seconds: u64| at(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    assert!(second(not_before).is_ok() && second(not_after).is_ok());
    assert!(matches!(second(not_before - 1), Err(EkCertificateError::NotYetValid { .. })));
    assert!(matches!(second(not_after + 1), Err(EkCertificateError::Expired { .. })));
}

#[test]
fn attack_03_certificates_for_other_purposes() {
    let usage = |found: &str| EkCertificateError::ExtendedKeyUsage { found: found.to_owned() };
    assert_eq!(refused(&ek_with(|params| params.extended_key_usages.clear())), usage("absent"));
    let ak = |params: &mut CertificateParams| params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 3]);
    assert_eq!(refused(&ek_with(ak)), usage("2.23.133.8.3"));
    let server = |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert_eq!(refused(&ek_with(server)), usage("that of another purpose"));
    let any = |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
    assert_eq!(refused(&ek_with(any)), usage("that of another purpose"));

    let signing = refused(&ek_with(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]));
    assert_eq!(
        signing,
        EkCertificateError::KeyUsage {
            found: "Digital Signature".to_owned()
        }
    );
    assert!(
        verify(&ek_with(|params| params.key_usages.clear())).is_ok(),
        "a key usage is not obligatory"
    );

    // What a CA above it says counts too.
    let above = |oid: &'static [u64]| both_ways(&chain(1, |_, params| params.extended_key_usages = extended_key_usage(oid)));
    for verified in above(&[2, 23, 133, 8, 1]) {
        assert!(verified.is_ok());
    }
    let [configured, sent] = above(&[2, 23, 133, 8, 3]);
    assert!(configured.unwrap_err().is_unknown_issuer(), "it is not loaded");
    assert_eq!(sent, Err(usage("right, but that of a CA above it is another")));
}

#[test]
fn attack_03_a_ca_is_no_ek() {
    let ca = ek_with(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert_eq!(refused(&ca), EkCertificateError::IsCa);
}

#[test]
fn attack_03_an_ek_that_issues_another() {
    let middle = ek_with(|params| params.distinguished_name = named("An EK"));
    let mut params = ek_params();
    params.distinguished_name = named("An EK");
    let leaf = ek_params().signed_by(&p256(), &Issuer::from_params(&params, &*EK)).unwrap();
    assert_eq!(
        ek_certificate::verify(leaf.der(), &[&middle], &roots(), NOW),
        Err(EkCertificateError::SentIssuerNotCa {
            subject: "CN=An EK".to_owned(),
            lacks: "basicConstraints with CA:TRUE",
        })
    );
}

#[test]
fn attack_23_critical_extensions() {
    let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    unknown.set_criticality(true);
    assert_eq!(
        refused(&ek_with(|params| params.custom_extensions.push(unknown))),
        EkCertificateError::CriticalExtension
    );
}

/// SHA-1 and SHA-224: the algorithm is refused whatever the signature is.
#[test]
fn attack_06_weak_signatures() {
    static RSA_CA: LazyLock<KeyPair> = LazyLock::new(|| rsa(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048));
    let relabelled = |certificate: &[u8], oid: &[u8], last: u8| {
        let mut altered = certificate.to_vec();
        while let Some(at) = altered.windows(oid.len()).position(|window| window == oid) {
            altered[at + oid.len() - 1] = last;
        }
        altered
    };
    let algorithm = |found: &str| EkCertificateError::SignatureAlgorithm { found: found.to_owned() };
    let ecdsa_with_sha256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    assert_eq!(
        refused(&relabelled(&ek_with(|_| {}), &ecdsa_with_sha256, 0x01)),
        algorithm("1.2.840.10045.4.3.1")
    );

    let (certificates, _) = chain(1, |_, _| {});
    let intermediate = relabelled(&certificates[0], &ecdsa_with_sha256, 0x01);
    assert_eq!(
        ca_refused(root(), vec![intermediate.into()]),
        CaProblem::SignatureAlgorithm("1.2.840.10045.4.3.1".to_owned())
    );

    let rsa_with_sha256 = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    let roots = EkRoots::new(vec![ca_params("RSA Root").self_signed(&*RSA_CA).unwrap().into()], vec![]).unwrap();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("RSA Root"), &*RSA_CA))
        .unwrap();
    let error = ek_certificate::verify(&relabelled(leaf.der(), &rsa_with_sha256, 0x05), &[], &roots, NOW);
    assert_eq!(error, Err(algorithm("1.2.840.113549.1.1.5")));
}

#[test]
fn attack_03_keys_that_no_template_has() {
    let key = |found: &str| EkCertificateError::Key { found: found.to_owned() };
    let mut params = ek_params();
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    assert_eq!(refused(&issued(&params, &PublicHalf::rsa(1024))), key("RSA-1024"));
    assert_eq!(refused(&issued(&params, &PublicHalf::rsa(8192))), key("RSA-8192"));
    assert!(verify(&issued(&params, &PublicHalf::rsa(2048))).is_ok());
    let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA256).unwrap();
    assert_eq!(
        refused(&issued(&params, &p521)),
        key("an elliptic curve key on another curve, or compressed")
    );
    let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    assert_eq!(refused(&issued(&params, &ed25519)), key("of algorithm 1.3.101.112"));
    // An RSA key under an algorithm identifier of another form: rsaEncryption has NULL for its parameters, and nothing else.
    let mut certificate = issued(&params, &PublicHalf::rsa(2048)).to_vec();
    let rsa_encryption = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    assert!(ek_certificate::unverified_key(&certificate).is_ok());
    let at = certificate.windows(11).position(|window| window == rsa_encryption).unwrap();
    certificate[at + 9] = 0x04;
    assert_eq!(
        ek_certificate::unverified_key(&certificate),
        Err(key("of algorithm 1.2.840.113549.1.1.1"))
    );
    let point = |first: u8, length: usize| PublicHalf(&rcgen::PKCS_ECDSA_P256_SHA256, [vec![first], vec![3; length]].concat());
    assert_eq!(
        refused(&issued(&params, &point(2, 32))),
        key("an elliptic curve key on another curve, or compressed")
    );
    assert_eq!(refused(&issued(&params, &point(4, 63))), key("a P-256 point of 63 bytes"));
    assert_eq!(refused(&issued(&params, &point(4, 65))), key("a P-256 point of 65 bytes"));
    assert!(verify(&issued(&params, &point(4, 64))).is_ok());
}

/// CAs below the root, each issued by the one before: certificates and keys.
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

fn ca_refused(root: CertificateDer<'static>, intermediates: Vec<CertificateDer<'static>>) -> CaProblem {
    EkRoots::new(vec![root], intermediates)
        .map(drop)
        .map_err(|EkRootsError { problem, .. }| problem)
        .unwrap_err()
}

#[test]
fn intermediates_lead_to_the_root() {
    for length in 0..=4 {
        for verified in both_ways(&chain(length, |_, _| {})) {
            assert_eq!(verified.unwrap().root_subject(), "CN=Test TPM Root");
        }
    }
    // In any order, and twice.
    let (mut certificates, leaf) = chain(3, |_, _| {});
    certificates.reverse();
    certificates.extend(certificates.clone());
    assert!(ek_certificate::verify(&leaf, &[], &EkRoots::new(vec![root()], certificates).unwrap(), NOW).is_ok());
}

#[test]
fn attack_19_a_chain_that_is_too_long() {
    let (certificates, leaf) = chain(INTERMEDIATES_LIMIT, |_, _| {});
    let sent: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
    assert_eq!(
        ek_certificate::verify(&leaf, &sent, &roots(), NOW),
        Err(EkCertificateError::ChainTooLong)
    );
}

/// Eight CAs of one name and the root's, so that every one might have issued every other: refused within bounds.
#[test]
fn attack_19_a_maze_of_intermediates() {
    let maze: Vec<CertificateDer<'static>> = (0..INTERMEDIATES_LIMIT)
        .map(|_| {
            let (key, signer) = (p256(), p256());
            let issuer = ca_params("Test TPM Root");
            ca_params("Test TPM Root")
                .signed_by(&key, &Issuer::from_params(&issuer, &signer))
                .unwrap()
                .into()
        })
        .collect();
    let sent: Vec<&[u8]> = maze.iter().map(AsRef::as_ref).collect();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("Test TPM Root"), &p256()))
        .unwrap();
    // A root of this name decides, and nothing that is sent beside it.
    let error = ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).unwrap_err();
    assert_eq!(error, EkCertificateError::Signature);
}

/// Eight CAs of one name, none of them the root's, each of which might have issued every other: no signature is verified for them.
#[test]
fn attack_36_a_maze_beside_the_roots() {
    let maze: Vec<CertificateDer<'static>> = (0..INTERMEDIATES_LIMIT)
        .map(|_| ca_params("Maze").self_signed(&p256()).unwrap().into())
        .collect();
    let mut sent: Vec<&[u8]> = maze.iter().map(AsRef::as_ref).collect();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("Maze"), &p256()))
        .unwrap();
    // They lead to nobody who is trusted.
    let error = ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).unwrap_err();
    assert!(error.is_unknown_issuer(), "{error}");
    // Two of them might, and nothing says which one has issued the certificate.
    let of_the_root: Vec<CertificateDer<'static>> = (0..2).map(|_| issued(&ca_params("Maze"), &p256())).collect();
    sent.splice(..2, of_the_root.iter().map(AsRef::as_ref));
    let error = ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).unwrap_err();
    assert_eq!(error, EkCertificateError::ChainTooLong);
    // Where no root is configured, nothing could come of it.
    let error = ek_certificate::verify(leaf.der(), &sent, &EkRoots::default(), NOW).unwrap_err();
    assert_eq!(
        error,
        EkCertificateError::NoRoots {
            issuer: "CN=Maze".to_owned()
        }
    );
    assert!(error.is_unknown_issuer());
}

/// A certificate that is no CA's has issued another, and is sent in a CA's place.
#[test]
fn attack_36_an_intermediate_that_is_no_ca() {
    let lacking = |alter: fn(&mut CertificateParams)| {
        let (certificates, leaf) = chain(2, |position, params| {
            if position == 1 {
                alter(params);
            }
        });
        let sent: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
        match ek_certificate::verify(&leaf, &sent, &roots(), NOW) {
            Ok(_) => "nothing",
            Err(EkCertificateError::SentIssuerNotCa { subject, lacks }) => {
                assert_eq!(subject, "CN=Intermediate 1");
                lacks
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(lacking(|_| ()), "nothing");
    assert_eq!(
        lacking(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
        "the key usage keyCertSign"
    );
    assert_eq!(lacking(|params| params.key_usages.clear()), "the key usage keyCertSign");
    assert_eq!(lacking(|params| params.is_ca = IsCa::NoCa), "basicConstraints with CA:TRUE");
    assert_eq!(lacking(|params| params.is_ca = IsCa::ExplicitNoCa), "basicConstraints with CA:TRUE");
    // What leads nowhere is not looked at: some TPMs have more in their NV memory than their chain.
    let (certificates, leaf) = chain(1, |_, _| {});
    let stray = ek_with(|params| params.distinguished_name = named("A stray"));
    assert!(ek_certificate::verify(&leaf, &[&stray, &certificates[0], &[0x30, 0x00]], &roots(), NOW).is_ok());
}

/// A CA that was given new keys under its old name: the key identifier says which one it was.
#[test]
fn cas_of_one_name_are_told_apart_by_their_key_identifiers() {
    let mut params = ca_params("Intermediate");
    params.use_authority_key_identifier_extension = true;
    let root = ca_params("Test TPM Root");
    let signer = Issuer::from_params(&root, &*CA_KEY);
    let (old, new) = (p256(), p256());
    let certificates: Vec<CertificateDer<'static>> = [&old, &new].map(|key| params.signed_by(key, &signer).unwrap().into()).into();
    let sent: Vec<&[u8]> = certificates.iter().map(AsRef::as_ref).collect();
    for key in [&old, &new] {
        let mut leaf = ek_params();
        leaf.use_authority_key_identifier_extension = true;
        let leaf = leaf.signed_by(&*EK, &Issuer::from_params(&params, key)).unwrap();
        assert!(ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).is_ok());
        leaf_without_identifier(&params, key, &sent);
    }
    // The same CA twice, once expired: the valid one is taken, in whatever order they come.
    let mut expired = params.clone();
    expired.not_after = date_time_ymd(2025, 1, 1);
    let expired: CertificateDer<'static> = expired.signed_by(&old, &signer).unwrap().into();
    let leaf = ek_params().signed_by(&*EK, &Issuer::from_params(&params, &old)).unwrap();
    for sent in [[&*expired, sent[0]], [sent[0], &*expired]] {
        assert!(ek_certificate::verify(leaf.der(), &sent, &roots(), NOW).is_ok());
    }
}

fn leaf_without_identifier(issuer: &CertificateParams, key: &KeyPair, sent: &[&[u8]]) {
    let leaf = ek_params().signed_by(&*EK, &Issuer::from_params(issuer, key)).unwrap();
    let error = ek_certificate::verify(leaf.der(), sent, &roots(), NOW).unwrap_err();
    assert_eq!(error, EkCertificateError::ChainTooLong);
}

fn signed(params: &CertificateParams, key: &KeyPair, issuer: &str, issuer_key: &KeyPair) -> CertificateDer<'static> {
    params
        .signed_by(key, &Issuer::from_params(&ca_params(issuer), issuer_key))
        .unwrap()
        .into()
}

/// In whatever order the TPM sends them.
#[track_caller]
fn check_sent(leaf: &CertificateDer<'_>, sent: &[&CertificateDer<'_>], roots: &EkRoots, expect: bool) {
    let mut sent: Vec<&[u8]> = sent.iter().map(|der| der.as_ref()).collect();
    let (count, next) = (sent.len(), sent.len().min(1));
    for _ in 0..count.max(1) {
        let verified = ek_certificate::verify(leaf, &sent, roots, NOW);
        assert_eq!(verified.is_ok(), expect, "{verified:?}");
        let mut reversed = sent.clone();
        reversed.reverse();
        let verified = ek_certificate::verify(leaf, &reversed, roots, NOW);
        assert_eq!(verified.is_ok(), expect, "{verified:?}");
        sent.rotate_left(next);
    }
}

/// A CA that several others have certified: the way that leads to a configured root is found, whichever that is.
#[test]
fn a_ca_that_is_cross_signed_is_followed_to_the_root_that_is_configured() {
    let [key, strangers, middle] = [p256(), p256(), p256()];
    let cross = |issuer: &str, issuer_key: &KeyPair| signed(&ca_params("Cross"), &key, issuer, issuer_key);
    let leaf = signed(&ek_params(), &EK, "Cross", &key);
    let ours = cross("Test TPM Root", &CA_KEY);
    let theirs = cross("Their Root", &strangers);
    let their_root = CertificateDer::from(ca_params("Their Root").self_signed(&strangers).unwrap());
    check_sent(&leaf, &[&ours, &theirs], &roots(), true);
    check_sent(&leaf, &[&theirs, &their_root, &ours], &roots(), true);
    check_sent(&leaf, &[&theirs, &their_root], &roots(), false);
    // By way of one CA more, beside a way of the same length that leads to nobody.
    let by_middle = cross("Middle", &middle);
    let middle = issued(&ca_params("Middle"), &middle);
    check_sent(&leaf, &[&theirs, &their_root, &by_middle, &middle], &roots(), true);
    // Both roots are configured, but one way ends at a key that is not theirs any more, or has expired.
    let another = p256();
    let both = EkRoots::new(vec![root(), ca_params("Their Root").self_signed(&another).unwrap().into()], vec![]).unwrap();
    check_sent(&leaf, &[&theirs, &ours], &both, true);
    let mut expired = ca_params("Their Root");
    expired.not_after = date_time_ymd(2025, 1, 1);
    let expired = EkRoots::new(vec![expired.self_signed(&strangers).unwrap().into(), root()], vec![]).unwrap();
    check_sent(&leaf, &[&theirs, &ours], &expired, true);
}

/// A root with a new key under its old name: what was issued with either is good, if the old key, or another root, has certified the new one.
#[test]
fn a_root_that_was_rolled_over_under_its_name() {
    let (new, name) = (p256(), "Test TPM Root");
    let own = CertificateDer::from(ca_params(name).self_signed(&new).unwrap());
    let by_old = signed(&ca_params(name), &new, name, &CA_KEY);
    let by_another = signed(&ca_params(name), &new, "Another Root", &EK);
    let (of_old, of_new) = (ek_with(|_| {}), signed(&ek_params(), &EK, name, &new));
    let middle = p256();
    let below = signed(&ca_params("Below"), &middle, name, &new);
    let further = signed(&ek_params(), &EK, "Below", &middle);
    // Configured is the old one.
    for sent in [vec![&by_old], vec![&by_old, &own]] {
        check_sent(&of_old, &sent, &roots(), true);
        check_sent(&of_new, &sent, &roots(), true);
        check_sent(&further, &[sent.as_slice(), &[&below]].concat(), &roots(), true);
    }
    // That it signs itself is no reason to believe it, nor that somebody does who is not known.
    check_sent(&of_new, &[&own], &roots(), false);
    check_sent(&of_new, &[&by_another], &roots(), false);
    check_sent(&of_old, &[&own, &by_another], &roots(), true);
    let another = EkRoots::new(vec![ca_params("Another Root").self_signed(&*EK).unwrap().into(), root()], vec![]).unwrap();
    check_sent(&of_new, &[&by_another], &another, true);
    // Both are configured, or the new one alone, with the old one certified by it.
    let both = EkRoots::new(vec![root(), own.clone()], vec![]).unwrap();
    check_sent(&of_old, &[], &both, true);
    check_sent(&of_new, &[], &both, true);
    check_sent(&further, &[&below], &both, true);
    let alone = EkRoots::new(vec![own.clone()], vec![]).unwrap();
    check_sent(&of_new, &[&root()], &alone, true);
    check_sent(&of_old, &[&root()], &alone, false);
    check_sent(&of_old, &[&signed(&ca_params(name), &CA_KEY, name, &new)], &alone, true);
    // Configured as intermediates, below either.
    let below_both = EkRoots::new(vec![root(), own], vec![below]).unwrap();
    check_sent(&further, &[], &below_both, true);
}

/// What else is wrong with it makes nobody a maker's.
#[test]
fn what_an_unknown_maker_sends_is_not_endorsed() {
    let theirs = p256();
    let of = |alter: &dyn Fn(&mut CertificateParams)| {
        let mut params = ek_params();
        alter(&mut params);
        signed(&params, &EK, "Their Root", &theirs)
    };
    let unknown = |leaf: &CertificateDer<'_>, sent: &[&[u8]]| {
        let error = ek_certificate::verify(leaf, sent, &roots(), NOW).unwrap_err();
        assert!(error.is_unknown_issuer(), "{error}");
    };
    unknown(&of(&|params| params.not_after = date_time_ymd(2025, 1, 1)), &[]);
    unknown(&of(&|params| params.extended_key_usages.clear()), &[]);
    let mut critical = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 1], vec![5, 0]);
    critical.set_criticality(true);
    unknown(&of(&|params| params.custom_extensions.push(critical.clone())), &[]);
    let mut no_ca = ca_params("Their Root");
    no_ca.is_ca = IsCa::ExplicitNoCa;
    let no_ca = no_ca.self_signed(&theirs).unwrap();
    unknown(&of(&|_| {}), &[no_ca.der()]);
    let several: Vec<CertificateDer<'static>> = (0..3)
        .map(|_| ca_params("Their Root").self_signed(&p256()).unwrap().into())
        .collect();
    unknown(&of(&|_| {}), &several.iter().map(AsRef::as_ref).collect::<Vec<_>>());
}

#[test]
fn path_lengths_are_enforced_in_every_ca() {
    let limited = |to: u8| {
        move |position: usize, params: &mut CertificateParams| {
            if position == 0 {
                params.is_ca = IsCa::Ca(BasicConstraints::Constrained(to));
            }
        }
    };
    for result in both_ways(&chain(2, limited(1))) {
        assert!(result.is_ok());
    }
    for result in both_ways(&chain(2, limited(0))) {
        assert!(matches!(result, Err(EkCertificateError::PathLength { .. })), "{result:?}");
    }
    // The root's own, whoever the intermediate comes from.
    let mut params = ca_params("Test TPM Root");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let root: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
    let (certificates, leaf) = chain(1, |_, _| {});
    let error = EkCertificateError::PathLength {
        certificate: "CA \"CN=Test TPM Root\"".to_owned(),
    };
    let configured = EkRoots::new(vec![root.clone()], certificates.clone()).unwrap();
    assert_eq!(ek_certificate::verify(&leaf, &[], &configured, NOW), Err(error.clone()));
    let roots = EkRoots::new(vec![root], vec![]).unwrap();
    assert_eq!(ek_certificate::verify(&leaf, &[&certificates[0]], &roots, NOW), Err(error));
    assert!(ek_certificate::verify(&ek_with(|_| {}), &[], &roots, NOW).is_ok());
}

#[test]
fn dates_of_intermediates_count() {
    let expired = |_: usize, params: &mut CertificateParams| params.not_after = date_time_ymd(2025, 1, 1);
    let early = |_: usize, params: &mut CertificateParams| params.not_before = date_time_ymd(2030, 1, 1);
    for result in both_ways(&chain(1, expired)) {
        assert!(matches!(result, Err(EkCertificateError::Expired { .. })), "{result:?}");
    }
    for result in both_ways(&chain(1, early)) {
        assert!(matches!(result, Err(EkCertificateError::NotYetValid { .. })), "{result:?}");
    }
}

/// A CA renewed with the same name and key: the expired certificate does not stand in the way of the valid one.
#[test]
fn a_renewed_root_is_taken_beside_the_expired_one() {
    let mut expired = ca_params("Test TPM Root");
    expired.not_after = date_time_ymd(2025, 1, 1);
    let expired: CertificateDer<'static> = expired.self_signed(&*CA_KEY).unwrap().into();
    for both in [[expired.clone(), root()], [root(), expired]] {
        let roots = EkRoots::new(both.to_vec(), vec![]).unwrap();
        assert!(ek_certificate::verify(&ek_with(|_| {}), &[], &roots, NOW).is_ok());
    }
}

#[test]
fn name_constraints_are_not_ignored() {
    let constrained = |params: &mut CertificateParams| {
        let permitted_subtrees = vec![GeneralSubtree::DirectoryName(named("Somebody else"))];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees,
            excluded_subtrees: vec![],
        });
    };
    for result in both_ways(&chain(1, |_, params| constrained(params))) {
        assert_eq!(result, Err(EkCertificateError::NameConstraints));
    }
    let mut params = ca_params("Test TPM Root");
    constrained(&mut params);
    let root: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
    let roots = EkRoots::new(vec![root.clone()], vec![]).unwrap();
    assert_eq!(
        ek_certificate::verify(&ek_with(|_| {}), &[], &roots, NOW),
        Err(EkCertificateError::NameConstraints)
    );
    let issuer = "CN=Test TPM Root".to_owned();
    assert_eq!(ca_refused(root, chain(1, |_, _| {}).0), CaProblem::NameConstraints { issuer });
}

#[test]
fn critical_certificate_policies_are_taken_in_configured_cas() {
    let policies = |critical: bool, oid: &'static [u64]| {
        let any_policy = der(0x30, &[&der(0x30, &[&der(0x06, &[&[0x55, 0x1d, 0x20, 0x00]])])]);
        let mut extension = CustomExtension::from_oid_content(oid, any_policy);
        extension.set_criticality(critical);
        move |_: usize, params: &mut CertificateParams| params.custom_extensions.push(extension.clone())
    };
    let [configured, sent] = both_ways(&chain(1, policies(true, &[2, 5, 29, 32])));
    assert!(configured.is_ok());
    assert_eq!(sent, Err(EkCertificateError::CriticalExtension), "only configured CAs get this far");
    // policyConstraints would give the policies an effect, and any other critical extension is unknown.
    for oid in [[2, 5, 29, 36].as_slice(), &[1, 2, 3, 4]] {
        let oid: &'static [u64] = oid.to_vec().leak();
        assert!(matches!(
            ca_refused(root(), chain(1, policies(true, oid)).0),
            CaProblem::CriticalExtension(_)
        ));
    }
    // Nor do they have to be critical to have that effect: policyConstraints, policyMappings, inhibitAnyPolicy.
    let policy = [0x06, 0x01, 0x29];
    let mapping = der(0x30, &[&der(0x30, &[&policy, &policy])]);
    for (last, content) in [
        (36, vec![0x30, 0x03, 0x80, 0x01, 0x00]),
        (33, mapping),
        (54, vec![0x02, 0x01, 0x00]),
    ] {
        let extension = CustomExtension::from_oid_content(&[2, 5, 29, last], content);
        assert_eq!(
            ca_refused(root(), chain(1, |_, params| params.custom_extensions.push(extension.clone())).0),
            CaProblem::CriticalExtension(format!("2.5.29.{last}"))
        );
    }
}

#[test]
fn cas_that_cannot_endorse_are_refused_when_loaded() {
    let root_with = |alter: fn(&mut CertificateParams)| {
        let mut params = ca_params("Test TPM Root");
        alter(&mut params);
        let certificate: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
        ca_refused(certificate, vec![])
    };
    assert_eq!(root_with(|params| params.is_ca = IsCa::NoCa), CaProblem::NotCa);
    assert_eq!(root_with(|params| params.is_ca = IsCa::ExplicitNoCa), CaProblem::NotCa);
    assert_eq!(
        root_with(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]),
        CaProblem::KeyUsage("CRL Sign".to_owned())
    );
    assert_eq!(
        root_with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
        CaProblem::ExtendedKeyUsage
    );
    assert_eq!(
        root_with(|params| params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 3])),
        CaProblem::ExtendedKeyUsage
    );
    let mut params = ca_params("Test TPM Root");
    params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 1]);
    assert!(EkRoots::new(vec![params.self_signed(&*CA_KEY).unwrap().into()], vec![]).is_ok());
    let of_224_bits = PublicHalf(&rcgen::PKCS_ECDSA_P256_SHA256, [vec![4], vec![3; 56]].concat());
    assert_eq!(
        ca_refused(issued(&ca_params("Weak"), &of_224_bits), vec![]),
        CaProblem::Key("an elliptic curve key of 224 bits".to_owned())
    );
    assert!(matches!(ca_refused(vec![0x30, 0x00].into(), vec![]), CaProblem::Malformed(_)));
    assert!(matches!(
        ca_refused([&root(), [0xff].as_slice()].concat().into(), vec![]),
        CaProblem::Malformed(_)
    ));
    assert_eq!(
        ca_refused(issued(&ca_params("Weak"), &PublicHalf::rsa(1024)), vec![]),
        CaProblem::Key("RSA-1024".to_owned())
    );

    let orphan: CertificateDer<'static> = {
        let key = p256();
        ca_params("Orphan")
            .signed_by(&p256(), &Issuer::from_params(&ca_params("Gone"), &key))
            .unwrap()
            .into()
    };
    assert_eq!(
        ca_refused(root(), vec![orphan]),
        CaProblem::IssuerMissing {
            issuer: "CN=Gone".to_owned()
        }
    );
    let forged: CertificateDer<'static> = {
        let key = p256();
        ca_params("Forged")
            .signed_by(&p256(), &Issuer::from_params(&ca_params("Test TPM Root"), &key))
            .unwrap()
            .into()
    };
    assert_eq!(
        ca_refused(root(), vec![forged.clone()]),
        CaProblem::IssuerSignature {
            issuer: "CN=Test TPM Root".to_owned()
        }
    );
    let (usable, refused) = EkRoots::load(vec![root()], vec![forged]);
    assert_eq!((usable.is_empty(), refused.len(), refused[0].role), (false, 1, "intermediate"));
}

#[test]
fn a_ca_certificate_is_as_large_as_the_limit_says() {
    let key = rsa(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048);
    let with = |padding: usize| -> CertificateDer<'static> {
        let mut params = ca_params("Large");
        params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![0; padding])];
        params.self_signed(&key).unwrap().into()
    };
    let around = with(4096).len() - 4096;
    let largest = with(CERTIFICATE_LIMIT_BYTES - around);
    assert_eq!(largest.len(), CERTIFICATE_LIMIT_BYTES);
    assert!(EkRoots::new(vec![largest], vec![]).is_ok());
    for more in [1, 1000] {
        let larger = with(CERTIFICATE_LIMIT_BYTES - around + more);
        assert!(matches!(ca_refused(larger, vec![]), CaProblem::Malformed(_)));
    }
}

#[test]
fn roots_are_told_by_their_issuer() {
    assert!(EkRoots::is_self_issued(&root()));
    assert!(!EkRoots::is_self_issued(&ek_with(|_| {})));
    assert!(!EkRoots::is_self_issued(b"nothing"));
}

static LEAF: LazyLock<CertificateDer<'static>> = LazyLock::new(|| ek_with(|_| {}));
static ROOTS: LazyLock<EkRoots> = LazyLock::new(roots);

proptest! {
    /// Any bit of the certificate: it is signed, or it is the signature.
    #[test]
    fn attack_23_any_byte_altered(at in any::<prop::sample::Index>(), xor in 1..=255_u8) {
        let mut altered = LEAF.to_vec();
        let at = at.index(altered.len());
        altered[at] ^= xor;
        prop_assert!(ek_certificate::verify(&altered, &[], &ROOTS, NOW).is_err());
    }

    #[test]
    fn attack_23_no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
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
