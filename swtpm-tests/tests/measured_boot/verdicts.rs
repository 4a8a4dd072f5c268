//! Verdicts of a gateway about a booted machine. Its pools accept either exactly what the machine has booted, or the same with one
//! difference. The machine's TPM is the one that its firmware has measured into. `attest-node` attests outside of the VM: emulated, it
//! would take minutes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use attest::HashAlg;
use serde_json::{Value, json};
use swtpm_tests::firmware::SelfSignedKey;
use swtpm_tests::{EkAuthority, LogRecord, POOL, TestFolder, TestGateway, TestNode, WAITING};

use super::Booted;
use super::predicted::{Predicted, reference_values};

/// Maximum wait for a line, which is written in milliseconds; a loaded machine may need seconds.
const LINE_LIMIT: Duration = Duration::from_secs(60);
/// All PCRs that a rule may be about.
const QUOTED: &str = "\"0-12\" = \"not checked\"";

/// The gateway's words for a measurement that it does not accept.
pub const IMAGE: &str = "boot loader or kernel";
pub const SECTION: &str = "section of the unified kernel image";

/// Pool, and the machine's expected result there.
pub struct Case<'c> {
    pub pool: &'c str,
    /// Lines for the section `boot`.
    pub rules: &'c [&'c str],
    /// The file of reference values, if it has one.
    pub values: Option<Value>,
    pub expect: Expect,
}

pub enum Expect {
    Trusted,
    Refused {
        code: &'static str,
        /// Text in the node's console, the log and the record.
        said: String,
        /// Accepted generation, which the node does not learn.
        accepted: Option<&'static str>,
    },
}

/// A gateway that endorses the machine's TPM.
pub struct Judge {
    folder: TestFolder,
    gateway: TestGateway,
}

impl Judge {
    pub fn new(authority: &EkAuthority) -> Self {
        let folder = TestFolder::new().unwrap();
        let gateway = TestGateway::on_free_port(&folder.path().join("gateway")).unwrap();
        gateway.trust(authority).unwrap();
        Self { folder, gateway }
    }

    /// Returns a file of reference values by `reference-values predict`, with one generation of this name.
    pub fn predicted(&self, name: &str, arguments: &[(&str, &Path)], secure_boot: &str) -> Value {
        reference_values(secure_boot, arguments, Some(name))
    }

    fn add(&self, case: &Case<'_>) {
        let pools = self.gateway.folder().join("pools");
        let pool = pools.join(case.pool);
        swtpm_tests::run(Command::new("cp").arg("-r").args([&pools.join(POOL), &pool])).unwrap();
        accept(&pool, case.rules, case.values.as_ref());
    }

    /// Makes the machine attest to each of these pools.
    #[track_caller]
    pub fn judge(mut self, machine: &Booted, cases: &[Case<'_>]) {
        cases.iter().for_each(|case| self.add(case));
        self.gateway.start(None).unwrap();
        for case in cases {
            let console = self.attest(machine, case.pool);
            let records = self.gateway.records().unwrap();
            let record = records.iter().rfind(|record| record.decision() == "evidence").unwrap();
            case.expect.holds(case.pool, &console, record, &self.gateway);
        }
    }

    /// Makes a machine without Secure Boot attest to two pools: one accepts its boot whatever the keys, one also requires Secure Boot.
    #[track_caller]
    pub fn judge_without_secure_boot(self, machine: &Booted, values: Value, rules: &[&str]) {
        let with_secure_boot = [&["secure-boot"], rules].concat();
        let case = |pool, rules, expect| Case {
            pool,
            rules,
            values: Some(values.clone()),
            expect,
        };
        let off = Expect::Refused {
            code: "secure-boot-off",
            said: "secure-boot: Secure Boot is off".to_owned(),
            accepted: None,
        };
        self.judge(
            machine,
            &[case("any-key", rules, Expect::Trusted), case("secure-boot", &with_secure_boot, off)],
        );
    }

    /// Runs attest-node. Returns its output.
    fn attest(&self, machine: &Booted, pool: &str) -> String {
        let pointer = self.gateway.pointer_to("127.0.0.1", self.gateway.port(), None).unwrap();
        let pointer = pointer.replace(&format!("/config/{POOL}"), &format!("/config/{pool}"));
        let node = TestNode::new(self.folder.path(), &machine.tpm, &pointer).unwrap();
        // There is none in what did not get one from the firmware.
        node.has_log(machine.measured.log.as_deref()).unwrap();
        node.attests().unwrap().1
    }
}

/// Makes a pool of `init` require these rules of the boot, accept these values, and let no machine wait.
pub fn accept(pool: &Path, rules: &[&str], values: Option<&Value>) {
    let file = pool.join("pool.toml");
    let mut text = fs::read_to_string(&file).unwrap();
    for (from, to) in [
        ("#: boot = []", format!("boot = {rules:?}")),
        ("\"0-7\" = \"not checked\"", QUOTED.to_owned()),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, &to, 1);
    }
    for line in WAITING {
        text = text.replacen(&format!("\n{line}\n"), &format!("\n# {line}\n"), 1);
    }
    if let Some(values) = values {
        text.push_str("\n[reference_values]\nfolder = \"reference-values\"\n");
        fs::create_dir(pool.join("reference-values")).unwrap();
        fs::write(pool.join("reference-values/values.json"), values.to_string()).unwrap();
    }
    fs::write(file, text).unwrap();
}

