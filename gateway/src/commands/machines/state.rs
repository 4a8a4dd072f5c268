//! State of all machines: of the store, and of the last decisions in the attestation log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::bail;
use attest::challenge::is_node_name;
use attest_command_line::output::ReaderState;
use attest_command_line::records::{Filter, LogSource};
use attest_gateway::machine_status::facts::MachineUpdates;
use attest_gateway::machine_status::status::{AttestedNodeState, AttestedNodeStatus, LastAttestation, LastConfig, LastRefusal};
use attest_gateway::machine_status::stored::{self, StoredMachine};
use attest_gateway::settings::Settings;
use attest_log::newer_log;
use attest_machines::instances::{self, InstanceRecord};
use attest_machines::revocations::{self, Revocation};
use attest_pool::by_its_own_tpm;
use attest_store::Store;
use attest_system::clock::rfc3339;
use serde::Serialize;

use super::super::{now, reading_store};

/// Part of the attestation log that is read.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LogPart {
    /// Read the log from this time on: RFC 3339 with its zone, or how long ago (90m, 2h, 7d). Older decisions are not shown.
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = attest_command_line::records::when)]
    since: u64,
    /// Log files, or folders with a log, also of other gateways; `.gz` too. Without it, the gateway's own log. Each gateway's log has the
    /// decisions of that gateway only.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
}

/// Everything that is shown of the machines.
pub(super) struct MachineList {
    pub(super) all: Vec<ListedMachine>,
    /// Instances that have a holder.
    pub(super) claims: Vec<(String, InstanceRecord)>,
    pub(super) revoked: BTreeMap<String, Revocation>,
}

/// A machine with its state.
pub(super) struct ListedMachine {
    pub(super) status: AttestedNodeStatus,
    pub(super) stored: StoredMachine,
}

/// A machine, for programs.
#[derive(Debug, Serialize)]
pub(super) struct MachineRow<'m> {
    name: Option<&'m str>,
    identity: Option<&'m str>,
    state: String,
    /// Pool of the last attestation.
    pool: Option<&'m str>,
    /// Code of the last attestation, if that was refused.
    code: Option<&'m str>,
    /// Question of new values that the machine waits for.
    waiting: Option<&'m str>,
    attestation: Option<AttestationRow<'m>>,
    refusal: Option<RefusalRow<'m>>,
    config: Option<ConfigRow<'m>>,
    allowlist: Option<AllowlistRow<'m>>,
    revoked: Option<RevokedRow<'m>>,
}

/// The last attestation that held.
#[derive(Debug, Serialize)]
struct AttestationRow<'m> {
    at: &'m str,
    kinds: Vec<&'m str>,
    pool: &'m str,
    instance: Option<&'m str>,
    record: &'m str,
}

/// The last refusal of a machine that proved its identity.
#[derive(Debug, Serialize)]
struct RefusalRow<'m> {
    at: &'m str,
    code: &'m str,
    pool: &'m str,
    record: &'m str,
}

/// The last config that was served for an attestation.
#[derive(Debug, Serialize)]
struct ConfigRow<'m> {
    at: &'m str,
    set: &'m str,
    pool: &'m str,
    sha256: &'m str,
    spec_version: &'m str,
    record: &'m str,
}

#[derive(Debug, Serialize)]
struct AllowlistRow<'m> {
    name: Option<&'m str>,
    /// Empty for every pool.
    pools: &'m [String],
    note: Option<&'m str>,
    added: String,
    removed: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RevokedRow<'m> {
    at: String,
    reason: Option<&'m str>,
}

impl RevokedRow<'_> {
    pub(super) fn text(&self, who: &str) -> String {
        let reason = self.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{who} at {}{reason}", self.at)
    }
}

impl<'m> From<&'m Revocation> for RevokedRow<'m> {
    fn from(revocation: &'m Revocation) -> Self {
        Self {
            at: rfc3339(revocation.at),
            reason: revocation.reason.as_deref(),
        }
    }
}

