//! Signature of the token: its algorithm and key, and that nothing is read before it is verified.

use super::*;

#[test]
fn attack_11_altered_or_respelled_token_is_refused() {
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
fn attack_16_only_rs256_is_accepted() {
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
fn attack_16_only_google_keys_are_used() {
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
    let verify = |signer: &JwtSigner, kid: &str| {
        let token = signer.sign_with(&header(json!(kid)), &claims());
        gcp::verify(token.as_bytes(), &two, &[audience()], at(NOW)).map(|identity| identity.key_id.clone())
    };
    assert_eq!(verify(&GOOGLE, "one").as_deref(), Ok("one"));
    assert_eq!(verify(&ACCOUNT, "two").as_deref(), Ok("two"));
    assert_eq!(verify(&GOOGLE, "two"), Err(GcpError::Signature));
}

#[test]
fn forged_token_is_refused_by_its_signature() {
    for (pointer, value) in [
        ("/iss", json!("https://example.com")),
        ("/aud", json!("x")),
        ("/exp", json!(1)),
        ("/google", Value::Null),
    ] {
        assert_eq!(verify(ACCOUNT.sign(&with(pointer, value))), Err(GcpError::Signature), "{pointer}");
    }
}

/// Until the signature is verified, a payload is only bytes: any payload gives the signature's error.
#[test]
fn attack_16_payload_is_parsed_only_after_signature_verification() {
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
fn attack_19_jwk_set_is_limited_without_weak_keys() {
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
    let larger = JwtSigner::new(KeySize::Rsa4096);
    let token = larger.sign(&claims());
    assert!(gcp::verify(token.as_bytes(), &keys_of(&larger), &[audience()], at(NOW)).is_ok());
}
