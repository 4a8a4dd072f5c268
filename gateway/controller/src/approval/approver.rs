//! Judges CSRs as they come, and approves those that may be approved, for as long as this controller is the leader.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_certificates::kubelet::NamePatterns;
use attest_cluster_api::events::Events;
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_log::admin::{By, Verb};
use attest_machines::attested::{self, ApprovalHold, AttestedMachine};
use attest_recording::Acting;
use attest_store::{EntryKind, Store, StoreError, Transact};
use attest_system::clock::Clock;
use tokio::time::MissedTickBehavior;

use super::csr::{self, Csr, CsrPurpose};
use super::egress::Egress;
use super::event_budget::EventBudget;
use super::facts::{ApprovalRules, EgressAddresses, MachineApiMachine, NodeFacts};
use super::judge::{self, ApprovalVerdict, CsrFacts, FirstSeen, PendingRequest, candidates};
use super::reason::Reason;
use super::request_cache::{AttestedSubjects, DueGroup, RequestCache};
use super::watches::{ApprovalUpdate, ApprovalWatches};
use super::{answer, serving};
use crate::settings::{ApprovalSettings, ApprovedKeys};

/// Interval at which the approver checks what is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval at which attestations are forgotten for which nothing can be approved any more.
const FORGET_EVERY: Duration = Duration::from_secs(600);
/// Interval of messages that the cache of CSRs was full.
const FULL_CACHE_EVERY: Duration = Duration::from_secs(60);
/// Seconds after which the event of a pending CSR is written again: the API removes events after an hour (`--event-ttl`), OpenShift's after
/// three.
const EVENT_AGAIN_SECONDS: u64 = 45 * 60;

/// The rules of approval that the served pools set.
#[derive(Debug, Clone, Default)]
pub struct PoolRules {
    /// The names that pools say their nodes have, by pool.
    pub names: BTreeMap<String, NamePatterns>,
    /// A pool that gives the bootstrap credential to unauthenticated clients.
    pub gives_credential: Option<String>,
}

/// Approver of CSRs, with its settings and all that it needs.
pub struct Approver {
    pub cluster: Arc<ClusterClient>,
    pub settings: ApprovalSettings,
    /// The namespace of Machine objects.
    pub machine_namespace: String,
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub by: By,
    pub pools: Arc<dyn Fn() -> PoolRules + Send + Sync>,
}

/// Reason why a pass was aborted.
#[derive(Debug, thiserror::Error)]
enum ApprovalPassError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// The state that one pass leaves for the next.
struct Memory {
    pass: u64,
    first_seen: FirstSeen,
    events: Events,
    budget: EventBudget,
    egress: Egress,
    forgotten: Option<Instant>,
    full_cache_said: Option<Instant>,
    keys_said: bool,
}

impl Memory {
    fn new() -> Self {
        Self {
            pass: 0,
            first_seen: HashMap::new(),
            events: Events::new("attest-controller"),
            budget: EventBudget::new(Instant::now()),
            egress: Egress::default(),
            forgotten: None,
            full_cache_said: None,
            keys_said: false,
        }
    }

    /// Counts a pass that has found these attestations.
    fn next_pass(&mut self, attested: &[(String, AttestedMachine)]) {
        self.pass += 1;
        let seen = std::mem::take(&mut self.first_seen);
        let number = |decision: &String| seen.get(decision).copied().unwrap_or(self.pass);
        let decisions = attested.iter().map(|(_, attested)| &attested.decision);
        self.first_seen = decisions.map(|decision| (decision.clone(), number(decision))).collect();
    }
}

/// Returns the names and keys that attested machines are expected to ask for.
fn attested_subjects(attested: &[(String, AttestedMachine)], machines: &[MachineApiMachine]) -> AttestedSubjects {
    let mut subjects = AttestedSubjects::default();
    let mut providers = Vec::new();
    for (_, attested) in attested {
        subjects.names.extend(attested.name.as_ref().map(|name| name.to_ascii_lowercase()));
        subjects.keys.extend(attested.key_sha256);
        providers.extend(attested.provider.as_ref());
    }
    let of_attested = |machine: &&MachineApiMachine| machine.provider().is_some_and(|provider| providers.contains(&&provider));
    for machine in machines.iter().filter(of_attested) {
        subjects
            .names
            .extend(machine.internal_names.iter().map(|name| name.to_ascii_lowercase()));
    }
    subjects
}

