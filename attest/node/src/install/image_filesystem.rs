//! Filesystems in a raw image, changed without mounting them: ext2 to ext4 by debugfs(8), FAT by mtools(1).
//!
//! A killed run can leave such a filesystem damaged, so the image is a copy ([`super::image`]).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::filesystem::{BootFilesystem, FILE_LIMIT_BYTES};
use super::partitions::Partition;
use super::programs::run;

/// Attribute with the SELinux label, which a replaced file keeps.
const LABEL: &str = "security.selinux";
/// First digits of a folder's mode in debugfs's listing.
const FOLDER_MODE: &str = "04";

/// ext2, ext3 or ext4.
#[derive(Debug)]
pub(super) struct ExtFilesystem {
    /// Image and offset in the form of e2fsprogs.
    device: String,
    /// Folder of the boot files: empty, or `boot/` on a root filesystem.
    base: &'static str,
    scratch: TempDir,
}

/// FAT, such as an EFI system partition.
#[derive(Debug)]
pub(super) struct FatFilesystem {
    /// Image and offset in the form of mtools.
    drive: String,
    scratch: TempDir,
}

impl ExtFilesystem {
    /// # Errors
    /// A damaged filesystem, or one that was not unmounted.
    pub(super) fn open(image: &Path, partition: &Partition, base: &'static str) -> io::Result<Self> {
        let filesystem = Self {
            device: format!("{}?offset={}", plain_path(image)?, partition.offset),
            base,
            scratch: tempfile::tempdir()?,
        };
        filesystem.check()?;
        Ok(filesystem)
    }

    /// Checks that the filesystem is consistent.
    ///
    /// # Errors
    /// What e2fsck says.
    pub(super) fn check(&self) -> io::Result<()> {
        let features = self.debugfs(&["show_super_stats -h".to_owned()], false)?;
        let has = |feature: &str| {
            features
                .lines()
                .any(|line| line.starts_with("Filesystem features:") && line.contains(feature))
        };
        if has("needs_recovery") {
            return Err(io::Error::other(
                "the filesystem was not unmounted: boot the system and shut it down, or run e2fsck",
            ));
        }
        if has("inline_data") {
            return Err(io::Error::other(
                "debugfs cannot write files with inline_data: attach the image, and pass --disk",
            ));
        }
        run(Command::new("e2fsck").args(["-f", "-n", &self.device]))
            .map(drop)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => error,
                _ => io::Error::new(io::ErrorKind::InvalidData, "the filesystem has errors: repair it with e2fsck"),
            })
    }

    /// Runs commands. debugfs reports failures on stderr only, so callers look at the result.
    fn debugfs(&self, commands: &[String], writes: bool) -> io::Result<String> {
        let script = self.scratch.path().join("commands");
        fs::write(&script, commands.join("\n") + "\n")?;
        let mut debugfs = Command::new("debugfs");
        debugfs.args(writes.then_some("-w")).arg("-f").arg(&script).arg(&self.device);
        Ok(String::from_utf8_lossy(&run(&mut debugfs)?).into_owned())
    }

    /// Lists a folder: `/inode/mode/uid/gid/name/size/` for each name. With a slash at the end, debugfs follows a link.
    fn listing(&self, folder: &str) -> io::Result<String> {
        self.debugfs(&[format!("ls -p \"{}/\"", folder.trim_end_matches('/'))], false)
    }

    /// Returns mode, UID, GID and size of a file, in debugfs's notation; `None` if it does not exist.
    fn inode(&self, absolute: &str) -> io::Result<Option<[String; 4]>> {
        let (folder, name) = absolute.rsplit_once('/').unwrap_or(("", absolute));
        let listing = self.listing(folder)?;
        let found = listing.lines().find_map(|line| {
            let fields: Vec<&str> = line.strip_prefix('/')?.split('/').collect();
            match fields.as_slice() {
                [_, mode, uid, gid, found, size, ..] if *found == name => Some([mode, uid, gid, size].map(|field| (*field).to_owned())),
                _ => None,
            }
        });
        Ok(found)
    }

    fn dump(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let copy = self.scratch.path().join("copy");
        let _ = fs::remove_file(&copy);
        let path = self.absolute(path)?;
        let Some([mode, _, _, size]) = self.inode(&path)? else {
            return Ok(None);
        };
        if mode.starts_with(FOLDER_MODE) {
            return Ok(None);
        }
        // A file with holes may be larger than its filesystem.
        if size.parse::<u64>().is_ok_and(|size| size > FILE_LIMIT_BYTES) {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is larger than 128 MiB"));
        }
        self.debugfs(&[format!("dump \"{path}\" {}", copy.display())], false)?;
        match fs::read(&copy) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            content => content.map(Some),
        }
    }

    fn absolute(&self, path: &str) -> io::Result<String> {
        Ok(format!("/{}{}", self.base, plain(path)?))
    }
}

