#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use super::*;

const RUN: &str = "/run/ignition/user.ign";
const ETC: &str = "/etc/ignition/user.ign";
const USR: &str = "/usr/lib/ignition/user.ign";
const URL: ConfigOrigin = ConfigOrigin::Url("ignition.config.url");

fn user_config(path: &str) -> ConfigOrigin {
    ConfigOrigin::UserConfig(path.into())
}

/// Checks the source of the config, with this command line, environment and these files: up to Ignition 2.26, and from 2.27 on. An Ignition
/// without a known version has an unclear source if the two differ.
fn check(cmdline: &str, environment: &str, there: &[&str], before: &ConfigOrigin, from: &ConfigOrigin) {
    let told = IgnitionInput {
        cmdline: cmdline.to_owned(),
        other_cmdline: None,
        environment: environment.to_owned(),
    };
    check_input(&told, there, before, from);
}

fn check_input(told: &IgnitionInput, there: &[&str], before: &ConfigOrigin, from: &ConfigOrigin) {
    let origin = |version| origin(version, told, &|path| there.iter().any(|file| Path::new(file) == path));
    assert_eq!(&origin(IgnitionVersion::UpTo2_26), before, "up to 2.26: {told:?} {there:?}");
    assert_eq!(&origin(IgnitionVersion::From2_27), from, "from 2.27 on: {told:?} {there:?}");
    let unknown = if before == from { before } else { &ConfigOrigin::Unclear };
    assert_eq!(&origin(IgnitionVersion::Unknown), unknown, "unknown: {told:?} {there:?}");
}

fn check_both(cmdline: &str, environment: &str, there: &[&str], expect: &ConfigOrigin) {
    check(cmdline, environment, there, expect, expect);
}

#[test]
fn config_url_on_the_command_line_has_precedence() {
    let all = &[RUN, ETC, USR];
    check_both("ro ignition.config.url=https://a/b quiet\n", "", all, &URL);
    check_both("ignition.config.url=https://a ignition.config.url=https://b", "", all, &URL);
    check_both(
        "ignition.config.url=https://a ignition.config.device=d ignition.config.path=p",
        "",
        all,
        &URL,
    );
    check_both("ignition.config.device=d ignition.config.url=https://a", "", all, &URL);
    // Whatever it is that cannot be fetched: up to 2.26 Ignition stops for it.
    check_both("ignition.config.url=nonsense", "", all, &URL);
    for none in [
        "",
        "ignition.config.url",
        "x.ignition.config.url=https://a",
        "ignition.config.urls=https://a",
    ] {
        check_both(none, "", &[], &ConfigOrigin::Platform);
    }
}

#[test]
fn empty_config_url_resets_before_ignition_2_27() {
    check_both("ignition.config.url=", "", &[USR], &user_config(USR));
    check(
        "ignition.config.url=https://a ignition.config.url=",
        "",
        &[USR],
        &user_config(USR),
        &URL,
    );
    check_both("ignition.config.url= ignition.config.url=https://a", "", &[USR], &URL);
    // One without "=" is none.
    check_both("ignition.config.url=https://a ignition.config.url", "", &[USR], &URL);
}

#[test]
fn ignition_knows_no_quotes() {
    check_both("\"ignition.config.url=https://a/b\"", "", &[], &ConfigOrigin::Platform);
    check_both("foo=\"a ignition.config.url=b\"", "", &[], &URL);
    check_both("ignition.config.url=\"\"", "", &[], &URL);
    // Up to 2.26 words end at blanks only, and are trimmed.
    check("quiet\tignition.config.url=https://a", "", &[], &ConfigOrigin::Platform, &URL);
    check_both("quiet \tignition.config.url=https://a\n", "", &[], &URL);
    check("quiet\nignition.config.url=https://a\n", "", &[], &ConfigOrigin::Platform, &URL);
}

