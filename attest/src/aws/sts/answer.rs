//! AWS's answer: JSON, because the request asks for it.

use serde::Deserialize;

use super::document::{Caller, VerifiedSts};
use super::error::StsError;
use super::request::CheckedRequest;
use super::rules::partition_of;
use crate::aws::names::{is_account, is_instance, is_role, printable};
use crate::verified::Verified;

/// Largest answer that is read, in bytes. Real ones have about 400.
pub const ANSWER_LIMIT_BYTES: usize = 4 * 1024;

/// Longest unique id of a role, in characters: IAM's limit for ids.
const ROLE_ID_LIMIT_CHARS: usize = 128;

/// An HTTP answer to a [`CheckedRequest`], as the client got it, without following anything.
#[derive(Debug, Clone, Copy)]
pub struct StsResponse<'a> {
    pub status: u16,
    /// Value of the header `content-type`.
    pub content_type: Option<&'a str>,
    /// The body, of which the client reads [`ANSWER_LIMIT_BYTES`] at most, and one more to see that there are more.
    pub body: &'a [u8],
}

/// The known fields of each object: AWS's API Reference ("GetCallerIdentity"), and its model in the SDKs (botocore, `sts`). AWS may send
/// further fields; a repeated known field is refused.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CallerIdentityEnvelope {
    get_caller_identity_response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Response {
    get_caller_identity_result: CallerIdentity,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CallerIdentity {
    account: String,
    arn: String,
    user_id: String,
}

/// Reads the answer to `request`, which is used up: one call, one answer.
///
/// # Errors
/// [`StsError`]: one variant for each part that can be wrong.
pub fn verify_answer(request: CheckedRequest, answer: &StsResponse<'_>) -> Result<VerifiedSts, StsError> {
    match answer.status {
        200 => {}
        400 | 403 => return Err(StsError::Refused { status: answer.status }),
        status => return Err(StsError::Status { found: status }),
    }
    let media_type = answer.content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
    if !media_type.trim_ascii().eq_ignore_ascii_case("application/json") {
        return Err(StsError::ContentType {
            found: printable(answer.content_type.unwrap_or("none")),
        });
    }
    if answer.body.len() > ANSWER_LIMIT_BYTES {
        return Err(StsError::AnswerTooLarge {
            found: answer.body.len(),
            limit: ANSWER_LIMIT_BYTES,
        });
    }
    let envelope: CallerIdentityEnvelope = serde_json::from_slice(answer.body).map_err(|error| StsError::Answer {
        problem: printable(&error.to_string()),
    })?;
    let CallerIdentity { account, arn, user_id } = envelope.get_caller_identity_response.get_caller_identity_result;
    if !is_account(&account) {
        return Err(StsError::AnswerAccount {
            found: printable(&account),
        });
    }
    let prefix = format!("arn:{}:sts::{account}:assumed-role/", partition_of(request.region()).arn);
    let not_a_role = || StsError::NotAnInstance {
        arn: printable(&arn),
        wanted: format!("{prefix}<role>/<instance>"),
    };
    let (role, instance) = arn
        .strip_prefix(&prefix)
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(not_a_role)?;
    if !is_role(role) || !is_instance(instance) {
        return Err(not_a_role());
    }
    let is_id = |id: &str| (1..=ROLE_ID_LIMIT_CHARS).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !user_id
        .split_once(':')
        .is_some_and(|(id, session)| is_id(id) && session == instance)
    {
        return Err(StsError::UserId {
            found: printable(&user_id),
            wanted: format!("<id>:{instance}"),
        });
    }
    Ok(Verified::new(Caller {
        role: role.to_owned(),
        instance: instance.to_owned(),
        region: request.region().to_owned(),
        server_key: *request.server_key(),
        account,
        arn,
        user_id,
    }))
}
