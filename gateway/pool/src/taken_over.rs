//! Check whether machine-config-daemon can take over a node with the pre-approved config, and move it to the full one. It covers those of
//! the daemon's checks that depend on both configs. For all checks see `docs/how-to/second-stage.md`.

use attest_ignition::Config;
use attest_ignition::machine_config::MachineConfigContent;
use attest_ignition::machine_config::appended::KUBECONFIG;
use serde_json::Value;

use super::reapply::named;

/// Parts that the daemon changes on no node, so they must be the same in both configs. machine-config-operator 7ff337a,
/// `pkg/controller/common/reconcile.go`, `isConfigReconcilable` and `validatePasswdChanges`.
const SAME: [[&str; 2]; 7] = [
    ["kernelArguments", "shouldExist"],
    ["kernelArguments", "shouldNotExist"],
    ["storage", "disks"],
    ["storage", "filesystems"],
    ["storage", "raid"],
    ["storage", "directories"],
    ["passwd", "groups"],
];
/// A part that it neither compares nor creates.
const LUKS: [&str; 2] = ["storage", "luks"];
const LINKS: [&str; 2] = ["storage", "links"];
const FILES: [&str; 2] = ["storage", "files"];
const USERS: [&str; 2] = ["passwd", "users"];
const UNITS: [&str; 2] = ["systemd", "units"];
/// Unit that applies the encapsulated MachineConfig before the kubelet runs; from `templates/common/_base/units`.
const FIRST_BOOT: &str = "machine-config-daemon-firstboot.service";
/// The only user that it changes, and the fields that it changes.
const USER: &str = "core";
const CHANGED_OF_USER: [&str; 3] = ["name", "sshAuthorizedKeys", "passwordHash"];
/// The file that makes it skip its checks, and that it refuses to write. `pkg/daemon/constants`, `MachineConfigDaemonForceFile`.
const FORCE: &str = "/run/machine-config-daemon-force";
/// Largest mode that it compares correctly: it misreads the higher bits.
const MODE_LIMIT: i64 = 0o777;

/// Reason why the daemon cannot take over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TakeoverObstacle {
    /// A part of the config that the daemon does not change.
    #[error("it refuses to change {place} on a node, and both configs differ there: have all of it needed before approval, or none")]
    Changed { place: String },
    /// LUKS volumes that it would never create.
    #[error("it creates no LUKS volumes, and both configs differ in storage.luks: have all of it needed before approval, or none")]
    Luks,
    /// Users that it does not change.
    #[error("it changes only keys and password of user core, and both configs differ in more of passwd.users")]
    Users,
    /// Files that it refuses to write.
    #[error("it refuses to append to files, and to write {FORCE}: {0}")]
    Refused(String),
    /// Files that it cannot compare with what a node has.
    #[error(
        "it compares the node's files with the config, and cannot compare files that are fetched, appended, compressed other than by gzip, or have a mode above 0777: {0}"
    )]
    Incomparable(String),
    /// A node without the file that it changes at each update.
    #[error(
        "machine-config-daemon sets the mode of {KUBECONFIG} at each update, and fails where the file is missing: set source.kubeconfig, or include the file"
    )]
    NoKubeconfig,
    /// No unit that sets on the node what the daemon then expects.
    #[error(
        "it wants the kernel arguments and extensions of its MachineConfig on the node from the start, and without {FIRST_BOOT} nothing sets them: include that unit, and what it needs"
    )]
    NoFirstBoot,
    /// A MachineConfig without an image, which does not match a node that was booted from one.
    #[error(
        "its MachineConfig names no OS image, so the daemon reports drift on each node: put the ControllerConfig, or the pool and its rendered MachineConfig, into machine-configs"
    )]
    NoImage,
}

