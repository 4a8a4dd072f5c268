//! Names as webpki compares them, which is byte for byte.
//!
//! webpki looks at names for one thing: which certificate comes next in a path. (Constraints on directory names it does not evaluate, it refuses
//! whatever has a subject below them.) So webpki is given every CA under its name as the certificates below it spell that name as their issuer:
//! trust anchors, which are a name and a key, with that spelling, and certificates with that spelling as their subject. Everything else that
//! webpki reads of a certificate is what stands there, and the signature is verified over the bytes that the CA has signed
//! ([`Respelled::signed`]). A spelling can only lead to a CA whose name is the same in canonical
//! form ([`CanonicalName`]); that the CA has issued the certificate its signature shows, as ever.

use std::collections::BTreeMap;

use rustls_pki_types::{CertificateDer, TrustAnchor};
use webpki::EndEntityCert;

use super::canonical::CanonicalName;
use super::der::{content, lengths};
use super::{Anchor, Anchors};

/// Content of Names, as they stand in certificates, by what they name.
pub(super) struct Spellings(BTreeMap<CanonicalName, Vec<Vec<u8>>>);

/// Certificates, some of them with their subject in another spelling.
#[derive(Debug, Default)]
pub(super) struct Respelled<'s> {
    /// What webpki is given: those that were sent, as they are, and the others.
    certificates: Vec<CertificateDer<'s>>,
    /// Of the others the tbsCertificate, and the certificates that it is made from: some may differ in nothing but the spelling of their subject.
    originals: BTreeMap<Vec<u8>, Vec<&'s [u8]>>,
}

/// Anchors under the names that certificates below them give them.
pub(super) struct Presented<'a> {
    pub(super) trusted: Vec<TrustAnchor<'a>>,
    /// Whose they are.
    anchors: Vec<&'a Anchor>,
}

impl Spellings {
    /// The issuers of a leaf and of the certificates that were sent with it.
    pub(super) fn of_issuers(leaf: &EndEntityCert<'_>, sent: &[CertificateDer<'_>]) -> Self {
        let mut spellings = Self(BTreeMap::new());
        spellings.add(leaf.issuer());
        for certificate in sent {
            if let Some(issuer) = Parts::of(certificate).and_then(|parts| content(parts.issuer)) {
                spellings.add(issuer);
            }
        }
        spellings
    }

    fn add(&mut self, issuer: &[u8]) {
        let known = self.0.entry(CanonicalName::of_content(issuer)).or_default();
        if !known.iter().any(|spelling| spelling == issuer) {
            known.push(issuer.to_vec());
        }
    }

    fn of(&self, name: &CanonicalName) -> &[Vec<u8>] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

impl<'s> Respelled<'s> {
    /// The certificates `sent`, and each with its subject in every other of the spellings.
    pub(super) fn new(sent: &'s [CertificateDer<'_>], spellings: &Spellings) -> Self {
        let mut all = Self::default();
        for original in sent {
            let original: &'s [u8] = original.as_ref();
            all.certificates.push(CertificateDer::from(original));
            let Some(parts) = Parts::of(original) else { continue };
            let others = spellings.of(&CanonicalName::of(parts.subject)).iter();
            for spelling in others.filter(|spelling| content(parts.subject) != Some(spelling.as_slice())) {
                if let Some((tbs, certificate)) = parts.with_subject(spelling) {
                    all.certificates.push(CertificateDer::from(certificate));
                    all.originals.entry(tbs).or_default().push(original);
                }
            }
        }
        all
    }

    pub(super) fn certificates(&self) -> &[CertificateDer<'s>] {
        &self.certificates
    }

    /// What a CA may have signed where webpki takes this tbsCertificate for it: that of a certificate as it was sent, or this one itself.
    pub(super) fn signed<'m>(&'m self, tbs: &'m [u8]) -> impl Iterator<Item = &'m [u8]> {
        let originals = self.originals.get(tbs).into_iter().flatten();
        let originals = originals.filter_map(|original| Parts::of(original).map(|parts| parts.tbs));
        originals.chain(std::iter::once(tbs))
    }

    /// The certificate as it was sent.
    pub(super) fn sent(&self, certificate: &[u8]) -> CertificateDer<'static> {
        let original = Parts::of(certificate).and_then(|parts| {
            let originals = self.originals.get(parts.tbs)?.iter();
            let mut originals = originals.filter(|original| Parts::of(original).is_some_and(|of| of.signature == parts.signature));
            originals.next().copied()
        });
        CertificateDer::from(original.unwrap_or(certificate).to_vec())
    }
}

