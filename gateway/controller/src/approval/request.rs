//! PKCS#10 (RFC 2986) as a kubelet writes it, and nothing else of what it could say.
//!
//! The signer reads the same bytes with another parser and signs what that finds. So whatever two parsers could read in two ways is refused: lengths that are
//! not minimal, elements behind those that belong there, a second value where there is one, text around the PEM block.

use std::net::IpAddr;

use attest::SpkiSha256;
use attest_certificates::kubelet::{SubjectError, node_name};
use rustls_pki_types::SignatureVerificationAlgorithm;
use webpki::aws_lc_rs::{ECDSA_P256_SHA256, ECDSA_P384_SHA384, ED25519, RSA_PKCS1_2048_8192_SHA256};
use x509_parser::prelude::{FromDer, X509Name};

/// Largest request that is looked at, PEM: a kubelet's has half a kilobyte, with RSA-4096 and a dozen addresses two.
pub(super) const REQUEST_LIMIT_BYTES: usize = 16 * 1024;
/// Most names and addresses in one request: a node has a handful.
const ALTERNATIVES_LIMIT: usize = 64;
/// First and last line of a request's PEM block (RFC 7468, 7).
const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// Signature algorithms of kubelets: P-256 by default (client-go `util/certificate`); the others where an administrator has made the key.
static ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 4] = [ECDSA_P256_SHA256, ECDSA_P384_SHA384, ED25519, RSA_PKCS1_2048_8192_SHA256];

/// Tags of DER types in a request.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0]` of CertificationRequestInfo: its attributes.
const ATTRIBUTES: u8 = 0xa0;
/// GeneralName (RFC 5280, 4.2.1.6): `dNSName` and `iPAddress`.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// Object identifier pkcs-9-at-extensionRequest, 1.2.840.113549.1.9.14.
const EXTENSION_REQUEST: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// Object identifier id-ce-subjectAltName, 2.5.29.17.
const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// A request whose signature holds: its author has the key that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedCsr {
    /// The node that it is for.
    pub name: String,
    /// Digest of its SubjectPublicKeyInfo.
    pub key: SpkiSha256,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

/// Reason why bytes are not a kubelet's request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("it has {found} bytes, at most {REQUEST_LIMIT_BYTES} are read")]
    TooLarge { found: usize },
    /// The text is not exactly one PEM block.
    #[error("the request is not exactly one PEM block CERTIFICATE REQUEST")]
    Pem,
    /// The bytes are not the DER of a request, to the last byte.
    #[error("the request is not valid PKCS#10: {0}")]
    Malformed(&'static str),
    /// The subject is not a node's.
    #[error("{0}")]
    Subject(#[from] SubjectError),
    /// The key is of a kind that no kubelet makes, or the signature is by an algorithm for another kind of key.
    #[error(
        "its key or signature is of an unsupported kind; accepted are P-256, P-384, Ed25519, and RSA of 2048 bits or more with SHA-256"
    )]
    Algorithm,
    /// The sender need not have the key.
    #[error("its signature does not verify")]
    Signature,
    /// Something else than names and addresses is asked for.
    #[error("it has an attribute or an extension that no kubelet requests")]
    Extension,
    /// Neither a DNS name nor an address.
    #[error("the request has an alternative name that is neither a DNS name nor an address")]
    AlternativeName,
    #[error("it requests {found} names and addresses, at most {ALTERNATIVES_LIMIT} are read")]
    AlternativeNames { found: usize },
}

impl VerifiedCsr {
    /// Reads a request, and verifies that it was signed by the key that it names.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn read(pem: &[u8]) -> Result<Self, RequestError> {
        use RequestError::Malformed;
        let der = decode(pem)?;
        let [request] = elements(&der).ok_or(Malformed("its outer element"))?;
        let [info, algorithm, signature] = elements(request.content(SEQUENCE)?).ok_or(Malformed("its three parts"))?;
        let [version, subject, key, attributes] = elements(info.content(SEQUENCE)?).ok_or(Malformed("its signed part"))?;
        if version.content(INTEGER)? != [0] {
            return Err(Malformed("its version"));
        }
        // Before anything of it is believed.
        verify(info.whole, key, algorithm, signature)?;
        let (rest, name) = X509Name::from_der(subject.whole).map_err(|_| Malformed("its subject"))?;
        if !rest.is_empty() {
            return Err(Malformed("its subject"));
        }
        let name = node_name(&name)?;
        let (dns_names, addresses) = alternative_names(attributes)?;
        Ok(Self {
            name,
            key: SpkiSha256::from_spki(key.whole),
            dns_names,
            addresses,
        })
    }

    /// Returns whether it asks for no name other than its subject.
    #[must_use]
    pub const fn is_without_alternatives(&self) -> bool {
        self.dns_names.is_empty() && self.addresses.is_empty()
    }
}

fn decode(pem: &[u8]) -> Result<Vec<u8>, RequestError> {
    if pem.len() > REQUEST_LIMIT_BYTES {
        return Err(RequestError::TooLarge { found: pem.len() });
    }
    let text = std::str::from_utf8(pem).map_err(|_| RequestError::Pem)?;
    let inner = text.strip_prefix(BEGIN).and_then(|rest| rest.trim_end().strip_suffix(END));
    let inner = inner.filter(|inner| inner.starts_with(['\n', '\r'])).ok_or(RequestError::Pem)?;
    let base64: String = inner.split_ascii_whitespace().collect();
    data_encoding::BASE64.decode(base64.as_bytes()).map_err(|_| RequestError::Pem)
}

