//! Where Ignition takes the pointer from, and where it takes it from in preference.
//!
//! Ignition's order: `ignition.config.url` on the kernel command line, then `user.ign` in its system config folder, then the
//! platform. What this program writes is `user.ign`. Which platform it is, Ignition is told; if this program cannot see what Ignition
//! was told, it finds out by itself ([`crate::cloud::detect`]).

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use zeroize::Zeroizing;

use crate::cloud::detect::{self, Dmi};
use crate::cloud::{self, Base, Cloud, CloudError, Metadata};
use crate::deadline::Deadline;
use crate::failure::printable;
use crate::tpm::device;

use super::{POINTER_LIMIT_BYTES, PointerError};

/// Ignition's system config folder unless its environment says otherwise.
const SYSTEM_CONFIG_DIR: &str = "/usr/lib/ignition";
/// The environment file of Ignition's units, written by its generator.
const ENVIRONMENT: &str = "/run/ignition.env";
/// The file in that folder that wins over the platform.
const USER_CONFIG: &str = "user.ign";
/// Where QEMU's `-fw_cfg name=opt/com.coreos/config` appears, with the module `qemu_fw_cfg`.
const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw";
/// Ignition's platform id for QEMU: the only platform that reads fw_cfg.
const QEMU: &str = "qemu";
/// The kernel argument of this program's own: seconds.
const WAIT_ARGUMENT: &str = "attest-node.wait";
/// Largest command line or environment file read: the kernel's limit is 4 KiB at the most on common architectures.
const SMALL_FILE_LIMIT_BYTES: u64 = 64 * 1024;

/// What Ignition was told by its environment and the kernel command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// `ignition.config.url` is on the kernel command line: Ignition will look at nothing else.
    pub config_url: bool,
    /// The file to read in preference to the platform, and to write.
    pub user_config: PathBuf,
    /// How long the kernel command line has this node wait for a gateway that does not answer.
    pub wait: Option<Duration>,
    /// What it says of that, if it is no number of seconds.
    pub wait_not_understood: Option<String>,
    /// `qemu`, `metal`, …, if known.
    id: Option<String>,
    /// What the firmware says.
    dmi: Dmi,
}

/// The instance of a cloud that this node is.
#[derive(Debug)]
pub struct Instance {
    /// Which cloud.
    pub cloud: Cloud,
    /// Its metadata server.
    pub metadata: Metadata,
}

impl Platform {
    /// Reads the kernel command line, Ignition's environment and the DMI tables in a folder. What cannot be read is taken as empty.
    #[must_use]
    pub fn read(cmdline: &Path, dmi: &Path) -> Self {
        Self::new(&small_file(cmdline), &small_file(Path::new(ENVIRONMENT)), Dmi::read(dmi))
    }

    fn new(cmdline: &str, environment: &str, dmi: Dmi) -> Self {
        let argument = |name: &str| {
            words(cmdline)
                .filter_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
                .next_back()
        };
        let variable = |name: &str| {
            let mut lines = environment
                .lines()
                .filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
            lines
                .next_back()
                .map(|value| value.trim_matches(['"', '\'']).to_owned())
                .filter(|value| !value.is_empty())
        };
        let wait = argument(WAIT_ARGUMENT);
        Self {
            config_url: argument("ignition.config.url").is_some_and(|url| !url.is_empty()),
            user_config: Path::new(variable("IGNITION_SYSTEM_CONFIG_DIR").as_deref().unwrap_or(SYSTEM_CONFIG_DIR)).join(USER_CONFIG),
            wait: wait.as_deref().and_then(seconds),
            wait_not_understood: wait.filter(|word| seconds(word).is_none()).map(|word| printable(&word)),
            id: variable("PLATFORM_ID")
                .or_else(|| argument("ignition.platform.id"))
                .filter(|id| !id.is_empty()),
            dmi,
        }
    }

