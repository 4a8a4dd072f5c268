//! The CAs between Azure's metadata services and the configured roots: those of the folder, and those that are fetched when a document
//! needs them.
//!
//! The sender of a document chooses what is fetched, within the list of [`AllowedUrl`], before anything is verified. So all fetches share
//! one rate limit. Answers and failures are cached. A fetched CA is kept for other documents only after a whole document has been verified
//! with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use attest::UnixTime;
use attest::azure::attested_document::{self, AllowedUrl, AttestedDocumentError, AzureTrust, ImdsNonce, IssuerUrls};
use attest_certificates::folder;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::outgoing::Outgoing;
use super::single_flight::Flights;
use crate::metrics::{FetchResult, Metrics};

/// Largest answer that is read, in bytes: a certificate of at most 8 KiB, in PEM.
const ISSUER_LIMIT_BYTES: usize = 12 * 1024;
/// Most CAs that are fetched for one document. Azure's chains have one between the metadata service and the root, cross-signed ones two.
const HOPS_LIMIT: usize = 3;
/// Most fetched CAs that are kept. Microsoft lists about 60 for all of Azure.
const KEPT_LIMIT: usize = 48;
/// Most URLs whose answers are remembered, the bad ones included.
const ANSWERS_LIMIT: usize = 64;
/// Time in which a fetched CA is not fetched again. Documents that were verified do not need a CA that is not kept.
const GOOD_SECONDS: u64 = 3600;
/// Time in which a URL that gave no CA is not asked again.
const BAD_SECONDS: u64 = 60;
/// Most fetches within [`RATE_SECONDS`]. A gateway needs a few in its life; a client that causes more sends documents that no root vouches
/// for.
const RATE_LIMIT: u32 = 30;
/// Period in which fetches are counted together for the rate limit.
const RATE_SECONDS: u64 = 60;

/// Certificates that attested documents are verified against.
#[derive(Debug, Clone)]
pub struct AzureTrustInUse {
    /// Clouds, roots and CAs in between.
    pub trust: Arc<AzureTrust>,
    /// The same certificates, for the record: [`attest_certificates::cloud_roots::azure_trust_of`] makes the trust of them again.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// The CAs, and how to come by more.
pub(super) struct Issuers {
    configured: AzureTrustInUse,
    current: ArcSwap<AzureTrustInUse>,
    outgoing: Option<Outgoing>,
    wait: Duration,
    metrics: Arc<Metrics>,
    flights: Flights<String, ()>,
    answers: Mutex<Answers>,
    /// Those that documents were verified with.
    verified_issuers: Mutex<Vec<CertificateDer<'static>>>,
}

/// Result of following a document's chain to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IssuerChain {
    /// To a root, and the document's signature is right.
    Complete,
    /// To an issuer that is not known.
    Unknown,
    /// No issuer will help.
    Hopeless,
}

impl Issuers {
    /// Creates the issuers. Without `outgoing`, nothing is fetched.
    pub(super) fn new(configured: AzureTrustInUse, outgoing: Option<Outgoing>, wait: Duration, metrics: Arc<Metrics>) -> Self {
        Self {
            current: ArcSwap::from_pointee(configured.clone()),
            configured,
            outgoing,
            wait,
            metrics,
            flights: Flights::default(),
            answers: Mutex::default(),
            verified_issuers: Mutex::default(),
        }
    }

    /// Returns the configured CAs, and the fetched ones with which a document was verified.
    pub(super) fn current(&self) -> AzureTrustInUse {
        self.current.load().as_ref().clone()
    }

    /// Returns trust that verifies a document which [`Issuers::current`] could not verify, if the missing CAs can be fetched within the
    /// wait.
    pub(super) async fn complete(self: &Arc<Self>, signature: &[u8], now: UnixTime) -> Option<AzureTrustInUse> {
        self.outgoing.as_ref()?;
        tokio::time::timeout(self.wait, self.chain(signature, now)).await.ok()?
    }

