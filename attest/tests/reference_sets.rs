//! Files of reference values: what is read, and what is refused.

mod corim;

use attest::reference_sets::{
    GENERATIONS_LIMIT, Generation, NAME_LIMIT_BYTES, ReferenceSet, ReferenceSetError, SET_LIMIT_BYTES, Time, VALUES_LIMIT,
};
use serde_json::{Value, json};

fn digest(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

/// A set with everything.
pub fn good() -> Value {
    json!({
        "format": "attest-reference-values/1",
        "generations": [{
            "name": "grubx64 2.06-98",
            "added": "2026-05-03T10:00:00Z",
            "by": "root@cp1",
            "from": {"recorded": {"node": "worker-0", "record": "0123456789abcdef0123456789abcdef"}},
            "expires": "2026-06-03T10:00:00Z",
            "values": {
                "pcrs": [{"pcr": 4, "digests": {"sha256": digest(1), "sha384": "22".repeat(48)}}],
                "images": [{"digests": {"sha256": digest(2)}, "name": "grubx64"}],
                "drivers": [{"digests": {"sha256": digest(3)}}],
                "authorities": [{"digests": {"sha256": digest(4)}, "name": "Debian Secure Boot CA"}],
                "dbx": [digest(5)],
                "grub": [{"digests": {"sha256": digest(6)}}],
                "files": [{"digests": {"sha256": digest(7)}}],
                "uki_sections": [{"section": "linux", "digests": {"sha256": digest(8)}}],
                "kernel_config": [{"digests": {"sha256": digest(9)}}],
                "mok": [{"digests": {"sha256": digest(10)}}],
                "firmware_versions": ["edk2-stable202511"],
            },
        }],
    })
}

/// Returns the set with one member changed or removed.
fn but(pointer: &str, value: Option<Value>) -> Value {
    let mut set = good();
    let (parent, member) = pointer.rsplit_once('/').unwrap();
    let parent = set.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => drop(parent.insert(member.to_owned(), value)),
        None => drop(parent.remove(member).unwrap()),
    }
    set
}

#[test]
fn reference_set_round_trips_through_json() {
    let set = ReferenceSet::parse(&good().to_string()).unwrap();
    let written = set.to_json().unwrap();
    assert_eq!(ReferenceSet::parse(&written).unwrap(), set);
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), good());
    for from in [
        json!("by_hand"),
        json!({"predicted": {"files": ["vmlinuz sha256:ab"]}}),
        json!({"imported": {"file": "vendor.json"}}),
    ] {
        let set = but("/generations/0/from", Some(from.clone()));
        let read = ReferenceSet::parse(&set.to_string()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), set, "{from}");
    }
    let endless = but("/generations/0/expires", None);
    assert!(ReferenceSet::parse(&endless.to_string()).unwrap().generations[0].is_accepted_at(u64::MAX));
    let none = json!({"format": "attest-reference-values/1", "generations": []});
    assert_eq!(ReferenceSet::parse(&none.to_string()), Ok(ReferenceSet::default()));
}

#[test]
fn reports_the_defect_of_an_invalid_set() {
    let check = |set: Value, expect: &str| {
        let error = ReferenceSet::parse(&set.to_string()).unwrap_err();
        assert!(
            format!("{error:?} {error}").contains(expect),
            "{expect} is not in {error:?} {error}"
        );
    };
    let with = |pointer: &str, value: Value| but(&format!("/generations/0{pointer}"), Some(value));
    check(but("/format", None), "format");
    check(
        but("/format", Some(json!("attest-reference-values/2"))),
        "attest-reference-values/1",
    );
    check(but("/more", Some(json!(1))), "more");
    for member in ["name", "added", "by", "from", "values"] {
        check(but(&format!("/generations/0/{member}"), None), member);
    }
    check(with("/more", json!(1)), "more");
    check(with("/name", json!("")), "Name");
    check(with("/name", json!("a\nb")), "Name");
    check(with("/name", json!("a".repeat(NAME_LIMIT_BYTES + 1))), "Name");
    check(with("/by", json!("\u{1b}[2J")), "Name");
    check(with("/added", json!("yesterday")), "is not a time such as");
    check(with("/added", json!("1969-12-31T00:00:00Z")), "is not a time such as");
    check(with("/expires", json!("2026-05-03T09:59:59Z")), "Expires");
    check(with("/from", json!("a dream")), "unknown variant");
    check(with("/from", json!({"recorded": {"node": "worker-0"}})), "record");
    check(with("/from", json!({"recorded": {"node": "a\nb", "record": "1"}})), "Name");
    check(with("/from", json!({"predicted": {"files": [""]}})), "Name");
    check(with("/from", json!({"imported": {"file": ""}})), "Name");
    check(with("/values", json!({})), "Empty");
    check(with("/values/more", json!([])), "more");
    check(
        with("/values/pcrs", json!([{"pcr": 24, "digests": {"sha256": digest(1)}}])),
        "NoSuchPcr",
    );
    check(with("/values/pcrs", json!([{"pcr": 4, "digests": {}}])), "NoDigest");
    check(
        with("/values/pcrs", json!([{"pcr": 4, "digests": {"sha384": digest(1)}}])),
        "Digest",
    );
    check(with("/values/images", json!([{"digests": {"sha1": "11".repeat(20)}}])), "sha1");
    check(with("/values/images", json!([{"digests": {"sha256": "11"}}])), "hexadecimal digits");
    check(with("/values/images", json!([{"digests": {"sha256": "22".repeat(48)}}])), "Digest");
    check(
        with("/values/images", json!([{"digests": {"sha256": digest(1)}, "name": "a\tb"}])),
        "Name",
    );
    check(
        with("/values/authorities", json!([{"digests": {"sha384": "22".repeat(48)}}])),
        "Digest",
    );
    check(with("/values/dbx", json!(["22".repeat(48)])), "Digest");
    check(
        with("/values/uki_sections", json!([{"section": "", "digests": {"sha256": digest(1)}}])),
        "Name",
    );
    check(with("/values/firmware_versions", json!([""])), "Name");
    check(with("/values/dbx", json!(vec![digest(1); VALUES_LIMIT + 1])), "TooManyValues");
    let generation = good()["generations"][0].clone();
    check(but("/generations", Some(json!([generation, generation]))), "Repeated");
    let named = |number: usize| {
        let mut generation = generation.clone();
        generation["name"] = json!(number.to_string());
        generation
    };
    let many = |count: usize| but("/generations", Some((0..count).map(named).collect()));
    assert!(ReferenceSet::parse(&many(GENERATIONS_LIMIT).to_string()).is_ok());
    check(many(GENERATIONS_LIMIT + 1), "TooManyGenerations");
    let large = format!("{}{}", good(), " ".repeat(SET_LIMIT_BYTES));
    assert!(matches!(ReferenceSet::parse(&large), Err(ReferenceSetError::TooLarge { .. })));
    assert!(matches!(ReferenceSet::parse("{} {}"), Err(ReferenceSetError::Json(_))));
}

#[test]
fn generation_expires_at_the_given_second() {
    let set = ReferenceSet::parse(&good().to_string()).unwrap();
    let generation: &Generation = &set.generations[0];
    let expires = generation.expires.unwrap();
    assert!(generation.is_accepted_at(expires.at - 1));
    assert!(!generation.is_accepted_at(expires.at));
    assert_eq!(Time { at: 0 }.to_string(), "1970-01-01T00:00:00Z");
    assert_eq!(Time { at: u64::MAX }.to_string(), format!("{} s", u64::MAX));
}
