//! From a leaf towards a root: those of the certificates sent that can be on the way, told apart without verifying anything.

use std::collections::BTreeMap;

use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use super::canonical::CanonicalName;

/// End of the way that the sent certificates form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathEnd<'s> {
    /// To an anchored name, over these. Each one is the issuer of another by name and, if both say it, by key identifier (RFC 5280,
    /// 4.2.1.1). For one CA there are several only if it was certified several times; the most promising come first.
    ToAnAnchor(Vec<CertificateDer<'s>>),
    /// To no anchored name: no trusted CA has issued the leaf, regardless of other problems with the sent certificates.
    Nowhere,
    /// To an anchor only over several CAs of one name with different keys that no key identifier distinguishes. A client can send those to
    /// cause work.
    Anywhere,
    /// To an anchor only over a certificate in a CA's position without the `basicConstraints` and key usage (keyCertSign) of a CA. RFC
    /// 5280, 4.2.1.3 and 4.2.1.9, has both in every CA that conforms.
    OverNoCa {
        /// Its subject. Not verified.
        subject: String,
        lacks: &'static str,
    },
}

/// Finds those of the certificates `sent` that lead on from `leaf`. `anchored` gives the keys (SubjectPublicKeyInfo) that are trusted under a
/// name. Nothing is verified.
///
/// A way ends at an anchored name, unless a CA of that name with another key was sent. Such a CA got a new key under its old name,
/// certified by its old key or by another CA.
pub(super) fn extend_path<'s, 'k>(
    leaf: &CertificateDer<'_>,
    sent: &[CertificateDer<'s>],
    anchored: impl Fn(&CanonicalName) -> Vec<&'k [u8]>,
    now: UnixTime,
) -> PathEnd<'s> {
    let read = |der: &CertificateDer<'_>| X509Certificate::from_der(der).ok().map(|(_, parsed)| PathLink::new(&parsed, now));
    let links: Vec<(PathLink, &CertificateDer<'s>)> = sent.iter().filter_map(|der| Some((read(der)?, der))).collect();
    let Some(leaf) = read(leaf) else { return PathEnd::Nowhere };
    // The same CA, renewed: whichever is valid now.
    for not_valid_too in [false, true] {
        let usable = links
            .iter()
            .filter(|(link, _)| link.lacks.is_none() && (link.is_valid || not_valid_too));
        match Ways::new(usable, &anchored).from(&leaf) {
            PathEnd::Nowhere => {}
            led => return led,
        }
    }
    let all = Ways::new(links.iter(), &anchored);
    let first_that_is_none = all.shortest(&leaf).into_iter().find_map(|link| Some((link, link.lacks?)));
    first_that_is_none.map_or(PathEnd::Nowhere, |(link, lacks)| PathEnd::OverNoCa {
        subject: link.subject_text.clone(),
        lacks,
    })
}

/// Certificates from which some way leads to an anchored name.
struct Ways<'a, 's, A> {
    anchored: &'a A,
    /// With how many certificates more it takes.
    leading: Vec<(usize, &'a PathLink, &'a CertificateDer<'s>)>,
}

impl<'a, 's, 'k, A: Fn(&CanonicalName) -> Vec<&'k [u8]>> Ways<'a, 's, A> {
    fn new(links: impl Iterator<Item = &'a (PathLink, &'a CertificateDer<'s>)>, anchored: &'a A) -> Self {
        let (mut leading, mut others): (Vec<_>, Vec<_>) = links.partition(|(link, _)| !anchored(&link.issuer).is_empty());
        let mut all: Vec<_> = Vec::new();
        let mut steps = 0;
        // Each round has at least one certificate, so there are no more rounds than those.
        while !leading.is_empty() {
            let (next, left) = others
                .into_iter()
                .partition(|(link, _)| leading.iter().any(|(issuer, _)| issuer.may_have_issued(link)));
            all.extend(leading.into_iter().map(|(link, der)| (steps, link, *der)));
            (leading, others) = (next, left);
            steps += 1;
        }
        Self { anchored, leading: all }
    }

    fn from(&self, leaf: &PathLink) -> PathEnd<'s> {
        let mut taken: BTreeMap<usize, &'a CertificateDer<'s>> = BTreeMap::new();
        let mut next = vec![leaf];
        let mut arrived = false;
        while let Some(link) = next.pop() {
            let anchored = (self.anchored)(&link.issuer);
            arrived |= !anchored.is_empty();
            let issuers: Vec<_> = self
                .leading
                .iter()
                .enumerate()
                .filter(|(_, (_, issuer, _))| issuer.may_have_issued(link) && !anchored.contains(&issuer.key.as_slice()))
                .collect();
            let one_key = issuers
                .windows(2)
                .all(|two| matches!(two, [(_, (_, a, _)), (_, (_, b, _))] if a.key == b.key));
            match (one_key, anchored.is_empty()) {
                (false, true) => return PathEnd::Anywhere,
                // The anchor of this name decides, and nothing that is sent beside it.
                (false, false) => {}
                (true, _) => next.extend(
                    issuers
                        .into_iter()
                        .filter_map(|(position, (_, issuer, der))| taken.insert(position, *der).is_none().then_some(issuer)),
                ),
            }
        }
        match arrived {
            true => PathEnd::ToAnAnchor(taken.into_values().cloned().collect()),
            false => PathEnd::Nowhere,
        }
    }

    /// The shortest way: each certificate of it.
    fn shortest(&self, leaf: &'a PathLink) -> Vec<&'a PathLink> {
        let (mut way, mut last, mut left) = (Vec::new(), leaf, usize::MAX);
        while let Some(&(steps, link, _)) = self
            .leading
            .iter()
            .find(|(steps, link, _)| *steps < left && link.may_have_issued(last))
        {
            way.push(link);
            (last, left) = (link, steps);
        }
        way
    }
}

/// Fields of a certificate that decide its position in a chain.
struct PathLink {
    subject: CanonicalName,
    issuer: CanonicalName,
    key: Vec<u8>,
    subject_key_id: Option<Vec<u8>>,
    authority_key_id: Option<Vec<u8>>,
    is_valid: bool,
    lacks: Option<&'static str>,
    subject_text: String,
}

impl PathLink {
    fn new(certificate: &X509Certificate<'_>, now: UnixTime) -> Self {
        let extensions = || certificate.extensions().iter().map(|extension| extension.parsed_extension());
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = certificate.validity();
        let is_ca = certificate
            .basic_constraints()
            .ok()
            .flatten()
            .is_some_and(|constraints| constraints.value.ca);
        let may_sign = certificate
            .key_usage()
            .ok()
            .flatten()
            .is_some_and(|usage| usage.value.key_cert_sign());
        Self {
            subject: CanonicalName::from_der(certificate.subject().as_raw()),
            issuer: CanonicalName::from_der(certificate.issuer().as_raw()),
            key: certificate.public_key().raw.to_vec(),
            subject_key_id: extensions().find_map(|extension| match extension {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            }),
            authority_key_id: extensions().find_map(|extension| match extension {
                ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
                _ => None,
            }),
            is_valid: (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&seconds),
            lacks: match (is_ca, may_sign) {
                (false, _) => Some("basicConstraints with CA:TRUE"),
                (true, false) => Some("the key usage keyCertSign"),
                (true, true) => None,
            },
            subject_text: certificate.subject().to_string(),
        }
    }

    fn may_have_issued(&self, certificate: &Self) -> bool {
        let ids = self.subject_key_id.as_ref().zip(certificate.authority_key_id.as_ref());
        self.subject == certificate.issuer && ids.is_none_or(|(own, named)| own == named)
    }
}
