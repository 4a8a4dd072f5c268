//! `--disk`: what is found on the image of a disk, and what is not.

use std::fs::{self, File};
use std::io::{Cursor, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use gpt::GptConfig;
use gpt::partition_types::{EFI, LINUX_FS};

use super::*;

const MIB: usize = 1024 * 1024;
const SYSTEM_BYTES: usize = 3 * MIB;
const BOOT_BYTES: usize = 16 * MIB;

/// A file system of FAT with these files.
fn fat(files: &[(&str, &[u8])]) -> Vec<u8> {
    fat_of(SYSTEM_BYTES, files)
}

fn fat_of(length: usize, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Cursor::new(vec![0; length]);
    fatfs::format_volume(&mut bytes, FormatVolumeOptions::new()).unwrap();
    let system = FileSystem::new(&mut bytes, FsOptions::new()).unwrap();
    for (path, content) in files {
        let mut folder = system.root_dir();
        let mut parts: Vec<&str> = path.split('/').collect();
        let name = parts.pop().unwrap();
        for part in parts {
            folder = folder.create_dir(part).unwrap();
        }
        folder.create_file(name).unwrap().write_all(content).unwrap();
    }
    drop(system);
    bytes.into_inner()
}

/// Returns an ext4 file system with these files.
fn ext4(files: &[(&str, &[u8])]) -> Vec<u8> {
    let place = tempfile::tempdir().unwrap();
    let (content, image) = (place.path().join("content"), place.path().join("image"));
    fs::create_dir(&content).unwrap();
    for (path, bytes) in files {
        let path = content.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let mut make = Command::new("/sbin/mkfs.ext4");
    let made = make.arg("-q").arg("-d").arg(&content).arg(&image).arg("16M").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::read(image).unwrap()
}

impl Files {
    /// Writes a disk with an EFI system partition, and perhaps one that is called boot; returns where they begin.
    pub fn disk(&self, system: &[u8], boot: Option<&[u8]>) -> [u64; 2] {
        let path = self.path("disk.raw");
        let file = File::create(&path).unwrap();
        file.set_len(u64::try_from(system.len() + BOOT_BYTES + 4 * MIB).unwrap()).unwrap();
        let mut disk = GptConfig::new().writable(true).create(&path).unwrap();
        let size = *disk.logical_block_size();
        let mut put = |name, kind, bytes: &[u8]| {
            let id = disk.add_partition(name, bytes.len().try_into().unwrap(), kind, 0, None).unwrap();
            let begin = disk.partitions()[&id].bytes_start(size).unwrap();
            file.write_all_at(bytes, begin).unwrap();
            begin
        };
        let system = put("EFI-SYSTEM", EFI, system);
        let boot = boot.map_or(0, |boot| put("boot", LINUX_FS, boot));
        disk.write().unwrap();
        [system, boot]
    }

    /// Checks that a disk with these files measures what `arguments` predict of the files, names aside.
    #[track_caller]
    fn is_as(&self, system: &[(&str, &[u8])], secure_boot: &str, arguments: &str) {
        self.disk(&fat(system), None);
        let of_disk = self.predicts(&format!("--secure-boot {secure_boot} --disk disk.raw"));
        let of_files = self.predicts(&format!("--secure-boot {secure_boot} {arguments}"));
        assert_eq!(digests(&of_disk), digests(&of_files));
        assert_eq!(of_disk["pcrs"], of_files["pcrs"]);
        assert_eq!(of_disk["not_predicted"], of_files["not_predicted"]);
        assert!(!of_disk["pcrs"].as_array().unwrap().is_empty());
    }

    fn file(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }
}

fn digests(prediction: &Value) -> Vec<(Value, Value)> {
    let events = prediction["events"].as_array().unwrap().iter();
    events.map(|event| (event["pcr"].clone(), event["sha256"].clone())).collect()
}

/// The images that are named, and why values of these PCRs are not known.
fn named(prediction: &Value, pcr: u64) -> (Vec<String>, Vec<String>) {
    let events = prediction["events"].as_array().unwrap().iter().filter(|event| event["pcr"] == pcr);
    let events = events.map(|event| event["what"].as_str().unwrap().to_owned());
    let left_out = prediction["not_predicted"].as_array().unwrap().iter();
    let left_out = left_out.filter(|left_out| left_out["pcrs"].as_array().unwrap().contains(&pcr.into()));
    let why = left_out.map(|left_out| left_out["why"].as_str().unwrap().to_owned());
    (events.collect(), why.collect())
}

#[test]
fn disk_prediction_equals_prediction_from_its_files() {
    let files = Files::new();
    let (uki, loader) = (files.file("linux.efi"), systemd_boot("252.39-1"));
    files.put("loader.efi", &loader);
    for secure_boot in ["on", "off"] {
        files.is_as(&[("EFI/BOOT/BOOTX64.EFI", &uki)], secure_boot, "--uki linux.efi");
        files.is_as(
            &[
                ("EFI/BOOT/BOOTX64.EFI", &loader),
                ("EFI/systemd/systemd-bootx64.efi", &loader),
                ("EFI/Linux/linux.efi", &uki),
            ],
            secure_boot,
            "--uki linux.efi --loader loader.efi",
        );
    }
    let (grub, kernel, config) = (files.file("grubx64.efi"), files.file("vmlinuz"), files.file("grub.cfg"));
    let mut system: Vec<(&str, &[u8])> = vec![
        ("EFI/boot/bootx64.efi", &grub),
        ("grub/grub.cfg", &config),
        ("vmlinuz", &kernel),
        ("initrd.img", b"initrd"),
    ];
    let boot = "--grub grubx64.efi --grub-config grub.cfg --kernel vmlinuz --initrd initrd.img";
    files.is_as(&system, "off", boot);
    let shim = shim();
    files.put("shimx64.efi", &shim);
    system[0] = ("EFI/BOOT/BOOTX64.EFI", &shim);
    system.push(("EFI/debian/shimx64.efi", &shim));
    system.push(("EFI/debian/grubx64.efi", &grub));
    files.is_as(&system, "on", &format!("--shim shimx64.efi {boot}"));
}

/// The image says where its config is: a file that is elsewhere is not it.
#[test]
fn finds_the_grub_config_under_the_image_prefix() {
    let files = Files::new();
    let (grub, shim) = (grub_of_12(&[(GRUB_PREFIX, b"/EFI/debian")]), shim());
    files.put("grubx64.efi", &grub);
    files.put("shimx64.efi", &shim);
    let (kernel, config) = (files.file("vmlinuz"), files.file("grub.cfg"));
    let debian: Vec<(&str, &[u8])> = vec![
        ("EFI/BOOT/BOOTX64.EFI", &shim),
        ("EFI/BOOT/grubx64.efi", &grub),
        ("EFI/debian/grub.cfg", &config),
        ("vmlinuz", &kernel),
        ("initrd.img", b"initrd"),
    ];
    let fallback = Image::new().section(".text", b"fallback").build();
    let boot = "--shim shimx64.efi --grub grubx64.efi --grub-config grub.cfg --kernel vmlinuz --initrd initrd.img";
    files.is_as(&debian, "on", boot);
    let others: [(&str, &[u8]); 2] = [("grub/grub.cfg", b"if true\n"), ("EFI/BOOT/grub.cfg", b"boot\n")];
    files.is_as(&[&debian[..], &others].concat(), "on", boot);

    let none = |system: &[(&str, &[u8])], expected: &str| {
        files.disk(&fat(system), None);
        let prediction = files.predicts("--secure-boot on --disk disk.raw");
        assert_eq!(prediction["pcrs"], Value::Array(Vec::new()), "{expected}");
        for pcr in [4, 8, 9] {
            let (_, why) = named(&prediction, pcr);
            assert!(why.iter().any(|why| why.contains(expected)), "{why:?}");
        }
        named(&prediction, 4).0
    };
    let mut elsewhere = debian.clone();
    elsewhere[2].0 = "grub/grub.cfg";
    none(&elsewhere, "EFI/debian/grub.cfg does not exist");
    let lists: (&str, &[u8]) = ("EFI/debian/x86_64-efi/command.lst", b"");
    none(&[&debian[..], &[lists]].concat(), "lists of modules from /EFI/debian/x86_64-efi");
    // A kernel of that name is on this partition too, and is not the one that is loaded.
    let root = |number: u8| format!("set root=hd0,gpt{number}\n{}", String::from_utf8_lossy(&config)).into_bytes();
    let (first, second) = (root(1), root(2));
    let mut other = debian.clone();
    other[2].1 = &second;
    none(&other, "EFI/debian/grub.cfg: the files that it loads are not on its file system");
    other[2].1 = &first;
    files.disk(&fat(&other), None);
    assert_eq!(
        files.predicts("--secure-boot on --disk disk.raw")["pcrs"].as_array().unwrap().len(),
        3
    );
    let of_partition = grub_of_12(&[(GRUB_PREFIX, b"(hd0,gpt2)/EFI/debian")]);
    other[1].1 = &of_partition;
    none(&other, "names the partition hd0,gpt2");
    let by_fallback: (&str, &[u8]) = ("EFI/BOOT/fbx64.efi", &fallback);
    let images = none(
        &[&debian[..], &[by_fallback]].concat(),
        "the machine decides which of these it starts, and in which order: EFI/BOOT/BOOTX64.EFI, EFI/BOOT/fbx64.efi",
    );
    assert_eq!(images[..2], ["image BOOTX64.EFI", "image fbx64.efi"]);
}

/// A disk laid out like Debian's, with its signed image, has no value, and each digest is listed.
#[test]
fn debian_signed_grub_yields_digests_without_pcr_values() {
    let files = Files::new();
    let (grub, kernel, config) = (signed_grub_of_12(), files.file("vmlinuz"), files.file("grub.cfg"));
    files.disk(
        &fat(&[
            ("EFI/BOOT/BOOTX64.EFI", &shim()),
            ("EFI/debian/shimx64.efi", &shim()),
            ("EFI/debian/grubx64.efi", &grub),
            ("EFI/debian/grub.cfg", &config),
            ("vmlinuz", &kernel),
            ("initrd.img", b"initrd"),
        ]),
        None,
    );
    for secure_boot in ["on", "off"] {
        let prediction = files.predicts(&format!("--secure-boot {secure_boot} --disk disk.raw"));
        assert_eq!(prediction["pcrs"], Value::Array(Vec::new()));
        let (images, why) = named(&prediction, 4);
        assert_eq!(images, ["image BOOTX64.EFI", "image grubx64.efi", "image vmlinuz"]);
        assert!(why.iter().any(|why| why.contains("a memory disk")), "{why:?}");
        assert_eq!(named(&prediction, 9).0, ["file grub.cfg", "file kernel"]);
        assert_eq!(named(&prediction, 8).0.len(), 4);
    }
}

/// The result of files that the stub takes in addition to the image is not computed.
#[test]
fn uki_with_addon_files_yields_no_pcr_values() {
    let files = Files::new();
    let (uki, loader) = (files.file("linux.efi"), files.file("systemd-bootx64.efi"));
    let by_loader: [(&str, &[u8]); 2] = [("EFI/BOOT/BOOTX64.EFI", &loader), ("EFI/Linux/linux.efi", &uki)];
    let check = |system: &[(&str, &[u8])], beside: &str, expected: &[&str]| {
        files.disk(&fat(&[system, &[(beside, b"more")]].concat()), None);
        let prediction = files.predicts("--secure-boot on --disk disk.raw");
        assert_eq!(prediction["pcrs"], Value::Array(Vec::new()));
        assert_eq!(named(&prediction, 4).0, expected);
        for pcr in [9, 12, 13] {
            let (_, why) = named(&prediction, pcr);
            assert!(why.iter().any(|why| why.ends_with(&format!(": {beside}"))), "{why:?}");
        }
        assert!(named(&prediction, 4).1.iter().all(|why| !why.contains("no kernel was found")));
    };
    for beside in [
        "loader/addons/a.addon.efi",
        "loader/credentials/a.cred",
        "EFI/Linux/linux.efi.extra.d/a.cred",
    ] {
        check(&by_loader, beside, &["image BOOTX64.EFI", "image linux.efi"]);
    }
    for beside in ["loader/addons/a.addon.efi", "EFI/BOOT/BOOTX64.EFI.extra.d/a.cred"] {
        check(&[("EFI/BOOT/BOOTX64.EFI", &uki)], beside, &["image BOOTX64.EFI"]);
    }
    // That of another image is nothing to it.
    let other: (&str, &[u8]) = ("EFI/Linux/other.efi.extra.d/a.cred", b"more");
    files.is_as(
        &[&by_loader[..], &[other]].concat(),
        "on",
        "--uki linux.efi --loader systemd-bootx64.efi",
    );
}

fn shim() -> Vec<u8> {
    Image::new()
        .section(".text", b"shim")
        .section(".sbat", b"sbat,1,x\nshim,4,UEFI shim\n")
        .build()
}

/// Returns the file systems of a disk like Fedora CoreOS's: GRUB's config asks the machine, and kernels are on a file system of their own.
pub fn coreos(files: &Files) -> (Vec<u8>, Vec<u8>) {
    let grub = Image::new()
        .section(".sbat", b"sbat,1,x\ngrub,5,FSF,grub,2.12,x\ngrub.rh,2,Red Hat,grub2,2.12,x\n")
        .build();
    let (shim, mok, kernel) = (shim(), Image::new().section(".text", b"mok").build(), files.file("vmlinuz"));
    let config = b"search --label boot --set prefix --no-floppy\n";
    let system = fat(&[
        ("EFI/BOOT/BOOTX64.EFI", &shim),
        ("EFI/fedora/shimx64.efi", &shim),
        ("EFI/fedora/grubx64.efi", &grub),
        ("EFI/fedora/mmx64.efi", &mok),
        ("EFI/fedora/grub.cfg", config),
    ]);
    let boot = ext4(&[
        (
            "loader/entries/ostree-1.conf",
            b"title Fedora CoreOS\nlinux /ostree/a/vmlinuz-6\ninitrd /ostree/a/initramfs-6\noptions quiet\n",
        ),
        ("ostree/a/vmlinuz-6", &kernel),
        ("ostree/a/initramfs-6", b"initramfs"),
    ]);
    (system, boot)
}

#[test]
fn lists_digests_of_all_bootable_images() {
    let files = Files::new();
    let (system, boot) = coreos(&files);
    files.disk(&system, Some(&boot));
    let prediction = files.predicts("--secure-boot on --disk disk.raw");
    let (images, why) = named(&prediction, 4);
    assert_eq!(images, ["image BOOTX64.EFI", "image grubx64.efi", "image vmlinuz-6"]);
    assert!(
        why.iter()
            .any(|why| why.contains("EFI/fedora/mmx64.efi") && !why.contains("shimx64")),
        "{why:?}"
    );
    let (_, why) = named(&prediction, 8);
    assert!(
        why.iter()
            .any(|why| why.contains("EFI/fedora/grub.cfg: line 1: the command search")),
        "{why:?}"
    );
    // The initrd has 9 bytes: systemd-boot would pad it.
    let files_and_initrds = ["file grub.cfg", "file kernel", "file initrd", "initrd", "initrd"];
    assert_eq!(named(&prediction, 9).0, files_and_initrds);
    assert_eq!(prediction["pcrs"], Value::Array(Vec::new()));
    let (code, said) = files.run("--secure-boot on --disk disk.raw --set fcos");
    assert_eq!(code, Some(0), "{said}");
    let set: Value = serde_json::from_str(&said).unwrap();
    ReferenceSet::parse(&said).unwrap();
    assert_eq!(set["generations"][0]["values"]["images"].as_array().unwrap().len(), 3);
    let from = set["generations"][0]["from"]["predicted"]["files"].as_array().unwrap();
    assert!(
        from.iter()
            .any(|file| file.as_str().unwrap().starts_with("ostree/a/vmlinuz-6 sha256:")),
        "{from:?}"
    );
}

/// A disk like Flatcar's: all on one file system, and kernels without entries.
#[test]
fn finds_kernels_without_loader_entries_by_name() {
    let files = Files::new();
    let (grub, kernel) = (files.file("grubx64.efi"), files.file("vmlinuz"));
    files.disk(
        &fat(&[
            ("EFI/boot/bootx64.efi", &shim()),
            ("EFI/boot/grubx64.efi", &grub),
            ("flatcar/vmlinuz-a", &kernel),
            ("flatcar/vmlinuz-b", &kernel),
            ("flatcar/vmlinuz-c", b"no kernel"),
        ]),
        None,
    );
    let (images, why) = named(&files.predicts("--secure-boot on --disk disk.raw"), 4);
    assert_eq!(images, ["image bootx64.efi", "image grubx64.efi", "image vmlinuz-a"]);
    assert!(why.iter().any(|why| why.starts_with("flatcar/vmlinuz-c: ")), "{why:?}");
}

#[test]
fn reports_an_unreadable_disk_image() {
    let files = Files::new();
    let refuses = |expected: &str| files.refuses("--secure-boot on --disk disk.raw", expected);
    refuses("disk.raw: No such file");
    files.put("disk.raw", b"QFI\xfb and more");
    refuses("this is qcow2: only raw images are supported");
    files.put("disk.raw", &[0; 4096]);
    refuses("no readable partition table (GPT)");
    files.disk(&fat(&[]), None);
    refuses("has no EFI/BOOT/BOOTX64.EFI");
    files.disk(&vec![0; SYSTEM_BYTES], None);
    refuses("the EFI system partition is not a readable FAT filesystem");
    files.disk(&fat(&[("EFI/BOOT/BOOTX64.EFI", b"no image")]), None);
    refuses("EFI/BOOT/BOOTX64.EFI: not a 64-bit PE image");
    files.disk(&fat(&[("EFI/BOOT/BOOTX64.EFI", &shim())]), None);
    refuses("shim starts grubx64.efi, which is not on the EFI system partition");
    let entry: (&str, &[u8]) = ("loader/entries/a.conf", b"linux /absent\n");
    files.disk(&fat(&[("EFI/BOOT/BOOTX64.EFI", &systemd_boot("257")), entry]), None);
    refuses("loader/entries/a.conf: /absent is not on this file system");
    files.refuses("--secure-boot on --disk disk.raw --uki linux.efi", "cannot be used with");
}

/// Memory of the process apart from its program and stack: less than the image on the disk.
const DATA_LIMIT: &str = "--data=67108864";
const LARGE_INITRD_BYTES: usize = 160 * MIB;

#[test]
fn predicts_an_image_larger_than_memory() {
    let files = Files::new();
    let linux = files.file("vmlinuz");
    let initrd = vec![1; LARGE_INITRD_BYTES];
    let image = uki("257", &[(".linux", &linux), (".cmdline", b"quiet"), (".initrd", &initrd)]).build();
    files.put("large.efi", &image);
    let system = fat_of(LARGE_INITRD_BYTES + 16 * MIB, &[("EFI/BOOT/BOOTX64.EFI", &image)]);
    files.disk(&system, None);
    let predict = |what: [&str; 2]| {
        let output = Command::new("prlimit")
            .arg(DATA_LIMIT)
            .arg(program().get_program())
            .args(["reference-values", "predict", "--secure-boot", "off"])
            .args(what)
            .current_dir(files.0.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{what:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (of_disk, of_file) = (predict(["--disk", "disk.raw"]), predict(["--uki", "large.efi"]));
    assert_eq!(digests(&of_disk), digests(&of_file));
    assert_eq!(of_disk["pcrs"], of_file["pcrs"]);
    let sha256 = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &initrd);
    let sha256 = data_encoding::HEXLOWER.encode(sha256.as_ref());
    assert!(digests(&of_disk).contains(&(9.into(), sha256.into())));
}

/// The disk has a folder whose chain of clusters is cyclic, so that its end is never reached.
#[test]
fn rejects_a_cyclic_fat_cluster_chain() {
    let files = Files::new();
    let mut system = fat(&[("EFI/BOOT/BOOTX64.EFI", &shim())]);
    let of = |at: usize| usize::from(u16::from_le_bytes([system[at], system[at + 1]]));
    let (sector, reserved, roots, table) = (of(11), of(14), of(17), of(22));
    let (cluster, tables) = (usize::from(system[13]) * sector, usize::from(system[16]));
    let (first_table, data) = (reserved * sector, (reserved + tables * table) * sector + roots * 32);
    // The first cluster is that of the first folder, and is number 2. FAT has 12 bits for each of so few clusters: three bytes for two of them.
    assert!((SYSTEM_BYTES - data) / cluster < 4085);
    for copy in 0..tables {
        let at = first_table + copy * table * sector + 3;
        system[at] = 2;
        system[at + 1] &= 0xf0;
    }
    // Entries of files that are gone.
    for entry in system[data..data + cluster].chunks_mut(32) {
        entry[0] = 0xe5;
    }
    files.disk(&system, None);
    files.refuses("--secure-boot on --disk disk.raw", "the file system has a loop");
}

#[test]
fn disks_of_arm64_are_predicted() {
    let files = Files::new();
    let linux = arm64_kernel().build();
    let sections: [(&str, &[u8]); 2] = [(".linux", &linux), (".cmdline", b"root=LABEL=root ro")];
    let uki = for_arm64(uki("252.39-1", &sections)).build();
    files.put("arm64.efi", &uki);
    files.is_as(&[("EFI/BOOT/BOOTAA64.EFI", &uki)], "off", "--uki arm64.efi");
    // Debian's layout. What GRUB measures there was not seen: all that it may start is listed, device trees included.
    let mut grub = grub_of_12(&[(GRUB_PREFIX, b"/EFI/debian")]);
    let (x86_64, aarch64) = ([1, 0, 62, 0, 1], [1, 0, 183, 0, 1]);
    while let Some(at) = grub.windows(5).position(|bytes| bytes == x86_64) {
        grub[at..at + 5].copy_from_slice(&aarch64);
    }
    let (shim, zboot) = (shim(), zboot_kernel().build());
    let entry = b"title a\nlinux /vmlinuz-a\ninitrd /initrd-a\ndevicetree /board.dtb\ndevicetree-overlay /one.dtbo /two.dtbo\n";
    let boot = ext4(&[
        ("loader/entries/a.conf", entry),
        ("vmlinuz-a", &zboot),
        ("initrd-a", b"initrd"),
        ("board.dtb", b"board"),
        ("one.dtbo", b"one"),
        ("two.dtbo", b"two"),
    ]);
    let system = fat(&[
        ("EFI/BOOT/BOOTAA64.EFI", &shim),
        ("EFI/debian/grubaa64.efi", &grub),
        ("EFI/debian/grub.cfg", &files.file("grub.cfg")),
    ]);
    files.disk(&system, Some(&boot));
    let prediction = files.predicts("--secure-boot on --disk disk.raw");
    let (images, why) = named(&prediction, 4);
    assert_eq!(images, ["image BOOTAA64.EFI", "image grubaa64.efi", "image vmlinuz-a"]);
    for expected in ["is not for x86-64", "the kernel is compressed (EFI zboot)"] {
        assert!(why.iter().any(|why| why.contains(expected)), "{why:?}");
    }
    let events = prediction["events"].as_array().unwrap().iter();
    let trees = events.filter(|event| event["what"].as_str().unwrap().contains("device tree"));
    assert_eq!(trees.map(|event| &event["sha256"]).collect::<Vec<_>>().len(), 3, "{prediction:#}");
}
