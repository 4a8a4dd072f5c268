//! Pointers as they are found, with what each says, from any author.

use std::fmt;

use attest::protocol::TICKET_PREFIX;
use attest_certificates::Certificate;
use attest_ignition::{Config, NotAConfig, data_url, without_values};
use aws_lc_rs::digest;
use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::PATH;

/// Largest pointer or manifest that is read: what `attest-node` reads, and far more than any cloud gives to a machine.
pub const READING_LIMIT_BYTES: usize = 1024 * 1024;
/// Most sources that are looked at. Real pointers have one.
const SOURCES_LIMIT: usize = 16;
/// Most certificates that are looked at, as `attest-node` has it. While a CA is being replaced there are two.
const CERTIFICATES_LIMIT: usize = 64;
/// Longest foreign word that is repeated in a text for people.
const SHOWN_LIMIT_CHARACTERS: usize = 80;
/// The key of a user-data Secret that has the pointer.
const USER_DATA: &str = "userData";

/// Reason why something cannot be read as a pointer. Its text shows no more of it than a version or a kind.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingError {
    #[error("it has {0} bytes; at most {READING_LIMIT_BYTES} are read")]
    TooLarge(usize),
    /// It is neither JSON nor YAML.
    #[error("it cannot be read: {0}")]
    Syntax(String),
    #[error("neither an Ignition config nor a Secret with {USER_DATA}: {0}")]
    Kind(String),
    /// A Secret without a pointer.
    #[error("the Secret's {USER_DATA}: {0}")]
    UserData(String),
    /// A config without a version, or of an unknown version.
    #[error("ignition.version is {0}: pointers are of spec 2 or 3")]
    Version(String),
}

/// How the pointer came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointerForm {
    /// An Ignition config without a Secret.
    Config,
    /// A Kubernetes Secret with an Ignition config.
    Secret {
        /// The Secret's name, as it is written.
        name: String,
    },
}

/// A pointer that was read. It may hold tokens, so it has no `Debug`.
pub struct ReadPointer {
    /// Form in which the pointer came.
    pub form: PointerForm,
    /// Spec version of the Ignition config.
    pub version: String,
    /// Reason why this gateway's Ignition parser refuses it, if it does.
    pub refused: Option<NotAConfig>,
    /// URLs that the node fetches, in Ignition's order.
    pub sources: Vec<ConfigSource>,
    /// CAs that a node with this pointer trusts.
    pub authorities: Vec<PointerCa>,
    /// Set if parts of the pointer were not looked at.
    pub cut: bool,
}

/// A URL that the node fetches.
pub struct ConfigSource {
    /// The URL, if it is one. It may hold a token.
    pub url: Option<Url>,
    /// Position in the config, for messages.
    pub place: String,
    /// The pool, if the path is one that a gateway serves.
    pub pool: Option<String>,
    /// Credentials that the node shows there.
    pub credentials: Vec<PointerCredential>,
}

/// Credential that a node with this pointer shows.
pub enum PointerCredential {
    /// A provisioning token, as the pointer has it.
    Token(Zeroizing<String>),
    /// A ticket: nodes put them in for themselves, and they are good for minutes.
    Ticket,
    /// Something that no gateway reads.
    Unreadable(&'static str),
}

/// An entry of `certificateAuthorities`.
#[derive(Debug, PartialEq, Eq)]
pub enum PointerCa {
    /// A CA that could be read.
    Certificate(Box<Certificate>),
    /// An entry that was not looked at, and why.
    NotLookedAt(String),
    /// An entry that no node could use, and why.
    Broken(String),
}

impl ReadPointer {
    /// Reads a pointer: an Ignition config, or a Secret with one, JSON or YAML.
    ///
    /// # Errors
    /// [`ReadingError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ReadingError> {
        if bytes.len() > READING_LIMIT_BYTES {
            return Err(ReadingError::TooLarge(bytes.len()));
        }
        let value = value(bytes)?;
        if value.get("ignition").is_some() {
            return Self::config(&value, PointerForm::Config, Config::parse(bytes).err());
        }
        let word = |field: &str| shown(value.get(field).and_then(Value::as_str).unwrap_or_default());
        if (word("apiVersion").as_str(), word("kind").as_str()) != ("v1", "Secret") {
            return Err(ReadingError::Kind(format!(
                "apiVersion {:?}, kind {:?}",
                word("apiVersion"),
                word("kind")
            )));
        }
        let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let form = PointerForm::Secret { name: shown(name) };
        let user_data = user_data(&value)?;
        let within = |problem: String| ReadingError::UserData(problem);
        let config: Value =
            serde_json::from_slice(&user_data).map_err(|error| within(format!("no JSON: {}", without_values(&error.to_string()))))?;
        if config.get("ignition").is_none() {
            return Err(within("no Ignition config".to_owned()));
        }
        Self::config(&config, form, Config::parse(&user_data).err())
    }

