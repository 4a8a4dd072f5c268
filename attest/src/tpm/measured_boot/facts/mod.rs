//! Facts that may be relied upon: each answer is proven, or says why it is not.

mod not_proven;
mod secure_boot;

use serde::Serialize;

pub use not_proven::{Fact, NotProven};
pub use secure_boot::{MeasuredAuthority, Pcr7};

use super::MeasuredBoot;
use super::event::{Action, BootEvent, GrubKind, Meaning, Separator, UkiSection};
use super::text::LogText;
use crate::values::HexDigest;

/// State of the boot services, by PCR 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitBootServices {
    /// The log has no call of `ExitBootServices`.
    NotCalled,
    /// Called, and not yet returned from with success.
    Invoked,
    /// The boot services have ended.
    Success,
}

/// A section of a unified kernel image, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredSection<'b> {
    /// The event of the content.
    pub event: usize,
    pub section: UkiSection,
    /// Hash of its content, in the bank quoted.
    pub digest: &'b HexDigest,
}

/// A text that GRUB has measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredText<'b> {
    pub event: usize,
    /// The log's own claim: no digest covers it.
    pub said_kind: GrubKind,
    pub text: &'b LogText,
    /// Hash of the text, also where it is too long to be kept.
    pub digest: &'b HexDigest,
}

/// The PCRs that the firmware ends with a separator.
const SEPARATED: std::ops::RangeInclusive<u8> = 0..=7;

impl MeasuredBoot {
    /// Returns **all** events of a PCR, in the order in which they were extended. Extensions by systemd after the log, see
    /// [`MeasuredBoot::os_separator_pcrs`], are not among them.
    ///
    /// # Errors
    /// [`NotProven::PcrNotExplained`], [`NotProven::TooManyEvents`].
    pub fn events_of(&self, pcr: u8) -> Fact<Vec<&BootEvent>> {
        Ok(self.each_of(pcr)?.collect())
    }

    /// Goes through the events of [`MeasuredBoot::events_of`].
    pub(super) fn each_of(&self, pcr: u8) -> Fact<impl Iterator<Item = &BootEvent>> {
        if !self.explained_pcrs.contains(&pcr) {
            return Err(NotProven::PcrNotExplained { pcr });
        }
        if self.left_out > 0 {
            return Err(NotProven::TooManyEvents { left_out: self.left_out });
        }
        Ok(self.events.iter().filter(move |event| event.pcr == pcr))
    }

    /// Returns the events of one of the firmware's PCRs, 0 to 7, before and after its one separator.
    ///
    /// # Errors
    /// [`NotProven::Missing`], [`NotProven::Repeated`], [`NotProven::ErrorSeparator`], and those of [`MeasuredBoot::events_of`].
    pub fn around_separator(&self, pcr: u8) -> Fact<(Vec<&BootEvent>, Vec<&BootEvent>)> {
        let mut before = Vec::new();
        let mut after = Vec::new();
        let mut found = false;
        for event in self.events_of(pcr)? {
            let number = event.number;
            match &event.meaning {
                Meaning::Separator {
                    separator: Separator::Error,
                } => return Err(NotProven::ErrorSeparator { pcr, event: number }),
                Meaning::Separator { .. } if found => {
                    return Err(NotProven::Repeated {
                        pcr,
                        event: number,
                        repeated: "separator",
                    });
                }
                Meaning::Separator { .. } => found = true,
                _ if found => after.push(event),
                _ => before.push(event),
            }
        }
        if !found || !SEPARATED.contains(&pcr) {
            return Err(NotProven::Missing {
                pcr,
                required: "separator",
            });
        }
        Ok((before, after))
    }

