//! Who did what: each change by a command, or by the gateway of itself, is a record.
//!
//! What changes the store is told of in the same transaction ([`Acting`]), and waits there until a gateway has it in its log
//! ([`take`]).

mod acting;
mod outbox;
mod recorded;
mod shown;

pub use acting::Acting;
pub use outbox::{TakeError, Taken, record, take};
pub use recorded::{last_standing, standing};

pub use super::act::{Act, By, ByObject, Thing, Verb};
