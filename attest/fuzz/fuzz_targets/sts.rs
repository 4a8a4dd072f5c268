//! `RUSTC_BOOTSTRAP=1 cargo fuzz run sts` in `attest/`: no request and no answer makes the checks panic, and a request that is accepted has
//! nothing in its URL and headers that was not asked for.
#![no_main]

use std::time::Duration;

use attest::aws::sts::{StsResponse, BODY, CheckedRequest, Expected, SignedHeader, SERVER_ID_HEADER, SIGNED_HEADERS, SignedRequest, StsRules};
use attest::aws::sts::{check, expected_server_id, verify_answer};
use attest::{SpkiSha256, UnixTime};
use libfuzzer_sys::fuzz_target;

const KEYS: &[SpkiSha256] = &[SpkiSha256([9; 32])];

fn checked(request: &SignedRequest) -> Option<CheckedRequest> {
    let rules = r#"{"accounts": ["123456789012"], "roles": ["worker"], "regions": ["eu-central-1"]}"#;
    let rules: StsRules = serde_json::from_str(rules).unwrap();
    let expected = Expected {
        nonce: &[7; 32],
        purpose: "ignition-config",
        pool: "worker",
        server_keys: KEYS,
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    check(request, &rules, &expected, now).ok()
}

/// A request that is accepted, with `text` as one of its parts.
fn request(part: u8, text: &str) -> SignedRequest {
    let scope = "ASIAIOSFODNN7EXAMPLE/20270115/eu-central-1/sts/aws4_request";
    let zeros = "0".repeat(64);
    let server_id = expected_server_id(&[7; 32], "ignition-config", "worker", &KEYS[0]);
    let headers = [
        ("accept", "application/json".to_owned()),
        (
            "authorization",
            format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={SIGNED_HEADERS}, Signature={zeros}"),
        ),
        ("content-type", "application/x-www-form-urlencoded; charset=utf-8".to_owned()),
        ("host", "sts.eu-central-1.amazonaws.com".to_owned()),
        ("x-amz-date", "20270115T080000Z".to_owned()),
        ("x-amz-security-token", "token".to_owned()),
        (SERVER_ID_HEADER, server_id),
    ];
    let either = |at: u8, value: &str| if part == at { text.to_owned() } else { value.to_owned() };
    SignedRequest {
        method: either(0, "POST"),
        url: either(1, "https://sts.eu-central-1.amazonaws.com/"),
        headers: (3..)
            .zip(headers)
            .map(|(at, (name, value))| SignedHeader {
                name: name.to_owned(),
                value: either(at, &value).into(),
            })
            .collect(),
        body: either(2, BODY),
    }
}

fuzz_target!(|input: (u8, String)| {
    let (part, text) = input;
    if let Some(checked) = checked(&request(part % 11, &text)) {
        assert_eq!(checked.url(), "https://sts.eu-central-1.amazonaws.com/");
        assert!(checked.headers().all(|(_, value)| value.bytes().all(|byte| (b' '..=b'~').contains(&byte))));
    }
    if let Ok(request) = serde_json::from_str::<SignedRequest>(&text) {
        let _ = checked(&request);
    }
    let answer = StsResponse {
        status: 200,
        content_type: Some("application/json"),
        body: text.as_bytes(),
    };
    if let Ok(verified) = verify_answer(checked(&request(u8::MAX, "")).unwrap(), &answer) {
        assert!(verified.identity().starts_with("aws:"));
    }
});
