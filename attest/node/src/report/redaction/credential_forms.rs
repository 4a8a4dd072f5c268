//! Forms of credentials in a line of a journal.

use std::ops::Range;

use attest_wire::protocol::TICKET_PREFIX;

use super::config_secrets::MEMBERS;

/// Names of headers whose values are secret.
const HEADERS: [&str; 6] = [
    "authorization",
    "attestation-claimant",
    "cookie",
    "x-aws-ec2-metadata-token",
    "x-amz-security-token",
    "x-vault-token",
];
/// Parts of names of settings whose values are secret.
const NAMES: [&str; 10] = [
    "token",
    "secret",
    "passw",
    "passphrase",
    "credential",
    "apikey",
    "api_key",
    "api-key",
    "private",
    "psk",
];
/// Shortest text of letters of both cases that counts as a secret, in bytes: a provisioning token has 43.
const MIXED_LEAST_BYTES: usize = 36;
/// Shortest text with blanks encoded as in a data URL that counts as one.
const ENCODED_LEAST_BYTES: usize = 48;
/// Shortest bearer credential that is told from a word of a sentence, in bytes.
const BEARER_LEAST_BYTES: usize = 16;
/// Shortest credential of HTTP's basic authentication, in bytes: one letter for the user, and four for the password.
const BASIC_LEAST_BYTES: usize = 8;
/// Lengths of the two halves of a bootstrap token of Kubernetes.
const BOOTSTRAP_TOKEN: (usize, usize) = (6, 16);

/// Function that returns the place of the first secret of one form in a line.
pub(super) type Form = fn(&str) -> Option<Range<usize>>;

/// The forms, in the order in which they are looked for.
pub(super) const FORMS: [Form; 11] = [
    data,
    query,
    userinfo,
    header,
    member,
    setting,
    option,
    bearer,
    basic,
    password_hash,
    long,
];

/// Returns the place of the text that begins at `start` and is no blank, quotation mark or bracket.
fn word(line: &str, start: usize) -> Range<usize> {
    let ends = |letter: char| {
        letter.is_whitespace()
            || matches!(
                letter,
                '"' | '\'' | '`' | '<' | '>' | '(' | ')' | '[' | ']' | '{' | '}' | ',' | ';' | '\\'
            )
    };
    let length = line.get(start..).and_then(|rest| rest.find(ends));
    start..length.map_or(line.len(), |length| start + length)
}

/// Returns the positions of a text in a line, after the text, without regard to case.
fn after<'l>(line: &'l str, text: &'l str) -> impl Iterator<Item = usize> + 'l {
    let lower = line.to_ascii_lowercase();
    let places: Vec<usize> = lower.match_indices(text).map(|(place, _)| place + text.len()).collect();
    places.into_iter()
}

/// The value after `:` or `=`, up to the end of the line or of the quotation: `Authorization: Bearer x`, `"authorization":["x"]`.
fn header(line: &str) -> Option<Range<usize>> {
    HEADERS
        .iter()
        .flat_map(|name| after(line, name))
        .filter_map(|place| value(line, place, true))
        .min_by_key(|found| found.start)
}

/// The value of a setting whose name says that it is secret: `db_password=x`, `token: x`, `"clientSecret": "x"`.
fn setting(line: &str) -> Option<Range<usize>> {
    let found = NAMES.iter().flat_map(|name| after(line, name)).filter_map(|place| {
        // The rest of the name.
        let rest = line.get(place..)?;
        let length = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.')));
        value(line, place + length?, false)
    });
    found.min_by_key(|found| found.start)
}

/// The value of an option whose name says that it is secret: `--passphrase x`.
fn option(line: &str) -> Option<Range<usize>> {
    after(line, "--").find_map(|place| {
        let name = line.get(place..)?.split(char::is_whitespace).next()?;
        let is_secret = NAMES.iter().any(|part| name.to_ascii_lowercase().contains(part));
        let end = place + name.len();
        let blanks = line.get(end..)?.chars().take_while(|letter| matches!(letter, ' ' | '\t')).count();
        let found = word(line, end + blanks);
        (is_secret && !found.is_empty() && !line.get(found.clone())?.starts_with('-')).then_some(found)
    })
}

/// The value of a member of a config: `"passwordHash": "x"`.
fn member(line: &str) -> Option<Range<usize>> {
    let found = MEMBERS.iter().flat_map(|name| {
        line.match_indices(*name).filter_map(|(place, _)| {
            let end = place + name.len();
            let quoted = line.get(..place)?.ends_with('"') && line.get(end..)?.starts_with('"');
            // A URL has passes of its own.
            value(line, end, false).filter(|found| quoted && line.get(found.clone()).is_none_or(|text| !text.contains("://")))
        })
    });
    found.min_by_key(|found| found.start)
}

