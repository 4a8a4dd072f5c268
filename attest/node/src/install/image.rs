//! Image of a disk, changed by way of a copy: the image is replaced in whole when everything has succeeded.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use tempfile::NamedTempFile;

use super::programs::run;

/// First bytes of a qcow2 image.
const QCOW2: &[u8] = b"QFI\xfb";
/// First bytes of a VHD of variable size. One of fixed size has them at its end, and a raw image before them.
const VHD: &[u8] = b"conectix";
/// First bytes of formats that are not supported, with their names.
const OTHERS: [(&[u8], &str); 4] = [
    (b"vhdxfile", "VHDX"),
    (b"KDMV", "VMDK"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x1f\x8b", "gzip"),
];
/// Locks of all processes (proc_locks(5)). QEMU locks each image that a VM uses.
const LOCKS: &str = "/proc/locks";
/// Block devices, of which a loop device names the file behind it.
const BLOCK_DEVICES: &str = "/sys/block";
/// Offset of an ISO 9660 volume's identifier, and the identifier.
const ISO: (usize, &[u8]) = (32_769, b"CD001");

/// Offset of a tar archive's magic, and the magic.
const TAR: (usize, &[u8]) = (257, b"ustar");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskImageFormat {
    /// Raw, or a VHD of fixed size.
    Raw,
    Qcow2,
    DynamicVhd,
}

impl DiskImageFormat {
    /// Returns the format by the image's first bytes.
    ///
    /// # Errors
    /// The name of a format that is not supported.
    fn detect(start: &[u8]) -> io::Result<Self> {
        if let Some((_, name)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(invalid(format!(
                "the file is {name}: unpack or convert it to raw, qcow2 or VHD first"
            )));
        }
        if start.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1)) {
            return Err(invalid(
                "the file is tar, such as an OVA: unpack it, and convert the disk to raw, qcow2 or VHD first".to_owned(),
            ));
        }
        if start.get(ISO.0..).is_some_and(|rest| rest.starts_with(ISO.1)) {
            return Err(invalid(
                "the file is an ISO image of a live system: append the initrd to its own instead".to_owned(),
            ));
        }
        Ok(match () {
            () if start.starts_with(QCOW2) => Self::Qcow2,
            () if start.starts_with(VHD) => Self::DynamicVhd,
            () => Self::Raw,
        })
    }

    /// Names of the format, and its options, for qemu-img.
    fn qemu_names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Raw => ("raw", &[]),
            Self::Qcow2 => ("qcow2", &[]),
            Self::DynamicVhd => ("vpc", &["-o", "subformat=dynamic,force_size=on"]),
        }
    }
}

/// Facts that `qemu-img info` prints.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ImageInfo {
    #[serde(default)]
    format_specific: FormatInfo,
    backing_filename: Option<String>,
    #[serde(default)]
    snapshots: Vec<serde_json::Value>,
    #[serde(default)]
    encrypted: bool,
}

#[derive(Default, Deserialize)]
struct FormatInfo {
    #[serde(default)]
    data: Qcow2Info,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Qcow2Info {
    #[serde(default)]
    bitmaps: Vec<serde_json::Value>,
    data_file: Option<String>,
}

/// Raw copy of an image.
#[derive(Debug)]
pub(super) struct ImageCopy {
    original: PathBuf,
    format: DiskImageFormat,
    copy: NamedTempFile,
    /// Keeps other runs of this program out.
    _lock: File,
}

impl ImageCopy {
    /// Copies an image, sparsely, into its own folder.
    ///
    /// # Errors
    /// The image is missing, in use, or of another format; or there is not enough space for the copy.
    pub(super) fn create(image: &Path) -> io::Result<Self> {
        let original = image.canonicalize()?;
        let metadata = fs::metadata(&original)?;
        if !metadata.is_file() {
            return Err(invalid(
                "it is no file: pass a disk with --disk, and a mounted boot filesystem with --boot".to_owned(),
            ));
        }
        if is_in_use(&original, &metadata)? {
            return Err(io::Error::new(
                ErrorKind::ResourceBusy,
                "the image is in use: stop the VM, or detach the loop device",
            ));
        }
        let lock = File::open(&original)?;
        lock.try_lock()?;
        let mut start = Vec::new();
        File::open(&original)?.take(64 * 1024).read_to_end(&mut start)?;
        let format = DiskImageFormat::detect(&start)?;
        let copy = Self::temporary(&original)?;
        match format {
            DiskImageFormat::Raw => {
                run(Command::new("cp")
                    .args(["--reflink=auto", "--sparse=always"])
                    .args([&original, copy.path()]))?;
            }
            DiskImageFormat::Qcow2 | DiskImageFormat::DynamicVhd => {
                check_single(&original, format)?;
                convert(&original, format, copy.path(), DiskImageFormat::Raw)?;
            }
        }
        Ok(Self {
            original,
            format,
            copy,
            _lock: lock,
        })
    }

    /// Returns whether programs can read the image as a raw one.
    pub(super) fn is_raw(&self) -> bool {
        self.format == DiskImageFormat::Raw
    }

