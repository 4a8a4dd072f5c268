//! Filter for records of the log, and the fields of a record that are read.

use std::borrow::Cow;
use std::collections::BTreeSet;

use attest_log::codes::CODES;
use attest_log::reading::LogFile;
use attest_log::{LineKind, Verdict};
use attest_system::clock::rfc3339;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::{durations, now};

/// Digits of a boot's id, which is a UUID.
const BOOT_ID_DIGITS: usize = 32;
/// Least length of a part of an identity that names a node, in characters: as long as what consoles show.
const PART_LEAST: usize = 8;

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub struct Filter {
    /// A node: its name, its identity or the beginning of it (`tpm:45c9302c…`, or the EK's digest alone), its cloud instance, a proven fact (the AK's Name, a vmId), or an administrator's action on it.
    #[arg(long, value_parser = some_text)]
    node: Option<String>,
    /// A boot, by the id that the node's console prints; any client can claim it.
    #[arg(long, value_name = "BOOT-ID", value_parser = boot)]
    boot: Option<String>,
    /// Records of this pool.
    #[arg(long)]
    pool: Option<String>,
    /// Code of a refusal (docs/reference/codes.md), also one that a node reports, or that an observing pool would have refused with.
    #[arg(long, value_parser = code)]
    code: Option<String>,
    /// Kind of line: challenge, evidence, config, counted, store_accepted, checkpoint, removed, report …
    #[arg(long, value_parser = parse_label::<LineKind>)]
    decision: Option<String>,
    /// Verdict on a challenge, evidence or a config: trusted, served, refused.
    #[arg(long, value_parser = parse_label::<Verdict>)]
    verdict: Option<String>,
    /// From this time on: RFC 3339 with its zone (2026-11-21T11:00:00Z, 2026-11-21T12:00:00+01:00), or how long ago (90m, 2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = when)]
    since: Option<u64>,
    /// Up to this time, itself included.
    #[arg(long, value_name = "TIME", value_parser = when)]
    until: Option<u64>,
    /// Other identities of the node, as far as they were looked up. The record of a refusal has the node's identity, and seldom its name.
    #[arg(skip)]
    known_by: BTreeSet<String>,
}

/// Filter for reports of failed boots.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub struct ReportFilter {
    /// A node that proved its attestation: its name, its identity or the beginning of it (`tpm:45c9302c…`, or the EK's digest alone), or its cloud instance.
    #[arg(long, value_parser = some_text)]
    node: Option<String>,
    /// Reports of this pool.
    #[arg(long)]
    pool: Option<String>,
    /// From this time on: RFC 3339 with its zone (2026-11-21T11:00:00Z, 2026-11-21T12:00:00+01:00), or how long ago (90m, 2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = when)]
    since: Option<u64>,
    /// Up to this time, itself included.
    #[arg(long, value_name = "TIME", value_parser = when)]
    until: Option<u64>,
}

impl From<ReportFilter> for Filter {
    fn from(ReportFilter { node, pool, since, until }: ReportFilter) -> Self {
        Self {
            node,
            pool,
            since,
            until,
            decision: Some("report".to_owned()),
            ..Self::default()
        }
    }
}

/// Fields of a record that are read. Records of other releases may have more.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct RecordFields {
    pub time: String,
    pub at: u64,
    pub id: String,
    pub decision: String,
    #[serde(default)]
    pub verdict: String,
    #[serde(default)]
    pub peer: String,
    #[serde(default)]
    pub pool: String,
    pub identity: Option<String>,
    pub instance: Option<String>,
    pub name: Option<String>,
    pub code: Option<String>,
    #[serde(default)]
    pub reason: String,
    pub grant: Option<String>,
    pub config_sha256: Option<String>,
    pub spec_version: Option<String>,
    pub not_attested: Option<NoEvidenceReason>,
    pub boot_id: Option<String>,
    pub booted_before: Option<String>,
    /// Present if an administrator may accept what it was refused for.
    pub acceptable: Option<IgnoredAny>,
    #[serde(default)]
    pub alerts: Vec<String>,
    /// Refusals that an observing pool would have made.
    #[serde(default)]
    pub would_refuse: Vec<WouldRefuseFields>,
    /// Present if evidence was verified; the identity is proven then.
    pub claims: Option<IgnoredAny>,
    /// Number of decisions in an aggregated record.
    pub counted: Option<u64>,
    pub chain: Option<ChainPosition>,
}

