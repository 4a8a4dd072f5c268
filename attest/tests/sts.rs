//! STS: the accepted request and the accepted answer; one refusal for each deviation.

mod answer;
mod request;
mod rules;

use std::time::Duration;

use attest::aws::sts::{
    self, ANSWER_LIMIT_BYTES, BODY, CheckedRequest, Expected, SERVER_ID_HEADER, SIGNED_HEADERS, SignedHeader, SignedRequest, StsError,
    StsResponse, StsRules, VerifiedSts, appraise, expected_server_id, verify_answer,
};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use proptest::prelude::*;

/// Time of verification: 2027-01-15, 08:00 UTC.
const NOW: u64 = 1_800_000_000;

const DATE: &str = "20270115T080000Z";
const NONCE: [u8; 32] = [0x11; 32];
const SERVER_KEY: SpkiSha256 = SpkiSha256([0x5a; 32]);
const HOST: &str = "sts.eu-central-1.amazonaws.com";
const TOKEN: &str = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJHMEUCIQ+/=";
const SIGNATURE: &str = "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b";

const RULES: &str = r#"
accounts = ["123456789012"]
roles = ["worker-role"]
regions = ["eu-central-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1"]
"#;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn rules(text: &str) -> StsRules {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn expected() -> Expected<'static> {
    Expected {
        nonce: &NONCE,
        purpose: PURPOSE_CONFIG,
        pool: "worker",
        server_keys: &[SERVER_KEY],
    }
}

fn authorization() -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=ASIAIOSFODNN7EXAMPLE/20270115/eu-central-1/sts/aws4_request, SignedHeaders={SIGNED_HEADERS}, Signature={SIGNATURE}"
    )
}

/// The request that is accepted.
fn request() -> SignedRequest {
    let header = |name: &str, value: &str| SignedHeader {
        name: name.to_owned(),
        value: value.to_owned().into(),
    };
    SignedRequest {
        method: "POST".to_owned(),
        url: format!("https://{HOST}/"),
        headers: vec![
            header("accept", "application/json"),
            header("authorization", &authorization()),
            header("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            header("host", HOST),
            header("x-amz-date", DATE),
            header("x-amz-security-token", TOKEN),
            header(SERVER_ID_HEADER, &expected_server_id(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY)),
        ],
        body: BODY.to_owned(),
    }
}

fn with(change: impl FnOnce(&mut SignedRequest)) -> SignedRequest {
    let mut request = request();
    change(&mut request);
    request
}

fn header<'a>(request: &'a mut SignedRequest, name: &str) -> &'a mut SignedHeader {
    request.headers.iter_mut().find(|header| header.name == name).unwrap()
}

fn with_header(name: &str, value: &str) -> SignedRequest {
    with(|request| header(request, name).value = value.to_owned().into())
}

fn check(request: &SignedRequest) -> Result<CheckedRequest, StsError> {
    sts::check(request, &rules(RULES), &expected(), at(NOW))
}

