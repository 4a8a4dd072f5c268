//! The accepted request: any alteration of it is refused.

use super::*;

#[test]
fn attack_15_rejects_other_http_methods() {
    for method in ["GET", "PUT", "post", "POST ", "", "POST / HTTP/1.1\r\nx: "] {
        refused(&with(|request| request.method = method.to_owned()), "Method", REQUEST);
    }
}

#[test]
fn attack_15_rejects_other_urls() {
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
fn attack_15_rejects_other_bodies() {
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
fn attack_15_rejects_missing_repeated_and_unknown_headers() {
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
            request.headers.push(SignedHeader {
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
fn attack_15_rejects_a_changed_authorization_header() {
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
fn attack_15_rejects_the_server_id_of_another_challenge() {
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
fn attack_07_rejects_a_request_outside_the_clock_skew() {
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
