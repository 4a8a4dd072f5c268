//! Evidence that is refused for nothing but values that no reference value has: whether its machine waits until an administrator has said yes or no. Where the
//! pool observes, its machine is let in, and the administrator is asked all the same.
//!
//! The verdict on such evidence stays the same: its record is a refusal's, written once, when its machine begins to wait. Only the answer
//! differs.

use std::fmt::Write as _;

use attest::AttestationResult;
use attest::new_values::new_values;
use attest::reference_sets::NewValue;
use attest_log::Earns;
use attest_machines::new_values::{MachineStep, NotAwaited, ObservedBoot, Wait};
use attest_pool::NewValueRules;
use attest_system::clock::rfc3339;

use super::EvidenceCase;
use crate::api::problem::Refusal;
use attest_pool::Pool;

/// Values that a line of the log names; the record has all of it.
const NAMED_LIMIT: usize = 3;

impl EvidenceCase<'_> {
    /// Notes the new values that the pool's policy refuses, if it refuses nothing else, of a machine that could be one of the pool's. A
    /// machine outside the pool's inventory cannot raise a question.
    ///
    /// # Errors
    /// The machine may be named yet.
    pub(super) fn note_new_values(&mut self, pool: &Pool) -> Result<(), Refusal> {
        let asks = pool.new_values.is_some() && pool.grants.attested != Earns::Refuse;
        let Some(claims) = self.record.claims.clone().filter(|_| asks) else {
            return Ok(());
        };
        let Some(values) = new_values(&claims, &pool.policy, self.asked.now) else {
            return Ok(());
        };
        match self.admit(pool, &claims) {
            Ok(_) => self.made.new_values = values,
            Err(refusal) if refusal.is_unavailable() => return Err(refusal),
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns the answer that replaces the refusal for a machine that begins to wait. An alert in the record says that it waits, or why it
    /// does not. The reason stays the refusal's, which is the same when it is decided again.
    ///
    /// # Errors
    /// The answer to a machine that waits already, and is recorded; or the store failed.
    pub(super) async fn or_waits(&mut self) -> Result<Option<Refusal>, Refusal> {
        let (pool, values) = (&self.asked.pool, &self.made.new_values);
        let (Some(rules), Some(claims), false) = (&pool.new_values, &self.record.claims, values.is_empty()) else {
            return Ok(None);
        };
        let machine = claims.identity().as_str();
        let step = self.ask(pool, rules, machine, values, false).await?;
        let count = |event| self.endpoint.metrics.new_value(event);
        let awaited = |wait: &Wait| Refusal::value_awaited(&waits_for(values, wait), pool.name(), rules.retry_seconds());
        match step {
            MachineStep::Begins(wait) => {
                count("began");
                tracing::info!(
                    "{machine}: pool {}: waiting for an administrator to answer question {}, at most {} s: {}",
                    pool.name(),
                    wait.question,
                    wait.left_seconds,
                    named(values)
                );
                let alert = format!(
                    "told to retry for {} s, until question {} is answered ({} of {} machines have these values): list the values: `attest-gateway reference-values pending {}`",
                    wait.left_seconds,
                    wait.question,
                    wait.machines,
                    rules.machines,
                    pool.name()
                );
                let answer = awaited(&wait);
                self.record.alerts.push(alert);
                Ok(Some(answer))
            }
            MachineStep::Waits(wait) => Err(awaited(&wait)),
            MachineStep::Refused(why) => {
                count(match why {
                    NotAwaited::Denied { .. } => "denied",
                    NotAwaited::Over { .. } => "over",
                    NotAwaited::Changes | NotAwaited::Questions | NotAwaited::Machines => "turned_away",
                });
                self.record.alerts.push(why.to_string());
                Ok(None)
            }
        }
    }

    /// Asks for a machine that has shown these; of several tries one has the administrator asked.
    async fn ask(
        &self,
        pool: &Pool,
        rules: &NewValueRules,
        machine: &str,
        values: &[NewValue],
        observed: bool,
    ) -> Result<MachineStep, Refusal> {
        let shown = ObservedBoot {
            pool: pool.name(),
            rules,
            machine,
            values,
            decision: &self.record.id,
            observed,
            now: self.asked.now.as_secs(),
        };
        let step = self.endpoint.new_values.ask(shown).await;
        let step = step.map_err(|error| Refusal::because(&error))?;
        if let MachineStep::Begins(wait) | MachineStep::Waits(wait) = &step
            && wait.is_put
        {
            self.endpoint.metrics.new_value("asked");
            tracing::warn!(
                "pool {}: {} machines have booted values that match no reference value: {}; to answer question {}: `attest-gateway reference-values pending {}`",
                pool.name(),
                wait.machines,
                named(values),
                wait.question,
                pool.name()
            );
        }
        Ok(step)
    }

    /// Handles a machine that is trusted. If that is because the pool observes, and nothing else would be refused, its values raise a
    /// question.
    pub(super) async fn is_let_in(&mut self, pool: &Pool, result: &AttestationResult) -> Result<(), Refusal> {
        let Some(rules) = &pool.new_values else { return Ok(()) };
        let machine = result.claims().identity().as_str();
        let is_known = result.would_refuse().is_empty();
        let new = || new_values(result.claims(), &pool.policy.strict(), self.asked.now);
        let Some(values) = (!is_known).then(new).flatten() else {
            return self.waits_no_more(pool, machine).await;
        };
        let count = |event| self.endpoint.metrics.new_value(event);
        match self.ask(pool, rules, machine, &values, true).await? {
            MachineStep::Begins(wait) => {
                count("observed");
                tracing::info!(
                    "{machine}: pool {}: trusted, because the pool observes, with values that question {} asks about: {}",
                    pool.name(),
                    wait.question,
                    named(&values)
                );
                self.record.alerts.push(format!(
                    "not told to wait for the answer to question {} ({} of {} machines have these values): the pool observes",
                    wait.question, wait.machines, rules.machines
                ));
            }
            MachineStep::Waits(_) => {}
            MachineStep::Refused(why @ NotAwaited::Denied { .. }) => self.record.alerts.push(format!("{why}; the pool observes")),
            // There is no room for it: it is recorded as what would have been refused.
            MachineStep::Refused(_) => count("turned_away"),
        }
        Ok(())
    }

    /// Ends the wait of a trusted machine that has no new values, if it waits.
    async fn waits_no_more(&self, pool: &Pool, machine: &str) -> Result<(), Refusal> {
        let ended = self.endpoint.new_values.ended(pool.name(), machine).await;
        let ended = ended.map_err(|error| Refusal::because(&error))?;
        if let Some((question, since)) = ended {
            self.endpoint.metrics.new_value("ended");
            tracing::info!(
                "{machine}: pool {}: trusted, after waiting since {} for an answer to question {question}",
                pool.name(),
                rfc3339(since)
            );
        }
        Ok(())
    }
}

/// Names the first of the values, and how many more there are.
fn named(values: &[NewValue]) -> String {
    let mut words = String::new();
    for (place, value) in values.iter().take(NAMED_LIMIT).enumerate() {
        let separator = if place == 0 { "" } else { "; " };
        // A String takes whatever is written to it.
        let _ = write!(words, "{separator}{value}");
        let called = value.called();
        if !called.is_empty() {
            let _ = write!(words, " ({called})");
        }
    }
    match values.len().saturating_sub(NAMED_LIMIT) {
        0 => words,
        more => format!("{words}; and {more} more"),
    }
}

/// Returns the message for the node: its own values only.
fn waits_for(values: &[NewValue], wait: &Wait) -> String {
    let first = values.first().map(ToString::to_string).unwrap_or_default();
    let more = match values.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let stands = match wait.is_asked {
        true => "nobody has accepted or denied this yet",
        false => "fewer machines have booted this than the pool wants before it asks",
    };
    format!("{first}{more}: {stands}; question {}", wait.question)
}
