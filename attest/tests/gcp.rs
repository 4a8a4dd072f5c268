//! Identity tokens of Google Compute Engine: what is accepted, and one refusal for each thing that can be wrong.

use crate::gcp_authority::{
    ACCOUNT, GATEWAY, GOOGLE, INSTANCE_ID, KID, NONCE, NOW, PROJECT_ID, PROJECT_NUMBER, SERVER_KEY, Signer, at, audience, claims, compact,
    keys, keys_of,
};
use crate::vectors;
use attest::gcp::{
    self, AGE_LIMIT_SECONDS, Audience, CLOCK_SKEW_SECONDS, GcpError, GoogleKeys, IDENTITY_TOKEN_LIMIT_BYTES, JWKS_LIMIT_BYTES, KEYS_LIMIT,
    KeysError, LIFETIME_LIMIT_SECONDS, VerifiedIdentity,
};
use attest::nonce::{PURPOSE_CONFIG, SpkiSha256, qualifying_data};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256, RsaEncoding,
};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use proptest::prelude::*;
use serde_json::{Value, json};

fn verify(token: impl AsRef<[u8]>) -> Result<VerifiedIdentity, GcpError> {
    gcp::verify(token.as_ref(), &keys_of(&GOOGLE), &[audience()], at(NOW))
}

/// Signed by Google's key, with one claim altered; `null` takes it away.
fn altered(pointer: &str, value: Value) -> Result<VerifiedIdentity, GcpError> {
    verify(GOOGLE.sign(&with(pointer, value)))
}

fn with(pointer: &str, value: Value) -> Value {
    let mut claims = claims();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = claims.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => drop(parent.remove(name)),
        value => drop(parent.insert(name.to_owned(), value)),
    }
    claims
}

#[track_caller]
fn refused(pointer: &str, value: Value, expect: GcpError) {
    assert_eq!(altered(pointer, value), Err(expect));
}

#[track_caller]
fn refused_as(result: Result<VerifiedIdentity, GcpError>, code: &str) {
    assert_eq!(result.map_err(|error| error.code()).unwrap_err(), code);
}

const MACHINE: &str = "/google/compute_engine";

#[test]
fn a_token_of_an_instance_is_accepted() {
    let identity = verify(GOOGLE.sign(&claims())).unwrap();
    let instance = identity.instance();
    assert_eq!(identity.identity(), format!("gcp:{PROJECT_ID}/{INSTANCE_ID}"));
    assert_eq!((instance.project_id(), instance.project_number()), (PROJECT_ID, PROJECT_NUMBER));
    assert_eq!((instance.zone(), instance.region()), ("europe-west3-a", "europe-west3"));
    assert_eq!(
        (instance.instance_id(), instance.instance_name()),
        ("152986662232938449", "worker-7")
    );
    assert_eq!(
        (identity.created(), identity.issued(), identity.expires()),
        (NOW - 600, NOW - 5, NOW + 3595)
    );
    assert_eq!(identity.licenses(), ["1000204", "5926592092274602096"]);
    assert_eq!(identity.confidentiality(), Some(1));
    assert_eq!(identity.service_account().id, "104029292853099978293");
    assert_eq!(
        identity.service_account().email,
        "739419398126-compute@developer.gserviceaccount.com"
    );
    assert_eq!(identity.key_id(), KID);
    let record = serde_json::to_value(&identity).unwrap();
    assert_eq!(record["instance"]["instance_id"], "152986662232938449");
}

#[test]
fn what_google_may_leave_out_or_add_is_no_reason_to_refuse() {
    let image_without_licence = altered(&format!("{MACHINE}/license_id"), Value::Null).unwrap();
    assert!(image_without_licence.licenses().is_empty());
    assert_eq!(
        altered(&format!("{MACHINE}/instance_confidentiality"), Value::Null)
            .unwrap()
            .confidentiality(),
        None
    );
    assert!(altered("/aud", json!([audience().as_str()])).is_ok());
    assert!(altered("/google/organization_number", json!(1)).is_ok());
    assert!(altered(&format!("{MACHINE}/more"), json!({"in": "future"})).is_ok());
    let domain_scoped = altered(&format!("{MACHINE}/project_id"), json!("example.com:project")).unwrap();
    assert_eq!(domain_scoped.identity(), format!("gcp:example.com:project/{INSTANCE_ID}"));
    let without_type = GOOGLE.sign_with(&json!({"alg": "RS256", "kid": KID}), &claims());
    assert!(verify(without_type).is_ok());
}

