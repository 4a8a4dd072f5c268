//! Azure's vTPM: the CAs that certify its AK, and a vTPM in software.
//!
//! The forms are those of the certificates of three real machines, with their chains (agentrust-io/cmcp
//! `tests/fixtures/hardware/azure-vtpm-2026-07-27`, flashbots/attested-tls `crates/attestation/test-assets`). The AK is that of Microsoft's
//! own vTPM (microsoft/openvmm `vm/devices/tpm/tpm_lib`, `ak_pub_template`), the measurements are those of its firmware (microsoft/mu_msvm
//! `MsvmPkg/VmMeasurementDxe`). Only keys of CAs are shorter, because each test generates them.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, RsaKeySize, SignatureAlgorithm, SubjectPublicKeyInfo, date_time_ymd,
};
use rustls_pki_types::CertificateDer;

use crate::der::{OID, SEQUENCE, der};
use crate::pkcs7::{self, Pkcs7Key};

/// Handle of the AK, a persistent object.
pub const AK_HANDLE: u32 = 0x8100_0003;
/// NV index of the AK's certificate.
pub const AK_CERTIFICATE_NV_INDEX: u32 = 0x01c1_01d0;
/// Size of that NV index, in bytes; those after the certificate are zero.
pub const NV_BYTES: usize = 4096;

/// OID `tcg-kp-EKCertificate`, for extended key usage.
pub const EK_CERTIFICATE: [u64; 5] = [2, 23, 133, 8, 1];
/// OID `tcg-kp-AIKCertificate`, for extended key usage.
pub const AK_CERTIFICATE: [u64; 5] = [2, 23, 133, 8, 3];
/// OID `szOID_KP_DOCUMENT_SIGNING`, which Azure's certificates also have.
const OF_MICROSOFT: [u64; 10] = [1, 3, 6, 1, 4, 1, 311, 10, 3, 12];

/// fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, noDA, restricted, sign.
pub const AK_ATTRIBUTES: u32 = 0x0005_0472;

/// Returns a name with only this common name.
#[must_use]
pub fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn usages(all: &[&[u64]]) -> Vec<ExtendedKeyUsagePurpose> {
    all.iter().map(|oid| ExtendedKeyUsagePurpose::Other(oid.to_vec())).collect()
}

/// Returns parameters of a CA, valid 2023 to 2048, with so many CAs below it.
#[must_use]
pub fn ca_params(name: &str, below: Option<u8>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::Ca(below.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date_time_ymd(2023, 6, 1);
    params.not_after = date_time_ymd(2048, 6, 1);
    params
}

/// Returns parameters of an intermediate CA, with the extended key usages that it certifies.
#[must_use]
pub fn intermediate_params(name: &str, below: u8) -> CertificateParams {
    let mut params = ca_params(name, Some(below));
    params.extended_key_usages = usages(&[&OF_MICROSOFT, &EK_CERTIFICATE, &AK_CERTIFICATE]);
    params
}

/// Returns parameters of an AK's certificate, valid 2026 to 2036, of a vTPM with this name, such as
/// `f859864a6a31.TrustedVM.Azure.windows.net`.
#[must_use]
pub fn ak_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages(&[&OF_MICROSOFT, &AK_CERTIFICATE]);
    params.use_authority_key_identifier_extension = true;
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(2036, 1, 1);
    params
}

/// Returns the extension `authorityInfoAccess` with these URLs as `caIssuers`, as in certificates by regional CAs.
#[must_use]
pub fn issuer_urls(urls: &[&str]) -> CustomExtension {
    let ca_issuers = der(OID, &[&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x02]]);
    let entries: Vec<Vec<u8>> = urls
        .iter()
        .map(|url| der(SEQUENCE, &[&ca_issuers, &der(0x86, &[url.as_bytes()])]))
        .collect();
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], der(SEQUENCE, &[&entries.concat()]))
}

