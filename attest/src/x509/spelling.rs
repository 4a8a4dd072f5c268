//! Names as webpki compares them, which is byte for byte.
//!
//! webpki uses names for one purpose: to find the next certificate in a path. (It does not evaluate constraints on directory names, but
//! refuses any certificate with a subject below them.) So webpki is given every CA under its name as the certificates below it spell that
//! name as their issuer. Trust anchors, which are a name and a key, get that spelling, and certificates get it as their subject. Everything
//! else that webpki reads of a certificate is unchanged, and the signature is verified over the bytes that the CA has signed
//! ([`Respelled::signed`]). A spelling can only lead to a CA whose name is the same in canonical form ([`CanonicalName`]). The signature
//! proves, as always, that the CA has issued the certificate.

use std::collections::BTreeMap;

use rustls_pki_types::{CertificateDer, TrustAnchor};
use webpki::EndEntityCert;

use super::canonical::CanonicalName;
use super::der::{content, lengths};
use super::{Anchor, TrustAnchors};

/// Maximum number of spellings of one name that are considered. More than a CA's own and one other are an attempt to cause a long search.
/// webpki distinguishes certificates of one CA by the bytes of their names, so each spelling adds a step to a path.
const SPELLINGS_LIMIT: usize = 2;

/// Encodings of the issuers' names, by canonical form.
pub(super) struct Spellings(BTreeMap<CanonicalName, Vec<Vec<u8>>>);

/// Certificates for webpki: those that were sent, and copies with another encoding of the subject.
#[derive(Debug, Default)]
pub(super) struct Respelled<'s> {
    /// The certificates given to webpki: those that were sent, unchanged, and the copies.
    certificates: Vec<CertificateDer<'s>>,
    /// The originals of each copy, by the copy's tbsCertificate. Several originals may differ in nothing but the spelling of their subject.
    originals: BTreeMap<Vec<u8>, Vec<&'s [u8]>>,
}

/// Anchors under the names that certificates below them use.
pub(super) struct RespelledAnchors<'a> {
    pub(super) trusted: Vec<TrustAnchor<'a>>,
    /// The anchor behind each entry of `trusted`, at the same position.
    anchors: Vec<&'a Anchor>,
}

impl Spellings {
    /// The issuers of a leaf and of the certificates that were sent with it.
    pub(super) fn from_chain(leaf: &EndEntityCert<'_>, sent: &[CertificateDer<'_>]) -> Self {
        let mut spellings = Self(BTreeMap::new());
        spellings.add(leaf.issuer());
        for certificate in sent {
            if let Some(issuer) = CertificateParts::parse(certificate).and_then(|parts| content(parts.issuer)) {
                spellings.add(issuer);
            }
        }
        spellings
    }

    fn add(&mut self, issuer: &[u8]) {
        let known = self.0.entry(CanonicalName::from_rdns(issuer)).or_default();
        if known.len() < SPELLINGS_LIMIT && !known.iter().any(|spelling| spelling == issuer) {
            known.push(issuer.to_vec());
        }
    }

    fn get(&self, name: &CanonicalName) -> &[Vec<u8>] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