impl ListedMachine {
    fn new(object: &str, stored: StoredMachine, mut status: AttestedNodeStatus, now: u64) -> Self {
        stored.add_to(&mut status, object, 0, now);
        status.sum_up();
        // Most of the memory of a long list; no row shows them.
        status.conditions = Vec::new();
        Self { status, stored }
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.status.node_name.as_deref()
    }

    pub(super) fn identity(&self) -> Option<&str> {
        self.status.identity.as_deref().filter(|identity| !identity.is_empty())
    }

    /// Returns whether the machine has attested to the pool last, or is expected in it.
    pub(super) fn is_of(&self, pool: &str) -> bool {
        match (&self.status.attestation, &self.status.refusal) {
            (Some(attestation), _) => attestation.pool == pool,
            (None, Some(refusal)) => refusal.pool == pool,
            (None, None) => self.stored.listed.as_ref().is_some_and(|record| record.may_join(pool)),
        }
    }

    pub(super) fn is(&self, state: AttestedNodeState) -> bool {
        self.status.state == Some(state)
    }

    pub(super) fn row(&self) -> MachineRow<'_> {
        let status = &self.status;
        let listed = self.stored.listed.as_ref();
        MachineRow {
            name: self.name(),
            identity: self.identity(),
            state: status.state.map(|state| format!("{state:?}").to_lowercase()).unwrap_or_default(),
            pool: status.attestation.as_ref().map(|attestation| attestation.pool.as_str()),
            code: status.code.as_deref(),
            waiting: status.waiting.as_deref(),
            attestation: status.attestation.as_deref().map(
                |LastAttestation {
                     at,
                     by,
                     pool,
                     instance,
                     record,
                 }| AttestationRow {
                    at,
                    kinds: by.split('+').filter(|kind| !kind.is_empty()).collect(),
                    pool,
                    instance: instance.as_deref(),
                    record,
                },
            ),
            refusal: status
                .refusal
                .as_deref()
                .map(|LastRefusal { at, code, pool, record }| RefusalRow { at, code, pool, record }),
            config: status.config.as_deref().map(
                |LastConfig {
                     at,
                     set,
                     pool,
                     sha256,
                     spec_version,
                     record,
                 }| ConfigRow {
                    at,
                    set,
                    pool,
                    sha256,
                    spec_version,
                    record,
                },
            ),
            allowlist: listed.map(|record| AllowlistRow {
                name: record.name.as_deref(),
                pools: &record.pools,
                note: record.note.as_deref(),
                added: rfc3339(record.added),
                removed: record.removed.map(rfc3339),
            }),
            revoked: self.stored.revoked.as_ref().map(RevokedRow::from),
        }
    }
}

/// Facts of the store about all machines.
struct StoredMachines {
    machines: BTreeMap<String, StoredMachine>,
    claims: Vec<(String, InstanceRecord)>,
    revoked: BTreeMap<String, Revocation>,
}

/// Reads the state of all machines; `select` looks something up in the same store.
///
/// # Errors
/// If the store or the log cannot be read, and those of `select`.
pub(super) fn read<T>(
    config: &Path,
    part: &LogPart,
    select: impl AsyncFnOnce(&dyn Store) -> anyhow::Result<T>,
) -> anyhow::Result<(MachineList, T)> {
    let (settings, now) = (Settings::load(config)?, now());
    let (stored, selected) = reading_store(&settings, async |store| {
        let selected = select(store).await?;
        let stored = StoredMachines {
            machines: stored::all(store, now).await?,
            claims: instances::list(store).await?,
            revoked: revocations::list(store).await?,
        };
        Ok((stored, selected))
    })?;
    let facts = facts(&settings.attestation_log(), part)?;
    Ok((together(stored, facts, now), selected))
}

