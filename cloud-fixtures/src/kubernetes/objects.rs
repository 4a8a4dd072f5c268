//! The objects, and the history of their changes. Every change has a number, the resource version, across all kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::custom_resources;
use super::kinds::ResourceKind;
use super::patch;
use super::rights::ApiUser;
use super::selectors::ObjectSelector;
use super::status::ApiStatus;

/// Kind, namespace (empty for cluster-wide objects), name.
pub(super) type ObjectKey = (ResourceKind, String, String);

/// A change of an object.
#[derive(Debug, Clone)]
pub(super) struct ObjectChange {
    pub(super) revision: u64,
    pub(super) key: ObjectKey,
    pub(super) before: Option<Arc<Value>>,
    /// The object after the change, or when it was removed.
    pub(super) object: Arc<Value>,
    pub(super) gone: bool,
}

/// A part of a list.
pub(super) struct Page {
    pub(super) items: Vec<Arc<Value>>,
    pub(super) revision: u64,
    /// Key after which the next page begins, and number of objects left.
    pub(super) next: Option<(ObjectKey, usize)>,
}

#[derive(Default)]
pub(super) struct ObjectStore {
    revision: u64,
    /// Revision up to which the history is lost.
    oldest: u64,
    live: BTreeMap<ObjectKey, Arc<Value>>,
    history: Vec<ObjectChange>,
    made: u64,
    /// Manager of the next write, as `metadata.managedFields` names it.
    manager: String,
    /// Kinds of newer releases.
    lacking: Vec<ResourceKind>,
}

/// Maximum size of a Secret's data.
const SECRET_LIMIT_BYTES: usize = 1024 * 1024;

fn key(kind: ResourceKind, namespace: &str, name: &str) -> ObjectKey {
    (kind, namespace.to_owned(), name.to_owned())
}

impl ObjectStore {
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// Removes a kind from the API.
    pub(super) fn lack(&mut self, kind: ResourceKind) {
        self.lacking.push(kind);
    }

    pub(super) fn lacks(&self, kind: ResourceKind) -> bool {
        self.lacking.contains(&kind)
    }

    pub(super) fn get(&self, kind: ResourceKind, namespace: &str, name: &str) -> Option<&Value> {
        self.live.get(&key(kind, namespace, name)).map(|object| &**object)
    }

    pub(super) fn all(&self, kind: ResourceKind) -> Vec<Value> {
        self.select(kind, None).map(|(_, object)| (**object).clone()).collect()
    }

