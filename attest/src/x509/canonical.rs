//! Names in the form in which RFC 5280 (7.1) compares them.

use der::{AnyRef, Decode, Reader, SliceReader, Tag, Tagged};

/// A distinguished name in canonical form: two names are the same name if these are equal.
///
/// The form of an attribute value in PrintableString, UTF8String or IA5String is its text. The string type, the case of ASCII letters,
/// spaces at the ends and the number of spaces inside make no difference. Every other value is compared byte for byte. So are letters
/// beyond ASCII: RFC 5280 would let more names be equal, but no CA needs it. The attributes of one RelativeDistinguishedName are a set; the
/// order of these is part of the name. Bytes that are no name are equal to themselves only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CanonicalName(CanonicalForm);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CanonicalForm {
    /// The sorted attributes of each RelativeDistinguishedName, in the name's order.
    Rdns(Vec<Vec<NameAttribute>>),
    Unreadable(Vec<u8>),
}

/// An attribute of a name (AttributeTypeAndValue).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NameAttribute {
    /// The content of an OBJECT IDENTIFIER.
    oid: Vec<u8>,
    value: AttributeValue,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum AttributeValue {
    Text(String),
    /// The DER element of a value of another type.
    Other(Vec<u8>),
}

impl CanonicalName {
    /// Reads a Name from its DER encoding.
    pub(crate) fn from_der(name: &[u8]) -> Self {
        let content = super::der::content(name).filter(|_| name.first() == Some(&0x30));
        content.map_or_else(|| Self(CanonicalForm::Unreadable(name.to_vec())), Self::from_rdns)
    }

    /// Reads the content of a Name: its RelativeDistinguishedNames.
    pub(crate) fn from_rdns(rdns: &[u8]) -> Self {
        Self(read_rdns(rdns).map_or_else(|_| CanonicalForm::Unreadable(rdns.to_vec()), CanonicalForm::Rdns))
    }
}

fn read_rdns(rdns: &[u8]) -> der::Result<Vec<Vec<NameAttribute>>> {
    let mut reader = SliceReader::new(rdns)?;
    let mut read = Vec::new();
    while !reader.is_finished() {
        let set = AnyRef::decode(&mut reader)?;
        set.tag().assert_eq(Tag::Set)?;
        let mut elements = SliceReader::new(set.value())?;
        let mut attributes = Vec::new();
        while !elements.is_finished() {
            attributes.push(NameAttribute::read(&mut elements)?);
        }
        attributes.sort();
        read.push(attributes);
    }
    Ok(read)
}

impl NameAttribute {
    fn read<'a>(reader: &mut impl Reader<'a>) -> der::Result<Self> {
        let attribute = AnyRef::decode(reader)?;
        attribute.tag().assert_eq(Tag::Sequence)?;
        let mut fields = SliceReader::new(attribute.value())?;
        let oid = AnyRef::decode(&mut fields)?;
        oid.tag().assert_eq(Tag::ObjectIdentifier)?;
        let value = fields.tlv_bytes()?;
        let read = Self {
            oid: oid.value().to_vec(),
            value: AttributeValue::read(value)?,
        };
        fields.finish(read)
    }
}

impl AttributeValue {
    fn read(element: &[u8]) -> der::Result<Self> {
        let value = AnyRef::from_der(element)?;
        let text = match value.tag() {
            Tag::Utf8String => str::from_utf8(value.value()).ok(),
            Tag::PrintableString | Tag::Ia5String => str::from_utf8(value.value()).ok().filter(|text| text.is_ascii()),
            _ => None,
        };
        Ok(text.map_or_else(|| Self::Other(element.to_vec()), |text| Self::Text(prepared(text))))
    }
}

