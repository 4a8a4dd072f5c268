//! Machines with one fault each: the code of the finding, and the next step. A printed command is run as printed, and ends the fault.
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use attest_node::tpm::TpmDevice;
use data_encoding::HEXLOWER;
use serde_json::Value;
use swtpm_tests::{EkAuthority, Programs, TestEndorsement, TestGateway, TpmProxy, TpmServer};
use tss_esapi::constants::StartupType;

use super::{ACTIVATE_CREDENTIAL, LOCKOUT, ek, pointer, tries, tries_at};
use crate::bench::Bench;
use crate::log_builder::{BuiltEvent, EV_IPL, LogBuilder, SHA256};
use crate::tpm_retry::locks;

/// Maximum wait for the gateway's reload of a pool.
const LIMIT: Duration = Duration::from_secs(60);

/// Reference values of the pool, of which no machine here has one.
const KNOWN: &str = r#"{"format": "attest-reference-values/1", "generations": [{
    "name": "known", "added": "2026-01-01T00:00:00Z", "by": "test", "from": "by_hand",
    "values": {"images": [{"digests": {"sha256": "0101010101010101010101010101010101010101010101010101010101010101"}}]}
}]}"#;

/// One rehearsal.
struct Findings(Value);

impl Findings {
    /// Rehearses, and expects that the exit code agrees with the result.
    fn of(folder: &Path, pointer: &str, tcti: &str, more: &[&str]) -> Self {
        let (code, said) = tries(folder, pointer, tcti, &[more, &["--output", "json"]].concat());
        let found: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!(code, Some(i32::from(found["trusted"] != true)), "{said}");
        Self(found)
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        self.0["findings"].as_array().unwrap().iter()
    }

    #[track_caller]
    fn is_trusted(&self) {
        assert_eq!(self.0["trusted"], true, "{:#}", self.0);
    }

    /// Returns the next step of the last finding, which has this code, and is the only reason.
    #[track_caller]
    fn fails(&self, code: &str) -> &str {
        let last = self.all().last().unwrap();
        assert!(
            self.0["trusted"] == false && last["code"] == code && last["severity"] == "bad",
            "{code}: {:#}",
            self.0
        );
        let mut bad = self.all().filter(|one| one["severity"] == "bad");
        assert!(bad.all(|one| one["code"] == code), "{code}: {:#}", self.0);
        last["next_step"].as_str().unwrap()
    }

    /// Returns the text and the next step of a finding that keeps no machine out.
    #[track_caller]
    fn note(&self, about: &str) -> (&str, &str) {
        let mut notes = self.all().filter(|one| one["about"] == about && one["severity"] == "note");
        let note = notes.next().unwrap_or_else(|| panic!("{about}: {:#}", self.0));
        (note["said"].as_str().unwrap(), note["next_step"].as_str().unwrap_or_default())
    }

    #[track_caller]
    fn has(&self, about: &str, said: &str) {
        let is = |one: &Value| one["about"] == about && one["said"].as_str().unwrap().contains(said);
        assert!(self.all().any(is), "{about}, {said:?}: {:#}", self.0);
    }
}

/// Returns the first command in a next step that begins like this.
#[track_caller]
fn command<'t>(next_step: &'t str, start: &str) -> &'t str {
    let mut quoted = next_step.split('`').skip(1).step_by(2);
    quoted
        .find(|command| command.starts_with(start))
        .unwrap_or_else(|| panic!("{next_step}"))
}

/// Runs a command of a next step, as an administrator does on the gateway's host, or on the machine with this TPM.
#[track_caller]
fn runs(command: &str, gateway: &TestGateway, tcti: &str) -> String {
    let programs = Programs::build().unwrap().gateway.parent().unwrap().display().to_string();
    let output = Command::new("sh")
        .args(["-c", command])
        .env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()))
        .env("ATTEST_GATEWAY_CONFIG", gateway.settings())
        .env("TPM2TOOLS_TCTI", tcti)
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Machine with its TPM and a pointer config of the bench's gateway.
struct Machine<'b> {
    bench: &'b Bench,
    tcti: String,
    pointer: String,
}

