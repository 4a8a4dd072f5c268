//! Redaction of secrets in a journal, before it leaves the node: exact values that this node's configs hold, and forms that secrets have.
//!
//! It errs on the side of removal: a long text of mixed letters is taken for a secret, whatever it is.

mod config_secrets;
mod credential_forms;

use std::ops::Range;

pub use config_secrets::Secrets;
use credential_forms::FORMS;

/// Text in the place of a secret.
pub const REDACTED: &str = "[redacted]";
/// Letter for it until the end: no pass takes it for the end of a word.
const MARK: char = '\u{e000}';
/// Lines after the beginning of a private key that belong to it, if its end is missing.
const KEY_LIMIT_LINES: usize = 200;

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
    FORMS.into_iter().fold(line.to_owned(), |line, find| replace(&line, find))
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
