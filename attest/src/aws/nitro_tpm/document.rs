//! The document, and what the node has to ask for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cbor::CborReader;
use super::cose::VerifiedPayload;
use super::error::NitroTpmError;
use crate::aws::names::{is_account, is_instance, is_region, printable};
use crate::nonce::SpkiSha256;
use crate::values::{Blob, HexDigest, is_lower_hex};
use crate::verified::Verified;

/// Longest public_key, user_data and nonce, in bytes: the document's specification (`user_data`).
pub const NONCE_LIMIT_BYTES: usize = 1024;
/// Longest module_id, in characters. `i-`, 17 digits, `-tpm`, 16 digits are 39.
const MODULE_ID_LIMIT_CHARS: usize = 64;
/// Highest PCR that a document may have: the specification (`index`). Real NitroTPM documents have 0 to 23.
const PCR_LAST: u64 = 31;
/// A PCR of the SHA-384 bank, which is the only digest that there is.
const PCR_BYTES: usize = 48;
/// Field with an instance's PCRs.
const PCRS_FIELD: &str = "nitrotpm_pcrs";
/// Field with the PCRs of an enclave's image, in an enclave's document, which has the same root.
const ENCLAVE_PCRS_FIELD: &str = "pcrs";
/// Infix between the instance and the number in a `module_id`.
const MODULE_INFIX: &str = "-tpm";
/// The only accepted value of `digest`.
const DIGEST: &str = "SHA384";
/// Digits that follow `-tpm` in a module_id.
const MODULE_SUFFIX_CHARS: usize = 16;

/// Subject of a document, as challenges, rules and records name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentKind {
    /// Document of an EC2 instance.
    #[default]
    NitroTpm,
}

/// Content of a NitroTPM attestation document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NitroTpmDocument {
    /// Subject of the document.
    pub shape: DocumentKind,
    /// The module that signed: `i-0123456789abcdef0-tpm0000000000000000`.
    pub module_id: String,
    /// The EC2 instance, from the module_id, which the certificate confirms.
    pub instance: String,
    /// The instance's region, from the certificate.
    pub region: String,
    /// Creation time of the document, in milliseconds since 1970, by the hypervisor's clock.
    pub timestamp_ms: u64,
    /// PCR values of the SHA-384 bank, by index.
    pub pcrs: BTreeMap<u8, HexDigest>,
    /// The node's `public_key`. It is not checked.
    pub public_key: Option<Blob>,
    /// The node's `user_data`, which binds the document to the challenge.
    pub user_data: Option<Blob>,
    /// The node's `nonce`, from the challenge.
    pub nonce: Option<Blob>,
    /// SHA-256 of the root that the chain leads to.
    pub root_sha256: HexDigest,
}

/// A document that AWS has signed. It is not yet checked that the document is fresh, and for this gateway.
pub type AuthenticDocument = Verified<NitroTpmDocument>;

/// Proof from such a document, with the account that other evidence has proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NitroTpmInstance {
    /// The document that AWS has signed.
    #[serde(flatten)]
    pub document: AuthenticDocument,
    /// The server key that the node saw.
    pub server_key: SpkiSha256,
    /// The account, if other evidence has proven it.
    pub account: Option<String>,
}

/// A document that AWS has signed as the answer to a challenge of this gateway. Only [`super::verify`] makes one.
pub type VerifiedNitroTpm = Verified<NitroTpmInstance>;

