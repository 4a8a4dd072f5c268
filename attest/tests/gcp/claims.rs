//! Claims of the token: one refusal for each claim.

use super::*;

#[test]
fn each_altered_claim_is_refused() {
    for url in [
        "https://accounts.google.com/",
        "http://accounts.google.com",
        "https://ACCOUNTS.google.com",
        "https://accounts.google.com.example.org",
        "https://accounts.google.com@example.org",
    ] {
        refused("/iss", json!(url), GcpError::Issuer { found: url.to_owned() });
    }
    // The other spelling that Google's libraries know is no URL.
    refused_as(altered("/iss", json!("accounts.google.com")), "gcp-identity-malformed");
    refused("/exp", json!(NOW), GcpError::Expired { expires: NOW, now: NOW });
    refused("/exp", json!(-1), GcpError::Expired { expires: 0, now: NOW });
    let party = GcpError::AuthorizedParty {
        subject: "104029292853099978293".to_owned(),
        party: "1".to_owned(),
    };
    refused("/azp", json!("1"), party);
    refused("/azp", Value::Null, GcpError::ClaimMissing { claim: "azp" });
    let party = GcpError::AuthorizedParty {
        subject: "2".to_owned(),
        party: "104029292853099978293".to_owned(),
    };
    refused("/sub", json!("2"), party);
    let unverified = GcpError::EmailNotVerified {
        email: "739419398126-compute@developer.gserviceaccount.com".to_owned(),
    };
    refused("/email_verified", json!(false), unverified.clone());
    refused("/email_verified", Value::Null, unverified);
    refused("/email", Value::Null, GcpError::ClaimMissing { claim: "email" });
    refused(
        "/email",
        json!("a@b\u{1b}[2J"),
        GcpError::ClaimForm {
            field: "email",
            found: "a@b\u{fffd}[2J".to_owned(),
        },
    );
    refused("/google", Value::Null, GcpError::NotAnInstance);
    refused(MACHINE, Value::Null, GcpError::NotAnInstance);
    for claim in [
        "project_id",
        "project_number",
        "zone",
        "instance_id",
        "instance_name",
        "instance_creation_timestamp",
    ] {
        refused(&format!("{MACHINE}/{claim}"), Value::Null, GcpError::ClaimMissing { claim });
    }
    refused(
        &format!("{MACHINE}/instance_creation_timestamp"),
        json!(NOW + 60),
        GcpError::CreatedAfterIssue {
            created: NOW + 60,
            issued: NOW - 5,
        },
    );
}

#[test]
fn malformed_claim_values_are_refused() {
    let long = "a".repeat(300);
    for (claim, value) in [
        ("project_id", json!("")),
        ("project_id", json!("a/b")),
        ("project_id", json!("Project")),
        ("project_id", json!(long)),
        ("project_number", json!(0)),
        ("zone", json!("")),
        ("zone", json!("projects/1/zones/europe-west3-a")),
        ("instance_id", json!("")),
        ("instance_id", json!("0")),
        ("instance_id", json!("007")),
        ("instance_id", json!("+7")),
        ("instance_id", json!("-7")),
        ("instance_id", json!("18446744073709551616")),
        ("instance_name", json!("a\nb")),
        ("instance_name", json!("a b")),
        ("license_id", json!(["1", "x"])),
        ("license_id", json!([""])),
    ] {
        let error = altered(&format!("{MACHINE}/{claim}"), value.clone()).unwrap_err();
        assert!(
            matches!(&error, GcpError::ClaimForm { field, .. } if *field == claim),
            "{value}: {error}"
        );
        assert_eq!(error.code(), "gcp-identity-not-an-instance");
    }
    for (pointer, value) in [
        ("/iat", Value::Null),
        ("/iat", json!("1800000000")),
        ("/exp", Value::Null),
        ("/exp", json!(1e300)),
        ("/iss", Value::Null),
        ("/iss", json!(1)),
        ("/sub", Value::Null),
        ("/aud", json!(1)),
        ("/google/compute_engine/instance_id", json!(7)),
        ("/google/compute_engine/project_number", json!("7")),
        ("/google/compute_engine/project_number", json!(-7)),
        ("/google/compute_engine/license_id", json!("7")),
        ("/google", json!("x")),
    ] {
        refused_as(altered(pointer, value), "gcp-identity-malformed");
    }
}

#[test]
fn token_must_be_recently_issued() {
    let times = |iat: u64, exp: u64| {
        let mut claims = claims();
        claims["iat"] = json!(iat);
        claims["exp"] = json!(exp);
        claims["google"]["compute_engine"]["instance_creation_timestamp"] = json!(NOW - 10_000);
        verify(GOOGLE.sign(&claims)).map(drop)
    };
    let future = NOW + CLOCK_SKEW_SECONDS;
    assert_eq!(times(future, NOW + 3600), Ok(()));
    assert_eq!(
        times(future + 1, NOW + 3600),
        Err(GcpError::IssuedInFuture {
            issued: future + 1,
            now: NOW
        })
    );
    let old = NOW - AGE_LIMIT_SECONDS;
    assert_eq!(times(old, NOW + 1), Ok(()));
    assert_eq!(times(old - 1, NOW + 1), Err(GcpError::TooOld { issued: old - 1, now: NOW }));
    let longest = NOW + LIFETIME_LIMIT_SECONDS + CLOCK_SKEW_SECONDS;
    assert_eq!(times(NOW, longest), Ok(()));
    let lifetime = |issued, expires| Err(GcpError::Lifetime { issued, expires });
    assert_eq!(times(NOW, longest + 1), lifetime(NOW, longest + 1));
    assert_eq!(times(NOW + 10, NOW + 10), lifetime(NOW + 10, NOW + 10));
    assert_eq!(times(NOW - 5, NOW), Err(GcpError::Expired { expires: NOW, now: NOW }));
    refused("/iat", json!(-1), GcpError::TooOld { issued: 0, now: NOW });

    // At times that no clock shows.
    let token = GOOGLE.sign(&claims());
    let far = gcp::verify(token.as_bytes(), &keys_of(&GOOGLE), &[audience()], at(u64::MAX));
    assert!(matches!(far, Err(GcpError::Expired { .. })), "{far:?}");
    let early = gcp::verify(token.as_bytes(), &keys_of(&GOOGLE), &[audience()], at(0));
    assert!(matches!(early, Err(GcpError::IssuedInFuture { .. })), "{early:?}");
}

