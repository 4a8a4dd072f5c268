use std::collections::BTreeMap;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::VerifiedPath;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ParsedExtension, PolicyInformation};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Name;

use super::key::der_lengths;
use super::{CERTIFICATE_LIMIT_BYTES, EK_CERTIFICATE_OID_DER, EkCertificateError, SIGNATURES, algorithm_name, name_text, printable};
use crate::nonce::sha256;

/// The CAs whose EK certificates are trusted: roots, and the intermediates below them.
///
/// Roots are trusted because they were configured; their own signatures are not looked at, so a root may also be a CA that
/// another one has issued. Intermediates are trusted through a root only: the path above them is validated when they are loaded,
/// except for what depends on the time and on the length of the whole path, which is checked at each use. webpki then has both
/// as anchors, and builds paths from a leaf and what the TPM sent along to any of them. Of roots, too, the validity and the path
/// length are enforced, as OpenSSL and Go do and RFC 5280 (6.1.1 d) leaves open.
///
/// Why not leave the configured intermediates to webpki: it refuses every critical extension that it does not evaluate, and the
/// intermediates of STMicroelectronics and Intel have critical certificatePolicies. RFC 5280 (6.1) evaluates policies to no
/// effect as long as the verifier asks for no particular one and no certificate of the path has policyConstraints,
/// inhibitAnyPolicy or policyMappings. An intermediate that is of this form is taken, any other critical extension is not.
/// Besides, a signature that is the same for every node is verified once.
#[derive(Debug, Clone, Default)]
pub struct EkRoots {
    /// What webpki anchors paths in; `facts` has as many entries.
    anchors: Vec<TrustAnchor<'static>>,
    facts: Vec<Facts>,
}

/// What an anchor's certificate says besides name and key.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) subject: String,
    /// The organisation of the subject, or all of it.
    maker: String,
    pub(super) sha256: [u8; 32],
    /// SubjectPublicKeyInfo in DER.
    key: Vec<u8>,
    not_before: u64,
    not_after: u64,
    path_length: Option<u32>,
    /// Position of the anchor that issued this one, which was added before it; `None` for a root.
    issuer: Option<usize>,
}

/// A certificate that cannot be used to endorse EKs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{role} certificate {subject:?} (SHA-256 {sha256}): {problem}")]
pub struct EkRootsError {
    /// `"root"` or `"intermediate"`.
    pub role: &'static str,
    /// Its subject, if that can be read.
    pub subject: String,
    /// SHA-256 over it, hexadecimal.
    pub sha256: String,
    /// What is wrong.
    pub problem: CaProblem,
}

/// What is wrong with a CA certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaProblem {
    /// It is no certificate, or of a form that path validation does not take.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// Its basicConstraints do not make it a CA.
    #[error("it is not the certificate of a CA (basicConstraints)")]
    NotCa,
    /// Its key usage does not let it sign certificates.
    #[error("its key usage is {0}, a CA's includes keyCertSign")]
    KeyUsage(String),
    /// Its extended key usage does not let it issue EK certificates.
    #[error("its extended key usage does not include {}", super::EK_CERTIFICATE_OID)]
    ExtendedKeyUsage,
    /// Its key is too weak, or of a kind that is not accepted.
    #[error("its key is {0}; accepted are RSA of 2048 to 8192 bits, P-256, P-384 and P-521")]
    Key(String),
    /// It is signed with SHA-1 or something else that is not accepted.
    #[error("it is signed with algorithm {0}, which is not accepted; endorse its TPMs by the allowlist")]
    SignatureAlgorithm(String),
    /// A critical extension that cannot be evaluated.
    #[error("its critical extension {0} cannot be evaluated")]
    CriticalExtension(String),
    /// The CA above it is not configured, or cannot be used.
    #[error("its issuer {issuer:?} is not among the usable roots and intermediates")]
    IssuerMissing {
        /// The issuer it names.
        issuer: String,
    },
    /// The CA above it restricts names, which cannot be evaluated for a CA.
    #[error("its issuer {issuer:?} has nameConstraints, which cannot be evaluated for a CA")]
    NameConstraints {
        /// The issuer it names.
        issuer: String,
    },
    /// The CA that it names has not signed it.
    #[error("{issuer:?}, which it names as its issuer, has not signed it")]
    IssuerSignature {
        /// The issuer it names.
        issuer: String,
    },
}

