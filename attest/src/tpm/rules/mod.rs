//! Rules on a machine's boot: each is about **all** events of a PCR, or about what a PCR has to begin with. So software that extends
//! something later, or that is loaded first, adds a value that is not accepted.
//!
//! In reading order: [`Check`] (what a pool may ask), `judge` (whether it holds), `matching` (which reference value an event has), [`BootRefusal`], [`BootLocation`] (what of a boot
//! it is about).

mod boot_location;
mod error;
mod event_detail;
mod judge;
mod labels;
mod matching;
mod recorded_values;

use serde::{Deserialize, Serialize};

pub use boot_location::{BootLocation, values};
pub use error::{ADVICE, BootRefusal};
pub use event_detail::{EventDetail, Excerpt};
pub(crate) use judge::{judge, unlisted};
pub(crate) use matching::{describe_accepted, is_accepted};
pub use recorded_values::{RecordedValues, UnknownEvent, could_hold, recorded};

use crate::reference_sets::ReferenceQuery;

/// A pool's check of the events of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// The firmware verified what it booted.
    SecureBoot,
    /// The firmware verified what it booted, and dbx has at least the hashes of one generation.
    Dbx,
    /// The firmware verified what it booted, and every authority of an image is accepted; there is at least one.
    Authorities,
    /// Every image of PCR 4 is accepted; there is one.
    Images,
    /// Every driver and option ROM of PCR 2 is accepted.
    Drivers,
    /// Every text that GRUB has measured into PCR 8 is accepted; there is at least one.
    Grub,
    /// Everything that was read into PCR 9 is accepted; there is at least one event.
    Files,
    /// Every section of PCR 11 is accepted; there is at least one.
    UkiSections,
    /// Everything that a unified kernel image was given from outside, PCR 12, is accepted.
    KernelConfig,
    /// Every variable of shim's in PCR 14 is accepted.
    Mok,
    /// The firmware's version is accepted.
    FirmwareVersion,
}

impl Check {
    /// All checks that exist.
    pub const ALL: [Self; 11] = [
        Self::SecureBoot,
        Self::Dbx,
        Self::Authorities,
        Self::Images,
        Self::Drivers,
        Self::Grub,
        Self::Files,
        Self::UkiSections,
        Self::KernelConfig,
        Self::Mok,
        Self::FirmwareVersion,
    ];

    /// The PCR whose events it is about: it has to be quoted.
    #[must_use]
    pub const fn pcr(self) -> u8 {
        match self {
            Self::FirmwareVersion => 0,
            Self::Drivers => 2,
            Self::Images => 4,
            Self::SecureBoot | Self::Dbx | Self::Authorities => 7,
            Self::Grub => 8,
            Self::Files => 9,
            Self::UkiSections => 11,
            Self::KernelConfig => 12,
            Self::Mok => 14,
        }
    }

    /// The reference values that it looks for.
    #[must_use]
    pub const fn wanted(self) -> Option<ReferenceQuery> {
        Some(match self {
            Self::SecureBoot => return None,
            Self::Dbx => ReferenceQuery::Dbx,
            Self::Authorities => ReferenceQuery::Authorities,
            Self::Images => ReferenceQuery::Images,
            Self::Drivers => ReferenceQuery::Drivers,
            Self::Grub => ReferenceQuery::Grub,
            Self::Files => ReferenceQuery::Files,
            Self::UkiSections => ReferenceQuery::UkiSections,
            Self::KernelConfig => ReferenceQuery::KernelConfig,
            Self::Mok => ReferenceQuery::Mok,
            Self::FirmwareVersion => ReferenceQuery::FirmwareVersions,
        })
    }

    /// Returns whether the check also holds if nothing of the kind was measured, so that it needs no reference value.
    #[must_use]
    pub const fn may_be_nothing(self) -> bool {
        matches!(self, Self::SecureBoot | Self::Drivers | Self::KernelConfig | Self::Mok)
    }
}
