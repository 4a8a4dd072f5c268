//! Order of attest-node's units in the initrds of distributions (`docs/how-to/images.md`): no cycle, after Ignition finds its config, and
//! before it fetches others. Without a gateway, a boot is the same as without attest-node.
#[path = "initrds/distributions.rs"]
mod distributions;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use distributions::Distribution;
use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::stand_in::StandIn;
use swtpm_tests::{DebianRelease, GUEST_VIEW_OF_HOST, Images, Swtpm, TestFolder, Vm};

const UNIT: &str = "attest-node.service";
/// Unit that keeps the program for the booted system.
const KEEP: &str = "attest-node-keep.service";
/// Unit that removes the credentials by which gateways know the node.
const FORGET: &str = "attest-node-forget.service";
/// Units that end the boot: one waits for Ignition, one for nothing.
const CLOSE: &str = "attest-node-close.service";
const CLOSE_NOW: &str = "attest-node-close-now.service";
/// Unit that reports a failed boot before somebody gets a shell.
const REPORT: &str = "attest-node-report@.service";
/// Drop-in of the units that resume from hibernation.
const RESUME: &str = "attest-node-resume.conf";
const UNITS: [&str; 5] = [UNIT, KEEP, FORGET, CLOSE, CLOSE_NOW];
/// Platform without a config of its own: Ignition finds the pointer in `user.ign`, which the distribution has written, and nowhere else.
const PLATFORM: &str = "metal";
/// Maximum duration of a boot: emulated on two busy cores it takes a minute or two.
const BOOT_LIMIT: Duration = Duration::from_secs(400);

fn our_unit(name: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(repository.join("attest/node/dracut/80attest-node").join(name)).unwrap()
}

/// Returns the messages of a release's systemd about ordering cycles in a boot with these units; its own units are in `systemd`. `first`
/// selects a first boot or a later one.
fn cycles(images: &Images, systemd: &Path, distribution: &Distribution, first: bool, ours: [&str; 5]) -> Vec<String> {
    cycles_with(images, systemd, distribution, first, ours, None)
}