#[test]
fn one_refusal_for_each_altered_claim() {
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
fn values_that_google_does_not_give_are_refused() {
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
fn it_must_be_from_this_moment() {
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
fn attack_07_a_token_of_before_is_refused() {
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

#[test]
fn attack_11_only_what_was_signed_is_read() {
    let (honest, forged) = (
        GOOGLE.sign(&claims()),
        GOOGLE.sign(&with(&format!("{MACHINE}/instance_id"), json!("1"))),
    );
    let (honest, forged): (Vec<_>, Vec<_>) = (honest.split('.').collect(), forged.split('.').collect());
    let swapped = [honest[0], forged[1], honest[2]].join(".");
    assert_eq!(verify(swapped), Err(GcpError::Signature));
    // One signature, one spelling: bits left over in the last character of base64url are not free to choose.
    let last = honest[2].chars().last().unwrap();
    for other in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/"
        .chars()
        .filter(|other| *other != last)
    {
        let stem = &honest[2][..honest[2].len() - 1];
        assert!(verify(format!("{}.{}.{stem}{other}", honest[0], honest[1])).is_err());
    }
    // Nothing around it, and nothing said twice.
    let whole = honest.join(".");
    for text in [
        format!("{whole}\n"),
        format!(" {whole}"),
        format!("\"{whole}\""),
        format!("{whole}="),
        format!("{whole}."),
    ] {
        assert!(verify(text).is_err());
    }
    let header = json!({"alg": "RS256", "kid": KID}).to_string();
    let claims = claims().to_string();
    let twice = claims.replacen('{', "{\"iss\":\"https://accounts.google.com\",", 1);
    refused_as(
        verify(GOOGLE.sign_bytes(header.as_bytes(), twice.as_bytes())),
        "gcp-identity-malformed",
    );
    let twice = header.replacen('{', "{\"alg\":\"none\",", 1);
    refused_as(
        verify(GOOGLE.sign_bytes(twice.as_bytes(), claims.as_bytes())),
        "gcp-identity-malformed",
    );
}

#[test]
fn attack_16_the_algorithm_is_not_the_senders_to_choose() {
    let header = |alg: Value| json!({"alg": alg, "kid": KID, "typ": "JWT"}).to_string();
    let claims = claims().to_string();
    let refused = |alg: &str, sign: &dyn Fn(&[u8]) -> Vec<u8>| {
        let token = compact(header(json!(alg)).as_bytes(), claims.as_bytes(), sign);
        let found = format!("{alg:?}");
        assert_eq!(verify(token), Err(GcpError::Algorithm { found }));
    };
    let rs256 = |input: &[u8]| GOOGLE.signature(&RSA_PKCS1_SHA256, input);
    refused("none", &|_| Vec::new());
    refused("none", &rs256);
    for alg in ["None", "rs256", "RS256 ", "", "RS512", "EdDSA", "ES384", "RSA-OAEP", "dir"] {
        refused(alg, &rs256);
    }
    // The RSA public key, in whatever form, as an HMAC secret.
    let pem = format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        data_encoding::BASE64.encode(&GOOGLE.public_der())
    );
    for secret in [GOOGLE.modulus(), GOOGLE.public_der(), pem.into_bytes()] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let mac = |input: &[u8]| hmac::sign(&key, input).as_ref().to_vec();
        refused("HS256", &mac);
        // And under the right name, too.
        assert_eq!(
            verify(compact(header(json!("RS256")).as_bytes(), claims.as_bytes(), mac)),
            Err(GcpError::Signature)
        );
    }
    let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    refused("ES256", &|input| ec.sign(&SystemRandom::new(), input).unwrap().as_ref().to_vec());
    // Google's own key with another scheme, named and not.
    refused("PS256", &|input| GOOGLE.signature(&RSA_PSS_SHA256, input));
    refused("RS384", &|input| GOOGLE.signature(&RSA_PKCS1_SHA384, input));
    let encodings: [&'static dyn RsaEncoding; 2] = [&RSA_PSS_SHA256, &RSA_PKCS1_SHA384];
    for encoding in encodings {
        let token = compact(header(json!("RS256")).as_bytes(), claims.as_bytes(), |input| {
            GOOGLE.signature(encoding, input)
        });
        assert_eq!(verify(token), Err(GcpError::Signature));
    }
    let none = compact(header(json!("RS256")).as_bytes(), claims.as_bytes(), |_| Vec::new());
    assert_eq!(verify(none), Err(GcpError::Signature));
    for alg in [Value::Null, json!(["RS256"]), json!(256)] {
        refused_as(
            verify(GOOGLE.sign_bytes(header(alg).as_bytes(), claims.as_bytes())),
            "gcp-identity-algorithm",
        );
    }
    refused_as(verify(GOOGLE.sign_bytes(b"{}", claims.as_bytes())), "gcp-identity-algorithm");
}

#[test]
fn attack_16_keys_are_googles_only() {
    let jwk = ACCOUNT.jwk(KID);
    for (field, value) in [
        ("jku", json!("https://attacker.example/keys")),
        ("jwk", jwk.clone()),
        ("x5u", json!("https://attacker.example/chain")),
        ("x5c", json!([BASE64URL_NOPAD.encode(&ACCOUNT.public_der())])),
        ("x5t", json!("AAAA")),
        ("x5t#S256", json!("AAAA")),
        ("crit", json!(["exp"])),
        ("b64", json!(false)),
        ("cty", json!("JWT")),
        ("zip", json!("DEF")),
        ("enc", json!("A128GCM")),
    ] {
        let header = json!({"alg": "RS256", "kid": KID, "typ": "JWT", field: value});
        for signer in [&GOOGLE, &ACCOUNT] {
            let error = verify(signer.sign_with(&header, &claims())).unwrap_err();
            assert!(
                matches!(&error, GcpError::HeaderField { field: found } if *found == field),
                "{field}: {error}"
            );
        }
    }
    let header = |kid: Value| json!({"alg": "RS256", "kid": kid, "typ": "JWT"});
    let unknown = GcpError::KeyUnknown { kid: "other".to_owned() };
    assert_eq!(verify(GOOGLE.sign_with(&header(json!("other")), &claims())), Err(unknown));
    for kid in [Value::Null, json!(1), json!([KID])] {
        assert_eq!(verify(GOOGLE.sign_with(&header(kid), &claims())), Err(GcpError::KeyIdMissing));
    }
    assert_eq!(
        verify(GOOGLE.sign_with(&json!({"alg": "RS256"}), &claims())),
        Err(GcpError::KeyIdMissing)
    );
    let typ = json!({"alg": "RS256", "kid": KID, "typ": "secevent+jwt"});
    refused_as(verify(GOOGLE.sign_with(&typ, &claims())), "gcp-identity-malformed");

    // The key that is named, not any that fits.
    let two = keys(&[GOOGLE.jwk("one"), ACCOUNT.jwk("two")]).unwrap();
    let verify = |signer: &Signer, kid: &str| {
        let token = signer.sign_with(&header(json!(kid)), &claims());
        gcp::verify(token.as_bytes(), &two, &[audience()], at(NOW)).map(|identity| identity.key_id().to_owned())
    };
    assert_eq!(verify(&GOOGLE, "one").as_deref(), Ok("one"));
    assert_eq!(verify(&ACCOUNT, "two").as_deref(), Ok("two"));
    assert_eq!(verify(&GOOGLE, "two"), Err(GcpError::Signature));
}

/// `signJwt` of IAM signs any claims whatever, with the service account's own key; `generateIdToken` gives a token of Google's for any
/// audience, to whoever may act as the service account, from anywhere.
#[test]
fn attack_16_a_service_account_cannot_say_that_it_is_an_instance() {
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
fn attack_16_the_audience_is_this_challenges_and_nothing_else() {
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
fn attack_17_a_recycled_name_is_another_identity() {
    let first = verify(GOOGLE.sign(&claims())).unwrap();
    let second = altered(&format!("{MACHINE}/instance_id"), json!("152986662232938450")).unwrap();
    assert_eq!(first.instance().instance_name(), second.instance().instance_name());
    assert_ne!(first.identity(), second.identity());
    let moved = altered(&format!("{MACHINE}/instance_name"), json!("renamed")).unwrap();
    assert_eq!(first.identity(), moved.identity());
}

#[test]
fn a_forged_token_is_refused_by_its_signature_whatever_it_claims() {
    for (pointer, value) in [
        ("/iss", json!("https://example.com")),
        ("/aud", json!("x")),
        ("/exp", json!(1)),
        ("/google", Value::Null),
    ] {
        assert_eq!(verify(ACCOUNT.sign(&with(pointer, value))), Err(GcpError::Signature), "{pointer}");
    }
}

/// Before the signature is known to be right, a payload is bytes: whatever is in them, that is what is wrong.
#[test]
fn attack_16_nothing_of_a_payload_is_parsed_before_its_signature() {
    let header = json!({"alg": "RS256", "kid": KID}).to_string();
    let deep = format!("{{\"google\":{}", "[".repeat(4000));
    for payload in ["", "{", "no JSON", &deep, "{\"iss\":1}", "{\"aud\":{}}", "\u{0}"] {
        let token = GOOGLE.sign_bytes(header.as_bytes(), payload.as_bytes());
        refused_as(verify(&token), "gcp-identity-malformed");
        let (signed, _) = token.rsplit_once('.').unwrap();
        let forged = format!("{signed}.{}", BASE64URL_NOPAD.encode(&[7; 256]));
        refused_as(verify(forged), "gcp-identity-signature");
    }
    // Nor is its spelling looked at.
    let token = GOOGLE.sign(&claims());
    let parts: Vec<&str> = token.split('.').collect();
    refused_as(verify(format!("{}.{}=.{}", parts[0], parts[1], parts[2])), "gcp-identity-signature");
}

#[test]
fn attack_19_sizes_are_bounded() {
    let padded = |bytes: usize| GOOGLE.sign(&with("/more", json!("x".repeat(bytes))));
    assert!(verify(padded(4000)).is_ok());
    let token = padded(IDENTITY_TOKEN_LIMIT_BYTES);
    assert_eq!(verify(&token), Err(GcpError::TooLarge { bytes: token.len() }));
    assert_eq!(verify("a.b"), Err(GcpError::Parts { found: 2 }));
    assert_eq!(verify("a.b.c.d.e"), Err(GcpError::Parts { found: 5 }));
    let header = json!({"alg": "RS256", "kid": KID}).to_string();
    let deep = format!("{{\"google\":{}", "[".repeat(4000));
    refused_as(
        verify(GOOGLE.sign_bytes(header.as_bytes(), deep.as_bytes())),
        "gcp-identity-malformed",
    );
    refused_as(
        verify(GOOGLE.sign_bytes("[".repeat(4000).as_bytes(), b"{}")),
        "gcp-identity-malformed",
    );
    let long = verify(GOOGLE.sign_with(&json!({"alg": "RS256", "kid": "k".repeat(3000)}), &claims())).unwrap_err();
    assert!(long.to_string().len() < 400, "{long}");
}

#[test]
fn attack_19_a_jwk_set_is_bounded_and_has_no_weak_key() {
    let key = |error: &KeysError| matches!(error, KeysError::Key { .. });
    let with = |field: &str, value: Value| {
        let mut jwk = GOOGLE.jwk(KID);
        jwk[field] = value;
        keys(&[jwk])
    };
    let modulus = |bytes: usize| BASE64URL_NOPAD.encode(&vec![0xc5; bytes]);
    let one: Vec<String> = keys_of(&GOOGLE).key_ids().map(str::to_owned).collect();
    assert_eq!(one, [KID]);
    for (field, value) in [
        ("n", json!(modulus(128))),
        ("n", json!(modulus(255))),
        ("n", json!(modulus(513))),
        ("n", json!(modulus(2048))),
        ("n", json!(BASE64URL_NOPAD.encode(&[[0xc5; 255].as_slice(), &[0xc4]].concat()))),
        ("n", json!(BASE64URL_NOPAD.encode(&[[0].as_slice(), &GOOGLE.modulus()].concat()))),
        ("n", json!("")),
        ("n", json!("not base64url!")),
        ("n", Value::Null),
        ("e", json!("AQ")),
        ("e", json!("Aw")),
        ("e", json!("AQAC")),
        ("e", Value::Null),
        ("kid", Value::Null),
        ("kid", json!("")),
        ("kid", json!("k".repeat(1000))),
    ] {
        let error = with(field, value.clone()).unwrap_err();
        assert!(key(&error), "{field} {value}: {error}");
        assert!(error.to_string().len() < 400, "{error}");
    }
    // Sets with keys for something else are fine as long as there is one for this.
    for (field, value) in [
        ("kty", json!("EC")),
        ("use", json!("enc")),
        ("alg", json!("RS512")),
        ("alg", json!("RSA-OAEP")),
    ] {
        assert_eq!(
            with(field, value.clone()).unwrap_err(),
            KeysError::NoneUsable { found: 1 },
            "{value}"
        );
    }
    let mut other = GOOGLE.jwk("other");
    other["kty"] = json!("oct");
    assert_eq!(keys(&[other, GOOGLE.jwk(KID)]).unwrap(), keys_of(&GOOGLE));
    assert!(with("use", Value::Null).is_ok() && with("alg", Value::Null).is_ok());

    let many = |count: usize| keys(&(0..count).map(|number| GOOGLE.jwk(&number.to_string())).collect::<Vec<_>>());
    assert!(many(KEYS_LIMIT).is_ok());
    assert_eq!(many(KEYS_LIMIT + 1), Err(KeysError::TooMany { found: KEYS_LIMIT + 1 }));
    assert!(key(&keys(&[GOOGLE.jwk(KID), ACCOUNT.jwk(KID)]).unwrap_err()), "one id, two keys");
    assert_eq!(many(0), Err(KeysError::NoneUsable { found: 0 }));
    let large = vec![b' '; JWKS_LIMIT_BYTES + 1];
    assert_eq!(GoogleKeys::from_jwks(&large), Err(KeysError::TooLarge { bytes: large.len() }));
    for text in ["", "{}", "[]", "{\"keys\":{}}", "{\"keys\":[1]}", "<html>", "{\"keys\":[]} x"] {
        assert!(GoogleKeys::from_jwks(text.as_bytes()).is_err(), "{text}");
    }
    let larger = Signer::new(KeySize::Rsa4096);
    let token = larger.sign(&claims());
    assert!(gcp::verify(token.as_bytes(), &keys_of(&larger), &[audience()], at(NOW)).is_ok());
}

#[test]
fn the_audience_is_what_the_document_says() {
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

#[test]
fn attack_23_a_truncated_token_is_refused_at_every_byte() {
    let token = GOOGLE.sign(&claims());
    for length in 0..token.len() {
        assert!(verify(&token.as_bytes()[..length]).is_err(), "{length}");
    }
}

#[test]
fn attack_23_no_bit_of_a_token_can_be_flipped() {
    let token = GOOGLE.sign(&claims());
    let keys = keys_of(&GOOGLE);
    let audiences = [audience()];
    for position in 0..token.len() {
        for bit in 0..8 {
            let mut flipped = token.clone().into_bytes();
            flipped[position] ^= 1 << bit;
            let result = gcp::verify(&flipped, &keys, &audiences, at(NOW));
            assert!(result.is_err(), "bit {bit} of byte {position}");
        }
    }
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(verify(&bytes).is_err());
        let _ = GoogleKeys::from_jwks(&bytes);
        let header = json!({"alg": "RS256", "kid": KID}).to_string();
        prop_assert!(verify(GOOGLE.sign_bytes(header.as_bytes(), &bytes)).is_err());
        prop_assert!(verify(GOOGLE.sign_bytes(&bytes, claims().to_string().as_bytes())).is_err());
    }

    #[test]
    fn attack_23_garbage_in_a_claim_never_panics(
        place in 0usize..14, number in any::<f64>(), integer in any::<i64>(), text in "\\PC{0,40}", kind in 0u8..5,
    ) {
        let pointer = [
            "/aud", "/azp", "/email", "/email_verified", "/exp", "/google", "/iat", "/iss", "/sub", "/name#x", "/updated_at",
            "/google/compute_engine/instance_id", "/google/compute_engine/project_number", "/google/compute_engine/license_id",
        ][place];
        let value = match kind {
            0 => json!(number),
            1 => json!(integer),
            2 => json!(text),
            3 => json!([text, number]),
            _ => json!({text: integer}),
        };
        let _ = altered(pointer, value);
    }
}

/// No key of 2019 is published any more, and the vector's signature is left out.
#[test]
fn a_recorded_token_is_read_and_refused() {
    let Some(token) = vectors::vector("gcp/idtoken/google-auth-java.STANDARD_ID_TOKEN.jwt") else {
        return;
    };
    let kid = "df3758908b792293ad977a0b991d98a77f4eeecd";
    assert_eq!(verify(&token), Err(GcpError::KeyUnknown { kid: kid.to_owned() }));
    let keys = keys(&[GOOGLE.jwk(kid)]).unwrap();
    let then = at(1_564_529_400);
    assert_eq!(gcp::verify(&token, &keys, &[audience()], then), Err(GcpError::Signature));
    // Its claims under a signature: a token for a service account, without format=full.
    let payload = token.split(|byte| *byte == b'.').nth(1).unwrap();
    let mut claims: Value = serde_json::from_slice(&BASE64URL_NOPAD.decode(payload).unwrap()).unwrap();
    assert_eq!(claims["azp"], claims["sub"]);
    let header = json!({"alg": "RS256", "kid": kid, "typ": "JWT"});
    let signed = |claims: &Value| gcp::verify(GOOGLE.sign_with(&header, claims).as_bytes(), &keys, &[audience()], then);
    refused_as(signed(&claims), "gcp-identity-audience");
    claims["aud"] = json!(audience().as_str());
    assert_eq!(signed(&claims), Err(GcpError::ClaimMissing { claim: "email" }));
}
