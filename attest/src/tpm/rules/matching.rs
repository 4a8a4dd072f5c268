//! Lookup of the reference value that something has, at a time.

use std::cmp::Reverse;

use super::event_detail::Excerpt;
use crate::reference_sets::{ListedValue, ReferenceKind, ReferenceQuery, ReferenceSets};
use crate::tpm::wire::HashAlg;
use crate::withheld::Withheld;

/// Most values that a message names: the newest.
const NAMED_LIMIT: usize = 3;

/// Returns whether a wanted value fits, and is accepted at `now`, in seconds since 1970.
pub(crate) fn is_accepted(
    sets: &ReferenceSets,
    wanted: ReferenceQuery,
    bank: HashAlg,
    fits: impl Fn(&ReferenceKind<'_>) -> bool,
    now: u64,
) -> bool {
    let mut listed = sets.listed(wanted, bank);
    listed.any(|listed| listed.generation.is_accepted_at(now) && fits(&listed.value))
}

/// Describes for the log what is accepted instead of a value that does not fit: whether that value has expired, and the newest accepted
/// ones.
pub(crate) fn describe_accepted(
    sets: &ReferenceSets,
    wanted: ReferenceQuery,
    bank: HashAlg,
    fits: impl Fn(&ReferenceKind<'_>) -> bool,
    now: u64,
) -> Withheld {
    Withheld::from_text(describe(sets, wanted, bank, fits, now, None))
}

/// Describes the same for a section of a unified kernel image: the values that are accepted as that section.
pub(super) fn accepted_sections(
    sets: &ReferenceSets,
    wanted: ReferenceQuery,
    bank: HashAlg,
    fits: impl Fn(&ReferenceKind<'_>) -> bool,
    now: u64,
    section: &str,
) -> Withheld {
    Withheld::from_text(describe(sets, wanted, bank, fits, now, Some(section)))
}

fn describe(
    sets: &ReferenceSets,
    wanted: ReferenceQuery,
    bank: HashAlg,
    fits: impl Fn(&ReferenceKind<'_>) -> bool,
    now: u64,
    section: Option<&str>,
) -> String {
    let (mut accepted, lapsed): (Vec<_>, Vec<_>) = sets.listed(wanted, bank).partition(|listed| listed.generation.is_accepted_at(now));
    if let Some(section) = section {
        accepted.retain(|listed| matches!(listed.value, ReferenceKind::Section(of, _) if of == section));
    }
    accepted.sort_by_key(|listed| Reverse(listed.generation.added));
    let mut words = Vec::new();
    let before = lapsed
        .iter()
        .filter(|listed| fits(&listed.value))
        .max_by_key(|listed| listed.generation.expires);
    if let Some((listed, expires)) = before.and_then(|listed| Some((listed, listed.generation.expires?))) {
        words.push(format!("this value, {:?}, until it expired at {expires}", listed.generation.name));
    }
    words.extend(accepted.iter().take(NAMED_LIMIT).map(named));
    match accepted.len().saturating_sub(NAMED_LIMIT) {
        _ if accepted.is_empty() => words.push(section.map_or("nothing now".to_owned(), |section| format!("no .{section} now"))),
        0 => {}
        more => words.push(format!("{more} more")),
    }
    words.join("; ")
}

fn named(listed: &ListedValue<'_>) -> String {
    let (since, generation) = (listed.generation.added, &listed.generation.name);
    let name = match listed.name == generation {
        true => String::new(),
        false => format!(", {}", Excerpt::new(listed.name)),
    };
    match listed.value {
        ReferenceKind::Digest(digest) => format!("since {since}: {generation:?}{name} ({digest})"),
        ReferenceKind::Section(section, digest) => format!("since {since}: {generation:?}{name} (.{section} {digest})"),
        ReferenceKind::Text(_) => format!("since {since}: {generation:?}{name}"),
    }
}
