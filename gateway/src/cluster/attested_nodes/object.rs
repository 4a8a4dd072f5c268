//! The object, as the API has it. Whatever is in it can be read: a list with one that does not fit is a list still.

use std::borrow::Cow;

use kube::Resource;
use kube::api::{ObjectMeta, TypeMeta};
use kube::core::ClusterResourceScope;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::kind::{GROUP, KIND, PLURAL, VERSION};
use crate::machine_status::status::{AttestedNodeStatus, NODE_LABEL, POOL_LABEL};

/// `apiVersion` of the objects, as events name it.
pub(super) const API_VERSION: &str = "attest-gateway.internal/v1alpha1";
/// Object of the API for one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttestedNode {
    /// Version and kind. In a list, the API gives them for the list only.
    #[serde(flatten, default)]
    types: Option<TypeMeta>,
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Lenient<AttestedNodeSpec>,
    #[serde(default)]
    status: Lenient<AttestedNodeStatus>,
}

/// Changes to the machine that the object's editors want.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AttestedNodeSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) banned: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) approved: Option<Approved>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forget: Option<String>,
}

/// Endorsement of its TPM: pools and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Approved {
    pub(super) pools: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) node_name: Option<String>,
}

/// A part that may be anything, if the schema that the API has is another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Lenient<T> {
    Read(T),
    /// Reason why it could not be read.
    Unread(String),
}

impl<T: Default> Default for Lenient<T> {
    fn default() -> Self {
        Self::Read(T::default())
    }
}

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        // A list would be read as the fields in their order.
        if value.is_array() {
            return Ok(Self::Unread("a list, and no object".to_owned()));
        }
        Ok(match serde_json::from_value::<Option<T>>(value) {
            Ok(read) => Self::Read(read.unwrap_or_default()),
            Err(error) => Self::Unread(error.to_string()),
        })
    }
}

impl AttestedNode {
    /// Returns an object of which nothing is known yet.
    pub(super) fn new(name: String) -> Self {
        Self {
            types: Some(TypeMeta {
                api_version: API_VERSION.to_owned(),
                kind: KIND.to_owned(),
            }),
            metadata: ObjectMeta {
                name: Some(name),
                ..ObjectMeta::default()
            },
            spec: Lenient::default(),
            status: Lenient::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }

    /// Removes unused parts: labels and annotations can be as large as a client makes them.
    pub(super) fn trim(&mut self) {
        self.metadata.managed_fields = None;
        self.metadata.annotations = None;
        if let Some(labels) = &mut self.metadata.labels {
            labels.retain(|name, _| [NODE_LABEL, POOL_LABEL].contains(&name.as_str()));
        }
    }

    pub(super) fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    /// Returns the changes that are wanted.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(super) fn spec(&self) -> Result<&AttestedNodeSpec, &str> {
        match &self.spec {
            Lenient::Read(spec) => Ok(spec),
            Lenient::Unread(why) => Err(why),
        }
    }

    /// Returns the status that a gateway has written; an empty one, if that cannot be read.
    pub(super) fn status(&self) -> Cow<'_, AttestedNodeStatus> {
        match &self.status {
            Lenient::Read(status) => Cow::Borrowed(status),
            Lenient::Unread(_) => Cow::Owned(AttestedNodeStatus::default()),
        }
    }

    /// Returns the client that has written its spec last, by `metadata.managedFields`.
    pub(super) fn manager(&self) -> Option<&str> {
        let fields = self.metadata.managed_fields.iter().flatten();
        let of_spec = fields.filter(|entry| {
            let owned = entry.fields_v1.as_ref().map(|fields| &fields.0);
            entry.subresource.as_deref().unwrap_or_default().is_empty() && owned.is_some_and(|owned| owned.get("f:spec").is_some())
        });
        let last = of_spec.max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
        last?.manager.as_deref()
    }
}

impl Resource for AttestedNode {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
