//! Tests with one valid certificate, and for each field one that is refused.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]

use attest::UnixTime;
use attest_certificates::Certificate;
use attest_certificates::kubelet::*;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SignatureAlgorithm,
};
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;

use super::*;

const NOW: u64 = 1_800_000_000;
const HOUR: u64 = 3600;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

fn date(seconds: u64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap()).unwrap()
}

/// A CA, and what it signs.
struct Ca {
    params: CertificateParams,
    key: KeyPair,
    der: CertificateDer<'static>,
}

impl Ca {
    fn new(name: &str, above: Option<&Self>) -> Self {
        Self::valid(name, above, NOW - 10 * HOUR, NOW + 10 * HOUR)
    }

    fn valid(name: &str, above: Option<&Self>, not_before: u64, not_after: u64) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (date(not_before), date(not_after));
        let der = match above {
            Some(above) => params.signed_by(&key, &above.issuer()).unwrap(),
            None => params.self_signed(&key).unwrap(),
        };
        let der = der.der().clone();
        Self { params, key, der }
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }

    fn authorities(&self) -> Authorities {
        Authorities::from_certificates(vec![Certificate::parse(self.der.clone()).unwrap()]).unwrap()
    }
}

/// Fields of a leaf certificate.
struct Leaf {
    subject: Vec<(DnType, String)>,
    usages: Vec<ExtendedKeyUsagePurpose>,
    is_ca: IsCa,
    dates: (u64, u64),
    algorithm: &'static SignatureAlgorithm,
}

impl Leaf {
    fn new(name: &str) -> Self {
        Self {
            subject: vec![
                (DnType::OrganizationName, "system:nodes".to_owned()),
                (DnType::CommonName, format!("system:node:{name}")),
            ],
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
            is_ca: IsCa::ExplicitNoCa,
            dates: (NOW - HOUR, NOW + HOUR),
            algorithm: &PKCS_ECDSA_P256_SHA256,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut leaf = Self::new("worker-1");
        change(&mut leaf);
        leaf
    }

    fn signed_by(&self, ca: &Ca) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in &self.subject {
            params.distinguished_name.push(kind.clone(), value.as_str());
        }
        params.extended_key_usages.clone_from(&self.usages);
        params.is_ca = self.is_ca;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (date(self.dates.0), date(self.dates.1));
        let key = KeyPair::generate_for(self.algorithm).unwrap();
        params.signed_by(&key, &ca.issuer()).unwrap().der().clone()
    }
}

/// Returns the node name of a leaf that the cluster's CA has signed, or the error.
fn judge(leaf: &Leaf) -> Result<String, KubeletError> {
    let ca = Ca::new("kube-csr-signer", None);
    judge_chain(&[leaf.signed_by(&ca)], &ca, NOW)
}

fn judge_chain(chain: &[CertificateDer<'static>], ca: &Ca, now: u64) -> Result<String, KubeletError> {
    verify(&PresentedCertificate::new(chain), &ca.authorities(), at(now)).map(|verified| verified.name().to_owned())
}

/// Returns why the subject is not a node's, although the chain holds.
#[track_caller]
fn subject(change: impl FnOnce(&mut Vec<(DnType, String)>)) -> SubjectError {
    match judge(&Leaf::with(|leaf| change(&mut leaf.subject))) {
        Err(KubeletError::NotANode { problem, path, .. }) => {
            assert_eq!(path.len(), 1, "what a CA of the cluster has signed is kept");
            problem
        }
        other => panic!("{other:?}"),
    }
}

fn common_name(text: &str) -> impl FnOnce(&mut Vec<(DnType, String)>) {
    move |subject| subject[1].1 = text.to_owned()
}

#[test]
fn accepts_a_kubelet_client_certificate() {
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_RSA_SHA256] {
        assert_eq!(judge(&Leaf::with(|leaf| leaf.algorithm = algorithm)), Ok("worker-1".to_owned()));
    }
    assert_eq!(
        judge(&Leaf::with(|leaf| leaf.subject.reverse())),
        Ok("worker-1".to_owned()),
        "CN first"
    );
    assert_eq!(
        judge(&Leaf::with(|leaf| leaf.usages.push(ExtendedKeyUsagePurpose::ServerAuth))),
        Ok("worker-1".to_owned())
    );
    let longest = format!("{}.{}", "a".repeat(200), "b".repeat(52));
    for name in ["a", "0", "worker-1.example.com", &longest] {
        assert_eq!(judge(&Leaf::new(name)), Ok(name.to_owned()));
    }
}

