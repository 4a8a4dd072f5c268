use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::support::soft_tpm::maker::Maker;
use crate::support::{Gateway, digest, next_boot, program, tpm};

/// Machines of an import: as many as an organisation has.
pub const MACHINES: usize = 10_000;

/// Returns a file with so many machines, each with a name.
pub fn many(count: usize) -> String {
    let rows = (1..=count).map(|number| {
        format!(
            "{number:064x},worker-{number},worker,\"rack {}, slot {}\"\n",
            number / 40,
            number % 40
        )
    });
    std::iter::once("ek,name,pools,note\n".to_owned()).chain(rows).collect()
}

/// Runs an import of a file in the gateway's folder.
pub fn import(gateway: &Gateway, text: &str, more: &[&str]) -> (bool, String) {
    let file = gateway.path("machines.csv");
    fs::write(&file, text).unwrap();
    let output = gateway.try_command(&[&["machines", "import", file.to_str().unwrap()], more].concat());
    (output.status.success(), said(&output))
}

fn said(Output { stdout, stderr, .. }: &Output) -> String {
    String::from_utf8([stdout.as_slice(), stderr].concat()).unwrap()
}

pub fn exported(gateway: &Gateway) -> String {
    gateway.command(&["machines", "export"])
}

/// Imports many machines, first with three wrong rows, and checks what the store and the log have of it.
pub fn all_or_nothing(gateway: &Gateway, transactions: impl Fn(u64) -> bool) {
    let whole = many(MACHINES);
    let wrong = whole
        .replace(",worker-17,", ",Worker_17,")
        .replace(",worker-4711,worker,", ",worker-4711,no-such-pool,")
        .replace(&format!("{:064x},worker-9999,", 9999), &format!("{:064x},worker-9999,", 9998));
    let header = exported(gateway);
    for more in [&[][..], &["--dry-run"]] {
        let (done, report) = import(gateway, &wrong, more);
        assert!(!done, "{report}");
        for (line, reason) in [
            (18, "is not a node name"),
            (4712, "there is no pool \"no-such-pool\""),
            (10_000, "is in line 9999, too"),
        ] {
            let row = report
                .lines()
                .find(|row| row.contains(&format!("line {line}: ")))
                .unwrap_or_else(|| panic!("{line}: {report}"));
            assert!(row.contains(reason), "{row}");
        }
        assert_eq!(exported(gateway), header, "nothing was changed");
    }
    let begun = Instant::now();
    let (done, report) = import(gateway, &whole, &["--dry-run"]);
    assert!(
        done && report.ends_with("10000 new, 0 changed, 0 unchanged\n"),
        "{}",
        report.lines().last().unwrap()
    );
    assert_eq!((report.lines().count(), exported(gateway)), (MACHINES + 1, header));
    let dry = begun.elapsed();
    let (done, report) = import(gateway, &whole, &[]);
    assert!(
        done && report.starts_with("imported: 10000 new, 0 changed, 0 unchanged; sha-256 of "),
        "{report}"
    );
    eprintln!("{MACHINES} rows: dry run and export {dry:?}, import {:?}", begun.elapsed() - dry);
    assert_eq!(exported(gateway).lines().count(), MACHINES + 1);
    // One act, with the file's digest; and of the refused attempt why.
    let acts = gateway.wait_for_acts(2, "machines.import");
    assert!(
        acts[0]["admin"]["refused"].as_str().unwrap().contains("3 rows cannot be imported"),
        "{}",
        acts[0]
    );
    let things = acts[1]["admin"]["things"].as_array().unwrap();
    let after = &things[0]["after"];
    assert_eq!(
        (things.len(), &things[0]["kind"], &after["rows"], &after["new"]),
        (1, &json!("file"), &json!(MACHINES), &json!(MACHINES))
    );
    assert!(
        report.contains(after["sha256"].as_str().unwrap()) && transactions(after["transactions"].as_u64().unwrap()),
        "{after}"
    );
    let (done, report) = import(gateway, &whole, &[]);
    assert!(
        done && report.starts_with("imported: 0 new, 0 changed, 10000 unchanged"),
        "{report}"
    );
    assert_eq!(gateway.acts("machines.import").len(), 2);
    let begun = Instant::now();
    let list: Value = serde_json::from_str(&gateway.command(&["machines", "list", "--output", "json"])).unwrap();
    eprintln!("a list of {MACHINES}: {:?}", begun.elapsed());
    let list = list.as_array().unwrap();
    assert!(list.len() == MACHINES && list.iter().all(|machine| machine["state"] == "expected"));
}

#[test]
fn ten_thousand_rows_are_imported_at_once_or_not_at_all() {
    let gateway = Gateway::start();
    all_or_nothing(&gateway, |transactions| transactions == 1);
    let audit = gateway.command(&["log", "audit"]);
    assert!(audit.contains(" whole"), "{audit}");
}

