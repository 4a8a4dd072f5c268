//! Rules of a pool.

use super::*;
use attest_wire::tpm::boot_complete::{self, CLOSING_WORD, OS_SEPARATOR};

/// Rules that the document of [`Case::new`] with the account 123456789012 keeps.
const RULES: &str = r#"
accounts = ["123456789012"]
regions = ["eu-central-1", "eu-west-1"]
instances = ["i-0123456789abcdef0"]
age_limit_seconds = 60
[pcrs]
"0-3" = "not checked"
4 = ["040404040404040404040404040404040404040404040404040404040404040404040404040404040404040404040404"]
"5-7" = "not checked"
12 = ["0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c"]
"#;

fn rules(text: &str) -> NitroTpmRules {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn verified() -> VerifiedNitroTpm {
    Case::new().verify().unwrap().with_account("123456789012", INSTANCE).unwrap()
}

#[test]
fn accepts_a_document_that_satisfies_the_rules() {
    assert_eq!(appraise(&verified(), &rules(RULES), at(NOW)), Ok(()));
    assert_eq!(verified().identity(), format!("aws:123456789012/{INSTANCE}"));
    assert!(rules(RULES).checks_account());
    // The shortest rules: whoever runs it, wherever, with this PCR 4.
    let shortest = "accounts = \"not checked\"\n[pcrs]\n\"0-7\" = \"not checked\"";
    assert_eq!(appraise(&Case::new().verify().unwrap(), &rules(shortest), at(NOW)), Ok(()));
    assert!(!rules(shortest).checks_account() && rules(shortest).reference_values().checks_nothing());
}

/// The PCR that attest-node extends at the end of a boot; no event log comes with a document.
#[test]
fn attack_47_rejects_an_instance_with_a_complete_boot() {
    const DOOR: u64 = attest::tpm::boot_complete::BOOT_COMPLETE_PCR as u64;
    let text = "accounts = \"not checked\"\nonly_while_booting = true\n[pcrs]\n\"0-7\" = \"not checked\"";
    let judged = |words: &[&[u8]]| {
        let value = words.iter().fold(vec![0; 48], |value, word| {
            boot_complete::extended(attest::HashAlg::Sha384, &value, word)
        });
        let case = case(|case| {
            let pcrs = (0..24).map(|pcr| (pcr.into(), Value::Bytes(if pcr == DOOR { value.clone() } else { vec![9; 48] })));
            case.set("nitrotpm_pcrs", Value::Map(pcrs.collect()));
        });
        appraise(&case.verify().unwrap(), &rules(text), at(NOW)).map_err(|error| error.code())
    };
    let over = Err("nitro-tpm-boot-is-over");
    assert_eq!(judged(&[]), Ok(()));
    assert_eq!(judged(&[OS_SEPARATOR]), Ok(()));
    assert_eq!(judged(&[CLOSING_WORD]), over);
    assert_eq!(judged(&[OS_SEPARATOR, CLOSING_WORD]), over);
    assert_eq!(judged(&[b"another"]), over);
    // A document may have fewer PCRs.
    let fewer = case(|case| {
        let pcrs = (0..8_u64).map(|pcr| (pcr.into(), Value::Bytes(vec![9; 48])));
        case.set("nitrotpm_pcrs", Value::Map(pcrs.collect()));
    });
    let judged = appraise(&fewer.verify().unwrap(), &rules(text), at(NOW)).map_err(|error| error.code());
    assert_eq!(judged, over);
    let without = text.replace("only_while_booting = true\n", "");
    assert_eq!(appraise(&fewer.verify().unwrap(), &rules(&without), at(NOW)), Ok(()));
    // In a record as in a pool's file.
    let written = serde_json::to_value(rules(text)).unwrap();
    assert_eq!(written["only_while_booting"], true);
    assert_eq!(serde_json::from_value::<NitroTpmRules>(written).unwrap(), rules(text));
    assert!(serde_json::to_value(rules(&without)).unwrap().get("only_while_booting").is_none());
}

#[test]
fn each_rule_rejects_a_mismatched_document() {
    let check = |from: &str, to: &str, variant: &str, code: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        is(&appraise(&verified(), &rules(&altered), at(NOW)).unwrap_err(), variant, code);
    };
    check("\"123456789012\"", "\"210987654321\"", "Account", "nitro-tpm-account");
    check("\"123456789012\"", "", "Account", "nitro-tpm-account");
    check("\"eu-central-1\", ", "", "Region", "nitro-tpm-region");
    check("\"eu-central-1\", \"eu-west-1\"", "", "Region", "nitro-tpm-region");
    check(
        "\"i-0123456789abcdef0\"",
        "\"i-0123456789abcdef1\"",
        "Instance",
        "nitro-tpm-instance",
    );
    check("\"i-0123456789abcdef0\"", "", "Instance", "nitro-tpm-instance");
    check("= 60", "= 2", "Age", "nitro-tpm-age");
    check("[\"0404", "[\"0504", "PcrMismatch", "nitro-tpm-pcr-mismatch");
    check("[\"0c0c", "[\"0d0c", "PcrMismatch", "nitro-tpm-pcr-mismatch");
    // A document from the future is as strange as an old one.
    is(
        &appraise(&verified(), &rules(RULES), at(NOW - 100)).unwrap_err(),
        "Age",
        "nitro-tpm-age",
    );
    assert_eq!(
        appraise(&verified(), &rules(&RULES.replace("age_limit_seconds = 60", "")), at(NOW + 100)),
        Ok(())
    );
    // A PCR that the rules name, and the document has not: also if any value would do.
    for pcr in [3, 4] {
        let without = case(|case| case.set_pcr(pcr, None)).verify().unwrap();
        let without = without.with_account("123456789012", INSTANCE).unwrap();
        let error = appraise(&without, &rules(RULES), at(NOW)).unwrap_err();
        assert_eq!(error, NitroTpmError::PcrMissing { index: pcr });
    }
    let error = appraise(&verified(), &rules(&RULES.replacen("[\"0404", "[\"0504", 1)), at(NOW)).unwrap_err();
    let error = Reject::from(error);
    let text = error.detail();
    assert!(
        text.contains(&"04".repeat(48)) && text.contains("0504"),
        "names both values: {text}"
    );
    assert!(!error.client_message().contains("0504"), "{}", error.client_message());
}

