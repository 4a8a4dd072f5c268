//! Regular expressions over bytes that match secrets in text.

use std::sync::LazyLock;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::SecretKind;

/// All patterns, compiled once.
pub(super) static PATTERNS: LazyLock<Result<Patterns, regex::Error>> = LazyLock::new(Patterns::compile);

/// Patterns that are findings by themselves. Vendors publish the prefixes of their tokens so that they are found.
const PLAIN: [(SecretKind, &str); 33] = [
    // RFC 7468, RFC 4880 (PGP), OpenSSH; encrypted ones too: the passphrase can be guessed at.
    (SecretKind::PrivateKey, r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"),
    (SecretKind::PrivateKey, r"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"),
    (SecretKind::PrivateKey, r"PuTTY-User-Key-File-[0-9]"),
    (SecretKind::PrivateKey, r"AGE-SECRET-KEY-1[A-Z0-9]+"),
    // OpenShift's own, GitHub, GitLab, Slack, Docker Hub, Vault, npm, PyPI, and so on.
    (SecretKind::Token, r"\bsha256~[A-Za-z0-9_-]{43}"),
    (SecretKind::Token, r"\bgh[pousr]_[A-Za-z0-9]{36}"),
    (SecretKind::Token, r"\bgithub_pat_[A-Za-z0-9_]{22}"),
    (SecretKind::Token, r"\bgl(?:pat|dt|rt|cbt|ptt|ft|agent|soat)-[A-Za-z0-9_-]{20}"),
    (SecretKind::Token, r"\bxox[abeoprs]-[A-Za-z0-9-]{10}"),
    (SecretKind::Token, r"\bxapp-[0-9]-[A-Za-z0-9-]{10}"),
    (
        SecretKind::Token,
        r"hooks\.slack\.com/services/T[A-Za-z0-9]+/B[A-Za-z0-9]+/[A-Za-z0-9]",
    ),
    (SecretKind::Token, r"\bdckr_[op]at_[A-Za-z0-9_-]{20}"),
    (SecretKind::Token, r"\bhv[sbr]\.[A-Za-z0-9_-]{24}"),
    (SecretKind::Token, r"\bnpm_[A-Za-z0-9]{36}"),
    (SecretKind::Token, r"\bpypi-AgE[A-Za-z0-9_-]{30}"),
    (SecretKind::Token, r"\btskey-[a-z]+-[A-Za-z0-9]{8}"),
    (SecretKind::Token, r"\bgls?[ac]_[A-Za-z0-9_+/=]{32}"),
    // A bootstrap token is no more than that: only where something says that it is one.
    (
        SecretKind::Token,
        r"(?i:token)[^\n]*(?:[^A-Za-z0-9.\n]|\\n)[a-z0-9]{6}\.[a-z0-9]{16}(?:[^A-Za-z0-9.-]|$)",
    ),
    (SecretKind::CloudKey, r"\b(?:AKIA|ASIA)[A-Z2-7]{16}(?:[^A-Z0-9]|$)"),
    (SecretKind::CloudKey, r"\bAIza[A-Za-z0-9_-]{35}"),
    (SecretKind::CloudKey, r"\bdop_v1_[a-f0-9]{64}"),
    (SecretKind::CloudKey, r#"\btype\\?["']?\s*:\s*\\?["']?service_account\b"#),
    (SecretKind::CloudKey, r"(?i)\b(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40}"),
    // crypt(5), htpasswd, and GRUB's.
    (SecretKind::PasswordHash, r"\$(?:1|apr1)\$[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}"),
    (
        SecretKind::PasswordHash,
        r"\$[56]\$(?:rounds=[0-9]+\$)?[./A-Za-z0-9]{1,16}\$[./A-Za-z0-9]{43}",
    ),
    (
        SecretKind::PasswordHash,
        r"\$(?:y|gy|7)\$[./A-Za-z0-9]+\$[./A-Za-z0-9]+\$[./A-Za-z0-9]{43}",
    ),
    (SecretKind::PasswordHash, r"\$2[abxy]\$[0-9][0-9]\$[./A-Za-z0-9]{53}"),
    (
        SecretKind::PasswordHash,
        r"\$argon2(?:i|d|id)\$v=|\bgrub\.pbkdf2\.sha[0-9]+\.[0-9]+\.[0-9A-F]",
    ),
    // netrc, chpasswd, curl.
    (SecretKind::Password, r"\blogin[ \t\r\n]+[^\s]+[ \t\r\n]+password[ \t]+[^\s$<%/]"),
    (
        SecretKind::Password,
        r#"\becho\s+["']?[A-Za-z0-9_-]+:[^\s"'$<]+["']?\s*\|\s*(?:sudo\s+)?chpasswd|\bcurl\s[^\n]*(?:-u|--user)[ =]?["']?[^\s:"'$/]+:[^\s"'$<]"#,
    ),
    (SecretKind::UrlPassword, r"\biscsi:[^\s:@$]+:[^\s:@$]+(?::[^\s:@]+:[^\s:@]+)?@"),
    (
        SecretKind::UrlToken,
        r"(?i)[?&;](?:sig|signature|x-amz-signature|x-goog-signature)=[a-z0-9%+/_-]{16}",
    ),
    (
        SecretKind::AuthorizationHeader,
        r#"(?i)\bauthorization\\?["']?\s*[:=,]\s*\\?["']?basic\s+[a-z0-9+/]{8}"#,
    ),
];

/// Compiled patterns of the lint.
#[derive(Debug)]
pub(super) struct Patterns {
    plain: RegexSet,
    /// A JWT; its first part is captured.
    pub(super) jwt: Regex,
    /// `Bearer` and what follows.
    pub(super) bearer: Regex,
    /// `user:password@` in a URL; the password is captured.
    pub(super) userinfo: Regex,
    /// `"auth": "…"`, as registries' credentials are kept.
    pub(super) auth: Regex,
    pub(super) kubeconfig: Regex,
    /// A Kubernetes Secret, or anything with its words.
    pub(super) secret_manifest: Regex,
    /// Words that the name of a credential has.
    pub(super) credential_word: Regex,
    /// Matches texts that are worth parsing as JSON or YAML.
    pub(super) structured: Regex,
    pub(super) data_url: Regex,
}

impl Patterns {
    fn compile() -> Result<Self, regex::Error> {
        // Bytes and not Unicode: contents need not be text.
        let regex = |pattern: &str| RegexBuilder::new(pattern).unicode(false).build();
        Ok(Self {
            plain: RegexSetBuilder::new(PLAIN.map(|(_, pattern)| pattern)).unicode(false).build()?,
            jwt: regex(r"\b(e[wy][A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")?,
            bearer: regex(r"(?i)\bbearer[ \t]+([a-z0-9._~+/-]+)")?,
            userinfo: regex(r#"://[^\s/:@"'<>?#]*:([^\s/@"'<>?#]+)@"#)?,
            auth: regex(r#"\bauth\\?["']?\s*:\s*\\?["']?([A-Za-z0-9+/]+=*)"#)?,
            kubeconfig: regex(r#"\bkind\\?["']?\s*:\s*\\?["']?Config\b"#)?,
            secret_manifest: regex(r#"\bkind\\?["']?\s*:\s*\\?["']?Secret\b"#)?,
            credential_word: regex(
                r"(?i)pass|pwd|secret|token|psk|setcredential|(?:api|access|account|private|shared|secret|activation|encryption|auth|wep|client)[_.-]?key",
            )?,
            structured: regex(r#"(?i)pass|pwd|secret|token|psk|[_.-]?key|\bkind\b|\bkty\b|\bauths?\b|BEGIN"#)?,
            data_url: regex(r#"\bdata:[A-Za-z0-9/;=.+-]*,[^\s"'\\]+"#)?,
        })
    }

    /// Returns the kinds of the patterns that are findings by themselves.
    pub(super) fn plain(&self, bytes: &[u8]) -> impl Iterator<Item = SecretKind> {
        self.plain
            .matches(bytes)
            .into_iter()
            .filter_map(|found| PLAIN.get(found).map(|(kind, _)| *kind))
    }
}
