//! Moving house: all that a store holds as lines of JSON, key by key, with a digest, and back.
//!
//! ```text
//! {"format":"attest-gateway store","version":1,"store":{"id":"…","mark":7}}
//! {"key":"entry/name/worker-1","value":"{\"v\":1,…}"}
//! {"count":1,"sha256":"…"}
//! ```
//!
//! Keys come in their order as bytes. The digest is SHA-256 over each key and each value, either with its length in bytes before it as 64
//! bits, the highest first. A store has the same digest on whatever engine it is.

use std::io::{self, BufRead, Write};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use super::accept::{Accepted, Replacement};
use super::embedded::{connect, make_file, prepare};
use super::engine::{KeyRange, KeyValue, Transaction};
use super::known::{Known, StoreFile, replace_mark};
use super::sqlite::{Explain, Part, count, page};
use super::{StoreError, StoreMark, keys, schema};

const FORMAT: &str = "attest-gateway store";
const VERSION: u32 = 1;
/// Values that are read at once.
const PAGE: usize = 1000;
/// The longest line: more than any value has.
const LINE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// Why a store was not written down, or taken from a file.
#[derive(Debug, thiserror::Error)]
pub enum HouseError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be written or read.
    #[error("the file cannot be written or read: {0}")]
    Io(#[from] io::Error),
    /// It is no whole, unaltered file of a store.
    #[error("line {line} {problem}: nothing was taken from the file")]
    File { line: u64, problem: String },
    /// There is something in the store.
    #[error(
        "{0} keys are in the store: what a file has comes into an empty one. Move the store away first, if that one is not wanted any more"
    )]
    NotEmpty(u64),
}

/// What a store holds, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    /// The number of its keys.
    pub count: u64,
    /// Hexadecimal.
    pub sha256: String,
}

/// A store that was written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Which one, and how far it had come.
    pub store: StoreMark,
    pub contents: Contents,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: String,
    version: u32,
    store: StoreMark,
}

/// What is read of a store, one key after the other.
struct Digest {
    context: Context,
    count: u64,
}

impl Digest {
    fn new() -> Self {
        Self {
            context: Context::new(&SHA256),
            count: 0,
        }
    }

    fn add(&mut self, KeyValue { key, value }: &KeyValue) {
        for part in [key, value] {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
            self.context.update(&length.to_be_bytes());
            self.context.update(part.as_bytes());
        }
        self.count = self.count.saturating_add(1);
    }

    fn contents(self) -> Contents {
        Contents {
            count: self.count,
            sha256: HEXLOWER.encode(self.context.finish().as_ref()),
        }
    }
}

/// Writes down all that the store in this file holds at one moment; a gateway may serve meanwhile.
///
/// # Errors
/// [`HouseError`].
pub fn export(file: &Path, out: &mut dyn Write) -> Result<Exported, HouseError> {
    let (connection, _) = connect(file)?;
    Known::beside(file)?.check(file, &schema::look(file, &connection)?)?;
    prepare(&connection)?;
    // What is read from here on is the store at this moment.
    connection.execute_batch("BEGIN").of(&connection)?;
    let exported = write_down(&connection, out);
    connection.execute_batch("ROLLBACK").of(&connection)?;
    exported
}

fn write_down(connection: &Connection, out: &mut dyn Write) -> Result<Exported, HouseError> {
    let store = schema::standing(connection).of(connection)?;
    let head = Head {
        format: FORMAT.to_owned(),
        version: VERSION,
        store,
    };
    line(out, &head)?;
    let (mut digest, mut range) = (Digest::new(), everything());
    loop {
        let pairs = page(connection, &range, PAGE).of(connection)?;
        let Some(last) = pairs.last() else { break };
        range = keys::after(&last.key, &range);
        for pair in &pairs {
            digest.add(pair);
            line(out, pair)?;
        }
    }
    let contents = digest.contents();
    line(out, &contents)?;
    out.flush()?;
    Ok(Exported {
        store: head.store,
        contents,
    })
}

fn everything() -> KeyRange {
    KeyRange {
        from: String::new(),
        // No key begins with it.
        until: '\u{10ffff}'.to_string(),
    }
}