    fn config(config: &Value, form: PointerForm, refused: Option<NotAConfig>) -> Result<Self, ReadingError> {
        let version = config.pointer("/ignition/version").and_then(Value::as_str).unwrap_or_default();
        if !version.starts_with("2.") && !version.starts_with("3.") {
            return Err(ReadingError::Version(format!("{:?}", shown(version))));
        }
        let (sources, more_sources) = sources(config);
        let (authorities, more_authorities) = authorities(config);
        Ok(Self {
            form,
            version: shown(version),
            refused,
            sources,
            authorities,
            cut: more_sources || more_authorities,
        })
    }

    /// The CAs that a node with this pointer trusts.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.authorities.iter().filter_map(|authority| match authority {
            PointerCa::Certificate(certificate) => Some(&**certificate),
            PointerCa::NotLookedAt(_) | PointerCa::Broken(_) => None,
        })
    }
}

/// Returns a foreign word, cut and cleaned for a terminal.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN_LIMIT_CHARACTERS).collect()
}

/// JSON, or one document of YAML within the parser's bounds.
fn value(bytes: &[u8]) -> Result<Value, ReadingError> {
    if bytes.trim_ascii_start().starts_with(b"{") {
        return serde_json::from_slice(bytes).map_err(|error| ReadingError::Syntax(without_values(&error.to_string())));
    }
    serde_saphyr::from_slice(bytes).map_err(|error| {
        // Where, and nothing else: the text may be a secret.
        let line = error.location().map_or(0, |location| location.line());
        ReadingError::Syntax(format!("not even YAML, line {line}"))
    })
}

fn user_data(secret: &Value) -> Result<Zeroizing<Vec<u8>>, ReadingError> {
    let wrong = |problem: &str| ReadingError::UserData(problem.to_owned());
    // What Kubernetes does with a Secret that has both.
    if let Some(text) = secret.get("stringData").and_then(|data| data.get(USER_DATA)) {
        let text = text.as_str().ok_or_else(|| wrong("it is no text"))?;
        return Ok(Zeroizing::new(text.as_bytes().to_vec()));
    }
    let encoded = secret
        .get("data")
        .and_then(|data| data.get(USER_DATA))
        .ok_or_else(|| wrong("there is none"))?;
    let encoded = encoded.as_str().ok_or_else(|| wrong("it is no text"))?;
    // Long lines are folded in YAML now and then.
    let encoded: Zeroizing<Vec<u8>> = Zeroizing::new(encoded.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect());
    BASE64.decode(&encoded).map(Zeroizing::new).map_err(|_| wrong("it is no base64"))
}

/// The sources, and whether there are more.
fn sources(config: &Value) -> (Vec<ConfigSource>, bool) {
    let references = config.pointer("/ignition/config");
    let list = |name: &'static str| {
        let list = references.and_then(|references| references.get(name)).and_then(Value::as_array);
        let list = list.map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .enumerate()
            .map(move |(index, entry)| (format!("ignition.config.{name}.{index}"), entry))
    };
    let replace = references
        .and_then(|references| references.get("replace"))
        .filter(|replace| !replace.is_null());
    let replace = replace.map(|replace| ("ignition.config.replace".to_owned(), replace));
    let mut all = replace.into_iter().chain(list("merge")).chain(list("append"));
    let sources = all
        .by_ref()
        .take(SOURCES_LIMIT)
        .map(|(place, entry)| source(place, entry))
        .collect();
    (sources, all.next().is_some())
}

