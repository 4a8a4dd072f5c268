//! For how long an answer may be kept: Cache-Control (RFC 9111).

use reqwest::header::{AGE, CACHE_CONTROL, HeaderMap};

/// Returns the seconds for which an answer stays fresh: its max-age, less the time that it has spent in other caches. `None` if it does not
/// have one, or must not be kept.
pub(super) fn fresh_seconds(headers: &HeaderMap) -> Option<u64> {
    let mut most = None;
    for header in headers.get_all(CACHE_CONTROL) {
        for directive in header.to_str().ok()?.split(',') {
            let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
            let name = name.trim_ascii();
            if name.eq_ignore_ascii_case("no-store") || name.eq_ignore_ascii_case("no-cache") {
                return None;
            }
            if name.eq_ignore_ascii_case("max-age") {
                // Of several, the least: who repeats it is not sure.
                let seconds = value.trim_ascii().trim_matches('"').parse().ok()?;
                most = Some(most.map_or(seconds, |most: u64| most.min(seconds)));
            }
        }
    }
    let age = headers.get(AGE).and_then(|age| age.to_str().ok()?.trim_ascii().parse().ok());
    most.map(|most| most.saturating_sub(age.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn reads_the_cache_lifetime_from_response_headers() {
        let check = |control: &[&'static str], age: Option<&'static str>, seconds: Option<u64>| {
            let mut headers = HeaderMap::new();
            for value in control {
                headers.append(CACHE_CONTROL, HeaderValue::from_static(value));
            }
            headers.extend(age.map(|age| (AGE, HeaderValue::from_static(age))));
            assert_eq!(fresh_seconds(&headers), seconds, "{control:?} {age:?}");
        };
        check(&["public, max-age=22000, must-revalidate, no-transform"], None, Some(22_000));
        check(&["public, max-age=22000"], Some("2000"), Some(20_000));
        check(&["max-age=10"], Some("2000"), Some(0));
        check(&["max-age=10"], Some("-1"), Some(10));
        check(&["Max-Age = 10"], None, Some(10));
        check(&["max-age=\"10\""], None, Some(10));
        check(&["max-age=10", "max-age=5"], None, Some(5));
        check(&["s-maxage=10"], None, None);
        check(&[], None, None);
        check(&["no-store, max-age=10"], None, None);
        check(&["max-age=10, no-cache"], None, None);
        check(&["max-age=-1"], None, None);
        check(&["max-age=18446744073709551616"], None, None);
        check(&["max-age"], None, None);
        check(&[""], None, None);
    }
}
