//! Names and algorithm identifiers that are the same although their bytes differ (RFC 5280, 7.1), and those that are not.

use rcgen::{DnValue, SigningKey};
use x509_parser::certificate::X509Certificate;

use super::*;

/// A CA of this common name as a PrintableString; `ca_params` has UTF8Strings.
fn printable(common_name: &str) -> CertificateParams {
    let mut params = ca_params("");
    params.distinguished_name = DistinguishedName::new();
    let value = DnValue::PrintableString(common_name.try_into().unwrap());
    params.distinguished_name.push(DnType::CommonName, value);
    params
}

/// Returns an intermediate and an EK certificate with these spellings of their issuers, signed by the keys that belong to these names.
fn spelled(root: &CertificateParams, intermediate: &CertificateParams) -> (Vec<CertificateDer<'static>>, CertificateDer<'static>) {
    let key = p256();
    let certificate = ca_params("Intermediate 0").signed_by(&key, &Issuer::from_params(root, &*CA_KEY));
    let leaf = ek_params().signed_by(&*EK, &Issuer::from_params(intermediate, &key));
    (vec![certificate.unwrap().into()], leaf.unwrap().into())
}

/// Contents of a SEQUENCE of any length.
fn sequence(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    let header: &[u8] = match length {
        [0, low @ 0..=0x7f] => &[0x30, low],
        [0, low] => &[0x30, 0x81, low],
        [high, low] => &[0x30, 0x82, high, low],
    };
    [header, content].concat()
}

