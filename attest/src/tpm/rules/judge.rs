//! Evaluation of the rules on a measured boot.

use std::borrow::Cow;

use super::matching::{accepted_sections, describe_accepted, is_accepted};
use super::{BootRefusal, Check, EventDetail, Excerpt};
use crate::reference_sets::{Is, NAME_LIMIT_BYTES, NewValue, ReferenceKind, ReferenceQuery, ReferenceSets};
use crate::tpm::measured_boot::{AuthorisedBy, BootEvent, DatabaseName, Fact, Meaning, MeasuredBoot, NotProven, Pcr7, Sha256};
use crate::tpm::wire::HashAlg;
use crate::values::{HexDigest, printable};

/// Maximum length of a name from an event, in characters: each may have four bytes.
pub(super) const NAME_LIMIT_CHARS: usize = NAME_LIMIT_BYTES / 4;

/// Checks that `check` holds of a boot, by the values that are accepted at `now`, in seconds since 1970.
pub(crate) fn judge(check: Check, boot: &MeasuredBoot, sets: &ReferenceSets, now: u64) -> Result<(), BootRefusal> {
    let against = RuleContext { check, boot, sets, now };
    match check {
        Check::SecureBoot => against.secure_boot(),
        Check::Dbx => against.dbx(),
        Check::FirmwareVersion => against.firmware_version(),
        _ => against.events()?.iter().try_for_each(|shown| against.accept(shown)),
    }
}

/// Returns the values of a boot that `check` is about and that no generation has, not even an expired one.
pub(crate) fn unlisted(check: Check, boot: &MeasuredBoot, sets: &ReferenceSets) -> Vec<NewValue> {
    let Some(wanted) = check.wanted() else { return Vec::new() };
    let is_listed = |value: &NewValue| sets.listed(wanted, boot.bank).any(|listed| listed.value == value.value());
    let mut values = match check {
        Check::SecureBoot | Check::Dbx => Vec::new(),
        Check::FirmwareVersion => boot
            .firmware_version()
            .ok()
            .and_then(|version| version.whole())
            .map_or_else(Vec::new, |version| {
                let is = Is::Text(version.to_owned());
                vec![NewValue {
                    wanted,
                    is,
                    name: None,
                    proven: true,
                }]
            }),
        _ => {
            let against = RuleContext { check, boot, sets, now: 0 };
            let events = against.events().unwrap_or_default();
            events.iter().map(|shown| shown.value_of(wanted)).collect()
        }
    };
    values.retain(|value| !is_listed(value));
    values
}

struct RuleContext<'b> {
    check: Check,
    boot: &'b MeasuredBoot,
    sets: &'b ReferenceSets,
    now: u64,
}

/// Something that has to be accepted.
struct RequiredItem<'e> {
    event: usize,
    bank: HashAlg,
    digest: Cow<'e, HexDigest>,
    /// The section of a unified kernel image that it is.
    section: Option<&'static str>,
    description: Description<'e>,
}

/// Knowledge about an event, apart from its digest.
enum Description<'e> {
    Event(&'e BootEvent),
    Subject(Option<String>),
    Hash,
    Section,
}

impl RequiredItem<'_> {
    fn value(&self) -> ReferenceKind<'_> {
        // The content of one section is not accepted as that of another.
        match self.section {
            Some(section) => ReferenceKind::Section(section, &self.digest),
            None => ReferenceKind::Digest(&self.digest),
        }
    }

    /// Returns what a message says of the event.
    fn detail(&self) -> EventDetail {
        match (&self.description, self.section) {
            (Description::Event(event), _) => event_detail(event),
            (Description::Subject(subject), _) => {
                let subject = subject.as_deref().unwrap_or("no certificate that can be read");
                EventDetail::Content(Excerpt::new(subject))
            }
            (Description::Hash, _) => EventDetail::OwnHash,
            (Description::Section, section) => EventDetail::Section(section.unwrap_or_default()),
        }
    }

    /// Returns the event as a value that no generation has.
    fn value_of(&self, wanted: ReferenceQuery) -> NewValue {
        let (name, proven) = match &self.description {
            Description::Event(event) => (event_name(event), event.is_content()),
            // A digest of the certificate that names it.
            Description::Subject(subject) => (subject.clone(), true),
            Description::Hash | Description::Section => (None, false),
        };
        NewValue {
            wanted,
            is: Is::Digest {
                bank: self.bank,
                digest: self.digest.clone().into_owned(),
                section: self.section.map(str::to_owned),
            },
            name: name.map(|name| printable(&name, NAME_LIMIT_CHARS)).filter(|name| !name.is_empty()),
            proven,
        }
    }
}

