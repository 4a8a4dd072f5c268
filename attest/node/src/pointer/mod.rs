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
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    fn pointer(config: &Value) -> Pointer {
        Pointer::parse(config.to_string().as_bytes()).unwrap()
    }

    fn check_parse(text: &str, expect: Result<(), &str>) {
        assert_eq!(
            Pointer::parse(text.as_bytes()).map(|_| ()).map_err(|error| error.to_string()),
            expect.map_err(str::to_owned),
            "{text}"
        );
    }

    fn version_error(found: &str) -> String {
        PointerError::Version { found: found.to_owned() }.to_string()
    }

    #[test]
    fn only_3_x_configs_are_pointers() {
        check_parse(r#"{"ignition":{"version":"3.0.0"}}"#, Ok(()));
        check_parse(r#" {"ignition":{"version":"3.5.0"}} "#, Ok(()));
        check_parse(r#"{"ignition":{"version":"3.7.0-experimental"},"unknown":1}"#, Ok(()));
        check_parse(r#"{"ignition":{"version":"2.2.0"}}"#, Err(&version_error("2.2.0")));
        check_parse(r#"{"ignition":{"version":"3"}}"#, Err(&version_error("3")));
        check_parse(r#"{"ignition":{"version":"3.1.1"}}"#, Err(&version_error("3.1.1")));
        check_parse(r#"{"ignition":{"version":"30.1.0"}}"#, Err(&version_error("30.1.0")));
        check_parse(
            r#"{"ignition":{"version":3}}"#,
            Err("the pointer config is malformed: it has no ignition.version"),
        );
        check_parse(
            r#"{"ignition":[]}"#,
            Err("the pointer config is malformed: it has no ignition.version"),
        );
        check_parse("[]", Err("the pointer config is malformed: it has no ignition.version"));
        check_parse("", Err("the pointer config is malformed: it is empty"));
        check_parse(" \n", Err("the pointer config is malformed: it is empty"));
        check_parse(
            "#cloud-config\n",
            Err("the pointer config is malformed: expected value at line 1 column 1"),
        );
        check_parse(
            &"[".repeat(100_000),
            Err("the pointer config is malformed: recursion limit exceeded at line 1 column 128"),
        );
        check_parse(&" ".repeat(POINTER_LIMIT_BYTES + 1), Err(&PointerError::TooLarge.to_string()));
    }

    #[test]
    fn not_attested_header_is_added_to_existing_headers() {
        let said = json!({"name": NOT_ATTESTED_HEADER, "value": "retry-limit-exceeded"});
        let token = json!({"name": "Authorization", "value": "Bearer token"});
        let mut pointer = pointer(&merge(
            "3.0.0",
            &json!({"source": format!("{SOURCE}?token=x"), "httpHeaders": [token]}),
        ));
        for _ in 0..2 {
            pointer.set_not_attested(SourceLocation::Merge(0), "retry-limit-exceeded");
            let after = merge(
                "3.1.0",
                &json!({"source": format!("{SOURCE}?token=x"), "httpHeaders": [token, said]}),
            );
            assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), after);
        }
        // Whoever attests after all has nothing to say any more.
        pointer.set_ticket(SourceLocation::Merge(0), "ticket.abc", None);
        let ticket = json!({"name": "Authorization", "value": "Bearer ticket.abc"});
        let after = merge("3.1.0", &json!({"source": SOURCE, "httpHeaders": [ticket]}));
        assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), after);
    }

    #[test]
    fn boot_id_goes_with_another_header_only() {
        let id = "0a1b2c3d-0000-4000-8000-0123456789ab";
        let config = merge("3.4.0", &json!({"source": SOURCE}));
        let mut pointer = pointer(&config).for_boot(Some(id.to_owned()));
        assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), config);
        for _ in 0..2 {
            pointer.set_ticket(SourceLocation::Merge(0), "ticket.abc", None);
            let headers = json!([
                {"name": BOOT_ID_HEADER, "value": id},
                {"name": "Authorization", "value": "Bearer ticket.abc"},
            ]);
            let after = merge("3.4.0", &json!({"source": SOURCE, "httpHeaders": headers}));
            assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), after);
        }
    }

    fn check_wait(members: &str, expect: Option<u64>) {
        let sources = r#""config":{"merge":[{"source":"https://api-int.example:22623/config/worker"}]}"#;
        let pointer = Pointer::parse(format!(r#"{{"ignition":{{"version":"3.4.0",{sources}{members}}}}}"#).as_bytes()).unwrap();
        assert_eq!(pointer.wait(), expect.map(Duration::from_secs), "{members}");
    }

    #[test]
    fn wait_follows_ignition_timeouts_and_proxies() {
        check_wait("", None);
        check_wait(r#","timeouts":{"httpTotal":90}"#, Some(90));
        check_wait(r#","timeouts":{"httpTotal":0,"httpResponseHeaders":5}"#, None);
        check_wait(r#","proxy":{"noProxy":["a"]}"#, None);
        check_wait(r#","proxy":{"httpsProxy":null}"#, None);
        check_wait(
            r#","proxy":{"httpsProxy":"https://proxy.example"},"timeouts":{"httpTotal":90}"#,
            Some(0),
        );
        check_wait(r#","proxy":{"httpProxy":"http://proxy.example"}"#, None);
        check_wait(
            r#","proxy":{"httpsProxy":"http://proxy.example","noProxy":["api-int.example"]}"#,
            None,
        );
    }

    fn check_ticket(before: &Value, place: SourceLocation, after: &Value) {
        let mut pointer = pointer(before);
        pointer.set_ticket(place, "ticket.abc", None);
        assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), *after);
    }

    const SOURCE: &str = "https://a/config/worker";

    fn merge(version: &str, resource: &Value) -> Value {
        json!({ "ignition": { "version": version, "config": { "merge": [resource] } }, "x-unknown": [1, {"a": null}] })
    }

    #[test]
    fn resource_says_how_the_config_is_sent() {
        let place = SourceLocation::Merge(0);
        let form = |compressed: bool, sha256: Option<[u8; 32]>| ConfigForm {
            compression: compressed.then_some(ConfigCompression::Gzip),
            sha256: sha256.map(Into::into),
        };
        let formats = |pointer: &Pointer| {
            let ConfigFormats { compression, spec_version } = pointer.config_formats(place);
            assert_eq!(compression, Some(ConfigCompression::Gzip));
            spec_version
        };
        let check = |pointer: &mut Pointer, form: Option<&ConfigForm>, compression: &Value, verification: &Value| {
            pointer.set_ticket(place, "ticket.abc", form);
            let after: Value = serde_json::from_slice(&pointer.to_bytes()).unwrap();
            let resource = &after["ignition"]["config"]["merge"][0];
            assert_eq!((&resource["compression"], &resource["verification"]), (compression, verification));
        };
        let hash = json!({ "hash": format!("sha256-{}", "07".repeat(32)) });
        let mut plain = pointer(&merge("3.0.0", &json!({"source": SOURCE})));
        assert_eq!(formats(&plain).as_deref(), Some("3.1.0"));
        check(&mut plain, Some(&form(true, Some([7; 32]))), &json!("gzip"), &hash);
        // A second run in the same boot.
        assert_eq!(formats(&plain).as_deref(), Some("3.1.0"));
        check(&mut plain, Some(&form(true, None)), &json!("gzip"), &Value::Null);
        check(&mut plain, None, &Value::Null, &Value::Null);

        let pin = json!({ "hash": "sha512-00" });
        let mut pinned = pointer(&merge("3.4.0", &json!({"source": SOURCE, "verification": pin})));
        for _ in 0..2 {
            assert_eq!(formats(&pinned), None);
            check(&mut pinned, Some(&form(true, None)), &json!("gzip"), &pin);
        }
        let unpinned = pointer(&merge("3.4.0", &json!({"source": SOURCE, "verification": {"hash": null}})));
        assert_eq!(formats(&unpinned).as_deref(), Some("3.4.0"));
        let mut known = unpinned;
        known.set_newest_spec(Some("3.5.0"));
        assert_eq!(formats(&known).as_deref(), Some("3.5.0"));
        let experimental = pointer(&merge("3.7.0-experimental", &json!({"source": SOURCE})));
        assert_eq!(formats(&experimental).as_deref(), Some("3.7.0-experimental"));
    }

    #[test]
    fn ticket_replaces_all_other_credentials() {
        let ticket = json!({"name": "Authorization", "value": "Bearer ticket.abc"});
        let plain = merge("3.2.0", &json!({"source": SOURCE}));
        let done = merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": [ticket]}));
        check_ticket(&plain, SourceLocation::Merge(0), &done);
        check_ticket(
            &merge("3.2.0", &json!({"source": format!("{SOURCE}?token=x")})),
            SourceLocation::Merge(0),
            &done,
        );
        check_ticket(
            &merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": null})),
            SourceLocation::Merge(0),
            &done,
        );
        check_ticket(
            &merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": "x"})),
            SourceLocation::Merge(0),
            &done,
        );
        let token = json!({"name": "aUthorization", "value": "Bearer token"});
        check_ticket(
            &merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": [token, token]})),
            SourceLocation::Merge(0),
            &done,
        );
        let other = json!({"name": "X-Other", "value": "1"});
        check_ticket(
            &merge(
                "3.2.0",
                &json!({"source": SOURCE, "httpHeaders": [token, other], "verification": {"hash": "x"}}),
            ),
            SourceLocation::Merge(0),
            &merge(
                "3.2.0",
                &json!({"source": SOURCE, "httpHeaders": [other, ticket], "verification": {"hash": "x"}}),
            ),
        );
        check_ticket(&plain, SourceLocation::Merge(1), &plain);
        check_ticket(&plain, SourceLocation::Replace, &plain);
    }

    fn check_token(resource: &Value, expect: Option<&str>) {
        let pointer = pointer(&merge("3.2.0", resource));
        assert_eq!(
            pointer.token(SourceLocation::Merge(0)).as_deref().map(String::as_str),
            expect,
            "{resource}"
        );
        assert_eq!(pointer.token(SourceLocation::Merge(1)), None);
        assert_eq!(pointer.token(SourceLocation::Replace), None);
    }

    #[test]
    fn provisioning_token_comes_from_query_or_header() {
        let bearer = |value: &str| json!({"name": "authorization", "value": value});
        let header = |value: &str| json!({"source": SOURCE, "httpHeaders": [{"name": "X", "value": "y"}, bearer(value)]});
        check_token(&json!({"source": SOURCE}), None);
        check_token(&json!({"source": format!("{SOURCE}?token=abc-_")}), Some("abc-_"));
        check_token(&json!({"source": format!("{SOURCE}?ca=1&token=abc")}), Some("abc"));
        check_token(&header("Bearer abc"), Some("abc"));
        check_token(&header("Bearer ticket.abc"), None);
        check_token(&header("Basic abc"), None);
        check_token(&header("Bearer a b"), None);
        check_token(&header("Bearer "), None);
        check_token(&header(&format!("Bearer {}", "x".repeat(5000))), None);
        check_token(&json!({"source": format!("{SOURCE}?token=a&token=b")}), None);
        check_token(
            &json!({"source": format!("{SOURCE}?token=a"), "httpHeaders": [bearer("Bearer b")]}),
            None,
        );
        check_token(
            &json!({"source": SOURCE, "httpHeaders": [bearer("Bearer a"), bearer("Bearer b")]}),
            None,
        );
        check_token(&json!({"source": SOURCE, "httpHeaders": "x"}), None);
        check_token(&json!({"source": 7}), None);
    }

    #[test]
    fn spec_3_0_is_raised_for_http_headers() {
        let ticket = json!({"name": "Authorization", "value": "Bearer ticket.abc"});
        let after = |version| merge(version, &json!({"source": SOURCE, "httpHeaders": [ticket]}));
        check_ticket(
            &merge("3.0.0", &json!({"source": SOURCE})),
            SourceLocation::Merge(0),
            &after("3.1.0"),
        );
        check_ticket(
            &merge("3.1.0", &json!({"source": SOURCE})),
            SourceLocation::Merge(0),
            &after("3.1.0"),
        );
        check_ticket(
            &merge("3.5.0", &json!({"source": SOURCE})),
            SourceLocation::Merge(0),
            &after("3.5.0"),
        );
    }

    #[test]
    fn all_sources_are_found() {
        let merges = json!([{"source": "https://a/config/worker"}, {"source": "data:,{}"}, {}, {"source": null}, 7, {"source": "https://b/x/config/gpu"}]);
        let check = |replace: Value, expect: &[(SourceLocation, &str)]| {
            let config = json!({"ignition": {"version": "3.4.0", "config": {"merge": merges, "replace": replace}}});
            let sources = pointer(&config).sources();
            let found: Vec<(SourceLocation, &str)> = sources.iter().map(|source| (source.place, source.pool.as_str())).collect();
            assert_eq!(found, expect, "{config}");
        };
        let both = [(SourceLocation::Merge(0), "worker"), (SourceLocation::Merge(5), "gpu")];
        check(Value::Null, &both);
        check(json!({"source": null}), &both);
        // Ignition looks at no merge then, wherever the other leads.
        check(json!({"source": "https://c/config/master"}), &[(SourceLocation::Replace, "master")]);
        check(json!({"source": "data:,{}"}), &[]);
        assert!(pointer(&json!({"ignition": {"version": "3.4.0"}})).sources().is_empty());
        assert!(
            pointer(&json!({"ignition": {"version": "3.4.0", "config": {"merge": {}, "replace": []}}}))
                .sources()
                .is_empty()
        );
        let many: Vec<Value> = (0..100).map(|_| json!({"source": SOURCE})).collect();
        assert_eq!(
            pointer(&json!({"ignition": {"version": "3.4.0", "config": {"merge": many}}}))
                .sources()
                .len(),
            SOURCES_LIMIT
        );
    }
}
