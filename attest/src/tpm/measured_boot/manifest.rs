//! SP 800-155: where the firmware's reference values are said to be.

use super::event::SaidManifest;
use super::guid::Guid;
use super::reader::FieldReader;
use super::text::LogText;
use crate::tpm::event_log::Event;

/// Reads TCG_Sp800_155_PlatformId_Event, 2 and 3, as far as they are the same.
pub(super) fn read(event: &Event<'_>) -> Option<SaidManifest> {
    let mut data = event.data;
    let signature: [u8; 16] = data.array()?;
    if !signature.starts_with(b"SP800-155 Event") {
        return None;
    }
    let _vendor_id = data.u32()?;
    let manifest = Guid(data.array()?);
    let manufacturer = text(&mut data)?;
    let model = text(&mut data)?;
    let version = text(&mut data)?;
    let firmware_manufacturer = text(&mut data)?;
    let _firmware_manufacturer_id = data.u32()?;
    Some(SaidManifest {
        number: event.number,
        manifest,
        manufacturer,
        model,
        version,
        firmware_manufacturer,
        firmware_version: text(&mut data)?,
    })
}

/// A text behind its length in one byte, with a zero at its end.
fn text(data: &mut &[u8]) -> Option<LogText> {
    let [length] = data.array()?;
    let text = data.take_bytes(usize::from(length))?;
    Some(LogText::utf8(text.strip_suffix(&[0]).unwrap_or(text)))
}
