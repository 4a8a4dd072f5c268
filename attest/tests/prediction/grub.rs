//! GRUB.

use attest::HashAlg;
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::SecureBoot;
use attest::tpm::prediction::grub::{CONFIG_LIMIT_BYTES, GrubBoot, GrubConfig};
use attest::tpm::prediction::linux::Kernel;
use attest::tpm::prediction::pe::PeImage;

use super::image::{Image, kernel};

const CONFIG: &str = "set timeout=0\n\n  # a comment\nlinux  /vmlinuz root=LABEL=root ro\ninitrd /initrd.img\nboot\n";

const DEBIAN_12: &str = "sbat,1,x\ngrub,5,FSF,grub,2.06,x\ngrub.debian,5,Debian,grub2,2.06-13,x\n";
const DEBIAN_13: &str = "sbat,1,x\ngrub,5,FSF,grub,2.12,x\ngrub.debian,5,Debian,grub2,2.12-9,x\n";

/// What is extended, as `PCR what`.
fn predict(sbat: &str, shim: bool, secure_boot: SecureBoot, config: &str, initrds: &[&[u8]]) -> Prediction {
    let grub = Image::new().section("mods", b"modules").section(".sbat", sbat.as_bytes()).build();
    let shim_image = Image::new().section(".text", b"shim").build();
    let shim_image = PeImage::parse(&shim_image).unwrap();
    let kernel = kernel("6.1.0-1").build();
    let mut prediction = Prediction::new(&[HashAlg::Sha256]);
    GrubBoot {
        shim: shim.then_some(&shim_image),
        grub: &PeImage::parse(&grub).unwrap(),
        config: (config.as_bytes(), &GrubConfig::parse(config.as_bytes()).unwrap()),
        kernel: (&kernel, &Kernel::parse(&kernel).unwrap()),
        initrds,
        secure_boot,
    }
    .predict(&mut prediction);
    prediction
}

fn words(prediction: &Prediction, pcr: u8) -> Vec<String> {
    let of_pcr = prediction.events().iter().filter(|event| event.pcr == pcr);
    of_pcr.map(|event| event.what.to_string()).collect()
}

#[test]
fn each_release_has_its_way() {
    let check = |sbat, shim, secure_boot, images: &[&str], files: &[&str]| {
        let prediction = predict(sbat, shim, secure_boot, CONFIG, &[b"initrd!!"]);
        let images: Vec<String> = images.iter().map(|name| format!("image {name}")).collect();
        assert_eq!(words(&prediction, 4)[2..], images);
        assert_eq!(words(&prediction, 9), files);
        let commands = [
            "command \"set timeout=0\"",
            "command \"linux /vmlinuz root=LABEL=root ro\"",
            "command line \"/vmlinuz root=LABEL=root ro\"",
            "command \"initrd /initrd.img\"",
            "command \"boot\"",
        ];
        assert_eq!(words(&prediction, 8), commands);
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
fn what_was_not_looked_at_is_left_out() {
    let of = |sbat: &str, shim, secure_boot| predict(sbat, shim, secure_boot, CONFIG, &[b"initrd!!"]);
    left_out(&of(DEBIAN_12, false, SecureBoot::On), "without shim");
    left_out(&of(DEBIAN_12, true, SecureBoot::Off), "behind shim without Secure Boot");
    left_out(&of(DEBIAN_13, true, SecureBoot::On), "2.12 measures behind shim");
    let upstream = "sbat,1,x\ngrub,5,FSF,grub,2.06,x\n";
    left_out(&of(upstream, false, SecureBoot::Off), "\"2.06\", and not Debian's");
    left_out(
        &of(&DEBIAN_12.replace("grub,2.06", "grub,2.04"), false, SecureBoot::Off),
        "this one is \"2.04\"",
    );
    left_out(&of("", false, SecureBoot::Off), "this one is \"\"");
    left_out(&predict(DEBIAN_12, false, SecureBoot::Off, CONFIG, &[]), "1 initrds, 0 are given");
    left_out(
        &predict(DEBIAN_13, false, SecureBoot::Off, CONFIG, &[b"odd"]),
        "puts initrds together",
    );
    let two = CONFIG.replace("/initrd.img", "/ucode.img /initrd.img");
    left_out(
        &predict(DEBIAN_13, false, SecureBoot::Off, &two, &[b"four", b"four"]),
        "puts initrds together",
    );
}

#[track_caller]
fn refused(config: &str, expected: &str) {
    let error = GrubConfig::parse(config.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_config_whose_commands_do_not_follow_from_it_is_refused() {
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
    refused("set timeout=0\n", "the last command is boot");
    refused("", "the last command is boot");
    refused("boot\n", "boot comes behind the kernel");
    refused(
        "initrd /initrd.img\nlinux /vmlinuz\nboot\n",
        "line 1: an initrd comes behind the kernel",
    );
    refused("linux /vmlinuz\nlinux /vmlinuz\nboot\n", "line 2: a second kernel");
    refused("linux /vmlinuz\ninitrd /a\ninitrd /b\nboot\n", "line 3: an initrd");
    refused("linux\nboot\n", "a kernel is a file");
    refused("linux /vmlinuz\ninitrd\nboot\n", "an initrd is a file");
    refused(&format!("{CONFIG}boot\n"), "nothing comes behind boot");
    refused(&"echo a\n".repeat(1001), "more than 1000 commands");
    refused(&" ".repeat(CONFIG_LIMIT_BYTES + 1), "more than 262144");
}
