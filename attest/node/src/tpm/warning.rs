//! Warnings of the TPM (RC_WARN, TPM 2.0 Part 2, 6.6.3), and the state of its dictionary attack protection.

use tss_esapi::constants::response_code::Tss2ResponseCodeKind;

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

    /// Converts an error to the warning, if the same command may succeed later.
    pub(super) fn from_error(error: &tss_esapi::Error) -> Option<Self> {
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
