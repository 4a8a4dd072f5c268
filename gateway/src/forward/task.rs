//! One receiver: what comes next is read, given, and kept as taken; and again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::batch::{Reader, Sent};
use super::kept::{Kept, KeptError, Place};
use super::sink::{self, OpenError, Sink};
use crate::audit::Durable;
use crate::audit::reading::ReadError;
use crate::clock::Clock;
use crate::files::make_private_folder;
use crate::metrics::Metrics;
use crate::settings::{ForwardSettings, Settings};

/// How often it is looked whether there is something new.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After the first failure; twice as long after each further one.
const PAUSE_LEAST: Duration = Duration::from_secs(1);
const PAUSE_MOST: Duration = Duration::from_secs(60);
/// How late records may come without that being said.
const LATE_LIMIT: Duration = Duration::from_secs(300);

/// A receiver that records can be given to.
pub struct Forwarder {
    name: String,
    sink: Box<dyn Sink>,
    kept: Kept,
    log: PathBuf,
    folder: PathBuf,
}

impl Forwarder {
    /// Reads what the settings name for it; asks nobody. `replica` is what this gateway is called.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(settings: &Settings, forward: &ForwardSettings, replica: String) -> Result<Self, OpenError> {
        let folder = settings.forwarded();
        Ok(Self {
            name: forward.name.clone(),
            sink: sink::open(forward, replica)?,
            kept: Kept::of(&folder, &forward.name),
            log: settings.attestation_log(),
            folder,
        })
    }

    /// Gives it what it lacks, for as long as the gateway serves.
    pub async fn run(self, clock: Clock, metrics: Arc<Metrics>, durable: watch::Receiver<Durable>) {
        let Self {
            name,
            sink,
            kept,
            log,
            folder,
        } = self;
        let mut task = Task {
            name,
            sink,
            kept,
            log,
            clock,
            metrics,
            durable,
            behind: None,
            failures: 0,
            up_to_date: false,
        };
        let mut reader = task.begin(&folder).await;
        loop {
            let read = blocking(move || {
                let read = reader.read();
                (reader, read)
            });
            let Some((back, read)) = read.await else { return };
            reader = back;
            let passed_over = std::mem::take(&mut reader.passed_over);
            if passed_over > 0 {
                tracing::error!(
                    "{passed_over} lines of the attestation log are no records, and are not sent to {}: `attest-gateway audit` says more",
                    task.name
                );
            }
            if std::mem::take(&mut reader.is_set_back) {
                tracing::error!(
                    "the attestation log does not hold any more what {} was sent of it: it was cut, or another file is in its place. It is sent all that it holds now",
                    task.name
                );
            }
            match read {
                Ok(records) if records.is_empty() => {
                    task.is_up_to_date();
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Ok(records) => task.deliver(&records).await,
                Err(error) if reader.pass_over(&error) => tracing::error!(
                    "a file of the attestation log is damaged; {} is sent none of the rest of it, and what comes after it: {error}",
                    task.name
                ),
                Err(error) => task.cannot_read(&error, reader.last()).await,
            }
        }
    }
}

struct Task {
    name: String,
    sink: Box<dyn Sink>,
    kept: Kept,
    log: PathBuf,
    clock: Clock,
    metrics: Arc<Metrics>,
    durable: watch::Receiver<Durable>,
    /// Since when that was said.
    behind: Option<Instant>,
    /// In a row.
    failures: u32,
    /// Whether it had everything once, since the start.
    up_to_date: bool,
}

impl Task {
    async fn begin(&mut self, folder: &Path) -> Reader {
        loop {
            match self.try_to_begin(folder).await {
                Ok(reader) => return reader,
                Err(why) => {
                    self.lag_after(None);
                    self.failed(&why).await;
                }
            }
        }
    }

