//! `attest-node try` on a real TPM against a real gateway: what it says of an honest machine, and of machines with a fault each.
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use swtpm_tests::{EkAuthority, POOL, Programs, TestEndorsement, TestGateway, TpmProxy, TpmServer, free_port};

use crate::bench::Bench;

/// TPM2_ActivateCredential, and the answer of a TPM in dictionary-attack lockout.
const ACTIVATE_CREDENTIAL: u32 = 0x147;
const LOCKOUT: u32 = 0x921;

/// Runs `attest-node try` with a pointer config.
fn tries(folder: &Path, pointer: &str, tcti: &str, more: &[&str]) -> (Option<i32>, String) {
    let file = folder.join("pointer.ign");
    fs::write(&file, pointer).unwrap();
    fs::write(folder.join("cmdline"), "quiet\n").unwrap();
    let temporary = folder.join("temporary");
    fs::create_dir_all(&temporary).unwrap();
    let Output { status, stdout, stderr } = Command::new(&Programs::build().unwrap().node)
        .args(["try", "--tcti", tcti, "--deadline", "4", "--pointer"])
        .arg(&file)
        .arg("--cmdline")
        .arg(folder.join("cmdline"))
        .arg("--dmi")
        .arg(folder.join("no-dmi"))
        .args(more)
        .env("TSS2_LOG", "all+NONE")
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    fs::remove_dir(&temporary).expect("nothing is left there");
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert!(!said.contains("ticket."), "{said}");
    (status.code(), said)
}

fn pointer(gateway: &TestGateway) -> String {
    gateway.pointer_to("127.0.0.1", gateway.port(), None).unwrap()
}

/// Expects that the machine would not be trusted, with these texts.
#[track_caller]
fn fails(run: (Option<i32>, String), texts: &[&str]) {
    let (code, said) = run;
    assert_eq!(code, Some(1), "{said}");
    for text in texts {
        assert!(said.contains(text), "{text:?} is not in:\n{said}");
    }
    assert!(
        said.ends_with("This machine would not be trusted. Nothing was changed.\n"),
        "{said}"
    );
}

fn digest(said: &str) -> String {
    let mut words = said.split(|c: char| !c.is_ascii_hexdigit());
    words.find(|word| word.len() == 64).unwrap().to_owned()
}

#[test]
fn an_honest_machine_would_be_trusted_and_nothing_is_kept() {
    let bench = Bench::new();
    let (folder, tcti) = (bench.folder.path(), bench.server.tcti());
    let (code, said) = tries(folder, &pointer(&bench.gateway), &tcti, &[]);
    assert_eq!(code, Some(0), "{said}");
    for text in [
        "ok     TPM",
        "certificate issued by CN=swtpm-localca",
        "note   event log",
        "ok     requirement",
        "trusted: the full config of pool worker (record ",
    ] {
        assert!(said.contains(text), "{text:?} is not in:\n{said}");
    }
    let attested = bench.gateway.records().unwrap();
    assert_eq!(
        (attested.len(), attested[0].decision(), attested[0].verdict()),
        (1, "rehearsal", "trusted")
    );
    assert!(bench.gateway.command(&["machines", "list", "--output", "json"]).unwrap().trim() == "[]");
    // After its boot is complete, too.
    let closed = Command::new(&Programs::build().unwrap().node)
        .args(["boot", "complete", "--tcti", &tcti])
        .status()
        .unwrap();
    assert!(closed.success());
    let (code, said) = tries(folder, &pointer(&bench.gateway), &tcti, &["--output", "json"]);
    assert_eq!(code, Some(0), "{said}");
    let found: Value = serde_json::from_str(&said).unwrap();
    let boot = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["about"] == "boot")
        .unwrap();
    assert!(
        found["trusted"] == true && boot["said"].as_str().unwrap().contains("PCR 13 is extended"),
        "{said}"
    );
    // By the gateway's address, and without a pointer config.
    let url = format!("https://127.0.0.1:{}", bench.gateway.port());
    let output = Command::new(&Programs::build().unwrap().node)
        .args(["try", "--tcti", &tcti, "--gateway", &url, "--pool", POOL, "--ca"])
        .arg(bench.gateway.ca())
        .env("TSS2_LOG", "all+NONE")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    bench.gateway.audit(&[]).unwrap();
}

