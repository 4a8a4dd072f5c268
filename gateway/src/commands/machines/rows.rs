//! Files of machines: CSV with a header, JSON lines, or the lists that `attest-node ek list --output json` prints.
//!
//! A file may come from a vendor. Each line has a bounded length, and its problems are collected: one bad line hides no other.

use std::collections::BTreeMap;

use attest::challenge::{is_node_name, is_pool_name};
use attest::tpm::ek_certificate::EkKey;
use attest::{EkDigest, NodeIdentity};
use attest_command_line::is_command;
use attest_machines::import::ImportRow;
use attest_machines::revocations;
use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD, Encoding};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::super::EVERY_POOL;
use super::super::ek::certificate_digest;

/// Maximum number of rows: as many machines as can have objects in a cluster.
pub(super) const ROWS_LIMIT: usize = 20_000;
/// Longest line, in bytes. A certificate takes 11 KiB at most.
const LINE_LIMIT_BYTES: usize = 64 * 1024;
/// Longest note, in characters.
const NOTE_LIMIT_CHARACTERS: usize = 200;
/// Tag of a SEQUENCE in DER.
const DER_SEQUENCE: u8 = 0x30;
/// Beginnings of cells that spreadsheets take for formulas.
const FORMULA: [char; 4] = ['=', '+', '-', '@'];

/// The columns of a file, in the order in which `machines export` prints them.
pub(super) const COLUMNS: [&str; 6] = ["ek", "certificate", "instance", "name", "pools", "note"];

/// A line that cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadRow {
    pub(super) line: u64,
    pub(super) reason: String,
}

/// Contents of a file.
#[derive(Debug, Default)]
pub(super) struct FileRows {
    pub(super) rows: Vec<ImportRow>,
    pub(super) bad: Vec<BadRow>,
}

/// Reads the file of a certificate that a row names.
pub(super) type ReadCertificate<'r> = &'r dyn Fn(&str) -> anyhow::Result<Vec<u8>>;

/// The cells of a row, by their columns. An empty cell is `None`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cells {
    #[serde(default)]
    ek: Option<String>,
    #[serde(default)]
    certificate: Option<String>,
    #[serde(default)]
    instance: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    pools: Option<PoolCell>,
    #[serde(default)]
    note: Option<String>,
}

/// Pools as a text with spaces, or as a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PoolCell {
    Text(String),
    List(Vec<String>),
}

/// A key of `attest-node ek list --output json`.
#[derive(Debug, Deserialize)]
struct ListedEk {
    sha256: String,
    attests: bool,
}

/// Reads a file.
///
/// # Errors
/// A reason for which no line of it can be read.
pub(super) fn read(bytes: &[u8], certificate: ReadCertificate<'_>) -> Result<FileRows, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err("the file is UTF-16: save it as UTF-8".to_owned());
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut file = FileRows::default();
    let too_many = || format!("the file has more than {ROWS_LIMIT} rows: split it");
    // With a header.
    if lines(bytes).nth(ROWS_LIMIT + 1).is_some() && bytes.trim_ascii_start().first() != Some(&b'[') {
        return Err(too_many());
    }
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => {}
        Some(b'[') => file.ek_lists(bytes),
        Some(b'{') => {
            for (line, text) in lines(bytes) {
                let cells = text.and_then(|text| serde_json::from_str(text).map_err(|error| format!("is not a row: {error}")));
                file.add(line, cells, certificate);
            }
        }
        Some(_) => file.csv(bytes, certificate)?,
    }
    file.refuse_duplicates();
    if file.rows.len() > ROWS_LIMIT {
        return Err(too_many());
    }
    Ok(file)
}

