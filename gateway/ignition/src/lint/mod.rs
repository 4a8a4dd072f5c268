//! Lint for pre-approved configs. Any client that reaches the gateway's port gets them, with any secret in them.
//!
//! The lint searches every field of a config, except those known to be harmless. It cannot read what a config only points to, such as a
//! `source` with `https:`, and reports no finding for it. It misses secrets that look like ordinary text, and keys in plain DER of an
//! unknown kind. So a config without findings is not proven to be free of secrets.

mod assignment;
mod contents;
mod patterns;
mod structure;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::{Config, data_url};
use contents::ContentScan;
use patterns::PATTERNS;

/// Maximum depth of configs within configs, as data URLs in `ignition.config`. Real configs do not nest so deep.
const CONFIG_DEPTH_LIMIT: usize = 4;

/// A secret, or text that looks like one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretFinding {
    pub kind: SecretKind,
    /// Place of the finding: a path, a unit, `user core`, `kernel-arguments`. Never a part of the secret.
    pub place: String,
}

/// Kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretKind {
    /// A private key: PEM, OpenSSH, PGP, JWK, or DER in base64; encrypted ones too.
    PrivateKey,
    /// A credential in a kubeconfig.
    KubeconfigCredential,
    /// A Kubernetes `Secret` with data.
    SecretManifest,
    Token,
    /// A registry's credential, as in a pull secret.
    RegistryPassword,
    CloudKey,
    /// The key file of an encrypted disk.
    DiskKey,
    /// The hash of a password.
    PasswordHash,
    /// A password, or another secret that is assigned by name.
    Password,
    /// A password in a URL.
    UrlPassword,
    /// A token or signature in a URL.
    UrlToken,
    /// The value of an HTTP header that authenticates.
    AuthorizationHeader,
    /// Something that could not be looked into.
    Unreadable,
}

impl SecretKind {
    pub const ALL: [Self; 13] = [
        Self::PrivateKey,
        Self::KubeconfigCredential,
        Self::SecretManifest,
        Self::Token,
        Self::RegistryPassword,
        Self::CloudKey,
        Self::DiskKey,
        Self::PasswordHash,
        Self::Password,
        Self::UrlPassword,
        Self::UrlToken,
        Self::AuthorizationHeader,
        Self::Unreadable,
    ];

    /// Its name, as administrators write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PrivateKey => "private-key",
            Self::KubeconfigCredential => "kubeconfig-credential",
            Self::SecretManifest => "secret-manifest",
            Self::Token => "token",
            Self::RegistryPassword => "registry-password",
            Self::CloudKey => "cloud-key",
            Self::DiskKey => "disk-key",
            Self::PasswordHash => "password-hash",
            Self::Password => "password",
            Self::UrlPassword => "url-password",
            Self::UrlToken => "url-token",
            Self::AuthorizationHeader => "authorization-header",
            Self::Unreadable => "unreadable",
        }
    }

    /// Returns a description of the kind in a few words.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::PrivateKey => "a private key",
            Self::KubeconfigCredential => "a kubeconfig with a token, a key or a password",
            Self::SecretManifest => "a Kubernetes Secret with data",
            Self::Token => "a token",
            Self::RegistryPassword => "a registry's credential",
            Self::CloudKey => "a key to a cloud's API",
            Self::DiskKey => "the key of an encrypted disk",
            Self::PasswordHash => "a password's hash, which can be guessed at",
            Self::Password => "a password or another secret",
            Self::UrlPassword => "a URL with a password",
            Self::UrlToken => "a URL with a token or a signature",
            Self::AuthorizationHeader => "an HTTP header that authenticates",
            Self::Unreadable => "content that cannot be inspected: damaged, too large, or with unsupported compression",
        }
    }
}

impl fmt::Display for SecretKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The finding's name, by which an administrator acknowledges it: `private-key /etc/tls.key`.
impl fmt::Display for SecretFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.place)
    }
}

/// Looks for secrets in a config. `skip` are the paths of files that repeat the rest of the config: what they hold is found there.
#[must_use]
pub fn lint(config: &Config, skip: &[&str]) -> BTreeSet<SecretFinding> {
    let mut findings = BTreeSet::new();
    match PATTERNS.as_ref() {
        Ok(patterns) => {
            let mut lint = Lint {
                look: ContentScan::new(patterns),
                findings,
            };
            lint.config(config, skip, 0);
            findings = lint.findings;
        }
        // Never so, says a test. But if it were, nothing would have been looked at.
        Err(_) => {
            findings.insert(SecretFinding {
                kind: SecretKind::Unreadable,
                place: "the whole config".to_owned(),
            });
        }
    }
    findings
}

struct Lint<'a> {
    look: ContentScan<'a>,
    findings: BTreeSet<SecretFinding>,
}