/// The account is nowhere in the document.
#[test]
fn account_must_come_from_other_evidence() {
    let alone = Case::new().verify().unwrap();
    is(
        &appraise(&alone, &rules(RULES), at(NOW)).unwrap_err(),
        "AccountUnknown",
        "nitro-tpm-account",
    );
    is(
        &alone.clone().with_account("123456789012", "i-0123456789abcdef1").unwrap_err(),
        "OtherInstance",
        "nitro-tpm-other-instance",
    );
    for account in ["", "12345678901", "1234567890123", "12345678901x", "123456789012/"] {
        is(
            &alone.clone().with_account(account, INSTANCE).unwrap_err(),
            "AccountForm",
            "nitro-tpm-account",
        );
    }
}

#[test]
fn rejects_invalid_nitro_tpm_rules() {
    let refused = |from: &str, to: &str, says: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        let error = toml::from_str::<NitroTpmRules>(&altered).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused("accounts = [\"123456789012\"]", "", "accounts");
    refused("accounts = [\"123456789012\"]", "accounts = \"any\"", "not checked");
    refused("\"123456789012\"", "\"12345678901\"", "is not a valid AWS account");
    refused("\"eu-west-1\"", "\"eu-west\"", "is not a valid AWS region");
    refused("\"i-0123456789abcdef0\"", "\"i-*\"", "is not a valid AWS instance");
    refused("\"0-3\"", "\"0-2\"", "PCR 3 is not named");
    refused("\"5-7\"", "\"4-7\"", "PCR 4 is named twice");
    refused("12 = ", "16 = ", "PCR 16 can be reset");
    refused("\"5-7\"", "\"7-5\"", "is neither a PCR");
    refused("\"5-7\" = \"not checked\"", "\"5-7\" = []", "a range cannot share");
    refused("\"040404", "\"0404", "not checked");
    refused("age_limit_seconds", "age_limit", "unknown field");
    let sha256 = "04".repeat(32);
    refused(&"04".repeat(48), &sha256, "has 32 bytes");
    refused(&format!("[\"{}\"]", "04".repeat(48)), "[]", "accepts no value");
}
