//! Edits of a machine's object, the steps that they ask for, and their outcomes.
//!
//! A ban counts for as long as the object has it. An edit that gives something is done once, when it is written: if it stays in the object,
//! it is not done again.

use std::collections::BTreeSet;
use std::sync::Arc;

use attest::challenge::is_node_name;
use attest_log::admin::{By, Verb};
use attest_machines::by_object::{self, EditResult, is_by};
use attest_machines::enrolment::{EnrolmentError, forget_name_of};
use attest_recording::Acting;
use attest_store::{Store, StoreError};
use attest_system::clock::Clock;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;

use super::object::{Approved, AttestedNodeSpec};
use crate::machine_status::status::{ConditionAnswer, Handled};
use crate::machine_status::stored::StoredMachine;

/// A step that an edit asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EditStep {
    Forget(String),
    Approve(Approved),
    Ban(Option<String>),
    Lift,
}

/// Outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EditOutcome {
    /// Reason in one word, if nothing was done.
    refused: Option<&'static str>,
    message: String,
}

fn done(said: String) -> EditOutcome {
    EditOutcome {
        refused: None,
        message: said,
    }
}

fn refused(why: &'static str, said: impl Into<String>) -> EditOutcome {
    let (refused, said) = (Some(why), said.into());
    EditOutcome { refused, message: said }
}

/// Returns the steps to do, the ban last: it counts, whatever else is written.
pub(super) fn steps(spec: &AttestedNodeSpec, handled: &Handled, machine: &StoredMachine, object: &str) -> Vec<EditStep> {
    let mut steps = Vec::new();
    if let Some(name) = spec.forget.as_ref().filter(|name| handled.forget.as_ref() != Some(*name)) {
        steps.push(EditStep::Forget(name.clone()));
    }
    if let Some(approved) = spec
        .approved
        .as_ref()
        .filter(|approved| handled.approved != Some(digest_of(approved)))
    {
        steps.push(EditStep::Approve(approved.clone()));
    }
    match spec.banned {
        Some(true) if !machine.revoked_itself => steps.push(EditStep::Ban(spec.reason.clone())),
        Some(false) if machine.revoked.as_ref().is_some_and(|revoked| is_by(revoked, object)) => steps.push(EditStep::Lift),
        _ => {}
    }
    steps
}

/// Returns the edits that were done once, or will not be.
pub(super) fn handled(spec: &AttestedNodeSpec) -> Handled {
    Handled {
        approved: spec.approved.as_ref().map(digest_of),
        forget: spec.forget.clone(),
    }
}

fn digest_of(approved: &Approved) -> String {
    let text = serde_json::to_string(approved).unwrap_or_default();
    HEXLOWER.encode(digest(&SHA256, text.as_bytes()).as_ref())
}

/// Returns the object's answer to an edit.
pub(super) fn answer(spec: &AttestedNodeSpec, machine: &StoredMachine, object: &str, outcomes: &[EditOutcome]) -> ConditionAnswer {
    let mut said: Vec<&str> = outcomes.iter().map(|outcome| outcome.message.as_str()).collect();
    let mut why = outcomes.iter().find_map(|outcome| outcome.refused);
    let by_command = machine.revoked.as_ref().is_some_and(|revoked| !is_by(revoked, object));
    if spec.banned == Some(false) && by_command {
        why = why.or(Some("RevokedByCommand"));
        said.push("a command has revoked this machine, and only a command can restore it: attest-gateway node restore");
    }
    let message = said.join("; ");
    match why {
        Some(why) => ConditionAnswer::new(false, why, message),
        None => ConditionAnswer::new(true, "Done", message),
    }
}

/// Executor of steps: the store, the actor and the known pools.
pub(super) struct Hands<'a> {
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) by: By,
    pub(super) clock: Clock,
    pub(super) pools: &'a [String],
}

impl Hands<'_> {
    /// Does it. `None`: it is not decided yet whether it can be done.
    pub(super) async fn perform(&self, step: &EditStep, machine: &StoredMachine, object: &str) -> Result<Option<EditOutcome>, StoreError> {
        let now = self.clock.now().as_secs();
        let identity = machine.identity.as_str();
        Ok(Some(match step {
            EditStep::Forget(name) => {
                let forgotten = forget_name_of(&*self.own(Verb::NodeForget), name, Some(identity)).await?;
                done(match forgotten {
                    true => format!("{name} is forgotten: another machine can have the name"),
                    false => format!("{name} is not this machine's name"),
                })
            }
            EditStep::Approve(approved) => return self.approve(approved, identity, now).await,
            EditStep::Ban(why) => {
                let banned = by_object::ban(&*self.own(Verb::NodeRevoke), identity, object, why.as_deref(), now).await?;
                done(match banned {
                    EditResult::Changed(all) => format!("revoked: {}", together(&all)),
                    EditResult::Already | EditResult::ByCommand => "the machine is revoked already".to_owned(),
                })
            }
            EditStep::Lift => match by_object::lift(&*self.own(Verb::NodeRestore), identity, object).await? {
                EditResult::Changed(all) => done(format!("restored: {}", together(&all))),
                EditResult::Already => done("the machine is not revoked".to_owned()),
                EditResult::ByCommand => return Ok(None),
            },
        }))
    }

    async fn approve(&self, approved: &Approved, identity: &str, now: u64) -> Result<Option<EditOutcome>, StoreError> {
        let Some(ek) = identity.strip_prefix("tpm:").and_then(|digits| digits.parse().ok()) else {
            return Ok(Some(refused(
                "NotATpm",
                "only TPMs can be on the allowlist; instances are accepted by the rules of their pool",
            )));
        };
        let Approved { pools, node_name } = approved;
        if let Some(name) = node_name.as_ref().filter(|name| !is_node_name(name)) {
            return Ok(Some(refused("NameInvalid", format!("{name:?} is not a node name"))));
        }
        if pools.is_empty() {
            return Ok(Some(refused("PoolUnknown", "the object names no pool")));
        }
        if let Some(pool) = pools.iter().find(|pool| !self.pools.contains(pool)) {
            return Ok(Some(refused("PoolUnknown", format!("pool {pool:?} does not exist"))));
        }
        let own = self.own(Verb::EkAdd);
        Ok(Some(match by_object::approve(&*own, ek, node_name.as_deref(), pools, now).await {
            Ok(EditResult::Changed(_) | EditResult::Already) => done(format!("endorsed for {}", pools.join(", "))),
            Ok(EditResult::ByCommand) => refused(
                "RemovedByCommand",
                "a command has removed this EK from the allowlist, and only a command can add it again: attest-gateway ek add",
            ),
            Err(EnrolmentError::NameTaken { name, owner, .. }) => refused("NameTaken", format!("the name {name} belongs to {owner}")),
            Err(EnrolmentError::OtherName { given, .. }) => refused("OtherName", format!("this machine is known as {given}")),
            Err(EnrolmentError::Store(error)) => return Err(error),
        }))
    }

    fn own(&self, verb: Verb) -> Arc<dyn Store> {
        let acting = Acting {
            verb,
            by: self.by.clone(),
            clock: self.clock,
        };
        acting.on(Arc::clone(self.store))
    }
}

fn together(all: &BTreeSet<String>) -> String {
    all.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
