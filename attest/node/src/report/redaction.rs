//! Redaction of secrets in a journal, before it leaves the node: exact values that this node's configs hold, and forms that secrets have.
//!
//! It errs on the side of removal: a long text of mixed letters is taken for a secret, whatever it is.

use std::collections::HashMap;
use std::ops::Range;

use attest_wire::protocol::TICKET_PREFIX;
use serde_json::Value;

use crate::pointer::data_url;

/// Text in the place of a secret.
pub const REDACTED: &str = "[redacted]";
/// Letter for it until the end: no pass takes it for the end of a word.
const MARK: char = '\u{e000}';
/// Shortest value of a config that is searched for, in bytes: shorter ones are words.
const VALUE_LEAST_BYTES: usize = 8;
/// Shortest line of a file in a config that is searched for, in bytes.
const LINE_LEAST_BYTES: usize = 16;
/// Members of Ignition configs whose texts are secret: sources of files and keys, headers, password hashes, contents of units, pins of Clevis.
const MEMBERS: [&str; 8] = [
    "config",
    "contents",
    "httpsProxy",
    "httpProxy",
    "inline",
    "passwordHash",
    "source",
    "value",
];
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
/// Lines after the beginning of a private key that belong to it, if its end is missing.
const KEY_LIMIT_LINES: usize = 200;

/// Function that returns the place of the first secret of one form in a line.
type Pass = fn(&str) -> Option<Range<usize>>;

