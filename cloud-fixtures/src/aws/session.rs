//! Credentials of an instance's role, and requests that are signed with them.

use data_encoding::{BASE32_NOPAD, BASE64};
use serde_json::{Value, json};

use super::AwsInstance;
use super::sigv4::{ALGORITHM, SigV4Request};
use crate::clock::{compact, rfc3339};

/// Lifetime of credentials: about that of EC2's.
const LIFETIME_SECONDS: u64 = 6 * 3600;

/// The body of a request for the caller's identity.
pub const BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";

/// A role's session with its credentials.
#[derive(Debug, Clone)]
pub struct RoleSession {
    /// Access key id, beginning with `ASIA`.
    pub access_key_id: String,
    pub secret_access_key: String,
    pub token: String,
    /// Time when the credentials expire, in seconds since 1970.
    pub expires: u64,
    /// Account id, with twelve digits.
    pub account: String,
    /// Name of the assumed role.
    pub role: String,
    /// ARN, such as `arn:aws:sts::123456789012:assumed-role/worker-role/i-0123456789abcdef0`.
    pub arn: String,
    /// User id, such as `AROAIOSFODNN7EXAMPLE:i-0123456789abcdef0`.
    pub user_id: String,
}

impl RoleSession {
    /// Creates the session of an instance's profile, named after the instance.
    #[must_use]
    pub fn for_instance(instance: &AwsInstance, now: u64) -> Self {
        Self::named(instance, &instance.instance_id, now)
    }

    /// Creates a session of the instance's role with another name, like a client that may assume the role.
    #[must_use]
    pub fn named(instance: &AwsInstance, name: &str, now: u64) -> Self {
        let AwsInstance { account, role, region, .. } = instance;
        let partition = match region.split('-').next() {
            Some("cn") => "aws-cn",
            _ if region.starts_with("us-gov-") => "aws-us-gov",
            _ => "aws",
        };
        Self {
            access_key_id: format!("ASIA{}", BASE32_NOPAD.encode(&crate::random::<10>())),
            secret_access_key: BASE64.encode(&crate::random::<30>()),
            token: BASE64.encode(&crate::random::<300>()),
            expires: now + LIFETIME_SECONDS,
            account: account.clone(),
            role: role.clone(),
            arn: format!("arn:{partition}:sts::{account}:assumed-role/{role}/{name}"),
            user_id: format!("AROA{}:{name}", BASE32_NOPAD.encode(&crate::random::<10>())),
        }
    }

    /// Returns IMDS's response under the role's name.
    #[must_use]
    pub fn credentials(&self) -> Value {
        json!({
            "Code": "Success",
            "LastUpdated": rfc3339(self.expires - LIFETIME_SECONDS),
            "Type": "AWS-HMAC",
            "AccessKeyId": self.access_key_id,
            "SecretAccessKey": self.secret_access_key,
            "Token": self.token,
            "Expiration": rfc3339(self.expires),
        })
    }

    /// Returns a request for the caller's identity to a region's STS, with the gateway's header (`server_id`: 64 hexadecimal digits). It
    /// has the form of the protocol: method, url, headers, body.
    #[must_use]
    pub fn presigned(&self, region: &str, server_id: &str, now: u64) -> Value {
        let host = sts_host(region);
        let mut headers = vec![
            ("accept".to_owned(), "application/json".to_owned()),
            (
                "content-type".to_owned(),
                "application/x-www-form-urlencoded; charset=utf-8".to_owned(),
            ),
            ("host".to_owned(), host.clone()),
            ("x-amz-date".to_owned(), compact(now)),
            ("x-amz-security-token".to_owned(), self.token.clone()),
            ("x-attestation-gateway-server-id".to_owned(), server_id.to_owned()),
        ];
        let authorization = self.authorization(&headers, region, &compact(now));
        headers.push(("authorization".to_owned(), authorization));
        let headers: Vec<Value> = headers.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({"method": "POST", "url": format!("https://{host}/"), "headers": headers, "body": BODY})
    }

    /// Returns the header `authorization` of a POST of [`BODY`] with these headers, which are all signed.
    #[must_use]
    pub fn authorization(&self, headers: &[(String, String)], region: &str, date: &str) -> String {
        let signed = SigV4Request {
            method: "POST",
            headers,
            body: BODY.as_bytes(),
            date,
            region,
            service: "sts",
        };
        format!(
            "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={}",
            self.access_key_id,
            signed.scope(),
            signed.names(),
            signed.signature(&self.secret_access_key)
        )
    }
}

/// Returns the host of a region's STS.
#[must_use]
pub fn sts_host(region: &str) -> String {
    let end = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("sts.{region}.amazonaws.com{end}")
}
