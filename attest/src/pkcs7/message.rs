//! Parts of a message, borrowed from its DER: they are read once, and only the parts that are stored are copied.

use der::asn1::{AnyRef, ObjectIdentifier, OctetStringRef};
use der::{Decode, Encode, ErrorKind, Reader, SliceReader, Tag, TagNumber, Tagged};

use super::Pkcs7Error;
use super::certificate::SignerId;

/// id-data (RFC 5652, 4).
pub(super) const DATA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.7.1");
/// id-contentType and id-messageDigest (RFC 5652, 11.1 and 11.2).
const CONTENT_TYPE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.3");
const MESSAGE_DIGEST: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.4");

/// SignedData (RFC 5652, 5.1), its parts as they are in the message. The certificates are left so, since one that is not looked at
/// may be of any form, and path validation wants the bytes. Revocation lists have no place.
pub(super) struct Message<'a> {
    pub(super) version: u8,
    pub(super) digest_algorithms: &'a [u8],
    pub(super) content_type: ObjectIdentifier,
    pub(super) content: Option<AnyRef<'a>>,
    pub(super) certificates: Vec<&'a [u8]>,
    pub(super) signers: Vec<&'a [u8]>,
}

/// SignerInfo (RFC 5652, 5.3). Unsigned attributes are left unread.
pub(super) struct SignerInfo<'a> {
    pub(super) version: u8,
    pub(super) signer: SignerId,
    /// The whole `AlgorithmIdentifier`, in DER.
    pub(super) digest_algorithm: &'a [u8],
    pub(super) attributes: Option<&'a [u8]>,
    pub(super) signature_algorithm: AlgorithmIdentifier<'a>,
    pub(super) signature: &'a [u8],
}

/// AlgorithmIdentifier (RFC 5280, 4.1.1.2).
pub(super) struct AlgorithmIdentifier<'a> {
    pub(super) oid: ObjectIdentifier,
    pub(super) parameters: Option<AnyRef<'a>>,
}

/// The signed attributes that matter.
#[derive(Debug)]
pub(super) struct SignedAttributes {
    /// The attributes as a SET OF in DER: these bytes are signed, regardless of tag and order in the message (RFC 5652, 5.4).
    pub(super) der: Vec<u8>,
    pub(super) message_digest: Vec<u8>,
}

/// Attribute (RFC 5652, 5.3), its values as a whole.
struct Pkcs7Attribute<'a> {
    oid: ObjectIdentifier,
    values: Vec<&'a [u8]>,
}

/// ContentInfo (RFC 5652, 3): the type, and the content as a whole.
pub(super) fn content_info(message: &[u8]) -> der::Result<(ObjectIdentifier, &[u8])> {
    let mut fields = fields_of(message, Tag::Sequence)?;
    let content_type = ObjectIdentifier::decode(&mut fields)?;
    let content = value(&mut fields, context_specific(TagNumber::N0))?;
    fields.finish((content_type, content))
}

impl<'a> Message<'a> {
    pub(super) fn read(message: &'a [u8]) -> der::Result<Self> {
        let mut fields = fields_of(message, Tag::Sequence)?;
        let version = u8::decode(&mut fields)?;
        let digest_algorithms = value(&mut fields, Tag::Set)?;
        let mut content_info = SliceReader::new(value(&mut fields, Tag::Sequence)?)?;
        let content_type = ObjectIdentifier::decode(&mut content_info)?;
        let content = optional_value(&mut content_info, context_specific(TagNumber::N0))?;
        content_info.finish(())?;
        let certificates = optional_value(&mut fields, context_specific(TagNumber::N0))?;
        let signers = elements(value(&mut fields, Tag::Set)?)?;
        fields.finish(Self {
            version,
            digest_algorithms,
            content_type,
            content: content.map(AnyRef::from_der).transpose()?,
            certificates: set(certificates.unwrap_or_default())?,
            signers,
        })
    }
}

impl<'a> SignerInfo<'a> {
    pub(super) fn read(signer: &'a [u8]) -> der::Result<Self> {
        let mut fields = fields_of(signer, Tag::Sequence)?;
        let version = u8::decode(&mut fields)?;
        let signer = SignerId::read(fields.tlv_bytes()?)?;
        let digest_algorithm = fields.tlv_bytes()?;
        let attributes = optional_value(&mut fields, context_specific(TagNumber::N0))?;
        let signature_algorithm = AlgorithmIdentifier::read(fields.tlv_bytes()?)?;
        let signature = value(&mut fields, Tag::OctetString)?;
        optional_value(&mut fields, context_specific(TagNumber::N1))?;
        fields.finish(Self {
            version,
            signer,
            digest_algorithm,
            attributes,
            signature_algorithm,
            signature,
        })
    }
}

impl<'a> AlgorithmIdentifier<'a> {
    pub(super) fn read(algorithm: &'a [u8]) -> der::Result<Self> {
        let mut fields = fields_of(algorithm, Tag::Sequence)?;
        let oid = ObjectIdentifier::decode(&mut fields)?;
        let parameters = if fields.is_finished() {
            None
        } else {
            Some(AnyRef::decode(&mut fields)?)
        };
        fields.finish(Self { oid, parameters })
    }
}

