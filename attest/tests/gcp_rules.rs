//! The rules of a pool for instances of Google Compute Engine: each accepts what it names, and refuses everything else.

use crate::gcp_authority::{GOOGLE, NOW, at, audience, claims, keys_of};
use attest::Withheld;
use attest::gcp::{self, GceRules, GcpError, NamePattern, VerifiedIdentity};

const PROJECT: &str = "projects = [{ id = \"example-project\", number = 739419398126 }]\n";

fn identity() -> VerifiedIdentity {
    gcp::verify(GOOGLE.sign(&claims()).as_bytes(), &keys_of(&GOOGLE), &[audience()], at(NOW)).unwrap()
}

fn rules(more: &str) -> GceRules {
    toml::from_str(&format!("{PROJECT}{more}")).unwrap()
}

#[track_caller]
fn check(more: &str, expect: Result<(), &str>) {
    let result = gcp::appraise(&identity(), &rules(more), at(NOW));
    assert_eq!(result.map_err(|error| error.code()), expect, "{more}");
}

#[test]
fn project_id_and_number_must_both_match() {
    let appraise = |text: &str| gcp::appraise(&identity(), &toml::from_str(text).unwrap(), at(NOW));
    assert_eq!(appraise(PROJECT), Ok(()));
    let refused = |text: &str, accepted: &str| {
        let found = "example-project (739419398126)".to_owned();
        let accepted = Withheld::from_text(accepted);
        assert_eq!(appraise(text), Err(GcpError::ProjectRefused { found, accepted }));
    };
    refused("projects = []", "none");
    refused("projects = [{ id = \"example-project\", number = 1 }]", "example-project (1)");
    refused("projects = [{ id = \"other\", number = 739419398126 }]", "other (739419398126)");
    // Id of one, number of the other.
    refused(
        "projects = [{ id = \"example-project\", number = 1 }, { id = \"other\", number = 739419398126 }]",
        "example-project (1), other (739419398126)",
    );
    for text in [
        "",
        "projects = [{ id = \"example-project\" }]",
        "projects = [{ number = 1 }]",
        "projects = [\"example-project\"]",
    ] {
        assert!(toml::from_str::<GceRules>(text).is_err(), "{text}");
    }
    let unknown = toml::from_str::<GceRules>(&format!("{PROJECT}zone = [\"a\"]")).unwrap_err();
    assert!(unknown.to_string().contains("zone"), "{unknown}");
}

#[test]
fn zone_and_region_rules_are_enforced() {
    let refused = Err("gcp-location-refused");
    check("zones = [\"europe-west3-b\", \"europe-west3-a\"]", Ok(()));
    check("regions = [\"europe-west3\"]", Ok(()));
    check("zones = [\"us-east1-b\"]\nregions = [\"europe-west3\"]", Ok(()));
    check("zones = [\"europe-west3-a\"]\nregions = []", Ok(()));
    check("zones = [\"europe-west3\"]", refused);
    check("zones = [\"europe-west3-b\"]", refused);
    check("regions = [\"europe-west3-a\"]", refused);
    check("regions = [\"europe-west\"]", refused);
    check("zones = []", refused);
    check("regions = []", refused);
}

#[test]
fn instance_name_rules_are_enforced() {
    check("instance_names = [\"worker-*\"]", Ok(()));
    check("instance_names = [\"x\", \"worker-7\"]", Ok(()));
    check("instance_names = [\"master-*\"]", Err("gcp-name-refused"));
    check("instance_names = []", Err("gcp-name-refused"));
    for bad in ["", "Worker", "worker?", "a b", "[a-z]", &"a".repeat(64)] {
        assert!(NamePattern::try_from(bad.to_owned()).is_err(), "{bad}");
    }
}

#[test]
fn star_matches_any_characters() {
    let check = |pattern: &str, name: &str, expect: bool| {
        assert_eq!(
            NamePattern::try_from(pattern.to_owned()).unwrap().matches(name),
            expect,
            "{pattern} {name}"
        );
    };
    check("worker-7", "worker-7", true);
    check("worker-7", "worker-70", false);
    check("worker-7", "a-worker-7", false);
    check("*", "", true);
    check("*", "anything", true);
    check("worker-*", "worker-", true);
    check("worker-*", "worker", false);
    check("*-worker", "a-worker", true);
    check("*-worker", "a-worker-b", false);
    check("a*b*c", "abc", true);
    check("a*b*c", "a-b-b-c", true);
    check("a*b*c", "a-c-b", false);
    check("a*bc*c", "abcc", true);
    check("a*bc*c", "abc", false);
    check("ab*ba", "aba", false);
    check("**", "x", true);
}

#[test]
fn service_account_license_and_age_rules_are_enforced() {
    check(
        "service_accounts = [\"739419398126-compute@developer.gserviceaccount.com\"]",
        Ok(()),
    );
    check(
        "service_accounts = [\"other@example-project.iam.gserviceaccount.com\"]",
        Err("gcp-service-account-refused"),
    );
    check("service_accounts = []", Err("gcp-service-account-refused"));
    check("licenses = [\"1\", \"1000204\"]", Ok(()));
    check("licenses = [\"1\"]", Err("gcp-license-refused"));
    check("licenses = []", Err("gcp-license-refused"));
    check("max_instance_age_seconds = 600", Ok(()));
    check("max_instance_age_seconds = 599", Err("gcp-instance-too-old"));
    check("max_instance_age_seconds = 0", Err("gcp-instance-too-old"));

    let mut without = claims();
    without["google"]["compute_engine"].as_object_mut().unwrap().remove("license_id");
    let identity = gcp::verify(GOOGLE.sign(&without).as_bytes(), &keys_of(&GOOGLE), &[audience()], at(NOW)).unwrap();
    let expect = GcpError::LicenseRefused {
        found: "none".to_owned(),
        accepted: Withheld::from_text("1000204"),
    };
    assert_eq!(gcp::appraise(&identity, &rules("licenses = [\"1000204\"]"), at(NOW)), Err(expect));
}

#[test]
fn gcp_rules_round_trip() {
    let text = format!("{PROJECT}instance_names = [\"worker-*\"]\nmax_instance_age_seconds = 600\n");
    let rules: GceRules = toml::from_str(&text).unwrap();
    assert_eq!(toml::from_str::<GceRules>(&toml::to_string(&rules).unwrap()).unwrap(), rules);
}
