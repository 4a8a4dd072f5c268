//! The console's lines: the same decisions, for people.

use super::super::acceptable::accept_command;
use super::super::entry::{EventKind, LogEvent};
use super::super::reason::{late, with_before};
use super::super::record::{Decision, NotAttested, Record, ShownEvidence, Verdict};
use super::super::report::ReportSource;
use super::super::would_refuse::WouldRefuse;

/// Longest text that one part of a console line has, in characters; the record has all of it.
const SHOWN_LIMIT_CHARACTERS: usize = 1000;

fn printable(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(SHOWN_LIMIT_CHARACTERS) {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    if text.chars().nth(SHOWN_LIMIT_CHARACTERS).is_some() {
        out.push('…');
    }
    out
}

/// Returns a value as the log spells it.
#[must_use]
pub fn label(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Shows an event to people: checkpoints are not worth a line.
pub(super) fn show_event(event: &LogEvent) {
    let reason = printable(&event.reason);
    match &event.what {
        EventKind::Admin { admin } => tracing::info!(target: "attestation", "ADMIN {}: {reason}", attest_system::clock::rfc3339(admin.at)),
        EventKind::Removed { .. } => tracing::info!(target: "attestation", "REMOVED {reason}"),
        EventKind::Counted { peer, .. } => tracing::warn!(target: "attestation", "AGGREGATED peer={peer}: {reason}"),
        EventKind::Report {
            source:
                ReportSource {
                    peer,
                    pool,
                    identity,
                    name,
                    ..
                },
            ..
        } => {
            let who = printable(identity.as_deref().unwrap_or("unknown node"));
            let name = name.as_deref().map(|name| format!(" ({})", printable(name))).unwrap_or_default();
            let (pool, id) = (printable(pool), &event.id);
            tracing::warn!(target: "attestation", "REPORT {id} of {who}{name} pool={pool} peer={peer}: {reason}");
        }
        EventKind::StoreAccepted { .. } | EventKind::Checkpoint { .. } => {}
    }
}

/// Logs a line about a decision. The message has everything for people; the fields are for programs, in the console's JSON format.
macro_rules! say {
    ($level:ident, $record:ident, $($message:tt)+) => {
        tracing::$level!(
            target: "attestation",
            {
                "attestation.record" = $record.id.as_str(),
                "attestation.decision" = label(&$record.decision),
                "attestation.verdict" = label(&$record.verdict),
                "attestation.pool" = $record.pool.as_str(),
                "attestation.peer" = $record.peer.as_str(),
                "attestation.identity" = $record.identity.as_deref(),
                "attestation.name" = $record.name.as_deref(),
                "attestation.code" = $record.code.as_deref(),
                "attestation.boot_id" = $record.boot_id.as_deref(),
            },
            $($message)+
        )
    };
}

/// Logs the line for people.
pub(super) fn show<C, B>(record: &Record<C, B>) {
    let Record {
        decision,
        verdict,
        peer,
        pool,
        shown,
        identity,
        name,
        code,
        reason,
        booted_before,
        acceptable,
        boot_id,
        grant,
        ..
    } = record;
    // Some of this comes from the node as it is, and nothing of it may look like another line.
    let who = printable(identity.as_deref().unwrap_or("unknown node"));
    let name = name.as_deref().map(|name| format!(" ({})", printable(name))).unwrap_or_default();
    let boot = boot_id.as_ref().map(|id| format!(" boot={id}")).unwrap_or_default();
    let (pool, reason) = (printable(pool), printable(&with_before(reason, booted_before.as_deref())));
    let grant = grant.map(|grant| grant.to_string()).unwrap_or_default();
    let said = record.not_attested.as_ref().and_then(NotAttested::message).unwrap_or_default();
    match (verdict, decision) {
        (Verdict::Trusted, Decision::Rehearsal) => {
            say!(
                info,
                record,
                "REHEARSED {who}{name} pool={pool} peer={peer}{boot}: would be trusted: {reason}"
            );
        }
        (Verdict::Refused, Decision::Rehearsal) => {
            let code = code.as_deref().unwrap_or_default();
            say!(
                info,
                record,
                "REHEARSED {who}{name} pool={pool} peer={peer}{boot} code={code}: would be refused: {reason}"
            );
        }
        (Verdict::Trusted, _) => say!(info, record, "TRUSTED {who}{name} pool={pool} peer={peer}{boot}: {reason}"),
        (Verdict::Served, _) => {
            let shown = match shown {
                ShownEvidence::Ticket => format!("ticket of {who}{name}{}", record.used().map(late).unwrap_or_default()),
                ShownEvidence::Token if record.again => format!("token{name}, a use that was made before"),
                ShownEvidence::Token => format!("token{name}"),
                ShownEvidence::Kubelet => format!("client certificate of {who}"),
                _ => "nothing shown".to_owned(),
            };
            say!(info, record, "SERVED {grant} config, pool={pool} peer={peer}{boot}: {shown}{said}");
        }
        (Verdict::Refused, Decision::Config) => {
            let code = code.as_deref().unwrap_or_default();
            say!(
                warn,
                record,
                "REFUSED config, pool={pool} peer={peer}{boot} code={code}: {reason}{said}"
            );
        }
        (Verdict::Refused, _) => {
            let code = code.as_deref().unwrap_or_default();
            let accept = acceptable
                .as_ref()
                .map(|_| format!(" To accept it: `{}`.", accept_command(&record.id)));
            let accept = accept.unwrap_or_default();
            say!(
                warn,
                record,
                "NOT TRUSTED {who}{name} pool={pool} peer={peer}{boot} code={code}: {reason}{accept}"
            );
        }
    }
    if let Some(words) = WouldRefuse::describe(&record.would_refuse) {
        let words = printable(&words);
        say!(warn, record, "WOULD REFUSE {who}{name} pool={pool} peer={peer}{boot} {words}");
    }
    let who = if *shown == ShownEvidence::Token { "token".into() } else { who };
    for alert in &record.alerts {
        say!(warn, record, "ALERT {who}{name} pool={pool} peer={peer}{boot}: {alert}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::entry::LineKind;
    use super::*;

    #[test]
    fn console_escapes_control_characters_and_truncates() {
        assert_eq!(printable("a\nINFO TRUSTED tpm:00\u{1b}[2J"), "a\\nINFO TRUSTED tpm:00\\u{1b}[2J");
        assert_eq!(printable(&"ä".repeat(5000)).chars().count(), SHOWN_LIMIT_CHARACTERS + 1);
    }

    #[test]
    fn metrics_use_the_words_of_the_log() {
        assert_eq!(
            (label(&LineKind::StoreAccepted), label(&Verdict::Refused)),
            ("store_accepted".to_owned(), "refused".to_owned())
        );
    }
}
