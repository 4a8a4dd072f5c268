//! `attest-node install` and `uninstall` on images and disks that e2fsprogs, mtools and QEMU have made, laid out as distributions do.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1024 * 1024;
/// Start of the boot partition, behind an EFI system partition of 8 MiB.
const BOOT_OFFSET: u64 = 9 * MIB;
/// Size of the boot partition.
const BOOT_MIB: u64 = 24;
/// Entry in OSTree's form, on a boot partition (`ostree_bootconfig_parser_write_at`).
const OSTREE: &str = "title Fedora CoreOS (ostree:0)\nversion 1\noptions $ignition_firstboot ignition.platform.id=metal \
                      ostree=/ostree/boot.1/fedora-coreos/0a/0\nlinux /ostree/fedora-coreos-0a/vmlinuz\ninitrd \
                      /ostree/fedora-coreos-0a/initramfs.img\n";
/// Entry as kernel-install writes it on an EFI system partition (90-loaderentry.install).
const PLAIN: &str = "title      Debian GNU/Linux 13\nversion    6.12\noptions    root=LABEL=root\nlinux      /id/6.12/linux\ninitrd     \
                     /id/6.12/initrd";

/// Folder with an initrd, and with disks.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("node.cpio.gz"), node_initrd("a")).unwrap();
        fs::write(folder.path().join("newer.cpio.gz"), node_initrd("b")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Tree of a boot partition like that of Fedora CoreOS.
    fn coreos_tree(&self) -> PathBuf {
        let tree = self.path("tree");
        fs::create_dir_all(tree.join("loader.1/entries")).unwrap();
        fs::create_dir_all(tree.join("ostree/fedora-coreos-0a")).unwrap();
        fs::create_dir_all(tree.join("grub2")).unwrap();
        symlink("loader.1", tree.join("loader")).unwrap();
        fs::write(tree.join("loader.1/entries/ostree-1.conf"), OSTREE).unwrap();
        for name in ["vmlinuz", "initramfs.img"] {
            fs::write(tree.join("ostree/fedora-coreos-0a").join(name), name).unwrap();
        }
        fs::write(tree.join("ignition.firstboot"), "").unwrap();
        fs::write(tree.join("grub2/grub.cfg"), "blscfg\n").unwrap();
        tree
    }

    /// Raw image with a GPT: an EFI system partition, a boot partition, and one without a filesystem.
    fn disk(&self) -> PathBuf {
        let image = self.path("disk.raw");
        File::create(&image).unwrap().set_len((BOOT_MIB + 20) * MIB).unwrap();
        let table = format!("label: gpt\nsize=8MiB, type=U, name=EFI-SYSTEM\nsize={BOOT_MIB}MiB, name=boot\nsize=8MiB, name=root\n");
        let mut sfdisk = Command::new("/usr/sbin/sfdisk")
            .arg("-q")
            .arg(&image)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        sfdisk.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
        assert!(sfdisk.wait().unwrap().success());
        image
    }

    fn coreos(&self) -> PathBuf {
        let (image, tree) = (self.disk(), self.coreos_tree());
        let mut make = Command::new("/usr/sbin/mke2fs");
        make.args(["-q", "-t", "ext4", "-L", "boot", "-E", &format!("offset={BOOT_OFFSET}"), "-d"])
            .arg(tree);
        done(make.arg(&image).arg(format!("{BOOT_MIB}m")));
        done(
            Command::new("/usr/sbin/debugfs")
                .args(["-w", "-R", "ea_set /loader/entries/ostree-1.conf security.selinux label"])
                .arg(ext(&image)),
        );
        let mode = "set_inode_field /loader/entries/ostree-1.conf mode 0100600";
        done(Command::new("/usr/sbin/debugfs").args(["-w", "-R", mode]).arg(ext(&image)));
        done(mtool("mformat", &image).args(["-v", "EFI-SYSTEM", "::"]));
        image
    }

    /// Image with systemd-boot's layout: entry, kernel and initrd on the EFI system partition.
    fn systemd_boot(&self) -> PathBuf {
        let image = self.disk();
        done(mtool("mformat", &image).args(["-v", "EFI-SYSTEM", "::"]));
        for folder in ["loader", "loader/entries", "id", "id/6.12", "EFI", "EFI/Linux"] {
            done(mtool("mmd", &image).arg(format!("::/{folder}")));
        }
        for (path, text) in [
            ("loader/entries/id-6.12.conf", PLAIN),
            ("id/6.12/linux", "k"),
            ("id/6.12/initrd", "i"),
        ] {
            let source = self.path("source");
            fs::write(&source, text).unwrap();
            done(mtool("mcopy", &image).arg(source).arg(format!("::/{path}")));
        }
        image
    }

    fn run(&self, words: &[&str], target: &Path) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attest-node"));
        command.args(words).arg(target).current_dir(self.folder.path());
        // As Debian's users have it.
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.output().unwrap()
    }

    fn install(&self, option: &str, target: &Path) -> Output {
        self.run(&["install", "--initrd", "node.cpio.gz", option], target)
    }

    fn uninstall(&self, option: &str, target: &Path) -> Output {
        self.run(&["uninstall", option], target)
    }

    /// Files next to the image that a run leaves.
    fn leftovers(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".attest-node")).collect()
    }
}

