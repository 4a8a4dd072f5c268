//! Follows the gateway's own attestation log, and writes the facts about a machine to its object, however late the API can be reached.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_cluster_api::{ClusterClient, ClusterError, WatchCache as KeptNodes};
use attest_log::Durable;
use attest_system::clock::Clock;
use attest_system::files::{folder, make_private_folder};
use tokio::sync::watch;

use super::log_reader::LogReader;
use super::object::AttestedNode;
use super::position::{PositionFile, ReadPosition};
use super::writer::{AttestedNodeWriter, Written};
use super::{FAILED_AT_ONCE, MACHINES_LIMIT, WHAT, is_current, machine_count};
use crate::machine_status::facts::{MachineFacts, MachineUpdates};
use crate::machine_status::status::{AttestedNodeStatus, ConditionType, LastReport};
use crate::metrics::Metrics;

/// Interval of looks for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// Machines whose news are held at once: some megabytes. What comes after them stays in the log meanwhile.
const HELD_LIMIT: usize = 5000;
/// Number of objects that are written before the watch cache is looked at again.
const WRITTEN_AT_ONCE: usize = 200;
/// Number of reads, of some hundreds of lines each, after which the end of the program is checked.
const READ_AT_ONCE: usize = 20;
/// Number of times that the API may refuse to write an object, while it writes others, before that is given up. A client has made it too
/// large.
const FAILURES_LIMIT: u32 = 10;
/// Interval of notes of how far the log was read. Later lines are read again after a restart, with the same result.
const NOTE_EVERY: Duration = Duration::from_secs(30);

/// Path of the log, and of the note of how far it was read.
#[derive(Debug, Clone)]
pub(crate) struct LogPlaces {
    pub log: PathBuf,
    pub note: PathBuf,
}

