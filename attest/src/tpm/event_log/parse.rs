use super::{ALGORITHMS_LIMIT, DeclaredAlgorithm, Event, EventLog, EventLogError, EventType, LOG_LIMIT_BYTES, PCR_COUNT};

/// Signature of the Spec ID event of a crypto-agile log (PFP 10.4.5.1).
const SPEC_ID: &[u8; 16] = b"Spec ID Event03\0";
/// Signature of the StartupLocality event (PFP 10.4.5.3).
const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

const ALG_SHA1: u16 = 0x0004;
const ALG_SHA256: u16 = 0x000b;
const ALG_SHA384: u16 = 0x000c;
const ALG_SHA512: u16 = 0x000d;

/// Largest digest of an algorithm that is not known here: twice SHA-512, so that a longer one is a damaged header.
const UNKNOWN_DIGEST_LIMIT_BYTES: u16 = 128;

/// Length of a typical event on real machines, in bytes, for the initial capacity.
const TYPICAL_EVENT_BYTES: usize = 256;

pub(super) fn log(bytes: &[u8]) -> Result<EventLog<'_>, EventLogError> {
    if bytes.len() > LOG_LIMIT_BYTES {
        return Err(EventLogError::TooLarge { bytes: bytes.len() });
    }
    let mut reader = EventLogReader {
        rest: bytes,
        length: bytes.len(),
    };
    let algorithms = header(&mut reader)?;

    let mut events = Vec::with_capacity(bytes.len() / TYPICAL_EVENT_BYTES);
    let mut locality = Locality::default();
    let mut number = 0;
    while !reader.rest.is_empty() {
        number += 1;
        let Some(event) = event(&mut reader, number, &algorithms)? else {
            continue;
        };
        locality.observe(&event, number)?;
        events.push(event);
    }
    Ok(EventLog {
        algorithms,
        startup_locality: locality.stated.unwrap_or(0),
        events,
    })
}

/// The first event: TCG_PCClientPCREvent, in the format of TPM 1.2, with TCG_EfiSpecIDEvent as its data.
fn header(reader: &mut EventLogReader<'_>) -> Result<Vec<DeclaredAlgorithm>, EventLogError> {
    let pcr = reader.u32("the header's pcrIndex")?;
    let event_type = EventType(reader.u32("the header's eventType")?);
    let digest = reader.bytes("the header's digest", 20)?;
    let stated = reader.size("the header's eventDataSize")?;

    // Only a plausible PCR makes this an event, and an event of another kind makes it a log of TPM 1.2.
    let not_a_log = |field, found, required| Err(EventLogError::NotALog { field, found, required });
    if !usize::try_from(pcr).is_ok_and(|pcr| pcr < PCR_COUNT) {
        return not_a_log("pcrIndex", pcr.to_string(), "0");
    }
    let data = reader.bytes("the header's event data", stated)?;
    if event_type != EventType::NO_ACTION || !data.starts_with(SPEC_ID) {
        return Err(EventLogError::Sha1Only { first: event_type });
    }
    if pcr != 0 {
        return not_a_log("pcrIndex", pcr.to_string(), "0");
    }
    if digest.iter().any(|&byte| byte != 0) {
        return not_a_log("digest", data_encoding::HEXLOWER.encode(digest), "zeros");
    }
    spec_id(data)
}

fn spec_id(data: &[u8]) -> Result<Vec<DeclaredAlgorithm>, EventLogError> {
    let mut reader = EventLogReader {
        rest: data,
        length: data.len(),
    };
    reader.bytes("signature", SPEC_ID.len())?;
    reader.u32("platformClass")?;
    let [minor, major, _errata, _uintn_size] = reader.array("specVersion")?;
    if (major, minor) != (2, 0) {
        return Err(EventLogError::SpecVersion { major, minor });
    }

    let found = reader.u32("numberOfAlgorithms")?;
    let count = usize::try_from(found).ok().filter(|count| (1..=ALGORITHMS_LIMIT).contains(count));
    let count = count.ok_or(EventLogError::AlgorithmCount { found })?;
    let mut algorithms: Vec<DeclaredAlgorithm> = Vec::with_capacity(count);
    for _ in 0..count {
        let id = reader.u16("algorithmId")?;
        let digest_bytes = reader.u16("digestSize")?;
        if algorithms.iter().any(|other| other.id == id) {
            return Err(EventLogError::AlgorithmTwice { algorithm: id });
        }
        let (range, required) = match id {
            ALG_SHA1 => (20..=20, "20"),
            ALG_SHA256 => (32..=32, "32"),
            ALG_SHA384 => (48..=48, "48"),
            ALG_SHA512 => (64..=64, "64"),
            _ => (1..=UNKNOWN_DIGEST_LIMIT_BYTES, "1 to 128"),
        };
        if !range.contains(&digest_bytes) {
            return Err(EventLogError::AlgorithmSize {
                algorithm: id,
                declared: digest_bytes,
                required,
            });
        }
        algorithms.push(DeclaredAlgorithm { id, digest_bytes });
    }

    let vendor_info_size = reader.u8("vendorInfoSize")?;
    reader.bytes("vendorInfo", usize::from(vendor_info_size))?;
    match reader.rest.len() {
        0 => Ok(algorithms),
        left => Err(EventLogError::HeaderSize {
            stated: data.len(),
            used: data.len() - left,
        }),
    }
}