impl Lint<'_> {
    fn config(&mut self, config: &Config, skip: &[&str], depth: usize) {
        for (section, value) in config.value() {
            let Value::Object(lists) = value else { continue };
            for (list, value) in lists {
                match (section.as_str(), value) {
                    ("ignition", Value::Object(sources)) if list == "config" => {
                        let sources = sources.values().flat_map(|source| match source {
                            Value::Array(list) => list.as_slice(),
                            one => std::slice::from_ref(one),
                        });
                        for source in sources {
                            self.nested_config(source, depth);
                        }
                    }
                    ("kernelArguments", _) => self.value("", value, "kernel-arguments"),
                    ("ignition", _) | (_, Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                        self.value(list, value, &format!("{section}.{list}"));
                    }
                    (_, Value::Array(entries)) => {
                        for entry in entries {
                            self.entry(list, entry, skip);
                        }
                    }
                }
            }
        }
    }

    /// Searches an entry of a list of files, units, users and so on.
    fn entry(&mut self, list: &str, entry: &Value, skip: &[&str]) {
        let field = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let place = match list {
            "files" if skip.contains(&field("path")) => return,
            "files" | "directories" | "links" => field("path").to_owned(),
            "units" => {
                for dropin in entry.get("dropins").and_then(Value::as_array).into_iter().flatten() {
                    let name = dropin.get("name").and_then(Value::as_str).unwrap_or_default();
                    self.value("dropins", dropin, &format!("{}/{name}", field("name")));
                }
                field("name").to_owned()
            }
            "users" | "groups" => format!("{} {}", list.trim_end_matches('s'), field("name")),
            "luks" | "raid" => format!("{list} {}", field("name")),
            "filesystems" | "disks" => format!("{} {}", list.trim_end_matches('s'), field("device")),
            other => other.to_owned(),
        };
        match entry {
            Value::Object(fields) => {
                for (name, value) in fields.iter().filter(|(name, _)| *name != "dropins") {
                    self.value(name, value, &place);
                }
            }
            other => self.value(list, other, &place),
        }
    }

    /// Searches any other value; `name` is that of its field.
    fn value(&mut self, name: &str, value: &Value, place: &str) {
        match (name, value) {
            // Hashes of what is looked at elsewhere.
            ("verification", _) | (_, Value::Null | Value::Bool(_) | Value::Number(_)) => {}
            ("httpHeaders", Value::Array(headers)) => {
                for header in headers {
                    self.header(header, place);
                }
            }
            ("passwordHash", Value::String(hash)) => {
                // Only the marks of a locked account: `!` before a hash leaves the hash readable.
                if !hash.trim_matches(['!', '*']).is_empty() {
                    self.found(SecretKind::PasswordHash, place);
                }
            }
            ("keyFile", Value::Object(key)) => {
                if let Some(Ok(key)) = self.resource(key, place)
                    && !key.is_empty()
                {
                    self.found(SecretKind::DiskKey, place);
                }
            }
            ("httpProxy" | "httpsProxy" | "url", Value::String(url)) => {
                let kinds = self.look.url(url);
                self.found_all(kinds, place);
            }
            (_, Value::String(text)) => {
                let kinds = self.look.text(text.as_bytes());
                self.found_all(kinds, place);
            }
            (_, Value::Array(list)) => {
                for entry in list {
                    self.value(name, entry, place);
                }
            }
            (_, Value::Object(fields)) if fields.contains_key("source") => {
                if let Some(Ok(bytes)) = self.resource(fields, place) {
                    let kinds = self.look.contents(&bytes);
                    self.found_all(kinds, place);
                }
            }
            (_, Value::Object(fields)) => {
                for (name, value) in fields {
                    self.value(name, value, place);
                }
            }
        }
    }

    /// Returns the decompressed contents of a resource; `None` if it points elsewhere. Also searches its other fields, and reports damage
    /// as a finding.
    fn resource(&mut self, fields: &Map<String, Value>, place: &str) -> Option<Result<Vec<u8>, ()>> {
        for (name, value) in fields.iter().filter(|(name, _)| !matches!(name.as_str(), "source" | "compression")) {
            self.value(name, value, place);
        }
        let field = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let source = field("source");
        if !source.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
            let kinds = self.look.url(source);
            self.found_all(kinds, place);
            return None;
        }
        let bytes = data_url::decode(source).and_then(|bytes| match field("compression") {
            "" => Some(bytes),
            "gzip" => contents::gunzip(&bytes),
            _ => None,
        });
        if bytes.is_none() {
            self.found(SecretKind::Unreadable, place);
        }
        Some(bytes.ok_or(()))
    }

    /// Searches a config that is merged into this one, or replaces it. Its findings have their own places, which are those on the node.
    fn nested_config(&mut self, source: &Value, depth: usize) {
        const PLACE: &str = "ignition.config";
        let Value::Object(fields) = source else { return };
        let Some(Ok(bytes)) = self.resource(fields, PLACE) else { return };
        if depth >= CONFIG_DEPTH_LIMIT {
            self.found(SecretKind::Unreadable, PLACE);
        } else if let Ok(config) = Config::parse(&bytes) {
            self.config(&config, &[], depth + 1);
        } else {
            let kinds = self.look.contents(&bytes);
            self.found_all(kinds, PLACE);
        }
    }

    fn header(&mut self, header: &Value, place: &str) {
        let field = |name: &str| header.get(name).and_then(Value::as_str).unwrap_or_default();
        if assignment::is_credential_header(field("name")) && !field("value").trim().is_empty() {
            self.found(SecretKind::AuthorizationHeader, place);
        } else {
            let kinds = self.look.text(field("value").as_bytes());
            self.found_all(kinds, place);
        }
    }

    fn found_all(&mut self, kinds: BTreeSet<SecretKind>, place: &str) {
        for kind in kinds {
            self.found(kind, place);
        }
    }

    fn found(&mut self, kind: SecretKind, place: &str) {
        // A name is one line, whatever the path says.
        let place = place
            .chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect();
        self.findings.insert(SecretFinding { kind, place });
    }
}

#[cfg(test)]
mod tests;
