//! Administrative acts in the log that a backup lacks, and the commands that repeat them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use attest_log::admin::{Act, ValueChange, Verb};
use attest_log::reading::{LineContent, LogFile, LogFiles, log_files};
use attest_log::{Link, StorePosition};
use attest_system::advised_commands::{quoted, runnable};
use attest_system::clock::rfc3339;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::backup_file::Backup;
use crate::commands::{output, visible};

/// Time before the backup from which on lines are read: clocks of several gateways differ.
const MARGIN_SECONDS: u64 = 600;

/// Acts since a backup.
pub(super) struct YoungerActs {
    /// Time of the backup, in seconds since 1970.
    at: u64,
    completeness: Completeness,
    acts: Vec<YoungerAct>,
    /// Ids of acts that wait in the outbox of the backup, and that the log has.
    pub(super) recorded: BTreeSet<String>,
}

/// Extent to which the log tells what happened since the backup.
enum Completeness {
    /// The log continues the backup's, and has the last acts of the replaced store.
    Whole,
    /// The log continues the backup's. Acts that waited in the replaced store are lost with it.
    LastActsLost,
    NoLog,
    /// The log is another one, or ends before.
    Other,
    /// Files or lines cannot be read.
    Unread(u64),
}

/// An act that the backup lacks.
struct YoungerAct {
    act: Act,
    /// Commands that repeat it.
    commands: Vec<String>,
    /// Advice in place of a command, or in addition.
    advice: Option<&'static str>,
}

/// Members of a line that this needs.
#[derive(Deserialize)]
struct ActLine {
    at: u64,
    chain: Option<Link>,
    store: Option<StorePosition>,
    admin: Option<Value>,
}

impl YoungerActs {
    /// Finds the acts in the log that the backup lacks. Without `knows_last_acts` the replaced store may have had more.
    pub(super) fn find(log: &Path, backup: &Backup, knows_last_acts: bool) -> anyhow::Result<Self> {
        let mut found = Self {
            at: backup.site.at,
            completeness: Completeness::NoLog,
            acts: Vec::new(),
            recorded: BTreeSet::new(),
        };
        let since = found.at.saturating_sub(MARGIN_SECONDS);
        let LogFiles { files, unreadable } = log_files(log)?;
        if !files
            .iter()
            .any(|file| fs::metadata(file.path()).is_ok_and(|found| found.len() > 0))
            && unreadable.is_empty()
        {
            return Ok(found);
        }
        let mut unread = u64::try_from(unreadable.len()).unwrap_or(u64::MAX);
        let (mut continues, mut seen) = (backup.site.log.is_none(), BTreeSet::new());
        if let (Some(then), Some(now)) = (&backup.site.log, attest_log::log_head(log)?) {
            continues |= now.chain == then.chain && now.number >= then.number;
        }
        for file in files.iter().filter(|file| is_since(file, since)) {
            let read = file.lines(0).and_then(|mut lines| {
                while let Some(content) = lines.read()? {
                    match content {
                        LineContent::Line(line) => {
                            let Ok(line) = serde_json::from_slice::<ActLine>(line) else {
                                unread += 1;
                                continue;
                            };
                            continues |= found.add(line, since, backup, &mut seen);
                        }
                        LineContent::Cut => {}
                        LineContent::TooLong(_) => unread += 1,
                    }
                }
                Ok(())
            });
            unread += u64::from(read.is_err());
        }
        found.completeness = match (unread, continues) {
            (1.., _) => Completeness::Unread(unread),
            (0, true) if knows_last_acts => Completeness::Whole,
            (0, true) => Completeness::LastActsLost,
            (0, false) => Completeness::Other,
        };
        Ok(found)
    }

