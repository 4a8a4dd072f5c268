//! `RUSTC_BOOTSTRAP=1 cargo fuzz run ek_certificate` in `attest/`: no certificate makes the verifier panic, and none is trusted by itself.
#![no_main]

use std::time::Duration;

use attest::UnixTime;
use attest::tpm::ek_certificate::{self, EkRoots};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    assert!(ek_certificate::verify(bytes, &[bytes], &EkRoots::default(), now).is_err());
    let (roots, _) = EkRoots::load(vec![bytes.to_vec().into()], vec![bytes.to_vec().into()]);
    let _ = ek_certificate::verify(bytes, &[bytes], &roots, now);
});
