//! `policy propose` for boots that were recorded from VMs, by the real program: the proposal accepts all trusted boots, and none that were
//! refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use attest::protocol::HexDigest;
use attest::{HashAlg, SpkiSha256};

use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use crate::support::node::Node;
use crate::support::{Answer, Gateway, POOL};

/// Event log and PCRs of a boot.
#[derive(Clone)]
struct Boot {
    log: Vec<u8>,
    pcrs: BTreeMap<u8, HexDigest>,
}

impl Boot {
    /// Returns the fixture of attest with this name.
    fn recorded(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../attest/tests/fixtures/boots");
        let pcrs = fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let mut pcrs: BTreeMap<HashAlg, BTreeMap<u8, HexDigest>> = serde_json::from_str(&pcrs).unwrap();
        Self {
            log: fs::read(folder.join(format!("{name}.log"))).unwrap(),
            pcrs: pcrs.remove(&HashAlg::Sha256).unwrap(),
        }
    }

    fn from_log(log: &LogBuilder) -> Self {
        Self {
            log: log.build(),
            pcrs: log.pcrs(HashAlg::Sha256),
        }
    }
}

const UKI: &str = "systemd-boot-252-secure-boot";
const QUOTED: [u8; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14];

/// Gateway with an observing pool that names all PCRs without requirements, and its machines.
struct Fleet {
    gateway: Gateway,
    nodes: Vec<Node>,
}

impl Fleet {
    fn new(machines: usize) -> Self {
        let mut gateway = Gateway::init();
        gateway.edit_pool(POOL, "[grants]\n", "observe = true\n\n[grants]\n");
        let named =
            "\"0-7\" = \"not checked\"\n# Of the loader, and of what it starts.\n\"8-9\" = \"not checked\"\n\"11-14\" = \"not checked\"";
        gateway.edit_pool(POOL, "\"0-7\" = \"not checked\"", named);
        gateway.run();
        let nodes: Vec<Node> = (0..machines).map(|_| Node::new()).collect();
        for (number, node) in nodes.iter().enumerate() {
            gateway.command(&["ek", "add", &node.ek(), "--name", &format!("worker-{number}")]);
        }
        Self { gateway, nodes }
    }

    async fn boots(&mut self, number: usize, boot: &Boot) -> Answer {
        let key = SpkiSha256::from_certificate(&self.gateway.certificate()).unwrap();
        let (client, url) = (self.gateway.client.clone(), self.gateway.url(""));
        let node = &mut self.nodes[number];
        let quoted = boot.pcrs.iter().filter(|(pcr, _)| QUOTED.contains(pcr));
        node.quotes(&quoted.map(|(pcr, value)| (*pcr, value.clone())).collect());
        node.has_booted(boot.log.clone(), &boot.pcrs);
        let challenged = Answer::send(node.challenge(&client, &url)).await;
        assert_eq!(challenged.status, 200, "{}", String::from_utf8_lossy(&challenged.body));
        let evidence = node.evidence(&challenged, &key);
        Answer::send(Node::send(&client, &url, &evidence)).await
    }

    fn command_output(&self, arguments: &[&str], succeeds: bool) -> String {
        let output = self.gateway.try_command(arguments);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.success(), succeeds, "{arguments:?}: {said}");
        said
    }

    /// Returns the proposed policy in words, and its files in a folder of this name.
    fn proposed(&self, name: &str, more: &[&str]) -> (String, Proposed) {
        let out = self.gateway.path(name);
        let words = self.command_output(&[&["policy", "propose", POOL, "--out", out.to_str().unwrap()], more].concat(), true);
        let files = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path());
        let set = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
        let set = set.map(|file| file.display().to_string()).next();
        let file = out.join("pool.toml").display().to_string();
        (words, Proposed { file, set })
    }

    /// Returns the results that the machines would have under the proposal.
    fn simulated(&self, proposed: &Proposed, succeeds: bool) -> String {
        let with = proposed.set.iter().flat_map(|set| ["--with", set]);
        let arguments: Vec<&str> = ["policy", "simulate", POOL, &proposed.file].into_iter().chain(with).collect();
        self.command_output(&arguments, succeeds)
    }

    /// Makes the proposal the pool's policy, and the pool strict.
    fn adopt(&self, proposed: &Proposed) {
        let folder = self.gateway.path(&format!("pools/{POOL}"));
        if let Some(set) = &proposed.set {
            fs::create_dir_all(folder.join("reference-values")).unwrap();
            fs::copy(set, folder.join("reference-values/proposed.json")).unwrap();
        }
        let text = fs::read_to_string(&proposed.file).unwrap().replace("observe = true\n", "");
        let before = self.gateway.how_often(is_served);
        fs::write(folder.join("pool.toml"), text).unwrap();
        self.gateway.lines(before + 1, is_served);
        self.command_output(&["check"], true);
    }
}

fn is_served(line: &str) -> bool {
    line.contains("pool worker: serving a new state")
}

