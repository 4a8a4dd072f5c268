//! Repeats a command that the TPM cannot run now.
//!
//! A TPM answers with a warning (`RC_WARN`, TPM 2.0 Part 2, 6.6.3) if a command was not run for a temporary reason: the TPM tests itself,
//! its NV memory may not be written that often, or another process's objects fill it. ESYS repeats three of them five times within a
//! millisecond; here each is repeated until a deadline.

use std::thread;
use std::time::{Duration, Instant};

use tss_esapi::Context;
use tss_esapi::constants::{CapabilityType, PropertyTag};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::CapabilityData;

use super::warning::{Lockout, Warning};
use super::{TpmDevice, TpmError};
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

impl TpmDevice {
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

    /// Runs one command like [`TpmDevice::run`], but waits for the end of a lockout for [`LOCKOUT_PATIENCE`] only: for commands that an
    /// attestation does not need.
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
            let Some(warning) = Warning::from_error(&source) else {
                return Err(TpmError::Command { doing, source });
            };
            let deadline = if warning == Warning::LOCKOUT { lockout_ends } else { self.deadline };
            let Some(pause) = backoff.pause(deadline) else {
                return Err(self.abandoned(doing, warning, attempts, begun.elapsed()));
            };
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                let Warning { name, code } = warning;
                console::print_line(&format!(
                    "waiting for the TPM: {doing} gets {name} ({code:#x}) for {} s so far; retrying for at most {} s",
                    begun.elapsed().as_secs(),
                    self.deadline.remaining().as_secs()
                ));
            }
            thread::sleep(pause);
        }
    }

    fn abandoned(&mut self, doing: &'static str, warning: Warning, attempts: u32, waited: Duration) -> TpmError {
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
    pub(crate) fn lockout(&mut self) -> Option<Lockout> {
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
