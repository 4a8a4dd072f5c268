//! Files, directories and links.

use std::collections::HashSet;

use super::at::At;
use super::{Invalid, cleaned, path, sources};

/// Permissions and the three special bits.
const MODE_MAX: i64 = 0o7777;
/// Folder that Ignition writes units to.
const UNIT_FOLDER: &str = "/etc/systemd/system/";

pub(super) fn check(storage: &At<'_>, systemd: &At<'_>) -> Result<(), Invalid> {
    let taken = unit_paths(systemd);
    let paths_of = |list| -> HashSet<&str> { storage.each(list).map(|node| node.get("path").text_or_empty()).collect() };
    let (directories, links) = (paths_of("directories"), paths_of("links"));
    for list in ["directories", "files", "links"] {
        for entry in storage.each(list) {
            node(&entry)?;
            let path = entry.get("path");
            path.must(
                !taken.contains(path.text_or_empty()),
                "a path that no unit or drop-in of this config has is expected",
            )?;
            // What Ignition writes through a link ends up elsewhere, or fails, by the order in which it writes.
            path.must(
                !ancestors(path.text_or_empty()).any(|ancestor| links.contains(ancestor)),
                "a path that does not lead through a link of this config is expected",
            )?;
        }
    }
    for entry in storage.each("files") {
        file(&entry)?;
    }
    for entry in storage.each("links") {
        link(&entry, &directories)?;
    }
    Ok(())
}

fn node(node: &At<'_>) -> Result<(), Invalid> {
    path(&node.get("path"))?;
    if let Some(bits) = node.get("mode").number() {
        node.get("mode")
            .must((0..=MODE_MAX).contains(&bits), "a mode of at most 0o7777 is expected")?;
    }
    for owner in ["user", "group"] {
        let owner = node.get(owner);
        owner.must(
            !(owner.get("id").is_set() && owner.get("name").says()),
            "an id or a name is expected, not both",
        )?;
    }
    Ok(())
}

fn file(file: &At<'_>) -> Result<(), Invalid> {
    let contents = file.get("contents");
    let overwrite = file.get("overwrite");
    overwrite.must(
        !overwrite.is(true) || contents.get("source").is_set(),
        "contents to overwrite the file with are expected",
    )?;
    sources::resource(&contents)?;
    file.each("append").try_for_each(|part| sources::resource(&part))
}

fn link(link: &At<'_>, directories: &HashSet<&str>) -> Result<(), Invalid> {
    let target = link.get("target");
    target.must(target.says(), "the target of the link is expected")?;
    if link.get("hard").is(true) {
        // A relative target is taken from the link itself, not from its folder: so does Ignition here.
        let target = match target.text_or_empty() {
            absolute if absolute.starts_with('/') => cleaned(absolute),
            relative => cleaned(&format!("{}/{relative}", link.get("path").text_or_empty())),
        };
        link.must(
            !directories.contains(target.as_str()),
            "a hard link to something else than a directory is expected",
        )?;
    }
    Ok(())
}

/// Returns the paths of the units and drop-ins that have contents.
fn unit_paths(systemd: &At<'_>) -> HashSet<String> {
    let mut paths = HashSet::new();
    for unit in systemd.each("units") {
        let path = format!("{UNIT_FOLDER}{}", unit.get("name").text_or_empty());
        for dropin in unit.each("dropins").filter(|dropin| dropin.get("contents").says()) {
            paths.insert(format!("{path}.d/{}", dropin.get("name").text_or_empty()));
        }
        if unit.get("contents").says() {
            paths.insert(path);
        }
    }
    paths
}

