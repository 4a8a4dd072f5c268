//! Machines that are refused for one thing that an administrator may accept: whether such a machine waits for the answer. Where the pool
//! observes, a machine with new values is let in, and the administrator is asked all the same.
//!
//! The verdict on such evidence stays the same: its record is a refusal's, written once, when its machine begins to wait. Only the answer
//! differs.

use attest::new_values::new_values;
use attest::reference_sets::NewValue;
use attest::{AttestationResult, Claims};
use attest_log::{Acceptable, Earns};
use attest_machines::waiting::{MachineStep, NotAwaited, Wait, WaitRequest, waited_for};
use attest_pool::{Endorsement, Pool, UnknownMachines, WaitingRules};
use attest_store::{StoreEntry, StoreError};
use attest_system::clock::rfc3339;

use super::super::decide::Obstacle;
use super::EvidenceCase;
use crate::api::endorsers::Vouched;
use crate::api::problem::Refusal;

/// The one thing that a machine is refused for.
#[derive(Debug, Clone)]
pub(super) struct WaitsFor {
    about: Acceptable,
    /// Identity of the machine.
    machine: String,
    /// Number of booted values for which it waits next.
    then_values: usize,
    /// Set if the pool lets machines wait for this.
    may_wait: bool,
}

impl WaitsFor {
    /// Returns what an administrator may accept.
    pub(super) fn into_acceptable(self) -> Acceptable {
        self.about
    }
}