impl EkRoots {
    /// Takes `roots` as trusted, and `intermediates`, in any order, below them.
    ///
    /// # Errors
    /// [`EkRootsError`] for the first certificate that could not be used.
    pub fn new(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> Result<Self, EkRootsError> {
        let (usable, mut refused) = Self::load(roots, intermediates);
        if refused.is_empty() {
            Ok(usable)
        } else {
            Err(refused.swap_remove(0))
        }
    }

    /// As [`EkRoots::new`], but leaves out what cannot be used, which is always safe, and says why.
    #[must_use]
    pub fn load(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> (Self, Vec<EkRootsError>) {
        let (mut all, mut refused) = (Self::default(), Vec::new());
        for root in roots {
            if let Err(problem) = all.add_root(&root) {
                refused.push(EkRootsError::new("root", &root, problem));
            }
        }
        // An intermediate can be added once its issuer is: each round adds those below the ones of the round before.
        let mut waiting = intermediates;
        loop {
            let (mut orphans, before) = (Vec::new(), all.anchors.len());
            for intermediate in waiting {
                match all.add_intermediate(&intermediate) {
                    Ok(()) => {}
                    Err(problem @ CaProblem::IssuerMissing { .. }) => orphans.push((intermediate, problem)),
                    Err(problem) => refused.push(EkRootsError::new("intermediate", &intermediate, problem)),
                }
            }
            if orphans.is_empty() || all.anchors.len() == before {
                refused.extend(
                    orphans
                        .into_iter()
                        .map(|(orphan, problem)| EkRootsError::new("intermediate", &orphan, problem)),
                );
                return (all, refused);
            }
            waiting = orphans.into_iter().map(|(orphan, _)| orphan).collect();
        }
    }

    /// Whether no certificate can be trusted: only EKs on an allowlist are.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Whether a CA certificate names itself as its issuer, as roots do. Says nothing about trust; `false` for what is no
    /// certificate.
    #[must_use]
    pub fn is_self_issued(certificate: &[u8]) -> bool {
        X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| certificate.subject().as_raw() == certificate.issuer().as_raw())
    }

    /// Whose TPMs are endorsed: the organisations that the usable CAs name as their own, and how many CAs each of them has. A CA without one is
    /// named whole. The roots of some makers are another's.
    #[must_use]
    pub fn makers(&self) -> BTreeMap<&str, usize> {
        let mut makers = BTreeMap::new();
        for facts in &self.facts {
            *makers.entry(facts.maker.as_str()).or_default() += 1;
        }
        makers
    }

    /// The keys (SubjectPublicKeyInfo in DER) of the CAs of this name (a Name in DER) that can be trusted.
    pub(super) fn keys_of(&self, name: &[u8]) -> Vec<&[u8]> {
        let name = content(name).unwrap_or_default();
        let of_the_name = self
            .anchors
            .iter()
            .zip(&self.facts)
            .filter(|(anchor, _)| anchor.subject.as_ref() == name);
        of_the_name.map(|(_, facts)| facts.key.as_slice()).collect()
    }

    fn add_root(&mut self, certificate: &CertificateDer<'static>) -> Result<(), CaProblem> {
        self.add_anchor(certificate, &ca(certificate)?, None)
    }

    fn add_intermediate(&mut self, certificate: &CertificateDer<'static>) -> Result<(), CaProblem> {
        let parsed = ca(certificate)?;
        check_extensions(&parsed)?;
        let issuer = self.issuer_of(&parsed)?;
        self.add_anchor(certificate, &parsed, Some(issuer))
    }

    /// The anchor that issued a CA.
    fn issuer_of(&self, certificate: &X509Certificate<'_>) -> Result<usize, CaProblem> {
        let signature = signature_algorithm(certificate)?;
        if SIGNATURES.iter().all(|accepted| accepted.signature_alg_id().as_ref() != signature) {
            return Err(CaProblem::SignatureAlgorithm(algorithm_name(signature)));
        }
        let signed_by = |anchor: &TrustAnchor<'_>| {
            let (key_algorithm, key) = split_spki(anchor.subject_public_key_info.as_ref())?;
            let of_both = |accepted: &&&dyn SignatureVerificationAlgorithm| {
                accepted.signature_alg_id().as_ref() == signature && accepted.public_key_alg_id().as_ref() == key_algorithm
            };
            let (signed, bits) = (certificate.tbs_certificate.as_ref(), &certificate.signature_value.data);
            SIGNATURES
                .iter()
                .filter(of_both)
                .find(|accepted| accepted.verify_signature(key, signed, bits).is_ok())
        };
        let name = content(certificate.issuer().as_raw()).unwrap_or_default();
        let issuer = || name_text(certificate.issuer());
        let mut candidates = self
            .anchors
            .iter()
            .enumerate()
            .filter(|(_, anchor)| anchor.subject.as_ref() == name)
            .peekable();
        if candidates.peek().is_none() {
            return Err(CaProblem::IssuerMissing { issuer: issuer() });
        }
        match candidates.find(|(_, anchor)| signed_by(anchor).is_some()) {
            None => Err(CaProblem::IssuerSignature { issuer: issuer() }),
            Some((_, anchor)) if anchor.name_constraints.is_some() => Err(CaProblem::NameConstraints { issuer: issuer() }),
            Some((position, _)) => Ok(position),
        }
    }

