//! Predictions of the gateway's own command for files and disks, and their comparison with the measurements of firmware and TPM.

use std::fs;
use std::path::Path;
use std::process::Command;

use attest::HashAlg;
use attest::tpm::event_log::EventLog;
use serde_json::Value;
use swtpm_tests::firmware::{BootDisk, MachinePcrs, SecureBootKeys};
use swtpm_tests::{Programs, run};

use super::BANKS;

/// Returns the output of `reference-values predict` for `--secure-boot` and the files.
pub fn reference_values(secure_boot: &str, arguments: &[(&str, &Path)], set: Option<&str>) -> Value {
    let mut predict = Command::new(&Programs::build().unwrap().auditor);
    predict.args(["reference-values", "predict", "--secure-boot", secure_boot]);
    arguments.iter().for_each(|(option, path)| {
        predict.arg(option).arg(path);
    });
    set.iter().for_each(|name| {
        predict.args(["--set", name]);
    });
    serde_json::from_str(&run(&mut predict).unwrap()).unwrap()
}

/// Predicted measurements, as JSON.
#[derive(Debug)]
pub struct Predicted(Value);

impl Predicted {
    /// Predicts the measurements of files.
    pub fn new(secure_boot: &str, arguments: &[(&str, &Path)]) -> Self {
        Self(reference_values(secure_boot, arguments, None))
    }

    /// Predicts the measurements of a disk's image, on machines with these keys or without Secure Boot.
    pub fn from_disk(disk: &BootDisk, keys: Option<&SecureBootKeys>) -> Self {
        if let Some(keys) = keys {
            return Self::new("on", &with_keys(("--disk", disk.image()), &keys.arguments()));
        }
        // Variables that are not there are measured all the same.
        let none = disk.image().with_extension("esl");
        fs::write(&none, "").unwrap();
        Self::new(
            "off",
            &with_keys(("--disk", disk.image()), &["--pk", "--kek", "--db"].map(|option| (option, &none))),
        )
    }

    /// Predicts from the image of a disk, for machines whose keys are not given.
    pub fn from_disk_without_keys(secure_boot: &str, disk: &BootDisk) -> Self {
        Self::new(secure_boot, &[("--disk", disk.image())])
    }

    /// Verifies that each predicted value for the kernel's start is the machine's.
    #[track_caller]
    pub fn has_no_wrong_value(&self, measured: &MachinePcrs) {
        let values = self.list("pcrs").iter();
        for value in values.filter(|value| value["when"].as_str().unwrap().starts_with("at the kernel's start")) {
            let pcr = u8::try_from(value["pcr"].as_u64().unwrap()).unwrap();
            for bank in BANKS {
                assert_eq!(
                    value[bank.to_string()],
                    measured.pcr(bank, pcr).unwrap().to_string(),
                    "PCR {pcr}, {bank}"
                );
            }
        }
    }

