//! VMware's guestinfo: the pointer config as a property of the machine, or of the OVF environment that the machine was deployed with.
//!
//! Properties are read by the hypervisor's backdoor port, which faults elsewhere: the processor is asked first whether this is VMware.

use std::io::Read as _;

use data_encoding::BASE64_MIME_PERMISSIVE;
use flate2::read::MultiGzDecoder;
use roxmltree::{Document, Node};
use zeroize::Zeroizing;

use crate::failure::printable;
use crate::pointer::POINTER_LIMIT_BYTES;

use super::{UserData, UserDataError};

/// The pointer config.
const DATA: &str = "guestinfo.ignition.config.data";
/// Its encoding.
const ENCODING: &str = "guestinfo.ignition.config.data.encoding";
/// The OVF environment, which has properties of the same names.
const OVF_ENVIRONMENT: &str = "guestinfo.ovfenv";

/// Properties of the machine.
trait GuestInfo {
    /// Returns a property; `None` if the machine does not have it.
    fn property(&self, name: &str) -> Result<Option<Vec<u8>>, String>;
}

/// The pointer config in the guestinfo; `None` if there is none.
///
/// # Errors
/// [`UserDataError::GuestInfo`], also on a machine that is not VMware's.
pub(super) fn user_data() -> Result<UserData, UserDataError> {
    read().map_err(|problem| UserDataError::GuestInfo(printable(&problem)))
}

fn read() -> Result<UserData, String> {
    if !vmw_backdoor::is_vmware_cpu() {
        return Err("the processor is not VMware's".to_owned());
    }
    config(&Backdoor)
}

/// The backdoor of VMware's hypervisor.
struct Backdoor;

impl GuestInfo for Backdoor {
    fn property(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let text = |error: vmw_backdoor::VmwError| error.to_string();
        // With Secure Boot the kernel denies the privilege, and the hypervisor allows the access without it.
        let mut guard = vmw_backdoor::access_backdoor_privileged()
            .or_else(|_| vmw_backdoor::access_backdoor())
            .map_err(text)?;
        guard.probe_vmware_backdoor().map_err(text)?;
        // A channel carries one request.
        guard
            .open_enhanced_chan()
            .map_err(text)?
            .get_guestinfo(name.as_bytes())
            .map_err(text)
    }
}

fn config(guest_info: &impl GuestInfo) -> Result<UserData, String> {
    let property = |name| Ok::<_, String>(guest_info.property(name)?.map(Zeroizing::new));
    let (data, encoding) = (property(DATA)?, property(ENCODING)?);
    // Properties of the machine come before those of the environment, each by itself.
    let environment = match (&data, &encoding) {
        (Some(_), Some(_)) => None,
        _ => property(OVF_ENVIRONMENT)?.filter(|text| !text.is_empty()),
    };
    let (ovf_data, ovf_encoding) = environment.map_or(Ok((None, None)), |text| ovf_properties(&text))?;
    let encoding = encoding.or(ovf_encoding).unwrap_or_default();
    let bytes = decode(data.or(ovf_data).unwrap_or_default(), &encoding)?;
    Ok((!bytes.trim_ascii().is_empty()).then_some(bytes))
}

type Property = Option<Zeroizing<Vec<u8>>>;

/// Data and encoding in an OVF environment. Ignition ignores namespaces, and of several properties takes the last.
fn ovf_properties(text: &[u8]) -> Result<(Property, Property), String> {
    // Ignition reads to the end of the root element.
    let end = text.iter().rposition(|byte| *byte == b'>').map_or(0, |last| last + 1);
    let text = std::str::from_utf8(text.get(..end).unwrap_or_default()).map_err(|_| "its OVF environment is not UTF-8".to_owned())?;
    let document = Document::parse(text).map_err(|error| format!("its OVF environment: {error}"))?;
    let named = |node: &Node<'_, '_>, name: &str| node.is_element() && node.tag_name().name() == name;
    let attribute = |node: &Node<'_, '_>, name: &str| {
        let found = node.attributes().rfind(|attribute| attribute.name() == name);
        found.map(|attribute| attribute.value().to_owned())
    };
    let (mut data, mut encoding) = (None, None);
    let sections = document.root_element().children().filter(|node| named(node, "PropertySection"));
    for property in sections
        .flat_map(|section| section.children())
        .filter(|node| named(node, "Property"))
    {
        let value = attribute(&property, "value").map(|value| Zeroizing::new(value.into_bytes()));
        match attribute(&property, "key").as_deref() {
            Some(DATA) => data = value,
            Some(ENCODING) => encoding = value,
            _ => {}
        }
    }
    Ok((data, encoding))
}

