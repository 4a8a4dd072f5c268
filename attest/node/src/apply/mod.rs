//! `attest-node config apply`: has Ignition apply the full config at the next boot, by the distribution's own way of a first boot.
//!
//! If any step fails, nothing is changed. The steps, in order: check that the system has such a first-boot mechanism ([`first_boot`]);
//! fetch the config; search it for anything that Ignition could not do again ([`twice`]); put the config where the next boot reads it;
//! last, write the stamp that makes that boot a first one. The config is a secret: only root can read it, and the first boot removes it.

pub mod first_boot;
pub mod grub;
pub mod system;
pub mod twice;

use serde_json::Value;
use zeroize::Zeroizing;

use self::first_boot::FirstBoot;
use self::system::System;
use self::twice::Abilities;
use crate::console::print_line;
use crate::failure::{Failure, printable};
use crate::ignition::base::BaseConfig;
use crate::ignition::version::{IgnitionVersion, newest_spec, release};
use crate::ignition::{self, ConfigOrigin, DEVICE, IgnitionInput};
use crate::keep::Initramfs;
use crate::pointer::PointerError;

/// Kernel argument that makes systemd treat the next boot as a first one, so that it heeds the presets by which Ignition enables units
/// (kernel-command-line(7)). The machine keeps its identity: /etc/machine-id is unchanged.
const FIRST_BOOT_OF_SYSTEMD: &str = "systemd.condition-first-boot=1";
/// The first release of systemd that knows it.
const KNOWS_FIRST_BOOT: u32 = 246;

/// A system that can be made to apply a config at its next boot.
pub struct PreparedSystem {
    system: System,
    first_boot: FirstBoot,
    ignition: Option<(u32, u32)>,
    said: String,
    base: Vec<BaseConfig>,
}

impl PreparedSystem {
    /// Sees that this system can, before anything is fetched for it.
    ///
    /// # Errors
    /// `apply-unsupported`, `apply-arranged`, `apply-failed`; `pointer-overridden` and `pointer-unclear` if Ignition would not read the config.
    pub fn find(system: System, initramfs: Option<&Initramfs>, told: &IgnitionInput) -> Result<Self, Failure> {
        let first_boot = FirstBoot::find(&system, initramfs)?;
        let said = initramfs
            .map(|initramfs| initramfs.ignition.clone())
            .filter(|said| !said.is_empty());
        let said = said.unwrap_or_else(|| {
            if system.is_this_one() {
                ignition::version_output()
            } else {
                String::new()
            }
        });
        sees_config(told, &said, initramfs)?;
        let base = base_configs(initramfs, told)?;
        first_boot.make_writable(&system)?;
        first_boot.is_free()?;
        Ok(Self {
            system,
            first_boot,
            ignition: release(&said),
            said: printable(said.trim()),
            base,
        })
    }

    /// Returns the spec version to ask for: the given one, if this Ignition reads it, else the newest that it reads.
    ///
    /// # Errors
    /// `ignition-version`.
    pub fn spec(&self, wanted: Option<&str>) -> Result<String, Failure> {
        let newest = self.ignition.and_then(newest_spec);
        let said = if self.said.is_empty() { "nothing" } else { &self.said };
        let unknown = |reason: String, next_step: &str| Failure::new("ignition-version", reason, next_step);
        match (wanted, newest) {
            (Some(wanted), Some(newest)) if order(wanted) > order(newest) => Err(unknown(
                format!("this Ignition ({said}) supports spec versions up to {newest}, not {wanted}"),
                "omit --spec, or pass a version that it supports",
            )),
            (Some(wanted), _) => Ok(wanted.to_owned()),
            (None, Some(newest)) => Ok(newest.to_owned()),
            (None, None) => Err(unknown(
                format!("cannot determine which spec versions this Ignition supports: it reports {said:?} as its version"),
                "pass a version that it supports with --spec",
            )),
        }
    }

