//! A token that was made elsewhere, and is in pointers already.

use std::collections::BTreeSet;

use attest::protocol::TICKET_PREFIX;
use attest_certificates::secret_manifest;
use zeroize::Zeroizing;

use super::bootstrap;
use super::publication::Secret;

/// Fewest characters: 128 random bits in Base64, the least that cannot be guessed.
const SHORTEST_CHARACTERS: usize = 22;
/// Fewest hexadecimal digits, which hold less: 128 bits again.
const SHORTEST_DIGITS: usize = 32;
/// Fewest decimal digits: 128 bits again.
const SHORTEST_DECIMALS: usize = 39;
/// Fewest letters of one case: 26 of them hold less than Base64 does.
const SHORTEST_LETTERS: usize = 28;
/// Fewest letters of one case and digits, such as Base32 has.
const SHORTEST_BASE32: usize = 26;
/// Most characters: an `Authorization` header may hold more, but no token needs it.
const LONGEST_CHARACTERS: usize = 512;
/// Fewest different characters. Of 32 random hexadecimal digits fewer than 8 are different once in some million tokens; `0000…` and words
/// have fewer.
const FEWEST_DIFFERENT: usize = 8;

/// Reason why a text is not a token; never its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The text has no characters.
    #[error("holds no token")]
    Empty,
    /// More than one line: no header could hold it.
    #[error("has several lines; a token is one line (`base64 -w0` does not wrap)")]
    Lines,
    /// A character that no header takes.
    #[error("has other than printable ASCII characters, or a space")]
    Characters,
    /// It has too few characters to be random.
    #[error(
        "has {found} characters: too short, 128 bits of entropy required ({SHORTEST_CHARACTERS} characters of Base64, {SHORTEST_DIGITS} hexadecimal digits, or at least {needed} characters such as these); to generate a token: `dd if=/dev/urandom bs=32 count=1 | base64`"
    )]
    Short {
        found: usize,
        /// Number of such characters that would hold 128 bits.
        needed: usize,
    },
    /// It has too many characters.
    #[error("has {0} characters; at most {LONGEST_CHARACTERS} are accepted")]
    Long(usize),
    /// The same characters over and over.
    #[error("has only {0} different characters, so it is not random; to generate a token: `dd if=/dev/urandom bs=32 count=1 | base64`")]
    Monotonous(usize),
    /// A shorter text several times.
    #[error("repeats itself after {0} characters, so it is not random; to generate a token: `dd if=/dev/urandom bs=32 count=1 | base64`")]
    Repeated(usize),
    /// This gateway would read it as a ticket.
    #[error("begins like a ticket ({:?}), and would be mistaken for one", TICKET_PREFIX)]
    Ticket,
    /// A manifest without a token.
    #[error("{0}")]
    Manifest(String),
}

/// Text of a token that was made elsewhere: it cannot be guessed, and a node can show it. [`Imported::read`] makes one.
#[derive(Clone)]
pub struct Imported {
    text: Secret,
    expires: Option<u64>,
}

impl Imported {
    /// Reads a file that holds the token and at most one line end after it. It may also hold the manifest of a Secret with the value of
    /// `token`, as `oc get secret machineconfig-auth -o yaml` prints. Or it holds a bootstrap token of Kubernetes.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn read(content: &str) -> Result<Self, ImportError> {
        if bootstrap::is_one(content) {
            let bootstrap = bootstrap::read(content).map_err(ImportError::Manifest)?;
            return Ok(Self {
                expires: bootstrap.expires,
                ..Self::parse(&bootstrap.text)?
            });
        }
        match secret_manifest::value(content, "token") {
            Some(value) => Self::parse(&value.map_err(ImportError::Manifest)?),
            None => Self::parse(content),
        }
    }

    fn parse(text: &str) -> Result<Self, ImportError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            return Err(ImportError::Empty);
        }
        if text.contains('\n') {
            return Err(ImportError::Lines);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ImportError::Characters);
        }
        if text.starts_with(TICKET_PREFIX) {
            return Err(ImportError::Ticket);
        }
        let needed = shortest(text);
        if text.len() < needed {
            return Err(ImportError::Short { found: text.len(), needed });
        }
        if text.len() > LONGEST_CHARACTERS {
            return Err(ImportError::Long(text.len()));
        }
        let different = text.bytes().collect::<BTreeSet<u8>>().len();
        if different < FEWEST_DIFFERENT {
            return Err(ImportError::Monotonous(different));
        }
        if let Some(length) = repeated(text) {
            return Err(ImportError::Repeated(length));
        }
        Ok(Self {
            text: Zeroizing::new(text.to_owned()),
            expires: None,
        })
    }

    /// Returns its expiry at its origin, in seconds since 1970.
    #[must_use]
    pub const fn expires(&self) -> Option<u64> {
        self.expires
    }

    pub(super) fn into_text(self) -> Secret {
        self.text
    }
}

