//! `attest-node config apply` on a folder in place of a system, with a gateway that asks for the kubelet's certificate.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use data_encoding::BASE64;
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Secret in a config, which no message may contain.
const SECRET: &str = "the-clusters-secret";

/// Gateway that answers every request with this config, if the client shows a certificate of the gateway's own CA.
struct Gateway {
    pointer: String,
    kubelet: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Gateway {
    fn giving(config: &Value) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issued = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
            (certificate, key)
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
            .build()
            .unwrap();
        let (certificate, key) = issued("127.0.0.1");
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (told, body, server) = (Arc::clone(&asked), config.to_string(), Arc::new(server));
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let session = ServerConnection::new(Arc::clone(&server)).unwrap();
                let mut stream = BufReader::new(StreamOwned::new(session, connection));
                let mut request = String::new();
                while stream.read_line(&mut request).is_ok_and(|read| read > 2) {}
                told.lock().unwrap().push(request.to_ascii_lowercase());
                let length = body.len();
                let _ = write!(
                    stream.get_mut(),
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.get_mut().conn.send_close_notify();
                let _ = stream.get_mut().flush();
            }
        });
        let (certificate, key) = issued("kubelet");
        let authority = format!("data:;base64,{}", BASE64.encode(ca.pem().as_bytes()));
        let pointer = json!({"ignition": {
            "version": "3.1.0",
            "config": {"merge": [{"source": format!("https://127.0.0.1:{port}/config/worker")}]},
            "security": {"tls": {"certificateAuthorities": [{"source": authority}]}},
        }});
        Self {
            pointer: pointer.to_string(),
            kubelet: format!("{}{}", certificate.pem(), key.serialize_pem()),
            asked,
        }
    }
}

/// Creates a system with CoreOS's first-boot mechanism, and the files that its initramfs has kept.
fn system(gateway: &Gateway, ignition: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let kept = json!({"ignition": ignition, "copies_config": true, "changes_kernel_arguments": true, "base": []});
    let files = [
        (
            "root/boot/grub/grub.cfg",
            "if [ -f \"/boot/ignition.firstboot\" ]; then\nsource \"/boot/ignition.firstboot\"\n\
             set ignition_firstboot=\"ignition.firstboot ${ignition_network_kcmdline}\"\nfi\nlinux /vmlinuz $ignition_firstboot\n",
        ),
        (
            "root/etc/systemd/system/coreos-ignition-firstboot-complete.service",
            "ExecStart=/usr/libexec/complete\n",
        ),
        ("root/usr/libexec/complete", "rm -rf /boot/ignition\nrm /boot/ignition.firstboot\n"),
        ("root/usr/lib/systemd/libsystemd-shared-257.so", ""),
        ("root/etc/there", "before"),
        ("kept/initramfs.json", &kept.to_string()),
        ("kept/pointer.ign", &gateway.pointer),
        ("kubelet.pem", &gateway.kubelet),
        ("cmdline", "quiet ignition.platform.id=metal"),
    ];
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attest-node"));
    command
        .current_dir(folder)
        .arg("config")
        .args(arguments)
        .args(["--kept", "kept", "--root", "root", "--cmdline", "cmdline"]);
    command.args(["--certificate", "kubelet.pem", "--dmi", "no-dmi", "--deadline", "5"]);
    command.output().unwrap()
}

