//! Choice of the combination that a node is asked for, among those that it offers and that the pool accepts.

use std::sync::Arc;
use std::time::Duration;

use crate::support::maker::Maker;
use crate::support::{Case, NOW, SoftKey, accepting, at};
use attest::appraisal::{FirstUse, Rules};
use attest::challenge::Drawn;
use attest::protocol::{Attester, Blob, ChallengeRequest, HexDigest, Nothing};
use attest::{AppraisalPolicy, Challenge, EkRoots, Endorsements, NewChallenge, Reject};

fn policy(accepts: &str, first_use: FirstUse) -> AppraisalPolicy {
    let has = |kind: &str| accepts.contains(kind);
    let rules = Rules {
        tpm: has("tpm").then(|| {
            accepting(&Case::new(SoftKey::p256()).selection)
                .reference_values()
                .cloned()
                .unwrap()
        }),
        gcp: has("gcp").then(|| toml::from_str("projects = [{ id = \"example-project\", number = 739419398126 }]").unwrap()),
        aws_identity_document: has("document").then(|| toml::from_str("accept_replayable = true\naccounts = [\"123456789012\"]").unwrap()),
        aws_sts: has("sts")
            .then(|| toml::from_str("accounts = [\"123456789012\"]\nroles = [\"worker\"]\nregions = [\"eu-central-1\"]").unwrap()),
        first_use,
        ..Rules::default()
    };
    AppraisalPolicy::new(serde_json::from_str(accepts).unwrap(), rules).unwrap()
}

fn asked(attester: Attester, endorsements: &Endorsements, policy: &AppraisalPolicy) -> Result<NewChallenge, Reject> {
    let request = ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: "worker".to_owned(),
        name: None,
        attester,
    };
    Challenge::issue(
        &request,
        endorsements,
        policy,
        "gateway.test",
        &Drawn::draw().unwrap(),
        at(NOW),
        Duration::from_secs(60),
    )
}

#[test]
fn instance_claim_accompanies_every_requested_kind() {
    let digest = HexDigest::from([7; 32]);
    let attester = |claimant_sha256| Attester {
        aws_identity_document: Some(Nothing {}),
        aws_sts: Some(Nothing {}),
        claimant_sha256,
        ..Attester::default()
    };
    let nobody = Endorsements::new(Arc::default());
    let claimant = |attester, accepts, first_use| {
        let issued = asked(attester, &nobody, &policy(accepts, first_use));
        issued
            .map(|issued| issued.challenge.subject.claimant_sha256)
            .map_err(|reject| reject.code())
    };
    let sts = r#"[["aws-sts"]]"#;
    assert_eq!(claimant(attester(None), sts, FirstUse::Binds), Err("claimant-missing"));
    assert_eq!(claimant(attester(None), sts, FirstUse::MeansNothing), Ok(None));
    for accepts in [sts, r#"[["aws-identity-document", "aws-sts"]]"#] {
        assert_eq!(
            claimant(attester(Some(digest.clone())), accepts, FirstUse::Binds),
            Ok(Some(digest.clone()))
        );
    }
}

/// Changes an EK certificate, and the certificates sent with it.
type Alter<'a> = &'a dyn Fn(&mut Vec<u8>, &mut Vec<Vec<u8>>);

/// Regardless of its defects, a certificate of an untrusted maker counts as no TPM.
#[test]
fn unendorsed_tpm_falls_back_to_the_next_combination() {
    let (known, unknown) = (Maker::new("A maker of TPMs"), Maker::new("Another"));
    let trusting = Endorsements::new(Arc::new(EkRoots::new(vec![known.root().into()], Vec::new()).unwrap()));
    let chosen = |maker: &Maker, alter: Alter<'_>| {
        let (area, mut certificate) = maker.ek();
        let mut sent = Vec::new();
        alter(&mut certificate, &mut sent);
        let case = Case::new(SoftKey::p256()).but(|case| {
            case.ek_area = area;
            case.ek_certificate = Some(certificate);
        });
        let mut tpm = case.attester();
        tpm.ek_intermediates = sent.into_iter().map(Blob).collect();
        let attester = Attester {
            gcp: Some(Nothing {}),
            claimant_sha256: Some(HexDigest::from([7; 32])),
            ..Attester::from(tpm)
        };
        let issued = asked(attester, &trusting, &policy(r#"[["tpm"], ["gcp"]]"#, FirstUse::Binds));
        issued.map(|issued| issued.task.tpm.is_some()).map_err(|reject| reject.code())
    };
    assert_eq!(chosen(&known, &|_, _| ()), Ok(true));
    assert_eq!(chosen(&unknown, &|_, _| ()), Ok(false));
    // Several keys under the issuer's name; a certificate that is no CA's in its place; what cannot be read.
    let keys = |_: &mut Vec<u8>, sent: &mut Vec<Vec<u8>>| sent.extend([0; 3].map(|_| Maker::new("Another").root()));
    assert_eq!(chosen(&unknown, &keys), Ok(false));
    let no_ca = |_: &mut Vec<u8>, sent: &mut Vec<Vec<u8>>| sent.push(Maker::new("Another").no_ca());
    assert_eq!(chosen(&unknown, &no_ca), Ok(false));
    assert_eq!(chosen(&unknown, &|certificate, _| certificate.truncate(40)), Ok(false));
    assert_eq!(chosen(&unknown, &|certificate, _| certificate.push(b'x')), Ok(false));
    // Of a maker that is trusted, what does not hold is refused, and nothing is tried after it.
    let forged = |certificate: &mut Vec<u8>, _: &mut Vec<Vec<u8>>| *certificate.last_mut().unwrap() ^= 1;
    assert_eq!(chosen(&known, &forged), Err("ek-certificate-invalid"));
}
