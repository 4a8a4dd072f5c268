//! Leader task of attested nodes. It makes an object for each machine in the store, writes the store's facts to it, and performs its edits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_cluster_api::failures::FailureLog;
use attest_cluster_api::{ClusterClient, ClusterError, RequestCause, WatchCache};
use attest_log::admin::{By, ByObject};
use attest_store::{LeaderTask, Store, StoreError};
use attest_system::clock::Clock;
use tokio::time::MissedTickBehavior;

use super::edits::{self, Hands};
use super::object::{AttestedNode, AttestedNodeSpec};
use super::writer::{AttestedNodeWriter, Written};
use super::{FAILED_AT_ONCE, MACHINES_LIMIT, WHAT, is_current, machine_count};
use crate::machine_status::status::{AttestedNodeStatus, ConditionAnswer, ConditionType};
use crate::machine_status::stored::{self, StoredMachine};
use crate::pools::live::LivePools;

/// Interval of looks for changed objects.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Shortest pause between two passes.
const PAUSE_LEAST: Duration = Duration::from_millis(200);
/// Factor by which a pause is longer than the last pass took to read all machines from the store.
const PAUSE_FACTOR: u32 = 10;
/// Interval of passes, if no object has changed.
const PASS_EVERY: Duration = Duration::from_secs(30);
/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// Number of objects without a machine that get a note of that in one pass: thousands of them do not delay a machine.
const STRANGE_AT_ONCE: usize = 10;
/// Number of objects that are written in one pass, before all are looked at again.
const WRITTEN_AT_ONCE: usize = 100;

pub(super) struct LeaderPass {
    pub(super) cluster: Arc<ClusterClient>,
    pub(super) nodes: WatchCache<AttestedNode>,
    pub(super) store: Arc<dyn Store>,
    pub(super) pools: Arc<LivePools>,
    pub(super) clock: Clock,
    pub(super) by: By,
    pub(super) takes_edits: bool,
}

/// Reason why a pass was aborted.
#[derive(Debug, thiserror::Error)]
enum AttestedNodePassError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl AttestedNodePassError {
    fn cause(&self) -> RequestCause {
        match self {
            Self::Cluster(error) => error.cause(),
            Self::Store(_) => RequestCause::Other("store".to_owned()),
        }
    }
}

/// Work that a pass has left.
#[derive(Debug, Default)]
struct PassBacklog {
    /// Something was changed, or is not as it was seen.
    needs_another_pass: bool,
    written: usize,
    /// Time that it took to read the store.
    read: Duration,
    /// The names of all machines' objects.
    names: BTreeSet<String>,
}

