//! Device paths (UEFI 2.10, 10), as far as a reader of a log wants them: files, and the parts of firmware volumes. For people only.

use super::guid::Guid;
use super::reader::FieldReader;
use super::text::LogText;

/// Most nodes that are read of one path.
const NODES_LIMIT: usize = 32;

/// The path in UEFI_IMAGE_LOAD_EVENT (PFP 1.06, 10.2.3).
pub(super) fn image_path(mut data: &[u8]) -> Option<LogText> {
    // ImageLocationInMemory, ImageLengthInMemory, ImageLinkTimeAddress.
    data.take_bytes(24)?;
    let length = data.length64()?;
    text(data.take_bytes(length)?)
}

/// Description and path of EFI_LOAD_OPTION (UEFI 2.10, 3.1.3).
pub(super) fn load_option(mut value: &[u8]) -> Option<(LogText, LogText)> {
    value.u32()?;
    let path_bytes = usize::from(value.u16()?);
    let (units, _) = value.as_chunks::<2>();
    let length = units.iter().position(|unit| *unit == [0, 0])?.checked_mul(2)?;
    let description = LogText::utf16(value.take_bytes(length)?);
    value.take_bytes(2)?;
    let path = text(value.take_bytes(path_bytes)?).unwrap_or_else(|| LogText::Whole(String::new()));
    Some((description, path))
}

/// The nodes of a path that name something, with `/` between them.
fn text(mut path: &[u8]) -> Option<LogText> {
    let mut names = String::new();
    for _ in 0..NODES_LIMIT {
        let Some([kind, subtype]) = path.array() else { break };
        let length = usize::from(path.u16()?);
        let node = path.take_bytes(length.checked_sub(4)?)?;
        let name = match (kind, subtype) {
            (0x7f, _) => break,
            // Media: file path; partition; file and volume of the firmware.
            (4, 4) => LogText::utf16(node.strip_suffix(&[0, 0]).unwrap_or(node)).to_string(),
            (4, 1) => format!("HD({})", u32::from_le_bytes(*node.first_chunk()?)),
            (4, 6 | 7) => Guid(*node.first_chunk()?).to_string(),
            _ => continue,
        };
        if !names.is_empty() {
            names.push('/');
        }
        names.push_str(&name);
    }
    (!names.is_empty()).then(|| LogText::utf8(names.as_bytes()))
}
