//! The image of a disk: its partitions, and the files of those file systems that firmware and boot loaders read.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use attest::tpm::prediction::bytes::{ByteReadError, Bytes, RandomAccess};
use ext4_view::{Ext4, Ext4Error, Ext4Read};
use fatfs::{FileSystem, FsOptions};
use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;

/// Most partitions that are looked at. Images of operating systems have under a dozen.
const PARTITIONS_LIMIT: usize = 64;
/// Most names of a folder that are looked at.
const NAMES_LIMIT: usize = 4096;
/// Most bytes read of a file system, as a multiple of its size. A file is not kept in memory. It is read four times at most: by itself, as
/// an image, its sections, and the kernel and the initrd in them.
const READ_LIMIT_TIMES: u64 = 6;

/// The image of a disk.
pub(crate) struct Disk {
    /// The volume from which firmware boots: the EFI system partition.
    pub system: Volume,
    /// Its number in the partition table, which begins at 1.
    pub system_number: u32,
    /// The others whose file systems are read, with the names of the partitions.
    pub other_volumes: Vec<(String, Volume)>,
}

/// File system on a disk.
pub(crate) enum Volume {
    Fat(Box<FileSystem<Window>>),
    Ext4(Box<Ext4>),
}

/// A file on a volume, which is read when it is needed.
pub(crate) struct VolumeFile<'v> {
    file: RefCell<OpenFile<'v>>,
    length: usize,
}

enum OpenFile<'v> {
    Fat(fatfs::File<'v, Window>),
    Ext4(Box<ext4_view::File>),
}

/// A part of a file, for reading only.
pub(crate) struct Window {
    file: Arc<File>,
    start: u64,
    length: u64,
    at: u64,
    /// Bytes that may still be read: a cyclic chain of clusters has no end.
    left: u64,
}

impl Window {
    fn new(file: &Arc<File>, start: u64, length: u64) -> Self {
        Self {
            file: Arc::clone(file),
            start,
            length,
            at: 0,
            left: length.saturating_mul(READ_LIMIT_TIMES),
        }
    }

    fn read_at(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let here = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let length = bytes.len().min(here);
        let left = self.left.checked_sub(u64::try_from(length).unwrap_or(u64::MAX));
        self.left = left.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the file system has a loop"))?;
        let start = self.start.checked_add(at).ok_or(ErrorKind::InvalidInput)?;
        self.file.read_at(bytes.get_mut(..length).unwrap_or_default(), start)
    }
}

impl Read for Window {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(self.at, bytes)?;
        self.at = self.at.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(read)
    }
}

impl Seek for Window {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// The reader of FAT requires this; every write fails.
impl Write for Window {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Ext4Read for Window {
    fn read(&mut self, start: u64, bytes: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync + 'static>> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = start
                .checked_add(u64::try_from(filled)?)
                .ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
            match self.read_at(at, rest)? {
                0 => return Err(Box::new(io::Error::from(ErrorKind::UnexpectedEof))),
                read => filled += read,
            }
        }
        Ok(())
    }
}

/// First bytes of image formats that cannot be read as they are.
const OTHER_FORMATS: [(&[u8], &str); 6] = [
    (b"QFI\xfb", "qcow2"),
    (b"KDMV", "VMDK"),
    (b"conectix", "VHD"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
];

impl Disk {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path)?;
        let mut first = [0; 8];
        let read = file.read_at(&mut first, 0)?;
        let first = first.get(..read).unwrap_or_default();
        if let Some((_, format)) = OTHER_FORMATS.iter().find(|(magic, _)| first.starts_with(magic)) {
            bail!(
                "this is {format}: only raw images are supported. Unpack it, or run `qemu-img convert -O raw {} disk.raw`",
                path.display()
            );
        }
        let opened = |size| GptConfig::new().writable(false).logical_block_size(size).open(path);
        let disk = opened(LogicalBlockSize::Lb512).or_else(|error| opened(LogicalBlockSize::Lb4096).map_err(|_| error));
        let disk = disk.context("no readable partition table (GPT)")?;
        let file = Arc::new(file);
        let (mut system, mut others) = (None, Vec::new());
        for (number, partition) in disk.partitions().iter().take(PARTITIONS_LIMIT) {
            let size = *disk.logical_block_size();
            let window = || Ok::<_, io::Error>(Window::new(&file, partition.bytes_start(size)?, partition.bytes_len(size)?));
            if partition.part_type_guid == gpt::partition_types::EFI {
                if system.is_some() {
                    bail!("more than one EFI system partition: cannot determine which one the firmware boots from");
                }
                let fat =
                    FileSystem::new(window()?, FsOptions::new()).context("the EFI system partition is not a readable FAT filesystem")?;
                system = Some((Volume::Fat(Box::new(fat)), *number));
            } else if let Some(volume) = Volume::find(&window)? {
                let name = partition.name.chars().filter(|char| !char.is_control()).collect::<String>();
                let name = if name.is_empty() { format!("partition {number}") } else { name };
                others.push((name, volume));
            }
        }
        let (system, system_number) = system.context("the disk has no EFI system partition")?;
        Ok(Self {
            system,
            system_number,
            other_volumes: others,
        })
    }
}

