//! Proposal of the strictest rules on measured boot that accept the recent boots of a pool's machines, by the attestation log. It names the
//! facts that no rule covers.
//!
//! Only evidence that was trusted counts. So a machine that was refused widens nothing. One that a pool only observed is in the proposal,
//! and is shown as one that few are like. Nothing is changed: the result is text.
//!
//! In reading order: [`ObservedBoots`] (what was booted), [`ProposedRules`] (what follows from that), `file` (pool.toml with it), [`unified`] (the difference).

mod diff;
mod file;
mod observed_boots;
mod rules;
mod thing;
mod values;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use attest::reference_sets::{Generation, ReferenceSet, ReferenceSetError, Time, ValueOrigin, Values};
use attest::{AppraisalPolicy, Kind, UnixTime};
use attest_log::Blobs;
use attest_log::past_evidence::{self, Sought};
use attest_log::reading::{LogFile, LogReadError};

pub use diff::unified;
pub use file::PoolFileError;
pub use observed_boots::{BootSection, ObservedBoots};
use rules::Proposer;
pub use rules::{NotGeneralised, ProposedRules, Rare, RuleRequest};

use attest_pool::PoolError;

/// Maximum number of pieces of evidence of one machine, the latest ones: its boots since its last few updates.
pub const EACH_LIMIT: usize = 16;

/// Request for a proposal.
#[derive(Debug, Clone)]
pub struct ProposalRequest<'a> {
    pub pool: &'a str,
    /// Folder of the pool.
    pub folder: &'a Path,
    /// Time of the oldest evidence that counts, in seconds since 1970.
    pub since: u64,
    /// Machines that are left out, by name, identity or instance.
    pub without: &'a [String],
    pub wanted: RuleRequest,
    pub now: UnixTime,
    /// Author, as a generation names it.
    pub by: &'a str,
}

/// A proposal for a pool.
#[derive(Debug)]
pub struct Proposal {
    /// The pool's file, and what it says now.
    pub path: PathBuf,
    pub before: String,
    /// Proposed content of the file.
    pub after: String,
    /// The file of reference values that this needs, and what is in it; none if it needs none.
    pub set: Option<(PathBuf, String)>,
    /// The policy that it is.
    pub policy: AppraisalPolicy,
    pub not_generalised: Vec<NotGeneralised>,
    pub rare: Vec<Rare>,
    /// Machines whose boots count, and number of their pieces of evidence that are older than [`EACH_LIMIT`] allows.
    pub machines: usize,
    pub older: usize,
}

/// Reason why a proposal cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProposalError {
    #[error(transparent)]
    Read(#[from] LogReadError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    File(#[from] PoolFileError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// More values than a generation may have.
    #[error(
        "the observed values do not make a valid generation of reference values: {0}; raise --least to keep only values that more machines share"
    )]
    Set(#[from] ReferenceSetError),
    #[error("no evidence of pool {pool} was trusted in that time: cannot propose reference values")]
    Nothing { pool: String },
    #[error("no trusted evidence of pool {pool} in that time can be used: {why}")]
    NotCounted { pool: String, why: String },
    #[error("pool {pool} accepts no evidence that measures the boot")]
    NoSection { pool: String },
}