/// Gzipped archive with the file by which the program knows its initrd.
fn node_initrd(content: &str) -> Vec<u8> {
    let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
    archive.write_all(b"070701").unwrap();
    archive.write_all(b"usr/lib/attest-node/attest-node\0").unwrap();
    archive.write_all(content.repeat(100_000).as_bytes()).unwrap();
    archive.finish().unwrap()
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ext(image: &Path) -> String {
    format!("{}?offset={BOOT_OFFSET}", image.display())
}

fn mtool(program: &str, image: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("MTOOLS_SKIP_CHECK", "1")
        .arg("-i")
        .arg(format!("{}@@{MIB}", image.display()));
    command
}

/// Files of the boot partition, by path, read by debugfs's own copy of the whole tree.
fn boot_files(image: &Path) -> BTreeMap<String, Vec<u8>> {
    let copy = tempfile::tempdir().unwrap();
    done(
        Command::new("/usr/sbin/debugfs")
            .arg("-R")
            .arg(format!("rdump / {}", copy.path().display()))
            .arg(ext(image)),
    );
    done(Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(ext(image)));
    files(copy.path())
}

/// Files of the EFI system partition.
fn system_files(image: &Path) -> BTreeMap<String, Vec<u8>> {
    let copy = tempfile::tempdir().unwrap();
    done(mtool("mcopy", image).args(["-s", "-n", "::/"]).arg(copy.path()));
    files(copy.path())
}

fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            match () {
                () if path.is_symlink() => _ = found.insert(name, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()),
                () if path.is_dir() => folders.push(path),
                () => _ = found.insert(name, fs::read(&path).unwrap()),
            }
        }
    }
    found
}

#[track_caller]
fn says(output: &Output, succeeds: bool, texts: &[&str]) {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(i32::from(!succeeds)), "{stdout}{stderr}");
    let text = if succeeds { &stdout } else { &stderr };
    for expect in texts {
        assert!(text.contains(expect), "{expect}: {stdout}{stderr}");
    }
}

/// Installs on an image, again, another initrd, and removes it; compares the boot files by `read`.
fn check_image(bench: &Bench, image: &Path, entry: &str, initrd: &str, read: impl Fn(&Path) -> BTreeMap<String, Vec<u8>>) {
    let before = read(image);
    says(
        &bench.install("--image", image),
        true,
        &["installed; boot entries that load attest-node: 1", "attest-node uninstall --image"],
    );
    let installed = read(image);
    let added: Vec<_> = installed.keys().filter(|path| !before.contains_key(*path)).collect();
    assert_eq!(added.len(), 2, "{added:?}");
    let file = added.iter().find(|path| path.ends_with(".img")).unwrap();
    assert!(file.starts_with(initrd), "{file}");
    assert_eq!(installed[*file], fs::read(bench.path("node.cpio.gz")).unwrap());
    let text = String::from_utf8(installed[entry].clone()).unwrap();
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("initrd") && line.ends_with(&format!("/{file}")))
            .count(),
        1,
        "{text}"
    );

    let bytes = fs::read(image).unwrap();
    says(&bench.install("--image", image), true, &["nothing to do; boot entries"]);
    assert_eq!(fs::read(image).unwrap(), bytes, "a second run writes nothing");
    says(
        &bench.run(&["install", "--initrd", "newer.cpio.gz", "--image"], image),
        true,
        &["removed ", "created ", "changed "],
    );
    assert_eq!(read(image).len(), installed.len());

    says(&bench.uninstall("--image", image), true, &["removed; boot entries"]);
    assert_eq!(read(image), before, "byte for byte");
    says(
        &bench.uninstall("--image", image),
        true,
        &["nothing to do; attest-node is not installed"],
    );
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}

