//! An event with what it means, and how far that is proven.

use serde::{Serialize, Serializer};

use super::guid::Guid;
use super::signatures::{ImageAuthority, SignatureDatabase};
use super::text::LogText;
use crate::tpm::event_log::EventType;
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// Extent to which a quote proves an event's meaning. For every event it proves that the digest was extended into the PCR, after the
/// earlier events of the same PCR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The digest is the hash of what the meaning says.
    Content,
    /// Only the digest is proven: names and paths with it are the log's own claims, which any software may have written.
    Digest,
}

/// An event that extended a quoted PCR, to whose value the log leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootEvent {
    /// Position in the log, counted from 1 after the header. The order of events in different PCRs is not proven.
    pub number: usize,
    /// The PCR that it extended.
    pub pcr: u8,
    /// The extended digest, in the quoted bank.
    pub digest: HexDigest,
    /// Type of the event according to the log. **Never measured**: no decision is based on it.
    #[serde(serialize_with = "as_text")]
    pub said_type: EventType,
    pub proof: Proof,
    pub meaning: Meaning,
}

fn as_text<S: Serializer>(event_type: &EventType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(event_type)
}

impl BootEvent {
    /// Returns whether the digest is the hash of these bytes.
    #[must_use]
    pub fn is_of(&self, bank: HashAlg, bytes: &[u8]) -> bool {
        aws_lc_rs::digest::digest(bank.algorithm(), bytes).as_ref() == self.digest.as_bytes()
    }

    /// Returns whether the digest is the hash of the content in the meaning.
    #[must_use]
    pub fn is_content(&self) -> bool {
        self.proof == Proof::Content
    }
}

/// Meaning of an event: by its PCR, its position in it, and the bytes that its digest is the hash of. The log's type is at most a hint for
/// what to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Meaning {
    /// The line between what the firmware measures before it boots something, and after. Always [`Proof::Content`].
    Separator { separator: Separator },
    /// A known sentence of the firmware, such as `Exit Boot Services Invocation`. Always [`Proof::Content`].
    Action { action: Action },
    /// The word with which systemd ends the firmware's part of a PCR, if the log has it already. Always [`Proof::Content`].
    OsSeparator,
    /// The firmware's version (EV_S_CRTM_VERSION), the first or the second event of PCR 0. Always [`Proof::Content`].
    FirmwareVersion { version: LogText },
    /// Code or data of the firmware (EV_EFI_PLATFORM_FIRMWARE_BLOB and BLOB2). Always [`Proof::Digest`].
    FirmwareBlob {
        /// Length of the measured data according to the log, in bytes.
        said_bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        said_description: Option<LogText>,
    },
    /// Secure Boot's own variables, in the prescribed place: PCR 7, before its separator, each once and in order. Always [`Proof::Content`].
    SecureBootVariable { variable: SecureBootVariable },
    /// Such a variable outside of that place, as a whole: changed in between, or added by software that ran later. Always
    /// [`Proof::Content`].
    MisplacedVariable { variable: SecureBootVariable },
    /// Authority by which a booted image was accepted (EV_EFI_VARIABLE_AUTHORITY): PCR 7. Always [`Proof::Content`].
    Authority { authority: ImageAuthority },
    /// The SBAT level that shim enforces: PCR 7. Always [`Proof::Content`].
    SbatLevel { level: LogText },
    /// Another UEFI variable as a whole. Always [`Proof::Content`]; `text` if its value is one byte or printable.
    Variable { vendor: Guid, name: LogText, value: VariableValue },
    /// A UEFI variable of which only the value is hashed (EV_EFI_VARIABLE_BOOT): its name is the log's own claim. [`Proof::Content`] is
    /// that of the value.
    BootVariable { said_name: LogText, value: BootValue },
    /// An image (EV_EFI_BOOT_SERVICES_APPLICATION and the like): the digest is its Authenticode hash. Any event of PCR 4 that is not known
    /// to be something else. Always [`Proof::Digest`].
    Image {
        #[serde(skip_serializing_if = "Option::is_none")]
        said_path: Option<LogText>,
    },
    /// A text that GRUB measured into PCR 8. [`Proof::Content`] is that of the text. Its type, command or command line, is the log's own
    /// claim, since the digest does not cover it.
    GrubText { said_kind: GrubKind, text: LogText },
    /// A file that a boot loader or the kernel's stub has read, PCR 9: the digest is its content's. Always [`Proof::Digest`].
    File { said_name: LogText },
    /// The partition table of the disk booted from, PCR 5. Always [`Proof::Content`].
    PartitionTable { table: super::gpt::PartitionTable },
    /// systemd-stub: the name of a section of the unified kernel image, PCR 11. Always [`Proof::Content`].
    UkiSectionName { section: UkiSection },
    /// systemd-stub: the content of the section named right before. Always [`Proof::Digest`].
    UkiSection { section: UkiSection },
    /// A command line of the kernel, or a part of it, PCR 12 (systemd-stub, systemd-boot) and PCR 9 (the kernel's stub).
    /// [`Proof::Content`] is that of the text.
    KernelCommandLine { text: LogText },
    /// The kernel's stub: the command line that it was given, PCR 9. The digest is that of its UTF-16 text. Always [`Proof::Digest`].
    LoadOptions,
    /// The kernel's stub: the initrd, PCR 9. The digest is that of its content. Always [`Proof::Digest`].
    Initrd,
    /// A variable of shim's as PCR 14 has it: the digest is that of its value. Always [`Proof::Digest`].
    MokVariable { said_name: LogText },
    /// A value of the firmware's manufacturer in PCR 7, by its digest. It is shorter than a variable or an entry of a database, and not a
    /// text. Always [`Proof::Content`].
    VendorValue {
        /// The bytes in hexadecimal.
        value: String,
    },
    /// The digest is the hash of the event's data, and nothing more is known of it. Always [`Proof::Content`].
    Data {
        /// Length of the data, in bytes.
        bytes: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<LogText>,
    },
    /// Only a digest, with a text that it does not cover. Always [`Proof::Digest`].
    Unknown {
        #[serde(skip_serializing_if = "Option::is_none")]
        said: Option<LogText>,
    },
}