fn decode(data: Zeroizing<Vec<u8>>, encoding: &[u8]) -> Result<Zeroizing<Vec<u8>>, String> {
    match encoding {
        b"" => Ok(data),
        b"b64" | b"base64" => from_base64(&data),
        b"gz" | b"gzip" => decompress(&data),
        b"gz+base64" | b"gzip+base64" | b"gz+b64" | b"gzip+b64" => decompress(&from_base64(&data)?),
        other => Err(format!("the encoding {:?} is unknown", String::from_utf8_lossy(other))),
    }
}

fn from_base64(data: &[u8]) -> Result<Zeroizing<Vec<u8>>, String> {
    // This decoder takes padding between parts, too.
    let mut unpadded = data.trim_ascii_end();
    while let [rest @ .., b'='] = unpadded {
        unpadded = rest.trim_ascii_end();
    }
    let invalid = || "ignition.config.data is not Base64".to_owned();
    if unpadded.contains(&b'=') {
        return Err(invalid());
    }
    BASE64_MIME_PERMISSIVE.decode(data).map(Zeroizing::new).map_err(|_| invalid())
}

fn decompress(data: &[u8]) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut bytes = Zeroizing::new(Vec::new());
    let limit = u64::try_from(POINTER_LIMIT_BYTES).unwrap_or(u64::MAX);
    // One that is too long is said to be so where pointers are read.
    let read = MultiGzDecoder::new(data).take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| format!("ignition.config.data is not gzip: {error}"))?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;

    use data_encoding::BASE64;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// Properties; one without a value cannot be read.
    struct Properties(BTreeMap<&'static str, Option<Vec<u8>>>);

    impl GuestInfo for Properties {
        fn property(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
            match self.0.get(name) {
                Some(None) => Err(format!("no access to {name}")),
                value => Ok(value.cloned().flatten()),
            }
        }
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// An environment as vSphere writes it, with these properties.
    fn environment(properties: &[(&str, &str)]) -> Vec<u8> {
        let properties = properties
            .iter()
            .map(|(key, value)| format!("<Property oe:key=\"{key}\" oe:value=\"{value}\"/>"));
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Environment xmlns=\"http://schemas.dmtf.org/ovf/environment/1\" \
             xmlns:oe=\"http://schemas.dmtf.org/ovf/environment/1\" oe:id=\"\">\n<PlatformSection><Kind>VMware ESXi</Kind>\
             </PlatformSection>\n<PropertySection>{}</PropertySection>\n</Environment>\n",
            properties.collect::<String>()
        )
        .into_bytes()
    }

    fn check(properties: &[(&'static str, &[u8])], expect: Result<Option<&[u8]>, &str>) {
        let properties = properties.iter().map(|(name, value)| (*name, Some(value.to_vec())));
        check_access(Properties(properties.collect()), expect);
    }

    fn check_access(properties: Properties, expect: Result<Option<&[u8]>, &str>) {
        let found = config(&properties);
        match expect {
            Ok(bytes) => assert_eq!(found.unwrap().map(|found| found.to_vec()), bytes.map(<[u8]>::to_vec)),
            Err(part) => {
                let error = found.unwrap_err();
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn config_is_decoded_as_its_encoding_says() {
        let json = b"{\"ignition\":{}}";
        let base64 = BASE64.encode(json);
        let (gz, gz_base64) = (gzip(json), BASE64.encode(&gzip(json)));
        check(&[(DATA, json)], Ok(Some(json)));
        check(&[(DATA, json), (ENCODING, b"")], Ok(Some(json)));
        for encoding in [b"b64".as_slice(), b"base64"] {
            check(&[(DATA, base64.as_bytes()), (ENCODING, encoding)], Ok(Some(json)));
        }
        for encoding in [b"gz".as_slice(), b"gzip"] {
            check(&[(DATA, &gz), (ENCODING, encoding)], Ok(Some(json)));
        }
        for encoding in [b"gz+b64".as_slice(), b"gz+base64", b"gzip+b64", b"gzip+base64"] {
            check(&[(DATA, gz_base64.as_bytes()), (ENCODING, encoding)], Ok(Some(json)));
        }
        // Lines, as `base64` without `-w0` writes them.
        let (first, second) = base64.split_at(8);
        check(
            &[(DATA, format!("{first}\r\n{second}\n").as_bytes()), (ENCODING, b"base64")],
            Ok(Some(json)),
        );
        // gzip's members one after the other.
        check(
            &[(DATA, &[gzip(b"{\"a\""), gzip(b":1}")].concat()), (ENCODING, b"gzip")],
            Ok(Some(b"{\"a\":1}")),
        );
    }

    #[test]
    fn wrong_encodings_are_refused() {
        let base64 = BASE64.encode(b"{}");
        for encoding in [b"BASE64".as_slice(), b"base64+gzip", b"base64 ", b"zstd", b"\xff"] {
            check(&[(DATA, base64.as_bytes()), (ENCODING, encoding)], Err("is unknown"));
        }
        for data in [b"{}".as_slice(), b"e30", b"e30=e30=", b"e3 0=", b"e-_=", b"\xff"] {
            check(&[(DATA, data), (ENCODING, b"base64")], Err("is not Base64"));
        }
        check(&[(DATA, base64.as_bytes()), (ENCODING, b"gzip+base64")], Err("is not gzip"));
        let gz = gzip(b"{\"ignition\":{}}");
        check(&[(DATA, &gz[..gz.len() - 9]), (ENCODING, b"gzip")], Err("is not gzip"));
        check(&[(DATA, &[gz.as_slice(), b"x"].concat()), (ENCODING, b"gzip")], Err("is not gzip"));
    }

    #[test]
    fn machine_without_config_has_none() {
        check(&[], Ok(None));
        check(&[(DATA, b"")], Ok(None));
        check(&[(ENCODING, b"base64")], Ok(None));
        check(&[(OVF_ENVIRONMENT, b"")], Ok(None));
        check(&[(OVF_ENVIRONMENT, &environment(&[("foo", "42")]))], Ok(None));
        check(&[(OVF_ENVIRONMENT, &environment(&[(DATA, "")]))], Ok(None));
    }

    #[test]
    fn ovf_environment_counts_where_the_machine_has_no_property() {
        let ovf = environment(&[("foo", "42"), (DATA, "e30="), (ENCODING, "base64")]);
        check(&[(OVF_ENVIRONMENT, &ovf)], Ok(Some(b"{}")));
        // Each property by itself, like in Ignition.
        check(&[(OVF_ENVIRONMENT, &ovf), (DATA, b"e30K")], Ok(Some(b"{}\n")));
        check(&[(OVF_ENVIRONMENT, &ovf), (ENCODING, b"")], Ok(Some(b"e30=")));
        check(&[(OVF_ENVIRONMENT, &ovf), (DATA, b"")], Ok(None));
        check(&[(OVF_ENVIRONMENT, &ovf), (DATA, b"[]"), (ENCODING, b"")], Ok(Some(b"[]")));
        // The last of several counts, and what follows the document does not.
        let twice = environment(&[(DATA, "first"), (DATA, "{&quot;a&quot;:1}")]);
        check(
            &[(OVF_ENVIRONMENT, &[twice.as_slice(), b"\0garbage"].concat())],
            Ok(Some(b"{\"a\":1}")),
        );
        let elsewhere = String::from_utf8(ovf).unwrap().replace("Section>", "Part>");
        check(&[(OVF_ENVIRONMENT, elsewhere.as_bytes())], Ok(None));
    }

    #[test]
    fn broken_ovf_environment_is_refused() {
        let text = environment(&[(DATA, "{}")]);
        let (start, end) = text.split_at(200);
        check(&[(OVF_ENVIRONMENT, start)], Err("OVF environment"));
        check(&[(OVF_ENVIRONMENT, end)], Err("OVF environment"));
        check(&[(OVF_ENVIRONMENT, b"\xff>")], Err("not UTF-8"));
        // No document may define entities.
        let bomb = "<!DOCTYPE a [<!ENTITY b \"cc\"><!ENTITY d \"&b;&b;\">]><a>&d;</a>";
        check(&[(OVF_ENVIRONMENT, bomb.as_bytes())], Err("OVF environment"));
        // It is not read if it does not count.
        check(&[(OVF_ENVIRONMENT, start), (DATA, b"{}"), (ENCODING, b"")], Ok(Some(b"{}")));
    }

    #[test]
    fn unreadable_properties_are_errors() {
        for name in [DATA, ENCODING, OVF_ENVIRONMENT] {
            check_access(Properties([(name, None)].into()), Err(name));
        }
    }

    #[test]
    fn decompressed_config_is_bounded() {
        let huge = gzip(&vec![b' '; 3 * POINTER_LIMIT_BYTES]);
        assert_eq!(decompress(&huge).unwrap().len(), POINTER_LIMIT_BYTES + 1);
    }

    #[test]
    fn backdoor_is_not_touched_on_other_hypervisors() {
        // To touch it would kill this process.
        assert!(!vmw_backdoor::is_vmware_cpu(), "this test must not run in VMware");
        assert_eq!(
            user_data().unwrap_err().to_string(),
            "the guestinfo of this VMware machine cannot be read: the processor is not VMware's"
        );
    }
}
