//! A Kubernetes API for tests: objects of the kinds that a gateway uses, over TLS, for service accounts with tokens and permissions.
//!
//! It follows the documentation of the API (<https://kubernetes.io/docs/reference/using-api/api-concepts/>): resource versions, lists in
//! pages, watches, bookmarks, 410. Its messages are those of `staging/src/k8s.io/apiserver` and `apimachinery` in `kubernetes/kubernetes`
//! (`pkg/api/errors`, `pkg/endpoints/handlers`, `plugin/pkg/auth/authorizer/rbac`). An object is returned whole, or as metadata only if
//! `Accept` says so (`meta.k8s.io/v1`, also for tables). For kinds of a CustomResourceDefinition it supports the schema and the tables
//! (`custom.rs`). It omits admission, defaults, other schemas and tables, the existence of namespaces, and protobuf. Strategic merge
//! patches and applied ones are treated like merge patches.

mod custom_resources;
mod kinds;
mod objects;
mod patch;
mod rights;
mod selectors;
mod service;
mod status;
mod watch;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

pub use self::kinds::ResourceKind;
use self::objects::ObjectStore;
use self::rights::{AccessRequest, ApiUser, Rights, authorize};
pub use self::service::ResourceRequest;
use crate::listener::Listener;
use crate::server::loopback;
use crate::tls::TestCa;

/// Token of the test administrator, which permits everything.
const ADMIN: &str = "test-admin";

/// Fault of the whole server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// It refuses connections, and closes the existing ones.
    Down,
    /// It takes requests, and neither does nor answers them; well again, it has cut their connections.
    Silent,
    /// It answers this status: 500, 503, or 429 with `Retry-After: 1`.
    Status(u16),
}

/// Outcome of one write. Except for `None`, the client gets no response: the connection is cut instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// It is done and answered, as any other.
    None,
    /// The write is done.
    Done,
    /// It is not, and never will be.
    NotDone,
    /// The write is done after [`KubernetesApi::let_through`].
    Late,
}

/// The history of changes after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartHistory {
    Kept,
    /// A client that continues from an older state must list again.
    Lost,
}

/// State shared by all connections.
struct ApiState {
    objects: Mutex<ObjectStore>,
    rights: Mutex<Rights>,
    asked: Mutex<Vec<ResourceRequest>>,
    disturbance: Mutex<Option<Disturbance>>,
    /// Outcomes of the next writes.
    mishaps: Mutex<VecDeque<Mishap>>,
    /// Duration of a write.
    takes: Mutex<Duration>,
    /// Number of recoveries from a disturbance.
    recovered: tokio::sync::watch::Sender<u64>,
    /// Number of calls of [`KubernetesApi::let_through`].
    let_through: tokio::sync::watch::Sender<u64>,
    /// Changes with each change of an object, and when watches are broken.
    changed: tokio::sync::watch::Sender<Changed>,
    /// Number of responses so far.
    answered: tokio::sync::watch::Sender<u64>,
    /// Interval of bookmarks, for watches that request them.
    bookmarks: Mutex<Duration>,
}

/// The events that a watch waits for.
#[derive(Debug, Clone, Copy, Default)]
struct Changed {
    revision: u64,
    /// Number of times that all watches were broken.
    broken: u64,
}

/// An API that serves until it is dropped. It has a thread of its own, so that it serves tests with a runtime and without.
pub struct KubernetesApi {
    authority: TestCa,
    shared: Arc<ApiState>,
    listener: Listener,
}

