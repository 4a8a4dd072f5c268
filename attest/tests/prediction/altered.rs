//! Files with any byte altered, and any bytes at all: nothing panics. `attest/fuzz` looks for longer.

use attest::HashAlg;
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::{SecureBoot, UkiBoot};
use attest::tpm::prediction::grub::GrubConfig;
use attest::tpm::prediction::linux::{CommandLine, Kernel};
use attest::tpm::prediction::pe::PeImage;
use attest::tpm::prediction::secure_boot::Variables;
use attest::tpm::prediction::uki::Uki;
use proptest::prelude::*;

use super::image::{kernel, uki};

/// Calls all parsers of files.
fn read(bytes: &[u8]) {
    let _ = Kernel::parse(bytes).map(|kernel| kernel.loads_initrd());
    let _ = CommandLine::parse(bytes).map(|line| line.load_options());
    let _ = GrubConfig::parse(bytes);
    let variables = Variables {
        db: bytes,
        ..Variables::default()
    };
    let _ = variables.predict(SecureBoot::On, &[bytes], &mut Prediction::new(&[HashAlg::Sha256]));
    let _ = PeImage::parse(bytes).map(|image| image.authenticode(&[HashAlg::Sha256]));
    let Ok(uki) = Uki::parse(bytes) else { return };
    let mut prediction = Prediction::new(&[HashAlg::Sha256]);
    UkiBoot {
        loaders: &[],
        uki: &uki,
        secure_boot: SecureBoot::Off,
    }
    .predict(&mut prediction)
    .unwrap();
    assert!(prediction.pcrs().iter().any(|value| value.pcr == 11));
}

fn image() -> Vec<u8> {
    let linux = kernel("6.1.0").build();
    uki("252", &[(".linux", &linux), (".cmdline", b"quiet"), (".initrd", b"initrd")]).build()
}

#[test]
fn altering_any_byte_of_an_image_never_panics() {
    let image = image();
    for position in 0..image.len() {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            let mut altered = image.clone();
            altered[position] = byte;
            read(&altered);
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        read(&bytes);
    }

    #[test]
    fn altered_and_truncated_images_never_panic(
        changes in proptest::collection::vec((0..1024_usize, any::<u8>()), 1..8),
        length in 0..8192_usize,
    ) {
        let mut image = image();
        for (position, byte) in changes {
            image[position] = byte;
        }
        image.truncate(length.max(1));
        read(&image);
    }
}
