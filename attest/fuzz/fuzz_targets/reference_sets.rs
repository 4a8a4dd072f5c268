//! `RUSTC_BOOTSTRAP=1 cargo fuzz run reference_sets` in `attest/`: no file of reference values, CoRIM or JSON, makes its reader panic; and what was read
//! can be written, and comes back as it was.
#![no_main]

use attest::reference_sets::{ReferenceSet, ReferenceSets, Time, from_corim, to_corim};
use libfuzzer_sys::fuzz_target;

const ADDED: Time = Time { at: 100 };

fuzz_target!(|bytes: &[u8]| {
    if let Ok(generation) = from_corim(bytes, ADDED, "root", "vendor.corim") {
        let again = from_corim(&to_corim(&generation).unwrap(), ADDED, "root", "vendor.corim");
        assert_eq!(again.as_ref(), Ok(&generation));
        let set = ReferenceSet::new(vec![generation]).unwrap();
        json(&set.to_json().unwrap());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        json(text);
    }
});

fn json(text: &str) {
    let Ok(set) = ReferenceSet::parse(text) else { return };
    // Written for people, it may be longer than it was, and then is said to be too large.
    if let Ok(written) = set.to_json() {
        assert_eq!(ReferenceSet::parse(&written).as_ref(), Ok(&set));
    }
    assert!(ReferenceSets::parse([text, text]).is_ok());
    for generation in &set.generations {
        // Only what a CoRIM has a place for comes back.
        let Ok(corim) = to_corim(generation) else { continue };
        let again = from_corim(&corim, generation.added, "root", "vendor.corim").unwrap();
        assert_eq!((again.expires, &again.values), (generation.expires, &generation.values));
    }
}
