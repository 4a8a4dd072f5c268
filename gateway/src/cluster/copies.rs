//! Files with the last known state of cluster objects. The gateway uses the files, so that they are there at the next start, whether the
//! API is there or not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attest_system::causes::with_causes;
use attest_system::files;
use tokio::time::{Interval, MissedTickBehavior};
use zeroize::Zeroizing;

/// Interval of comparisons of the file with the cluster, even without a change: it could not be written, or a certificate was not valid
/// yet.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Longest problem in a message, in characters: some names and a reason.
const TOLD_LIMIT_CHARACTERS: usize = 512;

/// Returns the ticks for comparisons of a copy.
pub(super) fn now_and_then() -> Interval {
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    every
}

/// File that is a copy of cluster objects.
#[derive(Debug)]
pub(super) struct CopiedFile {
    /// Name of the original in messages.
    what: &'static str,
    path: PathBuf,
    mode: u32,
    /// Problem that was reported already.
    reported: Option<String>,
}

impl CopiedFile {
    pub(crate) const fn new(what: &'static str, path: PathBuf, mode: u32) -> Self {
        Self {
            what,
            path,
            mode,
            reported: None,
        }
    }

    /// Has the file say this, if it can be used: what is wrong is said once, and the file stays what it is.
    pub(crate) async fn take(&mut self, made: Result<Zeroizing<String>, String>) {
        let written = match made {
            Ok(text) => self.write(text).await,
            Err(problem) => Err(problem),
        };
        match written {
            Ok(is_new) => {
                if is_new {
                    tracing::info!("cluster: {}: {} updated from the cluster", self.what, self.path.display());
                }
                self.reported = None;
            }
            Err(problem) if self.reported.as_ref() != Some(&problem) => {
                tracing::error!("cluster: {}: {}; using the last good state", self.what, printable_problem(&problem));
                self.reported = Some(problem);
            }
            Err(_) => {}
        }
    }

    /// Writes the file; returns whether its text has changed.
    ///
    /// # Errors
    /// The reason why it cannot be written.
    pub(crate) async fn write(&self, text: Zeroizing<String>) -> Result<bool, String> {
        let (path, mode) = (self.path.clone(), self.mode);
        let write = move || {
            let there = std::fs::read_to_string(&path).map(Zeroizing::new);
            if there.is_ok_and(|there| *there == *text) {
                return Ok(false);
            }
            let folder = files::folder(&path);
            files::make_private_folder(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            files::replace(&path, mode, &text)
                .map_err(|error| with_causes(&error))
                .map(|()| true)
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Returns a problem for a message: some of its text comes from certificates, whose makers choose it.
fn printable_problem(problem: &str) -> String {
    let plain = problem.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(TOLD_LIMIT_CHARACTERS).collect()
}

/// A text with several readers.
pub(super) type Text = Arc<Zeroizing<String>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_subject_is_one_short_printable_line() {
        assert_eq!(printable_problem("CN=a\nERROR forged\u{1b}[2K"), "CN=a ERROR forged [2K");
        assert_eq!(printable_problem(&"x".repeat(10_000)).len(), TOLD_LIMIT_CHARACTERS);
    }
}
