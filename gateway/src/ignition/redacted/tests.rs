use super::*;
use crate::ignition::{Config, SpecVersion};

const MARK: &str = "SECRET";

fn key() -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &[7; 32])
}

/// A config with all that a spec has, and some that none has yet.
fn full() -> Value {
    let resource = |source: &str| {
        json!({"source": source, "compression": "gzip", "verification": {"hash": "sha512-00"},
            "httpHeaders": [{"name": "n", "value": "v"}]})
    };
    let node = |mut node: Value| {
        for (name, value) in [("path", json!("/p")), ("overwrite", json!(true))] {
            node[name] = value;
        }
        // Of a link there is none.
        if node.get("target").is_none() {
            node["mode"] = json!(420);
        }
        for owner in ["user", "group"] {
            node[owner] = json!({"id": 1, "name": "o"});
        }
        node
    };
    json!({
        "ignition": {
            "version": "3.5.0",
            "config": {"merge": [resource("https://a/b?token=c")], "append": [resource("https://a")], "replace": resource("s3://a")},
            "timeouts": {"httpResponseHeaders": 1, "httpTotal": 2},
            "security": {"tls": {"certificateAuthorities": [resource("https://ca")]}},
            "proxy": {"httpProxy": "http://u:p@a", "httpsProxy": "https://u:p@a", "noProxy": ["n"]},
            "later": {"a": "b"},
        },
        "kernelArguments": {"shouldExist": ["a=b"], "shouldNotExist": ["c"]},
        "passwd": {
            "users": [{"name": "u", "passwordHash": "h", "sshAuthorizedKeys": ["k"], "uid": 1, "gecos": "g", "homeDir": "/h", "noCreateHome": true,
                "primaryGroup": "p", "groups": ["g"], "noUserGroup": true, "noLogInit": true, "shell": "/s", "shouldExist": true, "system": true}],
            "groups": [{"name": "g", "gid": 1, "passwordHash": "h", "shouldExist": true, "system": true}],
        },
        "storage": {
            "files": [node(json!({"contents": resource("https://f"), "append": [resource("https://f")]}))],
            "directories": [node(json!({}))],
            "links": [node(json!({"hard": true, "target": "/t"}))],
            "disks": [{"device": "/d", "wipeTable": true, "partitions": [{"label": "l", "number": 1, "sizeMiB": 1, "startMiB": 1,
                "typeGuid": "t", "guid": "g", "wipePartitionEntry": true, "shouldExist": true, "resize": true}]}],
            "raid": [{"name": "r", "level": "l", "devices": ["/d"], "spares": 1, "options": ["o"]}],
            "filesystems": [{"device": "/d", "format": "f", "label": "l", "uuid": "u", "path": "/p", "wipeFilesystem": true,
                "options": ["o"], "mountOptions": ["password=p"]}],
            "luks": [{"name": "l", "device": "/d", "label": "l", "uuid": "u", "wipeVolume": true, "discard": true, "options": ["o"],
                "openOptions": ["o"], "keyFile": resource("https://k"), "cex": {"enabled": true},
                "clevis": {"tang": [{"url": "http://t", "thumbprint": "t", "advertisement": "a"}], "tpm2": true, "threshold": 1,
                    "custom": {"pin": "p", "config": "c", "needsNetwork": true}}}],
        },
        "systemd": {"units": [{"name": "u", "enabled": true, "mask": true, "contents": "c", "dropins": [{"name": "d", "contents": "c"}]}]},
        "later": "l",
    })
}

/// The places of all texts, list entries as `*`.
fn texts(value: &Value, place: &str, found: &mut Vec<String>) {
    let step = |name: &str| {
        if place.is_empty() {
            name.to_owned()
        } else {
            format!("{place}.{name}")
        }
    };
    match value {
        Value::String(_) => found.push(place.to_owned()),
        Value::Array(entries) => entries.iter().for_each(|entry| texts(entry, &step("*"), found)),
        Value::Object(members) => members.iter().for_each(|(name, value)| texts(value, &step(name), found)),
        _ => {}
    }
}

