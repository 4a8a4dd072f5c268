//! Measurements that a VM reports (`images/measured-init`): PCRs, and the firmware's event log.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use attest::HashAlg;
use attest::tpm::event_log::LOG_LIMIT_BYTES;
use attest::values::HexDigest;
use data_encoding::BASE64;
use flate2::read::GzDecoder;

/// PCRs and event log of a machine at the start of its kernel.
#[derive(Debug, Clone)]
pub struct MachinePcrs {
    /// PCR values by bank and number.
    pub pcrs: BTreeMap<HashAlg, BTreeMap<u8, HexDigest>>,
    /// Event log of the firmware; `None` if the kernel did not get it.
    pub log: Option<Vec<u8>>,
}

impl MachinePcrs {
    /// Reads a whole console; fails unless the report is complete.
    pub fn parse(lines: &[String]) -> Result<Self> {
        let mut pcrs: BTreeMap<HashAlg, BTreeMap<u8, HexDigest>> = BTreeMap::new();
        let (mut log, mut complete) = (String::new(), false);
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["@@", "pcr", bank, pcr, value] => {
                    // SHA-1 is on in no TPM of ours.
                    let bank: HashAlg = bank.parse()?;
                    let value = HexDigest::from_hex(value).with_context(|| format!("a digest in {line:?}"))?;
                    pcrs.entry(bank).or_default().insert(pcr.parse()?, value);
                }
                ["@@", "log", part] => log.push_str(part),
                ["@@", "end"] => complete = true,
                ["@@", ..] => bail!("a line of the VM's report that nobody understands: {line:?}"),
                _ => {}
            }
        }
        if !complete || pcrs.is_empty() {
            bail!("the VM's report is not complete");
        }
        let log = (!log.is_empty()).then(|| unpack(&log)).transpose()?;
        Ok(Self { pcrs, log })
    }

    /// Returns the value of a PCR.
    pub fn pcr(&self, bank: HashAlg, pcr: u8) -> Result<&HexDigest> {
        let value = self.pcrs.get(&bank).and_then(|bank| bank.get(&pcr));
        value.with_context(|| format!("the VM did not tell PCR {pcr} of {bank}"))
    }
}

impl MachinePcrs {
    /// Writes the report below `folder` in the form of `attest`'s fixtures: `NAME.log` and `NAME.json`.
    pub fn record(&self, folder: &Path, name: &str) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        if let Some(log) = &self.log {
            fs::write(folder.join(format!("{name}.log")), log)?;
        }
        let text = serde_json::to_string_pretty(&self.pcrs)? + "\n";
        fs::write(folder.join(format!("{name}.json")), text).with_context(|| format!("writing {name}.json"))
    }
}

fn unpack(text: &str) -> Result<Vec<u8>> {
    let packed = BASE64.decode(text.as_bytes())?;
    let mut log = Vec::new();
    GzDecoder::new(packed.as_slice())
        .take(u64::try_from(LOG_LIMIT_BYTES)?)
        .read_to_end(&mut log)?;
    Ok(log)
}
