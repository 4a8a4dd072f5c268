//! `key = value`: which keys name a credential, and which values are one.

use std::collections::BTreeSet;

use regex::bytes::Regex;

use super::SecretKind;

/// Longest name of a setting, in bytes. Anything longer is not a name.
const KEY_LIMIT_BYTES: usize = 64;
/// Bytes of a value that are read: enough to decide whether it is a literal.
const VALUE_LIMIT_BYTES: usize = 256;
/// Bytes before a key, on its line, that are read as its context.
const LINE_LIMIT_BYTES: usize = 256;
/// Shortest value that is a secret where a word could be meant, as in a comment.
const RANDOM_MIN_BYTES: usize = 8;
/// Shortest value of a flag without `=`: shorter is `or`, `is`, `to`.
const FLAG_VALUE_MIN_BYTES: usize = 4;
/// Shortest private key: shorter is a file's name.
const PRIVATE_KEY_MIN_BYTES: usize = 32;

/// Suffixes of the names of credentials, without word separators; the most specific first.
const KEYS: [(&str, SecretKind); 24] = [
    ("clientkeydata", SecretKind::KubeconfigCredential),
    ("awssessiontoken", SecretKind::CloudKey),
    ("accesskey", SecretKind::CloudKey),
    ("accountkey", SecretKind::CloudKey),
    ("aadclientsecret", SecretKind::CloudKey),
    ("aadclientcertpassword", SecretKind::CloudKey),
    ("azureclientsecret", SecretKind::CloudKey),
    ("armclientsecret", SecretKind::CloudKey),
    ("identitytoken", SecretKind::RegistryPassword),
    ("registrytoken", SecretKind::RegistryPassword),
    ("privatekey", SecretKind::PrivateKey),
    ("token", SecretKind::Token),
    ("password", SecretKind::Password),
    ("passwd", SecretKind::Password),
    ("passphrase", SecretKind::Password),
    ("secret", SecretKind::Password),
    ("secretkey", SecretKind::Password),
    ("sharedkey", SecretKind::Password),
    ("psk", SecretKind::Password),
    ("wepkey", SecretKind::Password),
    ("apikey", SecretKind::Password),
    ("encryptionkey", SecretKind::Password),
    ("authkey", SecretKind::Password),
    ("activationkey", SecretKind::Password),
];

/// Values that mean "not set", or that are a switch.
const NOTHING: [&str; 16] = [
    "null",
    "nil",
    "none",
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "undefined",
    "required",
    "optional",
    "ask",
    "redacted",
    "enabled",
    "disabled",
];

/// Values of `passwd:` in nsswitch.conf(5).
const NAME_SERVICES: [&str; 10] = [
    "files", "sss", "systemd", "compat", "altfiles", "db", "nis", "ldap", "winbind", "hesiod",
];

/// Returns the kind of secret that a setting of that name holds. `None` for names like `tokenFile` and `PasswordAuthentication`, which hold
/// no secret.
pub(super) fn kind_of_key(key: &str) -> Option<SecretKind> {
    // A line that happens to be YAML has anything before its colon.
    if !key.bytes().all(is_key_byte) {
        return None;
    }
    let key = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let plain: String = key
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    // sudoers' NOPASSWD asks for none.
    if plain.contains("public") || plain == "nopasswd" {
        return None;
    }
    if plain == "setcredential" {
        return Some(SecretKind::Password);
    }
    let known = KEYS.iter().find(|(ending, _)| plain.ends_with(ending)).map(|(_, kind)| *kind);
    known.or_else(|| has_short_ending(key).then_some(SecretKind::Password))
}

/// Returns whether the key ends like `db_pass`, `dbPass` or `pwd`, but not like `bypass`.
fn has_short_ending(key: &str) -> bool {
    ["pass", "pwd"].iter().any(|word| {
        let Some((before, ending)) = key.len().checked_sub(word.len()).and_then(|at| key.split_at_checked(at)) else {
            return false;
        };
        ending.eq_ignore_ascii_case(word)
            && match before.chars().next_back() {
                None => true,
                Some(last) => !last.is_ascii_alphabetic() || (last.is_ascii_lowercase() && ending.starts_with(['P'])),
            }
            // The shell's own variables are directories.
            && !matches!(key, "PWD" | "OLDPWD")
    })
}

