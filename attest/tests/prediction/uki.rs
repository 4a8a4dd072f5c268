//! Predictions for unified kernel images.

use attest::HashAlg;
use attest::tpm::prediction::boot::{SecureBoot, UkiBoot};
use attest::tpm::prediction::pe::PeImage;
use attest::tpm::prediction::uki::Uki;
use attest::tpm::prediction::{DigestSubject, Prediction};

use super::image::{Image, arm64_kernel, for_arm64, kernel, uki, zboot_kernel};

const BANKS: [HashAlg; 2] = [HashAlg::Sha256, HashAlg::Sha384];

fn whole(version: &str) -> Image {
    let kernel = kernel("6.1.0-56-cloud-amd64 (x)").build();
    uki(
        version,
        &[
            // Not in the order in which they are measured.
            (".cmdline", b"root=/dev/sda1 ro\n"),
            (".pcrsig", b"{}"),
            (".initrd", b"an initrd"),
            (".uname", b"6.1.0"),
            (".sbat", b"sbat,1"),
            (".osrel", b"ID=test\n"),
            (".pcrpkey", b"a key"),
            (".ucode", b"microcode"),
            (".splash", b"BM"),
            (".linux", &kernel),
        ],
    )
}

fn predict(image: &Image, secure_boot: SecureBoot) -> Prediction {
    let file = image.build();
    let uki = Uki::parse(&file).unwrap();
    let mut prediction = Prediction::new(&BANKS);
    UkiBoot {
        loaders: &[],
        uki: &uki,
        secure_boot,
    }
    .predict(&mut prediction)
    .unwrap();
    prediction
}

/// Returns the events of a PCR, in words.
fn event_descriptions(prediction: &Prediction, pcr: u8) -> Vec<String> {
    let of_pcr = prediction.events().iter().filter(|event| event.pcr == pcr);
    of_pcr.map(|event| event.what.to_string()).collect()
}

fn measured(version: &str) -> String {
    let file = whole(version).build();
    let uki = Uki::parse(&file).unwrap();
    let names: Vec<String> = uki.measured().map(|section| section.name.to_string()).collect();
    names.join(" ")
}

#[test]
fn measures_sections_in_the_order_of_the_stub() {
    let of_252 = ".linux .osrel .cmdline .initrd .splash .pcrpkey";
    let of_254 = ".linux .osrel .cmdline .initrd .splash .uname .sbat .pcrpkey";
    let of_256 = ".linux .osrel .cmdline .initrd .ucode .splash .uname .sbat .pcrpkey";
    assert_eq!(measured("252.39-1~deb12u2"), of_252);
    assert_eq!(measured("253"), of_252);
    assert_eq!(measured("254.5"), of_254);
    assert_eq!(measured("255"), of_254);
    assert_eq!(measured("256"), of_256);
    assert_eq!(measured("257.13-1~deb13u1"), of_256);
}

#[test]
fn measures_section_name_and_content() {
    let prediction = predict(&whole("252"), SecureBoot::On);
    let hash = |bytes: &[u8]| HashAlg::Sha384.digest(&[bytes]).as_ref().to_vec();
    let of_pcr: Vec<Vec<u8>> = prediction
        .events()
        .iter()
        .filter(|event| event.pcr == 11)
        .map(|event| event.digests.get(HashAlg::Sha384).unwrap().as_bytes().to_vec())
        .collect();
    assert_eq!(of_pcr[2], hash(b".osrel\0"));
    assert_eq!(of_pcr[3], hash(b"ID=test\n"));
    assert_eq!(of_pcr[12], hash(b"enter-initrd"));

    // The value is what these lead to.
    let mut value = vec![0; 48];
    for digest in &of_pcr[..12] {
        value = HashAlg::Sha384.digest(&[&value, digest]).as_ref().to_vec();
    }
    let predicted = prediction.pcrs().iter().find(|value| value.pcr == 11).unwrap();
    assert_eq!(predicted.values.get(HashAlg::Sha384).unwrap().as_bytes(), value);
    let after: Vec<String> = prediction
        .pcrs()
        .iter()
        .filter(|value| value.pcr == 11)
        .map(|value| value.when.to_string())
        .collect();
    assert_eq!(
        after,
        [
            "at the kernel's start",
            "after enter-initrd",
            "after leave-initrd",
            "after sysinit",
            "after ready"
        ]
    );
}