    /// The cloud that this node is in, whatever Ignition takes its config from. A metadata server is only searched for if neither
    /// Ignition nor the firmware says what this machine is.
    ///
    /// # Errors
    /// [`CloudError::Client`].
    pub fn instance(&self, metadata: &Base, deadline: Deadline) -> Result<Option<Instance>, CloudError> {
        let given = self.id.as_deref().and_then(Cloud::of_platform);
        match (given, self.dmi) {
            (Some(cloud), _) | (None, Dmi::Cloud(cloud)) => Ok(Some(Instance {
                cloud,
                metadata: Metadata::new(metadata)?,
            })),
            (None, Dmi::Silent) if self.id.is_none() => {
                let metadata = Metadata::new(metadata)?;
                Ok(detect::search(&metadata, deadline).map(|cloud| Instance { cloud, metadata }))
            }
            (None, Dmi::Silent | Dmi::Other) => Ok(None),
        }
    }

    /// The pointer config as Ignition would find it.
    ///
    /// # Errors
    /// [`PointerError::NotFound`], [`PointerError::Unreadable`], [`PointerError::TooLarge`], [`PointerError::Cloud`].
    pub fn pointer(&self, metadata: &Base, deadline: Deadline) -> Result<Zeroizing<Vec<u8>>, PointerError> {
        if let Some(bytes) = read(&self.user_config)? {
            return Ok(bytes);
        }
        let mut looked_at = self.user_config.display().to_string();
        let may_be_qemu = match (self.id.as_deref(), self.dmi) {
            (Some(id), _) => id == QEMU,
            (None, dmi) => !matches!(dmi, Dmi::Cloud(_)),
        };
        if may_be_qemu {
            if !Path::new(FW_CFG).exists() {
                device::load("qemu_fw_cfg");
            }
            if let Some(bytes) = read(Path::new(FW_CFG))? {
                return Ok(bytes);
            }
            looked_at.push_str(" and QEMU's fw_cfg opt/com.coreos/config");
        }
        match (self.id.as_deref(), self.id.as_deref().and_then(Cloud::of_platform)) {
            (Some(QEMU), _) => {}
            (Some(other), None) => looked_at.push_str(&format!("; the config of platform {other} cannot be read by this program")),
            (None, _) | (Some(_), Some(_)) => {
                if let Some(Instance { cloud, metadata }) = self.instance(metadata, deadline)? {
                    if let Some(bytes) = cloud::user_data(cloud, &metadata, deadline)? {
                        return Ok(bytes);
                    }
                    looked_at.push_str(&format!(" and {}", cloud::user_data_place(cloud)));
                }
            }
        }
        Err(PointerError::NotFound { looked_at })
    }
}

/// A pointer config given by its path.
///
/// # Errors
/// As [`Platform::pointer`].
pub fn pointer_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, PointerError> {
    read(path)?.ok_or_else(|| PointerError::NotFound {
        looked_at: path.display().to_string(),
    })
}