    /// Path of the raw copy.
    pub(super) fn path(&self) -> &Path {
        self.copy.path()
    }

    /// Replaces the image by the copy, in the image's format and with its mode.
    ///
    /// # Errors
    /// The operating system's, or what qemu-img says; the image is then unchanged.
    pub(super) fn replace_original(self) -> io::Result<()> {
        let Self {
            original,
            format,
            copy,
            _lock,
        } = self;
        let finished = match format {
            DiskImageFormat::Raw => copy,
            DiskImageFormat::Qcow2 | DiskImageFormat::DynamicVhd => {
                let converted = Self::temporary(&original)?;
                convert(copy.path(), DiskImageFormat::Raw, converted.path(), format)?;
                converted
            }
        };
        let file = File::open(finished.path())?;
        let former = fs::metadata(&original)?;
        // Root keeps the owner; for others the image becomes theirs.
        let _ = fchown(&file, Some(former.uid()), Some(former.gid()));
        file.set_permissions(former.permissions())?;
        file.sync_all()?;
        finished.persist(&original).map_err(|error| error.error)?;
        let folder = original.parent().unwrap_or(Path::new("/"));
        File::open(folder)?.sync_all()
    }

    fn temporary(original: &Path) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(".attest-node-")
            .suffix(".raw")
            .tempfile_in(original.parent().unwrap_or(Path::new("/")))
    }
}

/// Checks that a conversion loses nothing of an image.
fn check_single(image: &Path, format: DiskImageFormat) -> io::Result<()> {
    let (name, _) = format.qemu_names();
    let output = run(Command::new("qemu-img").args(["info", "--output=json", "-f", name]).arg(image))?;
    let info: ImageInfo = serde_json::from_slice(&output)?;
    match () {
        () if info.backing_filename.is_some() => Err(invalid(
            "the image has a backing file: merge both first (qemu-img convert)".to_owned(),
        )),
        () if !info.snapshots.is_empty() => Err(invalid(
            "the image has snapshots, which would be lost: delete them first".to_owned(),
        )),
        () if !info.format_specific.data.bitmaps.is_empty() => Err(invalid(
            "the image has bitmaps, which would be lost: remove them first (qemu-img bitmap)".to_owned(),
        )),
        () if info.format_specific.data.data_file.is_some() => Err(invalid(
            "the image has a data file: convert it to one file first (qemu-img convert)".to_owned(),
        )),
        () if info.encrypted => Err(invalid("the image is encrypted: decrypt it first".to_owned())),
        () => Ok(()),
    }
}

fn convert(from: &Path, from_format: DiskImageFormat, to: &Path, to_format: DiskImageFormat) -> io::Result<()> {
    let ((from_name, _), (to_name, options)) = (from_format.qemu_names(), to_format.qemu_names());
    let mut qemu_img = Command::new("qemu-img");
    qemu_img.args(["convert", "-f", from_name, "-O", to_name]).args(options);
    run(qemu_img.args([from, to])).map(drop)
}

/// Returns whether a process has locked the image, or a loop device has it.
fn is_in_use(image: &Path, metadata: &fs::Metadata) -> io::Result<bool> {
    let locks = fs::read_to_string(LOCKS)?;
    let inode = locked_inode(metadata.dev(), metadata.ino());
    if locks.lines().any(|line| line.split_whitespace().any(|word| word == inode)) {
        return Ok(true);
    }
    let devices = fs::read_dir(BLOCK_DEVICES).into_iter().flatten().flatten();
    let mut files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    Ok(files.any(|file| Path::new(file.trim_end_matches('\n')) == image))
}

/// Returns an inode in the form of proc_locks(5): major and minor device number in hexadecimal, inode in decimal.
fn locked_inode(device: u64, inode: u64) -> String {
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & 0xffff_ff00);
    format!("{major:02x}:{minor:02x}:{inode}")
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_by_their_first_bytes() {
        let detect = |bytes: &[u8]| DiskImageFormat::detect(bytes).map_err(|error| error.to_string());
        assert_eq!(detect(b"QFI\xfb\0\0\0\x03"), Ok(DiskImageFormat::Qcow2));
        assert_eq!(detect(b"conectix\0"), Ok(DiskImageFormat::DynamicVhd));
        for raw in [b"".as_slice(), b"\xebc", b"QFI"] {
            assert_eq!(detect(raw), Ok(DiskImageFormat::Raw));
        }
        for (other, name) in OTHERS {
            assert!(detect(other).unwrap_err().contains(name));
        }
        let mut iso = vec![0; ISO.0];
        iso.extend_from_slice(ISO.1);
        assert!(detect(&iso).unwrap_err().contains("ISO"));
        let mut tar = vec![0; TAR.0];
        tar.extend_from_slice(TAR.1);
        assert!(detect(&tar).unwrap_err().contains("OVA"));
    }

    #[test]
    fn device_numbers_have_the_form_of_proc_locks() {
        assert_eq!(locked_inode(0xfe00, 7), "fe:00:7");
        assert_eq!(locked_inode(0x803, 12), "08:03:12");
        assert_eq!(locked_inode(0x10_0103, 12), "01:103:12");
    }
}
