//! Disks as distributions lay them out, which `attest-node install` has changed: their boot loaders load attest-node, its machines attest and
//! are provisioned, and the predicted measurements of the changed disk are those of the boot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use swtpm_tests::firmware::BootDisk;
use swtpm_tests::firmware::boot_disk::EntryFiles;
use swtpm_tests::firmware::loaders::{make_grub, systemd_boot};
use swtpm_tests::scenario::{Site, VmRun};
use swtpm_tests::{DebianRelease, POOL, Programs, Swtpm, TestEndorsement, TestFolder, Vm, command_line, manufacture, node_initrd, run};

use super::firmware;
use super::predicted::reference_values;
use super::verdicts::accept;

/// Gateway, and a machine with a disk that has no attest-node.
struct Installed {
    _folder: TestFolder,
    site: Site,
    place: PathBuf,
    entry: PathBuf,
}

impl Installed {
    fn new(ostree: bool) -> Self {
        let folder = TestFolder::new().unwrap();
        let site = Site::new(folder.path()).unwrap();
        let place = site.vm_folder("node").unwrap();
        let (line, entry) = (command_line(site.accelerator(), &["quiet"]), place.join("entry.conf"));
        let text = match ostree {
            true => format!(
                "title CoreOS (ostree:0)\nversion 1\noptions {line} ostree=/ostree/boot.1/coreos/0a/0\nlinux /ostree/coreos-0a/vmlinuz\n\
                 initrd /ostree/coreos-0a/initramfs.img\n"
            ),
            false => format!("title      Debian\noptions    {line}\nlinux      /id/6.1/linux\ninitrd     /id/6.1/initrd\n"),
        };
        fs::write(&entry, text).unwrap();
        Self {
            _folder: folder,
            site,
            place,
            entry,
        }
    }

    /// Files for the disk: the initrd has Ignition, and no attest-node.
    fn files(&self, loader: PathBuf) -> EntryFiles {
        EntryFiles {
            loader,
            entry: self.entry.clone(),
            kernel: self.site.images().kernel(),
            initrd: self.site.images().plain_initrd(),
        }
    }

    fn node(words: &[&str], image: &Path) -> String {
        let mut node = Command::new(&Programs::build().unwrap().node);
        run(node.args(words).arg("--image").arg(image)).unwrap()
    }

    fn install(disk: &BootDisk) {
        let initrd = node_initrd().unwrap();
        Self::node(&["install", "--initrd", initrd.to_str().unwrap()], disk.image());
    }

    /// Has the pool accept the predicted boot of these files, and nothing else.
    fn accept(&mut self, files: &[(&str, &Path)]) {
        let values: Value = reference_values("off", files, Some("the installed image"));
        let pool = self.site.gateway().folder().join("pools").join(POOL);
        accept(&pool, &["images", "files"], Some(&values));
        self.site.gateway().start(None).unwrap();
        manufacture(&self.place, TestEndorsement::By(self.site.authority())).unwrap();
    }

    /// Boots the machine, with the TPM that it has had since [`Self::accept`].
    fn boot(&mut self, disk: &BootDisk) -> VmRun {
        let tpm = Swtpm::restart(&self.place).unwrap();
        let pointer = self.site.gateway().pointer(None).unwrap();
        let vm = Vm::with_firmware(&firmware(None, &self.place), &[disk])
            .accelerator(self.site.accelerator())
            .tpm(&tpm)
            .pointer(&pointer);
        self.site.boot(vm, &self.place).unwrap()
    }

    #[track_caller]
    fn attests(&mut self, disk: &BootDisk) {
        let run = self.boot(disk);
        assert_eq!(run.decision().0, "trusted", "{:?}", run.decision());
        self.site.prove_exactly("full", &run.outcome).unwrap();
    }
}

/// The second boot is one of the same disk. After `uninstall` the machine is an unauthenticated client, as before.
#[test]
fn systemd_boot_loads_an_installed_attest_node() {
    let mut machine = Installed::new(false);
    let files = machine.files(systemd_boot(DebianRelease::Trixie).unwrap());
    let disk = BootDisk::with_systemd_boot_entry(&files, &machine.place).unwrap();
    Installed::install(&disk);
    machine.accept(&[("--disk", disk.image())]);
    machine.attests(&disk);
    machine.attests(&disk);
    Installed::node(&["uninstall"], disk.image());
    let run = machine.boot(&disk);
    assert_eq!(run.decision(), ("served", "nothing was shown"));
    machine.site.prove_exactly("pre-approved", &run.outcome).unwrap();
}

/// Layout of Fedora CoreOS. Debian's GRUB has no blscfg: its config has the commands that blscfg makes of the entry.
#[test]
fn grub_loads_an_installed_attest_node_from_an_ostree_layout() {
    let mut machine = Installed::new(true);
    let files = machine.files(make_grub(DebianRelease::Trixie, false, &machine.place).unwrap());
    let disk = BootDisk::with_ostree_entry(&files, &machine.place).unwrap();
    Installed::install(&disk);
    let config = disk.write_grub_config(&machine.place).unwrap();
    // The kernel is on another file system than GRUB's config, so a prediction by --disk does not follow the commands.
    machine.accept(&[
        ("--grub", &files.loader),
        ("--grub-config", &config),
        ("--kernel", &files.kernel),
        ("--initrd", &files.initrd),
        ("--initrd", &node_initrd().unwrap()),
    ]);
    machine.attests(&disk);
    machine.attests(&disk);
}
