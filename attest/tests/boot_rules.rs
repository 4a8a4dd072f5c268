//! Rules on what was booted: what is accepted, and for each accepted thing one that is altered.

mod firmware;
mod generations;
mod new_values;
mod places;

use std::collections::BTreeMap;
use std::sync::Arc;

use attest::reference_sets::{Generation, ReferenceSet, ReferenceSets, Time, ValueOrigin, Values};
use attest::tpm::reference_values::{AcceptedValues, EventLogRule, ReferenceValues};
use attest::tpm::rules::{Check, recorded};
use attest::{AppraisalPolicy, Claims, HashAlg, Reject, appraise};
use serde_json::json;

use crate::log_builder::{EV_IPL, EV_SEPARATOR, LogBuilder};
use crate::measured_boot::machine::{
    IMAGE_SECURITY, Parts, VARIABLE_AUTHORITY, certificate, grub_machine, hashes, sha256, signature, uki_machine, variable,
};
use crate::support::{Case, SoftKey, at};

const BANK: HashAlg = HashAlg::Sha256;
const PCRS: [u8; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14];

/// A machine that has booted by this log, and sends that one.
fn machine(booted: &LogBuilder, sent: Option<&LogBuilder>) -> Case {
    let values = booted.pcrs(BANK).into_iter().filter(|(pcr, _)| PCRS.contains(pcr));
    let values: BTreeMap<u8, Vec<u8>> = values.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
    let log = sent.map(LogBuilder::build);
    Case::with_pcrs(SoftKey::p256(), BANK, values).but(|case| case.event_log = log)
}

fn claims(log: &LogBuilder) -> (Case, Claims) {
    let case = machine(log, Some(log));
    let claims = case.verify().unwrap();
    (case, claims)
}

fn generation(name: &str, added: u64, expires: Option<u64>, values: Values) -> Generation {
    Generation {
        name: name.to_owned(),
        added: Time { at: added },
        by: "root".to_owned(),
        from: ValueOrigin::ByHand,
        expires: expires.map(|at| Time { at }),
        values,
    }
}

fn sets(generations: Vec<Generation>) -> Arc<ReferenceSets> {
    let text = ReferenceSet::new(generations).unwrap().to_json().unwrap();
    Arc::new(ReferenceSets::parse([text.as_str()]).unwrap())
}

/// Returns the values of a machine with this log, as `reference-values record` writes them.
fn values_of(log: &LogBuilder) -> Values {
    let (_, claims) = claims(log);
    let tpm = claims.tpm().unwrap();
    recorded(tpm.event_log.as_ref().unwrap().boot.as_ref().unwrap(), &tpm.pcrs)
}

fn values(checks: &[Check], pcrs: BTreeMap<u8, AcceptedValues>) -> ReferenceValues {
    let all = PCRS.map(|pcr| (pcr, pcrs.get(&pcr).cloned().unwrap_or(AcceptedValues::NotChecked)));
    ReferenceValues::new(BANK, all.into()).unwrap().with_boot(checks.to_vec()).unwrap()
}

fn policy(checks: &[Check], sets: &Arc<ReferenceSets>) -> AppraisalPolicy {
    AppraisalPolicy::for_tpm(values(checks, BTreeMap::new()))
        .with_reference_sets(sets)
        .unwrap()
}

fn judged(log: &LogBuilder, checks: &[Check], accepted: &Values) -> Result<(), Reject> {
    let (case, claims) = claims(log);
    let sets = match checks {
        [Check::SecureBoot] => Arc::default(),
        _ => sets(vec![generation("this one", 1, None, accepted.clone())]),
    };
    appraise(claims, &policy(checks, &sets), at(case.now)).map(drop)
}

/// The event of a log's n-th image, from 0, as another: the digest is that of its content.
fn image(content: &str) -> LogBuilder {
    LogBuilder::new(&[crate::log_builder::SHA1, crate::log_builder::SHA256, crate::log_builder::SHA384]).image(content, "\\x.efi")
}

