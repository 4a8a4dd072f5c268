//! Validation of systemd units and drop-ins.

use super::at::At;
use super::{Invalid, unit_files};

const UNIT_SUFFIXES: [&str; 12] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "snapshot",
    "slice",
    "scope",
];

pub(super) fn check(systemd: &At<'_>) -> Result<(), Invalid> {
    for unit in systemd.each("units") {
        let name = unit.get("name");
        name.must(
            suffix(name.text_or_empty()).is_some_and(|suffix| UNIT_SUFFIXES.contains(&suffix)),
            "the suffix of a unit is expected, as .service is",
        )?;
        contents(&unit.get("contents"))?;
        for dropin in unit.each("dropins") {
            let name = dropin.get("name");
            contents(&dropin.get("contents"))?;
            name.must(suffix(name.text_or_empty()) == Some("conf"), "the suffix .conf is expected")?;
        }
    }
    Ok(())
}

fn contents(contents: &At<'_>) -> Result<(), Invalid> {
    unit_files::check(contents.text_or_empty()).map_err(|problem| contents.refuse(problem.to_string()))
}

/// Returns the part after the last dot of a file's name.
fn suffix(name: &str) -> Option<&str> {
    let (_, suffix) = name.rsplit_once('.')?;
    (!suffix.contains('/')).then_some(suffix)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{refused, taken};

    #[test]
    fn validates_unit_and_drop_in_names() {
        let unit = |name: &str| json!({"systemd": {"units": [{"name": name}]}});
        for good in ["a.service", "a@b.socket", ".mount", "a.b.timer", "a/b.slice"] {
            taken(unit(good));
        }
        for bad in ["", "a", "a.conf", "a.Service", "a.service/", "service"] {
            refused(unit(bad), "systemd.units.0.name");
        }
        let dropin = |name: &str| json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": name}]}]}});
        taken(dropin("10-a.conf"));
        refused(dropin("10-a.service"), "systemd.units.0.dropins.0.name");
        refused(dropin("conf"), "systemd.units.0.dropins.0.name");
    }

    #[test]
    fn validates_unit_contents() {
        let unit = |contents: &str| json!({"systemd": {"units": [{"name": "a.service", "contents": contents}]}});
        taken(unit("[Unit]\nDescription=a\n"));
        refused(unit("[Unit]\nDescription\n"), "systemd.units.0.contents");
        let dropin =
            |contents: &str| json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": "b.conf", "contents": contents}]}]}});
        taken(dropin("[Unit]\n"));
        refused(dropin("[Unit"), "systemd.units.0.dropins.0.contents");
    }
}