/// TCG_PCR_EVENT2 (PFP 10.2.2). Nothing for one that is about no PCR: an `EV_NO_ACTION` event extends none, and some firmware has an NV index in
/// pcrIndex (0x01C40200 and above, PFP 3.3.6, for SPDM devices: edk2's `IndustryStandard/UefiTcgPlatform.h`, and tss-esapi's documentation of NV
/// indices for extending), Windows 0xFFFFFFFF (what Microsoft's PcpTool decodes, and a recorded log of IBM's TSS).
fn event<'a>(reader: &mut EventLogReader<'a>, number: usize, algorithms: &[DeclaredAlgorithm]) -> Result<Option<Event<'a>>, EventLogError> {
    let index = reader.u32("pcrIndex")?;
    let event_type = EventType(reader.u32("eventType")?);
    let pcr = u8::try_from(index).ok().filter(|&pcr| usize::from(pcr) < PCR_COUNT);
    if pcr.is_none() && event_type != EventType::NO_ACTION {
        return Err(EventLogError::PcrIndex { event: number, index });
    }

    let found = reader.u32("digests.count")?;
    let count = usize::try_from(found).ok().filter(|count| (1..=algorithms.len()).contains(count));
    let count = count.ok_or(EventLogError::DigestCount {
        event: number,
        found,
        declared: algorithms.len(),
    })?;
    let mut event = Event {
        number,
        pcr: pcr.unwrap_or_default(),
        event_type,
        data: &[],
        sha256: None,
        sha384: None,
        sha512: None,
    };
    let mut seen = 0_u32;
    for _ in 0..count {
        let algorithm = reader.u16("digest's hashAlg")?;
        let position = algorithms.iter().position(|declared| declared.id == algorithm);
        let (position, declared) = position
            .and_then(|position| Some((position, algorithms.get(position)?)))
            .ok_or(EventLogError::DigestUndeclared { event: number, algorithm })?;
        if seen & (1 << position) != 0 {
            return Err(EventLogError::DigestTwice { event: number, algorithm });
        }
        seen |= 1 << position;
        match algorithm {
            ALG_SHA256 => event.sha256 = Some(reader.array_ref("digest")?),
            ALG_SHA384 => event.sha384 = Some(reader.array_ref("digest")?),
            ALG_SHA512 => event.sha512 = Some(reader.array_ref("digest")?),
            _ => drop(reader.bytes("digest", usize::from(declared.digest_bytes))?),
        }
    }

    let size = reader.size("eventSize")?;
    event.data = reader.bytes("event data", size)?;
    Ok(pcr.map(|_| event))
}

/// Finds the one StartupLocality event, which has to come before anything is extended into PCR 0.
#[derive(Default)]
struct Locality {
    stated: Option<u8>,
    pcr_0_extended: bool,
}

impl Locality {
    fn observe(&mut self, event: &Event<'_>, number: usize) -> Result<(), EventLogError> {
        if event.extends() {
            self.pcr_0_extended |= event.pcr == 0;
            return Ok(());
        }
        // The structure has 17 bytes (PFP 10.4.5.3). Firmware that logs more of them has padded it, and is told by the signature, as by edk2's
        // Tcg2DumpLog. What the locality is worth, the replay of PCR 0 shows.
        let Some([locality, ..]) = event.data.strip_prefix(STARTUP_LOCALITY) else {
            return Ok(());
        };
        let misplaced = |problem| {
            Err(EventLogError::StartupLocalityPlace {
                event: number,
                pcr: event.pcr,
                problem,
            })
        };
        if event.pcr != 0 {
            return misplaced("where only PCR 0 has one");
        }
        if self.stated.is_some() {
            return misplaced("for the second time");
        }
        if self.pcr_0_extended {
            return misplaced("after PCR 0 was extended");
        }
        if !matches!(locality, 0 | 3 | 4) {
            return Err(EventLogError::StartupLocality {
                event: number,
                found: *locality,
            });
        }
        self.stated = Some(*locality);
        Ok(())
    }
}

/// Reads little-endian fields from the front of a byte slice.
struct EventLogReader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> EventLogReader<'a> {
    fn truncated(&self, field: &'static str, needed: usize) -> EventLogError {
        EventLogError::Truncated {
            field,
            offset: self.length - self.rest.len(),
            needed,
            left: self.rest.len(),
        }
    }

    fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], EventLogError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.truncated(field, count))?;
        self.rest = rest;
        Ok(head)
    }

    fn array_ref<const N: usize>(&mut self, field: &'static str) -> Result<&'a [u8; N], EventLogError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or_else(|| self.truncated(field, N))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], EventLogError> {
        self.array_ref(field).copied()
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, EventLogError> {
        self.array(field).map(u8::from_le_bytes)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, EventLogError> {
        self.array(field).map(u16::from_le_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, EventLogError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// A 32-bit size. Where it does not fit a `usize` no input is long enough either.
    fn size(&mut self, field: &'static str) -> Result<usize, EventLogError> {
        self.u32(field).map(|size| usize::try_from(size).unwrap_or(usize::MAX))
    }
}
