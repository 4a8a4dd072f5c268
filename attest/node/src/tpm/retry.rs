//! Repeats a command that the TPM cannot run now.
//!
//! A TPM answers a warning (RC_WARN, TPM 2.0 Part 2, 6.6.3) where a command was not run for a reason that passes: it tests itself, its NV memory may not be written
//! that often, somebody else's objects fill it. ESYS repeats three of them five times within a millisecond; here each is repeated until a deadline.

use std::thread;
use std::time::{Duration, Instant};

use tss_esapi::Context;
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;
use tss_esapi::constants::{CapabilityType, PropertyTag};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::CapabilityData;

use super::{Tpm, TpmError};
use crate::console;
use crate::deadline::{Backoff, Deadline};

/// First pause before a command is repeated. Short: a TPM that another process uses is free within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Time to wait for the end of a lockout before a command that can be left out is skipped. A real lockout lasts minutes of operation.
const LOCKOUT_PATIENCE: Duration = Duration::from_secs(2);
/// Interval of console messages while the TPM is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Properties read to describe a lockout: from TPM_PT_LOCKOUT_COUNTER to TPM_PT_LOCKOUT_RECOVERY (TPM 2.0 Part 2, 6.13).
const LOCKOUT_PROPERTIES: u32 = 4;

/// The sessions of one command.
pub(super) type Sessions = (Option<AuthSession>, Option<AuthSession>, Option<AuthSession>);

/// The sessions of a command that nothing authorizes.
pub(super) const UNAUTHORIZED: Sessions = (None, None, None);
/// The session of a command that one empty password authorizes.
pub(super) const EMPTY_PASSWORD: Sessions = (Some(AuthSession::Password), None, None);

/// A warning of the TPM: the command was not run, and may be run later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warning {
    /// Its name in TPM 2.0 Part 2.
    pub name: &'static str,
    /// The response code, a number with the bits of RC_WARN.
    pub code: u32,
}

/// The counter of failed authorizations (TPM 2.0 Part 1, "Dictionary Attack Protection").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lockout {
    /// Failed authorizations that count now.
    pub failed: u32,
    /// Number of failed authorizations that lock the TPM.
    pub limit: u32,
    /// Seconds of operation after which one failed authorization is forgotten.
    pub interval_seconds: u32,
}

impl Warning {
    pub(super) const LOCKOUT: Self = Self {
        name: "TPM_RC_LOCKOUT",
        code: 0x921,
    };

    /// The warning that an error is, if the same command may succeed later.
    pub(super) fn of(error: &tss_esapi::Error) -> Option<Self> {
        use Tss2ResponseCodeKind as Kind;
        let tss_esapi::Error::Tss2Error(response) = error else {
            return None;
        };
        let (name, code) = match response.kind()? {
            Kind::ObjectMemory => ("TPM_RC_OBJECT_MEMORY", 0x902),
            Kind::SessionMemory => ("TPM_RC_SESSION_MEMORY", 0x903),
            Kind::Memory => ("TPM_RC_MEMORY", 0x904),
            Kind::SessionHandles => ("TPM_RC_SESSION_HANDLES", 0x905),
            Kind::ObjectHandles => ("TPM_RC_OBJECT_HANDLES", 0x906),
            Kind::Yielded => ("TPM_RC_YIELDED", 0x908),
            Kind::Canceled => ("TPM_RC_CANCELED", 0x909),
            Kind::Testing => ("TPM_RC_TESTING", 0x90a),
            Kind::NvRate => ("TPM_RC_NV_RATE", 0x920),
            Kind::Lockout => return Some(Self::LOCKOUT),
            Kind::Retry => ("TPM_RC_RETRY", 0x922),
            Kind::NvUnavailable => ("TPM_RC_NV_UNAVAILABLE", 0x923),
            _ => return None,
        };
        Some(Self { name, code })
    }
}

impl Tpm {
    /// Sets the deadline until which a command is repeated that the TPM cannot run now.
    pub const fn retry_until(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// Runs one command, again while the TPM answers a [`Warning`], until the deadline.
    ///
    /// # Errors
    /// [`TpmError::Command`]; [`TpmError::Busy`] and [`TpmError::Lockout`] once the deadline has passed.
    pub(super) fn run<T>(
        &mut self,
        doing: &'static str,
        sessions: Sessions,
        command: impl FnMut(&mut Context) -> Result<T, tss_esapi::Error>,
    ) -> Result<T, TpmError> {
        self.run_until(self.deadline, doing, sessions, command)
    }

    /// Runs one command as [`Tpm::run`] does, but waits for the end of a lockout for [`LOCKOUT_PATIENCE`] only: for what an attestation can do without.
    ///
    /// # Errors
    /// [`TpmError::Command`]; [`TpmError::Lockout`] after that time; [`TpmError::Busy`] once the deadline has passed.
    pub(super) fn run_unless_locked_out<T>(
        &mut self,
        doing: &'static str,
        sessions: Sessions,
        command: impl FnMut(&mut Context) -> Result<T, tss_esapi::Error>,
    ) -> Result<T, TpmError> {
        self.run_until(self.deadline.at_most(LOCKOUT_PATIENCE), doing, sessions, command)
    }

    fn run_until<T>(
        &mut self,
        lockout_ends: Deadline,
        doing: &'static str,
        sessions: Sessions,
        mut command: impl FnMut(&mut Context) -> Result<T, tss_esapi::Error>,
    ) -> Result<T, TpmError> {
        let begun = Instant::now();
        let (mut backoff, mut attempts, mut said) = (Backoff::starting_with(FIRST_PAUSE), 0, begun);
        loop {
            attempts += 1;
            let source = match self.context.execute_with_sessions(sessions, |context| command(context)) {
                Ok(done) => return Ok(done),
                Err(source) => source,
            };
            let Some(warning) = Warning::of(&source) else {
                return Err(TpmError::Command { doing, source });
            };
            let deadline = if warning == Warning::LOCKOUT { lockout_ends } else { self.deadline };
            let Some(pause) = backoff.pause(deadline) else {
                return Err(self.given_up(doing, warning, attempts, begun.elapsed()));
            };
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                let Warning { name, code } = warning;
                console::say(&format!(
                    "waiting for the TPM: {doing} is answered with {name} ({code:#x}) for {} s so far; it is repeated for {} s at most",
                    begun.elapsed().as_secs(),
                    self.deadline.remaining().as_secs()
                ));
            }
            thread::sleep(pause);
        }
    }

    fn given_up(&mut self, doing: &'static str, warning: Warning, attempts: u32, waited: Duration) -> TpmError {
        if warning == Warning::LOCKOUT {
            return TpmError::Lockout {
                doing,
                lockout: self.lockout(),
            };
        }
        TpmError::Busy {
            doing,
            warning,
            attempts,
            waited,
        }
    }

    /// The counter of failed authorizations, if the TPM tells it.
    fn lockout(&mut self) -> Option<Lockout> {
        let first = u32::from(PropertyTag::LockoutCounter);
        let answer = self
            .context
            .execute_without_session(|context| context.get_capability(CapabilityType::TpmProperties, first, LOCKOUT_PROPERTIES));
        let Ok((CapabilityData::TpmProperties(properties), _)) = answer else {
            return None;
        };
        let value = |tag| properties.find(tag).map(|property| property.value());
        Some(Lockout {
            failed: value(PropertyTag::LockoutCounter)?,
            limit: value(PropertyTag::MaxAuthFail)?,
            interval_seconds: value(PropertyTag::LockoutInterval)?,
        })
    }
}