fn read(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, PointerError> {
    let unreadable = |error: std::io::Error| PointerError::Unreadable {
        path: path.display().to_string(),
        error: error.to_string(),
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Zeroizing::new(Vec::new());
    let limit = u64::try_from(POINTER_LIMIT_BYTES).unwrap_or(u64::MAX);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > POINTER_LIMIT_BYTES {
        Err(PointerError::TooLarge)
    } else {
        Ok(Some(bytes))
    }
}

/// Seconds, as `90` or `90s`.
fn seconds(word: &str) -> Option<Duration> {
    word.strip_suffix('s').unwrap_or(word).parse().ok().map(Duration::from_secs)
}

fn small_file(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(SMALL_FILE_LIMIT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Words of a kernel command line: separated by blanks outside double quotes, which are dropped.
fn words(cmdline: &str) -> impl DoubleEndedIterator<Item = String> {
    let mut quoted = false;
    let separated: Vec<String> = cmdline
        .split(|letter: char| {
            quoted ^= letter == '"';
            letter.is_ascii_whitespace() && !quoted
        })
        .map(|word| word.replace('"', ""))
        .filter(|word| !word.is_empty())
        .collect();
    separated.into_iter()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(cmdline: &str, environment: &str, config_url: bool, user_config: &str, id: Option<&str>) {
        let expect = Platform {
            config_url,
            user_config: user_config.into(),
            wait: None,
            wait_not_understood: None,
            id: id.map(str::to_owned),
            dmi: Dmi::Other,
        };
        assert_eq!(
            Platform::new(cmdline, environment, Dmi::Other),
            expect,
            "{cmdline:?} {environment:?}"
        );
    }

    #[test]
    fn the_kernel_command_line_and_the_environment_are_understood() {
        const USER: &str = "/usr/lib/ignition/user.ign";
        check("", "", false, USER, None);
        check(
            "console=ttyS0 ignition.firstboot ignition.platform.id=qemu\n",
            "",
            false,
            USER,
            Some("qemu"),
        );
        check("ignition.platform.id=qemu", "PLATFORM_ID=metal\n", false, USER, Some("metal"));
        check(
            "ignition.platform.id=qemu ignition.platform.id=aws",
            "PLATFORM_ID=\n",
            false,
            USER,
            Some("aws"),
        );
        check("ignition.config.url=https://a/b", "", true, USER, None);
        check("a ignition.config.url=\"https://a/b c\" d", "", true, USER, None);
        check("\"ignition.config.url=https://a/b\"", "", true, USER, None);
        check("ignition.config.url=", "", false, USER, None);
        check("ignition.config.url", "", false, USER, None);
        check("x.ignition.config.url=https://a", "", false, USER, None);
        check("foo=\"a ignition.config.url=b\"", "", false, USER, None);
        check(
            "",
            "PLATFORM_ID=qemu\nIGNITION_SYSTEM_CONFIG_DIR=/run/ign\n",
            false,
            "/run/ign/user.ign",
            Some("qemu"),
        );
        check("", "IGNITION_SYSTEM_CONFIG_DIR=\"/etc/ign\"", false, "/etc/ign/user.ign", None);
        check("", "#IGNITION_SYSTEM_CONFIG_DIR=/etc/ign", false, USER, None);
    }

    #[test]
    fn an_administrator_at_the_console_can_say_how_long_to_wait() {
        let check = |cmdline: &str, expect: Option<u64>, not_understood: Option<&str>| {
            let platform = Platform::new(cmdline, "", Dmi::Other);
            assert_eq!(platform.wait.map(|wait| wait.as_secs()), expect, "{cmdline}");
            assert_eq!(platform.wait_not_understood.as_deref(), not_understood, "{cmdline}");
        };
        check("quiet attest-node.wait=90 ignition.firstboot", Some(90), None);
        check("attest-node.wait=90s", Some(90), None);
        check("attest-node.wait=90 attest-node.wait=0", Some(0), None);
        check("", None, None);
        check("attest-node.wait", None, None);
        check("xattest-node.wait=1", None, None);
        check("attest-node.wait=soon", None, Some("soon"));
        check("attest-node.wait=2min", None, Some("2min"));
        check("attest-node.wait=-1", None, Some("-1"));
        check("attest-node.wait=", None, Some(""));
    }

    #[test]
    fn user_ign_comes_before_the_platform() {
        let folder = tempfile::tempdir().unwrap();
        let environment = format!("PLATFORM_ID=metal\nIGNITION_SYSTEM_CONFIG_DIR={}", folder.path().display());
        let platform = Platform::new("", &environment, Dmi::Silent);
        let pointer = || platform.pointer(&Base::default(), Deadline::after(std::time::Duration::ZERO));
        assert!(matches!(pointer(), Err(PointerError::NotFound { .. })));
        std::fs::write(folder.path().join("user.ign"), "{}").unwrap();
        assert_eq!(pointer().unwrap().as_slice(), b"{}");
        assert_eq!(pointer_file(&folder.path().join("user.ign")).unwrap().as_slice(), b"{}");
        assert!(matches!(
            pointer_file(&folder.path().join("other")),
            Err(PointerError::NotFound { .. })
        ));
        assert!(matches!(pointer_file(folder.path()), Err(PointerError::Unreadable { .. })));
        std::fs::write(folder.path().join("big"), vec![b' '; POINTER_LIMIT_BYTES + 1]).unwrap();
        assert_eq!(pointer_file(&folder.path().join("big")), Err(PointerError::TooLarge));
    }
}
