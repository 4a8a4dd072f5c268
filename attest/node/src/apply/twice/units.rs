//! Units: `createUnits` of the stage files. Units and drop-ins are replaced, and masks set, as often as one likes. What is to be enabled becomes
//! a line of a preset, which systemd heeds only on a boot that it takes for a first one (`manager_preset_all` of its `src/core/manager.c`).

use std::fs;

use serde_json::Value;

use super::{Found, is_true, list, text};
use crate::apply::system::System;

/// Ignition's preset. Lines are added, and the first one for a unit counts.
const PRESET: &str = "/etc/systemd/system-preset/20-ignition.preset";
/// Where units are enabled by links, in folders such as `multi-user.target.wants`.
const UNITS: &str = "/etc/systemd/system";

pub fn check(config: &Value, system: &System, heeds_presets: bool, found: &mut Found) {
    let preset = system.text(PRESET).unwrap_or_default();
    for (index, unit) in list(config, "/systemd/units") {
        let name = text(unit, "name").unwrap_or_default();
        if !is_true(unit, "enabled") || is_enabled(system, name) {
            continue;
        }
        let why = match heeds_presets {
            false => "it is not enabled, and on this system nothing would enable it: systemd heeds presets on first boots only",
            true if is_disabled_by(&preset, name) => {
                "a preset of before says that it is disabled, and comes before the one that Ignition would add"
            }
            true => continue,
        };
        found.refuse(&format!("systemd.units[{index}]"), name, why);
    }
}

fn is_enabled(system: &System, name: &str) -> bool {
    let folders = fs::read_dir(system.path(UNITS)).into_iter().flatten().flatten();
    let mut enabling = folders.filter(|folder| {
        let name = folder.file_name();
        let name = name.to_string_lossy();
        name.ends_with(".wants") || name.ends_with(".requires")
    });
    enabling.any(|folder| folder.path().join(name).symlink_metadata().is_ok())
}

/// Whether the first line for a unit, or for an instance of it, disables it.
fn is_disabled_by(preset: &str, name: &str) -> bool {
    let template = name.split_once('@').and_then(|(before, after)| {
        let (instance, ending) = after.rsplit_once('.')?;
        Some((format!("{before}@.{ending}"), instance))
    });
    let is_it = |unit: &str, mut instances: std::str::SplitWhitespace| {
        unit == name
            || template
                .as_ref()
                .is_some_and(|(template, instance)| unit == template && instances.any(|word| word == *instance))
    };
    let first = preset.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (verb, unit) = (words.next()?, words.next()?);
        is_it(unit, words).then_some(verb)
    });
    first == Some("disable")
}