    async fn chain(self: &Arc<Self>, signature: &[u8], now: UnixTime) -> Option<AzureTrustInUse> {
        // Another request may have found it meanwhile.
        let current = self.current();
        match reach(signature, &current.trust, now) {
            IssuerChain::Complete => return Some(current),
            IssuerChain::Unknown => {}
            IssuerChain::Hopeless => return None,
        }
        let mut urls = attested_document::issuer_urls(signature).ok()?;
        let mut fetched: Vec<CertificateDer<'static>> = Vec::new();
        for _ in 0..HOPS_LIMIT {
            for refused in &urls.refused {
                tracing::debug!("not fetching a certificate's issuer from {refused}: address not allowed");
            }
            let issuer = self.first(&urls.allowed, now.as_secs()).await?;
            urls = IssuerUrls::from_certificate(&issuer);
            fetched.push(issuer);
            // What is no CA, and what is one too many, is refused here.
            let trust = AzureTrust::clone(&current.trust).with_intermediates(fetched.clone()).ok()?;
            match reach(signature, &trust, now) {
                IssuerChain::Complete => {
                    self.keep(&fetched);
                    let certificates = current.certificates.iter().chain(&fetched).cloned().collect();
                    let trust = Arc::new(trust);
                    return Some(AzureTrustInUse { trust, certificates });
                }
                IssuerChain::Unknown => {}
                IssuerChain::Hopeless => return None,
            }
        }
        None
    }

    /// Returns the first certificate that comes from any of the URLs.
    async fn first(self: &Arc<Self>, urls: &[AllowedUrl], now: u64) -> Option<CertificateDer<'static>> {
        for url in urls {
            let flight = self.flights.join(url.as_str().to_owned(), || {
                let outgoing = self.outgoing.clone()?;
                let allowed = self.answers().begin(url, now);
                if allowed == Begin::Limited {
                    self.metrics.cloud_fetched("azure-issuer", FetchResult::Limited);
                }
                (allowed == Begin::Fetch).then(|| Arc::clone(self).fetch(outgoing, url.clone(), now))
            });
            if let Some(flight) = flight {
                flight.await;
            }
            if let Some(found) = self.answers().get(url, now) {
                return Some(found);
            }
        }
        None
    }

    async fn fetch(self: Arc<Self>, outgoing: Outgoing, url: AllowedUrl, now: u64) {
        let answer = outgoing.get(url.as_str(), "application/pkix-cert", ISSUER_LIMIT_BYTES).await;
        let found = answer.and_then(|answer| issuer(answer.body).map_err(|problem| format!("{}: {problem}", url.as_str())));
        self.metrics.cloud_fetched(
            "azure-issuer",
            if found.is_ok() {
                FetchResult::Answered
            } else {
                FetchResult::Failed
            },
        );
        if let Err(problem) = &found {
            // At most as often as the rate allows.
            tracing::warn!("cannot fetch an Azure CA certificate: {problem}");
        }
        self.answers().note(&url, now, found.ok());
    }

    /// Keeps what has proved its worth, for all documents to come.
    fn keep(&self, fetched: &[CertificateDer<'static>]) {
        let mut kept = self.verified_issuers.lock().unwrap_or_else(PoisonError::into_inner);
        for certificate in fetched {
            if kept.len() < KEPT_LIMIT && !kept.contains(certificate) {
                tracing::info!("verified a document with a fetched Azure CA certificate: {}", subject(certificate));
                kept.push(certificate.clone());
            }
        }
        let trust = AzureTrust::clone(&self.configured.trust).with_intermediates(kept.clone());
        if let Ok(trust) = trust {
            let certificates = self.configured.certificates.iter().chain(kept.iter()).cloned().collect();
            let trust = Arc::new(trust);
            self.current.store(Arc::new(AzureTrustInUse { trust, certificates }));
        }
    }

    fn answers(&self) -> std::sync::MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows the chain of a document. The nonce is not known here; [`attested_document::verify`] checks it last.
fn reach(signature: &[u8], trust: &AzureTrust, now: UnixTime) -> IssuerChain {
    match attested_document::verify(signature, trust, &ImdsNonce::derive(&[0; 32]), now) {
        Ok(_) | Err(AttestedDocumentError::Nonce { .. }) => IssuerChain::Complete,
        Err(error) if error.is_unknown_issuer() => IssuerChain::Unknown,
        Err(_) => IssuerChain::Hopeless,
    }
}

/// Parses the only certificate of an answer, DER or PEM. One that issued itself would complete nothing: it is a root, configured or not.
fn issuer(body: Vec<u8>) -> Result<CertificateDer<'static>, String> {
    let mut found = folder::certificates(body).into_iter();
    let (Some(certificate), None) = (found.next(), found.next()) else {
        return Err("not one certificate".to_owned());
    };
    let certificate = certificate?;
    let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|error| format!("not a certificate: {error}"))?;
    if parsed.subject() == parsed.issuer() {
        return Err("the certificate of a CA that issued itself; a root is configured (azure.roots), never fetched".to_owned());
    }
    Ok(certificate)
}

