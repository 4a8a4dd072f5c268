//! Pass of the retention: removes segments beyond the rule, the oldest first, as long as they are not needed.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use attest_system::clock::Clock;
use attest_system::files;

use super::super::blobs::{Blobs, Sweep};
use super::super::found_decisions::PendingDecision;
use super::super::journal::Journal;
use super::super::removal::{Removal, RetentionCause};
use super::content::SegmentContent;
use super::survey::{Due, Survey};
use super::{PendingDecisions, RetentionError, RetentionRule, kept_lines, name_finder, unnamed_blobs};

/// Segments that are beyond the rule and stay, because a decision of their time is under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetainedSegments {
    pub segments: usize,
    /// A decision that should be recorded by now, but is not yet.
    pub undecided: Option<PendingDecision>,
}

/// Result of a pass.
#[derive(Debug)]
pub struct RetentionResult {
    /// Segments that are beyond the rule and stay, or the error for which they are not known: the next pass continues with it.
    pub held: Result<Option<RetainedSegments>, RetentionError>,
    /// Errors about other things that stay: files with unknown contents, and blobs that may be named.
    pub other_errors: Vec<RetentionError>,
}

impl RetentionResult {
    /// # Errors
    /// The first of these errors.
    pub fn into_result(self) -> Result<Option<RetainedSegments>, RetentionError> {
        let held = self.held?;
        self.other_errors.into_iter().next().map_or(Ok(held), Err)
    }
}

/// Age at which a decision is over, in seconds, however long its request has waited.
const OVERDUE_SECONDS: u64 = 600;

fn is_overdue(pending: &PendingDecision, now: u64) -> bool {
    now.saturating_sub(pending.at) > OVERDUE_SECONDS
}

/// Retention of a log: keeps it as long as its rule says, and no longer.
pub struct Retention {
    log: PathBuf,
    rule: RetentionRule,
    /// Folders of the blobs that records name.
    blobs: Vec<Blobs>,
    /// Oldest segment that was read and stays, with the time of its youngest line.
    looked: Mutex<Option<(PathBuf, u64)>>,
    /// Last removal that was recorded, and may not have been carried out. It is not recorded again each time if something keeps the segment
    /// from being removed.
    last_removal: Mutex<Option<Removal>>,
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention")
            .field("log", &self.log)
            .field("rule", &self.rule)
            .finish_non_exhaustive()
    }
}

impl Retention {
    /// Creates the retention of this log, whose records name blobs in these folders.
    #[must_use]
    pub fn new(log: PathBuf, rule: RetentionRule, blobs: Vec<Blobs>) -> Self {
        Self {
            log,
            rule,
            blobs,
            looked: Mutex::default(),
            last_removal: Mutex::default(),
        }
    }

