//! The pointers of machine sets: those that lead to the gateway are given the CAs that pointers carry now.

mod machine_sets;
pub mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use attest::UnixTime;
use attest_certificates::source::{self, CertificateFileError};
use attest_certificates::{Certificate, Fingerprint};
use attest_cluster_api::failures::FailureLog;
use attest_cluster_api::{ClusterClient, ClusterError, RequestCause};
use attest_log::admin::{Act, By, ValueChange, Verb};
use attest_pointers::{NotRenewed, Ours, ReadPointer, Renewal, renewed};
use attest_store::{Store, StoreError};
use attest_system::clock::Clock;
use data_encoding::BASE64;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use zeroize::Zeroizing;

pub use self::machine_sets::{MachineSet, SecretName};
use crate::settings::PointerSettings;

/// Interval at which the pointers are checked.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The key of the Secret's data.
const USER_DATA: &str = "userData";
/// The label by which the Machine Config Operator leaves a Secret's CA alone: `MachineConfigServerCAManagedByConfigMapKey` in `pkg/controller/common/constants.go`,
/// asked for in `pkg/controller/certrotation/helpers.go` (machine-config-operator 7ff337a).
const LEFT_ALONE: &str = "machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap";
/// HTTP status of a refusal for want of a right.
const NO_RIGHT: u16 = 403;
/// Suffix of the names of Secrets that the operator itself writes, from its own CA (`manifests/userdata_secret.yaml`, same version).
const MANAGED: &str = "-user-data-managed";

/// The pointer in a Secret, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointerState {
    /// The pointer carries the current CAs.
    Current,
    /// The pointer is the gateway's, and carries these CAs.
    Behind(Vec<Fingerprint>),
    /// The pointer is not the gateway's, for this reason; it carries these CAs.
    Left(String, Vec<Fingerprint>),
    /// The pointer could not be read.
    Unread(String),
}

impl PointerState {
    /// Returns whether a machine with this pointer would refuse a certificate that only the CA `newest` has signed. A pointer that carries no CA of the
    /// gateway leads elsewhere; one that could not be read may be any.
    fn lacks(&self, newest: Option<Fingerprint>) -> bool {
        let without = |carried: &[Fingerprint]| !newest.is_some_and(|newest| carried.contains(&newest));
        match self {
            Self::Current => false,
            Self::Behind(carried) => without(carried),
            Self::Left(_, carried) => !carried.is_empty() && without(carried),
            Self::Unread(_) => true,
        }
    }
}

/// The gateway's CAs, certificate and pools at one time.
pub struct Here {
    pub authorities: Vec<Certificate>,
    pub chain: Vec<Certificate>,
    pub pools: BTreeSet<String>,
    pub now: UnixTime,
}

impl Here {
    /// Reads the CAs and the certificate.
    ///
    /// # Errors
    /// [`CertificateFileError`].
    pub fn read(files: &PointerSettings, pools: BTreeSet<String>, now: UnixTime) -> Result<Self, CertificateFileError> {
        Ok(Self {
            authorities: source::authorities(&files.authorities)?,
            chain: source::certificates(&files.certificate)?,
            pools,
            now,
        })
    }

    /// Returns the CA that signs after the next step of a rotation.
    fn newest(&self) -> Option<Fingerprint> {
        self.authorities.last().map(|ca| ca.fingerprint)
    }

    fn ours(&self) -> Ours<'_> {
        Ours {
            authorities: &self.authorities,
            chain: &self.chain,
            pools: &self.pools,
            now: self.now,
        }
    }
}

/// A Secret with a pointer, and the result for it.
struct PointerDecision {
    state: PointerState,
    /// The pointer that takes its place.
    renewed: Option<Zeroizing<String>>,
    secret: Secret,
}

/// All machine sets, with what their pointers are.
///
/// # Errors
/// [`ClusterError`].
pub async fn list_pointers(cluster: &ClusterClient, namespace: &str, here: &Here) -> Result<Vec<(MachineSet, PointerState)>, ClusterError> {
    let sets = machine_sets::all(cluster, namespace).await?;
    let mut states: BTreeMap<SecretName, PointerState> = BTreeMap::new();
    for set in &sets {
        if !states.contains_key(&set.secret) {
            let state = match &set.secret {
                SecretName::Named(name) => match judged(cluster, (namespace, name), here).await {
                    Ok(judged) => judged.map_or_else(|| PointerState::Unread("Secret not found".to_owned()), |judged| judged.state),
                    Err(error) => PointerState::Unread(unread(&error, name, namespace)),
                },
                SecretName::Unknown(why) => PointerState::Unread(why.clone()),
            };
            states.insert(set.secret.clone(), state);
        }
    }
    let with_state = |set: MachineSet| {
        let state = states.get(&set.secret).cloned()?;
        Some((set, state))
    };
    Ok(sets.into_iter().filter_map(with_state).collect())
}

