//! Prediction of a machine's measurements from the files that it will boot, without booting them.
//!
//! Measured boot extends digests of what is started, in an order that firmware, boot loader and kernel prescribe. Where all of that follows from
//! files, a PCR's value can be computed before any machine has it; where it follows from the machine too (its firmware's own code and settings, its
//! disks), it has to be recorded from one. [`Prediction`] has both: what was computed, each digest with what it is of, and which PCRs were not, with
//! the reason.
//!
//! In reading order: [`bytes`] (files that need not be in memory), [`pe`] (an image, and its digest in PCR 4), [`uki`] (a unified kernel image, PCRs 4, 9, 11 and 12), [`loader`] (what starts it), `initrd` and [`linux`]
//! (what the kernel's own EFI stub measures, PCR 9), [`boot`] (all of a boot), [`parts`] (whatever the boot loader is), [`grub`]
//! (PCRs 8 and 9), [`secure_boot`] (PCR 7).
//!
//! Nothing here is evidence. A prediction is only as trustworthy as its files: they have to be those that the nodes boot.

pub mod boot;
pub mod bytes;
pub mod grub;
mod initrd;
pub mod linux;
pub mod loader;
pub mod parts;
pub mod pe;
pub mod secure_boot;
pub mod uki;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use self::pe::SectionName;

use super::wire::HashAlg;
use crate::values::HexDigest;

/// Digests of the same bytes, one for each bank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BankDigests(BTreeMap<HashAlg, HexDigest>);

impl BankDigests {
    /// The digests of the concatenation of `parts`.
    #[must_use]
    pub fn compute(banks: &[HashAlg], parts: &[&[u8]]) -> Self {
        Self::each(banks, |bank| bank.digest(parts).as_ref().to_vec())
    }

    fn each(banks: &[HashAlg], digest: impl Fn(HashAlg) -> Vec<u8>) -> Self {
        // A bank's digest has a length that HexDigest takes: none is left out.
        let digests = banks.iter().filter_map(|&bank| Some((bank, HexDigest::new(&digest(bank))?)));
        Self(digests.collect())
    }

    /// The digest for a bank, if it was asked for.
    #[must_use]
    pub fn get(&self, bank: HashAlg) -> Option<&HexDigest> {
        self.0.get(&bank)
    }
}

/// Component that makes a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredBy {
    /// The machine's UEFI firmware.
    Firmware,
    /// The first stage that distributions have signed.
    Shim,
    /// The boot loader GRUB.
    Grub,
    /// systemd's own boot loader.
    SystemdBoot,
    /// The stub at the front of a unified kernel image.
    SystemdStub,
    /// The EFI stub of the kernel.
    Linux,
    /// systemd in the initrd, and later.
    Systemd,
}

/// Subject of a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DigestSubject {
    /// The attempt of the firmware to start a boot option.
    BootOption,
    /// The end of what firmware measures by itself.
    Separator,
    /// An image, by what it is called here: its Authenticode digest.
    Image(String),
    /// A variable of Secure Boot.
    Variable(&'static str),
    /// The entry of db by which an image was accepted; SHA-256 of its certificate.
    Authority(HexDigest),
    /// The name of a section of a unified kernel image.
    SectionName(SectionName),
    /// The content of a section.
    Section(SectionName),
    /// A command of GRUB.
    Command(String),
    /// The kernel's command line as GRUB has it.
    GrubCommandLine(String),
    /// A file that GRUB reads, by what it is called here.
    File(&'static str),
    /// The kernel's command line as its EFI stub has it.
    CommandLine(String),
    /// The initrd as the kernel's EFI stub has it.
    Initrd,
    /// A word by which systemd says how far the boot has come.
    Phase(&'static str),
}

impl fmt::Display for DigestSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BootOption => f.write_str("a boot option is tried"),
            Self::Separator => f.write_str("separator"),
            Self::Image(name) => write!(f, "image {name}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Authority(certificate) => write!(f, "accepted by the certificate {certificate} (SHA-256) in db"),
            Self::SectionName(name) => write!(f, "name of section {name}"),
            Self::Section(name) => write!(f, "section {name}"),
            Self::Command(text) => write!(f, "command \"{text}\""),
            Self::GrubCommandLine(text) | Self::CommandLine(text) => write!(f, "command line \"{text}\""),
            Self::File(name) => write!(f, "file {name}"),
            Self::Initrd => f.write_str("initrd"),
            Self::Phase(word) => write!(f, "phase {word}"),
        }
    }
}

impl Serialize for DigestSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A digest that is extended into a PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PredictedEvent {
    pub pcr: u8,
    pub by: MeasuredBy,
    /// Subject of the digest.
    pub what: DigestSubject,
    #[serde(flatten)]
    pub digests: BankDigests,
}

