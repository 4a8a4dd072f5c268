use std::net::Ipv4Addr;

use proptest::prelude::*;
use rcgen::{KeyPair, PublicKeyData, SigningKey};

use super::content::EXTENSION_REQUEST;
use super::content::*;
use super::*;

const NODE: &str = "worker-1.example.com";

fn made() -> RequestContent {
    RequestContent::for_kubelet_client(NODE)
}

#[track_caller]
fn refused(what: &str, request: &[u8], expected: &RequestError) {
    assert_eq!(VerifiedCsr::read(request).as_ref(), Err(expected), "{what}");
}

#[track_caller]
fn check(what: &str, change: impl FnOnce(&mut RequestContent), expected: RequestError) {
    refused(what, &made().but(change).pem(), &expected);
}

#[test]
fn reads_a_kubelet_csr() {
    let made = made();
    let read = VerifiedCsr::read(&made.pem()).unwrap();
    assert_eq!(read.name, NODE);
    assert_eq!(read.key, SpkiSha256::from_spki(&made.key.subject_public_key_info()));
    assert!(read.is_without_alternatives());
    let names = vec![dns("worker-1"), dns(NODE), ip(&[10, 0, 0, 7]), ip(&[0xfd; 16])];
    let read = VerifiedCsr::read(&made.but(|made| made.attributes = vec![alternatives(&names)]).pem()).unwrap();
    assert_eq!(read.dns_names, ["worker-1", NODE]);
    assert_eq!(read.addresses, [IpAddr::from(Ipv4Addr::new(10, 0, 0, 7)), IpAddr::from([0xfd; 16])]);
    // As others write it, too.
    let mut params = rcgen::CertificateParams::new(vec!["worker-1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, format!("system:node:{NODE}"));
    let other = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    assert_eq!(VerifiedCsr::read(other.as_bytes()).unwrap().dns_names, ["worker-1"]);
}

#[test]
fn accepts_only_key_types_of_kubelets() {
    let taken = |algorithm| VerifiedCsr::read(&RequestContent::by(KeyPair::generate_for(algorithm).unwrap(), NODE).pem());
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        assert!(taken(algorithm).is_ok(), "{algorithm:?}");
    }
    assert_eq!(taken(&rcgen::PKCS_ECDSA_P521_SHA512), Err(RequestError::Algorithm));
    // The algorithm that is named is not the key's.
    let p384 = RequestContent::by(KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(), NODE).algorithm;
    check("algorithm", |made| made.algorithm = p384, RequestError::Algorithm);
    check(
        "parameters",
        |made| made.algorithm = sequence(&[made.algorithm[2..].to_vec(), der(0x05, &[])]),
        RequestError::Algorithm,
    );
}

/// By `openssl req -new -newkey rsa:1024 -sha256` and `rsa:2048 -sha1`.
const RSA_1024: &str = include_str!("rsa-1024.pem");
const RSA_SHA1: &str = include_str!("rsa-sha1.pem");

#[test]
fn short_keys_and_old_digests_are_refused() {
    refused("1024 bits", RSA_1024.as_bytes(), &RequestError::Signature);
    refused("SHA-1", RSA_SHA1.as_bytes(), &RequestError::Algorithm);
}

#[test]
fn rejects_a_csr_without_proof_of_possession() {
    let made = made();
    let info = made.info();
    let mut signature = made.key.sign(&info).unwrap();
    let altered = |signature: &[u8]| pem(&made.signed(&info, signature));
    let last = signature.len() - 1;
    signature[last] ^= 1;
    refused("a bit of the signature", &altered(&signature), &RequestError::Signature);
    refused("no signature", &altered(&[]), &RequestError::Signature);
    let other = KeyPair::generate().unwrap();
    refused(
        "another's signature",
        &altered(&other.sign(&info).unwrap()),
        &RequestError::Signature,
    );
    check(
        "another's key",
        |made| made.spki = other.subject_public_key_info(),
        RequestError::Signature,
    );
    let signed = made.key.sign(&info).unwrap();
    let worker_2 = RequestContent::by(other, "worker-2.example.com");
    let of_other_name = RequestContent {
        spki: made.spki.clone(),
        ..worker_2
    }
    .info();
    refused(
        "another's name",
        &pem(&made.signed(&of_other_name, &signed)),
        &RequestError::Signature,
    );
}

#[test]
fn subject_must_be_that_of_a_node() {
    let subject = |what: &str, subject: Vec<Vec<u8>>| {
        let read = VerifiedCsr::read(&made().but(|made| made.subject = subject).pem());
        assert!(matches!(read, Err(RequestError::Subject(_))), "{what}: {read:?}");
    };
    let (group, name) = (
        || named(ORGANISATION, "system:nodes"),
        || named(COMMON_NAME, "system:node:worker-1"),
    );
    subject("no group", vec![name()]);
    subject("no name", vec![group()]);
    subject("nothing", vec![]);
    subject("two groups", vec![group(), group(), name()]);
    subject("another group", vec![named(ORGANISATION, "system:masters"), name()]);
    subject("a group beside", vec![group(), named(ORGANISATION, "system:masters"), name()]);
    subject("two names", vec![group(), name(), named(COMMON_NAME, "system:node:worker-2")]);
    subject("a country", vec![named(COUNTRY, "DE"), group(), name()]);
    for wrong in [
        "worker-1",
        "system:node:",
        "system:node:Worker",
        "system:admin",
        "system:node:a/b",
        "system:node:a b",
    ] {
        subject(wrong, vec![group(), named(COMMON_NAME, wrong)]);
    }
}

#[test]
fn rejects_other_attributes_and_extensions() {
    use RequestError::{AlternativeName, Extension};
    let names = || alternatives(&[dns("a")]);
    let attributes = |what: &str, attributes: Vec<Vec<u8>>, expected: RequestError| {
        check(what, |made| made.attributes = attributes, expected);
    };
    attributes(
        "an attribute beside",
        vec![names(), attribute(CHALLENGE_PASSWORD, &[der(0x13, b"x")])],
        Extension,
    );
    attributes(
        "another attribute",
        vec![attribute(CHALLENGE_PASSWORD, &[der(0x13, b"x")])],
        Extension,
    );
    attributes("the names twice", vec![names(), names()], Extension);
    let one = || extension(ALTERNATIVE_NAME, false, &sequence(&[dns("a")]));
    attributes("the extension twice", vec![asking(&[one(), one()])], Extension);
    attributes(
        "two lists",
        vec![attribute(EXTENSION_REQUEST, &[sequence(&[one()]), sequence(&[one()])])],
        Extension,
    );
    attributes("no list", vec![attribute(EXTENSION_REQUEST, &[])], Extension);
    attributes("no extension", vec![asking(&[])], Extension);
    let ca = || extension(BASIC_CONSTRAINTS, true, &sequence(&[der(0x01, &[0xff])]));
    attributes("to be a CA", vec![asking(&[ca()])], Extension);
    attributes("names, and to be a CA", vec![asking(&[one(), ca()])], Extension);
    let critical = extension(ALTERNATIVE_NAME, true, &sequence(&[dns("a")]));
    attributes("critical names", vec![asking(&[critical])], Extension);
    attributes("no names", vec![alternatives(&[])], Extension);
    attributes("a mail address", vec![alternatives(&[der(0x81, b"a@b")])], AlternativeName);
    attributes("a URI", vec![alternatives(&[dns("a"), der(0x86, b"spiffe://a")])], AlternativeName);
    attributes("a name of a directory", vec![alternatives(&[der(0xa4, &[])])], AlternativeName);
    for wrong in ["", "a\0b", "*.example.com", "a b", "\u{e4}"] {
        attributes(wrong, vec![alternatives(&[dns(wrong)])], AlternativeName);
    }
    for wrong in [0, 3, 5, 8, 15, 17] {
        attributes("an address", vec![alternatives(&[ip(&vec![1; wrong])])], AlternativeName);
    }
    let many = vec![dns("a"); ALTERNATIVES_LIMIT + 1];
    let found = many.len();
    attributes("many", vec![alternatives(&many)], RequestError::AlternativeNames { found });
}

#[test]
fn rejects_ambiguous_der() {
    let malformed = |what: &str, request: &[u8]| {
        let read = VerifiedCsr::read(&pem(request));
        assert!(matches!(read, Err(RequestError::Malformed(_))), "{what}: {read:?}");
    };
    let is_malformed = |what: &str, change: &dyn Fn(&mut RequestContent)| malformed(what, &made().but(change).der());
    is_malformed("behind what is signed", &|made| made.behind = der(0x05, &[]));
    is_malformed("behind the signature", &|made| made.after = der(0x05, &[]));
    is_malformed("version 1", &|made| made.version = der(0x02, &[1]));
    is_malformed("a long version", &|made| made.version = der(0x02, &[0, 0]));
    is_malformed("behind the key", &|made| {
        made.spki = der(0x30, &[&made.spki[2..], &[5, 0][..]].concat())
    });
    let whole = made().der();
    malformed("behind it", &[&whole[..], &[0]].concat());
    malformed("a part of it", &whole[..whole.len() - 1]);
    malformed("nothing", &[]);
    // The same length in more bytes than it takes.
    let content = &whole[3..];
    assert_eq!(whole[1], 0x81);
    malformed("a long length", &[&[0x30, 0x82, 0, whole[2]], content].concat());
    malformed("no length", &[&[0x30, 0x80], content, &[0, 0]].concat());
}

#[test]
fn csr_must_be_exactly_one_pem_block() {
    let good = String::from_utf8(made().pem()).unwrap();
    assert!(VerifiedCsr::read(good.trim_end().as_bytes()).is_ok() && VerifiedCsr::read(good.replace('\n', "\r\n").as_bytes()).is_ok());
    for (what, wrong) in [
        ("nothing", String::new()),
        ("before", format!("x\n{good}")),
        ("behind", format!("{good}x")),
        ("two", format!("{good}{good}")),
        ("another label", good.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST")),
        ("a header", good.replacen('\n', "\nProc-Type: 4,ENCRYPTED\n\n", 1)),
        ("one line", good.replace("-----\n", "-----")),
        ("no end", good.replace("-----END", "----END")),
    ] {
        refused(what, wrong.as_bytes(), &RequestError::Pem);
    }
    let large = [good.as_bytes(), &vec![b' '; REQUEST_LIMIT_BYTES]].concat();
    refused("large", &large, &RequestError::TooLarge { found: large.len() });
}

proptest! {
    #[test]
    fn arbitrary_csr_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..300, with: u8) {
        drop(VerifiedCsr::read(&bytes));
        drop(VerifiedCsr::read(&pem(&bytes)));
        let mut altered = made().but(|made| made.attributes = vec![alternatives(&[dns("a")])]).der();
        let at = at % altered.len();
        let before = std::mem::replace(&mut altered[at], with);
        prop_assert!(VerifiedCsr::read(&pem(&altered)).is_err() || before == with);
    }
}
