//! The phases of a boot that systemd measures into PCR 11.

use serde::Serialize;

/// A phase of the boot: the word that systemd's `systemd-pcrphase-initrd.service`, `systemd-pcrphase-sysinit.service` and
/// `systemd-pcrphase.service` extend into PCR 11 of a machine that was booted by a unified kernel image (systemd-pcrphase.service(8)).
///
/// Like the separator, a word is the same on every machine, so it is computed and not read. It does not prove which software has extended
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    EnterInitrd,
    LeaveInitrd,
    Sysinit,
    Ready,
    Shutdown,
    Final,
}

impl Phase {
    /// Returns the bytes that are hashed, without a zero at the end.
    #[must_use]
    pub const fn label(self) -> &'static [u8] {
        match self {
            Self::EnterInitrd => b"enter-initrd",
            Self::LeaveInitrd => b"leave-initrd",
            Self::Sysinit => b"sysinit",
            Self::Ready => b"ready",
            Self::Shutdown => b"shutdown",
            Self::Final => b"final",
        }
    }
}

/// The PCR that they are extended into.
pub(super) const PHASES_PCR: u8 = 11;

/// Phases that may follow the log, in order, as far as the boot has come. The second list is for an initrd that does not measure.
pub(super) const PHASE_SEQUENCES: [&[Phase]; 2] = [
    &[
        Phase::EnterInitrd,
        Phase::LeaveInitrd,
        Phase::Sysinit,
        Phase::Ready,
        Phase::Shutdown,
        Phase::Final,
    ],
    &[Phase::Sysinit, Phase::Ready, Phase::Shutdown, Phase::Final],
];
