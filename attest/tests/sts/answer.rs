//! Checks of AWS's answer to the request.

use super::*;

#[test]
fn accepts_an_sts_response() {
    for content_type in ["application/json", "application/json; charset=utf-8", "Application/JSON"] {
        let verified = answered(200, Some(content_type), ANSWER).unwrap();
        assert_eq!(
            (verified.account.as_str(), verified.role.as_str(), verified.instance.as_str()),
            ("123456789012", "worker-role", "i-0123456789abcdef0")
        );
        assert_eq!(verified.identity(), "aws:123456789012/i-0123456789abcdef0");
        assert_eq!((verified.region.as_str(), verified.server_key), ("eu-central-1", SERVER_KEY));
        assert_eq!(verified.user_id.as_str(), "AROAIOSFODNN7EXAMPLE:i-0123456789abcdef0");
        assert!(verified.arn.as_str().starts_with("arn:aws:sts::"));
    }
}

/// If AWS adds fields, the known ones are read as usual.
#[test]
fn ignores_unknown_fields_of_an_sts_response() {
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
fn rejects_invalid_sts_responses() {
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