/// Returns the lines that are not empty, with their numbers.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, Result<&str, String>)> {
    let numbered = (1_u64..).zip(bytes.split(|byte| *byte == b'\n'));
    let numbered = numbered.map(|(number, line)| (number, line.strip_suffix(b"\r").unwrap_or(line)));
    numbered.filter(|(_, line)| !line.is_empty()).map(|(number, line)| {
        let text = match line.len() {
            length if length > LINE_LIMIT_BYTES => Err(format!("has {length} bytes; at most {LINE_LIMIT_BYTES} are read")),
            _ => std::str::from_utf8(line).map_err(|_| "is not UTF-8".to_owned()),
        };
        let is_printable = |text: &str| !text.chars().any(is_command);
        let text = text.and_then(|text| match is_printable(text) {
            true => Ok(text),
            false => Err("has a control character, or one that hides or reverses text".to_owned()),
        });
        (number, text)
    })
}

impl FileRows {
    fn bad(&mut self, line: u64, reason: impl Into<String>) {
        self.bad.push(BadRow {
            line,
            reason: reason.into(),
        });
    }

    fn add(&mut self, line: u64, cells: Result<Cells, String>, certificate: ReadCertificate<'_>) {
        match cells.and_then(|cells| cells.row(line, certificate)) {
            Ok(row) => self.rows.push(row),
            Err(reason) => self.bad(line, reason),
        }
    }

    /// Reads CSV (RFC 4180) in which no cell has a line break.
    fn csv(&mut self, bytes: &[u8], certificate: ReadCertificate<'_>) -> Result<(), String> {
        let mut lines = lines(bytes);
        let Some((number, header)) = lines.next() else { return Ok(()) };
        let header = header.and_then(cells_of).map_err(|reason| format!("line {number} {reason}"))?;
        let expected = || format!("expected a header with some of the columns {}", COLUMNS.join(","));
        for (at, column) in header.iter().enumerate() {
            if !COLUMNS.contains(&column.as_str()) {
                return Err(format!("line {number}: unknown column {column:?}: {}", expected()));
            }
            if header.iter().take(at).any(|other| other == column) {
                return Err(format!("line {number}: column {column:?} comes twice"));
            }
        }
        for (number, line) in lines {
            let cells = line.and_then(cells_of).and_then(|cells| {
                if cells.len() != header.len() {
                    return Err(format!("has {} cells; the header has {}", cells.len(), header.len()));
                }
                let mut by_column: BTreeMap<&str, String> = header.iter().map(String::as_str).zip(cells).collect();
                let mut take = |column: &str| by_column.remove(column).filter(|cell| !cell.is_empty());
                Ok(Cells {
                    ek: take("ek"),
                    certificate: take("certificate"),
                    instance: take("instance"),
                    name: take("name"),
                    pools: take("pools").map(PoolCell::Text),
                    note: take("note"),
                })
            });
            self.add(number, cells, certificate);
        }
        Ok(())
    }

    /// Reads lists of `attest-node ek list --output json`, one after the other: of each TPM the key that attests.
    fn ek_lists(&mut self, bytes: &[u8]) {
        let (mut line, mut counted) = (1_u64, 0);
        let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<Vec<ListedEk>>();
        let mut offset = 0;
        while let Some(keys) = values.next()
            && self.rows.len() <= ROWS_LIMIT
        {
            let blanks = bytes.iter().skip(offset).take_while(|byte| byte.is_ascii_whitespace()).count();
            let passed = bytes.get(counted..offset + blanks).unwrap_or_default();
            line += passed.iter().filter(|byte| **byte == b'\n').map(|_| 1).sum::<u64>();
            counted = offset + blanks;
            match keys {
                Ok(keys) => match keys.into_iter().find(|key| key.attests) {
                    Some(key) => {
                        let ek = Some(key.sha256);
                        self.add(line, Ok(Cells { ek, ..Cells::default() }), &|_| Ok(Vec::new()));
                    }
                    None => self.bad(line, "lists no key that attests"),
                },
                // The error has the line.
                Err(error) => {
                    self.bad(line, format!("is not a list of `attest-node ek list --output json`: {error}"));
                    return;
                }
            }
            offset = values.byte_offset();
        }
    }

