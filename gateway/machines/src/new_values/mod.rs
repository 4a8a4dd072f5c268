//! Values that machines have shown and no reference value has: while an administrator is asked about them, the machines wait.
//!
//! All that a boot shows beyond the pool's sets is one **question**, named by a digest of it, so that whoever writes it writes the same, and two gateways need no
//! agreement. Of each machine the store has one entry: which question it waits for, and since when. A machine that boots something else each time has still that one.
//!
//! In reading order: the pool's [`NewValueRules`](attest_pool::NewValueRules), `kept` (what the store has), [`ask`] (whether a machine waits), `listed` and `answers` (what an administrator sees, and says).

mod answers;
mod ask;
mod kept;
mod listed;
#[cfg(test)]
mod tests;

pub use answers::{AnswerError, accept, deny, take_back, values_of};
pub use ask::{AwaitedValues, NotAwaited, Shown, Step, Wait};
pub use kept::{Answered, Question, Said};
pub use listed::{Beside, Row, Showing, questions};
