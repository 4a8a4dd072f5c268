//! Negotiation of the Ignition spec version by `Accept`, with the rules of the Machine Config Server, which nodes are used to.

use attest_ignition::SpecVersion;
use axum::http::{HeaderMap, header};

use super::problem::Refusal;

/// Longest `Accept` that is looked at: Ignition's has under 100 characters.
const ACCEPT_LIMIT_BYTES: usize = 1024;
/// Version for clients that do not ask for one: a person with curl, or an Ignition that is too old to ask.
const UNSAID: SpecVersion = SpecVersion::V2_2;
const SUBTYPE: &str = "vnd.coreos.ignition+json";

/// Spec version that a client accepts, with its quality.
#[derive(Debug, Clone, Copy)]
struct AcceptItem {
    major: u64,
    minor: u64,
    quality: f32,
}

/// Returns the version to answer in.
///
/// # Errors
/// `spec-version-unknown`, if the client asks for a version that is neither 2.2 or newer nor any 3.x.
pub(super) fn spec_version(headers: &HeaderMap) -> Result<SpecVersion, Refusal> {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let mut best: Option<AcceptItem> = None;
    for part in accept.get(..accept.len().min(ACCEPT_LIMIT_BYTES)).unwrap_or_default().split(',') {
        // The first of the best counts.
        if let Some(wanted) = wanted(part)
            && best.is_none_or(|best| wanted.quality > best.quality)
        {
            best = Some(wanted);
        }
    }
    let Some(AcceptItem { major, minor, .. }) = best else {
        return Ok(UNSAID);
    };
    match (major, minor) {
        (2, 2..) => Ok(SpecVersion::V2_2),
        (3, minor) => Ok(newest_of_3(minor)),
        _ => Err(Refusal::spec_version_unknown(major, minor)),
    }
}

/// Returns the newest version that an Ignition reads which reads this 3.x, such as `3.4.0` or `3.7.0-experimental`; `None` for another text.
pub(super) fn readable(version: &str) -> Option<SpecVersion> {
    let (major, minor) = numbers(version)?;
    (major == 3).then(|| newest_of_3(minor))
}

/// Returns the newest version for an Ignition that reads 3.`minor`: it reads all older ones, too.
fn newest_of_3(minor: u64) -> SpecVersion {
    SpecVersion::from_numbers(3, minor).unwrap_or(SpecVersion::NEWEST)
}

/// Parses one part of `Accept`; returns `None` if it is not a spec version.
fn wanted(part: &str) -> Option<AcceptItem> {
    let mut parameters = part.split(';').map(str::trim);
    let (_, subtype) = parameters.next()?.split_once('/')?;
    let (mut version, mut quality) = (None, None);
    for parameter in parameters {
        match parameter.split_once('=') {
            Some(("version", value)) if version.is_none() => version = numbers(value),
            Some(("q", value)) if quality.is_none() => quality = value.parse().ok().filter(|quality: &f32| quality.is_finite()),
            _ => {}
        }
    }
    let (major, minor) = version.filter(|_| subtype == SUBTYPE)?;
    Some(AcceptItem {
        major,
        minor,
        quality: quality.unwrap_or(1.0),
    })
}

/// Parses major and minor of a semantic version; the text after the third number does not matter.
fn numbers(version: &str) -> Option<(u64, u64)> {
    let numbers = version.split(['-', '+']).next()?;
    let mut parts = numbers.split('.').map(|part| part.parse().ok());
    let (major, minor, _patch): (u64, u64, u64) = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: Option<&str>, expected: Option<SpecVersion>) {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(header::ACCEPT, accept.parse().unwrap());
        }
        assert_eq!(
            spec_version(&headers).map_err(|refusal| refusal.code()).ok(),
            expected,
            "{accept:?}"
        );
    }

    fn version(accept: &str, expected: &str) {
        check(Some(accept), Some(expected.parse().unwrap()));
    }

    fn asked(version: &str) -> String {
        format!("application/vnd.coreos.ignition+json;version={version}, */*;q=0.1")
    }

    #[test]
    fn serves_the_oldest_spec_without_an_accept_version() {
        check(None, Some(SpecVersion::V2_2));
        for unsaid in [
            "",
            "*/*",
            "application/json",
            "application/vnd.coreos.ignition+json",
            "application/vnd.coreos.ignition+json;version=",
            "application/vnd.coreos.ignition+json;version=3.4",
            "application/vnd.coreos.ignition+json;version=three",
            "application/vnd.coreos.ignition+json;version=3.4.0.1",
            "application/json;version=3.4.0",
            "vnd.coreos.ignition+json;version=3.4.0",
            ",;=,/;,",
        ] {
            version(unsaid, "2.2.0");
        }
    }

    #[test]
    fn serves_the_requested_spec_version() {
        for (wanted, given) in [
            ("2.2.0", "2.2.0"),
            ("2.3.0", "2.2.0"),
            ("2.4.0", "2.2.0"),
            ("3.0.0", "3.0.0"),
            ("3.1.0", "3.1.0"),
            ("3.3.0", "3.3.0"),
            ("3.5.0", "3.5.0"),
            ("3.6.0", "3.6.0"),
            ("3.7.0", "3.6.0"),
            ("3.4.0-experimental", "3.4.0"),
            ("3.4.9", "3.4.0"),
        ] {
            version(&asked(wanted), given);
        }
        for refused in ["2.1.0", "1.0.0", "0.1.0", "4.0.0"] {
            check(Some(&asked(refused)), None);
        }
        version("anything/vnd.coreos.ignition+json;version=3.2.0", "3.2.0");
        version("application/vnd.coreos.ignition+json; q=0.5 ; version=3.2.0", "3.2.0");
    }

    #[test]
    fn prefers_the_highest_quality_then_the_first() {
        let list = |first: &str, second: &str| {
            format!("application/vnd.coreos.ignition+json;version={first}, application/vnd.coreos.ignition+json;version={second}")
        };
        version(&list("3.2.0;q=0.2", "3.4.0;q=0.5"), "3.4.0");
        version(&list("3.2.0;q=0.5", "3.4.0;q=0.2"), "3.2.0");
        version(&list("3.2.0", "3.4.0"), "3.2.0");
        version(&list("3.2.0;q=nan", "3.4.0;q=0.9"), "3.2.0");
        // Ignition 0.x.
        version(&list("2.4.0", "1;q=0.5"), "2.2.0");
    }
}
