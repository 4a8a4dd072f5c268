use super::{CERTIFICATE_LIMIT_BYTES, CERTIFICATES_LIMIT};

/// Reason why a signed document proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Pkcs7Error {
    /// More bytes than any metadata service sends.
    #[error("the message has {bytes} bytes, at most {limit} are read")]
    TooLarge { bytes: usize, limit: usize },
    /// The text is not Base64.
    #[error("the message is not Base64: {problem}")]
    Base64 { problem: String },
    /// The bytes are neither DER nor of the forms of BER that are read.
    #[error("the message cannot be read at byte {offset}: {problem}")]
    Encoding {
        /// Position at which parsing stopped, in bytes.
        offset: usize,
        problem: &'static str,
    },
    /// The elements are not those of SignedData.
    #[error("the message is not CMS SignedData: {problem}")]
    Structure { problem: String },
    /// Another type than signed data, or signed content of another type than plain data.
    #[error("the {what} is {found}, required is {required}")]
    ContentType {
        /// The type that was compared.
        what: &'static str,
        /// Object identifier in the message.
        found: String,
        /// Object identifier that is required.
        required: String,
    },
    /// Not exactly one signer.
    #[error("the message has {found} signers, required is exactly 1")]
    Signers { found: usize },
    /// A version that does not go with the rest.
    #[error("the version of {structure} is {found}, RFC 5652 requires {required}")]
    Version {
        structure: &'static str,
        /// Version in the message.
        found: u8,
        /// Version that RFC 5652 requires.
        required: u8,
    },
    /// The digest algorithms of the message are not that of its signer.
    #[error("the message's digest algorithms are {found}, its only signer uses {required}")]
    DigestAlgorithms {
        /// Object identifiers in the message.
        found: String,
        /// Object identifier of the signer.
        required: String,
    },
    /// A digest algorithm that is not accepted.
    #[error("the digest algorithm is {found}; accepted are SHA-256, SHA-384 and SHA-512")]
    Digest {
        /// Object identifier of the algorithm.
        found: String,
    },
    /// A signature algorithm that is not accepted.
    #[error("the signature algorithm is {found}; accepted is RSASSA-PKCS1-v1_5 with the signer's digest algorithm {digest}")]
    SignatureAlgorithm {
        /// Object identifier of the algorithm.
        found: String,
        /// Digest algorithm of the signer.
        digest: &'static str,
    },
    /// An algorithm with parameters.
    #[error("algorithm {algorithm} has parameters, it takes none but NULL")]
    Parameters {
        /// Object identifier of the algorithm.
        algorithm: String,
    },
    /// The content is missing where it should be, or there where it should not be.
    #[error("the content is {found}, expected is content that is {expected}")]
    ContentPlace {
        found: &'static str,
        /// Place where it should be.
        expected: &'static str,
    },
    /// An attribute that must be there exactly once, with one value.
    #[error("the signed attribute {attribute} is there {found} times with {values} values, required is once with 1 value")]
    Attribute {
        /// Its name in RFC 5652.
        attribute: &'static str,
        /// Number of its occurrences.
        found: usize,
        /// Values of all of them.
        values: usize,
    },
    /// The content is not the content that was signed.
    #[error("the content hashes to {computed}, signed is {signed}")]
    MessageDigest {
        /// Digest of the content, hexadecimal.
        computed: String,
        /// The attribute messageDigest, hexadecimal.
        signed: String,
    },
    /// More certificates than any chain needs.
    #[error("the message has {found} certificates, at most {CERTIFICATES_LIMIT} are read")]
    TooManyCertificates { found: usize },
    /// Not exactly one certificate in the message is the signer's.
    #[error("{found} of the message's {all} certificates are that of its signer {signer}, required is exactly 1")]
    SignerCertificate {
        /// Number of certificates of the signer.
        found: usize,
        all: usize,
        /// Identifier of the signer.
        signer: String,
    },
    /// The certificate that was chosen is not the one that the signer names.
    #[error("the message's signer is {signer}, the certificate is that of {certificate}")]
    OtherSigner {
        /// Identifier of the signer.
        signer: String,
        /// Issuer and serial number of the certificate.
        certificate: String,
    },
    /// A certificate that is too large.
    #[error("the certificate has {bytes} bytes, at most {CERTIFICATE_LIMIT_BYTES} are read")]
    CertificateTooLarge { bytes: usize },
    /// A certificate that cannot be read.
    #[error("the certificate cannot be read: {problem}")]
    Certificate { problem: String },
    /// A key that is too weak, too large or of another kind.
    #[error("the certificate's key is {found}; accepted is RSA of 2048 to 8192 bits")]
    Key { found: String },
    /// The signature does not verify.
    #[error("the signature does not verify under the key of the certificate of {certificate}")]
    Signature {
        /// Issuer and serial number.
        certificate: String,
    },
}

impl Pkcs7Error {
    /// Returns whether the refusal is about an algorithm or a key that is not accepted: then the signature was not checked.
    #[must_use]
    pub const fn is_algorithm(&self) -> bool {
        matches!(
            self,
            Self::Digest { .. } | Self::SignatureAlgorithm { .. } | Self::Parameters { .. } | Self::Key { .. }
        )
    }

    /// Returns whether the content was altered, or signed by another key.
    #[must_use]
    pub const fn is_signature(&self) -> bool {
        matches!(self, Self::MessageDigest { .. } | Self::Signature { .. })
    }

    /// Returns whether the message names no signing certificate, or not unambiguously.
    #[must_use]
    pub const fn is_signer(&self) -> bool {
        matches!(
            self,
            Self::Signers { .. } | Self::SignerCertificate { .. } | Self::OtherSigner { .. }
        )
    }
}
