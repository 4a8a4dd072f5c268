//! The files by which pointers of machine sets are renewed.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The gateway's public files. They are read at each pass, so that a new CA counts within a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointerSettings {
    /// Set if pointers are renewed; otherwise `attest-controller pointer list` shows them.
    pub enabled: bool,
    /// The CAs that pointers carry, the newest last: the gateway's `tls.ca`.
    pub authorities: PathBuf,
    /// The certificate that the gateway serves, with its chain: its `tls.certificate`.
    pub certificate: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PointerSection {
    enabled: bool,
    authorities: PathBuf,
    certificate: PathBuf,
}

impl Default for PointerSection {
    fn default() -> Self {
        Self {
            enabled: false,
            authorities: "tls/mcs-ca.crt".into(),
            certificate: "tls/mcs.crt".into(),
        }
    }
}

impl PointerSection {
    /// Resolves the paths against the folder of the file.
    pub(super) fn in_folder(self, folder: &Path) -> PointerSettings {
        PointerSettings {
            enabled: self.enabled,
            authorities: folder.join(self.authorities),
            certificate: folder.join(self.certificate),
        }
    }
}
