//! Predictions for boots by GRUB.

use attest::HashAlg;
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::SecureBoot;
use attest::tpm::prediction::bytes::Bytes;
use attest::tpm::prediction::grub::image::GrubImage;
use attest::tpm::prediction::grub::{CONFIG_LIMIT_BYTES, GrubBoot, GrubConfig};
use attest::tpm::prediction::linux::Kernel;
use attest::tpm::prediction::pe::PeImage;

use super::image::{GRUB_CONFIG, GRUB_MEMORY_DISK, GRUB_MODULES, GRUB_PREFIX, Image, grub, kernel};

const CONFIG: &str = "set timeout=0\n\n  # a comment\nlinux  /vmlinuz root=LABEL=root ro\ninitrd /initrd.img\nboot\n";

const DEBIAN_12: &str = "sbat,1,x\ngrub,5,FSF,grub,2.06,x\ngrub.debian,5,Debian,grub2,2.06-13,x\n";
const DEBIAN_13: &str = "sbat,1,x\ngrub,5,FSF,grub,2.12,x\ngrub.debian,5,Debian,grub2,2.12-9,x\n";

/// The image of a release as the VMs have it.
fn known_image(sbat: &str) -> Image {
    let more = if sbat.contains("2.06") { " linuxefi" } else { "" };
    grub(sbat, &format!("{GRUB_MODULES}{more}"), &[(GRUB_PREFIX, b"/grub")])
}

/// Predicts the PCRs of a boot by GRUB with this SBAT.
fn predict(sbat: &str, shim: bool, secure_boot: SecureBoot, config: &str, initrds: &[&[u8]]) -> Prediction {
    predict_by(&known_image(sbat), shim, secure_boot, config, initrds)
}

fn predict_by(grub: &Image, shim: bool, secure_boot: SecureBoot, config: &str, initrds: &[&[u8]]) -> Prediction {
    let grub = grub.build();
    let shim_image = Image::new().section(".text", b"shim").build();
    let shim_image = PeImage::parse(&shim_image).unwrap();
    let kernel = kernel("6.1.0-1").build();
    let initrds: Vec<Bytes<'_>> = initrds.iter().copied().map(Bytes::from).collect();
    let mut prediction = Prediction::new(&[HashAlg::Sha256]);
    GrubBoot {
        shim: shim.then_some(&shim_image),
        grub: &PeImage::parse(&grub).unwrap(),
        config: config.as_bytes(),
        kernel: (Bytes::from(&kernel), &Kernel::parse(&kernel).unwrap()),
        initrds: &initrds,
        secure_boot,
    }
    .predict(&mut prediction)
    .unwrap();
    prediction
}

fn event_descriptions(prediction: &Prediction, pcr: u8) -> Vec<String> {
    let of_pcr = prediction.events().iter().filter(|event| event.pcr == pcr);
    of_pcr.map(|event| event.what.to_string()).collect()
}

#[test]
fn predicts_each_grub_release_with_its_events() {
    let check = |sbat, shim, secure_boot, images: &[&str], files: &[&str]| {
        let prediction = predict(sbat, shim, secure_boot, CONFIG, &[b"initrd!!"]);
        let images: Vec<String> = images.iter().map(|name| format!("image {name}")).collect();
        assert_eq!(event_descriptions(&prediction, 4)[2..], images);
        assert_eq!(event_descriptions(&prediction, 9), files);
        let commands = [
            "command \"set timeout=0\"",
            "command \"linux /vmlinuz root=LABEL=root ro\"",
            "command line \"/vmlinuz root=LABEL=root ro\"",
            "command \"initrd /initrd.img\"",
            "command \"boot\"",
        ];
        assert_eq!(event_descriptions(&prediction, 8), commands);
        let hash = HashAlg::Sha256.digest(&[b"/vmlinuz root=LABEL=root ro"]);
        let event = prediction
            .events()
            .iter()
            .find(|event| event.what.to_string() == commands[2])
            .unwrap();
        assert_eq!(event.digests.get(HashAlg::Sha256).unwrap().as_bytes(), hash.as_ref());
        let pcrs: Vec<u8> = prediction.pcrs().iter().map(|value| value.pcr).collect();
        assert_eq!(pcrs, [4, 8, 9]);
    };
    let files = ["file grub.cfg", "file kernel", "file initrd"];
    check(DEBIAN_12, false, SecureBoot::Off, &["GRUB"], &files);
    check(DEBIAN_12, true, SecureBoot::On, &["shim", "GRUB", "kernel", "kernel"], &files);
    let by_firmware = [
        "file grub.cfg",
        "file grub.cfg",
        "file kernel",
        "file initrd",
        "command line \"BOOT_IMAGE=/vmlinuz root=LABEL=root ro\"",
        "initrd",
    ];
    check(DEBIAN_13, false, SecureBoot::Off, &["GRUB", "kernel"], &by_firmware);
}

