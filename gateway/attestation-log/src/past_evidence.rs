//! Evidence that machines have shown, as the log has it: the last of each machine, processed by several threads.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::num::NonZero;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use serde::de::IgnoredAny;

use super::reading::{LogFile, LogReadError};
use super::record::{Decision, Record, Verdict};

/// Most lines that wait for a processor: each has some 10 KB.
const WAITING_LIMIT: usize = 64;

/// Most machines that are told apart: more than any cluster has, and some hundred megabytes. Tests write fewer lines.
const MACHINES_LIMIT: usize = if cfg!(test) { 1000 } else { 1_000_000 };

/// Selection of evidence, among evidence that was verified, with any verdict.
#[derive(Debug, Clone, Copy)]
pub struct Sought<'a> {
    pub pool: &'a str,
    /// Earliest time of the evidence, in seconds since 1970.
    pub since: u64,
    /// Number of pieces of evidence for each machine: the last ones.
    pub each: usize,
    /// Set to select trusted evidence only.
    pub trusted: bool,
    /// Machines that are left out, by name, identity or instance.
    pub without: &'a [String],
}

/// Evidence that was found.
#[derive(Debug)]
pub struct PastEvidence {
    /// Number of the machine, in the order in which machines first appear.
    pub machine: u32,
    /// Its name, or its identity.
    pub name: String,
    pub trusted: bool,
    /// Time at which it was shown, in seconds since 1970.
    pub at: u64,
    /// Record as a line of the log.
    pub line: Vec<u8>,
}

/// A decision without claims and basis. Events have no verdict and are passed over.
type EvidenceFields = Record<IgnoredAny, IgnoredAny>;

/// Parses evidence that is selected; returns it with its machine.
fn parse_evidence(line: &[u8], sought: &Sought<'_>) -> Option<(EvidenceFields, String)> {
    let fields: EvidenceFields = serde_json::from_slice(line).ok()?;
    let wanted = fields.decision == Decision::Evidence
        && fields.pool == sought.pool
        && fields.at >= sought.since
        && fields.claims.is_some()
        && (!sought.trusted || fields.verdict == Verdict::Trusted);
    let known = [&fields.name, &fields.identity, &fields.instance];
    let left_out = known.into_iter().flatten().any(|known| sought.without.contains(known));
    let machine = fields.identity.clone().or_else(|| fields.instance.clone());
    let machine = machine.filter(|_| wanted && !left_out)?;
    Some((fields, machine))
}

/// Finds the selected evidence in these files, and processes it in several threads, each of which has its own `T`. Returns these values,
/// and the number of pieces of evidence that were older than the selected ones of their machine. `progress` gets the number of all pieces,
/// and of those handed out.
///
/// # Errors
/// [`LogReadError`], if a file cannot be read, or files name too many machines.
pub fn each<T: Default + Send>(
    files: &[LogFile],
    sought: &Sought<'_>,
    work: impl Fn(&mut T, &PastEvidence) + Sync,
    mut progress: impl FnMut(usize, usize),
) -> Result<(Vec<T>, usize), LogReadError> {
    // Lines are some 10 KB each, and may be many: which are the last is found out first.
    let (mut last, mut machines, mut older) = (HashMap::<String, VecDeque<u64>>::new(), HashMap::<String, u32>::new(), 0);
    let mut too_many = false;
    each_line(files, |number, line| {
        let Some((_, machine)) = parse_evidence(line, sought) else {
            return;
        };
        if machines.len() >= MACHINES_LIMIT && !machines.contains_key(&machine) {
            too_many = true;
            return;
        }
        let next = u32::try_from(machines.len()).unwrap_or(u32::MAX);
        machines.entry(machine.clone()).or_insert(next);
        let of_machine = last.entry(machine).or_default();
        of_machine.push_back(number);
        if of_machine.len() > sought.each {
            of_machine.pop_front();
            older += 1;
        }
    })?;
    if let Some(file) = files.first().filter(|_| too_many) {
        let why = format!("this log has evidence of more than {MACHINES_LIMIT} machines: choose a shorter time with --days");
        return Err(LogReadError {
            path: file.path().to_owned(),
            source: io::Error::new(ErrorKind::InvalidData, why),
        });
    }
    let wanted: HashSet<u64> = last.into_values().flatten().collect();
    let (pieces, waiting) = mpsc::sync_channel::<PastEvidence>(WAITING_LIMIT);
    let waiting = Mutex::new(waiting);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    let work = || {
        let mut found = T::default();
        while let Some(past) = next() {
            work(&mut found, &past);
        }
        found
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut done = 0;
        let read = each_line(files, |number, line| {
            let Some((fields, machine)) = wanted.contains(&number).then(|| parse_evidence(line, sought)).flatten() else {
                return;
            };
            let past = PastEvidence {
                machine: machines.get(&machine).copied().unwrap_or(u32::MAX),
                trusted: fields.verdict == Verdict::Trusted,
                at: fields.at,
                name: fields.name.unwrap_or(machine),
                line: line.to_vec(),
            };
            // Whoever takes them ends after this.
            let _ = pieces.send(past);
            done += 1;
            progress(wanted.len(), done);
        });
        drop(pieces);
        // None of them panics.
        let all = workers.into_iter().filter_map(|worker| worker.join().ok()).collect();
        read.map(|()| (all, older))
    })
}

/// Calls `each` with each line and its number, counted over all files.
fn each_line(files: &[LogFile], mut each: impl FnMut(u64, &[u8])) -> Result<(), LogReadError> {
    let mut number = 0;
    for file in files {
        file.each_line(|line| {
            each(number, line);
            number += 1;
        })?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::reading::files_of;

    #[test]
    fn a_log_of_too_many_machines_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let sought = Sought {
            pool: "worker",
            since: 0,
            each: 1,
            trusted: false,
            without: &[],
        };
        let found = |machines: usize| {
            let line = |machine: usize| {
                let mut record = Record::<_, ()>::new(String::new(), Decision::Evidence, 7, String::new(), "worker".to_owned());
                record.verdict = Verdict::Trusted;
                record.identity = Some(format!("tpm:{machine}"));
                record.claims = Some(serde_json::Map::new());
                serde_json::to_string(&record).unwrap()
            };
            let text: String = (0..machines).map(|machine| line(machine) + "\n").collect();
            std::fs::write(&log, text).unwrap();
            let files = files_of(std::slice::from_ref(&log)).unwrap().files;
            each(&files, &sought, |count: &mut usize, _| *count += 1, |_, _| {})
        };
        let (counts, _) = found(MACHINES_LIMIT).unwrap();
        assert_eq!(counts.into_iter().sum::<usize>(), MACHINES_LIMIT);
        let error = found(MACHINES_LIMIT + 1).unwrap_err().to_string();
        assert!(error.contains("attestation.jsonl") && error.contains("machines"), "{error}");
    }
}