#[test]
fn verified_certificate_exposes_the_recorded_fields() {
    let ca = Ca::new("kube-csr-signer", None);
    let leaf = Leaf::new("worker-1").signed_by(&ca);
    let needless = Ca::new("needless", None).der;
    let verified = verify(&PresentedCertificate::new(&[leaf.clone(), needless]), &ca.authorities(), at(NOW)).unwrap();
    assert_eq!(verified.identity(), "kubelet:worker-1");
    assert_eq!(verified.subject(), "O=system:nodes, CN=system:node:worker-1");
    assert_eq!(verified.issuer(), "CN=kube-csr-signer");
    assert_eq!(verified.not_after(), NOW + HOUR);
    let (_, parsed) = x509_parser::parse_x509_certificate(&leaf).unwrap();
    assert_eq!(verified.serial(), parsed.raw_serial_as_string());
    assert_eq!(verified.path(), [leaf], "a certificate that the chain does not need is not kept");
}

/// A kubelet chooses its certificate by the CA names in the handshake.
#[test]
fn deduplicates_cas_and_the_hinted_ca_names() {
    let (first, renewed, second) = (Ca::new("a", None), Ca::new("a", None), Ca::new("b", None));
    let all = [&first, &first, &renewed, &second, &first].map(|ca| Certificate::parse(ca.der.clone()).unwrap());
    let authorities = Authorities::from_certificates(all.into()).unwrap();
    let kept: Vec<&[u8]> = authorities.certificates().map(|certificate| certificate.der.as_ref()).collect();
    assert_eq!(kept, [first.der.as_ref(), &renewed.der, &second.der]);
    let name = |common_name: u8| {
        [
            &[0x30, 0x0c, 0x31, 0x0a, 0x30, 0x08, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 0x01][..],
            &[common_name],
        ]
        .concat()
    };
    let provider = std::sync::Arc::new(aws_lc_rs::default_provider());
    let verifier = PossessionVerifier::new(&authorities, provider);
    let told: Vec<&[u8]> = verifier.root_hint_subjects().iter().map(AsRef::as_ref).collect();
    assert_eq!(told, [name(b'a'), name(b'b')]);
    for ca in [&first, &renewed, &second] {
        let leaf = PresentedCertificate::new(&[Leaf::new("worker-1").signed_by(ca)]);
        assert!(verify(&leaf, &authorities, at(NOW)).is_ok());
    }
}

#[test]
fn number_of_client_cas_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("ca.crt");
    let with = |count: usize| {
        let pem = |number: usize| Certificate::parse(Ca::new(&format!("ca {number}"), None).der).unwrap().pem();
        std::fs::write(&bundle, (0..count).map(pem).collect::<String>()).unwrap();
        Authorities::load(&bundle).map(|authorities| authorities.certificates().count())
    };
    assert_eq!(with(64).unwrap(), 64);
    for more in [65, 66] {
        assert!(matches!(with(more), Err(AuthoritiesError::TooMany { found, .. }) if found == more));
    }
}

#[test]
fn refuses_an_oversized_client_certificate() {
    let ca = Ca::new("kube-csr-signer", None);
    let of = |bytes: usize| judge_chain(&[vec![0; bytes].into()], &ca, NOW);
    assert!(matches!(of(8192), Err(KubeletError::Malformed { .. })));
    for found in [8193, 16_384] {
        assert_eq!(of(found), Err(KubeletError::TooLarge { found }));
    }
}

#[test]
fn another_clusters_certificate_is_refused() {
    let (ours, other) = (Ca::new("kube-csr-signer", None), Ca::new("other", None));
    let leaf = Leaf::new("worker-1").signed_by(&other);
    let unknown = |issuer: &str| Err(KubeletError::UnknownIssuer { issuer: issuer.to_owned() });
    assert_eq!(judge_chain(std::slice::from_ref(&leaf), &ours, NOW), unknown("CN=other"));
    assert_eq!(judge_chain(&[leaf.clone(), other.der.clone()], &ours, NOW), unknown("CN=other"));
    // The same name, and another key.
    let impostor = Ca::new("kube-csr-signer", None);
    let leaf = Leaf::new("worker-1").signed_by(&impostor);
    assert_eq!(judge_chain(std::slice::from_ref(&leaf), &ours, NOW), Err(KubeletError::Signature));
    let nobody = verify(&PresentedCertificate::new(&[leaf]), &Authorities::default(), at(NOW));
    assert!(matches!(nobody, Err(KubeletError::UnknownIssuer { .. })), "no CA is configured");
}