/// Generates a CA's key, which signs with this algorithm.
#[must_use]
pub fn ca_key(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_rsa_for(algorithm, RsaKeySize::_2048).unwrap()
}

/// A root, and the intermediates below it, of which the last certifies AKs.
pub struct VtpmCas {
    /// The CAs from the root down.
    pub cas: Vec<(CertificateParams, KeyPair)>,
}

impl VtpmCas {
    /// Creates CAs with one intermediate, like `CN=Global Virtual TPM CA - 03`.
    #[must_use]
    pub fn global() -> Self {
        let root = (
            ca_params("Test Virtual TPM Root Certificate Authority", None),
            ca_key(&rcgen::PKCS_RSA_SHA384),
        );
        let intermediate = (
            intermediate_params("Test Global Virtual TPM CA - 03", 0),
            ca_key(&rcgen::PKCS_RSA_SHA256),
        );
        Self {
            cas: vec![root, intermediate],
        }
    }

    /// Creates CAs with two intermediates, like those of Azure's regions.
    #[must_use]
    pub fn regional() -> Self {
        let root = (
            ca_params("Test Virtual TPM Root Certificate Authority", None),
            ca_key(&rcgen::PKCS_RSA_SHA384),
        );
        let policy = (
            intermediate_params("Test Cloud Virtual TPM CA 2025", 1),
            ca_key(&rcgen::PKCS_RSA_SHA512),
        );
        let region = (
            intermediate_params("Test Cloud Virtual TPM CA - 24", 0),
            ca_key(&rcgen::PKCS_RSA_SHA512),
        );
        Self {
            cas: vec![root, policy, region],
        }
    }

    #[must_use]
    pub fn root(&self) -> CertificateDer<'static> {
        let (params, key) = self.cas.first().unwrap();
        params.self_signed(key).unwrap().into()
    }

    /// Returns the intermediates' certificates, from the root down.
    #[must_use]
    pub fn intermediates(&self) -> Vec<CertificateDer<'static>> {
        let pairs = self.cas.windows(2);
        let certified = pairs.map(|pair| match pair {
            [(issuer, issuer_key), (params, key)] => params.signed_by(key, &Issuer::from_params(issuer, issuer_key)).unwrap().into(),
            _ => panic!("pairs"),
        });
        certified.collect()
    }

    /// Returns a certificate (DER) for an AK, of which the public key suffices.
    #[must_use]
    pub fn certify(&self, params: &CertificateParams, ak: &impl PublicKeyData) -> Vec<u8> {
        let (issuer, key) = self.cas.last().unwrap();
        params.signed_by(ak, &Issuer::from_params(issuer, key)).unwrap().der().to_vec()
    }

    /// Returns a certificate for the AK of a vTPM with this name, given its SubjectPublicKeyInfo (DER). So the AK can be in a real TPM.
    #[must_use]
    pub fn certify_spki(&self, name: &str, spki: &[u8]) -> Vec<u8> {
        self.certify(&ak_params(name), &SubjectPublicKeyInfo::from_der(spki).unwrap())
    }
}

/// Returns the contents of the NV index of the AK's certificate: the certificate, padded with zeros.
#[must_use]
pub fn nv_contents(certificate: &[u8]) -> Vec<u8> {
    let mut contents = certificate.to_vec();
    contents.resize(NV_BYTES, 0);
    contents
}

