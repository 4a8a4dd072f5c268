//! PCR 7: whether Secure Boot was on, its databases, and what has authorised the boot.

use super::not_proven::{Fact, NotProven};
use crate::tpm::measured_boot::event::{Action, BootEvent, DatabaseName, Meaning, SecureBootVariable, VariableValue};
use crate::tpm::measured_boot::read::SECURE_BOOT_VARIABLES;
use crate::tpm::measured_boot::signatures::{Authority, SignatureDatabase};
use crate::tpm::measured_boot::variable::{IMAGE_SECURITY, SHIM};
use crate::tpm::measured_boot::{LogText, MeasuredBoot};

/// What has authorised an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredAuthority<'b> {
    pub event: usize,
    pub authority: &'b Authority,
}

const DMA: Meaning = Meaning::Action {
    action: Action::DmaProtectionDisabled,
};

impl MeasuredBoot {
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
                // Which of them held when something was booted is not known.
                Meaning::MisplacedVariable { .. } => {
                    return Err(NotProven::Repeated {
                        pcr: 7,
                        event: event.number,
                        repeated: "variable of Secure Boot",
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

    /// **Everything** that authorised an image, by the firmware and by shim. Each has to be accepted, and there has to be one.
    ///
    /// # Errors
    /// [`NotProven::SecureBootOff`], [`NotProven::Unexpected`] for an event of PCR 7 that may be one and cannot be read, and the other ones.
    pub fn authorities(&self) -> Fact<Vec<MeasuredAuthority<'_>>> {
        if !self.secure_boot()? {
            return Err(NotProven::SecureBootOff);
        }
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
}
