//! Chains of EK certificates that were found to hold, so that the same one need not be verified at the challenge and at the evidence.
//!
//! A known chain is only used if a new verification would give the same result. The result for a chain depends on the bytes, the roots and
//! the time; and on the time only through the validity of each certificate. So it is the same for the same bytes, under the same roots,
//! until one of all those certificates begins or ceases to be valid. Only [`KnownChain`] records that, and no other code can make one. So a
//! cache may lose chains, or return a wrong one, without harm.

use std::fmt;
use std::sync::Arc;

use rustls_pki_types::UnixTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::{EkCertificateError, EkRoots, VerifiedEkCertificate, verify, without_padding};
use crate::nonce::sha256;

/// Keeps them for a while; as many, and for as long, as it likes.
pub trait KnownChains: fmt::Debug + Send + Sync {
    /// The one of this certificate and what was sent with it, by a digest of all.
    fn get(&self, of: &[u8; 32]) -> Option<Arc<KnownChain>>;

    /// Stores a chain that was verified.
    fn keep(&self, of: [u8; 32], chain: KnownChain);
}

/// Verified chain of an EK certificate, with its roots and its period of validity.
#[derive(Debug, Clone)]
pub struct KnownChain {
    of: [u8; 32],
    roots: Arc<EkRoots>,
    /// The first and the last second for which it was found out.
    times: (u64, u64),
    verified: VerifiedEkCertificate,
}

/// Like [`verify`], but returns the cached result of a chain that is known.
pub(crate) fn verify_unless_cached(
    certificate: &[u8],
    intermediates: &[&[u8]],
    roots: &Arc<EkRoots>,
    known: Option<&dyn KnownChains>,
    now: UnixTime,
) -> Result<VerifiedEkCertificate, EkCertificateError> {
    let Some(known) = known else {
        return verify(certificate, intermediates, roots, now);
    };
    let of = digest(certificate, intermediates);
    if let Some(chain) = known.get(&of).filter(|chain| chain.is_so(&of, roots, now)) {
        return Ok(chain.verified.clone());
    }
    let verified = verify(certificate, intermediates, roots, now)?;
    let chain = KnownChain {
        of,
        roots: Arc::clone(roots),
        times: (now.as_secs(), last_second(certificate, intermediates, roots, now.as_secs())),
        verified: verified.clone(),
    };
    known.keep(of, chain);
    Ok(verified)
}

impl KnownChain {
    fn is_so(&self, of: &[u8; 32], roots: &Arc<EkRoots>, now: UnixTime) -> bool {
        let (first, last) = self.times;
        self.of == *of && Arc::ptr_eq(&self.roots, roots) && (first..=last).contains(&now.as_secs())
    }
}

/// Returns the digest of a certificate and the certificates sent with it, in this order.
fn digest(certificate: &[u8], intermediates: &[&[u8]]) -> [u8; 32] {
    let each = |bytes: &[u8]| sha256(&[bytes]);
    let digests: Vec<[u8; 32]> = [certificate].iter().chain(intermediates).map(|bytes| each(bytes)).collect();
    sha256(&digests.iter().map(<[u8; 32]>::as_slice).collect::<Vec<_>>())
}

/// Returns the last second before anything that may have a part in the chain begins or ceases to be valid. Unreadable certificates have no
/// part.
fn last_second(certificate: &[u8], intermediates: &[&[u8]], roots: &EkRoots, now: u64) -> u64 {
    let sent = [certificate].into_iter().chain(intermediates.iter().copied()).filter_map(|bytes| {
        let (_, parsed) = X509Certificate::from_der(without_padding(bytes).ok()?).ok()?;
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let validity = parsed.validity();
        Some((seconds(validity.not_before.timestamp()), seconds(validity.not_after.timestamp())))
    });
    let anchors = roots.anchors().iter().map(|anchor| (anchor.not_before(), anchor.not_after()));
    let next = sent.chain(anchors).filter_map(|(not_before, not_after)| match now {
        _ if now < not_before => Some(not_before - 1),
        _ if now <= not_after => Some(not_after),
        _ => None,
    });
    next.min().unwrap_or(now)
}
