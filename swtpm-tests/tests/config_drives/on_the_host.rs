//! Debian's Ignition on this machine, with drives that are folders: what attest-node takes from a drive is what Ignition takes from it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use attest_node::deadline::Deadline;
use attest_node::disk::Disks;
use attest_node::pointer::Pointer;
use attest_node::user_data::config_drive::{CIDATA, CONFIG_2, ConfigDrive};
use attest_node::user_data::first_answer::SourceWait;
use serde_json::{Value, json};
use swtpm_tests::{Images, TestFolder};

use super::{NO_CLOUD, OPENSTACK};

/// Script that puts a folder of devices over `/dev`, and starts Ignition with a `mount` that binds folders.
const IN_MOUNTS_OF_ITS_OWN: &str = r#"
set -e
for device in null urandom; do
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount --rbind "$root/dev" /dev
PATH="$root/bin:$PATH" exec "$@"
"#;
/// The `mount` that Ignition starts: `-o ro -t auto DEVICE FOLDER`.
const BIND: &str = "#!/bin/sh\n[ \"$1 $2 $3 $4\" = '-o ro -t auto' ] && exec /bin/mount --bind \"$(readlink -f \"$5\")\" \"$6\"\n";

/// A drive that is a folder.
struct Folder<'f>(&'f str, &'f Path);

impl Disks for Folder<'_> {
    fn are_anothers(&self) -> bool {
        false
    }

    fn exists(&self, label: &str) -> bool {
        label == self.0
    }

    fn settle(&self) {}

    fn are_its_own(&self) -> bool {
        true
    }

    fn with<T>(&self, _: &str, _: &Path, _: bool, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        work(self.1)
    }
}

/// Runs Ignition with a drive. Returns its config; `None` if it fails.
fn ignition(platform: &str, label: &str, drive: &Path, root: &Path) -> Option<Value> {
    for folder in ["dev/disk/by-label", "bin"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for device in ["null", "urandom"] {
        fs::write(root.join("dev").join(device), "").unwrap();
    }
    symlink(drive, root.join("dev/disk/by-label").join(label)).unwrap();
    let mount = root.join("bin/mount");
    fs::write(&mount, BIND).unwrap();
    assert!(Command::new("chmod").arg("755").arg(&mount).status().unwrap().success());
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", IN_MOUNTS_OF_ITS_OWN, "sh"])
        .arg(Images::fast().unwrap().ignition().unwrap())
        .args(["--stage=fetch-offline", "--log-to-stdout"])
        .arg(format!("--platform={platform}"))
        .arg(format!("--config-cache={}", root.join("cache.json").display()))
        .arg(format!("--neednet={}", root.join("neednet").display()))
        .arg(format!("--state-file={}", root.join("state").display()))
        .arg(format!("--root={}", root.display()))
        .env("root", root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("mounting config drive"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let cache = fs::read(root.join("cache.json"));
    output.status.success().then(|| serde_json::from_slice(&cache.unwrap()).unwrap())
}

/// Comparison of what the two take from a drive.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    /// Ignition's config is that of the pointer that attest-node found.
    Same,
    /// Ignition has an empty config, and attest-node no pointer.
    Empty,
    /// Ignition stops, and attest-node refuses.
    Refused,
    /// Only attest-node refuses.
    NodeRefuses,
}

fn paths(config: &Value) -> Vec<String> {
    let files = config["storage"]["files"].as_array().into_iter().flatten();
    files.map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

fn compare(platform: &str, label: &str, drive: ConfigDrive, fill: impl FnOnce(&Path)) -> Comparison {
    let root = TestFolder::new().unwrap();
    let content = root.path().join("content");
    fs::create_dir_all(&content).unwrap();
    fill(&content);
    let taken = ignition(platform, label, &content, root.path());
    let wait = SourceWait::until(Deadline::after(Duration::from_secs(5)));
    let found = drive.read(&Folder(label, &content), &wait);
    match (taken, found) {
        (Some(config), Ok(Some(bytes))) => {
            assert!(Pointer::parse(&bytes).is_ok());
            assert_eq!(paths(&config), paths(&serde_json::from_slice(&bytes).unwrap()));
            Comparison::Same
        }
        (Some(config), Ok(None)) => {
            assert!(paths(&config).is_empty(), "{config}");
            Comparison::Empty
        }
        (None, Ok(Some(bytes))) => {
            assert!(Pointer::parse(&bytes).is_err());
            Comparison::Refused
        }
        (None, Err(_)) => Comparison::Refused,
        (Some(_), Err(_)) => Comparison::NodeRefuses,
        (None, Ok(None)) => panic!("Ignition stops, and attest-node finds nothing"),
    }
}

fn write(root: &Path, path: &str, content: &str) -> PathBuf {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, content).unwrap();
    file
}

/// A config that is complete, so that Ignition needs no network.
fn config() -> String {
    json!({"ignition": {"version": "3.3.0"}, "storage": {"files": [{"path": "/from-the-drive"}]}}).to_string()
}

#[test]
fn ignition_and_attest_node_take_the_same_from_a_drive() {
    let check = |expect: Comparison, fill: &dyn Fn(&Path)| {
        assert_eq!(compare("nutanix", "config-2", CONFIG_2, fill), expect);
    };
    check(Comparison::Same, &|root| drop(write(root, OPENSTACK, &config())));
    check(Comparison::Same, &|root| {
        write(root, "openstack/2018-08-27/user_data", &config());
        symlink("2018-08-27", root.join("openstack/latest")).unwrap();
    });
    check(Comparison::Empty, &|_| ());
    check(Comparison::Empty, &|root| drop(write(root, NO_CLOUD, &config())));
    check(Comparison::Empty, &|root| drop(write(root, OPENSTACK, "")));
    check(Comparison::Empty, &|root| drop(write(root, "openstack", "a file")));
    check(Comparison::Empty, &|root| {
        fs::create_dir_all(root.join("openstack/latest")).unwrap();
        symlink("/nonexistent", root.join(OPENSTACK)).unwrap();
    });
    for other in [
        "#cloud-config\npackages: []\n",
        "MIME-Version: 1.0\nContent-Type: multipart/mixed\n",
        "{",
        "{}",
    ] {
        check(Comparison::Refused, &|root| drop(write(root, OPENSTACK, other)));
    }
    check(Comparison::Refused, &|root| fs::create_dir_all(root.join(OPENSTACK)).unwrap());
}

/// Ignition reads a file outside of the drive; attest-node shows no gateway what such a file names.
#[test]
fn attest_node_refuses_links_that_ignition_follows() {
    let outside = TestFolder::new().unwrap();
    let file = write(outside.path(), "user_data", &config());
    let found = compare("nutanix", "config-2", CONFIG_2, |root| {
        fs::create_dir_all(root.join("openstack/latest")).unwrap();
        symlink(&file, root.join(OPENSTACK)).unwrap();
    });
    assert_eq!(found, Comparison::NodeRefuses);
}

#[test]
fn each_platform_has_its_drive() {
    for platform in ["nutanix", "powervs", "kubevirt"] {
        let found = compare(platform, "config-2", CONFIG_2, |root| drop(write(root, OPENSTACK, &config())));
        assert_eq!(found, Comparison::Same, "{platform}");
    }
    let found = compare("ibmcloud", "cidata", CIDATA, |root| drop(write(root, NO_CLOUD, &config())));
    assert_eq!(found, Comparison::Same);
    let found = compare("ibmcloud", "cidata", CIDATA, |root| drop(write(root, OPENSTACK, &config())));
    assert_eq!(found, Comparison::Empty);
}