#[track_caller]
fn left_out(prediction: &Prediction, expected: &str) {
    assert!(prediction.pcrs().iter().all(|value| value.pcr != 9));
    let why = &prediction.not_predicted()[0];
    assert!(why.why.contains(expected), "{why:?}");
}

#[test]
fn omits_pcrs_of_untested_grub_combinations() {
    let of = |sbat: &str, shim, secure_boot| predict(sbat, shim, secure_boot, CONFIG, &[b"initrd!!"]);
    left_out(&of(DEBIAN_12, false, SecureBoot::On), "without shim");
    left_out(&of(DEBIAN_12, true, SecureBoot::Off), "after shim without Secure Boot");
    left_out(&of(DEBIAN_13, true, SecureBoot::On), "GRUB 2.12 after shim");
    let upstream = "sbat,1,x\ngrub,5,FSF,grub,2.06,x\n";
    left_out(&of(upstream, false, SecureBoot::Off), "\"2.06\", and not Debian's");
    left_out(
        &of(&DEBIAN_12.replace("grub,2.06", "grub,2.04"), false, SecureBoot::Off),
        "this image is \"2.04\"",
    );
    for (sbat, other) in [
        (DEBIAN_12, DEBIAN_12.replace("2.06-13", "2.06-3~deb11u6")),
        (DEBIAN_13, DEBIAN_13.replace("2.12-9", "2.12-90")),
        (DEBIAN_13, DEBIAN_12.replace("2.06-13", "2.12-9")),
    ] {
        assert!(GrubImage::recognise(&PeImage::parse(&known_image(sbat).build()).unwrap()).is_ok());
        left_out(&of(&other, false, SecureBoot::Off), "only GRUB 2.06-13 and 2.12-9 of Debian");
    }
    left_out(&of("", false, SecureBoot::Off), "this image is \"\"");
    left_out(&predict(DEBIAN_12, false, SecureBoot::Off, CONFIG, &[]), "1 initrds, 0 are given");
    left_out(&predict(DEBIAN_13, false, SecureBoot::Off, CONFIG, &[b"odd"]), "pads initrds");
    // What GRUB and the firmware measure is known all the same.
    let pcrs = predict(DEBIAN_13, false, SecureBoot::Off, CONFIG, &[b"odd"]);
    let pcrs: Vec<u8> = pcrs.pcrs().iter().map(|value| value.pcr).collect();
    assert_eq!(pcrs, [4, 8]);
    let two = CONFIG.replace("/initrd.img", "/ucode.img /initrd.img");
    left_out(
        &predict(DEBIAN_13, false, SecureBoot::Off, &two, &[b"four", b"odd"]),
        "pads initrds",
    );
    let joined = predict(DEBIAN_13, false, SecureBoot::Off, &two, &[b"four", b"more"]);
    assert!(joined.pcrs().iter().any(|value| value.pcr == 9));
}