#[test]
fn coreos_images_load_the_initrd_and_are_restored() {
    let bench = Bench::new();
    let image = bench.coreos();
    check_image(
        &bench,
        &image,
        "loader.1/entries/ostree-1.conf",
        "ostree/initramfs-overlays/",
        boot_files,
    );
    let label = done(
        Command::new("/usr/sbin/debugfs")
            .args(["-R", "ea_get /loader/entries/ostree-1.conf security.selinux"])
            .arg(ext(&image)),
    );
    assert!(label.contains("label"), "{label}");
    let inode = done(
        Command::new("/usr/sbin/debugfs")
            .args(["-R", "stat /loader/entries/ostree-1.conf"])
            .arg(ext(&image)),
    );
    assert!(inode.contains("Mode:  0600"), "{inode}");
}

/// An entry that is left over on the EFI system partition, and a large file with holes, do not keep the boot partition from being changed.
#[test]
fn other_partitions_are_left_alone() {
    let bench = Bench::new();
    let image = bench.coreos();
    for folder in ["loader", "loader/entries"] {
        done(mtool("mmd", &image).arg(format!("::/{folder}")));
    }
    fs::write(bench.path("stale.conf"), PLAIN).unwrap();
    done(mtool("mcopy", &image).arg(bench.path("stale.conf")).arg("::/loader/entries/"));
    let before = system_files(&image);
    says(&bench.install("--image", &image), true, &["boot entries that load attest-node: 1"]);
    assert_eq!(system_files(&image), before);

    let holes = bench.path("holes");
    File::create(&holes).unwrap().set_len(200 * MIB).unwrap();
    let write = format!("write {} loader.1/entries/holes.conf", holes.display());
    let commands = bench.path("commands");
    fs::write(
        &commands,
        format!("cd /loader.1/entries/\n{}\n", write.replace("loader.1/entries/", "")),
    )
    .unwrap();
    done(
        Command::new("/usr/sbin/debugfs")
            .arg("-w")
            .arg("-f")
            .arg(&commands)
            .arg(ext(&image)),
    );
    says(&bench.uninstall("--image", &image), false, &["larger than 128 MiB"]);
}

#[test]
fn systemd_boot_images_load_the_initrd_and_are_restored() {
    let bench = Bench::new();
    let image = bench.systemd_boot();
    check_image(&bench, &image, "loader/entries/id-6.12.conf", "attest-node/", system_files);
}

#[test]
fn qcow2_and_vhd_keep_their_formats() {
    let bench = Bench::new();
    let raw = bench.coreos();
    let before = boot_files(&raw);
    for (name, format, options) in [
        ("disk.qcow2", "qcow2", "compat=1.1"),
        ("dynamic.vhd", "vpc", "subformat=dynamic,force_size=on"),
        ("fixed.vhd", "vpc", "subformat=fixed,force_size=on"),
    ] {
        let image = bench.path(name);
        let convert = |from: &Path, to: &Path, format: &str, options: &[&str]| {
            done(
                Command::new("qemu-img")
                    .args(["convert", "-O", format])
                    .args(options)
                    .args([from, to]),
            );
        };
        convert(&raw, &image, format, &["-o", options]);
        let start = fs::read(&image).unwrap()[..8].to_vec();
        let output = bench.run(&["install", "--output", "json", "--initrd", "node.cpio.gz", "--image"], &image);
        says(&output, true, &[]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["filesystems"][0]["layout"], "ostree");
        assert_eq!(json["filesystems"][0]["changes"].as_array().unwrap().len(), 3);
        assert_eq!(fs::read(&image).unwrap()[..8], start, "{name}");
        let copy = bench.path("copy.raw");
        done(
            Command::new("qemu-img")
                .args(["convert", "-f", format, "-O", "raw"])
                .args([&image, &copy]),
        );
        assert_eq!(boot_files(&copy).len(), before.len() + 2, "{name}");
        says(&bench.uninstall("--image", &image), true, &["removed; "]);
        done(
            Command::new("qemu-img")
                .args(["convert", "-f", format, "-O", "raw"])
                .args([&image, &copy]),
        );
        assert_eq!(boot_files(&copy), before, "{name}");
    }
    // What the conversion would lose.
    let (image, overlay) = (bench.path("disk.qcow2"), bench.path("overlay.qcow2"));
    done(
        Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
            .args([&image, &overlay]),
    );
    says(&bench.install("--image", &overlay), false, &["backing file", "[install-target]"]);
    done(Command::new("qemu-img").args(["snapshot", "-c", "x"]).arg(&image));
    says(&bench.install("--image", &image), false, &["has snapshots"]);
}

