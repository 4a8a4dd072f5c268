//! Interpretation of each event by its PCR and digest.

mod pcr_7;

use aws_lc_rs::digest;

pub(super) use pcr_7::SECURE_BOOT_VARIABLES;

use super::digest_labels::DigestLabels;
use super::event::{BootEvent, BootValue, GrubKind, Meaning, Proof, UkiSection, VariableValue};
use super::gpt::PartitionTable;
use super::reader::FieldReader;
use super::text::LogText;
use super::variable::VariableData;
use super::{BOOT_OPTIONS_LIMIT, device_path};
use crate::tpm::event_log::{EventType, TrustedEvent};
use crate::tpm::wire::HashAlg;
use crate::values::{HexDigest, is_plain};

/// Event type `EV_S_CRTM_VERSION` of the firmware's version.
const VERSION: EventType = EventType(0x0000_0008);

/// Within how many events of PCR 0 the firmware's version is.
const FIRMWARE_VERSION_WITHIN: usize = 2;

/// Event types `EV_EFI_PLATFORM_FIRMWARE_BLOB` and its successor `BLOB2`.
const BLOB: EventType = EventType(0x8000_0008);
const BLOB2: EventType = EventType(0x8000_000a);

/// Event types `EV_EFI_VARIABLE_BOOT` and `EV_EFI_VARIABLE_BOOT2`.
const BOOT_VARIABLES: [EventType; 2] = [EventType(0x8000_0002), EventType(0x8000_000c)];

/// Reads events one after the other, and knows where in each PCR it is.
pub(super) struct EventReader {
    bank: HashAlg,
    words: DigestLabels,
    /// Number of Secure Boot's variables that PCR 7 has begun with.
    secure_boot: usize,
    /// Number of optional variables that have followed them.
    optional: usize,
    /// Set when PCR 7 is past the variables that it has to begin with.
    authorities: bool,
    /// Number of events that PCR 0 has had.
    firmware_events: usize,
    /// The section of PCR 11 whose content comes next.
    section: Option<UkiSection>,
}

impl EventReader {
    pub(super) fn new(bank: HashAlg) -> Self {
        Self {
            bank,
            words: DigestLabels::new(bank),
            secure_boot: 0,
            optional: 0,
            authorities: false,
            firmware_events: 0,
            section: None,
        }
    }

    /// Reads the next event of the log.
    pub(super) fn event(&mut self, event: &TrustedEvent<'_>) -> Option<BootEvent> {
        let digest = HexDigest::new(event.digest())?;
        let (meaning, proof) = self.meaning(event, &digest);
        if event.pcr() == 0 {
            self.firmware_events += 1;
        }
        Some(BootEvent {
            number: event.number(),
            pcr: event.pcr(),
            digest,
            said_type: event.untrusted_type(),
            proof,
            meaning,
        })
    }

    fn is_hash(&self, event: &TrustedEvent<'_>, bytes: &[u8]) -> bool {
        digest::digest(self.bank.algorithm(), bytes).as_ref() == event.digest()
    }

    fn meaning(&mut self, event: &TrustedEvent<'_>, digest: &HexDigest) -> (Meaning, Proof) {
        // The content of a section may be anything, so it is told by its place alone.
        if event.pcr() == 11 {
            return self.uki(event, digest);
        }
        // BootOrder 1, 0 has the bytes of the separator for errors: by its digest alone, one is the other (a recorded log).
        if matches!(event.pcr(), 1 | 5)
            && BOOT_VARIABLES.contains(&event.untrusted_type())
            && let Some(variable) = VariableData::read(event.untrusted_data()).filter(|variable| self.is_hash(event, variable.value))
        {
            return (boot_variable(&variable, true), Proof::Content);
        }
        if let Some(word) = self.words.meaning(event.pcr(), digest) {
            self.authorities |= event.pcr() == 7 && matches!(word, Meaning::Separator { .. });
            return (word, Proof::Content);
        }
        match event.pcr() {
            0 => self.firmware(event),
            1 | 5 => self.platform(event),
            4 => image(event),
            2 => self.data(event).unwrap_or_else(|| image(event)),
            7 => self.secure_boot(event),
            8 => self.grub_text(event),
            9 => file(event),
            12 => self.command_line(event),
            14 => self.data(event).unwrap_or_else(|| mok(event)),
            _ => self.data(event).unwrap_or_else(|| unknown(event)),
        }
    }

