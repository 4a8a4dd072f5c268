//! The program in boots that need no TPM and no gateway: exit code and the one line on stderr.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = r#"{"source":"https://127.0.0.1:1/config/worker"}"#;

/// Arguments that hide any cloud: no DMI tables, and no server at the metadata address.
const NOWHERE: [&str; 6] = ["--dmi", "no-dmi", "--metadata", "http://127.0.0.1:1", "--state", "state"];

fn pointer(version: &str, source: &str, authorities: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"{version}","config":{{"merge":[{source}]}},"security":{{"tls":{{"certificateAuthorities":[{authorities}]}}}}}}}}"#
    )
}

fn authority() -> String {
    let pem = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.pem();
    format!(r#"{{"source":"data:;base64,{}"}}"#, data_encoding::BASE64.encode(pem.as_bytes()))
}

fn run(folder: &Path, cmdline: &str, arguments: &[&str]) -> Output {
    fs::write(folder.join("cmdline"), cmdline).unwrap();
    Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .args([
            "attest",
            "--cmdline",
            "cmdline",
            "--pointer",
            "pointer.ign",
            "--out",
            "out/user.ign",
            "--tcti",
            "device:/dev/no-such-tpm",
            "--deadline",
            "20",
        ])
        .args(NOWHERE)
        .args(arguments)
        .output()
        .unwrap()
}

/// Checks that the one line contains all of `said`, and that nothing was written.
fn check(pointer: &str, cmdline: &str, arguments: &[&str], code: i32, said: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), pointer).unwrap();
    let output = run(folder.path(), cmdline, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for part in said {
        assert!(stderr.contains(part), "{part:?} is missing in {stderr:?}");
    }
    assert!(!folder.path().join("out").exists());
    assert_eq!(fs::read_to_string(folder.path().join("pointer.ign")).unwrap(), pointer);
}

/// A unit's console begins with the id of its boot, which the gateway's log has as well.
#[test]
fn a_unit_names_its_boot() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), pointer("3.2.0", "", "")).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args(["attest", "--pointer", "pointer.ign", "--out", "user.ign", "--cmdline", "cmdline"])
        .args(NOWHERE)
        .env("INVOCATION_ID", "0")
        .output()
        .unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.starts_with(&format!("attest-node: boot {}\n", boot.trim_end())), "{said}");
}

#[test]
fn attest_without_gateway_or_tpm_does_nothing() {
    check(&pointer("3.2.0", "", ""), "", &[], 0, &["nothing to do", "/config/<pool>"]);
    // A machine without a TPM that was given a token is meant to have none.
    let with_token = pointer(
        "3.2.0",
        &SOURCE.replace("/config/worker", "/config/worker?token=SECRET"),
        &authority(),
    );
    // Where nothing can be written, its gateway is not asked for anything.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), with_token).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args(["attest", "--pointer", "pointer.ign", "--out", "/proc/nonexistent/user.ign"])
        .args(["--cmdline", "cmdline", "--tcti", "device:/dev/no-such-tpm"])
        .args(NOWHERE)
        .output()
        .unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && said.lines().count() == 1, "{said}");
    for part in ["nothing to do", "no TPM 2.0", "Ignition uses the provisioning token"] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
    check(
        &pointer("3.2.0", r#"{"source":"https://a/base.ign"}"#, ""),
        "",
        &[],
        0,
        &["nothing to do"],
    );
}

#[test]
fn failures_are_one_line_with_code_and_next_step() {
    let unchanged = "; the pointer config is unchanged";
    let ca = authority();
    check(
        &pointer("3.2.0", SOURCE, &ca),
        "",
        &[],
        1,
        &["no TPM 2.0", "[tpm-absent]; next: ", unchanged],
    );
    check(
        &pointer("2.2.0", SOURCE, &ca),
        "",
        &[],
        1,
        &["version \"2.2.0\"", "[pointer-version]; next: ", unchanged],
    );
    check(
        &pointer("3.2.0", SOURCE, ""),
        "",
        &[],
        1,
        &["no CA", "[pointer-no-ca]; next: ", unchanged],
    );
    check(
        &pointer("3.2.0", SOURCE, r#"{"source":"data:,x"}"#),
        "",
        &[],
        1,
        &["[pointer-ca]; next: ", unchanged],
    );
    check("not JSON", "", &[], 1, &["[pointer-malformed]; next: ", unchanged]);
}

#[test]
fn overridden_user_ign_is_reported_with_next_step() {
    let good = pointer("3.2.0", SOURCE, &authority());
    check(
        &good,
        "quiet ignition.config.url=https://a/b?token=SECRET",
        &[],
        1,
        &[
            "not attested: ignition.config.url is on the kernel command line: Ignition reads the pointer config from there",
            "this node would get an unauthenticated client's config [pointer-overridden]; next: remove this argument from",
            "; the pointer config is unchanged",
        ],
    );
    check(
        &good,
        "flatcar.config.url=https://a",
        &[],
        1,
        &["flatcar.config.url", "[pointer-overridden]"],
    );
    // Ignition knows no quotes, and it does not look at these.
    for none in ["\"ignition.config.url=https://a/b\"", "coreos.config.url=https://a"] {
        check(&good, none, &[], 1, &["[tpm-absent]"]);
    }
}

/// Returns the last line, on a machine whose Ignition does not report its version, with these variables of Ignition's.
fn looked(folder: &Path, cmdline: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    fs::write(folder.join("cmdline"), cmdline).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder)
        .args(["attest", "--cmdline", "cmdline", "--tcti", "device:/dev/no-such-tpm"])
        .args(NOWHERE)
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap().lines().last().unwrap().to_owned()
}

