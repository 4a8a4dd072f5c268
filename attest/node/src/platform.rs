//! The pointer from Ignition's source ([`crate::ignition`]), and the platform of this node.
//!
//! Ignition's settings name the platform. If this program cannot read them, it detects the platform itself ([`crate::cloud::detect`]).

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

use attest_wire::names::is_node_name;
use zeroize::Zeroizing;

use crate::cloud::detect::{self, Dmi};
use crate::cloud::{self, Cloud, CloudError, MetadataAddress, MetadataClient};
use crate::deadline::Deadline;
use crate::failure::{Failure, printable};
use crate::first_boot_secret::storage::{self, Storage};
use crate::ignition::{Ignition, IgnitionInput, OTHER_CMDLINE, VARIABLES};
use crate::pointer::{POINTER_LIMIT_BYTES, PointerError};
use crate::tpm::device;
use crate::user_data::{UserDataError, UserDataPlatform};

/// The environment file of Ignition's units, written by its generator.
const ENVIRONMENT: &str = "/run/ignition.env";
/// Ignition's platform id for QEMU: the only platform that reads fw_cfg.
const QEMU: &str = "qemu";
/// Id of the platform whose config is a file.
const FILE: &str = "file";
/// Id of the platform that has no config of its own.
const METAL: &str = "metal";
/// Id of Hyper-V. Its host gives key-value pairs once in a boot, and Ignition writes them down for the booted system (`kvp.go` in
/// `internal/providers/hyperv`), so that nothing else may read them.
const HYPER_V: &str = "hyperv";
/// The kernel argument of this program's own: seconds.
const WAIT_ARGUMENT: &str = "attest-node.wait";
/// Another: the node's name.
pub const NAME_ARGUMENT: &str = "attest-node.name";
/// Another: whether the node attests the key that its kubelet will have. Without a value always, with [`NO`] never.
pub const KUBELET_KEY_ARGUMENT: &str = "attest-node.kubelet-key";
/// The value of [`KUBELET_KEY_ARGUMENT`] that switches it off.
const NO: &str = "no";
/// Largest command line or environment file read: the kernel's limit is 4 KiB at the most on common architectures.
const SMALL_FILE_LIMIT_BYTES: u64 = 64 * 1024;

/// The rule by which a node attests the key that its kubelet will have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KubeletKey {
    /// Offer the key only to a gateway that approves only CSRs for attested keys.
    #[default]
    WhereApproved,
    /// Offer the key to each gateway that accepts one.
    Always,
    Never,
}

impl KubeletKey {
    /// The last word about it on the kernel command line.
    fn parse(cmdline: &str) -> Self {
        let said = parameters(cmdline).filter_map(|word| match word.strip_prefix(KUBELET_KEY_ARGUMENT)? {
            "" => Some(Self::Always),
            value => (value.strip_prefix('=')? == NO).then_some(Self::Never),
        });
        said.last().unwrap_or_default()
    }
}

/// Settings of this node in Ignition's environment, the kernel command line and the firmware.
#[derive(Debug, Clone)]
pub struct NodePlatform {
    pub ignition: Ignition,
    /// Time limit, on the kernel command line, for a gateway that does not answer.
    pub wait: Option<Duration>,
    /// Value of that argument, if it is not a number of seconds.
    pub wait_not_understood: Option<String>,
    /// Node's name on the kernel command line.
    pub name: Option<String>,
    /// Value of that argument, if it is not a valid node name.
    pub name_not_understood: Option<String>,
    /// The rule by which it attests a key for its kubelet.
    pub kubelet_key: KubeletKey,
    /// Storage, set on the kernel command line, for state that must survive a reboot of the first boot.
    pub storage: Option<Storage>,
    /// Value of that argument, if it has none of the three forms.
    pub storage_not_understood: Option<String>,
    /// `qemu`, `metal`, …, if known.
    id: Option<String>,
    /// Cloud according to the firmware.
    dmi: Dmi,
}

/// Reason why the platform has no pointer config for this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    /// The pointer config is missing or unusable.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// The cloud does not give it.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// The platform's user data cannot be read.
    #[error(transparent)]
    UserData(#[from] UserDataError),
}

impl From<PlatformError> for Failure {
    fn from(error: PlatformError) -> Self {
        match error {
            PlatformError::Pointer(error) => error.into(),
            PlatformError::Cloud(error) => error.into(),
            PlatformError::UserData(error) => error.into(),
        }
    }
}

/// The instance of a cloud that this node is.
#[derive(Debug)]
pub struct CloudInstance {
    pub cloud: Cloud,
    /// Client of its metadata server.
    pub metadata: MetadataClient,
}

impl NodePlatform {
    /// Reads the kernel command line, Ignition's environment and the DMI tables in a folder. Unreadable files count as empty.
    #[must_use]
    pub fn read(cmdline: &Path, dmi: &Path) -> Self {
        // What the units' manager passes on to all comes before what Ignition's units read.
        let passed_on = VARIABLES.map(|name| std::env::var(name).map_or_else(|_| String::new(), |value| format!("{name}={value}\n")));
        let mut told = IgnitionInput {
            cmdline: small_file(cmdline),
            other_cmdline: None,
            environment: passed_on.concat() + &small_file(Path::new(ENVIRONMENT)),
        };
        told.other_cmdline = told.variable(OTHER_CMDLINE).map(|path| small_file(Path::new(path)));
        Self::new(Ignition::new(told), Dmi::read(dmi))
    }

