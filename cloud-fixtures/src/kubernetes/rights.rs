//! Users by their tokens, and the permissions of the roles bound to them.

use std::collections::HashMap;

use serde_json::Value;

use super::kinds::ResourceKind;
use super::objects::ObjectStore;
use super::status::ApiStatus;

/// The owner of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiUser {
    pub(super) name: String,
    pub(super) groups: Vec<String>,
}

impl ApiUser {
    pub(super) fn new(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }
}

/// A request to authorize.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessRequest<'a> {
    pub(super) verb: &'a str,
    pub(super) kind: ResourceKind,
    pub(super) subresource: Option<&'a str>,
    /// Empty for all namespaces, and for cluster-wide objects.
    pub(super) namespace: &'a str,
    /// Empty for several objects.
    pub(super) name: &'a str,
}

/// The valid tokens, with their users.
#[derive(Default)]
pub(super) struct Rights {
    users: HashMap<String, ApiUser>,
    made: u32,
}

impl Rights {
    pub(super) fn admit(&mut self, token: &str, user: ApiUser) {
        self.users.insert(token.to_owned(), user);
    }

    pub(super) fn token_of(&mut self, namespace: &str, name: &str) -> String {
        self.made += 1;
        let token = format!("token-{}-of-{namespace}-{name}", self.made);
        self.admit_account(&token, namespace, name);
        token
    }

    pub(super) fn admit_account(&mut self, token: &str, namespace: &str, name: &str) {
        let of_namespace = format!("system:serviceaccounts:{namespace}");
        let groups = ["system:serviceaccounts", &of_namespace, "system:authenticated"];
        self.admit(token, ApiUser::new(&format!("system:serviceaccount:{namespace}:{name}"), &groups));
    }

    pub(super) fn expire(&mut self, token: &str) {
        self.users.remove(token);
    }

    /// Returns the user of this `Authorization` header; anonymous without one.
    pub(super) fn user(&self, authorization: Option<&str>) -> Result<ApiUser, ApiStatus> {
        let Some(authorization) = authorization else {
            return Ok(ApiUser::new("system:anonymous", &["system:unauthenticated"]));
        };
        let user = authorization.strip_prefix("Bearer ").and_then(|token| self.users.get(token));
        user.cloned().ok_or_else(ApiStatus::unauthorized)
    }
}

/// Checks whether the existing roles permit the request.
pub(super) fn authorize(objects: &ObjectStore, user: &ApiUser, wanted: AccessRequest<'_>) -> Result<(), ApiStatus> {
    if user.groups.iter().any(|group| group == "system:masters") {
        return Ok(());
    }
    let everywhere = objects.all(ResourceKind::by_plural("clusterrolebindings"));
    let here = objects.all(ResourceKind::by_plural("rolebindings"));
    let here = here
        .into_iter()
        .filter(|binding| binding["metadata"]["namespace"] == wanted.namespace && !wanted.namespace.is_empty());
    let allows = |binding: Value| {
        let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
        let role = &binding["roleRef"];
        let namespace = if role["kind"] == "Role" { wanted.namespace } else { "" };
        let plural = if role["kind"] == "Role" { "roles" } else { "clusterroles" };
        let role = objects.get(
            ResourceKind::by_plural(plural),
            namespace,
            role["name"].as_str().unwrap_or_default(),
        );
        let rules = role
            .and_then(|role| role["rules"].as_array())
            .map(Vec::as_slice)
            .unwrap_or_default();
        subjects.iter().any(|subject| is_subject(subject, user)) && rules.iter().any(|rule| covers(rule, wanted))
    };
    if everywhere.into_iter().chain(here).any(allows) {
        return Ok(());
    }
    let resource = resource(wanted);
    let place = match wanted.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
        user.name, wanted.verb, wanted.kind.group
    );
    Err(ApiStatus::forbidden(wanted.kind, wanted.name, &why))
}

fn resource(wanted: AccessRequest<'_>) -> String {
    match wanted.subresource {
        Some(sub) => format!("{}/{sub}", wanted.kind.plural),
        None => wanted.kind.plural.to_owned(),
    }
}

fn is_subject(subject: &Value, user: &ApiUser) -> bool {
    let name = subject["name"].as_str().unwrap_or_default();
    match subject["kind"].as_str() {
        Some("User") => user.name == name,
        Some("Group") => user.groups.iter().any(|group| group == name),
        Some("ServiceAccount") => {
            let namespace = subject["namespace"].as_str().unwrap_or_default();
            user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn covers(rule: &Value, wanted: AccessRequest<'_>) -> bool {
    let has = |list: &str, value: &str| {
        let values = rule[list].as_array().map(Vec::as_slice).unwrap_or_default();
        values.iter().any(|one| one == value || one == "*")
    };
    let names = rule["resourceNames"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = names.is_empty() || names.iter().any(|name| name == wanted.name && !wanted.name.is_empty());
    has("verbs", wanted.verb) && has("apiGroups", wanted.kind.group) && has("resources", &resource(wanted)) && named
}
