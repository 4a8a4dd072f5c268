//! Records of decisions by the CAs of manufacturers: one file holds all of them, and auditors read it.

use std::fs;
use std::path::PathBuf;

use attest_audit::replay::{ReplayError, replay};
use attest_log::Blobs;
use serde_json::{Value, json};

use super::bundle::{fingerprint, many};
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Case, Gateway, next_boot, tpm};

/// Limit for one boot's evidence in the log, in bytes.
const BASIS_LIMIT_BYTES: usize = 7 * 1024;

/// A gateway whose workers may have any TPM of a manufacturer, and a machine of such a manufacturer.
struct Site {
    gateway: Gateway,
    machine: Case,
}

impl Site {
    /// Starts the gateway with these CAs.
    fn trusting(files: &[(&str, &[u8])], maker: &Maker) -> Self {
        let mut gateway = Gateway::init();
        super::folder(gateway.path("ek-roots"), files);
        let any = "endorsement = \"any-tpm-of-a-trusted-maker\"";
        gateway.edit_pool("worker", "endorsement = \"allowlist\"", any);
        gateway.run();
        let (area, certificate) = maker.ek();
        let machine = tpm().but(|case| {
            case.ek_area = area;
            case.ek_certificate = Some(certificate);
        });
        Self { gateway, machine }
    }

    /// Attests the machine, and returns the record of it.
    async fn boot(&self) -> Value {
        let boot = next_boot(&self.machine).but(|boot| boot.ek_certificate.clone_from(&self.machine.ek_certificate));
        drop(self.gateway.attest(boot, None).await.ticket());
        self.gateway.records().pop().unwrap()
    }

    fn file(&self, record: &Value) -> PathBuf {
        let name = record["basis"]["ek_roots"].as_str().unwrap();
        self.gateway.path("state/evidence").join(format!("{name}.gz"))
    }

    fn blobs(&self) -> Blobs {
        Blobs::open(&self.gateway.path("state/evidence")).unwrap()
    }

    /// Returns whether an audit of the log finds no problem, and its output.
    fn audit(&self) -> (bool, String) {
        let output = self.gateway.try_command(&["log", "audit"]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_is_as_short_with_thousands_of_ek_roots_as_with_one() {
    let maker = Maker::new("A maker of TPMs");
    let site = Site::trusting(&[("maker.der", &maker.root())], &maker);
    let with_one = site.boot().await;
    // Whole at once, as an import brings them.
    let folder = site.gateway.path("ek-roots");
    fs::write(folder.join(".part"), many(1999)).unwrap();
    fs::rename(folder.join(".part"), folder.join("others.pem")).unwrap();
    site.gateway.line(|line| line.contains("reloaded the EK roots: 2000 certificates"));
    let with_many = site.boot().await;
    assert_ne!(with_one["basis"]["ek_roots"], with_many["basis"]["ek_roots"]);
    // Signatures and nonces have no fixed length in JSON.
    let length = |record: &Value| {
        let mut basis = record["basis"].as_object().unwrap().clone();
        assert!(Value::from(basis.clone()).to_string().len() < BASIS_LIMIT_BYTES, "{record}");
        assert!(basis.remove("evidence").is_some() && basis.remove("challenge").is_some());
        Value::from(basis).to_string().len()
    };
    assert_eq!(length(&with_one), length(&with_many));

    let (sound, said) = site.audit();
    assert!(sound && said.contains("same"), "{said}");
    for record in [&with_one, &with_many] {
        let result = replay(&record.to_string(), &site.blobs()).unwrap();
        assert_eq!(serde_json::to_value(result.claims()).unwrap(), record["claims"]);
    }
    let file = site.file(&with_many);
    let good = fs::read(&file).unwrap();
    let other = fs::read(site.file(&with_one)).unwrap();
    for (bad, problem) in [
        (Some(other.as_slice()), "does not have the SHA-256 of its name"),
        (Some(&good[..good.len() / 2]), "gz: "),
        (Some(b"no gzip"), "gz: "),
        (None, "No such file"),
    ] {
        match bad {
            Some(bad) => fs::write(&file, bad).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let (sound, said) = site.audit();
        assert!(!sound && said.contains("DIFFERENT") && said.contains(problem), "{problem}: {said}");
    }
    fs::write(&file, &good).unwrap();
    assert!(site.audit().0);
}

/// Also of a file that has the digest in the record, as one has who writes both.
#[tokio::test(flavor = "multi_thread")]
async fn replay_reads_the_recorded_file_of_ek_roots_whole_or_not_at_all() {
    let (maker, above) = (Maker::new("A maker of TPMs"), Maker::new("A CA above it"));
    let root = maker.root_by(&above);
    // What cannot be used is not recorded.
    let files: [(&str, &[u8]); 3] = [
        ("maker.root.der", &root),
        ("broken.root.der", b"no certificate"),
        ("orphan.der", &Maker::new("Another").root_by(&above)),
    ];
    let site = Site::trusting(&files, &maker);
    let record = site.boot().await;
    let blobs = site.blobs();
    assert_eq!(record["basis"]["ek_named_roots"], json!([fingerprint(&root)]));
    let name = record["basis"]["ek_roots"].as_str().unwrap();
    let content = String::from_utf8(blobs.get(name).unwrap()).unwrap();
    assert_eq!(content, super::pem(&root));
    replay(&record.to_string(), &blobs).unwrap();
    let replayed = |change: &dyn Fn(&mut Value)| {
        let mut record = record.clone();
        change(&mut record["basis"]);
        match replay(&record.to_string(), &blobs) {
            Err(ReplayError::Reject(reject)) => reject.code().to_owned(),
            other => other.unwrap_err().to_string(),
        }
    };
    let with_file = |content: &str| {
        let name = Blobs::name(content.as_bytes());
        blobs.put(&name, content.as_bytes()).unwrap();
        replayed(&|basis| basis["ek_roots"] = json!(name))
    };
    let unusable = "the recorded file of CAs of TPM manufacturers cannot be used: ";
    for altered in [
        &content[..content.len() - 1],
        &content[..content.len() - 30],
        &content[1..],
        &format!("{content}\n"),
        &format!("a comment\n{content}"),
        &content.replace('\n', "\r\n"),
        &format!("{content}-----BEGIN CERTIFICATE-----\n"),
    ] {
        let said = with_file(altered);
        assert!(said.starts_with(unusable), "{said}: {altered}");
    }
    assert!(
        with_file(&super::pem(&Maker::new("A third one").root())).contains(&format!("it lacks the recorded root {}", fingerprint(&root)))
    );
    assert_eq!(
        replayed(&|basis| {
            basis["ek_roots"] = Value::Null;
            basis["ek_named_roots"] = json!([]);
        }),
        "ek-not-endorsed"
    );
    assert_eq!(replayed(&|basis| basis["ek_named_roots"] = json!([])), "ek-not-endorsed");
}