impl LeaderPass {
    /// Runs the leader task for as long as it is polled.
    pub(super) async fn run(mut self) {
        let mut turn = LeaderTask::new(Arc::clone(&self.store), "show machines");
        let mut writer = AttestedNodeWriter::new(Arc::clone(&self.cluster));
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut names, mut due, mut failures) = (BTreeSet::new(), Instant::now(), FailureLog::default());
        let (mut is_changed, mut least) = (false, PAUSE_LEAST);
        loop {
            tokio::select! {
                _ = every.tick() => {}
                () = self.nodes.changed(), if !is_changed => {
                    is_changed = true;
                    continue;
                }
            }
            if std::mem::take(&mut is_changed) && self.is_open(&names) {
                due = due.min(Instant::now() + least);
            }
            if Instant::now() < due {
                continue;
            }
            let passed = self.pass(&mut turn, &mut writer).await;
            let pause = match passed {
                Ok(left) => {
                    names = left.names;
                    least = (left.read * PAUSE_FACTOR).clamp(PAUSE_LEAST, PASS_EVERY);
                    if failures.is_over() {
                        tracing::info!("cluster: {WHAT}: the objects match the store again");
                    }
                    if left.needs_another_pass { least } else { PASS_EVERY }
                }
                Err(error) => {
                    if failures.is_new(error.cause()) {
                        tracing::warn!("cluster: {WHAT}: cannot bring the objects in line with the store; edits wait: {error}");
                    }
                    RETRY_AFTER
                }
            };
            due = Instant::now() + pause;
        }
    }

    /// Returns whether an object is to be looked at, or one is missing.
    fn is_open(&self, names: &BTreeSet<String>) -> bool {
        let all = self.nodes.all().unwrap_or_default();
        let is_unseen = |node: &Arc<AttestedNode>| node.status().observed_generation != Some(node.generation());
        let there: BTreeSet<&str> = all.iter().map(|node| node.name()).collect();
        all.iter().any(is_unseen) || names.iter().any(|name| !there.contains(name.as_str()))
    }

    async fn pass(&self, turn: &mut LeaderTask, writer: &mut AttestedNodeWriter) -> Result<PassBacklog, AttestedNodePassError> {
        let Some(all) = self.nodes.all().filter(|_| is_current(&self.cluster)) else {
            return Ok(PassBacklog {
                needs_another_pass: true,
                ..PassBacklog::default()
            });
        };
        // Another gateway does it.
        let Some(store) = turn.shared().await?.map(Arc::clone) else {
            return Ok(PassBacklog::default());
        };
        let begun = Instant::now();
        let machines = stored::all(&*store, self.clock.now().as_secs()).await?;
        let mut left = PassBacklog {
            read: begun.elapsed(),
            ..PassBacklog::default()
        };
        let mut strange = Vec::new();
        let mut problems = Problems::default();
        // What is edited first: it may be a ban.
        let mut nodes: Vec<&Arc<AttestedNode>> = all.iter().collect();
        nodes.sort_by_cached_key(|node| {
            (
                writer.failures(node.name()),
                node.status().observed_generation == Some(node.generation()),
            )
        });
        for node in nodes {
            if left.written >= WRITTEN_AT_ONCE {
                left.needs_another_pass = true;
                break;
            }
            let known = machines.get(node.name()).cloned();
            let Some(machine) = known.or_else(|| self.unknown(node)) else {
                strange.push(node);
                continue;
            };
            if writer.is_past(node) {
                left.needs_another_pass = true;
                continue;
            }
            let looked = self.reconcile_machine(node, &machine, &store, writer, &mut left).await;
            problems.note(node, looked, writer)?;
        }
        self.make(&machines, &all, writer, &mut left).await?;
        strange.retain(|node| !is_marked_foreign(node));
        for node in strange.into_iter().take(STRANGE_AT_ONCE) {
            left.needs_another_pass = true;
            let said = self.mark_foreign(node, writer).await;
            problems.note(node, said, writer)?;
        }
        left.names = machines.into_keys().collect();
        problems.first.map_or(Ok(left), |problem| Err(problem.into()))
    }

    /// Returns a machine that the store does not know: one that has attested, or that an edit is about.
    fn unknown(&self, node: &AttestedNode) -> Option<StoredMachine> {
        let status = node.status();
        let machine = StoredMachine::unknown(node.name(), &status)?;
        let wants_something = || {
            node.spec()
                .is_ok_and(|spec| !edits::steps(spec, &status.handled, &machine, node.name()).is_empty())
        };
        let has_attested = status.identity.is_some() && (status.attestation.is_some() || status.config.is_some());
        (has_attested || (self.takes_edits && wants_something())).then_some(machine)
    }

    /// Does what is wanted of a machine, and says what the store has of it.
    async fn reconcile_machine(
        &self,
        node: &AttestedNode,
        machine: &StoredMachine,
        store: &Arc<dyn Store>,
        writer: &mut AttestedNodeWriter,
        left: &mut PassBacklog,
    ) -> Result<(), AttestedNodePassError> {
        let (name, generation, before) = (node.name(), node.generation(), node.status().into_owned());
        let (now, mut status) = (self.clock.now().as_secs(), before.clone());
        match node.spec() {
            Err(why) => status.set_condition(
                ConditionType::Accepted,
                ConditionAnswer::new(false, "SpecUnreadable", why),
                generation,
                now,
            ),
            Ok(spec) if !self.takes_edits => {
                if *spec != AttestedNodeSpec::default() {
                    let why = "edits are off: the gateways' cluster.attested_nodes is not \"edit\"";
                    status.set_condition(
                        ConditionType::Accepted,
                        ConditionAnswer::new(false, "EditsAreOff", why),
                        generation,
                        now,
                    );
                }
                status.handled = edits::handled(spec);
            }
            Ok(spec) => {
                let steps = edits::steps(spec, &before.handled, machine, name);
                if !steps.is_empty() {
                    let Some(found) = writer.read(name).await? else {
                        left.needs_another_pass = true;
                        return Ok(());
                    };
                    if found.resource_version() != node.resource_version() {
                        // Edited since: it is done as it is then.
                        left.needs_another_pass = true;
                        return Ok(());
                    }
                    let by = By {
                        object: Some(ByObject::new(name, found.resource_version(), found.manager())),
                        ..self.by.clone()
                    };
                    let (pools, clock) = (self.pools.names(), self.clock);
                    let hands = Hands {
                        store,
                        by,
                        clock,
                        pools: &pools,
                    };
                    let mut outcomes = Vec::new();
                    for step in &steps {
                        match hands.perform(step, machine, name).await? {
                            Some(outcome) => outcomes.push(outcome),
                            None => {
                                left.needs_another_pass = true;
                                return Ok(());
                            }
                        }
                    }
                    tracing::info!("cluster: {WHAT}: {name}: {}", edits::answer(spec, machine, name, &outcomes).message);
                    // What the store has of it now is said the next time.
                    left.needs_another_pass = true;
                    status.set_condition(
                        ConditionType::Accepted,
                        edits::answer(spec, machine, name, &outcomes),
                        generation,
                        now,
                    );
                } else if *spec != AttestedNodeSpec::default() && before.observed_generation != Some(generation) {
                    status.set_condition(ConditionType::Accepted, edits::answer(spec, machine, name, &[]), generation, now);
                }
                status.handled = edits::handled(spec);
            }
        }
        status.observed_generation = Some(generation);
        machine.add_to(&mut status, name, generation, now);
        self.write(node, &before, status, writer, left).await
    }

    async fn write(
        &self,
        node: &AttestedNode,
        before: &AttestedNodeStatus,
        mut status: AttestedNodeStatus,
        writer: &mut AttestedNodeWriter,
        left: &mut PassBacklog,
    ) -> Result<(), AttestedNodePassError> {
        status.sum_up();
        if status == *before && !writer.is_to_label(node, &status) {
            return Ok(());
        }
        left.written += 1;
        match writer.write(node, &mut status).await? {
            Written::Yes => self.events(node, before, &status, writer).await?,
            Written::Later => left.needs_another_pass = true,
            Written::Never => {}
        }
        Ok(())
    }

    /// Makes objects of those that have none, as far as there is room.
    async fn make(
        &self,
        machines: &BTreeMap<String, StoredMachine>,
        all: &[Arc<AttestedNode>],
        writer: &mut AttestedNodeWriter,
        left: &mut PassBacklog,
    ) -> Result<(), AttestedNodePassError> {
        let there: HashMap<&str, ()> = all.iter().map(|node| (node.name(), ())).collect();
        let mut count = machine_count(&self.nodes);
        for (name, machine) in machines.iter().filter(|(name, _)| !there.contains_key(name.as_str())) {
            if left.written >= WRITTEN_AT_ONCE {
                left.needs_another_pass = true;
                break;
            }
            if count >= MACHINES_LIMIT {
                break;
            }
            let Some(made) = writer.create(name).await? else {
                left.needs_another_pass = true;
                continue;
            };
            count += 1;
            let mut status = AttestedNodeStatus {
                observed_generation: Some(made.generation()),
                ..AttestedNodeStatus::default()
            };
            machine.add_to(&mut status, name, made.generation(), self.clock.now().as_secs());
            self.write(&made, &AttestedNodeStatus::default(), status, writer, left).await?;
        }
        Ok(())
    }

    /// Notes on an object that it is not a machine's. It is left in place: another client has made it.
    async fn mark_foreign(&self, node: &AttestedNode, writer: &mut AttestedNodeWriter) -> Result<(), AttestedNodePassError> {
        let (before, generation) = (node.status().into_owned(), node.generation());
        let mut status = before.clone();
        let why =
            "no machine has this name, so the edit was ignored: objects are named tpm-DIGEST, or CLOUD- and the SHA-256 of an identity";
        let now = self.clock.now().as_secs();
        status.set_condition(
            ConditionType::Accepted,
            ConditionAnswer::new(false, "NotAMachine", why),
            generation,
            now,
        );
        if let Ok(spec) = node.spec() {
            status.handled = edits::handled(spec);
        }
        status.observed_generation = Some(generation);
        if writer.write(node, &mut status).await? == Written::Yes {
            self.events(node, &before, &status, writer).await?;
        }
        Ok(())
    }

    async fn events(
        &self,
        node: &AttestedNode,
        before: &AttestedNodeStatus,
        after: &AttestedNodeStatus,
        writer: &mut AttestedNodeWriter,
    ) -> Result<(), AttestedNodePassError> {
        let now = self.clock.now().as_secs();
        for question in [ConditionType::Banned, ConditionType::Approved, ConditionType::Accepted] {
            let (Some(said), old) = (after.says(question), before.says(question)) else {
                continue;
            };
            // What was never otherwise is no news.
            let is_first = old.is_none() && said.status != "True" && question != ConditionType::Accepted;
            let is_same = old.is_some_and(|old| old.status == said.status && old.reason == said.reason && old.message == said.message);
            if is_first || is_same {
                continue;
            }
            let holds = said.status == "True";
            let (reason, warning) = match question {
                ConditionType::Banned => (if holds { "Banned" } else { "NotBanned" }, holds),
                ConditionType::Accepted => (if holds { "EditDone" } else { "EditNotDone" }, !holds),
                _ => (if holds { "Approved" } else { "NotApproved" }, false),
            };
            let text = if said.message.is_empty() {
                said.reason.clone()
            } else {
                said.message.clone()
            };
            writer.post_event(node, reason, warning, &text, now).await?;
        }
        Ok(())
    }
}

/// Writes that have failed in one pass.
#[derive(Default)]
struct Problems {
    first: Option<ClusterError>,
    count: usize,
}

impl Problems {
    /// Notes what came of one object. One that the API has something against, such as its size, is in no other's way.
    fn note(
        &mut self,
        node: &AttestedNode,
        done: Result<(), AttestedNodePassError>,
        writer: &mut AttestedNodeWriter,
    ) -> Result<(), AttestedNodePassError> {
        writer.note(node.name(), done.is_err());
        match done {
            Err(AttestedNodePassError::Cluster(error)) if error.is_answer() && self.count < FAILED_AT_ONCE => {
                self.count += 1;
                self.first.get_or_insert(error);
                Ok(())
            }
            done => done,
        }
    }
}

/// Returns whether this object has the note that it is not a machine's.
fn is_marked_foreign(node: &AttestedNode) -> bool {
    let status = node.status();
    status.observed_generation == Some(node.generation())
        && status
            .says(ConditionType::Accepted)
            .is_some_and(|said| said.reason == "NotAMachine")
}