/// A refusal that an observing pool would have made.
#[derive(Debug, Clone, Deserialize)]
pub struct WouldRefuseFields {
    pub code: String,
    #[serde(default)]
    pub reason: String,
}

/// Reason that a node gives for not attesting.
#[derive(Debug, Clone, Deserialize)]
pub struct NoEvidenceReason {
    pub code: String,
}

/// Position of a record: its chain, and its number in it.
#[derive(Debug, Clone, Deserialize)]
pub struct ChainPosition {
    pub id: String,
    pub number: u64,
    /// Start of the chain, in its first line only.
    #[serde(default)]
    pub begins: Option<IgnoredAny>,
}

/// Claims of a node, proven or not.
#[derive(Deserialize)]
struct NodeClaims {
    claims: Option<Value>,
    basis: Option<BasisFields>,
}

/// Objects that an administrator changed.
#[derive(Deserialize)]
struct ActTarget {
    admin: Option<DoneTo>,
}

#[derive(Deserialize)]
struct DoneTo {
    #[serde(default)]
    things: Vec<ActObject>,
}

#[derive(Deserialize)]
struct ActObject {
    #[serde(default)]
    kind: String,
    id: String,
    before: Option<Value>,
    after: Option<Value>,
}

#[derive(Deserialize)]
struct BasisFields {
    challenge: Option<Value>,
}

impl RecordFields {
    /// Parses a line; returns `None` if it is not a record.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Returns the identities that a record assigns to this node: proven ones, or those given by an administrator.
    pub fn identities_of(&self, node: &str, line: &[u8]) -> Vec<String> {
        if self.name.as_deref() == Some(node) && self.claims.is_some() {
            return [&self.identity, &self.instance].into_iter().flatten().cloned().collect();
        }
        if self.decision != "admin" {
            return Vec::new();
        }
        let Ok(ActTarget {
            admin: Some(DoneTo { things }),
        }) = serde_json::from_slice::<ActTarget>(line)
        else {
            return Vec::new();
        };
        let is_named = |thing: &ActObject| thing.after.as_ref().and_then(|after| after.get("name")).and_then(Value::as_str) == Some(node);
        let listed = things.into_iter().filter(|thing| thing.kind == "ek" && is_named(thing));
        listed
            .map(|thing| match thing.id.contains(':') {
                true => thing.id,
                false => format!("tpm:{}", thing.id),
            })
            .collect()
    }

    /// Returns whether the record is a decision about a node that boots.
    pub fn is_of_a_boot(&self) -> bool {
        self.decides() && self.decision != "rehearsal"
    }

    /// Returns whether the record is a decision about a node, which has a verdict.
    pub fn decides(&self) -> bool {
        matches!(self.decision.as_str(), "challenge" | "evidence" | "config" | "rehearsal")
    }
}

