//! STS: the one request that is sent, and the one answer that is taken; one refusal for each thing that can be different.

use std::collections::BTreeSet;
use std::time::Duration;

use attest::aws::sts::{
    self, ADVICE, ANSWER_LIMIT_BYTES, Answer, BODY, CheckedRequest, Expected, Header, SERVER_ID_HEADER, SIGNED_HEADERS, SignedRequest,
    StsError, StsRules, VerifiedSts, appraise, expected_server_id, verify_answer,
};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use proptest::prelude::*;

/// 2027-01-15, 08:00.
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
    let header = |name: &str, value: &str| Header {
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

fn header<'a>(request: &'a mut SignedRequest, name: &str) -> &'a mut Header {
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
fn the_request_is_accepted() {
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
fn the_request_travels_as_json() {
    let json = serde_json::to_string(&request()).unwrap();
    assert_eq!(serde_json::from_str::<SignedRequest>(&json).unwrap(), request());
    assert!(serde_json::from_str::<SignedRequest>(&json.replacen("\"method\"", "\"extra\":1,\"method\"", 1)).is_err());
}

#[test]
fn each_partition_has_its_hosts() {
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

#[test]
fn attack_15_another_method() {
    for method in ["GET", "PUT", "post", "POST ", "", "POST / HTTP/1.1\r\nx: "] {
        refused(&with(|request| request.method = method.to_owned()), "Method", REQUEST);
    }
}

#[test]
fn attack_15_another_url() {
    for url in [
        "",
        "https://sts.eu-central-1.amazonaws.com",
        "http://sts.eu-central-1.amazonaws.com/",
        "HTTPS://sts.eu-central-1.amazonaws.com/",
        "https://STS.eu-central-1.amazonaws.com/",
        "https://sts.eu-central-1.amazonaws.com:443/",
        "https://sts.eu-central-1.amazonaws.com:8443/",
        "https://sts.eu-central-1.amazonaws.com./",
        "https://evil.example/",
        "https://sts.eu-central-1.amazonaws.com.evil.example/",
        "https://sts.eu-central-1.amazonaws.com@evil.example/",
        "https://sts.eu-central-1.amazonaws.com%2f@evil.example/",
        "https://user:password@sts.eu-central-1.amazonaws.com/",
        "https://evil.example#sts.eu-central-1.amazonaws.com/",
        "https://evil.example\\@sts.eu-central-1.amazonaws.com/",
        "https://sts.eu-central-1.amazonaws.com\\@evil.example/",
        "https://sts.eu-central-1.amazonaws.com/#",
        "https://sts.eu-central-1.amazonaws.com/?",
        "https://sts.eu-central-1.amazonaws.com/?Action=GetSessionToken",
        "https://sts.eu-central-1.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15",
        "https://sts.eu-central-1.amazonaws.com//",
        "https://sts.eu-central-1.amazonaws.com/.",
        "https://sts.eu-central-1.amazonaws.com/%2e",
        "https://sts.eu-central-1.amazonaws.com/x",
        "https://sts.eu-central-1.amazonaws.com/ ",
        " https://sts.eu-central-1.amazonaws.com/",
        "https://sts.eu-central-1.amazonaws.com/\r\nx: y",
        "https://sts.eu-central-1.amazonaws.com\t/",
        "https://%73ts.eu-central-1.amazonaws.com/",
        "https://s3.eu-central-1.amazonaws.com/",
        "https://sts-fips.eu-central-1.amazonaws.com/",
        "https://sts.xx-evil-1.amazonaws.com/",
        "//sts.eu-central-1.amazonaws.com/",
        "https://169.254.169.254/",
        "https://\u{ff53}ts.eu-central-1.amazonaws.com/",
    ] {
        refused(&with(|request| request.url = url.to_owned()), "Url", ENDPOINT);
    }
    // A presigned URL's secrets do not get into the log.
    let presigned = format!("https://{HOST}/?X-Amz-Security-Token={TOKEN}&X-Amz-Signature={SIGNATURE}");
    refused(&with(|request| request.url = presigned), "Url", ENDPOINT);
}

#[test]
fn attack_15_another_body() {
    for body in [
        "",
        "Action=GetCallerIdentity",
        "Version=2011-06-15&Action=GetCallerIdentity",
        "Action=GetCallerIdentity&Version=2011-06-15&",
        "Action=GetCallerIdentity&Version=2011-06-15&Action=AssumeRole",
        "Action=GetSessionToken&Version=2011-06-15",
        "Action=AssumeRole&Version=2011-06-15",
        "action=GetCallerIdentity&Version=2011-06-15",
        "Action=%47etCallerIdentity&Version=2011-06-15",
        "Action=GetCallerIdentity&Version=2011-06-15\r\n",
        " Action=GetCallerIdentity&Version=2011-06-15",
    ] {
        refused(&with(|request| request.body = body.to_owned()), "Body", REQUEST);
    }
}

#[test]
fn attack_15_other_headers() {
    for missing in request().headers {
        let without = with(|request| request.headers.retain(|header| header.name != missing.name));
        refused(&without, "HeaderMissing", REQUEST);
        refused(&with(|request| request.headers.push(missing.clone())), "HeaderRepeated", REQUEST);
        // Names are compared as they are: another spelling is another header.
        let spelled = with(|request| header(request, &missing.name).name = missing.name.to_uppercase());
        refused(&spelled, "HeaderUnknown", REQUEST);
        let padded = with(|request| header(request, &missing.name).name = format!("{} ", missing.name));
        refused(&padded, "HeaderUnknown", REQUEST);
        // CRLF, NUL, spaces: in no value.
        for injected in ["\r\nx: y", "\n", "\0", " ", ", x", "\u{a0}"] {
            for value in [format!("{}{injected}", *missing.value), format!("{injected}{}", *missing.value)] {
                let error = check(&with_header(&missing.name, &value)).unwrap_err();
                assert!([REQUEST, SERVER_ID].contains(&error.code()), "{}: {error}", missing.name);
            }
        }
        let empty = check(&with_header(&missing.name, "")).unwrap_err();
        assert!([REQUEST, SERVER_ID].contains(&empty.code()), "{empty}");
    }
    for name in [
        "",
        "x-amz-target",
        "x-forwarded-host",
        "content-length",
        "transfer-encoding",
        "connection",
        "cookie",
        "x-amz-content-sha256",
        "accept-encoding",
        ":authority",
        "x\r\ny",
    ] {
        let added = with(|request| {
            request.headers.push(Header {
                name: name.to_owned(),
                value: String::new().into(),
            });
        });
        refused(&added, "HeaderUnknown", REQUEST);
    }
    refused(&with_header("host", "evil.example"), "HeaderValue", REQUEST);
    refused(&with_header("host", "sts.us-gov-west-1.amazonaws.com"), "HeaderValue", REQUEST);
    refused(&with_header("accept", "text/xml"), "HeaderValue", REQUEST);
    refused(&with_header("content-type", "application/json"), "HeaderValue", REQUEST);
    refused(&with_header("x-amz-security-token", &"a".repeat(8193)), "SecurityToken", REQUEST);
    refused(&with_header("x-amz-security-token", "a b"), "SecurityToken", REQUEST);
    let many = with(|request| {
        let one = request.headers[0].clone();
        request.headers.extend(std::iter::repeat_n(one, 100_000));
    });
    refused(&many, "HeaderRepeated", REQUEST);
}

#[test]
fn attack_15_another_authorization() {
    let check = |from: &str, to: &str, variant: &str, code: &str| {
        let altered = authorization().replacen(from, to, 1);
        assert_ne!(altered, authorization());
        refused(&with_header("authorization", &altered), variant, code);
    };
    check("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", "Authorization", REQUEST);
    check("AWS4-HMAC-SHA256", "Bearer", "Authorization", REQUEST);
    check(" Credential", "  Credential", "Authorization", REQUEST);
    check("Credential=", "credential=", "Authorization", REQUEST);
    check("ASIAIOSFODNN7EXAMPLE", "", "Authorization", REQUEST);
    check("ASIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7ex", "Authorization", REQUEST);
    check("ASIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPL\u{c9}", "Authorization", REQUEST);
    check(", SignedHeaders=", ",SignedHeaders=", "Authorization", REQUEST);
    check(", Signature=", ",Signature=", "Authorization", REQUEST);
    check(SIGNATURE, &SIGNATURE[1..], "Authorization", REQUEST);
    check(SIGNATURE, &SIGNATURE.to_uppercase(), "Authorization", REQUEST);
    check(SIGNATURE, &format!("{SIGNATURE}0"), "Authorization", REQUEST);
    check(SIGNATURE, &format!("{SIGNATURE}, Signature={SIGNATURE}"), "Authorization", REQUEST);
    // The scope: day, region, service.
    check("/20270115/", "/20270114/", "Scope", REQUEST);
    check("/eu-central-1/", "/us-east-1/", "Scope", REQUEST);
    check("/sts/", "/s3/", "Scope", REQUEST);
    check("/sts/", "/sts/x/", "Scope", REQUEST);
    check("aws4_request", "aws4", "Scope", REQUEST);
    // What is signed: our header above all, every other header, and nothing that is not there.
    check(";x-attestation-gateway-server-id", "", "ServerIdNotSigned", SERVER_ID);
    check(
        ";x-attestation-gateway-server-id",
        ";x-attestation-gateway-server-id-2",
        "ServerIdNotSigned",
        SERVER_ID,
    );
    for name in ["accept;", "content-type;", "host;", "x-amz-date;", "x-amz-security-token;"] {
        check(name, "", "SignedHeaders", REQUEST);
    }
    check("accept;", "accept;accept;", "SignedHeaders", REQUEST);
    check("accept;content-type", "content-type;accept", "SignedHeaders", REQUEST);
    check("host", "Host", "SignedHeaders", REQUEST);
}

/// A request that was signed for another gateway, or another challenge of this one.
#[test]
fn attack_15_another_server_id() {
    let id = |nonce: &[u8], purpose: &str, pool: &str, key: u8| expected_server_id(nonce, purpose, pool, &SpkiSha256([key; 32]));
    for other in [
        id(&[0x12; 32], PURPOSE_CONFIG, "worker", 0x5a),
        id(&NONCE, "report", "worker", 0x5a),
        id(&NONCE, PURPOSE_CONFIG, "master", 0x5a),
        id(&NONCE, PURPOSE_CONFIG, "worker", 0x5b),
        id(&NONCE, PURPOSE_CONFIG, "worker", 0x5a).to_uppercase(),
        String::new(),
    ] {
        refused(&with_header(SERVER_ID_HEADER, &other), "ServerId", SERVER_ID);
    }
    let without = |nonce: &[u8], server_keys: &[SpkiSha256]| {
        let request = with_header(SERVER_ID_HEADER, &id(nonce, PURPOSE_CONFIG, "worker", 0x5a));
        let expected = Expected {
            nonce,
            server_keys,
            ..expected()
        };
        sts::check(&request, &rules(RULES), &expected, at(NOW))
    };
    is(&without(&NONCE, &[]).unwrap_err(), "ServerId", SERVER_ID);
    is(&without(&[], &[SERVER_KEY]).unwrap_err(), "ServerId", SERVER_ID);
    // After a rotation the key before is known, too.
    let rotated = without(&NONCE, &[SpkiSha256([1; 32]), SERVER_KEY]).unwrap();
    assert_eq!(rotated.server_key(), &SERVER_KEY);
}

#[test]
fn attack_07_a_request_of_another_time() {
    for date in ["20270115T075459Z", "20270115T080501Z", "20270114T080000Z", "20280115T080000Z"] {
        refused(&with_header("x-amz-date", date), "Date", "sts-date");
    }
    for date in [
        "",
        "20270115",
        "2027-01-15T08:00:00Z",
        "20270115T080000",
        "Fri, 15 Jan 2027 08:00:00 GMT",
        "20271315T080000Z",
    ] {
        refused(&with_header("x-amz-date", date), "DateForm", REQUEST);
    }
}

/// The answer that is taken.
const ANSWER: &str = r#"{"GetCallerIdentityResponse":{"GetCallerIdentityResult":{"Account":"123456789012","Arn":"arn:aws:sts::123456789012:assumed-role/worker-role/i-0123456789abcdef0","UserId":"AROAIOSFODNN7EXAMPLE:i-0123456789abcdef0"},"ResponseMetadata":{"RequestId":"01234567-89ab-cdef-0123-456789abcdef"}}}"#;

fn answered(status: u16, content_type: Option<&str>, body: &str) -> Result<VerifiedSts, StsError> {
    let answer = Answer {
        status,
        content_type,
        body: body.as_bytes(),
    };
    verify_answer(check(&request()).unwrap(), &answer)
}

const JSON: Option<&str> = Some("application/json");

#[test]
fn the_answer_is_accepted() {
    for content_type in ["application/json", "application/json; charset=utf-8", "Application/JSON"] {
        let verified = answered(200, Some(content_type), ANSWER).unwrap();
        assert_eq!(
            (verified.account(), verified.role(), verified.instance()),
            ("123456789012", "worker-role", "i-0123456789abcdef0")
        );
        assert_eq!(verified.identity(), "aws:123456789012/i-0123456789abcdef0");
        assert_eq!((verified.region(), verified.server_key()), ("eu-central-1", &SERVER_KEY));
        assert_eq!(verified.user_id(), "AROAIOSFODNN7EXAMPLE:i-0123456789abcdef0");
        assert!(verified.arn().starts_with("arn:aws:sts::"));
    }
}

/// AWS says more one day: what is known is taken as before.
#[test]
fn fields_of_the_answer_that_are_not_known_are_passed_over() {
    let plain = answered(200, JSON, ANSWER).unwrap();
    for (from, to) in [
        ("{\"GetCallerIdentityResponse", "{\"Extra\":[{}],\"GetCallerIdentityResponse"),
        ("{\"GetCallerIdentityResult", "{\"Extra\":1,\"GetCallerIdentityResult"),
        ("{\"Account", "{\"PrincipalTags\":{\"Account\":\"210987654321\"},\"Account"),
        (",\"ResponseMetadata\":{\"RequestId\":\"01234567-89ab-cdef-0123-456789abcdef\"}", ""),
    ] {
        let altered = ANSWER.replacen(from, to, 1);
        assert_ne!(altered, ANSWER);
        assert_eq!(answered(200, JSON, &altered).unwrap(), plain);
    }
}

#[test]
fn answers_that_are_refused() {
    let unavailable = "sts-unavailable";
    for status in [0, 100, 201, 204, 301, 302, 307, 308, 404, 429, 500, 503] {
        is(&answered(status, JSON, ANSWER).unwrap_err(), "Status", unavailable);
    }
    for status in [400, 403] {
        is(&answered(status, JSON, ANSWER).unwrap_err(), "Refused", "sts-refused");
    }
    for content_type in [
        None,
        Some(""),
        Some("text/xml"),
        Some("application/jsonp"),
        Some("text/html; application/json"),
    ] {
        is(&answered(200, content_type, ANSWER).unwrap_err(), "ContentType", unavailable);
    }
    let long = format!("{ANSWER}{}", " ".repeat(ANSWER_LIMIT_BYTES));
    is(&answered(200, JSON, &long).unwrap_err(), "AnswerTooLarge", unavailable);
    for end in 0..ANSWER.len() {
        is(&answered(200, JSON, &ANSWER[..end]).unwrap_err(), "Answer", unavailable);
    }
    let check = |from: &str, to: &str, variant: &str, code: &str| {
        let altered = ANSWER.replacen(from, to, 1);
        assert_ne!(altered, ANSWER);
        is(&answered(200, JSON, &altered).unwrap_err(), variant, code);
    };
    let twice = ANSWER.replacen(
        "{\"GetCallerIdentityResult",
        "{\"GetCallerIdentityResult\":{},\"GetCallerIdentityResult",
        1,
    );
    is(&answered(200, JSON, &twice).unwrap_err(), "Answer", unavailable);
    check("{\"Account\":", "{\"Account\":\"123456789012\",\"Account\":", "Answer", unavailable);
    check("{\"Account\":\"123456789012\"", "{\"Account\":123456789012", "Answer", unavailable);
    check("{\"Account\":\"123456789012\"", "{\"Account\":null", "Answer", unavailable);
    check("\"UserId\"", "\"Userid\"", "Answer", unavailable);
    check("}}}", "}}}x", "Answer", unavailable);
    check(
        "{\"Account\":\"123456789012\"",
        "{\"Account\":\"12345678901\"",
        "AnswerAccount",
        unavailable,
    );
    let not_an_instance = "sts-not-an-instance";
    // The account of the ARN is the answer's.
    check(
        "{\"Account\":\"123456789012\"",
        "{\"Account\":\"210987654321\"",
        "NotAnInstance",
        not_an_instance,
    );
    check("arn:aws:sts", "arn:aws-cn:sts", "NotAnInstance", not_an_instance);
    check("arn:aws:sts", "arn:aws:iam", "NotAnInstance", not_an_instance);
    check(
        "assumed-role/worker-role/i-0123456789abcdef0",
        "user/worker",
        "NotAnInstance",
        not_an_instance,
    );
    check("assumed-role", "federated-user", "NotAnInstance", not_an_instance);
    check(
        "sts::123456789012:assumed-role/worker-role/i-0123456789abcdef0",
        "iam::123456789012:root",
        "NotAnInstance",
        not_an_instance,
    );
    check("role/worker-role/i-0", "role/worker-role/x/i-0", "NotAnInstance", not_an_instance);
    check("role/worker-role/", "role//", "NotAnInstance", not_an_instance);
    check("role/worker-role/", "role/worker role/", "NotAnInstance", not_an_instance);
    check(
        "role/worker-role/i-0123456789abcdef0",
        "role/worker-role/somebody",
        "NotAnInstance",
        not_an_instance,
    );
    check(
        "role/worker-role/i-0123456789abcdef0",
        "role/worker-role/i-0123456789abcdef",
        "NotAnInstance",
        not_an_instance,
    );
    check(
        "role/worker-role/i-0123456789abcdef0",
        "role/worker-role/i-0123456789abcdef0/",
        "NotAnInstance",
        not_an_instance,
    );
    check("EXAMPLE:i-0123456789abcdef0", "EXAMPLE:i-0123456789abcdef1", "UserId", unavailable);
    check("EXAMPLE:i-0123456789abcdef0", "EXAMPLE", "UserId", unavailable);
    check("AROAIOSFODNN7EXAMPLE:", ":", "UserId", unavailable);
}

#[test]
fn each_rule_refuses() {
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
fn rules_that_cannot_be_meant() {
    let refused = |from: &str, to: &str, says: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        let error = toml::from_str::<StsRules>(&altered).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused("accounts = [\"123456789012\"]", "", "accounts");
    refused("roles = [\"worker-role\"]", "", "roles");
    refused("regions", "region", "unknown field");
    refused("\"123456789012\"", "\"*\"", "is no account");
    refused("\"worker-role\"", "\"arn:aws:iam::123456789012:role/worker\"", "is no role");
    refused("\"worker-role\"", "\"*\"", "is no role");
    refused("\"eu-central-1\"", "\"evil.example/\"", "is no region");
    refused("\"eu-central-1\"", "\"us-iso-east-1\"", "is no region");
}

#[test]
fn every_code_is_stable_and_explained() {
    let codes: BTreeSet<&str> = ADVICE.iter().map(|advice| advice.code).collect();
    assert_eq!(codes.len(), ADVICE.len());
    let errors = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md")).unwrap();
    let section = errors
        .split("\n## ")
        .find(|section| section.starts_with("Codes of refused STS requests\n"))
        .unwrap();
    let listed: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(listed.len(), ADVICE.len());
    for attest::advice::Advice { code, title, next_step } in ADVICE {
        assert!(code.starts_with("sts-"), "{code}");
        let row = format!("| `{code}` | {title} | {next_step} |");
        assert!(listed.contains(&row.as_str()), "docs/errors.md has not: {row}");
    }
}

proptest! {
    #[test]
    fn attack_15_no_other_text_is_accepted(
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
    fn attack_23_no_answer_makes_it_panic(body in "\\PC{0,200}") {
        prop_assert!(answered(200, JSON, &body).is_err());
    }
}
