//! The log files that are read, and their lines that are not records.

use std::path::{Path, PathBuf};

use anyhow::bail;
use attest_log::reading::{LineContent, LogFile, LogFiles, LogReadError, files_of, last_of, log_files};
use attest_log::{NewerLog, is_written};

use super::filter::{Filter, RecordFields};
use crate::output::{self, ReaderState};
use crate::visible;

/// Maximum number of unreadable places that are named; more are counted.
const NAMED_LIMIT: usize = 5;

#[derive(Debug, Clone, clap::Args)]
pub struct LogSource {
    /// Log files, or folders with a log; `.gz` too. Without it, the gateway's own log with its rotated files.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub log: Vec<PathBuf>,
    #[command(flatten)]
    pub filter: Filter,
    /// Only the last N matching records.
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
}

/// Log files, with the position of the first line.
pub struct OpenedSource {
    files: Vec<LogFile>,
    begin: (usize, u64),
    unreadable: Vec<LogReadError>,
    filter: Filter,
}

/// Files and lines that could not be read.
#[derive(Debug, Default)]
pub struct UnreadFiles {
    count: u64,
    places: Vec<String>,
    files: Vec<String>,
    /// Decisions in aggregated records that the filter may have been meant for.
    counted: u64,
}

impl LogSource {
    /// Reads all records of these files, or of the gateway's own log.
    pub fn all_of(log: &[PathBuf]) -> Self {
        Self {
            log: log.to_vec(),
            filter: Filter::default(),
            last: None,
        }
    }

    /// Finds the files. For the last N records, finds the position of the first one.
    pub fn open(&self, own: &Path, last: Option<usize>) -> anyhow::Result<OpenedSource> {
        let LogFiles { mut files, unreadable } = match self.log.as_slice() {
            [] => log_files(own)?,
            named => files_of(named)?,
        };
        if files.is_empty() && unreadable.is_empty() {
            match self.log.as_slice() {
                [] if own.exists() => {}
                [] => bail!(
                    "{}: no attestation log yet; `attest-gateway serve` creates it",
                    visible(&own.to_string_lossy())
                ),
                [named, ..] => bail!("{} has no attestation.jsonl and no rotated log", visible(&named.to_string_lossy())),
            }
        }
        self.filter.drop_older(&mut files);
        if let Some(doubts) = self.filter.doubts() {
            output::warn(doubts);
        }
        let wanted = |line: &[u8]| RecordFields::parse(line).is_some_and(|fields| self.filter.takes(&fields, line));
        let begin = match last {
            None => (0, 0),
            Some(count) => last_of(&files, count, wanted),
        };
        Ok(OpenedSource {
            files,
            begin,
            unreadable,
            filter: self.filter.clone(),
        })
    }
}

/// A line, with its fields if it is a record.
pub struct ReadLine<'l> {
    pub line: &'l [u8],
    /// Set if it is the first line of its file.
    pub begins_file: bool,
    pub fields: Option<RecordFields>,
}

impl OpenedSource {
    /// Passes on each whole line, until the reader is gone. Notes lines that are not records, and files that cannot be read.
    pub fn each(&self, mut take: impl FnMut(&ReadLine<'_>) -> anyhow::Result<ReaderState>) -> anyhow::Result<UnreadFiles> {
        let mut unread = UnreadFiles::default();
        for LogReadError { path, source } in &self.unreadable {
            unread.files.push(visible(&format!("{}: {source}", path.display())));
        }
        let (first, mut offset) = self.begin;
        for file in self.files.iter().skip(first) {
            let mut counted = 0;
            let reader = each_of(file, std::mem::take(&mut offset), &mut unread, &mut |read| {
                counted += read.fields.as_ref().map_or(0, |fields| self.filter.passes_over(fields, read.line));
                take(read)
            })?;
            unread.counted += counted;
            if reader == ReaderState::Gone {
                break;
            }
        }
        Ok(unread)
    }
}

/// Passes on lines like [`OpenedSource::each`], of one file from this byte on.
fn each_of(
    file: &LogFile,
    offset: u64,
    unread: &mut UnreadFiles,
    take: &mut impl FnMut(&ReadLine<'_>) -> anyhow::Result<ReaderState>,
) -> anyhow::Result<ReaderState> {
    let mut lines = match file.lines(offset) {
        Ok(lines) => lines,
        Err(error) => {
            unread.damaged(file, None, &error);
            return Ok(ReaderState::There);
        }
    };
    loop {
        let at = lines.offset();
        let read = match lines.read() {
            Ok(None) => return Ok(ReaderState::There),
            // Who writes it is not done; a gateway cuts it off at its next start otherwise.
            Ok(Some(LineContent::Cut)) if is_written(file.path()) => return Ok(ReaderState::There),
            Ok(Some(LineContent::Cut)) => {
                unread.note(file, at, "cut off; it was never acknowledged");
                return Ok(ReaderState::There);
            }
            Ok(Some(LineContent::TooLong(length))) => {
                unread.note(file, at, &format!("{length} bytes: longer than any record"));
                continue;
            }
            Ok(Some(LineContent::Line(line))) => {
                NewerLog::check_line(file.path(), line)?;
                ReadLine {
                    line,
                    begins_file: at == 0,
                    fields: RecordFields::parse(line),
                }
            }
            Err(error) => {
                unread.damaged(file, Some(at), &error);
                return Ok(ReaderState::There);
            }
        };
        if read.fields.is_none() {
            unread.note(file, at, "no record");
        }
        if take(&read)? == ReaderState::Gone {
            return Ok(ReaderState::Gone);
        }
    }
}

impl UnreadFiles {
    fn note(&mut self, file: &LogFile, offset: u64, what: &str) {
        self.count += 1;
        if self.places.len() < NAMED_LIMIT {
            self.places
                .push(visible(&format!("{} at byte {offset}: {what}", file.path().display())));
        }
    }

    /// Notes a file that cannot be read, or not beyond this byte.
    fn damaged(&mut self, file: &LogFile, from: Option<u64>, error: &std::io::Error) {
        let from = from.map(|from| format!(" from byte {from} on")).unwrap_or_default();
        self.files.push(visible(&format!("{}{from}: {error}", file.path().display())));
    }

    /// Returns whether a file, or a part of one, could not be read. Lines that are no records do not count.
    #[must_use]
    pub const fn lacks_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Prints what could not be read; returns whether there was anything.
    pub fn report(&self) -> bool {
        let Self {
            count,
            places,
            files,
            counted,
        } = self;
        if *counted > 0 {
            report_aggregated(*counted);
        }
        for file in files {
            output::warn(format_args!("not read: {file}"));
        }
        if *count > 0 {
            let lines = if *count == 1 { "1 line is" } else { &format!("{count} lines are") };
            output::warn(format_args!("{lines} unreadable; for details, run `attest-audit log audit`:"));
            places.iter().for_each(|place| output::error_line(format_args!("  {place}")));
        }
        *count > 0 || !files.is_empty()
    }
}

/// Warns about decisions without a line of their own, which may be meant.
pub fn report_aggregated(decisions: u64) {
    output::warn(format_args!(
        "{decisions} decisions, refusals among them, are in aggregated records, to which filters do not apply; `attest-gateway log show --decision counted` lists these records"
    ));
}
