//! CoRIM: written and read again, and a file by the draft's CDDL, as another program could write it.

use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::reference_sets::{CorimError, PcrValue, ReferenceSet, SET_LIMIT_BYTES, Time, from_corim, to_corim};
use ciborium::{Value, cbor};

use super::good;

const ADDED: Time = Time { at: 100 };

fn read(value: &Value) -> Result<attest::reference_sets::Generation, CorimError> {
    from_corim(&bytes(value), ADDED, "root", "vendor.corim")
}

fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).unwrap();
    bytes
}

fn corim(members: Value) -> Value {
    Value::Tag(501, Box::new(members))
}

fn comid(members: &Value) -> Value {
    Value::Tag(506, Box::new(Value::Bytes(bytes(members))))
}

fn digest(algorithm: Value, length: usize) -> Value {
    Value::Array(vec![algorithm, Value::Bytes(vec![7; length])])
}

/// Wraps a measurement of a firmware's vendor, of an environment that names the product.
fn vendor_measurement(measurement: Value) -> Value {
    let environment = cbor!({0 => {1 => "ACME Ltd.", 2 => "RoadRunner"}}).unwrap();
    let triple = Value::Array(vec![environment, Value::Array(vec![measurement])]);
    let comid_members = Value::Map(vec![
        (0.into(), "en-GB".into()),
        (1.into(), cbor!({0 => "43BB-E37F", 1 => 2}).unwrap()),
        (4.into(), Value::Map(vec![(0.into(), Value::Array(vec![triple]))])),
    ]);
    corim(Value::Map(vec![
        (0.into(), "5c57e8f4".into()),
        (1.into(), Value::Array(vec![comid(&comid_members)])),
    ]))
}

fn registers(key: Value, digests: Vec<Value>) -> Value {
    let registers = Value::Map(vec![(key, Value::Array(digests))]);
    Value::Map(vec![(1.into(), Value::Map(vec![(14.into(), registers)]))])
}

fn event(element: &str, digests: Vec<Value>) -> Value {
    Value::Map(vec![
        (0.into(), element.into()),
        (
            1.into(),
            Value::Map(vec![(2.into(), Value::Array(digests)), (11.into(), "loader".into())]),
        ),
    ])
}

#[test]
fn generation_round_trips_through_corim() {
    let set = ReferenceSet::parse(&good().to_string()).unwrap();
    let generation = &set.generations[0];
    let read = from_corim(&to_corim(generation).unwrap(), generation.added, &generation.by, "x").unwrap();
    assert_eq!(
        (&read.name, read.expires, &read.values),
        (&generation.name, generation.expires, &generation.values)
    );
}

/// A map of CBOR has no key twice; a reader may keep only the last value.
#[test]
fn values_of_one_pcr_get_separate_measurements() {
    let mut set = ReferenceSet::parse(&good().to_string()).unwrap();
    let generation = &mut set.generations[0];
    let of_pcr = |pcr, byte| PcrValue {
        pcr,
        digests: [(HashAlg::Sha256, HexDigest::from([byte; 32]))].into(),
    };
    generation.values.pcrs = vec![of_pcr(4, 1), of_pcr(7, 2), of_pcr(4, 3), of_pcr(4, 4)];
    let corim = to_corim(generation).unwrap();
    no_key_twice(&ciborium::from_reader(corim.as_slice()).unwrap());
    let read = from_corim(&corim, generation.added, "root", "x").unwrap();
    assert_eq!(read.values, generation.values);
}

fn no_key_twice(value: &Value) {
    match value {
        Value::Map(members) => {
            for (place, (key, member)) in members.iter().enumerate() {
                assert!(members[..place].iter().all(|(other, _)| other != key), "{key:?} twice in {value:?}");
                no_key_twice(member);
            }
        }
        Value::Array(values) => values.iter().for_each(no_key_twice),
        Value::Tag(_, value) => no_key_twice(value),
        // A CoMID is a byte string.
        Value::Bytes(bytes) => {
            if let Ok(inner @ Value::Map(_)) = ciborium::from_reader(bytes.as_slice()) {
                no_key_twice(&inner);
            }
        }
        _ => {}
    }
}

#[test]
fn reads_foreign_corims_and_skips_unknown_fields() {
    let read_registers = read(&vendor_measurement(registers(
        4.into(),
        vec![digest(1.into(), 32), digest("sha-384".into(), 48)],
    )))
    .unwrap();
    assert_eq!(
        (read_registers.name.as_str(), read_registers.added, read_registers.expires),
        ("5c57e8f4", ADDED, None)
    );
    let pcr = &read_registers.values.pcrs[0];
    assert_eq!(pcr.pcr, 4);
    assert_eq!(pcr.digests.keys().copied().collect::<Vec<_>>(), [HashAlg::Sha256, HashAlg::Sha384]);
    let read_event = read(&vendor_measurement(event("images", vec![digest(8.into(), 64)]))).unwrap();
    assert_eq!(read_event.values.images[0].name.as_deref(), Some("loader"));
}

