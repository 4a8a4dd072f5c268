//! Boots by real firmware: what is predicted from the files is what the machine then measures, digest by digest, in both banks; and what a gateway
//! makes of it that accepts these files, or others.
#[path = "measured_boot/grub.rs"]
mod grub;
#[path = "measured_boot/verdicts.rs"]
mod verdicts;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use attest::HashAlg;
use attest::tpm::event_log::EventLog;
use attest::tpm::prediction::boot::{SecureBoot, UkiBoot};
use attest::tpm::prediction::secure_boot::Variables;
use attest::tpm::prediction::uki::Uki;
use attest::tpm::prediction::{Prediction, What, When};
use swtpm_tests::firmware::loaders::make_uki;
use swtpm_tests::firmware::{BootDisk, Firmware, Measured, SecureBootKeys};
use swtpm_tests::scenario::Site;
use swtpm_tests::{Accelerator, EkAuthority, Endorsement, Folder, Images, Release, Swtpm, TpmServer, Vm, VmBuilder, command_line, run};
use verdicts::{Case, Expect, IMAGE, Judge, SECTION, not_accepted, not_by, secure_boot_off, signed_by};

/// Firmware, a kernel and little else: some 30 s on a machine that does nothing else.
const VM_LIMIT: Duration = Duration::from_secs(180);

const BANKS: [HashAlg; 2] = [HashAlg::Sha256, HashAlg::Sha384];

/// A place for one machine.
struct Place {
    folder: Folder,
    images: Images,
    accelerator: Accelerator,
    authority: EkAuthority,
}

/// A machine that has booted: what it told, and its TPM as it left it.
struct Booted {
    measured: Measured,
    tpm: TpmServer,
}