/// Like [`cycles`], for a boot in which this unit resumes from hibernation, if any.
fn cycles_with(
    images: &Images,
    systemd: &Path,
    distribution: &Distribution,
    first: bool,
    ours: [&str; 5],
    resume: Option<&str>,
) -> Vec<String> {
    let tree = TestFolder::new().unwrap();
    distribution.write(tree.path());
    let units = tree.path().join("usr/lib/systemd/system");
    for (name, text) in UNITS.into_iter().zip(ours) {
        fs::write(units.join(name), text).unwrap();
    }
    fs::write(units.join(REPORT), our_unit(REPORT)).unwrap();
    fs::create_dir_all(units.join("emergency.service.wants")).unwrap();
    symlink(
        format!("../{REPORT}"),
        units.join("emergency.service.wants/attest-node-report@boot.service"),
    )
    .unwrap();
    // The links that Ignition's generator makes on a first boot and on others, and that our dracut module makes.
    let ignition = if first {
        "ignition-complete.target"
    } else {
        "ignition-subsequent.target"
    };
    for (link, to) in [
        ("initrd.target.requires", ignition),
        ("initrd.target.wants", KEEP),
        ("initrd.target.wants", CLOSE),
        ("ignition-subsequent.target.wants", CLOSE_NOW),
        ("emergency.service.wants", CLOSE_NOW),
        ("ignition-complete.target.wants", UNIT),
        ("ignition-complete.target.wants", FORGET),
    ] {
        fs::create_dir_all(units.join(link)).unwrap();
        symlink(format!("../{to}"), units.join(link).join(to)).unwrap();
    }
    if let Some(resume) = resume {
        // What systemd's generator makes for `resume=`, and our drop-in.
        let wants = units.join("sysinit.target.wants");
        fs::create_dir_all(&wants).unwrap();
        symlink(format!("../{resume}"), wants.join(resume)).unwrap();
        let folder = units.join(format!("{resume}.d"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("attest-node.conf"), our_unit(RESUME)).unwrap();
    }
    let said = images.verify_unit(&[&units, systemd], "initrd.target").unwrap();
    said.lines()
        .filter(|line| line.contains("ordering cycle"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn no_distribution_has_an_ordering_cycle() {
    let all = [
        distributions::debian(),
        distributions::fedora_coreos(),
        distributions::fedora_coreos_on_iscsi(),
        distributions::rhel_coreos(),
        distributions::micro_os(),
        distributions::flatcar(),
    ];
    let [unit, keep, forget, close, close_now] = UNITS.map(our_unit);
    for release in [DebianRelease::Bookworm, DebianRelease::Trixie] {
        let folder = TestFolder::new().unwrap();
        let images = Images::whole(release).unwrap();
        let systemd = images.initrd_units(folder.path()).unwrap();
        // Debian's own Ignition is not in the way of the others.
        fs::remove_dir_all(systemd.join("ignition-complete.target.requires")).unwrap();
        for distribution in &all {
            for first in [true, false] {
                let found = cycles(&images, &systemd, distribution, first, [&unit, &keep, &forget, &close, &close_now]);
                assert!(found.is_empty(), "{} {release:?}, first: {first}: {found:#?}", distribution.name);
            }
        }
        // What was wrong, and that this test sees it.
        let wrong = unit.replace("\nAfter=ignition-fetch-offline", "\nAfter=basic.target ignition-fetch-offline");
        assert_ne!(wrong, unit);
        for distribution in &all {
            let found = cycles(&images, &systemd, distribution, true, [&wrong, &keep, &forget, &close, &close_now]);
            let deleted = found.iter().any(|line| line.contains("deleted to break ordering cycle"));
            assert_eq!(
                deleted,
                distribution.name == "Flatcar",
                "{} {release:?}: {found:#?}",
                distribution.name
            );
        }
        // And it sees the other unit, which is in later boots, too.
        let wrong = keep.replace("\nBefore=initrd.target", "\nBefore=sysinit.target\nAfter=basic.target");
        assert_ne!(wrong, keep);
        for first in [true, false] {
            let found = cycles(
                &images,
                &systemd,
                &distributions::debian(),
                first,
                [&unit, &wrong, &forget, &close, &close_now],
            );
            assert!(!found.is_empty(), "{release:?}, first: {first}");
        }
        let wrong = forget.replace(
            "\nAfter=ignition-files.service",
            "\nAfter=ignition-files.service ignition-complete.target",
        );
        assert_ne!(wrong, forget);
        for distribution in &all {
            let found = cycles(&images, &systemd, distribution, true, [&unit, &keep, &wrong, &close, &close_now]);
            assert!(!found.is_empty(), "{} {release:?}", distribution.name);
        }
        // And those that end the boot: what waits for Ignition cannot be before volumes are unlocked, where there are some.
        let wrong = close.replace(
            "\nBefore=ignition-disks.service",
            "\nWants=cryptsetup-pre.target\nBefore=ignition-disks.service cryptsetup-pre.target\nAfter=sysinit.target",
        );
        assert_ne!(wrong, close);
        let found = cycles(
            &images,
            &systemd,
            &distributions::flatcar(),
            true,
            [&unit, &keep, &forget, &wrong, &close_now],
        );
        assert!(!found.is_empty(), "{release:?}");
    }
}

/// Holds on a first boot, too, where systemd's resume unit is before Ignition's dependencies.
#[test]
fn resume_units_wait_for_boot_complete_without_cycles() {
    let all = [
        distributions::debian(),
        distributions::fedora_coreos(),
        distributions::fedora_coreos_on_iscsi(),
        distributions::rhel_coreos(),
        distributions::micro_os(),
        distributions::flatcar(),
    ];
    let [unit, keep, forget, close, close_now] = UNITS.map(our_unit);
    for (release, resume) in [
        (DebianRelease::Bookworm, "systemd-hibernate-resume@dev-vdb.service"),
        (DebianRelease::Trixie, "systemd-hibernate-resume.service"),
    ] {
        let folder = TestFolder::new().unwrap();
        let images = Images::whole(release).unwrap();
        let systemd = images.initrd_units(folder.path()).unwrap();
        fs::remove_dir_all(systemd.join("ignition-complete.target.requires")).unwrap();
        for distribution in &all {
            for first in [true, false] {
                let ours = [&*unit, &*keep, &*forget, &*close, &*close_now];
                let found = cycles_with(&images, &systemd, distribution, first, ours, Some(resume));
                assert!(found.is_empty(), "{} {release:?}, first: {first}: {found:#?}", distribution.name);
            }
        }
        // The one that waits for Ignition cannot be before it on a first boot: there nothing is resumed, because the other one is not started.
        let wrong = close.replace("\nBefore=ignition-disks", &format!("\nBefore={resume} ignition-disks"));
        assert_ne!(wrong, close);
        let ours = [&*unit, &*keep, &*forget, &*wrong, &*close_now];
        let found = cycles_with(&images, &systemd, &distributions::debian(), true, ours, Some(resume));
        assert!(!found.is_empty(), "{release:?}");
    }
}

/// A failed boot starts `emergency.target` while Ignition's units still run: it waits for none of them.
#[test]
fn emergency_shells_do_not_wait_for_a_gateway() {
    let close_now = our_unit(CLOSE_NOW);
    let order = |key: &str| -> Vec<&str> {
        let lines = close_now.lines().filter_map(|line| line.strip_prefix(key));
        lines.flat_map(str::split_whitespace).collect()
    };
    assert_eq!(order("After="), ["systemd-pcrosseparator.service"]);
    for shell in ["emergency.service", "rescue.service", "dracut-emergency.service"] {
        assert!(order("Before=").contains(&shell), "{shell}");
    }
    assert!(our_unit(CLOSE).lines().all(|line| !line.starts_with("Before=emergency")));
    // The report of the failure has a time limit, and waits for nothing.
    let report = our_unit(REPORT);
    assert!(report.lines().any(|line| line == "TimeoutStartSec=30") && report.lines().all(|line| !line.starts_with("After=")));
}

/// State of a unit at the end of a boot.
#[derive(Debug, Default, Clone)]
struct State {
    /// Times of the unit's start and end; 0 if it did not run.
    begun: u64,
    done: u64,
    active: String,
    result: String,
}

/// Report of a VM at its end.
struct Boot {
    units: BTreeMap<String, State>,
    /// Other lines: the files that Ignition has fetched, and the content of the OEM partition.
    said: Vec<String>,
    /// Lines of the VM's console.
    console: Vec<String>,
}

/// Creates an initrd's tree: the distribution's units, and one that reports and switches off after Ignition's disks stage.
fn tree(distribution: &Distribution, folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    distribution.write(&tree);
    let units = tree.join("usr/lib/systemd/system");
    let wants = units.join("ignition-complete.target.wants");
    fs::create_dir_all(&wants).unwrap();
    symlink("../report.service", wants.join("report.service")).unwrap();
    let order = "DefaultDependencies=false\nAfter=ignition-disks.service basic.target\nBefore=initrd-root-device.target";
    let service = "Type=oneshot\nExecStart=/usr/bin/report\nStandardOutput=tty\nTTYPath=/dev/ttyS0";
    fs::write(units.join("report.service"), format!("[Unit]\n{order}\n[Service]\n{service}\n")).unwrap();
    let show = format!(
        "systemctl show -p Id -p InactiveExitTimestampMonotonic -p ActiveEnterTimestampMonotonic -p ActiveState -p Result {UNIT} {CLOSE} {}",
        distribution.order.join(" ")
    );
    let script = format!(
        "#!/bin/sh\n{show} | sed 's/^/@@ /'\n\
         grep -o '\"path\":\"[^\"]*\"' /run/ignition.json | sed 's/^/@@ fetched /'\n\
         [ ! -e /oem/config.ign ] || echo \"@@ tickets on the OEM partition: $(grep -c ticket /oem/config.ign)\"\n\
         grep -l {UNIT} /proc/[0-9]*/cgroup && echo '@@ still limits the wait for the network'\n\
         echo '@@ end'\nsystemctl poweroff --force --force\n"
    );
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::write(tree.join("usr/bin/report"), script).unwrap();
    fs::set_permissions(tree.join("usr/bin/report"), fs::Permissions::from_mode(0o755)).unwrap();
    tree
}

/// Starts Debian 13's initrd with a distribution's units; its TPM ends with it.
fn start(site: &Site, distribution: &Distribution, name: &str, pointer: &str, with_node: bool) -> (Vm, Swtpm) {
    let folder = site.vm_folder(name).unwrap();
    let tree = tree(distribution, &folder);
    start_with(site, &tree, &folder, pointer, with_node)
}

fn start_with(site: &Site, tree: &Path, folder: &Path, pointer: &str, with_node: bool) -> (Vm, Swtpm) {
    // The same for each, also where nobody is to see it.
    let tpm = site.tpm(Scenario::EndorsedTpm, folder).unwrap().unwrap();
    let vm = site.initrd_vm(DebianRelease::Trixie, tree, with_node, folder).unwrap();
    (vm.platform(PLATFORM).pointer(pointer).tpm(&tpm).start(folder).unwrap(), tpm)
}

/// Waits for the end of the VM, and returns its report.
fn boot(vm: &mut Vm, distribution: &Distribution) -> Boot {
    vm.wait_off(BOOT_LIMIT).unwrap();
    let console = vm.console().lines();
    let last = console.len().saturating_sub(40);
    assert!(console.iter().any(|line| line == "@@ end"), "{:#?}", &console[last..]);
    let (mut units, mut said) = (BTreeMap::new(), Vec::new());
    let mut unit = State::default();
    let mut id = String::new();
    for line in console
        .iter()
        .filter_map(|line| line.strip_prefix("@@ ").or_else(|| line.strip_prefix("@@")))
    {
        match line.split_once('=') {
            Some(("Id", value)) => value.clone_into(&mut id),
            Some(("InactiveExitTimestampMonotonic", value)) => unit.begun = value.parse().unwrap(),
            Some(("ActiveEnterTimestampMonotonic", value)) => unit.done = value.parse().unwrap(),
            Some(("ActiveState", value)) => value.clone_into(&mut unit.active),
            Some(("Result", value)) => value.clone_into(&mut unit.result),
            Some(_) => {}
            // The properties of a unit end at an empty line.
            None => {
                if !id.is_empty() {
                    units.insert(std::mem::take(&mut id), std::mem::take(&mut unit));
                }
                if !line.is_empty() {
                    said.push(line.to_owned());
                }
            }
        }
    }
    let boot = Boot { units, said, console };
    let cycles: Vec<_> = boot.console.iter().filter(|line| line.contains("ordering cycle")).collect();
    assert!(cycles.is_empty(), "{cycles:#?}");
    boot.follows(distribution.order);
    boot
}

impl Boot {
    /// Verifies that each of these units ended before the next one started.
    #[track_caller]
    fn follows(&self, order: &[&str]) {
        for pair in order.windows(2) {
            let (one, next) = (&self.units[pair[0]], &self.units[pair[1]]);
            assert!(one.done > 0 && one.done <= next.begun, "{pair:?}: {one:?} {next:?}");
        }
    }

    /// Returns the results of all units but ours.
    fn outcome(&self) -> Vec<(&str, &str, &str)> {
        let others = self.units.iter().filter(|(name, _)| ![UNIT, CLOSE].contains(&name.as_str()));
        others
            .map(|(name, state)| (name.as_str(), state.active.as_str(), state.result.as_str()))
            .collect()
    }

    fn says(&self, text: &str) -> bool {
        self.console.iter().any(|line| line.contains(text))
    }
}

/// Boots a VM with the distribution's order and a gateway in the pointer. It must attest in the right place, and fetch with the ticket.
fn check_attested(distribution: &Distribution) -> Boot {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let (mut vm, _tpm) = start(&site, distribution, "attested", &pointer, true);
    let boot = boot(&mut vm, distribution);
    is_attested(distribution, &boot, &mut site);
    boot
}

fn is_attested(distribution: &Distribution, boot: &Boot, site: &mut Site) {
    let place = distribution
        .order
        .iter()
        .position(|name| *name == "ignition-fetch.service")
        .unwrap();
    boot.follows(&[distribution.order[place - 1], UNIT, "ignition-fetch.service"]);
    // Not before Ignition has its config, and before it does anything with it.
    boot.follows(&["ignition-fetch.service", CLOSE, "ignition-disks.service"]);
    assert!(boot.says("attest-node: boot complete: PCR 13 is extended"));
    // What limits the wait for the network ends with it: it would kill who has that process's number by then.
    assert!(!boot.said.iter().any(|line| line.contains("limits")), "{:?}", boot.said);
    assert!(boot.says("attest-node: attested as tpm:") && boot.says("; ticket written to /usr/lib/ignition/user.ign"));
    let records = site.gateway().records().unwrap();
    let seen: Vec<_> = records
        .iter()
        .map(|record| (record.decision(), record.verdict(), record.grant()))
        .collect();
    assert_eq!(seen, [("evidence", "trusted", Some("full")), ("config", "served", Some("full"))]);
}

#[test]
fn rhel_coreos_attests_between_ignition_stages() {
    check_attested(&distributions::rhel_coreos());
}

#[test]
fn micro_os_attests_between_ignition_stages() {
    check_attested(&distributions::micro_os());
}

#[test]
fn flatcar_attests_between_ignition_stages() {
    let boot = check_attested(&distributions::flatcar());
    // The link to the OEM partition was replaced, and nothing was written through it.
    assert!(
        boot.said.iter().any(|line| line == "tickets on the OEM partition: 0"),
        "{:?}",
        boot.said
    );
}

/// The unit also waits for a gateway that comes late: it has to extend its timeout at systemd repeatedly. The timeout is thirty seconds
/// here, and a hundred and fifty otherwise.
#[test]
fn fedora_coreos_attests_after_the_unit_timeout() {
    let distribution = distributions::fedora_coreos();
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("late").unwrap();
    let tree = tree(&distribution, &vm_folder);
    let drop_ins = tree.join(format!("usr/lib/systemd/system/{UNIT}.d"));
    fs::create_dir_all(&drop_ins).unwrap();
    fs::write(drop_ins.join("short.conf"), "[Service]\nTimeoutStartSec=30\n").unwrap();
    let (mut vm, _tpm) = start_with(&site, &tree, &vm_folder, &pointer, true);
    let waited = |line: &str| -> Option<u64> { line.split_once("attest-node: waiting for ")?.1.split(' ').next()?.parse().ok() };
    vm.console()
        .wait_line(BOOT_LIMIT, |line| waited(line).is_some_and(|seconds| seconds > 45))
        .unwrap();
    site.gateway().start(None).unwrap();
    let boot = boot(&mut vm, &distribution);
    is_attested(&distribution, &boot, &mut site);
}

/// Boots with a pointer to another server than a gateway. Verifies that the units have the same results as without attest-node, and fetch
/// the same.
fn check_no_gateway(distribution: &Distribution) {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    let config = "{\"ignition\":{\"version\":\"3.1.0\"},\"storage\":{\"files\":[{\"path\":\"/etc/x\"}]}}";
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{config}",
        config.len()
    );
    let certificate = site.gateway().serving_certificate();
    let server = StandIn::tls(&certificate, Box::new(move |_| answer.clone().into_bytes())).unwrap();
    let pointer = site.gateway().pointer_to(GUEST_VIEW_OF_HOST, server.port(), None).unwrap();
    let booted = |name: &str, with_node: bool| {
        let (mut vm, _tpm) = start(&site, distribution, name, &pointer, with_node);
        boot(&mut vm, distribution)
    };
    let (with, without) = (booted("with", true), booted("without", false));
    assert!(with.says("attest-node: nothing to do: no source is an attestation gateway"));
    assert!(
        with.said.iter().any(|line| line == "fetched \"path\":\"/etc/x\""),
        "{:?}",
        with.said
    );
    assert_eq!((with.outcome(), &with.said), (without.outcome(), &without.said));
}

#[test]
fn fedora_coreos_boots_normally_without_a_gateway() {
    check_no_gateway(&distributions::fedora_coreos());
}

#[test]
fn flatcar_boots_normally_without_a_gateway() {
    check_no_gateway(&distributions::flatcar());
}