impl<'b> RuleContext<'b> {
    fn not_proven(&self, why: NotProven) -> BootRefusal {
        BootRefusal::NotProven { check: self.check, why }
    }

    /// Reads PCR 7 with the events of unknown meaning that are accepted now.
    fn read_pcr_7<T>(&self, read: impl FnOnce(Pcr7<'b, '_>) -> Fact<T>) -> Fact<T> {
        let is_listed = |digest: &HexDigest| {
            let fits = |value: &ReferenceKind<'_>| *value == ReferenceKind::Digest(digest);
            is_accepted(self.sets, ReferenceQuery::Pcr7Events, self.boot.bank, fits, self.now)
        };
        read(self.boot.pcr_7(&is_listed))
    }

    fn secure_boot(&self) -> Result<(), BootRefusal> {
        match self.read_pcr_7(|pcr_7| pcr_7.secure_boot()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(BootRefusal::SecureBootOff { check: self.check }),
            Err(why) => Err(self.not_proven(why)),
        }
    }

    fn dbx(&self) -> Result<(), BootRefusal> {
        self.secure_boot()?;
        let dbx = self
            .read_pcr_7(|pcr_7| pcr_7.database(DatabaseName::Dbx))
            .map_err(|why| self.not_proven(why))?;
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
            accepted: crate::withheld::Withheld::from_text(accepted),
        })
    }

    /// All that the rule is about, each of which has to be accepted.
    fn events(&self) -> Result<Vec<RequiredItem<'b>>, BootRefusal> {
        let boot = self.boot;
        match self.check {
            Check::Authorities => self.authorities(),
            Check::UkiSections => self.uki_sections(),
            Check::Images => self.each(boot.images(4)),
            Check::Drivers => self.each(boot.images(2)),
            Check::Grub => {
                // That each is a text of GRUB's.
                boot.grub_texts().map_err(|why| self.not_proven(why))?;
                self.each(boot.events_of(8))
            }
            Check::Files => self.each(boot.files()),
            Check::KernelConfig => self.each(boot.kernel_config()),
            Check::Mok => self.each(boot.mok_variables()),
            Check::SecureBoot | Check::Dbx | Check::FirmwareVersion => Ok(Vec::new()),
        }
    }

    /// Returns the authorities, but only after Secure Boot is proven: without it, any software that boots can write anything there.
    fn authorities(&self) -> Result<Vec<RequiredItem<'b>>, BootRefusal> {
        self.secure_boot()?;
        let authorities = self.read_pcr_7(|pcr_7| pcr_7.authorities()).map_err(|why| self.not_proven(why))?;
        if authorities.is_empty() {
            return Err(BootRefusal::Nothing { check: self.check });
        }
        let shown = authorities.into_iter().map(|found| {
            let (digest, said) = match &found.authority.by {
                AuthorisedBy::Certificate(certificate) => (certificate.sha256, Description::Subject(certificate.subject.clone())),
                AuthorisedBy::Hash { sha256, .. } => (*sha256, Description::Hash),
            };
            RequiredItem {
                event: found.event,
                bank: HashAlg::Sha256,
                digest: Cow::Owned(digest.into()),
                section: None,
                description: said,
            }
        });
        Ok(shown.collect())
    }

    fn firmware_version(&self) -> Result<(), BootRefusal> {
        let version = self.boot.firmware_version().map_err(|why| self.not_proven(why))?;
        // The beginning of a version is none.
        let fits = |value: &ReferenceKind<'_>| version.whole().is_some_and(|version| *value == ReferenceKind::Text(version));
        if is_accepted(self.sets, ReferenceQuery::FirmwareVersions, self.boot.bank, fits, self.now) {
            return Ok(());
        }
        Err(BootRefusal::FirmwareVersion {
            found: Excerpt::new(&version.to_string()),
            accepted: describe_accepted(self.sets, ReferenceQuery::FirmwareVersions, self.boot.bank, fits, self.now),
        })
    }

    fn uki_sections(&self) -> Result<Vec<RequiredItem<'b>>, BootRefusal> {
        let sections = self.boot.uki_sections().map_err(|why| self.not_proven(why))?;
        if sections.is_empty() {
            return Err(BootRefusal::Nothing { check: self.check });
        }
        let shown = sections.into_iter().map(|found| RequiredItem {
            event: found.event,
            bank: self.boot.bank,
            digest: Cow::Borrowed(found.digest),
            section: Some(found.section.name()),
            description: Description::Section,
        });
        Ok(shown.collect())
    }

    fn each<'e>(&self, events: Result<Vec<&'e BootEvent>, NotProven>) -> Result<Vec<RequiredItem<'e>>, BootRefusal> {
        let events = events.map_err(|why| self.not_proven(why))?;
        // systemd's word is no content, and the same on every machine.
        let events = events.into_iter().filter(|event| event.meaning != Meaning::OsSeparator);
        let shown = events.map(|event| RequiredItem {
            event: event.number,
            bank: self.boot.bank,
            digest: Cow::Borrowed(&event.digest),
            section: None,
            description: Description::Event(event),
        });
        let shown: Vec<RequiredItem<'e>> = shown.collect();
        if shown.is_empty() && !self.check.may_be_nothing() {
            return Err(BootRefusal::Nothing { check: self.check });
        }
        Ok(shown)
    }

    /// Describes the part in which a long text differs from the accepted one that is most like it. The node is not told, which would learn what is accepted.
    fn difference(&self, wanted: ReferenceQuery, shown: &RequiredItem<'_>) -> Option<String> {
        let Description::Event(event) = &shown.description else {
            return None;
        };
        let text = event_name(event).filter(|_| event.is_content())?;
        let accepted = self
            .sets
            .listed(wanted, self.boot.bank)
            .filter(|listed| listed.generation.is_accepted_at(self.now));
        let (nearest, part) = Excerpt::differing_part(&text, accepted.map(|listed| listed.name))?;
        Some(format!("unlike {} this has {part}", Excerpt::new(nearest)))
    }

    fn accept(&self, shown: &RequiredItem<'_>) -> Result<(), BootRefusal> {
        let fits = |value: &ReferenceKind<'_>| *value == shown.value();
        // What looks for no value accepts none.
        let accepted = match self.check.wanted() {
            Some(wanted) if is_accepted(self.sets, wanted, self.boot.bank, fits, self.now) => return Ok(()),
            Some(wanted) => match shown.section {
                Some(section) => accepted_sections(self.sets, wanted, self.boot.bank, fits, self.now, section),
                None => {
                    let accepted = describe_accepted(self.sets, wanted, self.boot.bank, fits, self.now);
                    match self.difference(wanted, shown) {
                        Some(words) => accepted.and(&words),
                        None => accepted,
                    }
                }
            },
            None => crate::withheld::Withheld::from_text("nothing"),
        };
        Err(BootRefusal::NotAccepted {
            check: self.check,
            event: shown.event,
            bank: shown.bank,
            digest: shown.digest.to_string(),
            said: shown.detail(),
            accepted,
        })
    }
}

/// Returns the knowledge about an event: its content, if the digest covers it, or the log's claim, which is the node's own.
fn event_detail(event: &BootEvent) -> EventDetail {
    let Some(text) = event_name(event) else {
        return EventDetail::Nothing;
    };
    let excerpt = Excerpt::new(&text);
    match event.is_content() {
        true => EventDetail::Content(excerpt),
        false if is_grub_environment(event) => EventDetail::GrubEnvironment(excerpt),
        false => EventDetail::NodesWord(excerpt),
    }
}

/// Returns true if the node calls a file GRUB's environment block. Only advice depends on it.
pub(super) fn is_grub_environment(event: &BootEvent) -> bool {
    let Meaning::File { said_name } = &event.meaning else {
        return false;
    };
    said_name.whole().is_some_and(|name| name.ends_with("/grubenv"))
}

/// Returns the same text, regardless of whether the digest covers it.
pub(super) fn event_name(event: &BootEvent) -> Option<String> {
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