#[test]
fn embedded_kernel_is_measured_only_without_secure_boot() {
    let image = whole("252");
    let on = ["a boot option is tried", "separator", "image unified kernel image"];
    assert_eq!(event_descriptions(&predict(&image, SecureBoot::On), 4), on);
    let off = [on.as_slice(), &["image kernel in the unified kernel image"]].concat();
    assert_eq!(event_descriptions(&predict(&image, SecureBoot::Off), 4), off);
    // Its digest is that of the kernel by itself.
    let kernel = kernel("6.1.0-56-cloud-amd64 (x)").build();
    let alone = PeImage::parse(&kernel).unwrap().authenticode(&BANKS).unwrap();
    let prediction = predict(&image, SecureBoot::Off);
    assert!(prediction.events().iter().any(|event| event.digests == alone && event.pcr == 4));
}

/// A boot by a loader that says this of itself.
fn predict_behind(magic: &str, line: &[u8], secure_boot: SecureBoot) -> Prediction {
    let kernel = kernel("6.1").build();
    let file = uki("252", &[(".linux", &kernel), (".cmdline", line), (".initrd", b"abc")]).build();
    let loader = Image::new().section(".text", b"code").section(".sdmagic", magic.as_bytes()).build();
    let loaders = [("systemd-bootx64.efi".to_owned(), PeImage::parse(&loader).unwrap())];
    let mut prediction = Prediction::new(&BANKS);
    UkiBoot {
        loaders: &loaders,
        uki: &Uki::parse(&file).unwrap(),
        secure_boot,
    }
    .predict(&mut prediction)
    .unwrap();
    prediction
}

#[test]
fn boot_loader_is_measured_before_the_uki() {
    let prediction = predict_behind("#### LoaderInfo: systemd-boot 257 ####", b"a b", SecureBoot::On);
    let expected = [
        "a boot option is tried",
        "separator",
        "image systemd-bootx64.efi",
        "image unified kernel image",
    ];
    assert_eq!(event_descriptions(&prediction, 4), expected);
}

#[test]
fn systemd_boot_until_254_measures_its_command_line() {
    use SecureBoot::{Off, On};
    let magic = |release: &str| format!("#### LoaderInfo: systemd-boot {release} ####");
    let check = |magic: &str, line: &[u8], secure_boot, expected: &[&str], known: &[u8]| {
        let prediction = predict_behind(magic, line, secure_boot);
        assert_eq!(event_descriptions(&prediction, 12), expected, "{magic}");
        let pcrs = prediction.pcrs().iter().map(|value| value.pcr);
        assert_eq!(pcrs.filter(|pcr| [9, 12, 13].contains(pcr)).collect::<Vec<_>>(), known, "{magic}");
    };
    let given = ["command line \"a b\""];
    for release in ["252.39-1~deb12u1", "253", "254.1"] {
        check(&magic(release), b"a b", On, &given, &[13, 9, 12]);
        check(&magic(release), b"a b\n", On, &given, &[13, 9, 12]);
        for other in [&b"a b \n"[..], b"a b\n\n", b"a b\n\0"] {
            check(&magic(release), other, On, &[], &[13, 9]);
        }
        // The stub takes it then, and measures it once more.
        check(&magic(release), b"a b", Off, &[], &[13]);
    }
    for release in ["255", "256.7", "257.13-1~deb13u1"] {
        check(&magic(release), b"a b", On, &[], &[13, 9, 12]);
        check(&magic(release), b"a b", Off, &[], &[13, 9, 12]);
    }
    for other in ["251", "258", "4294967296", ""] {
        check(&magic(other), b"a b", On, &[], &[13, 9]);
        check(&magic(other), b"a b", Off, &[], &[13]);
    }
    for other in ["#### LoaderInfo: systemd-stub 257 ####", "#### LoaderInfo: refind 257 ####", ""] {
        check(other, b"a b", On, &[], &[13, 9]);
    }
}