impl EvidenceCase<'_> {
    /// Notes what the machine is refused for, if an administrator may accept it. A machine outside the pool's inventory cannot raise a
    /// question about its boot.
    ///
    /// # Errors
    /// The machine may be named yet.
    pub(super) fn note_obstacle(&mut self, pool: &Pool, obstacle: Obstacle, refusal: &Refusal) -> Result<(), Refusal> {
        let Some(claims) = self.record.claims.clone().filter(|_| pool.grants.attested != Earns::Refuse) else {
            return Ok(());
        };
        let (about, then_values) = match obstacle {
            Obstacle::Other => match refusal.acceptable() {
                Some(about) => (about.clone(), 0),
                None => return Ok(()),
            },
            Obstacle::Inventory => match outside_inventory(pool, &claims) {
                Some(about) => (about, 0),
                None => return Ok(()),
            },
            Obstacle::Policy => {
                let Some(values) = new_values(&claims, &self.asked.policy(), self.asked.now) else {
                    return Ok(());
                };
                match self.admit(pool, &claims) {
                    Ok(_) => (Acceptable::Values(values), 0),
                    Err(refusal) if refusal.is_unavailable() => return Err(refusal),
                    Err(refusal) => match outside_inventory(pool, &claims).filter(|_| refusal.is_not_in_inventory()) {
                        Some(about) => (about, values.len()),
                        None => return Ok(()),
                    },
                }
            }
        };
        self.made.waits_for = Some(WaitsFor {
            may_wait: may_wait(pool, &about),
            machine: claims.identity().to_string(),
            about,
            then_values,
        });
        Ok(())
    }

    /// Notes that the machine is refused because nobody endorses its TPM. It may wait if the pool would accept it with an endorsement: for
    /// that, its evidence is verified a second time, as that of an endorsed TPM. Nothing else comes of this verification.
    ///
    /// # Errors
    /// The processors are busy, or the machine may be named yet.
    pub(super) async fn note_unknown_tpm(&mut self, vouched: &Vouched) -> Result<(), Refusal> {
        let (endpoint, pool) = (self.endpoint, std::sync::Arc::clone(&self.asked.pool));
        let is_asked = self.made.unknown_ek && pool.grants.attested != Earns::Refuse && !vouched.is_removed();
        let Some(ek) = vouched.ek.filter(|_| is_asked) else {
            return Ok(());
        };
        let mut waits_for = WaitsFor {
            about: Acceptable::Ek(ek.to_string()),
            machine: ek.identity(),
            then_values: 0,
            may_wait: false,
        };
        // A machine that the administrator has allowed in other pools only is not unknown.
        if vouched.listed.is_some() || pool.endorsement == Endorsement::GcpInstance || !may_wait(&pool, &waits_for.about) {
            self.made.waits_for = Some(waits_for);
            return Ok(());
        }
        let endorsements = vouched.endorsements.clone().allow(ek);
        let verification = &endpoint.admission.verification;
        let mut basis = self.made.basis.clone();
        let anchors = &mut self.made.anchors;
        let verified = anchors.verify(&endpoint.endorsers, verification, &self.asked, &endorsements, &mut basis);
        let Ok(claims) = verified.await? else { return Ok(()) };
        if attest::appraise(claims.clone(), &pool.policy, self.asked.now).is_err() {
            match new_values(&claims, &pool.policy, self.asked.now) {
                Some(values) => waits_for.then_values = values.len(),
                None => return Ok(()),
            }
        }
        waits_for.machine = claims.identity().to_string();
        waits_for.may_wait = true;
        self.made.waits_for = Some(waits_for);
        Ok(())
    }

    /// Returns the answer that replaces the refusal for a machine that begins to wait. An alert in the record says that it waits, or why it
    /// does not. The reason stays the refusal's, which is the same when it is decided again.
    ///
    /// # Errors
    /// The answer to a machine that waits already, and is recorded; or the store failed.
    pub(super) async fn or_waits(&mut self) -> Result<Option<Refusal>, Refusal> {
        let Some(waits_for) = self.made.waits_for.take() else {
            return Ok(None);
        };
        self.record.acceptable = Some(waits_for.about.clone());
        let pool = std::sync::Arc::clone(&self.asked.pool);
        let (Some(rules), true) = (&pool.waiting, waits_for.may_wait) else {
            return Ok(None);
        };
        let step = self.ask(&pool, rules, &waits_for, false).await?;
        let count = |event| self.endpoint.metrics.waiting(event);
        let WaitsFor { about, machine, .. } = &waits_for;
        let answer = |wait: &Wait| Refusal::answer_awaited(&waits(about, wait), &wait.question, rules.retry_seconds());
        match step {
            MachineStep::Begins(wait) => {
                count("began");
                tracing::info!(
                    "{machine}: pool {}: waiting for an administrator to answer question {}, at most {} s: {about}",
                    pool.name(),
                    wait.question,
                    wait.left_seconds,
                );
                let alert = format!(
                    "told to retry for {} s, until question {} is answered{}: `attest-gateway waiting show {}`",
                    wait.left_seconds,
                    wait.question,
                    shown_by(about, &wait, rules),
                    wait.question
                );
                let answer = answer(&wait);
                self.record.alerts.push(alert);
                Ok(Some(answer))
            }
            MachineStep::Waits(wait) => Err(answer(&wait)),
            MachineStep::NotWaiting(why) => {
                count(match why {
                    NotAwaited::Refused { .. } => "refused",
                    NotAwaited::Over { .. } => "over",
                    NotAwaited::Changes
                    | NotAwaited::Questions
                    | NotAwaited::Machines
                    | NotAwaited::Unknown
                    | NotAwaited::UnknownOfANetwork => "turned_away",
                });
                self.record.alerts.push(why.to_string());
                Ok(None)
            }
        }
    }

    /// Asks for a machine; of several tries one has the administrator asked.
    async fn ask(&self, pool: &Pool, rules: &WaitingRules, waits_for: &WaitsFor, observed: bool) -> Result<MachineStep, Refusal> {
        let WaitsFor {
            about,
            machine,
            then_values,
            ..
        } = waits_for;
        let network = self.asked.source.machines().to_string();
        let request = WaitRequest {
            pool: pool.name(),
            rules,
            machine,
            name: self.asked.challenge.name.as_deref(),
            about,
            then_values: *then_values,
            network: &network,
            decision: &self.record.id,
            observed,
            now: self.asked.now.as_secs(),
        };
        let step = self.endpoint.waiting.ask(request).await;
        let step = step.map_err(|error| Refusal::because(&error))?;
        if let MachineStep::Begins(wait) | MachineStep::Waits(wait) = &step
            && wait.is_put
        {
            self.endpoint.metrics.waiting("asked");
            tracing::warn!(
                "pool {}: {} machines wait for an answer: {about}; to read question {}: `attest-gateway waiting show {}`",
                pool.name(),
                wait.machines,
                wait.question,
                wait.question
            );
        }
        Ok(step)
    }

    /// Returns the new values of a machine that is trusted because the pool observes, if nothing else would be refused of it.
    pub(super) fn observed_values(&self, pool: &Pool, result: &AttestationResult) -> Option<Vec<NewValue>> {
        let strict = || new_values(result.claims(), &pool.policy.strict(), self.asked.now);
        pool.waiting?;
        (!result.would_refuse().is_empty()).then(strict).flatten()
    }

    /// Handles a machine that is trusted: one with new values raises a question, another one waits no more.
    pub(super) async fn is_let_in(
        &mut self,
        pool: &Pool,
        result: &AttestationResult,
        observed: Option<Vec<NewValue>>,
        waited: Option<&StoreEntry>,
    ) -> Result<(), Refusal> {
        let machine = result.claims().identity().as_str();
        let (Some(rules), Some(values)) = (&pool.waiting, observed) else {
            let ended = waited.map_or(Ok(()), |waited| self.waits_no_more(pool, machine, waited));
            return ended.map_err(|error| Refusal::because(&error));
        };
        let count = |event| self.endpoint.metrics.waiting(event);
        let waits_for = WaitsFor {
            about: Acceptable::Values(values),
            machine: machine.to_owned(),
            then_values: 0,
            may_wait: true,
        };
        let about = &waits_for.about;
        match self.ask(pool, rules, &waits_for, true).await? {
            MachineStep::Begins(wait) => {
                count("observed");
                tracing::info!(
                    "{machine}: pool {}: trusted, because the pool observes, with values that question {} asks about: {about}",
                    pool.name(),
                    wait.question,
                );
                self.record.alerts.push(format!(
                    "not told to wait for the answer to question {}{}: the pool observes",
                    wait.question,
                    shown_by(about, &wait, rules)
                ));
            }
            MachineStep::Waits(_) => {}
            MachineStep::NotWaiting(why @ NotAwaited::Refused { .. }) => self.record.alerts.push(format!("{why}; the pool observes")),
            // There is no room for it: it is recorded as what would have been refused.
            MachineStep::NotWaiting(_) => count("turned_away"),
        }
        Ok(())
    }

    /// Ends the wait of a trusted machine, if it waits.
    fn waits_no_more(&self, pool: &Pool, machine: &str, waited: &StoreEntry) -> Result<(), StoreError> {
        if let Some((question, since)) = waited_for(waited)? {
            self.endpoint.metrics.waiting("ended");
            tracing::info!(
                "{machine}: pool {}: trusted, after waiting since {} for an answer to question {question}",
                pool.name(),
                rfc3339(since)
            );
        }
        Ok(())
    }
}

