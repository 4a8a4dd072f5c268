//! Container image: its contents, and its operation as the pod runs it: not as root, with a read-only root, and with the mounts of
//! Kubernetes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use flate2::read::GzDecoder;
use rustix::process::geteuid;

use super::*;
use crate::support::Gateway;

const VERSION: &str = "0.1.0";
/// User as which the pod runs the program.
const USER: u32 = attest_gateway::manifests::USER;

/// Makes an image of a program. Returns the folder of the layout.
fn build(program: &Path, folder: &Path) -> PathBuf {
    let output = folder.join("image");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/image/build");
    // One program for all.
    command_output(Command::new(script).args([program, program, program, &output]).arg(VERSION));
    output
}

fn is_named_by_its_digest(bytes: &[u8], named: &str) -> bool {
    named == format!("sha256:{}", HEXLOWER.encode(digest(&SHA256, bytes).as_ref()))
}

/// Returns the blob that a descriptor names, after a check of its digest and size.
fn blob(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let named = descriptor["digest"].as_str().unwrap();
    let bytes = fs::read(layout.join("blobs/sha256").join(named.strip_prefix("sha256:").unwrap())).unwrap();
    assert!(is_named_by_its_digest(&bytes, named));
    assert_eq!(descriptor["size"], bytes.len());
    bytes
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Returns the image's config, and its one layer as tar; by the OCI image specification, 1.0: image-layout, manifest and config.
fn read(layout: &Path) -> (Value, Vec<u8>) {
    let file = |name: &str| json(&fs::read(layout.join(name)).unwrap());
    assert_eq!(file("oci-layout"), serde_json::json!({"imageLayoutVersion": "1.0.0"}));
    let index = file("index.json");
    assert_eq!((&index["schemaVersion"], list(&index, "manifests").len()), (&2.into(), 1));
    let descriptor = &index["manifests"][0];
    assert_eq!(descriptor["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(descriptor["annotations"]["org.opencontainers.image.ref.name"], VERSION);
    let manifest = json(&blob(layout, descriptor));
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.oci.image.config.v1+json");
    let config = json(&blob(layout, &manifest["config"]));
    assert_eq!(list(&manifest, "layers").len(), 1);
    let layer = &manifest["layers"][0];
    assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
    let mut tar = Vec::new();
    GzDecoder::new(&*blob(layout, layer)).read_to_end(&mut tar).unwrap();
    assert!(is_named_by_its_digest(&tar, config["rootfs"]["diff_ids"][0].as_str().unwrap()));
    // Nothing that no descriptor names.
    assert_eq!(fs::read_dir(layout.join("blobs/sha256")).unwrap().count(), 3);
    (config, tar)
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap()
}

#[test]
fn image_builds_are_reproducible() {
    let folder = tempfile::tempdir().unwrap();
    // A small program that is linked as ours is.
    let program = folder.path().join("program");
    let images = ["first", "second"].map(|name| {
        fs::copy("/usr/bin/env", &program).unwrap();
        let image = build(&program, &folder.path().join(name));
        assert!(read(&image).0["created"] == "1970-01-01T00:00:00Z");
        fs::read(image.with_extension("tar")).unwrap()
    });
    assert!(images[0] == images[1]);
    assert!(!images[0].is_empty());
}

/// Unpacked layer and folder of the image.
struct Unpacked {
    folder: tempfile::TempDir,
    root: PathBuf,
}

impl Unpacked {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let image = build(Path::new(program().get_program()), folder.path());
        let (config, _) = read(&image);
        assert_eq!(config["config"]["User"], format!("{USER}:{USER}"));
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/attest-gateway"]));
        let bundle = folder.path().join("bundle");
        let mut umoci = Command::new("umoci");
        umoci.args(["unpack", "--image", &format!("{}:{VERSION}", image.display())]);
        if !geteuid().is_root() {
            umoci.arg("--rootless");
        }
        command_output(umoci.arg(&bundle));
        // What a copy of the image as one file holds is the same.
        let files = command_output(Command::new("tar").arg("-tf").arg(image.with_extension("tar")));
        for name in ["oci-layout", "index.json", "blobs/sha256/"] {
            assert!(files.lines().any(|line| line == name), "{files}");
        }
        Self {
            root: bundle.join("rootfs"),
            folder,
        }
    }

    /// Returns a command that runs the program like a pod: in its read-only root, with these folders of the host mounted and no others.
    fn command(&self, user: u32, mounts: &[(PathBuf, String)], arguments: &[&str]) -> Command {
        let mut script = "root=$1; shift; mount --bind \"$root\" \"$root\"; mount --bind /proc \"$root/proc\"\n".to_owned();
        for (from, to) in mounts {
            fs::create_dir_all(self.root.join(to.trim_start_matches('/'))).unwrap();
            script.push_str(&format!("mount --bind '{}' \"$root{to}\"\n", from.display()));
        }
        script.push_str("mount -o remount,bind,ro \"$root\"\n");
        script.push_str(&format!(
            "exec chroot --userspec={user}:{user} --groups={user} \"$root\" /usr/bin/attest-gateway \"$@\"\n"
        ));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "/bin/sh", "-euc", &script, "sh"]);
        command.arg(&self.root).args(arguments);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
}

/// Lays a volume out like kubelet (`pkg/volume/util/atomic_writer.go`): files in a folder of their own, a link to that, and links to its
/// files. A Secret belongs to root, for the pod's group to read (`pkg/volume/volume_linux.go`).
fn volume(folder: &Path, files: &[(&str, &[u8])], mode: u32) {
    let data = folder.join("..2026_01_01_00_00_00.1");
    fs::create_dir_all(&data).unwrap();
    symlink("..2026_01_01_00_00_00.1", folder.join("..data")).unwrap();
    for (path, content) in files {
        let file = data.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        chown(&file, Some(0), Some(USER)).unwrap();
        let top = path.split('/').next().unwrap();
        if !folder.join(top).exists() {
            symlink(format!("..data/{top}"), folder.join(top)).unwrap();
        }
    }
}

/// Returns all mounts of the pod, from the manifests and the files of `init`, at that gateway's port.
fn mounts(unpacked: &Unpacked, gateway: &Gateway) -> Vec<(PathBuf, String)> {
    gateway.settings("[store]\nkey_file = \"store.key\"");
    gateway.command(&["store", "create-key"]);
    let port = gateway.address().port();
    let of_gateway = |path: &str| fs::read(gateway.path(path)).unwrap();
    let printed = objects(&printed(&["--image", IMAGE, "--host", "api-int.example.com"]));
    let data = |name: &str, key: &str| {
        let text = object(&printed, "ConfigMap", name)["data"][key].as_str().unwrap().to_owned();
        text.replace("22625", &port.to_string())
    };
    let settings = data("attest-gateway", "gateway.toml").replace(
        "\n[tls]\n",
        "\n[store]\nkey_file = \"/etc/attest-gateway/store/store.key\"\n[tls]\n",
    );
    let pool = data("attest-gateway-pools", "worker.toml");
    let daemon_set = object(&printed, "DaemonSet", "attest-gateway");
    let pod = &daemon_set["spec"]["template"]["spec"];
    let host = unpacked.folder.path().join("volumes");
    let mut mounts = Vec::new();
    for mount in list(&pod["containers"][0], "volumeMounts") {
        let (name, path) = (mount["name"].as_str().unwrap(), mount["mountPath"].as_str().unwrap().to_owned());
        let folder = host.join(name);
        fs::create_dir_all(&folder).unwrap();
        match name {
            "settings" => volume(&folder, &[("gateway.toml", settings.as_bytes())], 0o644),
            "pools" => volume(&folder, &[("worker/pool.toml", pool.as_bytes())], 0o644),
            "mcs-ca" => volume(&folder, &[("ca-bundle.crt", &of_gateway("tls/mcs-ca.crt"))], 0o644),
            "mcs-tls" => volume(
                &folder,
                &[("tls.crt", &of_gateway("tls/mcs.crt")), ("tls.key", &of_gateway("tls/mcs.key"))],
                0o440,
            ),
            "store" => volume(&folder, &[("store.key", &of_gateway("store.key"))], 0o440),
            "host" => {
                // What the init container does first, as the DaemonSet has it.
                let init = &pod["initContainers"][0];
                let arguments: Vec<&str> = list(init, "args").iter().map(|argument| argument.as_str().unwrap()).collect();
                let all = [(folder.clone(), init["volumeMounts"][0]["mountPath"].as_str().unwrap().to_owned())];
                for _ in 0..2 {
                    command_output(&mut unpacked.command(0, &all, &arguments));
                }
                mounts.push((folder.join(mount["subPath"].as_str().unwrap()), path));
                continue;
            }
            _ => {}
        }
        mounts.push((folder, path));
    }
    mounts
}

#[tokio::test]
async fn image_serves_with_the_pods_restrictions() {
    let unpacked = Unpacked::new();
    let there: BTreeSet<String> = fs::read_dir(unpacked.root.join("usr/bin"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        there,
        BTreeSet::from(["attest-audit", "attest-controller", "attest-gateway"].map(str::to_owned)),
        "no shell, and nothing else to run"
    );
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can run it in a root of its own");
        return;
    }
    let version = command_output(&mut unpacked.command(USER, &[], &["--version"]));
    assert!(version.starts_with(&format!("attest-gateway {VERSION}\ncommit: ")), "{version}");
    let mut gateway = Gateway::init();
    let mounts = mounts(&unpacked, &gateway);
    let config = ["--config", "/etc/attest-gateway/settings/gateway.toml"];
    let command = |arguments: &[&str]| unpacked.command(USER, &mounts, &[&config, arguments].concat());
    // The Machine Config Server of this host is not there; all else is well.
    let checked = command_output(&mut command(&["check"]));
    assert!(
        !checked.contains("ERROR") && !checked.contains("to a private key: run"),
        "{checked}"
    );
    assert!(checked.contains("not served until this is fixed"), "{checked}");
    gateway.run_as(command(&["serve"]));
    for (path, expected) in [("/healthz", 200), ("/readyz", 503)] {
        let answer = gateway.client.get(gateway.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), expected, "{path}");
    }
    // What an administrator does by `kubectl exec`, while it serves.
    let token = command_output(&mut command(&["token", "create", "--pool", "worker", "--name", "rack7"]));
    assert!(!token.trim().is_empty());
    assert!(command_output(&mut command(&["token", "list"])).contains("rack7"));
    // All of it is that user's, and nobody else's.
    let (state, _) = mounts.iter().find(|(_, to)| to == "/var/lib/attest-gateway").unwrap();
    let folder = fs::metadata(state).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o777), (USER, 0o700));
    assert_eq!(fs::metadata(state.join("gateway.db")).unwrap().uid(), USER);
    assert!(!state.join("seal.key").exists(), "the key file of the Secret is in use");
}