#[test]
fn a_killed_import_leaves_nothing_or_everything() {
    let gateway = Gateway::init();
    let file = gateway.path("machines.csv");
    fs::write(&file, many(3000)).unwrap();
    let header = exported(&gateway);
    let mut seen = [0, 0];
    for number in 0..12 {
        let mut child = program();
        child.arg("--config").arg(gateway.path("gateway.toml"));
        let mut child = child.args(["machines", "import"]).arg(&file).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20 * number));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = exported(&gateway);
        let is_whole = found.lines().count() == 3001;
        assert!(is_whole || found == header, "{} lines", found.lines().count());
        seen[usize::from(is_whole)] += 1;
        if is_whole {
            break;
        }
    }
    assert!(seen[0] > 0, "an import was killed before it was done: {seen:?}");
    gateway.command(&["machines", "import", file.to_str().unwrap()]);
    assert_eq!(exported(&gateway).lines().count(), 3001);
}

#[tokio::test(flavor = "multi_thread")]
async fn export_prints_what_import_reads() {
    let gateway = Gateway::start();
    let case = tpm();
    let rows = [
        json!({ "ek": digest(&case), "name": "worker-7", "pools": ["worker"], "note": "say \"hi\", rack 7" }),
        json!({ "ek": BASE64.encode(&tpm().ek_area.to_bytes()), "note": "by its public area" }),
        json!({ "instance": "gcp:example-project/7", "name": "worker-8", "pools": "worker infra" }),
        json!({ "ek": "0a".repeat(32), "pools": "*" }),
    ];
    let (done, report) = import(&gateway, &rows.map(|row| format!("{row}\n")).concat(), &[]);
    assert!(done, "{report}");
    let first = exported(&gateway);
    assert!(
        first.contains(",worker-7,worker,\"say \"\"hi\"\", rack 7\"") && first.contains(",gcp:example-project/7,worker-8,worker infra,"),
        "{first}"
    );
    let other = Gateway::init();
    let (done, report) = import(&other, &first, &[]);
    assert!(done, "{report}");
    assert_eq!(exported(&other), first);
    // A byte order mark and line ends of Windows.
    let third = Gateway::init();
    let (done, report) = import(&third, &format!("\u{feff}{}", first.replace('\n', "\r\n")), &[]);
    assert!(done && exported(&third) == first, "{report}");
    // Standard input, too.
    let mut child = program();
    child
        .arg("--config")
        .arg(third.path("gateway.toml"))
        .args(["machines", "import", "-", "--output", "json"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(first.as_bytes()).unwrap();
    let report: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(
        (&report["file"], &report["unchanged"], &report["dry_run"]),
        (&json!("-"), &json!(4), &json!(false))
    );
    // An imported machine attests, and gets its name unasked.
    gateway.attest(next_boot(&case), None).await.ticket();
    assert_eq!(gateway.records().pop().unwrap()["name"], "worker-7");
    let mut elsewhere = next_boot(&case);
    elsewhere.pool = "infra".to_owned();
    gateway.attest(elsewhere, None).await.refused(403, "ek-not-endorsed");
    // What the file does not say stays; what it says is shown before.
    let changed = format!("ek,pools\n{},worker infra\n", digest(&case));
    let (_, report) = import(&gateway, &changed, &["--dry-run"]);
    assert!(
        report.contains("pools worker -> worker infra\n0 new, 1 changed, 0 unchanged"),
        "{report}"
    );
    let (done, _) = import(&gateway, &changed, &[]);
    assert!(done && exported(&gateway).contains(",worker-7,worker infra,\"say"));
    assert!(gateway.command(&["log", "audit"]).contains(" whole"));
}

#[test]
fn conflicts_with_the_store_are_refused() {
    let gateway = Gateway::init();
    let [known, removed, new] = ["01", "02", "03"].map(|byte| byte.repeat(32));
    gateway.command(&["ek", "add", &known, "--name", "worker-1"]);
    gateway.command(&["ek", "add", &removed]);
    gateway.command(&["ek", "remove", &removed]);
    let before = exported(&gateway);
    let text = format!("ek,name\n{new},worker-1\n{removed},\n{known},worker-2\n");
    let (done, report) = import(&gateway, &text, &[]);
    assert!(!done && report.contains("3 rows cannot be imported"), "{report}");
    for expected in [
        format!("line 2: the name worker-1 belongs to tpm:{known}"),
        format!("line 3: tpm:{removed} was removed from the allowlist"),
        format!("line 4: the allowlist gives tpm:{known} the name worker-1; to change that: `attest-gateway"),
    ] {
        assert!(report.contains(&expected), "{expected}: {report}");
    }
    assert_eq!(exported(&gateway), before);
    // With a name moved by a command, the allowlist has it once.
    gateway.command(&["ek", "add", &new, "--name", "worker-1", "--replace"]);
    // A new name leaves the pools as they are.
    let pools = |pool: &str, name: &str| {
        let pool = if pool.is_empty() { vec![] } else { vec!["--pool", pool] };
        gateway.command(&[&["ek", "add", &new, "--name", name, "--replace"][..], &pool].concat());
        let row = exported(&gateway);
        row.lines().find(|row| row.contains(&new)).unwrap().to_owned()
    };
    assert!(pools("worker", "worker-1").contains(",worker,") && pools("", "worker-2").contains(",worker-2,worker,"));
    assert!(pools("*", "worker-1").contains(",worker-1,*,"));
    assert_eq!(exported(&gateway).matches("worker-1").count(), 1, "{}", exported(&gateway));
    let other = Gateway::init();
    let (done, report) = import(&other, &exported(&gateway), &[]);
    assert!(done, "{report}");
    gateway.command(&["node", "revoke", &new]);
    let (done, report) = import(&gateway, &format!("ek\n{new}\n"), &[]);
    assert!(done && report.contains("1 of the machines are revoked"), "{report}");
    let (done, report) = import(&gateway, "\n", &[]);
    assert!(!done && report.contains("machines.csv: it is empty"), "{report}");
}

#[test]
fn only_ek_certificates_are_taken() {
    let gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    let (area, certificate) = maker.ek();
    let expected = attest::EkDigest::from_public_area(&area.to_bytes()).unwrap().to_string();
    let pem = |name: &str, der: &[u8]| {
        let text = BASE64.encode(der);
        fs::write(
            gateway.path(name),
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"),
        )
        .unwrap();
    };
    pem("ek.pem", &certificate);
    fs::write(gateway.path("ek.der"), &certificate).unwrap();
    fs::copy(gateway.path("tls/mcs.crt"), gateway.path("server.pem")).unwrap();
    fs::write(gateway.path("maker.der"), maker.root()).unwrap();
    fs::write(gateway.path("text.crt"), format!("{expected}\n")).unwrap();
    // A server's certificate and a CA's endorse no TPM.
    for (file, reason) in [
        ("server.pem", "extended key usage"),
        ("maker.der", "certificate of a CA"),
        ("text.crt", "neither PEM nor DER"),
    ] {
        let path = gateway.path(file);
        let output = gateway.try_command(&["ek", "add", "--certificate", path.to_str().unwrap()]);
        assert!(
            !output.status.success() && said(&output).contains(reason),
            "{file}: {}",
            said(&output)
        );
        let (done, report) = import(&gateway, &format!("certificate\n{file}\n"), &[]);
        assert!(!done && report.contains("line 2: ") && report.contains(reason), "{file}: {report}");
    }
    let path = gateway.path("ek.pem");
    gateway.command(&["ek", "add", "--certificate", path.to_str().unwrap()]);
    gateway.command(&["ek", "remove", &expected, "--leave-to-roots"]);
    assert!(!exported(&gateway).contains(&expected));
    let mut add = program();
    add.arg("--config")
        .arg(gateway.path("gateway.toml"))
        .args(["ek", "add", "--certificate", "-"]);
    assert!(add.stdin(fs::File::open(&path).unwrap()).status().unwrap().success());
    assert!(exported(&gateway).contains(&expected));
    for cell in ["ek.pem", "ek.der", &BASE64.encode(&certificate)] {
        let (done, report) = import(&gateway, &format!("certificate,ek\n{cell},{expected}\n"), &[]);
        assert!(done && report.contains("1 unchanged"), "{cell}: {report}");
    }
    for cell in ["../gateway/ek.pem", "/etc/passwd", "missing.pem", "tls"] {
        let (done, report) = import(&gateway, &format!("certificate\n{cell}\n"), &[]);
        assert!(!done && report.contains("line 2: certificate "), "{cell}: {report}");
        assert!(!report.contains("root:"), "{report}");
    }
}

/// The EK certificates that the TPMs do not carry, by the command in the help: all of them, or none.
#[test]
fn imports_the_ek_certificates_of_a_folder() {
    let gateway = Gateway::init();
    let (maker, folder) = (Maker::new("A maker of TPMs"), gateway.path("certificates"));
    fs::create_dir(&folder).unwrap();
    let write = |name: &str, der: &[u8]| fs::write(folder.join(name), der).unwrap();
    let mut expected = Vec::new();
    for number in 0..20 {
        let (area, certificate) = maker.ek();
        write(&format!("ek {number}.crt"), &certificate);
        expected.push(attest::EkDigest::from_public_area(&area.to_bytes()).unwrap().to_string());
    }
    write("no EK.crt", maker.root().as_ref());
    let import = || {
        let help = gateway.command(&["machines", "import", "--help"]);
        let list = help.lines().find(|line| line.contains("(cd certificates ")).unwrap();
        let listed = Command::new("sh").args(["-c", list]).current_dir(gateway.path("")).status();
        assert!(listed.unwrap().success());
        let output = gateway.try_command(&["machines", "import", folder.join("machines.csv").to_str().unwrap()]);
        (output.status.success(), said(&output))
    };
    let (done, report) = import();
    assert!(
        !done && report.contains("line 22: ") && report.contains("certificate of a CA"),
        "{report}"
    );
    assert_eq!(exported(&gateway).lines().count(), 1, "nothing was imported");
    fs::remove_file(folder.join("no EK.crt")).unwrap();
    let (done, report) = import();
    assert!(done && report.starts_with("imported: 20 new, 0 changed, 0 unchanged"), "{report}");
    let list = exported(&gateway);
    assert!(expected.iter().all(|digest| list.contains(digest)), "{list}");
}
