//! UEFI_VARIABLE_DATA (PFP 1.06, 10.2.6): how firmware measures a variable.

use super::guid::Guid;
use super::reader::FieldReader;

/// GUID of UEFI's global variables, `EFI_GLOBAL_VARIABLE`: 8be4df61-93ca-11d2-aa0d-00e098032b8c.
pub(super) const GLOBAL: Guid = Guid([
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
]);

/// GUID of Secure Boot's databases, `EFI_IMAGE_SECURITY_DATABASE_GUID`: d719b2cb-3d3a-4596-a3bc-dad00e67656f.
pub(super) const IMAGE_SECURITY: Guid = Guid([
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
]);

/// GUID of shim's variables, `SHIM_LOCK_GUID`: 605dab50-e046-4300-abb6-3dd810dd8b23.
pub(super) const SHIM: Guid = Guid([
    0x50, 0xab, 0x5d, 0x60, 0x46, 0xe0, 0x00, 0x43, 0xab, 0xb6, 0x3d, 0xd8, 0x10, 0xdd, 0x8b, 0x23,
]);

/// A variable, borrowed from an event's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VariableData<'a> {
    pub(super) vendor: Guid,
    /// UTF-16, without a zero at its end.
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// Number of bytes after the variable.
    pub(super) padding: usize,
}

impl<'a> VariableData<'a> {
    pub(super) fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let vendor = Guid(bytes.array()?);
        let name_units = bytes.length64()?;
        let value_bytes = bytes.length64()?;
        let name = bytes.take_bytes(name_units.checked_mul(2)?)?;
        let value = bytes.take_bytes(value_bytes)?;
        Some(Self {
            vendor,
            name: name.strip_suffix(&[0, 0]).unwrap_or(name),
            value,
            padding: bytes.len(),
        })
    }

    /// Returns whether the variable has this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let (units, odd) = self.name.as_chunks::<2>();
        odd.is_empty() && units.iter().map(|unit| u16::from_le_bytes(*unit)).eq(name.encode_utf16())
    }
}
