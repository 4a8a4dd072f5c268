//! Questions as text and as JSON.

use attest_log::Acceptable;
use attest_machines::waiting::{Answered, QuestionAnswer, QuestionRow, RelatedQuestion, Showing};
use attest_pool::{PoolFile, WaitingRules};
use attest_system::advised_commands::{quoted, runnable};
use attest_system::clock::{lasting, rfc3339};
use serde_json::{Value, json};

use super::acceptance::written;
use crate::commands::visible;

/// Digits of an id in the list: enough to name the question.
pub(in crate::commands) const ID_DIGITS: usize = 12;
/// Values that are named of another question.
const NAMED_LIMIT: usize = 3;

/// Returns whether a machine still waits: also after an acceptance, if its gateway does not have that file.
pub(in crate::commands) fn is_open(row: &QuestionRow) -> bool {
    match &row.answered {
        None => true,
        Some(answered) => !answered.is_no() && !row.showing.is_empty(),
    }
}

/// Returns the state of a question in words.
pub(in crate::commands) fn state(row: &QuestionRow) -> String {
    match &row.answered {
        Some(Answered {
            said: QuestionAnswer::Accepted { to },
            at,
            by,
        }) => format!("accepted by {by} {} in {to}", rfc3339(*at)),
        Some(Answered {
            said: QuestionAnswer::Refused { reason },
            at,
            by,
        }) => format!("refused by {by} {}: {reason}", rfc3339(*at)),
        None if row.is_asked => "asked".to_owned(),
        None => "counted".to_owned(),
    }
}

/// Returns the number of machines that an acceptance releases.
pub(in crate::commands) fn released(row: &QuestionRow) -> String {
    match row.question.then_values {
        0 => released_machines(row).to_string(),
        values => format!("0, then {values} values"),
    }
}

fn released_machines(row: &QuestionRow) -> usize {
    if row.question.then_values > 0 {
        return 0;
    }
    let within = row.related.iter().filter(|beside| beside.more.is_empty());
    let within: usize = within.map(|beside| beside.machines).sum();
    row.showing.len().saturating_add(row.more).saturating_add(within)
}

/// Returns the time until which the machine that has waited longest retries, in seconds since 1970.
pub(in crate::commands) fn until(row: &QuestionRow, rules: Option<&WaitingRules>) -> Option<u64> {
    let first = row.showing.iter().filter(|one| !one.observed).map(|one| one.since).min()?;
    Some(first.saturating_add(rules?.wait_seconds))
}

/// Returns a question for programs.
pub(in crate::commands) fn json(row: &QuestionRow, rules: Option<&WaitingRules>, now: u64) -> Value {
    let values = row.question.about.rows();
    let values: Vec<Value> = values
        .into_iter()
        .map(|value| json!({ "what": value.what, "value": value.value, "called": value.called }))
        .collect();
    let machines: Vec<Value> = row
        .showing
        .iter()
        .map(|one| json!({ "identity": one.machine, "name": one.name, "since": one.since, "observed": one.observed }))
        .collect();
    json!({
        "id": row.id,
        "pool": row.pool,
        "about": row.question.about,
        "values": values,
        "owner": row.owner,
        "asked_name": row.question.name,
        "network": row.question.network,
        "record": row.question.decision,
        "machines": row.machines,
        "machines_wanted": rules.map(|rules| rules.machines),
        "releases": released_machines(row),
        "then_values": row.question.then_values,
        "waiting": machines,
        "more_waiting": row.more,
        "since": row.question.at,
        "last": row.last,
        "until": until(row, rules),
        "now": now,
        "asked": row.is_asked,
        "answer": row.answered,
    })
}

