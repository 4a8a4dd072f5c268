//! Files that a node must have after Ignition applied a config, derived from the config itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use anyhow::{Context, Result, bail};
use aws_lc_rs::digest;
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use flate2::read::GzDecoder;
use serde_json::Value;

/// A file or link as found on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenFile {
    File {
        /// Permission bits of the file.
        mode: u32,
        /// SHA-256 of the content, lower-case hexadecimal.
        sha256: String,
    },
    Link {
        /// Target as stored in the link.
        target: String,
    },
}

/// Path of Ignition's report of its run; its content depends on the run.
pub const RESULT_FILE: &str = "/etc/.ignition-result.json";
/// Mode of files for which the config has none (Ignition spec 3.x, `storage.files.mode`).
const DEFAULT_MODE: u64 = 0o644;

/// Returns the files of `config` (spec 3.x; contents as `data:` URLs), without [`RESULT_FILE`].
pub fn expected_files(config: &Value) -> Result<BTreeMap<String, WrittenFile>> {
    let mut files = BTreeMap::new();
    for file in list(config, "/storage/files") {
        let path = string(file, "/path")?;
        let mode = file.get("mode").and_then(Value::as_u64).unwrap_or(DEFAULT_MODE);
        files.insert(path.to_owned(), regular(u32::try_from(mode)?, &contents(file)?));
    }
    for link in list(config, "/storage/links") {
        let target = string(link, "/target")?.to_owned();
        files.insert(string(link, "/path")?.to_owned(), WrittenFile::Link { target });
    }
    let mut presets = BTreeSet::new();
    for unit in list(config, "/systemd/units") {
        let name = string(unit, "/name")?;
        let file = format!("/etc/systemd/system/{name}");
        if unit.get("mask") == Some(&Value::Bool(true)) {
            let target = "/dev/null".to_owned();
            files.insert(file, WrittenFile::Link { target });
        } else if let Some(contents) = unit.get("contents").and_then(Value::as_str).filter(|contents| !contents.is_empty()) {
            files.insert(file, regular(0o644, contents.as_bytes()));
        }
        for dropin in list(unit, "/dropins") {
            let path = format!("/etc/systemd/system/{name}.d/{}", string(dropin, "/name")?);
            files.insert(path, regular(0o644, string(dropin, "/contents")?.as_bytes()));
        }
        match unit.get("enabled").and_then(Value::as_bool) {
            Some(true) => drop(presets.insert(format!("enable {name}\n"))),
            Some(false) => drop(presets.insert(format!("disable {name}\n"))),
            None => {}
        }
    }
    if !presets.is_empty() {
        let path = "/etc/systemd/system-preset/20-ignition.preset";
        // Ignition writes the lines in no order; fast-init sorts them.
        files.insert(path.to_owned(), regular(0o644, presets.into_iter().collect::<String>().as_bytes()));
    }
    Ok(files)
}

/// Returns the content of a file in `config`.
pub fn content_of(config: &Value, path: &str) -> Result<Option<Vec<u8>>> {
    let file = list(config, "/storage/files")
        .iter()
        .find(|file| file.get("path").and_then(Value::as_str) == Some(path));
    file.map(contents).transpose()
}

/// Returns the content that Ignition writes for a file of a config.
fn contents(file: &Value) -> Result<Vec<u8>> {
    let text = |pointer| file.pointer(pointer).and_then(Value::as_str);
    let bytes = data_url(text("/contents/source").unwrap_or("data:,"))?;
    match text("/contents/compression").unwrap_or_default() {
        "" => Ok(bytes),
        "gzip" => {
            let mut unpacked = Vec::new();
            GzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked)?;
            Ok(unpacked)
        }
        other => bail!("compression {other:?}"),
    }
}

fn regular(mode: u32, content: &[u8]) -> WrittenFile {
    let sha256 = HEXLOWER.encode(digest::digest(&digest::SHA256, content).as_ref());
    WrittenFile::File { mode, sha256 }
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn string<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .with_context(|| format!("{pointer} of {value}"))
}

/// Decodes a data URL (RFC 2397).
fn data_url(url: &str) -> Result<Vec<u8>> {
    let Some((kind, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
        bail!("{url:?} is no data URL");
    };
    let bytes = unescape(data).with_context(|| format!("percent encoding of {url:?}"))?;
    if kind.ends_with(";base64") {
        return BASE64.decode(&bytes).with_context(|| format!("base64 of {url:?}"));
    }
    Ok(bytes)
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, encoded)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        let (digits, after) = encoded.split_at_checked(2)?;
        bytes.extend(HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?);
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_plain_and_base64_data_urls() {
        assert_eq!(data_url("data:,a%20b%0A").unwrap(), b"a b\n");
        assert_eq!(data_url("data:text/plain;charset=utf-8;base64,YSBi").unwrap(), b"a b");
        assert_eq!(data_url("data:;base64,YSB%69").unwrap(), b"a b");
        assert_eq!(data_url("data:,").unwrap(), b"");
        data_url("https://example.com/a").unwrap_err();
        data_url("data:,100%").unwrap_err();
    }

    #[test]
    fn enabled_units_yield_a_unit_file_and_preset() {
        let config = serde_json::json!({"systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "x"}]}});
        let files = expected_files(&config).unwrap();
        assert_eq!(files.get("/etc/systemd/system/a.service"), Some(&regular(0o644, b"x")));
        assert_eq!(
            files.get("/etc/systemd/system-preset/20-ignition.preset"),
            Some(&regular(0o644, b"enable a.service\n"))
        );
    }

    #[test]
    fn masked_units_are_links_to_dev_null() {
        let check = |unit: Value, expected: Option<WrittenFile>| {
            let files = expected_files(&serde_json::json!({"systemd": {"units": [unit]}})).unwrap();
            assert_eq!(files.get("/etc/systemd/system/a.service"), expected.as_ref());
        };
        let link = WrittenFile::Link {
            target: "/dev/null".to_owned(),
        };
        check(serde_json::json!({"name": "a.service", "mask": true}), Some(link.clone()));
        check(serde_json::json!({"name": "a.service", "mask": true, "contents": "x"}), Some(link));
        check(serde_json::json!({"name": "a.service", "mask": false, "contents": ""}), None);
    }

    #[test]
    fn compressed_contents_are_unpacked() {
        // `printf 'a b' | gzip -n | base64`
        let check = |compression: &str| {
            let file = serde_json::json!({"path": "/a", "contents": {
                "source": "data:;base64,H4sIAAAAAAAAA0tUSAIA01xsgAMAAAA=", "compression": compression}});
            content_of(&serde_json::json!({"storage": {"files": [file]}}), "/a")
        };
        assert_eq!(check("gzip").unwrap().unwrap(), b"a b");
        assert_ne!(check("").unwrap().unwrap(), b"a b");
        check("zstd").unwrap_err();
    }
}