impl<'b> Machine<'b> {
    fn new(bench: &'b Bench) -> Self {
        Self {
            bench,
            tcti: bench.server.tcti(),
            pointer: pointer(&bench.gateway),
        }
    }

    fn with_tpm(self, tcti: String) -> Self {
        Self { tcti, ..self }
    }

    fn tries(&self, more: &[&str]) -> Findings {
        Findings::of(self.bench.folder.path(), &self.pointer, &self.tcti, more)
    }

    /// Runs a command of a next step.
    #[track_caller]
    fn runs(&self, command: &str) -> String {
        runs(command, &self.bench.gateway, &self.tcti)
    }

    /// Edits the pool once, and waits until the gateway serves it.
    fn edits_pool(&self, from: &str, to: &str) {
        self.bench.gateway.edit_pool(from, to).unwrap();
        let served = |line: &str| line.contains("pool worker: serving a new state");
        self.bench.gateway.process().unwrap().wait_line(LIMIT, served).unwrap();
    }
}

#[test]
fn no_tpm() {
    let bench = Bench::new();
    let machine = Machine::new(&bench);
    let absent = bench.folder.path().join("no-tpm").display().to_string();
    let found = Machine::new(&bench).with_tpm(format!("device:{absent}")).tries(&[]);
    let next_step = found.fails("no-accepted-evidence");
    assert!(next_step.contains("enable the TPM 2.0 in the firmware setup"), "{next_step}");
    let (said, next_step) = found.note("TPM");
    assert!(
        said.contains(&format!("{absent} does not exist")) && next_step.contains("firmware setup"),
        "{said}"
    );
    found.has("gateway", "answers, and accepts tpm");
    machine.tries(&[]).is_trusted();
}

#[test]
fn locked_out() {
    let bench = Bench::new();
    let machine = Machine::new(&bench);
    machine.tries(&[]).has("lockout", "0 failed authorizations count, 3 lock the TPM");
    locks(&bench.server, bench.folder.path());
    // Its EK works all the same.
    let found = machine.tries(&[]);
    found.is_trusted();
    let (said, next_step) = found.note("lockout");
    assert!(said.contains("3 failed authorizations count"), "{said}");
    // One whose EK does not.
    let proxy = TpmProxy::start(&bench.server).unwrap();
    proxy.answer_always(ACTIVATE_CREDENTIAL, LOCKOUT);
    let found = Machine::new(&bench).with_tpm(proxy.tcti()).tries(&[]);
    let clear = command(found.fails("tpm-lockout"), "tpm2_dictionarylockout");
    assert_eq!(clear, command(next_step, "tpm2_dictionarylockout"));
    machine.runs(clear);
    machine.tries(&[]).has("lockout", "0 failed authorizations count");
}

#[test]
fn a_password_of_the_endorsement_hierarchy() {
    let bench = Bench::new();
    let machine = Machine::new(&bench);
    machine.runs("tpm2_changeauth -c endorsement PASSWORD");
    let found = machine.tries(&[]);
    machine.runs(command(found.fails("tpm-failed"), "tpm2_changeauth"));
    machine.tries(&[]).is_trusted();
}

#[test]
fn wrong_ca() {
    let bench = Bench::new();
    let stranger = TestGateway::on_free_port(&bench.folder.path().join("stranger")).unwrap();
    let mut machine = Machine::new(&bench);
    machine.pointer = stranger.pointer_to("127.0.0.1", bench.gateway.port(), None).unwrap();
    let found = machine.tries(&[]);
    machine.pointer = machine.runs(command(found.fails("tls-unknown-ca"), "attest-gateway pointer create"));
    machine.tries(&[]).is_trusted();
}