/// Returns the texts that the firmware measures into PCR 6 of a machine with this `vmId`: first the id, then its architecture, then a
/// separator.
#[must_use]
pub fn measured(vm_id: &str) -> Vec<Vec<u8>> {
    let uuid = format!("UUID: {}", vm_id.to_ascii_uppercase());
    vec![uuid.into_bytes(), br#"{"MachineArchitecture": "X64"}"#.to_vec(), vec![0; 4]]
}

/// Returns PCR 6, or any other that begins with zeros, after these measurements, in the `sha256` bank.
#[must_use]
pub fn extended(measured: &[Vec<u8>]) -> Vec<u8> {
    measured.iter().fold(vec![0; 32], |value, text| sha256(&[&value, &sha256(&[text])]))
}

fn sha256(parts: &[&[u8]]) -> Vec<u8> {
    digest(&SHA256, &parts.concat()).as_ref().to_vec()
}

/// A vTPM in software, with the `sha256` bank; everything in it can be changed.
pub struct Vtpm {
    pub ak: Pkcs7Key,
    /// Object attributes of the AK.
    pub attributes: u32,
    /// The hierarchy of which the AK is a primary object.
    pub hierarchy: u32,
    /// Values of the PCRs.
    pub pcrs: BTreeMap<u8, Vec<u8>>,
    /// Number of its resets.
    pub resets: u32,
}

impl Vtpm {
    /// Creates the vTPM of a machine with this `vmId`.
    #[must_use]
    pub fn new(vm_id: &str) -> Self {
        let mut pcrs: BTreeMap<u8, Vec<u8>> = (0..16).map(|pcr| (pcr, vec![pcr; 32])).collect();
        pcrs.insert(6, extended(&measured(vm_id)));
        Self {
            ak: Pkcs7Key::new(RsaKeySize::_2048),
            attributes: AK_ATTRIBUTES,
            hierarchy: 0x4000_000b,
            pcrs,
            resets: 2,
        }
    }

    /// Returns the AK's public area, `TPMT_PUBLIC`: RSA-2048, RSASSA with SHA-256, no policy.
    #[must_use]
    pub fn ak_public(&self) -> Vec<u8> {
        let parts: [&[u8]; 5] = [
            &[0x00, 0x01, 0x00, 0x0b],
            &self.attributes.to_be_bytes(),
            &[0x00, 0x00],
            &[0x00, 0x10, 0x00, 0x14, 0x00, 0x0b, 0x08, 0x00, 0, 0, 0, 0],
            &sized(&self.ak.modulus()),
        ];
        parts.concat()
    }

    /// Returns the `TPMS_ATTEST` of a quote of these PCRs.
    #[must_use]
    pub fn quoted(&self, extra_data: &[u8], pcrs: &[u8]) -> Vec<u8> {
        let name = [&[0x00, 0x0b], sha256(&[&self.ak_public()]).as_slice()].concat();
        let qualified = [&[0x00, 0x0b], sha256(&[&self.hierarchy.to_be_bytes(), &name]).as_slice()].concat();
        let mut bitmap = [0; 3];
        for pcr in pcrs {
            bitmap[usize::from(pcr / 8)] |= 1 << (pcr % 8);
        }
        let values: Vec<&[u8]> = self
            .pcrs
            .iter()
            .filter(|(pcr, _)| pcrs.contains(pcr))
            .map(|(_, value)| value.as_slice())
            .collect();
        // Clock, resets, restarts, that the clock is safe; and the firmware's version.
        let clock = [&[0, 0, 0, 0, 0, 0, 1, 0][..], &self.resets.to_be_bytes(), &[0, 0, 0, 0, 1]].concat();
        let firmware = [0x20, 0x20, 3, 0x12, 0, 0x12, 0, 3];
        let parts: [&[u8]; 8] = [
            &[0xff, 0x54, 0x43, 0x47, 0x80, 0x18],
            &sized(&qualified),
            &sized(extra_data),
            &clock,
            &firmware,
            &[0, 0, 0, 1, 0x00, 0x0b, 3],
            &bitmap,
            &sized(&sha256(&values)),
        ];
        parts.concat()
    }

    /// Returns a `TPMT_SIGNATURE` over the quote.
    #[must_use]
    pub fn sign(&self, quoted: &[u8]) -> Vec<u8> {
        let signature = self.ak.sign(pkcs7::SHA256, quoted);
        [&[0x00, 0x14, 0x00, 0x0b], sized(&signature).as_slice()].concat()
    }
}

/// Returns a TPM2B structure: the length, and the bytes.
fn sized(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}
