//! A single Secret or ConfigMap, watched by its name. Nothing else is requested, so a permission for that object suffices. Also the Secrets
//! of one type.

use std::fmt;

use data_encoding::BASE64;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use super::{ClusterClient, ClusterError, Keeping, WatchCache, keep_by_fields};

/// Largest value that is read, in bytes; an object has 1 MiB at most, and a bundle of CAs some kilobytes.
const VALUE_LIMIT_BYTES: usize = 256 * 1024;

/// Prefix of the annotations that are kept; the others of an object may have 256 KiB.
const OWN_ANNOTATIONS: &str = "attest-gateway.internal/";

/// The part of an object that is kept. That of a Secret must not show values in its `Debug`.
pub trait CachedContent: Clone + Send + Sync + 'static {
    const KIND: &'static str;
    const PLURAL: &'static str;

    /// Reads an object of that name; must not fail, whatever it contains.
    fn read(name: &str, object: &Value) -> Self;
}

/// An object, reduced to the parts that are used.
#[derive(Clone, Deserialize)]
#[serde(from = "Value", bound(deserialize = "C: CachedContent"))]
pub struct CachedObject<C> {
    pub metadata: ObjectMeta,
    pub content: C,
}

impl<C: CachedContent> From<Value> for CachedObject<C> {
    fn from(mut object: Value) -> Self {
        let metadata = object.get_mut("metadata").map(Value::take).unwrap_or_default();
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
        let content = C::read(metadata.name.as_deref().unwrap_or_default(), &object);
        let mut annotations = metadata.annotations.unwrap_or_default();
        annotations.retain(|name, _| name.starts_with(OWN_ANNOTATIONS));
        Self {
            content,
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                deletion_timestamp: metadata.deletion_timestamp,
                annotations: (!annotations.is_empty()).then_some(annotations),
                ..ObjectMeta::default()
            },
        }
    }
}

impl<C: CachedContent> fmt::Debug for CachedObject<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(C::KIND).field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl<C: CachedContent> k8s_openapi::Resource for CachedObject<C> {
    type Scope = NamespaceResourceScope;

    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = C::KIND;
    const URL_PATH_SEGMENT: &'static str = C::PLURAL;
    const VERSION: &'static str = "v1";
}

impl<C: CachedContent> k8s_openapi::Metadata for CachedObject<C> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Name and namespace of the object.
#[derive(Debug, Clone, Copy)]
pub struct ObjectName {
    /// Name of the watch in messages.
    pub what: &'static str,
    pub namespace: &'static str,
    pub name: &'static str,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ObjectName {
    fn api<C: CachedContent>(self, cluster: &ClusterClient) -> Api<CachedObject<C>> {
        Api::namespaced(cluster.client(), self.namespace)
    }

    /// Returns a field selector for the one object, which a permission by `resourceNames` allows.
    fn fields(self) -> String {
        format!("metadata.name={}", self.name)
    }

    /// Checks that the object can be read.
    pub async fn check_access<C: CachedContent>(self, cluster: &ClusterClient) -> (&'static str, Result<(), ClusterError>) {
        let one = ListParams::default().limit(1).fields(&self.fields());
        let api = self.api::<C>(cluster);
        (self.what, cluster.ask(self.what, api.list_metadata(&one)).await.map(drop))
    }

    /// Requests the object once; returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn ask<C: CachedContent + fmt::Debug>(self, cluster: &ClusterClient) -> Result<Option<C>, ClusterError> {
        let one = ListParams::default().limit(1).fields(&self.fields());
        let api = self.api::<C>(cluster);
        let list = cluster.ask(self.what, api.list(&one)).await?;
        let is_it = |object: &CachedObject<C>| object.metadata.name.as_deref() == Some(self.name);
        Ok(list.items.into_iter().find(is_it).map(|object| object.content))
    }

    /// Creates a cache of the object, and the watch that keeps it current while it runs.
    pub fn keep<C: CachedContent>(self, cluster: &ClusterClient) -> (One<C>, Keeping<CachedObject<C>>) {
        let (kept, keeping) = keep_by_fields(&self.api(cluster), (), &self.fields(), self.what, cluster.health());
        (
            One {
                cache: kept,
                name: self.name,
            },
            keeping,
        )
    }
}