    /// Returns the events that are extended into a PCR until the kernel runs: the measured object and its digests.
    pub fn events(&self, pcr: u8) -> Vec<Event<'_>> {
        let events = self.list("events").iter().filter(|event| event["pcr"] == pcr);
        let events = events.map(|event| Event {
            what: event["what"].as_str().unwrap(),
            digests: event,
        });
        // What systemd extends later is in no firmware's log.
        events.filter(|event| !event.what.starts_with("phase ")).collect()
    }

    /// Returns the event of this object.
    #[track_caller]
    pub fn event(&self, pcr: u8, what: &str) -> Event<'_> {
        let events = self.events(pcr).into_iter();
        let event = events.clone().find(|event| event.what.starts_with(what));
        event.unwrap_or_else(|| panic!("{what:?} in {:#?}", self.0))
    }

    /// Returns the values of a PCR, with the moments at which it has them.
    pub fn values(&self, pcr: u8, bank: HashAlg) -> impl Iterator<Item = (&str, &str)> {
        let values = self.list("pcrs").iter().filter(move |value| value["pcr"] == pcr);
        values.map(move |value| (value["when"].as_str().unwrap(), value[bank.to_string()].as_str().unwrap()))
    }

    /// Returns the value at the kernel's start.
    #[track_caller]
    pub fn value(&self, pcr: u8, bank: HashAlg) -> &str {
        let value = self.values(pcr, bank).find(|(when, _)| when.starts_with("at the kernel's start"));
        value.unwrap_or_else(|| panic!("PCR {pcr}: {:#?}", self.0["not_predicted"])).1
    }

    /// Returns the reasons for which a PCR has no prediction.
    pub fn left_out(&self, pcr: u8) -> Vec<&str> {
        let of_pcr = |left_out: &&Value| left_out["pcrs"].as_array().unwrap().contains(&pcr.into());
        let left_out = self.list("not_predicted").iter().filter(of_pcr);
        left_out.map(|left_out| left_out["why"].as_str().unwrap()).collect()
    }

    /// Verifies that each event and the value of these PCRs is as predicted.
    #[track_caller]
    pub fn is(&self, measured: &MachinePcrs, pcrs: &[u8]) {
        for &pcr in pcrs {
            for bank in BANKS {
                if let Some(found) = logged(measured, pcr, bank) {
                    let expected: Vec<&str> = self.events(pcr).iter().map(|event| event.digest(bank)).collect();
                    assert_eq!(found, expected, "PCR {pcr}, {bank}");
                }
                let found = measured.pcr(bank, pcr).unwrap().to_string();
                assert_eq!(found, self.value(pcr, bank), "PCR {pcr}, {bank}");
            }
        }
    }

    /// Verifies that this PCR has no predicted value for this reason, and that each digest of `whats` was measured into it.
    #[track_caller]
    pub fn is_among(&self, measured: &MachinePcrs, pcr: u8, whats: &[&str], why: &str) {
        assert_eq!(self.values(pcr, HashAlg::Sha256).count(), 0);
        assert!(
            self.left_out(pcr).iter().any(|left_out| left_out.contains(why)),
            "{:?}",
            self.left_out(pcr)
        );
        for what in whats {
            for bank in BANKS {
                let found = logged(measured, pcr, bank).unwrap();
                let digest = self.event(pcr, what).digest(bank);
                assert!(found.iter().any(|found| found == digest), "PCR {pcr}, {bank}: {what} in {found:#?}");
            }
        }
    }

    /// Returns the differences from another prediction: PCRs and measured objects.
    pub fn differences(&self, other: &Self) -> Vec<(u64, &str)> {
        let (ones, others) = (self.list("events"), other.list("events"));
        assert_eq!(ones.len(), others.len());
        let pairs = ones.iter().zip(others);
        pairs
            .filter(|(one, other)| BANKS.iter().any(|bank| one[bank.to_string()] != other[bank.to_string()]))
            .map(|(one, _)| (one["pcr"].as_u64().unwrap(), one["what"].as_str().unwrap()))
            .collect()
    }

    fn list(&self, name: &str) -> &[Value] {
        self.0[name].as_array().unwrap()
    }
}

/// Predicted event with its digests.
#[derive(Debug, Clone, Copy)]
pub struct Event<'p> {
    pub what: &'p str,
    digests: &'p Value,
}

impl<'p> Event<'p> {
    pub fn digest(&self, bank: HashAlg) -> &'p str {
        self.digests[bank.to_string()].as_str().unwrap()
    }
}

/// Returns the digests in the log of a PCR, if there is a log.
pub fn logged(measured: &MachinePcrs, pcr: u8, bank: HashAlg) -> Option<Vec<String>> {
    let log = EventLog::parse(measured.log.as_ref()?).unwrap();
    let of_pcr = log.events().iter().filter(|event| event.pcr == pcr && event.extends());
    let digests = of_pcr.map(|event| data_encoding::HEXLOWER.encode(event.digest(bank).unwrap()));
    Some(digests.collect())
}

/// Returns the options for a file and for the keys of Secure Boot.
pub fn with_keys<'a, P: AsRef<Path>>(file: (&'a str, &'a Path), keys: &'a [(&'a str, P)]) -> Vec<(&'a str, &'a Path)> {
    let keys = keys.iter().map(|(option, path)| (*option, path.as_ref()));
    [file].into_iter().chain(keys).collect()
}
