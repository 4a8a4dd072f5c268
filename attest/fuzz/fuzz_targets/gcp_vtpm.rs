//! `RUSTC_BOOTSTRAP=1 cargo fuzz run gcp_vtpm` in `attest/`: no certificate and no extension of a vTPM makes the verifier panic, and none
//! is trusted by itself.
#![no_main]

use std::time::Duration;

use attest::UnixTime;
use attest::tpm::vtpm::{self, VtpmRoots};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    let _ = vtpm::parse_extension(bytes);
    let (none, _) = VtpmRoots::load(Vec::new(), Vec::new());
    assert!(vtpm::verify(bytes, &[bytes], &none, now).is_err());
    let (roots, _) = VtpmRoots::load(vec![bytes.to_vec().into()], vec![bytes.to_vec().into()]);
    let _ = vtpm::verify(bytes, &[bytes], &roots, now);
});
