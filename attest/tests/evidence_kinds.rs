//! Evidence of several kinds in one submission: the required kinds, and the parts that must identify the same machine.

mod observe;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::support::{Case, NOW, SERVER_KEY, SoftKey, accepting, at};
use attest::appraisal::{FirstUse, Rules};
use attest::aws::identity_document::RegionCertificates;
use attest::aws::nitro_tpm::{NitroRoots, NitroTpmSubject};
use attest::endorsements::CloudEndorsements;
use attest::gcp::{Audience, GoogleKeys};
use attest::protocol::{
    BearerText, Blob, Evidence, GcpEvidence, GcpTask, HexDigest, IdentityDocumentEvidence, NitroTpmEvidence, Nothing, SecretText,
    TokenEvidence,
};
use attest::{AppraisalPolicy, Challenge, Claims, Endorsements, Kind, Reject, Subject, Submission, appraise, verify};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rsa::KeySize;
use cloud_fixtures::aws::{AwsInstance, NitroAuthority, RegionAuthority};
use cloud_fixtures::google::{self, JwtSigner};

static GOOGLE: LazyLock<JwtSigner> = LazyLock::new(|| JwtSigner::new(KeySize::Rsa2048));
static REGION: LazyLock<RegionAuthority> = LazyLock::new(|| RegionAuthority::new(1));
static NITRO: LazyLock<NitroAuthority> = LazyLock::new(NitroAuthority::new);

const GATEWAY: &str = "gateway.test";
const CLAIMANT: [u8; 32] = [0x33; 32];

fn claimant_sha256(claimant: &[u8]) -> HexDigest {
    HexDigest::new(digest(&SHA256, claimant).as_ref()).unwrap()
}

/// Challenge of a node, and its evidence. Everything can be changed before [`Shown::verify`].
struct Shown {
    case: Case,
    challenge: Challenge,
    evidence: Evidence,
    clouds: CloudEndorsements,
    token: Option<&'static str>,
}

impl Shown {
    /// Evidence of these kinds that is accepted.
    fn new(kinds: &[Kind]) -> Self {
        let case = Case::new(SoftKey::p256());
        let (mut subject, mut evidence) = (Subject::default(), Evidence::default());
        let challenge = case.challenge();
        let (nonce, now) = (challenge.nonce.clone(), case.now);
        let instance = AwsInstance::example(now - 60);
        for kind in kinds {
            match kind {
                Kind::Tpm => (subject.tpm, evidence.tpm) = (challenge.subject.tpm.clone(), case.evidence().tpm),
                Kind::Gcp => {
                    let gateway = GATEWAY.to_owned();
                    subject.gcp = Some(GcpTask { gateway });
                    let audience = Audience::new(GATEWAY, &challenge.purpose, &challenge.pool, nonce.as_ref(), &SERVER_KEY);
                    let claims = google::GoogleInstance::example(now - 60).claims(audience.as_str(), now);
                    evidence.gcp = Some(GcpEvidence {
                        token: BearerText(GOOGLE.sign(&claims)),
                    });
                }
                Kind::AwsIdentityDocument => {
                    subject.aws_identity_document = Some(Nothing {});
                    evidence.aws_identity_document = Some(IdentityDocumentEvidence {
                        pkcs7: BearerText(REGION.sign(&instance.identity_document())),
                    });
                }
                Kind::AwsNitroTpm => {
                    subject.aws_nitro_tpm = Some(NitroTpmSubject::default());
                    let document = NITRO.document(
                        &instance.instance_id,
                        &instance.region,
                        nonce.as_ref(),
                        &case.quoted.extra_data,
                        now,
                    );
                    evidence.aws_nitro_tpm = Some(NitroTpmEvidence {
                        document: Blob(document.document()),
                    });
                }
                Kind::Token => {
                    subject.token = Some(Nothing {});
                    evidence.token = Some(TokenEvidence {
                        token: SecretText::default(),
                    });
                }
                Kind::AwsSts | Kind::Azure | Kind::AzureVtpm => panic!("not needed here"),
            }
        }
        if kinds.iter().any(|kind| kind.is_of_a_cloud()) {
            subject.claimant_sha256 = Some(claimant_sha256(&CLAIMANT));
            evidence.claimant = Some(Blob(CLAIMANT.to_vec()));
        }
        let regions = BTreeMap::from([("eu-central-1".to_owned(), vec![REGION.certificate().clone()])]);
        Self {
            challenge: Challenge { subject, ..challenge },
            case,
            evidence,
            clouds: CloudEndorsements {
                google_keys: Some(Arc::new(GoogleKeys::from_jwks(GOOGLE.jwks().to_string().as_bytes()).unwrap())),
                region_certificates: Some(Arc::new(RegionCertificates::new(regions).unwrap())),
                nitro_roots: Some(Arc::new(NitroRoots::new(&[NITRO.root()]).unwrap())),
                azure: None,
                azure_vtpm: None,
            },
            token: kinds.contains(&Kind::Token).then_some("rack-7"),
        }
    }

    fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn verify(&self) -> Result<Claims, Reject> {
        let submission = Submission {
            token: self.token,
            ..Submission::new(&self.challenge, &self.evidence, &self.case.server_keys)
        };
        let endorsements: Endorsements = self.case.endorsements().with_clouds(self.clouds.clone());
        verify(&submission, &endorsements, at(self.case.now))
    }

    #[track_caller]
    fn refused(self, code: &str) {
        match self.verify() {
            Ok(_) => panic!("accepted, expected {code}"),
            Err(reject) => assert_eq!(reject.code(), code, "{reject}"),
        }
    }
}

#[test]
fn identity_depends_on_the_evidence_kinds() {
    let check = |kinds: &[Kind], identity: &str, instance: Option<&str>| {
        let shown = Shown::new(kinds);
        let claims = shown.verify().unwrap();
        let identity = match identity {
            "tpm" => format!("tpm:{}", shown.case.attester().ek_digest().unwrap()),
            other => other.to_owned(),
        };
        assert_eq!(claims.identity().to_string(), identity, "{kinds:?}");
        assert_eq!(claims.instance().map(ToString::to_string).as_deref(), instance, "{kinds:?}");
        assert!(claims.kinds().iter().eq(kinds), "{kinds:?}");
        assert_eq!(claims.token(), kinds.contains(&Kind::Token).then_some("rack-7"));
    };
    let (gcp, aws) = ("gcp:example-project/152986662232938449", "aws:123456789012/i-0123456789abcdef0");
    check(&[Kind::Tpm], "tpm", None);
    check(&[Kind::Gcp], gcp, Some(gcp));
    check(&[Kind::Tpm, Kind::Gcp], "tpm", Some(gcp));
    check(&[Kind::AwsIdentityDocument], aws, Some(aws));
    check(&[Kind::AwsIdentityDocument, Kind::Token], aws, Some(aws));
    check(&[Kind::AwsIdentityDocument, Kind::AwsNitroTpm], aws, Some(aws));
    let nitro = "aws-nitrotpm:i-0123456789abcdef0";
    check(&[Kind::AwsNitroTpm], nitro, Some(nitro));
    check(&[Kind::Tpm, Kind::AwsIdentityDocument], "tpm", Some(aws));
}

#[test]
fn attack_13_evidence_of_two_machines_is_refused() {
    let both = [Kind::Gcp, Kind::AwsIdentityDocument];
    Shown::new(&both).refused("identities-differ");
    let other = |shown: &mut Shown| {
        let other = NITRO.document(
            "i-00000000000000001",
            "eu-central-1",
            shown.challenge.nonce.as_ref(),
            &shown.case.quoted.extra_data,
            shown.case.now,
        );
        shown.evidence.aws_nitro_tpm.as_mut().unwrap().document = Blob(other.document());
    };
    Shown::new(&[Kind::AwsIdentityDocument, Kind::AwsNitroTpm])
        .but(other)
        .refused("nitro-tpm-other-instance");
}

#[test]
fn evidence_must_match_the_requested_kinds() {
    let both = || Shown::new(&[Kind::Tpm, Kind::Gcp]);
    both().but(|shown| shown.evidence.tpm = None).refused("evidence-incomplete");
    both().but(|shown| shown.evidence.gcp = None).refused("evidence-incomplete");
    both()
        .but(|shown| shown.challenge.subject.gcp = None)
        .refused("evidence-incomplete");
    both()
        .but(|shown| shown.evidence = Evidence::default())
        .refused("evidence-incomplete");
    let nothing = |shown: &mut Shown| (shown.evidence, shown.challenge.subject) = Default::default();
    both().but(nothing).refused("evidence-incomplete");
    // A token says nothing of who the node is, however good it is.
    Shown::new(&[Kind::Token]).refused("evidence-incomplete");
    let with_token = || Shown::new(&[Kind::Gcp, Kind::Token]);
    with_token().but(|shown| shown.token = None).refused("evidence-incomplete");
}

#[test]
fn evidence_without_configured_trust_is_refused() {
    let gcp = || Shown::new(&[Kind::Gcp]);
    gcp()
        .but(|shown| shown.clouds.google_keys = None)
        .refused("evidence-not-configured");
    let document = || Shown::new(&[Kind::AwsIdentityDocument]);
    document()
        .but(|shown| shown.clouds.region_certificates = None)
        .refused("evidence-not-configured");
    let nitro = || Shown::new(&[Kind::AwsNitroTpm]);
    nitro()
        .but(|shown| shown.clouds.nitro_roots = None)
        .refused("evidence-not-configured");
    nitro().but(|shown| shown.case.server_keys.clear()).refused("nitro-tpm-user-data");
    gcp().but(|shown| shown.case.server_keys.clear()).refused("gcp-identity-audience");
}

