//! The configuration snapshot that a gateway's log recorded last: its digest, which the file with the whole snapshot has to match.

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::act::{Act, ValueChange, Verb};
use crate::chain::{Link, UncoveredLines};
use crate::checkpoint::CheckpointLine;
use crate::log_end::lines_from_end;
use crate::log_key::LogPublicKey;
use crate::reading::{LineContent as Read, rotated};

/// Kind of the thing that represents all others, by a digest over them.
pub(crate) const STANDING: &str = "standing";
/// Most bytes of the log that are searched at a start. If the digest is not in them, the snapshot is recorded again.
const LOOK_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Returns the thing that says that the configuration snapshot had one digest before and has another after.
#[must_use]
pub fn snapshot_change(before: Option<String>, after: String) -> ValueChange {
    let value = |sha256: String| serde_json::json!({ "sha256": sha256 });
    ValueChange {
        kind: STANDING.to_owned(),
        id: "all".to_owned(),
        before: before.map(value),
        after: Some(value(after)),
    }
}

/// Returns the digest that the log's chain recorded last. `None` if no recent line has one that its gateway has signed as its own.
///
/// # Errors
/// The log cannot be read.
pub fn last_snapshot_digest(log: &Path, key: LogPublicKey) -> io::Result<Option<String>> {
    let (mut looking, mut left) = (DigestSearch::new(key), LOOK_LIMIT_BYTES);
    for line in lines_from_end(log)? {
        let line = line?;
        let Some(rest) = left.checked_sub(line.len()) else {
            return Ok(None);
        };
        left = rest;
        looking.see(&line);
        if let Some(said) = looking.last() {
            return Ok(Some(said));
        }
    }
    for file in rotated(log)?.iter().rev() {
        let mut lines = file.lines(0)?;
        while let Some(read) = lines.read()? {
            let bytes = match read {
                Read::Line(line) => line.len(),
                Read::TooLong(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
                Read::Cut => 0,
            };
            // Of what is read, and not of the file, which may be compressed.
            let Some(rest) = left.checked_sub(bytes) else { return Ok(None) };
            left = rest;
            if let Read::Line(line) = read {
                looking.see(line);
            }
        }
        if let Some(said) = looking.last() {
            return Ok(Some(said));
        }
    }
    Ok(None)
}

/// State of a search through one chain: that of the first line read.
struct DigestSearch {
    key: LogPublicKey,
    chain: Option<String>,
    /// Lines that their gateway found unsigned, and so may not have written.
    found: Vec<UncoveredLines>,
    /// Digests by the number of their line; a file that is read from its beginning may have several.
    digests: Vec<(u64, String)>,
}

/// Members of a line that the search needs.
#[derive(Deserialize)]
struct RecordedHead {
    chain: Link,
    admin: Option<Value>,
}

impl DigestSearch {
    const fn new(key: LogPublicKey) -> Self {
        Self {
            key,
            chain: None,
            found: Vec::new(),
            digests: Vec::new(),
        }
    }

    fn see(&mut self, line: &[u8]) {
        let Ok(RecordedHead { chain, admin }) = serde_json::from_slice(line) else {
            return;
        };
        if *self.chain.get_or_insert_with(|| chain.id.clone()) != chain.id {
            return;
        }
        if let Some(checkpoint) = CheckpointLine::signed_by(self.key, line) {
            self.found.extend(checkpoint.checkpoint.found);
        }
        let act = admin.and_then(|act| serde_json::from_value::<Act>(act).ok());
        let act = act.filter(|act| [Verb::GatewayStart, Verb::GatewayReload].contains(&act.verb));
        let thing = act.and_then(|act| act.things.into_iter().find(|thing| thing.kind == STANDING));
        let sha256 = thing.and_then(|thing| thing.after?.get("sha256")?.as_str().map(str::to_owned));
        self.digests.extend(sha256.map(|sha256| (chain.number, sha256)));
    }

    /// Returns the last digest that is not in a line that was found unsigned.
    fn last(&mut self) -> Option<String> {
        let Self { found, digests: said, .. } = self;
        said.retain(|(number, _)| !found.iter().any(|found| (found.first..=found.last).contains(number)));
        said.iter().max_by_key(|(number, _)| *number).map(|(_, sha256)| sha256.clone())
    }
}
