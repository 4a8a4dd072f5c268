//! The page: a document without script that loads nothing.

use std::collections::BTreeMap;

use attest_gateway::sightings::Sighting;
use attest_log::NEXT_STEP;
use attest_machines::waiting::QuestionRow;
use attest_pool::WaitingRules;
use attest_system::clock::rfc3339;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64;

use super::super::log::row;
use super::super::status::Status;
use super::super::waiting::shown::{ID_DIGITS, is_open, released, state, until};
use super::chart::{days, legend, time_line};
use super::history::{DAYS, DayCount, DecisionHistory};
use super::html::{Escaped, put, table};

const STYLE: &str = include_str!("style.css");
/// Maximum numbers of rows and pictures: a page of ten thousand machines is as long as one of a hundred.
const QUESTIONS_LIMIT: usize = 50;
const POOLS_LIMIT: usize = 20;
const POINTERS_LIMIT: usize = 50;
const ENDS_LIMIT: usize = 100;

/// Everything that the page shows.
pub(super) struct ReportPage {
    /// Time of the page, in seconds since 1970.
    pub(super) at: u64,
    pub(super) status: Status,
    pub(super) questions: Vec<QuestionRow>,
    /// Rules of the pools whose machines wait.
    pub(super) rules: BTreeMap<String, WaitingRules>,
    pub(super) history: DecisionHistory,
    pub(super) pointers: Vec<Sighting>,
    /// CAs in the gateway's file: fingerprint, subject, end.
    pub(super) authorities: Vec<[String; 3]>,
    /// Names of valid tokens, and their ends.
    pub(super) tokens: Vec<(String, u64)>,
}

