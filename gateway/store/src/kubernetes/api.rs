//! Requests to the cluster's API: one object, which is changed on condition of its previous state, and leaves, which do not change.

use std::time::Duration;

use crate::cluster_api::{self, ClusterError, explain};
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64, HEXLOWER};
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta, PostParams, Preconditions};
use kube::{Client, Error};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::{StoreError, schema};
use super::head::{Head, HeadError, pack, unpack};
use super::view::Pairs;
use crate::settings::KubernetesSettings;

/// Annotation with the state of the object, which a change of it requires.
const COMMIT: &str = "attest-gateway/commit";
/// Label of a leaf, with the store that it belongs to.
const LEAF_OF: &str = "attest-gateway/leaf-of";
/// Key of the Secret's data with an object's content.
const DATA: &str = "data";
/// Type of these secrets, by which a list shows their purpose.
const TYPE: &str = "attest-gateway/store";
/// Pause between two attempts of an idempotent request.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Maximum bytes of a packed head: an API takes no secret of more than 1 MiB (`MaxSecretSize` in Kubernetes' `pkg/apis/core/types.go`).
pub(super) const MOST_HEAD_BYTES: usize = 960 * 1024;
/// Characters of an API's message that are passed on: more than its longest refusals have.
const MOST_SAID_CHARS: usize = 500;
/// Number of leaves that are listed at once.
const PAGE: u32 = 500;

/// Reason for a missing or unexpected answer.
#[derive(Debug, Clone)]
pub(super) enum RequestFailure {
    /// The outcome is unknown, if the request was a change.
    Unanswered(String),
    /// The API's certificate is not accepted: nothing was sent.
    Untrusted(String),
    /// The request was not done.
    Refused { code: u16, message: String },
    /// A newer release has written the content.
    Newer { found: i64, release: Option<String> },
    /// The content was not written by a gateway.
    Foreign(String),
    /// A leaf is not what it was.
    Damaged(String),
}

/// Outcome of a change of the head.
#[derive(Debug)]
pub(super) enum Swapped {
    Done,
    /// The object has another state, or has this one because the same change was sent earlier. Or the API does not let it be changed in any
    /// state.
    Refused(String),
}

/// Location of a store, and the client for it.
#[derive(Clone)]
pub(super) struct StoreLocation {
    client: Client,
    secrets: Api<Secret>,
    namespace: String,
    pub name: String,
    /// Location for messages: secret and namespace.
    pub place: String,
}

/// Shows nothing of the client: it holds a token.
impl std::fmt::Debug for StoreLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place)
    }
}

/// A request that was answered, and not as it wished.
fn failure(error: &Error) -> RequestFailure {
    match error {
        // What is answered so, an API may have begun: 500, 503 and 504 come from its own store, or from what stands before it; 429 from a limit of either.
        Error::Api(status) if status.code == 429 || status.code >= 500 => RequestFailure::Unanswered(beginning(&status.message)),
        Error::Api(status) if status.code == 401 => RequestFailure::Refused {
            code: 401,
            message: explain(error),
        },
        Error::Api(status) => RequestFailure::Refused {
            code: status.code,
            message: beginning(&status.message),
        },
        error if cluster_api::is_untrusted_certificate(error) => RequestFailure::Untrusted(explain(error)),
        error => RequestFailure::Unanswered(explain(error)),
    }
}

/// Returns the beginning of a message. An answer other than a `Status`, from any proxy in front of the API, is a message as a whole.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(MOST_SAID_CHARS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

impl StoreLocation {
    pub(super) async fn from_settings(settings: &KubernetesSettings) -> Result<Self, StoreError> {
        let place = settings.place();
        let unusable = |error: &ClusterError| StoreError::Engine {
            engine: "kubernetes",
            place: place.clone(),
            problem: error.to_string(),
            advice: "check [cluster] in gateway.toml".to_owned(),
        };
        let (client, namespace) = cluster_api::client_that_asks_once(&settings.cluster)
            .await
            .map_err(|error| unusable(&error))?;
        Ok(Self {
            secrets: Api::namespaced(client.clone(), &namespace),
            client,
            name: settings.name.clone(),
            place: format!("secret {} in namespace {namespace}", settings.name),
            namespace,
        })
    }

    /// Repeats an idempotent request until it is answered, or the time is over.
    async fn ask<T, F>(&self, until: Instant, mut request: impl FnMut() -> F) -> Result<T, RequestFailure>
    where
        F: Future<Output = kube::Result<T>>,
    {
        loop {
            match self.ask_once(until, request()).await {
                Err(RequestFailure::Unanswered(_)) if Instant::now() + AGAIN_AFTER < until => sleep(AGAIN_AFTER).await,
                answer => return answer,
            }
        }
    }

