//! The certificate of a CA, parsed: its properties that do not depend on what it certifies.

use std::fmt;

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::der::content;

/// A certificate whose basicConstraints make it a CA's. Nothing says yet that it is trusted.
#[derive(Debug, Clone)]
pub struct Ca<'a> {
    der: &'a [u8],
    parsed: X509Certificate<'a>,
    path_length: Option<u32>,
}

/// Reason why bytes are not the certificate of a CA.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCa {
    /// The bytes are not a certificate, or of a form that path validation does not accept.
    #[error("{0}")]
    Malformed(String),
    /// Its basicConstraints do not make it a CA.
    #[error("it is not the certificate of a CA (basicConstraints)")]
    NotCa,
}

/// Type of a CA's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaKey {
    /// RSA, with a modulus of so many bits.
    Rsa(usize),
    /// On an elliptic curve, by the length of a coordinate in bits: those of P-521 have 528, which are 66 bytes.
    Curve(usize),
    /// Anything else, by its object identifier.
    Other(String),
}

impl<'a> Ca<'a> {
    /// Parses a certificate, after which no bytes may follow.
    ///
    /// # Errors
    /// [`NoCa`].
    pub fn read(der: &'a [u8]) -> Result<Self, NoCa> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(malformed)?;
        if !rest.is_empty() {
            return Err(NoCa::Malformed(format!("{} bytes follow it", rest.len())));
        }
        let constraints = parsed.basic_constraints().map_err(malformed)?;
        let constraints = constraints.filter(|constraints| constraints.value.ca).ok_or(NoCa::NotCa)?;
        Ok(Self {
            der,
            path_length: constraints.value.path_len_constraint,
            parsed,
        })
    }

    /// Parses a certificate of at most `limit_bytes`.
    ///
    /// # Errors
    /// [`NoCa`].
    pub fn read_within(der: &'a [u8], limit_bytes: usize) -> Result<Self, NoCa> {
        if der.len() > limit_bytes {
            return Err(NoCa::Malformed(format!("{} bytes, at most {limit_bytes} are read", der.len())));
        }
        Self::read(der)
    }

    /// Returns the certificate in DER.
    #[must_use]
    pub const fn der(&self) -> &'a [u8] {
        self.der
    }

    #[must_use]
    pub const fn parsed(&self) -> &X509Certificate<'a> {
        &self.parsed
    }

    /// Returns the maximum number of CAs below this one.
    #[must_use]
    pub const fn path_length(&self) -> Option<u32> {
        self.path_length
    }

    /// Returns the type of the CA's key.
    #[must_use]
    pub fn key(&self) -> CaKey {
        let key = self.parsed.public_key();
        match key.parsed() {
            Ok(PublicKey::RSA(key)) => CaKey::Rsa(key.key_size()),
            Ok(PublicKey::EC(point)) => CaKey::Curve(point.key_size()),
            _ => CaKey::Other(key.algorithm.algorithm.to_string()),
        }
    }

    /// The content of the AlgorithmIdentifier that it is signed with: the same inside and outside of what is signed.
    ///
    /// # Errors
    /// [`NoCa::Malformed`].
    pub fn signature_algorithm(&self) -> Result<&[u8], NoCa> {
        let inside = &self.parsed.tbs_certificate;
        if inside.signature != self.parsed.signature_algorithm {
            return Err(NoCa::Malformed("it names two signature algorithms".to_owned()));
        }
        let behind = content(self.der).and_then(|all| all.get(inside.as_ref().len()..));
        behind
            .and_then(content)
            .ok_or_else(|| NoCa::Malformed("its signature algorithm".to_owned()))
    }
}

impl fmt::Display for CaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa(bits) => write!(f, "RSA-{bits}"),
            Self::Curve(bits) => write!(f, "an elliptic curve key of {bits} bits"),
            Self::Other(algorithm) => write!(f, "of algorithm {algorithm}"),
        }
    }
}

pub(super) fn malformed(problem: impl ToString) -> NoCa {
    NoCa::Malformed(problem.to_string())
}
