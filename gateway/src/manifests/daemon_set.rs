//! A gateway on each control-plane host.

use std::fmt::Write as _;

use super::settings::{ANCHORS, CONFIGURATION, STATE};
use super::{GATEWAY_PORT, InCluster, NAME, USER};

/// Where the state is on the host.
const HOST_FOLDER: &str = "/var/lib/attest-gateway";
/// Seconds until the program is killed: `limits.drain_seconds`, and a little.
pub(super) const GRACE_SECONDS: u32 = 30;

/// The volumes: name, kind and source, and where they are mounted, each read-only; some need not be there.
fn volumes(gateway: &InCluster) -> (String, String) {
    let (mut volumes, mut mounts) = (String::new(), String::new());
    let mut add = |name: &str, source: &str| {
        // Writing to a string cannot fail.
        let _ = write!(volumes, "        - name: {name}\n{source}");
        let _ = write!(
            mounts,
            "            - name: {name}\n              mountPath: {CONFIGURATION}/{name}\n              readOnly: true\n"
        );
    };
    let config_map = |name: &str| format!("          configMap:\n            name: {name}\n");
    let optional = "            optional: true\n";
    // 0400; with the group below, which the pod's volumes get, the program reads it.
    let secret = |name: &str| format!("          secret:\n            secretName: {name}\n            defaultMode: 256\n");
    add("settings", &config_map(NAME));
    let mut pools = config_map(&format!("{NAME}-pools"));
    pools.push_str("            items:\n");
    for pool in &gateway.pools {
        let _ = write!(pools, "              - key: {pool}.toml\n                path: {pool}/pool.toml\n");
    }
    add("pools", &pools);
    // Not there with the part that has the cluster tell them.
    add("mcs-tls", &(secret("machine-config-server-tls") + optional));
    add("mcs-ca", &(config_map("machine-config-server-ca") + optional));
    add("store", &(secret(&format!("{NAME}-store")) + optional));
    add("kubelet-ca", &(config_map("kube-apiserver-client-ca") + optional));
    for folder in ANCHORS {
        add(folder, &(config_map(&format!("{NAME}-{folder}")) + optional));
    }
    (volumes, mounts)
}

/// One on each control-plane host, on the host's network.
pub(super) fn daemon_set(gateway: &InCluster) -> String {
    let InCluster {
        namespace, image, parts, ..
    } = gateway;
    let (volumes, mounts) = volumes(gateway);
    let asks_the_api = !parts.is_empty();
    format!(
        "apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {NAME}
  namespace: {namespace}
  labels:
    app.kubernetes.io/name: {NAME}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: {NAME}
  # One host after the other, and the next one only when nodes can be sent to the one before. Port and state are the host's, so the new pod comes after the old one.
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
  minReadySeconds: 10
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {NAME}
      annotations:
        openshift.io/required-scc: {NAME}
        kubectl.kubernetes.io/default-container: gateway
    spec:
      serviceAccountName: {NAME}
      automountServiceAccountToken: {asks_the_api}
      # As the Machine Config Server, in whose place it stands: before what users run, and not before what the host itself, etcd and the API need.
      priorityClassName: system-cluster-critical
      hostNetwork: true
      # It has to answer while the cluster's own DNS does not.
      dnsPolicy: Default
      enableServiceLinks: false
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: node-role.kubernetes.io/control-plane
                    operator: Exists
      tolerations:
        - key: node-role.kubernetes.io/control-plane
          operator: Exists
          effect: NoSchedule
        - key: node-role.kubernetes.io/master
          operator: Exists
          effect: NoSchedule
        - key: node-role.kubernetes.io/etcd
          operator: Exists
          effect: NoSchedule
      # limits.drain_seconds, and a little.
      terminationGracePeriodSeconds: {GRACE_SECONDS}
      securityContext:
        fsGroup: {USER}
        seccompProfile:
          type: RuntimeDefault
        # One level for all pods, so that each reads what the one before has written.
        seLinuxOptions:
          level: s0
      initContainers:
        # Gives the state's folder to the user below. No group of a pod is given a folder of its host, so this is root's to do; it has this one capability, and ends.
        - name: state
          image: {image}
          args: [state-folder, /host/state, --owner, \"{USER}\", --selinux-type, container_file_t]
          terminationMessagePolicy: FallbackToLogsOnError
          securityContext:
            runAsUser: 0
            runAsNonRoot: false
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
              add: [CHOWN]
            # The host's folder has a type that no container may write to.
            seLinuxOptions:
              type: spc_t
              level: s0
          resources:
            requests:
              cpu: 10m
              memory: 32Mi
          volumeMounts:
            - name: host
              mountPath: /host
      containers:
        - name: gateway
          image: {image}
          args: [serve]
          # Where gateway.toml is: `kubectl exec` needs no --config.
          workingDir: {CONFIGURATION}/settings
          env:
            # glibc would keep large buffers for later; so each of them is given back to the system when it is done with.
            - name: MALLOC_MMAP_THRESHOLD_
              value: \"131072\"
            - name: MALLOC_ARENA_MAX
              value: \"4\"
          ports:
            - name: https
              containerPort: {GATEWAY_PORT}
              hostPort: {GATEWAY_PORT}
              protocol: TCP
          terminationMessagePolicy: FallbackToLogsOnError
          securityContext:
            runAsUser: {USER}
            runAsGroup: {USER}
            runAsNonRoot: true
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          resources:
            requests:
              cpu: 100m
              memory: 128Mi
            # As in attest-gateway.service: what strangers can make it hold is bounded below that.
            limits:
              memory: 1Gi
          startupProbe:
            httpGet: {{ path: /healthz, port: https, scheme: HTTPS }}
            periodSeconds: 2
            timeoutSeconds: 10
            failureThreshold: 60
          # A probe waits for its handshake as nodes do. When all nodes come at once, that takes seconds: who is slow is not dead.
          livenessProbe:
            httpGet: {{ path: /healthz, port: https, scheme: HTTPS }}
            periodSeconds: 30
            timeoutSeconds: 30
            failureThreshold: 6
          readinessProbe:
            httpGet: {{ path: /readyz, port: https, scheme: HTTPS }}
            periodSeconds: 10
            timeoutSeconds: 15
            failureThreshold: 3
          volumeMounts:
            - name: host
              mountPath: {STATE}
              subPath: state
{mounts}      volumes:
        - name: host
          hostPath:
            path: {HOST_FOLDER}
            type: DirectoryOrCreate
{volumes}"
    )
}