    /// The event's data, if its digest is their hash.
    fn covered<'a>(&self, event: &TrustedEvent<'a>) -> Option<&'a [u8]> {
        let data = event.untrusted_data();
        self.is_hash(event, data).then_some(data)
    }

    fn data(&self, event: &TrustedEvent<'_>) -> Option<(Meaning, Proof)> {
        Some((covered_data(self.covered(event)?), Proof::Content))
    }

    /// PCR 0. Where the S-CRTM is measured too (Boot Guard), its version comes second.
    fn firmware(&self, event: &TrustedEvent<'_>) -> (Meaning, Proof) {
        let may_be_version = self.firmware_events < FIRMWARE_VERSION_WITHIN && event.untrusted_type() == VERSION;
        match self.covered(event) {
            Some(data) if may_be_version => (Meaning::FirmwareVersion { version: version(data) }, Proof::Content),
            Some(data) => (covered_data(data), Proof::Content),
            None => firmware_blob(event).unwrap_or_else(|| unknown(event)),
        }
    }

    /// PCRs 1 and 5: settings, boot order, partition table.
    fn platform(&self, event: &TrustedEvent<'_>) -> (Meaning, Proof) {
        let data = event.untrusted_data();
        let variable = VariableData::read(data).filter(|variable| variable.padding == 0);
        if self.is_hash(event, data) {
            let meaning = match (PartitionTable::read(data), variable) {
                (Some(table), _) => Meaning::PartitionTable { table },
                (None, Some(variable)) if BOOT_VARIABLES.contains(&event.untrusted_type()) => boot_variable(&variable, true),
                (None, Some(variable)) => other_variable(&variable),
                (None, None) => covered_data(data),
            };
            return (meaning, Proof::Content);
        }
        match variable {
            Some(variable) if self.is_hash(event, variable.value) => (boot_variable(&variable, true), Proof::Content),
            Some(variable) => (boot_variable(&variable, false), Proof::Digest),
            None => unknown(event),
        }
    }

    fn grub_text(&self, event: &TrustedEvent<'_>) -> (Meaning, Proof) {
        let data = event.untrusted_data();
        let without_end = data.strip_suffix(&[0]).unwrap_or(data);
        for (prefix, said_kind) in GRUB_PREFIXES {
            let Some(text) = without_end.strip_prefix(prefix) else { continue };
            // Red Hat's of RHEL 8 hashes the zero at the end, too.
            if self.is_hash(event, text) || data.strip_prefix(prefix).is_some_and(|text| self.is_hash(event, text)) {
                let text = LogText::utf8(text);
                return (Meaning::GrubText { said_kind, text }, Proof::Content);
            }
        }
        self.data(event).unwrap_or_else(|| unknown(event))
    }

    /// PCR 11: sections of a unified kernel image, each by its name and then its content.
    fn uki(&mut self, event: &TrustedEvent<'_>, digest: &HexDigest) -> (Meaning, Proof) {
        if let Some(section) = self.section.take() {
            return (Meaning::UkiSection { section }, Proof::Digest);
        }
        if let Some(section) = self.words.section(digest) {
            self.section = Some(section);
            return (Meaning::UkiSectionName { section }, Proof::Content);
        }
        if let Some(word) = self.words.meaning(event.pcr(), digest) {
            return (word, Proof::Content);
        }
        self.data(event).unwrap_or_else(|| unknown(event))
    }

    /// PCR 12: command lines in UTF-16, by older releases with the zero at their end.
    fn command_line(&self, event: &TrustedEvent<'_>) -> (Meaning, Proof) {
        let data = event.untrusted_data();
        let text = data.strip_suffix(&[0, 0]).unwrap_or(data);
        if self.is_hash(event, data) || self.is_hash(event, text) {
            let text = LogText::utf16(text);
            if text
                .whole()
                .is_some_and(|text| !text.is_empty() && !text.contains(char::is_control))
            {
                return (Meaning::KernelCommandLine { text }, Proof::Content);
            }
        }
        self.data(event).unwrap_or_else(|| unknown(event))
    }
}

/// Prefixes that distinguish texts in GRUB's log; the text after the prefix is measured. The first of each is Red Hat's of RHEL 8.
const GRUB_PREFIXES: [(&[u8], GrubKind); 7] = [
    (b"grub_cmd: ", GrubKind::Command),
    (b"grub_cmd ", GrubKind::Command),
    (b"kernel_cmdline: ", GrubKind::KernelCommandLine),
    (b"grub_kernel_cmdline ", GrubKind::KernelCommandLine),
    (b"module_cmdline: ", GrubKind::ModuleCommandLine),
    (b"kernel_cmdline ", GrubKind::KernelCommandLine),
    (b"", GrubKind::Other),
];