#[test]
fn clock_behind() {
    let bench = Bench::new();
    let (folder, pointer, tcti) = (bench.folder.path(), pointer(&bench.gateway), bench.server.tcti());
    let at = |offset: &str| {
        let (code, said) = tries_at(Some(offset), folder, &pointer, &tcti, &["--output", "json"]);
        let found: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!(code, Some(i32::from(found["trusted"] != true)), "{said}");
        Findings(found)
    };
    // By so much that the gateway's certificate is not valid yet.
    let next_step = at("-4000d").fails("tls-not-yet-valid").to_owned();
    assert!(next_step.contains("set this node's clock"), "{next_step}");
    for (offset, said) in [("-10m", "s behind the gateway's"), ("+10m", "s ahead of the gateway's")] {
        let found = at(offset);
        found.is_trusted();
        let (text, next_step) = found.note("clock");
        let seconds: u64 = text.split(' ').next().unwrap().parse().unwrap();
        assert!((590..=610).contains(&seconds) && text.contains(said), "{text}");
        assert!(next_step.contains("set this node's clock"), "{next_step}");
    }
    at("+0m").has("clock", "within ");
}

#[test]
fn no_event_log() {
    let bench = Bench::with(|gateway| gateway.edit_pool("\n[tpm]\n", "\n[tpm]\nevent_log = \"required\"\n").unwrap());
    let machine = Machine::new(&bench);
    let log = bench.folder.path().join("log");
    let more = ["--event-log", log.to_str().unwrap()];
    let found = machine.tries(&more);
    let next_step = found.fails("event-log-missing");
    assert!(
        next_step.contains("Mount securityfs") && next_step.contains("event_log = \"checked\""),
        "{next_step}"
    );
    found.has("event log", "does not exist or is empty");
    machine.edits_pool("event_log = \"required\"", "event_log = \"checked\"");
    machine.tries(&more).is_trusted();
}

#[test]
fn only_sha1() {
    let bench = Bench::new();
    let old = TpmServer::start_with_banks(&bench.folder.path().join("old"), TestEndorsement::By(&bench.authority), "sha1").unwrap();
    let machine = Machine::new(&bench).with_tpm(old.tcti());
    let found = machine.tries(&[]);
    let next_step = found.fails("tpm-bank-missing");
    assert!(next_step.contains("enable this PCR bank in the firmware setup"), "{next_step}");
    let banks = found.all().find(|one| one["about"] == "PCR banks").unwrap();
    assert_eq!(banks["said"], "sha1");
    // What a firmware setup does.
    machine.runs("tpm2_pcrallocate sha1:none+sha256:all");
    resets(&old);
    let found = machine.tries(&[]);
    found.is_trusted();
    found.has("PCR banks", "sha256");
}

#[test]
fn unknown_maker() {
    let bench = Bench::new();
    let other = EkAuthority::new(&bench.folder.path().join("other-maker")).unwrap();
    for (name, endorsement, code) in [
        ("unknown", TestEndorsement::By(&other), "ek-certificate-invalid"),
        ("bare", TestEndorsement::None, "ek-not-endorsed"),
    ] {
        let tpm = TpmServer::start(&bench.folder.path().join(name), endorsement).unwrap();
        let machine = Machine::new(&bench).with_tpm(tpm.tcti());
        let found = machine.tries(&[]);
        machine.runs(command(found.fails(code), "attest-gateway ek add"));
        machine.tries(&[]).is_trusted();
    }
}

#[test]
fn unreadable_certificate() {
    const NV_READ: u32 = 0x14e;
    const NV_AUTHORIZATION: u32 = 0x149;
    let bench = Bench::new();
    let proxy = TpmProxy::start(&bench.server).unwrap();
    proxy.answer_always(NV_READ, NV_AUTHORIZATION);
    let machine = Machine::new(&bench).with_tpm(proxy.tcti());
    let found = machine.tries(&[]);
    let (said, _) = found.note("TPM");
    assert!(
        said.starts_with("the EK certificate in NV index 0x01c00002 could not be read: "),
        "{said}"
    );
    machine.runs(command(found.fails("ek-certificate-unread"), "attest-gateway ek add"));
    machine.tries(&[]).is_trusted();
}

#[test]
fn revoked() {
    let bench = Bench::new();
    let machine = Machine::new(&bench);
    let ek = ek(&machine.tries(&[]).0.to_string());
    machine.runs(&format!("attest-gateway node revoke {ek} --anyway"));
    let found = machine.tries(&[]);
    machine.runs(command(found.fails("node-revoked"), "attest-gateway node restore"));
    machine.tries(&[]).is_trusted();
}

