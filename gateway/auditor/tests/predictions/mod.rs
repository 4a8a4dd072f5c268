//! `reference-values predict`: what it reads, prints, and refuses.

mod altered_disks;
mod disks;

use std::fs;
use std::path::{Path, PathBuf};

use attest::reference_sets::ReferenceSet;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::image::{
    GRUB_CONFIG, GRUB_MEMORY_DISK, GRUB_MODULES, GRUB_PREFIX, Image, arm64_kernel, for_arm64, grub, kernel, uki, zboot_kernel,
};
use crate::program;

/// Files to predict from.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let linux = kernel("6.1.0-1-amd64").build();
        let image = uki(
            "252.39-1",
            &[(".linux", &linux), (".cmdline", b"root=LABEL=root ro"), (".initrd", b"initrd")],
        );
        files.put("linux.efi", &image.build());
        files.put("vmlinuz", &linux);
        files.put("initrd.img", b"initrd");
        files.put("systemd-bootx64.efi", &systemd_boot("257.13-1"));
        files.put("grubx64.efi", &grub_of_12(&[(GRUB_PREFIX, b"/grub")]));
        files.put("shimx64.efi", &Image::new().section(".text", b"shim").build());
        files.put("grub.cfg", b"linux /vmlinuz root=LABEL=root ro\ninitrd /initrd.img\nboot\n");
        files
    }

    fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &str) -> (Option<i32>, String) {
        let mut command = program();
        command.args(["reference-values", "predict"]).args(arguments.split_whitespace());
        let output = command.current_dir(self.0.path()).output().unwrap();
        (
            output.status.code(),
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
        )
    }

    #[track_caller]
    fn predicts(&self, arguments: &str) -> Value {
        let (code, said) = self.run(arguments);
        assert_eq!(code, Some(0), "{said}");
        serde_json::from_str(&said).unwrap()
    }

    #[track_caller]
    fn refuses(&self, arguments: &str, expected: &str) {
        let (code, said) = self.run(arguments);
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

/// An image of Debian 12's GRUB, whose modules are known.
fn grub_of_12(objects: &[(u32, &[u8])]) -> Vec<u8> {
    let sbat = "sbat,1,x\ngrub,5,FSF,grub,2.06,x\ngrub.debian,5,Debian,grub2,2.06-13+deb12u2,x\n";
    grub(sbat, &format!("{GRUB_MODULES} linuxefi"), objects).build()
}

/// The same with what Debian's signed one has besides.
fn signed_grub_of_12() -> Vec<u8> {
    grub_of_12(&[
        (GRUB_CONFIG, b"normal (memdisk)/grub.cfg\n"),
        (GRUB_MEMORY_DISK, b"grub.cfg"),
        (GRUB_PREFIX, b"/EFI/debian"),
    ])
}

/// systemd-boot of a release; what it says in `.sbat` is what Debian 12's does.
fn systemd_boot(release: &str) -> Vec<u8> {
    let magic = format!("#### LoaderInfo: systemd-boot {release} ####");
    let image = Image::new().section(".text", b"loader").section(".sdmagic", magic.as_bytes());
    image.section(".sbat", b"sbat,1,x\nsystemd,1,x\n").build()
}

/// The PCRs that a prediction has values of, each once; and those of which it says that it has none.
fn pcrs(prediction: &Value) -> (Vec<u64>, Vec<u64>) {
    let mut known: Vec<u64> = prediction["pcrs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value["pcr"].as_u64().unwrap())
        .collect();
    known.sort_unstable();
    known.dedup();
    let left_out = prediction["not_predicted"].as_array().unwrap().iter();
    let left_out = left_out.flat_map(|left_out| left_out["pcrs"].as_array().unwrap());
    let mut left_out: Vec<u64> = left_out.map(|pcr| pcr.as_u64().unwrap()).collect();
    left_out.sort_unstable();
    (known, left_out)
}

#[test]
fn predicts_a_uki_behind_systemd_boot() {
    let files = Files::new();
    let prediction = files.predicts("--secure-boot on --uki linux.efi --loader systemd-bootx64.efi");
    assert_eq!(pcrs(&prediction), (vec![4, 9, 11, 12, 13], vec![0, 1, 2, 3, 5, 6, 7]));
    let events = prediction["events"].as_array().unwrap();
    assert_eq!(events[2]["what"], "image systemd-bootx64.efi");
    assert_eq!(events[3]["what"], "image unified kernel image");
    assert_eq!((&events[3]["pcr"], &events[3]["by"]), (&4.into(), &"firmware".into()));
    assert_eq!(events[3]["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(events[3]["sha384"].as_str().unwrap().len(), 96);
    // An older one gives the image its command line, which is used without Secure Boot.
    files.put("older.efi", &systemd_boot("252.39-1"));
    let older = files.predicts("--secure-boot off --uki linux.efi --loader older.efi");
    assert_eq!(pcrs(&older), (vec![4, 11, 13], vec![0, 1, 2, 3, 5, 6, 7, 9, 12]));
    let one = files.predicts("--secure-boot off --uki linux.efi --bank sha384");
    assert!(one["events"][2].get("sha256").is_none() && one["events"][2].get("sha384").is_some());
}

#[test]
fn predicts_grub_values_or_lists_digests_only() {
    let files = Files::new();
    let boot = "--grub grubx64.efi --grub-config grub.cfg --kernel vmlinuz --initrd initrd.img";
    let off = files.predicts(&format!("--secure-boot off {boot}"));
    assert_eq!(pcrs(&off), (vec![4, 8, 9], vec![0, 1, 2, 3, 5, 6, 7]));
    let on = files.predicts(&format!("--secure-boot on --shim shimx64.efi {boot}"));
    assert_eq!(pcrs(&on), (vec![4, 8, 9], vec![0, 1, 2, 3, 5, 6, 7, 14]));
    // An image that has more in it, or a config that asks the machine: digests and a reason.
    files.put("signed.efi", &signed_grub_of_12());
    files.put("asks.cfg", b"if true\n");
    let unknown = [
        (boot.replace("grubx64.efi", "signed.efi"), "a memory disk"),
        (boot.replace("grub.cfg", "asks.cfg"), "grub.cfg: line 1: the command if"),
    ];
    for (boot, expected) in unknown {
        let digests = files.predicts(&format!("--secure-boot on --shim shimx64.efi {boot}"));
        assert_eq!(pcrs(&digests), (vec![], vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14]));
        let why = &digests["not_predicted"][0];
        assert!(
            why["pcrs"] == json!([4, 8, 9]) && why["why"].as_str().unwrap().contains(expected),
            "{why}"
        );
        let what: Vec<&Value> = digests["events"].as_array().unwrap().iter().map(|event| &event["what"]).collect();
        let expected = [
            "image shim",
            "image GRUB",
            "image kernel",
            "file grub.cfg",
            "file kernel",
            "file initrd",
        ];
        assert_eq!(what[..expected.len()], expected);
    }
    let parts = files.predicts("--secure-boot on --kernel vmlinuz --initrd initrd.img --cmdline quiet");
    assert_eq!(pcrs(&parts), (vec![], vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    // The initrd's length is no multiple of four: as it is, and as systemd-boot pads it.
    assert_eq!(parts["events"].as_array().unwrap().len(), 7);
}

#[test]
fn secure_boot_prediction_requires_the_signer() {
    let files = Files::new();
    files.put("empty.esl", b"");
    let keys = "--uki linux.efi --pk empty.esl --kek empty.esl --db empty.esl";
    let off = files.predicts(&format!("--secure-boot off {keys}"));
    assert_eq!(pcrs(&off), (vec![4, 7, 9, 11, 12, 13], vec![0, 1, 2, 3, 5, 6]));
    files.refuses(&format!("--secure-boot on {keys}"), "pass --signed-by");
    files.put("signer.der", &[0x30, 0x82, 0, 0]);
    files.refuses(&format!("--secure-boot on {keys} --signed-by signer.der"), "is not in db");
    files.put("signer.pem", b"no certificate");
    files.refuses(&format!("--secure-boot on {keys} --signed-by signer.pem"), "signer.pem");
    files.put("with-attributes", &[7, 0, 0, 0]);
    files.refuses(
        "--secure-boot off --uki linux.efi --pk empty.esl --kek empty.esl --db with-attributes",
        "db is not a signature list",
    );
}

#[test]
fn predicted_set_has_one_generation_with_its_origin() {
    let files = Files::new();
    let (code, said) = files.run("--secure-boot on --uki linux.efi --set linux-6.1");
    assert_eq!(code, Some(0), "{said}");
    ReferenceSet::parse(&said).unwrap();
    let set: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(set["format"], "attest-reference-values/1");
    let generation = &set["generations"][0];
    assert_eq!(generation["name"], "linux-6.1");
    let told = generation["from"]["predicted"]["files"][0].as_str().unwrap();
    let file = fs::read(files.path("linux.efi")).unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &file);
    assert_eq!(
        told,
        format!("linux.efi sha256:{}", data_encoding::HEXLOWER.encode(digest.as_ref()))
    );
    let values = &generation["values"];
    assert_eq!(values["images"].as_array().unwrap().len(), 1);
    assert_eq!(values["uki_sections"][0]["section"], "linux");
    assert_eq!(values["files"].as_array().unwrap().len(), 2);
    // PCR 11 at the kernel's start, and when the initrd has begun: never as it is later, when the machine has booted.
    let of_11 = values["pcrs"].as_array().unwrap().iter().filter(|value| value["pcr"] == 11).count();
    assert_eq!(of_11, 2);
}

/// The rule on PCR 12 is about what the image is given in addition, and that on PCR 9 about the kernel's own command line.
#[test]
fn systemd_boot_command_line_is_a_separate_value() {
    let files = Files::new();
    files.put("older.efi", &systemd_boot("252.39-1"));
    let check = |loader: &str, given: usize| {
        let (code, said) = files.run(&format!("--secure-boot on --uki linux.efi --loader {loader} --set linux-6.1"));
        assert_eq!(code, Some(0), "{said}");
        let set: Value = serde_json::from_str(&said).unwrap();
        let values = &set["generations"][0]["values"];
        let count = |list: &str| values[list].as_array().map_or(0, Vec::len);
        assert_eq!((count("kernel_config"), count("files")), (given, 2), "{said}");
    };
    check("older.efi", 1);
    check("systemd-bootx64.efi", 0);
}

#[test]
fn reports_invalid_arguments_and_files() {
    let files = Files::new();
    files.refuses("--secure-boot on", "--uki");
    files.refuses("--uki linux.efi", "--secure-boot");
    files.refuses("--secure-boot on --uki linux.efi --kernel vmlinuz", "cannot be used with");
    files.refuses("--secure-boot on --kernel vmlinuz --grub grubx64.efi", "--grub-config");
    files.refuses("--secure-boot on --uki linux.efi --pk a", "--kek");
    files.refuses("--secure-boot on --uki linux.efi --bank sha1", "sha1");
    files.refuses("--secure-boot on --uki absent.efi", "absent.efi");
    files.refuses(
        &format!("--secure-boot on --uki linux.efi --set {}", "a".repeat(257)),
        "name has to have",
    );
    files.refuses("--secure-boot on --uki initrd.img", "initrd.img: not a 64-bit PE image");
    files.refuses("--secure-boot on --uki vmlinuz", "vmlinuz: not a unified kernel image");
    files.refuses("--secure-boot on --kernel vmlinuz --cmdline \u{e4}", "--cmdline: it has the byte");
    assert!(Path::new(&files.path("linux.efi")).is_file());
}
