//! Bundles of CAs like those that the public distributes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SignatureAlgorithm,
};
use time::{Duration, OffsetDateTime};

/// The key of all CAs that differ in nothing but their names.
pub(super) static KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().unwrap());

/// A CA of a manufacturer.
pub(super) fn ca(maker: &str, name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, maker);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// A CA that is valid until so many days from now.
pub(super) fn ca_until(maker: &str, name: &str, days: i64) -> CertificateParams {
    let mut params = ca(maker, name);
    params.not_before = OffsetDateTime::now_utc() - Duration::days(3650);
    params.not_after = OffsetDateTime::now_utc() + Duration::days(days);
    params
}

pub(super) fn root(params: &CertificateParams) -> Vec<u8> {
    params.self_signed(&*KEY).unwrap().der().to_vec()
}

/// A certificate that another CA has issued, whose key is `key`.
pub(super) fn issued(params: &CertificateParams, key: &impl PublicKeyData, by: (&CertificateParams, &KeyPair)) -> Vec<u8> {
    params.signed_by(key, &Issuer::from_params(by.0, by.1)).unwrap().der().to_vec()
}

/// The public half of an RSA key of so many bits, whose private half nobody has.
pub(super) struct RsaPublicHalf(Vec<u8>);

impl RsaPublicHalf {
    pub(super) fn new(bits: usize) -> Self {
        let mut n = vec![0xc5; bits / 8];
        n[bits / 8 - 1] |= 1;
        let spki = attest::tpm::ek_certificate::EkKey::Rsa { n, e: vec![1, 0, 1] }.spki_der();
        // Behind the algorithm (15 bytes) and the header of the BIT STRING is the key, which is a SEQUENCE.
        let bits_start = spki.windows(2).skip(19).position(|window| window == [0, 0x30]).unwrap() + 19;
        Self(spki[bits_start + 1..].to_vec())
    }
}

impl PublicKeyData for RsaPublicHalf {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }
    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_RSA_SHA256
    }
}

/// A certificate with sha1WithRSAEncryption in the place of sha256WithRSAEncryption.
pub(super) fn with_sha1(mut certificate: Vec<u8>) -> Vec<u8> {
    let sha256_with_rsa = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    let places: Vec<usize> = (0..certificate.len())
        .filter(|at| certificate[*at..].starts_with(&sha256_with_rsa))
        .collect();
    assert_eq!(places.len(), 2);
    for at in places {
        certificate[at + 8] = 0x05;
    }
    certificate
}

pub(super) fn pem(der: &[u8]) -> String {
    attest_certificates::Certificate::parse(der.to_vec().into()).unwrap().pem()
}

pub(super) fn fingerprint(der: &[u8]) -> String {
    attest_certificates::Fingerprint::of(&der.to_vec().into()).to_string()
}

/// Writes files into a folder, with their subfolders.
pub(super) fn folder(at: PathBuf, files: &[(&str, &[u8])]) -> PathBuf {
    for (name, content) in files {
        let path = at.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    at
}

/// A PEM bundle with a CA for each number, of ten manufacturers.
pub(super) fn many(count: usize) -> String {
    let each = (0..count).map(|number| pem(&root(&ca(&format!("Maker {}", number % 10), &format!("Root {number}")))));
    each.collect()
}

/// Names of all files in the folder of EK roots, with their contents; without the README of `init`.
pub(super) fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
        .filter(|(name, _)| name != "README")
        .collect();
    all.sort();
    all
}