#[test]
fn new_values() {
    let bench = Bench::with(|gateway| {
        gateway.edit_pool("\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n").unwrap();
        gateway
            .add_to_pool("\n[reference_values]\nfolder = \"reference-values\"\n")
            .unwrap();
        gateway.write("pools/worker/reference-values/known.json", KNOWN).unwrap();
    });
    let machine = Machine::new(&bench);
    let log = LogBuilder::typical(&[SHA256]).event(4, EV_IPL, b"another loader");
    boots(&bench.server, &log);
    let file = bench.folder.path().join("log");
    fs::write(&file, log.build()).unwrap();
    let more = ["--event-log", file.to_str().unwrap()];
    let found = machine.tries(&more);
    let accept = command(found.fails("boot-not-accepted"), "attest-gateway waiting accept --record ").to_owned();
    let requirement = found.all().find(|one| one["about"] == "requirement" && one["severity"] == "bad");
    assert_eq!(requirement.unwrap()["code"], "boot-not-accepted");
    found.has("event log", " bytes");
    // As printed, it shows what it would accept.
    let shown = machine.runs(&accept);
    assert!(shown.contains("PCR 4"), "{shown}");
    machine.tries(&more).fails("boot-not-accepted");
    machine.runs(&format!("{accept} --yes"));
    let served = |line: &str| line.contains("pool worker: serving a new state");
    bench.gateway.process().unwrap().wait_line(LIMIT, served).unwrap();
    machine.tries(&more).is_trusted();
}

#[test]
fn wrong_pool() {
    let bench = Bench::new();
    let mut machine = Machine::new(&bench);
    let right = machine.pointer.clone();
    machine.pointer = right.replace("/config/worker", "/config/nosuch");
    let next_step = machine.tries(&[]).fails("pool-unknown").to_owned();
    assert!(next_step.contains("Name a pool of this gateway"), "{next_step}");
    machine.pointer = right;
    let ek = ek(&machine.tries(&[]).0.to_string());
    // A pool that exists, and whose machines others are.
    bench.add_pool("infra");
    machine.runs(&format!("attest-gateway ek add {ek} --pool infra"));
    let found = machine.tries(&[]);
    machine.runs(command(found.fails("ek-not-endorsed"), "attest-gateway ek add"));
    machine.tries(&[]).is_trusted();
}

#[test]
fn gateway_away() {
    let mut bench = Bench::new();
    bench.gateway.terminate().unwrap();
    let next_step = Machine::new(&bench).tries(&[]).fails("gateway-unreachable").to_owned();
    assert!(
        next_step.contains("check that the gateway runs and that this node's network reaches it"),
        "{next_step}"
    );
    bench.gateway.start(None).unwrap();
    Machine::new(&bench).tries(&[]).is_trusted();
}

#[test]
fn name_taken() {
    let bench = Bench::new();
    let machine = Machine::new(&bench);
    let other = "0a".repeat(32);
    machine.runs(&format!("attest-gateway ek add {other} --name worker-7"));
    let named = ["--name", "worker-7"];
    let found = machine.tries(&named);
    let accept = command(found.fails("node-name-taken"), "attest-gateway waiting accept --record ").to_owned();
    machine.runs(&accept);
    machine.runs(&format!("{accept} --yes"));
    machine.tries(&named).is_trusted();
}

fn resets(tpm: &TpmServer) {
    tpm.reset().unwrap();
    TpmDevice::open(&tpm.tcti()).unwrap().context().startup(StartupType::Clear).unwrap();
}

/// Resets the TPM, and extends it like this log.
fn boots(tpm: &TpmServer, log: &LogBuilder) {
    resets(tpm);
    let of_event = |event: &BuiltEvent| {
        let (_, digest) = event.digests.iter().find(|(bank, _)| *bank == SHA256)?;
        Some(format!("{}:sha256={}", event.pcr, HEXLOWER.encode(digest)))
    };
    let extended = Command::new("tpm2_pcrextend")
        .args(["--tcti", &tpm.tcti()])
        .args(log.events.iter().filter_map(of_event))
        .output()
        .unwrap();
    assert!(extended.status.success(), "{}", String::from_utf8_lossy(&extended.stderr));
}
