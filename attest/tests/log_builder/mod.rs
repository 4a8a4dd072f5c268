//! Builds event logs for the tests: well-formed ones, and ones with a single field altered.

#![allow(dead_code, reason = "each test uses its own part")]

use attest::protocol::HexDigest;
use attest::tpm::wire::HashAlg;
use aws_lc_rs::digest;
use std::collections::BTreeMap;

pub const SHA1: u16 = 0x0004;
pub const SHA256: u16 = 0x000b;
pub const SHA384: u16 = 0x000c;
pub const SHA512: u16 = 0x000d;
pub const SM3: u16 = 0x0012;

pub const EV_POST_CODE: u32 = 1;
pub const EV_NO_ACTION: u32 = 3;
pub const EV_SEPARATOR: u32 = 4;
pub const EV_IPL: u32 = 13;

/// Event of a log; its digests are those of its data unless set otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltEvent {
    pub pcr: u32,
    pub event_type: u32,
    pub digests: Vec<(u16, Vec<u8>)>,
    pub data: Vec<u8>,
}

/// A log before it is bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBuilder {
    pub header_pcr: u32,
    pub header_type: u32,
    pub header_digest: [u8; 20],
    pub signature: [u8; 16],
    /// specVersionMinor, specVersionMajor, specErrata, uintnSize.
    pub version: [u8; 4],
    pub algorithms: Vec<(u16, u16)>,
    pub vendor_info: Vec<u8>,
    pub events: Vec<BuiltEvent>,
}

impl LogBuilder {
    pub fn new(algorithms: &[u16]) -> Self {
        Self {
            header_pcr: 0,
            header_type: EV_NO_ACTION,
            header_digest: [0; 20],
            signature: *b"Spec ID Event03\0",
            version: [0, 2, 0, 2],
            algorithms: algorithms
                .iter()
                .map(|&algorithm| (algorithm, u16::try_from(digest(algorithm, b"").len()).unwrap()))
                .collect(),
            vendor_info: Vec::new(),
            events: Vec::new(),
        }
    }

    pub fn event(mut self, pcr: u32, event_type: u32, data: &[u8]) -> Self {
        let digests = self
            .algorithms
            .iter()
            .map(|&(algorithm, _)| (algorithm, digest(algorithm, data)))
            .collect();
        self.events.push(BuiltEvent {
            pcr,
            event_type,
            digests,
            data: data.to_vec(),
        });
        self
    }

    /// An event whose digest is that of other bytes than its data.
    pub fn measured(mut self, pcr: u32, event_type: u32, measured: &[u8], data: &[u8]) -> Self {
        self = self.event(pcr, event_type, measured);
        self.events.last_mut().unwrap().data = data.to_vec();
        self
    }

    pub fn startup_locality(self, locality: u8) -> Self {
        self.event(0, EV_NO_ACTION, &[b"StartupLocality\0".as_slice(), &[locality]].concat())
    }

    /// Builds the log of typical firmware: something in each of PCRs 0 to 7, and a boot loader's PCRs 8, 9 and 14.
    pub fn typical(algorithms: &[u16]) -> Self {
        let mut log = Self::new(algorithms);
        for pcr in 0..8 {
            log = log.event(pcr, EV_POST_CODE, format!("firmware volume {pcr}").as_bytes());
            log = log.event(pcr, 0x8000_0001, format!("variable {pcr}").as_bytes());
        }
        for pcr in 0..8 {
            log = log.event(pcr, EV_SEPARATOR, &[0; 4]);
        }
        for (pcr, command) in [
            (8, "grub_cmd: linux /vmlinuz\0"),
            (9, "/vmlinuz\0"),
            (14, "MokList"),
            (9, "/initrd.img\0"),
        ] {
            log = log.event(pcr, EV_IPL, command.as_bytes());
        }
        log
    }

    pub fn header_data(&self) -> Vec<u8> {
        let mut data = self.signature.to_vec();
        data.extend(0_u32.to_le_bytes());
        data.extend(self.version);
        data.extend(u32::try_from(self.algorithms.len()).unwrap().to_le_bytes());
        for (algorithm, size) in &self.algorithms {
            data.extend(algorithm.to_le_bytes());
            data.extend(size.to_le_bytes());
        }
        data.push(u8::try_from(self.vendor_info.len()).unwrap());
        data.extend(&self.vendor_info);
        data
    }

