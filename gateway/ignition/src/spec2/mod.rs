//! Spec 2.2, in and out: what clusters that were installed with OpenShift 4.1 to 4.5 still have, and their new nodes still ask for.

mod read;
mod schema;
mod write;

pub(super) use read::to_spec3;
pub(super) use write::from_spec3;

/// A part of a spec 2 config that spec 3 cannot express.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct NotTranslatable {
    /// Place, such as `storage.files.3.path`.
    pub place: String,
    pub problem: String,
}

/// The version as written in a config.
const VERSION: &str = "2.2.0";
/// The filesystem that needs no definition: the node's own.
const ROOT: &str = "root";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Config, SpecVersion};

    /// Asserts that translation to spec 2.2 and back changes nothing.
    #[track_caller]
    fn returns(config: Value) {
        becomes(config.clone(), config);
    }

    #[track_caller]
    fn becomes(config: Value, expected: Value) {
        let held = |mut value: Value| {
            value["ignition"]["version"] = "3.6.0".into();
            Config::from_value(value).unwrap()
        };
        let there = held(config).express(SpecVersion::V2_2).unwrap();
        assert_eq!(Config::parse(&there).unwrap().value(), held(expected).value());
    }

    #[test]
    fn spec_2_round_trips() {
        returns(json!({}));
        returns(json!({"ignition": {
            "config": {"merge": [{"source": "http://a/"}], "replace": {"source": "http://b/"}},
            "security": {"tls": {"certificateAuthorities": [{"source": "data:,a"}]}},
            "timeouts": {"httpTotal": 1, "httpResponseHeaders": 2}}}));
        returns(json!({"passwd": {
            "users": [{"name": "core", "sshAuthorizedKeys": ["b", "a"], "passwordHash": "", "groups": ["g"], "uid": 0, "system": true}],
            "groups": [{"name": "g", "gid": 0, "passwordHash": "x"}]}}));
        returns(json!({"systemd": {"units": [
            {"name": "b.service", "enabled": false, "contents": "[Unit]\n", "dropins": [{"name": "1.conf", "contents": "[Unit]\n"}]},
            {"name": "a.service", "mask": true}]}}));
        let file = |more: Value| {
            let mut file = json!({"path": "/b", "overwrite": true, "contents": {"source": "data:,a"}});
            file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"storage": {"files": [file, {"path": "/a", "overwrite": false, "contents": {"source": ""}}]}})
        };
        returns(file(json!({"mode": 0o600, "user": {"id": 0}, "group": {"name": "g"}})));
        returns(file(json!({"contents": {"source": "data:,a", "compression": "gzip",
            "verification": {"hash": format!("sha512-{}", "0".repeat(128))}}})));
        returns(file(
            json!({"mode": 0o600, "append": [{"source": "data:,b"}, {"source": "data:,c"}]}),
        ));
        returns(json!({"storage": {
            "directories": [{"path": "/d", "mode": 0o755, "overwrite": true}],
            "links": [{"path": "/l", "target": "/t", "hard": true, "user": {"name": "u"}}],
            "disks": [{"device": "/s", "wipeTable": true, "partitions": [{"label": "a", "number": 1,
                "guid": "01234567-89AB-CDEF-EDCB-A98765432101"}]}],
            "raid": [{"name": "r", "level": "raid1", "devices": ["/s", "/t"], "spares": 1, "options": ["a", "a"]}]}}));
    }

    #[test]
    fn spec_2_defaults_equal_unset_fields() {
        becomes(
            json!({"storage": {"files": [{"path": "/a", "contents": {"source": "data:,"}}]}}),
            json!({"storage": {"files": [{"path": "/a", "overwrite": false, "contents": {"source": "data:,"}}]}}),
        );
        becomes(
            json!({"systemd": {"units": [{"name": "a.service", "mask": false, "contents": ""}]}}),
            json!({"systemd": {"units": [{"name": "a.service"}]}}),
        );
        becomes(
            json!({"storage": {"files": [{"path": "/a", "append": [{"source": "data:,"}]}]}}),
            json!({"storage": {"files": [{"path": "/a", "overwrite": false, "append": [{"source": "data:,"}]}]}}),
        );
    }
}
