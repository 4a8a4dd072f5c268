//! Journal and failed units of this boot, by systemd's own programs. A program that hangs costs no more than its time.

use std::collections::VecDeque;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use attest_wire::protocol::{REPORT_JOURNAL_LIMIT_BYTES, ReportStage, is_unit};

use crate::deadline::Deadline;

/// Most of a program's output that is kept, in bytes: its end. More than a report has, since redaction shortens it.
const OUTPUT_LIMIT_BYTES: usize = 256 * 1024;
/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// Name of the unit that attests.
pub(super) const ATTEST_UNIT: &str = "attest-node.service";
/// Words of a line that says why a unit has failed.
const CAUSES: [&str; 6] = ["not attested", "fail", "error", "crit", "fatal", "refused"];

/// Ignition's units by their stages, in the order of a boot.
const STAGES: [(ReportStage, &str); 6] = [
    (ReportStage::FetchOffline, "ignition-fetch-offline.service"),
    (ReportStage::Fetch, "ignition-fetch.service"),
    (ReportStage::Kargs, "ignition-kargs.service"),
    (ReportStage::Disks, "ignition-disks.service"),
    (ReportStage::Mount, "ignition-mount.service"),
    (ReportStage::Files, "ignition-files.service"),
];

/// Returns the failed units of this boot.
///
/// # Errors
/// Reason why they are not known.
pub(super) fn failed_units(deadline: Deadline) -> Result<Vec<String>, String> {
    let output = run(
        "systemctl",
        &["list-units", "--failed", "--plain", "--no-legend", "--no-pager", "--full"],
        deadline,
    )?;
    let lines = output.lines().filter_map(|line| line.split_whitespace().next());
    Ok(lines.filter(|unit| is_unit(unit)).map(str::to_owned).collect())
}

/// Returns the failure that stopped the boot: of the first stage of Ignition's that failed, otherwise of another unit. `None` if nothing but
/// this program's own unit has failed.
pub(super) fn cause(failed: &[String]) -> Option<(ReportStage, String)> {
    let stage = STAGES.iter().find(|(_, unit)| failed.iter().any(|failed| failed == unit));
    let stage = stage.map(|(stage, unit)| (*stage, (*unit).to_owned()));
    let other = || failed.iter().find(|unit| !unit.starts_with("attest-node"));
    stage.or_else(|| Some((ReportStage::Other, other()?.clone())))
}

/// Returns the last lines of this boot's journal.
///
/// # Errors
/// Reason why it cannot be read.
pub(super) fn read(deadline: Deadline) -> Result<String, String> {
    run(
        "journalctl",
        &["--boot", "--no-pager", "--quiet", "--output=short-monotonic", "--lines=4000"],
        deadline,
    )
}

/// Returns the last line of a unit's own messages that says why it failed; its last line if none does.
pub(super) fn error_of(unit: &str, deadline: Deadline) -> Option<String> {
    let matches = format!("_SYSTEMD_UNIT={unit}");
    let mut arguments = vec!["--boot", "--no-pager", "--quiet", "--output=cat", "--lines=200", &matches];
    // The last line of a program that ends may have no unit.
    if unit.starts_with("ignition-") {
        arguments.extend(["+", "SYSLOG_IDENTIFIER=ignition"]);
    }
    last_cause(&run("journalctl", &arguments, deadline).ok()?)
}

fn last_cause(messages: &str) -> Option<String> {
    let lines: Vec<&str> = messages.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let says_why = |line: &&&str| {
        let lower = line.to_lowercase();
        CAUSES.iter().any(|word| lower.contains(word))
    };
    lines.iter().rev().find(says_why).or(lines.last()).map(|line| (*line).to_owned())
}

/// Returns the end of a text, from the beginning of a line, with at most [`REPORT_JOURNAL_LIMIT_BYTES`].
pub(super) fn end_of(text: &str) -> &str {
    let mut start = text.len().saturating_sub(REPORT_JOURNAL_LIMIT_BYTES);
    if start == 0 {
        return text;
    }
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let end = text.get(start..).unwrap_or_default();
    end.split_once('\n').map_or(end, |(_, lines)| lines)
}

