//! `RUSTC_BOOTSTRAP=1 cargo fuzz run event_log` in `attest/`: no log makes the parser panic, and a replay explains itself.
#![no_main]

use std::collections::BTreeMap;

use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(log) = EventLog::parse(bytes) else { return };
    for bank in [HashAlg::Sha256, HashAlg::Sha384, HashAlg::Sha512] {
        let Ok(replayed) = log.replay(bank, 0..24) else { continue };
        let quoted: BTreeMap<u8, HexDigest> = (0..24)
            .map(|pcr| (pcr, HexDigest::new(replayed.value(pcr).unwrap()).unwrap()))
            .collect();
        let trusted = log.check_against(bank, &quoted).unwrap();
        let events: usize = (0..24).map(|pcr| trusted.events_of(pcr).unwrap().count()).sum();
        assert_eq!(events, log.events().iter().filter(|event| event.extends()).count());
    }
});
