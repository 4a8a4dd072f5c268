//! Certificates of the EKs of Shielded VM's vTPM.

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls_pki_types::CertificateDer;

use super::GoogleInstance;
use crate::der::{der, flag, number, text};

/// Returns the encoded fields of Google's extension.
#[must_use]
pub fn extension_fields(instance: &GoogleInstance) -> Vec<Vec<u8>> {
    let production = der(0x30, &[&der(0xa0, &[&number(0)]), &der(0xa1, &[&flag(true)])]);
    vec![
        text(&instance.zone),
        number(instance.project_number),
        text(&instance.project_id),
        number(instance.instance_id),
        text(&instance.instance_name),
        der(0xa0, &[&production]),
    ]
}

/// Returns the content of the extension.
#[must_use]
pub fn extension(fields: &[Vec<u8>]) -> Vec<u8> {
    der(0x30, &fields.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Returns the extension that names the instance.
#[must_use]
pub fn instance_extension(content: Vec<u8>) -> CustomExtension {
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 11129, 2, 1, 21], content)
}

/// Returns parameters of a CA, valid 2020 to 2060.
#[must_use]
pub fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2060, 1, 1);
    params
}

/// Returns parameters of an EK's certificate with an EC key, like those of Google's newer CA: no extended key usage.
#[must_use]
pub fn ek_params(instance: &GoogleInstance) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, instance.instance_id.to_string());
    params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    params.custom_extensions = vec![instance_extension(extension(&extension_fields(instance)))];
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2054, 1, 1);
    params
}

/// A CA and its name.
pub struct VtpmCa(pub KeyPair, pub CertificateParams);

impl VtpmCa {
    /// Creates the CA `CN=Test EK/AK CA Root` with this key.
    #[must_use]
    pub fn new(key: KeyPair) -> Self {
        Self(key, ca_params("Test EK/AK CA Root"))
    }

    /// Returns the CA's own certificate.
    #[must_use]
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.1.self_signed(&self.0).unwrap().into()
    }

    /// Returns a certificate (DER) for a key; of an EK the public key suffices.
    #[must_use]
    pub fn issue(&self, params: &CertificateParams, key: &impl rcgen::PublicKeyData) -> Vec<u8> {
        let issuer = Issuer::from_params(&self.1, &self.0);
        params.signed_by(key, &issuer).unwrap().der().to_vec()
    }
}
