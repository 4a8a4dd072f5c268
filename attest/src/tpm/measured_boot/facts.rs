//! What may be relied upon: each answer is proven, or says why it is not.

use serde::Serialize;

use super::event::{Action, BootEvent, DatabaseName, GrubKind, Meaning, SecureBootVariable, Separator, UkiSection, VariableValue};
use super::read::SECURE_BOOT_VARIABLES;
use super::signatures::{Authority, SignatureDatabase};
use super::text::LogText;
use super::variable::{IMAGE_SECURITY, SHIM};
use super::{EVENTS_LIMIT, MeasuredBoot};
use crate::values::HexDigest;

/// Why something is not proven. `event` is the place in the log, counted from 1 behind the header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotProven {
    /// Nothing is proven about this PCR: it was not quoted, or the log does not lead to its value.
    #[error("PCR {pcr} is not explained by the log")]
    PcrNotExplained { pcr: u8 },
    /// A log of more events than are kept.
    #[error("the log has {left_out} events over the {EVENTS_LIMIT} that are read")]
    TooManyEvents { left_out: usize },
    /// Something that the PCR has to have is not there.
    #[error("PCR {pcr} has no {required}")]
    Missing { pcr: u8, required: &'static str },
    /// Something that may be there once is there again.
    #[error("event {event} in PCR {pcr} is another {repeated}")]
    Repeated { pcr: u8, event: usize, repeated: &'static str },
    /// An event that is not what has to be in its place.
    #[error("event {event} in PCR {pcr} is not {required}")]
    Unexpected { pcr: u8, event: usize, required: &'static str },
    /// The firmware says that it could not measure everything.
    #[error("event {event} is the separator for an error, in PCR {pcr}")]
    ErrorSeparator { pcr: u8, event: usize },
    /// The firmware's debugger was on, so Secure Boot proves nothing.
    #[error("event {event} in PCR 7 says that the firmware was in debug mode")]
    DebugMode { event: usize },
}

/// A proven answer.
pub type Fact<T> = Result<T, NotProven>;

/// Where the boot services ended (PCR 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitBootServices {
    /// Nothing in the log says so.
    NotCalled,
    /// Called, and not yet returned from with success.
    Invoked,
    /// They are over.
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
    /// The log's own word: no digest covers it.
    pub said_kind: GrubKind,
    pub text: &'b LogText,
    /// Hash of the text, also where it is too long to be kept.
    pub digest: &'b HexDigest,
}

/// What has authorised an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredAuthority<'b> {
    pub event: usize,
    pub authority: &'b Authority,
}

/// The PCRs that the firmware ends with a separator.
const SEPARATED: std::ops::RangeInclusive<u8> = 0..=7;

impl MeasuredBoot {
    /// **All** events of a PCR, in the order in which they were extended. One that systemd has extended behind them, see
    /// [`MeasuredBoot::os_separator_pcrs`], is not among them.
    ///
    /// # Errors
    /// [`NotProven::PcrNotExplained`], [`NotProven::TooManyEvents`].
    pub fn events_of(&self, pcr: u8) -> Fact<Vec<&BootEvent>> {
        if !self.explained_pcrs.contains(&pcr) {
            return Err(NotProven::PcrNotExplained { pcr });
        }
        if self.left_out > 0 {
            return Err(NotProven::TooManyEvents { left_out: self.left_out });
        }
        Ok(self.events.iter().filter(|event| event.pcr == pcr).collect())
    }

    /// The events of one of the firmware's PCRs, 0 to 7, before and behind its one separator.
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