/// Secret values that are searched for as they are. There is no `Debug`.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Adds the secrets of an Ignition config, or of a pointer config.
    pub fn add_config(&mut self, config: &Value) {
        match config {
            Value::Object(members) => {
                for (name, value) in members {
                    match value {
                        Value::String(text) if MEMBERS.contains(&name.as_str()) => self.add(text, members.get("compression")),
                        value => self.add_config(value),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.add_config(value)),
            _ => {}
        }
    }

    fn add(&mut self, text: &str, compression: Option<&Value>) {
        if let Some((_, payload)) = text.strip_prefix("data:").and_then(|url| url.split_once(',')) {
            self.add_text(payload, VALUE_LEAST_BYTES);
            let content = data_url::content(text, compression.and_then(Value::as_str)).unwrap_or_default();
            for line in String::from_utf8_lossy(&content).lines() {
                self.add_text(line, LINE_LEAST_BYTES);
            }
        } else if let Some(query) = text.split_once('?').map(|(_, query)| query)
            && text.contains("://")
        {
            self.add_text(query, VALUE_LEAST_BYTES);
        } else if !text.contains("://") {
            let least = if text.contains('\n') { LINE_LEAST_BYTES } else { VALUE_LEAST_BYTES };
            text.lines().for_each(|line| self.add_text(line, least));
            if let Some(bearer) = text.strip_prefix("Bearer ") {
                self.add_text(bearer, VALUE_LEAST_BYTES);
            }
        }
    }

    fn add_text(&mut self, text: &str, least_bytes: usize) {
        let text = text.trim();
        if text.len() >= least_bytes {
            self.0.push(text.to_owned());
        }
    }

    /// Returns a text with a mark in the place of each value. Values that overlap are removed with all that they cover.
    fn removed_from(&self, text: &str) -> String {
        let mut by_beginning: HashMap<&[u8], Vec<&str>> = HashMap::new();
        for value in &self.0 {
            if let Some(beginning) = value.as_bytes().get(..VALUE_LEAST_BYTES) {
                by_beginning.entry(beginning).or_default().push(value);
            }
        }
        let longest = |place: usize| {
            let rest = text.get(place..)?;
            let values = by_beginning.get(rest.as_bytes().get(..VALUE_LEAST_BYTES)?)?;
            values
                .iter()
                .filter(|value| rest.starts_with(**value))
                .map(|value| value.len())
                .max()
        };
        let (mut out, mut covered) = (String::with_capacity(text.len()), 0);
        for (place, letter) in text.char_indices() {
            if let Some(length) = longest(place) {
                if covered <= place {
                    out.push(MARK);
                }
                covered = covered.max(place + length);
            }
            if covered <= place {
                out.push(letter);
            }
        }
        out
    }
}

/// Returns a journal without secrets, and without control characters other than line feeds and tabs.
#[must_use]
pub fn redact(journal: &str, secrets: &Secrets) -> String {
    let text: String = journal
        .chars()
        .map(|letter| {
            if letter.is_control() && !matches!(letter, '\n' | '\t') {
                ' '
            } else {
                letter
            }
        })
        .collect();
    let text = secrets.removed_from(&text);
    let (mut out, mut of_key) = (String::with_capacity(text.len()), 0);
    for line in text.split_inclusive('\n') {
        let (content, end) = line.strip_suffix('\n').map_or((line, ""), |content| (content, "\n"));
        let content = in_key(content, &mut of_key).unwrap_or_else(|| redact_line(content));
        let mut before = None;
        for letter in content.chars() {
            match letter {
                // Two next to each other are one.
                MARK if before == Some(MARK) => {}
                MARK => out.push_str(REDACTED),
                letter => out.push(letter),
            }
            before = Some(letter);
        }
        out.push_str(end);
    }
    out
}

/// Returns the line in the place of one that begins, continues or ends a private key; `None` for other lines. `left` is the number of
/// lines that may still belong to the key.
fn in_key(line: &str, left: &mut usize) -> Option<String> {
    let ends = line.find("-----END");
    if *left > 0 {
        *left = if ends.is_some() { 0 } else { *left - 1 };
        return Some(MARK.to_string());
    }
    let begin = line.find("-----BEGIN").filter(|_| line.contains("PRIVATE KEY"))?;
    if ends.is_none() {
        *left = KEY_LIMIT_LINES;
    }
    Some(format!("{}{MARK}", redact_line(line.get(..begin).unwrap_or_default())))
}

/// Returns a line without secrets.
fn redact_line(line: &str) -> String {
    let passes: [Pass; 11] = [
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
    passes.into_iter().fold(line.to_owned(), |line, find| replace(&line, find))
}

/// Replaces each secret that `find` finds in the rest of the line.
fn replace(line: &str, find: impl Fn(&str) -> Option<Range<usize>>) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(Range { start, end }) = find(rest) {
        let (Some(before), Some(secret), Some(after)) = (rest.get(..start), rest.get(start..end), rest.get(end..)) else {
            break;
        };
        if secret.is_empty() {
            break;
        }
        out.push_str(before);
        out.push(MARK);
        rest = after;
    }
    out.push_str(rest);
    out
}

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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks that nothing of `SECRET` is left, and the rest is.
    fn check(line: &str, expect: &str) {
        assert_eq!(redact(line, &Secrets::default()), expect, "{line}");
    }

    #[test]
    fn forms_of_secrets_are_redacted() {
        let token = "dQw4w9WgXcQ-dQw4w9WgXcQ_dQw4w9WgXcQdQw4w9Wg";
        for (line, expect) in [
            ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
            ("authorization=Basic dXNlcjpwYXNz", "authorization=[redacted]"),
            (
                "\"Authorization\": [\"Bearer abc\"], \"Accept\": \"*/*\"",
                "\"Authorization\": [\"[redacted]\"], \"Accept\": \"*/*\"",
            ),
            ("Attestation-Claimant: abc", "Attestation-Claimant: [redacted]"),
            ("sent Bearer 0123456789abcdef01, got 403", "sent Bearer [redacted], got 403"),
            ("with ticket.k1.abcdefghijklmnop in it", "with ticket.[redacted] in it"),
            (
                "GET https://api-int:22623/config/worker?token=abc: attempt #1",
                "GET https://api-int:22623/config/worker?[redacted] attempt #1",
            ),
            (
                "GET \"https://h/x?X-Amz-Signature=ab#c\": 403",
                "GET \"https://h/x?[redacted]\": 403",
            ),
            (
                "proxy http://user:pass@proxy:3128/ failed",
                "proxy http://[redacted]@proxy:3128/ failed",
            ),
            ("s3://key@bucket/object?versionId=7", "s3://[redacted]@bucket/object?[redacted]"),
            ("\"source\": \"data:,hello%20world\",", "\"source\": \"[redacted]\","),
            ("fetching data:;base64,aGVsbG8= failed", "fetching data:[redacted] failed"),
            ("\"passwordHash\": \"short\",", "\"passwordHash\": \"[redacted]\","),
            ("  \"value\": \"x\"", "  \"value\": \"[redacted]\""),
            ("\"contents\": \"[Service]\\nEnvironment=K=v\"", "\"contents\": \"[redacted]\""),
            ("user core: $6$salt$hashhashhash/x. set", "user core: [redacted] set"),
            ("$y$j9T$abc$defdefdef", "[redacted]"),
            ("db_password=hunter2 host=db", "db_password=[redacted] host=db"),
            ("run --passphrase hunter2hunter2 --verbose", "run --passphrase [redacted] --verbose"),
            ("run --api-token=abc", "run --api-token=[redacted]"),
            ("wlan PSK=abc", "wlan PSK=[redacted]"),
            (
                "auth=Basic dXNlcjpwYXNz, then basic settings",
                "auth=Basic [redacted], then basic settings",
            ),
            ("clientSecret: \"hunter 2\", x", "clientSecret: \"[redacted]\", x"),
            ("API_KEY = abc", "API_KEY = [redacted]"),
            ("join with abcdef.0123456789abcdef now", "join with [redacted] now"),
            ("-----BEGIN EC PRIVATE KEY-----", "[redacted]"),
            ("a\u{1b}[2Jb\rc\u{9b}d", "a [2Jb c d"),
        ] {
            check(line, expect);
        }
        check(&format!("got {token}."), "got [redacted].");
        check(&format!("/run/x/{token}/y"), "/run/x/[redacted]/y");
        check(&format!("eyJhbGciOi.{token}.{token}"), "eyJhbGciOi.[redacted].[redacted]");
        check(&format!("{}/{}+=", token.replace('-', "+"), token.replace('_', "/")), "[redacted]");
        // Of a source that the journal has cut into lines.
        check(&"abc%20def%0A".repeat(5), "[redacted]");
    }

    #[test]
    fn what_an_administrator_needs_stays() {
        for line in [
            "ignition[512]: disks: createPartitions: op(1): [failed] partitioning \"/dev/vdb\": exit status 4",
            "attest-node: not attested: the gateway refused: the EK is not endorsed [ek-not-endorsed]; next: add it",
            "EK tpm:45c9302c71e4234d45c9302c71e4234d45c9302c71e4234d45c9302c71e4234d is unknown",
            "boot ID 01234567-89ab-cdef-0123-456789abcdef",
            "/sys/devices/pci0000:00/0000:00:01.0/usb1/1-1/1-1:1.0/0003:0627:0001.0001/input/input3",
            "/usr/lib/systemd/system-generators/systemd-hibernate-resume-generator failed",
            "GET https://10.0.2.2:22623/config/worker: attempt #3",
            "sha512-cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
            "Reached target basic.target - Basic System.",
            "the token has expired [token-expired]; next: create one",
            "mkfs.ext4 -F -L var /dev/disk/by-partlabel/var: unknown filesystem type",
            "user@example.org asked",
        ] {
            check(line, line);
        }
    }

    #[test]
    fn a_private_key_is_redacted_to_its_end() {
        let key = "log: -----BEGIN PRIVATE KEY-----\nabc\ndef\n-----END PRIVATE KEY-----\nafter\n";
        check(key, "log: [redacted]\n[redacted]\n[redacted]\n[redacted]\nafter\n");
        let in_one = "x \"-----BEGIN RSA PRIVATE KEY-----\\nabc\\n-----END RSA PRIVATE KEY-----\\n\" y\nafter";
        check(in_one, "x \"[redacted]\nafter");
        let torn = format!("-----BEGIN PRIVATE KEY-----\n{}", "abc\n".repeat(KEY_LIMIT_LINES + 1));
        assert!(redact(&torn, &Secrets::default()).ends_with("[redacted]\nabc\n"));
        check("-----BEGIN CERTIFICATE-----\nabc", "-----BEGIN CERTIFICATE-----\nabc");
    }

    #[test]
    fn secrets_of_the_configs_are_redacted_wherever_they_are() {
        let config = json!({
            "ignition": {"config": {"merge": [{
                "source": "https://h/config/worker?token=querysecret",
                "httpHeaders": [{"name": "X-Custom", "value": "headersecret"}, {"name": "Authorization", "value": "Bearer bearersecret"}],
            }]}},
            "passwd": {"users": [{"name": "core", "passwordHash": "shadowsecret", "sshAuthorizedKeys": ["ssh-ed25519 PUBLICKEY"]}]},
            "storage": {
                "files": [
                    {"path": "/etc/plain", "contents": {"source": "data:,plain%20file%20secret%0Ashort"}},
                    {"path": "/etc/zipped", "contents": {"compression": "", "source": "data:;base64,YmFzZTY0IGZpbGUgc2VjcmV0"}},
                ],
                "luks": [{"name": "var", "keyFile": {"source": "data:,luks-key-secret-x"}, "clevis": {"custom": {"config": "clevissecret"}}}],
            },
            "systemd": {"units": [{"name": "a.service", "contents": "[Service]\nEnvironment=UNIT=secretsecret\n"}]},
        });
        let mut secrets = Secrets::default();
        secrets.add_config(&config);
        for secret in [
            "token=querysecret",
            "headersecret",
            "bearersecret",
            "shadowsecret",
            "plain file secret",
            "plain%20file%20secret%0Ashort",
            "base64 file secret",
            "YmFzZTY0IGZpbGUgc2VjcmV0",
            "luks-key-secret-x",
            "clevissecret",
            "Environment=UNIT=secretsecret",
        ] {
            assert_eq!(redact(&format!("a {secret} b"), &secrets), "a [redacted] b", "{secret}");
        }
        for plain in ["core", "/etc/plain", "short", "[Service]", "ssh-ed25519 PUBLICKEY", "a.service"] {
            assert_eq!(redact(plain, &secrets), plain);
        }
    }

    #[test]
    fn redaction_of_anything_ends() {
        let pieces = [
            "\"",
            "://",
            "@",
            "?",
            "data:",
            ",",
            "$",
            "token",
            "=",
            ":",
            "bearer ",
            "ticket.",
            "\u{e4}",
            "\n",
            "[redacted]",
            "-----BEGIN PRIVATE KEY",
            "x",
        ];
        let mut number = 7_usize;
        for _ in 0..3000 {
            let text: String = (0..12)
                .map(|_| {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    pieces[(number >> 33) % pieces.len()]
                })
                .collect();
            assert!(redact(&text, &Secrets::default()).len() <= text.len() * 11, "{text}");
        }
    }

    /// However many files come before a secret, it is searched for; and what two of them cover is removed.
    #[test]
    fn each_value_of_a_large_config_is_redacted() {
        let content: String = (0..5000).map(|line| format!("harmless line number {line}%0A")).collect();
        let late = "horse battery staple correct nine";
        let files = json!([
            {"contents": {"source": format!("data:,{content}")}},
            {"contents": {"source": format!("data:,{}", late.replace(' ', "%20"))}},
            {"contents": {"source": "data:,first%20and%20second%20half"}},
            {"contents": {"source": "data:,second%20half%20and%20the%20third"}},
        ]);
        let mut secrets = Secrets::default();
        secrets.add_config(&json!({"storage": {"files": files}}));
        let said = redact(&format!("wrote {late}; first and second half and the third; done"), &secrets);
        assert_eq!(said, "wrote [redacted]; [redacted]; done");
    }
}