/// Returns every file of a system, with its mode and content.
fn all(folder: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, metadata) = (entry.path(), entry.metadata().unwrap());
            match metadata.is_dir() {
                true => folders.push(path),
                false => found.push((path.clone(), metadata.permissions().mode() & 0o777, fs::read(path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

fn full(version: &str, path: &str) -> Value {
    json!({
        "ignition": {"version": version},
        "storage": {"files": [{"path": path, "contents": {"source": format!("data:,{SECRET}")}}]},
        "systemd": {"units": [{"name": "new.service", "enabled": true, "contents": "[Unit]"}]},
    })
}

#[test]
fn apply_places_the_config_and_undo_restores() {
    let config = full("3.3.0", "/etc/new");
    let gateway = Gateway::giving(&config);
    let folder = system(&gateway, "Ignition 2.14.0");
    let before = all(folder.path());
    let output = run(folder.path(), &["apply"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("config of pool worker from https://127.0.0.1:") && said.contains("is in place"),
        "{said}"
    );
    assert!(
        said.contains("note: systemd treats that boot as a first boot") && !said.contains(SECRET),
        "{said}"
    );
    let asked = gateway.asked.lock().unwrap().join("");
    assert!(
        asked.contains("accept: application/vnd.coreos.ignition+json;version=3.3.0"),
        "{asked}"
    );
    let boot = folder.path().join("root/boot");
    let written: Value = serde_json::from_slice(&fs::read(boot.join("ignition/config.ign")).unwrap()).unwrap();
    let mut expect = config.clone();
    // What comes there until the reboot does not stop that boot.
    expect["storage"]["files"][0]["overwrite"] = json!(true);
    assert_eq!(written, expect);
    let stamp = "set ignition_network_kcmdline=\"${ignition_network_kcmdline} systemd.condition-first-boot=1\"\n";
    assert_eq!(fs::read_to_string(boot.join("ignition.firstboot")).unwrap(), stamp);
    let mode = |path: &str| fs::metadata(boot.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ignition"), mode("ignition/config.ign")), (0o700, 0o600));
    // Once is enough.
    let again = run(folder.path(), &["apply"]);
    assert!(String::from_utf8(again.stderr).unwrap().contains("[apply-arranged]; next: reboot"));
    for said in ["reverted: ", "nothing to revert"] {
        let output = run(folder.path(), &["undo"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stderr).unwrap().contains(said));
        assert_eq!(all(folder.path()), before);
    }
}

/// Checks that nothing is changed, that the message has all of these parts, and whether the gateway was asked.
fn check_refused(config: &Value, ignition: &str, change: impl Fn(&Path), arguments: &[&str], was_asked: bool, said: &[&str]) {
    let gateway = Gateway::giving(config);
    let folder = system(&gateway, ignition);
    change(folder.path());
    let before = all(folder.path());
    let output = run(folder.path(), &[&["apply"], arguments].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in said {
        assert!(stderr.contains(part), "{part:?} is missing in {stderr:?}");
    }
    let last = stderr.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("attest-node: not applied: ") && last.ends_with("; nothing is changed"),
        "{stderr}"
    );
    assert!(!stderr.contains(SECRET), "{stderr}");
    assert_eq!(all(folder.path()), before, "{stderr}");
    assert_eq!(!gateway.asked.lock().unwrap().is_empty(), was_asked, "{stderr}");
}

#[test]
fn apply_reports_every_unsupported_item_and_changes_nothing() {
    let mut config = full("3.3.0", "/etc/there");
    *config.pointer_mut("/ignition").unwrap() = json!({"version": "3.3.0", "config": {"replace": {"source": "https://a/b"}}});
    check_refused(
        &config,
        "Ignition 2.14.0",
        |_| {},
        &[],
        true,
        &[
            "attest-node: not repeatable: ignition.config.replace: Ignition would fetch another config",
            "attest-node: not repeatable: storage.files[0] (/etc/there): it exists, and overwrite is not true",
            "Ignition cannot apply 2 entries of this config on an installed system [ignition-not-repeatable]; next: ",
        ],
    );
    // A preset is heeded only where the boot loader can say so, and by a systemd that knows the word.
    let enables = full("3.3.0", "/etc/new");
    let not_enabled = ["systemd.units[0] (new.service): it is not enabled", "[ignition-not-repeatable]"];
    let old = |folder: &Path| {
        let libraries = folder.join("root/usr/lib/systemd");
        fs::rename(
            libraries.join("libsystemd-shared-257.so"),
            libraries.join("libsystemd-shared-239.so"),
        )
        .unwrap();
    };
    check_refused(&enables, "Ignition 2.14.0", old, &[], true, &not_enabled);
    let without_arguments = |folder: &Path| {
        let path = folder.join("root/boot/grub/grub.cfg");
        let config = fs::read_to_string(&path).unwrap();
        fs::write(&path, config.replace("source \"/boot/ignition.firstboot\"\n", "")).unwrap();
    };
    check_refused(&enables, "Ignition 2.14.0", without_arguments, &[], true, &not_enabled);
}

#[test]
fn apply_refuses_an_unsupported_boot_before_fetching() {
    let config = full("3.3.0", "/etc/new");
    let check = |ignition: &str, change: &dyn Fn(&Path), arguments: &[&str], said: &[&str]| {
        check_refused(&config, ignition, change, arguments, false, said);
    };
    let grub = |folder: &Path| fs::write(folder.join("root/boot/grub/grub.cfg"), "linux /vmlinuz").unwrap();
    check(
        "Ignition 2.14.0",
        &grub,
        &[],
        &["GRUB does not look for ignition.firstboot [apply-unsupported]; next: "],
    );
    let elsewhere = |folder: &Path| fs::write(folder.join("cmdline"), "ignition.config.url=https://a/b").unwrap();
    check(
        "Ignition 2.14.0",
        &elsewhere,
        &[],
        &["[pointer-overridden]; next: remove it permanently"],
    );
    // One that 2.14 does not know.
    let device = |folder: &Path| fs::write(folder.join("cmdline"), "ignition.config.device=a ignition.config.path=b").unwrap();
    check("Ignition 2.27.0", &device, &[], &["[pointer-overridden]"]);
    check(
        "Ignition was not built properly",
        &|_| {},
        &[],
        &["[ignition-version]; next: pass a version that it supports with --spec"],
    );
    check(
        "Ignition 2.14.0",
        &|_| {},
        &["--spec", "3.4.0"],
        &["supports spec versions up to 3.3.0, not 3.4.0 [ignition-version]"],
    );
    let kept = |more: Value| {
        move |folder: &Path| {
            let path = folder.join("kept/initramfs.json");
            let mut kept: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            kept.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            fs::write(path, kept.to_string()).unwrap();
        }
    };
    check(
        "Ignition 2.27.0",
        &kept(json!({"outranked_by": "/etc/ignition/user.ign"})),
        &[],
        &["/etc/ignition/user.ign, which overrides", "[pointer-overridden]"],
    );
    // As an older version has kept it.
    check(
        "Ignition 2.14.0",
        &kept(json!({"base": null})),
        &[],
        &[
            "which base configs",
            "cannot determine",
            "[apply-unsupported]; next: rebuild the initramfs",
        ],
    );
    let stamped = |folder: &Path| fs::write(folder.join("root/boot/ignition.firstboot"), "").unwrap();
    check("Ignition 2.14.0", &stamped, &[], &["[apply-arranged]"]);
    let no_certificate = |folder: &Path| fs::remove_file(folder.join("kubelet.pem")).unwrap();
    check("Ignition 2.14.0", &no_certificate, &[], &["[kubelet-certificate]"]);
}

#[test]
fn apply_refuses_a_config_of_another_spec() {
    check_refused(
        &full("3.4.0", "/etc/new"),
        "Ignition 2.14.0",
        |_| {},
        &[],
        true,
        &["[gateway-answer]"],
    );
}
