//! From pre-approved to full. An unauthenticated machine starts with the pre-approved config, asks for a certificate as a kubelet does, and
//! gets it signed. At the next boot the program that its initramfs has kept applies the full config, and reboots.
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use swtpm_tests::core_os;
use swtpm_tests::scenario::Site;
use swtpm_tests::{DebianRelease, IGNITION_SPEC, POOL, Process, TestCluster, TestFolder, content_of, read_from_disk};

const NODE: &str = "worker-1";
/// Maximum duration of a boot: emulated on two busy cores it takes two minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(480);
/// A pool whose full config Ignition cannot do twice.
const WRONG_POOL: &str = "wrong";

/// Script that acts as the kubelet on a node, and then as its administrator. The process that listens at the port on the kernel command
/// line signs the certificate.
const JOIN: &str = r#"#!/bin/sh
exec >/dev/ttyS0 2>&1
approver=$(grep -o 'test.approver=[0-9]*' /proc/cmdline | cut -d= -f2)
for card in /sys/class/net/e*; do ip link set "${card##*/}" up; ip address add 10.0.2.15/24 dev "${card##*/}" 2>/dev/null; done
mkdir -p /var/lib/kubelet/pki && cd /var/lib/kubelet/pki && umask 077
openssl ecparam -name prime256v1 -genkey -noout -out key.pem
openssl req -new -key key.pem -subj '/O=system:nodes/CN=system:node:worker-1' -out csr.pem
curl --silent --show-error --fail --data-binary @csr.pem -o certificate.pem "http://10.0.2.2:$approver/"
cat certificate.pem key.pem >kubelet-client-current.pem
echo "@@ kept $(stat -c '%a %U' /run/attest-node-kept) $(grep -c 'certificateAuthorities' /run/attest-node-kept/pointer.ign)"
wrong=$(grep -o 'https://[^"]*/config/' /run/attest-node-kept/pointer.ign)wrong
/run/attest-node-kept/run config apply --url "$wrong" 2>&1 | sed 's/^/@@ refused /'
echo "@@ nothing $(ls /boot)"
sed 's,"/boot/,"/,' /boot/grub/grub.cfg >/run/grub.cfg
mount -t tmpfs tmpfs /boot && mkdir /boot/grub && cp /run/grub.cfg /boot/grub && mount -o remount,ro /boot
/run/attest-node-kept/run config apply 2>&1 | sed 's/^/@@ read-only /'
echo "@@ apart $(ls /boot | tr '\n' ' ')$(touch /boot/other 2>&1)"
/run/attest-node-kept/run config undo 2>&1 | sed 's/^/@@ undone /'
umount /boot
/run/attest-node-kept/run config apply 2>&1 | sed 's/^/@@ applied /'
echo "@@ arranged $(stat -c %a /boot/ignition /boot/ignition/config.ign | tr '\n' ' ')"
"#;
const JOIN_UNIT: &str = "[Unit]
ConditionPathExists=!/etc/attest-gateway/full
After=coreos-ignition-firstboot-complete.service
Before=multi-user.target

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/join
";

/// Approves each request on a port of its own. Returns the port and the counter of requests.
fn approve(cluster: TestCluster) -> (u16, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, approved) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&approved);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let certificate = cluster.sign(&body(&stream)).unwrap();
            *count.lock().unwrap() += 1;
            let length = certificate.len();
            write!(
                &stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{certificate}"
            )
            .unwrap();
        }
    });
    (port, approved)
}

