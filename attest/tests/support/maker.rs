//! A maker of TPMs in software: a root, and EKs that it certifies.

use attest::tpm::wire::{Curve, KeyParameters, Public};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};

use super::{SoftKey, ek_area};

/// Key usage of an EK certificate: tcg-kp-EKCertificate.
const EK_USAGE: [u64; 5] = [2, 23, 133, 8, 1];

pub struct Maker {
    params: CertificateParams,
    key: KeyPair,
}

impl Maker {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self {
            params,
            key: KeyPair::generate().unwrap(),
        }
    }

    /// The root's certificate, DER.
    pub fn root(&self) -> Vec<u8> {
        self.params.self_signed(&self.key).unwrap().der().to_vec()
    }

    /// Returns the same CA, certified by another one: it is not self-issued. DER.
    pub fn root_by(&self, other: &Self) -> Vec<u8> {
        let certificate = self.params.signed_by(&self.key, &Issuer::from_params(&other.params, &other.key));
        certificate.unwrap().der().to_vec()
    }

    /// Returns a certificate of the same name and key that does not belong to a CA, DER.
    pub fn no_ca(&self) -> Vec<u8> {
        let mut params = self.params.clone();
        params.is_ca = IsCa::ExplicitNoCa;
        params.self_signed(&self.key).unwrap().der().to_vec()
    }

    /// A new EK: its public area, and its certificate, DER.
    pub fn ek(&self) -> (Public, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let (x, y) = key.public_key_raw()[1..].split_at(32);
        let area = Public {
            key: KeyParameters::Ecc {
                curve: Curve::P256,
                x: x.to_vec(),
                y: y.to_vec(),
            },
            ..ek_area(&SoftKey::p256())
        };
        (area, self.certify(&key))
    }

    /// The certificate of an EK on P-256, DER.
    pub fn certificate(&self, ek: &Public) -> Vec<u8> {
        match &ek.key {
            KeyParameters::Ecc { x, y, .. } => self.certify(&Point([&[4], x.as_slice(), y].concat())),
            KeyParameters::Rsa { .. } => panic!("a point"),
        }
    }

    fn certify(&self, key: &impl PublicKeyData) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(EK_USAGE.to_vec())];
        let certificate = params.signed_by(key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        certificate.der().to_vec()
    }
}

/// A public key on P-256, uncompressed.
struct Point(Vec<u8>);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
