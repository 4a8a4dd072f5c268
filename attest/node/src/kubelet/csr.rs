//! A certificate request (PKCS#10, RFC 2986), as the kubelet writes it.

use super::key::Key;

/// DER tags.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OID: u8 = 0x06;
const PRINTABLE_STRING: u8 = 0x13;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0]` of CertificationRequestInfo: its attributes.
const ATTRIBUTES: u8 = 0xa0;

/// id-at-organizationName, 2.5.4.10, and id-at-commonName, 2.5.4.3.
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// ecdsa-with-SHA256, 1.2.840.10045.4.3.2.
const ECDSA_WITH_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

/// The group of all nodes.
pub const NODES: &str = "system:nodes";
/// What a node is called in its certificate, before its name.
pub const NODE_USER: &str = "system:node:";
/// Characters of Base64 in a line of PEM (RFC 7468, 2).
const LINE_CHARACTERS: usize = 64;

/// The request of the node of this name for this key, PEM. `None` does not happen: the key signs.
#[must_use]
pub fn request(key: &Key, name: &str) -> Option<String> {
    let attribute = |oid: &[u8], text: &str| {
        let pair = element(SEQUENCE, &[element(OID, oid), element(PRINTABLE_STRING, text.as_bytes())].concat());
        element(SET, &pair)
    };
    let subject = [
        attribute(&ORGANIZATION, NODES),
        attribute(&COMMON_NAME, &format!("{NODE_USER}{name}")),
    ];
    let info = [
        element(INTEGER, &[0]),
        element(SEQUENCE, &subject.concat()),
        key.public()?,
        element(ATTRIBUTES, &[]),
    ];
    let info = element(SEQUENCE, &info.concat());
    let algorithm = element(SEQUENCE, &element(OID, &ECDSA_WITH_SHA256));
    // No bit of the last byte is unused.
    let signature = element(BIT_STRING, &[vec![0], key.sign(&info)?].concat());
    Some(pem(
        "CERTIFICATE REQUEST",
        &element(SEQUENCE, &[info, algorithm, signature].concat()),
    ))
}

/// An element; its length in as few bytes as it takes.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let mut out = vec![tag];
    match significant.as_slice() {
        [] => out.push(0),
        [short @ 0..=0x7f] => out.push(*short),
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or(0x7f));
            out.extend(long);
        }
    }
    out.extend(content);
    out
}

/// A block of PEM.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let base64 = zeroize::Zeroizing::new(data_encoding::BASE64.encode(der));
    // Room for all of it at once: it may be a secret, of which no copy is to stay.
    let mut out = String::with_capacity(base64.len() + base64.len() / LINE_CHARACTERS + 2 * label.len() + 64);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in base64.as_bytes().chunks(LINE_CHARACTERS) {
        out.push_str(std::str::from_utf8(line).unwrap_or_default());
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    #[test]
    fn it_is_read_and_verified_by_others() {
        let key = Key::generate().unwrap();
        for name in ["a", "worker-1.example.com", &"x".repeat(253)] {
            let pem = request(&key, name).unwrap();
            let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
            assert_eq!(block.label, "CERTIFICATE REQUEST");
            let (rest, read) = X509CertificationRequest::from_der(&block.contents).unwrap();
            assert!(rest.is_empty());
            let info = &read.certification_request_info;
            assert_eq!(info.subject.to_string(), format!("O=system:nodes, CN=system:node:{name}"));
            assert_eq!(info.subject_pki.raw, key.public().unwrap());
            assert!(info.attributes().is_empty() && read.requested_extensions().is_none());
            // Signed by the key that it names.
            let public = aws_lc_rs::signature::UnparsedPublicKey::new(
                &aws_lc_rs::signature::ECDSA_P256_SHA256_ASN1,
                info.subject_pki.subject_public_key.data.as_ref(),
            );
            public.verify(info.raw, read.signature_value.data.as_ref()).unwrap();
        }
    }

    #[test]
    fn lengths_are_as_short_as_they_can_be() {
        let header = |length: usize| element(4, &vec![0; length]).into_iter().take(5).collect::<Vec<_>>();
        assert_eq!(element(4, &[]), [4, 0]);
        assert_eq!(header(0x7f)[..2], [4, 0x7f]);
        assert_eq!(header(0x80)[..3], [4, 0x81, 0x80]);
        assert_eq!(header(0xff)[..3], [4, 0x81, 0xff]);
        assert_eq!(header(0x100)[..4], [4, 0x82, 1, 0]);
        assert_eq!(header(0x1_0000)[..5], [4, 0x83, 1, 0, 0]);
    }

    #[test]
    fn pem_has_lines_of_64_characters() {
        let text = pem("X", &[0; 49]);
        assert_eq!(text, format!("-----BEGIN X-----\n{}\nAA==\n-----END X-----\n", "A".repeat(64)));
        assert_eq!(pem("X", &[]), "-----BEGIN X-----\n-----END X-----\n");
    }
}
