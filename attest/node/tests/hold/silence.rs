//! A gateway that does not answer, or that gives configs and cannot attest.

use std::sync::mpsc;

use super::*;

/// Checks that the node waits and attests after all if the gateway fails the first requests for a path, for longer than the deadline.
#[track_caller]
fn check_waited_for(path: &'static str, instead: fn() -> Instead) {
    let (_gateway, metadata) = site(Some(LONG), move |asked, before| {
        (asked.split('?').next() == Some(path) && before < 4).then(instead)
    });
    let run = run(&metadata, &["--deadline", "2"]);
    let written = run.written.as_ref().unwrap_or_else(|| panic!("{}", run.stderr)).to_string();
    assert!(run.success && written.contains("Bearer ticket.abc"), "{}{written}", run.stderr);
    let first = run.stderr.lines().next().unwrap();
    for part in [
        "attest-node: waiting for 0 s so far: https://127.0.0.1:",
        "Ignition waits for the same gateway",
        "rd.systemd.mask=attest-node.service",
    ] {
        assert!(first.contains(part), "{part:?} is missing in {first}");
    }
    assert!(run.took > Duration::from_millis(1800), "not waited for at all: {:?}", run.took);
}

#[test]
fn unresponsive_gateway_is_retried() {
    for path in ["/v1/attest", CHALLENGE, EVIDENCE] {
        check_waited_for(path, || None);
        check_waited_for(path, || Some((500, String::new(), String::new())));
    }
    // What stands before a gateway that is not there says 503 too, whatever the pool says of those that are told to come again.
    check_waited_for("/v1/attest", || Some((503, String::new(), String::new())));
    check_waited_for(CHALLENGE, || {
        Some((503, String::new(), "<html>no server is available</html>".to_owned()))
    });
}

#[test]
fn server_failing_discovery_but_serving_configs_is_skipped() {
    // A path-routing proxy before a Machine Config Server.
    let (gateway, metadata) = site(None, |path, _| {
        (path != "/config/worker").then(|| Some((503, String::new(), String::new())))
    });
    let run = run(&metadata, &["--deadline", "2"]);
    // Nothing but what a gateway would want to know.
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.written.unwrap(), unreachable(&gateway));
    let last = run.stderr.lines().last().unwrap();
    assert!(
        last.contains("nothing to do: no source is an attestation gateway") && last.contains("but the server still serves configs"),
        "{last}"
    );
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != CHALLENGE));
}

/// A gateway may have recovered by the time that it is asked for configs.
#[test]
fn gateway_that_recovers_before_abandonment_is_attested_to() {
    let was_asked = AtomicBool::new(false);
    let (gateway, metadata) = site(Some(LONG), move |path, _| match path {
        "/config/worker" => {
            was_asked.store(true, Ordering::Relaxed);
            None
        }
        _ => (!was_asked.load(Ordering::Relaxed)).then(|| Some((500, String::new(), String::new()))),
    });
    let run = run(&metadata, &["--deadline", "2"]);
    assert!(run.success && run.written.is_some(), "{}", run.stderr);
    let told = gateway.told.lock().unwrap();
    let asked: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).collect();
    assert!(asked.contains(&"/config/worker") && asked.last() == Some(&EVIDENCE), "{asked:?}");
}

/// The time in which a gateway answered does not count as an outage.
#[test]
fn single_failure_after_a_hold_abandons_no_gateway() {
    // More than three seconds are gone before the one that fails, and only failures for two make a server none.
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before) {
        ("/v1/attest?pool=worker", 0) => retry_after(3),
        ("/v1/attest?pool=worker", 1) => Some(Some((500, String::new(), String::new()))),
        _ => None,
    });
    run(&metadata, &["--deadline", "2"]).attested();
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != "/config/worker"));
}

/// A server that refuses the config serves none, unless Ignition shows a token that this program does not.
#[test]
fn refused_config_counts_only_if_ignition_has_token() {
    let refusing = |with_token: bool| {
        let (gateway, _) = site(Some(LONG), |path, before| match (path, before) {
            ("/config/worker", _) => problem(403, "nothing-shown"),
            ("/v1/attest?pool=worker", 0..8) => Some(Some((500, String::new(), String::new()))),
            _ => None,
        });
        let token = format!("?token={TOKEN}");
        let pointer = gateway.pointer().replace(if with_token { "" } else { &token }, "");
        (gateway, run(&google(Some(pointer)), &["--deadline", "2"]))
    };
    let (gateway, run) = refusing(false);
    assert!(run.success && run.written.is_some(), "{}", run.stderr);
    let told = gateway.told.lock().unwrap();
    assert!(told.iter().any(|(path, _)| path == "/config/worker"), "{told:?}");
    assert_eq!(told.last().unwrap().0, EVIDENCE);
    let (gateway, run) = refusing(true);
    assert_eq!(run.written, Some(unreachable(&gateway)), "{}", run.stderr);
    assert!(gateway.told.lock().unwrap().iter().all(|(path, _)| path != CHALLENGE));
}

