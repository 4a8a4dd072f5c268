//! Detects settings that Ignition cannot apply again to an existing system: it would stop the boot there, or destroy data.
//!
//! Ignition is made to run once, and does not check whether it has run before. The behaviour of its stages on an existing system is in
//! `internal/exec/stages` of coreos/ignition, read in 2.14 and in commits after 2.26: the same, except for groups. Each rule here names the
//! function that it is from. Facts that only the running system has are looked up there.

mod base;
mod device;
mod disks;
mod nodes;
mod passwd;
mod presets;
mod units;

use std::fmt;

use serde_json::Value;

use super::system::System;
use crate::failure::printable;
use crate::ignition::base::BaseConfig;

/// Report that Ignition leaves after a run.
const REPORT: &str = "/etc/.ignition-result.json";

/// A point of the config that cannot be done again, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRepeatable {
    at: String,
    why: String,
}

/// Actions available at the next boot, in addition to Ignition's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// The release of Ignition.
    pub ignition: (u32, u32),
    /// `true` if the initramfs can change the kernel's arguments.
    pub changes_kernel_arguments: bool,
    /// `true` if systemd will treat that boot as a first one, and heed presets.
    pub heeds_presets: bool,
}

impl fmt::Display for NotRepeatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.why)
    }
}

pub use self::base::take_over;
pub use self::nodes::overwrite;

/// Returns all refusals for a config, in its own order, and for the base configs below it.
#[must_use]
pub fn refusals(config: &Value, base: &[BaseConfig], system: &System, abilities: Abilities) -> Vec<NotRepeatable> {
    let mut found = Refusals::default();
    let presets_run = abilities.heeds_presets && needs_presets(config, base, system);
    check(config, system, abilities, presets_run, &mut found);
    base::check(config, base, &mut found, |base, found| {
        check(base, system, abilities, presets_run, found);
    });
    if presets_run && presets::may_disable(system) {
        units::check_enabled(config, base, system, &mut found);
    }
    report(system, &mut found);
    found.0
}

fn check(config: &Value, system: &System, abilities: Abilities, presets_run: bool, found: &mut Refusals) {
    references(config, found);
    if !abilities.changes_kernel_arguments {
        kernel_arguments(config, found);
    }
    disks::check(config, system, found);
    nodes::check(config, system, found);
    passwd::check(config, system, abilities.ignition, found);
    units::check(config, system, abilities.heeds_presets, presets_run, found);
}

/// Returns whether the config enables units that are disabled: that takes presets, which systemd heeds on a first boot only.
#[must_use]
pub fn needs_presets(config: &Value, base: &[BaseConfig], system: &System) -> bool {
    units::needs_presets(config, system) || base::merged(config, base).any(|base| units::needs_presets(&base, system))
}

/// Returns whether Ignition fetches something for which the initramfs needs a network.
#[must_use]
pub fn needs_network(config: &Value) -> bool {
    match config {
        Value::Object(members) => members.iter().any(|(name, value)| {
            let elsewhere = |source: &str| source.contains("://") && !source.starts_with("data:");
            (name == "source" && value.as_str().is_some_and(elsewhere)) || needs_network(value)
        }),
        Value::Array(values) => values.iter().any(needs_network),
        _ => false,
    }
}

#[derive(Debug, Default)]
struct Refusals(Vec<NotRepeatable>);

impl Refusals {
    /// Adds a refusal at a position such as `storage.files[3]`, with its subject as named in the config.
    fn refuse(&mut self, at: &str, about: &str, why: impl fmt::Display) {
        let about = if about.is_empty() {
            String::new()
        } else {
            format!(" ({})", printable(about))
        };
        self.0.push(NotRepeatable {
            at: format!("{at}{about}"),
            why: printable(&why.to_string()),
        });
    }
}

/// Refuses references to other configs, replacing or merged. Ignition fetches them itself, without a ticket, and their contents are unknown
/// here.
fn references(config: &Value, found: &mut Refusals) {
    let why = "Ignition would fetch another config, without a ticket, and its content cannot be checked here";
    let has_source = |resource: &Value| resource.get("source").is_some_and(|source| !source.is_null());
    if config.pointer("/ignition/config/replace").is_some_and(has_source) {
        found.refuse("ignition.config.replace", "", why);
    }
    for (index, resource) in list(config, "/ignition/config/merge") {
        if has_source(resource) {
            found.refuse(&format!("ignition.config.merge[{index}]"), "", why);
        }
    }
}

/// `addKargs` of the stage kargs: Ignition's own helper is a stub that fails.
fn kernel_arguments(config: &Value, found: &mut Refusals) {
    for name in ["shouldExist", "shouldNotExist"] {
        if list(config, &format!("/kernelArguments/{name}")).next().is_some() {
            let why = "this initramfs may not support kernel arguments";
            found.refuse(&format!("kernelArguments.{name}"), "", why);
        }
    }
}

/// `createResultFile` of the stage files puts the report of the run before into its own.
fn report(system: &System, found: &mut Refusals) {
    let before = system.text(REPORT);
    if before.is_some_and(|text| serde_json::from_str::<Value>(&text).is_err()) {
        found.refuse(
            REPORT,
            "",
            "it is not JSON, and Ignition reads it at the end and would stop the boot: remove it",
        );
    }
}

/// The members of a list, with their places.
fn list<'a>(config: &'a Value, pointer: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    config.pointer(pointer).and_then(Value::as_array).into_iter().flatten().enumerate()
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}

fn is_true(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool) == Some(true)
}

fn is_false(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool) == Some(false)
}

#[cfg(test)]
mod tests;
