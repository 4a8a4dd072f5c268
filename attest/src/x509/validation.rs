//! From a leaf to an anchor: whether a path holds.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;

use rustls_pki_types::{AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};

use super::signatures::other_form;
use super::spelling::{Respelled, RespelledAnchors, Spellings};
use super::{Anchor, Budgeted, SignatureBudget, TrustAnchors};

/// Conditions under which a path is valid.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'t> {
    /// The signatures that are accepted in it.
    pub signatures: &'t [&'t dyn SignatureVerificationAlgorithm],
    /// The extended key usage of the leaf, and of the CAs that state one.
    pub usage: KeyUsage,
    /// Budget of signatures for the path.
    pub budget: &'t SignatureBudget,
    pub now: UnixTime,
}

/// A path that holds.
pub struct ValidPath<'a> {
    /// The root that it leads to.
    pub root: &'a Anchor,
    /// The CAs between the leaf and the anchor at its end, as they were sent, the leaf's issuer first.
    pub intermediates: Vec<CertificateDer<'static>>,
}

/// Reason why no path is valid.
#[derive(Debug)]
pub enum PathProblem<'a, E> {
    /// The anchor at its end, or one above that, is not valid yet.
    NotYetValid(&'a Anchor),
    /// The anchor at its end, or one above that, is not valid any more.
    Expired(&'a Anchor),
    /// More CAs are below an anchor than it allows.
    PathLength {
        anchor: &'a Anchor,
        /// Number of CAs that the anchor allows.
        limit: usize,
        found: usize,
    },
    /// No more signatures may be verified.
    BudgetSpent,
    /// An error of webpki.
    Path(webpki::Error),
    /// An error of the kind's own check.
    Own(E),
}

/// Accepts every path, for a kind without a check of its own.
///
/// # Errors
/// None.
pub const fn no_more(_: &VerifiedPath<'_>) -> Result<(), Infallible> {
    Ok(())
}

impl TrustAnchors {
    /// Looks for a path from `leaf`, by way of the certificates `sent`, to one of these. `own` is what a kind asks of each path that webpki finds,
    /// before the anchor is looked at.
    ///
    /// # Errors
    /// [`PathProblem`].
    pub fn validate<'a, E>(
        &'a self,
        leaf: &EndEntityCert<'_>,
        sent: &[CertificateDer<'_>],
        terms: Terms<'_>,
        own: impl Fn(&VerifiedPath<'_>) -> Result<(), E>,
    ) -> Result<ValidPath<'a>, PathProblem<'a, E>> {
        let spellings = Spellings::from_chain(leaf, sent);
        let (anchors, respelled) = (RespelledAnchors::new(self, &spellings), Respelled::new(leaf, sent, &spellings));
        let budgeted = terms.budget.limit(terms.signatures);
        let algorithms = Received::all(&Budgeted::as_algorithms(&budgeted), &respelled);
        // webpki takes any error of this closure for one of its own; the real one goes around it.
        let refused = RefCell::new(None);
        let check = |path: &VerifiedPath<'_>| {
            own(path).map_err(PathProblem::Own)?;
            check_anchors(end_of(&anchors, path)?, path, terms.now)
        };
        let path = leaf.verify_for_usage(
            &Received::as_algorithms(&algorithms),
            &anchors.trusted,
            respelled.certificates(),
            terms.now,
            terms.usage,
            None,
            Some(&|path| {
                check(path).map_err(|problem| {
                    *refused.borrow_mut() = Some(problem);
                    webpki::Error::CertDistrusted
                })
            }),
        );
        let certificates = path.map_err(|error| match (error, refused.take()) {
            (webpki::Error::CertDistrusted, Some(problem)) => problem,
            (webpki::Error::InvalidSignatureForPublicKey, _) if terms.budget.is_exhausted() => PathProblem::BudgetSpent,
            (error, _) => PathProblem::Path(error),
        })?;
        Ok(ValidPath {
            root: end_of(&anchors, &certificates)?.root(),
            intermediates: certificates
                .intermediate_certificates()
                .map(|certificate| respelled.sent(&certificate.der()))
                .collect(),
        })
    }
}

/// Checks what webpki does not know of the anchor at a path's end, and of those above it.
fn check_anchors<'a, E>(end: &'a Anchor, path: &VerifiedPath<'_>, now: UnixTime) -> Result<(), PathProblem<'a, E>> {
    let mut next = Some(end);
    let (mut found, now) = (path.intermediate_certificates().count(), now.as_secs());
    while let Some(anchor) = next {
        if now < anchor.not_before() {
            return Err(PathProblem::NotYetValid(anchor));
        }
        if now > anchor.not_after() {
            return Err(PathProblem::Expired(anchor));
        }
        if let Some(limit) = anchor.path_length().filter(|limit| found > *limit) {
            return Err(PathProblem::PathLength { anchor, limit, found });
        }
        next = anchor.issuer();
        found += 1;
    }
    Ok(())
}

/// The anchor at the end of a path. One that ends at none of these ends nowhere.
fn end_of<'a, E>(anchors: &RespelledAnchors<'a>, path: &VerifiedPath<'_>) -> Result<&'a Anchor, PathProblem<'a, E>> {
    anchors.anchor(path.anchor()).ok_or(PathProblem::Path(webpki::Error::UnknownIssuer))
}

/// An algorithm under one of the names that certificates give it, verifying what the CA has signed: the bytes of a certificate before its subject
/// was respelled.
struct Received<'r> {
    algorithm: &'r dyn SignatureVerificationAlgorithm,
    id: AlgorithmIdentifier,
    respelled: &'r Respelled<'r>,
}

impl<'r> Received<'r> {
    /// Returns these algorithms, each under all of its names.
    fn all(algorithms: &[&'r dyn SignatureVerificationAlgorithm], respelled: &'r Respelled<'r>) -> Vec<Self> {
        let names = |algorithm: &'r dyn SignatureVerificationAlgorithm| {
            let own = algorithm.signature_alg_id();
            let other = other_form(own.as_ref()).map(AlgorithmIdentifier::from_slice);
            let named = move |id| Self { algorithm, id, respelled };
            std::iter::once(own).chain(other).map(named)
        };
        algorithms.iter().flat_map(|algorithm| names(*algorithm)).collect()
    }

    /// Returns the algorithms in the form in which webpki takes them.
    fn as_algorithms(all: &'r [Self]) -> Vec<&'r dyn SignatureVerificationAlgorithm> {
        all.iter().map(|one| -> &dyn SignatureVerificationAlgorithm { one }).collect()
    }
}

impl fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(f)
    }
}

impl SignatureVerificationAlgorithm for Received<'_> {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let holds = |signed| self.algorithm.verify_signature(public_key, signed, signature).is_ok();
        self.respelled.signed(message).any(holds).then_some(()).ok_or(InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.id
    }
}
