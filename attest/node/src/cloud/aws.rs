//! Amazon EC2: the Instance Metadata Service, version 2 only. Version 1, which answers without a session token, is never spoken.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use attest_wire::aws::identity_document::IMDS_PATH;
use attest_wire::aws::sts::{BODY, SERVER_ID_HEADER, SIGNED_HEADERS, SignedHeader, SignedRequest};
use data_encoding::{BASE64, HEXLOWER};
use serde::Deserialize;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::deadline::Deadline;
use crate::failure::printable;
use crate::pointer::POINTER_LIMIT_BYTES;

use super::metadata::{Ask, MetadataAnswer};
use super::sigv4::{self, Scope};
use super::{CloudError, MetadataClient};

const TOKEN: &str = "/latest/api/token";
/// Lifetime of an IMDS token: the maximum (six hours). A node may wait for a gateway longer than that; then it starts another session.
const TOKEN_TTL: (&str, &str) = ("X-aws-ec2-metadata-token-ttl-seconds", "21600");
/// Status of IMDS for an expired session.
const SESSION_OVER: u16 = 401;
const TOKEN_HEADER: &str = "X-aws-ec2-metadata-token";
/// Path from which Ignition reads its config.
const USER_DATA: &str = "/2019-10-01/user-data";
/// The identity document as it is, without a signature.
const DOCUMENT: &str = "/latest/dynamic/instance-identity/document";
const REGION: &str = "/latest/meta-data/placement/region";
/// Followed by the role's name, which it lists.
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
/// Largest session token of IMDS, in bytes. Today's have 56.
const TOKEN_LIMIT_BYTES: usize = 1024;
/// Largest name, in bytes: a role's has 64, a region's 14.
const NAME_LIMIT_BYTES: usize = 64;
/// Largest identity document with its signature, in bytes. Real ones have about 2 KiB.
const IDENTITY_DOCUMENT_LIMIT_BYTES: usize = 16 * 1024;
/// Largest credentials, in bytes. Session tokens have under 2 KiB.
const CREDENTIALS_LIMIT_BYTES: usize = 16 * 1024;
/// Time limit for fetching an instance's name for a message.
const NAME_TIME: Duration = Duration::from_secs(2);

const PUT_TOKEN: Ask<'static> = Ask {
    put: true,
    path: TOKEN,
    headers: &[TOKEN_TTL],
    limit_bytes: TOKEN_LIMIT_BYTES,
    come_again: &[],
};

/// Returns a request that only AWS's metadata server, and imitations of it, answer with 200.
pub(super) const fn recognise() -> Ask<'static> {
    PUT_TOKEN
}

/// A session of IMDSv2.
pub struct ImdsSession<'a> {
    metadata: &'a MetadataClient,
    token: RefCell<Zeroizing<String>>,
}

/// Credentials of the instance profile's role.
#[derive(Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(rename_all = "PascalCase")]
pub struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    token: String,
}

/// Fields of the identity document that name the instance in messages.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InstanceDescription {
    account_id: String,
    instance_id: String,
}

impl<'a> ImdsSession<'a> {
    /// Starts an IMDSv2 session.
    ///
    /// # Errors
    /// [`CloudError`]; [`CloudError::Refused`] if the instance's metadata options turn IMDS off.
    pub fn open(metadata: &'a MetadataClient, deadline: Deadline) -> Result<Self, CloudError> {
        Ok(Self {
            metadata,
            token: RefCell::new(begin(metadata, deadline)?),
        })
    }

    /// The instance's user data; `None` if it has none.
    ///
    /// # Errors
    /// [`CloudError`].
    pub fn user_data(&self, deadline: Deadline) -> Result<Option<Zeroizing<Vec<u8>>>, CloudError> {
        Ok(self.optional(USER_DATA, POINTER_LIMIT_BYTES, deadline)?.map(|answer| answer.body))
    }

    /// The identity document in its RSA-2048 PKCS#7 message: Base64 in lines, as IMDS gives it.
    ///
    /// # Errors
    /// [`CloudError`].
    pub fn identity_document(&self, deadline: Deadline) -> Result<String, CloudError> {
        let answer = self.get(IMDS_PATH, IDENTITY_DOCUMENT_LIMIT_BYTES, deadline)?;
        let text = std::str::from_utf8(&answer.body).ok();
        let base64 = |text: &&str| {
            let compact: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            !compact.is_empty() && BASE64.decode(&compact).is_ok()
        };
        text.filter(base64)
            .map(str::to_owned)
            .ok_or_else(|| answer.invalid("data other than a PKCS#7 message in Base64".to_owned()))
    }

    /// The instance, `aws:<account>/<instance>`, for a message. `None` if that is not to be had at once.
    #[must_use]
    pub fn instance(&self, deadline: Deadline) -> Option<String> {
        let answer = self
            .get(DOCUMENT, IDENTITY_DOCUMENT_LIMIT_BYTES, deadline.at_most(NAME_TIME))
            .ok()?;
        let InstanceDescription { account_id, instance_id } = serde_json::from_slice(&answer.body).ok()?;
        Some(printable(&format!("aws:{account_id}/{instance_id}")))
    }