impl<'s> Respelled<'s> {
    /// Returns the certificates `sent`, and each with its subject in the other spelling. The leaf is not among them: a signature over
    /// another certificate does not cover it.
    pub(super) fn new(leaf: &EndEntityCert<'_>, sent: &'s [CertificateDer<'_>], spellings: &Spellings) -> Self {
        let mut all = Self::default();
        let leaf = leaf.der();
        let leaf_tbs = CertificateParts::parse(&leaf).map(|parts| parts.tbs);
        for original in sent {
            let original: &'s [u8] = original.as_ref();
            all.certificates.push(CertificateDer::from(original));
            let Some(parts) = CertificateParts::parse(original) else { continue };
            let others = spellings.get(&CanonicalName::from_der(parts.subject)).iter();
            for spelling in others.filter(|spelling| content(parts.subject) != Some(spelling.as_slice())) {
                if let Some((tbs, certificate)) = parts.with_subject(spelling)
                    && leaf_tbs != Some(tbs.as_slice())
                {
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

    /// Returns the tbsCertificates that the signature may be over where webpki verifies it over `tbs`: those of the certificates that it was copied from, and `tbs`.
    pub(super) fn signed<'m>(&'m self, tbs: &'m [u8]) -> impl Iterator<Item = &'m [u8]> {
        let originals = self.originals.get(tbs).into_iter().flatten();
        let originals = originals.filter_map(|original| CertificateParts::parse(original).map(|parts| parts.tbs));
        originals.chain(std::iter::once(tbs))
    }

    /// The certificate as it was sent.
    pub(super) fn sent(&self, certificate: &[u8]) -> CertificateDer<'static> {
        let original = CertificateParts::parse(certificate).and_then(|parts| {
            let originals = self.originals.get(parts.tbs)?.iter();
            let mut originals =
                originals.filter(|original| CertificateParts::parse(original).is_some_and(|of| of.signature == parts.signature));
            originals.next().copied()
        });
        CertificateDer::from(original.unwrap_or(certificate).to_vec())
    }
}

impl<'a> RespelledAnchors<'a> {
    /// Selects the anchors whose name is the issuer of one of the certificates.
    pub(super) fn new(anchors: &'a TrustAnchors, spellings: &Spellings) -> Self {
        let mut presented = Self {
            trusted: Vec::new(),
            anchors: Vec::new(),
        };
        for (trusted, anchor) in anchors.trusted().iter().zip(anchors.iter()) {
            for spelling in spellings.get(anchor.name()) {
                presented.anchors.push(anchor);
                presented.trusted.push(TrustAnchor {
                    subject: spelling.clone().into(),
                    ..trusted.clone()
                });
            }
        }
        presented
    }

    /// Returns the anchor of an entry of `trusted`. Entries are compared by address: a renewed CA has the same name and key as its
    /// predecessor, but not its validity.
    pub(super) fn anchor(&self, trusted: &TrustAnchor<'_>) -> Option<&'a Anchor> {
        let position = self.trusted.iter().position(|anchor| std::ptr::eq(anchor, trusted));
        position.and_then(|position| self.anchors.get(position).copied())
    }
}

/// A certificate of version 3 (RFC 5280, 4.1), taken apart: each part a DER element or several.
struct CertificateParts<'c> {
    whole: &'c [u8],
    tbs: &'c [u8],
    /// The part of the tbsCertificate before the subject.
    before: &'c [u8],
    issuer: &'c [u8],
    subject: &'c [u8],
    /// The part of the `tbsCertificate` after the subject.
    behind: &'c [u8],
    /// The elements signatureAlgorithm and signatureValue.
    signature: &'c [u8],
}

impl<'c> CertificateParts<'c> {
    fn parse(certificate: &'c [u8]) -> Option<Self> {
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

    /// Returns the same certificate with another subject, whose content is given, and its `tbsCertificate`. `None` if webpki does not
    /// accept the certificate as it is: no other bytes may replace those that it refuses.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};

    use super::*;

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    /// A certificate of this subject by an issuer of that name; one key has signed all of them.
    fn issued(subject: &str, issuer: &str, key: &KeyPair) -> CertificateDer<'static> {
        named(subject)
            .signed_by(key, &Issuer::from_params(&named(issuer), key))
            .unwrap()
            .into()
    }

    #[test]
    fn attack_36_issuer_name_spellings_are_limited() {
        let key = KeyPair::generate().unwrap();
        let names = ["abc", "abC", "aBc", "aBC", "Abc", "AbC", "ABc", "ABC"];
        let sent = names.map(|issuer| issued("abc", issuer, &key));
        let leaf = EndEntityCert::try_from(&sent[0]).unwrap();
        let spellings = Spellings::from_chain(&leaf, &sent);
        assert_eq!(
            spellings
                .get(&CanonicalName::from_der(CertificateParts::parse(&sent[0]).unwrap().subject))
                .len(),
            SPELLINGS_LIMIT
        );
        let leaf = issued("leaf", "abc", &key);
        let respelled = Respelled::new(&EndEntityCert::try_from(&leaf).unwrap(), &sent, &spellings);
        assert_eq!(respelled.certificates().len(), 2 * sent.len());
    }

    #[test]
    fn signature_over_a_respelled_leaf_is_rejected() {
        let key = KeyPair::generate().unwrap();
        let genuine = [issued("leaf", "ca", &key), issued("another", "LEAF", &key)];
        let content_of = |certificate: &CertificateDer<'_>| content(CertificateParts::parse(certificate).unwrap().issuer).unwrap().to_vec();
        let (tbs, altered) = CertificateParts::parse(&genuine[0])
            .unwrap()
            .with_subject(&content_of(&genuine[1]))
            .unwrap();
        let altered = CertificateDer::from(altered);
        let leaf = EndEntityCert::try_from(&altered).unwrap();
        let spellings = Spellings::from_chain(&leaf, &genuine);
        let respelled = Respelled::new(&leaf, &genuine, &spellings);
        assert_eq!(respelled.signed(&tbs).collect::<Vec<_>>(), [tbs.as_slice()]);
        // As a CA's it is one of the other spelling.
        let other = EndEntityCert::try_from(&genuine[1]).unwrap();
        assert_eq!(Respelled::new(&other, &genuine, &spellings).signed(&tbs).count(), 2);
    }
}
