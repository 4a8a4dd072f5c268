//! The command `attest-audit log compare-boots`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::protocol::HexDigest;
use attest::tpm::event_log::{EventLog, LOG_LIMIT_BYTES};
use attest::tpm::measured_boot::{BootDifference, MeasuredBoot};
use attest::{HashAlg, Kind};
use attest_audit::replay::verify;
use attest_command_line::output::{self, ReaderState};
use attest_command_line::records::{LogSource, RecordSelector};
use attest_command_line::{recorded, visible};
use attest_log::Blobs;

use super::GatewayFiles;

/// The PCRs that a log's file is read for: those that only a reset of the machine clears.
const FILE_PCRS: std::ops::Range<u8> = 0..16;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: two boots of a machine, by their records\n  attest-audit log compare-boots 127e54f3 5b9d00aa\n\nExample: two logs that were copied from machines\n  attest-audit log compare-boots ./before.bin ./after.bin --html > boots.html\n\nText in “quotation marks” is unverified: no digest covers it. In a file, everything is unverified, because no quote covers it.\n\nA record must be of verified evidence, accepted by the pool or not. Exit code 1 if the boots differ."
)]
pub(crate) struct Arguments {
    /// Record: its id, the beginning of its id, or its number; or the file of an event log: a path with a / or a dot.
    #[arg(value_name = "ID|N|FILE", value_parser = what)]
    first: ComparedBoot,
    /// Boot to compare it with.
    #[arg(value_name = "ID|N|FILE", value_parser = what)]
    second: ComparedBoot,
    /// Print an HTML page with both boots in full.
    #[arg(long)]
    html: bool,
    /// Files of the log (also `.gz`), or folders with a log [default: the gateway's own log, with its rotated files].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    /// Evidence whose quote is used, if two kinds of evidence quote different PCRs: tpm or azure-vtpm.
    #[arg(long, value_name = "KIND", value_parser = recorded::kind)]
    by: Option<Kind>,
}

/// A boot that is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ComparedBoot {
    Record(String, RecordSelector),
    File(PathBuf),
}

fn what(text: &str) -> Result<ComparedBoot, String> {
    if text.contains(['/', '.']) {
        return Ok(ComparedBoot::File(text.into()));
    }
    attest_command_line::records::record(text).map(|record| ComparedBoot::Record(text.to_owned(), record))
}

impl ComparedBoot {
    fn name(&self) -> String {
        match self {
            Self::Record(text, _) => format!("record {text}"),
            Self::File(path) => path.display().to_string(),
        }
    }

    fn boot(&self, files: &GatewayFiles, log: &[PathBuf], by: Option<Kind>) -> anyhow::Result<MeasuredBoot> {
        let boot = match self {
            Self::Record(_, record) => read_record_boot(files, log, record, by),
            Self::File(path) => read_boot_file(path),
        };
        boot.with_context(|| visible(&self.name()))
    }
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments {
        first,
        second,
        html,
        log,
        by,
    } = arguments;
    let one = first.boot(files, log, *by)?;
    let other = second.boot(files, log, *by)?;
    if one.bank != other.bank {
        bail!(
            "one boot has digests of {} and the other of {}: they cannot be compared",
            one.bank,
            other.bank
        );
    }
    let difference = BootDifference::between(&one, &other);
    if *html {
        output::print(difference.html(&first.name(), &second.name()))?;
    } else {
        output::print(&difference)?;
    }
    Ok(ExitCode::from(u8::from(!difference.is_empty())))
}

/// Returns the measured boot that the evidence of a record has proven.
fn read_record_boot(files: &GatewayFiles, log: &[PathBuf], record: &RecordSelector, by: Option<Kind>) -> anyhow::Result<MeasuredBoot> {
    let mut found: Option<Vec<u8>> = None;
    let mut more = false;
    let unread = LogSource::all_of(log).open(&files.own_log(log)?, None)?.each(|read| {
        if read.fields.as_ref().is_some_and(|fields| record.is(fields)) {
            more |= found.replace(read.line.to_vec()).is_some();
        }
        Ok(ReaderState::There)
    })?;
    unread.report();
    let Some(line) = found else {
        bail!("the log has no such record");
    };
    if more {
        bail!("several records match: pass more digits of the id");
    }
    // What was refused because of what was booted is proven all the same.
    let verified = verify(&String::from_utf8(line)?, &Blobs::at(&files.evidence(log)?))?;
    let boot = recorded::booted(&verified.claims, by)?.boot;
    Ok(boot.clone())
}

/// Returns the measured boot in a file, with the PCRs that its events lead to.
fn read_boot_file(path: &Path) -> anyhow::Result<MeasuredBoot> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(LOG_LIMIT_BYTES)?.saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    let log = EventLog::parse(&bytes)?;
    let banks = [HashAlg::Sha256, HashAlg::Sha384, HashAlg::Sha512];
    let Some(bank) = banks
        .into_iter()
        .find(|bank| log.algorithms().iter().any(|declared| declared.id == bank.id()))
    else {
        bail!("it has no digests of an accepted bank");
    };
    let replayed = log.replay(bank, FILE_PCRS)?;
    let value = |pcr| Some((pcr, HexDigest::new(replayed.value(pcr)?)?));
    let values: BTreeMap<u8, HexDigest> = FILE_PCRS.filter_map(value).collect();
    Ok(MeasuredBoot::from_events(&log.check_against(bank, &values)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_a_record_or_a_file() {
        let record = |text: &str| matches!(what(text), Ok(ComparedBoot::Record(..)));
        let file = |text: &str| matches!(what(text), Ok(ComparedBoot::File(_)));
        assert!(record("127e54f3") && record("5021"));
        assert!(file("./log") && file("/sys/log") && file("log.bin"));
        for wrong in ["", "log", "127E54F3"] {
            assert!(what(wrong).is_err(), "{wrong:?}");
        }
    }
}
