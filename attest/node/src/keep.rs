//! Keeps parts of the initramfs for the booted system: this program, the pointer config without its credentials, and the description of
//! this boot's Ignition.
//!
//! All of it lies in one folder below `/run`: in memory, readable by root only, and recreated at each boot. `attest-node program copy` makes the
//! folder, by a unit of its own at each boot. If anything cannot be kept, the boot goes on.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::console::print_line;
use crate::failure::printable;
use crate::ignition::base::{self, BaseConfig};
use crate::ignition::{self, IgnitionInput, IgnitionVersion};
use crate::kubelet::unit;
use crate::pointer::{Pointer, write};

/// Default folder for the kept files.
pub const FOLDER: &str = "/run/attest-node-kept";
/// File name of the pointer config.
const POINTER: &str = "pointer.ign";
/// File name of the initramfs's description.
const INITRAMFS: &str = "initramfs.json";
/// Largest script read: the distributions' own have some KiB.
const SCRIPT_LIMIT_BYTES: u64 = 256 * 1024;
/// Largest account of an initramfs read: base configs of at most 1 MiB, which JSON may write in six times as many bytes.
const INITRAMFS_LIMIT_BYTES: u64 = 8 * 1024 * 1024;
/// Longest version output that is kept, in characters.
const VERSION_LIMIT_CHARS: usize = 200;
/// The config on the boot filesystem that CoreOS's initramfs copies to where Ignition reads it (`coreos-ignition-setup-user.sh` in
/// coreos/fedora-coreos-config).
pub const CONFIG_ON_BOOT: &str = "ignition/config.ign";
/// Folders of scripts in an initramfs; newer ones have a single folder.
const SCRIPT_FOLDERS: [&str; 2] = ["usr/sbin", "usr/bin"];

/// Settings of `attest-node program copy`.
#[derive(Debug, Clone)]
pub struct KeepOptions {
    pub folder: PathBuf,
    /// Folder with this program, its libraries, and a script that starts it; `None` if the booted system has the program anyway.
    pub program: Option<PathBuf>,
    /// Root folder of the initramfs.
    pub root: PathBuf,
    /// Settings of its Ignition.
    pub input: IgnitionInput,
    /// Folder for the unit that gets the kubelet's certificate, if it is to be installed.
    pub units: Option<PathBuf>,
    /// `true` if this node is configured to attest a key for its kubelet.
    pub is_told_to: bool,
}

/// Description of an initramfs, for the booted system. Unknown capabilities count as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Initramfs {
    /// Version output of its Ignition.
    pub ignition: String,
    /// `true` if it has Ignition apply `ignition/config.ign` of the boot filesystem, as the initramfs of CoreOS does.
    pub copies_config: bool,
    /// `true` if it can change kernel arguments.
    pub changes_kernel_arguments: bool,
    /// A `user.ign` of the image that outranks the one to which that config is copied.
    pub outranked_by: Option<PathBuf>,
    /// Its base configs; nothing if they are not known.
    pub base: Option<Vec<BaseConfig>>,
}

/// Keeps all of that. Returns 0, or reports an error on stderr and returns 1.
#[must_use]
pub fn run(settings: &KeepOptions) -> ExitCode {
    match keep(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&format!(
                "{} is not complete, and the booted system may lack this program: {error}",
                settings.folder.display()
            ));
            ExitCode::FAILURE
        }
    }
}

fn keep(settings: &KeepOptions) -> io::Result<()> {
    private_folder(&settings.folder)?;
    let mut said = Initramfs::inspect(&settings.root, &ignition::version_output(), &settings.input);
    // What is there later may be what this program has written since.
    if let Some(before) = Initramfs::load(&settings.folder) {
        said.outranked_by = before.outranked_by;
    }
    write::replace(&settings.folder.join(INITRAMFS), &serde_json::to_vec(&said)?)?;
    if let Some(program) = &settings.program {
        copy(program, &settings.folder)?;
    }
    match &settings.units {
        Some(units) => unit::leave(units, &settings.folder, settings.is_told_to),
        None => Ok(()),
    }
}