impl NitroTpmDocument {
    /// Parses the verified bytes; nothing else is ever parsed.
    pub(super) fn parse(payload: &VerifiedPayload, common_name: &str, root_sha256: HexDigest) -> Result<Self, NitroTpmError> {
        let fields = DocumentFields::parse(payload.bytes())?;
        let module_id = fields.module_id.ok_or(NitroTpmError::FieldMissing { field: "module_id" })?;
        let instance = instance_of(module_id).ok_or_else(|| NitroTpmError::ModuleId {
            found: printable(module_id),
            wanted: MODULE_INFIX,
        })?;
        // The CA of the instance has certified which module signs, and where it is.
        let region = region_of(common_name, module_id).ok_or_else(|| NitroTpmError::ModuleIdNotCertified {
            module_id: printable(module_id),
            common_name: printable(common_name),
        })?;
        fields.digest.ok_or(NitroTpmError::FieldMissing { field: "digest" })?;
        Ok(Self {
            shape: DocumentKind::NitroTpm,
            module_id: module_id.to_owned(),
            instance: instance.to_owned(),
            region: region.to_owned(),
            timestamp_ms: fields.timestamp_ms.ok_or(NitroTpmError::FieldMissing { field: "timestamp" })?,
            pcrs: fields
                .pcrs
                .filter(|pcrs| !pcrs.is_empty())
                .ok_or(NitroTpmError::FieldMissing { field: PCRS_FIELD })?,
            public_key: fields.public_key.flatten(),
            user_data: fields.user_data.flatten(),
            nonce: fields.nonce.flatten(),
            root_sha256,
        })
    }
}

impl Verified<NitroTpmInstance> {
    /// Joins what other *verified* evidence has shown: that `instance` is one of `account`. An identity document does that, and
    /// STS.
    ///
    /// # Errors
    /// [`NitroTpmError::OtherInstance`] if it is about another instance, [`NitroTpmError::AccountForm`].
    pub fn with_account(self, account: &str, instance: &str) -> Result<Self, NitroTpmError> {
        if !is_account(account) {
            return Err(NitroTpmError::AccountForm { found: printable(account) });
        }
        if instance != self.document.instance {
            return Err(NitroTpmError::OtherInstance {
                document: self.document.instance.clone(),
                beside: printable(instance),
            });
        }
        let mut joined = self.into_inner();
        joined.account = Some(account.to_owned());
        Ok(Self::new(joined))
    }
}

impl NitroTpmInstance {
    /// Returns the node's stable identity: `aws:<account>/<instance>` if the account is known, else `aws-nitrotpm:<instance>`. The two
    /// prefixes keep a node without a proven account from being mistaken for one with a proven account.
    #[must_use]
    pub fn identity(&self) -> String {
        let instance = &self.document.instance;
        match &self.account {
            Some(account) => format!("aws:{account}/{instance}"),
            None => format!("aws-nitrotpm:{instance}"),
        }
    }
}

/// The known fields, as encoded in the map: AWS's User Guide, "Attestation Document specification".
#[derive(Default)]
struct DocumentFields<'a> {
    module_id: Option<&'a str>,
    digest: Option<()>,
    timestamp_ms: Option<u64>,
    pcrs: Option<BTreeMap<u8, HexDigest>>,
    certificate: Option<()>,
    cabundle: Option<()>,
    public_key: Option<Option<Blob>>,
    user_data: Option<Option<Blob>>,
    nonce: Option<Option<Blob>>,
}

impl<'a> DocumentFields<'a> {
    fn parse(payload: &'a [u8]) -> Result<Self, NitroTpmError> {
        let cbor = |error| NitroTpmError::Cbor { part: "document", error };
        let mut reader = CborReader::new(payload);
        let mut fields = Self::default();
        let mut map = reader.map_of_any_length("the document's map").map_err(cbor)?;
        while reader.has_entry(&mut map).map_err(cbor)? {
            match reader.text("a field's name").map_err(cbor)? {
                "module_id" => set(&mut fields.module_id, "module_id", module_id(&mut reader)?)?,
                "digest" => set(&mut fields.digest, "digest", digest(&mut reader)?)?,
                "timestamp" => {
                    let timestamp = reader.uint("the timestamp").map_err(cbor)?;
                    set(&mut fields.timestamp_ms, "timestamp", timestamp)?;
                }
                "certificate" => set(&mut fields.certificate, "certificate", reader.skip().map_err(cbor)?)?,
                "cabundle" => set(&mut fields.cabundle, "cabundle", reader.skip().map_err(cbor)?)?,
                "public_key" => set(&mut fields.public_key, "public_key", optional(&mut reader, "public_key")?)?,
                "user_data" => set(&mut fields.user_data, "user_data", optional(&mut reader, "user_data")?)?,
                "nonce" => set(&mut fields.nonce, "nonce", optional(&mut reader, "nonce")?)?,
                PCRS_FIELD => set(&mut fields.pcrs, PCRS_FIELD, pcrs(&mut reader)?)?,
                ENCLAVE_PCRS_FIELD => {
                    return Err(NitroTpmError::Shape {
                        found: ENCLAVE_PCRS_FIELD,
                        wanted: PCRS_FIELD,
                    });
                }
                // AWS may say more tomorrow than today. What is signed and not known changes nothing that is.
                _ => reader.skip().map_err(cbor)?,
            }
        }
        reader.end().map_err(cbor)?;
        Ok(fields)
    }
}