fn other_variable(variable: &VariableData<'_>) -> Meaning {
    Meaning::Variable {
        vendor: variable.vendor,
        name: LogText::utf16(variable.name),
        value: match variable.value {
            [byte] => VariableValue::Byte(*byte),
            value => printable(value).map_or(VariableValue::Bytes(value.len()), VariableValue::Text),
        },
    }
}

fn boot_variable(variable: &VariableData<'_>, proven: bool) -> Meaning {
    let value = variable.value;
    let order = || {
        let (options, odd) = value.as_chunks::<2>();
        let fits = variable.is_named("BootOrder") && odd.is_empty() && options.len() <= BOOT_OPTIONS_LIMIT;
        fits.then(|| BootValue::Order(options.iter().map(|option| u16::from_le_bytes(*option)).collect()))
    };
    let option = || {
        let (description, path) = device_path::load_option(value)?;
        Some(BootValue::Option { description, path })
    };
    let value = proven.then(|| order().or_else(option)).flatten();
    Meaning::BootVariable {
        said_name: LogText::utf16(variable.name),
        value: value.unwrap_or(BootValue::Bytes(variable.value.len())),
    }
}

/// Any other event of PCR 4 or 2: its digest has to be accepted, regardless of its type in the log.
fn image(event: &TrustedEvent<'_>) -> (Meaning, Proof) {
    let said_path = device_path::image_path(event.untrusted_data());
    (Meaning::Image { said_path }, Proof::Digest)
}

/// Texts that the kernel's stub logs with its two events (Linux, drivers/firmware/efi/libstub/efi-stub-helper.c).
const LOAD_OPTIONS: &[u8] = b"LOADED_IMAGE::LoadOptions";
const INITRD: &[u8] = b"Linux initrd";

fn file(event: &TrustedEvent<'_>) -> (Meaning, Proof) {
    let data = event.untrusted_data();
    let meaning = match data.get(8..).map(|text| text.strip_suffix(&[0]).unwrap_or(text)) {
        Some(LOAD_OPTIONS) => Meaning::LoadOptions,
        Some(INITRD) => Meaning::Initrd,
        _ => match logged_text(data) {
            Some(said_name) => Meaning::File { said_name },
            None => Meaning::Unknown { said: None },
        },
    };
    (meaning, Proof::Digest)
}

fn covered_data(data: &[u8]) -> Meaning {
    Meaning::Data {
        bytes: data.len(),
        text: printable(data),
    }
}

/// UEFI_PLATFORM_FIRMWARE_BLOB and BLOB2 (PFP 1.06, 10.2.4, 10.2.5).
fn firmware_blob(event: &TrustedEvent<'_>) -> Option<(Meaning, Proof)> {
    let mut data = event.untrusted_data();
    let said_description = match event.untrusted_type() {
        BLOB => None,
        BLOB2 => {
            let [length] = data.array()?;
            logged_text(data.take_bytes(usize::from(length))?)
        }
        _ => return None,
    };
    let _base = data.u64()?;
    let meaning = Meaning::FirmwareBlob {
        said_bytes: data.u64()?,
        said_description,
    };
    Some((meaning, Proof::Digest))
}

fn mok(event: &TrustedEvent<'_>) -> (Meaning, Proof) {
    match logged_text(event.untrusted_data()) {
        Some(said_name) => (Meaning::MokVariable { said_name }, Proof::Digest),
        None => unknown(event),
    }
}

fn unknown(event: &TrustedEvent<'_>) -> (Meaning, Proof) {
    let said = logged_text(event.untrusted_data());
    (Meaning::Unknown { said }, Proof::Digest)
}

/// Reads a text that is logged with a digest, for people.
fn logged_text(data: &[u8]) -> Option<LogText> {
    let text = data.strip_suffix(&[0]).unwrap_or(data);
    printable(text)
}

fn printable(data: &[u8]) -> Option<LogText> {
    let is_odd = |char: char| char.is_control() && !matches!(char, '\n' | '\r' | '\t');
    let readable = !data.is_empty() && (is_plain(data) || !std::str::from_utf8(data).ok()?.contains(is_odd));
    readable.then(|| LogText::utf8(data))
}

/// The firmware's version: UTF-16 as edk2 has it, or anything else.
fn version(data: &[u8]) -> LogText {
    let wide = data.strip_suffix(&[0, 0]).unwrap_or(data);
    let wide_text = LogText::utf16(wide);
    if wide_text
        .whole()
        .is_some_and(|text| text.chars().all(|char| char.is_ascii() && !char.is_ascii_control()))
    {
        return wide_text;
    }
    printable(data).unwrap_or_else(|| LogText::Whole(data_encoding::HEXLOWER.encode(data.get(..64).unwrap_or(data))))
}
