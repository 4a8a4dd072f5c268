//! Determines the source of Ignition's config: by its own order, its version, its settings and the files that exist.
//!
//! The order is that of `fetchProviderConfig` (coreos/ignition, `internal/exec/engine.go`, the same in 2.9 and 2.27): the kernel command line
//! (`internal/providers/cmdline`), `user.ign` in Ignition's folders (`internal/providers/system`, `internal/distro`), the platform. The first
//! that is there counts, also if it cannot be read. What Flatcar adds is in the patches of its package (flatcar/scripts,
//! `sys-apps/ignition/files`) and in its `ignition-setup-pre.sh` (flatcar/bootengine). `docs/how-to/images.md` has the order as a table.
//!
//! This program writes a `user.ign`. An Ignition that takes its config from the command line does not read it.

pub mod base;
pub mod version;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::pointer::PointerError;

pub use self::version::IgnitionVersion;

/// The file in Ignition's folders that wins over the platform.
pub const USER_CONFIG: &str = "user.ign";
/// Ignition's folders from 2.27 on, with the variable that names another one; the first `user.ign` wins. Up to 2.26 there is the last one only.
const FOLDERS: [(&str, &str); 3] = [
    ("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR", "/run/ignition"),
    ("IGNITION_SYSTEM_LOCAL_CONFIG_DIR", "/etc/ignition"),
    ("IGNITION_SYSTEM_CONFIG_DIR", "/usr/lib/ignition"),
];
/// The variable that names another file for the kernel command line, from 2.27 on.
pub const OTHER_CMDLINE: &str = "IGNITION_KERNEL_CMDLINE_PATH";
/// The variable that names the config of platform `file`, and that without it.
const CONFIG_FILE: (&str, &str) = ("IGNITION_CONFIG_FILE", "config.ign");
/// Variables that are read here. Ignition and this program inherit the same variables of the unit's manager.
pub const VARIABLES: [&str; 6] = [FOLDERS[0].0, FOLDERS[1].0, FOLDERS[2].0, OTHER_CMDLINE, CONFIG_FILE.0, PLATFORM];
/// The variable that names the platform.
const PLATFORM: &str = "PLATFORM_ID";
/// Variable that only Flatcar writes, in addition to the platform.
const FLATCAR: &str = "OEM_ID";

/// The kernel arguments with a URL: Ignition's, and those that Flatcar's Ignition takes, too.
const URLS: [&str; 3] = ["ignition.config.url", "flatcar.config.url", "coreos.config.url"];
/// The kernel argument with a file system's label, from 2.27 on.
pub(crate) const DEVICE: &str = "ignition.config.device";
/// The kernel argument with a path in that file system.
const DEVICE_PATH: &str = "ignition.config.path";

/// QEMU's fw_cfg, where it appears with the module `qemu_fw_cfg`: Ignition's, and that of Flatcar's before it. Flatcar's Ignition takes one of
/// the two if both are there, no matter which.
const FW_CFG: [&str; 2] = [
    "/sys/firmware/qemu_fw_cfg/by_name/opt/org.flatcar-linux/config/raw",
    "/sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw",
];

/// Paths of Ignition: the one in its units, and dracut's source, which may be the only one in a booted system.
const PROGRAMS: [&str; 2] = ["/usr/bin/ignition", "/usr/lib/dracut/modules.d/30ignition/ignition"];

/// Source of Ignition's config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigOrigin {
    /// The URL in this kernel argument.
    Url(&'static str),
    /// A file on a device, which the kernel command line names.
    Device,
    /// Nowhere: Ignition fails, because the kernel command line has only one of device and path.
    Nowhere,
    /// Path of a `user.ign`.
    UserConfig(PathBuf),
    /// The platform's own config source.
    Platform,
    /// Depends on the version, which is not known.
    Unclear,
}

/// Settings that Ignition was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnitionInput {
    /// The kernel command line.
    pub cmdline: String,
    /// Content of the file that [`OTHER_CMDLINE`] names.
    pub other_cmdline: Option<String>,
    /// Lines of the form `NAME=value`. The last one counts.
    pub environment: String,
}