/// Applies the string preparation of RFC 4518 as far as names of CAs need it: lower-case ASCII letters, insignificant spaces left out.
fn prepared(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    words.join(" ").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap_or_default()], content].concat()
    }

    /// An attribute of type 2.5.4.`last`.
    fn attribute(last: u8, string: u8, value: &[u8]) -> Vec<u8> {
        element(0x30, &[element(0x06, &[0x55, 0x04, last]), element(string, value)].concat())
    }

    fn name(rdns: &[&[Vec<u8>]]) -> CanonicalName {
        let sets: Vec<_> = rdns.iter().map(|attributes| element(0x31, &attributes.concat())).collect();
        let content = sets.concat();
        let name = CanonicalName::from_der(&element(0x30, &content));
        assert_eq!(name, CanonicalName::from_rdns(&content));
        name
    }

    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;
    const TELETEX: u8 = 0x14;
    const IA5: u8 = 0x16;
    const CN: u8 = 3;
    const O: u8 = 10;

    #[test]
    fn names_equal_by_rfc_5280_compare_equal() {
        let plain = name(&[&[attribute(O, UTF8, b"Maker Inc")], &[attribute(CN, UTF8, b"TPM CA")]]);
        for (organisation, common_name) in [
            (attribute(O, PRINTABLE, b"Maker Inc"), attribute(CN, UTF8, b"TPM CA")),
            (attribute(O, PRINTABLE, b"MAKER inc"), attribute(CN, PRINTABLE, b"tpm ca")),
            (attribute(O, UTF8, b" Maker   Inc  "), attribute(CN, IA5, b"TPM  CA")),
        ] {
            assert_eq!(name(&[&[organisation], &[common_name]]), plain);
        }
        let (o, cn) = (attribute(O, UTF8, b"a"), attribute(CN, PRINTABLE, b"b"));
        assert_eq!(name(&[&[o.clone(), cn.clone()]]), name(&[&[cn, o]]));
    }

    #[test]
    fn names_with_other_differences_compare_unequal() {
        let (o, cn) = (attribute(O, UTF8, b"Maker Inc"), attribute(CN, UTF8, b"TPM CA"));
        let plain = name(&[from_ref(&o), from_ref(&cn)]);
        let differing = [
            name(&[from_ref(&cn), from_ref(&o)]),
            name(&[&[o.clone(), cn.clone()]]),
            name(&[from_ref(&o)]),
            name(&[from_ref(&o), from_ref(&cn), from_ref(&cn)]),
            name(&[from_ref(&o), from_ref(&cn), &[]]),
            name(&[from_ref(&o), &[cn.clone(), cn.clone()]]),
            name(&[&[attribute(O, UTF8, b"MakerInc")], from_ref(&cn)]),
            name(&[&[attribute(O, UTF8, b"Maker\tInc")], from_ref(&cn)]),
            name(&[&[attribute(O, UTF8, b"Maker-Inc")], from_ref(&cn)]),
            name(&[&[attribute(O, UTF8, "Makér Inc".as_bytes())], from_ref(&cn)]),
            name(&[&[attribute(O, UTF8, b"Maker Inc\0")], from_ref(&cn)]),
            name(&[&[attribute(O + 1, UTF8, b"Maker Inc")], from_ref(&cn)]),
            // String types whose text is not read, and strings that are not what their type says.
            name(&[&[attribute(O, TELETEX, b"Maker Inc")], from_ref(&cn)]),
            name(&[&[attribute(O, 0x04, b"Maker Inc")], from_ref(&cn)]),
            name(&[&[attribute(O, PRINTABLE, "Makér Inc".as_bytes())], from_ref(&cn)]),
            name(&[&[attribute(O, PRINTABLE, b"Maker Inc\xff")], from_ref(&cn)]),
            name(&[&[attribute(O, UTF8, b"Maker Inc\xff")], &[cn]]),
            name(&[]),
        ];
        for (at, one) in differing.iter().enumerate() {
            assert_ne!(*one, plain, "{at}");
            assert!(differing.iter().skip(at + 1).all(|other| other != one), "{at}");
        }
        // Case beyond ASCII.
        assert_ne!(
            name(&[&[attribute(O, UTF8, "É".as_bytes())]]),
            name(&[&[attribute(O, UTF8, "é".as_bytes())]])
        );
    }

    #[test]
    fn malformed_names_equal_only_themselves() {
        let unreadable: [&[u8]; 6] = [
            b"",
            b"\x30",
            b"\x31\x00",
            b"\x30\x02\x31\x05",
            b"\x30\x02\x30\x00",
            b"\x30\x04\x31\x02\x30\x00",
        ];
        for (at, one) in unreadable.iter().enumerate() {
            assert_eq!(CanonicalName::from_der(one), CanonicalName::from_der(one));
            for other in unreadable.iter().skip(at + 1) {
                assert_ne!(CanonicalName::from_der(one), CanonicalName::from_der(other), "{one:x?} {other:x?}");
            }
        }
        // What follows an attribute's value is not passed over.
        let longer = element(
            0x30,
            &[element(0x06, &[0x55, 0x04, CN]), element(UTF8, b"a"), element(UTF8, b"b")].concat(),
        );
        assert_ne!(name(&[&[longer]]), name(&[&[attribute(CN, UTF8, b"a")]]));
    }
}