#[test]
fn proxied_gateway_is_not_retried_without_limit() {
    let gateway = Gateway::answering(&json!(["gcp"]), &json!({}), None, |_, _| None);
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["version"] = json!("3.1.0");
    // Nobody has this name, and what is on the machine itself is fetched by no proxy.
    pointer["ignition"]["config"]["merge"][0]["source"] = json!("https://gateway.invalid:1/config/worker");
    pointer["ignition"]["proxy"] = json!({"httpsProxy": "http://proxy.example:3128"});
    let run = run(&google(Some(pointer.to_string())), &["--deadline", "2"]);
    run.failed(&["[gateway-unreachable]"]);
    assert!(run.took < Duration::from_secs(30), "{:?}", run.took);
}

#[test]
fn repeatedly_lost_evidence_answers_end_the_attempt() {
    let (gateway, metadata) = site(Some(LONG), |path, before| match (path, before % 2) {
        (EVIDENCE, 0) => Some(None),
        (EVIDENCE, _) => problem(403, "challenge-spent"),
        _ => None,
    });
    run(&metadata, &["--deadline", "20"]).failed(&["[challenge-spent]"]);
    let asked = gateway.told.lock().unwrap().iter().filter(|(path, _)| path == CHALLENGE).count();
    assert_eq!(asked, 3);
}

/// Checks that the wait ends for a gateway that gives configs and cannot attest: Ignition would not wait.
#[track_caller]
fn check_given_up_in_the_end(challenge: impl Fn() -> Instead + Send + Sync + 'static, config: u16, said: &str) {
    let (gateway, metadata) = site(Some(LONG), move |path, _| match path {
        CHALLENGE => Some(challenge()),
        "/config/worker" => Some(Some((config, String::new(), String::new()))),
        _ => None,
    });
    // The limit is for what goes wrong only.
    let run = run(&metadata, &["--deadline", "2", "--wait", "60"]);
    run.failed(&[
        said,
        "but the server still serves configs",
        "; next: check the gateway's log, and the load balancer before it: ",
        "; the pointer config is unchanged, except for a header that reports this failure",
    ]);
    let last = run.stderr.lines().last().unwrap();
    assert!(!last.contains("that this node's network reaches it"), "{last}");
    assert!(
        (Duration::from_secs(20)..Duration::from_secs(50)).contains(&run.took),
        "{:?}",
        run.took
    );
    assert_eq!(run.written.unwrap(), unreachable(&gateway));
    let told = gateway.told.lock().unwrap();
    let heads: Vec<_> = told.iter().filter(|(path, _)| path == "/config/worker").collect();
    assert_eq!(heads, [&("/config/worker".to_owned(), json!({"HEAD": null}))], "asked once");
    assert_eq!(told.last().unwrap().0, CHALLENGE, "asked once more");
}

#[test]
fn gateway_serving_only_configs_is_abandoned() {
    check_given_up_in_the_end(|| Some((500, String::new(), String::new())), 200, "[gateway-failing]");
}

/// A request that uses up the time limit does not prevent the request for configs. An answer of 406, for a config that needs 3.5 instead of
/// 3.3, shows that a config exists.
#[test]
fn timed_out_gateway_is_probed_for_configs() {
    let (ended, until_the_end) = mpsc::channel::<()>();
    let until_the_end = Mutex::new(until_the_end);
    let never = move || {
        // Ends with its sender.
        let _: Result<(), _> = until_the_end.lock().unwrap().recv();
        None
    };
    check_given_up_in_the_end(never, 406, "[gateway-unreachable]");
    drop(ended);
}

/// A gateway decides and records each request.
#[test]
fn config_probes_are_rate_limited() {
    const SILENCE: u64 = 8;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heads = Arc::clone(&asked);
    let (_gateway, metadata) = site(Some(LONG), move |path, _| {
        let mut heads = heads.lock().unwrap();
        match path {
            "/config/worker" => heads.push(Instant::now()),
            _ if heads.len() >= 2 => return None,
            _ => {}
        }
        Some(Some((500, String::new(), String::new())))
    });
    let run = run(&metadata, &["--deadline", &SILENCE.to_string()]);
    assert!(run.success && run.written.is_some(), "{}", run.stderr);
    let asked = asked.lock().unwrap();
    assert!(asked[1] - asked[0] >= Duration::from_secs(SILENCE), "{asked:?}");
}

/// A CA that is left out may be the cause of any failure, but is reported separately.
#[test]
fn ignored_ca_is_noted_separately_from_the_result() {
    let (gateway, _) = site(None, |path, _| {
        path.starts_with("/v1/attest").then(|| Some((404, String::new(), String::new())))
    });
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["security"]["tls"]["certificateAuthorities"] =
        json!([{"source": gateway.authority}, {"source": "https://ca.example/ca.pem"}]);
    let run = run(&google(Some(pointer.to_string())), &[]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    let [note, end] = lines.as_slice() else { panic!("{}", run.stderr) };
    assert_eq!(
        *note,
        "attest-node: note: certificate authority 1 of the pointer config: is not a data URL, and no other CA is available"
    );
    assert_eq!(
        *end,
        format!(
            "attest-node: nothing to do: no source is an attestation gateway: https://127.0.0.1:{}/v1/attest?pool=worker answers 404",
            gateway.port
        )
    );
}
