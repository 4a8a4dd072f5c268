//! The configurations in `examples/` are valid as they are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Gateway, program};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples")
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn each_example_passes_check() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let example = entry.unwrap().path();
        if !example.is_dir() {
            continue;
        }
        let name = example.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            readme.contains(&format!("| [{name}]({name}) |")),
            "examples/README.md does not name {name}"
        );
        let gateway = Gateway::init();
        copy(&example, &gateway.path(""));
        let checked = gateway.try_command(&["check"]);
        let said = String::from_utf8([checked.stdout, checked.stderr].concat()).unwrap();
        assert!(checked.status.success(), "{name}: {said}");
        println!("{name}:\n{said}");
        names.push(name);
    }
    names.sort();
    assert_eq!(
        names,
        [
            "aws",
            "aws-nitro-tpm",
            "azure",
            "bare-metal",
            "fedora-coreos",
            "flatcar",
            "google-cloud",
            "rhel-coreos",
            "tokens"
        ]
    );
    // What the page says to type first.
    let init = readme
        .lines()
        .find_map(|line| line.strip_prefix("attest-gateway init /etc/attest-gateway "))
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let made = program()
        .arg("init")
        .arg(folder.path().join("gateway"))
        .args(init.split(' '))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