fn together(stored: StoredMachines, facts: MachineUpdates, now: u64) -> MachineList {
    let StoredMachines {
        mut machines,
        claims,
        revoked,
    } = stored;
    let mut all = Vec::new();
    for (object, facts) in facts.0 {
        let mut status = AttestedNodeStatus::default();
        facts.add_to(&mut status, 0);
        let known = machines.remove(&object);
        if known.is_none() && !facts.is_of_a_machine() {
            continue;
        }
        let stored = known.unwrap_or_else(|| {
            let name = status.node_name.clone();
            let by_name = || revoked.get(name.as_ref()?);
            StoredMachine {
                revoked: revoked.get(&facts.identity).or_else(by_name).cloned(),
                identity: facts.identity.clone(),
                name,
                ..StoredMachine::default()
            }
        });
        all.push(ListedMachine::new(&object, stored, status, now));
    }
    all.extend(
        machines
            .into_iter()
            .map(|(object, stored)| ListedMachine::new(&object, stored, AttestedNodeStatus::default(), now)),
    );
    let others = strangers(&all, &claims, &revoked, now);
    all.extend(others);
    all.sort_by(|a, b| (a.name().is_none(), a.name(), a.identity()).cmp(&(b.name().is_none(), b.name(), b.identity())));
    MachineList { all, claims, revoked }
}

/// Returns a row for each revoked name or identity that belongs to no machine in the list.
fn strangers(
    all: &[ListedMachine],
    claims: &[(String, InstanceRecord)],
    revoked: &BTreeMap<String, Revocation>,
    now: u64,
) -> Vec<ListedMachine> {
    let identities = all.iter().filter_map(ListedMachine::identity);
    let instances = all
        .iter()
        .filter_map(|machine| machine.status.attestation.as_ref()?.instance.as_deref());
    let claimed = claims.iter().map(|(instance, _)| instance.as_str());
    let identities: BTreeSet<&str> = identities.chain(instances).chain(claimed).collect();
    let by_own_tpm: BTreeSet<String> = identities
        .iter()
        .chain(&revoked.keys().map(String::as_str).collect::<Vec<_>>())
        .filter_map(|identity| by_its_own_tpm(identity))
        .collect();
    let names: BTreeSet<&str> = all.iter().filter_map(ListedMachine::name).collect();
    let is_shown = |who: &str| names.contains(who) || identities.contains(who) || by_own_tpm.contains(who);
    let strange = revoked.iter().filter(|(who, _)| !is_shown(who));
    strange
        .map(|(who, revocation)| {
            let is_name = is_node_name(who);
            let stored = StoredMachine {
                identity: if is_name { String::new() } else { who.clone() },
                name: is_name.then(|| who.clone()),
                revoked: Some(revocation.clone()),
                revoked_itself: !is_name,
                ..StoredMachine::default()
            };
            let mut machine = ListedMachine::new("", stored, AttestedNodeStatus::default(), now);
            if is_name {
                machine.status.identity = None;
            }
            machine
        })
        .collect()
}

/// Returns the last decisions about each machine that has proven its identity.
fn facts(own: &Path, part: &LogPart) -> anyhow::Result<MachineUpdates> {
    let mut facts = MachineUpdates::default();
    let log = part.log.clone();
    if log.is_empty() && !own.exists() {
        // No gateway has served here.
        return Ok(facts);
    }
    if log.is_empty()
        && let Some(newer) = newer_log(own)?
    {
        return Err(newer.into());
    }
    let source = LogSource {
        log,
        filter: Filter::since(part.since),
        last: None,
    };
    let opened = source.open(own, None)?;
    let unread = opened.each(|read| {
        if read.fields.as_ref().is_some_and(|fields| source.filter.takes(fields, read.line)) {
            facts.add(read.line);
        }
        Ok(ReaderState::There)
    })?;
    unread.report();
    if unread.lacks_files() && !part.log.is_empty() {
        bail!("not all of the logs could be read: name readable ones with --log");
    }
    Ok(facts)
}