/// Returns whether an HTTP header of that name authenticates.
pub(super) fn is_credential_header(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    matches!(name.as_str(), "authorization" | "proxy-authorization" | "cookie" | "set-cookie")
        || [
            "token",
            "key",
            "secret",
            "password",
            "signature",
            "auth",
            "authorization",
            "session",
            "credential",
            "credentials",
        ]
        .iter()
        .any(|word| name.rsplit(['-', '_']).next() == Some(word))
        || kind_of_key(&name).is_some()
}

/// Returns whether a URL parameter of that name is a credential.
pub(super) fn is_credential_parameter(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "sig" | "auth" | "key" | "code")
        || name.ends_with("signature")
        || name.ends_with("credential")
        || kind_of_key(&name).is_some()
}

/// Returns whether a value is a literal: not empty, not a variable, not a path, not a placeholder.
pub(super) fn is_literal(value: &str) -> bool {
    let value = value.trim().trim_end_matches([',', ';']);
    let lower = value.to_ascii_lowercase();
    if !value.chars().any(char::is_alphanumeric)
        || NOTHING.contains(&lower.as_str())
        || value.chars().all(|c| matches!(c, 'x' | 'X' | '*' | '.'))
    {
        return false;
    }
    // `$X`, `${X}`, `$(x)`, `%s` and `%d/x` (systemd), `{{ x }}`, `<x>`, `@X@`, `__X__`, `[x]`.
    let mut chars = value.chars();
    let (first, second) = (chars.next(), chars.next());
    let placeholder = match first {
        Some('$') => second.is_some_and(|c| c.is_ascii_alphanumeric() || "_{(@*?".contains(c)),
        Some('%') => second.is_some_and(|c| c.is_ascii_alphabetic() || "%({".contains(c)),
        Some('<') => value.contains('>'),
        Some('@') => value.len() > 1 && value.ends_with('@'),
        Some('_') => value.starts_with("__") && value.ends_with("__"),
        Some('`' | '{' | '[' | '(') => true,
        _ => ["${", "$(", "{{"].iter().any(|variable| value.contains(variable)),
    };
    !placeholder && !is_reference(value)
}

/// Returns whether the value is a path, a URL, or code that reads the secret.
fn is_reference(value: &str) -> bool {
    let prefixes = ["./", "../", "~/", "file:", "pkcs11:", "http://", "https://", "unix:", "env:"];
    if prefixes.iter().any(|prefix| value.starts_with(prefix)) {
        return true;
    }
    if value.starts_with('/') {
        // Base64 can begin like a path.
        let has = |check: fn(&char) -> bool| value.chars().any(|c| check(&c));
        let one_word = value.len() >= 24 && !value.contains(['.', '-', '_']);
        let mixed = has(char::is_ascii_digit) && has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase);
        return !(value.ends_with('=') || value.contains('+') || (one_word && mixed));
    }
    let name = value.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    name.len() < value.len() && name.starts_with(['(', '['])
}

/// Returns whether the value of a key of that kind is a secret.
pub(super) fn is_credential(key: &str, kind: SecretKind, value: &str) -> bool {
    let service = || value.split_whitespace().next().is_some_and(|first| NAME_SERVICES.contains(&first));
    is_literal(value) && (kind != SecretKind::PrivateKey || value.len() >= PRIVATE_KEY_MIN_BYTES) && !(key == "passwd" && service())
}

/// Returns the kinds of secrets that are assigned by name in a text. `word` matches the words that such names contain.
pub(super) fn in_text(text: &[u8], word: &Regex) -> BTreeSet<SecretKind> {
    let mut kinds = BTreeSet::new();
    let mut done = 0;
    for found in word.find_iter(text) {
        if found.end() <= done {
            continue;
        }
        let (before, rest) = text.split_at_checked(found.end()).unwrap_or_default();
        let right = rest.iter().take(KEY_LIMIT_BYTES).take_while(|byte| is_key_byte(**byte)).count();
        let left = before
            .iter()
            .rev()
            .take(KEY_LIMIT_BYTES)
            .take_while(|byte| is_key_byte(**byte))
            .count();
        done = found.end() + right;
        let start = found.end() - left;
        if left + right > KEY_LIMIT_BYTES {
            continue;
        }
        if let Some(key) = text.get(start..done).and_then(|key| std::str::from_utf8(key).ok())
            && let Some(kind) = kind_of_key(key)
            && !kinds.contains(&kind)
            && let Some(assigned) = Assigned::read(text, start, done)
            && assigned.is_credential(key, kind)
        {
            kinds.insert(kind);
        }
    }
    kinds
}

const fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AssignmentOperator {
    Equals,
    Colon,
    Space,
}

