//! The Debian package of `make release` under a real systemd: installation, upgrade while the service runs, going back, removal and purge,
//! and hosts whose disk is full or whose power fails in the middle of an upgrade. A node attests after each step: its EK is in the store that the gateway keeps.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use swtpm_tests::{DebianRelease, Swtpm, TestEndorsement, VmBuilder, core_os, run};

use crate::host_steps::{StepsHost, said};

/// Maximum duration of one boot and its steps, on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Addition to the version of the package that the test upgrades to.
const NEWER: &str = "+newer";
/// Addition to the newer package's scripts: the test's command for this moment of the upgrade.
const MOMENT: &str = "[ ! -x /run/moment ] || /run/moment";
/// Moments of an upgrade: before files are unpacked, while they are, and before the service is restarted.
const MOMENTS: [&str; 3] = ["preinst", "unpacking", "postinst"];
/// Functions of the steps.
const FUNCTIONS: &str = r#"
older=/srv/older.deb
newer=/srv/newer.deb
# Of the image's build: without its waits for the disk, a host that loses power loses files.
rm -f /etc/dpkg/dpkg.cfg.d/*
package() { dpkg "$@" || say "failed: dpkg $*"; }
version() { dpkg-query --show --showformat '${Version}' attest-gateway; }
node() { /usr/lib/attest-node/run "$@"; }
begin() {
    set_up
    systemctl enable --now attest-gateway
    gateway ek add "$(node ek list | sed -n 's/^\*.* \([0-9a-f]\{64\}\) .*/\1/p')"
    gateway pointer create --pool worker --url https://127.0.0.1:22623 >/srv/pointer.ign
}
# Says the version, and how many attestations the log has after one more.
attest() {
    until_true answers
    node attest --pointer /srv/pointer.ign --out /run/user.ign --state /run/node --kept /run/kept
    say "$1: $(version), attestation $(grep -c '"verdict":"trusted"' /var/lib/attest-gateway/attestation.jsonl)"
}
audit() { runuser -u attest-gateway -- attest-audit --config $settings log audit --without-checkpoints >/run/audit && say whole || cat /run/audit; }
units() { find /etc/systemd/system /usr/lib/systemd/system -name '*attest-gateway*' | wc -l; }
kept() { [ -s $settings ] && [ -s /var/lib/attest-gateway/attestation.jsonl ] && [ -s /var/lib/attest-gateway/gateway.db ] && echo kept; }
"#;
/// Steps of the package's life.
const LIFE: &str = r#"
package --install $older
say "installed: $(systemctl is-enabled attest-gateway), $(show ActiveState)"
begin
attest started

# The disk is full before all is unpacked: 24 MiB are left, next to the 16 that ext4 keeps for itself.
fallocate --length "$(($(stat --file-system --format='%f * %S' /) - (24 + 16) * 1048576))" /srv/filler || say 'failed: fallocate'
dpkg --install $newer && say 'failed: the disk is not full'
rm /srv/filler
attest 'disk full'

# A gateway that dies in the middle of its upgrade.
printf '#!/bin/sh\nsystemctl kill --kill-who=main --signal=KILL attest-gateway\n' >/run/moment
chmod 755 /run/moment
pid=$(show MainPID)
package --install $newer
[ "$(show MainPID)" != "$pid" ] && attest upgraded
say "killed: $(journalctl --unit=attest-gateway --output=cat --no-pager | grep -c 'status=9/KILL')"
package --install $older
attest 'went back'
audit

# A setting that the newer release refuses: the older one serves on.
rm /run/moment
sed -i '1i no_such_setting = 1' $settings
pid=$(show MainPID)
dpkg --install $newer | sed -n 's/^attest-gateway: \(not restarted\),.*/@@ step \1/p'
[ "$(show MainPID)" = "$pid" ] && attest 'setting refused'
sed -i 1d $settings
package --install $older

package --remove attest-gateway
say "removed: $(show ActiveState), $(command -v attest-gateway || echo no program), $(kept)"
package --purge attest-gateway | sed 's/^attest-gateway: /@@ step purge: /'
say "purged: $(units) units, $(kept)"
package --install $older
systemctl start attest-gateway
attest 'installed again'
audit
"#;
/// Steps of each boot of a host whose power fails at the moment that its kernel's command line names.
const POWER_CUT: &str = r#"
moment=$(sed -n 's/.*moment=\([a-z]*\).*/\1/p' /proc/cmdline)
if [ -e $settings ]; then
    attest booted
    dpkg --configure --pending || say "failed: dpkg --configure"
    package --install $newer
    attest upgraded
    find /usr -name '*.dpkg-*' -exec echo '@@ step left:' {} +
    package --install $older
    [ -n "$moment" ] || audit
