//! The CAs that an administrator trusts for something.

use std::fmt;
use std::sync::Arc;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use super::ca::malformed;
use super::canonical::CanonicalName;
use super::der::{content, lengths};
use super::names::{name_text, organisation};
use super::{Ca, NoCa, PathEnd, path, signatures};
use crate::nonce::sha256;

/// CAs at which a path may end: roots, and CAs below them. Roots are trusted because they were configured, regardless of their signer. The
/// caller that adds a CA below them has verified that it is one.
#[derive(Debug, Clone, Default)]
pub struct TrustAnchors {
    /// Trust anchors for webpki; `all` has as many entries.
    trusted: Vec<TrustAnchor<'static>>,
    all: Vec<Arc<Anchor>>,
}

/// Details of an anchor's certificate in addition to name and key, which are all that webpki knows of it.
#[derive(Debug)]
pub struct Anchor {
    subject: String,
    organisation: Option<String>,
    sha256: [u8; 32],
    name: CanonicalName,
    /// The CA's SubjectPublicKeyInfo, in DER.
    key: Vec<u8>,
    restricts_names: bool,
    /// Identifier of its key (RFC 5280, section 4.2.1.2): a hint, which proves nothing.
    key_identifier: Option<Vec<u8>>,
    not_before: u64,
    not_after: u64,
    path_length: Option<u32>,
    issuer: Option<Arc<Self>>,
}

/// A certificate that cannot be an anchor of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{role} certificate {subject:?} (SHA-256 {sha256}): {problem}")]
pub struct Unusable<P: fmt::Display> {
    /// Role of the certificate: `"root"` or `"intermediate"`.
    pub role: &'static str,
    /// Its subject, if that can be read.
    pub subject: String,
    /// SHA-256 over it, hexadecimal.
    pub sha256: String,
    pub problem: P,
}

impl TrustAnchors {
    /// Returns whether there are no anchors: then no path ends anywhere.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them, as they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Anchor> {
        self.all.iter().map(AsRef::as_ref)
    }

    /// Returns the trust anchors for webpki.
    #[must_use]
    pub fn trusted(&self) -> &[TrustAnchor<'static>] {
        &self.trusted
    }

    /// Returns the anchors with this name, one for each key and each time that the CA was certified.
    pub(crate) fn named(&self, name: &CanonicalName) -> impl Iterator<Item = &Arc<Anchor>> {
        self.all.iter().filter(move |anchor| anchor.name == *name)
    }

    /// Trusts a root. `false` if it is trusted already.
    ///
    /// # Errors
    /// [`NoCa::Malformed`] for what webpki does not take.
    pub fn add_root(&mut self, ca: &Ca<'_>) -> Result<bool, NoCa> {
        self.add(ca, None)
    }

    /// Trusts a CA for as long as `issuer` is, and as far: it has to be one of these.
    pub(crate) fn add_below(&mut self, ca: &Ca<'_>, issuer: Arc<Anchor>) -> Result<bool, NoCa> {
        self.add(ca, Some(issuer))
    }

    fn add(&mut self, ca: &Ca<'_>, issuer: Option<Arc<Anchor>>) -> Result<bool, NoCa> {
        let der = CertificateDer::from(ca.der());
        let trusted = webpki::anchor_from_trusted_cert(&der).map_err(malformed)?.to_owned();
        let sha256 = sha256(&[ca.der()]);
        if self.all.iter().any(|known| known.sha256 == sha256) {
            return Ok(false);
        }
        let (parsed, seconds) = (ca.parsed(), |time: i64| u64::try_from(time).unwrap_or(0));
        self.all.push(Arc::new(Anchor {
            subject: name_text(parsed.subject()),
            organisation: organisation(parsed.subject()),
            sha256,
            name: CanonicalName::from_der(parsed.subject().as_raw()),
            key: parsed.public_key().raw.to_vec(),
            restricts_names: trusted.name_constraints.is_some(),
            key_identifier: extension(parsed, |extension| match extension {
                ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
                _ => None,
            }),
            not_before: seconds(parsed.validity().not_before.timestamp()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
            path_length: ca.path_length(),
            issuer,
        }));
        self.trusted.push(trusted);
        Ok(true)
    }

    /// Returns the anchors that are valid at that time, for callers that ignore the others. With all anchors, a path that ends at an
    /// invalid one is refused by its name.
    #[must_use]
    pub fn valid_at(&self, now: UnixTime) -> Self {
        let valid = |(trusted, anchor): (&TrustAnchor<'static>, &Arc<Anchor>)| {
            let is_valid = (anchor.not_before..=anchor.not_after).contains(&now.as_secs());
            is_valid.then(|| (trusted.clone(), Arc::clone(anchor)))
        };
        let (trusted, all) = self.trusted.iter().zip(&self.all).filter_map(valid).unzip();
        Self { trusted, all }
    }

    /// Selects those of the certificates `sent` that lead from `leaf` to one of these by name, without verifying anything.
    #[must_use]
    pub fn extend_path<'s>(&self, leaf: &CertificateDer<'_>, sent: &[CertificateDer<'s>], now: UnixTime) -> PathEnd<'s> {
        let keys_of = |name: &CanonicalName| self.named(name).map(|anchor| anchor.key()).collect();
        path::extend_path(leaf, sent, keys_of, now)
    }
}

impl Anchor {
    /// Its subject, fit for a log.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The organisation that its subject names.
    #[must_use]
    pub fn organisation(&self) -> Option<&str> {
        self.organisation.as_deref()
    }

    /// SHA-256 over its certificate.
    #[must_use]
    pub const fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// Its subject, to be compared.
    pub(super) const fn name(&self) -> &CanonicalName {
        &self.name
    }

    /// Its key: SubjectPublicKeyInfo in DER.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns whether the CA has `nameConstraints`.
    #[must_use]
    pub const fn restricts_names(&self) -> bool {
        self.restricts_names
    }

    /// Its first second, since 1970.
    #[must_use]
    pub const fn not_before(&self) -> u64 {
        self.not_before
    }

    /// Its last second, since 1970.
    #[must_use]
    pub const fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Returns the maximum number of CAs below this one.
    pub(super) fn path_length(&self) -> Option<usize> {
        self.path_length.and_then(|limit| usize::try_from(limit).ok())
    }

    /// The anchor that has issued it; `None` for a root.
    pub(super) fn issuer(&self) -> Option<&Self> {
        self.issuer.as_deref()
    }

    /// The root above it, or itself.
    pub(super) fn root(&self) -> &Self {
        let mut anchor = self;
        while let Some(issuer) = anchor.issuer() {
            anchor = issuer;
        }
        anchor
    }
}

/// Returns the first of a certificate's extensions that `select` takes.
fn extension<T>(certificate: &X509Certificate<'_>, select: impl Fn(&ParsedExtension<'_>) -> Option<T>) -> Option<T> {
    let mut extensions = certificate.iter_extensions();
    extensions.find_map(|extension| select(extension.parsed_extension()))
}

