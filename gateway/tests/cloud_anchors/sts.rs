//! The call to AWS STS: the request, and the handling of the answer.

use attest::SpkiSha256;
use attest::aws::sts::{
    ANSWER_LIMIT_BYTES, CheckedRequest, Expected, SignedRequest, StsError, StsResponse, StsRules, VerifiedSts, check, expected_server_id,
    verify_answer,
};
use attest::nonce::PURPOSE_CONFIG;
use attest_gateway::cloud::{CloudUnavailable, Clouds, StsAnswer};
use cloud_fixtures::aws::session::sts_host;
use cloud_fixtures::aws::{AwsInstance, RoleSession, StsServer};
use cloud_fixtures::server::ServerFault;

use super::setup::{NOW, Setup, at};

const REGION: &str = "eu-central-1";
const NONCE: [u8; 32] = [7; 32];
const SERVER_KEY: SpkiSha256 = SpkiSha256([9; 32]);

struct Aws {
    instance: AwsInstance,
    session: RoleSession,
    sts: StsServer,
    setup: Setup,
}

impl Aws {
    fn start() -> Self {
        let instance = AwsInstance::example(NOW - 60);
        let session = RoleSession::for_instance(&instance, NOW);
        let sts = StsServer::start(REGION, vec![session.clone()]);
        sts.clock().set(NOW);
        let mut setup = Setup::new();
        setup.connect(&[&sts_host(REGION)], sts.address(), Some(sts.ca_pem()));
        Self {
            instance,
            session,
            sts,
            setup,
        }
    }

    /// Returns the node's signed request, checked like in the gateway before its call.
    fn request(&self, session: &RoleSession) -> CheckedRequest {
        let server_id = expected_server_id(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY);
        let request: SignedRequest = serde_json::from_value(session.presigned(REGION, &server_id, NOW)).unwrap();
        let rules = serde_json::json!({ "accounts": [self.instance.account], "roles": [self.instance.role], "regions": [REGION] });
        let rules: StsRules = serde_json::from_value(rules).unwrap();
        let expected = Expected {
            nonce: &NONCE,
            purpose: PURPOSE_CONFIG,
            pool: "worker",
            server_keys: &[SERVER_KEY],
        };
        check(&request, &rules, &expected, at(NOW)).unwrap()
    }

    async fn ask(&self, clouds: &Clouds) -> Result<StsAnswer, CloudUnavailable> {
        clouds.ask_sts(&self.request(&self.session)).await
    }

    fn verify(&self, answer: &StsAnswer) -> Result<VerifiedSts, StsError> {
        let answer = StsResponse {
            status: answer.status,
            content_type: answer.content_type.as_deref(),
            body: &answer.body,
        };
        verify_answer(self.request(&self.session), &answer)
    }
}

#[tokio::test]
async fn forwards_the_signed_sts_request_once_unchanged() {
    let aws = Aws::start();
    let clouds = aws.setup.open();
    let answer = aws.ask(&clouds).await.unwrap();
    assert_eq!(aws.verify(&answer).unwrap().instance.as_str(), aws.instance.instance_id);
    let requests = aws.sts.requests();
    assert_eq!(requests.len(), 1);
    let mut names: Vec<&str> = requests[0].headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "accept",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-amz-date",
        "x-amz-security-token",
        "x-attestation-gateway-server-id",
    ];
    assert_eq!(names, expected);
    aws.setup
        .measured(r#"attest_gateway_cloud_fetches_total{what="aws-sts",result="answered"} 1"#);
}

#[tokio::test]
async fn attack_15_refuses_credentials_unknown_to_aws() {
    let aws = Aws::start();
    let clouds = aws.setup.open();
    let mut other = aws.session.clone();
    other.secret_access_key.push('x');
    let answer = clouds.ask_sts(&aws.request(&other)).await.unwrap();
    assert!(matches!(aws.verify(&answer), Err(StsError::Refused { status: 403 })));
}

#[tokio::test]
async fn attack_15_follows_no_redirect_and_never_retries() {
    let check = async |fault: ServerFault, refused: fn(&StsError) -> bool| {
        let aws = Aws::start();
        aws.sts.fail(fault);
        let answer = aws.ask(&aws.setup.open()).await.unwrap();
        let error = aws.verify(&answer).unwrap_err();
        assert!(refused(&error), "{error}");
        assert!(answer.body.len() <= ANSWER_LIMIT_BYTES + 1);
        assert_eq!(aws.sts.requests().len(), 1, "no redirect, no second attempt");
    };
    let elsewhere = format!("https://{}/elsewhere", sts_host(REGION));
    check(ServerFault::Redirect(elsewhere), |error| {
        matches!(error, StsError::Status { found: 302 })
    })
    .await;
    check(ServerFault::Status(500), |error| matches!(error, StsError::Status { found: 500 })).await;
    check(ServerFault::Garbage, |error| {
        matches!(error, StsError::ContentType { .. } | StsError::Answer { .. })
    })
    .await;
    check(ServerFault::Huge, |error| {
        matches!(error, StsError::ContentType { .. } | StsError::AnswerTooLarge { .. })
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_sts_is_reported_as_unavailable() {
    let mut aws = Aws::start();
    aws.sts.fail(ServerFault::Down);
    let error = aws.ask(&aws.setup.open()).await.unwrap_err();
    assert!(matches!(error, CloudUnavailable::Failed { .. }), "{error}");
    aws.setup
        .measured(r#"attest_gateway_cloud_fetches_total{what="aws-sts",result="failed"} 1"#);
    for secret in [&aws.session.token, &aws.session.secret_access_key, &aws.session.access_key_id] {
        assert!(!format!("{error} {error:?}").contains(secret.as_str()));
    }
    aws.sts.recover();
    aws.sts.fail(ServerFault::Slow);
    aws.setup.impatient();
    let error = aws.ask(&aws.setup.open()).await.unwrap_err();
    assert!(matches!(error, CloudUnavailable::Slow { .. }), "{error}");
}

#[tokio::test]
async fn attack_15_sends_no_request_to_an_untrusted_server() {
    let aws = Aws::start();
    let mut setup = Setup::new();
    let other = StsServer::start(REGION, Vec::new());
    setup.connect(&[&sts_host(REGION)], aws.sts.address(), Some(other.ca_pem()));
    let error = aws.ask(&setup.open()).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(aws.sts.requests().is_empty());
}