/// Writes a pointer config there, without its credentials, if the folder exists: in the initramfs, and nowhere else. If it cannot be
/// written, the administrator has to name it later.
pub fn leave(folder: &Path, pointer: &Pointer) {
    if folder.is_dir() {
        let _ = write::replace(&folder.join(POINTER), &pointer.without_credentials());
    }
}

/// The pointer config that was left, if one was.
#[must_use]
pub fn pointer(folder: &Path) -> Option<PathBuf> {
    Some(folder.join(POINTER)).filter(|path| path.is_file())
}

impl Initramfs {
    /// Reads the description that was kept in a folder.
    #[must_use]
    pub fn load(folder: &Path) -> Option<Self> {
        serde_json::from_str(&text(&folder.join(INITRAMFS), INITRAMFS_LIMIT_BYTES)?).ok()
    }

    /// Inspects the initramfs with this root.
    fn inspect(root: &Path, ignition: &str, told: &IgnitionInput) -> Self {
        let version = IgnitionVersion::parse(ignition);
        let says = |name: &str, word: &str| {
            SCRIPT_FOLDERS
                .iter()
                .filter_map(|folder| text(&root.join(folder).join(name), SCRIPT_LIMIT_BYTES))
                .any(|script| script.contains(word))
        };
        Self {
            ignition: printable(ignition.trim()).chars().take(VERSION_LIMIT_CHARS).collect(),
            copies_config: says("coreos-ignition-setup-user", CONFIG_ON_BOOT),
            // Ignition's own is a stub that fails; CoreOS puts another one into its place.
            changes_kernel_arguments: says("ignition-kargs-helper", "rdcore kargs"),
            outranked_by: base::above(root, version, told),
            base: base::configs(root, version, told).ok(),
        }
    }
}

