//! First-boot secret by which gateways recognise this node. The node generates it at its first boot, and never reveals it.
//!
//! The claimant that a gateway sees is derived from the secret, for that gateway and one purpose. Without that, a gateway could present an
//! instance's evidence and claimant to another gateway. The claimant of a token, which Ignition's request carries, must not claim an
//! instance either.

pub mod folder;
pub mod state;
pub mod storage;

use std::fmt;

use attest_wire::protocol::CLAIMANT_BYTES;
use aws_lc_rs::{hmac, rand};
use zeroize::Zeroizing;

use self::state::ClaimFolder;
use self::storage::{ARGUMENT, Storage};
use crate::deadline::Deadline;
use crate::failure::Failure;

/// Domain separator from other values that might be derived from a secret.
const DOMAIN: &[u8] = b"attest-node claimant v1\0";

#[derive(Clone, PartialEq, Eq)]
pub struct ClaimSecret(Zeroizing<[u8; CLAIMANT_BYTES]>);

/// Subject of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimPurpose {
    /// An instance of a cloud, together with its evidence.
    Instance,
    /// A use of a provisioning token.
    Token,
}

impl ClaimPurpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Instance => b"instance\0",
            Self::Token => b"token\0",
        }
    }
}

impl fmt::Debug for ClaimSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl ClaimSecret {
    /// Creates a secret from stored bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; CLAIMANT_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    fn random() -> Result<Self, Failure> {
        let mut secret = Self::from_bytes([0; CLAIMANT_BYTES]);
        rand::fill(secret.0.as_mut()).map_err(|_| Failure::new("internal", "the system has no randomness", "report this message"))?;
        Ok(secret)
    }

    /// Returns the bytes to be stored.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// Derives the claimant for the gateway at this base and for that purpose: 32 bytes (HMAC-SHA256), always the same.
    #[must_use]
    pub fn claimant(&self, purpose: ClaimPurpose, base: &str) -> Zeroizing<Vec<u8>> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.bytes());
        let tag = hmac::sign(&key, &[DOMAIN, purpose.label(), base.as_bytes()].concat());
        Zeroizing::new(tag.as_ref().to_vec())
    }
}

/// Lazy access to the secret, which is read or created at the first request. A node with nothing to claim touches no disk.
pub struct FirstBootSecret {
    state: ClaimFolder,
    storage: Storage,
    secret: Option<ClaimSecret>,
    note: Option<String>,
}

impl FirstBootSecret {
    /// Nothing is done yet.
    #[must_use]
    pub fn new(state: ClaimFolder, storage: Storage) -> Self {
        Self {
            state,
            storage,
            secret: None,
            note: None,
        }
    }

    /// Returns the secret of this boot; else the one of an earlier part of this first boot; else a new one.
    ///
    /// # Errors
    /// Random numbers are unavailable.
    pub fn secret(&mut self, deadline: Deadline) -> Result<ClaimSecret, Failure> {
        if let Some(secret) = self.secret.clone().or_else(|| self.state.secret()) {
            return Ok(self.secret.insert(secret).clone());
        }
        let fresh = ClaimSecret::random()?;
        let secret = match self.storage.recall(&fresh, deadline) {
            Ok(Some(kept)) => {
                self.state.set_place(&kept.place);
                kept.secret
            }
            Ok(None) => fresh,
            Err(problem) => {
                self.note = Some(format!(
                    "cannot store the first-boot secret across a reboot: {problem}. If this machine reboots before Ignition has finished, the \
                     gateway refuses a cloud instance without a TPM (instance-claimed), and a token spends another use. To choose a filesystem \
                     for the secret, add {ARGUMENT}=LABEL to the kernel command line; to use none, add {ARGUMENT}=none"
                ));
                fresh
            }
        };
        self.state.set_secret(&secret);
        Ok(self.secret.insert(secret).clone())
    }

    /// Takes the note for the console about the secret; `None` after the first call.
    pub fn note(&mut self) -> Option<String> {
        self.note.take()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    #[test]
    fn claim_value_differs_per_gateway_and_purpose() {
        let secret = ClaimSecret::from_bytes([7; 32]);
        let (a, b) = ("https://a.example:22623", "https://b.example:22623");
        let all = [
            (ClaimPurpose::Instance, a),
            (ClaimPurpose::Instance, b),
            (ClaimPurpose::Token, a),
            (ClaimPurpose::Token, b),
        ];
        let shown = all.map(|(purpose, base)| secret.claimant(purpose, base));
        for (index, one) in shown.iter().enumerate() {
            assert_eq!(one.len(), CLAIMANT_BYTES);
            assert!(!shown[..index].contains(one) && one.as_slice() != secret.bytes());
        }
        assert_eq!(secret.claimant(ClaimPurpose::Instance, a), shown[0]);
        assert_ne!(ClaimSecret::from_bytes([8; 32]).claimant(ClaimPurpose::Instance, a), shown[0]);
    }

    /// Simulates one run of the program, with its memory and its disk.
    fn run(state: &Path, storage: Storage) -> (ClaimSecret, Option<String>) {
        let mut claimants = FirstBootSecret::new(ClaimFolder::new(state), storage);
        let mut get = || claimants.secret(Deadline::after(Duration::from_secs(30))).unwrap();
        let secret = get();
        assert_eq!(get(), secret);
        (secret, claimants.note())
    }

    #[test]
    fn first_boot_secret_survives_a_reboot_on_disk() {
        let (disk, memory, again) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        let storage = || Storage::Folder(disk.path().to_owned());
        let (first, note) = run(memory.path(), storage());
        assert_eq!(note, None);
        assert!(run(memory.path(), Storage::Nowhere).0 == first);
        assert!(run(again.path(), storage()).0 == first);
        let other = tempfile::tempdir().unwrap();
        let (unknown, note) = run(other.path(), Storage::Nowhere);
        assert!(unknown != first && note.is_none());
    }

    #[test]
    fn unsaved_secret_lasts_for_the_boot_with_note() {
        let memory = tempfile::tempdir().unwrap();
        let (first, note) = run(memory.path(), Storage::Folder("/proc/nonexistent".into()));
        let note = note.unwrap();
        assert!(
            note.contains("/proc/nonexistent: ")
                && note.contains("instance-claimed")
                && note.contains("attest-node.first-boot-secret-on=LABEL"),
            "{note}"
        );
        let (second, note) = run(memory.path(), Storage::Folder("/proc/nonexistent".into()));
        assert!(first == second && note.is_none());
        // Nor in memory: then it is good for this run.
        assert!(run(Path::new("/proc/nonexistent/state"), Storage::Nowhere).0 != first);
    }
}
