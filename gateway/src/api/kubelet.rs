//! A kubelet's client certificate, shown for a config.

use attest::UnixTime;
use attest_certificates::Certificate;
use attest_certificates::kubelet::{Authorities, KubeletError, PresentedCertificate, VerifiedKubelet, verify};
use attest_log::{Basis, Blobs, LargeParts};
use attest_machines::revocations;
use attest_store::EntryTransaction;
use attest_system::clock::rfc3339;

use super::problem::Refusal;
use crate::admission::{ClientSource, Length, TooBusy, Verification};
use crate::credentials::kubelet;
use crate::policy::Grant;
use attest_pool::Pool;

/// Result of verifying a client certificate, with its basis.
pub(super) struct Examined {
    pub basis: Basis,
    /// Blobs that the basis names.
    pub large_parts: LargeParts,
    pub verified: Result<VerifiedKubelet, KubeletError>,
}

/// Verifies a certificate by the CAs and the time of this very request, however old the connection is.
pub(super) async fn examine(
    verification: &Verification,
    authorities: &Authorities,
    pool: &Pool,
    presented: &PresentedCertificate,
    source: ClientSource,
    now: UnixTime,
) -> Result<Examined, TooBusy> {
    let judge = || verify(presented, authorities, now);
    let verified = verification.run(source, Length::Long, judge).await?;
    let mut basis = Basis {
        client_certificate_sha256: presented.leaf_fingerprint().map(|fingerprint| fingerprint.to_string()),
        kubelet_names: pool.kubelet_names.as_slice().to_vec(),
        ..Basis::default()
    };
    let mut kept = LargeParts::new();
    // A chain is kept if a CA of the cluster has signed it. Of a stranger's there is its fingerprint and nothing else.
    let path = verified.as_ref().map_or_else(|error| error.path(), |verified| verified.path());
    if !path.is_empty() {
        basis.client_chain = path.iter().map(|certificate| keep(certificate, &mut kept)).collect();
        let authorities = authorities.certificates();
        basis.client_authorities = authorities.map(|Certificate { der, .. }| keep(der, &mut kept)).collect();
    }
    Ok(Examined {
        basis,
        large_parts: kept,
        verified,
    })
}

/// Returns the log's reason for a valid certificate.
pub(super) fn reason(verified: &VerifiedKubelet) -> String {
    format!(
        "a kubelet's client certificate was shown: subject {}, issuer {}, serial {}, valid until {}",
        verified.subject(),
        verified.issuer(),
        verified.serial(),
        rfc3339(verified.not_after())
    )
}

/// Returns the grant for a certificate, by the revocations and the pool of this request.
pub(super) fn grant(
    transaction: &mut EntryTransaction<'_>,
    pool: &Pool,
    verified: &VerifiedKubelet,
    now: UnixTime,
) -> Result<Grant, Refusal> {
    let member = match kubelet::admit(transaction, verified, pool.name(), &pool.kubelet_names) {
        // Said first, since names need not be given where nothing is.
        Err(kubelet::MemberError::WrongPool(_)) if pool.kubelet_names.is_empty() => {
            return Err(Refusal::kubelet_not_accepted(pool.name()));
        }
        member => member?,
    };
    let noted = revocations::note_kubelet(transaction, verified.name(), now.as_secs());
    noted.map_err(|error| Refusal::because(&error))?;
    Grant::for_kubelet(&pool.grants, &member).ok_or_else(|| Refusal::kubelet_not_accepted(pool.name()))
}

fn keep(content: &[u8], kept: &mut LargeParts) -> String {
    let name = Blobs::name(content);
    kept.push((name.clone(), content.into()));
    name
}
