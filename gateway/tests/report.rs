//! The page of `attest-gateway report`: without script, bounded, and with hostile names as text.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::support::Gateway;

const HOSTILE: &str = "</td><script>alert(1)</script>&\"'\u{1b}[2J\u{202e}";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns a line of a log about a machine, so many seconds ago.
fn line(number: u64, ago: u64, change: impl FnOnce(&mut Value)) -> String {
    let at = now() - ago;
    let mut record = json!({
        "v": 1,
        "time": attest_system::clock::rfc3339(at),
        "at": at,
        "id": format!("{number:032x}"),
        "decision": "evidence",
        "verdict": "trusted",
        "peer": "192.0.2.7:40000",
        "pool": "worker",
        "shown": "tpm",
        "decided_by": "evidence",
        "identity": format!("tpm:{number:064x}"),
        "reason": "EK endorsed by the allowlist",
        "chain": { "id": "ab".repeat(16), "number": number, "previous": "cd".repeat(32) },
    });
    change(&mut record);
    format!("{record}\n")
}

/// Writes a log with these lines.
fn log(gateway: &Gateway, lines: &[String]) -> PathBuf {
    let path = gateway.path("other.jsonl");
    fs::write(&path, lines.concat()).unwrap();
    path
}

fn page(gateway: &Gateway, log: &Path) -> String {
    let file = gateway.path("report.html");
    gateway.command(&["report", "--html", file.to_str().unwrap(), "--log", log.to_str().unwrap()]);
    let text = fs::read_to_string(&file).unwrap();
    check(&text);
    text
}

/// Verifies what holds for each page.
#[track_caller]
fn check(text: &str) {
    for forbidden in ["<script", "javascript:", " on", "src=", "href=", "style=\"", "\u{1b}", "\u{202e}"] {
        // Words have " on" as well: an attribute has an equals sign.
        let found = match forbidden {
            " on" => text.split('<').any(|tag| tag.split('>').next().unwrap().contains(" on")),
            other => text.contains(other),
        };
        assert!(!found, "{forbidden:?}");
    }
    let style = text.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    let sha256 = BASE64.encode(digest(&SHA256, style.as_bytes()).as_ref());
    let policy = format!("default-src 'none'; style-src 'sha256-{sha256}'; base-uri 'none'; form-action 'none'");
    assert!(text.contains(&format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">")));
    // Each element that is opened is closed.
    for element in [
        "table", "tbody", "thead", "tr", "td", "th", "svg", "g", "p", "ul", "li", "h2", "h3", "span", "strong",
    ] {
        let opened = text.matches(&format!("<{element}>")).count() + text.matches(&format!("<{element} ")).count();
        assert_eq!(opened, text.matches(&format!("</{element}>")).count(), "{element}");
    }
}

#[test]
fn shows_an_empty_gateway() {
    let mut gateway = Gateway::init();
    let none = log(&gateway, &[]);
    gateway.run();
    let text = page(&gateway, &none);
    for part in [
        "Nothing stops a boot.",
        "No machine waits.",
        "The log has no decision of these days.",
        "No pointer was used yet.",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // The certificate, and the CA that signs it, are on the time line.
    assert!(text.contains("WITHIN 400 DAYS") && text.contains("MCS"), "{text}");
    gateway.terminate();
    assert!(gateway.wait().success());
    // Nobody serves now: that stops boots.
    let text = page(&gateway, &none);
    assert!(
        text.contains("Boots are stopped by 1 problems:") && text.contains("no gateway serves"),
        "{text}"
    );
}

#[test]
fn hostile_names_stay_text() {
    let gateway = Gateway::start();
    let hostile = |record: &mut Value| {
        for field in ["pool", "identity", "peer", "time", "reason", "code"] {
            record[field] = HOSTILE.into();
        }
        record["verdict"] = "refused".into();
        record["reason"] = format!("{HOSTILE}; next: {HOSTILE}").into();
    };
    let path = log(&gateway, &[line(1, 60, hostile)]);
    let text = page(&gateway, &path);
    assert!(text.matches("&lt;script&gt;alert(1)").count() >= 5, "{text}");
}

/// Ten thousand machines on thirty days make no longer page than a hundred.
#[test]
fn a_page_of_ten_thousand_machines_is_bounded() {
    const DAY: u64 = 24 * 3600;
    let gateway = Gateway::start();
    let lines: Vec<String> = (0..10_000)
        .map(|number| {
            line(number, number % 30 * DAY, |record| {
                record["pool"] = format!("pool-{}", number % 40).into();
                if number % 7 == 0 {
                    record["verdict"] = "refused".into();
                    record["code"] = "boot-not-accepted".into();
                }
            })
        })
        .collect();
    let act = |number: u64, days: u64, verb: &str| {
        line(number, days * DAY, |record| {
            record["decision"] = "admin".into();
            record["admin"] = json!({ "v": 1, "verb": verb });
            record.as_object_mut().unwrap().remove("verdict");
        })
    };
    let acts = [
        act(20_000, 3, "gateway.start"),
        act(20_001, 3, "gateway.reload"),
        act(20_002, 4, "ca.switch"),
        act(20_003, 5, "waiting.accept"),
    ];
    let path = log(&gateway, &[&lines[..], &acts].concat());
    let text = page(&gateway, &path);
    assert!(text.len() < 600_000, "{}", text.len());
    assert_eq!(text.matches("<h3>Pool ").count(), 20);
    assert!(text.contains("And 20 more pools with fewer decisions."));
    assert_eq!(text.matches("<td data-column=\"DECISION\">").count(), 50);
    for mark in [
        "restart 1 times",
        "reload 1 times",
        "CA or certificate 1 times",
        "values accepted 1 times",
    ] {
        assert!(text.contains(mark), "{mark}");
    }
}

/// Root's page in root's folder, although the state is the gateway's user's; an unwritable place is an error.
#[test]
fn attack_48_strangers_push_no_proven_decision_off_the_page() {
    let gateway = Gateway::start();
    let trusted = line(1, 90, |record| record["claims"] = json!({}));
    let stranger = |number| {
        line(number, 60, |record| {
            record["verdict"] = "refused".into();
            record["code"] = "ek-not-endorsed".into();
        })
    };
    let lines: Vec<String> = std::iter::once(trusted).chain((2..1_000).map(stranger)).collect();
    let text = page(&gateway, &log(&gateway, &lines));
    assert_eq!(text.matches("<td data-column=\"DECISION\">").count(), 51);
    // The newest decision is first.
    let of = |number: u64| text.find(&format!("{number:064x}"));
    assert!(of(999) < of(950) && of(950) < of(1) && of(949).is_none() && of(1).is_some());
}

#[test]
fn refuses_a_place_that_cannot_be_written() {
    let gateway = Gateway::start();
    let output = gateway.try_command(&["report", "--html", "/nonexistent/report.html"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/nonexistent/report.html"), "{said}");
    let output = gateway.try_command(&["report"]);
    assert_eq!(output.status.code(), Some(2));
}