    async fn ask_once<T>(&self, until: Instant, request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestFailure> {
        match timeout_at(until, request).await {
            Ok(answer) => answer.map_err(|error| failure(&error)),
            Err(_) => Err(RequestFailure::Unanswered("there was no answer in time".to_owned())),
        }
    }

    /// Returns the current state of the object, if it exists. An API answers a read without a resource version from the quorum of its own
    /// store.
    pub(super) async fn commit(&self, until: Instant) -> Result<Option<String>, RequestFailure> {
        let found = self.ask(until, || self.secrets.get_metadata_opt(&self.name)).await?;
        Ok(found.map(|found| annotation_text(&found.metadata, COMMIT)))
    }

    /// Returns the current head, if it exists.
    pub(super) async fn head(&self, until: Instant) -> Result<Option<Head>, RequestFailure> {
        let Some(found) = self.ask(until, || self.secrets.get_opt(&self.name)).await? else {
            return Ok(None);
        };
        let commit = annotation_text(&found.metadata, COMMIT);
        let data = found.data.and_then(|mut data| data.remove(DATA));
        let data = data.ok_or_else(|| RequestFailure::Foreign(format!("it has no data {DATA:?}")))?;
        Head::decode(&data.0, &commit).map(Some).map_err(|unread| match unread {
            HeadError::Newer { found, release } => RequestFailure::Newer { found, release },
            HeadError::Foreign(why) => RequestFailure::Foreign(why),
        })
    }

    /// Creates the object, unless it exists; returns whether it did. Sends one request.
    pub(super) async fn create(&self, head: &Head, data: Vec<u8>, until: Instant) -> Result<bool, RequestFailure> {
        let mut secret = secret(&self.name, data);
        secret.metadata.annotations = Some([(COMMIT.to_owned(), head.commit.clone())].into());
        let parameters = PostParams::default();
        match self.ask_once(until, self.secrets.create(&parameters, &secret)).await {
            Ok(_) => Ok(true),
            Err(RequestFailure::Refused { code: 409, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Puts a state in the place of that which has this commit, and of no other. Asked once.
    pub(super) async fn swap(&self, commit: &str, next: &Head, data: &[u8], until: Instant) -> Result<Swapped, RequestFailure> {
        // A patch is done by the API on what is there, all of it or nothing, and again if that has changed meanwhile. By the commit, not by the resource version:
        // of that there may be two alike, once an old state of the API's own store has come back.
        let annotation = format!("/metadata/annotations/{}", COMMIT.replace('/', "~1"));
        let patch = json!([
            {"op": "test", "path": annotation, "value": commit},
            {"op": "replace", "path": annotation, "value": next.commit},
            {"op": "replace", "path": format!("/data/{DATA}"), "value": BASE64.encode(data)},
        ]);
        let request = Request::patch(format!("/api/v1/namespaces/{}/secrets/{}", self.namespace, self.name))
            .header(CONTENT_TYPE, "application/json-patch+json")
            // All of it is known here.
            .header(ACCEPT, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
            .body(patch.to_string().into_bytes());
        let request = request.map_err(|error| RequestFailure::Foreign(error.to_string()))?;
        match self
            .ask_once(until, self.client.request::<PartialObjectMeta<Secret>>(request))
            .await
        {
            Ok(_) => Ok(Swapped::Done),
            Err(RequestFailure::Refused { code: 409 | 422, message }) => Ok(Swapped::Refused(message)),
            Err(failure) => Err(failure),
        }
    }

    /// Creates a leaf under a name that no other process takes, and returns its digest.
    pub(super) async fn create_leaf(&self, name: &str, pairs: &Pairs, until: Instant) -> Result<String, RequestFailure> {
        let data = pack(pairs).map_err(|error| RequestFailure::Foreign(error.to_string()))?;
        let sha256 = hex(&data);
        let mut secret = secret(name, data);
        secret.immutable = Some(true);
        secret.metadata.labels = Some([(LEAF_OF.to_owned(), self.name.clone())].into());
        let parameters = PostParams::default();
        match self.ask(until, || self.secrets.create(&parameters, &secret)).await {
            // Asked twice, because an answer was lost, it finds itself. What else could be there has another digest.
            Ok(_) | Err(RequestFailure::Refused { code: 409, .. }) => Ok(sha256),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the content of a leaf; `None` if it does not exist.
    pub(super) async fn leaf(&self, name: &str, sha256: &str, until: Instant) -> Result<Option<Pairs>, RequestFailure> {
        let Some(found) = self.ask(until, || self.secrets.get_opt(name)).await? else {
            return Ok(None);
        };
        let damaged = |why: String| RequestFailure::Damaged(format!("secret {name} {why}"));
        let data = found.data.and_then(|mut data| data.remove(DATA)).unwrap_or_default();
        if hex(&data.0) != sha256 {
            return Err(damaged("does not hold the content that was written".to_owned()));
        }
        unpack(&data.0).map(Some).map_err(damaged)
    }

    /// Removes a leaf, if it is there.
    pub(super) async fn delete_leaf(&self, name: &str, until: Instant) -> Result<(), RequestFailure> {
        let parameters = DeleteParams::default();
        match self.ask(until, || self.secrets.delete(name, &parameters)).await {
            Ok(_) | Err(RequestFailure::Refused { code: 404, .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Removes the head, if it has this commit still.
    pub(super) async fn delete_head(&self, commit: &str, until: Instant) -> Result<(), RequestFailure> {
        let Some(found) = self.ask(until, || self.secrets.get_metadata_opt(&self.name)).await? else {
            return Ok(());
        };
        if annotation_text(&found.metadata, COMMIT) != commit {
            return Ok(());
        }
        let parameters = DeleteParams::default().preconditions(Preconditions {
            resource_version: found.metadata.resource_version,
            uid: found.metadata.uid,
        });
        match self.ask(until, || self.secrets.delete(&self.name, &parameters)).await {
            // It is another by now, or was gone before an answer was lost.
            Ok(_) | Err(RequestFailure::Refused { code: 404 | 409, .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// The names of all leaves that are there, also of those that count for nothing.
    pub(super) async fn leaves(&self, until: Instant) -> Result<Vec<String>, RequestFailure> {
        let mut names = Vec::new();
        let mut parameters = ListParams::default().labels(&format!("{LEAF_OF}={}", self.name)).limit(PAGE);
        loop {
            let page = self.ask(until, || self.secrets.list_metadata(&parameters)).await?;
            names.extend(page.items.into_iter().filter_map(|leaf| leaf.metadata.name));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => parameters = parameters.continue_token(&next),
                None => return Ok(names),
            }
        }
    }

    pub(super) fn error(&self, failure: &RequestFailure, in_doubt: bool) -> StoreError {
        let engine = |problem: String, advice: &str| StoreError::Engine {
            engine: "kubernetes",
            place: self.place.clone(),
            problem,
            advice: advice.to_owned(),
        };
        let unanswered = |problem: String, advice: &str| StoreError::Unanswered {
            engine: "kubernetes",
            place: self.place.clone(),
            problem,
            advice: advice.to_owned(),
        };
        match failure {
            RequestFailure::Unanswered(why) | RequestFailure::Untrusted(why) if in_doubt => unanswered(
                format!("{why}; it is unknown whether the transaction was committed"),
                "the cluster's API does not answer, or its etcd is too slow; retrying is safe",
            ),
            // Waiting does not help.
            RequestFailure::Untrusted(why) => engine(
                why.clone(),
                "compare the CA of the kubeconfig in [cluster] of gateway.toml with the API's certificate",
            ),
            RequestFailure::Unanswered(why) => unanswered(why.clone(), "the cluster's API does not answer, or its etcd is too slow"),
            RequestFailure::Refused { code: 401, message } => engine(
                message.clone(),
                "the gateway's service account or its token no longer exists: restart the pod to get a new token",
            ),
            RequestFailure::Refused { code: 403, message } => engine(
                message.clone(),
                "the gateway's service account needs get, list, create, patch and delete on secrets in its namespace",
            ),
            RequestFailure::Refused { code, message } => engine(format!("{code}: {message}"), "the cluster's API refused the request"),
            RequestFailure::Newer { found, release } => StoreError::Schema {
                path: self.place.clone().into(),
                newer: schema::newer(*found, release.clone()),
            },
            RequestFailure::Foreign(missing) => StoreError::Foreign {
                path: self.place.clone().into(),
                missing: missing.clone(),
            },
            RequestFailure::Damaged(problem) => StoreError::Damaged {
                path: self.place.clone().into(),
                problem: problem.clone(),
            },
        }
    }
}

fn annotation_text(metadata: &kube::api::ObjectMeta, annotation: &str) -> String {
    let annotations = metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(annotation)).cloned().unwrap_or_default()
}

fn secret(name: &str, data: Vec<u8>) -> Secret {
    Secret {
        metadata: kube::api::ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        },
        data: Some([(DATA.to_owned(), ByteString(data))].into()),
        type_: Some(TYPE.to_owned()),
        ..Default::default()
    }
}

fn hex(data: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, data).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_long_api_error_messages() {
        for code in [403, 503] {
            let status = kube::core::Status {
                message: "ä".repeat(100_000),
                code,
                ..kube::core::Status::default()
            };
            let (RequestFailure::Unanswered(said) | RequestFailure::Refused { message: said, .. }) = failure(&Error::Api(Box::new(status)))
            else {
                panic!("{code}")
            };
            assert_eq!(said.chars().count(), MOST_SAID_CHARS + 1);
        }
        assert_eq!(beginning("all of it"), "all of it");
    }
}
