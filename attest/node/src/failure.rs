//! Why a node has not attested: what stands in the one line on the console.

use std::fmt;

use attest::protocol::{GATEWAY_UNREACHABLE, HELD_TOO_LONG, TICKET_UNDELIVERABLE};

use crate::cloud::CloudError;
use crate::gateway::GatewayError;
use crate::gateway::identity::IdentityError;
use crate::pointer::PointerError;
use crate::tpm::TpmError;

/// Longest text of others repeated on the console, in characters: about two lines.
const QUOTED_LIMIT_CHARS: usize = 400;

/// Longest id of a record in a gateway's attestation log, in characters: a UUID has 36.
const ID_LIMIT_CHARS: usize = 64;

/// A failure, for the person at the console: the fact, a stable code, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable, machine-readable; a gateway's refusal keeps the gateway's code.
    pub code: String,
    /// The fact. Holds no secrets.
    pub reason: String,
    /// What the person should do.
    pub next_step: String,
    /// What a gateway that refused is told when Ignition asks it for the config: its code, and which decision that was if it has said so.
    pub refusal: Option<String>,
}

/// The codes that this program gives by itself, without those of a gateway's refusals; `docs/errors.md` lists both.
pub const CODES: [&str; 43] = [
    "pointer-not-found",
    "pointer-elsewhere",
    "pointer-unclear",
    "pointer-malformed",
    "pointer-version",
    "pointer-no-ca",
    "pointer-ca",
    "tpm-absent",
    "tpm-failed",
    "tpm-no-endorsement-key",
    "tpm-bank-missing",
    GATEWAY_UNREACHABLE,
    "gateway-failing",
    HELD_TOO_LONG,
    "gateway-answer",
    "gateway-protocol",
    "gateway-task",
    "tls-unknown-ca",
    "tls-wrong-name",
    "tls-not-yet-valid",
    "tls-expired",
    "tls-failed",
    "deadline",
    TICKET_UNDELIVERABLE,
    "output",
    "internal",
    "refused",
    "tls-ca",
    "kubelet-certificate",
    "kubelet-certificate-unasked",
    "config-source",
    "apply-unsupported",
    "apply-arranged",
    "apply-failed",
    "ignition-twice",
    "ignition-version",
    "metadata-unreachable",
    "metadata-refused",
    "metadata-answer",
    "provisioning-media",
    "nitro-tpm-failed",
    "sts-request",
    "nothing-to-show",
];

impl Failure {
    /// A failure with one of [`CODES`].
    pub(crate) fn new(code: &'static str, reason: impl fmt::Display, next_step: impl Into<String>) -> Self {
        debug_assert!(CODES.contains(&code), "{code}");
        Self {
            code: code.to_owned(),
            reason: reason.to_string(),
            next_step: next_step.into(),
            refusal: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]; next: {}", self.reason, self.code, self.next_step.trim_end_matches('.'))
    }
}

/// Text of others, safe for a console: one line, no control characters, not too long.
#[must_use]
pub fn printable(text: &str) -> String {
    let unsafe_on_a_line =
        |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut clean: String = text
        .chars()
        .take(QUOTED_LIMIT_CHARS)
        .map(|letter| if unsafe_on_a_line(letter) { ' ' } else { letter })
        .collect();
    if text.chars().nth(QUOTED_LIMIT_CHARS).is_some() {
        clean.push('…');
    }
    clean
}

impl From<PointerError> for Failure {
    fn from(error: PointerError) -> Self {
        let (code, next_step) = match &error {
            PointerError::Cloud(error) => return error.clone().into(),
            PointerError::NotFound { .. } => (
                "pointer-not-found",
                "give this node a pointer config where it is looked for, or name its file with --pointer",
            ),
            PointerError::Elsewhere { .. } => (
                "pointer-elsewhere",
                "take this argument off the kernel command line, and put the pointer config where a ticket can take its place: into user.ign \
                 in the initramfs, or where the platform has it",
            ),
            PointerError::Nowhere => (
                "pointer-elsewhere",
                "take this argument off the kernel command line, and put the pointer config into user.ign in the initramfs, or where the \
                 platform has it",
            ),
            PointerError::Unclear => (
                "pointer-unclear",
                "have one user.ign, in /usr/lib/ignition; or name the pointer config with --pointer and the file that Ignition reads with \
                 --output",
            ),
            PointerError::Unreadable { .. } | PointerError::TooLarge | PointerError::Malformed(_) => (
                "pointer-malformed",
                "give this node a valid pointer config: `attest-gateway pointer` prints one",
            ),
            PointerError::Version { .. } => (
                "pointer-version",
                "write the pointer config in Ignition spec 3.1.0 or later: `attest-gateway pointer` prints one",
            ),
            PointerError::NoAuthority => (
                "pointer-no-ca",
                "put the MCS CA into the pointer config: `attest-gateway pointer` does",
            ),
            PointerError::Authority { .. } => (
                "pointer-ca",
                "correct this entry of ignition.security.tls.certificateAuthorities: Ignition will refuse it, too",
            ),
        };
        Self::new(code, &error, next_step)
    }
}

