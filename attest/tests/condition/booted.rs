//! Conditions on a boot: they see all content that digests cover, and nothing else. Each accepted boot is tested with altered ones.

use std::collections::BTreeMap;

use attest::appraisal::{PolicyError, Rules};
use attest::condition::{Condition, LIST_LIMIT, TEXT_LIMIT_BYTES};
use attest::tpm::measured_boot::BootPart;
use attest::tpm::reference_values::{AcceptedValues, EventLogRule};
use attest::{AppraisalPolicy, HashAlg, Kind, ReferenceValues, Reject, appraise};

use crate::log_builder::{EV_IPL, EV_SEPARATOR, LogBuilder};
use crate::measured_boot::machine::{
    EV_EFI_ACTION, IMAGE_SECURITY, Parts, VARIABLE_AUTHORITY, certificate, grub_machine, sha256, signature, uki_machine, utf16, variable,
};
use crate::support::{Case, SoftKey, at};

const BANK: HashAlg = HashAlg::Sha256;
const PCRS: [u8; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14];

/// A machine that has booted by one log, and sends another, or none.
fn machine(booted: &LogBuilder, sends: Option<&LogBuilder>, pcrs: &[u8]) -> Case {
    let values = booted.pcrs(BANK).into_iter().filter(|(pcr, _)| pcrs.contains(pcr));
    let values: BTreeMap<u8, Vec<u8>> = values.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
    let log = sends.map(LogBuilder::build);
    Case::with_pcrs(SoftKey::p256(), BANK, values).but(|case| case.event_log = log)
}

/// The condition alone, whatever becomes of the log.
fn rules(condition: &str, pcrs: &[u8]) -> Rules {
    let pcrs = pcrs.iter().map(|pcr| (*pcr, AcceptedValues::NotChecked)).collect();
    let values = ReferenceValues::new(BANK, pcrs).unwrap().with_event_log(EventLogRule::Recorded);
    Rules {
        tpm: Some(values),
        condition: Some(Condition::parse(&condition.replace("BOOT", "claims.tpm.boot")).unwrap()),
        ..Rules::default()
    }
}

fn sent(booted: &LogBuilder, sends: Option<&LogBuilder>, condition: &str) -> Result<(), Reject> {
    let case = machine(booted, sends, &PCRS);
    let policy = AppraisalPolicy::new(vec![Kind::Tpm.into()], rules(condition, &PCRS)).unwrap();
    appraise(case.verify().unwrap(), &policy, at(case.now)).map(drop)
}

fn judged(log: &LogBuilder, condition: &str) -> Result<(), Reject> {
    sent(log, Some(log), condition)
}

#[track_caller]
fn check(log: &LogBuilder, condition: &str, expect: Result<(), &str>) {
    let found = judged(log, condition);
    let said = found.as_ref().err().map(Reject::detail);
    assert_eq!(found.map_err(|reject| reject.code()), expect, "{condition}: {said:?}");
}

/// Checks that the condition is undecided, and that the refusal names the missing part.
#[track_caller]
fn undecided(log: &LogBuilder, condition: &str, said: &str) {
    let reject = judged(log, condition).unwrap_err();
    assert_eq!(reject.code(), "condition-undecided", "{condition}");
    assert!(reject.detail().contains(said), "{condition}: {}", reject.detail());
    assert!(!reject.client_message().contains("claims"), "{}", reject.client_message());
}

fn hex(content: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&sha256(content))
}

/// A list of digests.
fn digests(contents: &[&[u8]]) -> String {
    let digests: Vec<String> = contents.iter().map(|content| format!("'{}'", hex(content))).collect();
    format!("[{}]", digests.join(", "))
}

fn signers() -> String {
    digests(&[&certificate("vendor"), &certificate("distribution")])
}

/// Returns a condition with all that can be said of the machine that boots by GRUB.
fn grub_condition() -> String {
    let images = digests(&[b"shim", b"grub", b"kernel"]);
    let files = digests(&[b"configuration", b"kernel", b"initrd"]);
    let (mok, signers) = (digests(&[b"the owner's keys"]), signers());
    format!(
        "BOOT.secure_boot && BOOT.dbx.hashes == 5 && BOOT.dbx.complete
            && size(BOOT.authorities) == 2 && BOOT.authorities.all(a, a.by == 'certificate' && a.sha256 in {signers})
            && size(BOOT.sbat_levels) == 1 && !BOOT.dma_protection_disabled
            && BOOT.images == {images} && size(BOOT.drivers) == 0 && BOOT.firmware_version == 'Firmware 1.2'
            && size(BOOT.grub) == 3 && BOOT.grub.all(g, g.text in ['set timeout=0', 'linux /vmlinuz root=LABEL=root ro', '/vmlinuz root=LABEL=root ro'])
            && BOOT.files == {files} && BOOT.mok == {mok} && BOOT.exit_boot_services == 'success'"
    )
}

