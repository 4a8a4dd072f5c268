//! A TPM that cannot run a command now, or is in dictionary-attack lockout: the reactions of `attest-node` and of the gateway.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use attest_node::tpm::TpmDevice;
use swtpm_tests::{TestNode, TpmProxy, TpmServer};
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;
use tss_esapi::constants::{CapabilityType, PropertyTag, StartupType};
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::structures::{CapabilityData, PcrSelectionListBuilder, PcrSlot, SignatureScheme};

use crate::attacks_tpm::keys::signing_key;
use crate::bench::{Bench, with_password};

/// Response codes after which a command is repeated, and how often each command is answered with them. ESYS repeats those of the second kind five times by itself.
const WARNINGS: [(u32, u32); 12] = [
    (0x902, 2),
    (0x903, 2),
    (0x904, 2),
    (0x905, 2),
    (0x906, 2),
    (0x909, 2),
    (0x920, 2),
    (0x921, 2),
    (0x923, 2),
    (0x908, 7),
    (0x90a, 7),
    (0x922, 7),
];
const NV_RATE: u32 = 0x920;
const LOCKOUT: u32 = 0x921;
/// Response codes TPM_RC_FAILURE and TPM_RC_NV_AUTHORIZATION.
const FAILURE: u32 = 0x101;
const NV_AUTHORIZATION: u32 = 0x149;
/// TPM2_CreatePrimary, TPM2_ActivateCredential, TPM2_NV_Read, TPM2_StartAuthSession, TPM2_Quote, TPM2_GetCapability, TPM2_PCR_Read.
const CREATE_PRIMARY: u32 = 0x131;
const ACTIVATE_CREDENTIAL: u32 = 0x147;
const NV_READ: u32 = 0x14e;
const START_AUTH_SESSION: u32 = 0x176;
const QUOTE: u32 = 0x158;
const GET_CAPABILITY: u32 = 0x17a;
const PCR_READ: u32 = 0x17e;
/// Number of failed authorizations that lock swtpm as it is made.
const TRIES: usize = 3;

fn node(bench: &Bench, name: &str) -> TestNode {
    let pointer = bench.gateway.pointer_to("127.0.0.1", bench.gateway.port(), None).unwrap();
    TestNode::new(&bench.folder.path().join(name), &bench.server, &pointer).unwrap()
}

#[track_caller]
fn attests(node: &TestNode) {
    let (success, said) = node.attests().unwrap();
    assert!(success && said.contains("attest-node: attested as tpm:"), "{said}");
}

/// Verifies that the node does not attest, and prints each of these texts. Returns its output.
#[track_caller]
fn does_not_attest(node: &TestNode, parts: &[&str]) -> String {
    let (success, said) = node.attests().unwrap();
    assert!(!success, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    said
}

#[test]
fn retries_each_command_after_each_tpm_warning() {
    let bench = Bench::new();
    let proxy = TpmProxy::start(&bench.server).unwrap();
    for ek in ["rsa", "ecc"] {
        let node = node(&bench, ek).with_tcti(proxy.tcti()).with_options(&["--ek", ek]);
        proxy.answer_never();
        attests(&node);
        let undisturbed = proxy.passed();
        let commands: BTreeSet<u32> = undisturbed.iter().copied().collect();
        for command in [
            CREATE_PRIMARY,
            ACTIVATE_CREDENTIAL,
            NV_READ,
            START_AUTH_SESSION,
            QUOTE,
            GET_CAPABILITY,
            PCR_READ,
        ] {
            assert!(commands.contains(&command), "{command:#x} is not in {commands:x?}");
        }
        for (code, times) in WARNINGS {
            proxy.answer_each(code, times);
            attests(&node);
            assert_eq!(proxy.passed(), undisturbed, "{code:#x}, {ek}");
        }
    }
}

#[test]
fn names_a_busy_tpm_at_the_deadline() {
    let bench = Bench::new();
    let proxy = TpmProxy::start(&bench.server).unwrap();
    let node = node(&bench, "node").with_tcti(proxy.tcti()).with_options(&["--deadline", "4"]);
    for command in [GET_CAPABILITY, NV_READ, CREATE_PRIMARY, ACTIVATE_CREDENTIAL, QUOTE] {
        proxy.answer_always(command, NV_RATE);
        let begun = Instant::now();
        let said = does_not_attest(&node, &["TPM_RC_NV_RATE (0x920)", "[tpm-busy]; next: boot again"]);
        let took = begun.elapsed();
        // Until the deadline, less what is kept for the report and the last pause.
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(30), "{took:?}: {said}");
    }
    // What no time mends is not waited for.
    proxy.answer_always(QUOTE, FAILURE);
    let begun = Instant::now();
    does_not_attest(&node, &["quoting the PCRs failed", "0x101", "[tpm-failed]"]);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    proxy.answer_never();
    attests(&node);
}