else
    package --install $older
    begin
    attest started
fi
cut() {
    say "cut: $1"
    sleep infinity
}
case $moment in
    '') exit ;;
    unpacking)
        (
            until [ -e /usr/bin/attest-gateway.dpkg-new ]; do :; done
            kill -STOP $(pidof dpkg dpkg-deb)
            cut unpacking
        ) &
        ;;
    *)
        printf '#!/bin/sh\n[ "$1" != %s ] || { echo "@@ step cut: $1"; sleep infinity; }\n' "$moment" >/run/moment
        chmod 755 /run/moment
        ;;
esac
sync
dpkg --install $newer
say 'the upgrade has ended'
"#;

#[test]
#[ignore = "make release-check: packages of make release"]
fn debian_13_installs_upgrades_and_removes_the_package() {
    lives(DebianRelease::Trixie);
}

#[test]
#[ignore = "make release-check: packages of make release"]
fn debian_12_installs_upgrades_and_removes_the_package() {
    lives(DebianRelease::Bookworm);
}

#[test]
#[ignore = "make release-check: packages of make release"]
fn debian_13_survives_a_power_cut_in_an_upgrade() {
    survives_power_cuts(DebianRelease::Trixie);
}

#[test]
#[ignore = "make release-check: packages of make release"]
fn debian_12_survives_a_power_cut_in_an_upgrade() {
    survives_power_cuts(DebianRelease::Bookworm);
}

#[track_caller]
fn lives(release: DebianRelease) {
    let (host, older) = host_with_packages(release, LIFE);
    let newer = format!("{older}{NEWER}");
    let tpm = Swtpm::start(host.folder.path(), TestEndorsement::None).unwrap();
    let mut vm = host.vm().tpm(&tpm).start(host.folder.path()).unwrap();
    vm.wait_off(LIMIT).unwrap();
    assert_eq!(
        said(&vm),
        [
            "installed: disabled, inactive".to_owned(),
            format!("started: {older}, attestation 1"),
            format!("disk full: {older}, attestation 2"),
            format!("upgraded: {newer}, attestation 3"),
            "killed: 2".to_owned(),
            format!("went back: {older}, attestation 4"),
            "whole".to_owned(),
            "not restarted".to_owned(),
            format!("setting refused: {newer}, attestation 5"),
            "removed: inactive, no program, kept".to_owned(),
            "purge: settings, keys and the attestation log stay, for audits. \
             To delete them: rm -r /etc/attest-gateway /var/lib/attest-gateway"
                .to_owned(),
            "purged: 0 units, kept".to_owned(),
            format!("installed again: {older}, attestation 6"),
            "whole".to_owned(),
        ],
        "{}",
        vm.console().tail()
    );
}

#[track_caller]
fn survives_power_cuts(release: DebianRelease) {
    let (host, older) = host_with_packages(release, POWER_CUT);
    let newer = format!("{older}{NEWER}");
    // dpkg names the newer version when it has unpacked all.
    let version_after = |moment: &str| if moment == "postinst" { &newer } else { &older };
    let boot = |vm: VmBuilder, boot: usize| {
        let tpm = match boot {
            0 => Swtpm::start(host.folder.path(), TestEndorsement::None),
            _ => Swtpm::restart(host.folder.path()),
        };
        let tpm = tpm.unwrap();
        (vm.tpm(&tpm).start(host.folder.path()).unwrap(), tpm)
    };
    let recovers = |after| {
        [
            format!("booted: {}, attestation", version_after(after)),
            format!("upgraded: {newer}, attestation"),
        ]
    };
    let mut expected = vec![format!("started: {older}, attestation")];
    let mut attestations = 0;
    for (number, moment) in MOMENTS.iter().enumerate() {
        let (vm, tpm) = boot(host.vm().kernel_argument(&format!("moment={moment}")), number);
        vm.console()
            .wait_line(LIMIT, |line| line.trim() == format!("@@ step cut: {moment}"))
            .unwrap();
        expect(&said(&vm), &expected, &mut attestations, &format!("cut: {moment}"));
        drop((vm, tpm));
        expected = recovers(moment).to_vec();
    }
    let (mut vm, _tpm) = boot(host.vm(), MOMENTS.len());
    vm.wait_off(LIMIT).unwrap();
    expect(&said(&vm), &expected, &mut attestations, "whole");
}