/// Returns a condition with all that can be said of the machine that boots a unified kernel image.
fn uki_condition() -> String {
    let sections = [
        ("linux", hex(b"kernel")),
        ("osrel", hex(b"ID=debian")),
        ("cmdline", hex(b"root=LABEL=root ro")),
        ("initrd", hex(b"initrd")),
    ];
    let sections: Vec<String> = (0..)
        .zip(&sections)
        .map(|(place, (name, digest))| {
            format!("BOOT.uki_sections[{place}].section == '{name}' && BOOT.uki_sections[{place}].digest == '{digest}'")
        })
        .collect();
    format!(
        "BOOT.secure_boot && BOOT.authorities.all(a, a.sha256 == '{}') && BOOT.images == {} && size(BOOT.uki_sections) == 4 && {}
            && size(BOOT.kernel_config) == 1 && BOOT.kernel_config.all(k, k.text == 'extra=1') && size(BOOT.files) == 2",
        hex(&certificate("owner")),
        digests(&[b"uki"]),
        sections.join(" && ")
    )
}

#[test]
fn condition_reads_the_measured_boot() {
    check(&grub_machine(true), &grub_condition(), Ok(()));
    check(&uki_machine(), &uki_condition(), Ok(()));
    let (grub, not) = (grub_machine(true), Err("condition-not-met"));
    check(&grub_machine(false), "BOOT.secure_boot", not);
    check(&grub_machine(false), "!BOOT.secure_boot && BOOT.dbx.hashes == 5", Ok(()));
    check(&grub, "BOOT.secure_boot == false", not);
    check(&grub, "BOOT.dbx.hashes > 5", not);
    check(
        &grub,
        &format!(
            "BOOT.db.certificates == {}",
            digests(&[&certificate("vendor"), &certificate("owner")])
        ),
        Ok(()),
    );
    check(
        &grub,
        &format!("BOOT.db.certificates == {}", digests(&[&certificate("vendor")])),
        not,
    );
    check(&grub, "size(BOOT.pk.certificates) == 1 && size(BOOT.kek.certificates) == 1", Ok(()));
    check(
        &grub,
        "size(BOOT.dbx.security_versions) == 0 && size(BOOT.dbx.certificates) == 0",
        Ok(()),
    );
    check(&grub, "BOOT.authorities.all(a, a.subject == null)", Ok(()));
    check(
        &grub,
        &format!("BOOT.authorities.all(a, a.sha256 == '{}')", hex(&certificate("vendor"))),
        not,
    );
    check(&grub, "BOOT.sbat_levels.all(level, level.startsWith('sbat,1,2024010900'))", Ok(()));
    check(&grub, "BOOT.sbat_levels.all(level, level.startsWith('sbat,1,2025'))", not);
    check(&grub, "BOOT.dma_protection_disabled", not);
    check(&grub, &format!("BOOT.images[0] == '{}'", hex(b"shim")), Ok(()));
    check(&grub, &format!("BOOT.images[0] == '{}'", hex(b"grub")), not);
    check(&grub, "BOOT.firmware_version in ['Firmware 1.1', 'Firmware 1.3']", not);
    check(&grub, "BOOT.grub.all(g, !g.text.contains('init='))", Ok(()));
    check(&grub, "BOOT.grub.all(g, !g.text.contains('timeout'))", not);
    check(&grub, "BOOT.mok == []", not);
    check(&grub, "BOOT.exit_boot_services == 'not_called'", not);
    let uki = uki_machine();
    let accepted = |digest: String| format!("BOOT.uki_sections.all(s, s.section != 'cmdline' || s.digest == '{digest}')");
    check(&uki, &accepted(hex(b"root=LABEL=root ro")), Ok(()));
    check(&uki, &accepted(hex(b"root=LABEL=root rw")), not);
    check(&uki, "BOOT.kernel_config == []", not);
}