impl SignedAttributes {
    /// Reads the content of a SET OF.
    pub(super) fn read(content: &[u8]) -> Result<Self, Pkcs7Error> {
        let elements = set(content).map_err(structure)?;
        let attributes: Vec<_> = elements
            .iter()
            .map(|element| Pkcs7Attribute::read(element))
            .collect::<Result<_, _>>()
            .map_err(structure)?;
        let content_type = the_value(&attributes, CONTENT_TYPE, "contentType")?;
        let content_type = ObjectIdentifier::from_der(content_type).map_err(structure)?;
        check_type("signed attribute contentType", content_type, DATA)?;
        let message_digest = the_value(&attributes, MESSAGE_DIGEST, "messageDigest")?;
        let message_digest = OctetStringRef::from_der(message_digest).map_err(structure)?;
        let in_order = elements.concat();
        let der = AnyRef::new(Tag::Set, &in_order).and_then(|set| set.to_der());
        Ok(Self {
            der: der.map_err(structure)?,
            message_digest: message_digest.as_bytes().to_vec(),
        })
    }
}

impl<'a> Pkcs7Attribute<'a> {
    fn read(attribute: &'a [u8]) -> der::Result<Self> {
        let mut fields = fields_of(attribute, Tag::Sequence)?;
        let oid = ObjectIdentifier::decode(&mut fields)?;
        let values = elements(value(&mut fields, Tag::Set)?)?;
        // What is signed is in the order of DER, inside of an attribute too.
        if !values.is_sorted_by(|one, next| one < next) {
            return Err(ErrorKind::SetOrdering.into());
        }
        fields.finish(Self { oid, values })
    }
}

/// The one value of an attribute, as a whole.
fn the_value<'a>(attributes: &[Pkcs7Attribute<'a>], oid: ObjectIdentifier, attribute: &'static str) -> Result<&'a [u8], Pkcs7Error> {
    let mut found = attributes.iter().filter(|attribute| attribute.oid == oid);
    if let (Some(one), None) = (found.next(), found.next())
        && let [value] = one.values.as_slice()
    {
        return Ok(value);
    }
    let found = attributes.iter().filter(|attribute| attribute.oid == oid);
    Err(Pkcs7Error::Attribute {
        attribute,
        found: found.clone().count(),
        values: found.map(|attribute| attribute.values.len()).sum(),
    })
}

pub(super) fn check_type(what: &'static str, found: ObjectIdentifier, required: ObjectIdentifier) -> Result<(), Pkcs7Error> {
    if found == required {
        return Ok(());
    }
    Err(Pkcs7Error::ContentType {
        what,
        found: found.to_string(),
        required: required.to_string(),
    })
}

/// The object identifiers of AlgorithmIdentifiers.
pub(super) fn names_of(algorithms: &[u8]) -> der::Result<String> {
    let names = elements(algorithms)?
        .into_iter()
        .map(|algorithm| Ok(AlgorithmIdentifier::read(algorithm)?.oid.to_string()));
    Ok(names.collect::<der::Result<Vec<_>>>()?.join(", "))
}

const fn context_specific(number: TagNumber) -> Tag {
    Tag::ContextSpecific { constructed: true, number }
}

/// Reader of what is in an element with this tag, after which nothing follows.
fn fields_of(element: &[u8], tag: Tag) -> der::Result<SliceReader<'_>> {
    let mut reader = SliceReader::new(element)?;
    let content = value(&mut reader, tag)?;
    reader.finish(())?;
    SliceReader::new(content)
}

/// The content of the next element, whose tag has to be this one.
fn value<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> der::Result<&'a [u8]> {
    let element = AnyRef::decode(reader)?;
    element.tag().assert_eq(tag)?;
    Ok(element.value())
}

/// The content of the next element, if it has this tag.
fn optional_value<'a>(reader: &mut SliceReader<'a>, tag: Tag) -> der::Result<Option<&'a [u8]>> {
    if reader.is_finished() || reader.peek_tag()? != tag {
        return Ok(None);
    }
    value(reader, tag).map(Some)
}

/// Each of the elements, as a whole.
fn elements(content: &[u8]) -> der::Result<Vec<&[u8]>> {
    let mut reader = SliceReader::new(content)?;
    let mut elements = Vec::new();
    while !reader.is_finished() {
        elements.push(reader.tlv_bytes()?);
    }
    Ok(elements)
}

/// Each of the elements of a SET OF, as a whole, in the order of DER. An element that is there twice makes it no set.
fn set(content: &[u8]) -> der::Result<Vec<&[u8]>> {
    let mut elements = elements(content)?;
    // By their bytes (X.690, 11.6); none is the beginning of another one, since each tells its length.
    elements.sort_unstable();
    if elements.is_sorted_by(|one, next| one < next) {
        Ok(elements)
    } else {
        Err(ErrorKind::SetDuplicate.into())
    }
}

pub(super) fn structure(error: der::Error) -> Pkcs7Error {
    Pkcs7Error::Structure {
        problem: error.to_string(),
    }
}
