//! `RUSTC_BOOTSTRAP=1 cargo fuzz run nitro_tpm` in `attest/`: no document makes the verifier panic, and none is trusted by itself.
#![no_main]

use std::time::Duration;

use attest::UnixTime;
use attest::aws::nitro_tpm::{NitroRoots, authenticate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    assert!(authenticate(bytes, &NitroRoots::default(), now).is_err());
    // The same as a payload, in an envelope that is read.
    let Ok(length) = u16::try_from(bytes.len()) else { return };
    let envelope = [0x84, 0x44, 0xa1, 0x01, 0x38, 0x22, 0xa0, 0x59];
    let document = [&envelope[..], &length.to_be_bytes(), bytes, &[0x58, 0x60], &[0; 96]].concat();
    assert!(authenticate(&document, &NitroRoots::default(), now).is_err());
});