#[test]
fn kernel_measures_its_command_line_and_initrd() {
    let digest = |image: &Image| {
        let prediction = predict(image, SecureBoot::On);
        let initrd = prediction
            .events()
            .iter()
            .find(|event| event.what == DigestSubject::Initrd)
            .unwrap();
        initrd.digests.get(HashAlg::Sha256).unwrap().as_bytes().to_vec()
    };
    let hash = |bytes: &[u8]| HashAlg::Sha256.digest(&[bytes]).as_ref().to_vec();
    let kernel = kernel("6.1").build();
    let plain = |version: &str, more: &[(&str, &[u8])]| {
        let sections: Vec<(&str, &[u8])> = [(".linux", kernel.as_slice()), (".cmdline", b"a b"), (".initrd", b"abc")]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        uki(version, &sections)
    };
    // One alone is handed on as it is.
    assert_eq!(digest(&plain("252", &[])), hash(b"abc"));
    // 252 tells the system nothing of .osrel, 257 does.
    assert_eq!(digest(&plain("252", &[(".osrel", b"x")])), hash(b"abc"));
    let archive = |name: &str, content: &str| {
        let entry = |inode: u8, mode: &str, name: &str, size: usize| {
            let length = name.len() + 1;
            let zeros = "00000000";
            format!(
                "0707010000000{inode}{mode}{zeros}{zeros}00000001{zeros}{size:08x}{zeros}{zeros}{zeros}{zeros}{length:08x}{zeros}{name}\0"
            )
        };
        let pad = |text: String| {
            let length = text.len().next_multiple_of(4);
            format!("{text:\0<length$}")
        };
        let folder = pad(entry(1, "0000416d", ".extra", 0));
        let file = pad(entry(2, "00008124", &format!(".extra/{name}"), content.len()));
        let trailer = pad(
            "07070100000000000000000000000000000000000000010000000000000000000000000000000000000000000000000000000B00000000TRAILER!!!\0"
                .to_owned(),
        );
        format!("{folder}{file}{}{trailer}", pad(content.to_owned()))
    };
    let with_release = format!("abc\0{}", archive("os-release", "x"));
    assert_eq!(digest(&plain("257", &[(".osrel", b"x")])), hash(with_release.as_bytes()));
    let signed = format!(
        "abc\0{}{}",
        archive("tpm2-pcr-signature.json", "{}"),
        archive("tpm2-pcr-public-key.pem", "key")
    );
    let more: [(&str, &[u8]); 2] = [(".pcrpkey", b"key"), (".pcrsig", b"{}")];
    assert_eq!(digest(&plain("252", &more)), hash(signed.as_bytes()));

    let prediction = predict(&plain("252", &[]), SecureBoot::On);
    assert_eq!(event_descriptions(&prediction, 9), ["command line \"a b\"", "initrd"]);
    assert_eq!(
        prediction
            .events()
            .iter()
            .find(|event| event.pcr == 9)
            .unwrap()
            .digests
            .get(HashAlg::Sha256)
            .unwrap()
            .as_bytes(),
        hash(b"a\0 \0b\0\0\0")
    );
}

