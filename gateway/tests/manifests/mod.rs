//! Output of `attest-gateway manifests render` for a cluster: objects that an API accepts and kustomize builds, with the rights that each part
//! needs.

mod apply;
mod image;
mod kustomize;
mod monitoring;
mod platforms;
mod pod;
mod rights;
#[cfg(feature = "cluster")]
mod schemas;

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::program;

/// Image that the pods of these tests run.
pub(super) const IMAGE: &str = "registry.example.com/attest-gateway:0.1.0";

pub(super) fn manifests(options: &[&str]) -> Output {
    program()
        .args(["manifests", "render", "--platform", "baremetal"])
        .args(options)
        .output()
        .unwrap()
}

/// Returns standard output for these options. Standard error, with messages about the options, is shown after a failure only.
pub(super) fn printed(options: &[&str]) -> String {
    let output = manifests(options);
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns all manifests, with these parts.
pub(super) fn all(parts: &[&str]) -> String {
    let mut options = vec![
        "--image",
        IMAGE,
        "--host",
        "api-int.example.com",
        "--etcd",
        "https://etcd.example.com:2379",
    ];
    options.extend(parts.iter().flat_map(|part| ["--with", part]));
    printed(&options)
}

pub(crate) fn objects(yaml: &str) -> Vec<Value> {
    yaml.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect()
}

/// Returns the one object of this kind and name.
pub(crate) fn object(objects: &[Value], kind: &str, name: &str) -> Value {
    let found: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0].clone()
}

/// Returns an object's name in the form that kubectl's messages use.
pub(super) fn name(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    format!("{} {}/{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
}

pub(super) fn kubectl() -> Command {
    let mut command = Command::new("kubectl");
    // It keeps what it has been told of APIs there.
    command.env("HOME", std::env::temp_dir());
    command
}

/// Returns the output of a command that must succeed.
pub(super) fn command_output(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} (.ci/debian-packages): {error}"));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}