fn set<T>(slot: &mut Option<T>, field: &'static str, value: T) -> Result<(), NitroTpmError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(NitroTpmError::FieldRepeated { field }),
    }
}

fn module_id<'a>(reader: &mut CborReader<'a>) -> Result<&'a str, NitroTpmError> {
    let text = reader.text("the module_id").map_err(in_document)?;
    if text.len() > MODULE_ID_LIMIT_CHARS {
        return Err(NitroTpmError::FieldLength {
            field: "module_id",
            found: text.len(),
            limit: MODULE_ID_LIMIT_CHARS,
        });
    }
    Ok(text)
}

fn digest(reader: &mut CborReader<'_>) -> Result<(), NitroTpmError> {
    let found = reader.text("the digest's name").map_err(in_document)?;
    if found == DIGEST {
        return Ok(());
    }
    Err(NitroTpmError::Digest {
        found: printable(found),
        accepted: DIGEST,
    })
}

fn optional(reader: &mut CborReader<'_>, field: &'static str) -> Result<Option<Blob>, NitroTpmError> {
    let bytes = reader.bytes_or_null("bytes or null").map_err(in_document)?;
    match bytes {
        Some(bytes) if bytes.len() > NONCE_LIMIT_BYTES => Err(NitroTpmError::FieldLength {
            field,
            found: bytes.len(),
            limit: NONCE_LIMIT_BYTES,
        }),
        // An empty value and none at all are the same request.
        bytes => Ok(bytes.filter(|bytes| !bytes.is_empty()).map(|bytes| Blob(bytes.to_vec()))),
    }
}

fn pcrs(reader: &mut CborReader<'_>) -> Result<BTreeMap<u8, HexDigest>, NitroTpmError> {
    let mut pcrs = BTreeMap::new();
    let mut map = reader.map("the map of PCRs").map_err(in_document)?;
    // No more entries than there are indices: a repeated one ends the loop.
    while reader.has_entry(&mut map).map_err(in_document)? {
        let found = reader.uint("a PCR's index").map_err(in_document)?;
        let index = u8::try_from(found).ok().filter(|index| u64::from(*index) <= PCR_LAST);
        let index = index.ok_or(NitroTpmError::PcrIndex { found, last: PCR_LAST })?;
        let value = reader.bytes("a PCR's value").map_err(in_document)?;
        let wrong = || NitroTpmError::PcrLength {
            index,
            found: value.len(),
            needed: PCR_BYTES,
        };
        let digest = HexDigest::new(value).filter(|_| value.len() == PCR_BYTES).ok_or_else(wrong)?;
        if pcrs.insert(index, digest).is_some() {
            return Err(NitroTpmError::PcrRepeated { index });
        }
    }
    Ok(pcrs)
}

const fn in_document(error: super::CborError) -> NitroTpmError {
    NitroTpmError::Cbor { part: "document", error }
}

/// The instance in `i-0123456789abcdef0-tpm0000000000000000`.
fn instance_of(module_id: &str) -> Option<&str> {
    let (instance, number) = module_id.split_once(MODULE_INFIX)?;
    (is_instance(instance) && number.len() == MODULE_SUFFIX_CHARS && is_lower_hex(number)).then_some(instance)
}

/// The region in `<module_id>.<region>.aws`, the leaf's common name.
fn region_of<'a>(common_name: &'a str, module_id: &str) -> Option<&'a str> {
    let (region, suffix) = common_name.strip_prefix(module_id)?.strip_prefix('.')?.split_once('.')?;
    (is_region(region) && matches!(suffix, "aws" | "aws-cn" | "aws-us-gov" | "aws-eusc")).then_some(region)
}