    /// A reader where the last one was.
    async fn try_to_begin(&mut self, folder: &Path) -> Result<Reader, String> {
        let (kept, log, folder) = (self.kept.clone(), self.log.clone(), folder.to_owned());
        let durable = self.durable.clone();
        let begun = blocking(move || {
            make_private_folder(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            let place = kept.read();
            let known = place.as_ref().ok().cloned().flatten();
            let (reader, found) = Reader::after(&log, known.as_ref(), durable).map_err(|error| error.to_string())?;
            Ok::<_, String>((place, reader, found))
        });
        let (place, reader, found) = begun.await.ok_or("the program ends")??;
        match place {
            Err(error @ KeptError::Malformed { .. }) => tracing::warn!("{error}: {} is sent all of the attestation log again", self.name),
            Err(error) => return Err(error.to_string()),
            Ok(None) => tracing::info!("{} is sent all of the attestation log, from its first line on", self.name),
            Ok(Some(place)) if !found => tracing::warn!(
                "the attestation log does not hold the line that {} took last ({}): it is sent all of it, what it has already and what is left of the rest",
                self.name,
                said(&place)
            ),
            Ok(Some(_)) => {}
        }
        Ok(reader)
    }

    /// Gives these, however long that takes.
    async fn deliver(&mut self, records: &[Sent]) {
        let (mut rest, mut at_once) = (records, records.len());
        while let Some(first) = rest.first() {
            self.measure(&first.place);
            let (now, later) = rest.split_at(at_once.min(rest.len()));
            match self.sink.give(now).await {
                Ok(()) => {
                    self.taken(now).await;
                    rest = later;
                }
                Err(refused) if refused.too_many && now.len() > 1 => at_once = now.len().div_ceil(2),
                Err(refused) => self.failed(&refused.why).await,
            }
        }
    }

    async fn taken(&mut self, records: &[Sent]) {
        self.failures = 0;
        self.metrics.log_forwarded(&self.name, records.len());
        let Some(last) = records.last() else { return };
        let late = self.clock.now().as_secs().saturating_sub(last.place.at);
        if self.up_to_date && late > LATE_LIMIT.as_secs() && self.behind.is_none() {
            self.behind = Some(Instant::now());
            tracing::warn!("{} is {late} s behind the attestation log", self.name);
        }
        let (kept, place) = (self.kept.clone(), last.place.clone());
        if let Some(Err(error)) = blocking(move || kept.write(&place)).await {
            tracing::warn!(%error, "after a restart {} is sent some records again", self.name);
        }
    }

    /// It has everything.
    fn is_up_to_date(&mut self) {
        self.up_to_date = true;
        self.metrics.log_forward_lag(&self.name, 0, 0);
        if let Some(since) = self.behind.take() {
            tracing::info!(
                "{} has all of the attestation log again, after {} s",
                self.name,
                since.elapsed().as_secs()
            );
        }
    }

    /// The log cannot be read: that is no fault of who is sent it.
    async fn cannot_read(&mut self, error: &ReadError, last: Option<&Place>) {
        self.lag_after(last);
        let why = format!(
            "the attestation log cannot be read: {error}; {} is sent all that it misses once it can",
            self.name
        );
        self.wait(&why).await;
    }

    async fn failed(&mut self, why: &str) {
        let why = format!(
            "{} does not take the attestation log: {why}; it is sent all that it misses once it does",
            self.name
        );
        self.wait(&why).await;
    }

    /// Says why, once, and waits: each time longer, and not together with others.
    async fn wait(&mut self, why: &str) {
        if self.behind.is_none() {
            self.behind = Some(Instant::now());
            tracing::warn!("{why}");
        } else {
            tracing::debug!("{why}");
        }
        let mut chance = [0];
        // Without chance all wait for as long.
        let _ = aws_lc_rs::rand::fill(&mut chance);
        let [chance] = chance;
        tokio::time::sleep(pause(self.failures, chance)).await;
        self.failures = self.failures.saturating_add(1);
    }

    /// Says in metrics how far it is behind that was given this one last.
    fn lag_after(&self, last: Option<&Place>) {
        let durable = self.durable.borrow().clone();
        let (records, seconds) = match last {
            Some(last) => {
                let seconds = self.clock.now().as_secs().saturating_sub(last.at);
                (records_from(last, &durable).saturating_sub(1), seconds)
            }
            None => (durable.number, 0),
        };
        self.metrics.log_forward_lag(&self.name, records, seconds);
    }

    /// Says in metrics how far it is behind, of which this comes next.
    fn measure(&self, first: &Place) {
        let records = records_from(first, &self.durable.borrow());
        let seconds = self.clock.now().as_secs().saturating_sub(first.at);
        self.metrics.log_forward_lag(&self.name, records, seconds);
    }
}

/// How many records there are from this one on; of another chain as many as are known of.
fn records_from(first: &Place, durable: &Durable) -> u64 {
    match (&first.chain, first.number) {
        (Some(chain), Some(number)) if *chain == durable.chain => durable.number.saturating_sub(number).saturating_add(1),
        _ => durable.number.max(1),
    }
}

fn said(place: &Place) -> String {
    match (&place.chain, place.number) {
        (Some(chain), Some(number)) => format!("line {number} of chain {chain}"),
        _ => format!("line {}", place.position.sha256),
    }
}

fn pause(failures: u32, chance: u8) -> Duration {
    let longest = PAUSE_LEAST.saturating_mul(2_u32.saturating_pow(failures)).min(PAUSE_MOST);
    longest / 2 + longest * u32::from(chance) / 2 / u32::from(u8::MAX)
}

/// What waits for the disk waits elsewhere. `None` if the program ends.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_differ() {
        let seconds = |failures, chance| pause(failures, chance).as_secs_f64();
        assert_eq!((seconds(0, 0), seconds(0, 255)), (0.5, 1.0));
        assert_eq!((seconds(3, 0), seconds(3, 255)), (4.0, 8.0));
        for failures in [6, 40, u32::MAX] {
            assert_eq!((seconds(failures, 0), seconds(failures, 255)), (30.0, 60.0));
        }
    }

    #[test]
    fn a_lag_is_counted_by_the_chains_numbers() {
        let durable = Durable {
            chain: "a".to_owned(),
            number: 7,
            cuts: 0,
        };
        let count = |chain: Option<&str>, number| records_from(&place(chain, number), &durable);
        assert_eq!(count(Some("a"), Some(5)), 3);
        assert_eq!(count(Some("b"), Some(9)), 7);
        assert_eq!(count(None, None), 7);
    }

    fn place(chain: Option<&str>, number: Option<u64>) -> Place {
        let sha256 = crate::audit::LineHash::of(b"");
        Place {
            chain: chain.map(str::to_owned),
            number,
            at: 1,
            position: crate::audit::reading::Position { offset: 0, sha256 },
        }
    }
}
