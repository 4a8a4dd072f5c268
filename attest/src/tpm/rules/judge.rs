//! Whether a rule holds.

use super::matching::{accepted_words, is_accepted};
use super::{BootRefusal, Check};
use crate::reference_sets::{ReferenceSets, Value, Wanted};
use crate::tpm::measured_boot::{AuthorisedBy, BootEvent, DatabaseName, Meaning, MeasuredBoot, NotProven, Sha256, UkiSection};
use crate::tpm::wire::HashAlg;
use crate::values::{HexDigest, printable};

/// Longest text of an event that a message has, in characters.
pub(super) const SAID_LIMIT_CHARS: usize = 120;

/// Whether `check` holds of what was booted, by the values that are accepted at `now`, seconds since 1970.
pub(crate) fn judge(check: Check, boot: &MeasuredBoot, sets: &ReferenceSets, now: u64) -> Result<(), BootRefusal> {
    let against = Against { check, boot, sets, now };
    match check {
        Check::SecureBoot => against.secure_boot(),
        Check::Dbx => against.dbx(),
        Check::Authorities => against.authorities(),
        Check::FirmwareVersion => against.firmware_version(),
        Check::UkiSections => against.uki_sections(),
        Check::Images => against.events(boot.images(4)),
        Check::Drivers => against.events(boot.images(2)),
        Check::Grub => {
            // That each is a text of GRUB's.
            boot.grub_texts().map_err(|why| against.not_proven(why))?;
            against.events(boot.events_of(8))
        }
        Check::Files => against.events(boot.files()),
        Check::KernelConfig => against.events(boot.kernel_config()),
        Check::Mok => against.events(boot.mok_variables()),
    }
}

struct Against<'b> {
    check: Check,
    boot: &'b MeasuredBoot,
    sets: &'b ReferenceSets,
    now: u64,
}

/// What a message says of an event.
struct Shown<'e> {
    event: usize,
    bank: HashAlg,
    digest: &'e HexDigest,
    said: String,
}

