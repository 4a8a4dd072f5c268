//! Boots that were recorded from VMs (`fixtures/boots/README.md`): their logs explain their PCRs, and contain the values that follow from
//! their keys.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::SecureBoot;
use attest::tpm::prediction::secure_boot::Variables;

type Pcrs = BTreeMap<HashAlg, BTreeMap<u8, HexDigest>>;

const BANKS: [HashAlg; 2] = [HashAlg::Sha256, HashAlg::Sha384];

/// IMA's, which no firmware's log explains.
const IMA_PCR: u8 = 10;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/boots").join(name)
}

/// Reads the PCR values of a machine, except PCRs that any software can reset, and IMA's.
fn pcrs(name: &str) -> Pcrs {
    let text = fs::read_to_string(file(&format!("{name}.json"))).unwrap();
    let mut pcrs: Pcrs = serde_json::from_str(&text).unwrap();
    for bank in pcrs.values_mut() {
        bank.retain(|pcr, _| *pcr < 16 && *pcr != IMA_PCR);
    }
    pcrs
}

#[test]
fn uefi_event_logs_explain_all_pcrs() {
    let check = |name: &str| {
        let log = fs::read(file(&format!("{name}.log"))).unwrap();
        let log = EventLog::parse(&log).unwrap();
        for (bank, pcrs) in pcrs(name) {
            let trusted = log.check_against(bank, &pcrs).unwrap();
            assert_eq!(trusted.explained_pcrs().count(), 15, "{name}, {bank}");
        }
    };
    check("systemd-boot-252-secure-boot");
    check("systemd-boot-257");
    check("grub-2.06-shim");
    check("grub-2.12");
}

#[test]
fn predicts_recorded_pcr_7_from_secure_boot_keys() {
    let check = |name: &str, variables: &Variables<'_>, secure_boot, authorities: &[&[u8]]| {
        let mut prediction = Prediction::new(&BANKS);
        variables.predict(secure_boot, authorities, &mut prediction).unwrap();
        for (bank, pcrs) in pcrs(name) {
            assert_eq!(prediction.pcrs()[0].values.get(bank), pcrs.get(&7), "{name}, {bank}");
        }
    };
    let keys = |name: &str| fs::read(file(&format!("keys/{name}"))).unwrap();
    let (pk, kek, db, signer) = (keys("PK.esl"), keys("KEK.esl"), keys("db.esl"), keys("signer.der"));
    let variables = Variables {
        pk: &pk,
        kek: &kek,
        db: &db,
        dbx: &[],
    };
    check("systemd-boot-252-secure-boot", &variables, SecureBoot::On, &[&signer]);
    for name in ["systemd-boot-257", "grub-2.06", "grub-2.12"] {
        check(name, &Variables::default(), SecureBoot::Off, &[]);
    }
}

/// systemd-boot 252 passes the image its own command line, and 257 does not: the kernel has the same, with its zero at the end, in PCR 9.
#[test]
fn pcr_12_holds_the_systemd_boot_command_line() {
    let check = |name: &str, given: bool| {
        let log = fs::read(file(&format!("{name}.log"))).unwrap();
        let log = EventLog::parse(&log).unwrap();
        for bank in BANKS {
            let of_pcr = |pcr| log.events().iter().filter(move |event| event.pcr == pcr && event.extends());
            let digests = |pcr| of_pcr(pcr).map(|event| event.digest(bank).unwrap()).collect::<Vec<_>>();
            let expected = if given { vec![digests(9)[0]] } else { Vec::new() };
            assert_eq!(digests(12), expected, "{name}, {bank}");
        }
    };
    check("systemd-boot-252-secure-boot", true);
    check("systemd-boot-257", false);
}
