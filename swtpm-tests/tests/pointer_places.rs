//! Sources of Ignition's config: Debian's Ignition behaves as `attest_node::ignition` describes its version.
//!
//! It reads `/proc/cmdline`, `/run/ignition`, `/etc/ignition` and `/usr/lib/ignition` by these names, so it runs in mounts of its own, in which
//! each of them is what a case says. Every config holds one file, whose path says where that config was.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use attest_node::ignition::{ConfigOrigin, IgnitionInput, IgnitionVersion, origin};
use data_encoding::BASE64;
use serde_json::{Value, json};
use swtpm_tests::{Images, TestFolder};

const RUN: &str = "/run/ignition/user.ign";
const ETC: &str = "/etc/ignition/user.ign";
const USR: &str = "/usr/lib/ignition/user.ign";
/// Path of `user.ign` in the folder that a variable names.
const MOVED: &str = "/run/moved/user.ign";
/// Path of the platform's config.
const PLATFORM: &str = "/run/platform.ign";
/// Path of the file in the config at the URL.
const AT_URL: &str = "/at-the-url";
/// Invalid URL, at which Ignition stops.
const NOT_A_URL: &str = "https://%zz";
/// Marker for an empty config, with which Ignition goes on.
const NOTHING: &str = "nothing";

/// Script that mounts a case over the paths that Ignition reads. `/usr/lib` becomes links to its entries, together with the case's own
/// `/usr/lib/ignition`.
const IN_MOUNTS_OF_ITS_OWN: &str = r#"
set -e
mount --rbind /usr/lib "$root/host"
for entry in "$root"/host/*; do [ "${entry##*/}" = ignition ] || ln -s "$entry" "$root/usr/lib/"; done
mount --bind "$root/run" /run
mount --bind "$root/etc" /etc
mount --bind "$root/cmdline" /proc/cmdline
mount --rbind "$root/usr/lib" /usr/lib
exec "$@"
"#;

fn ignition() -> &'static Path {
    static IGNITION: OnceLock<PathBuf> = OnceLock::new();
    IGNITION.get_or_init(|| Images::fast().unwrap().ignition().unwrap())
}

fn config(name: &str) -> Value {
    json!({"ignition": {"version": "3.3.0"}, "storage": {"files": [{"path": name}]}})
}

fn data_url(config: &Value) -> String {
    format!("data:;base64,{}", BASE64.encode(config.to_string().as_bytes()))
}

/// Runs Ignition. Returns its config, and its list of the resources that it fetched for the config; `None` if it fails.
fn fetch(cmdline: &str, variables: &[(&str, &str)], configs: &BTreeMap<&str, Value>) -> Option<(Value, Value)> {
    let root = TestFolder::new().unwrap();
    let below = |path: &str| root.path().join(path.trim_start_matches('/'));
    for folder in ["host", "run", "etc", "usr/lib/ignition"] {
        fs::create_dir_all(below(folder)).unwrap();
    }
    fs::write(below("cmdline"), cmdline).unwrap();
    for (path, config) in configs {
        fs::create_dir_all(below(path).parent().unwrap()).unwrap();
        fs::write(below(path), config.to_string()).unwrap();
    }
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", IN_MOUNTS_OF_ITS_OWN, "sh"])
        .arg(ignition())
        .args(["--platform=file", "--stage=fetch", "--log-to-stdout"])
        .arg(format!("--config-cache={}", below("cache.json").display()))
        .arg(format!("--state-file={}", below("state").display()))
        .arg(format!("--root={}", root.path().display()))
        .env("root", root.path())
        .env("IGNITION_CONFIG_FILE", PLATFORM)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Stage: fetch"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return None;
    }
    let read = |name: &str| serde_json::from_slice(&fs::read(below(name)).unwrap()).unwrap();
    Some((read("cache.json"), read("state")))
}

fn paths(config: &Value) -> Vec<&str> {
    let files = config["storage"]["files"].as_array().into_iter().flatten();
    files.map(|file| file["path"].as_str().unwrap()).collect()
}