/// Puts the mark behind each text.
fn mark(value: &mut Value) {
    match value {
        Value::String(text) => text.push_str(MARK),
        Value::Array(entries) => entries.iter_mut().for_each(mark),
        Value::Object(members) => members.values_mut().for_each(mark),
        _ => {}
    }
}

/// The places at which a mark is left.
fn marks(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.contains(MARK) => found.push(place.to_owned()),
        Value::Array(entries) => entries.iter().for_each(|entry| marks(entry, &format!("{place}.*"), found)),
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| marks(value, format!("{place}.{name}").trim_start_matches('.'), found)),
        _ => {}
    }
}

/// All texts that may be read. What is not in this list is a secret until somebody has thought about it.
const READ: &str = "ignition.config.append.*.compression ignition.config.append.*.httpHeaders.*.name ignition.config.append.*.verification.hash \
ignition.config.merge.*.compression ignition.config.merge.*.httpHeaders.*.name ignition.config.merge.*.verification.hash \
ignition.config.replace.compression ignition.config.replace.httpHeaders.*.name ignition.config.replace.verification.hash \
ignition.security.tls.certificateAuthorities.*.compression ignition.security.tls.certificateAuthorities.*.httpHeaders.*.name \
ignition.security.tls.certificateAuthorities.*.verification.hash ignition.version passwd.groups.*.name passwd.users.*.groups.* \
passwd.users.*.homeDir passwd.users.*.name passwd.users.*.primaryGroup passwd.users.*.shell storage.directories.*.group.name \
storage.directories.*.path storage.directories.*.user.name storage.disks.*.device storage.disks.*.partitions.*.guid \
storage.disks.*.partitions.*.label storage.disks.*.partitions.*.typeGuid storage.files.*.append.*.compression \
storage.files.*.append.*.httpHeaders.*.name storage.files.*.append.*.verification.hash storage.files.*.contents.compression \
storage.files.*.contents.httpHeaders.*.name storage.files.*.contents.verification.hash storage.files.*.group.name storage.files.*.path \
storage.files.*.user.name storage.filesystems.*.device storage.filesystems.*.format storage.filesystems.*.label storage.filesystems.*.path \
storage.filesystems.*.uuid storage.links.*.group.name storage.links.*.path storage.links.*.target storage.links.*.user.name \
storage.luks.*.clevis.custom.pin storage.luks.*.device storage.luks.*.keyFile.compression storage.luks.*.keyFile.httpHeaders.*.name \
storage.luks.*.keyFile.verification.hash storage.luks.*.label storage.luks.*.name storage.luks.*.uuid storage.raid.*.devices.* \
storage.raid.*.level storage.raid.*.name systemd.units.*.dropins.*.name systemd.units.*.name";

#[test]
fn no_text_is_left_but_those_that_are_named() {
    let mut config = full();
    mark(&mut config);
    let mut found = Vec::new();
    marks(&redacted(&config, &key()), "", &mut found);
    found.sort();
    assert_eq!(found.join(" "), READ);
    // And what is there is all that this release's spec has, but for the names of later ones.
    let mut all = Vec::new();
    texts(&config, "", &mut all);
    assert!(all.len() > found.len() + 30, "{}", all.len());
}