fn with(log: &LogBuilder, pcr: u32, content: &[u8], said: &[u8]) -> LogBuilder {
    log.clone().measured(pcr, EV_IPL, content, said)
}

const OF_GRUB: [Check; 9] = [
    Check::SecureBoot,
    Check::Dbx,
    Check::Authorities,
    Check::Images,
    Check::Drivers,
    Check::Grub,
    Check::Files,
    Check::Mok,
    Check::FirmwareVersion,
];
const OF_UKI: [Check; 8] = [
    Check::SecureBoot,
    Check::Dbx,
    Check::Authorities,
    Check::Images,
    Check::Files,
    Check::UkiSections,
    Check::KernelConfig,
    Check::FirmwareVersion,
];

#[test]
fn machine_passes_with_its_own_recorded_values() {
    for (log, checks) in [(grub_machine(true), OF_GRUB.as_slice()), (uki_machine(), OF_UKI.as_slice())] {
        assert_eq!(judged(&log, checks, &values_of(&log)).map_err(|reject| reject.detail()), Ok(()));
    }
}

/// The recorded values are those of the booted images, computed here in another way.
#[test]
fn recorded_values_match_the_booted_images() {
    let values = values_of(&grub_machine(true));
    let digests = |list: &[attest::reference_sets::EventValue]| -> Vec<Vec<u8>> {
        list.iter().map(|value| value.digests[&BANK].as_bytes().to_vec()).collect()
    };
    let of = |contents: &[&[u8]]| -> Vec<Vec<u8>> { contents.iter().map(|content| sha256(content).to_vec()).collect() };
    assert_eq!(digests(&values.images), of(&[b"shim", b"grub", b"kernel"]));
    assert_eq!(
        digests(&values.grub),
        of(&[
            b"set timeout=0",
            b"linux /vmlinuz root=LABEL=root ro",
            b"/vmlinuz root=LABEL=root ro"
        ])
    );
    assert_eq!(digests(&values.files), of(&[b"configuration", b"kernel", b"initrd"]));
    assert_eq!(digests(&values.mok), of(&[b"the owner's keys"]));
    assert_eq!(
        digests(&values.authorities),
        of(&[&certificate("vendor"), &certificate("distribution")])
    );
    let dbx: Vec<Vec<u8>> = values.dbx.iter().map(|hash| hash.as_bytes().to_vec()).collect();
    assert_eq!(dbx, hashes(5).map_into());
    assert_eq!(values.firmware_versions, ["Firmware 1.2"]);
    let sections: Vec<_> = values_of(&uki_machine())
        .uki_sections
        .into_iter()
        .map(|found| found.section)
        .collect();
    assert_eq!(sections, ["linux", "osrel", "cmdline", "initrd"]);
}

trait MapInto {
    fn map_into(self) -> Vec<Vec<u8>>;
}

impl MapInto for Vec<[u8; 32]> {
    fn map_into(self) -> Vec<Vec<u8>> {
        self.into_iter().map(|hash| hash.to_vec()).collect()
    }
}