    /// Arranges that the config is applied at the next boot, if Ignition can. Returns further notes about that boot.
    ///
    /// # Errors
    /// `ignition-not-repeatable` after a line for each of its points; `gateway-answer`; `apply-failed`.
    pub fn apply(&self, config: &[u8], spec: &str) -> Result<Vec<&'static str>, Failure> {
        let mut parsed = parse(config, spec)?;
        twice::take_over(&mut parsed, &self.base);
        let takes = |version| version >= KNOWS_FIRST_BOOT;
        let heeds_presets = self.first_boot.takes_arguments && self.system.systemd().is_some_and(takes);
        let abilities = Abilities {
            // One that is not known is taken for an old one, which can less.
            ignition: self.ignition.unwrap_or_default(),
            changes_kernel_arguments: self.first_boot.changes_kernel_arguments,
            heeds_presets,
        };
        let refusals = twice::refusals(&parsed, &self.base, &self.system, abilities);
        if !refusals.is_empty() {
            refusals
                .iter()
                .for_each(|refusal| print_line(&format!("not repeatable: {refusal}")));
            return Err(Failure::new(
                "ignition-not-repeatable",
                format!(
                    "Ignition cannot apply {} entries of this config on an installed system",
                    refusals.len()
                ),
                "change these entries in the pool's config, or reinstall this machine",
            ));
        }
        let mut notes = Vec::new();
        let mut arguments = Vec::new();
        if heeds_presets && twice::needs_presets(&parsed, &self.base, &self.system) {
            arguments.push(FIRST_BOOT_OF_SYSTEMD);
            notes.push("systemd treats that boot as a first boot, too: it applies presets and runs services with ConditionFirstBoot=");
        }
        if twice::needs_network(&parsed) {
            notes.push("the config has remote sources, which Ignition fetches: the initramfs needs its network for them");
        }
        twice::overwrite(&mut parsed);
        let written = serde_json::to_vec(&parsed).map(Zeroizing::new);
        let written = written.map_err(|error| self.first_boot.failed(&error.into()))?;
        self.first_boot.arrange(&written, &arguments)?;
        Ok(notes)
    }
}

/// Takes back the arrangement. Returns whether anything was removed.
///
/// # Errors
/// `apply-unsupported`, `apply-failed`.
pub fn undo(system: &System, initramfs: Option<&Initramfs>) -> Result<bool, Failure> {
    let first_boot = FirstBoot::find(system, initramfs)?;
    first_boot.make_writable(system)?;
    first_boot.undo().map_err(|error| first_boot.failed(&error))
}

/// Checks that Ignition reads a `user.ign`, which the config becomes. The kernel arguments of the next boot are those of this one. The
/// booted system's own Ignition folders say nothing about the initramfs, which has reported its own.
fn sees_config(told: &IgnitionInput, said: &str, initramfs: Option<&Initramfs>) -> Result<(), Failure> {
    if let Some(path) = initramfs.and_then(|initramfs| initramfs.outranked_by.as_ref()) {
        return Err(Failure::new(
            "pointer-overridden",
            format!(
                "the initramfs has {}, which overrides the config of a first boot",
                printable(&path.display().to_string())
            ),
            "rebuild the initramfs without that file, and boot once",
        ));
    }
    let error = match ignition::origin(IgnitionVersion::parse(said), told, &|_| false) {
        ConfigOrigin::Url(argument) => PointerError::Elsewhere { argument },
        ConfigOrigin::Device => PointerError::Elsewhere { argument: DEVICE },
        ConfigOrigin::Nowhere => PointerError::Nowhere,
        ConfigOrigin::Unclear => PointerError::Unclear,
        ConfigOrigin::UserConfig(_) | ConfigOrigin::Platform => return Ok(()),
    };
    Err(Failure {
        reason: "an argument on the kernel command line makes Ignition read its config from elsewhere".to_owned(),
        next_step:
            "remove it permanently from the kernel command line: ignition.config.url, .device and .path, on Flatcar also flatcar.config.url"
                .to_owned(),
        ..Failure::from(error)
    })
}

/// The base configs that Ignition merges below the config.
fn base_configs(initramfs: Option<&Initramfs>, told: &IgnitionInput) -> Result<Vec<BaseConfig>, Failure> {
    let Some(known) = initramfs.and_then(|initramfs| initramfs.base.as_ref()) else {
        return Err(Failure::new(
            "apply-unsupported",
            "cannot determine which base configs (base.d, base.platform.d) the initramfs has: attest-node-keep.service of this version did \
             not copy them during this boot",
            "rebuild the initramfs with this version of attest-node, boot once, and try again",
        ));
    };
    let platform = told.platform();
    let counting = known.iter().filter(|base| base.counts_on(platform.as_deref()));
    Ok(counting.cloned().collect())
}

fn parse(config: &[u8], spec: &str) -> Result<Value, Failure> {
    let parsed: Option<Value> = serde_json::from_slice(config).ok();
    let version = |config: &Value| config.pointer("/ignition/version").and_then(Value::as_str).map(str::to_owned);
    match parsed {
        Some(parsed) if version(&parsed).as_deref() == Some(spec) => Ok(parsed),
        _ => Err(Failure::new(
            "gateway-answer",
            format!("the config does not have the requested spec version {spec}"),
            "check that the address in the pointer config is an attestation gateway's",
        )),
    }
}

/// Versions of specs in their order.
fn order(spec: &str) -> Vec<u32> {
    spec.split('.').filter_map(|part| part.parse().ok()).collect()
}