/// Returns the source of the config for an Ignition of this version.
#[must_use]
pub fn origin(version: IgnitionVersion, told: &IgnitionInput, is_there: &dyn Fn(&Path) -> bool) -> ConfigOrigin {
    if version == IgnitionVersion::Unknown {
        let before = origin(IgnitionVersion::UpTo2_26, told, is_there);
        let from = origin(IgnitionVersion::From2_27, told, is_there);
        return if before == from { before } else { ConfigOrigin::Unclear };
    }
    let user_config = || {
        let files = told.folders(version).into_iter().map(|folder| folder.join(USER_CONFIG));
        files.into_iter().find(|path| is_there(path)).map(ConfigOrigin::UserConfig)
    };
    told.on_the_command_line(version)
        .or_else(user_config)
        .unwrap_or(ConfigOrigin::Platform)
}

impl IgnitionInput {
    /// The kernel arguments, as Ignition reads them: it knows no quotes.
    fn on_the_command_line(&self, version: IgnitionVersion) -> Option<ConfigOrigin> {
        let from_2_27 = version == IgnitionVersion::From2_27;
        let words: Vec<&str> = match &self.other_cmdline {
            Some(other) if from_2_27 => other.split_whitespace().collect(),
            _ if from_2_27 => self.cmdline.split_whitespace().collect(),
            _ => self.cmdline.split(' ').map(str::trim).collect(),
        };
        // The last one counts. An empty one takes back those before it up to 2.26, and is passed over from then on.
        let last = |names: &[&'static str]| {
            let given = words.iter().rev().find_map(|word| {
                let (name, value) = word.split_once('=')?;
                let name = names.iter().find(|known| **known == name)?;
                (!from_2_27 || !value.is_empty()).then_some((*name, value))
            });
            given.filter(|(_, value)| !value.is_empty()).map(|(name, _)| name)
        };
        let [ignitions, ..] = URLS;
        let url = if self.is_flatcar() { last(&URLS) } else { last(&[ignitions]) };
        match (url, last(&[DEVICE]), last(&[DEVICE_PATH])) {
            (Some(url), ..) => Some(ConfigOrigin::Url(url)),
            (None, Some(_), Some(_)) if from_2_27 => Some(ConfigOrigin::Device),
            (None, Some(_), None) | (None, None, Some(_)) if from_2_27 => Some(ConfigOrigin::Nowhere),
            (None, ..) => None,
        }
    }

    /// The folders of such an Ignition, highest first.
    fn folders(&self, version: IgnitionVersion) -> Vec<PathBuf> {
        match version {
            IgnitionVersion::From2_27 => FOLDERS.map(|folder| self.folder(folder)).into(),
            IgnitionVersion::UpTo2_26 | IgnitionVersion::Unknown => vec![self.lowest_folder()],
        }
    }

    /// The folder that all versions have.
    fn lowest_folder(&self) -> PathBuf {
        let [.., lowest] = FOLDERS;
        self.folder(lowest)
    }

    fn folder(&self, (variable, usual): (&str, &str)) -> PathBuf {
        self.variable(variable).unwrap_or(usual).into()
    }

    /// Returns Ignition's platform: from its environment, else by its generator's rule.
    #[must_use]
    pub fn platform(&self) -> Option<String> {
        let argument = |name: &str| {
            let mut values = self
                .cmdline
                .split_whitespace()
                .filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            values.next_back().filter(|id| !id.is_empty())
        };
        let on_the_command_line = || match self.is_flatcar() {
            true => Some(match argument("flatcar.oem.id").or_else(|| argument("coreos.oem.id"))? {
                "ec2" => "aws",
                "gce" => "gcp",
                "pxe" => "metal",
                id => id,
            }),
            false => argument("ignition.platform.id"),
        };
        self.variable(PLATFORM).or_else(on_the_command_line).map(str::to_owned)
    }

