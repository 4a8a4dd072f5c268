//! A certificate request (PKCS#10, RFC 2986), as the kubelet's: a name, a key, and no more.

use rcgen::{CertificateParams, DistinguishedName, DnType, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};

use super::key::Key;

/// The group of all nodes.
pub const NODES: &str = "system:nodes";
/// What a node is called in its certificate, before its name.
pub const NODE_USER: &str = "system:node:";
/// Characters of Base64 in a line of PEM (RFC 7468, 2).
const LINE_CHARACTERS: usize = 64;

/// The request of the node of this name for this key, PEM. `None` does not happen: the key signs.
#[must_use]
pub fn request(key: &Key, name: &str) -> Option<String> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, NODES);
    subject.push(DnType::CommonName, format!("{NODE_USER}{name}"));
    let mut wanted = CertificateParams::default();
    wanted.distinguished_name = subject;
    let request = wanted.serialize_request(key).ok()?;
    Some(pem("CERTIFICATE REQUEST", request.der()))
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.point()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signed(message).ok_or(rcgen::Error::RemoteKeyError)
    }
}

/// A block of PEM.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let base64 = zeroize::Zeroizing::new(data_encoding::BASE64.encode(der));
    // Room for all of it at once: it may be a secret, of which no copy is to stay.
    let mut out = String::with_capacity(base64.len() + base64.len() / LINE_CHARACTERS + 2 * label.len() + 64);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in base64.as_bytes().chunks(LINE_CHARACTERS) {
        out.push_str(std::str::from_utf8(line).unwrap_or_default());
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    #[test]
    fn it_is_read_and_verified_by_others() {
        let key = Key::generate().unwrap();
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

    #[test]
    fn pem_has_lines_of_64_characters() {
        let text = pem("X", &[0; 49]);
        assert_eq!(text, format!("-----BEGIN X-----\n{}\nAA==\n-----END X-----\n", "A".repeat(64)));
        assert_eq!(pem("X", &[]), "-----BEGIN X-----\n-----END X-----\n");
    }
}