impl Against<'_> {
    fn not_proven(&self, why: NotProven) -> BootRefusal {
        BootRefusal::NotProven { check: self.check, why }
    }

    fn secure_boot(&self) -> Result<(), BootRefusal> {
        match self.boot.secure_boot() {
            Ok(true) => Ok(()),
            Ok(false) => Err(BootRefusal::SecureBootOff { check: self.check }),
            Err(why) => Err(self.not_proven(why)),
        }
    }

    fn dbx(&self) -> Result<(), BootRefusal> {
        self.secure_boot()?;
        let dbx = self.boot.database(DatabaseName::Dbx).map_err(|why| self.not_proven(why))?;
        let mut nearest: Option<(usize, String)> = None;
        for (generation, hashes) in self.sets.dbx().filter(|(generation, _)| generation.is_accepted_at(self.now)) {
            // One that could not be compared is not there.
            let wanted: Option<Vec<Sha256>> = hashes.iter().map(|hash| hash.as_bytes().try_into().ok().map(Sha256)).collect();
            let lacking = wanted.map_or(hashes.len(), |wanted| dbx.missing(&wanted).len());
            if lacking == 0 {
                return Ok(());
            }
            if nearest.as_ref().is_none_or(|(fewest, _)| lacking < *fewest) {
                nearest = Some((lacking, generation.name.clone()));
            }
        }
        let accepted = nearest.map_or("nothing now".to_owned(), |(lacking, name)| {
            format!("{name:?}, of which it lacks {lacking}")
        });
        Err(BootRefusal::Dbx {
            found: dbx.hashes.len(),
            accepted: crate::withheld::Withheld::words(accepted),
        })
    }

    /// Behind Secure Boot's variables alone: whoever boots without it can write whatever he likes there.
    fn authorities(&self) -> Result<(), BootRefusal> {
        self.secure_boot()?;
        let authorities = self.boot.authorities().map_err(|why| self.not_proven(why))?;
        if authorities.is_empty() {
            return Err(BootRefusal::Nothing { check: self.check });
        }
        for found in authorities {
            let (digest, said) = match &found.authority.by {
                AuthorisedBy::Certificate(certificate) => {
                    let subject = certificate.subject.as_deref().unwrap_or("no certificate that can be read");
                    (certificate.sha256, format!(" ({:?})", printable(subject, SAID_LIMIT_CHARS)))
                }
                AuthorisedBy::Hash { sha256, .. } => (*sha256, " (an image, by its own hash)".to_owned()),
            };
            self.accept(&Shown {
                event: found.event,
                bank: HashAlg::Sha256,
                digest: &digest.into(),
                said,
            })?;
        }
        Ok(())
    }

    fn firmware_version(&self) -> Result<(), BootRefusal> {
        let version = self.boot.firmware_version().map_err(|why| self.not_proven(why))?;
        // The beginning of a version is none.
        let fits = |value: &Value<'_>| version.whole().is_some_and(|version| *value == Value::Text(version));
        if is_accepted(self.sets, Wanted::FirmwareVersions, self.boot.bank, fits, self.now) {
            return Ok(());
        }
        Err(BootRefusal::FirmwareVersion {
            found: printable(&version.to_string(), SAID_LIMIT_CHARS),
            accepted: accepted_words(self.sets, Wanted::FirmwareVersions, self.boot.bank, fits, self.now),
        })
    }

    fn uki_sections(&self) -> Result<(), BootRefusal> {
        let sections = self.boot.uki_sections().map_err(|why| self.not_proven(why))?;
        if sections.is_empty() {
            return Err(BootRefusal::Nothing { check: self.check });
        }
        for found in sections {
            let name = section_name(found.section);
            let shown = Shown {
                event: found.event,
                bank: self.boot.bank,
                digest: found.digest,
                said: format!(" (.{name})"),
            };
            // The content of one section is not accepted as that of another.
            self.accept_if(&shown, |value| *value == Value::Section(name, found.digest))?;
        }
        Ok(())
    }

    /// Each of these has to be accepted.
    fn events(&self, events: Result<Vec<&BootEvent>, NotProven>) -> Result<(), BootRefusal> {
        let events = events.map_err(|why| self.not_proven(why))?;
        // systemd's word is no content, and the same on every machine.
        let mut events = events.into_iter().filter(|event| event.meaning != Meaning::OsSeparator).peekable();
        if events.peek().is_none() && !self.check.may_be_nothing() {
            return Err(BootRefusal::Nothing { check: self.check });
        }
        for event in events {
            self.accept(&Shown {
                event: event.number,
                bank: self.boot.bank,
                digest: &event.digest,
                said: said(event),
            })?;
        }
        Ok(())
    }

    fn accept(&self, shown: &Shown<'_>) -> Result<(), BootRefusal> {
        self.accept_if(shown, |value| *value == Value::Digest(shown.digest))
    }

    fn accept_if(&self, shown: &Shown<'_>, fits: impl Fn(&Value<'_>) -> bool) -> Result<(), BootRefusal> {
        // What looks for no value accepts none.
        let accepted = match self.check.wanted() {
            Some(wanted) if is_accepted(self.sets, wanted, self.boot.bank, &fits, self.now) => return Ok(()),
            Some(wanted) => accepted_words(self.sets, wanted, self.boot.bank, &fits, self.now),
            None => crate::withheld::Withheld::words("nothing"),
        };
        Err(BootRefusal::NotAccepted {
            check: self.check,
            event: shown.event,
            bank: shown.bank,
            digest: shown.digest.to_string(),
            said: shown.said.clone(),
            accepted,
        })
    }
}

/// What there is to say of an event: its content, where the digest covers it; or what the log says, which is the node's own word.
fn said(event: &BootEvent) -> String {
    let Some(text) = said_name(event) else { return String::new() };
    let text = printable(&text, SAID_LIMIT_CHARS);
    match event.is_content() {
        true => format!(" ({text:?})"),
        false => format!("; the node calls it {text:?}"),
    }
}

/// The same, whoever's word it is.
pub(super) fn said_name(event: &BootEvent) -> Option<String> {
    Some(match &event.meaning {
        Meaning::GrubText { text, .. } | Meaning::KernelCommandLine { text } | Meaning::Data { text: Some(text), .. } => text.to_string(),
        Meaning::Image { said_path: Some(text) }
        | Meaning::File { said_name: text }
        | Meaning::MokVariable { said_name: text }
        | Meaning::Unknown { said: Some(text) } => text.to_string(),
        Meaning::LoadOptions => "the command line".to_owned(),
        Meaning::Initrd => "the initrd".to_owned(),
        _ => return None,
    })
}

pub(super) const fn section_name(section: UkiSection) -> &'static str {
    match section {
        UkiSection::Linux => "linux",
        UkiSection::Osrel => "osrel",
        UkiSection::Cmdline => "cmdline",
        UkiSection::Initrd => "initrd",
        UkiSection::Ucode => "ucode",
        UkiSection::Splash => "splash",
        UkiSection::Dtb => "dtb",
        UkiSection::Dtbauto => "dtbauto",
        UkiSection::Hwids => "hwids",
        UkiSection::Uname => "uname",
        UkiSection::Sbat => "sbat",
        UkiSection::Pcrpkey => "pcrpkey",
        UkiSection::Profile => "profile",
        UkiSection::Efifw => "efifw",
    }
}
