//! `kubectl get attestednodes`: the kind that the machines are shown as, and who may edit them.
//!
//! Its group ends in `internal`, which ICANN has reserved for private use (its Board, 29 July 2024): nobody can register it, so it is nobody else's.

/// Where its kind is.
pub const GROUP: &str = "attest-gateway.internal";
pub const VERSION: &str = "v1alpha1";
pub const KIND: &str = "AttestedNode";
pub const PLURAL: &str = "attestednodes";
/// Labels by which an object is found: its node's name, and the pool of its last attestation.
pub const NODE_LABEL: &str = "attest-gateway.internal/node";
pub const POOL_LABEL: &str = "attest-gateway.internal/pool";

/// Longest reason of a ban, in characters: it stands in every record of a refusal.
pub const REASON_LIMIT_CHARACTERS: usize = 100;
/// Most pools that an object approves a machine for: more than a cluster has.
pub const POOLS_LIMIT: usize = 32;
/// Most conditions that an object has.
pub const CONDITIONS_LIMIT: usize = 8;
/// Longest message of a condition, in characters.
pub const MESSAGE_LIMIT_CHARACTERS: usize = 1024;

/// The kind, as the API has to know it: a structural schema, whose every part has a limit.
#[must_use]
pub(super) fn definition() -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {PLURAL}.{GROUP}
spec:
  group: {GROUP}
  scope: Cluster
  names:
    kind: {KIND}
    listKind: {KIND}List
    plural: {PLURAL}
    singular: attestednode
    shortNames: [an]
  versions:
    - name: {VERSION}
      served: true
      storage: true
      subresources:
        status: {{}}
      additionalPrinterColumns:
        - {{name: Node, type: string, jsonPath: .status.nodeName}}
        - {{name: Pool, type: string, jsonPath: .status.attestation.pool}}
        - {{name: By, type: string, jsonPath: .status.attestation.by}}
        - {{name: Attested, type: date, jsonPath: .status.attestation.at}}
        - {{name: Config, type: string, jsonPath: .status.config.set}}
        - {{name: State, type: string, jsonPath: .status.state}}
        - {{name: Age, type: date, jsonPath: .metadata.creationTimestamp}}
        - {{name: Identity, type: string, jsonPath: .status.identity, priority: 1}}
        - {{name: Record, type: string, jsonPath: .status.attestation.record, priority: 1}}
        - {{name: Config-SHA256, type: string, jsonPath: .status.config.sha256, priority: 1}}
      schema:
        openAPIV3Schema:
          type: object
          description: A machine that a gateway knows. Its name is made of its identity.
          properties:
            apiVersion: {{type: string}}
            kind: {{type: string}}
            metadata: {{type: object}}
            spec:
              type: object
              description: What is to become of it, where the gateways take edits.
              properties:
                banned:
                  type: boolean
                  description: true revokes it, for as long as it says so. false takes back what true here has revoked, and nothing else.
                reason:
                  type: string
                  description: Why it is banned.
                  maxLength: {REASON_LIMIT_CHARACTERS}
                approved:
                  type: object
                  description: Endorses its TPM, when this is written or changed.
                  required: [pools]
                  properties:
                    pools:
                      type: array
                      description: The pools that it may join.
                      minItems: 1
                      maxItems: {POOLS_LIMIT}
                      items: {{type: string, minLength: 1, maxLength: 63, pattern: '^[a-z0-9][a-z0-9.-]*$'}}
                    nodeName:
                      type: string
                      description: The node's name, which no other machine can have then.
                      minLength: 1
                      maxLength: 253
                      pattern: '^[a-z0-9][a-z0-9.-]*$'
                forget:
                  type: string
                  description: Its node's name, to free it once, so that another machine can have it.
                  minLength: 1
                  maxLength: 253
                  pattern: '^[a-z0-9][a-z0-9.-]*$'
            status:
              type: object
              description: What the gateways know of it.
              properties:
                observedGeneration: {{type: integer}}
                identity: {{type: string, maxLength: 320}}
                nodeName: {{type: string, maxLength: 253}}
                state:
                  type: string
                  enum: [Banned, Trusted, Refused, Expected, Known, Unknown]
                attestation:
                  type: object
                  description: Its last attestation that held.
                  properties:
                    at: {{type: string, format: date-time}}
                    by: {{type: string, maxLength: 256, description: The kinds of evidence that it has shown.}}
                    pool: {{type: string, maxLength: 63}}
                    instance: {{type: string, maxLength: 320}}
                    record: {{type: string, maxLength: 64, description: The line of the attestation log.}}
                refusal:
                  type: object
                  description: Its last attestation that proved who it is, and was refused.
                  properties:
                    at: {{type: string, format: date-time}}
                    code: {{type: string, maxLength: 64}}
                    pool: {{type: string, maxLength: 63}}
                    record: {{type: string, maxLength: 64}}
                config:
                  type: object
                  description: The last config that it was served for an attestation.
                  properties:
                    at: {{type: string, format: date-time}}
                    set: {{type: string, enum: [full, pre-approved]}}
                    pool: {{type: string, maxLength: 63}}
                    sha256: {{type: string, maxLength: 64}}
                    specVersion: {{type: string, maxLength: 16}}
                    record: {{type: string, maxLength: 64}}
                handled:
                  type: object
                  description: The edits that were done once already.
                  properties:
                    approved: {{type: string, maxLength: 64}}
                    forget: {{type: string, maxLength: 253}}
                conditions:
                  type: array
                  maxItems: {CONDITIONS_LIMIT}
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [type]
                  items:
                    type: object
                    required: [type, status, reason, message, lastTransitionTime]
                    properties:
                      type: {{type: string, maxLength: 64}}
                      status: {{type: string, enum: ['True', 'False', Unknown]}}
                      observedGeneration: {{type: integer}}
                      lastTransitionTime: {{type: string, format: date-time}}
                      reason: {{type: string, minLength: 1, maxLength: 128, pattern: '^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$'}}
                      message: {{type: string, maxLength: {MESSAGE_LIMIT_CHARACTERS}}}
"
    )
}

/// What whoever edits these objects needs. It is bound to nobody: who has it decides about machines.
pub(super) fn editors() -> String {
    format!(
        "# Bound to nobody. Where gateways take edits, whoever has it approves and bans machines.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {}-attested-nodes-editors
rules:
  - apiGroups: [\"{GROUP}\"]
    resources: [{PLURAL}]
    verbs: [create, get, list, patch, update, watch]
",
        super::NAME
    )
}