    fn new(ignition: Ignition, dmi: Dmi) -> Self {
        let wait = argument(&ignition.input().cmdline, WAIT_ARGUMENT);
        let name = argument(&ignition.input().cmdline, NAME_ARGUMENT);
        let (storage, storage_not_understood) = storage(&ignition.input().cmdline);
        let kubelet_key = KubeletKey::parse(&ignition.input().cmdline);
        Self {
            name: name.clone().filter(|name| is_node_name(name)),
            name_not_understood: name.filter(|name| !is_node_name(name)).map(|name| printable(&name)),
            kubelet_key,
            storage,
            storage_not_understood,
            wait: wait.as_deref().and_then(seconds),
            wait_not_understood: wait.filter(|word| seconds(word).is_none()).map(|word| printable(&word)),
            id: ignition.input().platform(),
            ignition,
            dmi,
        }
    }

    /// Returns the storage, set on a kernel command line, for state that must survive a reboot of the first boot; and the argument's value,
    /// if it has none of the three forms.
    #[must_use]
    pub fn storage_in(cmdline: &Path) -> (Option<Storage>, Option<String>) {
        storage(&small_file(cmdline))
    }

    /// Returns the cloud of this node, regardless of Ignition's config source. A metadata server is only searched for if neither Ignition
    /// nor the firmware identifies this machine.
    ///
    /// # Errors
    /// [`CloudError::Client`].
    pub fn instance(&self, metadata: &MetadataAddress, deadline: Deadline) -> Result<Option<CloudInstance>, CloudError> {
        let given = self.id.as_deref().and_then(Cloud::from_platform);
        match (given, self.dmi) {
            (Some(cloud), _) | (None, Dmi::Cloud(cloud)) => Ok(Some(CloudInstance {
                cloud,
                metadata: MetadataClient::new(metadata)?,
            })),
            (None, Dmi::Silent) if self.id.is_none() => {
                let metadata = MetadataClient::new(metadata)?;
                Ok(detect::search(&metadata, deadline).map(|cloud| CloudInstance { cloud, metadata }))
            }
            (None, Dmi::Silent | Dmi::Other) => Ok(None),
        }
    }

    /// The pointer config as Ignition would find it.
    ///
    /// # Errors
    /// [`PointerError::NotFound`], [`PointerError::Unreadable`], [`PointerError::TooLarge`], [`CloudError`], [`UserDataError`]; and
    /// those of [`Ignition::heeds_user_config`].
    pub fn pointer(&self, metadata: &MetadataAddress, deadline: Deadline) -> Result<Zeroizing<Vec<u8>>, PlatformError> {
        self.ignition.heeds_user_config()?;
        let user_config = self.ignition.user_config();
        // Ignition falls back on the platform only if there is no file.
        if let Some(bytes) = read(&user_config)? {
            return Ok(bytes);
        }
        let mut looked_at = user_config.display().to_string();
        let may_be_qemu = match (self.id.as_deref(), self.dmi) {
            (Some(id), _) => id == QEMU,
            (None, dmi) => !matches!(dmi, Dmi::Cloud(_)),
        };
        if may_be_qemu {
            let files = self.ignition.input().fw_cfg();
            if !files.iter().any(|file| Path::new(file).exists()) {
                device::load("qemu_fw_cfg");
            }
            for file in files {
                if let Some(bytes) = read(Path::new(file))? {
                    return Ok(bytes);
                }
            }
            looked_at.push_str(" and QEMU's fw_cfg opt/com.coreos/config");
        }
        match (self.id.as_deref(), self.id.as_deref().and_then(Cloud::from_platform)) {
            (Some(QEMU), _) => {}
            (Some(FILE), _) => {
                let file = self.ignition.input().config_file();
                if let Some(bytes) = read(&file)? {
                    return Ok(bytes);
                }
                looked_at.push_str(&format!(" and {}", file.display()));
            }
            (Some(METAL), _) => looked_at.push_str("; platform metal has no config of its own"),
            (Some(HYPER_V), _) => looked_at.push_str("; only Ignition can read Hyper-V's key-value pairs"),
            (Some(other), None) => match UserDataPlatform::from_id(other) {
                Some(platform) => {
                    if let Some(bytes) = platform.read(self.ignition.release(), metadata, deadline)? {
                        return Ok(bytes);
                    }
                    looked_at.push_str(&format!(" and {}", platform.place()));
                }
                None => looked_at.push_str(&format!("; this program does not support configs of platform {other}")),
            },
            (None, _) | (Some(_), Some(_)) => {
                if let Some(CloudInstance { cloud, metadata }) = self.instance(metadata, deadline)? {
                    if let Some(bytes) = cloud::user_data(cloud, &metadata, deadline)? {
                        return Ok(bytes);
                    }
                    looked_at.push_str(&format!(" and {}", cloud::user_data_place(cloud)));
                }
            }
        }
        Err(PointerError::NotFound { looked_at }.into())
    }
}