/// Asserts the lines of a boot; those about attestations count on.
#[track_caller]
fn expect(said: &[String], attested: &[String], attestations: &mut usize, last: &str) {
    let mut expected: Vec<String> = Vec::new();
    for line in attested {
        *attestations += 1;
        expected.push(format!("{line} {attestations}"));
    }
    expected.push(last.to_owned());
    assert_eq!(said, expected);
}

/// Returns a host with the package, with a newer one of the same content, and with the node's program and libraries; and the package's version.
#[track_caller]
fn host_with_packages(release: DebianRelease, steps: &str) -> (StepsHost, String) {
    let older = package("attest-gateway");
    let steps = format!("{FUNCTIONS}{steps}");
    let host = StepsHost::new(release, &steps, |tree| {
        let folder = tree.join("srv");
        fs::create_dir(&folder).unwrap();
        fs::copy(&older, folder.join("older.deb")).unwrap();
        repack(&older, &folder.join("newer.deb"));
        add_node(tree);
    });
    let version = run(Command::new("dpkg-deb").arg("--field").arg(&older).arg("Version")).unwrap();
    (host, version.trim().to_owned())
}

/// Returns the path of a package in `build/release`.
#[track_caller]
fn package(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/release");
    let entries = fs::read_dir(&folder).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    let files: Vec<PathBuf> = entries.unwrap_or_default();
    let is_package = |file: &&PathBuf| {
        let file_name = file.file_name().unwrap().to_string_lossy();
        file_name.starts_with(&format!("{name}_")) && file_name.ends_with(".deb")
    };
    match files.iter().find(is_package) {
        Some(file) => file.clone(),
        None => panic!(
            "no {name}_VERSION_ARCHITECTURE.deb in {}: run `make release` first",
            folder.display()
        ),
    }
}

/// Makes a newer package with the same content, whose scripts run the test's command for their moment.
fn repack(older: &Path, newer: &Path) {
    let tree = newer.with_extension("tree");
    run(Command::new("dpkg-deb").arg("--raw-extract").args([older, tree.as_path()])).unwrap();
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control).unwrap();
    let version = text.lines().find(|line| line.starts_with("Version: ")).unwrap();
    fs::write(&control, text.replace(version, &format!("{version}{NEWER}"))).unwrap();
    core_os::write(&tree, "DEBIAN/preinst", 0o755, &format!("#!/bin/sh\n{MOMENT} preinst\n")).unwrap();
    let postinst = tree.join("DEBIAN/postinst");
    let text = fs::read_to_string(&postinst).unwrap();
    let begun = text.replacen("#!/bin/sh\n", &format!("#!/bin/sh\n{MOMENT} postinst\n"), 1);
    assert_ne!(begun, text);
    fs::write(&postinst, begun).unwrap();
    // Quick to unpack where the VM's processor is emulated.
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zgzip", "-z1", "--build"])
        .args([tree.as_path(), newer]))
    .unwrap();
    fs::remove_dir_all(&tree).unwrap();
}

/// Adds the node's program of its package and its libraries of this machine, as in a node's initrd.
fn add_node(tree: &Path) {
    let package_tree = tree.with_extension("node");
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .args([package("attest-node").as_path(), package_tree.as_path()]))
    .unwrap();
    let archive = package_tree.join("node.cpio.gz");
    run(Command::new(package_tree.join("usr/lib/attest-node/initrd/build"))
        .arg(package_tree.join("usr/bin/attest-node"))
        .arg(&archive))
    .unwrap();
    let unpack = "gzip --decompress --stdout \"$1\" | cpio --extract --make-directories --quiet 'usr/lib/attest-node/*'";
    run(Command::new("sh").args(["-c", unpack, "sh"]).arg(&archive).current_dir(tree)).unwrap();
    fs::remove_dir_all(&package_tree).unwrap();
}