#[test]
fn attack_24_condition_refuses_each_altered_event() {
    for (good, condition, pcrs) in [
        (grub_machine(true), grub_condition(), &[2, 4, 7, 8, 9, 14][..]),
        (uki_machine(), uki_condition(), &[4, 7, 9, 11, 12]),
    ] {
        for place in 0..good.events.len() {
            let mut other = good.clone();
            for (_, digest) in &mut other.events[place].digests {
                digest[0] ^= 1;
            }
            let pcr = other.events[place].pcr;
            // Of files the condition of the UKI asks only how many there are.
            if pcrs.contains(&pcr) && (pcr, pcrs.contains(&11)) != (9, true) {
                let found = judged(&other, &condition);
                assert!(found.is_err(), "event {} of PCR {pcr}: {condition}", place + 1);
            }
            // One that is doubled, as whoever runs later can have it; of PCR 7 that may be what nobody is authorised by, and the firmware's sentences are no images.
            let doubled = good.events[place].clone();
            if pcrs.contains(&pcr) && pcr != 7 && doubled.event_type != EV_EFI_ACTION {
                let mut other = good.clone();
                other.events.push(doubled);
                let found = judged(&other, &condition);
                assert!(found.is_err(), "event {} of PCR {pcr} twice: {condition}", place + 1);
            }
        }
        let added = |pcr: u32, event_type: u32, content: &[u8]| judged(&good.clone().event(pcr, event_type, content), &condition);
        let another = variable(IMAGE_SECURITY, "db", &signature(&certificate("another")));
        assert!(added(7, VARIABLE_AUTHORITY, &another).is_err());
        assert!(added(7, EV_SEPARATOR, &[0; 4]).is_err());
        assert!(judged(&good.clone().secure_boot(true), &condition).is_err());
    }
}

/// A log that does not lead to the quoted PCRs proves nothing.
#[test]
fn attack_24_condition_reads_nothing_from_altered_logs() {
    let booted = grub_machine(true);
    let off = grub_machine(false);
    let place = |log: &LogBuilder, pcr: u32| log.events.iter().position(|event| event.pcr == pcr).unwrap();
    let changed = |change: &dyn Fn(&mut LogBuilder)| {
        let mut log = booted.clone();
        change(&mut log);
        log
    };
    let last = booted.events.len() - 1;
    let logs = [
        changed(&|log| log.events.swap(place(&booted, 7), place(&booted, 7) + 1)),
        changed(&|log| log.events.push(log.events[place(&booted, 4)].clone())),
        changed(&|log| log.events.truncate(last)),
        changed(&|log| log.events[place(&booted, 9)] = off.events[place(&off, 7)].clone()),
        changed(&|log| log.events.extend(off.events.clone())),
        off.clone(),
    ];
    for (number, sends) in logs.iter().enumerate() {
        for condition in [
            "BOOT.secure_boot",
            "!BOOT.secure_boot",
            "has(BOOT)",
            "BOOT.images.all(i, i != 'x')",
            "has(BOOT.images)",
        ] {
            let found = sent(&booted, Some(sends), condition).map_err(|reject| reject.code());
            let expect = if condition == "has(BOOT)" {
                "condition-not-met"
            } else {
                "condition-undecided"
            };
            assert_eq!(found, Err(expect), "log {number}: {condition}");
        }
    }
    // Of the loaders' PCRs nothing is known of those that it does not lead to.
    let without = changed(&|log| drop(log.events.remove(place(&booted, 8))));
    let texts = "BOOT.grub.all(g, g.text.startsWith('set') || g.text.contains('vmlinuz'))";
    assert_eq!(sent(&booted, Some(&booted), texts).map_err(|reject| reject.detail()), Ok(()));
    let reject = sent(&booted, Some(&without), texts).unwrap_err();
    assert!(
        reject
            .detail()
            .contains("claims.tpm.boot.grub is absent: the log's events do not give the quoted PCR 8"),
        "{}",
        reject.detail()
    );
    assert_eq!(
        sent(&booted, Some(&without), "BOOT.secure_boot").map_err(|reject| reject.detail()),
        Ok(())
    );
    // The order of events in different PCRs is not proven, and nothing is made of it.
    let apart = changed(&|log| log.events.sort_by_key(|event| event.pcr));
    assert_eq!(
        sent(&booted, Some(&apart), &grub_condition()).map_err(|reject| reject.detail()),
        Ok(())
    );
}

#[test]
fn boot_condition_without_event_log_is_undecided() {
    let booted = grub_machine(true);
    for condition in [
        "BOOT.secure_boot",
        "!BOOT.secure_boot",
        "BOOT.images.all(i, true)",
        &grub_condition(),
    ] {
        let reject = sent(&booted, None, condition).unwrap_err();
        assert_eq!(reject.code(), "condition-undecided");
        let said = "claims.tpm.boot is absent: no event log gives the quoted PCRs";
        assert!(reject.detail().contains(said), "{}", reject.detail());
    }
    assert_eq!(sent(&booted, None, "has(BOOT)").unwrap_err().code(), "condition-not-met");
}

