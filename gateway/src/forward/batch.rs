//! Records on their way, read from the log some at a time.

use std::path::Path;

use serde::Deserialize;

use super::kept::Place;
use crate::audit::reading::{Follower, Found, Next, Position, ReadError, files_beside, last_of};

/// Records that are sent at once.
const RECORDS: usize = 500;
/// Bytes that are sent at once, but for a record that is larger by itself.
const BYTES: usize = 1024 * 1024;

/// A record, as its line has it.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub line: Vec<u8>,
    pub about: About,
    pub chain: Option<Link>,
    pub place: Place,
}

/// Which line of which chain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Link {
    pub id: String,
    pub number: u64,
}

/// What is looked at of a record.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct About {
    pub time: String,
    pub at: u64,
    pub decision: String,
    pub verdict: String,
    pub alerts: Vec<String>,
}

#[derive(Deserialize)]
struct Read {
    #[serde(flatten)]
    about: About,
    chain: Option<Link>,
}

/// Reads the log. It may wait for the disk.
#[derive(Debug)]
pub(super) struct Reader {
    follower: Follower,
    /// Read, and not given any more.
    held: Option<Sent>,
    /// Lines since this was asked last that are no records: nobody could read them.
    pub passed_over: u64,
}

impl Reader {
    /// From the line on that follows the one at this place. If the log has no such line there, from its first: what was sent is sent again. Says
    /// which.
    pub(super) fn after(log: &Path, place: Option<&Place>) -> Result<(Self, bool), ReadError> {
        let position = place.map(|place| &place.position);
        let found = position.map(|position| Follower::after(log, position)).transpose()?.flatten();
        let is_found = found.is_some() || place.is_none();
        let reader = Self {
            follower: found.unwrap_or_else(|| Follower::from_beginning(log)),
            held: None,
            passed_over: 0,
        };
        Ok((reader, is_found))
    }

    /// What comes next: some records, one, or none at the moment.
    pub(super) fn read(&mut self) -> Result<Vec<Sent>, ReadError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while let Some(record) = self.next()? {
            bytes += record.line.len();
            if bytes > BYTES && !records.is_empty() {
                self.held = Some(record);
                break;
            }
            records.push(record);
            if records.len() == RECORDS {
                break;
            }
        }
        Ok(records)
    }

    fn next(&mut self) -> Result<Option<Sent>, ReadError> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        loop {
            match self.follower.follow()? {
                Next::Nothing => return Ok(None),
                Next::TooLong(_) => self.passed_over += 1,
                Next::Line(line, position) => match sent(line, position) {
                    Some(record) => return Ok(Some(record)),
                    None => self.passed_over += 1,
                },
            }
        }
    }
}

/// Which line is the last of the log.
pub(super) fn newest(log: &Path) -> Result<Option<Link>, ReadError> {
    let files = files_beside(log)?.files;
    let (place, offset) = last_of(&files, 1, |_| true);
    let Some(file) = files.get(place) else { return Ok(None) };
    // What cannot be read any more is said by whoever reads it for more than a number.
    let mut lines = file.lines(offset).ok();
    let link = match lines.as_mut().map(|lines| lines.read()) {
        Some(Ok(Some(Found::Line(line)))) => serde_json::from_slice::<Read>(line).ok().and_then(|read| read.chain),
        _ => None,
    };
    Ok(link)
}

fn sent(line: Vec<u8>, position: Position) -> Option<Sent> {
    let Read { about, chain } = serde_json::from_slice(&line).ok()?;
    let place = Place {
        chain: chain.as_ref().map(|link| link.id.clone()),
        number: chain.as_ref().map(|link| link.number),
        at: about.at,
        position,
    };
    Some(Sent { line, about, chain, place })
}