    /// Moves rows of a machine or a name that an earlier row has to the bad ones.
    fn refuse_duplicates(&mut self) {
        let mut known: BTreeMap<String, u64> = BTreeMap::new();
        let mut twice = Vec::new();
        self.rows.retain(|row| {
            let name = row.name.as_ref().map(|name| format!("name {name}"));
            let keys = [Some(row.identity.clone()), name];
            for key in keys.into_iter().flatten() {
                if let Some(first) = known.get(&key) {
                    twice.push((row.line, format!("{key} is in line {first}, too")));
                    return false;
                }
                known.insert(key, row.line);
            }
            true
        });
        for (line, reason) in twice {
            self.bad(line, reason);
        }
        self.bad.sort_by_key(|bad| bad.line);
    }
}

impl Cells {
    fn row(self, line: u64, certificate: ReadCertificate<'_>) -> Result<ImportRow, String> {
        let identities = [
            self.ek.filter(|cell| !cell.is_empty()).map(|cell| ek(&cell)),
            self.certificate
                .filter(|cell| !cell.is_empty())
                .map(|cell| certified_ek(&cell, certificate)),
            self.instance.filter(|cell| !cell.is_empty()).map(|cell| instance(&cell)),
        ];
        let identities: Vec<String> = identities.into_iter().flatten().collect::<Result<_, _>>()?;
        // A certificate may stand beside the digest of its key.
        let identity = match identities.as_slice() {
            [one] => one.clone(),
            [one, other] if one == other => one.clone(),
            [] => return Err("names no machine: it needs ek, certificate or instance".to_owned()),
            _ => return Err("names more than one machine: ek, certificate and instance differ".to_owned()),
        };
        let name = self.name.filter(|name| !name.is_empty());
        if let Some(name) = name.as_ref().filter(|name| !is_node_name(name)) {
            return Err(format!(
                "{} is not a node name: use lower-case letters, digits, '-' and '.' only",
                shortened(name)
            ));
        }
        Ok(ImportRow {
            line,
            identity,
            name,
            pools: self.pools.map(PoolCell::names).transpose()?.flatten(),
            note: self.note.filter(|note| !note.is_empty()).map(checked_note).transpose()?,
        })
    }
}

impl PoolCell {
    /// Returns the pools, an empty list for every pool, or `None` if the row does not say.
    fn names(self) -> Result<Option<Vec<String>>, String> {
        let names: Vec<String> = match self {
            Self::Text(text) => text.split_ascii_whitespace().map(str::to_owned).collect(),
            Self::List(names) => names,
        };
        match names.as_slice() {
            [] => Ok(None),
            [every] if every == EVERY_POOL => Ok(Some(Vec::new())),
            names => match names.iter().find(|name| !is_pool_name(name)) {
                Some(name) => Err(format!(
                    "{} is not a pool name; several pools are separated by spaces",
                    shortened(name)
                )),
                None => Ok(Some(names.to_vec())),
            },
        }
    }
}

/// Returns a cell for a message, in quotation marks and not longer than a line.
fn shortened(cell: &str) -> String {
    const LIMIT: usize = 60;
    let short: String = cell.chars().take(LIMIT).collect();
    format!("{:?}{}", short, if short.len() < cell.len() { "…" } else { "" })
}

fn checked_note(note: String) -> Result<String, String> {
    let length = note.chars().count();
    if length > NOTE_LIMIT_CHARACTERS {
        return Err(format!("the note has {length} characters; at most {NOTE_LIMIT_CHARACTERS}"));
    }
    if note.chars().any(is_command) {
        return Err("the note has a control character, or one that hides or reverses text".to_owned());
    }
    if note.starts_with(FORMULA) {
        return Err(format!("the note {} begins like a formula of a spreadsheet", shortened(&note)));
    }
    Ok(note)
}