/// Returns whether a text can be an imported token: any other needs no lookup in the store.
pub(super) fn could_be(text: &str) -> bool {
    (shortest(text)..=LONGEST_CHARACTERS).contains(&text.len())
}

/// Returns how many characters of the text's alphabet hold 128 random bits.
fn shortest(text: &str) -> usize {
    let all = |kind: fn(&u8) -> bool| text.as_bytes().iter().all(kind);
    if all(u8::is_ascii_digit) {
        SHORTEST_DECIMALS
    } else if all(u8::is_ascii_hexdigit) {
        SHORTEST_DIGITS
    } else if all(u8::is_ascii_lowercase) || all(u8::is_ascii_uppercase) {
        SHORTEST_LETTERS
    } else if all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        || all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    {
        SHORTEST_BASE32
    } else {
        SHORTEST_CHARACTERS
    }
}

/// Returns the number of characters after which a text repeats itself, at least once whole.
fn repeated(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (1..=bytes.len() / 2).find(|length| bytes.iter().zip(bytes.iter().skip(*length)).all(|(one, next)| one == next))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Output of `dd if=/dev/urandom bs=32 count=1 | base64`.
    const TOKEN: &str = "q3/Jx+0ZkG7yJmJ8vD1mXw2aT+0pQ9cR4nL6sYbU5eE=";

    fn read(content: &str) -> Result<String, ImportError> {
        Imported::read(content).map(|imported| imported.into_text().to_string())
    }

    #[test]
    fn imports_a_token_from_file_or_secret() {
        for content in [TOKEN.to_owned(), format!("{TOKEN}\n"), format!("{TOKEN}\r\n")] {
            assert_eq!(read(&content).unwrap(), TOKEN);
        }
        let encoded = data_encoding::BASE64.encode(format!("{TOKEN}\n").as_bytes());
        let yaml =
            format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: machineconfig-auth\ntype: Opaque\ndata:\n  token: {encoded}\n");
        let json = format!(r#"{{"apiVersion":"v1","kind":"Secret","data":{{"token":"{encoded}"}}}}"#);
        let plain = format!("apiVersion: v1\nkind: Secret\nstringData:\n  token: {TOKEN}\n");
        for manifest in [yaml, json, plain] {
            assert_eq!(read(&manifest).unwrap(), TOKEN);
        }
        let uuid = "8a205152-b25a-417f-a676-80465535a6c9";
        for other in ["0f1e2d3c4b5a69788796a5b4c3d2e1f0", "0F1E2D3C4B5A69788796A5B4C3D2E1F0", uuid] {
            assert_eq!(read(other).unwrap(), other);
        }
    }

    /// Returns a bootstrap token with these keys, as the API gives it.
    fn bootstrap(keys: &[(&str, &str)]) -> String {
        let data: String = keys
            .iter()
            .map(|(key, value)| format!("  {key}: {}\n", data_encoding::BASE64.encode(value.as_bytes())))
            .collect();
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: bootstrap-token-4hq7wz, namespace: kube-system}}\ntype: bootstrap.kubernetes.io/token\ndata:\n{data}"
        )
    }

    #[test]
    fn imports_a_kubernetes_bootstrap_token_with_expiration() {
        const GOOD: [(&str, &str); 4] = [
            ("token-id", "4hq7wz"),
            ("token-secret", "k2v9x0t8r1m5n3c6"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2026-11-24T12:00:00+01:00"),
        ];
        let imported = Imported::read(&bootstrap(&GOOD)).unwrap();
        assert_eq!(imported.expires(), Some(1_795_518_000));
        assert_eq!(*imported.into_text(), "4hq7wz.k2v9x0t8r1m5n3c6");
        for endless in [bootstrap(&GOOD[..3]), bootstrap(&GOOD[..3]) + "  expiration: \"\"\n"] {
            assert_eq!(Imported::read(&endless).unwrap().expires(), None);
        }
        // One key at a time: another value, or missing.
        for (key, value, part) in [
            ("token-id", Some("4HQ7WZ"), "token-id is not 6"),
            ("token-id", Some("4hq7wz0"), "token-id is not 6"),
            ("token-id", None, "has no token-id"),
            ("token-secret", Some("k2v9x0t8r1m5n3c"), "token-secret is not 16"),
            ("token-secret", Some("k2v9x0t8r1m5n3c."), "token-secret is not 16"),
            ("token-secret", Some("abcdeabcdeabcdea"), "only 5 different characters"),
            ("token-secret", None, "has no token-secret"),
            ("usage-bootstrap-authentication", Some("false"), "not for authentication"),
            ("usage-bootstrap-authentication", Some("True"), "not for authentication"),
            ("usage-bootstrap-authentication", None, "not for authentication"),
            ("expiration", Some("tomorrow"), "expiration is not a time"),
            ("expiration", Some("1969-12-31T23:59:59Z"), "expiration is not a time"),
            ("expiration", Some(" "), "expiration is not a time"),
        ] {
            let altered = GOOD
                .iter()
                .filter_map(|(of, was)| if *of == key { Some((*of, value?)) } else { Some((*of, *was)) });
            let Err(error) = Imported::read(&bootstrap(&altered.collect::<Vec<_>>())) else {
                panic!("{key} = {value:?} was taken")
            };
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains("k2v9x0"), "{key} = {value:?}: {text}");
        }
    }

    #[test]
    fn refuses_weak_or_malformed_tokens_without_printing_them() {
        let refused = |content: &str, expected: ImportError| {
            let error = read(content).unwrap_err();
            assert_eq!(error, expected);
            let text = error.to_string();
            assert!(content.trim().is_empty() || !text.contains(content.trim()), "{text}");
        };
        refused("", ImportError::Empty);
        refused("\n", ImportError::Empty);
        refused(&format!("{TOKEN}\n{TOKEN}\n"), ImportError::Lines);
        refused(&format!("{TOKEN}\n\n"), ImportError::Lines);
        refused(&format!(" {TOKEN}"), ImportError::Characters);
        refused(&format!("{TOKEN}\u{e4}"), ImportError::Characters);
        refused(&format!("{TOKEN}\0"), ImportError::Characters);
        let short = |found, needed| ImportError::Short { found, needed };
        refused("hunter2", short(7, SHORTEST_BASE32));
        refused(&TOKEN[..21], short(21, 22));
        refused("0123456789abcdef0123456789abcde", short(31, 32));
        refused("31415926535897932384626433832795028841", short(38, 39));
        refused("mfzwizltorqxizlnmvxhizeboq", short(26, 28));
        refused("mfzwizltorqxizlnmvxhi2345", short(25, 26));
        refused("hunter2-Hunter3-hunter2-Hunter3-", ImportError::Repeated(16));
        refused(&"0123456789abcdef".repeat(33), ImportError::Long(528));
        refused(&"abc".repeat(20), ImportError::Monotonous(3));
        refused(&format!("{}{TOKEN}", TICKET_PREFIX), ImportError::Ticket);
        let other = "apiVersion: v1\nkind: Secret\ndata: {auth: aHVudGVyMg==}\n";
        refused(other, ImportError::Manifest("the Secret has no token".to_owned()));
    }

    #[test]
    fn looks_up_only_text_of_plausible_length() {
        assert!(could_be(TOKEN) && could_be(&TOKEN[..22]));
        for text in ["", "wrong", &TOKEN[..21], &"a".repeat(31), &TOKEN.repeat(20)] {
            assert!(!could_be(text), "{text}");
        }
    }
}