#[test]
fn reports_an_unreadable_ek_certificate() {
    let bench = Bench::new();
    let proxy = TpmProxy::start(&bench.server).unwrap();
    let node = node(&bench, "node").with_tcti(proxy.tcti());
    proxy.answer_always(NV_READ, NV_AUTHORIZATION);
    let said = does_not_attest(
        &node,
        &[
            "attest-node: note: the EK certificate in NV index 0x01c00002 could not be read: reading a certificate from the TPM's NV memory failed",
            "[ek-certificate-unread]",
        ],
    );
    assert!(!said.contains("has no certificate"), "{said}");
    let record = bench.last_record();
    assert_eq!(record.code(), Some("ek-certificate-unread"), "{record:?}");
    let table = Command::new(&swtpm_tests::Programs::build().unwrap().node)
        .args(["ek", "list", "--tcti", &proxy.tcti()])
        .output()
        .unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("none; the EK certificate in NV index 0x01c00002 could not be read"),
        "{table}"
    );
    // One that has none says so.
    let bare = TpmServer::start(&bench.folder.path().join("bare"), swtpm_tests::TestEndorsement::None).unwrap();
    does_not_attest(&node.with_tcti(bare.tcti()), &["has no certificate", "[ek-not-endorsed]"]);
}

#[test]
fn reports_a_lockout_with_its_interval() {
    let bench = Bench::new();
    let proxy = TpmProxy::start(&bench.server).unwrap();
    let node = node(&bench, "node").with_tcti(proxy.tcti()).with_options(&["--deadline", "3"]);
    proxy.answer_always(ACTIVATE_CREDENTIAL, LOCKOUT);
    let interval = property(&mut bench.tpm(), PropertyTag::LockoutInterval);
    let said = does_not_attest(
        &node,
        &[
            "activating the credential failed: the TPM is in dictionary-attack lockout (TPM_RC_LOCKOUT, 0x921; 0 failed authorizations, 3 lock it) [tpm-lockout]",
            &format!("leave this machine on and attest again after {interval} s"),
            "`tpm2_dictionarylockout --clear-lockout`",
            "do not clear the TPM",
        ],
    );
    assert!(!said.contains("firmware setup"), "{said}");
}

#[test]
fn attack_57_a_tpm_in_lockout_attests() {
    let bench = Bench::new();
    let node = |ek: &str| node(&bench, ek).with_options(&["--ek", ek]);
    attests(&node("rsa"));
    attests(&node("ecc"));
    let folder = bench.folder.path();
    locks(&bench.server, folder);
    let right = unseal(&bench.server, folder, "right");
    let refused = String::from_utf8_lossy(&right.stderr).into_owned();
    assert!(!right.status.success() && refused.contains("0x921"), "{refused}");
    // A key without noDA, as one would be that signs by a password of its own.
    let mut tpm = bench.tpm();
    let (key, _) = signing_key(&mut tpm, true, HashingAlgorithm::Sha256);
    assert_eq!(quotes(&mut tpm, key), Err(Some(Tss2ResponseCodeKind::Lockout)));
    drop(tpm);
    attests(&node("rsa"));
    attests(&node("ecc"));
    // As the documents and messages say.
    let cleared = tool(&bench.server, "tpm2_dictionarylockout", &["--clear-lockout"], folder);
    assert!(cleared.status.success(), "{}", String::from_utf8_lossy(&cleared.stderr));
    assert!(unseal(&bench.server, folder, "right").status.success());
}