#[test]
fn rejects_unsupported_corims() {
    let check = |value: &Value, expect: &str| {
        let error = read(value).unwrap_err();
        assert!(
            format!("{error:?} {error}").contains(expect),
            "{expect} is not in {error:?} {error}"
        );
    };
    let good = || vendor_measurement(event("images", vec![digest(1.into(), 32)]));
    assert!(read(&good()).is_ok());
    let untagged = |value: Value| match value {
        Value::Tag(_, inner) => *inner,
        other => other,
    };
    check(&untagged(good()), "unsigned CoRIM");
    check(&Value::Tag(18, Box::new(untagged(good()))), "unsigned CoRIM");
    let with = |key: i32, value: Value| {
        let Value::Map(mut members) = untagged(good()) else { panic!() };
        members.push((key.into(), value));
        corim(Value::Map(members))
    };
    check(&with(3, "a profile".into()), "profile");
    check(&with(0, "twice".into()), "twice");
    check(&with(4, cbor!({0 => 1}).unwrap()), "until when");
    check(&corim(cbor!({0 => "n"}).unwrap()), "no tags");
    check(&corim(cbor!({0 => "n", 1 => []}).unwrap()), "Empty");
    check(&corim(cbor!({0 => "n", 1 => ["no tag"]}).unwrap()), "not a CoMID");
    check(&corim(cbor!({0 => 1, 1 => []}).unwrap()), "no name");
    let swid = Value::Tag(505, Box::new(Value::Bytes(Vec::new())));
    check(
        &corim(Value::Map(vec![(0.into(), "n".into()), (1.into(), Value::Array(vec![swid]))])),
        "not a CoMID",
    );
    let links = comid(&cbor!({1 => {0 => "t"}, 3 => [], 4 => {0 => []}}).unwrap());
    check(
        &corim(Value::Map(vec![(0.into(), "n".into()), (1.into(), Value::Array(vec![links]))])),
        "links",
    );
    let endorsed = comid(&cbor!({1 => {0 => "t"}, 4 => {1 => []}}).unwrap());
    check(
        &corim(Value::Map(vec![(0.into(), "n".into()), (1.into(), Value::Array(vec![endorsed]))])),
        "other triples",
    );
    check(&vendor_measurement(event("kernels", vec![digest(1.into(), 32)])), "kernels");
    check(&vendor_measurement(event("images", vec![digest(1.into(), 48)])), "Digest");
    check(&vendor_measurement(event("images", vec![digest(1.into(), 31)])), "length");
    check(
        &vendor_measurement(event("images", vec![digest(2.into(), 32)])),
        "another algorithm",
    );
    check(
        &vendor_measurement(event("images", vec![digest("sha-1".into(), 32)])),
        "another algorithm",
    );
    check(
        &vendor_measurement(event("images", vec![digest(1.into(), 32), digest(1.into(), 32)])),
        "two digests",
    );
    check(&vendor_measurement(event("images", Vec::new())), "NoDigest");
    check(
        &vendor_measurement(registers("pcr4".into(), vec![digest(1.into(), 32)])),
        "not a PCR",
    );
    check(&vendor_measurement(registers(24.into(), vec![digest(1.into(), 32)])), "NoSuchPcr");
    let twice = Value::Map(vec![(4.into(), Value::Array(vec![digest(1.into(), 32)])); 2]);
    let of_values = |members: Vec<(Value, Value)>| vendor_measurement(Value::Map(vec![(1.into(), Value::Map(members))]));
    check(&of_values(vec![(14.into(), twice)]), "twice in a measurement");
    for (key, value) in [(0, cbor!({0 => "1.0"}).unwrap()), (2, Value::Array(vec![digest(1.into(), 32)]))] {
        let registers = Value::Map(vec![(4.into(), Value::Array(vec![digest(1.into(), 32)]))]);
        check(&of_values(vec![(key.into(), value), (14.into(), registers)]), "other values");
    }
    check(&vendor_measurement(cbor!({1 => {4 => "raw"}}).unwrap()), "not read");
    check(&vendor_measurement(cbor!({1 => {1 => 7}}).unwrap()), "not read");
    check(&vendor_measurement(cbor!({0 => "images"}).unwrap()), "no values");

    let whole = bytes(&good());
    for end in 0..whole.len() {
        assert!(from_corim(&whole[..end], ADDED, "root", "f").is_err(), "{end} bytes");
    }
    assert!(matches!(
        from_corim(&[whole.as_slice(), &[0]].concat(), ADDED, "root", "f"),
        Err(CorimError::Cbor(_))
    ));
    assert!(matches!(
        from_corim(&vec![0; SET_LIMIT_BYTES + 1], ADDED, "root", "f"),
        Err(CorimError::TooLarge { .. })
    ));
    assert!(from_corim(&[0x81; 1000], ADDED, "root", "f").is_err());
}

/// Any byte otherwise: refused, or read as something; never a panic.
#[test]
fn attack_23_altered_corim_never_panics() {
    let set = ReferenceSet::parse(&good().to_string()).unwrap();
    let whole = to_corim(&set.generations[0]).unwrap();
    for place in 0..whole.len() {
        for value in [0x00, 0x1b, 0x7f, 0x9f, 0xbf, 0xdb, 0xff, whole[place] ^ 1, whole[place] ^ 0x20] {
            let mut altered = whole.clone();
            altered[place] = value;
            if let Ok(read) = from_corim(&altered, ADDED, "root", "f") {
                assert!(ReferenceSet::new(vec![read]).is_ok());
            }
        }
    }
}