impl KubernetesApi {
    /// Starts an API on any port of the loopback interface.
    #[must_use]
    pub fn start() -> Self {
        let authority = TestCa::new("kube-apiserver");
        // And as QEMU's VMs see this machine.
        let addresses = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 2, 2)].map(Into::into);
        let tls = authority.server_at(&["localhost", "kubernetes.default.svc"], &addresses);
        let mut rights = Rights::default();
        rights.admit(ADMIN, ApiUser::new("system:admin", &["system:masters"]));
        let shared = Arc::new(ApiState {
            objects: Mutex::default(),
            rights: Mutex::new(rights),
            asked: Mutex::default(),
            disturbance: Mutex::default(),
            mishaps: Mutex::default(),
            takes: Mutex::default(),
            recovered: tokio::sync::watch::Sender::default(),
            let_through: tokio::sync::watch::Sender::default(),
            changed: tokio::sync::watch::Sender::default(),
            answered: tokio::sync::watch::Sender::default(),
            bookmarks: Mutex::new(Duration::from_secs(60)),
        });
        Self {
            listener: service::start(loopback(), tls, Arc::clone(&shared)),
            authority,
            shared,
        }
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns its URL, `https://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// Returns the CA of its certificate.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// Returns the administrator's token, which permits everything.
    #[must_use]
    pub const fn admin(&self) -> &'static str {
        ADMIN
    }

    /// Returns a new token of a service account. Its existing tokens stay valid.
    #[must_use]
    pub fn token(&self, namespace: &str, name: &str) -> String {
        locked(&self.shared.rights).token_of(namespace, name)
    }

    /// Makes this token invalid.
    pub fn expire(&self, token: &str) {
        locked(&self.shared.rights).expire(token);
    }

    /// Makes this token one of a service account.
    pub fn admit(&self, token: &str, namespace: &str, name: &str) {
        locked(&self.shared.rights).admit_account(token, namespace, name);
    }

    /// Returns a file for `kubectl --kubeconfig`.
    #[must_use]
    pub fn kubeconfig(&self, token: &str) -> String {
        let ca = data_encoding::BASE64.encode(self.ca_pem().as_bytes());
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url(), "certificate-authority-data": ca}}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        config.to_string()
    }

    /// Writes an object without any check, also one that no API would accept. Roles and their bindings take effect at once.
    pub fn put(&self, object: Value) {
        let (kind, namespace, name) = ResourceKind::identify(&object);
        locked(&self.shared.objects).put(kind, &namespace, &name, object);
        self.changed();
    }

    /// Writes an object like [`KubernetesApi::put`], but keeps its resource version. This gives the state after etcd was restored from a
    /// snapshot and has issued its revisions again (<https://etcd.io/docs/v3.6/op-guide/recovery/>).
    pub fn put_as_it_is(&self, object: Value) {
        let (kind, namespace, name) = ResourceKind::identify(&object);
        locked(&self.shared.objects).put_as_it_is(kind, &namespace, &name, object);
        self.changed();
    }

    /// Removes a kind, like in a release that is older than the kind. Its paths return 404, and the discovery does not contain it
    /// (<https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/>: since 1.30; `installAPIResources` in
    /// `pkg/controlplane/instance.go` of `kubernetes/kubernetes`).
    pub fn lack(&self, plural: &str) {
        locked(&self.shared.objects).lack(ResourceKind::by_plural(plural));
    }

    /// Returns an object, if it exists.
    #[must_use]
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = ResourceKind::by_plural(plural);
        locked(&self.shared.objects).get(kind, namespace, name).cloned()
    }

    /// Returns all objects of a kind.
    #[must_use]
    pub fn all(&self, plural: &str) -> Vec<Value> {
        locked(&self.shared.objects).all(ResourceKind::by_plural(plural))
    }

    /// Removes an object, past every check.
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) {
        locked(&self.shared.objects).remove(ResourceKind::by_plural(plural), namespace, name);
        self.changed();
    }

    /// Grants this service account permissions everywhere, by the rules of a `ClusterRole`.
    pub fn grant(&self, namespace: &str, name: &str, rules: &Value) {
        let named = format!("{namespace}-{name}");
        let subject = json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
        let (api_version, metadata) = ("rbac.authorization.k8s.io/v1", json!({"name": named}));
        self.put(json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": metadata, "rules": rules}));
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": named});
        self.put(
            json!({"apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject]}),
        );
    }

    /// Returns whether this token permits the request, by the existing roles. An empty namespace stands for all of them, an empty name for
    /// several objects.
    #[must_use]
    pub fn may(&self, token: &str, verb: &str, kind: ResourceKind, subresource: Option<&str>, namespace: &str, name: &str) -> bool {
        let wanted = AccessRequest {
            verb,
            kind,
            subresource,
            namespace,
            name,
        };
        let user = locked(&self.shared.rights).user(Some(&format!("Bearer {token}")));
        user.is_ok_and(|user| authorize(&locked(&self.shared.objects), &user, wanted).is_ok())
    }

    /// Returns every request so far, including refused ones.
    #[must_use]
    pub fn asked(&self) -> Vec<ResourceRequest> {
        locked(&self.shared.asked).clone()
    }

    /// Forgets the requests so far.
    pub fn forget_asked(&self) {
        locked(&self.shared.asked).clear();
    }

    /// Switches on a disturbance.
    pub fn disturb(&self, disturbance: Disturbance) {
        if disturbance == Disturbance::Down {
            return self.listener.down();
        }
        *locked(&self.shared.disturbance) = Some(disturbance);
    }

    /// Sets the duration of each write; concurrent writes take as long. It stands for etcd's disk, which must write 8,000 bytes in 10 ms,
    /// or in 2 ms under heavy load
    /// (<https://docs.openshift.com/container-platform/4.15/scalability_and_performance/recommended-performance-scale-practices/recommended-etcd-practices.html>).
    pub fn takes(&self, write: Duration) {
        *locked(&self.shared.takes) = write;
    }

    /// Sets the outcomes of the next writes, in order.
    pub fn befall(&self, mishaps: impl IntoIterator<Item = Mishap>) {
        locked(&self.shared.mishaps).extend(mishaps);
    }

    /// Returns whether all of these outcomes were used.
    #[must_use]
    pub fn is_over(&self) -> bool {
        locked(&self.shared.mishaps).is_empty()
    }

    /// Executes the late writes.
    pub fn let_through(&self) {
        self.shared.let_through.send_modify(|times| *times += 1);
    }

    /// Switches off all disturbances. It listens at the same port as before.
    pub fn recover(&self) {
        *locked(&self.shared.disturbance) = None;
        locked(&self.shared.mishaps).clear();
        self.shared.recovered.send_modify(|times| *times += 1);
        self.listener.up();
    }

    /// Ends, and begins at the same port.
    pub fn restart(&self, history: RestartHistory) {
        self.listener.down();
        if history == RestartHistory::Lost {
            self.compact();
        }
        self.listener.up();
    }

    /// Forgets the changes so far: watches and pages of an older state are refused with 410.
    pub fn compact(&self) {
        locked(&self.shared.objects).compact();
    }

    /// Ends all watches, as a server does now and then.
    pub fn break_watches(&self) {
        self.shared.changed.send_modify(|changed| changed.broken += 1);
    }

    /// Sets the interval of bookmarks, which is initially a minute.
    pub fn bookmark_every(&self, pause: Duration) {
        *locked(&self.shared.bookmarks) = pause;
    }

    /// Waits until this holds; checks it after each change of an object and each response. Returns `false` after the limit.
    pub async fn comes_to(&self, limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
        let (mut changed, mut answered) = (self.shared.changed.subscribe(), self.shared.answered.subscribe());
        let waited = async {
            while !holds() {
                tokio::select! {
                    told = changed.changed() => told.unwrap(),
                    told = answered.changed() => told.unwrap(),
                }
            }
        };
        tokio::time::timeout(limit, waited).await.is_ok()
    }

    /// Waits like [`KubernetesApi::comes_to`], in a test without a runtime; returns the value that was found.
    pub fn wait_for<T>(&self, limit: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut found = None;
        runtime.block_on(self.comes_to(limit, || {
            found = find();
            found.is_some()
        }));
        found
    }

    fn changed(&self) {
        self.shared.changed();
    }
}

impl ApiState {
    /// Wakes the waiting watches.
    fn changed(&self) {
        let revision = locked(&self.objects).revision();
        self.changed.send_modify(|changed| changed.revision = revision);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}