#[test]
fn the_config_of_the_test_has_all_that_the_newest_spec_knows() {
    let mut config = full();
    config.as_object_mut().unwrap().remove("later");
    config["ignition"].as_object_mut().unwrap().remove("later");
    config["ignition"]["config"].as_object_mut().unwrap().remove("append");
    config["ignition"]["version"] = SpecVersion::NEWEST.as_str().into();
    let (_, warnings) = ignition_config::Config::parse_slice(config.to_string().as_bytes()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    // A text or number that was left out would be null there.
    let typed: ignition_config::v3_6::Config = serde_json::from_value(config).unwrap();
    assert!(!serde_json::to_string(&typed).unwrap().contains("null"), "{typed:?}");
}

#[test]
fn what_is_not_of_the_form_that_is_known_is_hidden() {
    let check = |config: Value| {
        let shown = redacted(&config, &key()).to_string();
        assert!(!shown.contains(MARK), "{config} is shown as {shown}");
    };
    check(json!(MARK));
    check(json!([MARK]));
    check(json!({MARK: 1}));
    check(json!({"ignition": {MARK: {MARK: MARK}}}));
    check(json!({"ignition": MARK}));
    check(json!({"ignition": {"version": {"a": MARK}}}));
    check(json!({"ignition": {"version": [MARK]}}));
    check(json!({"storage": {"files": MARK}}));
    check(json!({"storage": {"files": {"path": MARK}}}));
    check(json!({"storage": {"files": [MARK]}}));
    check(json!({"storage": {"files": [{"path": [MARK]}]}}));
    check(json!({"storage": {"files": [{"Path": MARK}]}}));
    check(json!({"storage.files.*.path": MARK}));
    check(json!({"storage": {"files": [{"append": {"source": MARK}}]}}));
    check(json!({"passwd": {"users": [{"groups": [[MARK], {MARK: 1}], "passwordHash": {"a": [MARK]}}]}}));
    // Members of what is listed elsewhere.
    check(json!({"storage": {"path": MARK}, "systemd": {"name": MARK}, "name": MARK}));
}

#[test]
fn the_hash_of_what_stands_beside_it_is_hidden_too() {
    let hash = |source: &str| {
        let contents = json!({"source": source, "verification": {"hash": MARK}});
        redacted(&json!({"storage": {"files": [{"path": "/a", "contents": contents}]}}), &key())
            .to_string()
            .contains(MARK)
    };
    assert!(hash("https://a/b"));
    for inline in ["data:,a", "DATA:,a", "data:text/plain;base64,YQ==", "data:damaged"] {
        assert!(!hash(inline), "{inline}");
    }
}

#[test]
fn what_is_hidden_has_its_length_and_a_digest_of_what_a_node_would_write() {
    let hidden = |source: &str, key: &hmac::Key| {
        let config = json!({"storage": {"files": [{"contents": {"source": source}}]}});
        redacted(&config, key)["storage"]["files"][0]["contents"]["source"].take()
    };
    let expected = HEXLOWER.encode(hmac::sign(&key(), b"a b").as_ref());
    for source in ["data:,a%20b", "data:;base64,YSBi"] {
        let expected = json!({"redacted": "data", "bytes": 3, "hmac_sha256": expected});
        assert_eq!(hidden(source, &key()), expected);
    }
    assert_eq!(
        hidden("a b", &key()),
        json!({"redacted": "text", "bytes": 3, "hmac_sha256": expected})
    );
    assert_ne!(hidden("a b", &hmac::Key::new(hmac::HMAC_SHA256, &[8; 32]))["hmac_sha256"], expected);
    let units = json!({"systemd": {"units": [{"contents": {"a": 1}}]}});
    assert_eq!(redacted(&units, &key())["systemd"]["units"][0]["contents"]["redacted"], "json");
    let list = redacted(&json!({"kernelArguments": {"shouldExist": ["a b", "c"]}}), &key());
    assert_eq!(list["kernelArguments"]["shouldExist"][0]["hmac_sha256"], expected);
    assert_eq!(list["kernelArguments"]["shouldExist"][1]["bytes"], 1);
}

#[test]
fn a_config_of_each_version_is_redacted() {
    let config = json!({"ignition": {"version": "3.1.0"}, "storage": {"files": [{"path": "/a", "mode": 420, "contents": {"source": "data:,SECRET"}}]},
        "systemd": {"units": [{"name": "a.service", "contents": "[Unit]\nDescription=SECRET\n"}]}});
    let config = Config::from_value(config).unwrap();
    for version in SpecVersion::ALL {
        let bytes = config.express(version).unwrap();
        let shown = redacted(&serde_json::from_slice(&bytes).unwrap(), &key());
        assert_eq!(shown["ignition"]["version"], version.as_str());
        assert_eq!(shown["storage"]["files"][0]["path"], "/a");
        assert_eq!(shown["systemd"]["units"][0]["name"], "a.service");
        assert!(!shown.to_string().contains(MARK), "{shown}");
    }
}
