//! Errors of the pointer config, with their remedies.

use super::POINTER_LIMIT_BYTES;
use crate::failure::Failure;

/// Reason why a pointer config cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// No source has a pointer config.
    #[error("no pointer config found: looked at {looked_at}")]
    NotFound {
        /// Locations that were searched.
        looked_at: String,
    },
    /// Ignition reads the config that the kernel command line names, and not a `user.ign`.
    #[error(
        "{argument} is on the kernel command line: Ignition reads the pointer config from there only, so it would not see a ticket, and this \
         node would get an unauthenticated client's config"
    )]
    Elsewhere {
        /// Kernel argument that names the other config.
        argument: &'static str,
    },
    /// Ignition has no source for the config.
    #[error("the kernel command line has only one of ignition.config.device and ignition.config.path: Ignition stops the boot")]
    Nowhere,
    /// The source depends on Ignition's version, which Ignition does not report.
    #[error(
        "Ignition does not report its version, and up to 2.26 it reads another pointer config than from 2.27 on: a user.ign in a folder, or \
         an argument on the kernel command line, applies to some versions only"
    )]
    Unclear,
    /// The file exists and cannot be read.
    #[error("the pointer config {path} cannot be read: {error}")]
    Unreadable { path: String, error: String },
    /// The config is larger than [`POINTER_LIMIT_BYTES`].
    #[error("the pointer config is larger than {POINTER_LIMIT_BYTES} bytes")]
    TooLarge,
    /// The text is not an Ignition config.
    #[error("the pointer config is malformed: {0}")]
    Malformed(String),
    /// Its version is not one of 3.x.
    #[error("the pointer config has Ignition spec version {found:?}; a ticket can only be put into a 3.x config")]
    Version {
        /// Version, as written in the config.
        found: String,
    },
    /// The config names no CA.
    #[error("the pointer config has no CA in ignition.security.tls.certificateAuthorities, so no gateway can be trusted")]
    NoAuthority,
    /// A CA in it is not usable.
    #[error("certificate authority {index} of the pointer config: {problem}")]
    Authority {
        /// Position in the list, from 0.
        index: usize,
        problem: String,
    },
}

impl From<PointerError> for Failure {
    fn from(error: PointerError) -> Self {
        let (code, next_step) = match &error {
            PointerError::NotFound { .. } => (
                "pointer-not-found",
                "put a pointer config into one of these places, or name its file with --pointer",
            ),
            PointerError::Elsewhere { .. } => (
                "pointer-overridden",
                "remove this argument from the kernel command line, and put the pointer config into user.ign in the initramfs, or into the \
                 platform's user data",
            ),
            PointerError::Nowhere => (
                "pointer-overridden",
                "remove this argument from the kernel command line, and put the pointer config into user.ign in the initramfs, or into the \
                 platform's user data",
            ),
            PointerError::Unclear => (
                "pointer-unclear",
                "keep one user.ign, in /usr/lib/ignition; or name the pointer config with --pointer, and the file that Ignition reads with \
                 --out",
            ),
            PointerError::Unreadable { .. } | PointerError::TooLarge | PointerError::Malformed(_) => (
                "pointer-malformed",
                "give this node a valid pointer config: `attest-gateway pointer create` prints one",
            ),
            PointerError::Version { .. } => (
                "pointer-version",
                "write the pointer config in Ignition spec 3.1.0 or later: `attest-gateway pointer create` prints one",
            ),
            PointerError::NoAuthority => (
                "pointer-no-ca",
                "put the MCS CA into the pointer config: `attest-gateway pointer create` does so",
            ),
            PointerError::Authority { .. } => (
                "pointer-ca",
                "correct this entry of ignition.security.tls.certificateAuthorities: Ignition refuses it, too",
            ),
        };
        Self::new(code, &error, next_step)
    }
}
