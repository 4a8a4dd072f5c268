//! Cloud evidence in a pool that observes: the rules for the machine and its owner refuse as usual.

use super::*;

const GCP: &str = "projects = [{ id = \"example-project\", number = 739419398126 }]";
const DOCUMENT: &str = "accept_replayable = true\naccounts = [\"123456789012\"]";
const NITRO: &str = "accounts = [\"123456789012\"]\n[pcrs]\n\"0-7\" = \"not checked\"";

fn policy(gcp: &str, document: &str, nitro: &str, observe: bool) -> AppraisalPolicy {
    let rules = Rules {
        gcp: Some(toml::from_str(gcp).unwrap()),
        aws_identity_document: Some(toml::from_str(document).unwrap()),
        aws_nitro_tpm: Some(toml::from_str(nitro).unwrap()),
        observe,
        ..Rules::default()
    };
    let accepts = r#"[["gcp"], ["aws-identity-document"], ["aws-identity-document", "aws-nitro-tpm"]]"#;
    AppraisalPolicy::new(serde_json::from_str(accepts).unwrap(), rules).unwrap()
}

/// Checks the refusal by a pool with these rules in place of the satisfied ones.
#[track_caller]
fn refused(kinds: &[Kind], [gcp, document, nitro]: [&str; 3], code: &str) {
    for observe in [false, true] {
        let shown = Shown::new(kinds);
        let policy = policy(gcp, document, nitro, observe);
        let result = appraise(shown.verify().unwrap(), &policy, at(shown.case.now));
        assert_eq!(result.map(drop).map_err(|reject| reject.code()), Err(code), "observe = {observe}");
    }
}

#[test]
fn observe_mode_enforces_cloud_rules() {
    let gcp = [Kind::Gcp];
    let of_others = "projects = [{ id = \"another-project\", number = 1 }]";
    refused(&gcp, [of_others, DOCUMENT, NITRO], "gcp-project-refused");
    let document = [Kind::AwsIdentityDocument];
    let of_others = DOCUMENT.replace("123456789012", "210987654321");
    refused(&document, [GCP, &of_others, NITRO], "aws-account-not-accepted");
    let both = [Kind::AwsIdentityDocument, Kind::AwsNitroTpm];
    let nitro = |more: &str| NITRO.replace("\n[pcrs]", &format!("\n{more}\n[pcrs]"));
    let of_others = NITRO.replace("123456789012", "210987654321");
    refused(&both, [GCP, DOCUMENT, &of_others], "nitro-tpm-account");
    refused(&both, [GCP, DOCUMENT, &nitro("regions = [\"us-west-2\"]")], "nitro-tpm-region");
    refused(
        &both,
        [GCP, DOCUMENT, &nitro("instances = [\"i-00000000000000001\"]")],
        "nitro-tpm-instance",
    );
    // It is as old as the boot is: nothing that was measured.
    let later = |observe: bool| {
        let shown = Shown::new(&both);
        let policy = policy(GCP, DOCUMENT, &nitro("age_limit_seconds = 1"), observe);
        appraise(shown.verify().unwrap(), &policy, at(shown.case.now + 100)).map(drop)
    };
    for observe in [false, true] {
        assert_eq!(later(observe).unwrap_err().code(), "nitro-tpm-age");
    }
    refused(
        &both,
        [GCP, DOCUMENT, &nitro("only_while_booting = true")],
        "nitro-tpm-boot-is-over",
    );
}

#[test]
fn observe_mode_enforces_claims_and_kinds() {
    for observe in [false, true] {
        let policy = policy(GCP, DOCUMENT, NITRO, observe);
        let unclaimed = |shown: &mut Shown| (shown.challenge.subject.claimant_sha256, shown.evidence.claimant) = (None, None);
        let judged = |shown: Shown| {
            let result = appraise(shown.verify().unwrap(), &policy, at(shown.case.now));
            result.map(drop).map_err(|reject| reject.code())
        };
        assert_eq!(judged(Shown::new(&[Kind::Gcp]).but(unclaimed)), Err("claimant-missing"));
        assert_eq!(judged(Shown::new(&[Kind::AwsNitroTpm])), Err("evidence-not-accepted"));
        assert_eq!(judged(Shown::new(&[Kind::Tpm])), Err("evidence-not-accepted"));
    }
}

#[test]
fn observe_mode_reports_boot_mismatches() {
    let shown = Shown::new(&[Kind::AwsIdentityDocument, Kind::AwsNitroTpm]);
    let other = format!(
        "accounts = [\"123456789012\"]\n[pcrs]\n\"0-3\" = \"not checked\"\n4 = [\"{}\"]\n\"5-6\" = \"not checked\"\n7 = [\"{}\"]",
        "ab".repeat(48),
        "cd".repeat(48)
    );
    let judged = |observe: bool| appraise(shown.verify().unwrap(), &policy(GCP, DOCUMENT, &other, observe), at(shown.case.now));
    let strict = judged(false).unwrap_err();
    assert_eq!(strict.code(), "nitro-tpm-pcr-mismatch");
    let result = judged(true).unwrap();
    let codes: Vec<&str> = result.would_refuse().iter().map(Reject::code).collect();
    assert_eq!(codes, ["nitro-tpm-pcr-mismatch"; 2]);
    assert_eq!(result.would_refuse()[0], strict);
    assert!(result.reasons().join("; ").contains("PCRs observed"), "{:?}", result.reasons());
}
