//! Tests of base configs.

use serde_json::{Value, json};

use super::{ABLE, system};
use crate::apply::system::System;
use crate::apply::twice::{refusals, take_over};
use crate::ignition::base::BaseConfig;

fn base(config: &Value) -> BaseConfig {
    BaseConfig {
        place: "base.platform.d/aws/20-a.ign".to_owned(),
        text: config.to_string(),
    }
}

fn check(config: &Value, base_config: &Value, expect: &[&str]) {
    let root = system();
    let found = refusals(config, &[base(base_config)], &System::new(root.path()), ABLE);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), expect.len(), "{base_config}: {lines:#?}");
    for (line, expect) in lines.iter().zip(expect) {
        assert!(line.contains(expect), "{line:?}, not {expect:?}");
    }
}

fn storage(kind: &str, node: &Value) -> Value {
    json!({"ignition": {"version": "3.0.0"}, "storage": {kind: [node]}})
}

#[test]
fn base_config_entries_are_checked_for_reapplication() {
    let file = json!({"path": "/etc/file", "mode": 420, "contents": {"source": "data:,x"}});
    let stop = "base.platform.d/aws/20-a.ign of the initramfs, storage.files[0] (/etc/file): it exists, and overwrite is not true";
    let files = |own: &Value, expect: &[&str]| check(&storage("files", own), &storage("files", &file), expect);
    files(&json!({"path": "/etc/new"}), &[stop]);
    files(
        &json!({"path": "/etc/file", "overwrite": true, "contents": {"source": "data:,y"}}),
        &[],
    );
    // The mode alone could be set again, but the contents come from below.
    files(&json!({"path": "/etc/file", "mode": 384}), &[stop]);
    let link = json!({"path": "/etc/file", "target": "/x", "overwrite": true});
    check(&storage("links", &link), &storage("files", &file), &[]);
    let overwriting = json!({"path": "/etc/file", "overwrite": true, "contents": {"source": "data:,x"}});
    check(&json!({}), &storage("files", &overwriting), &[]);
    let core = json!({"passwd": {"users": [{"name": "core", "groups": ["adm"]}]}});
    check(&json!({}), &core, &[]);
    let arguments = json!({"ignition": {"config": {"merge": [{"source": "https://a/b"}]}}});
    check(&json!({}), &arguments, &["of the initramfs, ignition.config.merge[0]"]);
    let enabled = json!({"systemd": {"units": [{"name": "off.service", "enabled": true}]}});
    check(&json!({}), &enabled, &["(off.service): an existing preset"]);
    let not = json!({"systemd": {"units": [{"name": "off.service", "enabled": false}]}});
    check(&not, &enabled, &[]);
    check(&json!({}), &json!("nonsense"), &["is not JSON"]);
}

#[test]
fn base_config_file_is_copied_with_overwrite() {
    let contents = json!({"source": "data:,x", "verification": {"hash": null}});
    let file = json!({"path": "/etc/file", "mode": 420, "contents": contents});
    let before = storage("files", &file);
    for mut config in [json!({}), json!({"storage": {"files": null}}), json!({"storage": {"files": []}})] {
        take_over(&mut config, &[base(&before)]);
        let own = json!({"path": "/etc/file", "overwrite": true, "contents": contents});
        assert_eq!(config, json!({"storage": {"files": [own]}}));
        check(&config, &before, &[]);
    }
    // What the config says itself, and what Ignition could not be told so, stays.
    for own in [
        storage("files", &json!({"path": "/etc/file"})),
        storage("links", &json!({"path": "/etc/file"})),
    ] {
        let mut config = own.clone();
        take_over(&mut config, &[base(&before)]);
        assert_eq!(config, own);
    }
    for other in [
        json!({"path": "/etc/file", "mode": 420}),
        json!({"path": "/etc/file", "overwrite": true, "contents": contents}),
    ] {
        let mut config = json!({});
        take_over(&mut config, &[base(&storage("files", &other))]);
        assert_eq!(config, json!({}));
    }
}