#[test]
fn a_device_outranks_user_ign_and_platform_from_2_27_on() {
    let both = "ignition.config.device=ign ignition.config.path=/user.ign";
    check(both, "", &[], &ConfigOrigin::Platform, &ConfigOrigin::Device);
    check(both, "", &[RUN, USR], &user_config(USR), &ConfigOrigin::Device);
    for one in [
        "ignition.config.device=ign",
        "ignition.config.path=/user.ign",
        "ignition.config.device= ignition.config.path=/user.ign",
    ] {
        check(one, "", &[USR], &user_config(USR), &ConfigOrigin::Nowhere);
    }
    // An empty one is passed over.
    let again = "ignition.config.device=ign ignition.config.path=p ignition.config.device= ignition.config.path=";
    check(again, "", &[USR], &user_config(USR), &ConfigOrigin::Device);
    check_both("ignition.config.device= ignition.config.path=", "", &[USR], &user_config(USR));
}

#[test]
fn another_command_line_can_be_named_from_2_27_on() {
    let told = IgnitionInput {
        cmdline: "ignition.config.url=https://a".to_owned(),
        other_cmdline: Some("quiet".to_owned()),
        environment: String::new(),
    };
    check_input(&told, &[USR], &URL, &user_config(USR));
    let told = IgnitionInput {
        cmdline: told.other_cmdline.unwrap(),
        other_cmdline: Some(told.cmdline),
        ..told
    };
    check_input(&told, &[USR], &user_config(USR), &URL);
}

#[test]
fn first_user_ign_has_precedence() {
    check_both("", "", &[], &ConfigOrigin::Platform);
    check_both("", "", &[USR], &user_config(USR));
    check("", "", &[ETC], &ConfigOrigin::Platform, &user_config(ETC));
    check("", "", &[RUN], &ConfigOrigin::Platform, &user_config(RUN));
    check("", "", &[ETC, USR], &user_config(USR), &user_config(ETC));
    check("", "", &[RUN, ETC, USR], &user_config(USR), &user_config(RUN));
}

#[test]
fn system_config_dir_variable_moves_the_last_folder() {
    let moved = user_config("/a/user.ign");
    let there = &["/a/user.ign", USR];
    for environment in [
        "IGNITION_SYSTEM_CONFIG_DIR=/a",
        "PLATFORM_ID=qemu\nIGNITION_SYSTEM_CONFIG_DIR=\"/a\"\n",
        "IGNITION_SYSTEM_CONFIG_DIR=/b\nIGNITION_SYSTEM_CONFIG_DIR=/a",
    ] {
        check_both("", environment, there, &moved);
        check("", environment, &["/a/user.ign", ETC], &moved, &user_config(ETC));
        check_both("", environment, &[USR], &ConfigOrigin::Platform);
    }
    for environment in [
        "IGNITION_SYSTEM_CONFIG_DIR=",
        "IGNITION_SYSTEM_CONFIG_DIR=/a\nIGNITION_SYSTEM_CONFIG_DIR=",
        "#IGNITION_SYSTEM_CONFIG_DIR=/a",
    ] {
        check_both("", environment, there, &user_config(USR));
    }
}

#[test]
fn runtime_and_local_dir_variables_need_2_27() {
    let environment = "IGNITION_SYSTEM_RUNTIME_CONFIG_DIR=/r\nIGNITION_SYSTEM_LOCAL_CONFIG_DIR=/l\nIGNITION_SYSTEM_CONFIG_DIR=/s";
    let (r, l, s) = ("/r/user.ign", "/l/user.ign", "/s/user.ign");
    check("", environment, &[r, l, s], &user_config(s), &user_config(r));
    check("", environment, &[l, s], &user_config(s), &user_config(l));
    check_both("", environment, &[s, RUN, ETC, USR], &user_config(s));
    check_both("", environment, &[RUN, ETC, USR], &ConfigOrigin::Platform);
}

#[test]
fn base_configs_are_not_looked_at() {
    let base = [
        "/run/ignition/base.d/a.ign",
        "/usr/lib/ignition/base.d/a.ign",
        "/usr/lib/ignition/base.platform.d/qemu/a.ign",
    ];
    check_both("", "", &base, &ConfigOrigin::Platform);
}

#[test]
fn flatcar_accepts_three_config_url_arguments() {
    let flatcar = "OEM_ID=qemu\nPLATFORM_ID=qemu\n";
    for name in ["flatcar.config.url", "coreos.config.url", "ignition.config.url"] {
        check_both(&format!("{name}=https://a"), flatcar, &[USR], &ConfigOrigin::Url(name));
    }
    check(
        "flatcar.config.url=https://a coreos.config.url=",
        flatcar,
        &[USR],
        &user_config(USR),
        &ConfigOrigin::Url("flatcar.config.url"),
    );
    check_both(
        "flatcar.first_boot=1 coreos.config.url=https://a",
        "",
        &[],
        &ConfigOrigin::Url("coreos.config.url"),
    );
    // Nobody else's does.
    check_both("coreos.config.url=https://a", "PLATFORM_ID=qemu\n", &[USR], &user_config(USR));
}

