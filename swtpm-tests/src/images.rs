//! Boot images of the VMs: built by `images/build` when missing, with the node-initrd file appended as a user would append it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::programs::{Programs, repository};

/// Debian release of the VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebianRelease {
    /// Debian 12: systemd 252.
    Bookworm,
    /// Debian 13: systemd 257, which makes `/usr` read-only in the initrd.
    Trixie,
}

impl DebianRelease {
    /// Returns the code name, as in `images/build`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }
}

/// Built images of a release.
#[derive(Debug, Clone)]
pub struct Images {
    folder: PathBuf,
}

/// Files of a whole boot.
#[derive(Debug, Clone)]
pub struct WholeBoot {
    /// dracut's initrd, node-initrd appended.
    pub initrd: PathBuf,
    /// A private copy of the root disk.
    pub disk: PathBuf,
}

impl WholeBoot {
    /// Returns the files of the boot in `folder`.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            initrd: folder.join("initrd.img"),
            disk: folder.join("root.ext4"),
        }
    }
}

impl Images {
    /// Returns the fast image, built if its inputs changed; its release is that of `images/build`.
    pub fn fast() -> Result<Self> {
        Self::build("fast", DebianRelease::Bookworm)
    }

    /// Returns the images of the whole system.
    pub fn whole(release: DebianRelease) -> Result<Self> {
        Self::build("whole", release)
    }

    /// Returns the programs that machines with UEFI start before a kernel.
    pub fn firmware(release: DebianRelease) -> Result<Self> {
        Self::build("firmware", release)
    }

    fn build(what: &str, release: DebianRelease) -> Result<Self> {
        let script = repository().join("swtpm-tests/images/build");
        run(Command::new(&script).args([what, release.name()]))?;
        Ok(Self {
            folder: repository().join("build/images").join(release.name()),
        })
    }

    #[must_use]
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// Returns the kernel of Debian's package `linux-image-amd64`, which Debian has signed.
    #[must_use]
    pub fn signed_kernel(&self) -> PathBuf {
        self.folder.join("vmlinuz-signed")
    }

    /// Returns the fast initramfs as built: Ignition, no attest-node.
    #[must_use]
    pub fn plain_initrd(&self) -> PathBuf {
        self.folder.join("fast.cpio")
    }

    /// Returns the initramfs that only reports measurements.
    #[must_use]
    pub fn measured_initrd(&self) -> PathBuf {
        self.folder.join("measured.cpio")
    }

    /// Returns a file of the tree with firmware and boot loaders.
    #[must_use]
    pub fn firmware_file(&self, path: &str) -> PathBuf {
        self.folder.join("firmware").join(path)
    }

    /// Returns a program of that tree.
    #[must_use]
    pub fn firmware_program(&self, path: &str) -> Command {
        program(&self.folder.join("firmware"), path)
    }

    /// Returns systemd's program that predicts PCR 11.
    #[must_use]
    pub fn systemd_measure(&self) -> Command {
        self.program("usr/lib/systemd/systemd-measure")
    }

    /// Returns Debian's Ignition from the initramfs. It runs here too: its fetch stage changes nothing outside its own folder.
    pub fn ignition(&self) -> Result<PathBuf> {
        // The number before the module's name is dracut's ordering, and the package's to choose.
        let modules = self.folder.join("packages/usr/lib/dracut/modules.d");
        for module in fs::read_dir(&modules).with_context(|| format!("reading {}", modules.display()))? {
            let module = module?;
            if module.file_name().to_string_lossy().ends_with("ignition") {
                return Ok(module.path().join("ignition"));
            }
        }
        bail!("no Ignition in {}", modules.display())
    }

    /// Returns Ignition's validator, of the same package.
    #[must_use]
    pub fn ignition_validate(&self) -> PathBuf {
        self.folder.join("packages/usr/bin/ignition-validate")
    }

    /// Makes the disc that Azure puts into a machine's drive for its first boot, with this custom data, in `folder`.
    pub fn azure_disc(&self, custom_data: &str, folder: &Path) -> Result<PathBuf> {
        let content = folder.join("azure-disc");
        fs::create_dir_all(&content).with_context(|| format!("creating {}", content.display()))?;
        // Ignition asks only whether this one is there.
        fs::write(content.join("ovf-env.xml"), "<Environment/>\n")?;
        fs::write(content.join("CustomData.bin"), custom_data)?;
        let disc = folder.join("azure-disc.iso");
        run(self
            .program("usr/bin/genisoimage")
            .args(["-quiet", "-udf", "-o"])
            .args([&disc, &content]))?;
        Ok(disc)
    }

