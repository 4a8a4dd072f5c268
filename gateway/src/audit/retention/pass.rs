//! One pass: what is past the rule goes, the oldest first, as long as nobody needs it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::blobs::{Blobs, Sweep};
use super::super::journal::Journal;
use super::content::Content;
use super::survey::{Due, Survey};
use super::{Past, RetentionError, Rule, kept_lines, named, unnamed};
use crate::files;
use crate::store::Store;

/// The last line of a segment: who has it has all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastLine {
    /// Which line of which chain.
    pub chain: Option<String>,
    pub number: Option<u64>,
    /// When it was written, seconds since 1970.
    pub at: u64,
}

/// Segments that are past the rule and stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub segments: usize,
    /// Who needs the first of them.
    pub by: Vec<String>,
}

/// Who lacks this line, by name.
type Lacking = dyn Fn(&LastLine) -> Vec<String> + Send + Sync;

/// Keeps a log as long as its rule says, and no longer.
pub struct Retention {
    log: PathBuf,
    rule: Rule,
    /// The folders of what records name.
    blobs: Vec<Blobs>,
    lacking: Arc<Lacking>,
    /// The oldest segment that was looked at and stays: what is needed to see whether it may go.
    looked: Mutex<Option<(PathBuf, Looked)>>,
}

/// What is known of a segment that may go.
#[derive(Debug, Clone)]
struct Looked {
    last: LastLine,
    latest: u64,
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
    /// For this log, whose records name blobs in these folders. `lacking` says who needs a segment still, and may read files for that.
    #[must_use]
    pub fn new(log: PathBuf, rule: Rule, blobs: Vec<Blobs>, lacking: impl Fn(&LastLine) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self {
            log,
            rule,
            blobs,
            lacking: Arc::new(lacking),
            looked: Mutex::default(),
        }
    }

    /// Whether all of it is kept.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        self.rule == Rule::default()
    }

    /// Removes what is past the rule at this second of the clock; gives what is, and stays. What others need is looked for once it is known what may go:
    /// a decision that is made later has its line in a later file.
    ///
    /// # Errors
    /// [`RetentionError`]: the next pass goes on with it.
    pub async fn tend(&self, journal: &Journal, store: &dyn Store, now: u64) -> Result<Option<Held>, RetentionError> {
        self.sweep(journal).await?;
        if self.keeps_all() {
            return Ok(None);
        }
        // A clock that jumps ahead makes nothing old at once.
        let trusted = store.time(now).await?.min(now);
        let log = self.log.clone();
        let survey = journal.aside(move || Survey::of(&log)).await.ok_or(RetentionError::Ends)??;
        let past = survey.past(self.rule, trusted);
        let (mut held, mut left) = (None, past.len());
        for due in past {
            // Whoever compresses it is not done, or has said why not.
            if due.segment.twice {
                break;
            }
            let looked = self.look(journal, &due).await?;
            let Some(rule) = due.is_past(self.rule, looked.latest, trusted) else {
                break;
            };
            if let Some(by) = self.needed(journal, store, &due, looked).await? {
                held = Some(Held { segments: left, by });
                break;
            }
            let mut going = Going::new(self, due, rule);
            while going.advance(journal, now).await? {}
            left -= 1;
        }
        self.sweep(journal).await?;
        Ok(held)
    }

    /// What is known of a segment; read once, however long it stays.
    async fn look(&self, journal: &Journal, due: &Due) -> Result<Looked, RetentionError> {
        let path = due.segment.path.clone();
        let known = self.looked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, looked)) = known.filter(|(known, _)| *known == path) {
            return Ok(looked);
        }
        let segment = path.clone();
        let content = journal.aside(move || Content::of(&segment, |_| false)).await;
        let content = content.ok_or(RetentionError::Ends)??;
        let (last, latest) = (content.last(), content.latest);
        let looked = Looked { last, latest };
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, looked.clone()));
        Ok(looked)
    }

    /// Who needs a segment, if somebody does.
    async fn needed(
        &self,
        journal: &Journal,
        store: &dyn Store,
        due: &Due,
        Looked { last, latest }: Looked,
    ) -> Result<Option<Vec<String>>, RetentionError> {
        // What becomes of a decision after a kill is looked up in the log, which has to reach back to it.
        let reaches_to = latest.max(due.segment.ended);
        if store.pending().await?.iter().any(|pending| pending.at <= reaches_to) {
            return Ok(Some(Vec::new()));
        }
        let lacking = Arc::clone(&self.lacking);
        let by = journal.aside(move || lacking(&last)).await.ok_or(RetentionError::Ends)?;
        Ok((!by.is_empty()).then_some(by))
    }

    /// Removes the blobs that may go and that no line names any more.
    async fn sweep(&self, journal: &Journal) -> Result<(), RetentionError> {
        let (log, blobs) = (self.log.clone(), self.blobs.clone());
        let looked = journal.aside(move || {
            let noted = unnamed::noted(&log)?;
            if noted.is_empty() {
                return Ok(None);
            }
            // From now on, what a record comes to name stays.
            let sweeps: Vec<Sweep> = blobs.iter().map(Blobs::sweep).collect();
            Ok::<_, RetentionError>(Some((sweeps, named::unnamed(&log, noted)?)))
        });
        let Some((sweeps, unnamed)) = looked.await.ok_or(RetentionError::Ends)?? else {
            return Ok(());
        };
        journal.is_writable().await;
        if journal.is_moved() {
            return Err(RetentionError::Moved);
        }
        let log = self.log.clone();
        let removed = journal.aside(move || remove_blobs(&sweeps, &unnamed).and_then(|()| unnamed::forget(&log)));
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

/// A segment that goes, step by step.
pub(super) struct Going<'r> {
    retention: &'r Retention,
    due: Due,
    rule: Past,
    step: Step,
}

/// What comes next.
#[derive(Debug)]
enum Step {
    /// It is read, and what is kept of it is put elsewhere.
    Keep,
    /// Which blobs may go with it is noted.
    Note(Content),
    /// The log says that it is removed.
    Say(Content),
    Remove,
    Done,
}

impl<'r> Going<'r> {
    pub(super) const fn new(retention: &'r Retention, due: Due, rule: Past) -> Self {
        Self {
            retention,
            due,
            rule,
            step: Step::Keep,
        }
    }

    /// Does the next step; says whether there was one.
    pub(super) async fn advance(&mut self, journal: &Journal, now: u64) -> Result<bool, RetentionError> {
        let (log, segment) = (self.retention.log.clone(), self.due.segment.clone());
        self.step = match std::mem::replace(&mut self.step, Step::Done) {
            Step::Keep => {
                let blobs = self.retention.blobs.clone();
                let kept = journal.aside(move || {
                    let content = Content::of(&segment.path, |name| blobs.iter().any(|blobs| blobs.has(name)))?;
                    kept_lines::keep(&log, &segment.path, content.kept())?;
                    Ok::<_, RetentionError>(content)
                });
                Step::Note(kept.await.ok_or(RetentionError::Ends)??)
            }
            Step::Note(mut content) => {
                let names = std::mem::take(&mut content.names);
                let noted = journal.aside(move || unnamed::note(&log, names));
                noted.await.ok_or(RetentionError::Ends)??;
                Step::Say(content)
            }
            Step::Say(content) => {
                journal.removes(content.removal(segment.name, self.rule), now).await?;
                Step::Remove
            }
            Step::Remove => {
                let removed = journal.aside(move || files::remove(&segment.path));
                removed.await.ok_or(RetentionError::Ends)??;
                Step::Done
            }
            Step::Done => return Ok(false),
        };
        Ok(true)
    }
}
