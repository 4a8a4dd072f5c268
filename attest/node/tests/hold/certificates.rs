//! Certificates that are refused.

use super::*;

/// What stands in a gateway's place for a moment costs nobody anything: Ignition does not take it either, and asks again.
#[test]
fn a_certificate_that_nobody_takes_is_waited_for() {
    let (gateway, other) = (
        Gateway::start(&json!(["gcp"]), &json!({})),
        Gateway::start(&json!(["gcp"]), &json!({})),
    );
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["security"]["tls"]["certificateAuthorities"][0]["source"] = json!(other.authority);
    let metadata = google(Some(pointer.to_string()));
    let folder = tempfile::tempdir().unwrap();
    let run = run_in(folder.path(), &metadata, &["--wait", "2"]);
    run.failed(&[
        "[tls-unknown-ca]; next: ",
        "; the pointer config is unchanged, but for a header that says why",
    ]);
    assert!(run.stderr.contains("waiting for 0 s so far: "), "{}", run.stderr);
    assert!(run.took >= Duration::from_secs(2), "{:?}", run.took);
    // Where the system trusts it, Ignition gets there, and what it gets is not for this node to hold up.
    let pem = gateway.authority.strip_prefix("data:;base64,").unwrap();
    fs::write(folder.path().join("system.pem"), BASE64.decode(pem.as_bytes()).unwrap()).unwrap();
    let run = run_in(folder.path(), &metadata, &[]);
    run.failed(&["[tls-unknown-ca]; next: ", "; the pointer config is unchanged"]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(gateway.told.lock().unwrap().is_empty(), "nothing was said to it");
}

/// What Ignition takes and this program does not is not held up by it.
#[test]
fn a_certificate_that_ignition_may_take_is_given_up_at_once() {
    let given_up = |gateway: &Gateway, pointer: &Value, code: &str, lines: usize| {
        let run = run(&google(Some(pointer.to_string())), &[]);
        run.failed(&[code, "; the pointer config is unchanged"]);
        assert_eq!(run.stderr.lines().count(), lines, "{}", run.stderr);
        assert!(run.written.is_none() && gateway.told.lock().unwrap().is_empty());
        run.stderr
    };
    // Its CA is one that Ignition fetches, and this program does not.
    let (gateway, other) = (
        Gateway::start(&json!(["gcp"]), &json!({})),
        Gateway::start(&json!(["gcp"]), &json!({})),
    );
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    pointer["ignition"]["security"]["tls"]["certificateAuthorities"] =
        json!([{"source": other.authority}, {"source": "https://ca.example/ca.pem"}]);
    let said = given_up(&gateway, &pointer, "[tls-unknown-ca]; next: ", 2);
    let note = "note: certificate authority 1 of the pointer config: is not a data URL, and nothing else is trusted";
    assert!(said.contains(note), "{said}");
    // Its certificate is its own CA: Go's programs take it, and this one's TLS does not.
    let gateway = Gateway::of_its_own_ca();
    let pointer = serde_json::from_str(&gateway.pointer()).unwrap();
    given_up(&gateway, &pointer, "[tls-failed]; next: ", 1);
}
