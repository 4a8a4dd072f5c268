//! A CertificateSigningRequest as it is watched: the fields that are judged, each with a limit on what is stored.
//!
//! Any node, and any client with the bootstrap credential, creates these objects, and the API takes 1.5 MiB for each. Fields that are not
//! judged (annotations, labels, managed fields, extra attributes of the user) are skipped while the JSON is read.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::request::REQUEST_LIMIT_BYTES;

/// Longest text that is stored of one field, bytes: names of objects have 253, names of users about 100.
const TEXT_LIMIT_BYTES: usize = 512;
/// Most elements that are stored of one list: a kubelet has 4 groups, 3 usages and 2 conditions.
const LIST_LIMIT: usize = 16;
/// Longest base64 text of a request that is decoded.
const ENCODED_LIMIT_BYTES: usize = REQUEST_LIMIT_BYTES.div_ceil(3) * 4;
/// Ends a text that was cut, so that it equals no expected text.
const CUT: &str = "…";

/// The fields of a CertificateSigningRequest that are judged.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct CsrObject {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    pub(super) spec: CsrSpec,
    #[serde(default)]
    pub(super) status: CsrStatus,
}

/// The judged fields of `spec`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CsrSpec {
    pub(super) request: RequestBytes,
    pub(super) signer_name: BoundedText,
    #[serde(default)]
    pub(super) username: Option<BoundedText>,
    #[serde(default)]
    pub(super) groups: Option<BoundedList<BoundedText>>,
    #[serde(default)]
    pub(super) usages: Option<BoundedList<BoundedText>>,
    #[serde(default)]
    pub(super) expiration_seconds: Option<i32>,
}

/// The judged fields of `status`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct CsrStatus {
    #[serde(default)]
    pub(super) conditions: Option<BoundedList<CsrCondition>>,
    #[serde(default)]
    pub(super) certificate: Option<Present>,
}

/// A condition, without its message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CsrCondition {
    #[serde(rename = "type")]
    pub(super) kind: BoundedText,
    #[serde(default)]
    pub(super) last_update_time: Option<Time>,
}

/// `spec.request`, if it is not larger than a kubelet's can be.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum RequestBytes {
    Whole(Vec<u8>),
    TooLarge { found: usize },
}

impl Default for RequestBytes {
    fn default() -> Self {
        Self::Whole(Vec::new())
    }
}

impl fmt::Debug for RequestBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "RequestBytes({} bytes)", bytes.len()),
            Self::TooLarge { found } => write!(f, "RequestBytes(too large: {found} bytes)"),
        }
    }
}

impl RequestBytes {
    fn from_bytes(bytes: &[u8]) -> Self {
        match bytes.len() {
            found if found > REQUEST_LIMIT_BYTES => Self::TooLarge { found },
            _ => Self::Whole(bytes.to_vec()),
        }
    }
}

impl<'de> Deserialize<'de> for RequestBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Base64;
        impl Visitor<'_> for Base64 {
            type Value = RequestBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RequestBytes, E> {
                if text.len() > ENCODED_LIMIT_BYTES {
                    return Ok(RequestBytes::TooLarge { found: text.len() / 4 * 3 });
                }
                // A text that is no base64 is no request: it is judged as an empty one.
                let bytes = data_encoding::BASE64.decode(text.as_bytes()).unwrap_or_default();
                Ok(RequestBytes::from_bytes(&bytes))
            }
        }
        deserializer.deserialize_str(Base64)
    }
}

/// A text of at most [`TEXT_LIMIT_BYTES`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BoundedText(pub(super) String);

impl BoundedText {
    fn new(text: &str) -> Self {
        if text.len() <= TEXT_LIMIT_BYTES {
            return Self(text.to_owned());
        }
        let end = (0..=TEXT_LIMIT_BYTES)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or_default();
        Self(format!("{}{CUT}", text.get(..end).unwrap_or_default()))
    }
}

impl<'de> Deserialize<'de> for BoundedText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Cut;
        impl Visitor<'_> for Cut {
            type Value = BoundedText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<BoundedText, E> {
                Ok(BoundedText::new(text))
            }
        }
        deserializer.deserialize_str(Cut)
    }
}

/// The first [`LIST_LIMIT`] elements of a list, and whether there are more.
#[derive(Debug, Clone, Default)]
pub(super) struct BoundedList<T> {
    pub(super) elements: Vec<T>,
    pub(super) is_cut: bool,
}

impl BoundedList<BoundedText> {
    fn from_texts(texts: &[String]) -> Self {
        Self {
            elements: texts.iter().take(LIST_LIMIT).map(|text| BoundedText::new(text)).collect(),
            is_cut: texts.len() > LIST_LIMIT,
        }
    }

    /// The texts; of a list that was cut, with a last one that no expected list has.
    pub(super) fn texts(&self) -> Vec<String> {
        let cut = self.is_cut.then(|| CUT.to_owned());
        self.elements.iter().map(|BoundedText(text)| text.clone()).chain(cut).collect()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for First<T> {
            type Value = BoundedList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<BoundedList<T>, A::Error> {
                let mut elements = Vec::new();
                while elements.len() < LIST_LIMIT {
                    match all.next_element()? {
                        Some(element) => elements.push(element),
                        None => return Ok(BoundedList { elements, is_cut: false }),
                    }
                }
                let mut is_cut = false;
                while all.next_element::<IgnoredAny>()?.is_some() {
                    is_cut = true;
                }
                Ok(BoundedList { elements, is_cut })
            }
        }
        deserializer.deserialize_seq(First(std::marker::PhantomData))
    }
}

