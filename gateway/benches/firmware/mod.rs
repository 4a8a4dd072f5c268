//! Event log of a machine in a fleet: 34 KB, most of which is the same for every machine.

#![allow(dead_code, reason = "each benchmark uses its part")]

use crate::log_builder::{BuiltEvent, EV_POST_CODE, LogBuilder, SHA256, SHA384};

/// Approximate size of an event log.
const LOG_BYTES: usize = 34 * 1024;
/// Number of events that no other machine's log has.
const OWN_EVENTS: usize = 6;

/// Event log that firmware and boot loader write.
pub struct Firmware(LogBuilder);

impl Firmware {
    pub fn new() -> Self {
        let mut log = LogBuilder::new(&[SHA256, SHA384]);
        let mut bytes = 0;
        while bytes < LOG_BYTES {
            let number = log.events.len();
            let data = data(number);
            bytes += 100 + data.len();
            log = log.event(u32::try_from(number % 8).unwrap(), EV_POST_CODE, &data);
        }
        Self(log)
    }

    /// Returns the log of this machine in this boot.
    pub fn event_log(&self, machine: &[u8], boot: usize) -> LogBuilder {
        let mut own = LogBuilder::new(&[SHA256, SHA384]);
        for number in 0..OWN_EVENTS {
            let data = [&data(number), machine, &boot.to_be_bytes()].concat();
            own = own.event(u32::try_from(number % 8).unwrap(), EV_POST_CODE, &data);
        }
        let everybodys: &[BuiltEvent] = &self.0.events[OWN_EVENTS..];
        own.events.extend_from_slice(everybodys);
        own
    }
}

fn data(number: usize) -> Vec<u8> {
    let mut data = format!("event {number}: \\EFI\\BOOT\\BOOTX64.EFI, variable and value ").into_bytes();
    data.resize(160, u8::try_from(number).unwrap());
    data
}