#[test]
fn attack_07_stale_token_is_refused() {
    let token = GOOGLE.sign(&claims());
    let keys = keys_of(&GOOGLE);
    let other_challenge = Audience::new(GATEWAY, PURPOSE_CONFIG, "worker", &[0x12; 32], &SERVER_KEY);
    refused_as(
        gcp::verify(token.as_bytes(), &keys, &[other_challenge], at(NOW)),
        "gcp-identity-audience",
    );
    refused_as(
        gcp::verify(token.as_bytes(), &keys, &[audience()], at(NOW + 600)),
        "gcp-identity-time",
    );
}

#[test]
fn attack_10_a_token_made_for_another_server_is_refused() {
    let token = GOOGLE.sign(&claims());
    let other = Audience::new(GATEWAY, PURPOSE_CONFIG, "worker", &NONCE, &SpkiSha256([0x5b; 32]));
    let verify = |audiences: &[Audience]| gcp::verify(token.as_bytes(), &keys_of(&GOOGLE), audiences, at(NOW));
    refused_as(verify(std::slice::from_ref(&other)), "gcp-identity-audience");
    // After a rotation of the server's key there are two.
    assert!(verify(&[other, audience()]).is_ok());
    refused_as(verify(&[]), "gcp-identity-audience");
}

/// `signJwt` of IAM signs any claims, with the service account's own key. `generateIdToken` gives a token of Google's for any audience, to
/// any client that may act as the service account, from anywhere.
#[test]
fn attack_16_service_account_cannot_impersonate_an_instance() {
    let own_key = json!({"alg": "RS256", "kid": "account-key-1", "typ": "JWT"});
    refused_as(verify(ACCOUNT.sign_with(&own_key, &claims())), "gcp-identity-key-unknown");
    assert_eq!(verify(ACCOUNT.sign(&claims())), Err(GcpError::Signature));
    let own_issuer = with("/iss", json!("robot@example-project.iam.gserviceaccount.com"));
    assert!(verify(ACCOUNT.sign(&own_issuer)).is_err());
    let mut generated = claims();
    generated.as_object_mut().unwrap().remove("google");
    assert_eq!(verify(GOOGLE.sign(&generated)), Err(GcpError::NotAnInstance));
    generated["google"] = json!({"organization_number": 1});
    assert_eq!(verify(GOOGLE.sign(&generated)), Err(GcpError::NotAnInstance));
    // Issued to one account about another one.
    refused_as(altered("/azp", json!("999")), "gcp-identity-service-account");
}

#[test]
fn attack_16_audience_must_match_the_challenge() {
    let this = audience().as_str().to_owned();
    let wrong = |value: Value, found: &str| {
        let (found, expected) = (found.to_owned(), this.clone());
        refused("/aud", value, GcpError::Audience { found, expected });
    };
    wrong(Value::Null, "");
    wrong(json!([]), "");
    wrong(json!(""), "");
    wrong(json!(GATEWAY), GATEWAY);
    wrong(json!(format!("https://{this}")), &format!("https://{this}"));
    wrong(json!(format!("{this}/")), &format!("{this}/"));
    wrong(json!(this.to_uppercase()), &this.to_uppercase());
    wrong(json!([this, "https://other.example"]), &format!("{this}, https://other.example"));
    wrong(json!(["https://other.example", this]), &format!("https://other.example, {this}"));
    refused("/aud", json!([this, this]), GcpError::AudienceCount { found: 2 });
    for other in [
        Audience::new("other.example.com", PURPOSE_CONFIG, "worker", &NONCE, &SERVER_KEY),
        Audience::new(GATEWAY, "report", "worker", &NONCE, &SERVER_KEY),
        Audience::new(GATEWAY, PURPOSE_CONFIG, "master", &NONCE, &SERVER_KEY),
        Audience::new(GATEWAY, PURPOSE_CONFIG, "worker", &[0x12; 32], &SERVER_KEY),
        Audience::new(GATEWAY, PURPOSE_CONFIG, "worker", &NONCE, &SpkiSha256([0; 32])),
    ] {
        wrong(json!(other.as_str()), other.as_str());
    }
}

#[test]
fn audience_matches_the_documented_format() {
    let data = HEXLOWER.encode(&qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY));
    assert_eq!(audience().as_str(), format!("gateway.example.com/ignition-config/worker/{data}"));
    let path = gcp::request_path(&Audience::new("a b&c", PURPOSE_CONFIG, "worker", &NONCE, &SERVER_KEY));
    assert_eq!(
        path,
        format!(
            "/computeMetadata/v1/instance/service-accounts/default/identity?audience=a+b%26c%2Fignition-config%2Fworker%2F{data}&format=full&licenses=TRUE"
        )
    );
}
