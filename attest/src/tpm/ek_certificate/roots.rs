use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ParsedExtension, PolicyInformation};
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use super::{CERTIFICATE_LIMIT_BYTES, EK_CERTIFICATE, SIGNATURES, TcgUsage, algorithm_name};
use crate::x509::canonical::CanonicalName;
use crate::x509::names::{issuer_of, name_text, organisation};
use crate::x509::{Anchor, Ca, CaKey, NoCa, TrustAnchors, Unusable, signatures};

/// The CAs whose EK certificates are trusted: roots, and the intermediates below them.
///
/// Roots are trusted because they were configured; their own signatures are not looked at, so a root may also be a CA that
/// another one has issued. Intermediates are trusted through a root only: the path above them is validated when they are loaded,
/// except for what depends on the time and on the length of the whole path, which is checked at each use. webpki then has both
/// as anchors, and builds paths from a leaf and what the TPM sent along to any of them. Of roots, too, the validity and the path
/// length are enforced, as OpenSSL and Go do and RFC 5280 (6.1.1 d) leaves open.
///
/// The configured intermediates are not left to webpki, because it refuses every critical extension that it does not evaluate. The
/// intermediates of STMicroelectronics and Intel have critical certificatePolicies. RFC 5280 (6.1) evaluates policies to no effect under
/// two conditions. The verifier asks for no particular policy, and no certificate of the path has policyConstraints, inhibitAnyPolicy or
/// policyMappings. An intermediate of this form is accepted, any other critical extension is not. Besides, a signature that is the same for
/// every node is verified once.
#[derive(Debug, Clone, Default)]
pub struct EkRoots {
    anchors: TrustAnchors,
}

/// A certificate that cannot be used to endorse EKs.
pub type EkRootsError = Unusable<EkRootProblem>;

