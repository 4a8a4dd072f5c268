//! Cloud of this node: its detection ([`detect`]), its metadata server ([`metadata`]), the pointer config in its user data, and its
//! evidence for the instance ([`gcp`], [`aws`], [`azure`]).
//!
//! The metadata server is asked in plain HTTP at a link-local address, which only the hypervisor answers. Nothing that it says is
//! believed here: the gateway verifies the evidence, and the pointer is as trusted as any other.

pub mod aws;
pub mod azure;
pub mod detect;
pub mod error;
pub mod gcp;
pub mod metadata;
pub mod nitro_tpm;
pub mod provisioning_media;
pub mod sigv4;

use zeroize::Zeroizing;

use crate::deadline::Deadline;

pub use self::error::CloudError;
pub use self::metadata::{MetadataAddress, MetadataClient};

/// A cloud whose user data and evidence this program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    Gcp,
    /// Amazon EC2 (Elastic Compute Cloud).
    Aws,
    Azure,
}

impl Cloud {
    /// The cloud with this `ignition.platform.id`.
    #[must_use]
    pub fn from_platform(id: &str) -> Option<Self> {
        match id {
            "gcp" => Some(Self::Gcp),
            "aws" => Some(Self::Aws),
            "azure" => Some(Self::Azure),
            _ => None,
        }
    }

    /// Returns the cloud's product name for one of its machines.
    #[must_use]
    pub const fn instance(self) -> &'static str {
        match self {
            Self::Gcp => "Google Compute Engine instance",
            Self::Aws => "Amazon EC2 instance",
            Self::Azure => "Azure virtual machine",
        }
    }
}

/// The user data of an instance; `None` if it has none.
///
/// # Errors
/// [`CloudError`].
pub fn user_data(cloud: Cloud, metadata: &MetadataClient, deadline: Deadline) -> Result<Option<Zeroizing<Vec<u8>>>, CloudError> {
    match cloud {
        Cloud::Gcp => gcp::user_data(metadata, deadline),
        Cloud::Aws => aws::ImdsSession::open(metadata, deadline)?.user_data(deadline),
        Cloud::Azure => azure::user_data(metadata, deadline),
    }
}

/// Describes the location of an instance's user data, for messages.
#[must_use]
pub const fn user_data_place(cloud: Cloud) -> &'static str {
    match cloud {
        Cloud::Gcp => "the attribute user-data of this Google Compute Engine instance",
        Cloud::Aws => "the user data of this Amazon EC2 instance",
        Cloud::Azure => "the user data and the custom data of this Azure virtual machine",
    }
}
