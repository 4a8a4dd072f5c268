//! `attest-node try` on a real TPM against a real gateway: what it says of an honest machine, and of machines with a fault each.
mod faults;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use swtpm_tests::{POOL, Programs, TestGateway, TpmServer};

use crate::bench::Bench;

/// TPM2_ActivateCredential, and the answer of a TPM in dictionary-attack lockout.
const ACTIVATE_CREDENTIAL: u32 = 0x147;
const LOCKOUT: u32 = 0x921;

/// Runs `attest-node try` with a pointer config.
fn tries(folder: &Path, pointer: &str, tcti: &str, more: &[&str]) -> (Option<i32>, String) {
    tries_at(None, folder, pointer, tcti, more)
}

/// The same, by a clock that is off by this much, in the notation of faketime(1).
fn tries_at(clock: Option<&str>, folder: &Path, pointer: &str, tcti: &str, more: &[&str]) -> (Option<i32>, String) {
    let file = folder.join("pointer.ign");
    fs::write(&file, pointer).unwrap();
    fs::write(folder.join("cmdline"), "quiet\n").unwrap();
    let temporary = folder.join("temporary");
    fs::create_dir_all(&temporary).unwrap();
    let node = &Programs::build().unwrap().node;
    let mut command = match clock {
        None => Command::new(node),
        Some(offset) => {
            let mut faketime = Command::new("faketime");
            faketime.args(["-f", offset]).arg(node);
            faketime
        }
    };
    let Output { status, stdout, stderr } = command
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

/// Returns the digest of the EK, which is the first digest that is printed.
fn ek(said: &str) -> String {
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
        "certificate in NV index 0x01c00002, issued by CN=swtpm-localca",
        "ok     TPM maker    IBM (SW   TPM), firmware ",
        "ok     PCR banks    sha256\n",
        "ok     clock        within 0 s of the gateway's",
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

/// Writes a certificate into NV memory as the first of the EK certificate's issuers.
fn carries(tpm: &TpmServer, certificate: &Path, folder: &Path) {
    let file = folder.join("issuer.der");
    let (from, to) = (certificate.to_str().unwrap(), file.to_str().unwrap());
    let done = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(arguments).env("TPM2TOOLS_TCTI", tpm.tcti()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    done("openssl", &["x509", "-in", from, "-outform", "der", "-out", to]);
    let size = fs::metadata(&file).unwrap().len().to_string();
    let attributes = "ownerread|ownerwrite|authread|authwrite";
    done("tpm2_nvdefine", &["0x01c00100", "-C", "o", "-s", &size, "-a", attributes]);
    done("tpm2_nvwrite", &["0x01c00100", "-C", "o", "-i", to]);
}

#[test]
fn both_gateways_of_a_pointer_get_the_intermediates() {
    let mut second = None;
    let bench = Bench::with(|gateway| {
        // They know the maker's root only.
        fs::remove_file(gateway.folder().join("ek-roots/issuer.pem")).unwrap();
        second = Some(gateway.replica(&gateway.folder().with_extension("second")).unwrap());
    });
    let mut second = second.unwrap();
    second.start(None).unwrap();
    let mut both: Value = serde_json::from_str(&pointer(&bench.gateway)).unwrap();
    let other: Value = serde_json::from_str(&pointer(&second)).unwrap();
    let merge = both["ignition"]["config"]["merge"].as_array_mut().unwrap();
    merge.push(other["ignition"]["config"]["merge"][0].clone());
    let (folder, tcti) = (bench.folder.path(), bench.server.tcti());
    let run = || tries(folder, &both.to_string(), &tcti, &[]);
    let (code, said) = run();
    assert!(
        code == Some(1) && said.matches("[ek-not-endorsed]").count() == 2,
        "an issuer is missing: {said}"
    );
    carries(&bench.server, &bench.authority.certificates()[1], folder);
    let (code, said) = run();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("trusted: the full config of pool worker").count(), 2, "{said}");
    // One of them is enough to be kept out.
    second.command(&["node", "revoke", &ek(&said), "--anyway"]).unwrap();
    let (code, said) = run();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("trusted: the full config of pool worker") && said.contains("[node-revoked]"),
        "{said}"
    );
}
