//! `RUSTC_BOOTSTRAP=1 cargo fuzz run condition` in `attest/`: no text makes the parser panic or overflow the stack of a small thread, what is let in is
//! evaluated within its limits, and comes to the same again: also over claims with all parts of a boot that was recorded.
#![no_main]

use std::sync::OnceLock;

use attest::HashAlg;
use attest::condition::{Condition, LIST_LIMIT, STEPS_LIMIT};
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{BootPart, MeasuredBoot};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

const STACK_BYTES: usize = 1024 * 1024;

const LOG: &[u8] = include_bytes!("../../tests/fixtures/boots/grub-2.06-shim.log");

/// Returns the claims of a machine that has booted GRUB behind shim.
fn claims() -> &'static Value {
    static CLAIMS: OnceLock<Value> = OnceLock::new();
    CLAIMS.get_or_init(|| {
        let log = EventLog::parse(LOG).unwrap();
        let replayed = log.replay(HashAlg::Sha256, 0..16).unwrap();
        let quoted = (0..16).map(|pcr| (pcr, HexDigest::new(replayed.value(pcr).unwrap()).unwrap())).collect();
        let boot = MeasuredBoot::of(&log.check_against(HashAlg::Sha256, &quoted).unwrap());
        let part = |part: BootPart| Some((part.name().to_owned(), boot.part(part, LIST_LIMIT).ok()?));
        let parts: Map<String, Value> = BootPart::ALL.into_iter().filter_map(part).collect();
        assert!(parts.contains_key("secure_boot") && parts.contains_key("grub"));
        json!({
            "pool": "worker",
            "kinds": ["tpm"],
            "name": null,
            "tpm": {"pcrs": {"0": "aa", "7": "bb"}, "clock_ms": u64::MAX, "explained": (0..100).collect::<Vec<_>>(), "boot": parts},
        })
    })
}

fuzz_target!(|text: &str| {
    let claims = claims();
    std::thread::scope(|scope| {
        let run = || {
            let Ok(condition) = Condition::parse(text) else { return };
            assert!(condition.steps() <= STEPS_LIMIT);
            let decided = condition.evaluate(claims);
            assert_eq!(Condition::parse(condition.source()).unwrap().evaluate(claims), decided);
        };
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).unwrap().join().unwrap();
    });
});