/// Reads the log, and makes a proposal of what it has. Passes to `progress` how much evidence there is, and how much was given out.
///
/// # Errors
/// [`ProposalError`].
pub fn propose(
    files: &[LogFile],
    blobs: &Blobs,
    asked: &ProposalRequest<'_>,
    progress: impl FnMut(usize, usize),
) -> Result<Proposal, ProposalError> {
    let path = asked.folder.join("pool.toml");
    let policy = attest_pool::policy(asked.folder, &path, &[])?;
    if BootSection::all_of(&policy).next().is_none() {
        return Err(ProposalError::NoSection {
            pool: asked.pool.to_owned(),
        });
    }
    let io = |source| ProposalError::Io {
        path: path.clone(),
        source,
    };
    let before = fs::read_to_string(&path).map_err(io)?;
    let observing = policy.observing();
    let sought = Sought {
        pool: asked.pool,
        since: asked.since,
        each: EACH_LIMIT,
        trusted: true,
        without: asked.without,
    };
    let add = |seen: &mut ObservedBoots, past: &past_evidence::PastEvidence| seen.add(past, blobs, &observing, asked.now);
    let (parts, older) = past_evidence::each(files, &sought, add, progress)?;
    let mut seen = ObservedBoots::default();
    parts.into_iter().for_each(|part| seen.merge(part));
    let machines = seen.machines();
    if machines == 0 {
        let pool = asked.pool.to_owned();
        return Err(match seen.not_counted.into_keys().next() {
            Some(why) => ProposalError::NotCounted { pool, why },
            None => ProposalError::Nothing { pool },
        });
    }
    let (mut values, mut rules) = (Values::default(), BTreeMap::new());
    let (mut not_generalised, mut rare) = (not_counted(&seen), Vec::new());
    not_generalised.extend(says_nothing(&seen));
    for (section, now) in BootSection::all_of(&policy) {
        let Some(of) = seen.sections.get(&section) else {
            not_generalised.push(not_seen(section));
            continue;
        };
        let proposer = Proposer {
            section,
            now,
            of,
            observed: &seen,
            wanted: asked.wanted,
            values: &mut values,
            out: rules::OfRules::default(),
        };
        let out = proposer.propose();
        rules.insert(section, out.rules);
        not_generalised.extend(out.not_generalised);
        rare.extend(out.rare);
    }
    let with_values = values != Values::default();
    let (after, folder) = file::edited(&before, &rules, with_values)?;
    let since = seen.since.unwrap_or(asked.since);
    let set = with_values.then(|| set(values, machines, since, asked)).transpose()?;
    let texts: Vec<String> = set.iter().cloned().collect();
    let policy = attest_pool::policy_of(asked.folder, &path, &after, texts)?;
    let name = format!(
        "proposed-{}.json",
        Time { at: asked.now.as_secs() }.to_string().replace([':', '-'], "")
    );
    let set = set.map(|text| (asked.folder.join(folder).join(name), text));
    Ok(Proposal {
        path,
        before,
        after,
        set,
        policy,
        not_generalised,
        rare,
        machines,
        older,
    })
}

/// Returns the evidence that was looked at, but does not count.
fn not_counted(seen: &ObservedBoots) -> Vec<NotGeneralised> {
    let row = |(why, machines): (&String, &observed_boots::Machines)| NotGeneralised {
        rule: "not counted".to_owned(),
        why: why.clone(),
        machines: machines.len(),
        named: seen.named(machines),
    };
    seen.not_counted.iter().map(row).collect()
}

/// Returns the kinds of evidence that were shown, but say nothing of what was booted.
fn says_nothing(seen: &ObservedBoots) -> impl Iterator<Item = NotGeneralised> {
    let is_looked_at = |kind: Kind| BootSection::ALL.iter().any(|section| section.kind() == kind);
    let others = seen.kinds.iter().filter(move |(kind, _)| !is_looked_at(**kind));
    others.map(|(kind, machines)| NotGeneralised {
        rule: format!("{}: whole section", kind.section()),
        why: "this evidence does not measure the boot: left unchanged".to_owned(),
        machines: machines.len(),
        named: seen.named(machines),
    })
}

fn not_seen(section: BootSection) -> NotGeneralised {
    NotGeneralised {
        rule: format!("{}: whole section", section.key()),
        why: "no such evidence was trusted in that time: left unchanged".to_owned(),
        machines: 0,
        named: String::new(),
    }
}

/// Returns a file with one generation of all values.
fn set(values: Values, machines: usize, since: u64, asked: &ProposalRequest<'_>) -> Result<String, ReferenceSetError> {
    let added = Time { at: asked.now.as_secs() };
    let generation = Generation {
        name: format!("proposed {added}"),
        added,
        by: asked.by.to_owned(),
        from: ValueOrigin::Proposed {
            machines,
            since: Time { at: since },
        },
        expires: None,
        values,
    };
    ReferenceSet::new(vec![generation])?.to_json()
}
