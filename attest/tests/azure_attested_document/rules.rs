//! Rules of a pool.

use super::*;

#[test]
fn each_attested_document_rule_is_enforced() {
    type Alter = fn(&mut AttestedDocumentRules, Vec<String>);
    let document = verified(&document()).unwrap();
    let check = |alter: Alter, accepted: &str, code: &str| {
        let appraise_with = |values: &[&str]| {
            let mut rules = rules();
            alter(&mut rules, values.iter().map(|&value| value.to_owned()).collect());
            appraise(&document, &rules, at(NOW))
        };
        assert_eq!(appraise_with(&["other", accepted]), Ok(()));
        assert_eq!(appraise_with(&[&accepted.to_uppercase()]), Ok(()));
        for values in [&["other"][..], &[], &[""], &[&accepted[1..]]] {
            assert_eq!(appraise_with(values).unwrap_err().code(), code, "{values:?}");
        }
    };
    check(
        |rules, values| rules.subscriptions = values,
        SUBSCRIPTION,
        "azure-subscription-not-accepted",
    );
    let vm = "b1310a36-d400-46f6-82cb-6217df846586";
    check(|rules, values| rules.vm_ids = Some(values), vm, "azure-vm-not-accepted");
    check(
        |rules, values| rules.skus = Some(values),
        "20_04-lts-gen2",
        "azure-sku-not-accepted",
    );
    check(
        |rules, values| rules.locations = Some(values),
        "eastus",
        "azure-location-not-accepted",
    );
    let nothing = AttestedDocumentRules {
        subscriptions: vec![],
        ..rules()
    };
    let error = appraise(&document, &nothing, at(NOW)).unwrap_err();
    assert_eq!(
        Reject::from(error).detail(),
        format!("the subscription is {SUBSCRIPTION:?}; the pool accepts none")
    );
}

#[test]
fn rules_reject_unknown_and_missing_fields() {
    let read = |rules: Value| serde_json::from_value::<AttestedDocumentRules>(rules);
    assert!(read(json!({})).is_err(), "subscriptions must be given");
    assert!(read(json!({ "subscriptions": [], "vmIds": [] })).is_err());
    let all = json!({ "subscriptions": ["x"], "vm_ids": ["x"], "skus": [""], "locations": ["eastus"], "max_age_seconds": 60 });
    assert_eq!(serde_json::to_value(read(all.clone()).unwrap()).unwrap(), all);
    let clouds: Vec<AzureCloud> = serde_json::from_value(json!(["public", "us-government", "china"])).unwrap();
    assert_eq!(
        clouds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["public", "us-government", "china"]
    );
}
