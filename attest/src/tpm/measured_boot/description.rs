//! Digest of the log's unproven claims about a PCR's events, to detect a different description of the same measurements.
//!
//! If a PCR has the same value as in an earlier boot, its events have the same digests in the same order. Only what no digest covers can
//! differ: the types, names, paths and sizes in the log. No decision is based on these, but people read them. The digest leaves out
//! differences between boots of honest firmware: addresses in memory, the order of events in different PCRs, and events that extend
//! nothing.

use aws_lc_rs::digest::{Context, SHA256};

use super::MeasuredBoot;

/// Version of the form of [`MeasuredBoot::claims_digest`]. Only digests of one form can be compared. Increase it when an event's summary, or what is
/// read of it, changes.
pub const SAID_FORM: u32 = 2;

/// Length of the stored part of the hash, in bytes: finding another description with the same part is infeasible.
const SAID_BYTES: usize = 16;

impl MeasuredBoot {
    /// Returns the beginning of the digest over the log's claims about a PCR's events. `None` if nothing is proven about that PCR, or not
    /// all of it was read.
    #[must_use]
    pub fn claims_digest(&self, pcr: u8) -> Option<[u8; SAID_BYTES]> {
        let events = self.each_of(pcr).ok()?;
        let mut context = Context::new(&SHA256);
        let mut summary = String::new();
        for event in events {
            summary.clear();
            event.summarize(&mut summary);
            context.update(&event.said_type.0.to_le_bytes());
            context.update(&[u8::from(event.is_content())]);
            // So that no summary's end can be another one's begin.
            context.update(&summary.len().to_le_bytes());
            context.update(summary.as_bytes());
        }
        let hash = context.finish();
        hash.as_ref().first_chunk().copied()
    }
}
