//! What a pool accepts.

use super::*;

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
fn a_pool_accepts() {
    assert_eq!(appraise(&verified(), &rules(RULES), at(NOW)), Ok(()));
    assert_eq!(verified().identity(), format!("aws:123456789012/{INSTANCE}"));
    assert!(rules(RULES).checks_account());
    // The shortest rules: whoever runs it, wherever, with this PCR 4.
    let shortest = "accounts = \"not checked\"\n[pcrs]\n\"0-7\" = \"not checked\"";
    assert_eq!(appraise(&Case::new().verify().unwrap(), &rules(shortest), at(NOW)), Ok(()));
    assert!(!rules(shortest).checks_account() && rules(shortest).reference_values().checks_nothing());
}

#[test]
fn each_rule_refuses() {
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
    assert!(!error.told().contains("0504"), "{}", error.told());
}

/// The account is nowhere in the document.
#[test]
fn the_account_has_to_be_shown_by_other_evidence() {
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
fn rules_that_cannot_be_meant() {
    let refused = |from: &str, to: &str, says: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        let error = toml::from_str::<NitroTpmRules>(&altered).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused("accounts = [\"123456789012\"]", "", "accounts");
    refused("accounts = [\"123456789012\"]", "accounts = \"any\"", "not checked");
    refused("\"123456789012\"", "\"12345678901\"", "is no account");
    refused("\"eu-west-1\"", "\"eu-west\"", "is no region");
    refused("\"i-0123456789abcdef0\"", "\"i-*\"", "is no instance");
    refused("\"0-3\"", "\"0-2\"", "PCR 3 is not named");
    refused("\"5-7\"", "\"4-7\"", "PCR 4 is named twice");
    refused("12 = ", "16 = ", "PCR 16 can be reset");
    refused("\"5-7\"", "\"7-5\"", "is no PCR");
    refused("\"5-7\" = \"not checked\"", "\"5-7\" = []", "a range cannot share");
    refused("\"040404", "\"0404", "not checked");
    refused("age_limit_seconds", "age_limit", "unknown field");
    let sha256 = "04".repeat(32);
    refused(&"04".repeat(48), &sha256, "has 32 bytes");
    refused(&format!("[\"{}\"]", "04".repeat(48)), "[]", "accepts no value");
}
