//! A cluster's signer of kubelets' client certificates.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// The CA that signs the kubelets' client certificates of a cluster.
pub struct TestCluster {
    params: CertificateParams,
    key: KeyPair,
}

impl TestCluster {
    /// Creates a cluster with a new CA that signs CSRs.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "kube-csr-signer");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self {
            params,
            key: KeyPair::generate().context("making a CA's key")?,
        })
    }

    /// Returns the CA's certificate as PEM, for the gateway's `tls.client_ca`.
    pub fn certificate(&self) -> Result<String> {
        Ok(self.params.self_signed(&self.key).context("making a CA's certificate")?.pem())
    }

    /// Signs a node's CSR; both are PEM.
    pub fn sign(&self, request: &str) -> Result<String> {
        let mut request = CertificateSigningRequestParams::from_pem(request).context("reading a CSR")?;
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        request.params.is_ca = IsCa::ExplicitNoCa;
        let certificate = request.signed_by(&Issuer::from_params(&self.params, &self.key));
        Ok(certificate.context("signing a CSR")?.pem())
    }

    /// Returns the credentials that an approved CSR leaves with a node's kubelet: certificate and key in one file.
    pub fn kubelet_client(&self, node: &str) -> Result<String> {
        let key = KeyPair::generate().context("making a kubelet's key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        let request = params.serialize_request(&key).and_then(|request| request.pem());
        Ok(self.sign(&request.context("making a CSR")?)? + &key.serialize_pem())
    }
}
