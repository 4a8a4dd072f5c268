//! Renewal of the CAs in a pointer that is kept elsewhere: the rest of it stays as it is.

use std::collections::BTreeSet;

use attest::UnixTime;
use attest_certificates::{Certificate, Fingerprint};
use serde_json::{Value, json};
use url::Url;
use zeroize::Zeroizing;

use super::{AUTHORITIES_LIMIT, NotAccepted, PARAMETER, PointerCa, ReadPointer, ReadingError, accepts, distinct, trusted};

/// Properties by which a pointer is this gateway's.
#[derive(Debug, Clone, Copy)]
pub struct Ours<'a> {
    /// The CAs that pointers carry, the newest last.
    pub authorities: &'a [Certificate],
    /// The serving certificate and its chain: it says which hosts the gateway is.
    pub chain: &'a [Certificate],
    pub pools: &'a BTreeSet<String>,
    pub now: UnixTime,
}

/// Result of a renewal.
pub enum Renewal {
    /// The pointer carries exactly these CAs.
    Current,
    /// The pointer that takes its place. It may hold a token, so it has no `Debug`.
    Renewed(Zeroizing<String>),
}

/// Reason why a pointer is left alone. Its text has nothing of a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRenewed {
    #[error(transparent)]
    Reading(#[from] ReadingError),
    /// It is unknown for which of the sources the CAs are.
    #[error("the pointer has {found} sources: with more than one, cannot determine which one the CAs are for")]
    Sources { found: usize },
    #[error("it leads to no pool of this gateway")]
    Elsewhere,
    /// The name, or address, is another server's.
    #[error("it leads to a host that the MCS certificate does not name, or that would not hold there: {0}")]
    Host(NotAccepted),
    /// A machine with this pointer would not get as far as to be served: it was never this gateway's.
    #[error("it carries no CA that pointers carry now")]
    NoneOfOurs,
    /// A CA in it may be for something else.
    #[error("the pointer carries the CA {0}, which is not this gateway's")]
    Foreign(Fingerprint),
    /// The CAs that are known here are older than the pointer.
    #[error("the pointer carries the CA {0}, which is newer than all in pointers.authorities: copy that file from the gateway again")]
    Newer(Fingerprint),
    #[error("a CA in it is of no use: {0}")]
    Broken(String),
}

/// Returns the pointer that replaces this one, if it is this gateway's and out of date.
///
/// A CA is removed only if it is known to be this gateway's. It is one of the current CAs, or the pointer's own hint names it, which only a
/// gateway writes. The last CA before the first rotation is still a current one. The CA also has to be older than those that are known
/// here, because a copy of them may be old.
///
/// # Errors
/// [`NotRenewed`]: it is not this gateway's to change.
pub fn renewed(user_data: &[u8], ours: Ours<'_>) -> Result<Renewal, NotRenewed> {
    let reading = ReadPointer::parse(user_data)?;
    let [source] = reading.sources.as_slice() else {
        return Err(NotRenewed::Sources {
            found: reading.sources.len(),
        });
    };
    let url = source.url.as_ref().filter(|url| url.scheme() == "https");
    let ours_by_pool = source.pool.as_ref().is_some_and(|pool| ours.pools.contains(pool));
    let (Some(url), true) = (url, ours_by_pool) else {
        return Err(NotRenewed::Elsewhere);
    };
    let Some(host) = url.host() else {
        return Err(NotRenewed::Elsewhere);
    };
    accepts(ours.authorities.iter(), ours.chain, &host, ours.now).map_err(NotRenewed::Host)?;
    let carried = carried(&reading)?;
    let wanted: Vec<Fingerprint> = distinct(ours.authorities).iter().map(|ca| ca.fingerprint).collect();
    if carried == wanted {
        return Ok(Renewal::Current);
    }
    if !carried.iter().any(|ca| wanted.contains(ca)) {
        return Err(NotRenewed::NoneOfOurs);
    }
    let hint = hint(url);
    let foreign = carried.iter().find(|ca| !wanted.contains(ca) && !hint.contains(&ca.short()));
    if let Some(foreign) = foreign {
        return Err(NotRenewed::Foreign(*foreign));
    }
    let newest = ours.authorities.iter().map(|ca| ca.not_before).max();
    let newer = reading
        .certificates()
        .find(|ca| !wanted.contains(&ca.fingerprint) && Some(ca.not_before) > newest);
    if let Some(newer) = newer {
        return Err(NotRenewed::Newer(newer.fingerprint));
    }
    let source = with_hint(url, &wanted);
    let written = written(user_data, &source, &trusted(ours.authorities));
    written.map(Renewal::Renewed).ok_or(NotRenewed::Elsewhere)
}

/// The CAs that it carries, each once.
fn carried(reading: &ReadPointer) -> Result<Vec<Fingerprint>, NotRenewed> {
    let mut carried = Vec::new();
    for authority in &reading.authorities {
        match authority {
            PointerCa::Certificate(certificate) if carried.contains(&certificate.fingerprint) => {}
            PointerCa::Certificate(certificate) => carried.push(certificate.fingerprint),
            PointerCa::NotLookedAt(why) | PointerCa::Broken(why) => return Err(NotRenewed::Broken(why.clone())),
        }
    }
    match reading.cut {
        true => Err(NotRenewed::Broken("it has more than were looked at".to_owned())),
        false => Ok(carried),
    }
}

/// The CAs that the pointer says it carries.
fn hint(url: &Url) -> Vec<String> {
    let said = url.query_pairs().filter(|(name, _)| name == PARAMETER);
    said.flat_map(|(_, value)| value.split(',').take(AUTHORITIES_LIMIT).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The same URL, with another hint in the place of its own.
fn with_hint(url: &Url, authorities: &[Fingerprint]) -> Url {
    let mut source = url.clone();
    let is_hint = |part: &&str| part.split('=').next() == Some(PARAMETER);
    let mut parts: Vec<String> = url
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|part| !part.is_empty() && !is_hint(part))
        .map(str::to_owned)
        .collect();
    parts.extend(super::hint(authorities));
    source.set_query((!parts.is_empty()).then(|| parts.join("&")).as_deref());
    source
}

/// The same config with another source and other CAs; `None` if it has no place for them.
fn written(user_data: &[u8], source: &Url, authorities: &[Value]) -> Option<Zeroizing<String>> {
    let mut config: Value = serde_json::from_slice(user_data).ok()?;
    let ignition = config.get_mut("ignition")?;
    let references = ignition.get_mut("config")?;
    let entry = ["/replace", "/merge/0", "/append/0"]
        .into_iter()
        .find(|place| references.pointer(place).is_some_and(Value::is_object))?;
    *references.pointer_mut(entry)?.get_mut("source")? = source.as_str().into();
    let tls = ignition.get_mut("security")?.get_mut("tls")?;
    *tls.get_mut("certificateAuthorities")? = json!(authorities);
    Some(Zeroizing::new(config.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
mod tests;
