//! The node's TPM, driven by tss-esapi: keys, credential activation, quotes, the PCR that ends a boot.
//!
//! Everything here blocks, and a TPM may take seconds (or for ever) for an answer: the caller bounds the time.
//! Objects and sessions are flushed on every path. Without a resource manager a TPM has room for three objects and three
//! sessions; whatever an error path leaves behind ends in TPM_RC_OBJECT_MEMORY (0x902) or TPM_RC_SESSION_MEMORY (0x903).

pub mod attester;
mod azure;
mod boot_complete;
pub mod device;
pub mod ek;
mod ek_choice;
mod ek_policy;
mod ek_template;
mod error;
mod hash;
mod nv;
mod properties;
mod quote;
mod retry;
mod warning;

use std::str::FromStr;
use std::thread;
use std::time::Duration;

use tss_esapi::Context;
use tss_esapi::constants::CapabilityType;
use tss_esapi::handles::{KeyHandle, ObjectHandle, TpmHandle};
use tss_esapi::structures::CapabilityData;
use tss_esapi::tcti_ldr::TctiNameConf;

pub use self::attester::{AkKind, Attester};
pub use self::azure::AzureAk;
pub use self::boot_complete::Closed;
pub use self::ek::{EkOrigin, EndorsementKey};
pub use self::ek_choice::EkChoice;
pub use self::ek_template::Template;
pub use self::error::TpmError;
pub use self::nv::{IssuerCertificates, UnreadIssuers};
pub use self::quote::QuoteWithPcrs;
use self::retry::UNAUTHORIZED;
pub use self::warning::{Lockout, Warning};
use crate::deadline::{Backoff, Deadline};

/// Maximum number of handles in one `TPM2_GetCapability`: the capacity of the TPM's capability buffer (`MAX_CAP_HANDLES`, Part 2, 10.3).
const HANDLES_PER_ANSWER: u32 = 254;
/// Most answers read for one range of handles, so that a TPM that always says "more" cannot hold the node for ever.
const HANDLE_ANSWERS_LIMIT: usize = 16;

/// Time from opening the TPM during which commands that it cannot run now are repeated: the default of `attest-node`.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// Time during which a TPM that does not answer is opened again: another process has the device open, or the driver was just bound.
const OPENING_PATIENCE: Duration = Duration::from_secs(10);

/// An open connection to a TPM.
#[derive(Debug)]
pub struct TpmDevice {
    context: Context,
    /// Last created EK, kept loaded: on hardware, deriving an RSA EK takes up to a minute.
    created_ek: Option<(&'static Template, KeyHandle)>,
    /// Until when a command is repeated that the TPM cannot run now.
    deadline: Deadline,
}

impl TpmDevice {
    /// Opens the TPM behind a TCTI string, such as `device:/dev/tpmrm0` or `swtpm:host=127.0.0.1,port=2321`. A command that it cannot run now is repeated
    /// for [`DEFAULT_PATIENCE`], unless [`TpmDevice::retry_until`] says another time.
    ///
    /// # Errors
    /// [`TpmError::Tcti`] for a string that names no TCTI, [`TpmError::NoAnswer`].
    pub fn open(tcti: &str) -> Result<Self, TpmError> {
        let name = TctiNameConf::from_str(tcti).map_err(|_| TpmError::Tcti { tcti: tcti.to_owned() })?;
        let context = Context::new(name).map_err(|source| TpmError::NoAnswer {
            tcti: tcti.to_owned(),
            source,
        })?;
        Ok(Self {
            context,
            created_ek: None,
            deadline: Deadline::after(DEFAULT_PATIENCE),
        })
    }

    /// Opens the TPM as [`TpmDevice::open`] does, again for some seconds while it does not answer. Its commands are repeated until the deadline.
    ///
    /// # Errors
    /// The same as [`TpmDevice::open`].
    pub fn open_until(tcti: &str, deadline: Deadline) -> Result<Self, TpmError> {
        // Whatever else the machine can show has the rest of the time.
        let (mut backoff, opening) = (Backoff::default(), deadline.share(2).at_most(OPENING_PATIENCE));
        loop {
            match Self::open(tcti) {
                Ok(mut tpm) => {
                    tpm.retry_until(deadline);
                    return Ok(tpm);
                }
                Err(error @ TpmError::NoAnswer { .. }) => thread::sleep(backoff.pause(opening).ok_or(error)?),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the tss-esapi context, for operations that this driver does not have. Objects that are loaded through it must be flushed
    /// through it.
    pub fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Handles of one kind from `first` to `last`, ascending.
    fn handles(&mut self, first: u32, last: u32) -> Result<Vec<u32>, TpmError> {
        let mut found = Vec::new();
        let mut next = first;
        for _ in 0..HANDLE_ANSWERS_LIMIT {
            let (data, more) = self.run("listing what the TPM holds", UNAUTHORIZED, |context| {
                context.get_capability(CapabilityType::Handles, next, HANDLES_PER_ANSWER)
            })?;
            let CapabilityData::Handles(list) = data else {
                return Err(TpmError::Unexpected {
                    what: "another capability than asked for",
                });
            };
            let answer: Vec<u32> = list.into_inner().into_iter().map(u32::from).collect();
            found.extend(answer.iter().copied().filter(|handle| (first..=last).contains(handle)));
            match answer.last() {
                Some(&highest) if more && (next..last).contains(&highest) => next = highest.saturating_add(1),
                _ => break,
            }
        }
        Ok(found)
    }

    /// An ESYS handle for something that lives in the TPM; to be given back by [`TpmDevice::close`].
    fn open_handle(&mut self, handle: TpmHandle, doing: &'static str) -> Result<ObjectHandle, TpmError> {
        self.run(doing, UNAUTHORIZED, |context| context.tr_from_tpm_public(handle))
    }

    /// Forgets an ESYS handle; the thing stays in the TPM. Nothing is lost if this fails.
    fn close(&mut self, mut handle: ObjectHandle) {
        let _ = self.context.execute_without_session(|context| context.tr_close(&mut handle));
    }

    /// Removes a transient object or a session from the TPM. A TPM that refuses this has lost the object already.
    fn flush(&mut self, handle: ObjectHandle) {
        let _ = self.run("removing an object", UNAUTHORIZED, |context| context.flush_context(handle));
    }
}

impl Drop for TpmDevice {
    fn drop(&mut self) {
        if let Some((_, handle)) = self.created_ek.take() {
            self.flush(handle.into());
        }
    }
}