impl From<TpmError> for Failure {
    fn from(error: TpmError) -> Self {
        let (code, next_step) = match &error {
            TpmError::Absent { .. } | TpmError::Version12 => (
                "tpm-absent",
                "enable the TPM 2.0 in the firmware setup, or give the virtual machine a TPM 2.0",
            ),
            TpmError::NoEndorsementKey { .. } => ("tpm-no-endorsement-key", "try --ek auto; `attest-node ek` shows what this TPM has"),
            TpmError::NoBank { .. } => (
                "tpm-bank-missing",
                "enable this PCR bank in the firmware setup, or change `bank` in the pool's pool.toml",
            ),
            TpmError::PcrsChanging { .. } => ("tpm-failed", "find out what extends PCRs during the boot"),
            TpmError::Tcti { .. } => ("tpm-failed", "give a TCTI such as device:/dev/tpmrm0"),
            _ => (
                "tpm-failed",
                "run `attest-node ek` on this node; if the TPM keeps failing, reset it in the firmware setup",
            ),
        };
        Self::new(code, &error, next_step)
    }
}

impl From<CloudError> for Failure {
    fn from(error: CloudError) -> Self {
        let (code, next_step) = match &error {
            CloudError::Unreachable { .. } | CloudError::Failing { .. } => (
                "metadata-unreachable",
                "check that this node's network is up, and that its metadata service is enabled",
            ),
            CloudError::Refused { .. } => (
                "metadata-refused",
                "enable what is refused: on Amazon EC2 the metadata service (IMDSv2), on Google Compute Engine a service account",
            ),
            CloudError::Answer { .. } => (
                "metadata-answer",
                "find out what answers in the metadata server's place; if it is the cloud's, report this message",
            ),
            CloudError::ProvisioningMedia(_) => (
                "provisioning-media",
                "give the virtual machine the pointer config as user data, or name its file with --pointer",
            ),
            CloudError::NitroTpm { .. } => (
                "nitro-tpm-failed",
                "run this program on the node; the instance's image must be registered with NitroTPM",
            ),
            CloudError::Sts(_) => ("sts-request", "set this node's clock; if it is right, report this message"),
            CloudError::Client(_) => ("internal", "report this message"),
        };
        Self::new(code, &error, next_step)
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        Self::new(
            "kubelet-certificate",
            &error,
            "approve the node's CSR (`oc get csr`), and wait until its kubelet has the certificate; or name its file with --certificate",
        )
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        let cause = match &error {
            GatewayError::BesideConfigs(cause) => cause,
            error => error,
        };
        let (code, next_step) = match cause {
            GatewayError::BesideConfigs(_) => ("internal", "report this message".to_owned()),
            GatewayError::Unreachable { .. } => (
                GATEWAY_UNREACHABLE,
                "check that the gateway runs and that this node's network reaches it".to_owned(),
            ),
            GatewayError::Failing { .. } => ("gateway-failing", "look at the gateway's log".to_owned()),
            GatewayError::Held { .. } => (
                HELD_TOO_LONG,
                "find out from the gateway's log and its metrics what it is short of, then boot again; attestation.hold_seconds in the \
                 pool's pool.toml is how long a node waits"
                    .to_owned(),
            ),
            GatewayError::Answer { .. } => (
                "gateway-answer",
                "check that the address in the pointer config is an attestation gateway's".to_owned(),
            ),
            GatewayError::Protocol { .. } => ("gateway-protocol", "use an attest-node of the gateway's release".to_owned()),
            GatewayError::Unasked { .. } => (
                "kubelet-certificate-unasked",
                "set tls.client_ca in the gateway's gateway.toml; if it is set, something between node and gateway ends the TLS connection"
                    .to_owned(),
            ),
            GatewayError::Client(_) => ("internal", "report this message".to_owned()),
            GatewayError::Authority(_) => ("tls-ca", "correct the CA in the pointer config".to_owned()),
            GatewayError::Tls(problem) => (problem.code(), problem.next_step()),
            GatewayError::Refused(problem) => {
                let title = printable(problem.detail.as_deref().unwrap_or(&problem.title));
                let code = code_of(&problem.code);
                let decision = problem.decision.as_deref().filter(|id| is_id(id));
                return Self {
                    refusal: Some(decision.map_or_else(|| code.clone(), |id| format!("{code} {id}"))),
                    code,
                    reason: format!("the gateway refused: {title}"),
                    next_step: printable(&problem.next_step),
                };
            }
        };
        Self::new(code, &error, next_step)
    }
}

/// A gateway's code if it is one.
pub(crate) fn code_of(code: &str) -> String {
    let plain = code
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if plain && (1..=64).contains(&code.len()) {
        code.to_owned()
    } else {
        "refused".to_owned()
    }
}

/// Whether a text may be the id of a record: nothing else of a gateway's goes into a header.
fn is_id(text: &str) -> bool {
    (1..=ID_LIMIT_CHARS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_cannot_move_the_cursor() {
        assert_eq!(printable("plain ünïcode"), "plain ünïcode");
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\u{202e}d\u{7}"), "a [2Jb  c d ");
        assert_eq!(printable(&"x".repeat(QUOTED_LIMIT_CHARS)).chars().count(), QUOTED_LIMIT_CHARS);
        assert_eq!(printable(&"x".repeat(100_000)).chars().count(), QUOTED_LIMIT_CHARS + 1);
    }

    #[test]
    fn codes_of_others_are_codes() {
        assert_eq!(code_of("ek-not-endorsed"), "ek-not-endorsed");
        for wrong in ["", "A", "a b", "a\u{1b}", &"a".repeat(65)] {
            assert_eq!(code_of(wrong), "refused");
        }
    }

    #[test]
    fn codes_are_unique() {
        let unique: std::collections::BTreeSet<&str> = CODES.into_iter().collect();
        assert_eq!(unique.len(), CODES.len());
    }
}
