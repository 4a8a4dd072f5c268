#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use super::*;

fn pointer(config: &Value) -> Pointer {
    Pointer::parse(config.to_string().as_bytes()).unwrap()
}

fn check_parse(text: &str, expect: Result<(), &str>) {
    assert_eq!(
        Pointer::parse(text.as_bytes()).map(|_| ()).map_err(|error| error.to_string()),
        expect.map_err(str::to_owned),
        "{text}"
    );
}

fn version_error(found: &str) -> String {
    PointerError::Version { found: found.to_owned() }.to_string()
}

#[test]
fn only_3_x_configs_are_pointers() {
    check_parse(r#"{"ignition":{"version":"3.0.0"}}"#, Ok(()));
    check_parse(r#" {"ignition":{"version":"3.5.0"}} "#, Ok(()));
    check_parse(r#"{"ignition":{"version":"3.7.0-experimental"},"unknown":1}"#, Ok(()));
    check_parse(r#"{"ignition":{"version":"2.2.0"}}"#, Err(&version_error("2.2.0")));
    check_parse(r#"{"ignition":{"version":"3"}}"#, Err(&version_error("3")));
    check_parse(r#"{"ignition":{"version":"3.1.1"}}"#, Err(&version_error("3.1.1")));
    check_parse(r#"{"ignition":{"version":"30.1.0"}}"#, Err(&version_error("30.1.0")));
    check_parse(
        r#"{"ignition":{"version":3}}"#,
        Err("the pointer config is malformed: it has no ignition.version"),
    );
    check_parse(
        r#"{"ignition":[]}"#,
        Err("the pointer config is malformed: it has no ignition.version"),
    );
    check_parse("[]", Err("the pointer config is malformed: it has no ignition.version"));
    check_parse("", Err("the pointer config is malformed: it is empty"));
    check_parse(" \n", Err("the pointer config is malformed: it is empty"));
    check_parse(
        "#cloud-config\n",
        Err("the pointer config is malformed: expected value at line 1 column 1"),
    );
    check_parse(
        &"[".repeat(100_000),
        Err("the pointer config is malformed: recursion limit exceeded at line 1 column 128"),
    );
    check_parse(&" ".repeat(POINTER_LIMIT_BYTES + 1), Err(&PointerError::TooLarge.to_string()));
}

#[test]
fn not_attested_header_is_added_to_existing_headers() {
    let said = json!({"name": NOT_ATTESTED_HEADER, "value": "retry-limit-exceeded"});
    let token = json!({"name": "Authorization", "value": "Bearer token"});
    let mut pointer = pointer(&merge(
        "3.0.0",
        &json!({"source": format!("{SOURCE}?token=x"), "httpHeaders": [token]}),
    ));
    for _ in 0..2 {
        pointer.set_not_attested(SourceLocation::Merge(0), "retry-limit-exceeded");
        let after = merge(
            "3.1.0",
            &json!({"source": format!("{SOURCE}?token=x"), "httpHeaders": [token, said]}),
        );
        assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), after);
    }
    // Whoever attests after all has nothing to say any more.
    pointer.set_ticket(SourceLocation::Merge(0), "ticket.abc", None);
    let ticket = json!({"name": "Authorization", "value": "Bearer ticket.abc"});
    let after = merge("3.1.0", &json!({"source": SOURCE, "httpHeaders": [ticket]}));
    assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), after);
}

#[test]
fn boot_id_goes_with_another_header_only() {
    let id = "0a1b2c3d-0000-4000-8000-0123456789ab";
    let config = merge("3.4.0", &json!({"source": SOURCE}));
    let mut pointer = pointer(&config).for_boot(Some(id.to_owned()));
    assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), config);
    for _ in 0..2 {
        pointer.set_ticket(SourceLocation::Merge(0), "ticket.abc", None);
        let headers = json!([
            {"name": BOOT_ID_HEADER, "value": id},
            {"name": "Authorization", "value": "Bearer ticket.abc"},
        ]);
        let after = merge("3.4.0", &json!({"source": SOURCE, "httpHeaders": headers}));
        assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), after);
    }
}

