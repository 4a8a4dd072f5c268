//! Inspection of a gateway before it serves: one list of findings, which `check` prints and by which `serve` refuses to start. So one fails
//! exactly when the other does, except for another store's key file on etcd. The inspection makes and changes nothing, except the first
//! copies of what the cluster says, if there is a state folder. Without one, `check` cannot know what these will say.

mod certificates;
pub mod clouds;
#[cfg(feature = "cluster")]
pub mod cluster;
mod ek_roots;
mod pools;
mod required_evidence;
mod state;

use std::fmt;
use std::sync::Arc;

use attest_certificates::ek_roots::EkRootsFolder;
#[cfg(feature = "cluster")]
use attest_cluster_api::ClusterClient;
use attest_system::clock::Clock;
use attest_system::newer_format::NewerFormat;
use tokio::net::TcpListener;

use crate::cloud::Clouds;
use crate::metrics::Metrics;
use crate::pki::LiveTls;
use crate::pools::live::LivePools;
use crate::settings::Settings;
#[cfg(not(feature = "cluster"))]
use attest_pool::needed_before_approval::NeededState;
pub use required_evidence::RequiredEvidence;
pub use state::newer_files;
pub(crate) use state::{SNAPSHOT_FILE, SNAPSHOT_LIMIT_BYTES, SNAPSHOT_VERSION};

/// Result of one check, with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InspectionFinding {
    /// As it should be.
    Good(String),
    /// Something unusual that an administrator should know.
    Warning(String),
    /// Something of this gateway's own is broken, and the rest is served without it.
    Degraded(String),
    /// The gateway does not serve.
    Error(String),
    /// The gateway does not serve: a newer release wrote its data.
    Newer(String, NewerFormat),
}

/// Depth of an inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only what is needed to serve.
    Start,
    /// All that can be known, however long it takes: every config in every version.
    Thorough,
}

/// Result of the inspection of everything that the settings name.
#[derive(Debug)]
pub struct Inspection {
    /// Findings, in the order in which they were made.
    pub findings: Vec<InspectionFinding>,
    /// Set if a gateway serves on this state already.
    pub is_served: bool,
    found: Option<Inspected>,
}

/// Everything that a gateway needs to serve, except its state.
#[derive(Debug)]
pub struct Inspected {
    pub tls: Arc<LiveTls>,
    pub pools: LivePools,
    /// CAs that endorse TPMs.
    pub ek_roots: EkRootsFolder,
    /// Certificates and keys that cloud evidence is verified against.
    pub clouds: Clouds,
    /// Listener for the requests of nodes.
    pub listener: TcpListener,
    /// Listener for scrapes of the metrics.
    pub metrics_listener: Option<TcpListener>,
    /// Client of the cluster's API, if this gateway uses one.
    #[cfg(feature = "cluster")]
    pub cluster: Option<ClusterClient>,
}

/// All errors for which the gateway does not start.
#[derive(Debug, thiserror::Error)]
pub struct Faults {
    errors: Vec<String>,
    /// Data of a newer release among them.
    #[source]
    newer: Option<NewerFormat>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.errors.join("; "))
    }
}