/// Returns the folders that a path leads through, without `/`.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/')
        .filter_map(|(slash, _)| path.get(..slash))
        .filter(|ancestor| !ancestor.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{refused, taken};

    fn file(mut file: Value) -> Value {
        file["path"] = "/a".into();
        json!({"storage": {"files": [file]}})
    }

    #[test]
    fn validates_modes_and_owners() {
        taken(file(json!({"mode": 0o7777})));
        refused(file(json!({"mode": 0o10000})), "storage.files.0.mode");
        refused(file(json!({"mode": -1})), "storage.files.0.mode");
        refused(
            json!({"storage": {"directories": [{"path": "/a", "mode": 0o10000}]}}),
            "storage.directories.0.mode",
        );
        taken(file(json!({"user": {"id": 0, "name": ""}, "group": {"name": "a"}})));
        refused(file(json!({"user": {"id": 0, "name": "root"}})), "storage.files.0.user");
        refused(file(json!({"group": {"id": 0, "name": "root"}})), "storage.files.0.group");
    }

    #[test]
    fn overwrite_requires_contents() {
        taken(file(json!({"overwrite": true, "contents": {"source": "data:,"}})));
        taken(file(json!({"overwrite": false})));
        refused(file(json!({"overwrite": true})), "storage.files.0.overwrite");
        refused(
            file(json!({"overwrite": true, "append": [{"source": "data:,"}]})),
            "storage.files.0.overwrite",
        );
        // Only files: a directory may be overwritten with itself.
        taken(json!({"storage": {"directories": [{"path": "/a", "overwrite": true}]}}));
        refused(
            file(json!({"append": [{"source": "data:,"}, {"source": "a"}]})),
            "storage.files.0.append.1.source",
        );
    }

    #[test]
    fn rejects_paths_below_a_link() {
        let with = |mut storage: Value| {
            storage["links"] = json!([{"path": "/l", "target": "/t"}]);
            json!({"storage": storage})
        };
        taken(with(json!({"files": [{"path": "/lb"}, {"path": "/t/l/a"}]})));
        refused(with(json!({"files": [{"path": "/l/a"}]})), "storage.files.0.path");
        refused(with(json!({"directories": [{"path": "/l/a/b"}]})), "storage.directories.0.path");
        refused(
            json!({"storage": {"links": [{"path": "/l", "target": "/t"}, {"path": "/l/m", "target": "/t"}]}}),
            "storage.links.1.path",
        );
        refused(json!({"storage": {"links": [{"path": "/l"}]}}), "storage.links.0.target");
        refused(
            json!({"storage": {"links": [{"path": "/l", "target": ""}]}}),
            "storage.links.0.target",
        );
    }

    #[test]
    fn rejects_hard_links_to_directories() {
        let with = |link: Value| json!({"storage": {"directories": [{"path": "/d"}, {"path": "/l/e"}], "links": [link]}});
        taken(with(json!({"path": "/m", "target": "/d"})));
        taken(with(json!({"path": "/m", "target": "/f", "hard": true})));
        refused(with(json!({"path": "/m", "target": "/d", "hard": true})), "storage.links.0");
        refused(with(json!({"path": "/m", "target": "/x/..//d/", "hard": true})), "storage.links.0");
        refused(with(json!({"path": "/m", "target": "../d", "hard": true})), "storage.links.0");
    }

    #[test]
    fn rejects_files_at_the_path_of_a_unit() {
        let with = |unit: Value, path: &str| json!({"systemd": {"units": [unit]}, "storage": {"files": [{"path": path}]}});
        let path = "/etc/systemd/system/a.service";
        taken(with(json!({"name": "a.service"}), path));
        refused(
            with(json!({"name": "a.service", "contents": "[Unit]"}), path),
            "storage.files.0.path",
        );
        let dropin = |contents: &str| json!({"name": "a.service", "dropins": [{"name": "b.conf", "contents": contents}]});
        taken(with(dropin("[Unit]"), path));
        taken(with(dropin(""), "/etc/systemd/system/a.service.d/b.conf"));
        refused(
            with(dropin("[Unit]"), "/etc/systemd/system/a.service.d/b.conf"),
            "storage.files.0.path",
        );
    }
}