/// Each wrong target or initrd is refused, and nothing is changed.
#[test]
fn refuses_what_it_cannot_change() {
    let bench = Bench::new();
    let image = bench.coreos();
    let bytes = fs::read(&image).unwrap();
    let other = bench.path("other");
    let check = |option: &str, content: &[u8], text: &str| {
        fs::write(&other, content).unwrap();
        says(&bench.install(option, &other), false, &[text, "; next: "]);
        assert_eq!(fs::read(&other).unwrap(), content);
    };
    check("--image", b"", "it has no partition table");
    check("--image", b"no disk", "it has no partition table");
    check("--image", b"\x1f\x8b\x08", "the file is gzip");
    check("--image", b"vhdxfile", "the file is VHDX");
    check(
        "--image",
        &[&[0; 257], b"ustar".as_slice()].concat(),
        "the file is tar, such as an OVA",
    );
    check("--disk", b"", "it is no disk: pass an image with --image");
    check("--boot", b"", "it has no boot entries: it is no folder");
    for (option, target, text) in [
        ("--image", "/dev/null", "it is no file: pass a disk with --disk"),
        ("--image", "/nonexistent", "No such file"),
        ("--disk", "/nonexistent", "No such file"),
        ("--boot", "/nonexistent", "No such file"),
    ] {
        says(&bench.install(option, Path::new(target)), false, &[text, "[install-target]"]);
    }
    for (content, text) in [
        (b"x".to_vec(), "it is not compressed with gzip"),
        (gzip(b"070701 another"), "it is no initrd of attest-node"),
        (gzip(b"usr/lib/attest-node/attest-node\0"), "it is no initrd of attest-node"),
        (node_initrd("a")[..100].to_vec(), "it is not compressed with gzip, or damaged"),
    ] {
        fs::write(bench.path("wrong.gz"), content).unwrap();
        let output = bench.run(&["install", "--initrd", "wrong.gz", "--image"], &image);
        says(&output, false, &[text, "attest-node-initrd"]);
    }
    // Another process has locked the image, as QEMU does.
    let lock = File::open(&image).unwrap();
    lock.lock_shared().unwrap();
    says(&bench.install("--image", &image), false, &["the image is in use"]);
    drop(lock);
    // A system that was switched off without a shutdown.
    done(
        Command::new("/usr/sbin/debugfs")
            .args(["-w", "-R", "feature needs_recovery"])
            .arg(ext(&image)),
    );
    says(
        &bench.install("--image", &image),
        false,
        &["disk.raw:2: the filesystem was not unmounted"],
    );
    done(
        Command::new("/usr/sbin/debugfs")
            .args(["-w", "-R", "feature -needs_recovery"])
            .arg(ext(&image)),
    );
    // A damaged filesystem.
    done(
        Command::new("/usr/sbin/debugfs")
            .args(["-w", "-R", "set_inode_field <2> links_count 9"])
            .arg(ext(&image)),
    );
    says(&bench.install("--image", &image), false, &["the filesystem has errors"]);
    done(
        Command::new("/usr/sbin/debugfs")
            .args(["-w", "-R", "set_inode_field <2> links_count 6"])
            .arg(ext(&image)),
    );
    assert_eq!(boot_files(&image).len(), 6);
    assert_eq!(bytes.len(), fs::read(&image).unwrap().len());
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
    archive.write_all(content).unwrap();
    archive.finish().unwrap()
}