/// Returns whether a pool lets machines wait for this.
fn may_wait(pool: &Pool, about: &Acceptable) -> bool {
    let Some(rules) = &pool.waiting else { return false };
    !about.is_unknown_machine() || rules.unknown == UnknownMachines::Wait
}

/// Returns what would have to be accepted of a machine that the pool's inventory does not list; `None` if the pool has no file for it.
fn outside_inventory(pool: &Pool, claims: &Claims) -> Option<Acceptable> {
    pool.inventory.as_ref()?;
    let identity = claims.instance().unwrap_or_else(|| claims.identity());
    let tpm = claims.tpm().filter(|_| claims.instance().is_some());
    Some(Acceptable::Machine {
        identity: identity.to_string(),
        tpm: tpm.map(|tpm| tpm.ek_digest.identity()),
    })
}

/// Returns the number of machines with the same booted values, as a part of a sentence.
fn shown_by(about: &Acceptable, wait: &Wait, rules: &WaitingRules) -> String {
    match about.values() {
        [] => String::new(),
        _ => format!(" ({} of {} machines have these values)", wait.machines, rules.machines),
    }
}

/// Returns the message for the node: about itself only.
fn waits(about: &Acceptable, wait: &Wait) -> String {
    let what = match about.values() {
        [] => about.to_string(),
        [value] => value.to_string(),
        [value, more @ ..] => format!("{value} and {} more", more.len()),
    };
    let state = match wait.is_asked {
        true => "nobody has accepted or refused this yet",
        false => "fewer machines have booted this than the pool wants before it asks",
    };
    format!("{what}: {state}; question {}", wait.question)
}
