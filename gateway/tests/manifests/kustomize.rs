//! Folders for kustomize, which have the same objects as the manifests.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/kubernetes")
}

/// Returns the objects that kustomize builds from a folder, sorted by name.
fn built(folder: &Path) -> Vec<Value> {
    let mut built = objects(&command_output(kubectl().arg("kustomize").arg(folder)));
    built.sort_by_key(name);
    built
}

/// Verifies that both have the same objects, in any order.
#[track_caller]
fn check(built: &[Value], printed: &str) {
    let mut printed = objects(printed);
    printed.sort_by_key(name);
    let names = |objects: &[Value]| objects.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(built), names(&printed));
    for (built, printed) in built.iter().zip(&printed) {
        assert!(built == printed, "{}: {built:#}\nis not\n{printed:#}", name(built));
    }
}

const OVERLAY: &str = "overlays/openshift";
const WITH_API: &str = "overlays/openshift-api";
const MONITORED: &str = "overlays/openshift-monitoring";

/// Writes a cluster's own overlay, as in `docs/how-to/install-openshift.md`.
fn own(of: &str) -> tempfile::TempDir {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/install-openshift.md")).unwrap();
    let (_, rest) = document.split_once("# kustomization.yaml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let own = tempfile::tempdir().unwrap();
    // kustomize takes no absolute path.
    let there = own.path().canonicalize().unwrap();
    let up = "../".repeat(there.components().count() - 1);
    let base = folder().canonicalize().unwrap();
    let base = format!("{up}{}", base.strip_prefix("/").unwrap().display());
    assert!(text.contains(&format!("kubernetes/{OVERLAY}\n")), "{text}");
    let text = text.replace(&format!("kubernetes/{OVERLAY}\n"), &format!("{base}/{of}\n"));
    fs::write(own.path().join("kustomization.yaml"), text).unwrap();
    let settings = printed(&["--only", "settings", "--host", "api-int.example.com"]);
    fs::write(own.path().join("settings.yaml"), settings).unwrap();
    own
}

#[test]
fn kustomize_builds_the_rendered_manifests() {
    let settings = printed(&["--only", "settings", "--host", "api-int.example.com"]);
    let every = [
        "configs",
        "inventory",
        "tokens",
        "client-ca",
        "mcs-certificate",
        "bootstrap-kubeconfig",
        "pointers",
        "approval",
        "second-stage",
        "store",
        "attested-nodes",
    ];
    let with: Vec<&str> = every.iter().flat_map(|part| ["--with", part]).collect();
    for (overlay, options) in [(OVERLAY, &[][..]), (WITH_API, &with)] {
        let gateway = printed(&[&["--only", "gateway", "--image", IMAGE], options].concat());
        check(&built(own(overlay).path()), &[gateway, settings.clone()].join("---\n"));
    }
    let proxy = "registry.invalid/kube-rbac-proxy:unset";
    let gateway = printed(&["--only", "gateway", "--image", IMAGE, "--metrics-proxy", proxy]);
    check(&built(own(MONITORED).path()), &[gateway, settings.clone()].join("---\n"));
    check(&built(&folder().join("door")), &printed(&["--only", "machine-config"]));
    // Without an overlay it is nobody's image.
    let base = built(&folder().join("base"));
    let image = "registry.invalid/attest-gateway:unset";
    assert_eq!(
        object(&base, "DaemonSet", "attest-gateway")["spec"]["template"]["spec"]["containers"][0]["image"],
        image
    );
}