/// Runs a program until the deadline; returns the end of its output.
fn run(program: &str, arguments: &[&str], deadline: Deadline) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("SYSTEMD_COLORS", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{program} cannot be started: {error}"))?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let output = child.stdout.take();
    let reader = thread::Builder::new().spawn(move || {
        // Nobody waits any more if it took too long.
        let _ = sender.send(output.map(end_of_output).unwrap_or_default());
    });
    let read = reader.map(|_| receiver.recv_timeout(deadline.remaining()));
    // Whatever came of it, it does not stay. Both fail only for a process that has ended.
    let _ = child.kill();
    let _ = child.wait();
    match read {
        Ok(Ok(output)) => Ok(String::from_utf8_lossy(&output).into_owned()),
        Ok(Err(_)) => Err(format!("{program} took too long")),
        Err(error) => Err(error.to_string()),
    }
}

fn end_of_output(mut output: impl Read) -> Vec<u8> {
    let (mut end, mut chunk) = (VecDeque::new(), vec![0; CHUNK_BYTES]);
    while let Ok(length @ 1..) = output.read(&mut chunk) {
        end.extend(chunk.get(..length).unwrap_or_default());
        let more = end.len().saturating_sub(OUTPUT_LIMIT_BYTES);
        end.drain(..more);
    }
    end.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn check(failed: &[&str], expect: Option<(ReportStage, &str)>) {
        let failed: Vec<String> = failed.iter().map(|unit| (*unit).to_owned()).collect();
        assert_eq!(cause(&failed), expect.map(|(stage, unit)| (stage, unit.to_owned())), "{failed:?}");
    }

    #[test]
    fn the_first_failed_stage_is_the_cause() {
        check(&[], None);
        check(&[ATTEST_UNIT], None);
        check(
            &[ATTEST_UNIT, "ignition-fetch.service"],
            Some((ReportStage::Fetch, "ignition-fetch.service")),
        );
        check(
            &["ignition-files.service", "ignition-disks.service", "x.service"],
            Some((ReportStage::Disks, "ignition-disks.service")),
        );
        check(
            &["attest-node-keep.service", "sysroot.mount"],
            Some((ReportStage::Other, "sysroot.mount")),
        );
    }

    #[test]
    fn the_error_is_the_last_line_with_a_cause() {
        let check = |messages: &str, expect: Option<&str>| assert_eq!(last_cause(messages).as_deref(), expect, "{messages}");
        check("", None);
        check("a\nb\n", Some("b"));
        check(
            "op(1): [failed] x\nCRITICAL : Ignition failed: y\nsee the docs\n",
            Some("CRITICAL : Ignition failed: y"),
        );
    }

    #[test]
    fn a_report_has_the_last_lines() {
        let lines = |count: usize| (0..count).map(|number| format!("line {number:06} \u{e4}\n")).collect::<String>();
        assert_eq!(end_of(&lines(3)), lines(3));
        let long = lines(10_000);
        let end = end_of(&long);
        assert!(long.ends_with(end) && end.starts_with("line ") && end.len() <= REPORT_JOURNAL_LIMIT_BYTES);
        assert!(end.len() > REPORT_JOURNAL_LIMIT_BYTES - 100);
        assert_eq!(
            end_of(&"\u{e4}".repeat(REPORT_JOURNAL_LIMIT_BYTES)).len(),
            REPORT_JOURNAL_LIMIT_BYTES
        );
    }

    #[test]
    fn a_program_has_its_time_and_its_end_is_kept() {
        let soon = || Deadline::after(Duration::from_secs(20));
        let all = run("sh", &["-c", "seq 1 100000"], soon()).unwrap();
        assert!(all.len() == OUTPUT_LIMIT_BYTES && all.ends_with("\n99999\n100000\n"));
        assert!(run("/no/such/program", &[], soon()).is_err());
        let begun = Instant::now();
        let late = run("sh", &["-c", "exec sleep 60"], Deadline::after(Duration::from_millis(200)));
        assert_eq!(late, Err("sh took too long".to_owned()));
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
