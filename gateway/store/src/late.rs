//! Uses of what has expired: it must not have been used before.

use super::documents::{UseDocument, Used};
use super::{Late, Spend};

/// Why it cannot be used at this time. `None` if it was not used before and the time for that is not over, or its first use was late, too, and is not long ago.
pub(super) fn refused(document: &UseDocument, late: Late, at: u64) -> Option<Spend> {
    let uses = document.uses();
    if uses == 0 {
        return (at > late.first_until).then_some(Spend::TooLate);
    }
    let since = document.used.as_ref().and_then(|used| used.late_since);
    if since.is_some_and(|since| at <= since.saturating_add(late.seconds)) {
        return None;
    }
    let settled = document.undecided() < usize::try_from(uses).unwrap_or(usize::MAX);
    Some(if settled { Spend::TooLate } else { Spend::Undecided })
}

/// If nothing is left of its uses, there was no first one.
pub(super) fn forget_unused(used: &mut Used) {
    if usize::try_from(used.highest).is_ok_and(|highest| highest <= used.freed.len()) {
        used.late_since = None;
    }
}