impl Filter {
    /// Returns a filter that matches records from this time on, in seconds since 1970.
    #[must_use]
    pub fn since(at: u64) -> Self {
        Self {
            since: Some(at),
            ..Self::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        let Self {
            node,
            boot,
            pool,
            code,
            decision,
            verdict,
            since,
            until,
            known_by: _,
        } = self;
        let words = [node, boot, pool, code, decision, verdict];
        words.iter().all(|word| word.is_none()) && since.is_none() && until.is_none()
    }

    /// Returns whether the filter has a start time.
    pub const fn has_beginning(&self) -> bool {
        self.since.is_some()
    }

    /// Drops files from the list that end before the filter's start time.
    pub fn drop_older(&self, files: &mut Vec<LogFile>) {
        let Some(since) = self.since else { return };
        let mut next = files.iter().skip(1);
        let is_over = |file: &LogFile| next.next().is_some_and(|next| file.is_over_before(since, next));
        let over: Vec<bool> = files.iter().map(is_over).collect();
        let mut over = over.into_iter();
        files.retain(|_| over.next() != Some(true));
    }

    /// Returns whether a record matches the filter.
    pub fn takes(&self, fields: &RecordFields, line: &[u8]) -> bool {
        let is = |asked: &Option<String>, found: &str| asked.as_deref().is_none_or(|asked| asked == found);
        let said = fields.not_attested.as_ref().map(|said| said.code.as_str());
        let codes = [fields.code.as_deref(), said];
        let would_refuse = |code: &str| fields.would_refuse.iter().any(|one| one.code == code);
        is(&self.pool, &fields.pool)
            && (self.boot.is_none() || self.boot == fields.boot_id)
            && is(&self.decision, &fields.decision)
            && (self.verdict.is_none() || fields.decides() && is(&self.verdict, &fields.verdict))
            && self
                .code
                .as_deref()
                .is_none_or(|code| codes.contains(&Some(code)) || would_refuse(code))
            && self.is_in_time(fields.at)
            && self
                .node
                .as_deref()
                .is_none_or(|node| self.knows(fields) || is_of(node, fields, line))
    }

    /// Returns the node of the filter.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Lets the filter match records with these identities, too.
    pub fn know_by(&mut self, identities: impl IntoIterator<Item = String>) {
        self.known_by.extend(identities);
    }

    /// Returns whether a record is of an identity of the node.
    fn knows(&self, fields: &RecordFields) -> bool {
        let identities = [&fields.identity, &fields.instance].into_iter().flatten();
        identities.into_iter().any(|identity| self.known_by.contains(identity))
    }

    /// Returns whether a refusal was found by a name or an identity that was only claimed. The node itself has claimed it, or a client that
    /// has read its TPM's public key.
    fn is_claimed(&self, fields: &RecordFields) -> bool {
        let proves = matches!(fields.decision.as_str(), "challenge" | "evidence" | "rehearsal") && fields.verdict == "refused";
        proves && fields.claims.is_none() && (fields.name == self.node || self.knows(fields))
    }

    /// Returns the record for display. One that was found by unproven claims has the name of the node that is meant.
    pub fn labelled<'f>(&self, fields: &'f RecordFields) -> Cow<'f, RecordFields> {
        match &self.node {
            Some(node) if self.is_claimed(fields) => Cow::Owned(RecordFields {
                name: Some(node.clone()),
                ..fields.clone()
            }),
            _ => Cow::Borrowed(fields),
        }
    }

    fn is_in_time(&self, at: u64) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at <= until)
    }

    /// Returns the number of decisions in an aggregated record that does not match the filter itself. Some of them may match.
    pub fn passes_over(&self, fields: &RecordFields, line: &[u8]) -> u64 {
        let counted = fields.counted.filter(|_| self.is_in_time(fields.at)).unwrap_or(0);
        if counted > 0 && self.takes(fields, line) { 0 } else { counted }
    }

    /// Returns a warning about a filter that is probably a mistake.
    pub fn doubts(&self) -> Option<String> {
        let known = |code: &str| {
            let refused = [attest::reject::ADVICE, attest::tpm::ADVICE, CODES];
            refused.iter().any(|codes| codes.iter().any(|advice| advice.code == code)) || attest_log::WAITED.contains(&code)
        };
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            return Some(format!(
                "--since {} is after --until {}: no record can match",
                rfc3339(since),
                rfc3339(until)
            ));
        }
        let code = self.code.as_deref().filter(|code| !known(code))?;
        Some(format!(
            "this release has no refusal code {code:?}; docs/reference/codes.md lists the codes"
        ))
    }
}