#[test]
fn attack_57_power_cuts_after_attesting_do_not_lock_the_tpm() {
    let bench = Bench::new();
    let node = |ek: &str| node(&bench, ek).with_options(&["--ek", ek]);
    let restart = || {
        bench.server.reset().unwrap();
        let mut tpm = bench.tpm();
        tpm.context().startup(StartupType::Clear).unwrap();
        property(&mut tpm, PropertyTag::LockoutCounter)
    };
    for round in 0..=TRIES {
        attests(&node("rsa"));
        attests(&node("ecc"));
        assert_eq!(restart(), 0, "{round}");
    }
    attests(&node("rsa"));
    // The same with a key that has no noDA: each use before a power cut is a failed authorization.
    for round in 1..=TRIES {
        let mut tpm = bench.tpm();
        let (key, _) = signing_key(&mut tpm, true, HashingAlgorithm::Sha256);
        assert_eq!(quotes(&mut tpm, key), Ok(()));
        drop(tpm);
        assert_eq!(usize::try_from(restart()).unwrap(), round);
    }
    let mut tpm = bench.tpm();
    let (key, _) = signing_key(&mut tpm, true, HashingAlgorithm::Sha256);
    assert_eq!(quotes(&mut tpm, key), Err(Some(Tss2ResponseCodeKind::Lockout)));
    drop(tpm);
    attests(&node("rsa"));
    attests(&node("ecc"));
}

fn property(tpm: &mut TpmDevice, tag: PropertyTag) -> u32 {
    let (data, _) = tpm
        .context()
        .get_capability(CapabilityType::TpmProperties, u32::from(tag), 1)
        .unwrap();
    let CapabilityData::TpmProperties(properties) = data else {
        panic!("{data:?}")
    };
    properties.find(tag).unwrap().value()
}

/// Quotes with a key by its empty password. Fails with the TPM's response code.
fn quotes(tpm: &mut TpmDevice, key: KeyHandle) -> Result<(), Option<Tss2ResponseCodeKind>> {
    let selection = PcrSelectionListBuilder::new()
        .with_selection(HashingAlgorithm::Sha256, &[PcrSlot::Slot7])
        .build()
        .unwrap();
    let quoted = with_password(tpm, |context| {
        context.quote(key, Default::default(), SignatureScheme::Null, selection)
    });
    quoted.map(|_| ()).map_err(|error| match error {
        tss_esapi::Error::Tss2Error(code) => code.kind(),
        tss_esapi::Error::WrapperError(_) => None,
    })
}

fn tool(tpm: &TpmServer, tool: &str, arguments: &[&str], folder: &Path) -> Output {
    Command::new(tool)
        .args(arguments)
        .current_dir(folder)
        .env("TPM2TOOLS_TCTI", tpm.tcti())
        .output()
        .unwrap()
}

/// Puts the TPM into lockout by somebody's wrong PIN for a disk, as often as the TPM allows.
pub fn locks(tpm: &TpmServer, folder: &Path) {
    seal(tpm, folder);
    for _ in 0..TRIES {
        assert!(!unseal(tpm, folder, "wrong").status.success());
    }
}

/// Seals a secret to a PIN, like disk encryption.
fn seal(tpm: &TpmServer, folder: &Path) {
    std::fs::write(folder.join("secret"), "secret").unwrap();
    for (name, arguments) in [
        ("tpm2_createprimary", &["-Q", "-C", "o", "-c", "parent"][..]),
        (
            "tpm2_create",
            &["-Q", "-C", "parent", "-i", "secret", "-p", "right", "-c", "sealed"],
        ),
    ] {
        let output = tool(tpm, name, arguments, folder);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        flush(tpm, folder);
    }
}

fn unseal(tpm: &TpmServer, folder: &Path, pin: &str) -> Output {
    let output = tool(tpm, "tpm2_unseal", &["-c", "sealed", "-p", pin], folder);
    flush(tpm, folder);
    output
}

/// Flushes the objects that a tool has left in the TPM, which has no resource manager.
fn flush(tpm: &TpmServer, folder: &Path) {
    assert!(tool(tpm, "tpm2_flushcontext", &["-t"], folder).status.success());
}