    fn select<'a>(&'a self, kind: ResourceKind, namespace: Option<&'a str>) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Value>)> {
        let all = self.live.range(key(kind, "", "")..);
        all.take_while(move |((of, ..), _)| *of == kind)
            .filter(move |((_, of, _), _)| namespace.is_none_or(|namespace| of == namespace))
    }

    /// Writes an object without any check.
    pub(super) fn put(&mut self, kind: ResourceKind, namespace: &str, name: &str, mut object: Value) {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            let old = self.live.get(&key(kind, namespace, name));
            let uid = old.map_or_else(|| json!(uid(self.made + 1)), |old| old["metadata"]["uid"].clone());
            metadata.entry("uid").or_insert(uid);
            metadata.entry("creationTimestamp").or_insert_with(|| json!(now()));
        }
        self.made += 1;
        self.write(key(kind, namespace, name), object);
    }

    /// Writes an object without any check, with its own resource version.
    pub(super) fn put_as_it_is(&mut self, kind: ResourceKind, namespace: &str, name: &str, object: Value) {
        self.live.insert(key(kind, namespace, name), Arc::new(object));
    }

    /// Removes an object without any check.
    pub(super) fn remove(&mut self, kind: ResourceKind, namespace: &str, name: &str) {
        self.end(&key(kind, namespace, name));
    }

    /// Sets the manager of the next write.
    pub(super) fn written_by(&mut self, manager: String) {
        self.manager = manager;
    }

    pub(super) fn compact(&mut self) {
        self.oldest = self.revision;
        self.history.clear();
    }

    fn write(&mut self, key: ObjectKey, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = Arc::new(object);
        let before = self.live.insert(key.clone(), Arc::clone(&object));
        self.history.push(ObjectChange {
            revision: self.revision,
            key,
            before,
            object: Arc::clone(&object),
            gone: false,
        });
        object
    }

    fn end(&mut self, key: &ObjectKey) -> Option<Arc<Value>> {
        let before = self.live.remove(key)?;
        self.revision += 1;
        let mut last = (*before).clone();
        last["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = Arc::new(last);
        self.history.push(ObjectChange {
            revision: self.revision,
            key: key.clone(),
            before: Some(before),
            object: Arc::clone(&object),
            gone: true,
        });
        Some(object)
    }

    /// Creates an object; sets the user in a certificate signing request.
    pub(super) fn create(
        &mut self,
        kind: ResourceKind,
        namespace: &str,
        mut object: Value,
        user: &ApiUser,
    ) -> Result<Arc<Value>, ApiStatus> {
        let metadata = &object["metadata"];
        if !metadata["resourceVersion"].is_null() && metadata["resourceVersion"] != "" {
            return Err(ApiStatus::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let name = match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
            (Some(name), _) => name.to_owned(),
            (None, Some(prefix)) => format!("{prefix}{:05}", self.made + 1),
            (None, None) => {
                return Err(ApiStatus::invalid(
                    kind,
                    "",
                    "metadata.name: Required value: name or generateName is required",
                ));
            }
        };
        let key = self.placed(kind, namespace, &name, &mut object)?;
        if self.live.contains_key(&key) {
            return Err(ApiStatus::exists(kind, &name));
        }
        self.made += 1;
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(name);
        metadata["uid"] = json!(uid(self.made));
        metadata["creationTimestamp"] = json!(now());
        if kind.subresources.contains(&"status") {
            metadata["generation"] = json!(1);
            object.as_object_mut().unwrap().remove("status");
        }
        if kind.kind == "CertificateSigningRequest" {
            object["spec"]["username"] = json!(user.name);
            object["spec"]["groups"] = json!(user.groups);
        }
        if kind.is_custom() {
            custom_resources::fit(self, kind, &mut object)?;
            custom_resources::manage(None, &mut object, &self.manager, None, &now());
        }
        Ok(self.write(key, object))
    }

    /// Returns the key of an object, which must match its path.
    fn placed(&self, kind: ResourceKind, namespace: &str, name: &str, object: &mut Value) -> Result<ObjectKey, ApiStatus> {
        if !object["metadata"].is_object() {
            return Err(ApiStatus::bad_request("the object has no metadata"));
        }
        if object["apiVersion"] != kind.api_version().as_str() || object["kind"] != kind.kind {
            return Err(ApiStatus::bad_request(
                "the object provided is unrecognized (must be of the type that the path names)",
            ));
        }
        let said = object["metadata"]["namespace"].as_str().unwrap_or_default();
        if !said.is_empty() && said != namespace {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(ApiStatus::bad_request(why));
        }
        if kind.namespaced {
            object["metadata"]["namespace"] = json!(namespace);
        }
        if kind.kind == "Secret" {
            let plain = object.as_object_mut().unwrap().remove("stringData");
            for (name, value) in plain.as_ref().and_then(Value::as_object).into_iter().flatten() {
                let value = value.as_str().unwrap_or_default();
                object["data"][name] = json!(data_encoding::BASE64.encode(value.as_bytes()));
            }
            let values = object["data"].as_object().into_iter().flatten();
            // Four characters are three bytes.
            let bytes: usize = values.map(|(_, value)| value.as_str().unwrap_or_default().len() / 4 * 3).sum();
            if bytes > SECRET_LIMIT_BYTES {
                return Err(ApiStatus::too_long(kind, name));
            }
        }
        Ok(key(kind, namespace, name))
    }

    /// Writes an object, or a part of it, over the one that is there.
    pub(super) fn replace(&mut self, key: &ObjectKey, part: Option<&str>, mut object: Value) -> Result<Arc<Value>, ApiStatus> {
        let (kind, namespace, name) = key;
        let old = self.live.get(key).cloned().ok_or_else(|| ApiStatus::not_found(*kind, name))?;
        self.placed(*kind, namespace, name, &mut object)?;
        if object["metadata"]["name"] != name.as_str() {
            return Err(ApiStatus::bad_request("the name of the object does not match the name on the URL"));
        }
        let said = |field: &str| object["metadata"][field].as_str().filter(|said| !said.is_empty());
        if said("uid").is_some_and(|uid| old["metadata"]["uid"] != uid) {
            return Err(ApiStatus::conflict(*kind, name, "Precondition failed: UID in precondition differs"));
        }
        if said("resourceVersion").is_some_and(|revision| old["metadata"]["resourceVersion"] != revision) {
            return Err(ApiStatus::modified(*kind, name));
        }
        let mut new = match part {
            None => object.clone(),
            Some(_) => (*old).clone(),
        };
        match part {
            None if kind.subresources.contains(&"status") => put(&mut new, "status", old["status"].clone()),
            None => {}
            Some("approval") => put(&mut new, "status", with_conditions(&old["status"], &object["status"]["conditions"])),
            Some(part) => put(&mut new, part, object[part].clone()),
        }
        for field in ["uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp"] {
            put(&mut new["metadata"], field, old["metadata"][field].clone());
        }
        if kind.kind == "Secret" && old["immutable"] == true && (new["data"] != old["data"] || new["immutable"] != true) {
            return Err(ApiStatus::immutable(*kind, name));
        }
        if kind.is_custom() {
            custom_resources::fit(self, *kind, &mut new)?;
        }
        if new == *old {
            return Ok(old);
        }
        if kind.is_custom() {
            custom_resources::manage(Some(&old), &mut new, &self.manager, part, &now());
        }
        let content = |object: &Value| {
            let mut object = object.clone();
            for field in ["metadata", "status"] {
                object.as_object_mut().unwrap().remove(field);
            }
            object
        };
        if content(&new) != content(&old)
            && let Some(generation) = old["metadata"]["generation"].as_u64()
        {
            new["metadata"]["generation"] = json!(generation + 1);
        }
        let object = self.write(key.clone(), new);
        if !object["metadata"]["deletionTimestamp"].is_null() && finalizers(&object) == 0 {
            return Ok(self.end(key).unwrap_or(object));
        }
        Ok(object)
    }

    /// Changes a part of it by a patch of this media type.
    pub(super) fn patch(
        &mut self,
        key: &ObjectKey,
        part: Option<&str>,
        media_type: &str,
        change: &Value,
        user: &ApiUser,
    ) -> Result<Arc<Value>, ApiStatus> {
        let (kind, namespace, name) = key;
        let Some(old) = self.live.get(key) else {
            if media_type == "application/apply-patch+yaml" && part.is_none() {
                return self.create(*kind, namespace, change.clone(), user);
            }
            return Err(ApiStatus::not_found(*kind, name));
        };
        let mut object = (**old).clone();
        match media_type {
            "application/merge-patch+json" | "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => {
                patch::merge(&mut object, change);
            }
            "application/json-patch+json" => patch::steps(&mut object, change)?,
            _ => return Err(ApiStatus::media_type()),
        }
        self.replace(key, part, object)
    }

    /// Removes an object, or marks it for deletion while it has finalizers.
    pub(super) fn delete(&mut self, key: &ObjectKey, options: &Value) -> Result<Arc<Value>, ApiStatus> {
        let (kind, _, name) = key;
        let old = self.live.get(key).cloned().ok_or_else(|| ApiStatus::not_found(*kind, name))?;
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != old["metadata"][field] {
                return Err(ApiStatus::conflict(
                    *kind,
                    name,
                    &format!("Precondition failed: {field} in precondition differs"),
                ));
            }
        }
        if finalizers(&old) == 0 {
            return self.end(key).ok_or_else(|| ApiStatus::not_found(*kind, name));
        }
        let mut going = (*old).clone();
        if going["metadata"]["deletionTimestamp"].is_null() {
            going["metadata"]["deletionTimestamp"] = json!(now());
            return Ok(self.write(key.clone(), going));
        }
        Ok(old)
    }

    /// Returns a list, or the next page of one, from the state of its first page.
    pub(super) fn list(
        &self,
        kind: ResourceKind,
        namespace: Option<&str>,
        selector: &ObjectSelector,
        limit: usize,
        from: Option<(u64, ObjectKey)>,
    ) -> Result<Page, ApiStatus> {
        let (revision, after) = from.map_or((self.revision, None), |(revision, key)| (revision, Some(key)));
        if revision < self.oldest {
            return Err(ApiStatus::page_expired());
        }
        let mut state: BTreeMap<&ObjectKey, &Arc<Value>> = self.select(kind, namespace).collect();
        let newer = self.history.iter().rev().take_while(|change| change.revision > revision);
        for change in newer.filter(|change| change.key.0 == kind && namespace.is_none_or(|namespace| change.key.1 == namespace)) {
            match &change.before {
                Some(before) => drop(state.insert(&change.key, before)),
                None => drop(state.remove(&change.key)),
            }
        }
        let wanted: Vec<(&ObjectKey, &Arc<Value>)> = state
            .into_iter()
            .filter(|(key, object)| after.as_ref().is_none_or(|after| *key > after) && selector.matches(object))
            .collect();
        let limit = if limit == 0 { wanted.len() } else { limit };
        let page: Vec<_> = wanted.iter().take(limit).collect();
        let left = wanted.len() - page.len();
        Ok(Page {
            next: page.last().filter(|_| left > 0).map(|(key, _)| ((*key).clone(), left)),
            items: page.into_iter().map(|(_, object)| Arc::clone(object)).collect(),
            revision,
        })
    }

    /// Returns the changes of objects of a kind after this revision.
    pub(super) fn since(&self, revision: u64, kind: ResourceKind, namespace: Option<&str>) -> Result<Vec<ObjectChange>, ApiStatus> {
        if revision < self.oldest {
            return Err(ApiStatus::expired(revision, self.oldest));
        }
        let first = self.history.partition_point(|change| change.revision <= revision);
        let of = |change: &&ObjectChange| change.key.0 == kind && namespace.is_none_or(|namespace| change.key.1 == namespace);
        Ok(self.history[first..].iter().filter(of).cloned().collect())
    }
}

/// Sets a field, or removes it.
fn put(object: &mut Value, field: &str, value: Value) {
    let fields = object.as_object_mut().unwrap();
    if value.is_null() {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), value);
    }
}

fn with_conditions(status: &Value, conditions: &Value) -> Value {
    let mut status = if status.is_object() { status.clone() } else { json!({}) };
    put(&mut status, "conditions", conditions.clone());
    status
}

fn finalizers(object: &Value) -> usize {
    object["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
}

fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

fn now() -> String {
    let now = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap();
    now.format(&Rfc3339).unwrap()
}