fn verify(signed: &[u8], key: Element<'_>, algorithm: Element<'_>, signature: Element<'_>) -> Result<(), RequestError> {
    use RequestError::Malformed;
    let [of_key, bits] = elements(key.content(SEQUENCE)?).ok_or(Malformed("its key"))?;
    let (of_key, of_signature) = (of_key.content(SEQUENCE)?, algorithm.content(SEQUENCE)?);
    let fits = |one: &&&dyn SignatureVerificationAlgorithm| *one.public_key_alg_id() == *of_key && *one.signature_alg_id() == *of_signature;
    let known = ALGORITHMS.iter().find(fits).ok_or(RequestError::Algorithm)?;
    let (public, signature) = (whole_bytes(bits)?, whole_bytes(signature)?);
    // RSA keys that are too short or too long are refused here.
    known
        .verify_signature(public, signed, signature)
        .map_err(|_| RequestError::Signature)
}

/// A BIT STRING of whole bytes.
fn whole_bytes(bits: Element<'_>) -> Result<&[u8], RequestError> {
    match bits.content(BIT_STRING)? {
        [0, bytes @ ..] => Ok(bytes),
        _ => Err(RequestError::Malformed("a string of bits")),
    }
}

/// The names of the one extension that a kubelet asks for.
fn alternative_names(attributes: Element<'_>) -> Result<(Vec<String>, Vec<IpAddr>), RequestError> {
    use RequestError::{Extension, Malformed};
    let malformed = Malformed("its attributes");
    let attributes = attributes.content(ATTRIBUTES)?;
    if attributes.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let [attribute] = elements(attributes).ok_or(Extension)?;
    let [oid, values] = elements(attribute.content(SEQUENCE)?).ok_or(malformed.clone())?;
    if oid.content(OID)? != EXTENSION_REQUEST {
        return Err(Extension);
    }
    let [extensions] = elements(values.content(SET)?).ok_or(Extension)?;
    let [extension] = elements(extensions.content(SEQUENCE)?).ok_or(Extension)?;
    // With a third element it says whether it is critical: a kubelet's subject is not empty, so it is not.
    let [oid, value] = elements(extension.content(SEQUENCE)?).ok_or(Extension)?;
    if oid.content(OID)? != SUBJECT_ALTERNATIVE_NAME {
        return Err(Extension);
    }
    let [names] = elements(value.content(OCTET_STRING)?).ok_or(malformed)?;
    let names = all_elements(names.content(SEQUENCE)?)?;
    if names.is_empty() {
        return Err(Extension);
    }
    let (mut dns_names, mut addresses) = (Vec::new(), Vec::new());
    for name in names {
        match name.tag {
            DNS_NAME => dns_names.push(dns_name(name.content)?),
            IP_ADDRESS => addresses.push(address(name.content)?),
            _ => return Err(RequestError::AlternativeName),
        }
    }
    Ok((dns_names, addresses))
}

fn dns_name(bytes: &[u8]) -> Result<String, RequestError> {
    let is_of_names = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && bytes.iter().all(is_of_names) => Ok(text.to_owned()),
        _ => Err(RequestError::AlternativeName),
    }
}

fn address(bytes: &[u8]) -> Result<IpAddr, RequestError> {
    let of_four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    of_four
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .map_err(|_| RequestError::AlternativeName)
}

/// An element of DER.
#[derive(Debug, Clone, Copy)]
struct Element<'a> {
    tag: u8,
    whole: &'a [u8],
    content: &'a [u8],
}

impl<'a> Element<'a> {
    /// Its content, if it has this tag.
    const fn content(self, tag: u8) -> Result<&'a [u8], RequestError> {
        if self.tag == tag {
            Ok(self.content)
        } else {
            Err(RequestError::Malformed("an element of another type"))
        }
    }
}

/// Returns the elements, if there are exactly `N` and nothing behind them.
fn elements<const N: usize>(bytes: &[u8]) -> Option<[Element<'_>; N]> {
    let mut left = bytes;
    let mut found = Vec::with_capacity(N);
    for _ in 0..N {
        let (element, rest) = element(left)?;
        found.push(element);
        left = rest;
    }
    found.try_into().ok().filter(|_| left.is_empty())
}

/// All of them, which are not too many.
fn all_elements(bytes: &[u8]) -> Result<Vec<Element<'_>>, RequestError> {
    let (mut left, mut found) = (bytes, Vec::new());
    while !left.is_empty() {
        let (element, rest) = element(left).ok_or(RequestError::Malformed("a list of names"))?;
        found.push(element);
        left = rest;
    }
    match found.len() {
        count if count > ALTERNATIVES_LIMIT => Err(RequestError::AlternativeNames { found: count }),
        _ => Ok(found),
    }
}

/// The first element, and what is behind it. A length is written in as few bytes as it takes (X.690, 10.1), and a tag in one.
fn element(bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (header, length) = match *bytes.get(1..)? {
        [short @ 0..=0x7f, ..] => (2, usize::from(short)),
        [0x81, length @ 0x80..=0xff, ..] => (3, usize::from(length)),
        [0x82, high @ 1..=0xff, low, ..] => (4, usize::from(u16::from_be_bytes([high, low]))),
        _ => return None,
    };
    let tag = *bytes.first().filter(|tag| **tag & 0x1f != 0x1f)?;
    let (whole, rest) = bytes.split_at_checked(header + length)?;
    let content = whole.get(header..)?;
    Some((Element { tag, whole, content }, rest))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(super) mod content;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