#[test]
fn state_create_hands_over_a_folder_once() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can give a folder away");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let give = |name: &str, owner: &str| {
        // As the init container has it: root, with one capability.
        let mut command = Command::new("setpriv");
        command
            .args(["--bounding-set=-all,+chown", "--inh-caps=-all"])
            .arg(program().get_program());
        command
            .args(["state", "create"])
            .arg(folder.path().join(name))
            .args(["--owner", owner]);
        command.args(["--selinux-type", "container_file_t"]).output().unwrap()
    };
    let owner = |name: &str| {
        let found = fs::metadata(folder.path().join(name)).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o777)
    };
    let refused = |output: Output, why: &str| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    assert!(give("state", "65532").status.success());
    assert_eq!(owner("state"), (65_532, 65_532, 0o700));
    // What its user has made of it stays.
    fs::set_permissions(folder.path().join("state"), fs::Permissions::from_mode(0o750)).unwrap();
    assert!(give("state", "65532").status.success());
    assert_eq!(owner("state"), (65_532, 65_532, 0o750));
    refused(
        give("state", "65533"),
        "the folder belongs to user 65532, neither to root nor to user 65533",
    );
    assert_eq!(owner("state").0, 65_532);
    // Root's own, from before, is given.
    fs::create_dir(folder.path().join("roots")).unwrap();
    assert!(give("roots", "65532").status.success());
    assert_eq!(owner("roots"), (65_532, 65_532, 0o700));
    // Neither what a link leads to, nor a file, nor what would have to be made first.
    let target = folder.path().join("target");
    fs::create_dir(&target).unwrap();
    symlink(&target, folder.path().join("link")).unwrap();
    assert!(!give("link", "65532").status.success());
    assert_eq!(owner("target").0, 0);
    fs::write(folder.path().join("file"), "").unwrap();
    assert!(!give("file", "65532").status.success());
    assert_eq!(owner("file").0, 0);
    assert!(!give("missing/state", "65532").status.success());
}