impl Volume {
    /// Returns `None` if it is another file system.
    fn find(window: &dyn Fn() -> io::Result<Window>) -> io::Result<Option<Self>> {
        if let Ok(ext4) = Ext4::load(Box::new(window()?)) {
            return Ok(Some(Self::Ext4(Box::new(ext4))));
        }
        let fat = FileSystem::new(window()?, FsOptions::new()).ok();
        Ok(fat.map(|fat| Self::Fat(Box::new(fat))))
    }

    /// Returns the names in a folder, sorted; nothing, if the folder does not exist.
    pub(crate) fn names(&self, folder: &str) -> anyhow::Result<Vec<String>> {
        let mut names = match self {
            Self::Fat(fat) => {
                let root = fat.root_dir();
                let folder = match folder.trim_matches('/') {
                    "" => Ok(root),
                    folder => root.open_dir(folder),
                };
                match folder {
                    Ok(folder) => folder
                        .iter()
                        .take(NAMES_LIMIT)
                        .map(|entry| entry.map(|entry| entry.file_name()))
                        .collect::<Result<Vec<_>, _>>()?,
                    Err(error) if is_absent(&error) => Vec::new(),
                    Err(error) => return Err(error.into()),
                }
            }
            Self::Ext4(ext4) => match ext4.read_dir(&rooted(folder)[..]) {
                Ok(entries) => {
                    let mut names = Vec::new();
                    for entry in entries.take(NAMES_LIMIT) {
                        // A name that is no text is none that a boot loader is told of.
                        names.extend(entry?.file_name().as_str().ok().map(str::to_owned));
                    }
                    names
                }
                Err(Ext4Error::NotFound | Ext4Error::NotADirectory) => Vec::new(),
                Err(error) => return Err(error.into()),
            },
        };
        names.retain(|name| name != "." && name != "..");
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a file of at most `limit_bytes`; returns `None` if it does not exist.
    pub(crate) fn open(&self, path: &str, limit_bytes: usize) -> anyhow::Result<Option<VolumeFile<'_>>> {
        let (file, length) = match self {
            Self::Fat(fat) => match fat.root_dir().open_file(path.trim_matches('/')) {
                Ok(mut file) => {
                    let length = file.seek(SeekFrom::End(0))?;
                    (OpenFile::Fat(file), length)
                }
                Err(error) if is_absent(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            },
            Self::Ext4(ext4) => match ext4.open(&rooted(path)[..]) {
                Ok(file) => {
                    let length = file.metadata().len();
                    (OpenFile::Ext4(Box::new(file)), length)
                }
                Err(Ext4Error::NotFound | Ext4Error::NotADirectory | Ext4Error::IsADirectory) => return Ok(None),
                Err(error) => return Err(error.into()),
            },
        };
        match usize::try_from(length) {
            Ok(length) if length <= limit_bytes => Ok(Some(VolumeFile {
                file: RefCell::new(file),
                length,
            })),
            _ => bail!("{path} has more than {limit_bytes} bytes"),
        }
    }

    /// A file's content; nothing, if it is not there.
    pub(crate) fn read(&self, path: &str, limit_bytes: usize) -> anyhow::Result<Option<Vec<u8>>> {
        let file = self.open(path, limit_bytes)?;
        Ok(file.map(|file| file.bytes().read(limit_bytes).map(Cow::into_owned)).transpose()?)
    }
}

impl VolumeFile<'_> {
    /// Returns the file's content, which is read when it is needed.
    pub(crate) fn bytes(&self) -> Bytes<'_> {
        Bytes::from_file(self, self.length)
    }
}

impl RandomAccess for VolumeFile<'_> {
    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ByteReadError> {
        let failed = |error: &dyn std::fmt::Display| ByteReadError::Failed(error.to_string());
        let start = u64::try_from(start).map_err(|error| failed(&error))?;
        match &mut *self.file.borrow_mut() {
            OpenFile::Fat(file) => {
                // Going to another place costs a look at each cluster before it.
                if file.stream_position().map_err(|error| failed(&error))? != start {
                    file.seek(SeekFrom::Start(start)).map_err(|error| failed(&error))?;
                }
                file.read_exact(into).map_err(|error| failed(&error))
            }
            OpenFile::Ext4(file) => {
                if file.position() != start {
                    file.seek_to(start).map_err(|error| failed(&error))?;
                }
                file.read_exact(into).map_err(|error| failed(&error))
            }
        }
    }
}

/// Returns whether it does not exist, or is a file where a folder is wanted, or the other way round.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Other)
}

fn rooted(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}