/// Returns the certificate with other parameters of ecdsa-with-SHA256, inside and outside of the signed part; signed by this key.
fn with_parameters(certificate: &[u8], inside: &[u8], outside: &[u8], key: &KeyPair) -> CertificateDer<'static> {
    let algorithm = |parameters: &[u8]| sequence(&[b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02", parameters].concat());
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    let tbs = parsed.tbs_certificate.as_ref();
    let (plain, fields) = (algorithm(b""), &tbs[4..]);
    let at = fields.windows(plain.len()).position(|window| window == plain).unwrap();
    let tbs = sequence(&[&fields[..at], &algorithm(inside), &fields[at + plain.len()..]].concat());
    let signature = key.sign(&tbs).unwrap();
    let signature = [&[0x03, u8::try_from(signature.len() + 1).unwrap(), 0], signature.as_slice()].concat();
    sequence(&[tbs, algorithm(outside), signature].concat()).into()
}

const NULL: &[u8] = b"\x05\x00";

#[test]
fn issuer_names_match_despite_string_type_and_case() {
    for (root, intermediate) in [
        (ca_params("Test TPM Root"), printable("Intermediate 0")),
        (printable("Test TPM Root"), ca_params("Intermediate 0")),
        (printable("TEST  tpm root "), printable("intermediate 0")),
        (ca_params(" test TPM   Root"), ca_params("INTERMEDIATE  0")),
    ] {
        for verified in both_ways(&spelled(&root, &intermediate)) {
            assert_eq!(verified.unwrap().root_subject(), "CN=Test TPM Root");
        }
    }
    // A root whose own two names are spelled differently is self-issued.
    let root: CertificateDer<'static> = ca_params("Test TPM Root")
        .signed_by(&*CA_KEY, &Issuer::from_params(&printable("test tpm root"), &*CA_KEY))
        .unwrap()
        .into();
    assert!(EkRoots::is_self_issued(&root));
    // Of one CA, two issuers' spellings in one chain: what was sent twice is one CA.
    let (certificates, leaf) = spelled(&printable("test tpm root"), &printable("intermediate 0"));
    let sent: Vec<&[u8]> = certificates.iter().chain(&certificates).map(AsRef::as_ref).collect();
    assert!(ek_certificate::verify(&leaf, &sent, &roots(), NOW).is_ok());
}

#[test]
fn different_issuer_names_do_not_chain() {
    let both = |params: CertificateParams| (params.clone(), params);
    let mut two = ca_params("Intermediate 0");
    two.distinguished_name.push(DnType::OrganizationName, "Intermediate 0");
    let mut organisation = ca_params("");
    organisation.distinguished_name = DistinguishedName::new();
    organisation.distinguished_name.push(DnType::OrganizationName, "Intermediate 0");
    for (_, other) in [
        both(printable("Intermediate0")),
        both(printable("Intermediate 1")),
        both(ca_params("Intermediate\u{a0}0")),
        both(ca_params("Íntermediate 0")),
        both(two),
        both(organisation),
    ] {
        let (certificates, leaf) = spelled(&ca_params("Test TPM Root"), &other);
        for refused in both_ways(&(certificates, leaf)) {
            assert!(matches!(refused, Err(EkCertificateError::UnknownIssuer { .. })), "{refused:?}");
        }
    }
    let (certificates, leaf) = spelled(&printable("Test TPM Root 2"), &ca_params("Intermediate 0"));
    for refused in both_ways(&(certificates.clone(), leaf)) {
        assert!(matches!(refused, Err(EkCertificateError::UnknownIssuer { .. })), "{refused:?}");
    }
    assert!(matches!(ca_refused(root(), certificates), EkRootProblem::IssuerMissing { .. }));
}

/// The signature is over the bytes that the CA has signed, however its name is spelled elsewhere.
#[test]
fn respelled_subject_invalidates_the_signature() {
    let (certificates, leaf) = spelled(&printable("test tpm root"), &printable("INTERMEDIATE 0"));
    assert!(both_ways(&(certificates.clone(), leaf.clone())).iter().all(Result::is_ok));
    let alter = |from: &[u8], to: &[u8]| -> CertificateDer<'static> {
        let mut altered = certificates[0].to_vec();
        let at = altered.windows(from.len()).position(|window| window == from).unwrap();
        altered[at..at + from.len()].copy_from_slice(to);
        altered.into()
    };
    for altered in [
        alter(b"Intermediate 0", b"INTERMEDIATE 0"),
        alter(b"\x0c\x0eIntermediate 0", b"\x13\x0eINTERMEDIATE 0"),
        alter(b"test tpm root", b"Test TPM Root"),
    ] {
        let sent = ek_certificate::verify(&leaf, &[&altered], &roots(), NOW);
        assert_eq!(sent, Err(EkCertificateError::Signature));
        // Beside the one that was signed it takes nothing away, and adds nothing.
        assert!(ek_certificate::verify(&leaf, &[&certificates[0], &altered], &roots(), NOW).is_ok());
        assert!(matches!(ca_refused(root(), vec![altered]), EkRootProblem::IssuerSignature { .. }));
    }
}

/// Two trusted CAs of one canonical name stay two: each has its own key and its own limits.
#[test]
fn roots_with_one_canonical_name_stay_separate() {
    let other_key = p256();
    let mut limited = printable("TEST TPM ROOT");
    limited.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let limited: CertificateDer<'static> = limited.self_signed(&other_key).unwrap().into();
    let plain = root();
    let both = EkRoots::new(vec![plain.clone(), limited.clone()], vec![]).unwrap();

    let of = |key: &KeyPair| -> CertificateDer<'static> {
        let issuer = printable("test tpm root");
        ek_params().signed_by(&*EK, &Issuer::from_params(&issuer, key)).unwrap().into()
    };
    let ends_at = |leaf: &[u8]| ek_certificate::verify(leaf, &[], &both, NOW).map(|verified| verified.root_sha256());
    let sha256 = |der: &[u8]| aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der).as_ref().to_vec();
    assert_eq!(ends_at(&of(&CA_KEY)).unwrap().as_slice(), sha256(&plain));
    assert_eq!(ends_at(&of(&other_key)).unwrap().as_slice(), sha256(&limited));
    assert_eq!(ends_at(&of(&p256())), Err(EkCertificateError::Signature));

    // What the limited one may not have below it, the other does not take over.
    let key = p256();
    let below = ca_params("Below").signed_by(&key, &Issuer::from_params(&ca_params("Test TPM Root"), &other_key));
    let (below, leaf) = (
        below.unwrap(),
        ek_params().signed_by(&*EK, &Issuer::from_params(&ca_params("below"), &key)),
    );
    let leaf = leaf.unwrap();
    let sent = ek_certificate::verify(leaf.der(), &[below.der()], &both, NOW);
    assert!(matches!(sent, Err(EkCertificateError::PathLength { .. })), "{sent:?}");
    let (configured, _) = EkRoots::load(vec![plain, limited], vec![below.der().clone()]);
    let configured = ek_certificate::verify(leaf.der(), &[], &configured, NOW);
    assert!(matches!(configured, Err(EkCertificateError::PathLength { .. })), "{configured:?}");
}

