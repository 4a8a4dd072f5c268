//! Reading and writing of an export file.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use super::super::StoreMark;
use super::super::engine::KeyValue;
use super::super::schema::{self, StoreSchema};
use super::{Contents, ExportError, Exported, MigrationSource, PAGE, StoreDigest, walk};

pub(super) const FORMAT: &str = "attest-gateway store";
/// The longest line: more than any value has.
const LINE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportHeader {
    format: String,
    /// Schema of the store.
    schema: i64,
    /// First release that reads it; the member stays in each later schema.
    release: String,
    store: StoreMark,
}

/// Writes the whole content of a store.
pub(super) fn write_down(source: &mut dyn MigrationSource, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let (store, schema) = (source.store(), source.schema());
    let head = ExportHeader {
        format: FORMAT.to_owned(),
        schema: schema.number,
        release: schema.release.to_owned(),
        store: store.clone(),
    };
    line(out, &head)?;
    let contents = walk(|range| source.page(range, PAGE), |pair| line(out, pair))?;
    line(out, &contents)?;
    out.flush()?;
    Ok(Exported { store, schema, contents })
}

fn line(out: &mut dyn Write, value: &impl Serialize) -> Result<(), ExportError> {
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// Reads a file to its end, and checks that it is complete.
pub(super) fn read(
    mut lines: Box<dyn BufRead>,
    take: &mut dyn FnMut(&KeyValue) -> Result<(), ExportError>,
) -> Result<Exported, ExportError> {
    let mut number = 1;
    let (head, schema) = header(&next(&mut lines, number)?)?;
    let (mut digest, mut last) = (StoreDigest::new(), None);
    loop {
        number = number.saturating_add(1);
        let text = next(&mut lines, number)?;
        let Ok(pair) = serde_json::from_str::<KeyValue>(&text) else {
            let contents = end(&mut lines, number, &text, digest.contents())?;
            return Ok(Exported {
                store: head.store,
                schema,
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

fn header(text: &str) -> Result<(ExportHeader, StoreSchema), ExportError> {
    #[derive(Deserialize)]
    struct AnyExportHeader {
        format: String,
        schema: i64,
        release: Option<String>,
    }
    let none = |error: serde_json::Error| problem(1, &format!("is not the head of an exported store: {error}"));
    let AnyExportHeader {
        format,
        schema: found,
        release,
    } = serde_json::from_str(text).map_err(none)?;
    if format != FORMAT {
        return Err(problem(1, &format!("is the head of {format:?}, not of {FORMAT:?}")));
    }
    match StoreSchema::find(found) {
        Some(schema) => Ok((serde_json::from_str(text).map_err(none)?, schema)),
        None if schema::is_newer(found) => Err(ExportError::Newer(schema::newer(found, release))),
        None => Err(problem(1, &format!("has schema {found}, which this release does not know"))),
    }
}

fn next(lines: &mut dyn BufRead, number: u64) -> Result<String, ExportError> {
    let mut text = String::new();
    io::Read::take(lines, LINE_LIMIT_BYTES).read_line(&mut text)?;
    if text.ends_with('\n') {
        Ok(text)
    } else {
        Err(problem(number, "is missing or torn: the file is incomplete"))
    }
}

/// Checks the last line: the count and the digest of all others.
fn end(lines: &mut dyn BufRead, number: u64, text: &str, found: Contents) -> Result<Contents, ExportError> {
    let said: Contents = serde_json::from_str(text).map_err(|error| problem(number, &format!("cannot be read: {error}")))?;
    if said != found {
        let differ = format!(
            "states {} keys with digest {}, but {} with {} were read",
            said.count, said.sha256, found.count, found.sha256
        );
        return Err(problem(number, &differ));
    }
    if lines.fill_buf()?.is_empty() {
        Ok(said)
    } else {
        Err(problem(number, "is the end, but more lines follow"))
    }
}

pub(super) fn problem(line: u64, problem: &str) -> ExportError {
    ExportError::File {
        line,
        problem: problem.to_owned(),
    }
}
