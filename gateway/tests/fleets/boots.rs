//! Boots according to the sources of these distributions: shim, GRUB, a kernel.

use crate::booted::{
    GLOBAL, GPT_EVENT, IMAGE_SECURITY, OWNER, Parts, SHIM, VARIABLE_AUTHORITY, certificate, dbx, gpt, guid, hashes, secure_boot_variables,
    signature, variable,
};
use crate::log_builder::{EV_IPL, LogBuilder, SHA1, SHA256};

/// Shim's variable with the vendor's certificate, and its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vendor {
    name: &'static str,
    variable: &'static str,
}

/// Predicted for Fedora CoreOS: `MokListRT`, with shim's own GUID.
pub const FEDORA: Vendor = Vendor {
    name: SHIM,
    variable: "MokListRT",
};
/// Predicted for RHEL 9.6: `vendor_db`.
pub const RED_HAT: Vendor = Vendor {
    name: IMAGE_SECURITY,
    variable: "vendor_db",
};
/// shim's README.tpm: a built-in certificate is logged as `Shim`.
pub const FLATCAR: Vendor = Vendor {
    name: SHIM,
    variable: "Shim",
};

/// Levels that shim enforces since its versions of 2023 and of 2024. The first one is that of Fedora CoreOS 42 and RHEL 9.6, the second one
/// that of Fedora CoreOS 44.
pub const SBAT_LEVEL_2023: &str = "sbat,1,2023012900\nshim,2\ngrub,3\ngrub.debian,4\n";
pub const SBAT_LEVEL_2024: &str = "sbat,1,2024040900\nshim,4\ngrub,4\ngrub.peimage,2\n";

/// Parameters of a boot that may differ.
#[derive(Debug, Clone)]
pub struct Boot {
    pub vendor: Vendor,
    pub secure_boot: bool,
    pub firmware: &'static str,
    pub firmware_signer: &'static str,
    pub signer: &'static str,
    pub dbx_hashes: u32,
    pub sbat_level: &'static str,
    pub owner_keys: &'static str,
    pub disk: &'static str,
    pub shim: &'static str,
    pub grub: &'static str,
    pub kernel: &'static str,
    /// Content of the initrd; empty if it is part of the kernel.
    pub initrd: &'static str,
    /// Other data that GRUB reads.
    pub entry: &'static str,
    pub command_line: &'static str,
}

/// Returns the first boot of an image.
pub fn on_coreos(vendor: Vendor) -> Boot {
    Boot {
        vendor,
        secure_boot: true,
        firmware: "Firmware 1.2",
        firmware_signer: "Microsoft",
        signer: "maker",
        dbx_hashes: 5,
        sbat_level: SBAT_LEVEL_2024,
        owner_keys: "the maker's certificate",
        disk: "disk",
        shim: "shim",
        grub: "GRUB",
        kernel: "kernel",
        initrd: "initramfs",
        entry: "boot entry",
        command_line: "ostree=/ostree/boot.1/1 ignition.firstboot",
    }
}

/// Returns the first boot of an image, from the first of its two systems.
pub fn on_flatcar() -> Boot {
    Boot {
        initrd: "",
        kernel: "kernel with the root hash of /usr",
        entry: "set oem_id=qemu",
        command_line: "BOOT_IMAGE=/flatcar/vmlinuz-a flatcar.first_boot=detected",
        ..on_coreos(FLATCAR)
    }
}

impl Boot {
    /// Returns the same boot with one change.
    pub fn but(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut other = self.clone();
        change(&mut other);
        other
    }

    pub fn log(&self) -> LogBuilder {
        let mut log = LogBuilder::new(&[SHA1, SHA256]).event(0, 8, &crate::booted::utf16(&format!("{}\0", self.firmware)));
        for (vendor, name, value) in secure_boot_variables(self.secure_boot) {
            let value = if name == "dbx" { dbx(&hashes(self.dbx_hashes)) } else { value };
            log = log.variable(vendor, name, &value);
        }
        log = log
            .separator(7)
            .action(4, "Calling EFI Application from Boot Option")
            .separators()
            .event(5, GPT_EVENT, &gpt(&["EFI-SYSTEM", self.disk]));
        if self.secure_boot {
            log = authority(log, IMAGE_SECURITY, "db", &signature(&certificate(self.firmware_signer)));
        }
        log = log.image(self.shim, "\\EFI\\BOOT\\BOOTX64.EFI");
        log = authority(log, SHIM, "SbatLevel", self.sbat_level.as_bytes());
        for (name, value) in [("MokList", self.owner_keys), ("MokListX", "none"), ("MokListTrusted", "\u{1}")] {
            log = log.measured(14, EV_IPL, value.as_bytes(), format!("{name}\0").as_bytes());
        }
        if self.secure_boot {
            let owner = if self.vendor.name == SHIM { SHIM } else { OWNER };
            let entry = [guid(owner), certificate(self.signer)].concat();
            // shim's built-in certificate is measured as it is, what is found in a list with its owner.
            let entry = if self.vendor == FLATCAR { certificate(self.signer) } else { entry };
            log = authority(log, self.vendor.name, self.vendor.variable, &entry);
        }
        log = log
            .image(self.grub, "\\EFI\\BOOT\\grubx64.efi")
            .measured(9, EV_IPL, b"configuration", b"grub.cfg\0")
            .grub("search --label boot --set boot --no-floppy")
            .measured(9, EV_IPL, self.entry.as_bytes(), b"entry\0")
            .grub(&format!("linux /vmlinuz {}", self.command_line))
            .measured(9, EV_IPL, self.kernel.as_bytes(), b"/vmlinuz\0");
        if self.secure_boot {
            // GRUB has shim verify it, which measures it.
            log = log.image(self.kernel, "");
        }
        let line = format!("/vmlinuz {}", self.command_line);
        log = log.measured(8, EV_IPL, line.as_bytes(), format!("kernel_cmdline: {line}\0").as_bytes());
        if !self.initrd.is_empty() {
            log = log.measured(9, EV_IPL, self.initrd.as_bytes(), b"/initramfs.img\0");
        }
        log.exit_boot_services()
    }
}

fn authority(log: LogBuilder, vendor: &str, name: &str, value: &[u8]) -> LogBuilder {
    assert_ne!(vendor, GLOBAL);
    log.event(7, VARIABLE_AUTHORITY, &variable(vendor, name, value))
}
