//! A kubelet's client certificate, shown for a config.

use std::net::IpAddr;

use attest::UnixTime;

use super::Gateway;
use super::config::turned_out_wrong;
use super::problem::Refusal;
use crate::audit::{Basis, Blobs, Record};
use crate::certificates::Certificate;
use crate::clock::rfc3339;
use crate::credentials::kubelet::{self, Presented};
use crate::machines::revocations;
use crate::policy::Grant;
use crate::pools::Pool;

/// What the record refers to: names and contents of blobs.
pub(super) type Kept = Vec<(String, Vec<u8>)>;

/// What a certificate earns: by the CAs, the time, the revocations and the pool of this very request, however old the connection is.
pub(super) async fn grant(
    gateway: &Gateway,
    pool: &Pool,
    presented: &Presented,
    peer: IpAddr,
    now: UnixTime,
    record: &mut Record,
    kept: &mut Kept,
) -> Result<Grant, Refusal> {
    let tls = gateway.tls.current();
    let basis = record.basis.insert(Basis {
        client_certificate_sha256: presented.leaf_fingerprint().map(|fingerprint| fingerprint.to_string()),
        kubelet_names: pool.kubelet_names.as_slice().to_vec(),
        ..Basis::default()
    });
    let verify = || kubelet::verify(presented, &tls.client_authorities, now);
    let verified = gateway.admission.verification.run(peer.into(), verify).await?;
    // A chain is kept if a CA of the cluster has signed it. Of a stranger's there is its fingerprint and nothing else.
    let path = verified.as_ref().map_or_else(|error| error.path(), |verified| verified.path());
    if !path.is_empty() {
        basis.client_chain = path.iter().map(|certificate| keep(certificate, kept)).collect();
        let authorities = tls.client_authorities.certificates();
        basis.client_authorities = authorities.map(|Certificate { der, .. }| keep(der, kept)).collect();
    }
    let verified = verified.map_err(|error| match error.path() {
        // A stranger's: it fills the log as a wrong token does.
        [] => turned_out_wrong(gateway, peer, now, error.into()),
        _ => error.into(),
    })?;
    record.identity = Some(verified.identity());
    record.name = Some(verified.name().to_owned());
    record.reason = format!(
        "a kubelet's client certificate was shown: subject {}, issuer {}, serial {}, valid until {}",
        verified.subject(),
        verified.issuer(),
        verified.serial(),
        rfc3339(verified.not_after())
    );
    let member = kubelet::admit(&*gateway.store, &verified, pool.name(), &pool.kubelet_names).await;
    if member.is_ok() {
        let noted = revocations::note_kubelet(&*gateway.store, verified.name(), now.as_secs()).await;
        noted.map_err(|error| Refusal::because(&error))?;
    }
    match member {
        // Said first, since names need not be given where nothing is.
        Err(kubelet::MemberError::WrongPool { .. }) if pool.kubelet_names.is_empty() => Err(Refusal::kubelet_not_accepted(pool.name())),
        member => pool
            .grants
            .for_kubelet(&member?)
            .ok_or_else(|| Refusal::kubelet_not_accepted(pool.name())),
    }
}

fn keep(content: &[u8], kept: &mut Kept) -> String {
    let name = Blobs::name(content);
    kept.push((name.clone(), content.to_vec()));
    name
}
