//! Detection of machines that are refused only because of values that no set has.

use attest::new_values::{NEW_VALUES_LIMIT, new_values};

use super::*;

/// Returns the keys of the new values in this boot, with the values in `known` accepted until `expires`.
fn new_in(log: &LogBuilder, checks: &[Check], known: Values, expires: Option<u64>) -> Option<Vec<String>> {
    let (case, claims) = claims(log);
    let policy = policy(checks, &sets(vec![generation("known", 1, expires, known)]));
    let found = new_values(&claims, &policy, at(case.now))?;
    Some(found.iter().map(|value| value.key()).collect())
}

fn key(list: &str, content: &[u8]) -> String {
    format!("{list} sha256 {}", data_encoding::HEXLOWER.encode(&sha256(content)))
}

#[test]
fn new_values_of_an_update_are_found() {
    let known = grub_machine(true);
    let updated = with(
        &with(&known, 8, b"linux /vmlinuz-2", b"grub_cmd: linux /vmlinuz-2"),
        9,
        b"initrd 2",
        b"/initrd-2",
    );
    // In the order of keys.
    let expect = vec![key("files", b"initrd 2"), key("grub", b"linux /vmlinuz-2")];
    assert_eq!(new_in(&updated, &OF_GRUB, values_of(&known), None), Some(expect));
    assert_eq!(new_in(&known, &OF_GRUB, values_of(&known), None), None);
    // What is not asked about is not new.
    assert_eq!(new_in(&updated, &[Check::Images], values_of(&known), None), None);
}

#[test]
fn accepting_new_values_admits_the_machine() {
    let known = grub_machine(true);
    let updated = with(&known, 9, b"initrd 2", b"/initrd-2");
    let (case, claims) = claims(&updated);
    let old = generation("old", 1, None, values_of(&known));
    let found = new_values(&claims, &policy(&OF_GRUB, &sets(vec![old.clone()])), at(case.now)).unwrap();
    let mut values = Values::default();
    found.iter().for_each(|value| value.add_to(&mut values));
    let with_it = policy(&OF_GRUB, &sets(vec![old.clone(), generation("new", 2, None, values.clone())]));
    assert!(appraise(claims.clone(), &with_it, at(case.now)).is_ok());
    assert_eq!(new_values(&claims, &with_it, at(case.now)), None);
    // It has lapsed since: somebody has said until when.
    let lapsed = policy(&OF_GRUB, &sets(vec![old, generation("new", 2, Some(3), values)]));
    assert_eq!(new_values(&claims, &lapsed, at(case.now)), None);
}

#[test]
fn new_uki_section_is_found_by_section_name() {
    let known = uki_machine();
    let mut values = values_of(&known);
    let linux = values.uki_sections.iter().position(|value| value.section == "linux").unwrap();
    let digest = values.uki_sections.remove(linux).digests[&BANK].to_string();
    assert_eq!(
        new_in(&known, &OF_UKI, values.clone(), None),
        Some(vec![format!("uki_sections .linux sha256 {digest}")])
    );
    // As another section it is known, and as this one it is not.
    let mut moved = values.uki_sections[0].clone();
    moved.digests = [(BANK, attest::values::HexDigest::from_hex(&digest).unwrap())].into();
    values.uki_sections.push(moved);
    assert_eq!(
        new_in(&known, &OF_UKI, values, None),
        Some(vec![format!("uki_sections .linux sha256 {digest}")])
    );
}

