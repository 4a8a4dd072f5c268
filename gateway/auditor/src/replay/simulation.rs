//! Simulation of another policy with recorded evidence: the last of each machine.
//!
//! Evidence is verified as it was recorded, and appraised by the given policy. Other reasons for a decision are left out: the owner of a
//! name, revoked nodes, the machines of an inventory. Refusals that a policy only observes count as refusals here: these are what a
//! simulation is for.

use std::collections::{BTreeMap, BTreeSet};

use attest::azure::vtpm::AzureVtpmError;
use attest::tpm::TpmEvidenceError;
use attest::tpm::rules::BootRefusal;
use attest::{AppraisalPolicy, Reject, UnixTime, appraise};
use attest_log::Blobs;
use attest_log::past_evidence::{self, PastEvidence, Sought};
use attest_log::reading::{LogFile, LogReadError};

use super::verify;

/// Machines that are named where several share a cause.
pub const NAMED_LIMIT: usize = 3;

/// Maximum number of causes that are distinguished. A value may be a text of its own machine: if each has another one, more causes say
/// nothing.
const CAUSES_LIMIT: usize = 10_000;

/// Request for a simulation.
#[derive(Debug, Clone, Copy)]
pub struct SimulationRequest<'a> {
    pub pool: &'a str,
    /// Time of the oldest evidence that counts, in seconds since 1970.
    pub since: u64,
    pub policy: &'a AppraisalPolicy,
    /// Time of the appraisal: reference values lapse.
    pub now: UnixTime,
}

/// Result of a simulation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Machines that would be accepted.
    pub accepted: usize,
    /// Machines among them that were refused at the time.
    pub let_in: usize,
    /// Machines that would be refused, by the cause that they share.
    pub refused: BTreeMap<RefusalCause, MachineGroup>,
    /// Machines whose evidence cannot be verified again.
    pub not_judged: BTreeMap<RefusalCause, MachineGroup>,
}

/// Reason why machines are refused. Those with the same value have it in common, as after one update of their firmware.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusalCause {
    pub code: String,
    pub value: String,
}

/// Machines that share something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineGroup {
    pub count: usize,
    /// Machines among them whose evidence was trusted.
    pub trusted: usize,
    /// Names, at most [`NAMED_LIMIT`] of them.
    pub named: BTreeSet<String>,
}

impl MachineGroup {
    fn add(&mut self, trusted: bool, name: String) {
        self.count += 1;
        self.trusted += usize::from(trusted);
        self.named.insert(name);
        while self.named.len() > NAMED_LIMIT {
            self.named.pop_last();
        }
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.trusted += other.trusted;
        self.named.extend(other.named);
        while self.named.len() > NAMED_LIMIT {
            self.named.pop_last();
        }
    }
}

impl Simulation {
    /// All machines that were looked at.
    #[must_use]
    pub fn machines(&self) -> usize {
        let of = |groups: &BTreeMap<RefusalCause, MachineGroup>| groups.values().map(|machines| machines.count).sum::<usize>();
        self.accepted + of(&self.refused) + of(&self.not_judged)
    }

    /// Returns the number of machines that were trusted, and would be refused.
    #[must_use]
    pub fn shut_out(&self) -> usize {
        self.refused.values().map(|machines| machines.trusted).sum()
    }

    fn judge(&mut self, past: &PastEvidence, blobs: &Blobs, asked: &SimulationRequest<'_>) {
        let verified = std::str::from_utf8(&past.line).map_err(|error| error.to_string());
        let verified = verified.and_then(|line| verify(line, blobs).map_err(|error| error.to_string()));
        let (groups, cause) = match verified.map(|again| appraise(again.claims.without_further_pcrs(asked.policy), asked.policy, asked.now))
        {
            Ok(Ok(_)) => {
                self.accepted += 1;
                self.let_in += usize::from(!past.trusted);
                return;
            }
            Ok(Err(reject)) => (
                &mut self.refused,
                RefusalCause {
                    code: reject.code().to_owned(),
                    value: shared(&reject),
                },
            ),
            Err(value) => (
                &mut self.not_judged,
                RefusalCause {
                    code: "cannot be verified again".to_owned(),
                    value,
                },
            ),
        };
        let cause = match groups.len() < CAUSES_LIMIT || groups.contains_key(&cause) {
            true => cause,
            false => RefusalCause {
                code: cause.code,
                value: "other values".to_owned(),
            },
        };
        groups.entry(cause).or_default().add(past.trusted, past.name.clone());
    }

    fn merge(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.let_in += other.let_in;
        for (into, from) in [(&mut self.refused, other.refused), (&mut self.not_judged, other.not_judged)] {
            for (cause, machines) in from {
                into.entry(cause).or_default().merge(machines);
            }
        }
    }
}

/// Returns the part of a refusal that several machines may share: not its position in each one's log, nor each one's name for it.
fn shared(reject: &Reject) -> String {
    match reject {
        Reject::Tpm(TpmEvidenceError::Boot(boot)) | Reject::AzureVtpm(AzureVtpmError::Tpm(TpmEvidenceError::Boot(boot))) => match boot {
            BootRefusal::NotAccepted { check, bank, digest, .. } => format!("{check}: {bank} {digest}"),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

/// Finds the last evidence of each machine in these files, and appraises it. Passes to `progress` how many machines there are, and how many
/// were looked at.
///
/// # Errors
/// [`LogReadError`], if a file cannot be read.
pub fn simulate(
    files: &[LogFile],
    blobs: &Blobs,
    asked: &SimulationRequest<'_>,
    progress: impl FnMut(usize, usize),
) -> Result<Simulation, LogReadError> {
    // A policy that observes is asked for what it would refuse.
    let strict = asked.policy.strict();
    let asked = &SimulationRequest { policy: &strict, ..*asked };
    let sought = Sought {
        pool: asked.pool,
        since: asked.since,
        each: 1,
        trusted: false,
        without: &[],
    };
    let judge = |found: &mut Simulation, past: &PastEvidence| found.judge(past, blobs, asked);
    let (parts, _) = past_evidence::each(files, &sought, judge, progress)?;
    let mut all = Simulation::default();
    parts.into_iter().for_each(|part| all.merge(part));
    Ok(all)
}
