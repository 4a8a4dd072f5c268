//! Requests to the API about a CSR: reads of the state at that moment, and the approval.

use attest::SpkiSha256;
use attest_cluster_api::events::Events;
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_machines::attested::{Approval, AttestedMachine};
use attest_system::clock::{Clock, rfc3339};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};

use super::csr::{APPROVED, Csr};
use super::csr_object::CsrObject;
use super::judge::Ground;
use super::request_watch::CLIENT_REQUESTS;
use super::watches::NODES;

/// Reason in the condition by which a request is approved.
const CONDITION_REASON: &str = "AttestationApproved";

/// The whole object of a CSR, if it is at this moment as it was judged.
pub(super) async fn whole(cluster: &ClusterClient, csr: &Csr) -> Result<Option<CertificateSigningRequest>, ClusterError> {
    let requests: Api<CertificateSigningRequest> = Api::all(cluster.client());
    let found = cluster.ask(CLIENT_REQUESTS, requests.get_opt(&csr.name)).await?;
    Ok(found.filter(|object| Csr::from_object(&CsrObject::from(object)).as_ref() == Some(csr)))
}

/// Approves the CSR at the API, if it is unchanged since it was read, and writes an event.
pub(super) async fn approve(
    cluster: &ClusterClient,
    csr: &Csr,
    object: CertificateSigningRequest,
    why: &str,
    (events, clock): (&mut Events, Clock),
) -> Result<(), ClusterError> {
    let message = format!("approved by attest-controller: {why}");
    let mut approved = object;
    let now = clock.now().as_secs();
    let at = i64::try_from(now).ok().and_then(|now| Timestamp::from_second(now).ok()).map(Time);
    let conditions = approved.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.push(CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some(CONDITION_REASON.to_owned()),
        message: Some(message.clone()),
        last_update_time: at.clone(),
        last_transition_time: at,
    });
    let requests: Api<CertificateSigningRequest> = Api::all(cluster.client());
    let parameters = PostParams::default();
    let told = requests.replace_subresource("approval", &csr.name, &parameters, &approved);
    match cluster.ask(CLIENT_REQUESTS, told).await {
        Ok(_) => {}
        // Somebody else has done something with it: it is looked at as it is then.
        Err(error) if error.is_status(409) || error.is_status(404) => return Ok(()),
        Err(error) => return Err(error),
    }
    tracing::info!("CSR {} approved: {why}", csr.name);
    events.post(cluster, csr.about(), APPROVED, &message, now).await?;
    Ok(())
}

/// A Node as it is at this moment.
pub(super) async fn node(cluster: &ClusterClient, name: &str) -> Result<Option<Node>, ClusterError> {
    let nodes: Api<Node> = Api::all(cluster.client());
    cluster.ask(NODES, nodes.get_opt(name)).await
}

/// Returns whether such a Node exists at this moment: the watch learns of it later.
pub(super) async fn has_node(cluster: &ClusterClient, name: &str) -> Result<bool, ClusterError> {
    let nodes: Api<Node> = Api::all(cluster.client());
    Ok(cluster.ask(NODES, nodes.get_metadata_opt(name)).await?.is_some())
}

/// Returns the approval, as the store keeps it.
pub(super) fn approval(csr: &Csr, key: &SpkiSha256, ground: &Ground, now: u64) -> Approval {
    let Ground {
        identity,
        attested,
        bound,
        machine,
    } = ground;
    let AttestedMachine {
        instance, pool, decision, ..
    } = attested;
    Approval {
        identity: identity.clone(),
        instance: instance.clone(),
        pool: pool.clone(),
        at: now,
        attestation: decision.clone(),
        bound: *bound,
        machine: machine.clone(),
        csr: csr.name.clone(),
        uid: csr.uid.clone(),
        key_sha256: key.to_string(),
    }
}

/// Returns the reason for an approval, as text for users.
pub(super) fn why(name: &str, approval: &Approval) -> String {
    let Approval {
        identity,
        pool,
        at,
        attestation,
        ..
    } = approval;
    format!(
        "{identity} attested for pool {pool} (decision {attestation}) and is {name}; decided at {}",
        rfc3339(*at)
    )
}
