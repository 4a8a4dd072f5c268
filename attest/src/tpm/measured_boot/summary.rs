//! Summary of an event in one line, for people. Text that no digest covers is in quotation marks.

use std::fmt::{self, Write as _};

use super::event::{Action, BootEvent, BootValue, GrubKind, Meaning, SecureBootVariable, Separator, UkiSection, VariableValue};
use super::signatures::{AuthorisedBy, SignatureDatabase};
use super::text::{LogText, TEXT_LIMIT_BYTES};
use crate::values::as_printable;

/// Longest part of a foreign text in such a line, in characters, where not all of it is asked for.
const PART_LIMIT_CHARS: usize = 160;

/// Length of the beginning of a digest, in bytes: enough to distinguish the values of a fleet.
const SHORT_BYTES: usize = 8;

/// A text for people, without control characters and no longer than so many characters.
struct SummaryText<'t>(&'t LogText, usize);

impl fmt::Display for SummaryText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, limit) = *self;
        let (begins, more) = match text {
            LogText::Whole(text) => (text, text.len() > limit && text.chars().nth(limit).is_some()),
            LogText::Beginning { begins, .. } => (begins, true),
        };
        f.write_str(&as_printable(begins, limit))?;
        f.write_str(if more { "…" } else { "" })
    }
}

/// The same for a text that no digest covers; empty if there is none.
struct ClaimedText<'t>(Option<&'t LogText>, usize);

impl fmt::Display for ClaimedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(Some(text), limit) => write!(f, "“{}”", SummaryText(text, limit)),
            Self(None, _) => Ok(()),
        }
    }
}

/// Returns the beginning of a digest.
fn short(digest: &[u8]) -> String {
    let begin = digest.get(..SHORT_BYTES).unwrap_or(digest);
    data_encoding::HEXLOWER.encode(begin) + "…"
}

impl BootEvent {
    /// Describes the event as [`BootEvent::summary`] does, with all of a text that was read.
    #[must_use]
    pub fn whole_summary(&self) -> String {
        let mut summary = format!("{:#}", self.meaning);
        self.add_digest(&mut summary);
        summary
    }

    /// Returns the meaning of the event; with its digest if only that is proven, or if it tells more than the rest.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut summary = String::new();
        self.summarize(&mut summary);
        summary
    }

    /// Adds the summary to a text.
    pub(super) fn summarize(&self, text: &mut String) {
        // A text takes everything that is written to it.
        let _ = write!(text, "{}", self.meaning);
        self.add_digest(text);
    }

    fn add_digest(&self, summary: &mut String) {
        let tells_more = matches!(
            self.meaning,
            Meaning::SecureBootVariable { .. } | Meaning::MisplacedVariable { .. } | Meaning::PartitionTable { .. } | Meaning::Data { .. }
        );
        if !self.is_content() || tells_more {
            summary.push(' ');
            summary.push_str(&short(self.digest.as_bytes()));
        }
    }
}