impl Place {
    fn new() -> Self {
        let images = Images::firmware(Release::Bookworm).unwrap();
        let folder = Folder::new().unwrap();
        Self {
            authority: EkAuthority::new(&folder.path().join("manufacturer")).unwrap(),
            folder,
            accelerator: Accelerator::detect(&Images::fast().unwrap()),
            images,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command_line(&self) -> String {
        command_line(self.accelerator, &["quiet"])
    }

    /// A unified kernel image of that release's stub and kernel.
    fn uki(&self, release: Release) -> PathBuf {
        let kernel = Images::firmware(release).unwrap().kernel();
        make_uki(release, &kernel, &self.images.measured_initrd(), &self.command_line(), self.path()).unwrap()
    }

    fn vm(&self, firmware: &Firmware, disk: &BootDisk) -> (VmBuilder, Swtpm) {
        let tpm = Swtpm::start_with_banks(self.path(), Endorsement::By(&self.authority), "sha256,sha384").unwrap();
        (Vm::with_firmware(firmware, &[disk]).accelerator(self.accelerator).tpm(&tpm), tpm)
    }

    /// Boots a machine until its kernel has told what was measured.
    fn boot(&self, name: &str, firmware: &Firmware, disk: &BootDisk) -> Booted {
        let (vm, tpm) = self.vm(firmware, disk);
        let vm = vm.start(self.path()).unwrap();
        vm.console().wait_line(VM_LIMIT, |line| line == "@@ end").unwrap();
        let measured = Measured::parse(&vm.console().lines()).unwrap();
        drop(vm);
        if let Some(folder) = record() {
            measured.record(&folder, name).unwrap();
        }
        let tpm = tpm.taken_out().unwrap();
        Booted { measured, tpm }
    }
}

/// Where boots are recorded, if they are (`attest/tests/fixtures/boots/README.md`).
fn record() -> Option<PathBuf> {
    env::var_os("ATTEST_RECORD").map(PathBuf::from)
}

/// Records the keys of the machine that has any.
fn record_keys(keys: &SecureBootKeys) {
    let Some(folder) = record().map(|folder| folder.join("keys")) else {
        return;
    };
    fs::create_dir_all(&folder).unwrap();
    for (name, list) in keys.signature_lists() {
        fs::write(folder.join(format!("{name}.esl")), list).unwrap();
    }
    fs::write(folder.join("signer.der"), keys.accepted().certificate()).unwrap();
}

/// Each event of these PCRs, and their values.
#[track_caller]
fn equal(prediction: &Prediction, measured: &Measured, pcrs: &[u8]) {
    let log = measured.log.as_ref().map(|log| EventLog::parse(log).unwrap());
    for &pcr in pcrs {
        let value = prediction
            .pcrs()
            .iter()
            .find(|value| value.pcr == pcr && !matches!(value.when, When::After(_)));
        let value = value.unwrap_or_else(|| panic!("PCR {pcr}: {:?}", prediction.not_predicted()));
        for bank in BANKS {
            if let Some(log) = &log {
                let of_pcr = log.events().iter().filter(|event| event.pcr == pcr && event.extends());
                let found: Vec<String> = of_pcr
                    .map(|event| data_encoding::HEXLOWER.encode(event.digest(bank).unwrap()))
                    .collect();
                // What systemd extends later is in no firmware's log.
                let events = prediction
                    .events()
                    .iter()
                    .filter(|event| event.pcr == pcr && !matches!(event.what, What::Phase(_)));
                let expected: Vec<String> = events.map(|event| event.digests.get(bank).unwrap().to_string()).collect();
                assert_eq!(found, expected, "PCR {pcr}, {bank}");
            }
            let found = measured.pcr(bank, pcr).unwrap();
            assert_eq!(found, value.values.get(bank).unwrap(), "PCR {pcr}, {bank}");
        }
    }
}

fn predict_uki(image: &[u8], secure_boot: SecureBoot) -> Prediction {
    let mut prediction = Prediction::new(&BANKS);
    let uki = Uki::parse(image).unwrap();
    UkiBoot {
        loaders: &[],
        uki: &uki,
        secure_boot,
    }
    .predict(&mut prediction);
    prediction
}

fn with_keys(keys: &SecureBootKeys, prediction: &mut Prediction) {
    let [(_, pk), (_, kek), (_, db)] = keys.signature_lists();
    let variables = Variables {
        pk: &pk,
        kek: &kek,
        db: &db,
        dbx: &[],
    };
    let authority = keys.accepted().certificate();
    variables.predict(SecureBoot::On, &[authority], prediction).unwrap();
}

/// What differs between two predictions: PCRs and what was measured.
fn differences(one: &Prediction, other: &Prediction) -> Vec<(u8, String)> {
    assert_eq!(one.events().len(), other.events().len());
    let pairs = one.events().iter().zip(other.events());
    pairs
        .filter(|(one, other)| one.digests != other.digests)
        .map(|(one, _)| (one.pcr, one.what.to_string()))
        .collect()
}

#[test]
fn a_signed_unified_kernel_image_measures_what_was_predicted() {
    let place = Place::new();
    let keys = SecureBootKeys::new(&place.path().join("keys")).unwrap();
    let (image, signed) = (place.uki(Release::Bookworm), place.path().join("signed.efi"));
    keys.accepted().sign(&image, &signed).unwrap();
    let file = fs::read(&signed).unwrap();
    let mut prediction = predict_uki(&file, SecureBoot::On);
    with_keys(&keys, &mut prediction);

    let firmware = Firmware::with_secure_boot(&keys, place.path()).unwrap();
    let booted = place.boot("uki-252-secure-boot", &firmware, &BootDisk::uki(&signed, place.path()).unwrap());
    record_keys(&keys);
    equal(&prediction, &booted.measured, &[4, 7, 9, 11, 12, 13]);

    // What is changed in the image is seen in the digest of that part, and in the image's. (That differs anyway: objcopy writes the time into it.)
    let changed = |kernel: &Path, initrd: &Path, line: &str, expected: &[(u8, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let image = make_uki(Release::Bookworm, kernel, initrd, line, folder.path()).unwrap();
        let before = fs::read(place.path().join("uki.efi")).unwrap();
        let (one, other) = (
            predict_uki(&before, SecureBoot::On),
            predict_uki(&fs::read(image).unwrap(), SecureBoot::On),
        );
        let expected: Vec<(u8, String)> = expected.iter().map(|(pcr, what)| (*pcr, (*what).to_owned())).collect();
        assert_eq!(differences(&one, &other), expected);
    };
    let (kernel, initrd, line) = (place.images.kernel(), place.images.measured_initrd(), place.command_line());
    let image = (4, "image unified kernel image");
    let other = Images::firmware(Release::Trixie).unwrap().kernel();
    changed(&other, &initrd, &line, &[image, (11, "section .linux")]);
    changed(&kernel, &other, &line, &[image, (11, "section .initrd"), (9, "initrd")]);
    let before = format!("command line \"{line}\"");
    changed(
        &kernel,
        &initrd,
        &format!("{line} debug"),
        &[image, (11, "section .cmdline"), (9, &before)],
    );
    uki_verdicts(&place, &keys, &signed, &prediction, &booted);
}

/// Pools that accept the image that was booted, or the same but for one thing.
fn uki_verdicts(place: &Place, keys: &SecureBootKeys, signed: &Path, prediction: &Prediction, booted: &Booted) {
    let judge = Judge::new(&place.authority);
    let folder = place.path().join("keys");
    let mut lists = Vec::new();
    for (name, list) in keys.signature_lists() {
        lists.push(folder.join(format!("{name}.esl")));
        fs::write(lists.last().unwrap(), list).unwrap();
    }
    let [pk, kek, db] = lists.as_slice() else { unreachable!() };
    let signer = folder.join("db.pem");
    let values = |name: &str, image: &Path| {
        let keys = [("--pk", pk.as_path()), ("--kek", kek), ("--db", db), ("--signed-by", &signer)];
        judge.predicted(name, &[&[("--uki", image)], keys.as_slice()].concat(), "on")
    };
    // Another image, and its values.
    let other = |name: &str, kernel: &Path, initrd: &Path, line: &str| {
        let folder = tempfile::tempdir().unwrap();
        let image = make_uki(Release::Bookworm, kernel, initrd, line, folder.path()).unwrap();
        values(name, &image)
    };
    let (kernel, initrd, line) = (place.images.kernel(), place.images.measured_initrd(), place.command_line());
    let other_kernel = Images::firmware(Release::Trixie).unwrap().kernel();
    let (by_image, by_section): (&[&str], &[&str]) = (
        &["secure-boot", "authorities", "images", "uki-sections", "files"],
        &["secure-boot", "authorities", "uki-sections", "files"],
    );
    let case = |pool, rules, values, expect| Case {
        pool,
        rules,
        values: Some(values),
        expect,
    };
    let another_kernel = other("a kernel", &other_kernel, &initrd, &line);
    let cases = [
        case("same", by_image, values("same", signed), Expect::Trusted),
        case(
            "image",
            by_image,
            another_kernel.clone(),
            not_accepted(prediction, 4, "image unified", [IMAGE, ""], "a kernel"),
        ),
        case(
            "kernel",
            by_section,
            another_kernel,
            not_accepted(prediction, 11, "section .linux", [SECTION, " (.linux)"], "a kernel"),
        ),
        case(
            "initrd",
            by_section,
            other("an initrd", &kernel, &other_kernel, &line),
            not_accepted(prediction, 11, "section .initrd", [SECTION, " (.initrd)"], "an initrd"),
        ),
        case(
            "line",
            by_section,
            other("a line", &kernel, &initrd, &format!("{line} debug")),
            not_accepted(prediction, 11, "section .cmdline", [SECTION, " (.cmdline)"], "a line"),
        ),
        case(
            "key",
            by_section,
            signed_by(values("a key", signed), &[keys.other().certificate()], &[]),
            not_by(keys.accepted(), "a key"),
        ),
    ];
    judge.judge(booted, &cases);
}

/// The value of a PCR at the kernel's start.
fn value(prediction: &Prediction, pcr: u8) -> String {
    let mut values = prediction.pcrs().iter();
    let value = values
        .find(|value| value.pcr == pcr && !matches!(value.when, When::After(_)))
        .unwrap();
    value.values.get(HashAlg::Sha256).unwrap().to_string()
}

#[test]
fn a_pool_that_accepts_what_was_predicted_gives_the_node_its_config() {
    let folder = Folder::new().unwrap();
    let keys = SecureBootKeys::new(&folder.path().join("keys")).unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let place = site.vm_folder("node").unwrap();
    let (image, signed) = (site.uki(&[], &place).unwrap(), place.join("signed.efi"));
    keys.accepted().sign(&image, &signed).unwrap();
    let mut prediction = predict_uki(&fs::read(&signed).unwrap(), SecureBoot::On);
    with_keys(&keys, &mut prediction);

    let [pcr_4, pcr_7, pcr_9, pcr_11] = [4, 7, 9, 11].map(|pcr| value(&prediction, pcr));
    let accepted = format!(
        "\"0-3\" = \"not checked\"\n4 = [\"{pcr_4}\"]\n\"5-6\" = \"not checked\"\n7 = [\"{pcr_7}\"]\n9 = [\"{pcr_9}\"]\n11 = [\"{pcr_11}\"]"
    );
    site.gateway().edit_pool("\"0-7\" = \"not checked\"", &accepted).unwrap();
    site.gateway().start(None).unwrap();

    let firmware = Firmware::with_secure_boot(&keys, &place).unwrap();
    let disk = BootDisk::uki(&signed, &place).unwrap();
    let tpm = Swtpm::start(&place, Endorsement::By(site.authority())).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm = Vm::with_firmware(&firmware, &[&disk])
        .accelerator(site.accelerator())
        .tpm(&tpm)
        .pointer(&pointer);
    let run = site.boot(vm, &place).unwrap();
    assert_eq!(run.decision().0, "trusted", "{:?}", run.decision());
    site.prove_exactly("full", &run.outcome).unwrap();
}

/// systemd's own program, for the same sections.
fn by_systemd_measure(release: Release) {
    let folder = tempfile::tempdir().unwrap();
    let images = Images::firmware(release).unwrap();
    let image = make_uki(release, &images.kernel(), &images.measured_initrd(), "quiet", folder.path()).unwrap();
    let prediction = predict_uki(&fs::read(&image).unwrap(), SecureBoot::On);
    let mut measure = images.systemd_measure();
    measure.args(["calculate", "--bank=sha256"]);
    for (section, file) in [
        ("linux", images.kernel()),
        ("initrd", images.measured_initrd()),
        ("cmdline", folder.path().join("cmdline")),
        ("osrel", folder.path().join("os-release")),
    ] {
        measure.arg(format!("--{section}={}", file.display()));
    }
    if release == Release::Trixie {
        // Of the stub itself, and measured by this release.
        let sbat = folder.path().join("sbat");
        let mut objcopy = Command::new("objcopy");
        run(objcopy
            .args(["--output-target=binary", "--only-section=.sbat"])
            .args([&image, &sbat]))
        .unwrap();
        measure.arg(format!("--sbat={}", sbat.display()));
    }
    let said = run(&mut measure).unwrap();
    let found: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("11:sha256=")).collect();
    let expected: Vec<String> = prediction
        .pcrs()
        .iter()
        .filter(|value| matches!(value.when, When::After(_)))
        .map(|value| value.values.get(HashAlg::Sha256).unwrap().to_string())
        .collect();
    assert_eq!(found, expected, "{said}");
}

#[test]
fn systemd_measure_predicts_the_same_of_pcr_11() {
    by_systemd_measure(Release::Bookworm);
    by_systemd_measure(Release::Trixie);
}

#[test]
fn what_another_key_has_signed_is_not_started() {
    let place = Place::new();
    let keys = SecureBootKeys::new(&place.path().join("keys")).unwrap();
    let (image, signed) = (place.uki(Release::Bookworm), place.path().join("signed.efi"));
    keys.other().sign(&image, &signed).unwrap();
    let firmware = Firmware::with_secure_boot(&keys, place.path()).unwrap();
    let (vm, _tpm) = place.vm(&firmware, &BootDisk::uki(&signed, place.path()).unwrap());
    let vm = vm.start(place.path()).unwrap();
    let none = |line: &str| line.contains("No bootable option or device was found");
    vm.console().wait_line(VM_LIMIT, none).unwrap();
    assert!(vm.console().lines().iter().any(|line| line.contains("Access Denied")));
    assert!(!vm.console().lines().iter().any(|line| line.starts_with("@@")));
}

#[test]
fn without_secure_boot_the_kernel_in_the_image_is_measured_too() {
    let place = Place::new();
    let image = place.uki(Release::Trixie);
    let file = fs::read(&image).unwrap();
    let mut prediction = predict_uki(&file, SecureBoot::Off);
    Variables::default().predict(SecureBoot::Off, &[], &mut prediction).unwrap();
    let firmware = Firmware::without_secure_boot(place.path()).unwrap();
    let booted = place.boot("uki-257", &firmware, &BootDisk::uki(&image, place.path()).unwrap());
    equal(&prediction, &booted.measured, &[4, 7, 9, 11, 12, 13]);
    let judge = Judge::new(&place.authority);
    let values = judge.predicted("this image", &[("--uki", &image)], "off");
    let case = |pool, rules, expect| Case {
        pool,
        rules,
        values: Some(values.clone()),
        expect,
    };
    let cases = [
        case("any-key", &["images", "uki-sections", "files"], Expect::Trusted),
        case("secure-boot", &["secure-boot", "images"], secure_boot_off()),
    ];
    judge.judge(&booted, &cases);
}