#[test]
fn pointer_is_searched_where_ignition_looks() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().display().to_string();
    fs::write(folder.path().join("user.ign"), pointer("2.2.0", SOURCE, "")).unwrap();
    fs::write(folder.path().join("config.ign"), pointer("3.2.0", SOURCE, "")).unwrap();
    let none = "/nonexistent";
    let [run, local, system] = ["RUNTIME_CONFIG_DIR", "LOCAL_CONFIG_DIR", "CONFIG_DIR"].map(|name| format!("IGNITION_SYSTEM_{name}"));
    let check = |cmdline: &str, folders: [&str; 3], arguments: &[&str], code: &str| {
        let file = format!("{there}/config.ign");
        let variables = [
            (&*run, folders[0]),
            (&*local, folders[1]),
            (&*system, folders[2]),
            ("IGNITION_CONFIG_FILE", &file),
        ];
        let line = looked(folder.path(), cmdline, arguments, &variables);
        assert!(line.contains(&format!("[{code}]; next: ")), "{code} is missing in {line}");
    };
    check("", [none, none, none], &[], "pointer-not-found");
    check("", [none, none, &there], &[], "pointer-version");
    check("ignition.platform.id=file", [none, none, none], &[], "pointer-no-ca");
    check("ignition.platform.id=file", [none, none, &there], &[], "pointer-version");
    // Ignition stops for it, and so takes nothing from the platform.
    fs::create_dir_all(folder.path().join("useless/user.ign")).unwrap();
    for useless in ["useless", "user.ign"] {
        check(
            "ignition.platform.id=file",
            [none, none, &format!("{there}/{useless}")],
            &[],
            "pointer-malformed",
        );
    }
    // It would be guessed which one Ignition takes.
    for (cmdline, folders) in [
        ("", [none, &there, none]),
        ("", [&there, none, none]),
        ("ignition.config.device=a ignition.config.path=b", [none, none, &there]),
    ] {
        check(cmdline, folders, &[], "pointer-unclear");
        check(cmdline, folders, &["--pointer", "config.ign"], "pointer-unclear");
        check(cmdline, folders, &["--pointer", "config.ign", "--out", "out.ign"], "pointer-no-ca");
    }
}

#[test]
fn missing_pointer_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("looked at pointer.ign [pointer-not-found]")
    );
}

