//! A certificate request (PKCS#10, RFC 2986), as the kubelet's: a name, a key, and no more.

use rcgen::{CertificateParams, DistinguishedName, DnType, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};

use super::key::KubeletKeyPair;
use super::pem::pem;

/// The group of all nodes.
pub const NODES: &str = "system:nodes";
/// Prefix of a node's user name, before the node's name.
pub const NODE_USER: &str = "system:node:";

/// The request of the node of this name for this key, PEM. `None` does not happen: the key signs.
#[must_use]
pub fn request(key: &KubeletKeyPair, name: &str) -> Option<String> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, NODES);
    subject.push(DnType::CommonName, format!("{NODE_USER}{name}"));
    let mut wanted = CertificateParams::default();
    wanted.distinguished_name = subject;
    let request = wanted.serialize_request(key).ok()?;
    Some(pem("CERTIFICATE REQUEST", request.der()))
}

impl PublicKeyData for KubeletKeyPair {
    fn der_bytes(&self) -> &[u8] {
        self.point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for KubeletKeyPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signed(message).ok_or(rcgen::Error::RemoteKeyError)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    #[test]
    fn csr_is_parsed_and_verified_by_x509_parser() {
        let key = KubeletKeyPair::generate().unwrap();
        for name in ["a", "worker-1.example.com", &"x".repeat(253)] {
            let pem = request(&key, name).unwrap();
            let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
            assert_eq!(block.label, "CERTIFICATE REQUEST");
            let (rest, read) = X509CertificationRequest::from_der(&block.contents).unwrap();
            assert!(rest.is_empty());
            let info = &read.certification_request_info;
            assert_eq!(info.subject.to_string(), format!("O=system:nodes, CN=system:node:{name}"));
            assert_eq!(info.subject_pki.raw, key.public().unwrap());
            assert!(info.attributes().is_empty() && read.requested_extensions().is_none());
            // Signed by the key that it names.
            let public = aws_lc_rs::signature::UnparsedPublicKey::new(
                &aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1,
                info.subject_pki.subject_public_key.data.as_ref(),
            );
            public.verify(info.raw, read.signature_value.data.as_ref()).unwrap();
        }
    }
}