    /// The name of the instance profile's role; `None` without a profile.
    ///
    /// # Errors
    /// [`CloudError`].
    pub fn role(&self, deadline: Deadline) -> Result<Option<String>, CloudError> {
        let Some(answer) = self.optional(ROLES, NAME_LIMIT_BYTES, deadline)? else {
            return Ok(None);
        };
        let role = answer.printable_line("a role name", NAME_LIMIT_BYTES)?;
        // What AWS allows in a role's name. It becomes a part of a path.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+=,.@-_".contains(&byte);
        if role.bytes().all(plain) && !role.bytes().all(|byte| byte == b'.') {
            Ok(Some(role.to_string()))
        } else {
            Err(answer.invalid("data other than a role name".to_owned()))
        }
    }

    /// A request to STS that says whose credentials this instance has, bound to a challenge by `server_id`.
    ///
    /// # Errors
    /// [`CloudError`]; [`CloudError::Refused`] with 404 for a role without credentials.
    pub fn sts_request(&self, role: &str, server_id: &str, now: SystemTime, deadline: Deadline) -> Result<SignedRequest, CloudError> {
        let answer = self.get(REGION, NAME_LIMIT_BYTES, deadline)?;
        let region = answer.printable_line("a region name", NAME_LIMIT_BYTES)?;
        if !region
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        {
            return Err(answer.invalid("data other than a region name".to_owned()));
        }
        let answer = self.get(&format!("{ROLES}{role}"), CREDENTIALS_LIMIT_BYTES, deadline)?;
        // The message of serde_json may hold parts of the answer.
        let credentials: Credentials =
            serde_json::from_slice(&answer.body).map_err(|_| answer.invalid("data other than credentials".to_owned()))?;
        get_caller_identity(&region, &credentials, server_id, now)
    }

    fn get(&self, path: &str, limit_bytes: usize, deadline: Deadline) -> Result<MetadataAnswer, CloudError> {
        self.within(deadline, |token| {
            self.metadata.ask(Ask::get(path, &[(TOKEN_HEADER, token)], limit_bytes), deadline)
        })
    }

    /// Asks; in another session, once, if this one is over.
    fn within<T>(&self, deadline: Deadline, ask: impl Fn(&str) -> Result<T, CloudError>) -> Result<T, CloudError> {
        let answer = ask(&self.token.borrow());
        match answer {
            Err(CloudError::Refused { status: SESSION_OVER, .. }) => {
                self.token.replace(begin(self.metadata, deadline)?);
                ask(&self.token.borrow())
            }
            answer => answer,
        }
    }

    fn optional(&self, path: &str, limit_bytes: usize, deadline: Deadline) -> Result<Option<MetadataAnswer>, CloudError> {
        self.within(deadline, |token| {
            self.metadata
                .ask_for_optional(Ask::get(path, &[(TOKEN_HEADER, token)], limit_bytes), deadline)
        })
    }
}

fn begin(metadata: &MetadataClient, deadline: Deadline) -> Result<Zeroizing<String>, CloudError> {
    metadata
        .ask(PUT_TOKEN, deadline)?
        .printable_line("a session token", TOKEN_LIMIT_BYTES)
}

/// The one request to STS that gateways accept: see [`attest_wire::aws::sts`].
fn get_caller_identity(region: &str, credentials: &Credentials, server_id: &str, now: SystemTime) -> Result<SignedRequest, CloudError> {
    let domain = match region {
        china if china.starts_with("cn-") => "amazonaws.com.cn",
        sovereign if sovereign.starts_with("eusc-") => "amazonaws.eu",
        _ => "amazonaws.com",
    };
    let host = format!("sts.{region}.{domain}");
    let date = sigv4::date(now).ok_or_else(|| CloudError::Sts("the clock is out of range".to_owned()))?;
    // In the order of SIGNED_HEADERS, which is the alphabet's.
    let headers = [
        ("accept", "application/json"),
        ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
        ("host", host.as_str()),
        ("x-amz-date", date.as_str()),
        ("x-amz-security-token", credentials.token.as_str()),
        (SERVER_ID_HEADER, server_id),
    ];
    if headers
        .iter()
        .any(|(_, value)| value.is_empty() || !value.bytes().all(|byte| matches!(byte, b' '..=b'~')))
    {
        return Err(CloudError::Sts(
            "the role's credentials have characters that a header cannot have".to_owned(),
        ));
    }
    let canonical = sigv4::canonical_request("POST", "", &headers, BODY.as_bytes());
    let scope = Scope {
        date: &date,
        region,
        service: "sts",
    };
    let signature = HEXLOWER.encode(&sigv4::signature(&credentials.secret_access_key, &scope, &canonical));
    let authorization = Zeroizing::new(format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={SIGNED_HEADERS}, Signature={signature}",
        credentials.access_key_id
    ));
    let all = headers.into_iter().chain([("authorization", authorization.as_str())]);
    Ok(SignedRequest {
        method: "POST".to_owned(),
        url: format!("https://{host}/"),
        headers: all
            .map(|(name, value)| SignedHeader {
                name: name.to_owned(),
                value: Zeroizing::new(value.to_owned()),
            })
            .collect(),
        body: BODY.to_owned(),
    })
}
