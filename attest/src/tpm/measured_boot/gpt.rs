//! The partition table that EV_EFI_GPT_EVENT measures: UEFI_GPT_DATA (PFP 1.06, 10.2.6).

use serde::Serialize;

use super::guid::Guid;
use super::reader::FieldReader;
use super::text::LogText;

/// Most partitions that are kept: GPT has room for 128, and firmware measures those that are in use.
pub const PARTITIONS_LIMIT: usize = 128;

/// A disk's partition table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionTable {
    pub disk: Guid,
    /// The first partitions, at most [`PARTITIONS_LIMIT`].
    pub partitions: Vec<GptPartition>,
    /// Number of further partitions, over the limit.
    pub left_out: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GptPartition {
    pub kind: Guid,
    pub id: Guid,
    pub name: LogText,
}

const HEADER_BYTES: usize = 92;
const ENTRY_BYTES: usize = 128;

impl PartitionTable {
    /// Reads UEFI_GPT_DATA; `None` for anything else.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES)?;
        if !header.starts_with(b"EFI PART") {
            return None;
        }
        let disk = Guid(*header.get(56..)?.first_chunk()?);
        let count = rest.u64()?;
        let (entries, odd) = rest.as_chunks::<ENTRY_BYTES>();
        if !odd.is_empty() || usize::try_from(count) != Ok(entries.len()) {
            return None;
        }
        let partitions = entries
            .iter()
            .take(PARTITIONS_LIMIT)
            .map(|entry| partition(entry))
            .collect::<Option<_>>()?;
        Some(Self {
            disk,
            partitions,
            left_out: entries.len().saturating_sub(PARTITIONS_LIMIT),
        })
    }
}

fn partition(entry: &[u8]) -> Option<GptPartition> {
    let name = entry.get(56..)?;
    let (units, _) = name.as_chunks::<2>();
    let length = units.iter().position(|unit| *unit == [0, 0]).unwrap_or(units.len());
    Some(GptPartition {
        kind: Guid(*entry.first_chunk()?),
        id: Guid(*entry.get(16..)?.first_chunk()?),
        name: LogText::utf16(units.get(..length)?.as_flattened()),
    })
}