/// Asks once for the machine sets, and for each Secret that they name.
pub async fn ask(cluster: &ClusterClient, namespace: &str) -> Vec<(&'static str, Result<(), ClusterError>)> {
    const WHAT: &str = "pointers of machine sets";
    let sets = match machine_sets::all(cluster, namespace).await {
        Ok(sets) => sets,
        Err(error) => return vec![(WHAT, Err(error))],
    };
    let mut found = Vec::new();
    for name in named(&sets) {
        let asked = cluster.ask(WHAT, secrets(cluster, namespace).get_metadata_opt(name)).await;
        found.extend(asked.err().map(|error| (WHAT, Err(error))));
    }
    if found.is_empty() {
        found.push((WHAT, Ok(())));
    }
    found
}

/// The Secrets that machine sets name, each once.
fn named(sets: &[MachineSet]) -> BTreeSet<&str> {
    let names = sets.iter().filter_map(|set| match &set.secret {
        SecretName::Named(name) => Some(name.as_str()),
        SecretName::Unknown(_) => None,
    });
    names.collect()
}

/// Says why a Secret could not be read, and what to do.
fn unread(error: &ClusterError, name: &str, namespace: &str) -> String {
    if error.is_status(NO_RIGHT) {
        format!(
            "{}: add {name} to resourceNames of the controller's Role for Secrets in {namespace}",
            error.reason()
        )
    } else {
        error.reason()
    }
}

async fn judged(cluster: &ClusterClient, (namespace, name): (&str, &str), here: &Here) -> Result<Option<PointerDecision>, ClusterError> {
    let Some(secret) = cluster.ask("secrets", secrets(cluster, namespace).get_opt(name)).await? else {
        return Ok(None);
    };
    let user_data = secret.data.as_ref().and_then(|data| data.get(USER_DATA));
    let (state, renewed) = match user_data {
        None => (PointerState::Left(format!("it has no {USER_DATA}"), Vec::new()), None),
        Some(user_data) => judge(name, &user_data.0, here.ours()),
    };
    Ok(Some(PointerDecision { state, renewed, secret }))
}

fn judge(name: &str, user_data: &[u8], ours: Ours<'_>) -> (PointerState, Option<Zeroizing<String>>) {
    let carried =
        || ReadPointer::parse(user_data).map_or_else(|_| Vec::new(), |reading| reading.certificates().map(|ca| ca.fingerprint).collect());
    match renewed(user_data, ours) {
        Ok(Renewal::Current) => (PointerState::Current, None),
        Ok(Renewal::Renewed(_)) if name.ends_with(MANAGED) => {
            let why = "the Machine Config Operator writes this Secret, with its own CA: set another Secret in the machine set".to_owned();
            (PointerState::Left(why, carried()), None)
        }
        Ok(Renewal::Renewed(text)) => (PointerState::Behind(carried()), Some(text)),
        Err(NotRenewed::Broken(why)) => (PointerState::Unread(format!("a CA in it cannot be used: {why}")), None),
        Err(NotRenewed::Reading(error)) => (PointerState::Left(error.to_string(), Vec::new()), None),
        Err(error) => (PointerState::Left(error.to_string(), carried()), None),
    }
}

fn secrets(cluster: &ClusterClient, namespace: &str) -> Api<Secret> {
    Api::namespaced(cluster.client(), namespace)
}

/// The task that renews the pointers.
pub struct PointerTask {
    pub cluster: Arc<ClusterClient>,
    /// The namespace of machine sets and their Secrets.
    pub namespace: String,
    pub files: PointerSettings,
    /// The names of the gateway's pools.
    pub pools: Arc<dyn Fn() -> BTreeSet<String> + Send + Sync>,
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    /// The actor in the attestation log.
    pub by: By,
}

/// A failure that ends a pass before all Secrets were looked at.
#[derive(Debug, thiserror::Error)]
enum PointerPassError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Files(#[from] CertificateFileError),
}

impl PointerPassError {
    fn cause(&self) -> RequestCause {
        match self {
            Self::Cluster(error) => error.cause(),
            Self::Store(_) => RequestCause::Other("store".to_owned()),
            Self::Files(error) => RequestCause::Other(error.to_string()),
        }
    }
}