struct Proposed {
    file: String,
    set: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn proposes_strict_rules_for_identical_boots() {
    let mut fleet = Fleet::new(3);
    let (uki, other) = (Boot::recorded(UKI), Boot::recorded("grub-2.12"));
    for number in 0..3 {
        assert_eq!(fleet.boots(number, &uki).await.status, 200);
    }
    let (words, proposed) = fleet.proposed("first", &[]);
    assert!(words.starts_with("From the boots of 3 machines.\n"), "{words}");
    for line in [
        "+boot = [\"secure-boot\", \"authorities\", \"images\", \"drivers\", ",
        "+event_log = \"required\"",
        "+only_while_booting = true",
        " # Of the loader, and of what it starts.",
        "+[reference_values]",
        "+folder = \"reference-values\"",
        "+++ ",
    ] {
        assert!(words.contains(line), "{line} is not in {words}");
    }
    assert!(words.contains("\"proposed\": {") && words.contains("\"machines\": 3"), "{words}");
    // A rule that would hold of nothing is not there: this machine has no list of revoked images.
    assert!(words.contains("tpm: boot: dbx") && !words.contains("\"dbx\""), "{words}");
    let all = "3 machines: 3 would be accepted (0 of them were refused), 0 refused (0 of them were trusted)\n";
    assert!(fleet.simulated(&proposed, true).contains(all));
    // Nothing was changed by that.
    assert!(!fleet.gateway.path("pools/worker/reference-values").exists());

    fleet.adopt(&proposed);
    assert_eq!(fleet.boots(0, &uki).await.status, 200);
    let refused = fleet.boots(1, &other).await;
    assert_eq!(refused.status, 403, "{}", String::from_utf8_lossy(&refused.body));
    // What was refused widens nothing: by what is trusted nothing is to be changed.
    let (again, _) = fleet.proposed("second", &[]);
    assert!(again.contains("No rule of pool.toml would change."), "{again}");
    assert!(!again.contains(&other.pcrs[&4].to_string()) && !again.contains("+++"), "{again}");
    // Whole PCRs, too, if that is asked for.
    let (whole, more) = fleet.proposed("third", &["--pcrs"]);
    assert!(whole.contains(&uki.pcrs[&4].to_string()), "{whole}");
    let zero = "0".repeat(64);
    assert!(
        uki.pcrs
            .iter()
            .any(|(pcr, value)| QUOTED.contains(pcr) && value.to_string() == zero)
    );
    assert!(
        whole.contains("all zero: nothing was measured into it") && !whole.contains(&zero),
        "{whole}"
    );
    assert!(fleet.simulated(&more, true).contains("1 refused (0 of them were trusted)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proposal_names_a_differing_machine() {
    let mut fleet = Fleet::new(4);
    let (uki, other) = (Boot::recorded(UKI), Boot::recorded("grub-2.12"));
    for number in 0..3 {
        assert_eq!(fleet.boots(number, &uki).await.status, 200);
    }
    assert_eq!(fleet.boots(3, &other).await.status, 200);
    let (words, proposed) = fleet.proposed("all", &[]);
    let row = |words: &str, parts: &[&str]| words.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    // No rule that it does not keep, and why; and what is its own among what is accepted.
    assert!(
        row(&words, &["tpm: boot: secure-boot", " 1 ", "secure-boot-off", "worker-3"]),
        "{words}"
    );
    assert!(
        row(&words, &["tpm: PCR 7", "1 of 4", &other.pcrs[&7].to_string(), "worker-3"]),
        "{words}"
    );
    assert!(row(&words, &["tpm: boot: images", "1 of 4", "worker-3"]), "{words}");
    let all = "4 machines: 4 would be accepted (0 of them were refused), 0 refused (0 of them were trusted)\n";
    assert!(fleet.simulated(&proposed, true).contains(all));

    // Without it: its values are not accepted, by whichever way it is left out.
    for (name, more) in [("least", ["--least", "2"]), ("without", ["--without", "worker-3"])] {
        let (words, proposed) = fleet.proposed(name, &more);
        let set = fs::read_to_string(proposed.set.as_ref().unwrap()).unwrap();
        assert!(
            !set.contains(&other.pcrs[&7].to_string()) && set.contains(&uki.pcrs[&7].to_string()),
            "{set}"
        );
        assert!(words.contains("+boot = [\"secure-boot\", \"authorities\", \"images\""), "{words}");
        assert_eq!(words.contains("left out, fewer than 2 machines"), name == "least", "{words}");
        let simulated = fleet.simulated(&proposed, false);
        assert!(
            simulated.contains("3 would be accepted") && simulated.contains("1 refused (1 of them were trusted)"),
            "{simulated}"
        );
        assert!(simulated.contains("worker-3"), "{simulated}");
    }
}

/// Measurements that differ on each machine do not become rules, and the counts show it.
#[tokio::test(flavor = "multi_thread")]
async fn proposal_omits_measurements_that_differ_per_machine() {
    let mut fleet = Fleet::new(4);
    for number in 0..4 {
        let own = format!("a disk of machine {number}");
        let boot = Boot::from_log(&LogBuilder::typical(&[SHA256]).event(5, EV_IPL, own.as_bytes()));
        assert_eq!(fleet.boots(number, &boot).await.status, 200);
    }
    let (words, proposed) = fleet.proposed("own", &[]);
    let row = words.lines().find(|line| line.starts_with("tpm: PCR 5 "));
    assert!(
        row.is_some_and(|row| row.contains("4 different values on 4 machines") && row.contains("worker-0")),
        "{words}"
    );
    assert!(!words.lines().any(|line| line.starts_with("tpm: PCR 0 ")), "{words}");
    assert!(words.contains("+\"4-5\" = \"not checked\"\n"), "{words}");
    assert!(fleet.simulated(&proposed, true).contains("4 would be accepted"));
    // A file that is there is not written over, and a pool of which nothing is known has no proposal.
    let out = fleet.gateway.path("own");
    let again = fleet.command_output(&["policy", "propose", POOL, "--out", out.to_str().unwrap()], false);
    assert!(again.contains("exists already"), "{again}");
    let nothing = fleet.command_output(&["policy", "propose", "infra"], false);
    assert!(nothing.contains("no evidence of pool infra was trusted"), "{nothing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_without_machines_fails() {
    let mut gateway = Gateway::init();
    gateway.run();
    gateway.config("/config/worker", &[]).await;
    let output = gateway.try_command(&["policy", "simulate", POOL]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("no evidence of this pool's machines"),
        "{said}"
    );
}