#[test]
fn attack_27_another_instance_claim_is_refused() {
    for kind in [Kind::AwsIdentityDocument, Kind::Gcp, Kind::AwsNitroTpm] {
        let claimant = |bytes: &[u8]| Shown::new(&[kind]).but(|shown| shown.evidence.claimant = Some(Blob(bytes.to_vec())));
        let claims = claimant(&CLAIMANT).verify().unwrap();
        assert_eq!(claims.claimant_sha256(), Some(&claimant_sha256(&CLAIMANT)));
        claimant(&[0x34; 32]).refused("claimant-mismatch");
        claimant(&[]).refused("claimant-mismatch");
        claimant(&CLAIMANT[..31]).refused("claimant-mismatch");
        Shown::new(&[kind])
            .but(|shown| shown.evidence.claimant = None)
            .refused("claimant-mismatch");
        // Nor may one come who did not ask.
        Shown::new(&[kind])
            .but(|shown| shown.challenge.subject.claimant_sha256 = None)
            .refused("claimant-mismatch");
        // Short ones can be guessed, whatever their digest is.
        let short = |shown: &mut Shown| {
            shown.challenge.subject.claimant_sha256 = Some(claimant_sha256(b"guess"));
            shown.evidence.claimant = Some(Blob(b"guess".to_vec()));
        };
        Shown::new(&[kind]).but(short).refused("claimant-mismatch");
    }
}

#[test]
fn attack_27_cloud_evidence_requires_an_instance_claim() {
    let policy = |accepts: &str, first_use: FirstUse| {
        let rules = Rules {
            tpm: accepting(&Case::new(SoftKey::p256()).selection).reference_values().cloned(),
            gcp: Some(toml::from_str("projects = [{ id = \"example-project\", number = 739419398126 }]").unwrap()),
            aws_identity_document: Some(toml::from_str("accept_replayable = true\naccounts = [\"123456789012\"]").unwrap()),
            first_use,
            ..Rules::default()
        };
        AppraisalPolicy::new(serde_json::from_str(accepts).unwrap(), rules).unwrap()
    };
    let all = r#"[["gcp"], ["aws-identity-document"], ["tpm", "gcp"], ["tpm", "aws-identity-document"]]"#;
    let unclaimed = |shown: &mut Shown| (shown.challenge.subject.claimant_sha256, shown.evidence.claimant) = (None, None);
    let check = |kinds: &[Kind], first_use: FirstUse, expect: Result<(), &str>| {
        let shown = Shown::new(kinds).but(unclaimed);
        let result = appraise(shown.verify().unwrap(), &policy(all, first_use), at(shown.case.now));
        assert_eq!(result.as_ref().map(drop).map_err(Reject::code), expect, "{kinds:?} {first_use:?}");
    };
    let (missing, document) = (Err("claimant-missing"), Kind::AwsIdentityDocument);
    check(&[Kind::Gcp], FirstUse::Binds, missing);
    check(&[Kind::Gcp], FirstUse::MeansNothing, Ok(()));
    check(&[document], FirstUse::Binds, missing);
    // A copy is bound whatever the pool says.
    check(&[document], FirstUse::MeansNothing, missing);
    for first_use in [FirstUse::Binds, FirstUse::MeansNothing] {
        check(&[Kind::Tpm, Kind::Gcp], first_use, Ok(()));
        check(&[Kind::Tpm, document], first_use, Ok(()));
    }
}

#[test]
fn each_presented_evidence_kind_is_verified() {
    let both = || Shown::new(&[Kind::Tpm, Kind::Gcp]);
    both().verify().unwrap();
    let signature = |shown: &mut Shown| shown.evidence.tpm.as_mut().unwrap().signature.0[20] ^= 1;
    both().but(signature).refused("quote-signature");
    let token = |shown: &mut Shown| shown.evidence.gcp.as_mut().unwrap().token.0.push('A');
    both().but(token).refused("gcp-identity-signature");
    both().but(|shown| shown.case.endorse = false).refused("ek-not-endorsed");
    both().but(|shown| shown.case.now = NOW + 1000).refused("challenge-expired");
}

#[test]
fn combinations_outside_the_policy_are_refused() {
    let rules = |text: &str| toml::from_str(text).unwrap();
    let document = "accept_replayable = true\naccounts = [\"123456789012\"]";
    let policy = |accepts: &str| {
        let accepts = serde_json::from_str(accepts).unwrap();
        let rules = Rules {
            gcp: Some(rules("projects = [{ id = \"example-project\", number = 739419398126 }]")),
            aws_identity_document: Some(toml::from_str(document).unwrap()),
            ..Rules::default()
        };
        AppraisalPolicy::new(accepts, rules).unwrap()
    };
    let accepted = policy(r#"[["gcp", "token"], ["aws-identity-document"]]"#);
    let check = |kinds: &[Kind], expect: Result<(), &str>| {
        let shown = Shown::new(kinds);
        let result = appraise(shown.verify().unwrap(), &accepted, at(shown.case.now));
        assert_eq!(result.as_ref().map(drop).map_err(Reject::code), expect, "{kinds:?}");
    };
    check(&[Kind::Gcp, Kind::Token], Ok(()));
    check(&[Kind::AwsIdentityDocument], Ok(()));
    check(&[Kind::Gcp], Err("evidence-not-accepted"));
    check(&[Kind::AwsIdentityDocument, Kind::Token], Err("evidence-not-accepted"));
    check(&[Kind::Tpm], Err("evidence-not-accepted"));
}