impl PointerTask {
    /// Renews them for as long as it is polled.
    pub async fn run(&self) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut said, mut failures) = (BTreeMap::new(), FailureLog::default());
        loop {
            every.tick().await;
            match self.keep(&mut said).await {
                Err(error) => {
                    if failures.is_new(error.cause()) {
                        tracing::warn!("cluster: cannot check the pointers of machine sets; retrying: {error}");
                    }
                }
                Ok(()) => {
                    if failures.is_over() {
                        tracing::info!("cluster: checking the pointers of machine sets works again");
                    }
                }
            }
        }
    }

    async fn keep(&self, said: &mut BTreeMap<String, String>) -> Result<(), PointerPassError> {
        // The files are small, and another program replaces them.
        let here = Here::read(&self.files, (self.pools)(), self.clock.now())?;
        let namespace = &self.namespace;
        let sets = machine_sets::all(&self.cluster, namespace).await?;
        // What is left as it is: said once, and again when it is for another reason.
        let mut left = BTreeMap::new();
        for set in &sets {
            if let SecretName::Unknown(why) = &set.secret {
                left.insert(
                    format!("{} {namespace}/{}", set.kind, set.name),
                    format!("pointer not renewed: {why}"),
                );
            }
        }
        for name in named(&sets) {
            match self.keep_one(name, &here).await {
                Ok(None) => {}
                Ok(Some(why)) => {
                    left.insert(format!("Secret {namespace}/{name}"), why);
                }
                // The others do not wait for what the API refuses of one.
                Err(PointerPassError::Cluster(error)) if !error.cause().concerns_all() => {
                    let why = format!("pointer not renewed: {}", unread(&error, name, namespace));
                    left.insert(format!("Secret {namespace}/{name}"), why);
                }
                Err(error) => return Err(error),
            }
        }
        for (object, why) in &left {
            if said.get(object) != Some(why) {
                tracing::warn!("cluster: {object}: {why}");
            }
        }
        *said = left;
        Ok(())
    }

    /// Renews the pointer in one Secret, or says why it is left as it is.
    async fn keep_one(&self, name: &str, here: &Here) -> Result<Option<String>, PointerPassError> {
        let Some(judged) = judged(&self.cluster, (&self.namespace, name), here).await? else {
            return Ok(Some("Secret not found".to_owned()));
        };
        match (&judged.state, &judged.renewed) {
            (PointerState::Behind(carried), Some(renewed)) => {
                self.write(name, &judged.secret, renewed).await?;
                self.store.append_to_outbox(self.act(name, carried, here)).await?;
                let namespace = &self.namespace;
                tracing::info!("cluster: Secret {namespace}/{name}: pointer renewed with the current CAs");
                Ok(None)
            }
            (PointerState::Unread(why), _) => Ok(Some(format!("pointer not renewed: {why}"))),
            (PointerState::Left(reason, _), _) => Ok(Some(format!("pointer left unchanged: {reason}"))),
            _ => Ok(None),
        }
    }

    /// Replaces the pointer, if the Secret was not changed meanwhile.
    async fn write(&self, name: &str, secret: &Secret, renewed: &Zeroizing<String>) -> Result<(), PointerPassError> {
        let user_data = Zeroizing::new(BASE64.encode(renewed.as_bytes()));
        let patch = json!({
            "metadata": {"resourceVersion": secret.resource_version(), "labels": {LEFT_ALONE: ""}},
            "data": {USER_DATA: user_data.as_str()},
        });
        let (secrets, parameters) = (secrets(&self.cluster, &self.namespace), PatchParams::default());
        self.cluster
            .ask("secrets", secrets.patch(name, &parameters, &Patch::Merge(&patch)))
            .await?;
        Ok(())
    }

    /// Returns the act that is recorded for it, as JSON.
    fn act(&self, name: &str, before: &[Fingerprint], here: &Here) -> String {
        let shorts = |all: &mut dyn Iterator<Item = Fingerprint>| json!({"authorities": all.map(|ca| ca.short()).collect::<Vec<_>>()});
        let thing = ValueChange {
            kind: "pointer".to_owned(),
            id: format!("{}/{name}", self.namespace),
            before: Some(shorts(&mut before.iter().copied())),
            after: Some(shorts(&mut here.authorities.iter().map(|ca| ca.fingerprint))),
        };
        let act = Act::done(Verb::PointerRenew, self.clock.now().as_secs(), self.by.clone(), vec![thing]);
        serde_json::to_string(&act).unwrap_or_default()
    }
}