/// Returns the identity of an EK: by its digest, or by its public key as PEM, as SubjectPublicKeyInfo, or as public area of a TPM.
fn ek(cell: &str) -> Result<String, String> {
    let digest = cell.strip_prefix("tpm:").unwrap_or(cell).to_ascii_lowercase();
    if let Ok(digest) = digest.parse::<EkDigest>() {
        return Ok(NodeIdentity::from_ek(digest).to_string());
    }
    let digest = if cell.starts_with("-----BEGIN") {
        let der =
            SubjectPublicKeyInfoDer::from_pem_slice(cell.as_bytes()).map_err(|error| format!("the EK is no public key in PEM: {error}"))?;
        of_public_key(&der)
    } else {
        let usage = || {
            format!(
                "the EK {} is no digest (64 hexadecimal digits) and no public key (PEM, or DER or TPM2B_PUBLIC in base64)",
                shortened(cell)
            )
        };
        // A digest that is not whole may look like base64.
        let is_hex = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes = decoded(cell).filter(|_| !is_hex).ok_or_else(usage)?;
        match bytes.first() {
            Some(&DER_SEQUENCE) => of_public_key(&bytes),
            _ => EkDigest::from_public_area(&bytes).map_err(|error| format!("the EK's public area: {error}")),
        }
    };
    digest.map(|digest| NodeIdentity::from_ek(digest).to_string())
}

fn of_public_key(der: &[u8]) -> Result<EkDigest, String> {
    let (rest, key) = SubjectPublicKeyInfo::from_der(der).map_err(|error| format!("the EK's public key: {error}"))?;
    if !rest.is_empty() {
        return Err(format!("{} bytes follow the EK's public key", rest.len()));
    }
    let key = EkKey::from_spki(&key).map_err(|found| format!("the EK's public key is {found}"))?;
    Ok(EkDigest::of(&key))
}

/// Returns the identity of the EK of a certificate: in PEM, in base64, or in a file.
fn certified_ek(cell: &str, file: ReadCertificate<'_>) -> Result<String, String> {
    let bytes = if cell.starts_with("-----BEGIN") {
        cell.as_bytes().to_vec()
    } else {
        match decoded(cell).filter(|bytes| bytes.first() == Some(&DER_SEQUENCE)) {
            Some(der) => der,
            None => file(cell).map_err(|error| format!("certificate {}: {error:#}", shortened(cell)))?,
        }
    };
    let digest = certificate_digest(bytes).map_err(|error| {
        format!(
            "the certificate is no EK certificate: {}",
            attest_system::causes::with_causes(error.as_ref())
        )
    })?;
    Ok(NodeIdentity::from_ek(digest).to_string())
}

/// Decodes base64 in any of its alphabets, padded or not.
fn decoded(cell: &str) -> Option<Vec<u8>> {
    let alphabets: [&Encoding; 4] = [&BASE64, &BASE64_NOPAD, &BASE64URL, &BASE64URL_NOPAD];
    alphabets.into_iter().find_map(|alphabet| alphabet.decode(cell.as_bytes()).ok())
}

fn instance(cell: &str) -> Result<String, String> {
    let named = revocations::named(cell).filter(|identity| identity.contains(':') && !identity.starts_with("tpm:"));
    named.ok_or_else(|| {
        format!(
            "the instance {} is no identity such as aws:123456789012/i-0123456789abcdef0 or gcp:PROJECT/ID",
            shortened(cell)
        )
    })
}

/// Splits a line of CSV (RFC 4180) into its cells.
fn cells_of(line: &str) -> Result<Vec<String>, String> {
    let (mut cells, mut rest) = (Vec::new(), line);
    loop {
        let Some(quoted) = rest.strip_prefix('"') else {
            let (cell, more) = rest.split_once(',').map_or((rest, None), |(cell, more)| (cell, Some(more)));
            if cell.contains('"') {
                return Err("has a quotation mark within a cell; quote the whole cell, and double the mark".to_owned());
            }
            cells.push(cell.trim().to_owned());
            match more {
                Some(more) => rest = more,
                None => return Ok(cells),
            }
            continue;
        };
        let mut cell = String::new();
        let mut left = quoted;
        let after = loop {
            let Some((text, after)) = left.split_once('"') else {
                return Err("has a quoted cell that does not end in its line".to_owned());
            };
            cell.push_str(text);
            match after.strip_prefix('"') {
                Some(more) => {
                    cell.push('"');
                    left = more;
                }
                None => break after,
            }
        };
        cells.push(cell);
        match (after.strip_prefix(','), after) {
            (Some(more), _) => rest = more,
            (None, "") => return Ok(cells),
            (None, _) => return Err("has text after a quoted cell".to_owned()),
        }
    }
}

