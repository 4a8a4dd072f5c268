//! `RUSTC_BOOTSTRAP=1 cargo fuzz run condition` in `attest/`: no text makes the parser panic or overflow the stack of a small thread, what is let in is
//! evaluated within its limits, and comes to the same again.
#![no_main]

use attest::condition::{Condition, STEPS_LIMIT};
use libfuzzer_sys::fuzz_target;

const STACK_BYTES: usize = 1024 * 1024;

fuzz_target!(|text: &str| {
    std::thread::scope(|scope| {
        let run = || {
            let Ok(condition) = Condition::parse(text) else { return };
            assert!(condition.steps() <= STEPS_LIMIT);
            let claims = serde_json::json!({
                "pool": "worker",
                "kinds": ["tpm"],
                "name": null,
                "tpm": {"pcrs": {"0": "aa", "7": "bb"}, "clock_ms": u64::MAX, "explained": (0..100).collect::<Vec<_>>()},
            });
            let decided = condition.evaluate(&claims);
            assert_eq!(Condition::parse(condition.source()).unwrap().evaluate(&claims), decided);
        };
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).unwrap().join().unwrap();
    });
});
