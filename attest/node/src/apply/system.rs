//! The running system, as far as the next boot depends on it: files below a root, which is a temporary folder in tests.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Largest file read. Boot loaders' configs and tables of users have some ten KiB.
const FILE_LIMIT_BYTES: u64 = 4 * 1024 * 1024;
/// Folders of the library whose name contains systemd's version; on Debian, in a subfolder named after the machine's kind.
const SYSTEMD_LIBRARIES: [&str; 2] = ["usr/lib", "usr/lib64"];
/// Prefix of that library's name: `libsystemd-shared-252.so`, `libsystemd-shared-252-32.el9.so`.
const SYSTEMD_LIBRARY: &str = "libsystemd-shared-";

/// Path where OSTree mounts the root filesystem.
pub const SYSROOT: &str = "/sysroot";

/// The system that this program runs on.
#[derive(Debug, Clone)]
pub struct System {
    root: PathBuf,
}

/// A user or a group, in the table of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemAccount {
    pub name: String,
    /// UID or GID, in decimal.
    pub id: String,
    /// The number of a user's primary group.
    pub group: String,
    /// Home directory of a user.
    pub home: String,
}

impl System {
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns `true` for the running system, `false` for a folder in its place.
    #[must_use]
    pub fn is_this_one(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the location of an absolute path of this system.
    #[must_use]
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// A file's text; nothing if it cannot be read.
    #[must_use]
    pub fn text(&self, absolute: &str) -> Option<String> {
        text(&self.path(absolute))
    }

    /// The texts of a folder's files whose names end so.
    #[must_use]
    pub fn texts(&self, folder: &str, ending: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let wanted = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(ending));
        wanted.filter_map(|entry| text(&entry.path())).collect()
    }

    /// Returns whether a path is a mount point.
    #[must_use]
    pub fn is_mount_point(&self, absolute: &str) -> bool {
        self.mounts().iter().any(|mount| mount.point == absolute)
    }

    /// The mounts, by proc_pid_mountinfo(5).
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let table = self.text("/proc/self/mountinfo").unwrap_or_default();
        table.lines().filter_map(Mount::parse).collect()
    }

    /// Resolves the symbolic links in the existing part of an absolute path.
    #[must_use]
    pub fn resolved(&self, absolute: &str) -> PathBuf {
        let path = self.path(absolute);
        let found = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
        let leads = found.and_then(|(above, real)| {
            let root = self.root.canonicalize().ok()?;
            let below = path.strip_prefix(above).ok()?;
            Some(Path::new("/").join(real.strip_prefix(root).ok()?).join(below))
        });
        leads.unwrap_or_else(|| absolute.into())
    }

    /// The value of a name in os-release(5).
    #[must_use]
    pub fn os_release(&self, name: &str) -> Option<String> {
        let text = self.text("/etc/os-release").or_else(|| self.text("/usr/lib/os-release"))?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches(['"', '\'']).to_owned())
    }

    /// Returns systemd's version, from the name of its shared library.
    #[must_use]
    pub fn systemd(&self) -> Option<u32> {
        let libraries = SYSTEMD_LIBRARIES.map(|folder| self.path(folder));
        let below = libraries.iter().flat_map(|folder| folders(folder));
        let mut places = libraries.iter().cloned().chain(below).map(|folder| folder.join("systemd"));
        places.find_map(|folder| {
            let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
            names.into_iter().find_map(|name| {
                let rest = name.to_str()?.strip_prefix(SYSTEMD_LIBRARY)?;
                rest.split(['-', '.', '~']).next()?.parse().ok()
            })
        })
    }

    /// The users, also those of the image's own table.
    #[must_use]
    pub fn users(&self) -> Vec<SystemAccount> {
        self.accounts(["/etc/passwd", "/usr/lib/passwd"])
    }

    #[must_use]
    pub fn groups(&self) -> Vec<SystemAccount> {
        self.accounts(["/etc/group", "/usr/lib/group"])
    }

    fn accounts(&self, tables: [&str; 2]) -> Vec<SystemAccount> {
        let texts = tables.iter().filter_map(|table| self.text(table));
        let accounts = texts.flat_map(|text| text.lines().filter_map(SystemAccount::parse).collect::<Vec<_>>());
        accounts.collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub point: String,
    /// Its device's numbers: `254:1`.
    pub device: String,
    /// Mount source, as the filesystem reports it: mostly a device's path.
    pub source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let (device, point) = (fields.nth(2)?, fields.nth(1)?);
        let source = fields.skip_while(|field| *field != "-").nth(2)?;
        Some(Self {
            point: point.to_owned(),
            device: device.to_owned(),
            source: source.to_owned(),
        })
    }
}

impl SystemAccount {
    /// A line of passwd(5) or group(5).
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':').map(str::to_owned);
        let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
        let (group, _, home) = (fields.next(), fields.next(), fields.next());
        Some(Self {
            name,
            id,
            group: group.unwrap_or_default(),
            home: home.unwrap_or_default(),
        })
    }
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_LIMIT_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check_systemd(library: &str, expect: Option<u32>) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(library);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        assert_eq!(System::new(root.path()).systemd(), expect, "{library}");
    }

    #[test]
    fn systemd_version_is_read_from_its_library_name() {
        check_systemd("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so", Some(252));
        check_systemd("usr/lib/systemd/libsystemd-shared-257.13-1~deb13u1.so", Some(257));
        check_systemd("usr/lib64/systemd/libsystemd-shared-256-3.fc41.so", Some(256));
        check_systemd("usr/lib/systemd/libsystemd-shared-239.so", Some(239));
        check_systemd("usr/lib/systemd/libsystemd-core-252.so", None);
    }

    #[test]
    fn accounts_mounts_and_os_release_are_parsed() {
        let root = tempfile::tempdir().unwrap();
        let system = System::new(root.path());
        for folder in ["etc", "usr/lib", "proc/self"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("usr/lib/passwd"), "core:x:1000:1001::/home/core:/bin/sh\n").unwrap();
        fs::write(root.path().join("etc/group"), "core:x:1001:\nnonsense\n").unwrap();
        fs::write(root.path().join("usr/lib/os-release"), "NAME=\"X\"\nID=\"flatcar\"\n").unwrap();
        let mounts = "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n23 22 254:2 / /boot ro shared:1 - ext4 /dev/vda2 ro\n";
        fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
        let core = SystemAccount {
            name: "core".to_owned(),
            id: "1000".to_owned(),
            group: "1001".to_owned(),
            home: "/home/core".to_owned(),
        };
        assert_eq!(system.users(), [core]);
        assert_eq!(system.groups().first().map(|group| group.id.clone()), Some("1001".to_owned()));
        assert_eq!(system.os_release("ID").as_deref(), Some("flatcar"));
        assert!(system.is_mount_point("/boot") && !system.is_mount_point("/usr"));
        assert_eq!(system.mounts().last().map(|mount| mount.device.clone()), Some("254:2".to_owned()));
    }
}
