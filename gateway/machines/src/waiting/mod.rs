//! Machines that wait for an administrator's answer. Each was refused for one thing that an administrator may accept
//! ([`Acceptable`](attest_log::Acceptable)): while it waits, it is told to come again.
//!
//! The thing is one **question**. For a boot it is all values that the pool does not accept; machines with the same values share the
//! question. A digest of pool and values names it, so two gateways write the same question without coordination. For each machine the store
//! has one entry: its question, and since when it waits. A machine that shows other values each time still has only that one entry.
//!
//! In reading order: the pool's [`WaitingRules`](attest_pool::WaitingRules), `questions` (the store entries), [`ask`] (the decision whether
//! a machine waits), `listed` and `answers` (the administrator's view, and answers).

mod answers;
mod ask;
mod listed;
mod questions;
#[cfg(test)]
mod tests;

pub use answers::{Acceptance, AnswerError, accept, refuse, withdraw_refusal};
pub use ask::{MachineStep, NotAwaited, Wait, WaitRequest, WaitingList, end_wait, waited_for, wanted};
pub use listed::{QuestionRow, RelatedQuestion, Showing, questions, waiting};
pub use questions::{Answered, Question, QuestionAnswer};