pub(super) struct AttestedNodeCache {
    pub(super) cluster: Arc<ClusterClient>,
    pub(super) nodes: KeptNodes<AttestedNode>,
    pub(super) log: LogPlaces,
    pub(super) durable: watch::Receiver<Durable>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl AttestedNodeCache {
    /// Follows it for as long as it is polled.
    pub(super) async fn run(self) {
        let mut writer = AttestedNodeWriter::new(Arc::clone(&self.cluster));
        let (mut news, mut said) = (MachineUpdates::default(), Failing::default());
        let Some(mut reader) = self.begin(&mut said).await else { return };
        let (mut last, mut noted): (Option<ReadPosition>, _) = (None, Instant::now());
        loop {
            let read = blocking(move || {
                let read = read(&mut reader, &mut news);
                (reader, news, read)
            });
            let Some((back, found, read)) = read.await else { return };
            (reader, news) = (back, found);
            let unread = match read {
                // What comes later about the same machine is told with it.
                Ok((place, true)) => {
                    last = place.or(last);
                    continue;
                }
                Ok((place, false)) => {
                    last = place.or(last);
                    None
                }
                Err(error) => Some(error),
            };
            let told = self.write_updates(&mut news, &mut writer).await;
            self.metrics.attested_nodes_waiting(news.0.len());
            if news.0.is_empty()
                && noted.elapsed() >= NOTE_EVERY
                && let Some(place) = last.take()
            {
                self.note(place).await;
                noted = Instant::now();
            }
            let problem = told.err().map(|error| error.to_string()).or(unread);
            let pause = if let Some(problem) = problem {
                said.record(&problem);
                RETRY_AFTER
            } else {
                said.is_over();
                LOOK_EVERY
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns a reader at the position of the last one.
    async fn begin(&self, said: &mut Failing) -> Option<LogReader> {
        loop {
            let (places, durable) = (self.log.clone(), self.durable.clone());
            let begun = blocking(move || {
                let kept = note(&places).read();
                // What is not known is read again.
                let place = kept.ok().flatten();
                LogReader::after(&places.log, place.as_ref(), durable)
            });
            match begun.await? {
                Ok(reader) => return Some(reader),
                Err(error) => said.record(&error.to_string()),
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn note(&self, place: ReadPosition) {
        let places = self.log.clone();
        let written = blocking(move || {
            make_private_folder(folder(&places.note)).map_err(|error| error.to_string())?;
            note(&places).write(&place).map_err(|error| error.to_string())
        });
        if let Some(Err(error)) = written.await {
            tracing::debug!("{WHAT}: cannot save the position in the attestation log; a restart reads part of it again: {error}");
        }
    }

    /// Writes the facts that are held, some at a time; those that were written are dropped.
    async fn write_updates(&self, news: &mut MachineUpdates, writer: &mut AttestedNodeWriter) -> Result<(), ClusterError> {
        let (false, true, Some(all)) = (news.0.is_empty(), is_current(&self.cluster), self.nodes.all()) else {
            return Ok(());
        };
        let there: HashMap<&str, &Arc<AttestedNode>> = all.iter().map(|node| (node.name(), node)).collect();
        let mut count = machine_count(&self.nodes);
        let mut names: Vec<String> = news.0.keys().cloned().collect();
        names.sort_by_key(|name| writer.failures(name));
        names.truncate(WRITTEN_AT_ONCE);
        let (mut is_told, mut failed, mut problem) = (false, 0, None);
        for name in &names {
            let Some(facts) = news.0.get(name) else { continue };
            let node = there.get(name.as_str()).copied();
            let told = match self.write_or_create(name, node, facts, (writer, &mut count)).await {
                Ok(told) => told,
                Err(error) if error.is_answer() => {
                    writer.note(name, true);
                    problem = Some(error);
                    failed += 1;
                    // It would not take the others either.
                    if failed >= FAILED_AT_ONCE && !is_told {
                        break;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            writer.note(name, false);
            is_told |= told == Written::Yes;
            if told != Written::Later {
                news.0.remove(name);
            }
        }
        let Some(error) = problem else { return Ok(()) };
        if !is_told {
            return Err(error);
        }
        names.retain(|name| writer.failures(name) >= FAILURES_LIMIT);
        for name in &names {
            tracing::warn!("cluster: {WHAT}: cannot write {name}; dropping its pending decisions: {error}");
            writer.note(name, false);
            news.0.remove(name);
        }
        Ok(())
    }

    async fn write_or_create(
        &self,
        name: &str,
        node: Option<&Arc<AttestedNode>>,
        facts: &MachineFacts,
        (writer, count): (&mut AttestedNodeWriter, &mut usize),
    ) -> Result<Written, ClusterError> {
        match node {
            Some(node) if writer.is_past(node) => Ok(Written::Later),
            Some(node) => self.write_facts(node, facts, writer).await,
            None if !facts.is_of_a_machine() || *count >= MACHINES_LIMIT => Ok(Written::Never),
            None => match writer.create(name).await? {
                Some(made) => {
                    *count += 1;
                    self.write_facts(&made, facts, writer).await
                }
                None => Ok(Written::Later),
            },
        }
    }

    async fn write_facts(
        &self,
        node: &AttestedNode,
        facts: &MachineFacts,
        writer: &mut AttestedNodeWriter,
    ) -> Result<Written, ClusterError> {
        let before = node.status().into_owned();
        let mut status = before.clone();
        facts.add_to(&mut status, node.generation());
        let written = writer.write(node, &mut status).await?;
        if written == Written::Yes {
            self.events(node, &before, &status, writer).await?;
        }
        Ok(written)
    }

    async fn events(
        &self,
        node: &AttestedNode,
        before: &AttestedNodeStatus,
        after: &AttestedNodeStatus,
        writer: &mut AttestedNodeWriter,
    ) -> Result<(), ClusterError> {
        let now = self.clock.now().as_secs();
        if let Some(said) = after.says(ConditionType::Attested)
            && before
                .says(ConditionType::Attested)
                .is_none_or(|before| before.reason != said.reason)
        {
            let (reason, warning) = if said.status == "True" {
                ("Attested", false)
            } else {
                ("AttestationRefused", true)
            };
            writer.post_event(node, reason, warning, &said.message, now).await?;
        }
        if let Some(LastReport {
            stage,
            unit,
            error,
            record,
            ..
        }) = after.report.as_deref().filter(|_| before.report != after.report)
        {
            let message = format!("the node reports that its first boot failed in stage {stage} ({unit}): {error} (record {record})");
            writer.post_event(node, "BootFailed", true, &message, now).await?;
        }
        let sha256 = |status: &AttestedNodeStatus| status.config.as_ref().map(|config| config.sha256.clone());
        if let Some(said) = after.says(ConditionType::ConfigServed).filter(|_| sha256(before) != sha256(after)) {
            writer.post_event(node, "ConfigServed", false, &said.message, now).await?;
        }
        Ok(())
    }
}

/// Reads new lines, some at a time, as far as there is room for their facts. Returns the last line that was read, and whether there may be
/// more.
fn read(reader: &mut LogReader, news: &mut MachineUpdates) -> Result<(Option<ReadPosition>, bool), String> {
    let mut last = None;
    for _ in 0..READ_AT_ONCE {
        if news.0.len() >= HELD_LIMIT {
            return Ok((last, false));
        }
        match reader.read() {
            Ok(records) if records.is_empty() => {
                if std::mem::take(&mut reader.is_set_back) {
                    tracing::warn!("cluster: {WHAT}: the attestation log was truncated or replaced; reading it from the start");
                }
                return Ok((last, false));
            }
            Ok(records) => {
                records.iter().for_each(|record| news.add(&record.line));
                last = records.last().map(|record| record.place.clone());
            }
            // `audit` reports a damaged file.
            Err(error) if reader.pass_over(&error) => {}
            Err(error) => {
                return if last.is_some() {
                    Ok((last, false))
                } else {
                    Err(error.to_string())
                };
            }
        }
    }
    Ok((last, true))
}

fn note(places: &LogPlaces) -> PositionFile {
    let name = places.note.file_name().and_then(|name| name.to_str()).unwrap_or(WHAT);
    PositionFile::new(folder(&places.note), name)
}

/// Current problem, which is reported once.
#[derive(Default)]
struct Failing(Option<String>);

impl Failing {
    fn record(&mut self, why: &str) {
        if self.0.is_none() {
            tracing::warn!("cluster: {WHAT}: cannot publish decisions; retrying: {why}");
        }
        self.0 = Some(why.to_owned());
    }

    fn is_over(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("cluster: {WHAT}: decisions are published again after a failure");
        }
    }
}

/// Runs work that waits for the disk on another thread. Returns `None` if the program ends.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
