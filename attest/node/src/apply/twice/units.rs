//! Rules for units: `createUnits` of the stage files. Units and drop-ins are replaced, and masks set, any number of times. A unit to be
//! enabled becomes a line of a preset, which systemd heeds only on a boot that it treats as a first one (`manager_preset_all` of its
//! `src/core/manager.c`).

use std::fs;

use serde_json::Value;

use super::presets::{self, Presets};
use super::{Refusals, base, is_false, is_true, list, text};
use crate::apply::system::System;
use crate::ignition::base::BaseConfig;

/// Ignition's preset. Lines are added, and the first one for a unit counts.
const PRESET: &str = "/etc/systemd/system-preset/20-ignition.preset";
/// Folder of the links that enable units, in subfolders such as `multi-user.target.wants`.
const UNITS: &str = "/etc/systemd/system";

/// Returns whether the config enables a unit that is disabled.
pub(crate) fn needs_presets(config: &Value, system: &System) -> bool {
    list(config, "/systemd/units").any(|(_, unit)| is_true(unit, "enabled") && !is_enabled(system, text(unit, "name").unwrap_or_default()))
}

/// Refuses units that presets would disable on systems whose systemd does so: enabled by links, but by no preset, and not named by any
/// config.
pub(crate) fn check_enabled(config: &Value, base: &[BaseConfig], system: &System, found: &mut Refusals) {
    let presets = Presets::read(system);
    let base: Vec<Value> = base::merged(config, base).collect();
    let speaks_of = |config: &Value, name: &str| {
        list(config, "/systemd/units").any(|(_, unit)| {
            let says = is_true(unit, "mask") || unit.get("enabled").is_some_and(Value::is_boolean);
            says && text(unit, "name") == Some(name)
        })
    };
    for name in presets::enabled(system) {
        let is_known = speaks_of(config, &name) || base.iter().any(|base| speaks_of(base, &name));
        if !is_known && presets.disable(&name) {
            let why = format!(
                "it is enabled, but by no preset: at a first boot, a systemd such as Fedora's would disable it. Enable it in the config, or \
                 put \"enable {name}\" into /etc/systemd/system-preset/10-own.preset"
            );
            found.refuse("/etc/systemd/system", &name, why);
        }
    }
}

pub(crate) fn check(config: &Value, system: &System, heeds_presets: bool, presets_run: bool, found: &mut Refusals) {
    let preset = system.text(PRESET).unwrap_or_default();
    for (index, unit) in list(config, "/systemd/units") {
        let name = text(unit, "name").unwrap_or_default();
        if presets_run && is_false(unit, "enabled") && !is_true(unit, "mask") && first_verb(&preset, name) == Some("enable") {
            let why = "an existing preset enables it, and precedes the one that Ignition would add: mask it instead";
            found.refuse(&format!("systemd.units[{index}]"), name, why);
        }
        if !is_true(unit, "enabled") || is_enabled(system, name) {
            continue;
        }
        let why = match heeds_presets {
            false => "it is not enabled, and on this system Ignition cannot enable it: systemd applies presets on first boots only",
            true if first_verb(&preset, name) == Some("disable") => {
                "an existing preset disables it, and precedes the one that Ignition would add"
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

/// Returns the verb of the preset's first line for a unit, or for an instance of it.
fn first_verb<'a>(preset: &'a str, name: &str) -> Option<&'a str> {
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
    preset.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (verb, unit) = (words.next()?, words.next()?);
        is_it(unit, words).then_some(verb)
    })
}
