use proptest::prelude::*;

use super::*;

fn include(files: &[&str], units: &[&str], users: &[&str]) -> Result<Include, BadEntry> {
    let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    Include::new(owned(files), owned(units), owned(users))
}

fn full() -> Config {
    Config::from_value(json!({
        "ignition": {
            "version": "3.4.0",
            "config": { "merge": [{ "source": "https://a.example.com/more" }] },
            "proxy": { "httpsProxy": "https://proxy.example.com" },
            "timeouts": { "httpTotal": 60 },
            "security": { "tls": { "certificateAuthorities": [{ "source": "data:,ca" }] } },
        },
        "kernelArguments": { "shouldExist": ["quiet"] },
        "passwd": {
            "users": [{ "name": "core", "sshAuthorizedKeys": ["key"] }, { "name": "root", "passwordHash": "hash" }],
            "groups": [{ "name": "core" }],
        },
        "storage": {
            "disks": [{ "device": "/dev/sda", "wipeTable": true }],
            "filesystems": [{ "device": "/dev/sdb", "format": "xfs", "path": "/var" }],
            "luks": [{ "name": "a", "device": "/dev/sdc" }],
            "directories": [{ "path": "/etc/kubernetes/manifests", "mode": 493 }],
            "files": [
                { "path": "/etc/kubernetes/ca.crt", "mode": 420, "contents": { "source": "data:,ca" } },
                { "path": "/etc/kubernetes/manifests/pod.yaml", "contents": { "source": "data:,pod" } },
                { "path": "/etc/kubernetes-secret", "contents": { "source": "data:,secret" } },
                { "path": "/etc/fetched", "contents": { "source": "https://a.example.com/fetched" } },
                { "path": "/etc/appended", "append": [{ "source": "data:,a" }, { "source": "http://a.example.com/appended" }] },
            ],
            "links": [{ "path": "/etc/kubernetes/link", "target": "/etc/kubernetes/ca.crt" }],
        },
        "systemd": { "units": [
            { "name": "a.service", "enabled": true, "contents": "[Unit]", "dropins": [{ "name": "1.conf", "contents": "[Unit]" }] },
            { "name": "b.service", "enabled": true },
        ] },
    }))
    .unwrap()
}

/// Returns the chosen places: paths, units, users, and the fields of `ignition`.
fn places(config: &Config) -> Vec<String> {
    let mut places = Vec::new();
    for (section, value) in config.value() {
        for (list, value) in value.as_object().unwrap() {
            let name = |entry: &Value| ["path", "name"].iter().find_map(|key| text_of(entry, key).map(str::to_owned));
            match (section.as_str(), value) {
                ("ignition", _) => places.extend((list != "version").then(|| list.clone())),
                (_, Value::Array(entries)) => places.extend(entries.iter().map(|entry| name(entry).unwrap())),
                other => panic!("{other:?}"),
            }
        }
    }
    places
}