fn is_of(node: &str, fields: &RecordFields, line: &[u8]) -> bool {
    if fields.name.as_deref() == Some(node) {
        return true;
    }
    let identities = [&fields.identity, &fields.instance].into_iter().flatten();
    if identities.into_iter().any(|identity| is_named(node, identity)) {
        return true;
    }
    if fields.decision == "admin" {
        return serde_json::from_slice::<ActTarget>(line).is_ok_and(|ActTarget { admin }| admin.is_some_and(|admin| admin.is_about(node)));
    }
    let long = node.chars().count() >= PART_LEAST;
    let within = |value: &Option<Value>| value.as_ref().is_some_and(|value| says(value, node));
    long && std::str::from_utf8(line).is_ok_and(|line| line.contains(node))
        && serde_json::from_slice::<NodeClaims>(line)
            .is_ok_and(|NodeClaims { claims, basis }| within(&claims) || basis.is_some_and(|basis| within(&basis.challenge)))
}

/// Returns whether an identity is that of a node, named in full or by its beginning.
fn is_named(node: &str, identity: &str) -> bool {
    let bare = identity.split_once(':').map_or("", |(_, bare)| bare);
    let begins = node.chars().count() >= PART_LEAST && (identity.starts_with(node) || bare.starts_with(node));
    begins || identity == node || bare == node
}

impl DoneTo {
    fn is_about(&self, node: &str) -> bool {
        let within = |value: &Option<Value>| value.as_ref().is_some_and(|value| says(value, node));
        self.things
            .iter()
            .any(|thing| is_named(node, &thing.id) || within(&thing.before) || within(&thing.after))
    }
}

/// Returns whether the text is a whole string anywhere in the value.
fn says(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found == text,
        Value::Array(values) => values.iter().any(|value| says(value, text)),
        Value::Object(members) => members.values().any(|value| says(value, text)),
        _ => false,
    }
}

fn some_text(text: &str) -> Result<String, String> {
    match text.trim_end_matches('…') {
        "" => Err("a node is required".to_owned()),
        text => Ok(text.to_owned()),
    }
}

