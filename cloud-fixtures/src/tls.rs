//! A CA for the servers' own certificates.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::named;

/// A CA that issues servers' certificates of 2024 to 2040.
pub struct TlsAuthority {
    key: KeyPair,
    params: CertificateParams,
}

impl Default for TlsAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl TlsAuthority {
    /// Generates its key.
    #[must_use]
    pub fn new() -> Self {
        let mut params = dated("Stand-in CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self {
            key: KeyPair::generate().unwrap(),
            params,
        }
    }

    /// Its certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.params.self_signed(&self.key).unwrap().pem()
    }

    /// A server of these names, HTTP/1.1 only.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let mut params = dated(names[0]);
        params.subject_alt_names = names
            .iter()
            .map(|name| rcgen::SanType::DnsName((*name).try_into().unwrap()))
            .collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        let private: PrivateKeyDer<'static> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private);
        Arc::new(config.unwrap())
    }
}

fn dated(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(common_name);
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2040, 1, 1);
    params
}