#[test]
fn a_full_boot_partition_is_left_as_it_was() {
    let bench = Bench::new();
    let image = bench.coreos();
    let filler = bench.path("filler");
    fs::write(&filler, vec![1; 21 * 1024 * 1024]).unwrap();
    done(
        Command::new("/usr/sbin/debugfs")
            .args(["-w", "-R", &format!("write {} filler", filler.display())])
            .arg(ext(&image)),
    );
    // Not compressible: larger than the rest of the partition.
    let mut random = vec![0; 4 * 1024 * 1024];
    aws_lc_rs::rand::fill(&mut random).unwrap();
    let content = [b"070701usr/lib/attest-node/attest-node\0".to_vec(), random].concat();
    fs::write(bench.path("node.cpio.gz"), gzip(&content)).unwrap();
    let before = fs::read(&image).unwrap();
    says(&bench.install("--image", &image), false, &["[install-failed]", "too little space"]);
    assert!(fs::read(&image).unwrap() == before, "unchanged");
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}

/// Kills the program after ever longer times, until it has finished once.
#[test]
fn an_image_is_whole_after_a_kill_at_any_time() {
    let bench = Bench::new();
    let image = bench.coreos();
    let before = fs::read(&image).unwrap();
    for delay in (0..).map(|step| Duration::from_millis(step * 25)) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_attest-node"));
        child
            .args(["install", "--initrd", "node.cpio.gz", "--image", "disk.raw"])
            .current_dir(bench.folder.path());
        let mut child = child.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(delay);
        let ended = child.try_wait().unwrap().is_some();
        let _ = child.kill();
        child.wait().unwrap();
        if fs::read(&image).unwrap() != before {
            assert_eq!(boot_files(&image).len(), 8, "complete after {delay:?}");
        }
        if ended {
            break;
        }
    }
    says(&bench.install("--image", &image), true, &["nothing to do"]);
    for name in bench.leftovers() {
        fs::remove_file(bench.path(&name)).unwrap();
    }
}

/// `coreos-installer --post-install`: the disk is not mounted, and is mounted for the moment.
#[test]
fn disks_are_mounted_for_the_moment() {
    let bench = Bench::new();
    let image = bench.coreos();
    let Some(device) = Loop::attach(&image) else {
        eprintln!("skipped: this test needs root and loop devices");
        return;
    };
    let before = boot_files(&image);
    says(
        &bench.install("--disk", &device.disk),
        true,
        &["installed; boot entries that load attest-node: 1"],
    );
    assert_eq!(boot_files(&image).len(), before.len() + 2);
    says(&bench.install("--disk", &device.disk), true, &["nothing to do"]);
    says(&bench.uninstall("--disk", &device.disk), true, &["removed; boot entries"]);
    assert_eq!(boot_files(&image), before);
    says(&bench.install("--image", &image), false, &["the image is in use"]);

    let point = bench.path("point");
    fs::create_dir(&point).unwrap();
    done(Command::new("mount").args([&device.boot, &point]));
    let refused = bench.install("--disk", &device.disk);
    let installed = bench.install("--boot", &point);
    done(Command::new("umount").arg(&point));
    says(&refused, false, &["is mounted at", "--boot"]);
    says(&installed, true, &["installed; boot entries that load attest-node: 1"]);
    assert_eq!(boot_files(&image).len(), before.len() + 2);
}

/// Loop device with nodes for its partitions, which no udev makes in a container.
struct Loop {
    disk: PathBuf,
    boot: PathBuf,
    nodes: Vec<PathBuf>,
}

impl Loop {
    fn attach(image: &Path) -> Option<Self> {
        let output = Command::new("/usr/sbin/losetup")
            .args(["--find", "--show", "--partscan"])
            .arg(image)
            .output()
            .ok()?;
        let disk = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        let name = disk.file_name()?.to_str()?.to_owned();
        let mut device = Self {
            boot: format!("{}p2", disk.display()).into(),
            disk,
            nodes: Vec::new(),
        };
        for number in 1..=3 {
            let node = PathBuf::from(format!("{}p{number}", device.disk.display()));
            let numbers = fs::read_to_string(format!("/sys/block/{name}/{name}p{number}/dev")).ok()?;
            let (major, minor) = numbers.trim().split_once(':')?;
            if !node.exists() {
                let made = Command::new("mknod").arg(&node).args(["b", major, minor]).status().ok()?;
                device.nodes.push(node);
                made.success().then_some(())?;
            }
        }
        Some(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("/usr/sbin/losetup").arg("--detach").arg(&self.disk).status();
        self.nodes.iter().for_each(|node| _ = fs::remove_file(node));
    }
}
