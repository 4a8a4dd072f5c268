//! User data of platforms that have no evidence of their own: the pointer config on a config drive ([`config_drive`]), in OpenStack's
//! metadata service ([`openstack`]), or in VMware's guestinfo ([`vmware`]).
//!
//! The labels, paths and waits are those of Ignition's providers (coreos/ignition, `internal/providers`). A platform counts only if
//! Ignition's settings name it.

pub mod config_drive;
pub mod first_answer;
pub mod openstack;
#[cfg(target_arch = "x86_64")]
pub mod vmware;

use std::time::Duration;

use zeroize::Zeroizing;

use crate::cloud::{CloudError, MetadataAddress};
use crate::deadline::Deadline;
use crate::disk::DiskPrograms;
use crate::failure::Failure;

use self::config_drive::{CIDATA, CONFIG_2, CONFIG_2_CAPITALS, ConfigDrive};
use self::first_answer::{UserDataSource, first_answer};

/// User data, which may hold a provisioning token; `None` if the source has none.
pub type UserData = Option<Zeroizing<Vec<u8>>>;

/// Time after which Ignition goes on without a config drive in IBM Cloud. On other platforms it waits without end.
const IBM_CLOUD_LIMIT: Duration = Duration::from_secs(30);
/// First release of Ignition that also reads the drive `cidata` on KubeVirt.
const CIDATA_ON_KUBEVIRT: (u32, u32) = (2, 24);

/// A platform whose user data this program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserDataPlatform {
    IbmCloud,
    KubeVirt,
    Nutanix,
    OpenStack,
    PowerVs,
    VmWare,
}

/// Reason why user data cannot be read. Holds no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserDataError {
    /// The drive did not appear in time.
    #[error("no filesystem has the label {label}")]
    NoDrive {
        /// Label of the config drive.
        label: &'static str,
    },
    /// The drive is there, and its user data cannot be read.
    #[error("the config drive with the label {label} cannot be read: {problem}")]
    Drive {
        /// Label of the config drive.
        label: &'static str,
        problem: String,
    },
    /// VMware's guestinfo cannot be read or decoded.
    #[error("the guestinfo of this VMware machine cannot be read: {0}")]
    GuestInfo(String),
    /// The metadata service does not answer.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// No source has come back in time.
    #[error("no source of user data has answered in time")]
    Unanswered,
    /// The system denies a thread.
    #[error("cannot start a thread: {0}")]
    Thread(String),
}

impl From<UserDataError> for Failure {
    fn from(error: UserDataError) -> Self {
        let (code, next_step) = match &error {
            UserDataError::Cloud(error) => return error.clone().into(),
            UserDataError::NoDrive { .. } | UserDataError::Drive { .. } | UserDataError::Unanswered => (
                "config-drive",
                "attach the config drive, with the pointer config as its user data; or put the pointer config into user.ign in the initramfs",
            ),
            UserDataError::GuestInfo(_) => (
                "guestinfo",
                "set guestinfo.ignition.config.data and guestinfo.ignition.config.data.encoding of this machine, and keep its backdoor \
                 enabled; or put the pointer config into user.ign in the initramfs",
            ),
            UserDataError::Thread(_) => ("internal", "report this message"),
        };
        Self::new(code, &error, next_step)
    }
}

