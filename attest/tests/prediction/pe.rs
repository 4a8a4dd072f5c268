//! Images, and their digests.

use attest::HashAlg;
use attest::tpm::prediction::pe::{PeError, PeImage, SECTIONS_LIMIT, ZEROS_LIMIT_BYTES};

use super::image::{CHECKSUM, FILE_ALIGNMENT, Image, NT_HEADERS, OPTIONAL_HEADER, SECURITY, SIZE_OF_HEADERS, put};

fn image() -> Image {
    Image::new().section(".text", b"some code").section(".data", &[7; 600])
}

fn digest(file: &[u8]) -> Result<String, PeError> {
    let digests = PeImage::parse(file)?.authenticode(&[HashAlg::Sha256])?;
    Ok(digests.get(HashAlg::Sha256).unwrap().to_string())
}

#[track_caller]
fn refused(image: &Image, change: impl FnOnce(&mut Vec<u8>), expected: &str) {
    let mut file = image.build();
    change(&mut file);
    let error = digest(&file).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn authenticode_digest_skips_checksum_and_certificates() {
    let mut signed = image();
    signed.certificates = vec![1; 64];
    signed.checksum = 0x1234_5678;
    let file = signed.build();
    let end = file.len() - 64;
    let expected = HashAlg::Sha256.digest(&[&file[..CHECKSUM], &file[CHECKSUM + 4..SECURITY], &file[SECURITY + 8..end]]);
    assert_eq!(digest(&file).unwrap(), format!("{expected:?}"));
    // As before it was signed, and by whomever.
    assert_eq!(digest(&file).unwrap(), digest(&image().build()).unwrap());
    signed.certificates = vec![2; 4096];
    assert_eq!(digest(&file).unwrap(), digest(&signed.build()).unwrap());
}

#[test]
fn authenticode_digest_covers_every_other_byte() {
    let mut signed = image();
    signed.certificates = vec![1; 64];
    signed.trailing = vec![3; 8];
    let file = signed.build();
    let end = file.len() - 64;
    let before = digest(&file).unwrap();
    for position in 0..file.len() {
        let mut changed = file.clone();
        changed[position] ^= 1;
        let hidden = (CHECKSUM..CHECKSUM + 4).contains(&position) || position >= end;
        match digest(&changed) {
            Ok(after) => assert_eq!(after == before, hidden, "byte {position}"),
            Err(_) => assert!(!hidden || (SECURITY..SECURITY + 8).contains(&position), "byte {position}"),
        }
    }
}

#[test]
fn digests_an_image_without_a_certificate_directory() {
    let mut image = image();
    image.directories = 4;
    let file = image.build();
    let expected = HashAlg::Sha256.digest(&[&file[..CHECKSUM], &file[CHECKSUM + 4..]]);
    assert_eq!(digest(&file).unwrap(), format!("{expected:?}"));
}

#[test]
fn rejects_every_truncated_pe_image() {
    let file = image().build();
    for length in 0..file.len() {
        digest(&file[..length]).unwrap_err();
    }
}

#[test]
fn rejects_ambiguous_pe_layouts() {
    let image = image();
    let (first, second) = (image.table(), image.table() + 40);
    let start = u32::try_from(image.first()).unwrap();
    let set = |offset: usize, value: u32| move |file: &mut Vec<u8>| put(file, offset, &value.to_le_bytes());
    // Sections over each other, and with a gap between them or before them.
    refused(&image, set(second + 20, start), "begins at");
    refused(&image, set(second + 20, start + 1), "begins at");
    refused(&image, set(first + 16, 511), "begins at");
    refused(&image, set(first + 16, 513), "begins at");
    refused(&image, set(first + 20, 0), "begins at");
    refused(&image, set(SIZE_OF_HEADERS, start - 1), "begins at");
    refused(&image, set(SIZE_OF_HEADERS, start + 1), "begins at");
    // Sections that are not in the file.
    refused(&image, set(second + 16, 1025), "in a file of");
    refused(&image, set(second + 16, u32::MAX), "in a file of");
    refused(&image, set(second + 20, u32::MAX), "in a file of");
    refused(&image, set(second + 8, u32::MAX), "bytes in memory");
    // Headers that end before they do, or behind the file.
    refused(&image, set(SIZE_OF_HEADERS, 0), "its headers declare");
    refused(
        &image,
        set(SIZE_OF_HEADERS, u32::try_from(second + 39).unwrap()),
        "its headers declare",
    );
    refused(&image, set(SIZE_OF_HEADERS, u32::MAX), "its headers declare");
}

#[test]
fn certificates_must_end_the_pe_file() {
    let mut image = image();
    image.certificates = vec![1; 64];
    let file = image.build();
    let start = u32::try_from(file.len() - 64).unwrap();
    let set = |offset: usize, value: u32| move |file: &mut Vec<u8>| put(file, offset, &value.to_le_bytes());
    refused(&image, |file| file.push(0), "its certificates are at");
    refused(&image, set(SECURITY, start - 8), "its certificates are at");
    refused(&image, set(SECURITY, start + 8), "its certificates are at");
    refused(&image, set(SECURITY, 0), "its certificates are at");
    refused(&image, set(SECURITY, u32::MAX), "its certificates are at");
    refused(&image, set(SECURITY + 4, 63), "its certificates are at");
    refused(&image, set(SECURITY + 4, 0), "its certificates are at");
    refused(&image, set(SECURITY + 4, u32::MAX), "its certificates are at");
    // In the sections, up to the end.
    let inside = |file: &mut Vec<u8>| {
        put(file, SECURITY, &(start - 8).to_le_bytes());
        put(file, SECURITY + 4, &72_u32.to_le_bytes());
    };
    refused(&image, inside, "its certificates are at");
}

#[test]
fn rejects_files_that_are_not_pe_images() {
    let image = image();
    refused(&image, |file| file[0] = b'm', "not a 64-bit PE image");
    refused(&image, |file| file[NT_HEADERS] = b'N', "not a 64-bit PE image");
    refused(
        &image,
        |file| put(file, OPTIONAL_HEADER, &0x10b_u16.to_le_bytes()),
        "not a 64-bit PE image",
    );
    refused(&image, |file| put(file, 60, &u32::MAX.to_le_bytes()), "not a 64-bit PE image");
    refused(
        &image,
        |file| put(file, OPTIONAL_HEADER + 108, &17_u32.to_le_bytes()),
        "not a 64-bit PE image",
    );
    refused(
        &image,
        |file| put(file, NT_HEADERS + 20, &0_u16.to_le_bytes()),
        "not a 64-bit PE image",
    );
    let count = u16::try_from(SECTIONS_LIMIT + 1).unwrap();
    refused(&image, |file| put(file, NT_HEADERS + 6, &count.to_le_bytes()), "more than 512");
    assert!(digest(&[]).unwrap_err().to_string().contains("not a 64-bit PE image"));
}

#[test]
fn section_digest_covers_its_size_in_memory() {
    let mut image = image();
    image.sections[0].memory_bytes = 4;
    image.sections[1].memory_bytes = 5000;
    let file = image.build();
    let parsed = PeImage::parse(&file).unwrap();
    let digests = |index: usize| parsed.sections()[index].digests(&[HashAlg::Sha256]).unwrap();
    let of = |bytes: &[u8]| HashAlg::Sha256.digest(&[bytes]).as_ref().to_vec();
    assert_eq!(digests(0).get(HashAlg::Sha256).unwrap().as_bytes(), of(b"some"));
    // What the file has of it, its padding included, and zeros.
    let mut content = [vec![7; 600], vec![0xcc; 424]].concat();
    content.resize(5000, 0);
    assert_eq!(digests(1).get(HashAlg::Sha256).unwrap().as_bytes(), of(&content));
    assert_eq!(parsed.sections()[1].memory_bytes(), 5000);
    assert!(parsed.sections()[1].content().is_none());
}

/// A file of some hundred bytes would have gigabytes hashed otherwise.
#[test]
fn zero_padding_is_limited_over_all_sections() {
    let check = |beyond: [usize; 2], expect: Option<usize>| {
        let mut image = image();
        for (section, beyond) in image.sections.iter_mut().zip(beyond) {
            let padded = section.content.len().next_multiple_of(FILE_ALIGNMENT);
            section.memory_bytes = u32::try_from(padded + beyond).unwrap();
        }
        let found = match PeImage::parse(&image.build()) {
            Ok(_) => None,
            Err(PeError::Zeros { bytes, .. }) => Some(bytes),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, expect, "{beyond:?}");
    };
    let half = ZEROS_LIMIT_BYTES / 2;
    check([half, half], None);
    check([half, half + 1], Some(ZEROS_LIMIT_BYTES + 1));
    check([ZEROS_LIMIT_BYTES, 0], None);
    check([ZEROS_LIMIT_BYTES + 1, 0], Some(ZEROS_LIMIT_BYTES + 1));
    check([2 * ZEROS_LIMIT_BYTES, 3 * ZEROS_LIMIT_BYTES], Some(2 * ZEROS_LIMIT_BYTES));
}

#[test]
fn detects_a_signed_image() {
    let mut image = image();
    assert!(!PeImage::parse(&image.build()).unwrap().is_signed());
    image.certificates = vec![1; 8];
    assert!(PeImage::parse(&image.build()).unwrap().is_signed());
}