    /// **Every** image that was loaded, in the order of loading: boot loaders and kernels in PCR 4, drivers and option ROMs in PCR 2. Each event is
    /// one that is not known to be something else; its digest is the image's Authenticode hash.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn images(&self, pcr: u8) -> Fact<Vec<&BootEvent>> {
        let (before, after) = self.around_separator(pcr)?;
        let known = |event: &&BootEvent| !matches!(event.meaning, Meaning::Action { .. } | Meaning::OsSeparator);
        Ok(before.into_iter().chain(after).filter(known).collect())
    }

    /// Returns the firmware's measurements of itself: **every** event of PCR 0 before its separator.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn firmware(&self) -> Fact<Vec<&BootEvent>> {
        self.around_separator(0).map(|(before, _)| before)
    }

    /// The firmware's version, if its text was measured.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn firmware_version(&self) -> Fact<&LogText> {
        let version = |event: &BootEvent| matches!(event.meaning, Meaning::FirmwareVersion { .. });
        match self
            .firmware()?
            .into_iter()
            .find(|event| version(event))
            .map(|event| &event.meaning)
        {
            Some(Meaning::FirmwareVersion { version }) => Ok(version),
            _ => Err(NotProven::Missing {
                pcr: 0,
                required: "version of the firmware in words",
            }),
        }
    }

    /// **All** sections of unified kernel images that systemd-stub has measured: every event of PCR 11 is one.
    ///
    /// # Errors
    /// [`NotProven::Unexpected`] if anything else is in PCR 11, [`NotProven::Missing`] if it has no section.
    pub fn uki_sections(&self) -> Fact<Vec<MeasuredSection<'_>>> {
        let mut sections = Vec::new();
        let mut named = 0_usize;
        for event in self.events_of(11)? {
            match &event.meaning {
                Meaning::UkiSectionName { .. } => named += 1,
                Meaning::UkiSection { section } => sections.push(MeasuredSection {
                    event: event.number,
                    section: *section,
                    digest: &event.digest,
                }),
                _ => {
                    return Err(NotProven::Unexpected {
                        pcr: 11,
                        event: event.number,
                        required: "a section of a unified kernel image",
                    });
                }
            }
        }
        if sections.is_empty() || named != sections.len() {
            return Err(NotProven::Missing {
                pcr: 11,
                required: "sections of a unified kernel image",
            });
        }
        Ok(sections)
    }

    /// **All** texts that GRUB has measured: every event of PCR 8 is one. Which of them were commands and which the kernel's command line is not
    /// proven.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn grub_texts(&self) -> Fact<Vec<MeasuredText<'_>>> {
        let mut texts = Vec::new();
        for event in self.events_of(8)? {
            texts.push(match &event.meaning {
                Meaning::GrubText { said_kind, text } => MeasuredText {
                    event: event.number,
                    said_kind: *said_kind,
                    text,
                    digest: &event.digest,
                },
                _ => {
                    return Err(NotProven::Unexpected {
                        pcr: 8,
                        event: event.number,
                        required: "a text of GRUB's",
                    });
                }
            });
        }
        Ok(texts)
    }

    /// **Everything** that was read by GRUB and by the kernel's stub, PCR 9: files, the initrd, the command line. What is which is not proven.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn files(&self) -> Fact<Vec<&BootEvent>> {
        self.events_of(9)
    }

    /// Returns **everything** that systemd-stub and systemd-boot were given from outside the image, PCR 12: command lines
    /// ([`Meaning::KernelCommandLine`]), credentials, add-ons.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn kernel_config(&self) -> Fact<Vec<&BootEvent>> {
        self.events_of(12)
    }

    /// **Everything** that shim has measured of its variables, PCR 14: MokList, MokListX, MokSBState and the like. What is which is not proven.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn mok_variables(&self) -> Fact<Vec<&BootEvent>> {
        self.events_of(14)
    }

    /// Returns the state of the boot services (PCR 5).
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn exit_boot_services(&self) -> Fact<ExitBootServices> {
        let mut state = ExitBootServices::NotCalled;
        for event in self.events_of(5)? {
            state = match event.meaning {
                Meaning::Action {
                    action: Action::ExitBootServicesSuccess,
                } => return Ok(ExitBootServices::Success),
                Meaning::Action {
                    action: Action::ExitBootServicesInvocation,
                } => ExitBootServices::Invoked,
                _ => state,
            };
        }
        Ok(state)
    }
}
