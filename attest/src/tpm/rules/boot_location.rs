//! The part of a boot that a refusal is about, and the same part of another boot, for comparison with the machine's own past.

use super::event_detail::Excerpt;
use super::{BootRefusal, Check};
use crate::tpm::measured_boot::{AuthorisedBy, BootEvent, Meaning, MeasuredBoot, NotProven};
use crate::values::HexDigest;

/// The part of a boot that a refusal is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootLocation {
    /// A PCR, as a whole.
    Pcr(u8),
    /// A value that a check does not accept, as [`values`] returns it.
    Value { check: Check, value: String },
}

impl BootRefusal {
    pub(crate) fn place(&self) -> BootLocation {
        match self {
            Self::NotAccepted { check, digest, .. } => BootLocation::Value {
                check: *check,
                value: digest.clone(),
            },
            Self::FirmwareVersion { found, .. } => BootLocation::Value {
                check: Check::FirmwareVersion,
                value: found.text(),
            },
            Self::NotProven { check, .. } | Self::SecureBootOff { check } | Self::Nothing { check } => BootLocation::Pcr(check.pcr()),
            Self::Dbx { .. } => BootLocation::Pcr(Check::Dbx.pcr()),
        }
    }
}

/// Returns the values that a check looks at: digests, hexadecimal, in the order of the log and each once; or the firmware's version. `None`
/// if it looks at something else, or nothing is proven.
#[must_use]
pub fn values(check: Check, boot: &MeasuredBoot) -> Option<Vec<String>> {
    let events = |events: Result<Vec<&BootEvent>, NotProven>| -> Result<Vec<String>, NotProven> {
        let events = events?.into_iter().filter(|event| event.meaning != Meaning::OsSeparator);
        Ok(events.map(|event| event.digest.to_string()).collect())
    };
    let found = match check {
        Check::SecureBoot | Check::Dbx => return None,
        Check::Authorities => boot.authorities().map(|all| {
            let digest = |by: &AuthorisedBy| match by {
                AuthorisedBy::Certificate(certificate) => certificate.sha256,
                AuthorisedBy::Hash { sha256, .. } => *sha256,
            };
            let digests = all.iter().map(|found| HexDigest::from(digest(&found.authority.by)).to_string());
            digests.collect()
        }),
        Check::Images => events(boot.images(4)),
        Check::Drivers => events(boot.images(2)),
        Check::Grub => events(boot.events_of(8)),
        Check::Files => events(boot.files()),
        Check::UkiSections => boot
            .uki_sections()
            .map(|sections| sections.into_iter().map(|found| found.digest.to_string()).collect()),
        Check::KernelConfig => events(boot.kernel_config()),
        Check::Mok => events(boot.mok_variables()),
        Check::FirmwareVersion => boot
            .firmware_version()
            .map(|version| vec![Excerpt::new(&version.to_string()).text()]),
    };
    let mut once: Vec<String> = Vec::new();
    for value in found.ok()? {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    Some(once)
}