/// A pointer config given by its path.
///
/// # Errors
/// [`PointerError::NotFound`], [`PointerError::Unreadable`], [`PointerError::TooLarge`].
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

fn storage(cmdline: &str) -> (Option<Storage>, Option<String>) {
    let Some(word) = argument(cmdline, storage::ARGUMENT) else {
        return (None, None);
    };
    let storage = word.parse().ok();
    let not_understood = storage.is_none().then(|| printable(&word));
    (storage, not_understood)
}

/// The last value of one of this program's own arguments on a kernel command line.
fn argument(cmdline: &str, name: &str) -> Option<String> {
    let values = parameters(cmdline).filter_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
    values.last()
}

/// Words of a kernel command line, as the kernel reads it: separated by blanks outside double quotes, which are dropped.
fn parameters(cmdline: &str) -> impl Iterator<Item = String> {
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

    #[test]
    fn wait_is_parsed_from_the_kernel_command_line() {
        let check = |cmdline: &str, expect: Option<u64>, not_understood: Option<&str>| {
            let told = IgnitionInput {
                cmdline: cmdline.to_owned(),
                ..IgnitionInput::default()
            };
            let platform = NodePlatform::new(Ignition::saying(told, String::new), Dmi::Other);
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
    fn node_name_is_parsed_from_kernel_command_line() {
        let check = |cmdline: &str, expect: Option<&str>, not_understood: Option<&str>| {
            let told = IgnitionInput {
                cmdline: cmdline.to_owned(),
                ..IgnitionInput::default()
            };
            let platform = NodePlatform::new(Ignition::saying(told, String::new), Dmi::Other);
            assert_eq!(platform.name.as_deref(), expect, "{cmdline}");
            assert_eq!(platform.name_not_understood.as_deref(), not_understood, "{cmdline}");
        };
        check("quiet attest-node.name=worker-1.example.com x", Some("worker-1.example.com"), None);
        check("attest-node.name=a attest-node.name=b", Some("b"), None);
        check("attest-node.name", None, None);
        check("systemd.hostname=worker-1 xattest-node.name=a", None, None);
        check("attest-node.name=Worker-1", None, Some("Worker-1"));
        check("attest-node.name=", None, Some(""));
        check("attest-node.name=a/b", None, Some("a/b"));
    }

    #[test]
    fn kubelet_key_mode_comes_from_kernel_command_line() {
        let check = |cmdline: &str, expect: KubeletKey| {
            let told = IgnitionInput {
                cmdline: cmdline.to_owned(),
                ..IgnitionInput::default()
            };
            let platform = NodePlatform::new(Ignition::saying(told, String::new), Dmi::Other);
            assert_eq!(platform.kubelet_key, expect, "{cmdline}");
        };
        check("quiet attest-node.kubelet-key x", KubeletKey::Always);
        check("", KubeletKey::WhereApproved);
        check("attest-node.kubelet-key=no", KubeletKey::Never);
        check("attest-node.kubelet-key=no attest-node.kubelet-key", KubeletKey::Always);
        check("attest-node.kubelet-key=0", KubeletKey::WhereApproved);
        check("attest-node.kubelet-keys xattest-node.kubelet-key", KubeletKey::WhereApproved);
    }

    #[test]
    fn first_boot_secret_storage_is_a_kernel_argument() {
        let check = |cmdline: &str, expect: Option<&str>, not_understood: Option<&str>| {
            let expect = expect.map(|text| text.parse().unwrap());
            assert_eq!(storage(cmdline), (expect, not_understood.map(str::to_owned)), "{cmdline}");
        };
        check("quiet attest-node.first-boot-secret-on=ESP x", Some("ESP"), None);
        check(
            "attest-node.first-boot-secret-on=boot attest-node.first-boot-secret-on=none",
            Some("none"),
            None,
        );
        check("attest-node.first-boot-secret-on=/mnt", Some("/mnt"), None);
        check("attest-node.first-boot-secret-oner=x attest-node.first-boot-secret-on", None, None);
        check("attest-node.first-boot-secret-on=a/b", None, Some("a/b"));
        check("attest-node.first-boot-secret-on=", None, Some(""));
    }

    #[test]
    fn user_ign_comes_before_the_platform() {
        let folder = tempfile::tempdir().unwrap();
        let environment = format!("PLATFORM_ID=metal\nIGNITION_SYSTEM_CONFIG_DIR={}", folder.path().display());
        let platform = || {
            let told = IgnitionInput {
                environment: environment.clone(),
                ..IgnitionInput::default()
            };
            NodePlatform::new(Ignition::saying(told, || "Ignition 2.26.0".to_owned()), Dmi::Silent)
        };
        let pointer = || platform().pointer(&MetadataAddress::default(), Deadline::after(std::time::Duration::ZERO));
        assert!(matches!(pointer(), Err(PlatformError::Pointer(PointerError::NotFound { .. }))));
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