fn line(out: &mut dyn Write, value: &impl Serialize) -> Result<(), HouseError> {
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// Takes what a file has into the store, which has to be empty: all of it, or nothing. It becomes another store, as by
/// [`super::accept()`]: what the one that was written down has spent or revoked since is not known here, so `first` has to make worthless
/// whatever was not to be used twice, and to record it. Up to when uses are forgotten stays known.
///
/// # Errors
/// [`HouseError`], and those of `first`: nothing was taken then.
pub fn import<E: From<HouseError>>(
    file: &Path,
    open: impl Fn() -> io::Result<Box<dyn BufRead>>,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
) -> Result<(Accepted, Contents), E> {
    let whole = open().map_err(HouseError::from).and_then(|lines| read(lines, &mut |_| Ok(())))?;
    let (connection, known) = empty(file)?;
    let replacement = Replacement {
        known: known.expected().cloned(),
        found: Some(whole.store.clone()),
    };
    first(&replacement)?;
    let now = take(file, &connection, &known, &whole, open)?;
    Ok((Accepted { replacement, now }, whole.contents))
}

/// The store, which has nothing in it.
fn empty(file: &Path) -> Result<(Connection, Known), HouseError> {
    let known = Known::beside(file).or_else(|_| Known::but_for_file(file))?;
    make_file(file)?;
    let (connection, _) = connect(file)?;
    if schema::look(file, &connection)? != StoreFile::Nothing {
        prepare(&connection)?;
        nothing_there(&connection)?;
    }
    Ok((connection, known))
}

fn nothing_there(connection: &Connection) -> Result<(), HouseError> {
    match count(connection, &everything()).of(connection)? {
        0 => Ok(()),
        keys => Err(HouseError::NotEmpty(keys)),
    }
}

fn take(
    file: &Path,
    connection: &Connection,
    known: &Known,
    whole: &Exported,
    open: impl Fn() -> io::Result<Box<dyn BufRead>>,
) -> Result<StoreMark, HouseError> {
    prepare(connection)?;
    connection.execute_batch("BEGIN IMMEDIATE").of(connection)?;
    let taken = nothing_there(connection).and_then(|()| {
        let again = read(open()?, &mut |pair| put(connection, pair))?;
        if again != *whole {
            return Err(problem(0, "or another has changed meanwhile"));
        }
        let now = schema::name_anew(connection, known.furthest().max(whole.store.mark))?;
        replace_mark(file, &now)?;
        Ok(now)
    });
    connection
        .execute_batch(if taken.is_ok() { "COMMIT" } else { "ROLLBACK" })
        .of(connection)?;
    taken
}

fn put(connection: &Connection, pair: &KeyValue) -> Result<(), StoreError> {
    let mut part = Part::new(connection);
    let done = part.put(&pair.key, &pair.value);
    part.end(done)
}

/// Reads a file to its end, and makes sure that it is whole.
fn read(mut lines: Box<dyn BufRead>, take: &mut dyn FnMut(&KeyValue) -> Result<(), StoreError>) -> Result<Exported, HouseError> {
    let mut number = 1;
    let head: Head = serde_json::from_str(&next(&mut lines, number)?).map_err(|error| problem(number, &format!("is no head: {error}")))?;
    if head.format != FORMAT || head.version != VERSION {
        let found = format!(
            "is of {} {}, and this release reads {FORMAT} {VERSION} only",
            head.format, head.version
        );
        return Err(problem(number, &found));
    }
    let (mut digest, mut last) = (Digest::new(), None);
    loop {
        number = number.saturating_add(1);
        let text = next(&mut lines, number)?;
        let Ok(pair) = serde_json::from_str::<KeyValue>(&text) else {
            let contents = end(&mut lines, number, &text, digest.contents())?;
            return Ok(Exported {
                store: head.store,
                contents,
            });
        };
        if last.as_ref() >= Some(&pair.key) {
            return Err(problem(number, "is not in the order of keys"));
        }
        digest.add(&pair);
        take(&pair)?;
        last = Some(pair.key);
    }
}

fn next(lines: &mut dyn BufRead, number: u64) -> Result<String, HouseError> {
    let mut text = String::new();
    io::Read::take(lines, LINE_LIMIT_BYTES).read_line(&mut text)?;
    if text.ends_with('\n') {
        Ok(text)
    } else {
        Err(problem(number, "is not there, or is torn: the file is not whole"))
    }
}

/// The last line, which says what all others had to come to.
fn end(lines: &mut dyn BufRead, number: u64, text: &str, found: Contents) -> Result<Contents, HouseError> {
    let said: Contents = serde_json::from_str(text).map_err(|error| problem(number, &format!("cannot be read: {error}")))?;
    if said != found {
        let differ = format!(
            "says {} keys with digest {}, and {} with {} were read",
            said.count, said.sha256, found.count, found.sha256
        );
        return Err(problem(number, &differ));
    }
    if lines.fill_buf()?.is_empty() {
        Ok(said)
    } else {
        Err(problem(number, "is the end, and something comes after it"))
    }
}

fn problem(line: u64, problem: &str) -> HouseError {
    HouseError::File {
        line,
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests;
