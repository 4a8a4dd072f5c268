//! Formats a record as one line, for an operator at 3 a.m.

pub(crate) use crate::commands::{visible, visible_json};
use attest_log::{NEXT_STEP, accept_command};

use attest_command_line::records::RecordFields;

/// Widths of the columns, in characters; longer text is cut without `--wide`.
const NODE: usize = 28;
const POOL: usize = 14;
const DECISION: usize = 19;
const CODE: usize = 24;
const NEXT: usize = 80;
/// Digits of an id, which are enough to ask for the record.
const ID: usize = 12;

/// Returns the names of the columns.
pub(crate) fn head() -> String {
    let [time, record, node, pool, decision, code] = ["TIME", "RECORD", "NODE", "POOL", "DECISION", "CODE"];
    format!("{time:<20}  {record:<ID$}  {node:<NODE$}  {pool:<POOL$}  {decision:<DECISION$}  {code:<CODE$}  NEXT STEP\n")
}

/// Returns the row of a record; nothing of it is cut if it is `wide`.
pub(crate) fn row(fields: &RecordFields, wide: bool) -> String {
    let limit = |limit: usize| if wide { usize::MAX } else { limit };
    let id: String = visible(&fields.id).chars().take(ID).collect();
    let node = cut(&node(fields), limit(NODE));
    let pool = cut(&visible(&fields.pool), limit(POOL));
    let decision = cut(&decision(fields), limit(DECISION));
    let code = cut(&code(fields), limit(CODE));
    let next = cut(&next_step(fields), limit(NEXT));
    let time = visible(&fields.time);
    let line = format!("{time:<20}  {id:<ID$}  {node:<NODE$}  {pool:<POOL$}  {decision:<DECISION$}  {code:<CODE$}  {next}");
    format!("{}\n", line.trim_end())
}

/// Returns the name, or else the identity, or else the address that it came from. A name that the machine has not proven is only claimed.
pub(crate) fn node(fields: &RecordFields) -> String {
    let is_refused = matches!(fields.decision.as_str(), "challenge" | "evidence" | "rehearsal") && fields.verdict == "refused";
    let of_name = fields.code.as_ref().is_some_and(|code| code.starts_with("node-name"));
    let is_claimed = is_refused && (fields.claims.is_none() || of_name);
    match &fields.name {
        Some(name) if is_claimed => format!("{} (claimed)", visible(name)),
        name => visible(name.as_ref().or(fields.identity.as_ref()).unwrap_or(&fields.peer)),
    }
}

fn decision(fields: &RecordFields) -> String {
    let grant = fields.grant.iter().filter(|_| fields.verdict == "served");
    let words = [&fields.decision].into_iter().chain(fields.decides().then_some(&fields.verdict));
    let words: Vec<String> = words.chain(grant).map(|word| visible(word)).collect();
    words.join(" ").replace("config served", "served")
}

/// Returns the code of a refusal; in brackets, the code that a node says it was refused by.
fn code(fields: &RecordFields) -> String {
    match (&fields.code, &fields.not_attested) {
        (Some(code), _) => visible(code),
        (None, Some(said)) => format!("({})", visible(&said.code)),
        (None, None) => String::new(),
    }
}

/// Returns the alert, the command that accepts it, the next step or else the reason, if it is not empty.
fn next_step(fields: &RecordFields) -> String {
    if let Some(alert) = fields.alerts.first() {
        return format!("ALERT: {}", visible(alert));
    }
    if let Some(first) = fields.would_refuse.first() {
        return format!("WOULD REFUSE {}: {}", visible(&first.code), visible(&first.reason));
    }
    if fields.acceptable.is_some() {
        return format!("`{}`", accept_command(&visible(&fields.id)));
    }
    let next = fields.reason.rsplit_once(NEXT_STEP).map(|(_, next)| next);
    match (next, fields.decision.as_str()) {
        // The node's own words: no next step of the gateway's is in them.
        (_, "report") => visible(&fields.reason),
        (Some(next), _) => visible(next),
        (None, "challenge" | "evidence" | "config" | "checkpoint") if fields.verdict != "refused" || fields.decision == "checkpoint" => {
            String::new()
        }
        (None, _) => visible(&fields.reason),
    }
}

fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use attest_command_line::is_command;
    use attest_command_line::records::WouldRefuseFields;

    fn fields() -> RecordFields {
        RecordFields {
            time: "2026-11-21T11:00:46Z".to_owned(),
            id: "127e54f3ecdd6c496ca8b038a5da45d6".to_owned(),
            decision: "challenge".to_owned(),
            verdict: "refused".to_owned(),
            peer: "192.0.2.40:43694".to_owned(),
            pool: "worker".to_owned(),
            ..RecordFields::default()
        }
    }

    #[test]
    fn refusal_row_has_identity_code_and_next_step() {
        let refused = RecordFields {
            identity: Some(format!("tpm:{}", "17bdc2c5".repeat(8))),
            code: Some("ek-not-endorsed".to_owned()),
            reason: "EK 17bdc2c5… is not on the allowlist; next: If this machine is yours: `attest-gateway ek add`".to_owned(),
            ..fields()
        };
        let said = "2026-11-21T11:00:46Z  127e54f3ecdd  tpm:17bdc2c517bdc2c517bdc2c…  worker          challenge refused    ek-not-endorsed           If this machine is yours: `attest-gateway ek add`\n";
        assert_eq!(row(&refused, false), said);
        assert!(row(&refused, true).contains(&"17bdc2c5".repeat(8)));
        let columns = |line: &str| {
            line.char_indices()
                .filter(|(place, _)| line.get(place.saturating_sub(2)..*place) == Some("  "))
                .count()
        };
        assert!(columns(&head()) >= 7);
        let place = |line: &str, word: &str| line.split(word).next().map(|before| before.chars().count());
        assert_eq!(place(&head(), "DECISION"), place(said, "challenge"));
        assert_eq!(place(&head(), "NEXT STEP"), place(said, "If this"));
    }

    #[test]
    fn formats_served_alert_and_observed_rows() {
        let served = RecordFields {
            decision: "config".to_owned(),
            verdict: "served".to_owned(),
            grant: Some("pre-approved".to_owned()),
            reason: "nothing was shown".to_owned(),
            ..fields()
        };
        let line = row(&served, false);
        assert!(
            line.contains("  192.0.2.40:43694  ") && line.ends_with("served pre-approved\n"),
            "{line}"
        );
        let alerted = RecordFields {
            alerts: vec!["the TPM's counters ran backwards".to_owned()],
            ..served
        };
        assert!(row(&alerted, false).ends_with("ALERT: the TPM's counters ran backwards\n"));
        let reported = RecordFields {
            decision: "report".to_owned(),
            verdict: String::new(),
            reason: "unverified: the first boot failed in stage disks (a.service): x; next: run this".to_owned(),
            ..fields()
        };
        assert!(row(&reported, true).ends_with("report                                         unverified: the first boot failed in stage disks (a.service): x; next: run this\n"), "{}", row(&reported, true));
        let observed = RecordFields {
            decision: "evidence".to_owned(),
            verdict: "trusted".to_owned(),
            would_refuse: vec![WouldRefuseFields {
                code: "pcr-mismatch".to_owned(),
                reason: "PCR 4 is ab".to_owned(),
            }],
            ..fields()
        };
        assert!(
            row(&observed, false).ends_with("evidence trusted                               WOULD REFUSE pcr-mismatch: PCR 4 is ab\n"),
            "{}",
            row(&observed, false)
        );
    }

    #[test]
    fn escapes_terminal_control_characters_from_nodes() {
        let text = "\u{1b}]0;owned\u{7}\u{9b}2J\u{7f}\u{202e}evil\r\n\u{200b}ä";
        assert_eq!(
            visible(text),
            "\\u{1b}]0;owned\\u{7}\\u{9b}2J\\u{7f}\\u{202e}evil\\u{d}\\u{a}\\u{200b}ä"
        );
        let json = "\"\u{9b}\u{7f}\u{e0041}ä\"";
        assert_eq!(visible_json(json), "\"\\u009b\\u007f\\udb40\\udc41ä\"");
        assert_eq!(
            serde_json::from_str::<String>(&visible_json(json)).ok(),
            serde_json::from_str(json).ok()
        );
        let hostile = RecordFields {
            time: text.to_owned(),
            id: text.to_owned(),
            decision: text.to_owned(),
            verdict: "served".to_owned(),
            peer: text.to_owned(),
            pool: text.to_owned(),
            name: Some(text.to_owned()),
            code: Some(text.to_owned()),
            reason: format!("{text}; next: {text}"),
            grant: Some(text.to_owned()),
            would_refuse: vec![WouldRefuseFields {
                code: text.to_owned(),
                reason: text.to_owned(),
            }],
            ..RecordFields::default()
        };
        for wide in [false, true] {
            assert!(!row(&hostile, wide).trim_end_matches('\n').chars().any(is_command));
        }
    }
}
