//! Repeated work of the gateway, counted from its attestation log.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde_json::Value;

use crate::support::Gateway;

/// Number of times that each machine's evidence was accepted, and that each address got a config.
#[derive(Default)]
pub struct Logged {
    evidence: BTreeMap<String, u64>,
    configs: BTreeMap<String, u64>,
}

impl Logged {
    /// Counts in the log of a gateway since its creation.
    pub fn by(gateway: &Gateway) -> Self {
        let mut logged = Self::default();
        for file in fs::read_dir(gateway.path("state")).unwrap() {
            let path = file.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("attestation.jsonl") {
                let text = text(&path);
                text.split(|byte| *byte == b'\n').for_each(|line| logged.line(line));
            }
        }
        logged
    }

    fn line(&mut self, line: &[u8]) {
        // What is under way still.
        let Ok(record) = serde_json::from_slice::<Value>(line) else {
            return;
        };
        let (times, who) = match (record["decision"].as_str(), record["verdict"].as_str()) {
            (Some("evidence"), Some("trusted")) => (&mut self.evidence, record["identity"].to_string()),
            (Some("config"), Some("served")) => {
                let peer = record["peer"].as_str().unwrap();
                (&mut self.configs, peer.rsplit_once(':').unwrap().0.to_owned())
            }
            _ => return,
        };
        *times.entry(who).or_default() += 1;
    }

    /// Returns the number of machines whose evidence was accepted.
    pub fn verified(&self) -> usize {
        self.evidence.len()
    }

    /// Returns the number of addresses that got a config.
    pub fn given(&self) -> usize {
        self.configs.len()
    }

    /// Returns the number of accepted pieces of evidence beyond each machine's first.
    pub fn twice(&self) -> u64 {
        self.evidence.values().map(|times| times - 1).sum()
    }

    /// Returns the number of configs beyond each address's first.
    pub fn repeated_configs(&self) -> u64 {
        self.configs.values().map(|times| times - 1).sum()
    }
}

/// Reads a file of the log; closed ones are compressed.
fn text(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut whole = Vec::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut whole).unwrap();
    whole
}