/// Each text that no digest covers is marked: a condition's input contains none of them.
#[test]
fn attack_24_condition_never_reads_unmeasured_text() {
    const MARK: &str = "said by the node";
    let said = MARK.as_bytes();
    let mark16 = utf16(MARK);
    let log = grub_machine(true)
        .image("image", MARK)
        .measured(4, EV_IPL, b"an image", said)
        .measured(2, EV_IPL, b"a driver", said)
        .measured(9, EV_IPL, b"a file", said)
        .measured(12, EV_IPL, &utf16("measured"), &mark16)
        .measured(14, EV_IPL, b"keys", said)
        .measured(5, EV_IPL, b"a table", said)
        .measured(0, EV_IPL, b"firmware", said)
        .measured(7, EV_IPL, b"an authority", said);
    let uki = uki_machine()
        .measured(11, EV_IPL, b".linux\0", said)
        .measured(11, EV_IPL, b"kernel", said);
    let mut seen = 0;
    for (log, is_kept) in [(&log, true), (&uki, false)] {
        let case = machine(log, Some(log), &PCRS);
        let claims = case.verify().unwrap();
        let boot = claims.measured_boot().unwrap();
        assert_eq!(
            serde_json::to_string(boot).unwrap().contains(MARK),
            is_kept,
            "this test would see it"
        );
        for part in BootPart::ALL {
            let Ok(value) = boot.part(part, LIST_LIMIT) else { continue };
            seen += 1;
            assert!(!value.to_string().contains(MARK), "{}: {value}", part.name());
        }
    }
    assert!(seen > 20, "{seen}");
    // A text under another's digest is not seen as it, and there is no other.
    let forged = grub_machine(true).measured(8, EV_IPL, b"evil", b"grub_cmd: set timeout=0\0");
    undecided(&forged, "BOOT.grub.all(g, g.text != 'evil')", "is not a text of GRUB's");
    let forged = uki_machine().measured(12, EV_IPL, &utf16("init=/bin/sh"), &utf16("extra=1\0"));
    undecided(&forged, "BOOT.kernel_config.all(k, k.text == 'extra=1')", "text");
    check(&forged, "BOOT.kernel_config.all(k, has(k.text))", Err("condition-not-met"));
    // Nor is Secure Boot's state that somebody has added behind a boot without.
    let forged = grub_machine(false).secure_boot(true);
    undecided(&forged, "BOOT.secure_boot", "claims.tpm.boot.secure_boot");
    let forged = grub_machine(false).event(
        7,
        VARIABLE_AUTHORITY,
        &variable(IMAGE_SECURITY, "db", &signature(&certificate("vendor"))),
    );
    undecided(
        &forged,
        &format!("BOOT.authorities.all(a, a.sha256 in {})", signers()),
        "Secure Boot was off",
    );
}

/// "All of them" holds of none.
#[test]
fn attack_24_condition_is_undecided_for_missing_measurements() {
    for (part, pcr) in [("images", 4), ("grub", 8), ("files", 9), ("uki_sections", 11), ("authorities", 7)] {
        let mut log = if pcr == 11 { uki_machine() } else { grub_machine(true) };
        log.events.retain(|event| {
            event.pcr != pcr || (event.pcr < 8 && event.event_type != VARIABLE_AUTHORITY && event.event_type != 0x8000_0003)
        });
        undecided(
            &log,
            &format!("BOOT.{part}.all(x, x == 'accepted')"),
            &format!("claims.tpm.boot.{part} is absent: PCR {pcr} has no "),
        );
    }
    let mut without = uki_machine();
    without.events.retain(|event| event.pcr != 12);
    check(
        &without,
        "size(BOOT.kernel_config) == 0 && size(BOOT.drivers) == 0 && size(BOOT.mok) == 0",
        Ok(()),
    );
}

#[test]
fn condition_on_an_oversized_boot_list_is_undecided() {
    let texts = |count: usize, bytes: usize| {
        let mut log = grub_machine(true);
        log.events.retain(|event| event.pcr != 8);
        (0..count).fold(log, |log, number| log.grub(&format!("{number:0bytes$}")))
    };
    let many = texts(LIST_LIMIT + 1, 4);
    let refused = "claims.tpm.boot.grub: it has 129 elements, more than 128";
    undecided(&many, "BOOT.grub.all(g, g.text != 'x')", refused);
    // Nor can whoever boots get past what asks whether it is there.
    undecided(&many, "!has(BOOT.grub) || BOOT.grub.all(g, g.text != 'x')", refused);
    undecided(&many, "BOOT.secure_boot || has(BOOT.grub)", refused);
    check(&many, "BOOT.secure_boot && size(BOOT.images) == 3", Ok(()));
    check(&texts(LIST_LIMIT, 4), "BOOT.grub.all(g, g.text != 'x')", Ok(()));
    // A text that is not kept whole is none; and all of them together are bounded.
    let long = texts(1, TEXT_LIMIT_BYTES);
    undecided(&long, "BOOT.grub.all(g, g.text != 'x')", "text");
    undecided(
        &texts(LIST_LIMIT, 2048),
        "BOOT.grub.all(g, g.text != 'x')",
        "a text in the claims has",
    );
    check(&texts(LIST_LIMIT, 2048), "BOOT.secure_boot", Ok(()));
}