fn input(cmdline: &str, environment: &str) -> IgnitionInput {
    IgnitionInput {
        cmdline: cmdline.to_owned(),
        environment: environment.to_owned(),
        ..IgnitionInput::default()
    }
}

#[test]
fn platform_id_comes_from_environment_or_command_line() {
    let check = |cmdline: &str, environment: &str, id: Option<&str>| {
        assert_eq!(input(cmdline, environment).platform().as_deref(), id, "{cmdline:?} {environment:?}");
    };
    check("", "", None);
    check("console=ttyS0 ignition.firstboot ignition.platform.id=qemu\n", "", Some("qemu"));
    check("ignition.platform.id=qemu", "PLATFORM_ID=metal\n", Some("metal"));
    check("ignition.platform.id=qemu ignition.platform.id=aws", "PLATFORM_ID=\n", Some("aws"));
    check("ignition.platform.id=qemu ignition.platform.id=", "", None);
    check("\"ignition.platform.id=qemu\"", "", None);
    check("flatcar.oem.id=qemu", "OEM_ID=aws\nPLATFORM_ID=aws\n", Some("aws"));
    check("flatcar.oem.id=ec2 ignition.platform.id=qemu", "", Some("aws"));
    check("flatcar.first_boot=1 coreos.oem.id=gce", "", Some("gcp"));
    check("flatcar.oem.id=pxe coreos.oem.id=gce", "", Some("metal"));
    check("flatcar.first_boot=1 ignition.platform.id=qemu", "", None);
    check("coreos.oem.id=gce", "", None);
}

#[test]
fn fw_cfg_and_config_file_paths_follow_ignition() {
    let [flatcars, ignitions] = FW_CFG;
    assert_eq!(input("", "").fw_cfg(), [ignitions]);
    assert_eq!(input("", "OEM_ID=qemu\nPLATFORM_ID=qemu").fw_cfg(), [flatcars, ignitions]);
    assert_eq!(input("", "").config_file(), Path::new("/config.ign"));
    assert_eq!(input("", "IGNITION_CONFIG_FILE=/a/b.ign").config_file(), Path::new("/a/b.ign"));
}

#[test]
fn ignition_version_is_queried_only_if_needed() {
    let folder = tempfile::tempdir().unwrap();
    let environment = |names: &[&str]| {
        let lines = names
            .iter()
            .map(|name| format!("IGNITION_SYSTEM_{name}={}\n", folder.path().display()));
        input("", &lines.collect::<String>())
    };
    let nowhere = "IGNITION_SYSTEM_RUNTIME_CONFIG_DIR=/nonexistent\nIGNITION_SYSTEM_LOCAL_CONFIG_DIR=/nonexistent\n";
    let ignition = Ignition::saying(input("", nowhere), || panic!("it does not matter"));
    assert!(matches!(ignition.origin(), ConfigOrigin::Platform | ConfigOrigin::UserConfig(_)));
    fs::write(folder.path().join(USER_CONFIG), "{}").unwrap();
    let local = environment(&["LOCAL_CONFIG_DIR"]);
    let origin = |said| Ignition::saying(local.clone(), said).origin().clone();
    assert_eq!(
        origin(|| "Ignition 2.27.0".to_owned()),
        ConfigOrigin::UserConfig(folder.path().join(USER_CONFIG))
    );
    assert_ne!(
        origin(|| "Ignition 2.26.0".to_owned()),
        ConfigOrigin::UserConfig(folder.path().join(USER_CONFIG))
    );
    assert_eq!(origin(|| "Ignition was not built properly".to_owned()), ConfigOrigin::Unclear);
}

#[test]
fn dangling_link_is_absent_unreadable_path_is_present() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("oem"), &link).unwrap();
    assert!(!exists(&link));
    fs::write(folder.path().join("oem"), "").unwrap();
    assert!(exists(&link));
    assert!(exists(&folder.path().join("oem/below-a-file")));
}
