//! The file of a backup: lines of JSON.
//!
//! ```text
//! {"format":"attest-gateway backup","version":1,"release":"0.1.0","site":{…}}
//! {"file":"log.key","mode":384,"base64":"…"}
//! …                                             the store, as `attest_store::export` writes it
//! {"lines":7,"sha256":"…"}
//! ```
//!
//! The digest is SHA-256 over all bytes before the last line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail, ensure};
use attest_log::{LogPublicKey, Point};
use attest_store::{Exported, OutboxState, StoreMark};
use attest_system::files;
use attest_system::newer_format::NewerFormat;
use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::{BASE64, HEXLOWER};
use serde::{Deserialize, Serialize};

pub(super) const FORMAT: &str = "attest-gateway backup";
pub(super) const VERSION: u32 = 1;
/// Largest file of settings, in bytes.
pub(super) const MEMBER_LIMIT_BYTES: u64 = 8 * 1024 * 1024;
/// Longest line: more than a value of the store, or a file of settings, has.
const LINE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// First line of a backup.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupHeader {
    pub(super) format: String,
    pub(super) version: u32,
    /// Release that wrote the file.
    pub(super) release: String,
    pub(super) site: BackupSite,
}

/// The site of a backup, and the position of its gateway's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupSite {
    /// Time of the backup, in seconds since 1970.
    pub(super) at: u64,
    /// Name of the gateway.
    pub(super) gateway: String,
    /// Expected store of the gateway.
    pub(super) store: Option<StoreMark>,
    /// Key that signs its log's checkpoints.
    pub(super) log_key: Option<LogPublicKey>,
    /// Last line of the log before the snapshot of the store.
    pub(super) log: Option<Point>,
    /// SHA-256 of the MCS CA's certificates.
    pub(super) ca: Vec<String>,
}

/// Members of the first line that all versions have.
#[derive(Deserialize)]
struct AnyBackupHeader {
    format: String,
    version: u32,
    release: String,
}

/// A file in a backup.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupMember {
    /// Path below the folder of settings, or `log.key`.
    pub(super) file: PathBuf,
    pub(super) mode: u32,
    base64: String,
}

impl BackupMember {
    pub(super) fn new(file: PathBuf, mode: u32, content: &[u8]) -> Self {
        let base64 = BASE64.encode(content);
        Self { file, mode, base64 }
    }

    pub(super) fn content(&self) -> anyhow::Result<Vec<u8>> {
        let content = BASE64.decode(self.base64.as_bytes());
        content.with_context(|| self.file.display().to_string())
    }
}

/// Last line of a backup.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackupTrailer {
    lines: u64,
    sha256: String,
}

/// A digest over lines.
struct BackupDigest {
    digest: Context,
    count: u64,
}

impl BackupDigest {
    fn new() -> Self {
        Self {
            digest: Context::new(&SHA256),
            count: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        let pieces = bytes.split(|byte| *byte == b'\n').count();
        self.count = self
            .count
            .saturating_add(u64::try_from(pieces).unwrap_or(u64::MAX))
            .saturating_sub(1);
    }

    fn trailer(self) -> BackupTrailer {
        BackupTrailer {
            lines: self.count,
            sha256: HEXLOWER.encode(self.digest.finish().as_ref()),
        }
    }
}

/// Writer of a backup.
pub(super) struct BackupWriter<W> {
    out: W,
    lines: BackupDigest,
}

impl<W: Write> BackupWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            lines: BackupDigest::new(),
        }
    }

    pub(super) fn line(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        Ok(self.write_all(&line)?)
    }

    /// Writes the last line.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&self.lines.trailer())?;
        line.push(b'\n');
        self.out.write_all(&line)?;
        Ok(self.out.flush()?)
    }
}

