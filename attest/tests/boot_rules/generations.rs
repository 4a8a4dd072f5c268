//! Choice of the generations that count, and their expiry.

use super::*;
use attest::tpm::TpmEvidenceError;
use attest::tpm::rules::BootRefusal;

#[test]
fn dbx_must_include_one_generation() {
    let log = grub_machine(true);
    let with_dbx = |hashes: &[[u8; 32]]| Values {
        dbx: hashes.iter().map(|hash| (*hash).into()).collect(),
        ..Values::default()
    };
    let check = |generations: Vec<Generation>, expect: Result<(), &str>| {
        let (case, claims) = claims(&log);
        let judged = appraise(claims, &policy(&[Check::Dbx], &sets(generations)), at(case.now));
        assert_eq!(judged.map(drop).map_err(|reject| reject.code()), expect);
    };
    check(vec![generation("all", 1, None, with_dbx(&hashes(5)))], Ok(()));
    check(vec![generation("fewer", 1, None, with_dbx(&hashes(2)))], Ok(()));
    check(vec![generation("more", 1, None, with_dbx(&hashes(6)))], Err("dbx-too-old"));
    check(
        vec![
            generation("more", 2, None, with_dbx(&hashes(6))),
            generation("fewer", 1, None, with_dbx(&hashes(2))),
        ],
        Ok(()),
    );
    check(
        vec![
            generation("more", 2, None, with_dbx(&hashes(6))),
            generation("fewer", 1, Some(2), with_dbx(&hashes(2))),
        ],
        Err("dbx-too-old"),
    );
}

#[test]
fn update_adds_a_generation_and_the_old_expires() {
    let before = grub_machine(true);
    let mut after = before.clone();
    let kernel = after
        .events
        .iter()
        .position(|event| event.digests.iter().any(|(_, digest)| *digest == sha256(b"kernel")));
    let kernel = after.events.iter().rposition(|event| event.pcr == 4).or(kernel).unwrap();
    after.events[kernel] = image("kernel 2").events[0].clone();
    let now = Case::new(SoftKey::p256()).now;
    let generations = |expires: u64| {
        sets(vec![
            generation("kernel 1", 10, Some(expires), values_of(&before)),
            generation("kernel 2", 20, None, values_of(&after)),
        ])
    };
    let check = |log: &LogBuilder, expires: u64, expect: Result<(), &[&str]>| {
        let (case, claims) = claims(log);
        let judged = appraise(claims, &policy(&[Check::Images], &generations(expires)), at(case.now));
        match (judged, expect) {
            (Ok(_), Ok(())) => {}
            (Err(reject), Err(words)) => {
                assert_eq!(reject.code(), "boot-not-accepted");
                for word in words {
                    assert!(reject.detail().contains(word), "{word} is not in {}", reject.detail());
                    assert!(!reject.client_message().contains(word), "{word} is told");
                }
            }
            (judged, expect) => panic!("{judged:?} instead of {expect:?}"),
        }
    };
    check(&before, now + 1, Ok(()));
    check(&after, now + 1, Ok(()));
    let lapsed = Time { at: now }.to_string();
    check(
        &before,
        now,
        Err(&[&format!("until it expired at {lapsed}"), "kernel 2", "since 1970-01-01T00:00:20Z"]),
    );
    check(&after, now, Ok(()));
    let neither = before.clone().image("kernel 3", "");
    check(&neither, now + 1, Err(&["kernel 2", "3 more"]));
}

#[test]
fn pcr_values_come_from_reference_sets() {
    let log = grub_machine(true);
    let pcrs = BTreeMap::from([(4, AcceptedValues::ReferenceValues), (7, AcceptedValues::ReferenceValues)]);
    let sets = sets(vec![generation("this one", 1, None, values_of(&log))]);
    let policy = AppraisalPolicy::for_tpm(values(&[], pcrs)).with_reference_sets(&sets).unwrap();
    let check = |log: &LogBuilder, expect: Result<(), &str>| {
        let (case, claims) = claims(log);
        let judged = appraise(claims, &policy, at(case.now));
        assert_eq!(judged.map(drop).map_err(|reject| reject.code()), expect);
    };
    check(&log, Ok(()));
    check(&log.clone().event(5, EV_IPL, b"not checked"), Ok(()));
    check(&log.clone().image("one more", ""), Err("pcr-mismatch"));
    check(&log.clone().event(7, EV_IPL, b"one more"), Err("pcr-mismatch"));
}

