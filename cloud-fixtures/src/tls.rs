//! CAs for the certificates of servers, and of clients.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::named;

/// Year at whose beginning most certificates expire.
const UNTIL: i32 = 2040;

/// A CA, valid from 2024 on.
pub struct TestCa {
    key: KeyPair,
    params: CertificateParams,
}

impl TestCa {
    /// Creates a CA with a new key.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = dated(name, UNTIL);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self {
            key: KeyPair::generate().unwrap(),
            params,
        }
    }

    /// Returns its certificate, in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.params.self_signed(&self.key).unwrap().pem()
    }

    /// Returns a server configuration for these names, HTTP/1.1 only.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        self.server_at(names, &[])
    }

    /// Returns a server configuration like [`Self::server`], also for these addresses.
    #[must_use]
    pub fn server_at(&self, names: &[&str], addresses: &[IpAddr]) -> Arc<ServerConfig> {
        let mut params = dated(names[0], UNTIL);
        let names = names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
        params.subject_alt_names = names.chain(addresses.iter().copied().map(SanType::IpAddress)).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = self.sign(&params);
        let private: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private);
        Arc::new(config.unwrap())
    }

    /// Writes `NAME.crt` and `NAME.key` for a server or a client at 127.0.0.1, valid until the end of the year before `until`.
    pub fn issue(&self, folder: &Path, name: &str, until: i32) {
        let mut params = dated(name, until);
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = self.sign(&params);
        fs::write(folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn sign(&self, params: &CertificateParams) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        (certificate, key)
    }
}

fn dated(common_name: &str, until: i32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(common_name);
    (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(until, 1, 1));
    params
}