    /// Whether the firmware verified what it booted (the variable SecureBoot). Holds only if PCR 7 begins with SecureBoot, PK, KEK, db and dbx, each
    /// once and in this order, before its separator, and the firmware was not in debug mode.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn secure_boot(&self) -> Fact<bool> {
        match self.secure_boot_variables()?.first() {
            Some(SecureBootVariable::SecureBoot { on: Some(on) }) => Ok(*on),
            _ => Err(NotProven::Missing {
                pcr: 7,
                required: "value of SecureBoot",
            }),
        }
    }

    /// PK, KEK, db or dbx, as the firmware had it when it booted.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn database(&self, name: DatabaseName) -> Fact<&SignatureDatabase> {
        let of_name =
            |variable: &&SecureBootVariable| matches!(variable, SecureBootVariable::Signatures { name: found, .. } if *found == name);
        match self.secure_boot_variables()?.into_iter().find(of_name) {
            Some(SecureBootVariable::Signatures { database, .. }) => Ok(database),
            _ => Err(NotProven::Missing {
                pcr: 7,
                required: "such database",
            }),
        }
    }

    fn secure_boot_variables(&self) -> Fact<Vec<&SecureBootVariable>> {
        self.secure_boot_parts().map(|(variables, _)| variables)
    }

    /// Secure Boot's variables, and every other event of PCR 7.
    fn secure_boot_parts(&self) -> Fact<(Vec<&SecureBootVariable>, Vec<&BootEvent>)> {
        let (before, after) = self.around_separator(7)?;
        let mut variables = Vec::with_capacity(SECURE_BOOT_VARIABLES);
        let mut others = Vec::new();
        for event in before.into_iter().chain(after) {
            match &event.meaning {
                Meaning::SecureBootVariable { variable } => variables.push(variable),
                Meaning::Action { action: Action::DebugMode } => return Err(NotProven::DebugMode { event: event.number }),
                _ if variables.len() < SECURE_BOOT_VARIABLES && event.meaning != DMA => {
                    return Err(NotProven::Unexpected {
                        pcr: 7,
                        event: event.number,
                        required: "the variable of Secure Boot that has to be there",
                    });
                }
                Meaning::Variable { name, .. } if name.whole() == Some("SecureBoot") => {
                    return Err(NotProven::Repeated {
                        pcr: 7,
                        event: event.number,
                        repeated: "variable SecureBoot",
                    });
                }
                _ => others.push(event),
            }
        }
        if variables.len() < SECURE_BOOT_VARIABLES {
            return Err(NotProven::Missing {
                pcr: 7,
                required: "SecureBoot, PK, KEK, db and dbx before its separator",
            });
        }
        Ok((variables, others))
    }

    /// **Everything** that authorised an image, by the firmware and by shim: none, if nothing was verified. Each has to be accepted.
    ///
    /// # Errors
    /// [`NotProven::Unexpected`] for an event of PCR 7 that may be one and cannot be read, and the other ones.
    pub fn authorities(&self) -> Fact<Vec<MeasuredAuthority<'_>>> {
        let (_, others) = self.secure_boot_parts()?;
        let mut authorities = Vec::new();
        for event in others {
            match &event.meaning {
                Meaning::Authority { authority } => authorities.push(MeasuredAuthority {
                    event: event.number,
                    authority,
                }),
                Meaning::SbatLevel { .. } | Meaning::OsSeparator | Meaning::Action { .. } => {}
                // A value of one byte, or a text, is none; nor is anybody's but the firmware's and shim's.
                Meaning::Variable { vendor, value, .. }
                    if !matches!(value, VariableValue::Bytes(_)) || ![IMAGE_SECURITY, SHIM].contains(vendor) => {}
                _ => {
                    return Err(NotProven::Unexpected {
                        pcr: 7,
                        event: event.number,
                        required: "an authority that can be read",
                    });
                }
            }
        }
        Ok(authorities)
    }

    /// Whether the firmware says that devices could write into memory while it ran (`DMA Protection Disabled`).
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn dma_protection_disabled(&self) -> Fact<bool> {
        Ok(self.events_of(7)?.iter().any(|event| event.meaning == DMA))
    }

    /// The SBAT level that shim enforces, each that it measured; none, if there was no shim that does.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn sbat_levels(&self) -> Fact<Vec<&LogText>> {
        let (_, others) = self.secure_boot_parts()?;
        Ok(others
            .into_iter()
            .filter_map(|event| match &event.meaning {
                Meaning::SbatLevel { level } => Some(level),
                _ => None,
            })
            .collect())
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

    /// What the firmware measured of itself: **every** event of PCR 0 before its separator.
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
    /// [`NotProven::Unexpected`] if anything else is in PCR 11, [`NotProven::Missing`] if there is none.
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

    /// **Everything** that systemd-stub and systemd-boot were given beside the image, PCR 12: command lines ([`Meaning::KernelCommandLine`]),
    /// credentials, add-ons.
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

    /// Whether the boot services have ended (PCR 5).
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

const DMA: Meaning = Meaning::Action {
    action: Action::DmaProtectionDisabled,
};