/// Returns the subject of a certificate, for the log.
fn subject(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate).map_or_else(|_| String::new(), |(_, parsed)| parsed.subject().to_string())
}

/// Decision on a fetch of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    Fetch,
    /// Its last answer is still valid, whether it was a certificate or not.
    Known,
    Limited,
}

/// Answers of URLs, and the number of fetches in the current period.
#[derive(Debug, Default)]
struct Answers {
    /// By URL: when, and what came.
    by_url: BTreeMap<String, (u64, Option<CertificateDer<'static>>)>,
    /// Start of the current rate-limit period, in seconds since 1970.
    since: u64,
    count: u32,
}

impl Answers {
    /// Returns the certificate that a URL gave, if it is younger than [`GOOD_SECONDS`].
    fn get(&self, url: &AllowedUrl, now: u64) -> Option<CertificateDer<'static>> {
        let (at, found) = self.by_url.get(url.as_str())?;
        found.clone().filter(|_| now.abs_diff(*at) < GOOD_SECONDS)
    }

    fn begin(&mut self, url: &AllowedUrl, now: u64) -> Begin {
        let counts = |(at, found): &(u64, Option<_>)| now.abs_diff(*at) < if found.is_some() { GOOD_SECONDS } else { BAD_SECONDS };
        if self.by_url.get(url.as_str()).is_some_and(counts) {
            return Begin::Known;
        }
        // A clock that was set back begins anew as well.
        if now.abs_diff(self.since) >= RATE_SECONDS {
            (self.since, self.count) = (now, 0);
        }
        if self.count >= RATE_LIMIT {
            return Begin::Limited;
        }
        self.count += 1;
        Begin::Fetch
    }

    fn note(&mut self, url: &AllowedUrl, now: u64, found: Option<CertificateDer<'static>>) {
        if self.by_url.len() >= ANSWERS_LIMIT && !self.by_url.contains_key(url.as_str()) {
            let oldest = self.by_url.iter().min_by_key(|(_, (at, _))| *at).map(|(url, _)| url.clone());
            oldest.map(|oldest| self.by_url.remove(&oldest));
        }
        self.by_url.insert(url.as_str().to_owned(), (now, found));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn url(number: u64) -> AllowedUrl {
        AllowedUrl::new(&format!("http://cacerts.digicert.com/{number}.crt")).unwrap()
    }

    #[test]
    fn attack_19_fetches_are_bounded_in_number() {
        let mut answers = Answers::default();
        let begun = (0..1000)
            .filter(|number| answers.begin(&url(*number), 100_000) == Begin::Fetch)
            .count();
        assert_eq!(begun, usize::try_from(RATE_LIMIT).unwrap());
        assert_eq!(answers.begin(&url(0), 100_000 + RATE_SECONDS - 1), Begin::Limited);
        assert_eq!(answers.begin(&url(0), 100_000 + RATE_SECONDS), Begin::Fetch);
        assert_eq!(answers.begin(&url(0), 10), Begin::Fetch, "the clock was set back");
    }

    #[test]
    fn attack_19_issuer_cache_is_bounded_and_expires() {
        let mut answers = Answers::default();
        for number in 0..1000 {
            answers.note(&url(number), number, None);
        }
        assert_eq!(answers.by_url.len(), ANSWERS_LIMIT);
        assert_eq!(answers.begin(&url(999), 999 + BAD_SECONDS - 1), Begin::Known);
        assert_eq!(answers.begin(&url(999), 999 + BAD_SECONDS), Begin::Fetch);
        assert_eq!(answers.get(&url(999), 999), None);
        let certificate = CertificateDer::from(vec![1]);
        answers.note(&url(999), 1000, Some(certificate.clone()));
        assert_eq!(answers.get(&url(999), 1000), Some(certificate));
        assert_eq!(answers.begin(&url(999), 999 + GOOD_SECONDS), Begin::Known);
        assert_eq!(answers.get(&url(999), 1000 + GOOD_SECONDS), None);
        assert_eq!(answers.begin(&url(999), 1000 + GOOD_SECONDS), Begin::Fetch);
    }

    #[test]
    fn attack_19_refuses_an_issuer_that_is_no_certificate() {
        for body in ["", "<html>", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(issuer(body.into()).is_err(), "{body}");
        }
    }
}