    /// Returns whether all of the log is kept.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        self.rule == RetentionRule::default()
    }

    /// Removes everything beyond the rule by this clock; returns the segments that are beyond it and stay. Needed segments are looked for
    /// after it is known what may go: a decision that is made later has its line in a later file.
    pub async fn run(&self, journal: &Journal, decisions: &impl PendingDecisions, clock: Clock) -> RetentionResult {
        // What cannot be done of it keeps nothing else from being done.
        let before = self.sweep(journal).await;
        let mut beside = Vec::new();
        let held = match self.keeps_all() {
            true => Ok(None),
            false => self.shorten(journal, decisions, clock, &mut beside).await,
        };
        let swept = match before {
            Ok(()) => self.sweep(journal).await,
            failed => failed,
        };
        beside.extend(swept.err());
        RetentionResult {
            held,
            other_errors: beside,
        }
    }

    async fn shorten(
        &self,
        journal: &Journal,
        decisions: &impl PendingDecisions,
        clock: Clock,
        odd: &mut Vec<RetentionError>,
    ) -> Result<Option<RetainedSegments>, RetentionError> {
        let now = clock.now().as_secs();
        // A clock that jumps ahead makes nothing old at once.
        let trusted = decisions.trusted_time(now).await.map_err(RetentionError::Store)?.min(now);
        let log = self.log.clone();
        let mut survey = journal
            .run_exclusive(move || Survey::read(&log))
            .await
            .ok_or(RetentionError::Ends)??;
        odd.append(&mut survey.odd);
        let past = survey.past(self.rule, trusted);
        let mut left = past.len();
        for due in past {
            // Whoever compresses it is not done, or has said why not.
            if due.segment.twice {
                break;
            }
            let latest = self.youngest_line_time(journal, &due).await?;
            let Some(rule) = due.is_past(self.rule, latest, trusted) else {
                break;
            };
            if let Some(held) = Self::needed(decisions, latest.max(due.segment.ended), now).await? {
                return Ok(Some(RetainedSegments { segments: left, ..held }));
            }
            let mut going = Going::new(self, due, rule);
            // What is written says when it is: it may begin a segment, whose name is to sort behind those of before.
            while going.advance(journal, clock.now().as_secs()).await? {}
            left -= 1;
        }
        Ok(None)
    }

    /// Returns the time of the youngest line of a segment, in seconds since 1970. A segment is read once, however long it stays.
    async fn youngest_line_time(&self, journal: &Journal, due: &Due) -> Result<u64, RetentionError> {
        let path = due.segment.path.clone();
        let known = self.looked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, latest)) = known.filter(|(known, _)| *known == path) {
            return Ok(latest);
        }
        let segment = path.clone();
        let content = journal.run_exclusive(move || SegmentContent::read(&segment, |_| false)).await;
        let latest = content.ok_or(RetentionError::Ends)??.latest;
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, latest));
        Ok(latest)
    }

    /// Returns a decision that needs a segment that reaches to this second: after a kill, the log has to reach back to the decision.
    async fn needed(decisions: &impl PendingDecisions, reaches_to: u64, now: u64) -> Result<Option<RetainedSegments>, RetentionError> {
        let pending = decisions.pending().await.map_err(RetentionError::Store)?;
        let first = pending.into_iter().find(|pending| pending.at <= reaches_to);
        Ok(first.map(|first| RetainedSegments {
            undecided: is_overdue(&first, now).then_some(first),
            ..RetainedSegments::default()
        }))
    }

    /// Records the removal of a segment, unless that was the last recorded removal.
    async fn record_removal(&self, journal: &Journal, removal: Removal, now: u64) -> Result<(), RetentionError> {
        let said = self.last_removal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if said.as_ref() != Some(&removal) {
            journal.removes(removal.clone(), now).await?;
            *self.last_removal.lock().unwrap_or_else(PoisonError::into_inner) = Some(removal);
        }
        Ok(())
    }

    /// Removes the noted blobs that no line names.
    async fn sweep(&self, journal: &Journal) -> Result<(), RetentionError> {
        let (log, blobs) = (self.log.clone(), self.blobs.clone());
        let looked = journal.run_exclusive(move || {
            let noted = unnamed_blobs::noted(&log)?;
            if noted.is_empty() {
                return Ok(None);
            }
            // From now on, what a record comes to name stays.
            let sweeps: Vec<Sweep> = blobs.iter().map(Blobs::sweep).collect();
            Ok::<_, RetentionError>(Some((sweeps, name_finder::unnamed(&log, noted)?)))
        });
        let Some((sweeps, unnamed)) = looked.await.ok_or(RetentionError::Ends)?? else {
            return Ok(());
        };
        journal.is_writable().await;
        if journal.is_moved() {
            return Err(RetentionError::Moved);
        }
        let log = self.log.clone();
        let removed = journal.run_exclusive(move || remove_blobs(&sweeps, &unnamed).and_then(|()| unnamed_blobs::forget(&log)));
        removed.await.ok_or(RetentionError::Ends)?
    }
}

fn remove_blobs(sweeps: &[Sweep], names: &BTreeSet<String>) -> Result<(), RetentionError> {
    for sweep in sweeps {
        let mut removed = false;
        for name in names {
            removed |= sweep.remove(name)?;
        }
        // A folder need not be there.
        if removed {
            sweep.sync()?;
        }
    }
    Ok(())
}

/// Removal of a segment, step by step.
pub(super) struct Going<'r> {
    retention: &'r Retention,
    due: Due,
    rule: RetentionCause,
    step: RetentionStep,
}

/// Next step of the removal.
#[derive(Debug)]
enum RetentionStep {
    /// Read the segment, keep its checkpoints elsewhere, and note the blobs that may go with it.
    Keep,
    /// Record the removal in the log.
    Say(SegmentContent),
    Remove,
    Done,
}

impl<'r> Going<'r> {
    pub(super) const fn new(retention: &'r Retention, due: Due, rule: RetentionCause) -> Self {
        Self {
            retention,
            due,
            rule,
            step: RetentionStep::Keep,
        }
    }

    /// Does the next step. Returns whether there was one.
    pub(super) async fn advance(&mut self, journal: &Journal, now: u64) -> Result<bool, RetentionError> {
        let (log, segment) = (self.retention.log.clone(), self.due.segment.clone());
        self.step = match std::mem::replace(&mut self.step, RetentionStep::Done) {
            RetentionStep::Keep => {
                let blobs = self.retention.blobs.clone();
                let kept = journal.run_exclusive(move || {
                    let mut content = SegmentContent::read(&segment.path, |name| blobs.iter().any(|blobs| blobs.has(name)))?;
                    kept_lines::keep(&log, &segment.path, content.kept_hashes())?;
                    unnamed_blobs::note(&log, std::mem::take(&mut content.names))?;
                    Ok::<_, RetentionError>(content)
                });
                RetentionStep::Say(kept.await.ok_or(RetentionError::Ends)??)
            }
            RetentionStep::Say(content) => {
                self.retention
                    .record_removal(journal, content.removal(segment.name, self.rule), now)
                    .await?;
                RetentionStep::Remove
            }
            RetentionStep::Remove => {
                let removed = journal.run_exclusive(move || files::remove(&segment.path));
                removed.await.ok_or(RetentionError::Ends)??;
                RetentionStep::Done
            }
            RetentionStep::Done => return Ok(false),
        };
        Ok(true)
    }
}
