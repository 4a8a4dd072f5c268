//! Descriptions of checks for people.

use std::fmt;

use super::Check;

impl Check {
    /// Returns the name of the check in `pool.toml`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::SecureBoot => "secure-boot",
            Self::Dbx => "dbx",
            Self::Authorities => "authorities",
            Self::Images => "images",
            Self::Drivers => "drivers",
            Self::Grub => "grub",
            Self::Files => "files",
            Self::UkiSections => "uki-sections",
            Self::KernelConfig => "kernel-config",
            Self::Mok => "mok",
            Self::FirmwareVersion => "firmware-version",
        }
    }

    /// Returns the requirement of the check, for people.
    #[must_use]
    pub const fn requirement(self) -> &'static str {
        match self {
            Self::SecureBoot => {
                "Secure Boot is on: PCR 7 begins with SecureBoot = 1, PK, KEK, db and dbx, and the firmware was not in debug mode"
            }
            Self::Dbx => "Secure Boot is on, and dbx has at least the hashes of one generation",
            Self::Authorities => "Secure Boot is on, and every certificate that authorised an image (PCR 7) is accepted, at least one",
            Self::Images => "every boot loader, kernel and unified kernel image (PCR 4) is accepted, at least one",
            Self::Drivers => "every driver and option ROM (PCR 2) is accepted",
            Self::Grub => "every command of GRUB's and every command line that it gave (PCR 8) is accepted, at least one",
            Self::Files => {
                "every file that GRUB read, the initrd and the command line of the kernel's stub (PCR 9) is accepted, at least one"
            }
            Self::UkiSections => "every section of the unified kernel image (PCR 11) is accepted, at least one",
            Self::KernelConfig => "every additional input of the unified kernel image (PCR 12) is accepted",
            Self::Mok => "every variable of shim's (PCR 14) is accepted",
            Self::FirmwareVersion => "the firmware's version (PCR 0) is accepted",
        }
    }

    /// Returns the type of the check's events, for people.
    pub(super) const fn event(self) -> &'static str {
        match self {
            Self::SecureBoot | Self::Dbx => "variable of Secure Boot",
            Self::Authorities => "certificate that authorised an image",
            Self::Images => "boot loader or kernel",
            Self::Drivers => "driver",
            Self::Grub => "text of GRUB's",
            Self::Files => "file, initrd or command line",
            Self::UkiSections => "section of the unified kernel image",
            Self::KernelConfig => "command line, credential or add-on",
            Self::Mok => "variable of shim's",
            Self::FirmwareVersion => "version of the firmware",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}
