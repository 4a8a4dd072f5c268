//! Commands on a full disk: each says so, and changes nothing.

use std::process::Command;

/// Runs commands on a small disk of their own: `init` before it is full, the others afterwards. Prints `== ARGUMENTS` before each.
const SCRIPT: &str = r#"
mount -t tmpfs -o size=4m tmpfs "$1" && cd "$1"
"$0" --quiet init gw --host gateway.example
export ATTEST_GATEWAY_CONFIG=gw/gateway.toml
"$0" --quiet ek add $(printf '%064d' 1) --name worker-1
before=$(sha256sum gw/tls/* gw/state/gateway.db)
head --bytes=1G /dev/zero > filler 2>/dev/null
while read -r arguments; do
    echo "== $arguments"
    "$0" $arguments 2>&1
    echo "exit code $?"
done
rm filler
[ "$before" = "$(sha256sum gw/tls/* gw/state/gateway.db)" ] && echo "== unchanged"
"$0" machines list
"#;

#[test]
fn each_command_names_a_full_disk() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount a small disk");
        return;
    }
    let commands = [
        "ek add 2222222222222222222222222222222222222222222222222222222222222222 --name worker-2",
        "ek remove 0000000000000000000000000000000000000000000000000000000000000001",
        "node revoke worker-1 --anyway",
        "machines list",
        "token create --pool worker",
        "certificate renew",
        "ca introduce",
        "check",
        "backup a.backup",
        "upgrade --commit",
        "store accept",
        "init other --host gateway.example",
    ];
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("commands");
    std::fs::write(&input, commands.map(|command| format!("{command}\n")).concat()).unwrap();
    let disk = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", SCRIPT, env!("CARGO_BIN_EXE_attest-gateway")])
        .arg(disk.path())
        .stdin(std::fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let mut parts = said.split("== ").skip(1);
    for command in commands {
        let part = parts.next().unwrap_or_default();
        let named = part.contains("the disk is full") || part.contains("No space left on device");
        assert!(
            part.starts_with(command) && named && part.contains("exit code 1"),
            "{command}: {said}"
        );
    }
    assert!(parts.next().unwrap_or_default().starts_with("unchanged\n"), "{said}");
    assert!(said.contains("worker-1") && !said.ends_with("worker-2"), "{said}");
}
