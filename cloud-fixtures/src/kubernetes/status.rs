//! Error responses of the API.

use serde_json::{Value, json};

use super::kinds::ResourceKind;

/// An error response, as a `Status` object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiStatus {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ApiStatus {
    const fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message }
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource".to_owned())
    }

    pub(super) fn not_found(kind: ResourceKind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.qualified()))
    }

    pub(super) fn exists(kind: ResourceKind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", kind.qualified()))
    }

    pub(super) fn conflict(kind: ResourceKind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified());
        Self::new(409, "Conflict", message)
    }

    pub(super) fn modified(kind: ResourceKind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(super) fn invalid(kind: ResourceKind, name: &str, why: &str) -> Self {
        Self::new(422, "Invalid", format!("{}.{} {name:?} is invalid: {why}", kind.kind, kind.group))
    }

    /// Error of a JSON patch whose step `test` fails. `applyJSPatch` in `pkg/endpoints/handlers/patch.go` returns it for every patch that
    /// cannot be applied.
    pub(super) fn test_failed(path: &str) -> Self {
        let message = format!("the server rejected our request due to an error in our request: testing value {path} failed: test failed");
        Self::new(422, "Invalid", message)
    }

    /// Error of a change of an immutable Secret: `ValidateSecretUpdate` in `pkg/apis/core/validation/validation.go` of
    /// `kubernetes/kubernetes`.
    pub(super) fn immutable(kind: ResourceKind, name: &str) -> Self {
        Self::invalid(kind, name, "data: Forbidden: field is immutable when `immutable` is set")
    }

    /// Error of a Secret of more than 1 MiB: `MaxSecretSize` and `ValidateSecret` in the same file.
    pub(super) fn too_long(kind: ResourceKind, name: &str) -> Self {
        Self::invalid(kind, name, "data: Too long: may not be more than 1048576 bytes")
    }

    /// Error of etcd for a large request, which the API passes on as an unknown error (`ErrorToAPIStatus` in
    /// `pkg/endpoints/handlers/responsewriters/status.go`).
    pub(super) fn too_large() -> Self {
        Self::new(500, "", "etcdserver: request is too large".to_owned())
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message.to_owned())
    }

    pub(super) fn media_type() -> Self {
        let message = "the body of the request was in an unknown format";
        Self::new(415, "UnsupportedMediaType", message.to_owned())
    }

    pub(super) fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    pub(super) fn page_expired() -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.";
        Self::new(410, "Expired", message.to_owned())
    }

    pub(super) fn forbidden(kind: ResourceKind, name: &str, why: &str) -> Self {
        let of = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        Self::new(403, "Forbidden", format!("{}{of} is forbidden: {why}", kind.qualified()))
    }

    pub(super) fn from_code(code: u16) -> Self {
        let reason = match code {
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            _ => "InternalError",
        };
        Self::new(code, reason, "the test has it so".to_owned())
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}
