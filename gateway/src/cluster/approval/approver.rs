//! Looks at requests as they come, has them judged, and does what comes of it; one gateway at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::csr::{self, Csr, Purpose, Stage};
use super::facts::{NodeFacts, Rules};
use super::judge::{self, Facts, Verdict, candidates};
use super::reason::Reason;
use super::watched::{Asked, Seen, Watched};
use super::{answer, serving};
use crate::audit::admin::{Acting, By, Verb};
use crate::clock::Clock;
use crate::cluster::events::Events;
use crate::cluster::{Cluster, ClusterError};
use crate::credentials::kubelet::NamePatterns;
use crate::machines::attested::{self, Held};
use crate::settings::ApprovalSettings;
use crate::store::{Reading, Store, StoreError, Turn};

/// How often it is looked what is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a request is known before it is judged: by then those are known that came at the same time.
const SETTLE: Duration = Duration::from_secs(3);
/// How long after a request was left it is judged once more: an attestation may have come, or a Machine object an address.
const AGAIN: Duration = Duration::from_secs(10);
/// How many are judged in one pass: each reads the store once or twice.
const JUDGED_LIMIT: usize = 200;
/// How often attestations are forgotten for which nothing is approved any more.
const FORGET_EVERY: Duration = Duration::from_secs(600);
/// The names that pools say their nodes have, by pool.
pub type PoolNames = Arc<dyn Fn() -> BTreeMap<String, NamePatterns> + Send + Sync>;

/// Who approves, and what it needs for that.
pub struct Approver {
    pub cluster: Arc<Cluster>,
    pub settings: ApprovalSettings,
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub by: By,
    pub pool_names: PoolNames,
}

