//! What a log says of a PCR's events beside their digests: a digest of that, so that another story about the same measurements is noticed.
//!
//! Where a PCR has the value that it had, its events have the digests that they had, in that order. What can be otherwise is what no digest covers: the
//! types, names, paths and sizes that the log has. Nothing is decided on these, and people read them. What honest firmware may have otherwise at each boot
//! is left out: addresses in memory, the order of events in different PCRs, and events that extend nothing.

use aws_lc_rs::digest::{Context, SHA256};

use super::MeasuredBoot;

/// Which form [`MeasuredBoot::said`] has. Only digests of one form can be compared: to be raised when an event's summary, or what is read of it, changes.
pub const SAID_FORM: u32 = 2;

/// Of the hash so much is kept: to write another story with the same one is out of reach.
const SAID_BYTES: usize = 16;

impl MeasuredBoot {
    /// How the digest begins of what the log says of a PCR's events; `None` if nothing is proven about that PCR, or not all of it was read.
    #[must_use]
    pub fn said(&self, pcr: u8) -> Option<[u8; SAID_BYTES]> {
        let events = self.events_of(pcr).ok()?;
        let mut context = Context::new(&SHA256);
        for event in events {
            let summary = event.summary();
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