/// A value that is there, whatever it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// The metadata that is judged, and what a watch needs.
fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        #[serde(default)]
        name: Option<BoundedText>,
        #[serde(default)]
        uid: Option<BoundedText>,
        #[serde(default)]
        resource_version: Option<BoundedText>,
        #[serde(default)]
        creation_timestamp: Option<Time>,
    }
    let found = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: found.name.map(|BoundedText(name)| name),
        uid: found.uid.map(|BoundedText(uid)| uid),
        resource_version: found.resource_version.map(|BoundedText(version)| version),
        creation_timestamp: found.creation_timestamp,
        ..ObjectMeta::default()
    })
}

impl From<&CertificateSigningRequest> for CsrObject {
    fn from(object: &CertificateSigningRequest) -> Self {
        let (spec, status) = (&object.spec, object.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let condition = |condition: &k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition| CsrCondition {
            kind: BoundedText::new(&condition.type_),
            last_update_time: condition.last_update_time.clone(),
        };
        Self {
            metadata: ObjectMeta {
                name: object.metadata.name.clone(),
                uid: object.metadata.uid.clone(),
                resource_version: object.metadata.resource_version.clone(),
                creation_timestamp: object.metadata.creation_timestamp.clone(),
                ..ObjectMeta::default()
            },
            spec: CsrSpec {
                request: RequestBytes::from_bytes(&spec.request.0),
                signer_name: BoundedText::new(&spec.signer_name),
                username: spec.username.as_deref().map(BoundedText::new),
                groups: spec.groups.as_deref().map(BoundedList::from_texts),
                usages: spec.usages.as_deref().map(BoundedList::from_texts),
                expiration_seconds: spec.expiration_seconds,
            },
            status: CsrStatus {
                conditions: Some(BoundedList {
                    elements: conditions.iter().take(LIST_LIMIT).map(condition).collect(),
                    is_cut: conditions.len() > LIST_LIMIT,
                }),
                certificate: status.and_then(|status| status.certificate.as_ref()).map(|_| Present),
            },
        }
    }
}

impl Resource for CsrObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        CertificateSigningRequest::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        CertificateSigningRequest::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        CertificateSigningRequest::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        CertificateSigningRequest::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::{Value, json};

    use super::super::csr::{CLIENT_SIGNER, Csr, CsrStage};
    use super::super::request::RequestError;
    use super::super::request::content::RequestContent;
    use super::*;

    fn object() -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "csr-1", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-11-27T12:00:00Z"},
            "spec": {
                "request": data_encoding::BASE64.encode(&RequestContent::for_kubelet_client("worker-1").pem()), "signerName": CLIENT_SIGNER,
                "username": "system:bootstrap", "groups": ["a", "b"], "usages": ["digital signature", "client auth"],
            },
        })
    }

    fn read(object: &Value) -> CsrObject {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn partial_and_full_csr_objects_read_alike() {
        let mut object = object();
        let whole = |object: &Value| CsrObject::from(&serde_json::from_value::<CertificateSigningRequest>(object.clone()).unwrap());
        let csr = Csr::from_object(&read(&object)).unwrap();
        assert_eq!(Csr::from_object(&whole(&object)).unwrap(), csr);
        assert_eq!((csr.node(), csr.stage, csr.groups.len()), (Some("worker-1"), CsrStage::Pending, 2));
        object["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "lastUpdateTime": "2026-11-27T12:00:05Z"}]});
        let approved = Csr::from_object(&read(&object)).unwrap();
        assert_eq!(Csr::from_object(&whole(&object)).unwrap(), approved);
        assert_eq!(
            (approved.stage, approved.approved),
            (CsrStage::Approved, Some(approved.created + 5))
        );
    }

    #[test]
    fn csr_object_is_cached_within_limits() {
        let long = "x".repeat(100_000);
        let mut object = object();
        object["metadata"]["annotations"] = json!({"a": long});
        object["metadata"]["managedFields"] = json!([{"manager": long}]);
        object["spec"]["extra"] = json!({"a": [long]});
        object["spec"]["username"] = json!(long);
        object["spec"]["groups"] = json!(vec![long.clone(); LIST_LIMIT + 4]);
        object["spec"]["request"] = json!(data_encoding::BASE64.encode(long.as_bytes()));
        object["status"] = json!({"conditions": vec![json!({"type": "x", "status": "True", "message": "x".repeat(1000)}); 100]});
        let read = read(&object);
        assert!(format!("{read:?}").len() < 2 * LIST_LIMIT * (TEXT_LIMIT_BYTES + 100));
        let csr = Csr::from_object(&read).unwrap();
        assert!(matches!(csr.request, Err(RequestError::TooLarge { found }) if found.abs_diff(100_000) < 4));
        // A text or a list that was cut equals none that is expected.
        assert!(csr.username.ends_with(CUT) && csr.groups.last().is_some_and(|group| group == CUT));
        assert_eq!(csr.groups.len(), LIST_LIMIT + 1);
    }
}
