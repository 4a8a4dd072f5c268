//! Keys of a store. Ids are encoded so that no two keys are the same, and no key is in the range of another thing.
//!
//! ```text
//! entry/KIND/ID            an entry
//! use/KIND/ID              uses of a thing
//! holder/KIND/ID/HOLDER    use that a holder has made
//! pending/DECISION         a decision that is not recorded, and the use that it has made
//! expiry/KIND/SECONDS/ID   marks a thing as remembered until then
//! outbox/NUMBER-RANDOM     change that is not recorded
//! told                     number of all outbox entries so far
//! time                     the store time, and the time up to which it has forgotten
//! ```

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::engine::KeyRange;

/// Key of the number of changes that went through the outbox.
pub(super) const TOLD: &str = "told";
/// The store's own time.
pub(super) const TIME: &str = "time";
/// Prefix of the keys of serving gateways, by their ids. The engine keeps them; they are not part of the store's content.
pub(super) const SERVING: &str = "replica/";
/// Characters that would end a part of a key, or cannot be shown.
const RESERVED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

pub(super) fn entry(kind: &str, id: &str) -> String {
    format!("entry/{kind}/{}", part(id))
}

pub(super) fn entries(kind: &str) -> KeyRange {
    below(&format!("entry/{kind}"))
}

/// Returns the kind and the id of an entry's key. `None` if it is another key.
pub(super) fn kind_and_id(key: &str) -> Option<(String, String)> {
    let (kind, id) = key.strip_prefix("entry/")?.split_once('/')?;
    Some((kind.to_owned(), whole(id)?))
}

pub(super) fn outbox(id: &str) -> String {
    format!("outbox/{}", part(id))
}

pub(super) fn outboxes() -> KeyRange {
    below("outbox")
}

pub(super) fn uses(kind: &str, id: &str) -> String {
    format!("use/{kind}/{}", part(id))
}

pub(super) fn holder(kind: &str, id: &str, holder: &str) -> String {
    format!("holder/{kind}/{}/{}", part(id), part(holder))
}

pub(super) fn holders(kind: &str, id: &str) -> KeyRange {
    below(&format!("holder/{kind}/{}", part(id)))
}

pub(super) fn pending(decision: &str) -> String {
    format!("pending/{}", part(decision))
}

pub(super) fn serving(replica: &str) -> String {
    format!("{SERVING}{}", part(replica))
}

pub(super) fn pendings() -> KeyRange {
    below("pending")
}

pub(super) fn expiry(kind: &str, remember_until: u64, id: &str) -> String {
    format!("{}/{}", expiry_at(kind, remember_until), part(id))
}

pub(super) fn expiries(kind: &str) -> KeyRange {
    below(&format!("expiry/{kind}"))
}

/// Returns the range of expiries before that time.
pub(super) fn expiries_before(kind: &str, until: u64) -> KeyRange {
    KeyRange {
        until: expiry_at(kind, until),
        ..expiries(kind)
    }
}

/// Pads the time to the width of the latest one, so that the order of keys is that of times.
fn expiry_at(kind: &str, remember_until: u64) -> String {
    format!("expiry/{kind}/{remember_until:020}")
}

/// Returns the expiry time in a key, and the id. `None` if it is not an expiry key.
pub(super) fn remembered(key: &str) -> Option<(u64, String)> {
    let mut parts = key.strip_prefix("expiry/")?.splitn(3, '/').skip(1);
    let seconds = parts.next()?.parse().ok()?;
    Some((seconds, whole(parts.next()?)?))
}

/// The last part of a key, as it was given. `None` if no key ends so.
pub(super) fn last(key: &str) -> Option<String> {
    whole(key.rsplit_once('/')?.1)
}

fn part(id: &str) -> Cow<'_, str> {
    utf8_percent_encode(id, RESERVED).into()
}

fn whole(part: &str) -> Option<String> {
    percent_decode_str(part).decode_utf8().ok().map(Cow::into_owned)
}

fn below(folder: &str) -> KeyRange {
    KeyRange {
        from: format!("{folder}/"),
        // What comes after `/`.
        until: format!("{folder}0"),
    }
}

/// Returns what is left of a range after this key.
pub(super) fn after(key: &str, range: &KeyRange) -> KeyRange {
    KeyRange {
        from: format!("{key}\0"),
        until: range.until.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn key_ranges_of_different_ids_never_overlap() {
        let ids = [
            "",
            "a",
            "a/",
            "a/b",
            "/",
            "%",
            "%2F",
            "a\0",
            "a\u{7f}",
            "ä",
            "0",
            "a0",
            "\u{10ffff}",
        ];
        for id in ids {
            let within = |range: &KeyRange, key: &str| range.from.as_str() <= key && key < range.until.as_str();
            for other in ids {
                assert_eq!(
                    within(&holders("token-use", id), &holder("token-use", other, "x")),
                    id == other,
                    "{id:?} {other:?}"
                );
                assert_eq!(entry("name", id) == entry("name", other), id == other);
            }
            assert!(within(&entries("name"), &entry("name", id)));
            assert!(!within(&entries("name"), &entry("name-of", id)) && !within(&entries("name-of"), &entry("name", id)));
            assert_eq!(last(&entry("name", id)).unwrap(), id);
            assert_eq!(kind_and_id(&entry("name", id)), Some(("name".to_owned(), id.to_owned())));
            assert!(kind_and_id(&uses("name", id)).is_none() && kind_and_id(&outbox(id)).is_none());
            assert_eq!(remembered(&expiry("ticket", 7, id)), Some((7, id.to_owned())));
            assert!(within(&expiries("ticket"), &expiry("ticket", u64::MAX, id)));
            assert!(within(&expiries_before("ticket", 8), &expiry("ticket", 7, id)));
            assert!(!within(&expiries_before("ticket", 8), &expiry("ticket", 8, id)));
            assert!(within(&expiries_before("ticket", 10_000), &expiry("ticket", 8, id)));
        }
    }
}
