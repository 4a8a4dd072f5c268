//! Pointers: attest-node reads those that the gateway writes.
use attest_certificates::Certificate;
use attest_ignition::{Config, SpecVersion};
use attest_node::pointer as node;
use attest_pointers::{PointerBuildError, PointerOptions};
use serde_json::Value;

fn authority(name: &str) -> Certificate {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    Certificate::parse(made.cert.der().clone()).unwrap()
}

fn check(base: &str, authorities: &[Certificate], token: Option<&str>, spec: SpecVersion) -> Result<(), PointerBuildError> {
    let pointer = PointerOptions {
        base: &base.parse().unwrap(),
        pool: "gpu.a-b",
        authorities,
        token,
    };
    let written = pointer.render_as(spec)?;
    let mut read = node::Pointer::parse(written.to_string().as_bytes()).unwrap_or_else(|error| panic!("{spec}: {error}"));
    let expected: Vec<_> = authorities.iter().map(|authority| authority.der.clone()).collect();
    assert_eq!(read.authorities().unwrap(), expected);
    let sources = read.sources();
    let [source] = sources.as_slice() else { panic!("{sources:?}") };
    assert_eq!(
        (source.base.as_str(), source.pool.as_str()),
        (base.trim_end_matches('/'), "gpu.a-b")
    );
    // With the ticket it says the same of its CAs, and has no other credential.
    read.set_ticket(source.place, "ticket.x", None);
    let with_ticket: Value = serde_json::from_slice(&read.to_bytes()).unwrap();
    Config::parse(&read.to_bytes()).unwrap();
    let entry = |pointer: &Value| pointer.pointer("/ignition/config/merge/0").unwrap().clone();
    assert_eq!(entry(&with_ticket).get("source"), entry(&written).get("source"));
    let headers = serde_json::json!([{ "name": "Authorization", "value": "Bearer ticket.x" }]);
    assert_eq!(entry(&with_ticket).get("httpHeaders"), Some(&headers));
    Ok(())
}

#[test]
fn attest_node_reads_the_gateways_pointers() {
    let (a, b) = (authority("a"), authority("b"));
    let both = [a, b];
    for spec in SpecVersion::ALL.into_iter().filter(|spec| *spec > SpecVersion::V3_0) {
        for base in [
            "https://api-int.example:22623",
            "https://192.0.2.1:8443/",
            "https://[2001:db8::1]:22623",
        ] {
            for authorities in [&both[..1], &both] {
                check(base, authorities, None, spec).unwrap();
                check(base, authorities, Some("abc"), spec).unwrap();
            }
        }
    }
}
