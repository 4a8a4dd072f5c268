//! Which files a node must have after Ignition applied a config, worked out from the config itself.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use aws_lc_rs::digest;
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::Value;

/// A file or link as found on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenFile {
    /// A regular file.
    File {
        /// Permission bits.
        mode: u32,
        /// Of its content, lower-case hexadecimal.
        sha256: String,
    },
    /// A symbolic link.
    Link {
        /// As stored.
        target: String,
    },
}

/// Ignition's own note of what it did; its content depends on the run.
pub const RESULT_FILE: &str = "/etc/.ignition-result.json";
/// What files get that name no mode (Ignition spec 3.x, `storage.files.mode`).
const DEFAULT_MODE: u64 = 0o644;

/// The files of `config` (spec 3.x; contents as `data:` URLs, uncompressed), without [`RESULT_FILE`].
pub fn expected_files(config: &Value) -> Result<BTreeMap<String, WrittenFile>> {
    let mut files = BTreeMap::new();
    for file in list(config, "/storage/files") {
        let path = string(file, "/path")?;
        let source = file.pointer("/contents/source").and_then(Value::as_str).unwrap_or("data:,");
        let mode = file.get("mode").and_then(Value::as_u64).unwrap_or(DEFAULT_MODE);
        files.insert(path.to_owned(), regular(u32::try_from(mode)?, &data_url(source)?));
    }
    for link in list(config, "/storage/links") {
        let target = string(link, "/target")?.to_owned();
        files.insert(string(link, "/path")?.to_owned(), WrittenFile::Link { target });
    }
    let mut presets = String::new();
    for unit in list(config, "/systemd/units") {
        let name = string(unit, "/name")?;
        if let Some(contents) = unit.get("contents").and_then(Value::as_str) {
            files.insert(format!("/etc/systemd/system/{name}"), regular(0o644, contents.as_bytes()));
        }
        for dropin in list(unit, "/dropins") {
            let path = format!("/etc/systemd/system/{name}.d/{}", string(dropin, "/name")?);
            files.insert(path, regular(0o644, string(dropin, "/contents")?.as_bytes()));
        }
        match unit.get("enabled").and_then(Value::as_bool) {
            Some(true) => presets.push_str(&format!("enable {name}\n")),
            Some(false) => presets.push_str(&format!("disable {name}\n")),
            None => {}
        }
    }
    if !presets.is_empty() {
        let path = "/etc/systemd/system-preset/20-ignition.preset";
        files.insert(path.to_owned(), regular(0o644, presets.as_bytes()));
    }
    Ok(files)
}

/// The content of a file in `config`.
pub fn content_of(config: &Value, path: &str) -> Result<Option<Vec<u8>>> {
    let file = list(config, "/storage/files")
        .iter()
        .find(|file| file.get("path").and_then(Value::as_str) == Some(path));
    let source = file.and_then(|file| file.pointer("/contents/source")).and_then(Value::as_str);
    source.map(data_url).transpose()
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

/// RFC 2397.
fn data_url(url: &str) -> Result<Vec<u8>> {
    let Some((kind, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
        bail!("{url:?} is no data URL");
    };
    if kind.ends_with(";base64") {
        return BASE64.decode(data.as_bytes()).with_context(|| format!("base64 of {url:?}"));
    }
    let mut bytes = Vec::new();
    let mut rest = data;
    while let Some((plain, encoded)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        let (digits, after) = encoded
            .split_at_checked(2)
            .with_context(|| format!("percent encoding of {url:?}"))?;
        bytes.extend(
            HEXLOWER_PERMISSIVE
                .decode(digits.as_bytes())
                .with_context(|| format!("percent encoding of {url:?}"))?,
        );
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_of_both_kinds() {
        assert_eq!(data_url("data:,a%20b%0A").unwrap(), b"a b\n");
        assert_eq!(data_url("data:text/plain;charset=utf-8;base64,YSBi").unwrap(), b"a b");
        assert_eq!(data_url("data:,").unwrap(), b"");
        data_url("https://example.com/a").unwrap_err();
        data_url("data:,100%").unwrap_err();
    }

    #[test]
    fn units_leave_their_file_and_a_preset() {
        let config = serde_json::json!({"systemd": {"units": [{"name": "a.service", "enabled": true, "contents": "x"}]}});
        let files = expected_files(&config).unwrap();
        assert_eq!(files.get("/etc/systemd/system/a.service"), Some(&regular(0o644, b"x")));
        assert_eq!(
            files.get("/etc/systemd/system-preset/20-ignition.preset"),
            Some(&regular(0o644, b"enable a.service\n"))
        );
    }
}
