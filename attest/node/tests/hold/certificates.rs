//! Certificates that are refused.

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, date_time_ymd};

use super::*;
use crate::support::gateway::By;

/// A gateway's pointer with these authorities in the place of its own.
fn trusting(gateway: &Gateway, authorities: &[&str]) -> Value {
    let mut pointer: Value = serde_json::from_str(&gateway.pointer()).unwrap();
    let authorities: Vec<Value> = authorities.iter().map(|source| json!({ "source": source })).collect();
    pointer["ignition"]["security"]["tls"]["certificateAuthorities"] = json!(authorities);
    pointer
}

fn other_authority() -> String {
    Gateway::start(&json!(["gcp"]), &json!({})).authority
}

/// Checks that this program waits within its limit for a certificate that Ignition refuses: Ignition asks again for ever.
#[track_caller]
fn waits(gateway: &Gateway, pointer: &Value, code: &str) {
    let run = run(&google(Some(pointer.to_string())), &["--wait", "1"]);
    run.failed(&[
        &format!("[{code}]; next: "),
        "; the pointer config is unchanged, except for a header that reports this failure",
    ]);
    assert!(run.stderr.contains("waiting for 0 s so far: "), "{}", run.stderr);
    assert!(run.took >= Duration::from_secs(1), "{:?}", run.took);
    assert!(gateway.told.lock().unwrap().is_empty(), "nothing was said to it");
}

/// Checks that Ignition is not held up by a certificate that it accepts and this program does not. Returns the console's text.
#[track_caller]
fn gives_up(gateway: &Gateway, pointer: &Value, code: &str) -> String {
    let run = run(&google(Some(pointer.to_string())), &[]);
    run.failed(&[&format!("[{code}]; next: "), "; the pointer config is unchanged"]);
    assert!(!run.stderr.contains("waiting"), "{}", run.stderr);
    assert!(run.written.is_none() && gateway.told.lock().unwrap().is_empty());
    run.stderr
}

#[track_caller]
fn attests(pointer: &Value) {
    let run = run(&google(Some(pointer.to_string())), &["--wait", "1"]);
    let written = run.written.unwrap_or_else(|| panic!("{}", run.stderr)).to_string();
    assert!(run.success && written.contains("Bearer ticket.abc"), "{}{written}", run.stderr);
}

fn ca(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn of_a_client(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
}

fn of_anybody(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
}

fn expired(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
}

fn of_another_name(params: &mut CertificateParams) {
    let other = CertificateParams::new(vec!["gateway.example".to_owned()]).unwrap();
    params.subject_alt_names = other.subject_alt_names;
}

/// A temporary server in a gateway's place does no harm: Ignition does not accept it either, and asks again.
#[test]
fn untrusted_gateway_certificate_is_retried() {
    let gateway = Gateway::start(&json!(["gcp"]), &json!({}));
    let pointer = trusting(&gateway, &[&other_authority()]);
    waits(&gateway, &pointer, "tls-unknown-ca");
    // Where the system trusts it, Ignition gets there, and what it gets is not for this node to hold up.
    let folder = tempfile::tempdir().unwrap();
    let pem = gateway.authority.strip_prefix("data:;base64,").unwrap();
    fs::write(folder.path().join("system.pem"), BASE64.decode(pem.as_bytes()).unwrap()).unwrap();
    let run = run_in(folder.path(), &google(Some(pointer.to_string())), &[]);
    run.failed(&["[tls-unknown-ca]; next: ", "; the pointer config is unchanged"]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(gateway.told.lock().unwrap().is_empty(), "nothing was said to it");
}

/// Go's programs look for the issuer, regardless of any other defect.
#[test]
fn defective_certificate_of_unknown_issuer_is_retried() {
    let other = other_authority();
    let check = |by: By, change: fn(&mut CertificateParams), code: &str| {
        let gateway = Gateway::showing(by, change);
        waits(&gateway, &trusting(&gateway, &[&other]), code);
    };
    // As `openssl req -x509` makes them.
    check(By::Itself, ca, "tls-failed");
    check(By::ItsCa, ca, "tls-failed");
    check(By::Itself, of_a_client, "tls-failed");
    check(By::ItsCa, of_a_client, "tls-failed");
}

/// A certificate of the pointer's own CA that Go's programs refuse too is worth no more: any server may show it.
#[test]
fn pointer_ca_certificate_that_go_refuses_is_retried() {
    let check = |change: fn(&mut CertificateParams), code: &str| {
        let gateway = Gateway::showing(By::ItsCa, change);
        let pointer = serde_json::from_str(&gateway.pointer()).unwrap();
        waits(&gateway, &pointer, code);
    };
    check(of_a_client, "tls-failed");
    check(expired, "tls-expired");
    check(of_another_name, "tls-wrong-name");
    check(
        |params| {
            ca(params);
            of_another_name(params);
        },
        "tls-failed",
    );
}

/// A CA that only Ignition knows does not make it accept another date or another name.
#[test]
fn fetched_ca_excuses_no_wrong_date_or_name() {
    let check = |change: fn(&mut CertificateParams), code: &str| {
        let gateway = Gateway::showing(By::ItsCa, change);
        let pointer = trusting(&gateway, &[&gateway.authority, "https://ca.example/ca.pem"]);
        waits(&gateway, &pointer, code);
    };
    check(expired, "tls-expired");
    check(of_another_name, "tls-wrong-name");
}

#[test]
fn certificate_that_ignition_may_accept_ends_the_wait() {
    // Its CA is one that Ignition fetches, and this program does not.
    let gateway = Gateway::start(&json!(["gcp"]), &json!({}));
    let pointer = trusting(&gateway, &[&other_authority(), "https://ca.example/ca.pem"]);
    let said = gives_up(&gateway, &pointer, "tls-unknown-ca");
    let note = "note: certificate authority 1 of the pointer config: is not a data URL, and no other CA is available";
    assert!(said.contains(note), "{said}");
    // It is a CA itself, or for anybody: Go's programs take it, and this one's TLS does not.
    for change in [ca, of_anybody] {
        let gateway = Gateway::showing(By::ItsCa, change);
        let pointer = serde_json::from_str(&gateway.pointer()).unwrap();
        gives_up(&gateway, &pointer, "tls-failed");
    }
}

/// Go's programs accept a certificate that the pointer itself lists, and check only its dates, its name and its purpose.
#[test]
fn pinned_server_certificate_is_checked_as_by_go() {
    for by in [By::ItsCa, By::Itself] {
        for change in [|_: &mut CertificateParams| {}, ca, of_anybody] {
            let gateway = Gateway::showing(by, change);
            attests(&trusting(&gateway, &[&other_authority(), &gateway.certificate]));
        }
        for (change, code) in [
            (expired as fn(&mut CertificateParams), "tls-expired"),
            (of_another_name, "tls-wrong-name"),
            (of_a_client, "tls-failed"),
        ] {
            let gateway = Gateway::showing(by, change);
            waits(&gateway, &trusting(&gateway, &[&gateway.certificate]), code);
        }
    }
    // Another server's is not it.
    let (gateway, other) = (
        Gateway::start(&json!(["gcp"]), &json!({})),
        Gateway::start(&json!(["gcp"]), &json!({})),
    );
    waits(&gateway, &trusting(&gateway, &[&other.certificate]), "tls-unknown-ca");
}