/// Returns all obstacles; `spec` is the pre-approved MachineConfig's.
pub(super) fn obstacles(pre_approved: &Config, spec: &MachineConfigContent, full: &Config) -> Vec<TakeoverObstacle> {
    let differs = |place: [&str; 2]| pre_approved.list(place) != full.list(place);
    let changed = SAME.iter().filter(|place| differs(**place)).map(|place| place.join("."));
    // What is gone it takes for done.
    let links = Some(LINKS.join(".")).filter(|_| differs(LINKS) && !full.list(LINKS).is_empty());
    let mut obstacles: Vec<TakeoverObstacle> = changed.chain(links).map(|place| TakeoverObstacle::Changed { place }).collect();
    if differs(LUKS) {
        obstacles.push(TakeoverObstacle::Luks);
    }
    if differs(USERS) && !users_are_changed(full.list(USERS)) {
        obstacles.push(TakeoverObstacle::Users);
    }
    let of_files = |config: &Config, wrong: fn(&Value) -> bool| {
        let files = config.list(FILES).iter().filter(|file| wrong(file));
        named(&files.filter_map(|file| text(file, "path")).collect::<Vec<_>>())
    };
    obstacles.extend(of_files(full, is_refused).map(TakeoverObstacle::Refused));
    obstacles.extend(of_files(pre_approved, is_incomparable).map(TakeoverObstacle::Incomparable));
    let has_kubeconfig = pre_approved.list(FILES).iter().any(|file| text(file, "path") == Some(KUBECONFIG));
    obstacles.extend((!has_kubeconfig).then_some(TakeoverObstacle::NoKubeconfig));
    let is_set = pre_approved.list(UNITS).iter().any(|unit| text(unit, "name") == Some(FIRST_BOOT));
    let has_to_be = !(spec.kernel_arguments.is_empty() && spec.extensions.is_empty());
    obstacles.extend((has_to_be && !is_set).then_some(TakeoverObstacle::NoFirstBoot));
    obstacles.extend(spec.os_image_url.is_empty().then_some(TakeoverObstacle::NoImage));
    obstacles
}

/// Returns whether it changes a node's users to these. Of several users it looks at the last one only.
fn users_are_changed(users: &[Value]) -> bool {
    let only_core = users.iter().all(|user| text(user, "name") == Some(USER));
    only_core
        && users.last().and_then(Value::as_object).is_none_or(|user| {
            let keys = user.get("sshAuthorizedKeys").and_then(Value::as_array);
            let some = user.contains_key("passwordHash") || keys.is_some_and(|keys| !keys.is_empty());
            some && user.keys().all(|field| CHANGED_OF_USER.contains(&field.as_str()))
        })
}

fn is_refused(file: &Value) -> bool {
    is_appended(file) || text(file, "path") == Some(FORCE)
}

fn is_incomparable(file: &Value) -> bool {
    let contents = file.get("contents");
    let source = contents.and_then(|contents| text(contents, "source")).unwrap_or_default();
    let compression = contents.and_then(|contents| text(contents, "compression")).unwrap_or_default();
    let mode = file.get("mode").and_then(Value::as_i64).unwrap_or_default();
    is_appended(file)
        || !(source.is_empty() || source.starts_with("data:"))
        || !["", "gzip"].contains(&compression)
        || !(0..=MODE_LIMIT).contains(&mode)
}

fn is_appended(file: &Value) -> bool {
    file.get("append")
        .and_then(Value::as_array)
        .is_some_and(|append| !append.is_empty())
}

