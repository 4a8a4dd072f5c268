//! Files that are not in memory: the same digests, and no more memory than the limit.

use std::cell::Cell;

use attest::HashAlg;
use attest::tpm::prediction::boot::{SecureBoot, UkiBoot};
use attest::tpm::prediction::bytes::{ByteReadError, Bytes, RandomAccess};
use attest::tpm::prediction::uki::Uki;
use attest::tpm::prediction::{BankDigests, Prediction};

use super::image::{kernel, uki};

const BANKS: [HashAlg; 2] = [HashAlg::Sha256, HashAlg::Sha384];
/// More than is read at once.
const LARGE_BYTES: usize = 700_001;

/// A file that knows the largest part that was asked for, and cannot be read from a place on.
struct Stored {
    bytes: Vec<u8>,
    largest_read: Cell<usize>,
    damaged_from: usize,
}

impl Stored {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            damaged_from: bytes.len(),
            bytes,
            largest_read: Cell::new(0),
        }
    }

    fn bytes(&self) -> Bytes<'_> {
        Bytes::from_file(self, self.bytes.len())
    }
}

impl RandomAccess for Stored {
    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ByteReadError> {
        self.largest_read.set(self.largest_read.get().max(into.len()));
        let end = start + into.len();
        if end > self.damaged_from {
            return Err(ByteReadError::Failed("damaged".to_owned()));
        }
        into.copy_from_slice(&self.bytes[start..end]);
        Ok(())
    }
}

fn image() -> Vec<u8> {
    let linux = kernel("6.1.0").build();
    let initrd: Vec<u8> = (0..LARGE_BYTES).map(|place| u8::try_from(place % 251).unwrap()).collect();
    uki(
        "257",
        &[
            (".osrel", b"ID=x"),
            (".linux", &linux),
            (".cmdline", b"quiet"),
            (".initrd", &initrd),
        ],
    )
    .build()
}

fn predict(uki: &Uki<'_>) -> Result<Prediction, ByteReadError> {
    let mut prediction = Prediction::new(&BANKS);
    let boot = UkiBoot {
        loaders: &[],
        uki,
        secure_boot: SecureBoot::Off,
    };
    boot.predict(&mut prediction)?;
    Ok(prediction)
}

#[test]
fn predicting_in_chunks_equals_predicting_in_memory() {
    let image = image();
    let in_memory = predict(&Uki::parse(&image).unwrap()).unwrap();
    let stored = Stored::new(image);
    assert_eq!(predict(&Uki::parse(stored.bytes()).unwrap()).unwrap(), in_memory);
    assert_eq!(in_memory.pcrs().iter().filter(|value| [4, 9].contains(&value.pcr)).count(), 2);
    assert!(stored.largest_read.get() <= 256 * 1024, "{}", stored.largest_read.get());
}

#[test]
fn unreadable_file_yields_no_prediction() {
    let image = image();
    let length = image.len();
    for damaged_from in [0, 100, length / 2, length - 1] {
        let mut stored = Stored::new(image.clone());
        stored.damaged_from = damaged_from;
        let predicted = Uki::parse(stored.bytes()).map_err(|error| error.to_string());
        let error = predicted
            .and_then(|uki| predict(&uki).map_err(|error| error.to_string()))
            .unwrap_err();
        assert_eq!(error, "reading it failed: damaged");
    }
}

#[test]
fn byte_range_stays_within_its_file() {
    let stored = Stored::new((0..100).collect());
    for bytes in [stored.bytes(), Bytes::from(&stored.bytes)] {
        let part = bytes.part(10, 20).unwrap().part(5, 10).unwrap();
        assert_eq!(part.read(10).unwrap(), (15..25).collect::<Vec<u8>>());
        assert_eq!(
            part.sha256().unwrap(),
            BankDigests::compute(&[HashAlg::Sha256], &[&stored.bytes[15..25]])
        );
        assert!(part.part(5, 6).is_none() && part.part(usize::MAX, 1).is_none() && part.part(10, 0).is_some());
        assert_eq!((part.first(3).len(), part.first(11).len(), part.is_empty()), (3, 10, false));
        assert_eq!(part.read(9), Err(ByteReadError::TooLarge { bytes: 10, limit: 9 }));
    }
}