/// Time at which a PCR has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootPhase {
    /// After the kernel has left the firmware, until something else is extended.
    AtKernel,
    /// The same, if systemd's stub was given only what is predicted from outside the image: no other command line, no addon, credential or
    /// extension.
    AtKernelWithNothingBeside,
    /// After a word of systemd, until the next one.
    After(&'static str),
}

impl fmt::Display for BootPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtKernel => f.write_str("at the kernel's start"),
            Self::AtKernelWithNothingBeside => {
                f.write_str("at the kernel's start, if systemd-stub gets no other command line, addon, credential or extension")
            }
            Self::After(word) => write!(f, "after {word}"),
        }
    }
}

impl Serialize for BootPhase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The value of a PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PredictedPcr {
    pub pcr: u8,
    /// Time at which the PCR has the value.
    pub when: BootPhase,
    #[serde(flatten)]
    pub values: BankDigests,
}

impl PredictedPcr {
    /// Returns whether the PCR has the value only when the system has booted, or nearly so.
    #[must_use]
    pub fn is_behind_the_initrd(&self) -> bool {
        matches!(self.when, BootPhase::After(word) if word != PHASES[0])
    }
}

/// PCRs whose value was not computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotPredicted {
    pub pcrs: Vec<u8>,
    pub why: String,
}

/// The predicted measurements of a boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Prediction {
    #[serde(skip)]
    banks: Vec<HashAlg>,
    events: Vec<PredictedEvent>,
    pcrs: Vec<PredictedPcr>,
    not_predicted: Vec<NotPredicted>,
    #[serde(skip)]
    values: BTreeMap<u8, BankDigests>,
}

/// A word that systemd extends into PCR 11 at a point of the boot (systemd-pcrphase.service(8)).
pub const PHASES: [&str; 4] = ["enter-initrd", "leave-initrd", "sysinit", "ready"];

impl Prediction {
    /// Creates an empty prediction for these banks.
    #[must_use]
    pub fn new(banks: &[HashAlg]) -> Self {
        Self {
            banks: banks.to_vec(),
            events: Vec::new(),
            pcrs: Vec::new(),
            not_predicted: Vec::new(),
            values: BTreeMap::new(),
        }
    }

    #[must_use]
    pub fn banks(&self) -> &[HashAlg] {
        &self.banks
    }

    /// Returns the extended digests; those of each PCR are in its order.
    #[must_use]
    pub fn events(&self) -> &[PredictedEvent] {
        &self.events
    }

    /// The values of those PCRs of which everything was computed.
    #[must_use]
    pub fn pcrs(&self) -> &[PredictedPcr] {
        &self.pcrs
    }

    #[must_use]
    pub fn not_predicted(&self) -> &[NotPredicted] {
        &self.not_predicted
    }

    /// Adds a digest that is extended into a PCR.
    pub(crate) fn extend(&mut self, pcr: u8, by: MeasuredBy, what: DigestSubject, digests: BankDigests) {
        let before = self.values.remove(&pcr).unwrap_or_default();
        let after = BankDigests::each(&self.banks, |bank| {
            let zeros = vec![0; bank.digest_bytes()];
            let value = before.get(bank).map_or(zeros.as_slice(), HexDigest::as_bytes);
            let digest = digests.get(bank).map_or([].as_slice(), HexDigest::as_bytes);
            bank.digest(&[value, digest]).as_ref().to_vec()
        });
        self.values.insert(pcr, after);
        self.events.push(PredictedEvent { pcr, by, what, digests });
    }

    /// Adds a digest of bytes that is extended into a PCR.
    pub(crate) fn measure(&mut self, pcr: u8, by: MeasuredBy, what: DigestSubject, parts: &[&[u8]]) {
        let digests = BankDigests::compute(&self.banks, parts);
        self.extend(pcr, by, what, digests);
    }

    /// Everything that is extended into a PCR until `when` was said; one into which nothing is has zeros.
    pub(crate) fn settle(&mut self, pcr: u8, when: BootPhase) {
        let zeros = BankDigests::each(&self.banks, |bank| vec![0; bank.digest_bytes()]);
        self.pcrs.push(PredictedPcr {
            pcr,
            when,
            values: self.values.get(&pcr).cloned().unwrap_or(zeros),
        });
    }

    /// Leaves out PCRs that cannot be predicted; repetitions are recorded once.
    pub fn omit(&mut self, pcrs: &[u8], why: impl Into<String>) {
        let left_out = NotPredicted {
            pcrs: pcrs.to_vec(),
            why: why.into(),
        };
        if !self.not_predicted.contains(&left_out) {
            self.not_predicted.push(left_out);
        }
    }

    /// The words that systemd extends into PCR 11, and its value after each.
    pub(crate) fn phases(&mut self, pcr: u8) {
        for phase in PHASES {
            self.measure(pcr, MeasuredBy::Systemd, DigestSubject::Phase(phase), &[phase.as_bytes()]);
            self.settle(pcr, BootPhase::After(phase));
        }
    }
}