impl Ca<'_> {
    /// Returns those of the anchors whose key this certificate names by its identifier, and then the others. Thousands of CAs may have one
    /// name; the identifier spares verifying the signature with the key of each.
    pub(crate) fn by_key_identifier<'a>(&self, anchors: impl Iterator<Item = &'a Arc<Anchor>>) -> impl Iterator<Item = &'a Arc<Anchor>> {
        let named = extension(self.parsed(), |extension| match extension {
            ParsedExtension::AuthorityKeyIdentifier(issuer) => issuer.key_identifier.as_ref().map(|identifier| identifier.0.to_vec()),
            _ => None,
        });
        let is_named = |anchor: &&Arc<Anchor>| named.is_some() && anchor.key_identifier == named;
        let (named, others): (Vec<_>, Vec<_>) = anchors.partition(is_named);
        named.into_iter().chain(others)
    }

    /// Returns whether the key of `issuer` has signed this certificate, by one of these algorithms.
    #[must_use]
    pub fn is_signed_by(&self, issuer: &Anchor, accepted: &[&dyn SignatureVerificationAlgorithm]) -> bool {
        let (Ok(signature), Some((key_algorithm, key))) = (self.signature_algorithm(), split_spki(issuer.key())) else {
            return false;
        };
        let (signed, bits) = (self.parsed().tbs_certificate.as_ref(), &self.parsed().signature_value.data);
        accepted
            .iter()
            .filter(|accepted| signatures::is_named(**accepted, signature) && accepted.public_key_alg_id().as_ref() == key_algorithm)
            .any(|accepted| accepted.verify_signature(key, signed, bits).is_ok())
    }
}

impl<P: fmt::Display> Unusable<P> {
    /// Names a certificate that has this problem.
    #[must_use]
    pub fn new(role: &'static str, certificate: &[u8], problem: P) -> Self {
        let subject = X509Certificate::from_der(certificate).map_or_else(|_| String::new(), |(_, parsed)| name_text(parsed.subject()));
        Self {
            role,
            subject,
            sha256: data_encoding::HEXLOWER.encode(&sha256(&[certificate])),
            problem,
        }
    }
}

/// Splits a SubjectPublicKeyInfo in DER into the AlgorithmIdentifier's content and the key's bits.
fn split_spki(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = content(spki)?;
    let (header, length) = lengths(inside)?;
    let (algorithm, key) = inside.split_at_checked(header + length)?;
    let (_no_unused_bits, key) = content(key)?.split_first()?;
    Some((content(algorithm)?, key))
}
