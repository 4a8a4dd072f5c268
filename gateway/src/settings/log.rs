//! Settings of the console and of the attestation log.

use std::time::Duration;

use attest_log::is_replica_name;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use super::Fault;
use super::lifetimes::seconds;

/// Smallest segment of the attestation log, in bytes: a few lines.
const SEGMENT_BYTES_LEAST: u64 = 4096;

/// Format of the console's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people to read.
    Text,
    /// JSON lines for log collectors.
    Json,
}

/// Settings of the attestation log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub checkpoints: CheckpointSettings,
    pub segments: SegmentSettings,
    pub keep: KeepSettings,
}

/// Occasions on which the gateway signs a checkpoint of its attestation log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSettings {
    /// Name of this gateway in checkpoints; `None` for the host's name.
    pub name: Option<String>,
    /// Number of records after which one is signed.
    pub records: u64,
    /// Time after which one is signed, if there is a new record.
    pub every: Duration,
}

/// Occasions on which a file of the attestation log is closed, and another begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSettings {
    /// Size at which it is closed, in bytes.
    pub bytes: u64,
    /// Age of the first line at which it is closed.
    pub age: Duration,
    /// Age at which a closed file is compressed, from its last line.
    pub compress_after: Duration,
}

/// Retention of the attestation log. Segments beyond either limit are removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepSettings {
    /// Time after a segment was written at which it is removed.
    pub age: Option<Duration>,
    /// Size of the whole log on the disk, in bytes, beyond which segments are removed.
    pub bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConsoleSection {
    format: LogFormat,
    filter: String,
}

impl Default for ConsoleSection {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LogSection {
    name: Option<String>,
    checkpoint_records: u64,
    checkpoint_seconds: u32,
    segment_bytes: u64,
    segment_seconds: u32,
    compress_after_seconds: u32,
    keep_seconds: u64,
    keep_bytes: u64,
}

impl Default for LogSection {
    fn default() -> Self {
        // What is not signed yet can be cut off without a trace: a minute of it, at most.
        Self {
            name: None,
            checkpoint_records: 1000,
            checkpoint_seconds: 60,
            segment_bytes: 64 * 1024 * 1024,
            // A week.
            segment_seconds: 604_800,
            // A program that follows the files may be away over a weekend.
            compress_after_seconds: 259_200,
            // What nodes were given is asked for years later.
            keep_seconds: 0,
            keep_bytes: 0,
        }
    }
}

pub(super) fn console_settings(section: ConsoleSection) -> Result<(LogFormat, String), Fault> {
    let ConsoleSection { format, filter } = section;
    match EnvFilter::try_new(&filter) {
        Ok(_) => Ok((format, filter)),
        Err(error) => {
            let allowed = "a tracing filter, such as \"info\" or \"warn,attestation=info\"";
            Err(("log.filter", format!("{filter:?} ({error})"), allowed))
        }
    }
}

pub(super) fn checked(section: LogSection) -> Result<LogSettings, Fault> {
    let LogSection {
        name,
        checkpoint_records,
        checkpoint_seconds,
        segment_bytes,
        segment_seconds,
        compress_after_seconds,
        keep_seconds,
        keep_bytes,
    } = section;
    if let Some(name) = name.as_ref().filter(|name| !is_replica_name(name)) {
        let allowed = "1 to 64 of A-Z, a-z, 0-9, '.', '-', '_'";
        return Err(("attestation_log.name", format!("{name:?}"), allowed));
    }
    if checkpoint_records == 0 {
        return Err(("attestation_log.checkpoint_records", "0".to_owned(), "at least 1"));
    }
    if segment_bytes < SEGMENT_BYTES_LEAST {
        return Err(("attestation_log.segment_bytes", segment_bytes.to_string(), "at least 4096"));
    }
    if segment_seconds == 0 {
        return Err(("attestation_log.segment_seconds", "0".to_owned(), "at least 1"));
    }
    if keep_bytes > 0 && keep_bytes < segment_bytes {
        let allowed = "0, which keeps the whole log, or at least attestation_log.segment_bytes";
        return Err(("attestation_log.keep_bytes", keep_bytes.to_string(), allowed));
    }
    Ok(LogSettings {
        checkpoints: CheckpointSettings {
            name,
            records: checkpoint_records,
            every: seconds(
                "attestation_log.checkpoint_seconds",
                checkpoint_seconds,
                (3600, "1 to 3600 seconds"),
            )?,
        },
        segments: SegmentSettings {
            bytes: segment_bytes,
            age: Duration::from_secs(segment_seconds.into()),
            compress_after: Duration::from_secs(compress_after_seconds.into()),
        },
        keep: KeepSettings {
            age: (keep_seconds > 0).then(|| Duration::from_secs(keep_seconds)),
            bytes: (keep_bytes > 0).then_some(keep_bytes),
        },
    })
}
