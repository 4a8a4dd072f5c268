//! The gateway's account, and a role for each part that asks the API.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::part::{Part, Place, Rule};
use super::{NAME, Namespace, attested_nodes, fence};

/// The account that the pods have. Its token is mounted only where a part asks the API.
pub(super) fn account(namespace: &Namespace) -> String {
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata:
  name: {NAME}
  namespace: {namespace}
# The pods say themselves whether they have its token.
automountServiceAccountToken: false
"
    )
}

/// A ClusterRole for what a part does in the cluster, a Role in each namespace where it does something, and who they are bound to; what
/// the API holds that to; and the kind of object that it makes.
pub(super) fn of_part(part: Part, own: &Namespace) -> Vec<String> {
    let places: BTreeSet<Place> = part.rules().iter().map(|rule| rule.place).collect();
    let objects = places.into_iter().flat_map(|place| {
        let rules = part.rules().iter().filter(|rule| rule.place == place);
        role(part, place, rules, own)
    });
    // A fence comes before what it is for, and a kind before what may be done with it.
    let first = match part {
        Part::SecondStage => Vec::from(fence::of_second_stage(own)),
        Part::AttestedNodes => vec![attested_nodes::definition(), attested_nodes::editors()],
        _ => Vec::new(),
    };
    first.into_iter().chain(objects).collect()
}

fn role<'a>(part: Part, place: Place, rules: impl Iterator<Item = &'a Rule>, own: &Namespace) -> [String; 2] {
    let (kind, namespace) = match place {
        Place::Cluster => ("ClusterRole", None),
        Place::Own => ("Role", Some(own.to_string())),
        Place::Namespace(name) => ("Role", Some(name.to_owned())),
    };
    let name = format!("{NAME}-{}", part.name());
    let mut metadata = format!("metadata:\n  name: {name}\n");
    if let Some(namespace) = namespace {
        // Writing to a string cannot fail.
        let _ = writeln!(metadata, "  namespace: {namespace}");
    }
    let mut role = format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\n{metadata}rules:\n");
    for rule in rules {
        let _ = writeln!(
            role,
            "  - apiGroups: [\"{}\"]\n    resources: [{}]",
            rule.group,
            rule.resources.join(", ")
        );
        if !rule.names.is_empty() {
            let _ = writeln!(role, "    resourceNames: [{}]", rule.names.join(", "));
        }
        let _ = writeln!(role, "    verbs: [{}]", rule.verbs.join(", "));
    }
    let binding = format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}Binding
{metadata}roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {kind}
  name: {name}
subjects:
  - kind: ServiceAccount
    name: {NAME}
    namespace: {own}
"
    );
    [role, binding]
}