/// Why a pass has come to no end.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Approver {
    /// Approves for as long as it is polled.
    pub async fn run(self) {
        let (watched, keeping) = Watched::begin(&self.cluster, &self.settings);
        tokio::join!(keeping, self.look(watched));
    }

    async fn look(&self, watched: Watched) {
        let mut turn = Turn::new(Arc::clone(&self.store), "approve CSRs");
        let mut events = Events::new();
        let mut seen = HashMap::new();
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut failed, mut forgotten) = (None, None);
        loop {
            every.tick().await;
            let passed = self.pass(&watched, &mut turn, &mut seen, &mut events, &mut forgotten).await;
            // Said once, and once more when it is another.
            let problem = passed.err().map(|error| crate::causes::with_causes(&error));
            if let Some(problem) = problem.as_ref().filter(|problem| failed.as_ref() != Some(*problem)) {
                tracing::warn!("CSRs are not approved at the moment: {problem}");
            }
            failed = problem;
        }
    }

    async fn pass(
        &self,
        watched: &Watched,
        turn: &mut Turn,
        seen: &mut HashMap<String, Seen>,
        events: &mut Events,
        forgotten: &mut Option<Instant>,
    ) -> Result<(), PassError> {
        let Some(all) = watched.requests(seen) else { return Ok(()) };
        let due: Vec<&Asked> = {
            let now = Instant::now();
            let is_due = |asked: &&Asked| {
                let since = seen.get(&asked.csr.uid).map(|seen| match seen.judged {
                    Some(judged) => now.duration_since(judged) >= AGAIN,
                    None => now.duration_since(seen.since) >= SETTLE,
                });
                let is_looked_at = asked.csr.purpose == Purpose::Client || self.settings.serving;
                asked.csr.stage == Stage::Pending && is_looked_at && since.unwrap_or(false)
            };
            let mut due: Vec<&Asked> = all.iter().filter(is_due).collect();
            // Who was not looked at for the longest time comes first.
            due.sort_by_key(|asked| seen.get(&asked.csr.uid).map(|seen| seen.judged.unwrap_or(seen.since)));
            due.truncate(JUDGED_LIMIT);
            due
        };
        if due.is_empty() {
            return Ok(());
        }
        // Another gateway does it.
        let Some(store) = turn.shared().await?.map(Arc::clone) else {
            return Ok(());
        };
        let now = self.clock.now().as_secs();
        if forgotten.is_none_or(|at: Instant| at.elapsed() >= FORGET_EVERY) {
            let too_long_ago = now.saturating_sub(self.settings.within.as_secs() + FORGET_EVERY.as_secs());
            attested::forget_before(&*store, too_long_ago).await?;
            *forgotten = Some(Instant::now());
        }
        let told = watched.told(&self.cluster);
        let (attested, rules) = (attested::list(&*store).await?, self.rules());
        let mut problem = None;
        for asked in due {
            let same = all.iter().filter(|other| other.csr.node() == asked.csr.node());
            let requests: Vec<Csr> = same.map(|other| (*other.csr).clone()).collect();
            let facts = told.as_ref().map(|told| Facts {
                rules: &rules,
                now,
                requests: &requests,
                machines: &told.machines,
                nodes: &told.nodes,
                attested: &attested,
            });
            let settled = self.settle(asked, facts, &store, seen, events).await;
            if let Some(seen) = seen.get_mut(&asked.csr.uid) {
                seen.judged = Some(Instant::now());
            }
            match settled {
                Ok(()) => {}
                // One request that the API has something against is in no other's way.
                Err(PassError::Cluster(error @ ClusterError::Api { .. })) if error.is_answer() => problem = problem.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        problem.map_or(Ok(()), |problem| Err(problem.into()))
    }

    /// Judges a request, and says why if it is left.
    async fn settle(
        &self,
        asked: &Asked,
        facts: Result<Facts<'_>, &Reason>,
        store: &Arc<dyn Store>,
        seen: &mut HashMap<String, Seen>,
        events: &mut Events,
    ) -> Result<(), PassError> {
        let csr = &asked.csr;
        let reason = match facts {
            Ok(facts) => self.decide(asked, &facts, store, events).await?,
            Err(reason) => Some(reason.clone()),
        };
        let (Some(reason), Some(seen)) = (reason, seen.get_mut(&csr.uid)) else {
            return Ok(());
        };
        // A watch that is broken for a moment is no reason that anybody has to read.
        if matches!(reason, Reason::Untold { .. }) && seen.judged.is_none() {
            return Ok(());
        }
        let text = format!("{}: {reason}", reason.code());
        let now = self.clock.now().as_secs();
        if seen.said.as_ref() != Some(&text) && events.say(&self.cluster, csr.about(), csr::NOT_APPROVED, &text, now).await? {
            tracing::warn!("CSR {} is left as it is: {text}", csr.name);
            seen.said = Some(text);
        }
        Ok(())
    }

    /// Judges a request, and approves it if that is what comes of it; gives the reason for which it is left.
    async fn decide(
        &self,
        asked: &Asked,
        facts: &Facts<'_>,
        store: &Arc<dyn Store>,
        events: &mut Events,
    ) -> Result<Option<Reason>, PassError> {
        let csr = &asked.csr;
        let Ok(request) = &csr.request else {
            return Ok(left(judge::judge(csr, facts, &Held::default())));
        };
        let name = request.name.as_str();
        let mut reading = Reading::of(&**store);
        match csr.purpose {
            Purpose::Serving => {
                let held = attested::held(&mut reading, name, None).await?;
                if let Err(reason) = self.judge_serving(csr, facts, &held).await? {
                    return Ok(Some(reason));
                }
                let identity = held.approval.map(|approval| approval.identity).unwrap_or_default();
                let why = format!("serving certificate of {name}, whose client certificate was approved for {identity}");
                answer::approve(&self.cluster, asked, &why, (events, self.clock)).await?;
                Ok(None)
            }
            Purpose::Client => {
                let found = candidates(name, facts);
                let candidate = match found.as_slice() {
                    [(identity, attested)] => Some((identity.as_str(), attested)),
                    _ => None,
                };
                let mut held = attested::held(&mut reading, name, candidate).await?;
                // What was spent for this very request, and perhaps not told any more.
                let begun = held.approval.take_if(|approval| approval.uid == csr.uid);
                if let Some(approval) = begun {
                    let held = attested::held(&mut Reading::of(&**store), name, None).await?;
                    if let Some(revoked) = held.revoked {
                        return Ok(Some(Reason::Revoked(revoked)));
                    }
                    answer::approve(&self.cluster, asked, &answer::why(name, &approval), (events, self.clock)).await?;
                    return Ok(None);
                }
                match judge::judge(csr, facts, &held) {
                    Verdict::Leave(reason) => Ok(Some(reason)),
                    Verdict::Approve(_) if answer::has_node(&self.cluster, name).await? => {
                        Ok(Some(Reason::NodeExists { name: name.to_owned() }))
                    }
                    // It will be in a moment, or has come to nothing.
                    Verdict::Approve(ground) if !attested::is_recorded(&**store, &ground.identity, &ground.attested).await? => Ok(None),
                    Verdict::Approve(ground) => {
                        let approval = answer::approval(csr, &request.key, &ground, facts.now);
                        let own = Acting {
                            verb: Verb::CsrApprove,
                            by: self.by.clone(),
                            clock: self.clock,
                        };
                        let own = own.on(Arc::clone(store));
                        match attested::approve(&mut reading, &*own, name, &approval).await {
                            Ok(()) => {}
                            // It is judged anew.
                            Err(StoreError::Changed { .. }) => return Ok(None),
                            Err(error) => return Err(error.into()),
                        }
                        answer::approve(&self.cluster, asked, &answer::why(name, &approval), (events, self.clock)).await?;
                        Ok(None)
                    }
                }
            }
        }
    }

    /// As [`serving::judge`]; where there are no Machine objects, by the addresses that the Node has at this moment.
    async fn judge_serving(&self, csr: &Csr, facts: &Facts<'_>, held: &Held) -> Result<Result<(), Reason>, PassError> {
        let name = csr
            .node()
            .filter(|name| !self.settings.machine_objects && facts.nodes.contains_key(*name));
        let Some(name) = name else {
            return Ok(serving::judge(csr, facts, held));
        };
        let node = answer::node(&self.cluster, name).await?;
        let nodes: BTreeMap<String, NodeFacts> = node.map(|node| (name.to_owned(), NodeFacts::of(&node))).into_iter().collect();
        Ok(serving::judge(csr, &Facts { nodes: &nodes, ..*facts }, held))
    }

    fn rules(&self) -> Rules {
        let settings = &self.settings;
        Rules {
            within_seconds: settings.within.as_secs(),
            requester: settings.requester.clone(),
            groups: settings.requester_groups.clone(),
            pools: settings.pools.clone(),
            control_plane_pools: settings.control_plane_pools.clone(),
            machines: settings.machine_objects,
            asked_names: settings.asked_names,
            keys: settings.keys,
            names: (self.pool_names)(),
        }
    }
}

fn left(verdict: Verdict) -> Option<Reason> {
    match verdict {
        Verdict::Leave(reason) => Some(reason),
        Verdict::Approve(_) => None,
    }
}
