//! Measured boot: what the events of a replayed log mean, and how far that is proven.
//!
//! A quote proves, of each event of [`TrustedEvents`], its digest, its PCR and its place among that PCR's events. It proves neither the event's
//! type nor its data, nor the order of events in different PCRs. Two kinds of attackers make use of that:
//!
//! - Software with root rights after the boot can extend any further event into any PCR from 0 to 15. It can also write any
//!   type and any data into the log that it shows. It cannot undo earlier extensions: the *beginning* of each PCR is from before.
//! - A client that controls the boot disk has its boot loader measured by the firmware first, and can only then extend other values.
//!
//! So an event's meaning follows from its PCR, its position in it, and the bytes that its digest is the hash of ([`Proof::Content`]).
//! Everything else next to a digest is the log's own claim ([`Proof::Digest`]). And facts have only two forms: the required beginning of a
//! PCR (Secure Boot's variables), or a statement about **all** events (each image of PCR 4). "Some event of this PCR is X" proves nothing:
//! any software can add one.
//!
//! Measurements by a loader (PCRs 8, 9, 11, 12, 14) are only as trustworthy as the loader, which PCRs 4 and 7 show.
//!
//! This follows what was learnt with go-attestation: its `docs/event-log-disclosure.md`.

mod description;
mod device_path;
mod difference;
mod digest_labels;
mod event;
mod facts;
mod gpt;
mod guid;
mod manifest;
mod part;
mod read;
mod reader;
mod signatures;
mod subject;
mod summary;
mod text;
mod variable;

use std::collections::BTreeSet;

use serde::Serialize;

pub use description::SAID_FORM;
pub use difference::{BootDifference, DifferenceRow, PcrDifference};
pub use event::{
    Action, BootEvent, BootValue, DatabaseName, GrubKind, Meaning, Proof, SaidManifest, SecureBootVariable, Separator, UkiSection,
    VariableValue,
};
pub use facts::{ExitBootServices, Fact, MeasuredAuthority, MeasuredSection, MeasuredText, NotProven, Pcr7};
pub use gpt::{GptPartition, PARTITIONS_LIMIT, PartitionTable};
pub use guid::Guid;
pub use part::{BootPart, NoPart};
pub use signatures::{
    AuthorisedBy, BootCertificate, CERTIFICATES_LIMIT, HASHES_LIMIT, ImageAuthority, SECURITY_VERSIONS_LIMIT, SecurityVersion, Sha256,
    SignatureDatabase,
};
pub use text::{LogText, TEXT_LIMIT_BYTES};

pub use super::event_log::Phase;
use super::event_log::TrustedEvents;
use super::wire::HashAlg;

/// Maximum number of events that are stored of one log. GRUB leaves 150, Windows 60; a longer log was stuffed, and no fact about any of its
/// PCRs is proven.
pub const EVENTS_LIMIT: usize = 4096;

/// Maximum number of entries of `BootOrder` that are stored.
pub const BOOT_OPTIONS_LIMIT: usize = 64;

/// Maximum number of SP 800-155 events that are stored: firmware has one for each of its manufacturers.
pub const MANIFESTS_LIMIT: usize = 8;

/// A machine's boot, as far as a quote and a log prove it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredBoot {
    /// The bank quoted: of it are all digests.
    pub bank: HashAlg,
    /// PCRs whose quoted value the log explains: nothing is proven about others.
    pub explained_pcrs: BTreeSet<u8>,
    /// Explained PCRs into which systemd has extended its separator after the log.
    pub os_separator_pcrs: BTreeSet<u8>,
    /// In the order of the log; of each PCR, that is the order in which they were extended.
    pub events: Vec<BootEvent>,
    /// Number of further events, over [`EVENTS_LIMIT`].
    pub left_out: usize,
    /// Phases that systemd has extended into PCR 11 after the log, in order.
    pub phases: Vec<Phase>,
    /// The log's claims about the firmware's manufacturers; at most [`MANIFESTS_LIMIT`]. **Not proven.**
    pub said_manifests: Vec<SaidManifest>,
}

impl MeasuredBoot {
    /// Reads the events that a quote proves.
    #[must_use]
    pub fn from_events(trusted: &TrustedEvents<'_, '_>) -> Self {
        let mut reading = read::EventReader::new(trusted.bank());
        let mut events = trusted.events();
        let mut kept = Vec::with_capacity(trusted.event_count().min(EVENTS_LIMIT));
        kept.extend(events.by_ref().take(EVENTS_LIMIT).filter_map(|event| reading.event(&event)));
        Self {
            bank: trusted.bank(),
            explained_pcrs: trusted.explained_pcrs().collect(),
            os_separator_pcrs: trusted.separated_pcrs().collect(),
            events: kept,
            left_out: events.count(),
            phases: trusted.phases().to_vec(),
            said_manifests: trusted.unmeasured().filter_map(manifest::read).take(MANIFESTS_LIMIT).collect(),
        }
    }
}
