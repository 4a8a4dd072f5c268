//! Fields of the document.

use super::*;

#[test]
fn invalid_fields_are_refused() {
    let check = |change: fn(&mut Case), variant: &str, code: &str| drop(refused(&case(change), variant, code));
    let none: Option<Value> = None;
    for field in ["module_id", "digest", "timestamp", "nitrotpm_pcrs"] {
        let without = Case::new().but(|case| case.set(field, none.clone()));
        refused(&without, "FieldMissing", MALFORMED);
        let twice = Case::new().but(|case| {
            let again = case.fields.iter().find(|(name, _)| name.as_text() == Some(field)).unwrap().clone();
            case.more_fields.push(again);
        });
        refused(&twice, "FieldRepeated", MALFORMED);
        for wrong in [
            Value::Null,
            Value::Bool(true),
            Value::Float(1.0),
            Value::Tag(0, Box::new("x".into())),
        ] {
            refused(&Case::new().but(|case| case.set(field, wrong.clone())), "Cbor", MALFORMED);
        }
    }
    for field in ["public_key", "user_data", "nonce"] {
        refused(
            &Case::new().but(|case| case.set(field, Value::Bytes(vec![1; 1025]))),
            "FieldLength",
            MALFORMED,
        );
        refused(&Case::new().but(|case| case.set(field, Value::from("text"))), "Cbor", MALFORMED);
        let twice = Case::new().but(|case| case.more_fields.push((field.into(), Value::Null)));
        refused(&twice, "FieldRepeated", MALFORMED);
    }
    check(
        |case| case.more_fields.push(("certificate".into(), Value::Bytes(vec![1]))),
        "FieldRepeated",
        MALFORMED,
    );
    check(
        |case| case.more_fields.push(("cabundle".into(), Value::Array(vec![]))),
        "FieldRepeated",
        MALFORMED,
    );
    // What is not known is passed over, but has to be CBOR of the few forms that a document has, and of no great depth.
    check(|case| case.more_fields.push(("extra".into(), Value::Float(1.0))), "Cbor", MALFORMED);
    let deep = Value::Array(vec![Value::Array(vec![Value::Array(vec![Value::Array(vec![])])])]);
    refused(&case(|case| case.more_fields.push(("extra".into(), deep))), "Cbor", MALFORMED);
    check(|case| case.more_fields.push((1.into(), Value::Null)), "Cbor", MALFORMED);
    check(|case| case.appended_to_payload = vec![0], "Cbor", MALFORMED);
    check(|case| case.set("timestamp", Value::from(-1)), "Cbor", MALFORMED);
    check(|case| case.set("digest", Value::from("SHA256")), "Digest", MALFORMED);
    check(|case| case.set("digest", Value::from("SHA512")), "Digest", MALFORMED);

    check(|case| case.set("nitrotpm_pcrs", Value::Map(Vec::new())), "FieldMissing", MALFORMED);
    check(|case| case.set_pcr(4, Some(vec![4; 32])), "PcrLength", MALFORMED);
    check(|case| case.set_pcr(4, Some(vec![4; 64])), "PcrLength", MALFORMED);
    check(|case| case.set_pcr(4, Some(Vec::new())), "PcrLength", MALFORMED);
    check(|case| case.set_pcr(32, Some(vec![4; 48])), "PcrIndex", MALFORMED);
    let twice: fn(u8) -> Vec<(Value, Value)> = |pcr| vec![(pcr.into(), Value::Bytes(vec![0; 48])), (pcr.into(), Value::Bytes(vec![1; 48]))];
    refused(
        &Case::new().but(|case| case.set("nitrotpm_pcrs", Value::Map(twice(4)))),
        "PcrRepeated",
        MALFORMED,
    );
    check(
        |case| case.set("nitrotpm_pcrs", Value::Map(vec![("4".into(), Value::Bytes(vec![0; 48]))])),
        "Cbor",
        MALFORMED,
    );
}

/// If AWS adds fields, the known ones are read as usual, and mean the same.
#[test]
fn unknown_fields_are_ignored() {
    let said = |case: &Case| {
        let verified = case.verify().unwrap();
        let document = &verified.document;
        let known = (document.module_id.clone(), document.timestamp_ms, document.pcrs.clone());
        (
            known,
            document.user_data.clone(),
            document.nonce.clone(),
            document.public_key.clone(),
        )
    };
    let plain = said(&Case::new());
    for more in [
        Value::Null,
        Value::from("text"),
        Value::Bytes(vec![7; 2000]),
        Value::Array(vec![1.into(), "x".into()]),
        Value::Map(vec![("module_id".into(), "i-0ffffffffffffffff-tpm0000000000000000".into())]),
    ] {
        let mut case = Case::new();
        case.more_fields.push(("nitrotpm_version".into(), more.clone()));
        assert_eq!(said(&case), plain, "{more:?}");
        case.more_fields.push(("nitrotpm_version".into(), more));
        assert_eq!(said(&case), plain);
    }
    // A name that only looks like a known one is none.
    let mut case = Case::new();
    case.more_fields.push(("Module_id".into(), Value::Null));
    assert_eq!(said(&case), plain);
}

#[test]
fn accepts_only_the_nitro_tpm_document_shape() {
    let subject = |shape: &str| serde_json::from_value::<NitroTpmSubject>(serde_json::json!({"shape": shape}));
    assert_eq!(subject("nitro-tpm").unwrap(), NitroTpmSubject::default());
    assert_eq!(
        serde_json::to_value(NitroTpmSubject::default()).unwrap(),
        serde_json::json!({"shape": "nitro-tpm"})
    );
    let rules = "accounts = \"not checked\"\n[pcrs]\n\"0-7\" = \"not checked\"";
    let rules = |shape: &str| toml::from_str::<NitroTpmRules>(&format!("shape = \"{shape}\"\n{rules}"));
    let verified = Case::new().verify().unwrap();
    appraise(&verified, &rules("nitro-tpm").unwrap(), at(NOW)).unwrap();
    for other in ["other", "enclave"] {
        assert!(subject(other).is_err() && rules(other).is_err(), "{other}");
    }
}

#[test]
fn an_enclaves_document_is_refused() {
    let enclave = |case: &mut Case| {
        let module = "i-0123456789abcdef0-enc0123456789abcdef";
        case.fields[3].0 = "pcrs".into();
        case.set("module_id", Value::from(module));
        *case.levels.last_mut().unwrap() = leaf(&format!("{module}.{REGION}.aws"));
    };
    refused(&case(enclave), "Shape", SHAPE);
    // Both at once, and an enclave that says to have an instance's PCRs.
    let both = ("pcrs".into(), Value::Map(vec![(0.into(), Value::Bytes(vec![0; 48]))]));
    refused(&case(|case| case.more_fields.push(both)), "Shape", SHAPE);
    let module = |module: &'static str| case(|case| case.set("module_id", Value::from(module)));
    for wrong in [
        "i-0123456789abcdef0-enc0000000000000000",
        "i-0123456789abcdef0",
        "i-0123456789abcdef0-tpm",
        "i-0123456789abcdef0-tpm000000000000000g",
        "i-0123456789ABCDEF0-tpm0000000000000000",
        "x-0123456789abcdef0-tpm0000000000000000",
        "",
    ] {
        refused(&module(wrong), "ModuleId", SHAPE);
    }
    refused(
        &case(|case| case.set("module_id", Value::from("i".repeat(65)))),
        "FieldLength",
        MALFORMED,
    );
}
