//! What the API itself holds the gateway's account to, where a role cannot say it.

use super::{NAME, Namespace};
use crate::machine_config::second_stage::LABELS;

/// The account writes MachineConfigs of the second stage, and no others. RBAC holds nobody to a name that has yet to come; whoever may write any MachineConfig is root
/// on every node. Labelled for a role, one would become an ingredient of that role's pool.
///
/// By a ValidatingAdmissionPolicy, which Kubernetes has since 1.30.
pub(super) fn of_second_stage(account: &Namespace) -> [String; 2] {
    let name = format!("{NAME}-second-stage");
    let labels = LABELS.map(|(label, value)| {
        format!("'{label}' in config.metadata.labels &&\n        config.metadata.labels['{label}'] == '{value}' &&\n        ")
    });
    let labels = labels.concat();
    let policy = format!(
        "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [machineconfiguration.openshift.io]
        apiVersions: [\"*\"]
        operations: [CREATE, UPDATE, DELETE]
        resources: [machineconfigs]
  matchConditions:
    - name: by-the-gateway
      expression: request.userInfo.username == 'system:serviceaccount:{account}:{NAME}'
  validations:
    - message: the gateway writes MachineConfigs of its second stage, and no others
      expression: >-
        [object, oldObject].all(config, config == null || (
        config.metadata.name.matches('^rendered-.+-pre-approved-[0-9a-f]+$') &&
        has(config.metadata.labels) &&
        {labels}!('machineconfiguration.openshift.io/role' in config.metadata.labels)))
"
    );
    let binding = format!(
        "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
spec:
  policyName: {name}
  validationActions: [Deny]
"
    );
    [policy, binding]
}