#[track_caller]
fn is(error: &StsError, variant: &str, code: &str) {
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(']).next().unwrap();
    assert_eq!((name, error.code()), (variant, code), "{error}");
    for secret in [SIGNATURE, TOKEN] {
        assert!(!debug.contains(secret) && !error.to_string().contains(secret), "{debug}");
    }
}

#[track_caller]
fn refused(request: &SignedRequest, variant: &str, code: &str) {
    is(&check(request).expect_err(variant), variant, code);
}

const REQUEST: &str = "sts-request";
const ENDPOINT: &str = "sts-endpoint";
const SERVER_ID: &str = "sts-server-id";

#[test]
fn accepts_a_signed_sts_request() {
    let checked = check(&request()).unwrap();
    assert_eq!(
        (checked.method(), checked.url(), checked.body()),
        ("POST", "https://sts.eu-central-1.amazonaws.com/", BODY)
    );
    assert_eq!((checked.region(), checked.server_key()), ("eu-central-1", &SERVER_KEY));
    // All that was signed is sent, `host` aside, which the URL has.
    let sent: Vec<(String, String)> = checked.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let signed = request().headers.into_iter().filter(|header| header.name != "host");
    assert_eq!(
        sent,
        signed.map(|header| (header.name, header.value.to_string())).collect::<Vec<_>>()
    );
    // The order in which they come does not matter.
    assert!(check(&with(|request| request.headers.reverse())).is_ok());
    assert!(check(&with_header("x-amz-date", "20270115T075500Z")).is_ok());
    assert!(check(&with_header("x-amz-date", "20270115T080500Z")).is_ok());
}

#[test]
fn secrets_are_not_shown() {
    let shown = format!("{:?} {:?} {:?}", request(), request().headers[1], check(&request()).unwrap());
    for secret in [SIGNATURE, TOKEN, "ASIA"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn signed_request_round_trips_through_json() {
    let json = serde_json::to_string(&request()).unwrap();
    assert_eq!(serde_json::from_str::<SignedRequest>(&json).unwrap(), request());
    assert!(serde_json::from_str::<SignedRequest>(&json.replacen("\"method\"", "\"extra\":1,\"method\"", 1)).is_err());
}

#[test]
fn accepts_only_sts_hosts_of_the_partition() {
    let at_region = |region: &str, host: &str| {
        let mut request = with_header("host", host);
        request.url = format!("https://{host}/");
        header(&mut request, "authorization").value = authorization().replace("eu-central-1", region).into();
        check(&request)
    };
    assert!(at_region("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com").is_ok());
    assert!(at_region("cn-north-1", "sts.cn-north-1.amazonaws.com.cn").is_ok());
    assert!(at_region("eusc-de-east-1", "sts.eusc-de-east-1.amazonaws.eu").is_ok());
    for (region, host) in [
        ("cn-north-1", "sts.cn-north-1.amazonaws.com"),
        ("eu-central-1", "sts.eu-central-1.amazonaws.com.cn"),
        ("eu-central-1", "sts.eu-central-1.amazonaws.eu"),
        ("eusc-de-east-1", "sts.eusc-de-east-1.amazonaws.com"),
        ("eu-west-1", "sts.eu-west-1.amazonaws.com"),
        ("us-east-1", "sts.amazonaws.com"),
    ] {
        is(&at_region(region, host).unwrap_err(), "Url", ENDPOINT);
    }
    // A pool without regions calls nobody.
    let none = RULES.replace("\"eu-central-1\", \"us-gov-west-1\", \"cn-north-1\", \"eusc-de-east-1\"", "");
    is(
        &sts::check(&request(), &rules(&none), &expected(), at(NOW)).unwrap_err(),
        "Url",
        ENDPOINT,
    );
}

/// Answer of STS that is accepted.
const ANSWER: &str = r#"{"GetCallerIdentityResponse":{"GetCallerIdentityResult":{"Account":"123456789012","Arn":"arn:aws:sts::123456789012:assumed-role/worker-role/i-0123456789abcdef0","UserId":"AROAIOSFODNN7EXAMPLE:i-0123456789abcdef0"},"ResponseMetadata":{"RequestId":"01234567-89ab-cdef-0123-456789abcdef"}}}"#;

fn answered(status: u16, content_type: Option<&str>, body: &str) -> Result<VerifiedSts, StsError> {
    let answer = StsResponse {
        status,
        content_type,
        body: body.as_bytes(),
    };
    verify_answer(check(&request()).unwrap(), &answer)
}

const JSON: Option<&str> = Some("application/json");

proptest! {
    #[test]
    fn attack_15_rejects_any_altered_request_text(
        part in 0..9_usize, at in any::<prop::sample::Index>(), char in any::<char>(), insert in any::<bool>()
    ) {
        let mut altered = request();
        let text: &mut String = match part {
            0 => &mut altered.method,
            1 => &mut altered.url,
            2 => &mut altered.body,
            header => &mut altered.headers[header - 3].value,
        };
        let mut chars: Vec<char> = text.chars().collect();
        let position = at.index(chars.len());
        if insert { chars.insert(position, char) } else { chars[position] = char }
        *text = chars.into_iter().collect();
        prop_assume!(altered != request());
        // What is AWS's to verify may be anything of the right form: key id, signature, token. A time may be another.
        if let Ok(checked) = check(&altered) {
            prop_assert!(matches!(part, 4 | 7 | 8), "part {part}: {checked:?}");
            prop_assert!(checked.headers().all(|(_, value)| value.bytes().all(|byte| (b' '..=b'~').contains(&byte))));
        }
    }

    #[test]
    fn attack_23_arbitrary_sts_response_never_panics(body in "\\PC{0,200}") {
        prop_assert!(answered(200, JSON, &body).is_err());
    }
}