#[test]
fn unsatisfiable_rules_are_refused_when_loaded() {
    let log = grub_machine(true);
    let all = sets(vec![generation("this one", 1, None, values_of(&log))]);
    let none = Arc::new(ReferenceSets::default());
    let with = |checks: &[Check], sets: &Arc<ReferenceSets>| {
        AppraisalPolicy::for_tpm(values(checks, BTreeMap::new()))
            .with_reference_sets(sets)
            .map(drop)
    };
    assert_eq!(with(&OF_GRUB, &all), Ok(()));
    assert!(
        with(&[Check::UkiSections], &all)
            .unwrap_err()
            .contains("[tpm]: no generation has a value for uki-sections (sha256)")
    );
    assert!(with(&[Check::Images], &none).unwrap_err().contains("images"));
    assert_eq!(with(&[Check::SecureBoot], &none), Ok(()));
    assert!(with(&[], &all).unwrap_err().contains("no rule uses reference values"));
    let pcr = |accepted| values(&[], BTreeMap::from([(4, accepted)]));
    assert!(
        AppraisalPolicy::for_tpm(pcr(AcceptedValues::ReferenceValues))
            .with_reference_sets(&none)
            .is_err()
    );
    let sha384 = PCRS.map(|pcr| (pcr, AcceptedValues::NotChecked)).into();
    let sha384 = ReferenceValues::new(HashAlg::Sha384, sha384)
        .unwrap()
        .with_boot(vec![Check::Images])
        .unwrap();
    assert!(
        AppraisalPolicy::for_tpm(sha384)
            .with_reference_sets(&all)
            .unwrap_err()
            .contains("images (sha384)")
    );

    let firmware = |checks: &[Check]| {
        let pcrs = (0..8).map(|pcr| (pcr, AcceptedValues::NotChecked)).collect();
        ReferenceValues::new(BANK, pcrs)
            .unwrap()
            .with_boot(checks.to_vec())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(firmware(&[Check::Images, Check::SecureBoot]), Ok(()));
    assert!(firmware(&[Check::Grub]).unwrap_err().contains("PCR 8, which is not in pcrs"));
    assert!(firmware(&[Check::Images, Check::Images]).unwrap_err().contains("named twice"));
}

#[test]
fn policy_refers_to_reference_sets_by_digest() {
    let log = grub_machine(true);
    let sets = sets(vec![generation("this one", 1, None, values_of(&log))]);
    let policy = policy(&[Check::Images], &sets);
    let written = serde_json::to_value(&policy).unwrap();
    assert_eq!(written["tpm"]["boot"], json!(["images"]));
    assert_eq!(written["reference_sets"], json!([sets.digests().next().unwrap()]));
    // Read again it accepts nothing, before somebody gives it the sets.
    let read: AppraisalPolicy = serde_json::from_value(written).unwrap();
    let (case, claims) = claims(&log);
    assert_eq!(
        appraise(claims.clone(), &read, at(case.now)).unwrap_err().code(),
        "boot-not-accepted"
    );
    let given = read.with_reference_sets(&sets).unwrap();
    assert_eq!(given, policy);
    assert!(appraise(claims, &given, at(case.now)).is_ok());
}
fn refused(log: &LogBuilder, checks: &[Check], sets: &Arc<ReferenceSets>) -> BootRefusal {
    let (case, claims) = claims(log);
    match appraise(claims, &policy(checks, sets), at(case.now)).unwrap_err() {
        Reject::Tpm(TpmEvidenceError::Boot(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The same machine with another kernel in its unified kernel image.
fn uki_with(kernel: &[u8]) -> LogBuilder {
    let mut log = uki_machine();
    let place = log.events.iter().position(|event| event.pcr == 11).unwrap() + 1;
    let other = log.clone().section(".linux", kernel);
    log.events[place] = other.events.last().unwrap().clone();
    log
}

/// A section is compared with the values that are accepted for that section, the newest first.
#[test]
fn refused_section_is_compared_with_its_accepted_values() {
    let hex = |content: &[u8]| data_encoding::HEXLOWER.encode(&sha256(content));
    let sets = sets(vec![
        generation("first", 10, None, values_of(&uki_machine())),
        generation("second", 20, None, values_of(&uki_with(b"kernel 2"))),
    ]);
    let detail = |refusal: BootRefusal| Reject::from(refusal).detail();
    let refusal = refused(&uki_with(b"kernel 3"), &[Check::UkiSections], &sets);
    let now = detail(refusal);
    let accepted = format!(
        "; the pool accepts since 1970-01-01T00:00:20Z: \"second\" (.linux {}); since 1970-01-01T00:00:10Z: \"first\" (.linux {})",
        hex(b"kernel 2"),
        hex(b"kernel")
    );
    assert!(now.ends_with(&accepted), "{now}");
    let other = uki_machine().section(".splash", b"picture");
    let now = detail(refused(&other, &[Check::UkiSections], &sets));
    assert!(now.ends_with("(.splash); the pool accepts no .splash now"), "{now}");
}

/// A long text is shown by its beginning and its end, which has any text that was typed in.
#[test]
fn long_text_is_abbreviated_in_the_middle() {
    let check = |log: &LogBuilder, checked: Check, shown: &str| {
        let accepted = sets(vec![generation("first", 10, None, values_of(&grub_machine(true)))]);
        let refusal = refused(log, &[checked], &accepted);
        assert!(refusal.to_string().contains(shown), "{refusal}");
    };
    let (fits, longer) = ("a".repeat(240), format!("{}{}init=/bin/sh", "a".repeat(120), "b".repeat(200)));
    let parts = format!("\"{}\"…\"{}init=/bin/sh\"", "a".repeat(60), "b".repeat(168));
    check(&grub_machine(true).grub(&fits), Check::Grub, &format!("(\"{fits}\")"));
    check(&grub_machine(true).grub(&longer), Check::Grub, &format!("({parts})"));
    // A text's own mark is in the quotation marks.
    check(&grub_machine(true).grub("a…"), Check::Grub, "(\"a…\")");
    let named = |name: &str| with(&grub_machine(true), 9, b"other", name.as_bytes());
    check(&named(&fits), Check::Files, &format!("; the node names it \"{fits}\""));
    check(&named(&longer), Check::Files, &format!("; the node names it {parts}"));
    let mut firmware = grub_machine(true);
    let version = crate::measured_boot::machine::utf16(&longer);
    firmware.events[0] = LogBuilder {
        events: Vec::new(),
        ..firmware.clone()
    }
    .event(0, 8, &version)
    .events[0]
        .clone();
    check(&firmware, Check::FirmwareVersion, &format!("version {parts} is not accepted"));
}

/// The log and the record show the part in which a long text differs from an accepted one. The node does not get it, for it would learn
/// what is accepted.
#[test]
fn differing_part_of_a_long_text_is_logged() {
    let line = |added: &str| format!("linux /vmlinuz {}{added} {} ro", "root=LABEL=root ".repeat(20), "rw ".repeat(100));
    let good = grub_machine(true).grub(&line(""));
    let (_, of_good) = claims(&good);
    let boot = of_good.tpm().unwrap().event_log.as_ref().unwrap().boot.clone().unwrap();
    let values = attest::tpm::rules::RecordedValues::from_boot(&boot, &BTreeMap::new(), false).values;
    let accepted = sets(vec![generation("first", 10, None, values)]);
    let refusal = refused(&grub_machine(true).grub(&line("init=/bin/sh")), &[Check::Grub], &accepted);
    assert!(
        !refusal.to_string().contains("init=/bin/sh") && !refusal.to_string().contains("unlike"),
        "{refusal}"
    );
    let detail = Reject::from(refusal).detail();
    let part = "; unlike \"linux /vmlinuz ";
    assert!(detail.contains(part), "{detail}");
    let (_, part) = detail.split_once(part).unwrap();
    assert!(
        part.contains(" this has …\"") && part.contains("init=/bin/sh") && part.ends_with("\"…"),
        "{part}"
    );
    // A short one is shown in full.
    let detail = Reject::from(refused(&grub_machine(true).grub("linux /other"), &[Check::Grub], &accepted)).detail();
    assert!(!detail.contains("unlike"), "{detail}");
}

/// A pool begins with a rule by observing: its values are recorded meanwhile.
#[test]
fn observing_pool_may_lack_reference_values() {
    let log = grub_machine(true);
    let (case, claims) = claims(&log);
    let checks = [Check::SecureBoot, Check::Images, Check::Dbx, Check::FirmwareVersion];
    let whole = [(4, AcceptedValues::ReferenceValues)].into();
    let policy = AppraisalPolicy::for_tpm(super::values(&checks, whole));
    let refused = policy.clone().with_reference_sets(&Arc::default()).unwrap_err();
    assert!(
        refused.contains("[tpm]: no generation has a value for PCR 4") && refused.contains("observe = true"),
        "{refused}"
    );
    let observing = policy.observing().with_reference_sets(&Arc::default()).unwrap();
    assert_eq!(observing.without_values().len(), 4, "{:?}", observing.without_values());
    assert_eq!(observing.reference_values().unwrap().lapses(), None);
    let result = appraise(claims.clone(), &observing, at(case.now)).unwrap();
    let codes: Vec<&str> = result.would_refuse().iter().map(Reject::code).collect();
    assert_eq!(codes, ["pcr-mismatch", "boot-not-accepted", "dbx-too-old", "firmware-not-accepted"]);
    // What it records is refused as soon as it is strict.
    assert_eq!(
        appraise(claims, &observing.strict(), at(case.now)).unwrap_err().code(),
        "pcr-mismatch"
    );
}
