//! Maker and firmware of a TPM, as it tells them itself (`TPM2_GetCapability`).

use std::fmt;

use tss_esapi::constants::{CapabilityType, PropertyTag};
use tss_esapi::structures::CapabilityData;

use super::retry::UNAUTHORIZED;
use super::{TpmDevice, TpmError};

/// Properties from TPM_PT_MANUFACTURER to TPM_PT_FIRMWARE_VERSION_2 (TPM 2.0 Part 2, 6.13).
const MAKER_PROPERTIES: u32 = 8;
/// Properties that name the model, in four characters each.
const MODEL: [PropertyTag; 4] = [
    PropertyTag::VendorString1,
    PropertyTag::VendorString2,
    PropertyTag::VendorString3,
    PropertyTag::VendorString4,
];

/// Maker and firmware of a TPM, by its own account: nothing proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpmMaker {
    /// Id of the TCG Vendor ID Registry, such as `INTC`.
    id: String,
    /// Name of the model, which may be empty.
    model: String,
    /// The two words of the firmware's version.
    firmware: [u32; 2],
}

impl fmt::Display for TpmMaker {
    /// Writes `INTC (Intel), firmware 500.14.0.0`: the version in words of 16 bits, as Windows and firmware setups print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        if !self.model.is_empty() {
            write!(f, " ({})", self.model)?;
        }
        let [first, second] = self.firmware.map(|word| (word >> 16, word & 0xffff));
        write!(f, ", firmware {}.{}.{}.{}", first.0, first.1, second.0, second.1)
    }
}

impl TpmDevice {
    /// Returns the TPM's maker and firmware.
    ///
    /// # Errors
    /// [`TpmError::Command`], [`TpmError::Busy`], [`TpmError::Unexpected`].
    pub fn maker(&mut self) -> Result<TpmMaker, TpmError> {
        let first = u32::from(PropertyTag::Manufacturer);
        let (data, _) = self.run("asking for the TPM's maker", UNAUTHORIZED, |context| {
            context.get_capability(CapabilityType::TpmProperties, first, MAKER_PROPERTIES)
        })?;
        let CapabilityData::TpmProperties(properties) = data else {
            return Err(TpmError::Unexpected {
                what: "another capability than asked for",
            });
        };
        let value = |tag| properties.find(tag).map_or(0, |property| property.value());
        Ok(TpmMaker {
            id: text(&[value(PropertyTag::Manufacturer)]),
            model: text(&MODEL.map(value)),
            firmware: [value(PropertyTag::FirmwareVersion1), value(PropertyTag::FirmwareVersion2)],
        })
    }
}

/// Returns the characters of properties, without what is not printable.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_be_bytes());
    let text: String = bytes.filter(|byte| matches!(byte, b' '..=b'~')).map(char::from).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maker_is_printed_without_control_characters() {
        let maker = |id, model: [u32; 4]| TpmMaker {
            id: text(&[id]),
            model: text(&model),
            firmware: [0x01f4_000e, 0x0001_0002],
        };
        let intel = maker(0x494e_5443, [0x496e_7465, 0x6c00_0000, 0, 0]);
        assert_eq!(intel.to_string(), "INTC (Intel), firmware 500.14.1.2");
        assert_eq!(maker(0x1b5b_324a, [0x2020_0000, 0, 0, 0]).to_string(), "[2J, firmware 500.14.1.2");
    }
}
