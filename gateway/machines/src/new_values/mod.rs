//! New values: values that machines have shown and no reference value has. While an administrator is asked about them, the machines wait.
//!
//! All values of a boot beyond the pool's sets are one **question**. A digest of the values names it, so two gateways write the same
//! question without coordination. For each machine the store has one entry: its question, and since when it waits. A machine that boots
//! other values each time still has only that one entry.
//!
//! In reading order: the pool's [`NewValueRules`](attest_pool::NewValueRules), `kept` (the store entries), [`ask`] (the decision whether a
//! machine waits), `listed` and `answers` (the administrator's view, and answers).

mod answers;
mod ask;
mod listed;
mod questions;
#[cfg(test)]
mod tests;

pub use answers::{AnswerError, accept, deny, values_of, withdraw_denial};
pub use ask::{AwaitedValues, MachineStep, NotAwaited, ObservedBoot, Wait};
pub use listed::{QuestionRow, RelatedQuestion, Showing, questions};
pub use questions::{Answered, Question, QuestionAnswer};