#[test]
fn checks_certificate_validity_at_request_time() {
    let ca = Ca::new("kube-csr-signer", None);
    let leaf = [Leaf::new("worker-1").signed_by(&ca)];
    let name = Ok("worker-1".to_owned());
    assert_eq!(judge_chain(&leaf, &ca, NOW - HOUR), name);
    assert_eq!(judge_chain(&leaf, &ca, NOW + HOUR), name);
    assert_eq!(
        judge_chain(&leaf, &ca, NOW - HOUR - 1),
        Err(KubeletError::NotYetValid {
            not_before: NOW - HOUR,
            now: NOW - HOUR - 1
        })
    );
    assert_eq!(
        judge_chain(&leaf, &ca, NOW + HOUR + 1),
        Err(KubeletError::Expired {
            not_after: NOW + HOUR,
            now: NOW + HOUR + 1
        })
    );
    let stale = Ca::valid("kube-csr-signer", None, NOW - 10 * HOUR, NOW - 1);
    let leaf = [Leaf::new("worker-1").signed_by(&stale)];
    assert!(matches!(judge_chain(&leaf, &stale, NOW), Err(KubeletError::UnknownIssuer { .. })));
    assert_eq!(judge_chain(&leaf, &stale, NOW - 1), Ok("worker-1".to_owned()));
}

