//! Lookup of evidence records in the gateway's log.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::bail;
use attest::tpm::measured_boot::MeasuredBoot;
use attest::tpm::requirements::QuotedPcrs;
use attest::{Claims, Kind};
use attest_log::reading::{LineContent, LogFile, LogFiles, log_files};
use attest_log::{Decision, Record, Verdict, newer_log};
use serde::de::IgnoredAny;

/// Maximum number of decisions named when an id is ambiguous; the search ends there.
const NAMED_LIMIT: usize = 4;

/// A decision without its claims and their basis.
pub type Outline = Record<IgnoredAny, IgnoredAny>;

/// Minimum number of digits of an id that name a record.
pub const ID_LEAST: usize = 8;

/// Returns the line of the one decision whose id begins with these digits.
pub fn by_id(log: &Path, id: &str) -> anyhow::Result<String> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if id.len() < ID_LEAST || !id.bytes().all(hex) {
        bail!("{id:?} is not a decision id: pass at least the first {ID_LEAST} of its 32 hexadecimal digits");
    }
    let (mut found, mut others) = (None::<(String, String)>, BTreeSet::new());
    each(log, |fields, line| {
        if fields.id.starts_with(id) {
            match &found {
                Some((first, _)) if *first != fields.id => drop(others.insert(fields.id)),
                _ => found = Some((fields.id, String::from_utf8_lossy(line).into_owned())),
            }
        }
        others.len() < NAMED_LIMIT
    })?;
    let Some((first, line)) = found else {
        bail!("{}: no decision has the id {id:?}", log.display());
    };
    if !others.is_empty() {
        let others: Vec<&str> = std::iter::once(first.as_str()).chain(others.iter().map(String::as_str)).collect();
        bail!("several decisions begin with {id}: {}", others.join(", "));
    }
    Ok(line)
}

/// Returns the last decision by which a node was trusted, and its line. A node is known by its name, its identity, or its instance.
pub fn last_trusted_decision(log: &Path, node: &str) -> anyhow::Result<(Outline, String)> {
    let is_it = |known: &Option<String>| known.as_deref() == Some(node);
    let trusted = |fields: &Outline| {
        let named = is_it(&fields.name) || is_it(&fields.identity) || is_it(&fields.instance);
        named && fields.decision == Decision::Evidence && fields.verdict == Verdict::Trusted
    };
    match last(log, trusted)? {
        Some(found) => Ok(found),
        None => bail!(
            "{}: no evidence of {node:?} was trusted; `attest-gateway log show --decision evidence` lists the recorded evidence. If its boot was refused: accept the new values with `attest-gateway waiting accept --record ID`, or let it boot once while the pool observes (observe = true in its pool.toml)",
            log.display()
        ),
    }
}

/// Returns the files of the gateway's log, the oldest first; fails if one cannot be read, or a newer release has written the log.
pub fn files(log: &Path) -> anyhow::Result<Vec<LogFile>> {
    if let Some(newer) = newer_log(log)? {
        return Err(newer.into());
    }
    let LogFiles { files, unreadable } = log_files(log)?;
    match unreadable.into_iter().next() {
        Some(error) => Err(error.into()),
        None => Ok(files),
    }
}

fn last(log: &Path, wanted: impl Fn(&Outline) -> bool) -> anyhow::Result<Option<(Outline, String)>> {
    let mut found = None;
    each(log, |fields, line| {
        if wanted(&fields) {
            found = Some((fields, String::from_utf8_lossy(line).into_owned()));
        }
        true
    })?;
    Ok(found)
}

/// Passes on each decision of the gateway's log, until the callback returns `false`.
fn each(log: &Path, mut go_on: impl FnMut(Outline, &[u8]) -> bool) -> anyhow::Result<()> {
    for file in files(log)? {
        let mut lines = file.lines(0)?;
        while let Some(read) = lines.read()? {
            let LineContent::Line(line) = read else { continue };
            let Ok(fields) = serde_json::from_slice::<Outline>(line) else {
                continue;
            };
            if !go_on(fields, line) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A boot, by the quote that proves it.
pub struct Booted<'c> {
    /// Kind of the evidence with the quote.
    pub kind: Kind,
    pub boot: &'c MeasuredBoot,
    pub quoted: QuotedPcrs<'c>,
}

/// Returns the boot and its quote: by evidence of this kind, or by the one quote that proves a boot. Fails if several quotes prove
/// different boots.
pub fn booted(claims: &Claims, by: Option<Kind>) -> anyhow::Result<Booted<'_>> {
    let quotes = claims.quotes().into_iter();
    let asked = quotes.filter(|(kind, _)| by.is_none_or(|by| by == *kind));
    let booted: Vec<_> = asked.filter_map(|(kind, quoted)| Some((kind, quoted.boot()?, quoted))).collect();
    let Some(((kind, boot, quoted), others)) = booted.split_first() else {
        bail!("its evidence has no event log that matches the quote");
    };
    if others
        .iter()
        .any(|(_, other, of_other)| other != boot || of_other.pcrs != quoted.pcrs)
    {
        let kinds: Vec<&str> = booted.iter().map(|(kind, ..)| kind.as_str()).collect();
        bail!("{} quote different PCRs: choose one with --by", kinds.join(" and "));
    }
    Ok(Booted {
        kind: *kind,
        boot,
        quoted: *quoted,
    })
}

/// Parses a kind of evidence.
pub fn kind(word: &str) -> Result<Kind, String> {
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == word);
    kind.ok_or_else(|| "expected a kind of evidence, such as tpm or azure-vtpm".to_owned())
}