#[track_caller]
fn check(files: &[&str], units: &[&str], users: &[&str], expected: &[&str]) {
    let mut found = places(&include(files, units, users).unwrap().choose(&full()).unwrap());
    found.sort();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[track_caller]
fn refused(files: &[&str], units: &[&str], users: &[&str], expected: &str) {
    let error = include(files, units, users).unwrap().choose(&full()).unwrap_err().to_string();
    assert_eq!(error, expected);
}

#[test]
fn selects_only_the_named_files_units_and_users() {
    check(&["/etc/kubernetes/ca.crt"], &[], &[], &["/etc/kubernetes/ca.crt"]);
    check(&["/etc/kubernetes/link"], &[], &[], &["/etc/kubernetes/link"]);
    check(&["/etc/kubernetes/manifests"], &[], &[], &["/etc/kubernetes/manifests"]);
    check(
        &["/etc/kubernetes/*"],
        &[],
        &[],
        &["/etc/kubernetes/ca.crt", "/etc/kubernetes/link", "/etc/kubernetes/manifests"],
    );
    check(
        &["/etc/kubernetes/**"],
        &[],
        &[],
        &[
            "/etc/kubernetes/ca.crt",
            "/etc/kubernetes/link",
            "/etc/kubernetes/manifests",
            "/etc/kubernetes/manifests/pod.yaml",
        ],
    );
    check(&["/etc/kubernetes/manifests/*"], &[], &[], &["/etc/kubernetes/manifests/pod.yaml"]);
    check(&[], &["a.service"], &[], &["a.service"]);
    check(&[], &[], &["core"], &["core"]);
    check(
        &["/etc/kubernetes/ca.crt"],
        &["b.service"],
        &["root"],
        &["/etc/kubernetes/ca.crt", "b.service", "root"],
    );
}

#[test]
fn selects_units_and_users_with_all_fields() {
    let chosen = include(&[], &["a.service"], &["core"]).unwrap().choose(&full()).unwrap();
    assert_eq!(chosen.list(["systemd", "units"])[0], full().list(["systemd", "units"])[0]);
    assert_eq!(chosen.list(["passwd", "users"])[0], full().list(["passwd", "users"])[0]);
}

#[test]
fn remote_files_bring_proxy_security_and_timeouts() {
    check(&["/etc/fetched"], &[], &[], &["/etc/fetched", "proxy", "security", "timeouts"]);
    check(&["/etc/appended"], &[], &[], &["/etc/appended", "proxy", "security", "timeouts"]);
    check(
        &["/etc/kubernetes-secret"],
        &["a.service"],
        &[],
        &["/etc/kubernetes-secret", "a.service"],
    );
}

#[test]
fn refuses_an_include_entry_without_a_match() {
    refused(&[], &[], &[], "include is empty: name files, units, users or other entries");
    refused(
        &["/etc/kubernetes/ca.cert"],
        &[],
        &[],
        "include.files: the full config has no entry \"/etc/kubernetes/ca.cert\"",
    );
    refused(
        &["/etc/kubernetes"],
        &[],
        &[],
        "include.files: the full config has no entry \"/etc/kubernetes\"",
    );
    refused(
        &["/etc/kubernetes/**", "/opt/*"],
        &[],
        &[],
        "include.files: the full config has no entry \"/opt/*\"",
    );
    refused(&["/opt/**"], &[], &[], "include.files: the full config has no entry \"/opt/**\"");
    refused(
        &["/etc/kubernetes/ca.crt/*"],
        &[],
        &[],
        "include.files: the full config has no entry \"/etc/kubernetes/ca.crt/*\"",
    );
    refused(
        &[],
        &["a.service", "c.service"],
        &[],
        "include.units: the full config has no entry \"c.service\"",
    );
    refused(&[], &["1.conf"], &[], "include.units: the full config has no entry \"1.conf\"");
    refused(&[], &[], &["Core"], "include.users: the full config has no entry \"Core\"");
}

#[test]
fn include_entries_are_names_or_star_patterns() {
    let check = |files: &str, expected: bool| assert_eq!(include(&[files], &[], &[]).is_ok(), expected, "{files}");
    for good in ["/a", "/a/*", "/a/**", "/a/b/**", "/a b", "/a/.b", "/a\\x2db"] {
        check(good, true);
    }
    for bad in [
        "",
        "a",
        "/",
        "//",
        "/a/",
        "/a//b",
        "/a/./b",
        "/a/../b",
        "/a/..",
        "/a\n",
        "/*",
        "/**",
        "*",
        "**",
        "/a*",
        "/a/b*",
        "/a/***",
        "/a/*/b",
        "/a/**/b",
        "/*/a",
        "/a/*.conf",
        "/a/?",
        "/a/[b]",
        "/a/{b,c}",
        "/a/*/",
        "/a//*",
        "/../**",
    ] {
        check(bad, false);
    }
    for name in ["", "*", "a*", "a.service?", "[a]", "/a"] {
        assert!(include(&[], &[name], &[]).is_err() && include(&[], &[], &[name]).is_err(), "{name}");
    }
    include(&[], &["getty@tty1.service", "dev-disk-by\\x2dlabel-a.swap"], &[]).unwrap();
}

proptest! {
    #[test]
    fn selection_is_a_subset_of_the_full_config(
        paths in prop::collection::btree_map("(/[ab.]{1,2}){1,3}", 0_u8..3, 0..8),
        units in prop::collection::btree_set("[ab]{1,2}\\.service", 0..4),
        users in prop::collection::btree_set("[ab]{1,2}", 0..4),
        picked in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..3), 0..3),
        wanted in prop::collection::vec("[ab]{1,2}", 0..2),
    ) {
        let of_kind = |kind: u8, make: fn(&String) -> Value| -> Vec<Value> {
            paths.iter().filter(|(_, of)| **of == kind).map(|(path, _)| make(path)).collect()
        };
        let full = json!({
            "ignition": { "version": "3.4.0", "proxy": { "httpsProxy": "https://p.example.com" } },
            "kernelArguments": { "shouldExist": ["quiet"] },
            "storage": {
                "files": of_kind(0, |path| json!({ "path": path, "mode": 420, "contents": { "source": format!("data:,{path}") } })),
                "directories": of_kind(1, |path| json!({ "path": path, "mode": 493 })),
                "links": of_kind(2, |path| json!({ "path": path, "target": "/t" })),
            },
            "systemd": { "units": units.iter().map(|name| json!({ "name": name, "enabled": true })).collect::<Vec<_>>() },
            "passwd": { "users": users.iter().map(|name| json!({ "name": name, "sshAuthorizedKeys": [name] })).collect::<Vec<_>>() },
        });
        // Rules that match something, most of them.
        let names: Vec<&String> = paths.keys().collect();
        let files = picked
            .iter()
            .filter(|_| !names.is_empty())
            .map(|(index, rule)| {
                let path = index.get(&names).as_str();
                let (folder, _) = path.rsplit_once('/').unwrap();
                [path.to_owned(), format!("{folder}/*"), format!("{folder}/**")][usize::from(*rule)].clone()
            })
            .collect();
        // Configs that Ignition would refuse are not the matter here.
        let Ok(full) = Config::from_value(full) else { return Ok(()) };
        let unit_names = wanted.iter().map(|name| format!("{name}.service")).collect();
        let Ok(include) = Include::new(files, unit_names, wanted) else { return Ok(()) };
        let Ok(chosen) = include.choose(&full) else { return Ok(()) };
        let lists = [["storage", "files"], ["storage", "directories"], ["storage", "links"], ["systemd", "units"], ["passwd", "users"]];
        let mut entries = 0;
        for place in lists {
            let whole = full.list(place);
            prop_assert!(chosen.list(place).iter().all(|entry| whole.contains(entry)));
            entries += chosen.list(place).len();
        }
        prop_assert!(entries > 0);
        prop_assert!(chosen.value().keys().all(|key| ["ignition", "storage", "systemd", "passwd"].contains(&key.as_str())));
        prop_assert!(chosen.value()["ignition"].as_object().unwrap().keys().eq(["version"]));
    }
}