fn code(text: &str) -> Result<String, String> {
    let takes = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || !text.chars().all(takes) {
        return Err("expected lower-case words joined by '-', such as ek-not-endorsed".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a word of the log that this release knows.
fn parse_label<T: DeserializeOwned>(text: &str) -> Result<String, String> {
    match serde_json::from_value::<T>(Value::String(text.to_owned())) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses the id of a boot; journald prints it without hyphens.
fn boot(text: &str) -> Result<String, String> {
    let digits: String = text
        .chars()
        .filter(|character| *character != '-')
        .collect::<String>()
        .to_ascii_lowercase();
    if digits.len() != BOOT_ID_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("expected the id of a boot: 32 hexadecimal digits, with or without hyphens".to_owned());
    }
    let parts = [0..8, 8..12, 12..16, 16..20, 20..BOOT_ID_DIGITS].map(|part| digits.get(part).unwrap_or_default().to_owned());
    Ok(parts.join("-"))
}

/// Parses a time, in seconds since 1970.
///
/// # Errors
/// A description of the expected forms.
pub fn when(text: &str) -> Result<u64, String> {
    if let Ok(ago) = durations::seconds(text) {
        return Ok(now().saturating_sub(ago));
    }
    let usage =
        "expected a time with its zone, such as 2026-11-21T11:00:00Z or 2026-11-21T12:00:00+01:00, or an age with s, m, h or d, such as 2h";
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| usage.to_owned())?;
    u64::try_from(time.unix_timestamp()).map_err(|_| "the time is before 1970".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const EK: &str = "45c9302c71e4234d45c9302c71e4234d45c9302c71e4234d45c9302c71e4234d";

    fn line() -> String {
        format!(
            r#"{{"v":1,"time":"2026-11-21T11:00:46Z","at":1795258846,"id":"{}","decision":"evidence","verdict":"trusted","peer":"192.0.2.31:43696","pool":"worker","shown":"tpm","identity":"tpm:{EK}","instance":"azure:6f0c/11111111-2222-3333-4444-555555555555","name":"worker-7","reason":"","claims":{{"tpm":{{"ak_name":"000b{EK}"}}}},"not_attested":{{"code":"retry-limit-exceeded"}}}}"#,
            "7".repeat(32)
        )
    }

    fn takes(filter: &Filter) -> bool {
        let line = line();
        filter.takes(&RecordFields::parse(line.as_bytes()).unwrap(), line.as_bytes())
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn node_filter_matches_each_name_and_identity() {
        let ak = format!("000b{EK}");
        let check = |node: &str, expected| {
            let filter = Filter {
                node: some_text(node).ok(),
                ..Filter::default()
            };
            assert_eq!(takes(&filter), expected, "{node}");
        };
        for node in ["worker-7", EK, &format!("tpm:{EK}"), "45c9302c…", "tpm:45c9", &ak] {
            check(node, true);
        }
        check("azure:6f0c/11111111-2222-3333-4444-555555555555", true);
        check("6f0c/11111111", true);
        let other = format!("46{}", EK.get(2..).unwrap());
        for node in [
            "worker",
            "worker-77",
            "45c9302",
            &other,
            "000b45c9",
            "192.0.2.31",
            "worker-8",
            "trusted",
        ] {
            check(node, false);
        }
    }

    #[test]
    fn each_filter_selects_only_matching_records() {
        let with = |set: &dyn Fn(&mut Filter)| {
            let mut filter = Filter::default();
            set(&mut filter);
            takes(&filter)
        };
        assert!(Filter::default().is_empty() && takes(&Filter::default()));
        let at = 1_795_258_846;
        assert!(with(&|filter| filter.pool = text("worker")));
        assert!(!with(&|filter| filter.pool = text("infra")));
        assert!(with(&|filter| filter.code = text("retry-limit-exceeded")));
        assert!(!with(&|filter| filter.code = text("ek-not-endorsed")));
        assert!(with(&|filter| filter.decision = text("evidence")));
        assert!(!with(&|filter| filter.decision = text("config")));
        assert!(with(&|filter| filter.verdict = text("trusted")));
        assert!(!with(&|filter| filter.verdict = text("refused")));
        assert!(with(&|filter| filter.since = Some(at)));
        assert!(!with(&|filter| filter.since = Some(at + 1)));
        assert!(with(&|filter| filter.until = Some(at)));
        assert!(!with(&|filter| filter.until = Some(at - 1)));
    }

    #[test]
    fn time_has_a_zone_or_is_relative() {
        let at = 1_795_258_800;
        assert_eq!(when("2026-11-21T11:00:00Z"), Ok(at));
        assert_eq!(when("2026-11-21T12:00:00+01:00"), Ok(at));
        let ago = now() - when("2h").unwrap();
        assert!((7200..7260).contains(&ago), "{ago}");
        for wrong in [
            "2026-11-21T11:00:00",
            "2026-11-21",
            "yesterday",
            "",
            "2",
            "-2h",
            "1969-12-31T23:59:59Z",
        ] {
            assert!(when(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rejects_unknown_kinds_verdicts_and_codes() {
        assert_eq!(parse_label::<LineKind>("store_accepted"), Ok("store_accepted".to_owned()));
        let error = parse_label::<LineKind>("evidences").unwrap_err();
        assert!(error.contains("`challenge`") && error.contains("`checkpoint`"), "{error}");
        assert!(parse_label::<Verdict>("Trusted").is_err());
        assert!(code("EK not endorsed").is_err() && code("").is_err());
        let doubts = |code: &str| {
            let filter = Filter {
                code: text(code),
                ..Filter::default()
            };
            filter.doubts()
        };
        assert_eq!(doubts("ek-not-endorsed"), None);
        assert_eq!(doubts("retry-limit-exceeded"), None);
        assert!(doubts("ek-not-endorse").unwrap().contains("docs/reference/codes.md"));
    }
}
