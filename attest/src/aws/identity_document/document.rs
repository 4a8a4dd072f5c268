use der::DateTime;
use serde::{Deserialize, Serialize};

use super::{AwsPartition, IdentityDocumentError};
use crate::verified::Verified;

/// Longest text in a document, in bytes. The longest that AWS defines, an instance type, has about 20.
const TEXT_LIMIT_BYTES: usize = 128;

/// Most product codes. An image has one, seldom two.
const CODES_LIMIT: usize = 32;

/// Evidence that is not bound to a challenge: a copy would prove as much. A caller that unwraps it must say so explicitly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Replayable<T>(T);

impl<T> Replayable<T> {
    pub(super) const fn new(verified: T) -> Self {
        Self(verified)
    }

    /// Returns the verified value for reading: for records, rules, and lookups of an earlier claimant.
    #[must_use]
    pub const fn replayable(&self) -> &T {
        &self.0
    }

    /// Unwraps the verified value, for a caller that has bound it to a node by other means.
    #[must_use]
    pub fn accept_replay(self) -> T {
        self.0
    }
}

/// Content of an instance identity document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceIdentity {
    /// The account: 12 digits.
    pub account_id: String,
    /// The region, such as `us-east-1`: that of the certificate.
    pub region: String,
    /// The region's partition; `None` for one that is not known here.
    pub partition: Option<AwsPartition>,
    /// The availability zone, such as `us-east-1c`.
    pub availability_zone: String,
    /// The instance, such as `i-0ce4441c840a0a941`.
    pub instance_id: String,
    /// The image that the instance was made from, such as `ami-0b76fe9a9986f66a7`. It says nothing about what is on the disk now.
    pub image_id: String,
    /// The instance type, such as `t4g.small`.
    pub instance_type: String,
    /// The processor's architecture: `x86_64` or `arm64`.
    pub architecture: String,
    /// Time of the instance's last start, in seconds since 1970.
    pub pending_time: u64,
    /// The instance's address in its network.
    pub private_ip: Option<String>,
    /// Version of the document's form.
    pub version: Option<String>,
    /// Codes of billed products, such as `bp-6ba54002`.
    pub billing_products: Vec<String>,
    /// Product codes of the Marketplace.
    pub marketplace_product_codes: Vec<String>,
    /// SHA-256 over the region's certificate that verified, hexadecimal.
    pub certificate_sha256: String,
}

/// An instance identity document whose signature was verified. Only [`super::verify`] makes one.
pub type VerifiedIdentityDocument = Verified<InstanceIdentity>;

/// An identity document of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimedDocument {
    pub(super) document: Replayable<VerifiedIdentityDocument>,
}

impl ClaimedDocument {
    #[must_use]
    pub const fn document(&self) -> &Replayable<VerifiedIdentityDocument> {
        &self.document
    }
}

/// The document as AWS writes it. Fields that are not read here may come and go.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawIdentityDocument {
    account_id: String,
    region: String,
    availability_zone: String,
    instance_id: String,
    image_id: String,
    instance_type: String,
    architecture: String,
    pending_time: String,
    #[serde(default)]
    private_ip: Option<String>,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    billing_products: Option<Vec<String>>,
    #[serde(default)]
    marketplace_product_codes: Option<Vec<String>>,
}

impl InstanceIdentity {
    /// Reads the bytes that were signed with the certificate of this digest.
    pub(super) fn read(signed: &[u8], certificate_sha256: [u8; 32]) -> Result<Self, IdentityDocumentError> {
        let raw: RawIdentityDocument = serde_json::from_slice(signed).map_err(|error| IdentityDocumentError::Json {
            // It may quote a value.
            problem: error.to_string().chars().take(TEXT_LIMIT_BYTES).collect(),
        })?;
        let pending_time = raw.pending_time.parse::<DateTime>();
        let Ok(pending_time) = pending_time.map(|time| time.unix_duration().as_secs()) else {
            return Err(field("pendingTime", &raw.pending_time, "a time such as 2026-02-16T00:38:27Z"));
        };
        let account = |id: &str| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit());
        if !account(&raw.account_id) {
            return Err(field("accountId", &raw.account_id, "12 digits"));
        }
        if !is_region_name(&raw.region) {
            return Err(field("region", &raw.region, "a name such as us-east-1"));
        }
        if !is_instance_id(&raw.instance_id) {
            return Err(field("instanceId", &raw.instance_id, "i- and up to 17 hexadecimal digits"));
        }
        for (name, value) in [
            ("availabilityZone", &raw.availability_zone),
            ("imageId", &raw.image_id),
            ("instanceType", &raw.instance_type),
            ("architecture", &raw.architecture),
        ] {
            check_text(name, value)?;
        }
        for (name, value) in [("privateIp", &raw.private_ip), ("version", &raw.version)] {
            value.as_ref().map_or(Ok(()), |value| check_text(name, value))?;
        }
        Ok(Self {
            partition: AwsPartition::from_region(&raw.region),
            account_id: raw.account_id,
            region: raw.region,
            availability_zone: raw.availability_zone,
            instance_id: raw.instance_id,
            image_id: raw.image_id,
            instance_type: raw.instance_type,
            architecture: raw.architecture,
            pending_time,
            private_ip: raw.private_ip,
            version: raw.version,
            billing_products: codes("billingProducts", raw.billing_products)?,
            marketplace_product_codes: codes("marketplaceProductCodes", raw.marketplace_product_codes)?,
            certificate_sha256: data_encoding::HEXLOWER.encode(&certificate_sha256),
        })
    }

    /// The stable identity of the node: `aws:<account>/<instance>`. Instance ids are not used twice.
    #[must_use]
    pub fn node_identity(&self) -> String {
        format!("aws:{}/{}", self.account_id, self.instance_id)
    }
}

/// Returns whether a text could be a region's name, in any partition.
pub(super) fn is_region_name(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.len() <= TEXT_LIMIT_BYTES && name.contains('-') && name.split('-').all(part)
}

fn is_instance_id(id: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    id.strip_prefix("i-")
        .is_some_and(|digits| (8..=17).contains(&digits.len()) && digits.bytes().all(digit))
}

fn codes(name: &'static str, codes: Option<Vec<String>>) -> Result<Vec<String>, IdentityDocumentError> {
    let codes = codes.unwrap_or_default();
    if codes.len() > CODES_LIMIT {
        return Err(field(name, &format!("{} codes", codes.len()), "at most 32 codes"));
    }
    codes.iter().try_for_each(|code| check_text(name, code))?;
    Ok(codes)
}

fn check_text(name: &'static str, text: &str) -> Result<(), IdentityDocumentError> {
    if (1..=TEXT_LIMIT_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(())
    } else {
        Err(field(name, text, "1 to 128 ASCII characters without spaces"))
    }
}

fn field(field: &'static str, found: &str, required: &'static str) -> IdentityDocumentError {
    let found = found.chars().take(TEXT_LIMIT_BYTES).collect();
    IdentityDocumentError::Field { field, found, required }
}