impl Inspection {
    /// Reads everything that the settings name, and tries the addresses. If a gateway serves on this state, they are its own: then they are
    /// left alone.
    pub async fn run(settings: &Settings, clock: Clock, metrics: &Arc<Metrics>, depth: Depth) -> Self {
        let mut findings = Vec::new();
        #[cfg(feature = "cluster")]
        let api = cluster::open(settings, clock, metrics, depth, &mut findings).await;
        let tls = certificates::inspect(&settings.tls, clock, &mut findings);
        let required = required_evidence::required(&settings.pools);
        let ek_roots = ek_roots::inspect(settings, &required, clock.now(), &mut findings);
        let name = tls.as_ref().map(LiveTls::current);
        let name = name.as_ref().and_then(|tls| tls.serving.dns_name());
        let clouds = match Clouds::open_counted(&settings.clouds, name, Arc::clone(metrics)) {
            Ok(open) => {
                findings.extend(clouds::findings(&open, &required));
                Some(open)
            }
            Err(error) => {
                findings.push(InspectionFinding::Error(error.to_string()));
                None
            }
        };
        let bootstrap_tokens = settings.cluster.as_ref().map(|cluster| cluster.bootstrap_tokens.clone());
        let known = pools::PoolContext {
            roots: ek_roots.as_ref().is_some_and(|folder| !folder.roots.is_empty()),
            client_ca: settings.tls.client_ca.is_some(),
            clouds: clouds.as_ref(),
            required: &required,
            machines: settings.cluster.as_ref().is_some_and(|cluster| cluster.machines),
            bootstrap_tokens: &bootstrap_tokens.unwrap_or_default(),
            approval: &settings.approval,
            depth,
            now: clock.now().as_secs(),
        };
        #[cfg(feature = "cluster")]
        let needed = cluster::inspect(settings, api.as_ref(), &mut findings).await;
        #[cfg(not(feature = "cluster"))]
        let needed = NeededState::Pending;
        let pools = match LivePools::open(&settings.pools, clock, Arc::clone(metrics), needed).await {
            Ok(pools) => {
                pools::inspect(&pools, &known, &mut findings);
                Some(pools)
            }
            Err(error) => {
                findings.push(InspectionFinding::Error(error.to_string()));
                None
            }
        };
        let state_use = state::inspect(settings, depth, &mut findings);
        let is_served = matches!(state_use, state::StateUse::Served);
        let (listener, metrics_listener) = match state_use {
            state::StateUse::Free => addresses(settings, &mut findings).await,
            state::StateUse::Served => {
                findings.push(InspectionFinding::Good(format!(
                    "a gateway is running with {}: not testing its log and its addresses",
                    settings.state.display()
                )));
                (None, None)
            }
        };
        let found = match (tls, pools, ek_roots, clouds, listener) {
            (Some(tls), Some(pools), Some(ek_roots), Some(clouds), Some(listener)) => Some(Inspected {
                tls: Arc::new(tls),
                pools,
                ek_roots,
                clouds,
                listener,
                metrics_listener,
                #[cfg(feature = "cluster")]
                cluster: api.map(|api| api.cluster),
            }),
            _ => None,
        };
        Self {
            findings,
            is_served,
            found,
        }
    }

    /// Returns whether an error keeps the gateway from serving.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| matches!(finding, InspectionFinding::Error(_) | InspectionFinding::Newer(..)))
    }

    /// Returns what may stop a boot now: what keeps the gateway from serving, and what is broken while the rest is served.
    pub fn stops(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().filter_map(|finding| match finding {
            InspectionFinding::Degraded(text) | InspectionFinding::Error(text) | InspectionFinding::Newer(text, _) => Some(text.as_str()),
            InspectionFinding::Good(_) | InspectionFinding::Warning(_) => None,
        })
    }

    /// Returns the texts of all warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().filter_map(|finding| match finding {
            InspectionFinding::Warning(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns the first data of a newer release.
    #[must_use]
    pub fn newer(&self) -> Option<&NewerFormat> {
        self.findings.iter().find_map(|finding| match finding {
            InspectionFinding::Newer(_, newer) => Some(newer),
            _ => None,
        })
    }

    /// Returns whether any finding is not good.
    #[must_use]
    pub fn complains(&self) -> bool {
        self.findings.iter().any(|finding| !matches!(finding, InspectionFinding::Good(_)))
    }

    /// Logs warnings and degradations, but not the errors that keep the gateway from serving.
    pub fn log(&self) {
        for finding in &self.findings {
            match finding {
                InspectionFinding::Good(_) | InspectionFinding::Error(_) | InspectionFinding::Newer(..) => {}
                InspectionFinding::Warning(text) => tracing::warn!("{text}"),
                InspectionFinding::Degraded(text) => tracing::error!("{text}"),
            }
        }
    }

    /// Returns what a gateway needs to serve. `None` if another one serves with this state.
    ///
    /// # Errors
    /// [`Faults`], if there is an error among the findings.
    pub fn into_inspected(self) -> Result<Option<Inspected>, Faults> {
        let newer = self.newer().cloned();
        let errors: Vec<String> = self
            .findings
            .into_iter()
            .filter_map(|finding| match finding {
                InspectionFinding::Error(text) | InspectionFinding::Newer(text, _) => Some(text),
                _ => None,
            })
            .collect();
        match errors.is_empty() {
            true => Ok(self.found),
            false => Err(Faults { errors, newer }),
        }
    }
}

/// Binds the addresses. A caller that is not going to serve releases them by dropping the listeners.
async fn addresses(settings: &Settings, findings: &mut Vec<InspectionFinding>) -> (Option<TcpListener>, Option<TcpListener>) {
    let mut listen = async |address| match TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            findings.push(InspectionFinding::Error(format!("cannot listen on {address}: {error}")));
            None
        }
    };
    let listener = listen(settings.listen).await;
    let metrics = match settings.metrics_listen {
        Some(address) => listen(address).await,
        None => None,
    };
    (listener, metrics)
}