#[test]
fn a_certificate_for_another_purpose_is_refused() {
    for usages in [
        vec![],
        vec![ExtendedKeyUsagePurpose::ServerAuth],
        vec![ExtendedKeyUsagePurpose::Any],
    ] {
        let judged = judge(&Leaf::with(|leaf| leaf.usages = usages));
        assert!(matches!(judged, Err(KubeletError::Usage { .. })), "{judged:?}");
    }
    let ca = Leaf::with(|leaf| leaf.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert_eq!(judge(&ca), Err(KubeletError::IsCa));
}

#[test]
fn accepts_only_system_node_subjects() {
    let prefix = |found: &str| SubjectError::Prefix { found: found.to_owned() };
    for wrong in [
        "worker-1",
        "node:worker-1",
        "system:nodes:worker-1",
        "System:node:worker-1",
        " system:node:worker-1",
        "system:masters",
    ] {
        assert_eq!(subject(common_name(wrong)), prefix(wrong));
    }
    let long = "a".repeat(254);
    for wrong in [
        "",
        "Worker-1",
        "worker_1",
        "worker/1",
        "../worker-1",
        "worker-1\n",
        "worker-1\0",
        "worker\u{7f}",
        "wörker",
        "worker 1",
        "-worker",
        "worker-",
        "worker..1",
        ".worker",
        "worker.",
        "worker-1:x",
        "*",
        &long,
    ] {
        assert_eq!(
            subject(common_name(&format!("system:node:{wrong}"))),
            SubjectError::Name { found: wrong.to_owned() }
        );
    }
    let organisations = |all: &[&str]| SubjectError::Organisations {
        found: all.iter().map(|one| (*one).to_owned()).collect(),
    };
    assert_eq!(subject(|subject| drop(subject.remove(0))), organisations(&[]));
    for wrong in ["system:masters", "system:node", "system:nodes ", "System:nodes", ""] {
        assert_eq!(subject(|subject| subject[0].1 = wrong.to_owned()), organisations(&[wrong]));
    }
    let (second_o, second_cn) = (DnType::CustomDnType(vec![2, 5, 4, 10]), DnType::CustomDnType(vec![2, 5, 4, 3]));
    for extra in ["system:masters", "system:nodes"] {
        assert_eq!(
            subject(|subject| subject.push((second_o.clone(), extra.to_owned()))),
            organisations(&["system:nodes", extra])
        );
    }
    assert_eq!(
        subject(|subject| subject.push((second_cn, "system:node:worker-2".to_owned()))),
        SubjectError::CommonNames { found: 2 }
    );
    assert_eq!(subject(|subject| drop(subject.remove(1))), SubjectError::CommonNames { found: 0 });
    assert_eq!(
        subject(|subject| subject.push((DnType::OrganizationalUnitName, "x".to_owned()))),
        SubjectError::Attribute {
            oid: "2.5.4.11".to_owned()
        }
    );
}

#[test]
fn accepts_a_bounded_number_of_intermediate_cas() {
    let root = Ca::new("root", None);
    let mut between = vec![Ca::new("ca 1", Some(&root))];
    for number in 2..=4 {
        let next = Ca::new(&format!("ca {number}"), between.last());
        between.push(next);
    }
    for (length, judged) in [
        (1, Ok("worker-1".to_owned())),
        (3, Ok("worker-1".to_owned())),
        (4, Err(KubeletError::TooMany { found: 5 })),
    ] {
        let mut chain = vec![Leaf::new("worker-1").signed_by(&between[length - 1])];
        chain.extend(between[..length].iter().rev().map(|ca| ca.der.clone()));
        assert_eq!(judge_chain(&chain, &root, NOW), judged);
    }
    let skipped = [Leaf::new("worker-1").signed_by(&between[1]), between[0].der.clone()];
    assert!(matches!(judge_chain(&skipped, &root, NOW), Err(KubeletError::UnknownIssuer { .. })));
    // A kubelet cannot vouch for another.
    let mut kubelet = Ca::new("kubelet", Some(&root));
    kubelet.params.is_ca = IsCa::ExplicitNoCa;
    kubelet.der = kubelet.params.signed_by(&kubelet.key, &root.issuer()).unwrap().der().clone();
    let forged = [Leaf::new("worker-1").signed_by(&kubelet), kubelet.der.clone()];
    assert_eq!(
        judge_chain(&forged, &root, NOW),
        Err(KubeletError::Path(webpki::Error::EndEntityUsedAsCa))
    );
    assert!(Authorities::from_certificates(vec![Certificate::parse(kubelet.der).unwrap()]).is_err());
}

/// The kube-apiserver enforces it, too: Go looks at a root's path length as at any other CA's.
#[test]
fn enforces_the_path_length_of_the_cluster_ca() {
    let judge = |allowed: Option<u8>, below: usize| {
        let mut root = Ca::new("root", None);
        root.params.is_ca = IsCa::Ca(allowed.map_or(BasicConstraints::Unconstrained, BasicConstraints::Constrained));
        root.der = root.params.self_signed(&root.key).unwrap().der().clone();
        let mut between: Vec<Ca> = Vec::new();
        for number in 0..below {
            between.push(Ca::new(&format!("ca {number}"), Some(between.last().unwrap_or(&root))));
        }
        let mut chain = vec![Leaf::new("worker-1").signed_by(between.last().unwrap_or(&root))];
        chain.extend(between.iter().rev().map(|ca| ca.der.clone()));
        judge_chain(&chain, &root, NOW)
    };
    for (allowed, below) in [(None, 3), (Some(2), 2), (Some(1), 1), (Some(0), 0)] {
        assert_eq!(
            judge(allowed, below),
            Ok("worker-1".to_owned()),
            "{below} CAs below one that allows {allowed:?}"
        );
    }
    for (allowed, below) in [(1, 2), (0, 1)] {
        assert_eq!(
            judge(Some(allowed), below),
            Err(KubeletError::Path(webpki::Error::PathLenConstraintViolated)),
            "{below} CAs below one that allows {allowed}"
        );
    }
}

/// Three CAs of the cluster's CA's name with other keys: in each order of them, the first would have to be looked at.
#[test]
fn attack_36_limits_signature_checks_for_same_named_cas() {
    let ca = Ca::new("kube-csr-signer", None);
    let others: Vec<Ca> = (0..3).map(|_| Ca::new("kube-csr-signer", None)).collect();
    let mut chain = vec![Leaf::new("worker-1").signed_by(&Ca::new("kube-csr-signer", None))];
    chain.extend(others.iter().map(|other| other.der.clone()));
    assert_eq!(judge_chain(&chain, &ca, NOW), Err(KubeletError::ChainTooLong));
    // One such beside the right one does no harm.
    chain.truncate(2);
    assert_eq!(judge_chain(&chain, &ca, NOW), Err(KubeletError::Signature));
    let renewed = [Leaf::new("worker-1").signed_by(&ca), others[0].der.clone()];
    assert_eq!(judge_chain(&renewed, &ca, NOW), Ok("worker-1".to_owned()));
}

#[test]
fn refuses_malformed_or_altered_certificates() {
    let ca = Ca::new("kube-csr-signer", None);
    let good = Leaf::new("worker-1").signed_by(&ca).to_vec();
    let judge = |bytes: Vec<u8>| judge_chain(&[bytes.into()], &ca, NOW);
    assert_eq!(judge_chain(&[], &ca, NOW), Err(KubeletError::Empty));
    for garbage in [
        Vec::new(),
        b"garbage".to_vec(),
        good[..good.len() - 1].to_vec(),
        [&good[..], &[0]].concat(),
    ] {
        let judged = judge(garbage);
        assert!(matches!(judged, Err(KubeletError::Malformed { .. })), "{judged:?}");
    }
    assert_eq!(judge(vec![0x30; 8193]), Err(KubeletError::TooLarge { found: 8193 }));
    for position in 0..good.len() {
        let mut altered = good.clone();
        altered[position] ^= 1;
        let judged = judge(altered);
        assert!(judged.is_err(), "byte {position}: {judged:?}");
        assert!(judged.unwrap_err().path().is_empty());
    }
}