    pub fn header(&self) -> Vec<u8> {
        header_around(self.header_pcr, self.header_type, self.header_digest, &self.header_data())
    }

    pub fn build(&self) -> Vec<u8> {
        let mut log = self.header();
        for event in &self.events {
            log.extend(event.build());
        }
        log
    }

    /// The values that a TPM would hold, computed independently of the product: from the builder's events, by the definition.
    pub fn pcrs(&self, bank: HashAlg) -> BTreeMap<u8, HexDigest> {
        let (algorithm, id) = match bank {
            HashAlg::Sha256 => (&digest::SHA256, SHA256),
            HashAlg::Sha384 => (&digest::SHA384, SHA384),
            HashAlg::Sha512 => (&digest::SHA512, SHA512),
        };
        let mut values: BTreeMap<u8, Vec<u8>> = (0..24).map(|pcr| (pcr, vec![0; algorithm.output_len()])).collect();
        for event in &self.events {
            let value = values.get_mut(&u8::try_from(event.pcr).unwrap()).unwrap();
            if event.event_type != EV_NO_ACTION {
                let extended = &event.digests.iter().find(|(algorithm, _)| *algorithm == id).unwrap().1;
                *value = digest::digest(algorithm, &[value.as_slice(), extended].concat()).as_ref().to_vec();
            } else if let Some([locality]) = event.data.strip_prefix(b"StartupLocality\0") {
                *value.last_mut().unwrap() = *locality;
            }
        }
        values
            .into_iter()
            .map(|(pcr, value)| (pcr, HexDigest::new(&value).unwrap()))
            .collect()
    }
}

impl BuiltEvent {
    pub fn build(&self) -> Vec<u8> {
        let mut event = [self.pcr.to_le_bytes(), self.event_type.to_le_bytes()].concat();
        event.extend(u32::try_from(self.digests.len()).unwrap().to_le_bytes());
        for (algorithm, digest) in &self.digests {
            event.extend(algorithm.to_le_bytes());
            event.extend(digest);
        }
        event.extend(u32::try_from(self.data.len()).unwrap().to_le_bytes());
        event.extend(&self.data);
        event
    }
}

pub fn header_around(pcr: u32, event_type: u32, digest: [u8; 20], data: &[u8]) -> Vec<u8> {
    let mut header = [pcr.to_le_bytes(), event_type.to_le_bytes()].concat();
    header.extend(digest);
    header.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
    header.extend(data);
    header
}

/// A digest of any bank; for SM3, which is not at hand, something of its length.
pub fn digest(algorithm: u16, data: &[u8]) -> Vec<u8> {
    let hash = |algorithm| digest::digest(algorithm, data).as_ref().to_vec();
    match algorithm {
        SHA1 => hash(&digest::SHA1_FOR_LEGACY_USE_ONLY),
        SHA384 => hash(&digest::SHA384),
        SHA512 => hash(&digest::SHA512),
        _ => hash(&digest::SHA256),
    }
}

/// A log as a server's firmware, shim and grub leave it, 34 kB in three banks, and the sha256 values of PCRs 0 to 7.
pub fn like_a_server() -> (Vec<u8>, BTreeMap<u8, Vec<u8>>) {
    // How many events of how many bytes each: firmware and its settings, Secure Boot's variables, loaders, grub's commands.
    let kinds = [
        (0, 3, 16),
        (1, 5, 200),
        (2, 1, 4),
        (3, 1, 4),
        (4, 5, 160),
        (5, 4, 300),
        (6, 1, 4),
        (7, 8, 2260),
        (8, 50, 60),
        (14, 2, 8),
    ];
    let mut log = LogBuilder::new(&[SHA1, SHA256, SHA384]);
    for (pcr, events, bytes) in kinds {
        for event in 0..events {
            log = log.event(pcr, if pcr < 8 { 0x8000_0001 } else { EV_IPL }, &vec![event; bytes]);
        }
    }
    let pcrs = log.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr < 8);
    (log.build(), pcrs.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect())
}