impl Approver {
    /// Approves for as long as it is polled. Starts its own watches: the cached state of an earlier leadership is dropped.
    pub async fn run(&self) {
        let (watched, keeping) = ApprovalWatches::begin(&self.cluster, &self.settings, &self.machine_namespace);
        tokio::join!(keeping, self.run_pass(watched));
    }

    async fn run_pass(&self, watched: ApprovalWatches) {
        let mut memory = Memory::new();
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed = None;
        loop {
            every.tick().await;
            let passed = self.pass(&watched, &mut memory).await;
            // Said once, and once more when it is another.
            let problem = passed.err().map(|error| attest_system::causes::with_causes(&error));
            if let Some(problem) = problem.as_ref().filter(|problem| failed.as_ref() != Some(*problem)) {
                tracing::warn!("cannot approve CSRs; retrying: {problem}");
            }
            failed = problem;
        }
    }

    async fn pass(&self, watched: &ApprovalWatches, memory: &mut Memory) -> Result<(), ApprovalPassError> {
        let requests = &*watched.requests;
        warn_of_full_cache(requests, memory);
        let moment = Instant::now();
        if !requests.has_due(moment) {
            return Ok(());
        }
        let store = &self.store;
        let now = self.clock.now().as_secs();
        if memory.forgotten.is_none_or(|at: Instant| at.elapsed() >= FORGET_EVERY) {
            let too_long_ago = now.saturating_sub(self.settings.within.as_secs() + FORGET_EVERY.as_secs());
            attested::forget_before(&**store, too_long_ago).await?;
            memory.forgotten = Some(Instant::now());
        }
        let told = watched.current_update(&self.cluster);
        let (attested, rules) = (attested::list(&**store).await?, self.rules(memory));
        memory.next_pass(&attested);
        let machines = told.as_ref().map(|told| told.machines.as_slice()).unwrap_or_default();
        let groups = requests.due(moment, &attested_subjects(&attested, machines));
        let found = PassFacts {
            rules: &rules,
            now,
            update: told.as_ref(),
            attested: &attested,
        };
        let mut problem = None;
        for group in &groups {
            for asked in &group.due {
                match self.settle(asked, group, &found, (requests, &mut *memory)).await {
                    Ok(()) => {}
                    // One request that the API has something against is in no other's way.
                    Err(ApprovalPassError::Cluster(error @ ClusterError::Api { .. })) if error.is_answer() => {
                        problem = problem.or(Some(error))
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        problem.map_or(Ok(()), |problem| Err(problem.into()))
    }

    /// Judges a request, and says why if it is left.
    async fn settle(
        &self,
        asked: &PendingRequest,
        group: &DueGroup,
        found: &PassFacts<'_>,
        (requests, memory): (&RequestCache, &mut Memory),
    ) -> Result<(), ApprovalPassError> {
        let csr = &asked.csr;
        let (first_seen, egress) = (std::mem::take(&mut memory.first_seen), EgressAddresses::default());
        let decided = match found.update {
            Ok(told) => {
                let facts = CsrFacts {
                    rules: found.rules,
                    now: found.now,
                    requests: &group.requests,
                    machines: &told.machines,
                    nodes: &told.nodes,
                    egress: &egress,
                    attested: found.attested,
                    first_seen: &first_seen,
                };
                self.decide(asked, &facts, memory).await
            }
            Err(reason) => Ok(Some(reason.clone())),
        };
        memory.first_seen = first_seen;
        let was_judged = match &decided {
            // It was not judged: of the cluster, or of the store, nothing is known.
            Ok(Some(Reason::WatchFailed { .. })) | Err(_) => requests.postponed(&csr.uid, Instant::now()),
            _ => requests.judged(&csr.uid, Instant::now(), memory.pass),
        };
        let Some(reason) = decided? else { return Ok(()) };
        // A watch that is broken for a moment is no reason that anybody has to read.
        if matches!(reason, Reason::WatchFailed { .. }) && !was_judged {
            return Ok(());
        }
        let text = format!("{}: {reason}", reason.code());
        let now = self.clock.now().as_secs();
        let repetition = now.saturating_sub(csr.created) / EVENT_AGAIN_SECONDS;
        let name = csr.node().unwrap_or(&csr.username);
        let last = requests.last_event(&csr.uid);
        let is_other_text = last.as_ref().is_none_or(|(said, _)| *said != text);
        let is_due = is_other_text || last.is_none_or(|(_, number)| number != repetition);
        if !is_due || !memory.budget.take(name, group.is_attested, Instant::now()) {
            return Ok(());
        }
        let (about, said) = (csr.about(), csr::NOT_APPROVED);
        if memory
            .events
            .post_repeated(&self.cluster, about, said, &text, (now, repetition))
            .await?
        {
            // The event is repeated since the API forgets it; the log keeps this line.
            if is_other_text {
                tracing::warn!("CSR {} not approved: {text}", csr.name);
            }
            requests.note_event(&csr.uid, text, repetition);
        }
        Ok(())
    }

    /// Judges a request, and approves it if it passes; returns the reason if it is left.
    async fn decide(&self, asked: &PendingRequest, facts: &CsrFacts<'_>, memory: &mut Memory) -> Result<Option<Reason>, ApprovalPassError> {
        let (csr, store) = (&*asked.csr, &self.store);
        let request = match (&csr.request, csr.purpose) {
            (Ok(request), CsrPurpose::Serving) => request,
            // No kubelet asks like that: the store is not asked about it.
            (_, CsrPurpose::Client) => match judge::form(csr, facts.rules) {
                Ok(request) => request,
                Err(reason) => return Ok(Some(reason)),
            },
            (Err(error), CsrPurpose::Serving) => return Ok(Some(Reason::Request(error.clone()))),
        };
        let name = request.name.as_str();
        match csr.purpose {
            CsrPurpose::Serving => {
                let held = self::held(&**store, name, None).await?;
                if let Err(reason) = self.judge_serving(csr, facts, &held, memory).await? {
                    return Ok(Some(reason));
                }
                let Some(object) = answer::whole(&self.cluster, csr).await? else {
                    return Ok(None);
                };
                let identity = held.approval.map(|approval| approval.identity).unwrap_or_default();
                let why = format!("serving certificate of {name}, whose client certificate was approved for {identity}");
                answer::approve(&self.cluster, csr, object, &why, (&mut memory.events, self.clock)).await?;
                Ok(None)
            }
            CsrPurpose::Client => {
                let owner = store.get(EntryKind::Name, name).await?.map(|entry| entry.value);
                let found = candidates(name, owner.as_deref(), facts);
                let candidate = match found.as_slice() {
                    [(identity, attested)] => Some((identity.clone(), attested.clone())),
                    _ => None,
                };
                let mut held = self::held(&**store, name, candidate).await?;
                // What was spent for this very request, and perhaps not told any more.
                let begun = held.approval.take_if(|approval| approval.uid == csr.uid);
                if let Some(approval) = begun {
                    let held = self::held(&**store, name, None).await?;
                    if let Some(revoked) = held.revoked {
                        return Ok(Some(Reason::Revoked(revoked)));
                    }
                    if let Some(object) = answer::whole(&self.cluster, csr).await? {
                        let why = answer::why(name, &approval);
                        answer::approve(&self.cluster, csr, object, &why, (&mut memory.events, self.clock)).await?;
                    }
                    return Ok(None);
                }
                match judge::judge(asked, facts, &held) {
                    ApprovalVerdict::Leave(reason) => Ok(Some(reason)),
                    ApprovalVerdict::Approve(_) if answer::has_node(&self.cluster, name).await? => {
                        Ok(Some(Reason::NodeExists { name: name.to_owned() }))
                    }
                    ApprovalVerdict::Approve(ground) => {
                        // Before the attestation is spent for it.
                        let Some(object) = answer::whole(&self.cluster, csr).await? else {
                            return Ok(None);
                        };
                        let approval = answer::approval(csr, &request.key, &ground, facts.now);
                        let own = Acting {
                            verb: Verb::CsrApprove,
                            by: self.by.clone(),
                            clock: self.clock,
                        };
                        let own = own.on(Arc::clone(store));
                        let (of, granted) = (name.to_owned(), approval.clone());
                        let (identity, attested) = (ground.identity.clone(), ground.attested.clone());
                        let approved =
                            own.transact(move |transaction| attested::approve(transaction, &of, &granted, (&identity, &attested), &held));
                        // What it was judged by has changed: it is judged anew.
                        if !approved.await? {
                            return Ok(None);
                        }
                        let why = answer::why(name, &approval);
                        answer::approve(&self.cluster, csr, object, &why, (&mut memory.events, self.clock)).await?;
                        Ok(None)
                    }
                }
            }
        }
    }

    /// Judges a CSR as [`serving::judge`] does. Without Machine objects it compares the addresses that the Node has at this moment. An
    /// address that is not the node's own may be one of its egress addresses.
    async fn judge_serving(
        &self,
        csr: &Csr,
        facts: &CsrFacts<'_>,
        held: &ApprovalHold,
        memory: &mut Memory,
    ) -> Result<Result<(), Reason>, ApprovalPassError> {
        let name = csr
            .node()
            .filter(|name| !self.settings.machine_objects && facts.nodes.contains_key(*name));
        let node = match name {
            Some(name) => answer::node(&self.cluster, name)
                .await?
                .map(|node| (name.to_owned(), NodeFacts::from_node(&node))),
            None => None,
        };
        let nodes: BTreeMap<String, NodeFacts> = node.into_iter().collect();
        let facts = match name {
            Some(_) => &CsrFacts { nodes: &nodes, ..*facts },
            None => facts,
        };
        match serving::judge(csr, facts, held) {
            Err(Reason::Address { .. }) => {
                let egress = memory.egress.addresses(&self.cluster).await;
                Ok(serving::judge(csr, &CsrFacts { egress, ..*facts }, held))
            }
            judged => Ok(judged),
        }
    }

    fn rules(&self, memory: &mut Memory) -> ApprovalRules {
        let (settings, pools) = (&self.settings, (self.pools)());
        // A pool may have come to give it while this controller runs.
        let exposed = pools.gives_credential.filter(|_| settings.keys == ApprovedKeys::Any);
        if let Some(pool) = exposed.as_ref().filter(|_| !memory.keys_said) {
            tracing::error!(
                "approval.keys is \"any\", but pool {pool} gives the bootstrap credential to unauthenticated clients: approving only CSRs for attested keys, as with \"attested\""
            );
        }
        memory.keys_said = exposed.is_some();
        ApprovalRules {
            within_seconds: settings.within.as_secs(),
            requester: settings.requester.clone(),
            groups: settings.requester_groups.clone(),
            pools: settings.pools.clone(),
            control_plane_pools: settings.control_plane_pools.clone(),
            machines: settings.machine_objects,
            asked_names: settings.asked_names,
            keys: if exposed.is_some() { ApprovedKeys::Attested } else { settings.keys },
            names: pools.names,
        }
    }
}

/// Returns the store's entries about a name, and about the machine that may be its node, from one snapshot.
async fn held(store: &dyn Store, name: &str, machine: Option<(String, AttestedMachine)>) -> Result<ApprovalHold, StoreError> {
    let name = name.to_owned();
    let held = store.read(move |transaction| {
        let machine = machine.as_ref().map(|(identity, attested)| (identity.as_str(), attested));
        attested::held(transaction, &name, machine)
    });
    held.await
}

/// The facts of a pass, for all CSRs that it judges.
struct PassFacts<'a> {
    rules: &'a ApprovalRules,
    now: u64,
    update: Result<&'a ApprovalUpdate, &'a Reason>,
    attested: &'a [(String, AttestedMachine)],
}

fn warn_of_full_cache(requests: &RequestCache, memory: &mut Memory) {
    if memory.full_cache_said.is_some_and(|said| said.elapsed() < FULL_CACHE_EVERY) {
        return;
    }
    let evicted = requests.take_evicted();
    if evicted > 0 {
        memory.full_cache_said = Some(Instant::now());
        tracing::warn!(
            evicted,
            "too many pending CSRs for the same node: ignoring the oldest; to see who creates them: `oc get csr --sort-by=.spec.username`"
        );
    }
}
