//! `RUSTC_BOOTSTRAP=1 cargo fuzz run wire` in `attest/`: no bytes make a TPM structure's parser panic, and what is read is what is written.
#![no_main]

use attest::tpm::wire::{EncryptedSecret, IdObject, Public, QuoteAttest, TpmSignature};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(public) = Public::parse(bytes) {
        assert_eq!(Public::parse(&public.to_bytes()).as_ref(), Ok(&public));
    }
    if let Ok(quoted) = QuoteAttest::parse(bytes) {
        assert_eq!(QuoteAttest::parse(&quoted.to_bytes()).as_ref(), Ok(&quoted));
    }
    if let Ok(signature) = TpmSignature::parse(bytes) {
        assert_eq!(TpmSignature::parse(&signature.to_bytes()).as_ref(), Ok(&signature));
    }
    if let Ok(object) = IdObject::parse(bytes) {
        assert_eq!(IdObject::parse(&object.to_bytes()).as_ref(), Ok(&object));
    }
    for secret in [EncryptedSecret::parse_rsa(bytes), EncryptedSecret::parse_ecc(bytes)]
        .into_iter()
        .flatten()
    {
        assert_eq!(secret.to_bytes(), bytes);
    }
});
