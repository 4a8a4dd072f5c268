//! The initrd that systemd's stub hands to the kernel: that of the image, and small archives that the stub makes of other sections.
//!
//! systemd 252 to 257, `src/boot/efi/stub.c` and `cpio.c`. The archives have no times and no names of the machine in them.

use super::BankDigests;
use super::bytes::Bytes;
use super::pe::SMALL_SECTION_LIMIT_BYTES;
use super::uki::Uki;
use crate::tpm::wire::HashAlg;

/// Sections that are made into archives, each with the first release that does so, and the file's name below `.extra`. In the order in
/// which they are appended.
const PACKED: [(&str, u32, &str); 3] = [
    (".pcrsig", 252, "tpm2-pcr-signature.json"),
    (".pcrpkey", 252, "tpm2-pcr-public-key.pem"),
    (".osrel", 257, "os-release"),
];

/// Folder of these files in the initrd.
const FOLDER: &str = ".extra";
const FOLDER_MODE: u32 = 0o040_555;
const FILE_MODE: u32 = 0o100_444;

/// The end of an archive. The stub has these bytes as they are, and writes the numbers of other entries in lower case.
const TRAILER: &[u8] =
    b"07070100000000000000000000000000000000000000010000000000000000000000000000000000000000000000000000000B00000000TRAILER!!!\0\0\0\0";

/// A release in which the order of these was not looked at.
const UNKNOWN_RELEASE: u32 = 256;

/// Returns the digests of the initrd as the kernel gets it; `None` without an initrd.
pub(super) fn digests(uki: &Uki<'_>, banks: &[HashAlg]) -> Result<Option<BankDigests>, String> {
    let release = uki.stub().release;
    if release == UNKNOWN_RELEASE {
        return Err(format!(
            "the way in which systemd-stub {} concatenates initrds is not supported",
            uki.stub()
        ));
    }
    let content = |name: &str| match uki.section(name) {
        None => Ok(None),
        Some(section) => match section.content() {
            Some(content) => Ok(Some(content)),
            None => Err(format!("the section {name} is larger in memory than in the file")),
        },
    };
    let mut archives: Vec<Vec<u8>> = Vec::new();
    for (name, since, file) in PACKED {
        if release >= since
            && let Some(content) = content(name)?
        {
            let content = content
                .read(SMALL_SECTION_LIMIT_BYTES)
                .map_err(|error| format!("the section {name}: {error}"))?;
            archives.push(archive(file, &content));
        }
    }
    let mut initrds: Vec<Bytes<'_>> = Vec::new();
    for name in [".ucode", ".initrd"] {
        initrds.extend(content(name)?);
    }
    initrds.extend(archives.iter().map(Bytes::from));
    // One alone is handed on as it is; several are put together, each padded.
    let alone = initrds.len() == 1;
    let mut parts = Vec::new();
    for &initrd in &initrds {
        parts.push(initrd);
        if !alone {
            parts.push(padding(initrd.len()).into());
        }
    }
    if initrds.is_empty() {
        return Ok(None);
    }
    let digests = BankDigests::read(banks, &parts).map_err(|error| format!("the initrd: {error}"))?;
    Ok(Some(digests))
}

/// Up to the next multiple of four.
fn padding(bytes: usize) -> &'static [u8] {
    match bytes % 4 {
        1 => &[0; 3],
        2 => &[0; 2],
        3 => &[0; 1],
        _ => &[],
    }
}

/// An archive with one file in a folder: cpio, "newc" (Documentation/driver-api/early-userspace/buffer-format.rst).
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    entry(&mut archive, 1, FOLDER_MODE, FOLDER, &[]);
    entry(&mut archive, 2, FILE_MODE, &format!("{FOLDER}/{name}"), content);
    archive.extend_from_slice(TRAILER);
    archive
}

fn entry(archive: &mut Vec<u8>, inode: u32, mode: u32, name: &str, content: &[u8]) {
    // Magic; inode, mode, owner, group, links, time, size, four of devices, the name's length with its zero, and no checksum.
    let header = format!(
        "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{name}\0",
        0,
        0,
        1,
        0,
        content.len(),
        0,
        0,
        0,
        0,
        name.len() + 1,
        0
    );
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(padding(archive.len()));
    archive.extend_from_slice(content);
    archive.extend_from_slice(padding(archive.len()));
}
