//! The pointer config: the small Ignition config that names the location of the full one.
//!
//! The pointer is kept as JSON, so that the written pointer equals the original, unknown members included, with a ticket in the
//! `httpHeaders` of one source. Ignition's specification: "Configuration v3.x".

pub mod authorities;
pub(crate) mod data_url;
mod error;
mod proxy;
pub mod source;
pub mod write;

use std::time::Duration;

use attest_wire::protocol::{
    BOOT_ID_HEADER, CLAIMANT_HEADER, ConfigCompression, ConfigForm, ConfigFormats, NOT_ATTESTED_HEADER, TICKET_PREFIX,
};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

pub use self::error::PointerError;
pub use self::source::{GatewaySource, SourceLocation};
use self::source::{gateway_of, tokens, without_token};

/// Largest pointer read. Cloud user data ends at 16 to 64 KiB; fw_cfg has no limit.
pub const POINTER_LIMIT_BYTES: usize = 1024 * 1024;
/// Most sources looked at. Real pointers have one; each costs a challenge and a quote.
const SOURCES_LIMIT: usize = 16;
/// Longest provisioning token sent, in bytes. Tokens have 43; HTTP servers take 8 KiB of headers.
const TOKEN_LIMIT_BYTES: usize = 4096;

/// Place of a resource's hash.
const HASH: &str = "/verification/hash";
/// Beginning of a hash of the config that a ticket promises.
const SHA256_PREFIX: &str = "sha256-";

/// A pointer config of spec version 3.x. It may hold tokens and tickets, so it has no `Debug`.
pub struct Pointer {
    config: Value,
    /// Id of the boot, which Ignition shows to sources that get another header.
    boot_id: Option<String>,
    /// The newest spec version that its Ignition reads, if that is known.
    newest_spec: Option<&'static str>,
}

impl Pointer {
    /// Reads a pointer config.
    ///
    /// # Errors
    /// [`PointerError::TooLarge`], [`PointerError::Malformed`], [`PointerError::Version`].
    pub fn parse(bytes: &[u8]) -> Result<Self, PointerError> {
        if bytes.len() > POINTER_LIMIT_BYTES {
            return Err(PointerError::TooLarge);
        }
        if bytes.trim_ascii().is_empty() {
            return Err(PointerError::Malformed("it is empty".to_owned()));
        }
        // serde_json's messages name positions and types, not contents.
        let config: Value = serde_json::from_slice(bytes).map_err(|error| PointerError::Malformed(error.to_string()))?;
        let version = config
            .pointer("/ignition/version")
            .and_then(Value::as_str)
            .ok_or_else(|| PointerError::Malformed("it has no ignition.version".to_owned()))?;
        let minor = version
            .strip_prefix("3.")
            .and_then(|rest| rest.strip_suffix("-experimental").unwrap_or(rest).strip_suffix(".0"));
        if minor.is_none_or(|minor| minor.parse::<u16>().is_err()) {
            return Err(PointerError::Version {
                found: version.chars().take(40).collect(),
            });
        }
        Ok(Self {
            config,
            boot_id: None,
            newest_spec: None,
        })
    }

    /// Has Ignition name this boot to each source that gets another header.
    #[must_use]
    pub fn for_boot(self, boot_id: Option<String>) -> Self {
        Self { boot_id, ..self }
    }

    /// Sets the spec version that its Ignition asks for.
    pub const fn set_newest_spec(&mut self, version: Option<&'static str>) {
        self.newest_spec = version;
    }

    /// The sources that may be attestation gateways, in the order in which Ignition fetches them.
    #[must_use]
    pub fn sources(&self) -> Vec<GatewaySource> {
        let merges = self
            .config
            .pointer("/ignition/config/merge")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let replace = self
            .config
            .pointer("/ignition/config/replace")
            .map(|resource| (SourceLocation::Replace, resource));
        let merges = merges
            .iter()
            .enumerate()
            .map(|(index, resource)| (SourceLocation::Merge(index), resource));
        // Ignition looks at no merge where there is something to replace the config by.
        let replaces = |(_, resource): &(SourceLocation, &Value)| resource.get("source").is_some_and(|source| !source.is_null());
        let only = replace.is_some_and(|replace| replaces(&replace));
        replace
            .into_iter()
            .chain(merges.filter(|_| !only))
            .filter_map(|(place, resource)| {
                let (base, pool) = gateway_of(resource.get("source")?.as_str()?)?;
                Some(GatewaySource { place, pool, base })
            })
            .take(SOURCES_LIMIT)
            .collect()
    }