/// Checks Ignition's source with this command line, in which `{URL}` is one that has a config, the folder's variable, and a `user.ign` in
/// these places.
fn check(cmdline: &str, folder: Option<&str>, there: &[&str]) {
    let cmdline = cmdline.replace("{URL}", &data_url(&config(AT_URL)));
    let variables: Vec<_> = folder.map(|folder| ("IGNITION_SYSTEM_CONFIG_DIR", folder)).into_iter().collect();
    let configs = there.iter().chain([&PLATFORM]).map(|path| (*path, config(path))).collect();
    let taken = fetch(&cmdline, &variables, &configs);
    let told = IgnitionInput {
        cmdline: cmdline.clone(),
        environment: variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect(),
        ..IgnitionInput::default()
    };
    let said = origin(IgnitionVersion::UpTo2_26, &told, &|path| {
        there.iter().any(|there| Path::new(there) == path)
    });
    let expect = match &said {
        ConfigOrigin::Url(_) if cmdline.ends_with(NOT_A_URL) => None,
        ConfigOrigin::Url(_) if cmdline.ends_with(NOTHING) => Some(vec![]),
        ConfigOrigin::Url(_) => Some(vec![AT_URL]),
        ConfigOrigin::UserConfig(path) => Some(vec![path.to_str().unwrap()]),
        ConfigOrigin::Platform => Some(vec![PLATFORM]),
        other => panic!("{other:?}"),
    };
    let taken = taken.as_ref().map(|(config, _)| paths(config));
    assert_eq!(taken, expect, "{cmdline:?} {folder:?} {there:?}: {said:?}");
}

#[test]
fn installed_ignition_has_a_supported_version() {
    let said = Command::new(ignition()).arg("--version").output().unwrap().stdout;
    assert_eq!(IgnitionVersion::parse(&String::from_utf8(said).unwrap()), IgnitionVersion::UpTo2_26);
}

#[test]
fn the_kernel_command_line_comes_first() {
    let all = &[RUN, ETC, USR];
    for cmdline in [
        "quiet ignition.config.url={URL} ro\n",
        "ignition.config.url=nonsense:a ignition.config.url={URL}",
        "ignition.config.url={URL} ignition.config.url",
        "ignition.config.url= ignition.config.url={URL}",
        "quiet \tignition.config.url={URL}\n",
        // These are no reason to look elsewhere.
        &format!("ignition.config.url={NOT_A_URL}"),
        &format!("ignition.config.url={NOTHING}"),
        // Takes it back.
        "ignition.config.url={URL} ignition.config.url=",
        // Not the argument, by this version.
        "\"ignition.config.url={URL}\"",
        "quiet\tignition.config.url={URL}",
        "x.ignition.config.url={URL}",
        "coreos.config.url={URL}",
        "ignition.config.device=a ignition.config.path=b",
        "ignition.config.device=a",
    ] {
        check(cmdline, None, all);
    }
    check("foo=\"a ignition.config.url={URL} b\"", None, all);
    check("ignition.config.url=", None, &[]);
}

#[test]
fn searches_one_ignition_config_folder() {
    let all: &[&str] = &[RUN, ETC, USR, MOVED];
    for there in [&[][..], &[RUN], &[ETC], &[USR], &[RUN, ETC], all] {
        check("", None, there);
        check("", Some("/run/moved"), there);
        check("", Some(""), there);
    }
}

#[test]
fn references_of_base_configs_are_not_followed() {
    let mut base = config("/base");
    base["ignition"]["config"] = json!({"merge": [{"source": data_url(&config("/referenced"))}]});
    let configs = [
        ("/usr/lib/ignition/base.d/a.ign", base),
        ("/usr/lib/ignition/base.platform.d/file/b.ign", config("/base-of-platform")),
        ("/run/ignition/base.d/c.ign", config("/run-base")),
        (USR, config(USR)),
    ];
    let (_, state) = fetch("", &[], &configs.into()).unwrap();
    let fetched = state["fetchedConfigs"].as_array().unwrap().iter();
    let fetched: Vec<_> = fetched
        .map(|config| (config["kind"].as_str().unwrap(), &config["referenced"]))
        .collect();
    assert_eq!(fetched, [("base", &json!(false)), ("user", &json!(false))]);
}