    /// Makes an ISO 9660 filesystem with this label from a folder, in `folder`. Links stay links.
    pub fn drive(&self, label: &str, content: &Path, folder: &Path) -> Result<PathBuf> {
        let drive = folder.join(format!("{label}.iso"));
        // The options by which Nova makes its config drives.
        run(self
            .program("usr/bin/genisoimage")
            .args([
                "-quiet",
                "-ldots",
                "-allow-lowercase",
                "-allow-multidot",
                "-l",
                "-J",
                "-r",
                "-V",
                label,
                "-o",
            ])
            .args([&drive, content]))?;
        Ok(drive)
    }

    /// Makes the fast initramfs with node-initrd appended, in `folder`.
    pub fn node_initrd(&self, folder: &Path) -> Result<PathBuf> {
        let initrd = folder.join("fast-with-node.cpio");
        concatenate(&[self.plain_initrd(), node_initrd()?], &initrd)?;
        Ok(initrd)
    }

    /// Makes the initrd of the whole system with a tree's `usr` laid over it, and node-initrd if wanted, in `folder`.
    pub fn changed_initrd(&self, tree: &Path, with_node: bool, folder: &Path) -> Result<PathBuf> {
        let (initrd, changes) = (folder.join("initrd.img"), folder.join("changes.cpio"));
        // The mode of a folder in the archive becomes that of the folder in the initrd.
        let pack = "chmod -R u=rwX,go=rX usr && find usr -print0 | cpio --create --null --format=newc --owner=0:0 --quiet";
        run(Command::new("sh")
            .args(["-c", &format!("{pack} >\"$1\""), "sh"])
            .arg(&changes)
            .current_dir(tree))?;
        let mut parts = vec![self.folder.join("dracut.cpio"), changes];
        if with_node {
            parts.push(node_initrd()?);
        }
        concatenate(&parts, &initrd)?;
        Ok(initrd)
    }

    /// Unpacks systemd's part of that initrd below `folder`. Returns the folder of its units.
    pub fn initrd_units(&self, folder: &Path) -> Result<PathBuf> {
        let unpack = "cpio --extract --make-directories --quiet 'usr/lib/systemd/*' <\"$1\"";
        let initrd = self.folder.join("dracut.cpio");
        run(Command::new("sh").args(["-c", unpack, "sh"]).arg(&initrd).current_dir(folder))?;
        Ok(folder.join("usr/lib/systemd/system"))
    }

