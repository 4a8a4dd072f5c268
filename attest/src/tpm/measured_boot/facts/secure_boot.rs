//! PCR 7: whether Secure Boot was on, its databases, and what has authorised the boot.

use super::not_proven::{Fact, NotProven};
use crate::tpm::measured_boot::event::{Action, BootEvent, DatabaseName, Meaning, SecureBootVariable, VariableValue};
use crate::tpm::measured_boot::read::SECURE_BOOT_VARIABLES;
use crate::tpm::measured_boot::signatures::{ImageAuthority, SignatureDatabase};
use crate::tpm::measured_boot::variable::{IMAGE_SECURITY, SHIM};
use crate::tpm::measured_boot::{LogText, MeasuredBoot};
use crate::values::HexDigest;

/// Authority by which an image was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredAuthority<'b> {
    pub event: usize,
    pub authority: &'b ImageAuthority,
}

/// PCR 7 of a boot, with the events of unknown meaning that an administrator accepts by their digests.
///
/// Each fact is about **all** events of the PCR: one whose meaning is not known could be the sentence, or the authority, that the fact denies. So a fact is proven
/// only if every event is known, or listed.
#[derive(Clone, Copy)]
pub struct Pcr7<'b, 'l> {
    boot: &'b MeasuredBoot,
    is_listed: &'l dyn Fn(&HexDigest) -> bool,
}

/// Secure Boot's variables, and every other event of PCR 7 that is not a listed one.
type Pcr7Parts<'b> = (Vec<&'b SecureBootVariable>, Vec<&'b BootEvent>);

impl MeasuredBoot {
    /// PCR 7, where events of unknown meaning are accepted if `is_listed` holds of their digests.
    #[must_use]
    pub const fn pcr_7<'b, 'l>(&'b self, is_listed: &'l dyn Fn(&HexDigest) -> bool) -> Pcr7<'b, 'l> {
        Pcr7 { boot: self, is_listed }
    }

    /// [`Pcr7::secure_boot`], with no event listed.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn secure_boot(&self) -> Fact<bool> {
        self.pcr_7(&|_| false).secure_boot()
    }

    /// [`Pcr7::database`], with no event listed.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn database(&self, name: DatabaseName) -> Fact<&SignatureDatabase> {
        self.pcr_7(&|_| false).database(name)
    }

    /// [`Pcr7::authorities`], with no event listed.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn authorities(&self) -> Fact<Vec<MeasuredAuthority<'_>>> {
        self.pcr_7(&|_| false).authorities()
    }

    /// [`Pcr7::dma_protection_disabled`], with no event listed.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn dma_protection_disabled(&self) -> Fact<bool> {
        self.pcr_7(&|_| false).dma_protection_disabled()
    }

    /// [`Pcr7::sbat_levels`], with no event listed.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn sbat_levels(&self) -> Fact<Vec<&LogText>> {
        self.pcr_7(&|_| false).sbat_levels()
    }

    /// The events of PCR 7 whose meaning is not known, in the order in which they were extended.
    ///
    /// # Errors
    /// [`NotProven`], if nothing is proven about the PCR.
    pub fn unknown_pcr_7_events(&self) -> Fact<Vec<&BootEvent>> {
        Ok(self.events_of(7)?.into_iter().filter(|event| is_unknown(event)).collect())
    }
}

/// Returns true for an event of PCR 7 that could mean anything: only its digest is proven, or its content is a text or a structure that is not known.
const fn is_unknown(event: &BootEvent) -> bool {
    matches!(event.meaning, Meaning::Unknown { .. } | Meaning::Data { .. })
}

/// Returns true for an event by which the firmware says that devices could write into memory while it ran.
const fn says_dma_was_possible(event: &BootEvent) -> bool {
    matches!(
        event.meaning,
        Meaning::Action {
            action: Action::DmaProtectionDisabled | Action::SecurityLevelDowngraded,
        }
    )
}