impl ReportPage {
    pub(super) fn to_html(&self) -> String {
        let style = BASE64.encode(digest(&SHA256, STYLE.as_bytes()).as_ref());
        let at = rfc3339(self.at);
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"referrer\" content=\"no-referrer\">\n<title>Attestation gateway, {at}</title>\n<style>{STYLE}</style></head>\n<body><h1>Attestation gateway</h1><p class=\"quiet\">{at}</p>\n"
        );
        self.state(&mut text);
        self.waiting(&mut text);
        self.days(&mut text);
        self.last(&mut text);
        self.authorities(&mut text);
        self.ends(&mut text);
        self.log(&mut text);
        text.push_str("</body></html>\n");
        text
    }

    fn state(&self, text: &mut String) {
        match self.status.stops.as_slice() {
            [] => text.push_str("<p class=\"ok\"><strong>Nothing stops a boot.</strong></p>\n"),
            stops => list(text, "stop", &format!("Boots are stopped by {} problems:", stops.len()), stops),
        }
        if !self.status.warnings.is_empty() {
            list(text, "quiet", "Warnings:", &self.status.warnings);
        }
    }

    fn waiting(&self, text: &mut String) {
        text.push_str("<h2>Waiting for an answer</h2>\n");
        let open: Vec<&QuestionRow> = self.questions.iter().filter(|row| is_open(row)).collect();
        if open.is_empty() {
            return text.push_str("<p class=\"quiet\">No machine waits.</p>\n");
        }
        let mut rows = Vec::new();
        for row in open.iter().take(QUESTIONS_LIMIT) {
            let values: Vec<String> = row
                .question
                .about
                .rows()
                .into_iter()
                .map(|value| format!("{}: {}", value.what, value.value))
                .collect();
            let until = until(row, self.rules.get(&row.pool));
            rows.push([
                row.id.chars().take(ID_DIGITS).collect(),
                row.pool.clone(),
                values.join("; "),
                row.machines.to_string(),
                released(row),
                rfc3339(row.question.at),
                until.map_or_else(|| "-".to_owned(), rfc3339),
                row.question.network.clone(),
                state(row),
            ]);
        }
        let head = ["ID", "POOL", "WAITS FOR", "MACHINES", "RELEASES", "SINCE", "UNTIL", "FROM", "STATE"];
        text.push_str(&table(head, &rows));
        more(
            text,
            open.len().saturating_sub(QUESTIONS_LIMIT),
            "questions: attest-gateway waiting list",
        );
    }

    fn days(&self, text: &mut String) {
        put(text, format_args!("<h2>Today, and the last {DAYS} days</h2>\n"));
        let today = DAYS - 1;
        let mut pools: Vec<(&String, u64)> = self
            .history
            .pools
            .iter()
            .map(|(pool, days)| (pool, days.values().map(|count| count.total()).sum()))
            .collect();
        if pools.is_empty() {
            return text.push_str("<p class=\"quiet\">The log has no decision of these days.</p>\n");
        }
        pools.sort_by_key(|(pool, total)| (std::cmp::Reverse(*total), *pool));
        let rows: Vec<[String; 5]> = pools
            .iter()
            .take(POOLS_LIMIT)
            .map(|(pool, _)| {
                let days = self.history.pools.get(*pool);
                let DayCount {
                    trusted,
                    refused,
                    full,
                    pre_approved,
                } = days.and_then(|days| days.get(&today)).copied().unwrap_or_default();
                [
                    (*pool).clone(),
                    trusted.to_string(),
                    refused.to_string(),
                    full.to_string(),
                    pre_approved.to_string(),
                ]
            })
            .collect();
        text.push_str(&table(["POOL", "TRUSTED TODAY", "REFUSED", "FULL", "PRE-APPROVED"], &rows));
        text.push_str(&legend());
        for (pool, _) in pools.iter().take(POOLS_LIMIT) {
            put(text, format_args!("<h3>Pool {}</h3>\n", Escaped(pool)));
            text.push_str(&days(&self.history, pool));
        }
        more(text, pools.len().saturating_sub(POOLS_LIMIT), "pools with fewer decisions");
        if self.history.aggregated > 0 {
            put(
                text,
                format_args!(
                    "<p class=\"quiet\">{} more decisions about unauthenticated clients are in aggregated records.</p>\n",
                    self.history.aggregated
                ),
            );
        }
        if self.history.is_incomplete {
            text.push_str("<p class=\"stop\">Parts of the log could not be read: attest-gateway log show</p>\n");
        }
    }

    fn last(&self, text: &mut String) {
        text.push_str("<h2>Last decisions</h2>\n");
        let rows: Vec<[String; 6]> = self
            .history
            .last()
            .into_iter()
            .map(|fields| {
                let grant = fields.grant.as_ref().filter(|_| fields.verdict == "served");
                let decision = [Some(&fields.decision), Some(&fields.verdict), grant];
                let decision: Vec<&str> = decision.into_iter().flatten().map(String::as_str).collect();
                let next = fields.reason.rsplit_once(NEXT_STEP).map_or("", |(_, next)| next);
                [
                    fields.time.clone(),
                    row::node(fields),
                    fields.pool.clone(),
                    decision.join(" "),
                    fields.code.clone().unwrap_or_default(),
                    next.to_owned(),
                ]
            })
            .collect();
        if rows.is_empty() {
            return text.push_str("<p class=\"quiet\">There is none.</p>\n");
        }
        text.push_str(&table(["TIME", "NODE", "POOL", "DECISION", "CODE", "NEXT STEP"], &rows));
    }

    fn authorities(&self, text: &mut String) {
        text.push_str("<h2>CAs and pointers</h2>\n");
        text.push_str(&table(["CA", "SUBJECT", "UNTIL"], &self.authorities));
        if self.pointers.is_empty() {
            return text.push_str("<p class=\"quiet\">No pointer was used yet.</p>\n");
        }
        let mut pointers: Vec<&Sighting> = self.pointers.iter().collect();
        pointers.sort_by_key(|one| std::cmp::Reverse(one.last));
        let rows: Vec<[String; 5]> = pointers
            .iter()
            .take(POINTERS_LIMIT)
            .map(|one| {
                let carries = one.authorities.as_ref().map_or_else(|| "no claim".to_owned(), |all| all.join(", "));
                [one.pool.clone(), carries, one.accepted.clone(), rfc3339(one.last), one.peer.clone()]
            })
            .collect();
        text.push_str(&table(["POOL", "POINTER CARRIES", "ACCEPTED", "LAST SEEN", "FROM"], &rows));
        more(
            text,
            pointers.len().saturating_sub(POINTERS_LIMIT),
            "pointers: attest-gateway ca status",
        );
    }

    fn ends(&self, text: &mut String) {
        text.push_str("<h2>Certificates and tokens</h2>\n");
        let broken: Vec<String> = self
            .status
            .certificates
            .iter()
            .filter(|one| !one.is_good)
            .map(|one| format!("{}: {}", one.name, one.state))
            .collect();
        if !broken.is_empty() {
            list(text, "stop", "Need attention:", &broken);
        }
        let certificates = self
            .status
            .certificates
            .iter()
            .filter_map(|one| Some((one.name.clone(), one.expires?)));
        let tokens = self.tokens.iter().map(|(name, end)| (format!("token {name}"), *end));
        let mut ends: Vec<(String, u64)> = certificates.chain(tokens).filter(|(_, end)| *end >= self.at).collect();
        ends.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        let hidden = ends.split_off(ends.len().min(ENDS_LIMIT)).len();
        text.push_str(&time_line(&ends, self.at));
        more(text, hidden, "that end later");
    }

    fn log(&self, text: &mut String) {
        text.push_str("<h2>Log, store and replicas</h2>\n");
        let status = &self.status;
        let signed = match (&status.log.lines, &status.log.signed, &status.log.signed_at) {
            (Some(lines), Some(signed), Some(at)) => format!("up to line {signed} of {lines}, {at}"),
            (Some(lines), ..) => format!("none of {lines} lines"),
            _ => "there is no log yet".to_owned(),
        };
        let error = status.store.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let replicas = match &status.replicas {
            None => "one gateway".to_owned(),
            Some(hosts) if hosts.is_empty() => "none serves".to_owned(),
            Some(hosts) => hosts.join(", "),
        };
        let mut rows = vec![
            ["log signed".to_owned(), signed],
            ["chain".to_owned(), status.log.chain.clone().unwrap_or_default()],
            ["replicas".to_owned(), replicas],
            ["store".to_owned(), format!("{}{error}", status.store.place)],
        ];
        rows.extend(status.store.health.iter().map(|health| [String::new(), health.clone()]));
        text.push_str(&table(["WHAT", "STATE"], &rows));
    }
}

fn list(text: &mut String, class: &str, head: &str, items: &[String]) {
    put(
        text,
        format_args!(
            "<p class=\"{class}\"><strong>{}</strong></p><ul class=\"{class}\">\n",
            Escaped(head)
        ),
    );
    for item in items {
        put(text, format_args!("<li>{}</li>\n", Escaped(item)));
    }
    text.push_str("</ul>\n");
}

/// Says how many are not shown.
fn more(text: &mut String, hidden: usize, what: &str) {
    if hidden > 0 {
        put(text, format_args!("<p class=\"quiet\">And {hidden} more {}.</p>\n", Escaped(what)));
    }
}