fn private_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Copies the files of a folder, and those of its folders.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            private_folder(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            // One that runs cannot be written to.
            match fs::remove_file(&target) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

fn text(path: &Path, limit_bytes: u64) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(limit_bytes).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn program_and_initramfs_report_are_saved_for_root() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("usr/lib/attest-node");
        fs::create_dir_all(program.join("lib")).unwrap();
        for file in ["run", "lib/libc.so"] {
            fs::write(program.join(file), file).unwrap();
            fs::set_permissions(program.join(file), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let settings = KeepOptions {
            folder: root.path().join("kept"),
            program: Some(program),
            root: root.path().to_owned(),
            input: IgnitionInput::default(),
            units: None,
            is_told_to: false,
        };
        // Twice, as where initrd.target is started twice.
        for _ in 0..2 {
            keep(&settings).unwrap();
            let (run, library) = (settings.folder.join("run"), settings.folder.join("lib/libc.so"));
            assert_eq!((mode(&settings.folder), mode(&run), mode(&library)), (0o700, 0o755, 0o755));
            assert_eq!(fs::read_to_string(library).unwrap(), "lib/libc.so");
            assert!(Initramfs::load(&settings.folder).is_some());
        }
        assert_eq!(Initramfs::load(root.path()), None);
    }

    fn check(scripts: &[(&str, &str)], copies_config: bool, changes_kernel_arguments: bool) {
        let root = tempfile::tempdir().unwrap();
        for (path, script) in scripts {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, script).unwrap();
        }
        let expect = Initramfs {
            ignition: "Ignition 2.14.0".to_owned(),
            copies_config,
            changes_kernel_arguments,
            outranked_by: None,
            base: Some(Vec::new()),
        };
        assert_eq!(
            Initramfs::inspect(root.path(), "Ignition 2.14.0\n", &IgnitionInput::default()),
            expect,
            "{scripts:?}"
        );
    }

    #[test]
    fn initramfs_abilities_are_detected_from_scripts() {
        check(&[], false, false);
        let setup = "copy_file_if_exists \"${bootmnt}/ignition/config.ign\" \"${destination}/user.ign\"";
        check(&[("usr/sbin/coreos-ignition-setup-user", setup)], true, false);
        check(&[("usr/bin/coreos-ignition-setup-user", setup)], true, false);
        check(&[("usr/sbin/coreos-ignition-setup-user", "exit 0")], false, false);
        check(&[("usr/sbin/ignition-setup-user", setup)], false, false);
        check(&[("usr/sbin/ignition-kargs-helper", "exit 1")], false, false);
        check(
            &[("usr/sbin/ignition-kargs-helper", "/usr/bin/rdcore kargs --boot-device x \"$@\"")],
            false,
            true,
        );
    }

    #[test]
    fn user_and_base_configs_are_saved_before_writes() {
        let root = tempfile::tempdir().unwrap();
        let settings = KeepOptions {
            folder: root.path().join("kept"),
            program: None,
            root: root.path().to_owned(),
            input: IgnitionInput::default(),
            units: None,
            is_told_to: false,
        };
        fs::create_dir_all(root.path().join("usr/lib/ignition/base.d")).unwrap();
        fs::write(root.path().join("usr/lib/ignition/base.d/a.ign"), "{}").unwrap();
        fs::create_dir_all(root.path().join("run/ignition")).unwrap();
        let kept = || {
            keep(&settings).unwrap();
            Initramfs::load(&settings.folder).unwrap()
        };
        let places = |kept: Initramfs| kept.base.unwrap().into_iter().map(|base| base.place).collect::<Vec<_>>();
        assert_eq!(kept().outranked_by, None);
        // As this program's own, with a ticket.
        fs::write(root.path().join("run/ignition/user.ign"), "{}").unwrap();
        assert_eq!(kept().outranked_by, None);
        assert_eq!(places(kept()), ["base.d/a.ign"]);
        fs::remove_dir_all(&settings.folder).unwrap();
        assert_eq!(kept().outranked_by, Some(root.path().join("run/ignition/user.ign")));
        // What another version has kept says nothing of it.
        fs::write(settings.folder.join(INITRAMFS), "{\"ignition\": \"Ignition 2.14.0\"}").unwrap();
        assert_eq!(Initramfs::load(&settings.folder).unwrap().base, None);
    }

    #[test]
    fn saved_pointer_omits_secrets() {
        let root = tempfile::tempdir().unwrap();
        let authority = json!({"source": "data:,CA", "compression": "gzip", "verification": {"hash": "sha256-00"}, "httpHeaders": [{"name": "A", "value": "SECRET"}]});
        let source = |more: &str| format!("https://api-int.example:22623/config/worker{more}");
        let header = json!([{"name": "Authorization", "value": "Bearer SECRET"}]);
        let config = json!({
            "ignition": {
                "version": "3.1.0",
                "config": {"merge": [
                    {"source": source("?token=SECRET&ca=00"), "httpHeaders": header},
                    {"source": "https://elsewhere.example/base.ign?SECRET"},
                ]},
                "proxy": {"httpsProxy": "http://user:SECRET@proxy.example"},
                "security": {"tls": {"certificateAuthorities": [authority, {"source": "https://elsewhere.example/SECRET"}]}},
            },
            "passwd": {"users": [{"name": "core", "passwordHash": "SECRET"}]},
        });
        let parsed = Pointer::parse(config.to_string().as_bytes()).unwrap();
        leave(&root.path().join("none"), &parsed);
        assert!(!root.path().join("none").exists());
        leave(root.path(), &parsed);
        let path = pointer(root.path()).unwrap();
        assert_eq!(mode(&path), 0o600);
        let left: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let authority = json!({"source": "data:,CA", "compression": "gzip", "verification": {"hash": "sha256-00"}});
        let expect = json!({"ignition": {
            "version": "3.1.0",
            "config": {"merge": [{"source": source("")}]},
            "security": {"tls": {"certificateAuthorities": [authority]}},
        }});
        assert_eq!(left, expect);
        assert_eq!(Pointer::parse(&fs::read(&path).unwrap()).unwrap().sources(), parsed.sources());
    }
}
