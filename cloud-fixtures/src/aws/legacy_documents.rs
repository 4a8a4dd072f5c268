//! The old forms of identity documents, which must not be accepted: RSA-1024 and DSA-1024. The keys are too weak for the library that signs
//! the other documents, so the program `openssl` signs.

use std::path::{Path, PathBuf};
use std::process::Command;

use data_encoding::BASE64;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tempfile::TempDir;

use crate::pkcs7::{TestMessage, in_lines};

const SUBJECT: &str = "/O=Test/CN=Amazon Web Services LLC";

/// A region's old keys. Its certificates are of today to ten years from now.
pub struct WeakAuthority {
    folder: TempDir,
    certificate: CertificateDer<'static>,
}

impl Default for WeakAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl WeakAuthority {
    /// Creates an authority with new keys.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Self {
            certificate: CertificateDer::from(Vec::new()),
            folder,
        };
        authority.certify(&["-newkey", "rsa:1024"], "rsa");
        authority.openssl(&["dsaparam", "-out", "parameters.pem", "1024"]);
        authority.certify(&["-newkey", "dsa:parameters.pem"], "dsa");
        Self {
            certificate: CertificateDer::from_pem_file(authority.path("rsa.pem")).unwrap(),
            ..authority
        }
    }

    /// Returns the certificate with an RSA-1024 key.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the certificate with an RSA-1024 key, for a gateway's directory.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        std::fs::read_to_string(self.path("rsa.pem")).unwrap()
    }

    /// Returns IMDS's response at `…/instance-identity/signature`: RSA-1024 with SHA-256 over the document, in Base64.
    #[must_use]
    pub fn signature(&self, content: &[u8]) -> String {
        BASE64.encode(&self.raw(content))
    }

    /// Returns IMDS's response at `…/instance-identity/pkcs7`: signed with DSA-1024 and SHA-1, in Base64 with line breaks.
    #[must_use]
    pub fn dsa(&self, content: &[u8]) -> String {
        std::fs::write(self.path("content"), content).unwrap();
        let sign = "cms -sign -binary -nodetach -nocerts -nosmimecap -md sha1 -signer dsa.pem -inkey dsa.key -in content -outform DER";
        let message = self.openssl(&sign.split(' ').collect::<Vec<_>>());
        String::from_utf8(in_lines(&message)).unwrap()
    }

    /// Returns a message in the form of `rsa2048`, but signed with RSA-1024.
    #[must_use]
    pub fn message(&self, content: &[u8]) -> String {
        let message = TestMessage::aws(content, &self.certificate);
        let signed = message.sign_with(&self.raw(&message.to_be_signed()));
        String::from_utf8(in_lines(&signed)).unwrap()
    }

    fn raw(&self, content: &[u8]) -> Vec<u8> {
        std::fs::write(self.path("content"), content).unwrap();
        self.openssl(&["dgst", "-sha256", "-sign", "rsa.key", "content"])
    }

    fn certify(&self, key: &[&str], name: &str) {
        let (key_file, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        let rest = [
            "-nodes",
            "-days",
            "3650",
            "-subj",
            SUBJECT,
            "-keyout",
            &key_file,
            "-out",
            &certificate,
        ];
        self.openssl(&[&["req", "-x509"], key, &rest].concat());
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, arguments: &[&str]) -> Vec<u8> {
        let output = Command::new("openssl").args(arguments).current_dir(&self.folder).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments:?}: {errors}");
        output.stdout
    }
}
