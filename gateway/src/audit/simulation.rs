//! What would become of recorded evidence by another policy: of each machine the last that it has shown.
//!
//! Evidence is verified as it was recorded, and appraised by the policy that is asked about. What else decides stays out: whose name it is, who is revoked,
//! which machines an inventory has. Of a policy that observes, what it would refuse is refused here: to know that is what this is for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZero;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use attest::azure::vtpm::AzureVtpmError;
use attest::tpm::TpmEvidenceError;
use attest::tpm::rules::BootRefusal;
use attest::{AppraisalPolicy, Reject, UnixTime, appraise};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::blobs::Blobs;
use super::reading::{LogFile, ReadError};
use super::replay::verify;

/// Machines that are named where several share a cause.
pub const NAMED_LIMIT: usize = 3;
/// Lines that wait for a processor: each has some 10 KB.
const WAITING_LIMIT: usize = 64;

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub pool: &'a str,
    /// What was shown before is not looked at; seconds since 1970.
    pub since: u64,
    pub policy: &'a AppraisalPolicy,
    /// When it would be appraised: reference values lapse.
    pub now: UnixTime,
}

/// What would become of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Machines that would be accepted.
    pub accepted: usize,
    /// Those of them that were refused.
    pub let_in: usize,
    /// Those that would be refused, by what they share.
    pub refused: BTreeMap<Cause, Machines>,
    /// Those whose evidence cannot be verified again.
    pub not_judged: BTreeMap<Cause, Machines>,
}

/// Why machines are refused: those that share a value have it in common, as after one update of their firmware.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    pub code: String,
    pub value: String,
}

/// Machines that share something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machines {
    pub count: usize,
    /// Those of them whose evidence was trusted.
    pub trusted: usize,
    /// At most [`NAMED_LIMIT`].
    pub named: BTreeSet<String>,
}

/// What is looked at in a line.
#[derive(Deserialize)]
struct Fields {
    at: u64,
    decision: String,
    #[serde(default)]
    verdict: String,
    #[serde(default)]
    pool: String,
    identity: Option<String>,
    instance: Option<String>,
    name: Option<String>,
    /// There if the evidence was verified, whatever came of it then.
    claims: Option<IgnoredAny>,
}

impl Fields {
    /// Of evidence of this pool that was verified; whose it is.
    fn of_evidence(line: &[u8], asked: &Asked<'_>) -> Option<(Self, String)> {
        let fields: Self = serde_json::from_slice(line).ok()?;
        let wanted = fields.decision == "evidence" && fields.pool == asked.pool && fields.at >= asked.since && fields.claims.is_some();
        let machine = fields.identity.clone().or_else(|| fields.instance.clone()).filter(|_| wanted)?;
        Some((fields, machine))
    }
}

impl Machines {
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
        let of = |groups: &BTreeMap<Cause, Machines>| groups.values().map(|machines| machines.count).sum::<usize>();
        self.accepted + of(&self.refused) + of(&self.not_judged)
    }

    /// Those that were trusted, and would be refused.
    #[must_use]
    pub fn shut_out(&self) -> usize {
        self.refused.values().map(|machines| machines.trusted).sum()
    }

    fn judge(&mut self, line: &[u8], fields: Fields, machine: String, blobs: &Blobs, asked: &Asked<'_>) {
        let trusted = fields.verdict == "trusted";
        let verified = std::str::from_utf8(line).map_err(|error| error.to_string());
        let verified = verified.and_then(|line| verify(line, blobs).map_err(|error| error.to_string()));
        let (groups, cause) = match verified.map(|again| appraise(again.claims, asked.policy, asked.now)) {
            Ok(Ok(_)) => {
                self.accepted += 1;
                self.let_in += usize::from(!trusted);
                return;
            }
            Ok(Err(reject)) => (
                &mut self.refused,
                Cause {
                    code: reject.code().to_owned(),
                    value: shared(&reject),
                },
            ),
            Err(value) => (
                &mut self.not_judged,
                Cause {
                    code: "cannot be verified again".to_owned(),
                    value,
                },
            ),
        };
        groups.entry(cause).or_default().add(trusted, fields.name.unwrap_or(machine));
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

/// What several machines may have in common of a refusal: not where in each one's log it is, nor what each one calls it.
fn shared(reject: &Reject) -> String {
    match reject {
        Reject::Tpm(TpmEvidenceError::Boot(boot)) | Reject::AzureVtpm(AzureVtpmError::Tpm(TpmEvidenceError::Boot(boot))) => match boot {
            BootRefusal::NotAccepted { check, bank, digest, .. } => format!("{check}: {bank} {digest}"),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

/// Looks for the last evidence of each machine in these files, and at what would become of it. `progress` is told how many machines there are, and how many
/// were looked at.
///
/// # Errors
/// [`ReadError`], if a file cannot be read.
pub fn simulate(
    files: &[LogFile],
    blobs: &Blobs,
    asked: &Asked<'_>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Simulation, ReadError> {
    // A policy that observes is asked for what it would refuse.
    let strict = asked.policy.strict();
    let asked = &Asked { policy: &strict, ..*asked };
    // Lines are some 10 KB each, and may be many: which are the last is found out first.
    let mut last: HashMap<String, u64> = HashMap::new();
    each_line(files, |number, line| {
        if let Some((_, machine)) = Fields::of_evidence(line, asked) {
            last.insert(machine, number);
        }
    })?;
    let wanted: HashSet<u64> = last.into_values().collect();
    let (lines, waiting) = mpsc::sync_channel::<Vec<u8>>(WAITING_LIMIT);
    let waiting = Mutex::new(waiting);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    let work = || {
        let mut found = Simulation::default();
        while let Some(line) = next() {
            if let Some((fields, machine)) = Fields::of_evidence(&line, asked) {
                found.judge(&line, fields, machine, blobs, asked);
            }
        }
        found
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut done = 0;
        let read = each_line(files, |number, line| {
            if wanted.contains(&number) {
                // Whoever takes them ends after this.
                let _ = lines.send(line.to_vec());
                done += 1;
                progress(wanted.len(), done);
            }
        });
        drop(lines);
        let mut all = Simulation::default();
        // None of them panics.
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .for_each(|found| all.merge(found));
        read.map(|()| all)
    })
}

/// Each line with its number, counted over all files.
fn each_line(files: &[LogFile], mut each: impl FnMut(u64, &[u8])) -> Result<(), ReadError> {
    let mut number = 0;
    for file in files {
        file.each_line(|line| {
            each(number, line);
            number += 1;
        })?;
    }
    Ok(())
}