impl UserDataPlatform {
    /// Returns the platform with this `ignition.platform.id`.
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        match id {
            "ibmcloud" => Some(Self::IbmCloud),
            "kubevirt" => Some(Self::KubeVirt),
            "nutanix" => Some(Self::Nutanix),
            // Ignition has the same provider under two names.
            "openstack" | "brightbox" => Some(Self::OpenStack),
            "powervs" => Some(Self::PowerVs),
            "vmware" => Some(Self::VmWare),
            _ => None,
        }
    }

    /// Describes the location of the user data, for messages.
    #[must_use]
    pub const fn place(self) -> &'static str {
        match self {
            Self::IbmCloud => "user-data on the config drive cidata",
            Self::KubeVirt => "the user data on the config drive cidata or config-2",
            Self::Nutanix | Self::PowerVs => "openstack/latest/user_data on the config drive config-2",
            Self::OpenStack => "openstack/latest/user_data on the config drive config-2 and in the metadata service",
            Self::VmWare => "the guestinfo property ignition.config.data",
        }
    }

    /// Reads the user data as an Ignition of this release does; without a release, as a new one. Of several sources, the first answer counts.
    ///
    /// # Errors
    /// [`UserDataError`].
    pub fn read(self, release: Option<(u32, u32)>, metadata: &MetadataAddress, deadline: Deadline) -> Result<UserData, UserDataError> {
        if self == Self::VmWare {
            return vmware::user_data();
        }
        let on = |drive: &ConfigDrive| -> UserDataSource {
            let drive = *drive;
            Box::new(move |wait| drive.read(&DiskPrograms, wait))
        };
        let mut sources: Vec<_> = self.drives(release).iter().map(on).collect();
        if self == Self::OpenStack {
            sources.push(openstack::metadata_service(metadata.clone()));
        }
        let limit = match self {
            Self::IbmCloud => deadline.at_most(IBM_CLOUD_LIMIT),
            _ => deadline,
        };
        first_answer(sources, limit)
    }

    /// Returns the config drives that an Ignition of this release reads.
    fn drives(self, release: Option<(u32, u32)>) -> &'static [ConfigDrive] {
        let is_old = release.is_some_and(|release| release < CIDATA_ON_KUBEVIRT);
        match self {
            Self::IbmCloud => &[CIDATA],
            Self::KubeVirt if is_old => &[CONFIG_2],
            Self::KubeVirt => &[CIDATA, CONFIG_2],
            Self::Nutanix | Self::PowerVs => &[CONFIG_2],
            Self::OpenStack => &[CONFIG_2, CONFIG_2_CAPITALS],
            Self::VmWare => &[],
        }
    }
}

/// Guestinfo, which Ignition reads on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
mod vmware {
    use super::{UserData, UserDataError};

    pub(super) fn user_data() -> Result<UserData, UserDataError> {
        Err(UserDataError::GuestInfo("Ignition reads it on x86-64 only".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_have_ignitions_names() {
        for (id, expect) in [
            ("ibmcloud", Some(UserDataPlatform::IbmCloud)),
            ("kubevirt", Some(UserDataPlatform::KubeVirt)),
            ("nutanix", Some(UserDataPlatform::Nutanix)),
            ("openstack", Some(UserDataPlatform::OpenStack)),
            ("brightbox", Some(UserDataPlatform::OpenStack)),
            ("powervs", Some(UserDataPlatform::PowerVs)),
            ("vmware", Some(UserDataPlatform::VmWare)),
            ("OpenStack", None),
            ("hyperv", None),
            ("metal", None),
            ("", None),
        ] {
            assert_eq!(UserDataPlatform::from_id(id), expect, "{id}");
        }
    }

    #[test]
    fn drives_are_those_of_ignitions_release() {
        for release in [None, Some((2, 14)), Some((2, 24))] {
            let drives = |platform: UserDataPlatform| platform.drives(release);
            assert_eq!(drives(UserDataPlatform::IbmCloud), [CIDATA]);
            assert_eq!(drives(UserDataPlatform::Nutanix), [CONFIG_2]);
            assert_eq!(drives(UserDataPlatform::PowerVs), [CONFIG_2]);
            assert_eq!(drives(UserDataPlatform::OpenStack), [CONFIG_2, CONFIG_2_CAPITALS]);
        }
        for (release, expect) in [
            (Some((2, 14)), [CONFIG_2].as_slice()),
            (Some((2, 23)), &[CONFIG_2]),
            (Some((2, 24)), &[CIDATA, CONFIG_2]),
            (Some((3, 0)), &[CIDATA, CONFIG_2]),
            (None, &[CIDATA, CONFIG_2]),
        ] {
            assert_eq!(UserDataPlatform::KubeVirt.drives(release), expect, "{release:?}");
        }
    }
}