    /// Adds the act of a line, if the backup lacks it. Returns whether the line continues the backup's log.
    fn add(&mut self, line: ActLine, since: u64, backup: &Backup, seen: &mut BTreeSet<String>) -> bool {
        let ActLine { at, chain, store, admin } = line;
        let then = backup
            .site
            .log
            .as_ref()
            .zip(chain.as_ref())
            .filter(|(then, chain)| then.chain == chain.id);
        if at < since || then.is_some_and(|(then, chain)| chain.number <= then.number) {
            return false;
        }
        let act = admin.and_then(|act| serde_json::from_value::<Act>(act).ok());
        let Some((act, id)) = act.and_then(|act| act.outbox.clone().map(|id| (act, id))) else {
            return then.is_some();
        };
        if backup.outbox.waiting.contains(&id) {
            self.recorded.insert(id);
            return then.is_some();
        }
        // Another store counts its acts by itself.
        let is_same = store.is_some_and(|store| store.id == backup.exported.store.id);
        if act.refused.is_none() && !(is_same && backup.outbox.contains(&id)) && seen.insert(id) {
            self.acts.extend(YoungerAct::new(act));
        }
        then.is_some()
    }

    pub(super) fn json(&self) -> Value {
        let acts = self.acts.iter().map(|YoungerAct { act, commands, advice }| {
            let commands: Vec<String> = commands.iter().map(|command| shown(command)).collect();
            json!({ "act": act.verb, "at": act.at, "by": act.by, "things": act.things, "commands": commands, "advice": advice })
        });
        json!({ "since": self.at, "complete": matches!(self.completeness, Completeness::Whole), "acts": acts.collect::<Vec<_>>() })
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        let since = rfc3339(self.at);
        match self.completeness {
            Completeness::Whole => {}
            Completeness::LastActsLost => output::line(format_args!(
                "The replaced store could not be read: acts since {since} that no gateway has recorded are lost, and may be missing below."
            ))?,
            Completeness::NoLog => output::line(format_args!(
                "There is no attestation log here: acts since {since} are unknown, and must be repeated from another copy of the log:\n  {}",
                shown(&format!(
                    "attest-gateway log show --log COPY --decision admin --since {since} --wide"
                ))
            ))?,
            Completeness::Other => output::line(format_args!(
                "The attestation log here does not continue the log of the backup: acts since {since} may be missing below."
            ))?,
            Completeness::Unread(count) => output::line(format_args!(
                "{count} lines or files of the attestation log cannot be read: acts since {since} may be missing below."
            ))?,
        }
        if self.acts.is_empty() {
            if matches!(self.completeness, Completeness::Whole) {
                output::line(format_args!("No act since {since} must be repeated."))?;
            }
        } else {
            output::line(format_args!("Repeat the acts since {since}, in this order:"))?;
            self.acts.iter().try_for_each(YoungerAct::print)?;
        }
        output::line("The backup lacks uses of tokens since then: rotate each token with a number of uses, as `token list` shows them.")
    }
}

/// Returns whether the file may have lines since this time.
fn is_since(file: &LogFile, since: u64) -> bool {
    let changed = fs::metadata(file.path()).and_then(|found| found.modified()).ok();
    let changed = changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    changed.is_none_or(|at| at.as_secs() >= since)
}

/// Returns the command with the configuration in use.
fn shown(command: &str) -> String {
    runnable(&format!("`{command}`")).trim_matches('`').to_owned()
}

/// Returns the machine, token or other thing that an act is about.
fn subject(act: &Act) -> String {
    let mut ids: Vec<&str> = act.things.iter().map(|thing| thing.id.as_str()).collect();
    ids.dedup();
    ids.join(" ")
}

impl YoungerAct {
    /// Prints the act, and below it the commands, which may be long.
    fn print(&self) -> anyhow::Result<()> {
        let Self { act, commands, advice } = self;
        output::line(format_args!(
            "{}  {}  {}  by {}",
            rfc3339(act.at),
            act.verb,
            visible(&subject(act)),
            visible(&act.by.to_string())
        ))?;
        for command in commands {
            output::line(format_args!("    {}", shown(command)))?;
        }
        match advice {
            Some(advice) => output::line(format_args!("    ({advice})")),
            None => Ok(()),
        }
    }