#[test]
fn firmware_versions_and_whole_pcrs_are_new_values() {
    let log = grub_machine(true);
    let mut known = values_of(&log);
    let version = std::mem::replace(&mut known.firmware_versions, vec!["another".to_owned()]).remove(0);
    let expect = vec![format!("firmware_versions {version:?}")];
    assert_eq!(new_in(&log, &OF_GRUB, known, None), Some(expect));

    let (case, claims) = claims(&log);
    let whole = || values(&[], [(4, AcceptedValues::ReferenceValues)].into());
    let mut other = values_of(&log);
    let pcr = other.pcrs.iter_mut().find(|value| value.pcr == 4).unwrap();
    let quoted = std::mem::replace(&mut pcr.digests, [(BANK, [7; 32].into())].into());
    let policy = AppraisalPolicy::for_tpm(whole());
    let policy = policy
        .with_reference_sets(&sets(vec![generation("other", 1, None, other)]))
        .unwrap();
    let found = new_values(&claims, &policy, at(case.now)).unwrap();
    assert_eq!(
        found.iter().map(|value| value.key()).collect::<Vec<_>>(),
        [format!("pcr-4 sha256 {}", quoted[&BANK])]
    );
    assert_eq!(found[0].to_string(), format!("PCR 4: sha256 {}…", &quoted[&BANK].to_string()[..16]));
}

#[test]
fn other_refusals_suppress_new_values() {
    let known = grub_machine(true);
    let update = |log: &LogBuilder| with(log, 9, b"initrd 2", b"/initrd-2");
    let updated = update(&known);
    let all = || values_of(&known);
    assert!(new_in(&updated, &OF_GRUB, all(), None).is_some());
    // Secure Boot is off; dbx is older; nothing was measured that has to be; what is known has lapsed.
    assert_eq!(new_in(&update(&grub_machine(false)), &OF_GRUB, all(), None), None);
    let mut newer_dbx = all();
    newer_dbx.dbx = hashes(50).into_iter().map(Into::into).collect();
    assert_eq!(new_in(&updated, &OF_GRUB, newer_dbx, None), None);
    let mut with_sections = all();
    with_sections.uki_sections = values_of(&uki_machine()).uki_sections;
    assert_eq!(new_in(&updated, &[Check::Files, Check::UkiSections], with_sections, None), None);
    assert_eq!(new_in(&updated, &OF_GRUB, all(), Some(2)), None);

    // Another log than that of this boot; none; and one of its digests altered.
    let policy = || policy(&OF_GRUB, &sets(vec![generation("known", 1, None, all())]));
    let mut forged = updated.clone();
    let last = forged.events.len() - 1;
    forged.events[last] = with(&known, 9, b"initrd 3", b"/initrd-2").events[last].clone();
    for sent in [Some(&forged), Some(&known), None] {
        let case = machine(&updated, sent);
        if let Ok(claims) = case.verify() {
            assert_eq!(new_values(&claims, &policy(), at(case.now)), None);
        }
    }

    // A PCR of pool.toml's own that is another; and a log that has to be there, and is.
    let (case, claims) = claims(&updated);
    let of_toml = |digest: attest::values::HexDigest| {
        let values = values(&OF_GRUB, [(4, AcceptedValues::AnyOf(vec![digest]))].into()).with_event_log(EventLogRule::Required);
        let policy = AppraisalPolicy::for_tpm(values).with_reference_sets(&sets(vec![generation("known", 1, None, all())]));
        new_values(&claims, &policy.unwrap(), at(case.now))
    };
    assert!(of_toml(updated.pcrs(BANK)[&4].clone()).is_some());
    assert!(of_toml([7; 32].into()).is_none());
}

#[test]
fn too_many_new_values_are_not_offered() {
    let known = grub_machine(true);
    let with_files = |count: usize| (0..count).fold(known.clone(), |log, file| with(&log, 9, format!("file {file}").as_bytes(), b"/f"));
    let new = |count| new_in(&with_files(count), &OF_GRUB, values_of(&known), None).map(|found| found.len());
    assert_eq!(new(NEW_VALUES_LIMIT), Some(NEW_VALUES_LIMIT));
    assert_eq!(new(NEW_VALUES_LIMIT + 1), None);
    // The same twice is one.
    let twice = with(&with(&known, 9, b"x", b"/a"), 9, b"x", b"/b");
    assert_eq!(new_in(&twice, &OF_GRUB, values_of(&known), None), Some(vec![key("files", b"x")]));
}