impl<'a> Presented<'a> {
    /// Those anchors whose name one of the certificates has as its issuer's.
    pub(super) fn new(anchors: &'a Anchors, spellings: &Spellings) -> Self {
        let mut presented = Self {
            trusted: Vec::new(),
            anchors: Vec::new(),
        };
        for (trusted, anchor) in anchors.trusted().iter().zip(anchors.iter()) {
            for spelling in spellings.of(anchor.name()) {
                presented.anchors.push(anchor);
                presented.trusted.push(TrustAnchor {
                    subject: spelling.clone().into(),
                    ..trusted.clone()
                });
            }
        }
        presented
    }

    /// Whose anchor this is. By address: a renewed CA has the same name and key as its predecessor, but not its validity.
    pub(super) fn anchor(&self, trusted: &TrustAnchor<'_>) -> Option<&'a Anchor> {
        let position = self.trusted.iter().position(|anchor| std::ptr::eq(anchor, trusted));
        position.and_then(|position| self.anchors.get(position).copied())
    }
}

/// A certificate of version 3 (RFC 5280, 4.1), taken apart: each part a DER element or several.
struct Parts<'c> {
    whole: &'c [u8],
    tbs: &'c [u8],
    /// Of the tbsCertificate what stands before the subject.
    before: &'c [u8],
    issuer: &'c [u8],
    subject: &'c [u8],
    /// Of the tbsCertificate what stands behind the subject.
    behind: &'c [u8],
    /// signatureAlgorithm and signatureValue.
    signature: &'c [u8],
}

impl<'c> Parts<'c> {
    fn of(certificate: &'c [u8]) -> Option<Self> {
        let (whole, []) = first(certificate)? else { return None };
        let (tbs, signature) = first(content(whole)?)?;
        let fields = content(tbs)?;
        let mut behind = fields;
        let mut next = || {
            let (field, rest) = first(behind)?;
            behind = rest;
            Some(field)
        };
        let (_version, _serial, _algorithm, issuer) = (next()?, next()?, next()?, next()?);
        let (_validity, subject) = (next()?, next()?);
        let before = fields.get(..fields.len().checked_sub(subject.len() + behind.len())?)?;
        Some(Self {
            whole,
            tbs,
            before,
            issuer,
            subject,
            behind,
            signature,
        })
    }

    /// The same certificate with another subject, of which the content is given, and its tbsCertificate. `None` if webpki does not take the
    /// certificate as it is: no other bytes stand in for what it refuses.
    fn with_subject(&self, subject: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        EndEntityCert::try_from(&CertificateDer::from(self.whole)).ok()?;
        let tbs = sequence(&[self.before, &sequence(&[subject])?, self.behind])?;
        let certificate = sequence(&[&tbs, self.signature])?;
        Some((tbs, certificate))
    }
}

/// The first DER element, and what follows it.
fn first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, length) = lengths(bytes)?;
    bytes.split_at_checked(header + length)
}

/// A SEQUENCE in DER. `None` if it is longer than any certificate.
fn sequence(parts: &[&[u8]]) -> Option<Vec<u8>> {
    let content = parts.concat();
    let [high, low] = u16::try_from(content.len()).ok()?.to_be_bytes();
    let header: &[u8] = match (high, low) {
        (0, 0..=0x7f) => &[0x30, low],
        (0, _) => &[0x30, 0x81, low],
        _ => &[0x30, 0x82, high, low],
    };
    Some([header, &content].concat())
}