    /// Returns the output of this release's `systemd-analyze verify` for `unit` with the units of these folders. The first folder has
    /// precedence.
    pub fn verify_unit(&self, folders: &[&Path], unit: &str) -> Result<String> {
        let folders: Vec<_> = folders.iter().map(|folder| folder.as_os_str()).collect();
        let output = self
            .program("usr/bin/systemd-analyze")
            .args(["verify", "--man=no", "--generators=no", unit])
            .env("SYSTEMD_UNIT_PATH", folders.join(std::ffi::OsStr::new(":")))
            .output()
            .context("starting systemd-analyze")?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Returns a command for a program of the tree, with its libraries: nothing is installed on this machine.
    fn program(&self, path: &str) -> Command {
        program(&self.folder.join("packages"), path)
    }

    /// Makes the files of the whole system in `folder`.
    pub fn whole_boot(&self, folder: &Path) -> Result<WholeBoot> {
        let boot = WholeBoot::in_folder(folder);
        concatenate(&[self.folder.join("dracut.cpio"), node_initrd()?], &boot.initrd)?;
        self.copy_disk(&boot.disk)?;
        Ok(boot)
    }

    /// Returns Debian's initrd as it is, and makes a copy of the root disk in `folder`: a host that is no node.
    pub fn host_boot(&self, folder: &Path) -> Result<WholeBoot> {
        let disk = WholeBoot::in_folder(folder).disk;
        self.copy_disk(&disk)?;
        let initrd = self.folder.join("dracut.cpio");
        Ok(WholeBoot { initrd, disk })
    }

    fn copy_disk(&self, to: &Path) -> Result<()> {
        // cp keeps the holes of the mostly empty disk.
        run(Command::new("cp").arg("--sparse=always").arg(self.folder.join("root.ext4")).arg(to))?;
        Ok(())
    }
}

fn program(tree: &Path, path: &str) -> Command {
    let libraries = [
        "usr/lib/x86_64-linux-gnu/systemd",
        "usr/lib/x86_64-linux-gnu",
        "lib/x86_64-linux-gnu",
    ];
    let libraries: Vec<String> = libraries.iter().map(|folder| tree.join(folder).display().to_string()).collect();
    let mut command = Command::new(tree.join("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(libraries.join(":")).arg(tree.join(path));
    command
}

/// Returns the file that users append to their initrd, with the program under test; built once for each process, and kept for the next
/// ones.
pub fn node_initrd() -> Result<PathBuf> {
    static FILE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let file = FILE.get_or_init(|| build_node_initrd().map_err(|error| format!("{error:#}")));
    file.clone().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Builds the file unless its inputs are unchanged: its compression costs as much as an emulated VM's boot.
fn build_node_initrd() -> Result<PathBuf> {
    let node = &Programs::build()?.node;
    let sources = repository().join("attest/node");
    let script = sources.join("initrd/build");
    // Not the file that `make node-initrd` makes: that one is for nodes, and its program is a release build.
    let file = repository().join("build/tested-node-initrd.cpio.gz");
    let stamp = file.with_extension("stamp");
    let inputs = [
        versions(&[
            node.clone(),
            script.clone(),
            sources.join("dracut/80attest-node/attest-node.service"),
            sources.join("dracut/80attest-node/attest-node-close.service"),
            sources.join("dracut/80attest-node/attest-node-close-now.service"),
            sources.join("dracut/80attest-node/attest-node-forget.service"),
            sources.join("dracut/80attest-node/attest-node-keep.service"),
            sources.join("dracut/80attest-node/attest-node-report@.service"),
            sources.join("dracut/80attest-node/attest-node-resume.conf"),
        ])?,
        versions(&libraries(node)?)?,
    ]
    .concat();
    let lock = File::create(file.with_extension("lock")).context("creating the lock of the node-initrd file")?;
    lock.lock().context("locking the node-initrd file")?;
    if !file.is_file() || fs::read_to_string(&stamp).ok().as_ref() != Some(&inputs) {
        let _ = fs::remove_file(&stamp);
        run(Command::new(&script).arg(node).arg(&file))?;
        fs::write(&stamp, inputs).with_context(|| format!("writing {}", stamp.display()))?;
    }
    Ok(file)
}

/// Returns the shared libraries that the program loads here.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let listing = run(Command::new("ldd").arg(program))?;
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(listing.lines().filter_map(path).collect())
}

/// Returns a text that changes if one of the files was written or replaced. It has the inode's change time, because the files of a package
/// have the modification times of their build.
fn versions(files: &[PathBuf]) -> Result<String> {
    let mut text = String::new();
    for file in files {
        let metadata = fs::metadata(file).with_context(|| format!("reading {}", file.display()))?;
        text.push_str(&format!(
            "{} {} {} {}.{:09}\n",
            file.display(),
            metadata.ino(),
            metadata.len(),
            metadata.ctime(),
            metadata.ctime_nsec()
        ));
    }
    Ok(text)
}

fn concatenate(parts: &[PathBuf], whole: &Path) -> Result<()> {
    let mut target = File::create(whole).with_context(|| format!("creating {}", whole.display()))?;
    for part in parts {
        let mut source = File::open(part).with_context(|| format!("opening {}", part.display()))?;
        io::copy(&mut source, &mut target).with_context(|| format!("appending {}", part.display()))?;
    }
    Ok(())
}

/// Reads a file of an ext4 image without mounting it; `None` if it is not there.
pub fn read_from_disk(disk: &Path, path: &str) -> Result<Option<Vec<u8>>> {
    // debugfs exits 0 also when there is no such file, and says so on standard error.
    let copy = disk.with_extension("extracted");
    let _ = fs::remove_file(&copy);
    run(Command::new("/usr/sbin/debugfs")
        .arg("-R")
        .arg(format!("dump {path} {}", copy.display()))
        .arg(disk))?;
    match fs::read(&copy) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {}", copy.display())),
    }
}

/// Runs a command to its end. Its output is shown only if it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