    /// Returns the time limit of Ignition for its sources, if the pointer sets one; `Duration::ZERO` if the pointer sets a proxy for them,
    /// which this program does not use.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        let proxy = self.config.pointer("/ignition/proxy").map(proxy::Proxy::read).unwrap_or_default();
        if self.sources().iter().any(|source| proxy.is_for(&source.base)) {
            return Some(Duration::ZERO);
        }
        let total = self.config.pointer("/ignition/timeouts/httpTotal").and_then(Value::as_u64);
        total.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    /// The provisioning token that a source carries, in its URL or in a header; `None` if it has none, or more than one credential: the
    /// gateway refuses that.
    #[must_use]
    pub fn token(&self, place: SourceLocation) -> Option<Zeroizing<String>> {
        let resource = self.source_at(place)?;
        let mut credentials = resource.get("source").and_then(Value::as_str).map(tokens).unwrap_or_default();
        let headers = resource.get("httpHeaders").and_then(Value::as_array);
        for header in headers.map(Vec::as_slice).unwrap_or_default() {
            let text = |member: &str| header.get(member).and_then(Value::as_str);
            if is_named(header, "authorization") {
                let bearer = text("value").and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
                credentials.push(Zeroizing::new(bearer.to_owned()));
            }
        }
        let only = (credentials.len() == 1).then(|| credentials.pop()).flatten()?;
        let fits = (1..=TOKEN_LIMIT_BYTES).contains(&only.len()) && only.bytes().all(|byte| byte.is_ascii_graphic());
        // A ticket is there if this program has run before.
        (fits && !only.starts_with(TICKET_PREFIX)).then_some(only)
    }

    /// Returns the forms of a source's config that the pointer can name. The spec version is the one that its Ignition asks for, or else
    /// that of the pointer, which it certainly reads. A pointer with a hash of its own takes no other.
    #[must_use]
    pub fn config_formats(&self, place: SourceLocation) -> ConfigFormats {
        let resource = self.source_at(place);
        let is_pinned =
            resource.is_some_and(|resource| resource.pointer(HASH).is_some_and(Value::is_string) && !has_tickets_hash(resource));
        let version = self.config.pointer("/ignition/version").and_then(Value::as_str);
        ConfigFormats {
            compression: Some(ConfigCompression::Gzip),
            spec_version: version
                .filter(|_| !is_pinned)
                .map(|version| self.newest_spec.unwrap_or_else(|| raised(version)).to_owned()),
        }
    }

    fn source_at(&self, place: SourceLocation) -> Option<&Value> {
        match place {
            SourceLocation::Replace => self.config.pointer("/ignition/config/replace"),
            SourceLocation::Merge(index) => self.config.pointer("/ignition/config/merge").and_then(|merge| merge.get(index)),
        }
    }

    /// Puts a ticket into a source's headers, in place of any credential that the source had: the gateway refuses two at once, and a ticket
    /// is worth more than a token. `form` is how the gateway sends the config for it.
    pub fn set_ticket(&mut self, place: SourceLocation, ticket: &str, form: Option<&ConfigForm>) {
        let (had_ticket, had_hash) = match self.source_at(place) {
            Some(source) => (has_ticket(source), has_tickets_hash(source)),
            None => return,
        };
        let Some(resource) = self.resource_with_headers(place) else {
            return;
        };
        if had_ticket {
            resource.remove("compression");
        }
        if had_hash {
            resource.remove("verification");
        }
        if let Some(compression) = form.and_then(|form| form.compression) {
            resource.insert("compression".to_owned(), json!(compression.as_str()));
        }
        if let Some(sha256) = form.and_then(|form| form.sha256.as_ref()) {
            let hash = format!("{SHA256_PREFIX}{}", HEXLOWER.encode(sha256.as_bytes()));
            resource.insert("verification".to_owned(), json!({ "hash": hash }));
        }
        if let Some(source) = resource.get("source").and_then(Value::as_str).and_then(without_token) {
            resource.insert("source".to_owned(), json!(source));
        }
        if let Some(headers) = resource.get_mut("httpHeaders").and_then(Value::as_array_mut) {
            headers.retain(|header| !is_named(header, CLAIMANT_HEADER));
        }
        set_header(resource, "Authorization", &format!("Bearer {ticket}"));
    }

    /// Has Ignition tell a source why this node shows it nothing, or less than it could. Its credentials stay.
    pub fn set_not_attested(&mut self, place: SourceLocation, code: &str) {
        if let Some(resource) = self.resource_with_headers(place) {
            set_header(resource, NOT_ATTESTED_HEADER, code);
        }
    }