impl<'b> Pcr7<'b, '_> {
    /// Returns whether the firmware verified what it booted (the variable `SecureBoot`). Proven only if PCR 7 begins with SecureBoot, PK,
    /// KEK, db and dbx, each once and in this order, before its separator. The firmware must not have been in debug mode, and each other
    /// event must be known, or listed.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn secure_boot(&self) -> Fact<bool> {
        match self.variables()?.first() {
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
    pub fn database(&self, name: DatabaseName) -> Fact<&'b SignatureDatabase> {
        let of_name =
            |variable: &&SecureBootVariable| matches!(variable, SecureBootVariable::Signatures { name: found, .. } if *found == name);
        match self.variables()?.into_iter().find(of_name) {
            Some(SecureBootVariable::Signatures { database, .. }) => Ok(database),
            _ => Err(NotProven::Missing {
                pcr: 7,
                required: "such database",
            }),
        }
    }

    fn variables(&self) -> Fact<Vec<&'b SecureBootVariable>> {
        self.parts().map(|(variables, _)| variables)
    }

    /// Refuses an event that is neither known nor listed.
    fn check_accepted(&self, event: &BootEvent) -> Fact<()> {
        if is_unknown(event) && !(self.is_listed)(&event.digest) {
            return Err(NotProven::UnknownEvent {
                pcr: 7,
                event: event.number,
                digest: event.digest.clone(),
            });
        }
        Ok(())
    }

    fn parts(&self) -> Fact<Pcr7Parts<'b>> {
        let (before, after) = self.boot.around_separator(7)?;
        let mut variables = Vec::with_capacity(SECURE_BOOT_VARIABLES);
        let mut others = Vec::new();
        for event in before.into_iter().chain(after) {
            self.check_accepted(event)?;
            match &event.meaning {
                Meaning::SecureBootVariable { variable } => variables.push(variable),
                Meaning::Action { action: Action::DebugMode } => return Err(NotProven::DebugMode { event: event.number }),
                // Listed by its digest.
                _ if is_unknown(event) => {}
                // What firmware measures before its variables.
                Meaning::VendorValue { .. } => others.push(event),
                _ if says_dma_was_possible(event) => others.push(event),
                _ if variables.len() < SECURE_BOOT_VARIABLES => {
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
    /// [`NotProven::SecureBootOff`], [`NotProven::Unexpected`] for a variable that may be one and cannot be read, and the other ones.
    pub fn authorities(&self) -> Fact<Vec<MeasuredAuthority<'b>>> {
        if !self.secure_boot()? {
            return Err(NotProven::SecureBootOff);
        }
        let (_, others) = self.parts()?;
        let mut authorities = Vec::new();
        for event in others {
            match &event.meaning {
                Meaning::Authority { authority } => authorities.push(MeasuredAuthority {
                    event: event.number,
                    authority,
                }),
                Meaning::SbatLevel { .. } | Meaning::OsSeparator | Meaning::Action { .. } | Meaning::VendorValue { .. } => {}
                // One byte is a setting. Any other value of the firmware's or shim's may be the owner and the hash of an entry, also if it is a text:
                // whoever makes a db entry chooses its owner, and can try images until the hash is one.
                Meaning::Variable { vendor, value, .. }
                    if matches!(value, VariableValue::Byte(_)) || ![IMAGE_SECURITY, SHIM].contains(vendor) => {}
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

    /// Returns true if the firmware says that devices could write into memory while it ran: `DMA Protection Disabled`, or `Security Level is Downgraded to 0`
    /// of Thunderbolt.
    ///
    /// # Errors
    /// [`NotProven`]; of events that are not known only if the firmware does not say so.
    pub fn dma_protection_disabled(&self) -> Fact<bool> {
        let (before, after) = self.boot.around_separator(7)?;
        let events = || before.iter().chain(&after);
        if events().any(|event| says_dma_was_possible(event)) {
            return Ok(true);
        }
        events().try_for_each(|event| self.check_accepted(event)).map(|()| false)
    }

    /// The SBAT level that shim enforces, each that it measured; none, if there was no shim that does.
    ///
    /// # Errors
    /// [`NotProven`].
    pub fn sbat_levels(&self) -> Fact<Vec<&'b LogText>> {
        let (_, others) = self.parts()?;
        Ok(others
            .into_iter()
            .filter_map(|event| match &event.meaning {
                Meaning::SbatLevel { level } => Some(level),
                _ => None,
            })
            .collect())
    }
}