#[test]
fn name_constraints_apply_below_respelled_names() {
    let constrained = |subtree: GeneralSubtree| {
        let mut params = printable("Intermediate 0");
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![subtree],
            excluded_subtrees: vec![],
        });
        params
    };
    let leaf_of = |name: &str, key: &KeyPair| -> CertificateDer<'static> {
        let mut params = ek_params();
        params.custom_extensions.clear();
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into().unwrap())];
        let issuer = ca_params("INTERMEDIATE 0");
        params.signed_by(&*EK, &Issuer::from_params(&issuer, key)).unwrap().into()
    };
    let ca = |params: &CertificateParams, key: &KeyPair| -> Vec<CertificateDer<'static>> {
        let root = printable("TEST TPM ROOT");
        vec![params.signed_by(key, &Issuer::from_params(&root, &*CA_KEY)).unwrap().into()]
    };
    let key = p256();
    let names = ca(&constrained(GeneralSubtree::DnsName("tpm.example".to_owned())), &key);
    for verified in both_ways(&(names.clone(), leaf_of("a.tpm.example", &key))) {
        assert!(verified.is_ok(), "{verified:?}");
    }
    for refused in both_ways(&(names, leaf_of("a.tpm.example.org", &key))) {
        assert_eq!(refused, Err(EkCertificateError::NameConstraints));
    }
    let directory = ca(&constrained(GeneralSubtree::DirectoryName(named("Somebody else"))), &key);
    for refused in both_ways(&(directory, leaf_of("a.tpm.example", &key))) {
        assert_eq!(refused, Err(EkCertificateError::NameConstraints));
    }
    // A configured CA below a root that restricts names is not evaluated, and not passed over for its spelling.
    let mut params = ca_params("Test TPM Root");
    params.name_constraints = constrained(GeneralSubtree::DirectoryName(named("Somebody else"))).name_constraints;
    let root: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
    let below = ca(&ca_params("Below"), &key);
    assert!(matches!(ca_refused(root, below), EkRootProblem::NameConstraints { .. }));
}

#[test]
fn ecdsa_null_parameters_are_accepted_if_consistent() {
    let (certificates, _) = chain(1, |_, _| {});
    let ca_key = p256();
    let plain = ca_params("Signed with NULL").signed_by(&ca_key, &Issuer::from_params(&ca_params("Test TPM Root"), &*CA_KEY));
    let plain = plain.unwrap();
    let leaf = ek_params().signed_by(&*EK, &Issuer::from_params(&ca_params("Signed with NULL"), &ca_key));
    let leaf = leaf.unwrap();
    let with = |inside: &[u8], outside: &[u8]| {
        let ca = with_parameters(plain.der(), inside, outside, &CA_KEY);
        let leaf = with_parameters(leaf.der(), inside, outside, &ca_key);
        both_ways(&(vec![ca], leaf))
    };
    for verified in [with(b"", b""), with(NULL, NULL)].concat() {
        assert!(verified.is_ok(), "{verified:?}");
    }
    // What is signed says one thing, what stands outside of it another.
    for refused in [with(NULL, b""), with(b"", NULL)].concat() {
        assert!(refused.is_err());
    }
    for (inside, outside) in [(NULL, b"".as_slice()), (b"", NULL)] {
        let leaf = with_parameters(&ek_with(|_| {}), inside, outside, &CA_KEY);
        assert!(matches!(
            refused(&leaf),
            EkCertificateError::Malformed { .. } | EkCertificateError::Path(_)
        ));
        let ca = with_parameters(&certificates[0], inside, outside, &CA_KEY);
        assert!(matches!(ca_refused(root(), vec![ca]), EkRootProblem::Malformed(_)));
    }
    // Parameters that are not NULL.
    for parameters in [b"\x30\x00".as_slice(), b"\x05\x00\x05\x00", b"\x04\x00"] {
        let ca = with_parameters(&certificates[0], parameters, parameters, &CA_KEY);
        assert!(EkRoots::new(vec![root()], vec![ca]).is_err());
        let leaf = with_parameters(&ek_with(|_| {}), parameters, parameters, &CA_KEY);
        assert!(verify(&leaf).is_err());
    }
    let sequence = with_parameters(&certificates[0], b"\x30\x00", b"\x30\x00", &CA_KEY);
    assert_eq!(
        ca_refused(root(), vec![sequence]),
        EkRootProblem::SignatureParameters("1.2.840.10045.4.3.2".to_owned())
    );
    // NULL makes no signature of what is none.
    let mut forged = with_parameters(&ek_with(|_| {}), NULL, NULL, &CA_KEY).to_vec();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(refused(&forged), EkCertificateError::Signature);
}