    /// Adds the claimant to a source with a token, so that a use counts per node and not per fetch.
    pub fn set_claimant(&mut self, place: SourceLocation, claimant: &[u8]) {
        if let Some(resource) = self.resource(place) {
            set_header(resource, CLAIMANT_HEADER, &BASE64URL_NOPAD.encode(claimant));
        }
    }

    /// Returns a source, in a config whose version has headers, without the [`NOT_ATTESTED_HEADER`] of an earlier run.
    fn resource_with_headers(&mut self, place: SourceLocation) -> Option<&mut Map<String, Value>> {
        let boot_id = self.boot_id.clone();
        let resource = self.resource(place)?;
        if let Some(id) = boot_id {
            set_header(resource, BOOT_ID_HEADER, &id);
        }
        if let Some(headers) = resource.get_mut("httpHeaders").and_then(Value::as_array_mut) {
            headers.retain(|header| !is_named(header, NOT_ATTESTED_HEADER));
        }
        Some(resource)
    }

    /// A source, in a config whose version has headers.
    fn resource(&mut self, place: SourceLocation) -> Option<&mut Map<String, Value>> {
        let ignition = self.config.get_mut("ignition").and_then(Value::as_object_mut)?;
        if let Some(Value::String(version)) = ignition.get_mut("version") {
            *version = raised(version).to_owned();
        }
        let config = ignition.get_mut("config");
        let resource = match place {
            SourceLocation::Replace => config.and_then(|config| config.get_mut("replace")),
            SourceLocation::Merge(index) => config
                .and_then(|config| config.get_mut("merge"))
                .and_then(|merge| merge.get_mut(index)),
        };
        resource.and_then(Value::as_object_mut)
    }

    /// Returns its gateways and trusted CAs, as JSON, and nothing else: no credential, and nothing that could be one.
    #[must_use]
    pub fn without_credentials(&self) -> Vec<u8> {
        let source = |source: GatewaySource| json!({ "source": format!("{}/config/{}", source.base, source.pool) });
        let merge: Vec<Value> = self.sources().into_iter().map(source).collect();
        let listed = self.config.pointer("/ignition/security/tls/certificateAuthorities");
        let authorities: Vec<Value> = listed
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(authority_itself)
            .collect();
        let version = self.config.pointer("/ignition/version").cloned().unwrap_or_default();
        let trust = json!({ "tls": { "certificateAuthorities": authorities } });
        let pointer = json!({ "ignition": { "version": version, "config": { "merge": merge }, "security": trust } });
        pointer.to_string().into_bytes()
    }

    /// The config as JSON.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.config.to_string().into_bytes())
    }
}

/// Returns a CA that is inlined in the pointer, without other members.
fn authority_itself(authority: &Value) -> Option<Value> {
    let members = authority.as_object()?;
    members.get("source")?.as_str()?.strip_prefix("data:")?;
    let kept = members
        .iter()
        .filter(|(name, _)| matches!(name.as_str(), "source" | "compression" | "verification"));
    Some(Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect()))
}

fn set_header(resource: &mut Map<String, Value>, name: &str, value: &str) {
    let mut headers = match resource.remove("httpHeaders") {
        Some(Value::Array(headers)) => headers,
        _ => Vec::new(),
    };
    headers.retain(|header| !is_named(header, name));
    headers.push(json!({ "name": name, "value": value }));
    resource.insert("httpHeaders".to_owned(), Value::Array(headers));
}

/// Returns the spec version in which a pointer is written: 3.0.0 has no httpHeaders, and Ignition drops them without a word. 3.1.0 only adds
/// to it.
fn raised(version: &str) -> &str {
    if version == "3.0.0" { "3.1.0" } else { version }
}

/// Returns whether an earlier run has put a ticket into a source.
fn has_ticket(resource: &Value) -> bool {
    let headers = resource.get("httpHeaders").and_then(Value::as_array);
    headers.into_iter().flatten().any(|header| {
        let value = header
            .get("value")
            .and_then(Value::as_str)
            .and_then(|value| value.strip_prefix("Bearer "));
        is_named(header, "authorization") && value.is_some_and(|value| value.starts_with(TICKET_PREFIX))
    })
}

/// Returns whether a source has the hash that came with the ticket of an earlier run.
fn has_tickets_hash(resource: &Value) -> bool {
    let hash = resource.pointer(HASH).and_then(Value::as_str);
    has_ticket(resource) && hash.is_some_and(|hash| hash.starts_with(SHA256_PREFIX))
}

fn is_named(header: &Value, wanted: &str) -> bool {
    header
        .get("name")
        .and_then(Value::as_str)
        .is_some_and(|name| name.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests;