/// Returns the value after `:` or `=` at this place, without its quotation marks; `whole` takes all of the line.
fn value(line: &str, place: usize, whole: bool) -> Option<Range<usize>> {
    let rest = line.get(place..)?;
    let rest = rest.trim_start_matches(['"', '\'', '\\', ' ']);
    let rest = rest.strip_prefix(':').or_else(|| rest.strip_prefix('='))?;
    let rest = rest.trim_start_matches([' ', '\t', '[', '\\']);
    let quote = rest.chars().next().filter(|letter| matches!(letter, '"' | '\''));
    let rest = quote.map_or(rest, |quote| rest.strip_prefix(quote).unwrap_or(rest));
    let start = line.len() - rest.len();
    let found = match quote {
        Some(quote) => start..rest.find(quote).map_or(line.len(), |length| start + length),
        None if whole => start..line.len(),
        None => word(line, start),
    };
    let text = line.get(found.clone())?;
    (!text.is_empty()).then_some(found)
}

/// The content of a `data:` URL.
fn data(line: &str) -> Option<Range<usize>> {
    after(line, "data:").find_map(|place| {
        let found = place
            ..line
                .get(place..)?
                .find(|letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | '`'))
                .map_or(line.len(), |length| place + length);
        let url = line.get(found.clone())?;
        url.contains(',').then_some(found)
    })
}

/// A bearer credential, and a ticket wherever it is.
fn bearer(line: &str) -> Option<Range<usize>> {
    let bearers = after(line, "bearer ").map(|place| word(line, place));
    let tickets = after(line, TICKET_PREFIX).map(|place| word(line, place));
    bearers
        .chain(tickets)
        .filter(|found| found.len() >= BEARER_LEAST_BYTES)
        .min_by_key(|found| found.start)
}

/// A credential of HTTP's basic authentication: base64 with a capital letter, a digit or padding.
fn basic(line: &str) -> Option<Range<usize>> {
    after(line, "basic ").map(|place| word(line, place)).find(|found| {
        let text = line.get(found.clone()).unwrap_or_default();
        let is_base64 = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
        let is_no_word = text
            .bytes()
            .any(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'=');
        text.len() >= BASIC_LEAST_BYTES && is_base64 && is_no_word
    })
}

/// User and password in a URL.
fn userinfo(line: &str) -> Option<Range<usize>> {
    line.match_indices("://").find_map(|(place, separator)| {
        let start = place + separator.len();
        let authority = word(line, start);
        let text = line.get(authority)?;
        let text = text.split(['/', '?', '#']).next()?;
        let end = start + text.rfind('@')?;
        (end > start).then_some(start..end)
    })
}

/// Query and fragment of a URL.
fn query(line: &str) -> Option<Range<usize>> {
    line.match_indices("://").find_map(|(place, _)| {
        let url = word(line, place);
        let start = place + line.get(url.clone())?.find(['?', '#'])? + 1;
        (start < url.end).then_some(start..url.end)
    })
}

/// A hash of crypt(5): `$6$salt$hash`, `$y$j9T$salt$hash`.
fn password_hash(line: &str) -> Option<Range<usize>> {
    line.match_indices('$').find_map(|(place, _)| {
        let found = word(line, place);
        let text = line.get(found.clone())?;
        let mut parts = text.split('$').skip(1);
        let method = parts.next()?;
        let is_method = (1..=10).contains(&method.len()) && method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (is_method && parts.next().is_some() && text.len() >= BEARER_LEAST_BYTES).then_some(found)
    })
}

/// A long text of letters of both cases, of digits and of what base64 has; one with many percent signs; a bootstrap token.
fn long(line: &str) -> Option<Range<usize>> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '/' | '_' | '-' | '=' | '.' | '%' | '~');
    let mut start = None;
    for (place, letter) in line.char_indices().chain([(line.len(), ' ')]) {
        match (is_part(letter), start) {
            (true, None) => start = Some(place),
            (false, Some(begin)) => {
                start = None;
                if let Some(found) = line.get(begin..place).and_then(secret_in)
                    && !found.is_empty()
                {
                    return Some(begin + found.start..begin + found.end);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the place of a secret in a text without blanks.
fn secret_in(text: &str) -> Option<Range<usize>> {
    if text.matches('%').count() >= 3 && text.len() >= ENCODED_LEAST_BYTES {
        return Some(0..text.len());
    }
    let is_path = text.starts_with('/') || text.matches('/').count() * 16 > text.len();
    let mut start = 0;
    for part in text.split_inclusive(|letter: char| letter == '.' || is_path && letter == '/') {
        let piece = part.trim_end_matches(['.', '/']);
        if is_mixed(piece) {
            return Some(start..start + piece.len());
        }
        start += part.len();
    }
    let (first, second) = text.split_once('.')?;
    let is_small = |part: &str| part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_token = (first.len(), second.len()) == BOOTSTRAP_TOKEN
        && is_small(first)
        && is_small(second)
        && text.bytes().any(|byte| byte.is_ascii_digit());
    is_token.then_some(0..text.len())
}

/// Returns whether a text is long and of letters of both cases. Digests and UUIDs have one case only.
fn is_mixed(text: &str) -> bool {
    text.len() >= MIXED_LEAST_BYTES
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && text.bytes().any(|byte| byte.is_ascii_uppercase())
}