/// Parts of the claims that an expression does not name are unchanged by the boot's presence.
#[test]
fn condition_reads_the_boot_only_by_name() {
    let log = grub_machine(true);
    check(&log, "claims.tpm.all(member, member != 'boot')", Ok(()));
    check(&log, "claims.tpm.exists(member, member == 'boot') && has(BOOT)", Ok(()));
    // As a record has them, there is none of it.
    let case = machine(&log, Some(&log), &PCRS);
    let claims = serde_json::to_value(case.verify().unwrap()).unwrap();
    assert!(Condition::parse("has(claims.tpm.boot)").unwrap().evaluate(&claims) == Ok(false));
}

/// `has()` of a member that never exists is false for each boot, and a condition that negates it would accept all.
#[test]
fn boot_by_another_path_is_refused_when_loaded() {
    for condition in [
        "!has(claims['tpm'].boot.secure_boot)",
        "BOOT.secure_boot && !has(claims['tpm'].boot)",
        "!has(claims.tpm.event_log.boot)",
        "!has(claims.tpm['boot'].secure_boot)",
        "claims['tpm']['boot'].secure_boot",
    ] {
        let policy = AppraisalPolicy::new(vec![Kind::Tpm.into()], rules(condition, &PCRS));
        assert!(matches!(policy, Err(PolicyError::Condition(_))), "{condition}");
    }
}

#[test]
fn condition_on_impossible_claims_is_refused_when_loaded() {
    let log = grub_machine(true);
    let refused = |condition: &str, pcrs: &[u8], said: &str| {
        match AppraisalPolicy::new(vec![Kind::Tpm.into()], rules(condition, pcrs)) {
            Err(PolicyError::Condition(problem)) => assert!(problem.contains(said), "{problem}"),
            other => panic!("{condition}: {other:?}"),
        }
        // As a record of before has it: it is decided as it was.
        let mut written = serde_json::to_value(AppraisalPolicy::new(vec![Kind::Tpm.into()], rules("true", pcrs)).unwrap()).unwrap();
        written["condition"] = condition.replace("BOOT", "claims.tpm.boot").into();
        let read: AppraisalPolicy = serde_json::from_value(written).unwrap();
        let case = machine(&log, Some(&log), pcrs);
        let reject = appraise(case.verify().unwrap(), &read, at(case.now)).unwrap_err();
        assert_eq!(reject.code(), "condition-undecided", "{condition}");
    };
    refused("BOOT.secureboot", &PCRS, "claims.tpm.boot.secureboot does not exist");
    refused("BOOT.events.all(e, true)", &PCRS, "claims.tpm.boot.events does not exist");
    refused("BOOT.all(part, part == 'x')", &PCRS, "name a part");
    refused("BOOT['images'] == []", &PCRS, "name a part");
    for elsewhere in [
        "claims['tpm'].boot.secure_boot",
        "BOOT.secure_boot && claims['tpm'].boot.images == []",
        "claims.tpm.event_log.boot.secure_boot",
        "claims.tpm['boot']['secure_boot']",
        "has(BOOT) && claims.tpm['boot']['secure_boot']",
    ] {
        refused(elsewhere, &PCRS, "must be written as claims.<kind>.boot.<part>");
    }
    refused("claims.gcp.boot.secure_boot", &PCRS, "claims.gcp.boot does not exist");
    refused(
        "claims.aws_nitro_tpm.boot.images == []",
        &PCRS,
        "claims.aws_nitro_tpm.boot does not exist",
    );
    refused("claims.pool.boot.images == []", &PCRS, "claims.pool.boot does not exist");
    for part in BootPart::ALL {
        let pcrs: Vec<u8> = PCRS.into_iter().filter(|pcr| *pcr != part.pcr()).collect();
        refused(
            &format!("BOOT.{} == []", part.name()),
            &pcrs,
            &format!("PCR {}, which is not in pcrs of [tpm]", part.pcr()),
        );
        assert_eq!(BootPart::named(part.name()), Some(part));
    }
}