fn text<'v>(value: &'v Value, field: &str) -> Option<&'v str> {
    value.get(field)?.as_str()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(mut value: Value) -> Config {
        value["ignition"] = json!({"version": "3.5.0"});
        Config::from_value(value).unwrap()
    }

    /// Returns the obstacles for `pre_approved`, without those that do not matter in these tests.
    fn found(mut pre_approved: Value, full: Value) -> Vec<TakeoverObstacle> {
        let kubeconfig = json!({"path": KUBECONFIG, "contents": {"source": "data:,x"}});
        let files = &mut pre_approved["storage"]["files"];
        match files.as_array_mut() {
            Some(files) => files.push(kubeconfig),
            None => *files = json!([kubeconfig]),
        }
        let spec = MachineConfigContent {
            os_image_url: "quay.io/os@sha256:1".to_owned(),
            ..MachineConfigContent::default()
        };
        obstacles(&config(pre_approved), &spec, &config(full))
    }

    #[test]
    fn parts_outside_the_daemons_control_must_match() {
        let check = |part: Value, place: &str| {
            let changed = TakeoverObstacle::Changed { place: place.to_owned() };
            assert_eq!(found(part.clone(), part.clone()), [], "{place}");
            assert_eq!(found(json!({}), part.clone()), vec![changed.clone()], "{place}");
            // What is in both, and differs.
            let expected = if place == "storage.links" { vec![] } else { vec![changed] };
            assert_eq!(found(part, json!({})), expected, "{place}");
        };
        check(json!({"storage": {"directories": [{"path": "/a"}]}}), "storage.directories");
        check(json!({"storage": {"links": [{"path": "/a", "target": "/b"}]}}), "storage.links");
        check(json!({"storage": {"disks": [{"device": "/dev/sda"}]}}), "storage.disks");
        check(
            json!({"storage": {"filesystems": [{"device": "/dev/sda", "format": "xfs", "path": "/var"}]}}),
            "storage.filesystems",
        );
        check(
            json!({"storage": {"raid": [{"name": "a", "level": "raid1", "devices": ["/dev/sda", "/dev/sdb"]}]}}),
            "storage.raid",
        );
        check(json!({"kernelArguments": {"shouldExist": ["a"]}}), "kernelArguments.shouldExist");
        check(
            json!({"kernelArguments": {"shouldNotExist": ["a"]}}),
            "kernelArguments.shouldNotExist",
        );
        check(json!({"passwd": {"groups": [{"name": "a"}]}}), "passwd.groups");
        let luks = json!({"storage": {"luks": [{"name": "a", "device": "/dev/sda"}]}});
        assert_eq!(found(luks.clone(), luks.clone()), []);
        assert_eq!(found(json!({}), luks), [TakeoverObstacle::Luks]);
    }

    #[test]
    fn the_daemon_changes_keys_and_password_of_core() {
        let check = |users: Value, changed: bool| {
            let full = json!({"passwd": {"users": users.clone()}});
            assert_eq!(found(full.clone(), full.clone()), [], "{users}");
            let expected = if changed { vec![] } else { vec![TakeoverObstacle::Users] };
            assert_eq!(found(json!({}), full), expected, "{users}");
        };
        check(json!([{"name": "core", "sshAuthorizedKeys": ["a"]}]), true);
        check(json!([{"name": "core", "passwordHash": "a"}]), true);
        check(json!([{"name": "core"}]), false);
        check(json!([{"name": "core", "sshAuthorizedKeys": ["a"], "uid": 1000}]), false);
        check(json!([{"name": "core", "sshAuthorizedKeys": ["a"], "groups": ["b"]}]), false);
        check(json!([{"name": "other", "sshAuthorizedKeys": ["a"]}]), false);
        check(json!([{"name": "other"}, {"name": "core", "sshAuthorizedKeys": ["a"]}]), false);
        // None at all are none to remove.
        let core = json!({"passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["a"]}]}});
        assert_eq!(found(core, json!({})), []);
    }

    #[test]
    fn daemon_must_be_able_to_compare_files() {
        let pre_approved = |file: Value| found(json!({"storage": {"files": [file]}}), json!({}));
        let full = |file: Value| found(json!({}), json!({"storage": {"files": [file]}}));
        let data = json!({"source": "data:,a"});
        let gzip = json!({"source": "data:;base64,H4sIAAAAAAAAA0sEAEO+t+gBAAAA", "compression": "gzip"});
        let fetched = json!({"source": "https://example.com/a", "verification": {"hash": format!("sha256-{}", "0".repeat(64))}});
        for good in [
            json!({"path": "/a", "contents": data}),
            json!({"path": "/a", "contents": gzip}),
            json!({"path": "/a", "mode": 511}),
        ] {
            assert_eq!(pre_approved(good.clone()), [], "{good}");
            assert_eq!(full(good.clone()), [], "{good}");
        }
        let incomparable = [TakeoverObstacle::Incomparable("/a".to_owned())];
        assert_eq!(pre_approved(json!({"path": "/a", "contents": fetched})), incomparable);
        let appended = json!({"path": "/a", "append": [data]});
        assert_eq!(pre_approved(appended.clone()), incomparable);
        assert_eq!(full(appended), [TakeoverObstacle::Refused("/a".to_owned())]);
        assert_eq!(
            full(json!({"path": FORCE, "contents": data})),
            [TakeoverObstacle::Refused(FORCE.to_owned())]
        );
        assert!(is_incomparable(&json!({"path": "/a", "mode": 0o1777})));
    }

    #[test]
    fn kernel_arguments_and_extensions_require_firstboot_unit() {
        let empty = config(json!({}));
        let check = |spec: MachineConfigContent, units: Value, expected: bool| {
            let pre_approved = config(json!({"systemd": {"units": units}}));
            let found = obstacles(&pre_approved, &spec, &empty).contains(&TakeoverObstacle::NoFirstBoot);
            assert_eq!(found, expected, "{spec:?} {units}");
        };
        let arguments = || MachineConfigContent {
            kernel_arguments: vec!["a".to_owned()],
            ..MachineConfigContent::default()
        };
        let extensions = || MachineConfigContent {
            extensions: vec!["usbguard".to_owned()],
            ..MachineConfigContent::default()
        };
        check(MachineConfigContent::default(), json!([]), false);
        check(arguments(), json!([]), true);
        check(extensions(), json!([{"name": "other.service"}]), true);
        check(arguments(), json!([{"name": FIRST_BOOT}]), false);
        check(extensions(), json!([{"name": FIRST_BOOT}]), false);
    }

    #[test]
    fn takeover_requires_kubeconfig_and_os_image() {
        let empty = config(json!({}));
        assert_eq!(
            obstacles(&empty, &MachineConfigContent::default(), &empty),
            [TakeoverObstacle::NoKubeconfig, TakeoverObstacle::NoImage]
        );
    }
}