#[test]
fn each_fault_of_a_machine_is_named_with_the_next_step() {
    let bench = Bench::with(|gateway| gateway.edit_pool("\n[tpm]\n", "\n[tpm]\nevent_log = \"required\"\n").unwrap());
    let (folder, tcti) = (bench.folder.path(), bench.server.tcti());
    let good = pointer(&bench.gateway);
    let run = |tcti: &str, more: &[&str]| tries(folder, &good, tcti, more);
    // No TPM.
    let absent = folder.join("no-tpm").display().to_string();
    fails(
        run(&format!("device:{absent}"), &[]),
        &["no TPM 2.0", "[no-accepted-evidence]", "next: enable the TPM 2.0", "ok     gateway"],
    );
    // In lockout.
    let proxy = TpmProxy::start(&bench.server).unwrap();
    proxy.answer_always(ACTIVATE_CREDENTIAL, LOCKOUT);
    fails(
        run(&proxy.tcti(), &[]),
        &["[tpm-lockout]", "`tpm2_dictionarylockout --clear-lockout`"],
    );
    // No event log, and a pool that requires one.
    let no_log = folder.join("no-log").display().to_string();
    fails(
        run(&tcti, &["--event-log", &no_log]),
        &["does not exist or is empty", "[event-log-missing]"],
    );
    // Another CA, another pool, no gateway.
    let stranger = TestGateway::on_free_port(&folder.join("stranger")).unwrap();
    let with_other_ca = stranger.pointer_to("127.0.0.1", bench.gateway.port(), None).unwrap();
    fails(tries(folder, &with_other_ca, &tcti, &[]), &["[tls-unknown-ca]"]);
    fails(
        tries(folder, &good.replace("/config/worker", "/config/nosuch"), &tcti, &[]),
        &["[pool-unknown]"],
    );
    let nobody = bench.gateway.pointer_to("127.0.0.1", free_port().unwrap(), None).unwrap();
    fails(
        tries(folder, &nobody, &tcti, &[]),
        &["[gateway-unreachable]", "next: check that the gateway runs"],
    );
    fails(tries(folder, "{", &tcti, &[]), &["[pointer-malformed]"]);
    // A maker that nobody trusts, and no certificate.
    let other = EkAuthority::new(&folder.join("other-maker")).unwrap();
    let unknown = TpmServer::start(&folder.join("unknown"), TestEndorsement::By(&other)).unwrap();
    fails(run(&unknown.tcti(), &[]), &["[ek-certificate-invalid]"]);
    let bare = TpmServer::start(&folder.join("bare"), TestEndorsement::None).unwrap();
    fails(run(&bare.tcti(), &[]), &["no certificate", "[ek-not-endorsed]", "`attest-gateway"]);
    // Only SHA-1.
    let old = TpmServer::start_with_banks(&folder.join("old"), TestEndorsement::By(&bench.authority), "sha1").unwrap();
    fails(run(&old.tcti(), &[]), &["sha256"]);
}

#[test]
fn what_an_administrator_can_change_is_named_with_the_command() {
    let bench = Bench::new();
    let (folder, tcti) = (bench.folder.path(), bench.server.tcti());
    let good = pointer(&bench.gateway);
    let run = |more: &[&str]| tries(folder, &good, &tcti, more);
    let (_, said) = run(&[]);
    // A name of another machine.
    bench
        .gateway
        .command(&["ek", "add", &"0a".repeat(32), "--name", "worker-7"])
        .unwrap();
    fails(
        run(&["--name", "worker-7"]),
        &["[node-name-taken]", "`attest-gateway waiting accept --record "],
    );
    // Revoked.
    bench.gateway.command(&["node", "revoke", &digest(&said), "--anyway"]).unwrap();
    fails(run(&[]), &["[node-revoked]"]);
}