impl fmt::Display for Meaning {
    /// With `#`, texts are whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = if f.alternate() { TEXT_LIMIT_BYTES } else { PART_LIMIT_CHARS };
        let part = |text| SummaryText(text, limit);
        let said = |text| ClaimedText(Some(text), limit);
        let perhaps = |text| ClaimedText(Option::as_ref(text), limit);
        match self {
            Self::Separator { separator } => f.write_str(match separator {
                Separator::Zeros | Separator::Ones => "separator",
                Separator::Error => "separator: the firmware had an error",
                Separator::Windows => "separator of Windows",
            }),
            Self::Action { action } => f.write_str(action.sentence()),
            Self::OsSeparator => f.write_str("separator of systemd"),
            Self::FirmwareVersion { version } => write!(f, "firmware version {}", part(version)),
            Self::FirmwareBlob {
                said_bytes,
                said_description,
            } => {
                write!(f, "firmware {} of “{said_bytes}” bytes", perhaps(said_description))
            }
            Self::SecureBootVariable { variable } => variable.fmt(f),
            Self::MisplacedVariable { variable } => write!(f, "out of its place: {variable}"),
            Self::Authority { authority } => write!(f, "authorised by {}: {}", part(&authority.variable), authority.by),
            Self::SbatLevel { level } => write!(f, "SBAT level {}", part(level)),
            Self::Variable { vendor, name, value } => {
                write!(f, "variable {}", part(name))?;
                match value {
                    VariableValue::Byte(byte) => write!(f, " = {byte}"),
                    VariableValue::Text(text) => write!(f, " = {}", part(text)),
                    VariableValue::Bytes(bytes) => write!(f, " of {vendor}, {bytes} bytes"),
                }
            }
            Self::BootVariable { said_name, value } => {
                write!(f, "{} ", said(said_name))?;
                match value {
                    BootValue::Order(order) => {
                        let order: Vec<String> = order.iter().map(|option| format!("{option:04X}")).collect();
                        write!(f, "= {}", order.join(", "))
                    }
                    BootValue::Option { description, path } => write!(f, "= {} {}", part(description), part(path)),
                    BootValue::Bytes(bytes) => write!(f, "of {bytes} bytes"),
                }
            }
            Self::Image { said_path } => write!(f, "image {}", perhaps(said_path)),
            Self::GrubText { said_kind, text } => {
                let kind = match said_kind {
                    GrubKind::Command => "“command”",
                    GrubKind::KernelCommandLine => "“kernel command line”",
                    GrubKind::ModuleCommandLine => "“module”",
                    GrubKind::Other => "text",
                };
                write!(f, "GRUB {kind}: {}", part(text))
            }
            Self::File { said_name } => write!(f, "file {}", said(said_name)),
            Self::PartitionTable { table } => {
                let count = table.partitions.len() + table.left_out;
                write!(f, "partition table of disk {}, {count} partitions", table.disk)
            }
            Self::UkiSectionName { section } => write!(f, "section {section} of a unified kernel image follows"),
            Self::UkiSection { section } => write!(f, "section {section}"),
            Self::KernelCommandLine { text } => write!(f, "kernel command line: {}", part(text)),
            Self::LoadOptions => f.write_str("“command line”, as the kernel was given it"),
            Self::Initrd => f.write_str("“initrd”, as the kernel was given it"),
            Self::MokVariable { said_name } => write!(f, "shim's {}", said(said_name)),
            Self::VendorValue { value } => write!(f, "value {value} of the firmware's maker"),
            Self::Data { bytes, text: None } => write!(f, "{bytes} bytes of data"),
            Self::Data { text: Some(text), .. } => write!(f, "data: {}", part(text)),
            Self::Unknown { said: None } => f.write_str("digest"),
            Self::Unknown { said: Some(text) } => write!(f, "digest {}", said(text)),
        }
    }
}

impl fmt::Display for SecureBootVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SecureBoot { on: Some(true) } => f.write_str("Secure Boot is on"),
            Self::SecureBoot { on: Some(false) } => f.write_str("Secure Boot is off"),
            Self::SecureBoot { on: None } => f.write_str("Secure Boot has no known value"),
            Self::Signatures { name, database } => write!(f, "{name:?}: {database}"),
        }
    }
}

impl fmt::Display for SignatureDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} certificates", self.certificates.len())?;
        let subjects = self.certificates.iter().filter_map(|certificate| certificate.subject.as_deref());
        let subjects: Vec<&str> = subjects.take(4).collect();
        if !subjects.is_empty() {
            write!(f, " (“{}”)", subjects.join("”, “"))?;
        }
        write!(f, ", {} hashes", self.hashes.len())?;
        if self.others > 0 {
            write!(f, ", {} other entries", self.others)?;
        }
        if self.left_out > 0 {
            write!(f, ", {} not read", self.left_out)?;
        }
        for version in &self.security_versions {
            write!(f, ", version {}.{} of {}", version.major, version.minor, version.application)?;
        }
        Ok(())
    }
}

impl fmt::Display for AuthorisedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(certificate) => {
                let subject = certificate.subject.as_deref().unwrap_or_default();
                write!(f, "certificate {} “{subject}”", short(&certificate.sha256.0))
            }
            Self::Hash { sha256, .. } => write!(f, "the image's hash {}", short(&sha256.0)),
        }
    }
}

impl fmt::Display for UkiSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.name())
    }
}

impl Action {
    /// Returns the sentence as the profile has it, without a terminating zero.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::CallingApplication => "Calling EFI Application from Boot Option",
            Self::ReturningFromApplication => "Returning from EFI Application from Boot Option",
            Self::ExitBootServicesInvocation => "Exit Boot Services Invocation",
            Self::ExitBootServicesFailure => "Exit Boot Services Returned with Failure",
            Self::ExitBootServicesSuccess => "Exit Boot Services Returned with Success",
            Self::DebugMode => "UEFI Debug Mode",
            Self::DmaProtectionDisabled => "DMA Protection Disabled",
            Self::SecurityLevelDowngraded => "Security Level is Downgraded to 0",
            Self::CallingInt19 => "Calling INT 19h",
            Self::OptionRomScan => "Start Option ROM Scan",
        }
    }
}
