//! Machines with real TPMs that have booted software without a reference value. `attest-node` waits, says on its console for what, and goes
//! on after an administrator's approval.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use data_encoding::HEXLOWER;
use swtpm_tests::{EkAuthority, POOL, Process, TestEndorsement, TestFolder, TestGateway, TestNode, TpmServer};
use tss_esapi::constants::StartupType;

/// Maximum wait for a message, longer than a node's pause, which is five to eight seconds here.
const LIMIT: Duration = Duration::from_secs(60);

/// TPM of a machine, and its `attest-node`.
struct Machine {
    _folder: TestFolder,
    tpm: TpmServer,
    node: TestNode,
}

impl Machine {
    fn new(gateway: &TestGateway, authority: &EkAuthority) -> Self {
        let folder = TestFolder::new().unwrap();
        let tpm = TpmServer::start(folder.path(), TestEndorsement::By(authority)).unwrap();
        let pointer = gateway.pointer_to("127.0.0.1", gateway.port(), None).unwrap();
        Self {
            node: TestNode::new(folder.path(), &tpm, &pointer).unwrap(),
            _folder: folder,
            tpm,
        }
    }

    /// Boots with this log: resets the TPM, and extends it like the log.
    fn boots(&self, log: &LogBuilder) {
        self.tpm.reset().unwrap();
        let mut tpm = attest_node::tpm::TpmDevice::open(&self.tpm.tcti()).unwrap();
        tpm.context().startup(StartupType::Clear).unwrap();
        drop(tpm);
        let of_event = |event: &crate::log_builder::BuiltEvent| {
            let (_, digest) = event.digests.iter().find(|(bank, _)| *bank == SHA256)?;
            Some(format!("{}:sha256={}", event.pcr, HEXLOWER.encode(digest)))
        };
        let extended = Command::new("tpm2_pcrextend")
            .args(["--tcti", &self.tpm.tcti()])
            .args(log.events.iter().filter_map(of_event))
            .output()
            .unwrap();
        assert!(extended.status.success(), "{}", String::from_utf8_lossy(&extended.stderr));
        self.node.has_log(Some(&log.build())).unwrap();
    }

    fn attests(&self) -> Process {
        self.node.begins().unwrap()
    }
}

/// Waits for success, with a ticket for Ignition.
fn attested(mut node: Process, machine: &Machine) {
    let status = node.wait(LIMIT).unwrap();
    assert!(status.success(), "{}", node.tail());
    assert!(
        fs::read_to_string(machine.node.written()).unwrap().contains("Bearer "),
        "{}",
        node.tail()
    );
}

#[test]
fn a_node_waits_for_approval_of_new_values() {
    let folder = TestFolder::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authority = EkAuthority::new(&path("manufacturer")).unwrap();
    let mut gateway = TestGateway::on_free_port(&path("gateway")).unwrap();
    gateway.trust(&authority).unwrap();
    gateway.start(None).unwrap();
    let machines = [(); 2].map(|()| Machine::new(&gateway, &authority));
    let known = LogBuilder::typical(&[SHA256]);
    machines[0].boots(&known);
    attested(machines[0].attests(), &machines[0]);

    // What it has booted is what may be booted from now on.
    let records = gateway.records().unwrap();
    let record = records.iter().rfind(|record| record.decision() == "evidence").unwrap();
    let identity = record.text("/identity").unwrap();
    let sets = gateway.folder().join("pools").join(POOL).join("reference-values");
    fs::create_dir_all(&sets).unwrap();
    let file = sets.join("known.json");
    gateway
        .auditor(&["reference-values", "record", identity, "--name", "known", "--to", text(&file)])
        .unwrap();
    gateway.edit_pool("\n[tpm]\n", "\n[tpm]\nboot = [\"images\"]\n").unwrap();
    gateway.edit_pool("\nmachines = 1\n", "\nmachines = 2\nwait_minutes = 1\n").unwrap();
    gateway
        .add_to_pool("\n[reference_values]\nfolder = \"reference-values\"\n")
        .unwrap();
    let served = |line: &str| line.contains("pool worker: serving a new state");
    gateway.process().unwrap().wait_line(LIMIT, served).unwrap();

    let updated = known.event(4, EV_IPL, b"another loader");
    let nodes = machines.each_ref().map(|machine| {
        machine.boots(&updated);
        let node = machine.attests();
        let asked = |line: &str| line.contains("tells this node to retry [answer-pending], because: PCR 4, boot loader or kernel: sha256 ");
        node.wait_line(LIMIT, asked).unwrap();
        node
    });
    gateway
        .process()
        .unwrap()
        .wait_line(LIMIT, |line| line.contains("pool worker: 2 machines wait for an answer"))
        .unwrap();
    // Ignition has not begun: it starts when this has ended, and would find nothing yet.
    assert!(machines.iter().all(|machine| !machine.node.written().exists()));
    let list = gateway.command(&["waiting", "list", "--for", POOL]).unwrap();
    let question = list.lines().nth(1).unwrap().split(' ').next().unwrap();
    gateway.command(&["waiting", "accept", question, "--set", "update.json"]).unwrap();
    for (node, machine) in nodes.into_iter().zip(&machines) {
        attested(node, machine);
    }
    let audit = gateway.audit(&[]).unwrap();
    assert!(audit.contains("boot-not-accepted") && !audit.contains("DIFFERENT"), "{audit}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
