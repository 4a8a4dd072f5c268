//! Images that firmware starts before a kernel: unified kernel images, systemd-boot, GRUB and shim.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::keys::SelfSignedKey;
use crate::images::{DebianRelease, Images, run};

/// Size of a page: sections are on pages of their own in memory.
const PAGE_BYTES: u64 = 4096;

/// Modules in the image of the tests' GRUB, which looks for none on the disk.
const GRUB_MODULES: [&str; 11] = [
    "boot", "echo", "ext2", "fat", "linux", "normal", "part_gpt", "serial", "terminal", "test", "tpm",
];
/// Start config in this GRUB's image: names the location of the main config.
const GRUB_START: &str = "set root=hd0,gpt1\nset prefix=(hd0,gpt1)/grub\n";

/// Makes a unified kernel image of a release's stub, as systemd-stub(7) describes it; not signed.
pub fn make_uki(release: DebianRelease, kernel: &Path, initrd: &Path, command_line: &str, folder: &Path) -> Result<PathBuf> {
    let stub = Images::firmware(release)?.firmware_file("usr/lib/systemd/boot/efi/linuxx64.efi.stub");
    let (text, name) = (folder.join("cmdline"), folder.join("os-release"));
    fs::write(&text, command_line)?;
    fs::write(&name, "ID=tests\nVERSION_ID=1\n")?;
    let sections = [
        (".osrel", name.as_path()),
        (".cmdline", &text),
        (".linux", kernel),
        (".initrd", initrd),
    ];

    let mut address = sections_end(&stub)?;
    let image = folder.join("uki.efi");
    let mut objcopy = Command::new("objcopy");
    for (section, file) in sections {
        objcopy.arg("--add-section").arg(format!("{section}={}", file.display()));
        objcopy.arg("--change-section-vma").arg(format!("{section}={address:#x}"));
        address = (address + fs::metadata(file)?.len()).next_multiple_of(PAGE_BYTES);
    }
    run(objcopy.arg(stub).arg(&image))?;
    Ok(image)
}

/// Returns the first free page behind an image's sections in memory.
fn sections_end(image: &Path) -> Result<u64> {
    let listing = run(Command::new("objdump").arg("--section-headers").arg(image))?;
    let mut end = 0;
    for line in listing.lines() {
        // Number, name, size, address.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [number, name, size, address, ..] = words.as_slice() else {
            continue;
        };
        if number.parse::<u32>().is_ok() && name.starts_with('.') {
            end = end.max(u64::from_str_radix(address, 16)? + u64::from_str_radix(size, 16)?);
        }
    }
    Ok(end.next_multiple_of(PAGE_BYTES))
}

/// Returns the path of a release's systemd-boot; not signed.
pub fn systemd_boot(release: DebianRelease) -> Result<PathBuf> {
    Ok(Images::firmware(release)?.firmware_file("usr/lib/systemd/boot/efi/systemd-bootx64.efi"))
}

/// Makes an unsigned GRUB image of a release, with all of its modules in it. Without shim it does not check the kernel's signature.
pub fn make_grub(release: DebianRelease, behind_shim: bool, folder: &Path) -> Result<PathBuf> {
    let (start, sbat, image) = (folder.join("grub-start.cfg"), folder.join("sbat.csv"), folder.join("grubx64.efi"));
    fs::write(&start, GRUB_START)?;
    fs::write(&sbat, sbat_of(release))?;
    let modules = Images::firmware(release)?.firmware_file("usr/lib/grub/x86_64-efi");
    // One program puts images of both releases together.
    let mut mkimage = Images::firmware(DebianRelease::Bookworm)?.firmware_program("usr/bin/grub-mkimage");
    mkimage
        .arg("--directory")
        .arg(modules)
        .args(["--format", "x86_64-efi", "--prefix", "/grub"]);
    mkimage
        .arg("--config")
        .arg(start)
        .arg("--sbat")
        .arg(sbat)
        .arg("--output")
        .arg(&image);
    if !behind_shim {
        mkimage.arg("--disable-shim-lock");
    }
    mkimage.args(GRUB_MODULES);
    if release == DebianRelease::Bookworm {
        mkimage.arg("linuxefi");
    }
    run(&mut mkimage)?;
    Ok(image)
}

/// Returns the SBAT entries in the form of Debian's own images (`debian/sbat.debian.csv.in`): component, generation, vendor, package,
/// version, URL.
fn sbat_of(release: DebianRelease) -> String {
    let (version, package, debian) = match release {
        DebianRelease::Bookworm => ("2.06", "2.06-13+deb12u2", "grub.debian12,1"),
        DebianRelease::Trixie => ("2.12", "2.12-9", "grub.debian13,1"),
    };
    format!(
        "sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\n\
         grub,5,Free Software Foundation,grub,{version},https://www.gnu.org/software/grub/\n\
         grub.debian,5,Debian,grub2,{package},https://tracker.debian.org/pkg/grub2\n\
         {debian},Debian,grub2,{package},https://tracker.debian.org/pkg/grub2\n"
    )
}

/// Makes Debian's shim with the accepted key's signature in place of Microsoft's.
pub fn make_shim(signer: &SelfSignedKey, folder: &Path) -> Result<PathBuf> {
    let shim = Images::firmware(DebianRelease::Bookworm)?.firmware_file("usr/lib/shim/shimx64.efi");
    let signed = folder.join("shimx64.efi");
    signer.sign(&shim, &signed)?;
    Ok(signed)
}
