//! Azure: user data, custom data, and the attested document of the Instance Metadata Service (IMDS).

use std::thread;
use std::time::Duration;

use attest_wire::azure::attested_document::{ENCODING, IMDS_HEADER, ImdsAnswer, ImdsNonce, imds_path};
use attest_wire::azure::vtpm::VmId;
use data_encoding::BASE64;
use zeroize::Zeroizing;

use crate::deadline::Deadline;
use crate::failure::printable;
use crate::pointer::POINTER_LIMIT_BYTES;

use super::metadata::{Ask, MetadataAnswer};
use super::{CloudError, MetadataClient, provisioning_media};

/// Path that Ignition tries first for its config.
const USER_DATA: &str = "/metadata/instance/compute/userData?api-version=2021-01-01&format=text";
/// The description of a virtual machine: there on each.
const INSTANCE: &str = "/metadata/instance?api-version=2021-01-01";
/// The machine's vmId, as text.
const VM_ID: &str = "/metadata/instance/compute/vmId?api-version=2021-01-01&format=text";
/// Longest vmId: a UUID, and a line's end.
const VM_ID_LIMIT_BYTES: usize = 64;
const HEADERS: &[(&str, &str)] = &[IMDS_HEADER];
/// User data is at most 64 KiB; a pointer in Base64 may be as long as any other.
const USER_DATA_LIMIT_BYTES: usize = POINTER_LIMIT_BYTES / 3 * 4 + 4;
/// Largest attested document with its certificates, in Base64. Real ones have about 6 KiB.
const ATTESTED_LIMIT_BYTES: usize = 32 * 1024;
/// Statuses of IMDS while the virtual machine is being set up. Ignition retries after them, too.
const COME_AGAIN: &[u16] = &[404, 410];
/// Maximum number of repeated requests after a document for an earlier nonce.
const REPEATS_LIMIT: usize = 4;
/// Pause between requests: IMDS accepts five requests a second.
const REPEAT_PAUSE: Duration = Duration::from_secs(1);

/// Returns a request that only Azure's metadata server answers.
pub(super) const fn recognise() -> Ask<'static> {
    Ask::get(INSTANCE, HEADERS, 0)
}

/// The virtual machine's user data, or else its custom data, as Ignition has it; `None` if it has neither.
///
/// # Errors
/// [`CloudError`].
pub fn user_data(metadata: &MetadataClient, deadline: Deadline) -> Result<Option<Zeroizing<Vec<u8>>>, CloudError> {
    let ask = Ask {
        come_again: COME_AGAIN,
        ..Ask::get(USER_DATA, HEADERS, USER_DATA_LIMIT_BYTES)
    };
    match metadata.ask_for_optional(ask, deadline)? {
        Some(answer) => decode(&answer).map(Some),
        None => provisioning_media::custom_data(deadline),
    }
}

fn decode(answer: &MetadataAnswer) -> Result<Zeroizing<Vec<u8>>, CloudError> {
    BASE64
        .decode(answer.body.trim_ascii())
        .map(Zeroizing::new)
        .map_err(|_| answer.invalid("user data that is not Base64".to_owned()))
}

/// The vmId that the metadata service says; the firmware has measured it, too.
///
/// # Errors
/// [`CloudError`], also for an answer that is not a UUID.
pub fn vm_id(metadata: &MetadataClient, deadline: Deadline) -> Result<VmId, CloudError> {
    let ask = Ask {
        come_again: COME_AGAIN,
        ..Ask::get(VM_ID, HEADERS, VM_ID_LIMIT_BYTES)
    };
    let answer = metadata.ask(ask, deadline)?;
    let text = String::from_utf8_lossy(answer.body.trim_ascii()).into_owned();
    VmId::try_from(text).map_err(|_| answer.invalid("a vmId that is not a UUID".to_owned()))
}

/// The attested document for this nonce: the Base64 of the PKCS#7 message, as IMDS gives it.
///
/// IMDS keeps answers for a while, so one for an earlier nonce is asked for again. The last one is returned whatever nonce it has:
/// the gateway reads it properly.
///
/// # Errors
/// [`CloudError`].
pub fn attested_document(metadata: &MetadataClient, nonce: &ImdsNonce, deadline: Deadline) -> Result<String, CloudError> {
    let path = imds_path(nonce);
    let ask = Ask {
        come_again: COME_AGAIN,
        ..Ask::get(&path, HEADERS, ATTESTED_LIMIT_BYTES)
    };
    let mut repeats = 0;
    loop {
        let answer = metadata.ask(ask, deadline)?;
        let signature = signature(&answer)?;
        if repeats == REPEATS_LIMIT || deadline.remaining() <= REPEAT_PAUSE || holds(&signature, nonce) {
            return Ok(signature);
        }
        repeats += 1;
        thread::sleep(REPEAT_PAUSE);
    }
}

fn signature(answer: &MetadataAnswer) -> Result<String, CloudError> {
    let ImdsAnswer { encoding, signature } =
        serde_json::from_slice(&answer.body).map_err(|_| answer.invalid("data other than an attested document".to_owned()))?;
    if encoding != ENCODING {
        let found: String = encoding.chars().take(20).collect();
        return Err(answer.invalid(format!("the encoding {found:?} instead of {ENCODING:?}")));
    }
    if BASE64.decode(signature.as_bytes()).is_err() {
        return Err(answer.invalid("a signature that is not Base64".to_owned()));
    }
    Ok(signature)
}

/// The virtual machine that a document is about, `azure:<subscription>/<vmId>`, for a message. The gateway verifies what it says.
#[must_use]
pub fn machine_of(signature: &str) -> Option<String> {
    let message = BASE64.decode(signature.as_bytes()).ok()?;
    // The document is in the message as plain text.
    let text = String::from_utf8_lossy(&message);
    let field = |name: &str| {
        let (_, rest) = text.split_once(&format!("\"{name}\":"))?;
        rest.trim_start().strip_prefix('"')?.split('"').next()
    };
    Some(printable(&format!("azure:{}/{}", field("subscriptionId")?, field("vmId")?)).to_lowercase())
}

/// Returns whether the message contains the nonce. The document is in it as plain text.
fn holds(signature: &str, nonce: &ImdsNonce) -> bool {
    let nonce = nonce.as_str().as_bytes();
    BASE64
        .decode(signature.as_bytes())
        .is_ok_and(|message| message.windows(nonce.len()).any(|window| window == nonce))
}