    /// Returns the possible paths of a config from QEMU; the first one counts.
    #[must_use]
    pub fn fw_cfg(&self) -> &'static [&'static str] {
        match (&FW_CFG, self.is_flatcar()) {
            (all, true) => all,
            ([_, ignitions @ ..], false) => ignitions,
        }
    }

    /// The config of platform `file`.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        let (variable, usual) = CONFIG_FILE;
        // Ignition's units start it there.
        Path::new("/").join(self.variable(variable).unwrap_or(usual))
    }

    /// Returns whether this is Flatcar's Ignition, which its version does not show.
    fn is_flatcar(&self) -> bool {
        self.variable(FLATCAR).is_some() || self.cmdline.split_whitespace().any(|word| word.starts_with("flatcar."))
    }

    /// Returns a variable of the environment. An empty one counts as unset, like in Ignition.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        let lines = self.environment.lines();
        lines
            .filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches(['"', '\'']))
            .next_back()
            .filter(|value| !value.is_empty())
    }
}

/// The Ignition of this initramfs.
#[derive(Debug, Clone)]
pub struct Ignition {
    input: IgnitionInput,
    origin: ConfigOrigin,
    /// Asks Ignition for its version. It is called only if the answer makes a difference.
    version_output: fn() -> String,
}

impl Ignition {
    /// Creates an Ignition with these settings.
    #[must_use]
    pub fn new(told: IgnitionInput) -> Self {
        Self::saying(told, version_output)
    }

    /// Creates it with another function that asks for its version.
    pub(crate) fn saying(told: IgnitionInput, said: fn() -> String) -> Self {
        let origin = match origin(IgnitionVersion::Unknown, &told, &exists) {
            ConfigOrigin::Unclear => origin(IgnitionVersion::parse(&said()), &told, &exists),
            clear => clear,
        };
        Self {
            input: told,
            origin,
            version_output: said,
        }
    }

    /// Returns the release of this Ignition, if it reports one.
    #[must_use]
    pub fn release(&self) -> Option<(u32, u32)> {
        version::release(&(self.version_output)())
    }

    /// Returns the settings of this Ignition.
    #[must_use]
    pub fn input(&self) -> &IgnitionInput {
        &self.input
    }

    /// Returns the source of Ignition's config.
    #[must_use]
    pub fn origin(&self) -> &ConfigOrigin {
        &self.origin
    }

    /// Checks that Ignition reads the file that this program writes.
    ///
    /// # Errors
    /// [`PointerError::Elsewhere`], [`PointerError::Nowhere`], [`PointerError::Unclear`].
    pub fn heeds_user_config(&self) -> Result<(), PointerError> {
        match &self.origin {
            ConfigOrigin::UserConfig(_) | ConfigOrigin::Platform => Ok(()),
            ConfigOrigin::Url(argument) => Err(PointerError::Elsewhere { argument }),
            ConfigOrigin::Device => Err(PointerError::Elsewhere { argument: DEVICE }),
            ConfigOrigin::Nowhere => Err(PointerError::Nowhere),
            ConfigOrigin::Unclear => Err(PointerError::Unclear),
        }
    }

    /// The `user.ign` that it reads, or would read if there were one.
    #[must_use]
    pub fn user_config(&self) -> PathBuf {
        match &self.origin {
            ConfigOrigin::UserConfig(path) => path.clone(),
            _ => self.input.lowest_folder().join(USER_CONFIG),
        }
    }

    /// The `user.ign` that outranks all others, if there may be others.
    #[must_use]
    pub fn highest(&self) -> Option<PathBuf> {
        match &*self.input.folders(IgnitionVersion::parse(&(self.version_output)())) {
            [highest, _, ..] => Some(highest.join(USER_CONFIG)),
            _ => None,
        }
    }
}

/// Returns Ignition's `--version` output; empty if Ignition is not installed.
#[must_use]
pub fn version_output() -> String {
    let mut asked = PROGRAMS.iter().filter_map(|program| {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    asked.find(|said| !said.is_empty()).unwrap_or_default()
}

/// Returns `true` also for a path that cannot be checked, like Ignition does.
fn exists(path: &Path) -> bool {
    !matches!(fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests;