#[track_caller]
fn refused(config: &str, expected: &str) {
    let error = GrubConfig::parse(config.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn rejects_a_grub_config_with_unpredictable_commands() {
    for character in [
        "'a'", "\"a\"", "$a", "a\\b", "{", "a;b", "a|b", "a&b", "a<b", "a>b", "a*", "a?", "[", "!", "`", "a#b", "\u{e4}", "\r",
    ] {
        refused(&format!("set timeout=0\necho {character}\n{CONFIG}"), "line 2 has ");
    }
    for command in [
        "if true",
        "search",
        "menuentry",
        "source /x",
        "configfile /x",
        "insmod a",
        "load_env",
        "normal",
        "chainloader",
        "function",
        "set",
        "set prefix=/x",
        "set a=b",
        "set timeout=0 root=x",
        "timeout=0",
        "boot now",
        "linux16 /vmlinuz",
        "module",
        "set timeout",
    ] {
        refused(&format!("{command}\n{CONFIG}"), "line 1: ");
    }
    refused("set timeout=0\n", "the last command must be boot");
    refused("", "the last command must be boot");
    refused("boot\n", "boot must follow the kernel");
    refused(
        "initrd /initrd.img\nlinux /vmlinuz\nboot\n",
        "line 1: one initrd command may follow the kernel",
    );
    refused("linux /vmlinuz\nlinux /vmlinuz\nboot\n", "line 2: a second kernel");
    refused(
        "linux /vmlinuz\ninitrd /a\ninitrd /b\nboot\n",
        "line 3: one initrd command may follow the kernel",
    );
    refused("linux\nboot\n", "the kernel command needs a file");
    refused("linux /vmlinuz\ninitrd\nboot\n", "the initrd command needs a file");
    refused(&format!("{CONFIG}boot\n"), "no command may follow boot");
    refused(&"echo a\n".repeat(1001), "more than 1000 commands");
    refused(&" ".repeat(CONFIG_LIMIT_BYTES + 1), "more than 262144");
}

/// Asserts that no value is predicted, for the expected reason, and that each digest that may be measured is listed.
#[track_caller]
fn digests_only(prediction: &Prediction, expected: &str) {
    assert!(prediction.pcrs().is_empty(), "{:?}", prediction.pcrs());
    let why = &prediction.not_predicted()[0];
    assert!(why.pcrs == [4, 8, 9] && why.why.contains(expected), "{why:?}");
    assert_eq!(event_descriptions(prediction, 4), ["image GRUB", "image kernel"]);
    let files = ["file grub.cfg", "file kernel", "file initrd"];
    let stub = ["command line \"BOOT_IMAGE=/vmlinuz root=LABEL=root ro\"", "initrd"];
    assert_eq!(event_descriptions(prediction, 9), [&files[..], &stub].concat());
    assert_eq!(event_descriptions(prediction, 8).len(), 5);
}

/// Debian's signed images among them: 12's has the memory disk and runs the config, 13's has `peimage`.
#[test]
fn grub_image_with_unknown_objects_yields_only_digests() {
    let check = |sbat: &str, modules: &str, objects: &[(u32, &[u8])], expected: &str| {
        let prediction = predict_by(&grub(sbat, modules, objects), false, SecureBoot::Off, CONFIG, &[b"initrd!!"]);
        digests_only(&prediction, expected);
    };
    let prefix: (u32, &[u8]) = (GRUB_PREFIX, b"/EFI/debian");
    let modules = format!("{GRUB_MODULES} linuxefi");
    let with_config = |config: &[u8], expected: &str| check(DEBIAN_12, &modules, &[prefix, (GRUB_CONFIG, config)], expected);
    check(
        DEBIAN_12,
        &modules,
        &[(GRUB_MEMORY_DISK, b"files"), prefix],
        "a memory disk, of 8 bytes",
    );
    with_config(
        b"normal (memdisk)/grub.cfg\n",
        "a config of its own, which runs first: \"normal (memdisk)/grub.cfg\"",
    );
    with_config(b"set root=hd0,gpt1\nset timeout=1\n", "a config of its own");
    with_config(b"set prefix=$cmdpath\n", "a config of its own");
    with_config(b"set prefix=/a root=b\n", "a config of its own");
    check(
        DEBIAN_13,
        &format!("{GRUB_MODULES} peimage"),
        &[prefix],
        "start kernels in another way: peimage",
    );
    check(DEBIAN_13, &modules, &[prefix], "start kernels in another way: linuxefi");
    check(DEBIAN_12, GRUB_MODULES, &[prefix], "would read from the disk: linuxefi");
    check(
        DEBIAN_13,
        &GRUB_MODULES.replace(" tpm ", " "),
        &[prefix],
        "would read from the disk: tpm",
    );
    check(DEBIAN_13, &format!("{GRUB_MODULES} tpm"), &[prefix], "two modules tpm");
    check(DEBIAN_13, GRUB_MODULES, &[prefix, (4, b"a key")], "an object of type 4");
    check(DEBIAN_13, GRUB_MODULES, &[prefix, prefix], "two configs, or two folders");
    // What the config is, is not asked of an image that is not known.
    let asks = predict_by(&grub(DEBIAN_13, "", &[]), true, SecureBoot::On, "if true\n", &[b"initrd!!"]);
    assert!(asks.pcrs().is_empty() && event_descriptions(&asks, 8).is_empty());
    assert_eq!(event_descriptions(&asks, 4), ["image shim", "image GRUB", "image kernel"]);
    assert_eq!(event_descriptions(&asks, 9), ["file grub.cfg", "file kernel", "file initrd"]);
}

#[test]
fn reports_unreadable_grub_objects() {
    let of = |section: &[u8]| {
        let image = Image::new().section("mods", section).section(".sbat", DEBIAN_13.as_bytes());
        digests_only(
            &predict_by(&image, false, SecureBoot::Off, CONFIG, &[b"initrd!!"]),
            "no section mods that can be read",
        );
    };
    let whole = known_image(DEBIAN_13).sections[0].content.clone();
    of(b"");
    of(&[0; 64]);
    of(&whole[..whole.len() - 8]);
    for (place, value) in [(8, 25_u64), (8, u64::MAX), (16, 20), (16, 30), (28, 7), (28, u64::MAX)] {
        let mut damaged = whole.clone();
        let bytes = if place == 28 { 4 } else { 8 };
        damaged[place..place + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        of(&damaged);
    }
    let unnamed = grub(DEBIAN_13, GRUB_MODULES, &[(0, b"no module")]);
    digests_only(
        &predict_by(&unnamed, false, SecureBoot::Off, CONFIG, &[b"initrd!!"]),
        "a module that has no name",
    );
}

#[test]
fn finds_the_config_path_in_a_grub_image() {
    let check = |objects: &[(u32, &[u8])], folder: &str, roots: &[&str]| {
        let image = grub(DEBIAN_13, GRUB_MODULES, objects).build();
        let known = GrubImage::recognise(&PeImage::parse(&image).unwrap()).unwrap();
        assert_eq!((known.folder(), known.roots().collect::<Vec<_>>()), (folder, roots.to_vec()));
    };
    check(&[(GRUB_PREFIX, b"/EFI/debian")], "/EFI/debian", &[]);
    check(&[(GRUB_PREFIX, b"(hd1,gpt2)/grub")], "/grub", &["hd1,gpt2"]);
    let config = b"# where\nset root=hd0,gpt3\nset prefix=(hd0,gpt1)/boot\n";
    check(
        &[(GRUB_PREFIX, b"/grub"), (GRUB_CONFIG, config)],
        "/boot",
        &["hd0,gpt3", "hd0,gpt1"],
    );
}

/// Shim's part is not asked: with Secure Boot that was not looked at.
#[test]
fn grub_without_shim_lock_needs_secure_boot_off() {
    let modules = format!("{GRUB_MODULES} linuxefi");
    let image = grub(DEBIAN_12, &modules, &[(6, b""), (GRUB_PREFIX, b"/grub")]);
    let of = |shim, secure_boot| predict_by(&image, shim, secure_boot, CONFIG, &[b"initrd!!"]);
    assert!(of(true, SecureBoot::On).pcrs().is_empty());
    assert_eq!(of(false, SecureBoot::Off).pcrs().len(), 3);
}