#[track_caller]
fn refused(image: &Image, expected: &str) {
    let error = Uki::parse(&image.build()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn rejects_a_uki_with_an_unsupported_stub() {
    refused(&Image::new().section(".linux", b"x"), "section .sdmagic is missing");
    refused(&uki("252", &[]), "section .linux is missing");
    refused(&uki("251.4", &[(".linux", b"x")]), "its systemd-stub is 251.4");
    refused(&uki("258", &[(".linux", b"x")]), "its systemd-stub is 258");
    refused(&uki("", &[(".linux", b"x")]), "does not name its version of systemd-stub");
    refused(&uki("v252", &[(".linux", b"x")]), "does not name its version of systemd-stub");
    refused(
        &uki("99999999999", &[(".linux", b"x")]),
        "does not name its version of systemd-stub",
    );
    let boot = Image::new()
        .section(".linux", b"x")
        .section(".sdmagic", b"#### LoaderInfo: systemd-boot 252 ####");
    refused(&boot, "does not name its version of systemd-stub");
    for section in [".profile", ".dtbauto", ".hwids", ".efifw"] {
        refused(
            &uki("257", &[(".linux", b"x"), (section, b"x")]),
            &format!("it has the section {section}"),
        );
    }
    refused(&uki("257", &[(".linux", b"x"), (".linux", b"y")]), "may take for .linux");
    refused(
        &uki("252", &[(".linux", b"x"), (".cmdline", b"a"), (".cmdline", b"b")]),
        "may take for .cmdline",
    );
    refused(
        &uki("257", &[(".linux", b"x"), (".pcrsig", b"a"), (".pcrsig", b"b")]),
        "may take for .pcrsig",
    );
    // Until 255 any section whose name begins so is taken.
    refused(
        &uki("255", &[(".linux", b"x"), (".initrd", b"y"), (".initrd2", b"z")]),
        "may take for .initrd",
    );
    assert_eq!(
        Uki::parse(&uki("257", &[(".linux", b"x"), (".initrd", b"y"), (".initrd2", b"z")]).build())
            .unwrap()
            .measured()
            .count(),
        2
    );
}

/// Checks that these PCRs are not predicted, for this reason.
#[track_caller]
fn left_out(sections: &[(&str, &[u8])], version: &str, pcrs: &[u8], expected: &str) {
    let prediction = predict(&uki(version, sections), SecureBoot::Off);
    let left_out = prediction.not_predicted();
    assert!(
        left_out
            .iter()
            .any(|left_out| left_out.pcrs == pcrs && left_out.why.contains(expected)),
        "{left_out:?}"
    );
    assert!(pcrs.iter().all(|pcr| prediction.pcrs().iter().all(|value| value.pcr != *pcr)));
}

#[test]
fn omits_unpredictable_pcrs_with_a_reason() {
    let linux = kernel("6.1").build();
    let older = kernel("5.19").build();
    let silent = kernel("unknown").build();
    let mut handover = kernel("5.4");
    handover.image_version = 0;
    let handover = handover.build();
    left_out(
        &[(".linux", b"no image"), (".cmdline", b"a")],
        "252",
        &[4],
        "the kernel in the image: not a 64-bit PE image",
    );
    left_out(&[(".linux", &handover), (".cmdline", b"a")], "252", &[4], "older than 5.8");
    left_out(&[(".linux", &older), (".cmdline", b"a")], "252", &[9], "measurements of Linux 5.19");
    left_out(
        &[(".linux", &silent), (".cmdline", b"a")],
        "252",
        &[9],
        "version cannot be read from its header",
    );
    left_out(&[(".linux", &linux)], "252", &[9], "no command line");
    left_out(&[(".linux", &linux), (".cmdline", b" a")], "252", &[9], "begins with a space");
    left_out(&[(".linux", &linux), (".cmdline", b"a\tb")], "252", &[9], "the byte 0x09 at 1");
    left_out(
        &[(".linux", &linux), (".cmdline", "ä".as_bytes())],
        "252",
        &[9],
        "the byte 0xc3 at 0",
    );
    left_out(&[(".linux", &linux), (".cmdline", b" \n\0")], "252", &[9], "it is empty");
    left_out(&[(".linux", &linux), (".cmdline", &[b'a'; 2048])], "252", &[9], "more than 2048");
    left_out(&[(".linux", &linux), (".cmdline", b"a")], "256", &[9], "concatenates initrds");
}

#[test]
fn a_kernel_for_arm64_is_predicted_like_any_image() {
    let linux = arm64_kernel().build();
    let sections: [(&str, &[u8]); 3] = [(".linux", &linux), (".cmdline", b"a"), (".dtb", b"a device tree")];
    let prediction = predict(&for_arm64(uki("252", &sections)), SecureBoot::Off);
    let images = event_descriptions(&prediction, 4);
    assert_eq!(
        images[2..],
        ["image unified kernel image", "image kernel in the unified kernel image"]
    );
    assert!(event_descriptions(&prediction, 11).contains(&"section .dtb".to_owned()));
    let known: Vec<u8> = prediction.pcrs().iter().map(|value| value.pcr).collect();
    assert!(known.contains(&4) && known.contains(&11) && !known.contains(&9), "{known:?}");
    left_out(&sections, "252", &[9], "the kernel is for ARM64");
}

#[test]
fn a_compressed_kernel_has_no_value_of_pcr_4() {
    let linux = zboot_kernel().build();
    let sections: [(&str, &[u8]); 2] = [(".linux", &linux), (".cmdline", b"a")];
    left_out(&sections, "252", &[9], "the kernel is compressed");
    for secure_boot in [SecureBoot::Off, SecureBoot::On] {
        let prediction = predict(&for_arm64(uki("252", &sections)), secure_boot);
        let is_said = |why: &str| why.contains("may have the firmware load the kernel in it");
        assert!(
            prediction.not_predicted().iter().any(|one| one.pcrs == [4] && is_said(&one.why)),
            "{:?}",
            prediction.not_predicted()
        );
        assert!(prediction.pcrs().iter().all(|value| value.pcr != 4));
    }
}