/// Returns a cell of CSV.
pub(super) fn csv_cell(text: &str) -> String {
    if text.contains(['"', ',']) || text.trim() != text {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const EK: &str = "45c9302c71e4234d45c9302c71e4234d45c9302c71e4234d45c9302c71e4234d";

    fn file(text: impl AsRef<[u8]>) -> Result<FileRows, String> {
        read(text.as_ref(), &|_| anyhow::bail!("no file is read here"))
    }

    #[test]
    fn splits_lines_of_csv() {
        let check = |line: &str, expected: &[&str]| assert_eq!(cells_of(line).unwrap(), expected, "{line}");
        check("a,b,c", &["a", "b", "c"]);
        check("a,,", &["a", "", ""]);
        check("", &[""]);
        check(" a , b ", &["a", "b"]);
        check("\"a,b\",\"say \"\"hi\"\"\"", &["a,b", "say \"hi\""]);
        check("\"\",x", &["", "x"]);
        for bad in ["a\"b", "\"a", "\"a\"b", "\"a\"\"", "a,\"b"] {
            cells_of(bad).unwrap_err();
        }
        for cell in ["plain", "a,b", "say \"hi\"", " blank ", ""] {
            assert_eq!(cells_of(&csv_cell(cell)).unwrap(), [cell]);
        }
    }

    #[test]
    fn reads_rows_of_both_forms() {
        let csv = format!(
            "\u{feff}name,ek,pools,note\r\nworker-1,{},worker infra,\"rack 7, slot 3\"\r\n,tpm:{},*,\r\n",
            EK.to_uppercase(),
            EK.replace('4', "5")
        );
        let rows = file(csv).unwrap();
        assert_eq!(rows.bad, []);
        let expected = ImportRow {
            line: 2,
            identity: format!("tpm:{EK}"),
            name: Some("worker-1".to_owned()),
            pools: Some(vec!["worker".to_owned(), "infra".to_owned()]),
            note: Some("rack 7, slot 3".to_owned()),
        };
        assert_eq!(rows.rows.first(), Some(&expected));
        assert_eq!(rows.rows.get(1).unwrap().pools, Some(Vec::new()));
        let json = format!("{{\"ek\":\"{EK}\",\"name\":\"worker-1\",\"pools\":[\"worker\",\"infra\"],\"note\":\"rack 7, slot 3\"}}\n");
        let rows = file(json).unwrap();
        assert_eq!((rows.bad, rows.rows), (vec![], vec![ImportRow { line: 1, ..expected }]));
    }

    #[test]
    fn reads_lists_of_a_node() {
        let list = |ek: &str| {
            format!(
                "[\n  {{\"kind\":\"rsa-2048\",\"sha256\":\"{ek}\",\"attests\":true,\"issuer\":null,\"unread\":null}},\n  {{\"kind\":\"p-256\",\"sha256\":\"{}\",\"attests\":false}}\n]\n",
                EK.replace('4', "6")
            )
        };
        let rows = file([list(EK), list(&EK.replace('4', "5"))].concat()).unwrap();
        let lines: Vec<u64> = rows.rows.iter().map(|row| row.line).collect();
        assert_eq!((rows.bad, lines), (vec![], vec![1, 5]));
        assert_eq!(file("[]\n[{]").unwrap().bad.len(), 2);
    }

    #[test]
    fn reports_each_bad_line() {
        let wrong = |row: &str, expected: &str| {
            let rows = file(format!("ek,instance,name,pools,note\n{EK},,ok,,\n{row}\n,gcp:p/1,last,,\n")).unwrap();
            assert_eq!((rows.rows.len(), rows.bad.len()), (2, 1), "{row:?}: {:?}", rows.bad);
            let bad = rows.bad.first().unwrap();
            assert!(bad.line == 3 && bad.reason.contains(expected), "{row:?}: {}", bad.reason);
        };
        wrong(",,,,", "names no machine");
        wrong("45c9302c,,,,", "is no digest");
        wrong(",aws,,,", "is no identity");
        wrong(&format!(",tpm:{EK},,,"), "is no identity");
        wrong(",gcp:p/2,Worker_1,,", "is not a node name");
        wrong(",gcp:p/2,,wor/ker,", "is not a pool name");
        wrong(",gcp:p/2,,worker;infra,", "separated by spaces");
        wrong(",gcp:p/2,ok,,", "name ok is in line 2, too");
        wrong(&format!("{EK},,,,"), "is in line 2, too");
        wrong(",gcp:p/2,,", "has 4 cells");
        wrong(",gcp:p/2,,,=cmd()", "like a formula");
        wrong(",gcp:p/2,,,a\0b", "control character");
        wrong(",gcp:p/2,,,a\u{1b}[2J", "control character");
        wrong(",gcp:p/2,,,a\u{202e}b", "reverses text");
        wrong(
            &format!(",gcp:p/2,,,{}", "x".repeat(NOTE_LIMIT_CHARACTERS + 1)),
            "characters; at most",
        );
        wrong(&"x".repeat(LINE_LIMIT_BYTES + 1), "bytes; at most");
        wrong(&format!("{},,,,", BASE64.encode(b"0nothing")), "public key");
        let not_utf8 = [b"ek,name\n".as_slice(), &[0xff, b',', b'a'], b"\n"].concat();
        assert_eq!(file(not_utf8).unwrap().bad.first().unwrap().reason, "is not UTF-8");
        for (text, expected) in [
            (format!("ek;name\n{EK};a\n"), "unknown column"),
            (format!("digest\n{EK}\n"), "unknown column"),
            ("ek,ek\n".to_owned(), "comes twice"),
            (format!("{EK},worker-1\n"), "unknown column"),
        ] {
            assert!(file(&text).unwrap_err().contains(expected), "{text}");
        }
        assert!(file([0xff, 0xfe, b'e', 0]).unwrap_err().contains("UTF-16"));
        let json = file(format!(
            "{{\"ek\":\"{EK}\",\"pool\":\"worker\"}}\nx\n{{\"ek\":\"{EK}\",\"note\":\"\\u0007\"}}\n"
        ))
        .unwrap();
        let lines: Vec<u64> = json.bad.iter().map(|bad| bad.line).collect();
        assert_eq!((json.rows.len(), lines), (0, vec![1, 2, 3]), "{:?}", json.bad);
        let many = (0..=ROWS_LIMIT).fold("ek\n".to_owned(), |text, number| format!("{text}{number:064x}\n"));
        assert!(file(many).unwrap_err().contains("more than"));
    }

    #[test]
    fn reads_public_keys_that_clouds_and_tools_print() {
        let key = rcgen::KeyPair::generate().unwrap();
        let der = rcgen::PublicKeyData::subject_public_key_info(&key);
        let by = |cell: String| {
            let json = serde_json::json!({ "ek": cell }).to_string();
            file(json).unwrap().rows.first().map(|row| row.identity.clone())
        };
        let expected = by(BASE64.encode(&der));
        assert!(expected.as_ref().is_some_and(|identity| identity.starts_with("tpm:")));
        assert_eq!(by(BASE64URL_NOPAD.encode(&der)), expected);
        let pem = key.public_key_pem();
        assert_eq!(by(pem), expected);
    }
}