/// A CA that is left out is reported regardless of the run's result.
#[test]
fn ca_note_is_printed_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let authorities = format!(r#"{},{{"source":"https://ca.example/ca.pem"}}"#, authority());
    fs::write(folder.path().join("pointer.ign"), pointer("3.2.0", SOURCE, &authorities)).unwrap();
    let output = run(folder.path(), "", &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let [note, end] = lines.as_slice() else { panic!("{said}") };
    assert!(note.starts_with("attest-node: note: certificate authority 1 "), "{note}");
    assert!(end.contains("[tpm-absent]; next: "), "{end}");
}

#[test]
fn invalid_usage_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [
        ["--ak", "rsa-1024"],
        ["--ek", "dsa"],
        ["--deadline", "0"],
        ["--metadata", "https://a"],
        ["--no-such", "x"],
    ] {
        assert_eq!(run(folder.path(), "", &wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// `attest-node config fetch`, in a folder with this pointer and this kubelet's file: exit code 1, one line, and nothing written.
fn check_config(pointer: &str, kubelet: Option<&str>, arguments: &[&str], said: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pointer.ign"), pointer).unwrap();
    if let Some(kubelet) = kubelet {
        fs::write(folder.path().join("kubelet.pem"), kubelet).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args(["config", "fetch", "--pointer", "pointer.ign", "--certificate", "kubelet.pem"])
        .args(["--out", "full.ign", "--deadline", "1"])
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for part in said {
        assert!(stderr.contains(part), "{part:?} is missing in {stderr:?}");
    }
    assert!(
        stderr.starts_with("attest-node: no config: ") && stderr.ends_with("; full.ign is unchanged\n"),
        "{stderr}"
    );
    assert!(!stderr.contains("SECRET"), "{stderr}");
    assert!(!folder.path().join("full.ign").exists());
}

#[test]
fn config_fetch_failure_is_one_line() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["node".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let kubelet = format!("{}{}", certificate.pem(), key.serialize_pem());
    let ca = authority();
    let token = r#"{"source":"https://127.0.0.1:1/config/worker?token=SECRET"}"#;
    let good = pointer("3.2.0", token, &ca);
    check_config(&good, None, &[], &["kubelet.pem cannot be read", "[kubelet-certificate]; next: "]);
    check_config(&good, Some("no PEM"), &[], &["[kubelet-certificate]; next: "]);
    check_config(
        &good,
        Some(&kubelet),
        &[],
        &["https://127.0.0.1:1/config/worker ", "[gateway-unreachable]; next: "],
    );
    check_config(
        &pointer("3.2.0", "", &ca),
        Some(&kubelet),
        &[],
        &["names 0 sources", "[config-source]; next: "],
    );
    check_config(&pointer("3.2.0", token, ""), Some(&kubelet), &[], &["[pointer-no-ca]; next: "]);
    check_config(
        &good,
        Some(&kubelet),
        &["--url", "http://127.0.0.1:1/config/worker"],
        &["[config-source]"],
    );
    check_config("not JSON", Some(&kubelet), &[], &["[pointer-malformed]"]);
}

#[test]
fn config_fetch_ignores_sources_ignition_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["node".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    fs::write(
        folder.path().join("kubelet.pem"),
        format!("{}{}", certificate.pem(), key.serialize_pem()),
    )
    .unwrap();
    fs::write(folder.path().join("cmdline"), "ignition.config.url=https://a/b").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args([
            "config",
            "fetch",
            "--certificate",
            "kubelet.pem",
            "--out",
            "full.ign",
            "--cmdline",
            "cmdline",
        ])
        .args(["--dmi", "no-dmi"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("[pointer-overridden]; next: name the pointer config's file with --pointer"),
        "{stderr}"
    );
}

#[test]
fn saved_pointer_has_precedence_for_config_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["node".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let kubelet = format!("{}{}", certificate.pem(), key.serialize_pem());
    fs::write(folder.path().join("kubelet.pem"), kubelet).unwrap();
    fs::write(folder.path().join("cmdline"), "ignition.platform.id=metal").unwrap();
    let said = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attest-node"));
        command
            .current_dir(folder.path())
            .args(["config", "fetch", "--certificate", "kubelet.pem"]);
        command.args(["--out", "full.ign", "--cmdline", "cmdline", "--dmi", "no-dmi"]);
        let output = command.args(["--deadline", "1", "--kept", "kept"]).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said().contains("[pointer-not-found]"), "{}", said());
    fs::create_dir(folder.path().join("kept")).unwrap();
    assert!(said().contains("[pointer-not-found]"), "{}", said());
    // A config that names no gateway is no pointer: as in the boot that `config apply` has made, whose config is the full one.
    fs::write(folder.path().join("pointer.ign"), r#"{"ignition": {"version": "3.2.0"}}"#).unwrap();
    run(folder.path(), "", &["--kept", "kept"]);
    assert!(said().contains("[pointer-not-found]"), "{}", said());
    // Left by the run in the initramfs, whatever comes of that.
    fs::write(folder.path().join("pointer.ign"), pointer("3.2.0", SOURCE, &authority())).unwrap();
    run(folder.path(), "", &["--kept", "kept"]);
    assert!(said().contains("https://127.0.0.1:1/config/worker "), "{}", said());
    assert!(said().contains("[gateway-unreachable]"), "{}", said());
}

#[test]
fn config_fetch_requires_output_and_spec_version() {
    let config = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_attest-node"))
            .args(["config", "fetch"])
            .args(arguments)
            .output()
            .unwrap()
    };
    assert_eq!(config(&[]).status.code(), Some(2));
    assert_eq!(config(&["--out", "x", "--spec", "3"]).status.code(), Some(2));
    assert!(config(&["--help"]).status.success());
}

#[test]
fn endorsement_keys_need_a_tpm() {
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .args(["ek", "list", "--tcti", "device:/dev/no-such-tpm"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("[tpm-absent]"));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for argument in ["--version", "--help"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
            .arg(argument)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{argument}");
        assert!(
            String::from_utf8(output.stderr)
                .unwrap()
                .starts_with("attest-node: standard output: ")
        );
    }
}