/// Value of a separator (PFP 1.06, 3.3.2.2 and 10.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    /// The four bytes 00000000.
    Zeros,
    /// The four bytes FFFFFFFF.
    Ones,
    /// 00000001: the firmware could not measure what it should have.
    Error,
    /// `WBCL`: Windows, in PCRs 12 to 14.
    Windows,
}

/// The firmware's sentences (EV_EFI_ACTION, EV_ACTION), each measured as written here, with a terminating zero, or in UTF-16 with or
/// without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// `Calling EFI Application from Boot Option`
    CallingApplication,
    /// `Returning from EFI Application from Boot Option`
    ReturningFromApplication,
    /// `Exit Boot Services Invocation`
    ExitBootServicesInvocation,
    /// `Exit Boot Services Returned with Failure`
    ExitBootServicesFailure,
    /// `Exit Boot Services Returned with Success`
    ExitBootServicesSuccess,
    /// `UEFI Debug Mode`: Secure Boot is worth nothing then.
    DebugMode,
    /// The sentence `DMA Protection Disabled`
    DmaProtectionDisabled,
    /// `Security Level is Downgraded to 0`: Thunderbolt devices may write into memory.
    SecurityLevelDowngraded,
    /// `Calling INT 19h`: a BIOS boots.
    CallingInt19,
    /// `Start Option ROM Scan`
    OptionRomScan,
}

/// Secure Boot's variables, in the order in which PCR 7 begins with them (PFP 1.06, 3.3.4.8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SecureBootVariable {
    /// State of image verification; `None` for a value that is neither 0 nor 1.
    SecureBoot { on: Option<bool> },
    /// PK, KEK, db, dbx; then dbt and dbr, if the firmware has them.
    Signatures { name: DatabaseName, database: SignatureDatabase },
}

/// The lists of keys and hashes that Secure Boot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DatabaseName {
    /// The platform key, `PK`.
    PK,
    /// Keys that may change db and dbx.
    KEK,
    /// Keys and hashes of what may be booted.
    #[serde(rename = "db")]
    Db,
    /// Keys and hashes of what may not be booted.
    #[serde(rename = "dbx")]
    Dbx,
    /// Keys whose timestamps are accepted.
    #[serde(rename = "dbt")]
    Dbt,
    /// Keys that may sign a recovery.
    #[serde(rename = "dbr")]
    Dbr,
}

/// Value of a variable that is nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VariableValue {
    /// A value of one byte.
    Byte(u8),
    /// A value of printable UTF-8.
    Text(LogText),
    /// Length of another value, in bytes.
    Bytes(usize),
}

/// Value of a boot variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BootValue {
    /// BootOrder: the options' numbers; at most [`super::BOOT_OPTIONS_LIMIT`].
    Order(Vec<u16>),
    /// Boot option in a variable `Boot####`.
    Option { description: LogText, path: LogText },
    /// Neither, or only its digest is proven: so many bytes.
    Bytes(usize),
}

/// Type of a text according to GRUB's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrubKind {
    Command,
    KernelCommandLine,
    ModuleCommandLine,
    /// A text of another type.
    Other,
}

/// Sections of a unified kernel image that systemd-stub measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UkiSection {
    Linux,
    Osrel,
    Cmdline,
    Initrd,
    Ucode,
    Splash,
    Dtb,
    Dtbauto,
    Hwids,
    Uname,
    Sbat,
    Pcrpkey,
    Profile,
    Efifw,
}

impl UkiSection {
    /// Its name, without the dot.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Osrel => "osrel",
            Self::Cmdline => "cmdline",
            Self::Initrd => "initrd",
            Self::Ucode => "ucode",
            Self::Splash => "splash",
            Self::Dtb => "dtb",
            Self::Dtbauto => "dtbauto",
            Self::Hwids => "hwids",
            Self::Uname => "uname",
            Self::Sbat => "sbat",
            Self::Pcrpkey => "pcrpkey",
            Self::Profile => "profile",
            Self::Efifw => "efifw",
        }
    }
}

/// Location of the firmware's reference values according to the log (TCG_Sp800_155_PlatformId_Event, PFP 1.06, 10.4.5.2). It is not
/// measured, so it is not proven: it is the node's own claim, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SaidManifest {
    /// Its place in the log.
    pub number: usize,
    /// The GUID of the reference manifest.
    pub manifest: Guid,
    /// Manufacturer of the platform.
    pub manufacturer: LogText,
    pub model: LogText,
    pub version: LogText,
    /// Manufacturer of the platform's firmware.
    pub firmware_manufacturer: LogText,
    pub firmware_version: LogText,
}
