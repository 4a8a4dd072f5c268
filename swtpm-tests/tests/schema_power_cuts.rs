//! A host whose power fails while the schema of its store is raised, and just after: the schema is the old one or the new one.
use std::time::Duration;

use swtpm_tests::DebianRelease;

use crate::host_steps::{StepsHost, add_gateway, said};

/// Maximum duration of one boot and its steps, on a busy machine.
const LIMIT: Duration = Duration::from_secs(480);
/// Steps of each boot; the kernel's command line names the moment of the power cut. A debug build is the next release with a variable.
const STEPS: &str = r#"
moment=$(sed -n 's/.*moment=\([a-z]*\).*/\1/p' /proc/cmdline)
next() { ATTEST_TEST_NEXT_SCHEMA=1 gateway "$@"; }
schema() { next upgrade --output json | sed -n 's/.*"schema": *\([0-9]*\).*/\1/p'; }
if [ -e $settings ]; then
    say "found: schema $(schema), $(next machines list | grep -c worker-1) node"
    gateway machines list >/run/list 2>&1
    say "older release: exit $?"
else
    systemd-sysusers
    install -d -o attest-gateway -g attest-gateway -m 0750 /etc/attest-gateway
    set_up
    systemctl start attest-gateway
    until_true answers
    gateway node revoke worker-1 --anyway >/run/revoked
    systemctl stop attest-gateway
    sync
fi
case $moment in
    raising) say cut; next upgrade --commit >/run/raised ;;
    raised) next upgrade --commit >/run/raised; say cut ;;
    *) exit ;;
esac
sleep infinity
"#;

#[test]
#[ignore = "make release-check: another minute"]
fn a_power_cut_leaves_the_schema_old_or_new() {
    let host = StepsHost::new(DebianRelease::Trixie, STEPS, add_gateway);
    let cut = |moment: &str| {
        let vm = host
            .vm()
            .kernel_argument(&format!("moment={moment}"))
            .start(host.folder.path())
            .unwrap();
        vm.console().wait_line(LIMIT, |line| line.trim() == "@@ step cut").unwrap();
        said(&vm)
    };
    assert_eq!(cut("raising"), ["cut"]);
    let found = cut("raised");
    let states = [
        ["found: schema 1, 1 node", "older release: exit 0", "cut"],
        ["found: schema 2, 1 node", "older release: exit 2", "cut"],
    ];
    assert!(states.iter().any(|state| found == *state), "{found:?}");
    // What the command has said stays.
    let mut vm = host.vm().start(host.folder.path()).unwrap();
    vm.wait_off(LIMIT).unwrap();
    assert_eq!(said(&vm), states[1][..2], "{}", vm.console().tail());
}