/// Problem with a CA certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EkRootProblem {
    /// The bytes are not a certificate, or of a form that path validation does not accept.
    #[error("it cannot be read: {0}")]
    Malformed(String),
    /// Its basicConstraints do not make it a CA.
    #[error("it is not the certificate of a CA (basicConstraints)")]
    NotCa,
    /// Its key usage does not let it sign certificates.
    #[error("its key usage is {0}, a CA's includes keyCertSign")]
    KeyUsage(String),
    /// Its extended key usage does not let it issue the certificates that it is configured for.
    #[error("its extended key usage does not include {required}")]
    ExtendedKeyUsage {
        /// The extended key usage that it must include.
        required: &'static str,
    },
    /// Its key is too weak, or of a kind that is not accepted.
    #[error("its key is {0}; accepted are RSA of 2048 to 8192 bits, P-256, P-384 and P-521")]
    Key(String),
    /// The certificate is signed with SHA-1 or another algorithm that is not accepted.
    #[error("it is signed with algorithm {}{}, which is not accepted; add its TPMs to the allowlist: `attest-gateway ek add`", .0, hash_name(.0))]
    SignatureAlgorithm(String),
    /// The algorithm of its signature is accepted, and the parameters are not.
    #[error("its signature algorithm {0} has parameters; they have to be absent or NULL")]
    SignatureParameters(String),
    /// A critical extension that cannot be evaluated.
    #[error("its critical extension {0} cannot be evaluated")]
    CriticalExtension(String),
    /// The CA above it is not configured.
    #[error("its issuer {issuer:?} is not configured")]
    IssuerMissing {
        /// The issuer it names.
        issuer: String,
    },
    /// The CA above it is configured, and cannot be used itself.
    #[error("its issuer {issuer:?} is configured, but {:?} (SHA-256 {}) cannot be used: {}", .unusable.subject, .unusable.sha256, .unusable.problem)]
    IssuerUnusable {
        /// The issuer it names.
        issuer: String,
        /// The first CA above it that cannot be used for a reason of its own: that issuer, or one above.
        unusable: Box<Unusable<EkRootProblem>>,
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
        all_of(Self::load(roots, intermediates))
    }

    /// Like [`EkRoots::new`], but leaves out what cannot be used, which is always safe, and says why.
    #[must_use]
    pub fn load(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> (Self, Vec<EkRootsError>) {
        Self::load_for(EK_CERTIFICATE, roots, intermediates)
    }

    /// Like [`EkRoots::load`], for CAs that issue certificates for `usage`. If a CA states what it issues, that must be `usage`. A CA that
    /// states nothing is accepted, because the administrator has chosen it.
    pub(crate) fn load_for(
        usage: TcgUsage,
        roots: Vec<CertificateDer<'static>>,
        intermediates: Vec<CertificateDer<'static>>,
    ) -> (Self, Vec<EkRootsError>) {
        let (mut all, mut refused) = (Self::default(), UnusableCertificates::default());
        for root in roots {
            if let Err(problem) = all.add_root(&root, usage) {
                refused.add("root", &root, problem);
            }
        }
        // An intermediate can be added once its issuer is: each round adds those below the ones of the round before.
        let mut waiting = intermediates;
        loop {
            let (mut orphans, mut unsigned, before) = (Vec::new(), Vec::new(), all.anchors.len());
            for intermediate in waiting {
                match all.add_intermediate(&intermediate, usage) {
                    Ok(()) => {}
                    Err(EkRootProblem::IssuerMissing { .. }) => orphans.push(intermediate),
                    // Another CA of that name may come in a later round.
                    Err(problem @ EkRootProblem::IssuerSignature { .. }) => unsigned.push((intermediate, problem)),
                    Err(problem) => refused.add("intermediate", &intermediate, problem),
                }
            }
            if all.anchors.len() == before {
                for (intermediate, problem) in unsigned {
                    refused.add("intermediate", &intermediate, problem);
                }
                refused.add_orphans(&orphans);
                return (all, refused.errors);
            }
            waiting = orphans
                .into_iter()
                .chain(unsigned.into_iter().map(|(intermediate, _)| intermediate))
                .collect();
        }
    }

    /// Returns whether no certificate can be trusted: then only EKs on an allowlist are.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Returns whether a CA certificate names itself as its issuer, as roots do. Says nothing about trust; `false` if the bytes are not a
    /// certificate.
    #[must_use]
    pub fn is_self_issued(certificate: &[u8]) -> bool {
        names(certificate).is_some_and(|(subject, issuer)| subject == issuer)
    }

    /// Returns the manufacturers whose TPMs are endorsed: the organisations that the usable CAs name as their own, each with its number of
    /// CAs. A CA without an organisation is listed by its whole subject. The roots of some manufacturers belong to another one.
    #[must_use]
    pub fn makers(&self) -> BTreeMap<&str, usize> {
        let mut makers = BTreeMap::new();
        for anchor in self.anchors.iter() {
            let maker = anchor.organisation().unwrap_or_else(|| anchor.subject());
            *makers.entry(maker).or_default() += 1;
        }
        makers
    }

    /// Returns the manufacturer that a CA certificate names, like [`EkRoots::makers`]. Says nothing about trust; `None` if the bytes are not a
    /// certificate.
    #[must_use]
    pub fn maker_of(certificate: &[u8]) -> Option<String> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Some(organisation(parsed.subject()).unwrap_or_else(|| name_text(parsed.subject())))
    }

    pub(super) const fn anchors(&self) -> &TrustAnchors {
        &self.anchors
    }

    fn add_root(&mut self, certificate: &[u8], usage: TcgUsage) -> Result<(), EkRootProblem> {
        self.anchors.add_root(&ca(certificate, usage)?)?;
        Ok(())
    }

    fn add_intermediate(&mut self, certificate: &[u8], usage: TcgUsage) -> Result<(), EkRootProblem> {
        let ca = ca(certificate, usage)?;
        check_extensions(ca.parsed())?;
        let issuer = self.issuer_of(&ca)?;
        self.anchors.add_below(&ca, issuer)?;
        Ok(())
    }

    /// The anchor that issued a CA.
    fn issuer_of(&self, ca: &Ca<'_>) -> Result<Arc<Anchor>, EkRootProblem> {
        let signature = ca.signature_algorithm()?;
        if !SIGNATURES.iter().any(|accepted| signatures::is_named(*accepted, signature)) {
            return Err(unaccepted(signature));
        }
        let name = ca.parsed().issuer();
        let issuer = || name_text(name);
        let canonical = CanonicalName::from_der(name.as_raw());
        let mut candidates = ca.by_key_identifier(self.anchors.named(&canonical)).peekable();
        if candidates.peek().is_none() {
            return Err(EkRootProblem::IssuerMissing { issuer: issuer() });
        }
        match candidates.find(|anchor| ca.is_signed_by(anchor, SIGNATURES)) {
            None => Err(EkRootProblem::IssuerSignature { issuer: issuer() }),
            Some(anchor) if anchor.restricts_names() => Err(EkRootProblem::NameConstraints { issuer: issuer() }),
            Some(anchor) => Ok(Arc::clone(anchor)),
        }
    }
}

impl From<NoCa> for EkRootProblem {
    fn from(problem: NoCa) -> Self {
        match problem {
            NoCa::Malformed(problem) => Self::Malformed(problem),
            NoCa::NotCa => Self::NotCa,
        }
    }
}

/// Certificates that are not usable, with the reasons, collected while others are loaded.
#[derive(Default)]
struct UnusableCertificates {
    errors: Vec<EkRootsError>,
    /// The subjects of these, to be compared.
    subjects: Vec<Option<CanonicalName>>,
}

impl UnusableCertificates {
    fn add(&mut self, role: &'static str, certificate: &[u8], problem: EkRootProblem) {
        self.errors.push(EkRootsError::new(role, certificate, problem));
        self.subjects.push(names(certificate).map(|(subject, _)| subject));
    }