fn check_wait(members: &str, expect: Option<u64>) {
    let sources = r#""config":{"merge":[{"source":"https://api-int.example:22623/config/worker"}]}"#;
    let pointer = Pointer::parse(format!(r#"{{"ignition":{{"version":"3.4.0",{sources}{members}}}}}"#).as_bytes()).unwrap();
    assert_eq!(pointer.wait(), expect.map(Duration::from_secs), "{members}");
}

#[test]
fn wait_follows_ignition_timeouts_and_proxies() {
    check_wait("", None);
    check_wait(r#","timeouts":{"httpTotal":90}"#, Some(90));
    check_wait(r#","timeouts":{"httpTotal":0,"httpResponseHeaders":5}"#, None);
    check_wait(r#","proxy":{"noProxy":["a"]}"#, None);
    check_wait(r#","proxy":{"httpsProxy":null}"#, None);
    check_wait(
        r#","proxy":{"httpsProxy":"https://proxy.example"},"timeouts":{"httpTotal":90}"#,
        Some(0),
    );
    check_wait(r#","proxy":{"httpProxy":"http://proxy.example"}"#, None);
    check_wait(
        r#","proxy":{"httpsProxy":"http://proxy.example","noProxy":["api-int.example"]}"#,
        None,
    );
}

fn check_ticket(before: &Value, place: SourceLocation, after: &Value) {
    let mut pointer = pointer(before);
    pointer.set_ticket(place, "ticket.abc", None);
    assert_eq!(serde_json::from_slice::<Value>(&pointer.to_bytes()).unwrap(), *after);
}

const SOURCE: &str = "https://a/config/worker";

fn merge(version: &str, resource: &Value) -> Value {
    json!({ "ignition": { "version": version, "config": { "merge": [resource] } }, "x-unknown": [1, {"a": null}] })
}

#[test]
fn resource_says_how_the_config_is_sent() {
    let place = SourceLocation::Merge(0);
    let form = |compressed: bool, sha256: Option<[u8; 32]>| ConfigForm {
        compression: compressed.then_some(ConfigCompression::Gzip),
        sha256: sha256.map(Into::into),
    };
    let formats = |pointer: &Pointer| {
        let ConfigFormats { compression, spec_version } = pointer.config_formats(place);
        assert_eq!(compression, Some(ConfigCompression::Gzip));
        spec_version
    };
    let check = |pointer: &mut Pointer, form: Option<&ConfigForm>, compression: &Value, verification: &Value| {
        pointer.set_ticket(place, "ticket.abc", form);
        let after: Value = serde_json::from_slice(&pointer.to_bytes()).unwrap();
        let resource = &after["ignition"]["config"]["merge"][0];
        assert_eq!((&resource["compression"], &resource["verification"]), (compression, verification));
    };
    let hash = json!({ "hash": format!("sha256-{}", "07".repeat(32)) });
    let mut plain = pointer(&merge("3.0.0", &json!({"source": SOURCE})));
    assert_eq!(formats(&plain).as_deref(), Some("3.1.0"));
    check(&mut plain, Some(&form(true, Some([7; 32]))), &json!("gzip"), &hash);
    // A second run in the same boot.
    assert_eq!(formats(&plain).as_deref(), Some("3.1.0"));
    check(&mut plain, Some(&form(true, None)), &json!("gzip"), &Value::Null);
    check(&mut plain, None, &Value::Null, &Value::Null);

    let pin = json!({ "hash": "sha512-00" });
    let mut pinned = pointer(&merge("3.4.0", &json!({"source": SOURCE, "verification": pin})));
    for _ in 0..2 {
        assert_eq!(formats(&pinned), None);
        check(&mut pinned, Some(&form(true, None)), &json!("gzip"), &pin);
    }
    let unpinned = pointer(&merge("3.4.0", &json!({"source": SOURCE, "verification": {"hash": null}})));
    assert_eq!(formats(&unpinned).as_deref(), Some("3.4.0"));
    let mut known = unpinned;
    known.set_newest_spec(Some("3.5.0"));
    assert_eq!(formats(&known).as_deref(), Some("3.5.0"));
    let experimental = pointer(&merge("3.7.0-experimental", &json!({"source": SOURCE})));
    assert_eq!(formats(&experimental).as_deref(), Some("3.7.0-experimental"));
}

#[test]
fn ticket_replaces_all_other_credentials() {
    let ticket = json!({"name": "Authorization", "value": "Bearer ticket.abc"});
    let plain = merge("3.2.0", &json!({"source": SOURCE}));
    let done = merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": [ticket]}));
    check_ticket(&plain, SourceLocation::Merge(0), &done);
    check_ticket(
        &merge("3.2.0", &json!({"source": format!("{SOURCE}?token=x")})),
        SourceLocation::Merge(0),
        &done,
    );
    check_ticket(
        &merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": null})),
        SourceLocation::Merge(0),
        &done,
    );
    check_ticket(
        &merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": "x"})),
        SourceLocation::Merge(0),
        &done,
    );
    let token = json!({"name": "aUthorization", "value": "Bearer token"});
    check_ticket(
        &merge("3.2.0", &json!({"source": SOURCE, "httpHeaders": [token, token]})),
        SourceLocation::Merge(0),
        &done,
    );
    let other = json!({"name": "X-Other", "value": "1"});
    check_ticket(
        &merge(
            "3.2.0",
            &json!({"source": SOURCE, "httpHeaders": [token, other], "verification": {"hash": "x"}}),
        ),
        SourceLocation::Merge(0),
        &merge(
            "3.2.0",
            &json!({"source": SOURCE, "httpHeaders": [other, ticket], "verification": {"hash": "x"}}),
        ),
    );
    check_ticket(&plain, SourceLocation::Merge(1), &plain);
    check_ticket(&plain, SourceLocation::Replace, &plain);
}

fn check_token(resource: &Value, expect: Option<&str>) {
    let pointer = pointer(&merge("3.2.0", resource));
    assert_eq!(
        pointer.token(SourceLocation::Merge(0)).as_deref().map(String::as_str),
        expect,
        "{resource}"
    );
    assert_eq!(pointer.token(SourceLocation::Merge(1)), None);
    assert_eq!(pointer.token(SourceLocation::Replace), None);
}

#[test]
fn provisioning_token_comes_from_query_or_header() {
    let bearer = |value: &str| json!({"name": "authorization", "value": value});
    let header = |value: &str| json!({"source": SOURCE, "httpHeaders": [{"name": "X", "value": "y"}, bearer(value)]});
    check_token(&json!({"source": SOURCE}), None);
    check_token(&json!({"source": format!("{SOURCE}?token=abc-_")}), Some("abc-_"));
    check_token(&json!({"source": format!("{SOURCE}?ca=1&token=abc")}), Some("abc"));
    check_token(&header("Bearer abc"), Some("abc"));
    check_token(&header("Bearer ticket.abc"), None);
    check_token(&header("Basic abc"), None);
    check_token(&header("Bearer a b"), None);
    check_token(&header("Bearer "), None);
    check_token(&header(&format!("Bearer {}", "x".repeat(5000))), None);
    check_token(&json!({"source": format!("{SOURCE}?token=a&token=b")}), None);
    check_token(
        &json!({"source": format!("{SOURCE}?token=a"), "httpHeaders": [bearer("Bearer b")]}),
        None,
    );
    check_token(
        &json!({"source": SOURCE, "httpHeaders": [bearer("Bearer a"), bearer("Bearer b")]}),
        None,
    );
    check_token(&json!({"source": SOURCE, "httpHeaders": "x"}), None);
    check_token(&json!({"source": 7}), None);
}

#[test]
fn spec_3_0_is_raised_for_http_headers() {
    let ticket = json!({"name": "Authorization", "value": "Bearer ticket.abc"});
    let after = |version| merge(version, &json!({"source": SOURCE, "httpHeaders": [ticket]}));
    check_ticket(
        &merge("3.0.0", &json!({"source": SOURCE})),
        SourceLocation::Merge(0),
        &after("3.1.0"),
    );
    check_ticket(
        &merge("3.1.0", &json!({"source": SOURCE})),
        SourceLocation::Merge(0),
        &after("3.1.0"),
    );
    check_ticket(
        &merge("3.5.0", &json!({"source": SOURCE})),
        SourceLocation::Merge(0),
        &after("3.5.0"),
    );
}

#[test]
fn all_sources_are_found() {
    let merges = json!([{"source": "https://a/config/worker"}, {"source": "data:,{}"}, {}, {"source": null}, 7, {"source": "https://b/x/config/gpu"}]);
    let check = |replace: Value, expect: &[(SourceLocation, &str)]| {
        let config = json!({"ignition": {"version": "3.4.0", "config": {"merge": merges, "replace": replace}}});
        let sources = pointer(&config).sources();
        let found: Vec<(SourceLocation, &str)> = sources.iter().map(|source| (source.place, source.pool.as_str())).collect();
        assert_eq!(found, expect, "{config}");
    };
    let both = [(SourceLocation::Merge(0), "worker"), (SourceLocation::Merge(5), "gpu")];
    check(Value::Null, &both);
    check(json!({"source": null}), &both);
    // Ignition looks at no merge then, wherever the other leads.
    check(json!({"source": "https://c/config/master"}), &[(SourceLocation::Replace, "master")]);
    check(json!({"source": "data:,{}"}), &[]);
    assert!(pointer(&json!({"ignition": {"version": "3.4.0"}})).sources().is_empty());
    assert!(
        pointer(&json!({"ignition": {"version": "3.4.0", "config": {"merge": {}, "replace": []}}}))
            .sources()
            .is_empty()
    );
    let many: Vec<Value> = (0..100).map(|_| json!({"source": SOURCE})).collect();
    assert_eq!(
        pointer(&json!({"ignition": {"version": "3.4.0", "config": {"merge": many}}}))
            .sources()
            .len(),
        SOURCES_LIMIT
    );
}