fn source(place: String, entry: &Value) -> ConfigSource {
    let url = entry
        .get("source")
        .and_then(Value::as_str)
        .and_then(|source| Url::parse(source).ok());
    let pool = url
        .as_ref()
        .and_then(|url| url.path().strip_prefix(PATH))
        .map(|pool| pool.strip_suffix('/').unwrap_or(pool))
        .filter(|pool| attest::challenge::is_pool_name(pool))
        .map(str::to_owned);
    let mut credentials = Vec::new();
    let headers = entry.get("httpHeaders").and_then(Value::as_array);
    for header in headers.into_iter().flatten() {
        let text = |field| header.get(field).and_then(Value::as_str).unwrap_or_default();
        if text("name").eq_ignore_ascii_case("authorization") {
            credentials.push(match text("value").split_once(' ') {
                Some((scheme, credential)) if scheme.eq_ignore_ascii_case("bearer") => PointerCredential::parse(credential),
                _ => PointerCredential::Unreadable("the Authorization header is not `Bearer` and a token"),
            });
        }
    }
    // As the gateway reads it: a `+` is a `+`, which Base64 has.
    let query = url.as_ref().and_then(Url::query).unwrap_or_default().replace('+', "%2B");
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        if name == "token" {
            credentials.push(PointerCredential::parse(&value));
        }
    }
    ConfigSource {
        url,
        place,
        pool,
        credentials,
    }
}

impl PointerCredential {
    fn parse(text: &str) -> Self {
        if !super::is_readable(text) {
            return Self::Unreadable("the token is empty, too long, or has other than printable ASCII characters");
        }
        if text.starts_with(TICKET_PREFIX) {
            return Self::Ticket;
        }
        Self::Token(Zeroizing::new(text.to_owned()))
    }
}

/// Shows its kind, and nothing of its value.
impl fmt::Debug for PointerCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token(_) => "Token",
            Self::Ticket => "Ticket",
            Self::Unreadable(problem) => problem,
        })
    }
}

/// The CAs, and whether there are more.
fn authorities(config: &Value) -> (Vec<PointerCa>, bool) {
    let list = config
        .pointer("/ignition/security/tls/certificateAuthorities")
        .and_then(Value::as_array);
    let mut all = Vec::new();
    for entry in list.into_iter().flatten() {
        authority(entry, &mut all);
        if all.len() > CERTIFICATES_LIMIT {
            all.truncate(CERTIFICATES_LIMIT);
            return (all, true);
        }
    }
    (all, false)
}

fn authority(entry: &Value, all: &mut Vec<PointerCa>) {
    let source = entry.get("source").and_then(Value::as_str).unwrap_or_default();
    if !source.starts_with("data:") {
        let scheme = shown(source.split_once(':').map_or("", |(scheme, _)| scheme));
        return all.push(match scheme.as_str() {
            "" => PointerCa::Broken("it has no source".to_owned()),
            scheme => PointerCa::NotLookedAt(format!(
                "it is fetched by {scheme} at boot, which is not tried here; attest-node does not trust it"
            )),
        });
    }
    let compression = entry.get("compression").and_then(Value::as_str).unwrap_or_default();
    if !compression.is_empty() {
        return all.push(PointerCa::NotLookedAt(format!("it is compressed ({})", shown(compression))));
    }
    let Some(content) = data_url::decode(source) else {
        return all.push(PointerCa::Broken("its data URL is damaged".to_owned()));
    };
    if let Some(hash) = entry.pointer("/verification/hash").and_then(Value::as_str)
        && !fits(hash, &content)
    {
        return all.push(PointerCa::Broken("it does not have its verification.hash".to_owned()));
    }
    let before = all.len();
    for der in CertificateDer::pem_slice_iter(&content).take(CERTIFICATES_LIMIT + 1) {
        all.push(match der.map_err(|_| "it is damaged PEM".to_owned()).and_then(Certificate::parse) {
            Ok(certificate) => PointerCa::Certificate(Box::new(certificate)),
            Err(problem) => PointerCa::Broken(shown(&problem)),
        });
    }
    if all.len() == before {
        all.push(PointerCa::Broken("it holds no PEM certificate".to_owned()));
    }
}

/// Returns whether the content has the digest in a `verification.hash`.
fn fits(hash: &str, content: &[u8]) -> bool {
    let Some((function, sum)) = hash.split_once('-') else {
        return false;
    };
    let function = match function {
        "sha512" => &digest::SHA512,
        "sha256" => &digest::SHA256,
        _ => return false,
    };
    HEXLOWER_PERMISSIVE
        .decode(sum.as_bytes())
        .is_ok_and(|sum| sum == digest::digest(function, content).as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]
mod tests;