    /// Adds CAs none of which has a usable issuer: each with the first CA above it that is here, and why that one is not usable.
    fn add_orphans(&mut self, orphans: &[CertificateDer<'static>]) {
        let names: Vec<_> = orphans.iter().map(|orphan| names(orphan)).collect();
        let parent = |of: usize| {
            let (_, issuer) = names.get(of)?.as_ref()?;
            let found = names
                .iter()
                .position(|names| names.as_ref().is_some_and(|(subject, _)| subject == issuer));
            found.filter(|found| *found != of)
        };
        let refused_issuer = |of: usize| {
            let (_, issuer) = names.get(of)?.as_ref()?;
            let found = self.subjects.iter().position(|subject| subject.as_ref() == Some(issuer));
            found.and_then(|found| self.errors.get(found).cloned())
        };
        let missing = |of: &[u8]| EkRootProblem::IssuerMissing { issuer: issuer_of(of) };
        let problem = |position: usize, orphan: &[u8]| {
            let (mut top, mut refused) = (position, refused_issuer(position));
            // Some may have issued each other.
            let mut seen = BTreeSet::from([position]);
            while refused.is_none()
                && let Some(above) = parent(top).filter(|above| seen.insert(*above))
            {
                (top, refused) = (above, refused_issuer(above));
            }
            let above = orphans.get(top).filter(|_| top != position);
            let because = refused.or_else(|| above.map(|top| EkRootsError::new("intermediate", top, missing(top))));
            because.map_or_else(
                || missing(orphan),
                |because| EkRootProblem::IssuerUnusable {
                    issuer: issuer_of(orphan),
                    unusable: Box::new(because),
                },
            )
        };
        let problems: Vec<_> = orphans.iter().enumerate().map(|(at, orphan)| problem(at, orphan)).collect();
        for (orphan, problem) in orphans.iter().zip(problems) {
            self.add("intermediate", orphan, problem);
        }
    }
}

/// Returns the problem with the content of an AlgorithmIdentifier that is not accepted.
fn unaccepted(signature: &[u8]) -> EkRootProblem {
    let name = algorithm_name(signature);
    let is_accepted = |accepted: &&dyn SignatureVerificationAlgorithm| algorithm_name(accepted.signature_alg_id().as_ref()) == name;
    match SIGNATURES.iter().any(is_accepted) {
        true => EkRootProblem::SignatureParameters(name),
        false => EkRootProblem::SignatureAlgorithm(name),
    }
}

/// Returns the name of a hash that is not accepted, for a message after the algorithm's identifier.
fn hash_name(algorithm: &str) -> &'static str {
    match algorithm {
        // sha1WithRSAEncryption and ecdsa-with-SHA1.
        "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => " (SHA-1)",
        _ => "",
    }
}

/// Returns subject and issuer of a certificate, for comparison; `None` if the bytes are not a certificate.
fn names(certificate: &[u8]) -> Option<(CanonicalName, CanonicalName)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = |name: &X509Name<'_>| CanonicalName::from_der(name.as_raw());
    Some((name(parsed.subject()), name(parsed.issuer())))
}

/// All CAs, or the first that cannot be used.
pub(crate) fn all_of<R>((usable, mut refused): (R, Vec<EkRootsError>)) -> Result<R, EkRootsError> {
    if refused.is_empty() {
        Ok(usable)
    } else {
        Err(refused.swap_remove(0))
    }
}

/// Reads a certificate that may issue others for `required`.
fn ca(certificate: &[u8], required: TcgUsage) -> Result<Ca<'_>, EkRootProblem> {
    let malformed = |error: x509_parser::error::X509Error| EkRootProblem::Malformed(error.to_string());
    let ca = Ca::read_within(certificate, CERTIFICATE_LIMIT_BYTES)?;
    if let Some(usage) = ca.parsed().key_usage().map_err(malformed)?
        && !usage.value.key_cert_sign()
    {
        return Err(EkRootProblem::KeyUsage(usage.value.to_string()));
    }
    if let Some(usage) = ca.parsed().extended_key_usage().map_err(malformed)?
        && !usage.value.other.iter().any(|oid| oid.as_bytes() == required.der)
    {
        return Err(EkRootProblem::ExtendedKeyUsage { required: required.oid });
    }
    match ca.key() {
        CaKey::Rsa(2048..=8192) | CaKey::Curve(256 | 384 | 528) => Ok(ca),
        other => Err(EkRootProblem::Key(other.to_string())),
    }
}

/// Refuses critical extensions that are not evaluated, and any extension by which policies have an effect. In certificatePolicies only the
/// qualifiers of RFC 5280 (4.2.1.4) are accepted: they have no effect on validity.
fn check_extensions(certificate: &X509Certificate<'_>) -> Result<(), EkRootProblem> {
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
    unevaluated.map_or(Ok(()), |extension| Err(EkRootProblem::CriticalExtension(extension.oid.to_string())))
}