impl Expect {
    /// Verifies the expected result of a machine in its console, in the decision's record, and in the gateway's own log.
    #[track_caller]
    pub fn holds(&self, pool: &str, console: &str, record: &LogRecord, gateway: &TestGateway) {
        let context = format!("{pool}: {console}\n{:#}", record.json());
        assert_eq!(record.text("/pool"), Some(pool), "{context}");
        let (code, said, accepted) = match self {
            Self::Trusted => {
                assert_eq!((record.verdict(), record.grant()), ("trusted", Some("full")), "{context}");
                assert!(console.contains("attest-node: attested as tpm:"), "{context}");
                return;
            }
            Self::Refused { code, said, accepted } => (code, said, accepted),
        };
        assert_eq!(
            (record.verdict(), record.code(), record.grant()),
            ("refused", Some(*code), None),
            "{context}"
        );
        for text in [console, record.reason()] {
            assert!(text.contains(said), "{said:?} is not in {text}\n{context}");
        }
        // Its line follows the answer. Quotation marks in a text are written with a backslash.
        let of_pool = format!(" pool={pool} ");
        let tells = |line: &str| {
            let line = line.replace("\\\"", "\"");
            line.contains(&of_pool) && line.contains(said) && accepted.is_none_or(|accepted| line.contains(accepted))
        };
        gateway.process().unwrap().wait_line(LINE_LIMIT, tells).unwrap();
        assert!(console.contains(&format!("[{code}]; next: ")), "{context}");
        if let Some(accepted) = *accepted {
            assert!(record.reason().contains(accepted), "{accepted:?}: {context}");
            assert!(!console.contains(accepted), "{accepted:?}: {context}");
        }
    }
}

/// Returns the file of reference values with its authorities replaced: by certificates, and by the SHA-256 of others.
pub fn signed_by(mut values: Value, certificates: &[&[u8]], digests_of_others: &[&str]) -> Value {
    let digests = certificates.iter().map(|certificate| sha256(certificate));
    let digests = digests.chain(digests_of_others.iter().map(|digest| (*digest).to_owned()));
    let authorities: Vec<_> = digests.map(|digest| json!({"digests": {"sha256": digest}})).collect();
    values["generations"][0]["values"]["authorities"] = json!(authorities);
    values
}

/// Returns the SHA-256 digest in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

/// Expects a refusal because of the event of this PCR that was predicted as `what` from the booted files. The gateway names it in these
/// words, and the accepted generation.
pub fn not_accepted(prediction: &Predicted, pcr: u8, what: &str, words: [&str; 2], accepted: &'static str) -> Expect {
    refused(pcr, prediction.event(pcr, what).digest(HashAlg::Sha256), words, accepted)
}

/// Expects a refusal because of this authority.
pub fn not_by(signer: &SelfSignedKey, accepted: &'static str) -> Expect {
    let words = ["certificate that authorised an image", " (\"CN=Tests db\")"];
    refused(7, &sha256(signer.certificate()), words, accepted)
}

fn refused(pcr: u8, digest: &str, [what, more]: [&str; 2], accepted: &'static str) -> Expect {
    Expect::Refused {
        code: "boot-not-accepted",
        said: format!("PCR {pcr}, {what}: sha256 {digest} is not accepted{more}"),
        accepted: Some(accepted),
    }
}