#[test]
fn attack_24_other_boot_contents_are_refused() {
    let good = grub_machine(true);
    let accepted = values_of(&good);
    let check = |log: &LogBuilder, check: Check, code: &str, told: &str| {
        let reject = judged(log, &[check], &accepted).unwrap_err();
        assert_eq!(reject.code(), code, "{check}: {}", reject.detail());
        assert!(reject.client_message().contains(told), "{check}: {}", reject.client_message());
    };
    // Behind what is accepted, as whoever is root later can have it.
    let authority = |name: &str, key: &str| {
        let data = variable(IMAGE_SECURITY, name, &signature(&certificate(key)));
        good.clone().event(7, VARIABLE_AUTHORITY, &data)
    };
    let number = good.events.len() + 1;
    let refused = |pcr: u32, what: &str| format!("event {number}, PCR {pcr}, {what}: sha256 ");
    let not = "boot-not-accepted";
    check(
        &authority("db", "another"),
        Check::Authorities,
        not,
        &refused(7, "certificate that authorised an image"),
    );
    check(
        &authority("dbx", "another"),
        Check::Authorities,
        not,
        &refused(7, "certificate that authorised an image"),
    );
    let image = good.clone().image("another", "\\EFI\\BOOT\\BOOTX64.EFI");
    check(&image, Check::Images, not, &refused(4, "boot loader or kernel"));
    check(&image, Check::Images, not, "the node names it \"\\\\EFI\\\\BOOT\\\\BOOTX64.EFI\"");
    check(&with(&good, 2, b"driver", b""), Check::Drivers, not, &refused(2, "driver"));
    check(&good.clone().grub("insmod evil"), Check::Grub, not, &refused(8, "text of GRUB's"));
    check(&good.clone().grub("insmod evil"), Check::Grub, not, "(\"insmod evil\")");
    check(
        &with(&good, 9, b"other initrd", b"/initrd.img\0"),
        Check::Files,
        not,
        &refused(9, "file, initrd or command line"),
    );
    check(
        &with(&good, 14, b"other keys", b"MokList\0"),
        Check::Mok,
        not,
        &refused(14, "variable of shim's"),
    );
    // An accepted digest in another PCR is not accepted.
    check(
        &with(&good, 4, b"initrd", b""),
        Check::Images,
        not,
        &refused(4, "boot loader or kernel"),
    );
    check(
        &with(&good, 9, b"grub", b""),
        Check::Files,
        not,
        &refused(9, "file, initrd or command line"),
    );
    // What no digest covers decides nothing.
    check(
        &good.clone().measured(8, EV_IPL, b"evil", b"grub_cmd: set timeout=0\0"),
        Check::Grub,
        "boot-not-proven",
        "PCR 8",
    );
    // Separators and more.
    check(
        &good.clone().event(4, EV_SEPARATOR, &[0; 4]),
        Check::Images,
        "boot-not-proven",
        "separator",
    );
    check(
        &good.clone().event(7, EV_SEPARATOR, &[0; 4]),
        Check::SecureBoot,
        "boot-not-proven",
        "separator",
    );
    check(
        &good.clone().variable(IMAGE_SECURITY, "unknown", &[1, 2, 3]),
        Check::Authorities,
        "boot-not-proven",
        "PCR 7",
    );

    let uki = uki_machine();
    let accepted = values_of(&uki);
    let check = |log: &LogBuilder, check: Check, code: &str| {
        let reject = judged(log, &[check], &accepted).unwrap_err();
        assert_eq!(reject.code(), code, "{check}: {}", reject.detail());
    };
    check(&uki.clone().section(".cmdline", b"init=/bin/sh"), Check::UkiSections, not);
    // The content of one section is not another's.
    check(&uki.clone().section(".initrd", b"kernel"), Check::UkiSections, not);
    check(&with(&uki, 11, b"more", b""), Check::UkiSections, "boot-not-proven");
    check(&with(&uki, 12, b"init=/bin/sh", b""), Check::KernelConfig, not);
}

#[test]
fn attack_24_each_altered_event_is_refused() {
    for (good, checks) in [(grub_machine(true), OF_GRUB.as_slice()), (uki_machine(), OF_UKI.as_slice())] {
        let accepted = values_of(&good);
        for place in 0..good.events.len() {
            let ruled = |pcr: u32| checks.iter().any(|check| u32::from(check.pcr()) == pcr);
            let event = &good.events[place];
            // Of PCR 0 only the version is checked, of PCR 7 what is no variable of its own.
            let is_free = event.pcr == 0 && place > 0 && event.event_type != EV_SEPARATOR || !ruled(event.pcr);
            let mut other = good.clone();
            for (_, digest) in &mut other.events[place].digests {
                digest[0] ^= 1;
            }
            let found = judged(&other, checks, &accepted);
            assert_eq!(found.is_err(), !is_free, "event {} of PCR {}: {found:?}", place + 1, event.pcr);
        }
    }
}

