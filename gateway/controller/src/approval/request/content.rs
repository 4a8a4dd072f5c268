//! Well-formed and malformed requests, byte by byte. Made by other code than that which reads them.

use rcgen::{KeyPair, PublicKeyData, SigningKey};

/// Object identifiers, as DER content.
pub(crate) const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
pub(crate) const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];
pub(crate) const COUNTRY: &[u8] = &[0x55, 0x04, 0x06];
pub(crate) const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
pub(crate) const CHALLENGE_PASSWORD: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x07];
pub(crate) const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
pub(crate) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const ECDSA_WITH_SHA384: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const RSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];

pub(crate) fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut whole = match u8::try_from(length) {
        Ok(short @ 0..=0x7f) => vec![tag, short],
        Ok(long) => vec![tag, 0x81, long],
        Err(_) => [&[tag, 0x82][..], &u16::try_from(length).unwrap().to_be_bytes()].concat(),
    };
    whole.extend(content);
    whole
}

pub(crate) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    der(0x30, &parts.concat())
}

/// An attribute of a name: PrintableString, as Go writes it.
pub(crate) fn named(oid: &[u8], text: &str) -> Vec<u8> {
    der(0x31, &sequence(&[der(0x06, oid), der(0x13, text.as_bytes())]))
}

/// An extension; critical ones say so.
pub(crate) fn extension(oid: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let mut parts = vec![der(0x06, oid)];
    if critical {
        parts.push(der(0x01, &[0xff]));
    }
    parts.push(der(0x04, value));
    sequence(&parts)
}

/// An attribute with these values.
pub(crate) fn attribute(oid: &[u8], values: &[Vec<u8>]) -> Vec<u8> {
    sequence(&[der(0x06, oid), der(0x31, &values.concat())])
}

/// The attribute that asks for these extensions.
pub(crate) fn asking(extensions: &[Vec<u8>]) -> Vec<u8> {
    attribute(EXTENSION_REQUEST, &[sequence(extensions)])
}

/// The attribute that asks for these general names.
pub(crate) fn alternatives(names: &[Vec<u8>]) -> Vec<u8> {
    asking(&[extension(ALTERNATIVE_NAME, false, &sequence(names))])
}

pub(crate) fn dns(name: &str) -> Vec<u8> {
    der(0x82, name.as_bytes())
}

pub(crate) fn ip(bytes: &[u8]) -> Vec<u8> {
    der(0x87, bytes)
}

/// The parts of a request.
pub(crate) struct RequestContent {
    pub key: KeyPair,
    pub version: Vec<u8>,
    pub subject: Vec<Vec<u8>>,
    pub spki: Vec<u8>,
    pub attributes: Vec<Vec<u8>>,
    /// Bytes behind the attributes, within what is signed.
    pub behind: Vec<u8>,
    pub algorithm: Vec<u8>,
    /// Bytes behind the signature.
    pub after: Vec<u8>,
}

impl RequestContent {
    /// A kubelet's for its client certificate.
    pub(crate) fn for_kubelet_client(node: &str) -> Self {
        Self::by(KeyPair::generate().unwrap(), node)
    }

    pub(crate) fn by(key: KeyPair, node: &str) -> Self {
        let sha = |oid: &[u8]| sequence(&[der(0x06, oid)]);
        let algorithm = if key.algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256 {
            sha(ECDSA_WITH_SHA256)
        } else if key.algorithm() == &rcgen::PKCS_ECDSA_P384_SHA384 {
            sha(ECDSA_WITH_SHA384)
        } else if key.algorithm() == &rcgen::PKCS_ED25519 {
            sha(ED25519)
        } else {
            sequence(&[der(0x06, RSA_WITH_SHA256), der(0x05, &[])])
        };
        Self {
            version: der(0x02, &[0]),
            subject: vec![
                named(ORGANISATION, "system:nodes"),
                named(COMMON_NAME, &format!("system:node:{node}")),
            ],
            spki: key.subject_public_key_info(),
            attributes: Vec::new(),
            behind: Vec::new(),
            after: Vec::new(),
            algorithm,
            key,
        }
    }

    pub(crate) fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn info(&self) -> Vec<u8> {
        let subject = sequence(&self.subject);
        let attributes = der(0xa0, &self.attributes.concat());
        sequence(&[self.version.clone(), subject, self.spki.clone(), attributes, self.behind.clone()])
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        let info = self.info();
        let signature = self.key.sign(&info).unwrap();
        self.signed(&info, &signature)
    }

    pub(crate) fn signed(&self, info: &[u8], signature: &[u8]) -> Vec<u8> {
        let signature = der(0x03, &[&[0], signature].concat());
        sequence(&[info.to_vec(), self.algorithm.clone(), signature, self.after.clone()])
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        pem(&self.der())
    }
}

/// Encodes as PEM in lines of 64 characters, like Go.
pub(crate) fn pem(der: &[u8]) -> Vec<u8> {
    let base64 = data_encoding::BASE64.encode(der);
    let lines: Vec<&str> = base64
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    let (begin, end) = ("-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----");
    format!("{begin}\n{}\n{end}\n", lines.join("\n")).into_bytes()
}