/// The value after a key, with its separator and context.
struct Assigned<'a> {
    separator: AssignmentOperator,
    /// The key is in quotes.
    quoted: bool,
    before: &'a [u8],
    value: String,
}

impl<'a> Assigned<'a> {
    fn read(text: &'a [u8], start: usize, end: usize) -> Option<Self> {
        let (before, key, rest) = (text.get(..start)?, text.get(start..end)?, text.get(end..)?);
        let unquoted = skip(rest, b"\\\"'");
        let quoted = unquoted.len() < rest.len();
        let at = skip(unquoted, b" \t");
        let (separator, value) = match at {
            [b'=' | b':', b'=' | b'~' | b':', ..] if !at.starts_with(b":=") => return None,
            [b':', b'=', value @ ..] | [b'=', b'>', value @ ..] | [b'=', value @ ..] => (AssignmentOperator::Equals, value),
            [b':', value @ ..] => (AssignmentOperator::Colon, value),
            value if at.len() < unquoted.len() && !quoted && key.starts_with(b"--") => (AssignmentOperator::Space, value),
            _ => return None,
        };
        Some(Self {
            separator,
            quoted,
            before,
            value: read_value(value),
        })
    }

    fn is_credential(&self, key: &str, kind: SecretKind) -> bool {
        let value = self.value.as_str();
        let flag_alone = self.separator == AssignmentOperator::Space && (value.len() < FLAG_VALUE_MIN_BYTES || value.starts_with('-'));
        let has = |check: fn(&u8) -> bool| value.as_bytes().iter().any(check);
        let random = || value.len() >= RANDOM_MIN_BYTES && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
        !flag_alone && is_credential(key, kind, value) && (random() || !self.is_doubtful())
    }

    /// Returns whether this is a comment or could be prose, where only values that look like secrets count.
    fn is_doubtful(&self) -> bool {
        is_comment(self.before) || (self.separator == AssignmentOperator::Colon && !self.quoted && !begins_entry(self.before))
    }
}

fn skip<'a>(bytes: &'a [u8], skipped: &[u8]) -> &'a [u8] {
    let count = bytes
        .iter()
        .take(LINE_LIMIT_BYTES)
        .take_while(|byte| skipped.contains(byte))
        .count();
    bytes.get(count..).unwrap_or_default()
}

/// Returns the value that begins here, without its quotes.
fn read_value(text: &[u8]) -> String {
    let text = skip(text, b" \t");
    let line = text
        .iter()
        .take(VALUE_LIMIT_BYTES)
        .take_while(|byte| !matches!(byte, b'\n' | b'\r'))
        .count();
    let (line, after) = text.split_at_checked(line).unwrap_or_default();
    // A YAML block: the value is on the next line.
    let line = match line.trim_ascii() {
        b"|" | b"|-" | b">" | b">-" | b"|+" | b">+" => {
            let after = skip(after, b"\r\n \t");
            let end = after.iter().take(VALUE_LIMIT_BYTES).take_while(|byte| **byte != b'\n').count();
            after.get(..end).unwrap_or_default()
        }
        _ => line,
    };
    let inner = skip(line, b"\\");
    let value: Vec<u8> = match inner.first() {
        Some(quote @ (b'"' | b'\'')) => inner
            .iter()
            .skip(1)
            .take_while(|byte| !matches!(byte, b'\\') && byte != &quote)
            .copied()
            .collect(),
        _ => line
            .iter()
            .take_while(|byte| !byte.is_ascii_whitespace() && !b"\"'`,;&|)}]\\".contains(byte))
            .copied()
            .collect(),
    };
    String::from_utf8_lossy(&value).into_owned()
}

fn line_before(before: &[u8]) -> impl Iterator<Item = u8> {
    before
        .iter()
        .rev()
        .take(LINE_LIMIT_BYTES)
        .copied()
        .take_while(|byte| *byte != b'\n')
}

/// Returns whether the line is a comment in most languages.
fn is_comment(before: &[u8]) -> bool {
    let first = line_before(before).filter(|byte| !byte.is_ascii_whitespace()).last();
    matches!(first, Some(b'#' | b';')) || line_before(before).collect::<Vec<u8>>().trim_ascii().ends_with(b"//")
}

/// Returns whether a key of YAML or JSON can begin here.
fn begins_entry(before: &[u8]) -> bool {
    let mut bytes = before
        .iter()
        .rev()
        .take(LINE_LIMIT_BYTES)
        .skip_while(|byte| b" \t\"'\\-".contains(byte));
    matches!(bytes.next(), None | Some(b'\n' | b'\r' | b'{' | b',' | b'[' | b'('))
}