/// Watch cache of that object.
pub struct One<C: CachedContent> {
    cache: WatchCache<CachedObject<C>>,
    name: &'static str,
}

impl<C: CachedContent> One<C> {
    /// Returns its last known state; `None` until it is known, and `Some(None)` if the object does not exist.
    pub fn now(&self) -> Option<Option<C>> {
        let all = self.cache.all()?;
        let one = all.iter().find(|object| object.metadata.name.as_deref() == Some(self.name));
        Some(one.map(|object| object.content.clone()))
    }

    /// Completes when it has changed since the last call.
    pub async fn changed(&mut self) {
        self.cache.changed().await;
    }
}

/// The CA certificates of a ConfigMap, as PEM text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle(pub Option<String>);

impl CachedContent for Bundle {
    const KIND: &'static str = "ConfigMap";
    const PLURAL: &'static str = "configmaps";

    fn read(_: &str, object: &Value) -> Self {
        let plain = |key: &str| {
            let text = object.get("data")?.get(key)?.as_str()?;
            (text.len() <= VALUE_LIMIT_BYTES).then(|| text.to_owned())
        };
        let encoded = |key: &str| decoded(object.get("binaryData")?.get(key)?).map(|text| text.as_str().to_owned());
        let keys = ["ca-bundle.crt", "ca.crt"];
        Self(keys.into_iter().find_map(|key| plain(key).or_else(|| encoded(key))))
    }
}

/// Returns the text of a value of a Secret, if it has one.
pub fn secret(object: &Value, key: &str) -> Option<Zeroizing<String>> {
    decoded(object.get("data")?.get(key)?)
}

fn decoded(value: &Value) -> Option<Zeroizing<String>> {
    let encoded = value.as_str()?;
    // Base64 has four characters for three bytes.
    if encoded.len() / 4 * 3 > VALUE_LIMIT_BYTES {
        return None;
    }
    let bytes = Zeroizing::new(BASE64.decode(encoded.as_bytes()).ok()?);
    std::str::from_utf8(&bytes).ok().map(|text| Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(object: Value, expect: Option<&str>) {
        let object: CachedObject<Bundle> = serde_json::from_value(object).unwrap();
        assert_eq!(object.content.0.as_deref(), expect);
    }

    #[test]
    fn ca_bundle_is_text_or_base64_within_limits() {
        check(json!({"data": {"ca-bundle.crt": "a"}}), Some("a"));
        check(json!({"data": {"ca.crt": "a"}}), Some("a"));
        check(json!({"binaryData": {"ca-bundle.crt": "YQ=="}}), Some("a"));
        check(json!({"data": {"ca.crt": "b"}, "binaryData": {"ca-bundle.crt": "YQ=="}}), Some("a"));
        for none in [
            json!({}),
            json!([]),
            json!(7),
            json!({"data": 7}),
            json!({"data": {"other": "a"}}),
            json!({"data": {"ca-bundle.crt": 7}}),
            json!({"data": {"ca-bundle.crt": "x".repeat(VALUE_LIMIT_BYTES + 1)}}),
            json!({"binaryData": {"ca-bundle.crt": "!"}}),
            json!({"binaryData": {"ca-bundle.crt": "/w=="}}),
            json!({"binaryData": {"ca-bundle.crt": "YWFh".repeat(VALUE_LIMIT_BYTES / 3 + 1)}}),
        ] {
            check(none, None);
        }
    }

    #[test]
    fn cached_object_keeps_only_needed_metadata() {
        let metadata = json!({
            "name": "n", "namespace": "m", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": [{"manager": "kubectl"}],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "o", "uid": "u"}],
            "annotations": {"attest-gateway.internal/pools": "worker", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        });
        let object: CachedObject<Bundle> = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        let kept =
            json!({"name": "n", "namespace": "m", "resourceVersion": "7", "annotations": {"attest-gateway.internal/pools": "worker"}});
        assert_eq!(serde_json::to_value(object.metadata).unwrap(), kept);
    }

    #[test]
    fn debug_output_shows_only_the_object_name() {
        let object = json!({"metadata": {"name": "n", "annotations": {"a": "hunter2"}}, "data": {"ca.crt": "hunter2"}});
        let object: CachedObject<Bundle> = serde_json::from_value(object).unwrap();
        assert_eq!(format!("{object:?}"), "ConfigMap { name: Some(\"n\"), .. }");
    }
}
