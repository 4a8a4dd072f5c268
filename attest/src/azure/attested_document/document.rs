use der::DateTime;
use serde::{Deserialize, Serialize};

use super::{AttestedDocumentError, AzureCloud};
use crate::verified::Verified;
use crate::x509::Anchor;

/// Longest text in a document, in bytes. Names in the Marketplace have at most 50 characters or so.
const TEXT_LIMIT_BYTES: usize = 256;

/// Content of an attested document, and its signer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttestedData {
    /// The machine: a UUID in lower case.
    pub vm_id: String,
    /// The subscription: a UUID in lower case.
    pub subscription_id: String,
    /// The SKU of a Marketplace image; empty for others.
    pub sku: Option<String>,
    /// The nonce that IMDS was asked with.
    pub nonce: String,
    /// The plan of a Marketplace image.
    pub plan: Option<MarketplacePlan>,
    /// The kind of Azure Hybrid Benefit licence.
    pub license_type: Option<String>,
    /// Creation time of the document, in seconds since 1970.
    pub created_on: u64,
    /// End of the document's validity, in seconds since 1970.
    pub expires_on: u64,
    /// The cloud whose metadata service has signed.
    pub cloud: AzureCloud,
    /// The region of the metadata service that has signed, such as `eastus`, by the one regional name in its certificate
    /// (`eastus.metadata.azure.com`). It is not in the document; `None` if the certificate has no such name or several.
    pub location: Option<String>,
    /// SHA-256 over the signer's certificate, hexadecimal.
    pub certificate_sha256: String,
    /// Subject of the configured root that the chain leads to.
    pub root_subject: String,
    /// SHA-256 over that root's certificate, hexadecimal.
    pub root_sha256: String,
}

/// An attested document whose signature, chain and nonce were verified. Only [`super::verify`] makes one.
pub type VerifiedAttestedDocument = Verified<AttestedData>;

/// The Marketplace plan of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarketplacePlan {
    /// Its name; empty for an image without a plan.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub product: String,
    #[serde(default)]
    pub publisher: String,
}

/// Signer of a document, by its certificate and chain.
pub(super) struct SignerClaims<'a> {
    pub(super) cloud: AzureCloud,
    pub(super) location: Option<String>,
    pub(super) certificate_sha256: [u8; 32],
    pub(super) root: &'a Anchor,
}

/// The document as Azure writes it. Fields that are not read here may come and go.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAttestedDocument {
    vm_id: String,
    subscription_id: String,
    nonce: String,
    time_stamp: TimeStamp,
    #[serde(default)]
    sku: Option<String>,
    #[serde(default)]
    plan: Option<MarketplacePlan>,
    #[serde(default)]
    license_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TimeStamp {
    created_on: String,
    expires_on: String,
}

impl AttestedData {
    /// Reads the bytes that were signed by this signer.
    pub(super) fn read(signed: &[u8], signer: SignerClaims<'_>) -> Result<Self, AttestedDocumentError> {
        let raw: RawAttestedDocument = serde_json::from_slice(signed).map_err(|error| AttestedDocumentError::Json {
            // It may quote a value.
            problem: error.to_string().chars().take(TEXT_LIMIT_BYTES).collect(),
        })?;
        let plan = raw.plan.as_ref();
        for (name, text) in [
            ("nonce", Some(&raw.nonce)),
            ("sku", raw.sku.as_ref()),
            ("licenseType", raw.license_type.as_ref()),
            ("plan.name", plan.map(|plan| &plan.name)),
            ("plan.product", plan.map(|plan| &plan.product)),
            ("plan.publisher", plan.map(|plan| &plan.publisher)),
        ] {
            let fits = |text: &String| text.len() <= TEXT_LIMIT_BYTES && !text.chars().any(char::is_control);
            if let Some(text) = text.filter(|text| !fits(text)) {
                return Err(field(name, text, "at most 256 bytes of text"));
            }
        }
        let hex = |bytes: [u8; 32]| data_encoding::HEXLOWER.encode(&bytes);
        Ok(Self {
            vm_id: uuid("vmId", &raw.vm_id)?,
            subscription_id: uuid("subscriptionId", &raw.subscription_id)?,
            sku: raw.sku,
            nonce: raw.nonce,
            plan: raw.plan,
            license_type: raw.license_type,
            created_on: time("timeStamp.createdOn", &raw.time_stamp.created_on)?,
            expires_on: time("timeStamp.expiresOn", &raw.time_stamp.expires_on)?,
            cloud: signer.cloud,
            location: signer.location,
            certificate_sha256: hex(signer.certificate_sha256),
            root_subject: signer.root.subject().to_owned(),
            root_sha256: hex(signer.root.sha256()),
        })
    }

    /// The stable identity of the node: `azure:<subscription>/<vmId>`, both in lower case.
    #[must_use]
    pub fn node_identity(&self) -> String {
        format!("azure:{}/{}", self.subscription_id, self.vm_id)
    }
}

/// A UUID in lower case: Azure writes them in both.
fn uuid(name: &'static str, text: &str) -> Result<String, AttestedDocumentError> {
    let lengths = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = text.split('-').take(lengths.len() + 1).collect();
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let fits = parts.len() == lengths.len()
        && parts
            .iter()
            .zip(lengths)
            .all(|(part, length)| part.len() == length && hexadecimal(part));
    if fits {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(field(name, text, "a UUID"))
    }
}

/// A time as Azure writes it, such as `07/28/26 13:24:00 -0000`: month, day, year of this century.
fn time(name: &'static str, text: &str) -> Result<u64, AttestedDocumentError> {
    let parse = || {
        let text = text.strip_suffix(" -0000").or_else(|| text.strip_suffix(" +0000"))?;
        let (date, time) = text.split_once(' ')?;
        let (month, rest) = date.split_once('/')?;
        let (day, year) = rest.split_once('/')?;
        // What is not of two digits each does not parse.
        format!("20{year}-{month}-{day}T{time}Z").parse::<DateTime>().ok()
    };
    match parse() {
        Some(time) => Ok(time.unix_duration().as_secs()),
        None => Err(field(name, text, "a time such as 07/28/26 13:24:00 -0000")),
    }
}

fn field(field: &'static str, found: &str, required: &'static str) -> AttestedDocumentError {
    let found = found.chars().take(TEXT_LIMIT_BYTES).collect();
    AttestedDocumentError::Field { field, found, required }
}