impl BootFilesystem for ExtFilesystem {
    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let folder = self.absolute(folder)?;
        // With a slash at the end, it follows a link.
        let listing = self.listing(&folder)?;
        let names = listing.lines().filter_map(|line| line.strip_prefix('/')?.split('/').nth(4));
        let names: BTreeSet<_> = names.filter(|name| !matches!(*name, "" | "." | "..")).collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.dump(path)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let absolute = self.absolute(path)?;
        let (folder, name) = absolute.rsplit_once('/').unwrap_or(("", &absolute));
        let former = self.inode(&absolute)?;
        let source = self.scratch.path().join("content");
        let label = self.scratch.path().join("label");
        fs::write(&source, content)?;
        let _ = fs::remove_file(&label);
        for missing in missing_folders(self, path)? {
            self.debugfs(&[format!("mkdir \"{}\"", self.absolute(&missing)?)], true)?;
        }
        self.debugfs(&[format!("ea_get -f {} \"{absolute}\" {LABEL}", label.display())], false)?;
        let mut commands = vec![
            format!("rm \"{absolute}\""),
            format!("cd \"{folder}/\""),
            format!("write {} \"{name}\"", source.display()),
        ];
        let [mode, uid, gid, _] = former.unwrap_or_else(|| ["0100644", "0", "0", ""].map(str::to_owned));
        let fields = [
            format!("mode 0{}", mode.trim_start_matches('0')),
            format!("uid {uid}"),
            format!("gid {gid}"),
        ];
        commands.extend(fields.map(|field| format!("set_inode_field \"{absolute}\" {field}")));
        // Without a label, debugfs leaves an empty file.
        if fs::metadata(&label).is_ok_and(|metadata| metadata.len() > 0) {
            commands.push(format!("ea_set -f {} \"{absolute}\" {LABEL}", label.display()));
        }
        self.debugfs(&commands, true)?;
        self.written(path, content)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.debugfs(&[format!("rm \"{}\"", self.absolute(path)?)], true)?;
        Ok(())
    }

    fn remove_folder(&self, path: &str) {
        // debugfs damages a filesystem when it removes a link as a folder.
        let Ok(path) = self.absolute(path) else { return };
        if self
            .inode(&path)
            .is_ok_and(|inode| inode.is_some_and(|[mode, ..]| mode.starts_with(FOLDER_MODE)))
        {
            let _ = self.debugfs(&[format!("rmdir \"{path}\"")], true);
        }
    }
}

impl FatFilesystem {
    pub(super) fn open(image: &Path, partition: &Partition) -> io::Result<Self> {
        Ok(Self {
            drive: format!("{}@@{}", plain_path(image)?, partition.offset),
            scratch: tempfile::tempdir()?,
        })
    }

    fn mtool(&self, program: &str, arguments: &[&str]) -> io::Result<Vec<u8>> {
        let mut command = Command::new(program);
        // Disks that no floppy drive has made fail mtools' checks of geometry.
        command.env("MTOOLS_SKIP_CHECK", "1").args(["-i", &self.drive]).args(arguments);
        run(&mut command)
    }
}

impl BootFilesystem for FatFilesystem {
    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let folder = plain(folder)?;
        let listing = match self.mtool("mdir", &["-b", "-a", &format!("::/{folder}")]) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let text = String::from_utf8_lossy(&listing).into_owned();
        let names = text
            .lines()
            .filter_map(|line| line.trim_end_matches('/').rsplit_once('/').map(|(_, name)| name.to_owned()));
        Ok(names.collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        let path = plain(path)?;
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        if !self.names(folder)?.iter().any(|found| found.eq_ignore_ascii_case(name)) {
            return Ok(None);
        }
        let copy = self.scratch.path().join("copy");
        self.mtool("mcopy", &["-n", "-o", &format!("::/{path}"), &copy.to_string_lossy()])?;
        fs::read(copy).map(Some)
    }

    fn write(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = plain(path)?;
        let source = self.scratch.path().join("content");
        fs::write(&source, content)?;
        for missing in missing_folders(self, path)? {
            self.mtool("mmd", &[&format!("::/{missing}")])?;
        }
        self.mtool("mcopy", &["-D", "o", &source.to_string_lossy(), &format!("::/{path}")])?;
        self.written(path, content)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        if self.read(path)?.is_some() {
            self.mtool("mdel", &[&format!("::/{path}")])?;
        }
        Ok(())
    }

    fn remove_folder(&self, path: &str) {
        let _ = self.mtool("mrd", &[&format!("::/{path}")]);
    }
}

/// Returns the folders of a path that do not exist, the outer ones first. debugfs damages a filesystem when it makes one that exists.
fn missing_folders(filesystem: &impl BootFilesystem, path: &str) -> io::Result<Vec<String>> {
    let mut missing = Vec::new();
    for (end, _) in path.match_indices('/') {
        let folder = path.get(..end).unwrap_or_default();
        let (above, name) = folder.rsplit_once('/').unwrap_or(("", folder));
        if !filesystem.names(above)?.iter().any(|found| found.eq_ignore_ascii_case(name)) {
            missing.push(folder.to_owned());
        }
    }
    Ok(missing)
}

/// Filesystem whose programs may fail without saying so.
trait ReadBack: BootFilesystem {
    /// Reads a written file back.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]: no other cause leaves a part of a file.
    fn written(&self, path: &str, content: &[u8]) -> io::Result<()> {
        if self.read(path)?.as_deref() == Some(content) {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the file was not written: the filesystem has too little space",
            ))
        }
    }
}

impl ReadBack for ExtFilesystem {}
impl ReadBack for FatFilesystem {}

/// Returns a path that needs no quoting in a command of debugfs.
fn plain(path: &str) -> io::Result<&str> {
    // mtools expands patterns.
    let special = |letter: char| letter.is_control() || matches!(letter, '"' | '\\' | '<' | '>' | '*' | '?' | '[' | ']');
    if path.contains(special) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path has characters that debugfs or mtools would interpret",
        ));
    }
    Ok(path)
}

fn plain_path(image: &Path) -> io::Result<&str> {
    let path = image.to_str().filter(|path| !path.contains(['?', '@']));
    path.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path of the image must be UTF-8 without ? and @: rename it",
        )
    })
}
