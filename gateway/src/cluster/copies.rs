//! Files with what the cluster has said last: by them it is used, and they are there at the next start, whether the API is there or not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attest_system::causes::with_causes;
use attest_system::files;
use tokio::time::{Interval, MissedTickBehavior};
use zeroize::Zeroizing;

/// How often it is looked whether the file is as the cluster says, also when nothing has changed: it could not be written, or a certificate was of a time that
/// had not come yet.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Longest problem that is told, in characters: some names and a reason.
const TOLD_LIMIT_CHARACTERS: usize = 512;

/// A tick for who keeps a copy.
pub(super) fn now_and_then() -> Interval {
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    every
}

/// One such file.
#[derive(Debug)]
pub(super) struct Copied {
    /// What it is a copy of, in messages.
    what: &'static str,
    path: PathBuf,
    mode: u32,
    /// What was said already of what cannot be used.
    said: Option<String>,
}

impl Copied {
    pub(crate) const fn new(what: &'static str, path: PathBuf, mode: u32) -> Self {
        Self {
            what,
            path,
            mode,
            said: None,
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
                    tracing::info!("cluster: {}: {} is now what the cluster says", self.what, self.path.display());
                }
                self.said = None;
            }
            Err(problem) if self.said.as_ref() != Some(&problem) => {
                tracing::error!("cluster: {}: {}; what was known last is used", self.what, told(&problem));
                self.said = Some(problem);
            }
            Err(_) => {}
        }
    }

    /// Whether the file said something else before.
    ///
    /// # Errors
    /// Why it cannot be written.
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

/// As it is told: what certificates say of themselves is part of it, and theirs to choose.
fn told(problem: &str) -> String {
    let plain = problem.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(TOLD_LIMIT_CHARACTERS).collect()
}

/// Of one text, for several who look at it.
pub(super) type Text = Arc<Zeroizing<String>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_certificate_says_of_itself_is_one_short_line() {
        assert_eq!(told("CN=a\nERROR forged\u{1b}[2K"), "CN=a ERROR forged [2K");
        assert_eq!(told(&"x".repeat(10_000)).len(), TOLD_LIMIT_CHARACTERS);
    }
}