#[test]
fn secure_boot_off_refuses_dbx_and_authority_rules() {
    let off = grub_machine(false);
    let accepted = values_of(&grub_machine(true));
    for check in [Check::SecureBoot, Check::Dbx, Check::Authorities] {
        assert_eq!(judged(&off, &[check], &accepted).unwrap_err().code(), "secure-boot-off", "{check}");
    }
    // Nor does what is added behind it.
    let forged = off.clone().event(
        7,
        VARIABLE_AUTHORITY,
        &variable(IMAGE_SECURITY, "db", &signature(&certificate("vendor"))),
    );
    assert_eq!(
        judged(&forged, &[Check::Authorities], &accepted).unwrap_err().code(),
        "secure-boot-off"
    );
    let forged = off.variable(crate::measured_boot::machine::GLOBAL, "SecureBoot", &[1]);
    assert_eq!(
        judged(&forged, &[Check::SecureBoot], &accepted).unwrap_err().code(),
        "boot-not-proven"
    );
}

#[test]
fn missing_measurements_are_refused() {
    let accepted = values_of(&grub_machine(true));
    let uki = values_of(&uki_machine());
    let check = |pcr: u32, keeps: &[u32], check: Check, accepted: &Values, expect: &str| {
        let mut log = if check == Check::UkiSections {
            uki_machine()
        } else {
            grub_machine(true)
        };
        log.events.retain(|event| event.pcr != pcr || keeps.contains(&event.event_type));
        assert_eq!(judged(&log, &[check], accepted).unwrap_err().code(), expect, "{check}");
    };
    check(4, &[EV_SEPARATOR], Check::Images, &accepted, "boot-nothing-measured");
    check(4, &[], Check::Images, &accepted, "boot-not-proven");
    check(8, &[], Check::Grub, &accepted, "boot-nothing-measured");
    check(9, &[], Check::Files, &accepted, "boot-nothing-measured");
    check(11, &[], Check::UkiSections, &uki, "boot-not-proven");
    check(7, &[], Check::SecureBoot, &accepted, "boot-not-proven");
    // Nothing beside the image, where nothing is accepted beside it.
    let mut without = uki_machine();
    without.events.retain(|event| event.pcr != 12);
    let sets = sets(vec![generation("this one", 1, None, values_of(&without))]);
    for (log, expect) in [(&without, Ok(())), (&uki_machine(), Err("boot-not-accepted"))] {
        let (case, claims) = claims(log);
        let judged = appraise(claims, &policy(&[Check::KernelConfig], &sets), at(case.now));
        assert_eq!(judged.map(drop).map_err(|reject| reject.code()), expect);
    }
}

#[test]
fn event_rules_require_a_matching_log() {
    let log = grub_machine(true);
    let sets = sets(vec![generation("this one", 1, None, values_of(&log))]);
    let check = |booted: &LogBuilder, sent: Option<&LogBuilder>, rule: EventLogRule, expect: &str| {
        let case = machine(booted, sent);
        let values = values(&[Check::Grub], BTreeMap::new()).with_event_log(rule);
        let policy = AppraisalPolicy::for_tpm(values).with_reference_sets(&sets).unwrap();
        let reject = appraise(case.verify().unwrap(), &policy, at(case.now)).unwrap_err();
        assert_eq!(reject.code(), expect, "{rule:?}");
    };
    let mut shorter = log.clone();
    shorter.events.retain(|event| event.pcr != 4);
    let mut other = log.clone();
    other.events.retain(|event| event.pcr != 8);
    for rule in [EventLogRule::Required, EventLogRule::Checked, EventLogRule::Recorded] {
        check(&log, None, rule, "event-log-missing");
        check(&log, Some(&shorter), rule, "event-log-mismatch");
        // A PCR above 7 that the log does not lead to is no mismatch: nothing is proven about it.
        check(&log, Some(&other), rule, "boot-not-proven");
    }
}