impl<W: Write> Write for BackupWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.lines.add(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A complete, unaltered backup.
pub(super) struct Backup {
    pub(super) site: BackupSite,
    pub(super) members: Vec<BackupMember>,
    pub(super) exported: Exported,
    pub(super) outbox: OutboxState,
    file: Arc<File>,
    /// Offsets of the store's first byte, and of the last line.
    store: (u64, u64),
}

impl Backup {
    /// Reads a backup to its end, and checks that it is complete and unaltered.
    ///
    /// # Errors
    /// [`NewerFormat`], and those of an altered file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = files::open(path)?;
        let size = file.metadata()?;
        ensure!(size.is_file(), "this is not a regular file");
        let file = Arc::new(file);
        let mut text = BufReader::new(FilePart::new(&file, (0, size.len())));
        let mut lines = BackupDigest::new();
        let first = next(&mut text)?.ok_or_else(|| anyhow!("the file is empty"))?;
        let site = header(&first)?;
        lines.add(&first);
        let mut offset = length(&first);
        let (mut members, mut begin) = (Vec::new(), None);
        let mut last = Vec::new();
        while let Some(line) = next(&mut text)? {
            if begin.is_none() {
                match serde_json::from_slice::<BackupMember>(&line) {
                    Ok(member) => members.push(member),
                    Err(_) => begin = Some(offset),
                }
            }
            lines.add(&last);
            offset = offset.saturating_add(length(&line));
            last = line;
        }
        let torn = "the file is incomplete or was altered: take another backup";
        let said: BackupTrailer = serde_json::from_slice(&last).map_err(|_| anyhow!(torn))?;
        ensure!(said == lines.trailer(), torn);
        let end = offset.saturating_sub(length(&last));
        let begin = begin.unwrap_or(end);
        let (exported, outbox) = attest_store::verify(Box::new(BufReader::new(FilePart::new(&file, (begin, end)))))?;
        Ok(Self {
            site,
            members,
            exported,
            outbox,
            file,
            store: (begin, end),
        })
    }

    /// Returns a reader of the store in the backup.
    pub(super) fn store(&self) -> Box<dyn BufRead> {
        Box::new(BufReader::new(FilePart::new(&self.file, self.store)))
    }
}

/// A part of an open file. The user who restores may not be able to open it again.
struct FilePart {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl FilePart {
    fn new(file: &Arc<File>, (offset, end): (u64, u64)) -> Self {
        let file = Arc::clone(file);
        Self { file, offset, end }
    }
}

impl Read for FilePart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let read = self.file.read_at(buffer.get_mut(..length).unwrap_or_default(), self.offset)?;
        self.offset = self.offset.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(read)
    }
}

/// Returns whether a file begins like a backup.
pub(super) fn is_backup(path: &Path) -> io::Result<bool> {
    let begin = format!("{{\"format\":\"{FORMAT}\"");
    let mut found = Vec::new();
    let most = u64::try_from(begin.len()).unwrap_or(u64::MAX);
    files::open(path)?.take(most).read_to_end(&mut found)?;
    Ok(found == begin.as_bytes())
}

fn header(line: &[u8]) -> anyhow::Result<BackupSite> {
    let any: AnyBackupHeader = serde_json::from_slice(line).map_err(|_| anyhow!("this is not a backup of attest-gateway"))?;
    if any.format != FORMAT {
        bail!(
            "this is not a backup of attest-gateway, but: {}",
            attest_command_line::visible(&any.format)
        );
    }
    if any.version > VERSION {
        return Err(NewerFormat {
            format: FORMAT,
            found: any.version.into(),
            known: VERSION.into(),
            release: Some(any.release),
        }
        .into());
    }
    ensure!(any.version == VERSION, "no release writes backups of version {}", any.version);
    let header: BackupHeader = serde_json::from_slice(line).context("the first line of the backup cannot be read")?;
    Ok(header.site)
}

/// Returns the next line with its end; `None` at the end of the file.
fn next(text: &mut impl BufRead) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if text.take(LINE_LIMIT_BYTES).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    ensure!(
        line.last() == Some(&b'\n'),
        "this is not a backup of attest-gateway, or it is incomplete: its last line is torn"
    );
    Ok(Some(line))
}

fn length(line: &[u8]) -> u64 {
    u64::try_from(line.len()).unwrap_or(u64::MAX)
}
