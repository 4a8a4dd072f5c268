//! Rules of a pool.

use super::*;

#[test]
fn each_rule_rejects_a_mismatched_sts_identity() {
    let verified = answered(200, JSON, ANSWER).unwrap();
    assert_eq!(appraise(&verified, &rules(RULES)), Ok(()));
    let with_instance = |instance: &str| format!("{RULES}instances = [\"{instance}\"]");
    assert_eq!(appraise(&verified, &rules(&with_instance("i-0123456789abcdef0"))), Ok(()));
    is(
        &appraise(&verified, &rules(&with_instance("i-0123456789abcdef1"))).unwrap_err(),
        "Instance",
        "sts-instance",
    );
    let check = |from: &str, to: &str, variant: &str, code: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        is(&appraise(&verified, &rules(&altered)).unwrap_err(), variant, code);
    };
    check("\"123456789012\"", "\"210987654321\"", "Account", "sts-account");
    check("\"123456789012\"", "", "Account", "sts-account");
    check("\"worker-role\"", "\"worker\"", "Role", "sts-role");
    check("\"worker-role\"", "\"Worker-Role\"", "Role", "sts-role");
    check("\"worker-role\"", "", "Role", "sts-role");
}

#[test]
fn rejects_invalid_sts_rules() {
    let refused = |from: &str, to: &str, says: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        let error = toml::from_str::<StsRules>(&altered).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused("accounts = [\"123456789012\"]", "", "accounts");
    refused("roles = [\"worker-role\"]", "", "roles");
    refused("regions", "region", "unknown field");
    refused("\"123456789012\"", "\"*\"", "is not a valid AWS account");
    refused(
        "\"worker-role\"",
        "\"arn:aws:iam::123456789012:role/worker\"",
        "is not a valid AWS role",
    );
    refused("\"worker-role\"", "\"*\"", "is not a valid AWS role");
    refused("\"eu-central-1\"", "\"evil.example/\"", "is not a valid AWS region");
    refused("\"eu-central-1\"", "\"us-iso-east-1\"", "is not a valid AWS region");
}
