//! `attest-gateway ek-roots`: the import of public bundles, and the list.

mod bundle;
mod odd_bundles;
mod records;

use std::fs;
use std::path::Path;
use std::process::Command;

use rcgen::{CertificateParams, IsCa, KeyPair, RsaKeySize};
use serde_json::Value;

use crate::support::Gateway;
use crate::vectors::vectors;
use bundle::{KEY, RsaPublicHalf, ca, ca_until, contents, fingerprint, folder, issued, pem, root, with_sha1};

/// Runs an import. Returns whether it succeeded, and its output.
fn import(gateway: &Gateway, bundle: &Path, more: &[&str]) -> (bool, String) {
    let output = gateway.try_command(&[&["ek-roots", "import", bundle.to_str().unwrap()], more].concat());
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), said)
}

fn report(gateway: &Gateway, bundle: &Path, more: &[&str]) -> Value {
    let output = gateway.try_command(&[&["ek-roots", "import", bundle.to_str().unwrap(), "--output", "json"], more].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn count(report: &Value, what: &str) -> usize {
    report[what].as_array().unwrap().len()
}

#[test]
fn refuses_each_unusable_certificate_with_its_reason() {
    let gateway = Gateway::init();
    let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let (good, by_rsa) = (ca("A maker", "Root"), ca("A maker", "RSA Root"));
    let intermediate = ca("A maker", "Intermediate");
    let mut server = CertificateParams::new(["localhost".to_owned()]).unwrap();
    server.is_ca = IsCa::NoCa;
    let below = |params: &CertificateParams| issued(params, &*KEY, (&good, &KEY));
    let sha1 = with_sha1(issued(&ca("A maker", "SHA-1"), &*KEY, (&by_rsa, &rsa)));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("expired.der", root(&ca_until("A maker", "Expired", -1)), "expired on "),
        ("sha1.der", sha1, "1.2.840.113549.1.1.5 (SHA-1), which is not accepted"),
        (
            "weak.der",
            issued(&ca("A maker", "Weak"), &RsaPublicHalf::new(1024), (&good, &KEY)),
            "its key is RSA-1024",
        ),
        ("leaf.der", below(&server), "not the certificate of a CA"),
        (
            "orphan.der",
            issued(&intermediate, &*KEY, (&ca("A maker", "Hidden"), &KEY)),
            "is not configured; add that issuer's certificate",
        ),
        (
            "text.pem",
            b"no certificate here -----BEGIN nothing".to_vec(),
            "no certificate in it",
        ),
        ("empty.crt", Vec::new(), "neither PEM nor DER"),
        ("words.crt", b"0 is how this text begins\n".to_vec(), "neither PEM nor DER"),
        (
            "broken.pem",
            b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n".to_vec(),
            "not PEM: ",
        ),
        ("cut.der", root(&good)[..100].to_vec(), "not an X.509 certificate"),
        ("more.der", [root(&good), vec![1]].concat(), "bytes after its end"),
    ];
    let mut files: Vec<(&str, &[u8])> = cases.iter().map(|(name, content, _)| (*name, content.as_slice())).collect();
    let (usable, rsa_root) = (pem(&root(&good)), by_rsa.self_signed(&rsa).unwrap().pem());
    let chain = pem(&below(&intermediate));
    files.extend([
        ("good.pem", usable.as_bytes()),
        ("rsa.pem", rsa_root.as_bytes()),
        ("chain.pem", chain.as_bytes()),
    ]);
    let bundle = folder(gateway.path("bundle"), &files);
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    assert!(done, "{said}");
    for (file, _, reason) in &cases {
        let line = said
            .lines()
            .find(|line| line.contains(&format!(" {file}")))
            .unwrap_or_else(|| panic!("{file}: {said}"));
        assert!(line.trim_start().starts_with("! refused") && line.contains(reason), "{line}");
    }
    assert!(
        said.contains(&format!(
            "3 added, 0 already there, 0 no longer in the bundle, {} refused",
            cases.len()
        )),
        "{said}"
    );
    // Nothing that was refused is in the folder: `check` complains of no file.
    let checked = gateway.command(&["check"]);
    assert!(!checked.contains("ignored a file of the EK roots"), "{checked}");
    assert!(checked.contains("3 certificates, which endorse TPMs of A maker (3)"), "{checked}");
    // Alone they are no bundle.
    for (file, _, _) in cases.iter().filter(|(file, _, _)| *file != "sha1.der") {
        let (done, said) = import(&gateway, &bundle.join(file), &["--yes"]);
        assert!(!done && said.contains("nothing to import"), "{file}: {said}");
    }
}

#[test]
fn changes_nothing_without_yes() {
    let gateway = Gateway::init();
    fs::write(gateway.path("ek-roots/by-hand.der"), root(&ca("Own", "By hand"))).unwrap();
    let before = contents(&gateway.path("ek-roots"));
    let bundle = folder(
        gateway.path("tpm_cert_store"),
        &[("a.pem", pem(&root(&ca("A maker", "A"))).as_bytes())],
    );
    for more in [&[][..], &["--dry-run"], &["--yes", "--dry-run"], &["--output", "json"]] {
        let (done, said) = import(&gateway, &bundle, more);
        assert!(done, "{said}");
        assert_eq!(contents(&gateway.path("ek-roots")), before, "{more:?}");
    }
    let (_, said) = import(&gateway, &bundle, &[]);
    let line = said.lines().last().unwrap();
    assert!(
        line.contains("nothing was changed; to import: `attest-gateway") && line.contains(" --yes`"),
        "{line}"
    );
    let asked = report(&gateway, &bundle, &[]);
    assert_eq!((count(&asked, "added"), &asked["imported_into"]), (1, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_recorded_used_at_once_and_idempotent() {
    let gateway = Gateway::start();
    let (a, b, c) = (root(&ca("A maker", "A")), root(&ca("Maker B", "B")), root(&ca("A maker", "C")));
    let bundle = gateway.path("tpm-ca-certificates.pem");
    fs::write(
        &bundle,
        format!(
            "##\n## tpm-ca-certificates.pem\n##\n\n#\n# Owner: A\n#\n{}\n#\n# Owner: B\n#\n{}",
            pem(&a),
            pem(&b)
        ),
    )
    .unwrap();
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    assert!(done && said.contains("2 added, 0 already there"), "{said}");
    for (maker, der) in [("A maker:", &a), ("Maker B:", &b)] {
        assert!(
            said.contains(maker) && said.contains(&format!("+ root         {}", fingerprint(der))),
            "{said}"
        );
    }
    gateway.line(|line| line.contains("reloaded the EK roots: 2 certificates"));
    let act = gateway.wait_for_acts(1, "ek-roots.import").remove(0);
    let (thing, digest) = (&act["admin"]["things"][0], sha256sum(&bundle));
    assert_eq!(thing["kind"], "file");
    let file = thing["id"].as_str().unwrap();
    assert_eq!(file, said.lines().last().unwrap().strip_prefix("imported into ").unwrap());
    let after = &thing["after"];
    assert_eq!(
        (after["bundle"].as_str(), after["bundle_sha256"].as_str()),
        (Some("tpm-ca-certificates.pem"), Some(digest.as_str()))
    );
    assert_eq!(
        (&after["certificates"], &after["makers"]["A maker"], &after["makers"]["Maker B"]),
        (&2.into(), &1.into(), &1.into())
    );

    // The list has the origin of each.
    let list: Vec<Value> = serde_json::from_str(&gateway.command(&["ek-roots", "list", "--output", "json"])).unwrap();
    assert_eq!(list.len(), 2);
    for (row, (maker, der)) in list.iter().zip([("A maker", &a), ("Maker B", &b)]) {
        assert_eq!((row["maker"].as_str(), row["role"].as_str()), (Some(maker), Some("root")), "{row}");
        assert_eq!(
            (row["sha-256"].as_str(), row["bundle_sha-256"].as_str()),
            (Some(fingerprint(der).as_str()), Some(digest.as_str()))
        );
        assert_eq!(
            (row["bundle"].as_str(), &row["imported"]),
            (Some("tpm-ca-certificates.pem"), &after["imported"])
        );
    }

    // Again: nothing to do, and no act.
    let before = contents(&gateway.path("ek-roots"));
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    assert!(
        done && said.contains("0 added, 2 already there") && said.ends_with("nothing to import\n"),
        "{said}"
    );
    assert_eq!(contents(&gateway.path("ek-roots")), before);

    // The next bundle of that name: what it lacks stays, and is named.
    fs::write(&bundle, pem(&b) + &pem(&c)).unwrap();
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    assert!(
        done && said.contains("1 added, 1 already there, 1 no longer in the bundle, 0 refused"),
        "{said}"
    );
    let line = said.lines().find(|line| line.contains("  - root")).unwrap();
    assert!(
        line.contains(&fingerprint(&a)) && line.contains("; it stays in imported-tpm-ca-certificates-pem-"),
        "{line}"
    );
    gateway.line(|line| line.contains("reloaded the EK roots: 3 certificates"));
    assert_eq!(gateway.wait_for_acts(2, "ek-roots.import").len(), 2);
    // Not from another bundle, which has nothing to do with it.
    let other = folder(gateway.path("other"), &[("a.pem", pem(&c).as_bytes())]);
    assert_eq!(count(&report(&gateway, &other, &[]), "no_longer_in_bundle"), 0);

    // A CA that the administrator deleted comes back, under a free name.
    let names: Vec<String> = contents(&gateway.path("ek-roots")).into_iter().map(|(name, _)| name).collect();
    let last = names.iter().find(|name| {
        fs::read_to_string(gateway.path("ek-roots").join(name))
            .unwrap()
            .contains(&fingerprint(&c))
    });
    fs::write(gateway.path("ek-roots").join(last.unwrap()), "").unwrap();
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    assert!(
        done && said.contains("1 added, 1 already there") && said.ends_with("-2.pem\n"),
        "{said}"
    );
}

fn sha256sum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// `check` names CAs that have expired or expire soon, with their manufacturers; `ek-roots list` has files that nobody imported.
#[test]
fn check_warns_of_expiring_ek_roots() {
    let gateway = Gateway::init();
    for (file, name, days) in [("old.der", "Old", -2), ("soon.der", "Soon", 30), ("long.der", "Long", 90)] {
        fs::write(gateway.path("ek-roots").join(file), root(&ca_until("A maker", name, days))).unwrap();
    }
    let checked = gateway.command(&["check"]);
    let warned: Vec<&str> = checked
        .lines()
        .filter(|line| line.starts_with("warning") && line.contains("EK root of A maker"))
        .collect();
    assert_eq!(warned.len(), 2, "{checked}");
    assert!(
        warned[0].contains("old.der") && warned[0].contains("expired on") && warned[0].contains("CN=Old"),
        "{checked}"
    );
    assert!(
        warned[1].contains("soon.der") && warned[1].contains("expires on") && warned[1].contains("CN=Soon"),
        "{checked}"
    );
    let list: Vec<Value> = serde_json::from_str(&gateway.command(&["ek-roots", "list", "--output", "json"])).unwrap();
    assert!(list.len() == 3 && list.iter().all(|row| row["bundle"].is_null()), "{list:?}");
}

/// Real bundles, if they are there: all of keylime's store is added or refused with a reason, and nothing of it is ignored later.
#[test]
fn imports_public_bundles() {
    let Some(vectors) = vectors() else { return };
    let gateway = Gateway::init();
    let bundle = vectors.join("ek-roots");
    let (done, said) = import(&gateway, &bundle, &["--yes"]);
    assert!(done, "{said}");
    for maker in [
        "Infineon Technologies AG:",
        "STMicroelectronics NV:",
        "Nuvoton Technology Corporation:",
        "Intel Corporation:",
    ] {
        assert!(said.contains(maker), "{maker}: {said}");
    }
    let again = report(&gateway, &bundle, &["--yes"]);
    assert_eq!(count(&again, "added"), 0);
    assert!(count(&again, "present") > 25 && again["imported_into"].is_null(), "{again}");
    let checked = gateway.command(&["check"]);
    assert!(!checked.contains("ignored a file of the EK roots"), "{checked}");
}
