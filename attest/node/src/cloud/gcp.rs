//! Google Compute Engine: user data and identity tokens.

use attest_wire::gcp::{Audience, IDENTITY_TOKEN_LIMIT_BYTES, METADATA_HEADER, request_path};
use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::deadline::Deadline;
use crate::failure::printable;
use crate::pointer::POINTER_LIMIT_BYTES;

use super::metadata::Ask;
use super::{CloudError, MetadataClient};

/// The value of `Metadata-Flavor`, in requests and in answers.
pub(super) const FLAVOR: &str = METADATA_HEADER.1;
/// Path from which Ignition reads its config.
const USER_DATA: &str = "/computeMetadata/v1/instance/attributes/user-data";
/// Path that exists on each instance with a service account, without which there are no identity tokens.
const SERVICE_ACCOUNT: &str = "/computeMetadata/v1/instance/service-accounts/default/email";
/// Longest address of a service account, in bytes: that of any mail address.
const SERVICE_ACCOUNT_LIMIT_BYTES: usize = 320;
/// The instance's number: there on each instance.
const INSTANCE_ID: &str = "/computeMetadata/v1/instance/id";
/// Headers of every request; the metadata server requires them.
const HEADERS: &[(&str, &str)] = &[METADATA_HEADER];
/// Longest name of a gateway, in bytes: a DNS name's. Google takes longer audiences.
const GATEWAY_LIMIT_BYTES: usize = 253;

/// Returns a request that only Google's metadata server answers with its `Metadata-Flavor` header.
pub(super) const fn recognise() -> Ask<'static> {
    Ask::get(INSTANCE_ID, HEADERS, 0)
}

/// The instance's attribute `user-data`; `None` if it has none.
///
/// # Errors
/// [`CloudError`].
pub fn user_data(metadata: &MetadataClient, deadline: Deadline) -> Result<Option<Zeroizing<Vec<u8>>>, CloudError> {
    let ask = Ask::get(USER_DATA, HEADERS, POINTER_LIMIT_BYTES);
    Ok(metadata.ask_for_optional(ask, deadline)?.map(|answer| answer.body))
}

/// Returns whether a gateway's name is allowed in an audience: a host, optionally with a port.
///
/// A token is valid for the service that its audience names. A gateway that could choose any audience could use the instance's identity at
/// other services. These have URLs, with a scheme and a path, as audience.
#[must_use]
pub fn is_gateway_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':');
    (1..=GATEWAY_LIMIT_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

/// Returns whether the instance has a service account, and so can get identity tokens.
///
/// # Errors
/// [`CloudError`].
pub fn has_identity(metadata: &MetadataClient, deadline: Deadline) -> Result<bool, CloudError> {
    let ask = Ask::get(SERVICE_ACCOUNT, HEADERS, SERVICE_ACCOUNT_LIMIT_BYTES);
    Ok(metadata.ask_for_optional(ask, deadline)?.is_some())
}

/// The instance that a token is about, `gcp:<project id>/<instance id>`, for a message. The gateway verifies what it says.
#[must_use]
pub fn instance_of(token: &str) -> Option<String> {
    let payload = BASE64URL_NOPAD.decode(token.split('.').nth(1)?.as_bytes()).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    let claim = |name: &str| claims.pointer("/google/compute_engine")?.get(name)?.as_str();
    Some(printable(&format!("gcp:{}/{}", claim("project_id")?, claim("instance_id")?)))
}

/// A token that says which instance this is, to this audience.
///
/// # Errors
/// [`CloudError`]; [`CloudError::Refused`] with 404 for an instance without a service account.
pub fn identity_token(metadata: &MetadataClient, audience: &Audience, deadline: Deadline) -> Result<Zeroizing<String>, CloudError> {
    let path = request_path(audience);
    let answer = metadata.ask(Ask::get(&path, HEADERS, IDENTITY_TOKEN_LIMIT_BYTES), deadline)?;
    let token = answer.printable_line("an identity token", IDENTITY_TOKEN_LIMIT_BYTES)?;
    if token.split('.').count() == 3 {
        Ok(token)
    } else {
        Err(answer.invalid("data other than an identity token".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audience_host_must_be_a_gateway_name() {
        for name in ["api-int.example", "10.0.0.1", "10.0.0.1:22623", "fd00::1", "a", &"a".repeat(253)] {
            assert!(is_gateway_name(name), "{name}");
        }
        for name in [
            "",
            "https://vault.example",
            "//vault.example",
            "vault.example/role",
            "vault.example?x",
            "vault.example#x",
            "a b",
            "a\n",
            "a&audience=b",
            "a%2fb",
            "user@vault.example",
            "ü.example",
            &"a".repeat(254),
        ] {
            assert!(!is_gateway_name(name), "{name}");
        }
    }
}
