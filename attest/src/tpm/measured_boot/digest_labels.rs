//! The short words that firmware, boot loaders and systemd measure, with their digests in one bank.

use std::collections::BTreeMap;

use aws_lc_rs::digest;

use super::event::{Action, Meaning, Separator, UkiSection};
use crate::tpm::event_log::{OS_SEPARATOR, OS_SEPARATOR_PCRS};
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// PFP 1.06, 10.4.1 (EV_SEPARATOR); `WBCL` is what Windows puts into PCRs 12 to 14 (a recorded log).
const SEPARATORS: [(&[u8], Separator); 4] = [
    (&[0; 4], Separator::Zeros),
    (&[0xff; 4], Separator::Ones),
    (&[1, 0, 0, 0], Separator::Error),
    (b"WBCL", Separator::Windows),
];

/// Number of [`SEPARATORS`] that firmware measures, from the first.
const FIRMWARE_SEPARATORS: usize = 3;

/// Length of the data of an event in coreboot's log (`TPM_20_LOG_DATA_MAX_LENGTH`). Firmware based on it has hashed separators with the zeros that fill this place.
const COREBOOT_EVENT_BYTES: usize = 50;

/// PFP 1.06, 10.4.4 (EV_ACTION, EV_EFI_ACTION); the one of Thunderbolt is of Intel's `TbtSecurityLib`.
const ACTIONS: [Action; 10] = [
    Action::CallingApplication,
    Action::ReturningFromApplication,
    Action::ExitBootServicesInvocation,
    Action::ExitBootServicesFailure,
    Action::ExitBootServicesSuccess,
    Action::DebugMode,
    Action::DmaProtectionDisabled,
    Action::SecurityLevelDowngraded,
    Action::CallingInt19,
    Action::OptionRomScan,
];

/// Sections that systemd-stub measures, by the names it does so with (Unified Kernel Image, UAPI.5; a zero ends each).
const SECTIONS: [(&[u8], UkiSection); 14] = [
    (b".linux\0", UkiSection::Linux),
    (b".osrel\0", UkiSection::Osrel),
    (b".cmdline\0", UkiSection::Cmdline),
    (b".initrd\0", UkiSection::Initrd),
    (b".ucode\0", UkiSection::Ucode),
    (b".splash\0", UkiSection::Splash),
    (b".dtb\0", UkiSection::Dtb),
    (b".dtbauto\0", UkiSection::Dtbauto),
    (b".hwids\0", UkiSection::Hwids),
    (b".uname\0", UkiSection::Uname),
    (b".sbat\0", UkiSection::Sbat),
    (b".pcrpkey\0", UkiSection::Pcrpkey),
    (b".profile\0", UkiSection::Profile),
    (b".efifw\0", UkiSection::Efifw),
];

/// Meanings of the known words, by the digests of these.
#[derive(Debug)]
pub(super) struct DigestLabels {
    words: BTreeMap<HexDigest, Meaning>,
    bank: HashAlg,
    /// Hashed when PCR 11 has its first event: most machines have none.
    sections: BTreeMap<HexDigest, UkiSection>,
}

fn hash(bank: HashAlg, bytes: &[u8]) -> Option<HexDigest> {
    HexDigest::new(digest::digest(bank.algorithm(), bytes).as_ref())
}

impl DigestLabels {
    pub(super) fn new(bank: HashAlg) -> Self {
        let hash = |bytes: &[u8]| hash(bank, bytes);
        let separators = SEPARATORS.map(|(bytes, separator)| (hash(bytes), Meaning::Separator { separator }));
        let padded = SEPARATORS.iter().take(FIRMWARE_SEPARATORS).map(|(bytes, separator)| {
            let mut padded = bytes.to_vec();
            padded.resize(COREBOOT_EVENT_BYTES, 0);
            (hash(&padded), Meaning::Separator { separator: *separator })
        });
        let actions = ACTIONS
            .into_iter()
            .flat_map(|action| forms(action.sentence()).map(|form| (hash(&form), Meaning::Action { action })));
        let os_separator = (hash(OS_SEPARATOR), Meaning::OsSeparator);
        let words = separators.into_iter().chain(padded).chain(actions).chain([os_separator]);
        Self {
            words: words.filter_map(|(digest, meaning)| Some((digest?, meaning))).collect(),
            bank,
            sections: BTreeMap::new(),
        }
    }

    /// The meaning of a digest in a PCR that such a word belongs in. Elsewhere a file may have it as its content.
    pub(super) fn meaning(&self, pcr: u8, digest: &HexDigest) -> Option<Meaning> {
        if pcr > 7 && !OS_SEPARATOR_PCRS.contains(&pcr) {
            return None;
        }
        let meaning = self.words.get(digest)?;
        let belongs = match meaning {
            Meaning::Separator {
                separator: Separator::Windows,
            } => (12..=14).contains(&pcr),
            Meaning::OsSeparator => OS_SEPARATOR_PCRS.contains(&pcr),
            _ => pcr <= 7,
        };
        belongs.then(|| meaning.clone())
    }

    /// The section whose name a digest is the hash of.
    pub(super) fn section(&mut self, digest: &HexDigest) -> Option<UkiSection> {
        if self.sections.is_empty() {
            let bank = self.bank;
            self.sections = SECTIONS
                .iter()
                .filter_map(|(name, section)| Some((hash(bank, name)?, *section)))
                .collect();
        }
        self.sections.get(digest).copied()
    }
}

/// Returns the bytes that firmware may hash for a sentence. The profile has it in ASCII without a terminating zero; some firmware hashes that, too, or the text in UTF-16.
fn forms(sentence: &str) -> [Vec<u8>; 4] {
    let narrow = sentence.as_bytes().to_vec();
    let wide: Vec<u8> = sentence.encode_utf16().flat_map(u16::to_le_bytes).collect();
    [
        [narrow.as_slice(), &[0]].concat(),
        [wide.as_slice(), &[0, 0]].concat(),
        narrow,
        wide,
    ]
}
