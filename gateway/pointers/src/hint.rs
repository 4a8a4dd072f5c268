//! The CAs that a pointer says it carries, in its URL (`?ca=`): a hint and no proof.

use attest_certificates::Fingerprint;

/// The query parameter in which a pointer says which CAs it carries.
pub const PARAMETER: &str = "ca";
/// Most CAs that a pointer may say it carries. While one is being replaced there are two.
pub const AUTHORITIES_LIMIT: usize = 8;
/// Hexadecimal digits of a fingerprint in a pointer, as [`Fingerprint::short`] returns them.
const FINGERPRINT_LENGTH_DIGITS: usize = 16;

/// Returns the query by which a pointer says that it carries these CAs; `None` for more than a gateway reads.
#[must_use]
pub fn hint(authorities: &[Fingerprint]) -> Option<String> {
    let shorts: Vec<String> = authorities.iter().map(Fingerprint::short).collect();
    (1..=AUTHORITIES_LIMIT)
        .contains(&shorts.len())
        .then(|| format!("{PARAMETER}={}", shorts.join(",")))
}

/// Returns the CAs that the pointer carries, by a request's query: those in `bundle`, in its order. `None` if the query does not say, or is
/// unreadable.
#[must_use]
pub fn parse_hint(query: Option<&str>, bundle: &[Fingerprint]) -> Option<Vec<String>> {
    let mut said = url::form_urlencoded::parse(query?.as_bytes()).filter_map(|(name, value)| (name == PARAMETER).then_some(value));
    let value = said.next()?;
    if said.next().is_some() {
        return None;
    }
    let is_fingerprint =
        |text: &str| text.len() == FINGERPRINT_LENGTH_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let fingerprints: Vec<&str> = value.split(',').take(AUTHORITIES_LIMIT + 1).collect();
    if fingerprints.len() > AUTHORITIES_LIMIT || !fingerprints.iter().all(|text| is_fingerprint(text)) {
        return None;
    }
    let mut known = Vec::new();
    for fingerprint in bundle.iter().map(Fingerprint::short) {
        if fingerprints.contains(&fingerprint.as_str()) && !known.contains(&fingerprint) {
            known.push(fingerprint);
        }
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::CertificateDer;

    use super::*;

    fn fingerprint(number: u8) -> Fingerprint {
        Fingerprint::of(&CertificateDer::from(vec![number]))
    }

    fn short(number: u8) -> String {
        fingerprint(number).short()
    }

    #[test]
    fn reads_ca_fingerprints_from_the_url_query() {
        let bundle = [fingerprint(1), fingerprint(2)];
        let (one, two, other) = (short(1), short(2), short(3));
        let check = |query: &str, expected: Option<&[&String]>| {
            let expected = expected.map(|all| all.iter().copied().cloned().collect::<Vec<_>>());
            assert_eq!(parse_hint(Some(query), &bundle), expected, "{query}");
        };
        assert_eq!(parse_hint(None, &bundle), None);
        check("", None);
        check("token=x", None);
        check(&format!("ca={one}"), Some(&[&one]));
        check(&format!("ca={one},{two}"), Some(&[&one, &two]));
        check(&format!("ca={two},{one}"), Some(&[&one, &two]));
        check(&format!("ca={two}%2C{one}"), Some(&[&one, &two]));
        check(&format!("ca={one},{one}"), Some(&[&one]));
        check(&format!("ca={one},{other}"), Some(&[&one]));
        check(&format!("ca={other}"), Some(&[]));
        check(&format!("token=x&ca={one}"), Some(&[&one]));
        check(&format!("ca={one}&token=x"), Some(&[&one]));
        check(&format!("ca={}", [one.as_str(); 8].join(",")), Some(&[&one]));
        for refused in [
            "ca".to_owned(),
            "ca=".to_owned(),
            "ca=,".to_owned(),
            format!("ca={one},"),
            format!("ca={one}&ca={two}"),
            format!("ca={}", one.to_uppercase().replace(|c: char| c.is_ascii_digit(), "A")),
            format!("ca={}0", one),
            format!("ca={}", &one[1..]),
            format!("ca={}g", &one[1..]),
            format!("ca={one} {two}"),
            format!("ca={}", [one.as_str(); 9].join(",")),
            format!("ca={}", ",".repeat(10_000)),
            "ca=%ff%fe".to_owned(),
        ] {
            check(&refused, None);
        }
    }
}
