//! A Debian host that is no node. It runs a test's steps as root at each boot, and says their results on its console.
use std::fs;
use std::path::Path;
use std::process::Command;

use swtpm_tests::{Accelerator, DebianRelease, Images, Programs, TestFolder, Vm, VmBuilder, WholeBoot, core_os, run};

const UNIT: &str = "[Unit]
Before=multi-user.target

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/steps
";
/// Beginning of the steps: functions. The test expects the lines of `say`.
const FUNCTIONS: &str = r#"#!/bin/sh
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
gateway() { runuser -u attest-gateway -- attest-gateway --config $settings "$@"; }
set_up() {
    runuser -u attest-gateway -- attest-gateway init /etc/attest-gateway --host localhost --ip 127.0.0.1 >/dev/null
    sed -i '1i state = "/var/lib/attest-gateway"' $settings
}
ip link set lo up
"#;

/// The host's disk and the kernel's files.
pub struct StepsHost {
    pub folder: TestFolder,
    images: Images,
    boot: WholeBoot,
}

impl StepsHost {
    /// Makes a host with these steps, and with the files that `add` writes to a tree.
    pub fn new(release: DebianRelease, steps: &str, add: impl FnOnce(&Path)) -> Self {
        let folder = TestFolder::new().unwrap();
        let images = Images::whole(release).unwrap();
        let boot = images.host_boot(folder.path()).unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        add(&tree);
        core_os::write(&tree, "usr/local/sbin/steps", 0o755, &format!("{FUNCTIONS}{steps}")).unwrap();
        core_os::write(&tree, "etc/systemd/system/steps.service", 0o644, UNIT).unwrap();
        let wanted = "etc/systemd/system/multi-user.target.wants/steps.service";
        core_os::link(&tree, wanted, "../steps.service").unwrap();
        core_os::add_to_disk(&boot.disk, &tree).unwrap();
        fs::remove_dir_all(&tree).unwrap();
        Self { folder, images, boot }
    }

    /// Returns the VM of one boot.
    pub fn vm(&self) -> VmBuilder {
        Vm::builder(&self.images.kernel(), &self.boot.initrd)
            .accelerator(Accelerator::detect(&Images::fast().unwrap()))
            .memory_mib(1024)
            .disk(&self.boot.disk)
            .kernel_argument("root=LABEL=root rw")
    }
}

/// Returns the results of the steps so far.
pub fn said(vm: &Vm) -> Vec<String> {
    let step = |line: &String| line.trim().strip_prefix("@@ step ").map(str::to_owned);
    vm.console().lines().iter().filter_map(step).collect()
}

/// Adds the gateway's unit, its user, and a debug build.
pub fn add_gateway(tree: &Path) {
    for (path, text) in [
        (
            "usr/lib/systemd/system/attest-gateway.service",
            include_str!("../../gateway/dist/attest-gateway.service"),
        ),
        (
            "usr/lib/sysusers.d/attest-gateway.conf",
            include_str!("../../gateway/dist/attest-gateway.sysusers"),
        ),
    ] {
        core_os::write(tree, path, 0o644, text).unwrap();
    }
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    // Without symbols it fits on the disk.
    run(Command::new("strip")
        .arg("-o")
        .arg(tree.join("usr/bin/attest-gateway"))
        .arg(&Programs::build().unwrap().gateway))
    .unwrap();
}
