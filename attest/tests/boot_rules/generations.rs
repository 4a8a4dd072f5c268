//! Which generations are looked in, and when they have lapsed.

use super::*;

#[test]
fn dbx_has_at_least_what_one_generation_has() {
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
fn an_update_is_a_generation_more_and_the_old_one_lapses() {
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
                    assert!(!reject.told().contains(word), "{word} is told");
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
        Err(&[&format!("until {lapsed}, when it lapsed"), "kernel 2", "since 1970-01-01T00:00:20Z"]),
    );
    check(&after, now, Ok(()));
    let neither = before.clone().image("kernel 3", "");
    check(&neither, now + 1, Err(&["kernel 2", "3 more"]));
}

#[test]
fn whole_pcrs_are_compared_by_the_same_sets() {
    let log = grub_machine(true);
    let pcrs = BTreeMap::from([(4, Accepted::ReferenceValues), (7, Accepted::ReferenceValues)]);
    let sets = sets(vec![generation("this one", 1, None, values_of(&log))]);
    let policy = AppraisalPolicy::of_tpm(values(&[], pcrs)).with_reference_sets(&sets).unwrap();
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
fn what_cannot_be_met_is_refused_when_it_is_loaded() {
    let log = grub_machine(true);
    let all = sets(vec![generation("this one", 1, None, values_of(&log))]);
    let none = Arc::new(ReferenceSets::default());
    let with = |checks: &[Check], sets: &Arc<ReferenceSets>| {
        AppraisalPolicy::of_tpm(values(checks, BTreeMap::new()))
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
    assert!(with(&[], &all).unwrap_err().contains("no rule looks for reference values"));
    let pcr = |accepted| values(&[], BTreeMap::from([(4, accepted)]));
    assert!(
        AppraisalPolicy::of_tpm(pcr(Accepted::ReferenceValues))
            .with_reference_sets(&none)
            .is_err()
    );
    let sha384 = PCRS.map(|pcr| (pcr, Accepted::NotChecked)).into();
    let sha384 = ReferenceValues::new(HashAlg::Sha384, sha384)
        .unwrap()
        .with_boot(vec![Check::Images])
        .unwrap();
    assert!(
        AppraisalPolicy::of_tpm(sha384)
            .with_reference_sets(&all)
            .unwrap_err()
            .contains("images (sha384)")
    );

    let firmware = |checks: &[Check]| {
        let pcrs = (0..8).map(|pcr| (pcr, Accepted::NotChecked)).collect();
        ReferenceValues::new(BANK, pcrs)
            .unwrap()
            .with_boot(checks.to_vec())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(firmware(&[Check::Images, Check::SecureBoot]), Ok(()));
    assert!(firmware(&[Check::Grub]).unwrap_err().contains("PCR 8, which is not named"));
    assert!(firmware(&[Check::Images, Check::Images]).unwrap_err().contains("named twice"));
}

#[test]
fn a_policy_names_its_sets_by_their_digests() {
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
