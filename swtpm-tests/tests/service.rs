//! The gateway's systemd unit under a real systemd, on a host that is no node: start, reload, a watchdog that restarts a stopped gateway,
//! and failures that end with the mended settings.
use std::fs;
use std::process::Command;
use std::time::Duration;

use swtpm_tests::{Accelerator, DebianRelease, Images, Programs, TestFolder, Vm, core_os, run};

/// Maximum duration of the boot and all steps, on a busy machine.
const LIMIT: Duration = Duration::from_secs(480);
/// Shorter times than those of the unit, so that the test does not wait for them. Five failures come within the ten seconds that systemd
/// counts by default.
const DROP_IN: &str = "[Service]\nWatchdogSec=10s\nRestartSec=200ms\n";
const UNIT: &str = "[Unit]
Before=multi-user.target

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/steps
";
/// The steps. Each says one line, which the test expects.
const STEPS: &str = r#"#!/bin/sh
exec >/dev/ttyS0 2>&1
settings=/etc/attest-gateway/gateway.toml
show() { systemctl show --property="$1" --value attest-gateway; }
say() { echo "@@ step $*"; }
until_true() {
    for attempt in $(seq 400); do
        eval "$1" && return
        sleep 0.25
    done
    say "timeout: $1"
}
answers() { [ "$(curl --silent --insecure --output /dev/null --write-out '%{http_code}' https://127.0.0.1:22623/readyz)" = 200 ]; }

systemd-sysusers
install -d -o attest-gateway -g attest-gateway -m 0750 /etc/attest-gateway
runuser -u attest-gateway -- attest-gateway init /etc/attest-gateway --host localhost --ip 127.0.0.1 >/dev/null
sed -i '1i state = "/var/lib/attest-gateway"' $settings
cp $settings /run/good.toml
ip link set lo up

systemctl start attest-gateway
answers && say "started: $(show SubState), $(show StatusText)"

printf '\n[limits]\nconnections = 77\n' >>$settings
systemctl reload attest-gateway && say reload accepted
until_true '[ "$(show StatusText)" != serving ] && [ "$(show SubState)" = running ]'
say "reloaded: $(show StatusText)"

pid=$(show MainPID)
kill -STOP "$pid"
until_true '[ "$(show NRestarts)" = 1 ] && [ "$(show StatusText)" = serving ] && answers'
say "watchdog: $(journalctl --unit=attest-gateway --output=cat --no-pager | grep -c 'Watchdog timeout') timeout, $(show NRestarts) restart"

printf '\n[nonsense]\n' >>$settings
systemctl restart attest-gateway || say restart failed
until_true '[ "$(show NRestarts)" -gt 6 ]'
say "failures: $(show ActiveState)"
cp /run/good.toml $settings
until_true answers
say "mended: $(show SubState), $(show StatusText)"

systemctl stop attest-gateway
say "stopped: $(show ActiveState), $(show Result)"
journalctl --unit=attest-gateway --output=cat --no-pager | sed 's/^/@@ journal /'
"#;

#[test]
fn debian_13_runs_the_unit() {
    check(DebianRelease::Trixie);
}

#[test]
#[ignore = "make release-check: another minute"]
fn debian_12_runs_the_unit() {
    check(DebianRelease::Bookworm);
}

#[track_caller]
fn check(release: DebianRelease) {
    let folder = TestFolder::new().unwrap();
    let images = Images::whole(release).unwrap();
    let boot = images.host_boot(folder.path()).unwrap();
    let tree = folder.path().join("tree");
    let unit = include_str!("../../gateway/dist/attest-gateway.service");
    let sysusers = include_str!("../../gateway/dist/attest-gateway.sysusers");
    for (path, mode, text) in [
        ("usr/lib/systemd/system/attest-gateway.service", 0o644, unit),
        ("usr/lib/sysusers.d/attest-gateway.conf", 0o644, sysusers),
        ("etc/systemd/system/attest-gateway.service.d/test.conf", 0o644, DROP_IN),
        ("usr/local/sbin/steps", 0o755, STEPS),
        ("etc/systemd/system/steps.service", 0o644, UNIT),
    ] {
        core_os::write(&tree, path, mode, text).unwrap();
    }
    core_os::link(
        &tree,
        "etc/systemd/system/multi-user.target.wants/steps.service",
        "../steps.service",
    )
    .unwrap();
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    let gateway = &Programs::build().unwrap().gateway;
    // Without symbols it fits on the disk.
    run(Command::new("strip")
        .arg("-o")
        .arg(tree.join("usr/bin/attest-gateway"))
        .arg(gateway))
    .unwrap();
    core_os::add_to_disk(&boot.disk, &tree).unwrap();
    let mut vm = Vm::builder(&images.kernel(), &boot.initrd)
        .accelerator(Accelerator::detect(&Images::fast().unwrap()))
        .memory_mib(1024)
        .disk(&boot.disk)
        .kernel_argument("root=LABEL=root rw")
        .start(folder.path())
        .unwrap();
    vm.wait_off(LIMIT).unwrap();
    let lines = vm.console().lines();
    let steps: Vec<&str> = lines.iter().filter_map(|line| line.trim().strip_prefix("@@ step ")).collect();
    assert_eq!(
        steps,
        [
            "started: running, serving",
            "reload accepted",
            "reloaded: serving; last reload: reloaded nothing; gateway.toml: limits.connections: changed, needs a restart",
            "watchdog: 1 timeout, 1 restart",
            "restart failed",
            "failures: activating",
            "mended: running, serving",
            "stopped: inactive, success",
        ],
        "{}",
        vm.console().tail()
    );
}
