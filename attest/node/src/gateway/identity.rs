//! Kubelet's client certificate and its key, which prove that the cluster has approved the node.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Largest file read: a certificate, a few CAs between, and a key are some KiB.
const FILE_LIMIT_BYTES: u64 = 64 * 1024;

/// Reason why a kubelet's certificate cannot be shown. It contains nothing of the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("the kubelet's certificate {path} cannot be read: {error}")]
    Unreadable { path: String, error: String },
    /// The file does not have the content that a kubelet writes.
    #[error("{path} does not hold a kubelet's certificate and its key: {problem}")]
    Content { path: String, problem: String },
}

/// A certificate with its key, and whether it was shown. Its `Debug` has nothing of the key.
#[derive(Debug)]
pub struct ClientIdentity {
    key: Arc<CertifiedKey>,
    shown: AtomicBool,
}

impl ClientIdentity {
    /// Reads certificate and key from one PEM file, as kubelets keep them.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn read(path: &Path) -> Result<Self, IdentityError> {
        let name = || path.display().to_string();
        let mut pem = Zeroizing::new(Vec::new());
        File::open(path)
            .and_then(|file| file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut pem))
            .map_err(|error| IdentityError::Unreadable {
                path: name(),
                error: error.to_string(),
            })?;
        Self::parse(&pem).map_err(|problem| IdentityError::Content { path: name(), problem })
    }

    fn parse(pem: &[u8]) -> Result<Self, String> {
        if u64::try_from(pem.len()).is_ok_and(|length| length > FILE_LIMIT_BYTES) {
            return Err(format!("it is larger than {FILE_LIMIT_BYTES} bytes"));
        }
        let chain = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("it is not PEM: {error}"))?;
        if chain.is_empty() {
            return Err("there is no certificate".to_owned());
        }
        // The error of a PEM parser is about lines and labels, not about contents.
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("there is no private key: {error}"))?;
        let key = attest_tls::provider()
            .key_provider
            .load_private_key(key)
            .map_err(|_| "its private key is of an unsupported type".to_owned())?;
        let certified = CertifiedKey::new(chain, key);
        certified
            .keys_match()
            .map_err(|_| "its private key does not belong to the first certificate".to_owned())?;
        Ok(Self {
            key: Arc::new(certified),
            shown: AtomicBool::new(false),
        })
    }

    /// The first certificate, DER.
    #[must_use]
    pub fn certificate(&self) -> Option<&[u8]> {
        self.key.cert.first().map(AsRef::as_ref)
    }

    /// Forgets that it was shown: another attempt begins.
    pub(super) fn begin(&self) {
        self.shown.store(false, Ordering::Relaxed);
    }

    /// Returns whether the server has requested the certificate and was shown it. A server that does not request it answers as it would to
    /// an unauthenticated client.
    pub(super) fn was_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Without a common scheme rustls would show an empty chain.
        let usable = self.key.key.choose_scheme(schemes).is_some();
        self.shown.store(usable, Ordering::Relaxed);
        usable.then(|| Arc::clone(&self.key))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        Self::new(
            "kubelet-certificate",
            &error,
            "approve the node's CSR (`oc get csr`), and wait until its kubelet has the certificate; or name its file with --certificate",
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use rcgen::{KeyPair, PKCS_RSA_SHA256};

    use super::*;

    fn check(pem: &str, expect: Result<(), &str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet-client-current.pem");
        std::fs::write(&path, pem).unwrap();
        match (ClientIdentity::read(&path), expect) {
            (Ok(_), expect) => assert_eq!(expect, Ok(())),
            (Err(error), expect) => assert!(error.to_string().contains(expect.unwrap_err()), "{error}"),
        }
    }

    #[test]
    fn kubelet_client_file_is_parsed_strictly() {
        let pair = |key: KeyPair| {
            let certificate = rcgen::CertificateParams::new(["node".to_owned()])
                .unwrap()
                .self_signed(&key)
                .unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let (certificate, key) = pair(KeyPair::generate().unwrap());
        let (rsa_certificate, rsa_key) = pair(KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap());
        check(&format!("{certificate}{key}"), Ok(()));
        check(&format!("{key}{certificate}"), Ok(()));
        check(&format!("{certificate}{rsa_certificate}{key}"), Ok(()));
        check(&format!("{rsa_certificate}{rsa_key}"), Ok(()));
        check(&certificate, Err("there is no private key"));
        check(&key, Err("there is no certificate"));
        check("", Err("there is no certificate"));
        check(&format!("{rsa_certificate}{key}"), Err("does not belong to the first certificate"));
        check(
            &format!("{rsa_certificate}{certificate}{key}"),
            Err("does not belong to the first certificate"),
        );
        check(&"x".repeat(70_000), Err("larger than 65536 bytes"));
        let missing = ClientIdentity::read(Path::new("/no/such/file")).unwrap_err();
        assert!(matches!(missing, IdentityError::Unreadable { .. }), "{missing}");
    }

    #[test]
    fn debug_output_omits_the_private_key() {
        let key = KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["node".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let identity = ClientIdentity::parse(format!("{}{}", certificate.pem(), key.serialize_pem()).as_bytes()).unwrap();
        let secret = data_encoding::HEXLOWER.encode(&key.serialize_der());
        let shown = format!("{identity:?}");
        let bytes = format!("{:?}", key.serialize_der());
        assert!(
            !shown.contains(&secret) && !shown.contains(bytes.trim_matches(['[', ']'])),
            "{shown}"
        );
    }
}
