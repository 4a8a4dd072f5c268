//! A CertificateSigningRequest, as far as it is judged.

use attest_cluster_api::events::{About, EventText};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};

use super::csr_object::{BoundedList, CsrObject, RequestBytes};
use super::request::{RequestError, VerifiedCsr};

/// The signer of kubelets' client certificates.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of kubelets' serving certificates.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Prefix of a node's user name, by which the API knows its client certificate.
pub const NODE_USER: &str = "system:node:";

/// Reasons of the events that the approver writes.
pub(super) const APPROVED: EventText = EventText {
    reason: "AttestationApproved",
    warning: false,
};
pub(super) const NOT_APPROVED: EventText = EventText {
    reason: "AttestationNotApproved",
    warning: true,
};

/// Use of a kubelet's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CsrPurpose {
    /// A kubelet's at the API.
    Client,
    /// A kubelet's at its own port.
    Serving,
}

/// Progress of a request at the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsrStage {
    Pending,
    /// Approved, by whomever; perhaps signed.
    Approved,
    /// Denied, or it failed.
    Closed,
}

/// A request for a kubelet's certificate, by whomever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csr {
    pub name: String,
    pub uid: String,
    /// Time of its creation by the API's clock, in seconds since 1970.
    pub created: u64,
    pub purpose: CsrPurpose,
    /// User that has created it, as the API says.
    pub username: String,
    pub groups: Vec<String>,
    pub usages: Vec<String>,
    pub expiration_seconds: Option<i32>,
    pub stage: CsrStage,
    /// Time of the approval by the approver's clock, in seconds since 1970.
    pub approved: Option<u64>,
    pub request: Result<VerifiedCsr, RequestError>,
}

impl Csr {
    /// As events name it.
    pub(super) fn about(&self) -> About<'_> {
        About {
            api_version: "certificates.k8s.io/v1",
            kind: "CertificateSigningRequest",
            name: &self.name,
            uid: &self.uid,
        }
    }

    /// Reads one. `None` if it is another signer's, or asks for the renewal of a client certificate, which the kube-controller-manager approves.
    #[must_use]
    pub fn from_object(object: &CsrObject) -> Option<Self> {
        let spec = &object.spec;
        let purpose = match spec.signer_name.0.as_str() {
            CLIENT_SIGNER => CsrPurpose::Client,
            SERVING_SIGNER => CsrPurpose::Serving,
            _ => return None,
        };
        let username = spec.username.as_ref().map(|username| username.0.clone()).unwrap_or_default();
        let request = match &spec.request {
            RequestBytes::Whole(bytes) => VerifiedCsr::read(bytes),
            RequestBytes::TooLarge { found } => Err(RequestError::TooLarge { found: *found }),
        };
        let is_of_itself = |request: &VerifiedCsr| username.strip_prefix(NODE_USER) == Some(&request.name);
        if purpose == CsrPurpose::Client && request.as_ref().is_ok_and(is_of_itself) {
            return None;
        }
        let created = seconds(object.meta().creation_timestamp.as_ref()?)?;
        let (stage, approved) = stage(object);
        Some(Self {
            name: object.name_any(),
            uid: object.meta().uid.clone()?,
            created,
            purpose,
            username,
            groups: spec.groups.as_ref().map(BoundedList::texts).unwrap_or_default(),
            usages: spec.usages.as_ref().map(BoundedList::texts).unwrap_or_default(),
            expiration_seconds: spec.expiration_seconds,
            stage,
            approved,
            request,
        })
    }

    /// The node that it is for, if that can be read.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.request.as_ref().ok().map(|request| request.name.as_str())
    }
}

fn seconds(time: &Time) -> Option<u64> {
    u64::try_from(time.0.as_second()).ok()
}

/// Returns the stage of a CSR, and the time of its approval.
fn stage(object: &CsrObject) -> (CsrStage, Option<u64>) {
    let conditions = object
        .status
        .conditions
        .as_ref()
        .map(|list| list.elements.as_slice())
        .unwrap_or_default();
    let find = |wanted: &str| conditions.iter().find(|condition| condition.kind.0 == wanted);
    if find("Denied").is_some() || find("Failed").is_some() {
        return (CsrStage::Closed, None);
    }
    match find("Approved") {
        Some(condition) => (CsrStage::Approved, condition.last_update_time.as_ref().and_then(seconds)),
        None if object.status.certificate.is_some() => (CsrStage::Approved, None),
        None => (CsrStage::Pending, None),
    }
}
