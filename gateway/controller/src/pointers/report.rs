//! `attest-controller pointer list`: which CAs the pointers of machine sets carry. Nothing is changed.

use std::fmt;
use std::sync::Arc;

use attest_certificates::Fingerprint;
use attest_certificates::source::CertificateFileError;
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_pool::PoolError;
use attest_system::clock::Clock;
use serde_json::{Value, json};

use super::{Here, MachineSet, PointerState, list_pointers};
use crate::pools;
use crate::settings::ControllerSettings;

/// The machine sets, and which CAs the pointer of each carries.
pub struct PointerReport {
    rows: Vec<(MachineSet, PointerState)>,
    newest: Option<Fingerprint>,
}

/// Reason why a report cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("pools: {0}")]
    Pools(#[from] PoolError),
    #[error("pointers: {0}")]
    Files(#[from] CertificateFileError),
    #[error("cluster: {0}")]
    Cluster(#[from] ClusterError),
}

/// Asks the API once for all machine sets and their Secrets.
///
/// # Errors
/// [`ReportError`].
pub async fn report(settings: &ControllerSettings, clock: Clock) -> Result<PointerReport, ReportError> {
    let names = pools::read(&settings.pools)?.rules.names.into_keys().collect();
    let here = Here::read(&settings.pointers, names, clock.now())?;
    let cluster = ClusterClient::open(&settings.access, clock, Arc::new(())).await?;
    Ok(PointerReport {
        rows: list_pointers(&cluster, &settings.machine_namespace, &here).await?,
        newest: here.newest(),
    })
}

impl PointerReport {
    /// Returns whether there are no machine sets.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the machine sets whose machines may refuse a certificate that only the newest CA has signed.
    #[must_use]
    pub fn lacking(&self) -> Vec<String> {
        let lacking = self.rows.iter().filter(|(_, state)| state.lacks(self.newest));
        lacking.map(|(set, _)| format!("{} {}", set.kind, set.name)).collect()
    }

    /// Returns the newest CA that pointers carry.
    #[must_use]
    pub fn newest(&self) -> String {
        self.newest.map_or_else(String::new, |newest| newest.short())
    }

    /// Returns the report for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let sets = self.rows.iter().map(|(set, state)| {
            let (carried, note) = state.description();
            json!({
                "kind": set.kind,
                "name": set.name,
                "replicas": set.replicas,
                "secret": set.secret.to_string(),
                "state": state.code(),
                "authorities": carried,
                "note": note,
                "lacks_newest": state.lacks(self.newest),
            })
        });
        json!({"newest": self.newest(), "machine_sets": sets.collect::<Vec<_>>()})
    }
}

impl PointerState {
    const fn code(&self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Behind(_) => "behind",
            Self::Left(..) => "left",
            Self::Unread(_) => "unread",
        }
    }

    /// The CAs that the pointer carries, where they are not those that pointers carry now; and a note.
    fn description(&self) -> (Vec<String>, String) {
        let shorts = |carried: &[Fingerprint]| carried.iter().map(Fingerprint::short).collect();
        match self {
            Self::Current => (Vec::new(), "current".to_owned()),
            Self::Behind(carried) => (shorts(carried), "to be written".to_owned()),
            Self::Left(why, carried) => (shorts(carried), format!("left: {why}")),
            Self::Unread(why) => (Vec::new(), why.clone()),
        }
    }
}

/// Formats the report as a table, for people.
impl fmt::Display for PointerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![["MACHINE SET", "REPLICAS", "SECRET", "POINTER CARRIES", "NOTE"].map(str::to_owned)];
        rows.extend(self.rows.iter().map(|(set, state)| {
            let (carried, note) = state.description();
            [
                format!("{} {}", set.kind, set.name),
                set.replicas.to_string(),
                set.secret.to_string(),
                carried.join(" "),
                note,
            ]
        }));
        let widths: [usize; 5] =
            std::array::from_fn(|column| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0));
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}