    /// Returns the act, unless it need not be repeated.
    fn new(act: Act) -> Option<Self> {
        let of = |kind: &str| -> Vec<&ValueChange> { act.things.iter().filter(|thing| thing.kind == kind).collect() };
        let each = |things: Vec<&ValueChange>, command: &str| -> Vec<String> {
            let ids: BTreeSet<String> = things.iter().map(|thing| quoted(&thing.id)).collect();
            ids.into_iter().map(|id| format!("attest-gateway {command} {id}")).collect()
        };
        let mut advice = None;
        let commands = match act.verb {
            Verb::NodeRevoke => of("revoked").into_iter().map(revoke).collect(),
            Verb::NodeRestore => each(of("revoked"), "node restore --only"),
            Verb::NodeForget => each(of("name"), "node forget"),
            Verb::NodeForgetHistory => each(of("clock"), "node forget-history"),
            Verb::NodeRelease => each(of("instance"), "node release"),
            Verb::EkAdd => of("ek").into_iter().map(add_ek).collect(),
            Verb::MachinesImport => {
                advice = Some("the record has the file's SHA-256: import the same file");
                each(of("file"), "machines import")
            }
            Verb::EkRemove => each(of("ek"), "ek remove"),
            Verb::EkForget => each(of("ek"), "ek remove --leave-to-roots"),
            Verb::WaitingRefuse => {
                advice = Some("answer the question again: `attest-gateway waiting list`");
                Vec::new()
            }
            Verb::WaitingAccept => {
                let eks: Vec<String> = of("ek").into_iter().map(add_ek).collect();
                let is_elsewhere = of("name").is_empty() && of("clock").is_empty();
                if eks.is_empty() && is_elsewhere {
                    // The files of the pools have what was accepted.
                    return None;
                }
                if eks.is_empty() {
                    advice = Some("accept it again: `attest-gateway waiting accept --record`");
                }
                eks
            }
            Verb::TokenCreate => {
                advice = Some("the token is unknown: create another with `attest-gateway token create --pool POOL`");
                Vec::new()
            }
            Verb::TokenImport => {
                advice = Some("the token is unknown: import it again with `attest-gateway token create --from-file`");
                Vec::new()
            }
            Verb::TokenRotate => {
                advice = Some("the old token is valid again, the new one unknown");
                each(of("token"), "token rotate")
            }
            Verb::TokenRevoke => each(of("token"), "token revoke"),
            Verb::LogAbandon => {
                let chains: BTreeSet<&str> = act.things.iter().filter_map(|thing| Some(thing.id.split_once('.')?.0)).collect();
                chains
                    .into_iter()
                    .map(|chain| format!("attest-gateway log abandon {chain}"))
                    .collect()
            }
            _ => return None,
        };
        if act.more > 0 || (commands.is_empty() && advice.is_none()) {
            advice = Some("the log does not name all things of this act");
        }
        Some(Self { act, commands, advice })
    }
}

fn revoke(thing: &ValueChange) -> String {
    let reason = thing.after.as_ref().and_then(|after| after.get("reason")?.as_str());
    let reason = reason.map(|reason| format!(" --reason {}", quoted(reason))).unwrap_or_default();
    format!("attest-gateway node revoke {} --anyway{reason}", quoted(&thing.id))
}

fn add_ek(thing: &ValueChange) -> String {
    let member = |name: &str| thing.after.as_ref().and_then(|after| after.get(name));
    // Its name went to another machine.
    if member("removed").is_some() {
        return format!("attest-gateway ek remove {}", quoted(&thing.id));
    }
    let name = member("name").and_then(Value::as_str);
    let name = name.map(|name| format!(" --name {} --replace", quoted(name))).unwrap_or_default();
    let pools = member("pools")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let pools: String = pools.map(|pool| format!(" --pool {}", quoted(pool))).collect();
    format!("attest-gateway ek add {}{name}{pools}", quoted(&thing.id))
}
