//! The gateway's systemd unit under a real systemd, on a host that is no node: start, reload, a watchdog that restarts a stopped gateway,
//! and failures that end with the mended settings.
use std::time::Duration;

use swtpm_tests::{DebianRelease, core_os};

use crate::host_steps::{StepsHost, add_gateway, said};

/// Maximum duration of the boot and all steps, on a busy machine.
const LIMIT: Duration = Duration::from_secs(480);
/// Shorter times than those of the unit, so that the test does not wait for them. Five failures come within the ten seconds that systemd
/// counts by default.
const DROP_IN: &str = "[Service]\nWatchdogSec=10s\nRestartSec=200ms\n";
/// The steps. Each says one line, which the test expects.
const STEPS: &str = r#"
systemd-sysusers
install -d -o attest-gateway -g attest-gateway -m 0750 /etc/attest-gateway
set_up
cp $settings /run/good.toml

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
    let host = StepsHost::new(release, STEPS, |tree| {
        add_gateway(tree);
        core_os::write(tree, "etc/systemd/system/attest-gateway.service.d/test.conf", 0o644, DROP_IN).unwrap();
    });
    let mut vm = host.vm().start(host.folder.path()).unwrap();
    vm.wait_off(LIMIT).unwrap();
    assert_eq!(
        said(&vm),
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