/// Describes a question for the person who answers it.
pub(in crate::commands) fn describe(row: &QuestionRow, file: Option<&PoolFile>, now: u64) -> String {
    let rules = file.and_then(|file| file.waiting);
    let about = &row.question.about;
    let mut lines = vec![format!("question {} of pool {}: {}", row.id, row.pool, state(row))];
    for value in about.rows() {
        let called = match value.called.as_str() {
            "" => String::new(),
            called => format!(" ({called})"),
        };
        lines.push(format!("  {}: {}{called}", value.what, value.value));
    }
    if let Some(owner) = &row.owner {
        lines.push(format!("  it belongs to {owner} now, from which an acceptance takes it"));
    }
    if let Some(name) = &row.question.name {
        lines.push(format!(
            "  first shown by a machine that asks for the name {name:?}, from {}",
            row.question.network
        ));
    } else {
        lines.push(format!("  first shown from {}", row.question.network));
    }
    match (about.values().is_empty(), rules) {
        (false, Some(rules)) => lines.push(format!("  shown by {} machines; the pool asks at {}", row.machines, rules.machines)),
        (false, None) => lines.push(format!("  shown by {} machines", row.machines)),
        (true, _) => {}
    }
    lines.push(match row.question.then_values {
        0 => "if accepted, these machines are trusted, unless a name or an instance of theirs belongs to another:".to_owned(),
        values => format!("if accepted, these machines wait next for {values} booted values:"),
    });
    lines.extend(row.showing.iter().map(|one| format!("  - {}", waits(one, rules.as_ref(), now))));
    if row.more > 0 {
        lines.push(format!("  - and {} more machines", row.more));
    }
    let (within, beyond): (Vec<&RelatedQuestion>, Vec<&RelatedQuestion>) = row.related.iter().partition(|beside| beside.more.is_empty());
    lines.extend(within.iter().map(|beside| {
        let RelatedQuestion { id, machines, .. } = beside;
        format!("  - {machines} machines of question {id}, whose values are all in this question")
    }));
    lines.extend(beyond.iter().map(|beside| {
        let RelatedQuestion { id, machines, more } = beside;
        let mut what: Vec<String> = more.iter().take(NAMED_LIMIT).cloned().collect();
        if let Some(left @ 1..) = more.len().checked_sub(NAMED_LIMIT) {
            what.push(format!("and {left} more"));
        }
        format!(
            "not enough for {machines} machines of question {id}, which also booted: {}",
            what.join("; ")
        )
    }));
    if row.more_beside > 0 {
        lines.push(format!("{} more questions share values with it", row.more_beside));
    }
    lines.push(format!("an acceptance writes: {}", written(about, &row.pool, file)));
    let id = &row.id;
    let asked = row.question.name.as_deref().unwrap_or("NODE");
    let name = match about {
        Acceptable::Ek(_) => format!(" --name {}", quoted(asked)),
        _ => String::new(),
    };
    lines.push(format!("to accept: `attest-gateway waiting accept {id}{name}`"));
    lines.push(format!("to refuse: `attest-gateway waiting refuse {id} --reason TEXT`"));
    let record = &row.question.decision;
    lines.push(format!(
        "to read the evidence, on the gateway that has verified it: `attest-gateway log show --record {record}`"
    ));
    if !about.values().is_empty() {
        lines.push(format!(
            "to test the pool's present rules: `attest-audit policy test {} --record {record}`",
            row.pool
        ));
    }
    let lines: String = lines.iter().map(|line| format!("{}\n", visible(line))).collect();
    runnable(&lines).into_owned()
}

/// Describes a machine that waits, since when and until when.
fn waits(one: &Showing, rules: Option<&WaitingRules>, now: u64) -> String {
    let who = match &one.name {
        Some(name) => format!("{name} ({})", one.machine),
        None => one.machine.clone(),
    };
    let since = rfc3339(one.since);
    if one.observed {
        return format!("{who}: trusted since {since}, because the pool observes");
    }
    let Some(rules) = rules else {
        return format!("{who}: waits since {since}; its pool has no [waiting] any more, or cannot be read");
    };
    let until = one.since.saturating_add(rules.wait_seconds);
    match until.saturating_sub(now) {
        0 => format!("{who}: refused; it waited from {since} until {}", rfc3339(until)),
        // In minutes, while there are some.
        left => {
            let left = if left < 60 { left } else { left.next_multiple_of(60) };
            format!("{who}: waits since {since}, until {} ({} left)", rfc3339(until), lasting(left))
        }
    }
}
