//! `attest-node boot complete` on a real TPM, and a gateway's answer to it whose pool accepts machines only while they boot.
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use attest::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD, extended};
use attest::tpm::event_log::OS_SEPARATOR;
use attest::tpm::wire::HashAlg;
use attest_node::tpm::TpmDevice;
use swtpm_tests::{EkAuthority, POOL, Programs, TestEndorsement, TestFolder, TestGateway, TestNode, TpmServer};
use tss_esapi::constants::StartupType;

/// The node's message about a boot that it has ended.
const IS_OVER: &str = "attest-node: boot complete: PCR 13 is extended (sha256); until a reset, this machine cannot attest";
const WAS_OVER: &str = "attest-node: boot already complete: PCR 13 is extended";

fn close(tcti: &str, arguments: &[&str]) -> Output {
    let mut close = Command::new(&Programs::build().unwrap().node);
    // As its unit starts it.
    close
        .args(["boot", "complete", "--tcti", tcti])
        .args(arguments)
        .env("TSS2_LOG", "all+NONE")
        .output()
        .unwrap()
}

/// Runs `close`, and expects this exit code and one line with this text.
#[track_caller]
fn check(tcti: &str, arguments: &[&str], code: i32, said: &str) {
    let output = close(tcti, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(
        stderr.contains(said) && stderr.lines().count() == 1,
        "{said:?} is not in {stderr:?}"
    );
}

/// Returns the value of the boot-complete PCR.
fn boot_complete_pcr(tpm: &TpmServer) -> Vec<u8> {
    let values = TpmDevice::open(&tpm.tcti())
        .unwrap()
        .read_pcrs(HashAlg::Sha256, &[BOOT_COMPLETE_PCR])
        .unwrap();
    values.into_values().next().unwrap()
}

/// Returns the value of a PCR after these words, starting from zero.
fn after(words: &[&[u8]]) -> Vec<u8> {
    words
        .iter()
        .fold(vec![0; 32], |value, word| extended(HashAlg::Sha256, &value, word))
}

/// Extends the boot-complete PCR with another program.
fn pcr_event(tpm: &TpmServer, word: &[u8], folder: &TestFolder) {
    let file = folder.path().join("word");
    fs::write(&file, word).unwrap();
    let mut event = Command::new("tpm2_pcrevent");
    let event = event
        .args(["--tcti", &tpm.tcti(), &BOOT_COMPLETE_PCR.to_string()])
        .arg(file)
        .output()
        .unwrap();
    assert!(event.status.success(), "{}", String::from_utf8_lossy(&event.stderr));
}

fn reset(tpm: &TpmServer) {
    tpm.reset().unwrap();
    TpmDevice::open(&tpm.tcti()).unwrap().context().startup(StartupType::Clear).unwrap();
}

#[test]
fn boot_complete_extends_pcr_13_once_per_reset() {
    let folder = TestFolder::new().unwrap();
    let tpm = TpmServer::start(folder.path(), TestEndorsement::None).unwrap();
    let tcti = tpm.tcti();
    assert_eq!(boot_complete_pcr(&tpm), [0; 32]);
    for round in 0..2 {
        check(&tcti, &[], 0, IS_OVER);
        assert_eq!(boot_complete_pcr(&tpm), after(&[CLOSING_WORD]), "{round}");
        check(&tcti, &[], 0, WAS_OVER);
        assert_eq!(boot_complete_pcr(&tpm), after(&[CLOSING_WORD]), "{round}");
        reset(&tpm);
        assert_eq!(boot_complete_pcr(&tpm), [0; 32]);
    }
    // Whatever systemd does, before it or after it.
    pcr_event(&tpm, OS_SEPARATOR, &folder);
    check(&tcti, &[], 0, IS_OVER);
    check(&tcti, &[], 0, WAS_OVER);
    assert_eq!(boot_complete_pcr(&tpm), after(&[OS_SEPARATOR, CLOSING_WORD]));
    reset(&tpm);
    // By tpm2-tools it is the same.
    pcr_event(&tpm, CLOSING_WORD, &folder);
    check(&tcti, &[], 0, WAS_OVER);
    pcr_event(&tpm, OS_SEPARATOR, &folder);
    check(&tcti, &[], 0, WAS_OVER);
    reset(&tpm);
    // Where something else was measured nobody can tell, and once more does no harm.
    pcr_event(&tpm, b"a system extension", &folder);
    for _ in 0..2 {
        check(&tcti, &[], 0, IS_OVER);
    }
    assert_eq!(boot_complete_pcr(&tpm), after(&[b"a system extension", CLOSING_WORD, CLOSING_WORD]));
}

/// Listens at the ports of a TPM's commands and, one above, of its control channel.
fn silent() -> ([TcpListener; 2], u16) {
    loop {
        let commands = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = commands.local_addr().unwrap().port();
        if let Some(Ok(control)) = port.checked_add(1).map(|control| TcpListener::bind(("127.0.0.1", control))) {
            return ([commands, control], port);
        }
    }
}

/// The unit in `docs/how-to/images.md` for other initramfs, started as systemd starts it.
#[test]
fn documented_tpm2_tools_command_extends_pcr_13() {
    let page = include_str!("../../docs/how-to/images.md");
    let command = page.lines().find_map(|line| line.strip_prefix("ExecStart=/bin/sh -c '")).unwrap();
    let command = command.strip_suffix('\'').unwrap();
    let folder = TestFolder::new().unwrap();
    let tpm = TpmServer::start(folder.path(), TestEndorsement::None).unwrap();
    let mut shell = Command::new("/bin/sh");
    let ended = shell.args(["-c", command]).env("TPM2TOOLS_TCTI", tpm.tcti()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(boot_complete_pcr(&tpm), after(&[CLOSING_WORD]));
    check(&tpm.tcti(), &[], 0, WAS_OVER);
}

#[test]
fn boot_complete_never_blocks_a_boot() {
    check(
        "device:/dev/no-such-tpm",
        &[],
        0,
        "attest-node: nothing to do: this node has no TPM 2.0",
    );
    check(
        "no-such-tcti:",
        &[],
        1,
        "PCR 13 IS NOT EXTENDED: the TCTI \"no-such-tcti:\" is invalid",
    );
    let bounded = |port: u16, said: &str| {
        let begun = Instant::now();
        check(&format!("swtpm:host=127.0.0.1,port={port}"), &["--deadline", "2"], 1, said);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    };
    // One that takes what it is sent, and never answers; and none.
    let (silent, port) = silent();
    bounded(
        port,
        "PCR 13 IS NOT EXTENDED: 2 s have passed, and the TPM does not answer [deadline]",
    );
    drop(silent);
    bounded(port, "PCR 13 IS NOT EXTENDED: no TPM answers at ");
}

/// Root on a node that has its config uses all that is there: the program, the TPM, the pointer, and any event log.
#[test]
fn attack_47_root_attests_after_the_boot() {
    let folder = TestFolder::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authority = EkAuthority::new(&path("manufacturer")).unwrap();
    let mut gateway = TestGateway::on_free_port(&path("gateway")).unwrap();
    gateway.trust(&authority).unwrap();
    // As `init` makes it.
    let pool = fs::read_to_string(gateway.folder().join("pools").join(POOL).join("pool.toml")).unwrap();
    assert!(pool.contains("\nonly_while_booting = true\n"), "{pool}");
    gateway
        .edit_pool("\n#: event_log = \"checked\"", "\nevent_log = \"recorded\"")
        .unwrap();
    gateway.start(None).unwrap();
    let tpm = TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
    let pointer = gateway.pointer_to("127.0.0.1", gateway.port(), None).unwrap();
    let node = TestNode::new(folder.path(), &tpm, &pointer).unwrap();
    let attest = |log: Option<&LogBuilder>| {
        node.has_log(log.map(LogBuilder::build).as_deref()).unwrap();
        node.attests().unwrap()
    };
    let accepted = |log: Option<&LogBuilder>| {
        let (success, said) = attest(log);
        assert!(success && !said.contains("boot complete"), "{said}");
    };
    let refused = |log: Option<&LogBuilder>| {
        let (success, said) = attest(log);
        assert!(!success && said.contains("[tpm-boot-is-over]; next: Reset the machine"), "{said}");
        said
    };
    let log = |words: &[&[u8]]| {
        let empty = LogBuilder::new(&[SHA256]);
        words
            .iter()
            .fold(empty, |log, word| log.event(BOOT_COMPLETE_PCR.into(), EV_IPL, word))
    };
    accepted(None);
    // As often as it boots.
    accepted(Some(&log(&[])));
    check(&tpm.tcti(), &[], 0, IS_OVER);
    let said = refused(None);
    assert!(
        said.contains("attest-node: note: the boot is complete (PCR 13 is extended)"),
        "{said}"
    );
    for words in [&[][..], &[CLOSING_WORD], &[b"another"], &[CLOSING_WORD, OS_SEPARATOR]] {
        refused(Some(&log(words)));
    }
    // It can extend it further, and write a log of that.
    pcr_event(&tpm, b"another", &folder);
    for words in [&[CLOSING_WORD, b"another"][..], &[b"another"], &[]] {
        refused(Some(&log(words)));
    }
    reset(&tpm);
    accepted(None);
    let audit = gateway.audit(&[]).unwrap();
    assert!(audit.contains("tpm-boot-is-over") && !audit.contains("DIFFERENT"), "{audit}");
}
