//! Variables in OVMF's flash, written before its first start, so that no firmware menu has to be driven.
//!
//! UEFI Platform Initialization Specification 1.8, volume 3, 3.2.1 (EFI_FIRMWARE_VOLUME_HEADER); edk2 `MdeModulePkg/Include/Guid/VariableFormat.h`
//! (VARIABLE_STORE_HEADER, AUTHENTICATED_VARIABLE_HEADER).

use anyhow::{Result, bail};

/// GUID in its byte order in memory.
pub type VariableGuid = [u8; 16];

/// `EFI_GLOBAL_VARIABLE`, the namespace of PK and KEK.
pub const GLOBAL: VariableGuid = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
/// `EFI_IMAGE_SECURITY_DATABASE_GUID`, the namespace of `db` and `dbx`.
pub const SECURITY_DATABASE: VariableGuid = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];
/// `gEfiAuthenticatedVariableGuid`, at the beginning of a store of signed variables.
const STORE: VariableGuid = [
    0x78, 0x2c, 0xf3, 0xaa, 0x7b, 0x94, 0x9a, 0x43, 0xa1, 0x80, 0x2e, 0x14, 0x4e, 0xc3, 0x77, 0x92,
];

/// Offset of `HeaderLength` in the firmware volume's header, and the length of the store's own header.
const VOLUME_HEADER_LENGTH: usize = 48;
const STORE_HEADER_BYTES: usize = 28;
/// Non-volatile, for boot services and at runtime, changed only with the key (UEFI 2.10, 8.2).
const ATTRIBUTES: u32 = 0x27;

/// Name, GUID and content of a variable.
pub type Variable = (&'static str, VariableGuid, Vec<u8>);

/// Writes variables into an empty store.
pub fn enrol(store: &mut [u8], variables: &[Variable]) -> Result<()> {
    let Some([low, high]) = store.get(VOLUME_HEADER_LENGTH..).and_then(|rest| rest.first_chunk::<2>()).copied() else {
        bail!("a store of variables without a header");
    };
    let start = usize::from(u16::from_le_bytes([low, high]));
    if store.get(start..start + STORE.len()) != Some(STORE.as_slice()) {
        bail!("no store of signed variables");
    }
    let mut position = start + STORE_HEADER_BYTES;
    for (name, guid, content) in variables {
        let bytes = variable(name, guid, content)?;
        let Some(place) = store.get_mut(position..position + bytes.len()) else {
            bail!("no room for {name}");
        };
        // Flash is all ones where nothing was written.
        if place.iter().any(|&byte| byte != 0xff) {
            bail!("there is a variable already where {name} goes");
        }
        place.copy_from_slice(&bytes);
        position = (position + bytes.len()).next_multiple_of(4);
    }
    Ok(())
}

fn variable(name: &str, guid: &VariableGuid, content: &[u8]) -> Result<Vec<u8>> {
    let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    // StartId, State (added), and a byte that is nothing.
    let mut bytes = vec![0xaa, 0x55, 0x3f, 0];
    bytes.extend(ATTRIBUTES.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    // EFI_TIME: what was signed later than this may take its place. Beginning of 2024, nothing behind the minutes.
    bytes.extend(2024_u16.to_le_bytes());
    bytes.extend([1, 1]);
    bytes.extend([0; 12]);
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(u32::try_from(name.len())?.to_le_bytes());
    bytes.extend(u32::try_from(content.len())?.to_le_bytes());
    bytes.extend(guid);
    bytes.extend(name);
    bytes.extend(content);
    Ok(bytes)
}