/// A CA that the administrator configures as a root is accepted as one, regardless of its issuer; certificates below it chain to it.
#[test]
fn configured_root_need_not_be_self_issued() {
    let (certificates, leaf) = chain(1, |_, _| {});
    assert!(!EkRoots::is_self_issued(&certificates[0]));
    let roots = EkRoots::new(certificates.clone(), vec![]).unwrap();
    let verified = ek_certificate::verify(&leaf, &[], &roots, NOW).unwrap();
    assert_eq!(verified.root_subject(), "CN=Intermediate 0");
    // As an intermediate it is not: its issuer is not there.
    let (roots, refused) = EkRoots::load(vec![], certificates);
    assert!(roots.is_empty() && matches!(refused[0].problem, EkRootProblem::IssuerMissing { .. }));
    let error = ek_certificate::verify(&leaf, &[], &roots, NOW).unwrap_err();
    assert!(matches!(error, EkCertificateError::NoRoots { .. }));
}

/// If the CA above is not usable, its reason is reported.
#[test]
fn unusable_issuer_is_the_reason_for_its_cas() {
    let (certificates, _) = chain(3, |position, params| {
        if position == 0 {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }
    });
    let (_, refused) = EkRoots::load(vec![root()], certificates.clone());
    let own = EkRootProblem::ExtendedKeyUsage { required: "2.23.133.8.1" };
    assert_eq!((refused.len(), &refused[0].problem), (3, &own));
    for (below, issuer) in [(1, "CN=Intermediate 0"), (2, "CN=Intermediate 1")] {
        let because = EkRootProblem::IssuerUnusable {
            issuer: issuer.to_owned(),
            unusable: Box::new(refused[0].clone()),
        };
        assert_eq!(refused[below].problem, because);
    }
    // The top of what is there has no issuer, and the others have it.
    let (_, refused) = EkRoots::load(vec![], certificates[1..].to_vec());
    let missing = EkRootProblem::IssuerMissing {
        issuer: "CN=Intermediate 0".to_owned(),
    };
    assert_eq!(refused[0].problem, missing);
    assert!(matches!(&refused[1].problem, EkRootProblem::IssuerUnusable { unusable, .. } if unusable.problem == missing));
    // Two that have issued each other.
    let (first, second) = (p256(), p256());
    let each = |name: &str, key: &KeyPair, issuer: &str, issuer_key: &KeyPair| -> CertificateDer<'static> {
        ca_params(name)
            .signed_by(key, &Issuer::from_params(&ca_params(issuer), issuer_key))
            .unwrap()
            .into()
    };
    let circle = vec![each("A", &first, "B", &second), each("B", &second, "A", &first)];
    let (roots, refused) = EkRoots::load(vec![root()], circle);
    assert_eq!((roots.makers().len(), refused.len()), (1, 2));
}