/// Returns the body of a request.
fn body(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line).unwrap() > 2 {
        if let Some(announced) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = announced.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn file(name: &str, overwrite: bool, content: &str) -> Value {
    json!({"path": format!("/etc/attest-gateway/{name}"), "mode": 0o600, "overwrite": overwrite, "contents": {"source": format!("data:,{content}")}})
}

/// Replaces a config of a pool.
fn replace(pool: &Path, set: &str, config: &Value) {
    let sample = fs::read_dir(pool.join(set)).unwrap().next().unwrap().unwrap();
    fs::write(sample.path(), config.to_string()).unwrap();
}

/// Starts a gateway with two pools that give their full config to kubelets of this cluster.
fn site(folder: &Path, cluster: &TestCluster) -> Site {
    let mut site = Site::new(folder).unwrap();
    let gateway = site.gateway();
    gateway.write("tls/kubelet-client-ca.crt", &cluster.certificate().unwrap()).unwrap();
    let settings = fs::read_to_string(gateway.settings()).unwrap();
    let client_ca = "[tls]\nclient_ca = \"tls/kubelet-client-ca.crt\"";
    fs::write(gateway.settings(), settings.replace("#: [tls]", client_ca)).unwrap();
    gateway.edit_pool("\nkubelet = \"refuse\"", "\nkubelet = \"full\"").unwrap();
    gateway.edit_pool("\nnames = []", "\nnames = [\"worker-*\"]").unwrap();
    let pools = gateway.folder().join("pools");
    let unit = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo @@ the full config is at work >/dev/ttyS0'\n[Install]\nWantedBy=multi-user.target\n";
    for (pool, overwrite) in [(POOL, true), (WRONG_POOL, false)] {
        let folder = pools.join(pool);
        if pool == WRONG_POOL {
            swtpm_tests::run(std::process::Command::new("cp").arg("-r").args([&pools.join(POOL), &folder])).unwrap();
        }
        let before = file("pre-approved", overwrite, "pre-approved");
        replace(
            &folder,
            "pre-approved",
            &json!({"ignition": {"version": "3.1.0"}, "storage": {"files": [before]}}),
        );
        let full = json!({
            "ignition": {"version": "3.1.0"},
            "storage": {"files": [before, file("full", false, "full")]},
            "systemd": {"units": [{"name": "full.service", "enabled": true, "contents": unit}]},
        });
        replace(&folder, "full", &full);
    }
    gateway.start(None).unwrap();
    site
}

fn console_lines(console: &Process, what: &str) -> Vec<String> {
    let mark = format!("@@ {what}");
    let lines = console.lines().into_iter();
    lines.filter_map(|line| Some(line.strip_prefix(&mark)?.trim().to_owned())).collect()
}

#[test]
fn debian_12_goes_from_pre_approved_to_full() {
    check(DebianRelease::Bookworm);
}

#[test]
fn debian_13_goes_from_pre_approved_to_full() {
    check(DebianRelease::Trixie);
}

#[track_caller]
fn check(release: DebianRelease) {
    let folder = TestFolder::new().unwrap();
    let cluster = TestCluster::new().unwrap();
    let mut site = site(folder.path(), &cluster);
    let (approver, approved) = approve(cluster);
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("apply").unwrap();
    let tree = vm_folder.join("disk");
    core_os::write(&tree, "usr/local/sbin/join", 0o755, JOIN).unwrap();
    core_os::write(&tree, "etc/systemd/system/join.service", 0o644, JOIN_UNIT).unwrap();
    core_os::link(&tree, "etc/systemd/system/multi-user.target.wants/join.service", "../join.service").unwrap();
    let system = site.installed(release, &tree, &vm_folder).unwrap();
    let boot = |site: &Site, name: &str| {
        let folder = site.vm_folder(name).unwrap();
        let vm = site.installed_vm(release, &system).unwrap();
        let mut vm = vm
            .kernel_argument(&format!("test.approver={approver}"))
            .pointer(&pointer)
            .start(&folder)
            .unwrap();
        vm.console()
            .wait_line(BOOT_LIMIT, |line| line.starts_with("@@ multi-user"))
            .unwrap();
        vm.wait_off(BOOT_LIMIT).unwrap();
        vm
    };
    let on_disk = |path: &str| read_from_disk(&system.disk, path).unwrap();
    let config = |name: &str| format!("/etc/attest-gateway/{name}");

    // The first boot: nothing is shown, and the stamp is gone after it.
    let first = boot(&site, "first");
    let console = first.console();
    assert_eq!(*approved.lock().unwrap(), 1, "{}", console.tail());
    assert_eq!(console_lines(console, "kept"), ["700 root 1"], "{}", console.tail());
    let refused = console_lines(console, "refused attest-node: ").join("\n");
    let twice = "not repeatable: storage.files[0] (/etc/attest-gateway/pre-approved): it exists, and overwrite is not true";
    assert!(
        refused.contains(twice) && refused.contains("[ignition-not-repeatable]"),
        "{refused}"
    );
    assert_eq!(console_lines(console, "nothing"), ["grub"], "{}", console.tail());
    // As on CoreOS, /boot is a filesystem of its own for a moment, and read-only. For others it stays so.
    let read_only = console_lines(console, "read-only attest-node: ").join("\n");
    assert!(read_only.contains("is in place"), "{read_only}{}", console.tail());
    let apart = console_lines(console, "apart").join("\n");
    assert!(
        apart.starts_with("grub ignition ignition.firstboot touch: ") && apart.ends_with("Read-only file system"),
        "{apart}"
    );
    assert!(
        console_lines(console, "undone attest-node: reverted: ").len() == 1,
        "{}",
        console.tail()
    );
    let applied = console_lines(console, "applied attest-node: ").join("\n");
    assert!(applied.contains("Ignition applies it at the next boot: reboot soon"), "{applied}");
    assert_eq!(console_lines(console, "arranged"), ["700 600"], "{}", console.tail());
    assert_eq!(on_disk(&config("pre-approved")).as_deref(), Some(b"pre-approved".as_slice()));
    assert_eq!(on_disk(&config("full")), None);
    let arranged = on_disk(core_os::CONFIG).unwrap();
    let mut full = site.gateway().pool_config("full").unwrap();
    // What comes there until the reboot does not stop that boot.
    for file in full.pointer_mut("/storage/files").unwrap().as_array_mut().unwrap() {
        file.as_object_mut().unwrap().insert("overwrite".to_owned(), json!(true));
    }
    assert_eq!(serde_json::from_slice::<Value>(&arranged).unwrap(), full);
    let arguments = core_os::kernel_arguments(&system.disk).unwrap();
    assert!(
        arguments.contains(" ignition.firstboot ") && arguments.ends_with(" systemd.condition-first-boot=1"),
        "{arguments}"
    );

    // The second one: Ignition has what it needs, and the gateway is not asked.
    let recorded = site.gateway().records().unwrap().len();
    let second = boot(&site, "second");
    let console = second.console();
    assert_eq!(console_lines(console, "the full config is at work").len(), 1, "{}", console.tail());
    assert_eq!(console_lines(console, "failed"), [""; 0], "{}", console.tail());
    for name in ["pre-approved", "full"] {
        let path = config(name);
        assert_eq!(on_disk(&path), content_of(&full, &path).unwrap(), "{path}");
    }
    assert_eq!((on_disk(core_os::STAMP), on_disk(core_os::CONFIG)), (None, None));
    assert_eq!(core_os::kernel_arguments(&system.disk).unwrap(), "root=LABEL=root rw");
    let records = site.gateway().records().unwrap();
    assert_eq!(records.len(), recorded);
    // The first boot has reported that its attestation failed.
    let decisions: Vec<_> = records
        .iter()
        .filter(|record| record.decision() != "report")
        .map(|record| {
            (
                record.shown(),
                record.verdict(),
                record.grant(),
                record.identity(),
                record.text("/spec_version"),
            )
        })
        .collect();
    let kubelet = ("kubelet", "served", Some("full"), Some("kubelet:worker-1"), Some(IGNITION_SPEC));
    assert_eq!(
        decisions.first().map(|first| (first.0, first.1, first.2)),
        Some(("nothing", "served", Some("pre-approved")))
    );
    assert_eq!(decisions.get(1..), Some([kubelet; 3].as_slice()));
    assert!(records.last().unwrap().text("/name") == Some(NODE));
}
