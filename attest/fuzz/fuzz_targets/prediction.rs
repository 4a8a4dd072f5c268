//! `RUSTC_BOOTSTRAP=1 cargo fuzz run prediction` in `attest/`: no file makes the readers of images and of signature lists panic, and what is
//! predicted of an image does not depend on what its certificates and its checksum are.
#![no_main]

use attest::HashAlg;
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::{SecureBoot, UkiBoot};
use attest::tpm::prediction::linux::{CommandLine, Kernel};
use attest::tpm::prediction::pe::PeImage;
use attest::tpm::prediction::secure_boot::Variables;
use attest::tpm::prediction::uki::Uki;
use libfuzzer_sys::fuzz_target;

const BANKS: [HashAlg; 2] = [HashAlg::Sha256, HashAlg::Sha384];

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = PeImage::parse(bytes) {
        let digests = image.authenticode(&BANKS).unwrap();
        // e_lfanew, and the checksum behind it.
        let checksum = u32::from_le_bytes(bytes[60..64].try_into().unwrap()) as usize + 24 + 64;
        let mut changed = bytes.to_vec();
        changed[checksum] ^= 1;
        if let Ok(changed) = PeImage::parse(&changed) {
            assert_eq!(changed.authenticode(&BANKS).unwrap(), digests);
        }
        let _ = Kernel::parse(bytes).map(|kernel| kernel.loads_initrd());
    }
    if let Ok(uki) = Uki::parse(bytes) {
        for secure_boot in [SecureBoot::On, SecureBoot::Off] {
            let mut prediction = Prediction::new(&BANKS);
            UkiBoot {
                loaders: &[],
                uki: &uki,
                secure_boot,
            }
            .predict(&mut prediction)
            .unwrap();
            assert!(prediction.pcrs().iter().any(|value| value.pcr == 11));
        }
    }
    let _ = CommandLine::parse(bytes).map(|line| line.load_options());
    let authority = bytes.get(44..).unwrap_or_default();
    let variables = Variables {
        db: bytes,
        ..Variables::default()
    };
    let _ = variables.predict(SecureBoot::On, &[authority], &mut Prediction::new(&BANKS));
});