    fn add_anchor(
        &mut self,
        certificate: &CertificateDer<'static>,
        parsed: &X509Certificate<'_>,
        issuer: Option<usize>,
    ) -> Result<(), CaProblem> {
        let anchor = webpki::anchor_from_trusted_cert(certificate)
            .map_err(|error| CaProblem::Malformed(error.to_string()))?
            .to_owned();
        let sha256 = sha256(&[certificate]);
        if self.facts.iter().any(|facts| facts.sha256 == sha256) {
            return Ok(());
        }
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        self.facts.push(Facts {
            maker: organisation(parsed.subject()).unwrap_or_else(|| name_text(parsed.subject())),
            subject: name_text(parsed.subject()),
            sha256,
            key: parsed.public_key().raw.to_vec(),
            not_before: seconds(parsed.validity().not_before.timestamp()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
            path_length: parsed
                .basic_constraints()
                .ok()
                .flatten()
                .and_then(|constraints| constraints.value.path_len_constraint),
            issuer,
        });
        self.anchors.push(anchor);
        Ok(())
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    /// Checks what webpki does not know of a path's anchor, and of the CAs above it.
    pub(super) fn check_anchor(&self, path: &VerifiedPath<'_>, now: UnixTime) -> Result<(), EkCertificateError> {
        let mut next = self.anchor_of(path);
        let mut below = path.intermediate_certificates().count();
        while let Some(anchor) = next {
            let (certificate, now) = (format!("CA {:?}", anchor.subject), now.as_secs());
            if now < anchor.not_before {
                return Err(EkCertificateError::NotYetValid {
                    certificate,
                    not_before: anchor.not_before,
                    now,
                });
            }
            if now > anchor.not_after {
                return Err(EkCertificateError::Expired {
                    certificate,
                    not_after: anchor.not_after,
                    now,
                });
            }
            if anchor
                .path_length
                .and_then(|limit| usize::try_from(limit).ok())
                .is_some_and(|limit| below > limit)
            {
                return Err(EkCertificateError::PathLength { certificate });
            }
            next = anchor.issuer.and_then(|issuer| self.facts.get(issuer));
            below += 1;
        }
        Ok(())
    }

    /// The root at the end of a path.
    pub(super) fn root_of(&self, path: &VerifiedPath<'_>) -> Option<&Facts> {
        let mut anchor = self.anchor_of(path)?;
        while let Some(issuer) = anchor.issuer {
            anchor = self.facts.get(issuer)?;
        }
        Some(anchor)
    }

    fn anchor_of(&self, path: &VerifiedPath<'_>) -> Option<&Facts> {
        // By address: a renewed CA has the same name and key as its predecessor, but not its validity.
        let position = self.anchors.iter().position(|anchor| std::ptr::eq(anchor, path.anchor()))?;
        self.facts.get(position)
    }
}

impl EkRootsError {
    fn new(role: &'static str, certificate: &[u8], problem: CaProblem) -> Self {
        let subject = X509Certificate::from_der(certificate).map_or_else(|_| String::new(), |(_, parsed)| name_text(parsed.subject()));
        Self {
            role,
            subject,
            sha256: data_encoding::HEXLOWER.encode(&sha256(&[certificate])),
            problem,
        }
    }
}

fn organisation(name: &X509Name<'_>) -> Option<String> {
    name.iter_organization().next()?.as_str().ok().map(printable)
}

/// Reads a certificate that may issue EK certificates.
fn ca<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CaProblem> {
    let malformed = |error: x509_parser::error::X509Error| CaProblem::Malformed(error.to_string());
    if certificate.len() > CERTIFICATE_LIMIT_BYTES {
        return Err(CaProblem::Malformed(format!(
            "{} bytes, at most {CERTIFICATE_LIMIT_BYTES} are read",
            certificate.len()
        )));
    }
    let (rest, parsed) = X509Certificate::from_der(certificate).map_err(|error| CaProblem::Malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(CaProblem::Malformed(format!("{} bytes follow it", rest.len())));
    }
    if !parsed
        .basic_constraints()
        .map_err(malformed)?
        .is_some_and(|constraints| constraints.value.ca)
    {
        return Err(CaProblem::NotCa);
    }
    if let Some(usage) = parsed.key_usage().map_err(malformed)?
        && !usage.value.key_cert_sign()
    {
        return Err(CaProblem::KeyUsage(usage.value.to_string()));
    }
    if let Some(usage) = parsed.extended_key_usage().map_err(malformed)?
        && !usage.value.other.iter().any(|oid| oid.as_bytes() == EK_CERTIFICATE_OID_DER)
    {
        return Err(CaProblem::ExtendedKeyUsage);
    }
    match parsed.public_key().parsed() {
        Ok(PublicKey::RSA(key)) if (2048..=8192).contains(&key.key_size()) => Ok(parsed),
        Ok(PublicKey::RSA(key)) => Err(CaProblem::Key(format!("RSA-{}", key.key_size()))),
        // By the length of a coordinate: those of P-521 have 66 bytes.
        Ok(PublicKey::EC(point)) if matches!(point.key_size(), 256 | 384 | 528) => Ok(parsed),
        Ok(PublicKey::EC(point)) => Err(CaProblem::Key(format!("an elliptic curve key of {} bits", point.key_size()))),
        _ => Err(CaProblem::Key(format!("of algorithm {}", parsed.public_key().algorithm.algorithm))),
    }
}

/// Refuses critical extensions that are not evaluated, and whatever gives policies an effect. Of certificatePolicies only the
/// qualifiers that RFC 5280 (4.2.1.4) defines are taken: they have no effect on validity.
fn check_extensions(certificate: &X509Certificate<'_>) -> Result<(), CaProblem> {
    // id-qt-cps and id-qt-unotice.
    let qualifiers = ["1.3.6.1.5.5.7.2.1", "1.3.6.1.5.5.7.2.2"];
    let known = |policy: &PolicyInformation<'_>| {
        let all = policy.policy_qualifiers.iter().flatten();
        all.into_iter()
            .all(|qualifier| qualifiers.contains(&qualifier.policy_qualifier_id.to_id_string().as_str()))
    };
    let unevaluated = certificate.iter_extensions().find(|extension| match extension.parsed_extension() {
        ParsedExtension::CertificatePolicies(policies) => !policies.iter().all(known),
        ParsedExtension::PolicyConstraints(_) | ParsedExtension::InhibitAnyPolicy(_) | ParsedExtension::PolicyMappings(_) => true,
        // Evaluated: by `ca`, by webpki through the anchor, or of no effect on a CA (RFC 5280, 4.2.1.6 and 4.2.1.13).
        ParsedExtension::BasicConstraints(_)
        | ParsedExtension::KeyUsage(_)
        | ParsedExtension::ExtendedKeyUsage(_)
        | ParsedExtension::NameConstraints(_)
        | ParsedExtension::SubjectAlternativeName(_)
        | ParsedExtension::CRLDistributionPoints(_) => false,
        _ => extension.critical,
    });
    unevaluated.map_or(Ok(()), |extension| Err(CaProblem::CriticalExtension(extension.oid.to_string())))
}

/// The content of the AlgorithmIdentifier that a certificate is signed with: the same inside and outside of what is signed.
fn signature_algorithm<'a>(certificate: &X509Certificate<'a>) -> Result<&'a [u8], CaProblem> {
    if certificate.tbs_certificate.signature != certificate.signature_algorithm {
        return Err(CaProblem::Malformed("it names two signature algorithms".to_owned()));
    }
    let raw = content(certificate.as_raw()).and_then(|inside| inside.get(certificate.tbs_certificate.as_ref().len()..));
    raw.and_then(content)
        .ok_or_else(|| CaProblem::Malformed("its signature algorithm".to_owned()))
}

/// The content of a SubjectPublicKeyInfo, split into the AlgorithmIdentifier's content and the key's bits.
fn split_spki(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, length) = der_lengths(spki)?;
    let (algorithm, key) = spki.split_at_checked(header + length)?;
    let (_no_unused_bits, key) = content(key)?.split_first()?;
    Some((content(algorithm)?, key))
}

/// The content of the DER element that `bytes` begins with.
fn content(bytes: &[u8]) -> Option<&[u8]> {
    let (header, length) = der_lengths(bytes)?;
    bytes.get(header..header + length)
}
