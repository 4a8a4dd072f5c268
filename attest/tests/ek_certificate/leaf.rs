//! Rules for the certificate itself: issuer, purpose, validity.

use super::*;

#[test]
fn attack_03_unconfigured_ca_is_refused() {
    let theirs = p256();
    let params = ca_params("Their Root");
    let issuer = Issuer::from_params(&params, &theirs);
    let leaf = ek_params().signed_by(&*EK, &issuer).unwrap();
    let unknown = EkCertificateError::UnknownIssuer {
        issuer: "CN=Their Root".to_owned(),
    };
    assert_eq!(refused(leaf.der()), unknown);
    assert!(unknown.is_unknown_issuer());
    // Sending the root along does not make it trusted.
    let their_root = ca_params("Their Root").self_signed(&theirs).unwrap();
    assert_eq!(ek_certificate::verify(leaf.der(), &[their_root.der()], &roots(), NOW), Err(unknown));
    let nobody = ek_certificate::verify(&ek_with(|_| {}), &[], &EkRoots::default(), NOW).unwrap_err();
    assert!(nobody.is_unknown_issuer() && EkRoots::default().is_empty());
}

#[test]
fn attack_03_ca_with_a_trusted_name_is_refused() {
    let theirs = p256();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("Test TPM Root"), &theirs))
        .unwrap();
    assert_eq!(refused(leaf.der()), EkCertificateError::Signature);
}

#[test]
fn attack_03_self_signed_certificate_is_refused() {
    let mut params = ek_params();
    params.distinguished_name = named("Myself");
    let leaf = params.self_signed(&*EK).unwrap();
    assert!(refused(leaf.der()).is_unknown_issuer());
}

#[test]
fn validity_dates_are_compared_with_the_current_time() {
    let days = |days: u64| UnixTime::since_unix_epoch(Duration::from_secs(days * 86_400));
    let leaf = ek_with(|params| (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 12, 31)));
    let at = |now| ek_certificate::verify(&leaf, &[], &roots(), now);
    assert!(at(days(20_500)).is_ok());
    let (not_before, not_after) = (20_454 * 86_400, 20_818 * 86_400);
    let certificate = || "it, or a CA above it,".to_owned();
    let early = EkCertificateError::NotYetValid {
        certificate: certificate(),
        not_before,
        now: not_before - 1,
    };
    assert_eq!(at(UnixTime::since_unix_epoch(Duration::from_secs(not_before - 1))), Err(early));
    let late = EkCertificateError::Expired {
        certificate: certificate(),
        not_after,
        now: not_after + 1,
    };
    assert_eq!(at(UnixTime::since_unix_epoch(Duration::from_secs(not_after + 1))), Err(late));

    // The root's own dates count too.
    let forever = ek_with(|params| params.not_before = date_time_ymd(1990, 1, 1));
    let at = |now| ek_certificate::verify(&forever, &[], &roots(), now);
    let certificate = || "CA \"CN=Test TPM Root\"".to_owned();
    let (not_before, not_after) = (18_262 * 86_400, 32_872 * 86_400);
    let early = EkCertificateError::NotYetValid {
        certificate: certificate(),
        not_before,
        now: 86_400 * 18_000,
    };
    assert_eq!(at(days(18_000)), Err(early));
    let late = EkCertificateError::Expired {
        certificate: certificate(),
        not_after,
        now: 86_400 * 33_000,
    };
    assert_eq!(at(days(33_000)), Err(late));
    // To the second.
    let second = |seconds: u64| at(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    assert!(second(not_before).is_ok() && second(not_after).is_ok());
    assert!(matches!(second(not_before - 1), Err(EkCertificateError::NotYetValid { .. })));
    assert!(matches!(second(not_after + 1), Err(EkCertificateError::Expired { .. })));
}

#[test]
fn attack_03_certificates_for_other_purposes_are_refused() {
    let usage = |found: &str| EkCertificateError::ExtendedKeyUsage { found: found.to_owned() };
    assert_eq!(refused(&ek_with(|params| params.extended_key_usages.clear())), usage("absent"));
    let ak = |params: &mut CertificateParams| params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 3]);
    assert_eq!(refused(&ek_with(ak)), usage("2.23.133.8.3"));
    let server = |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert_eq!(refused(&ek_with(server)), usage("that of another purpose"));
    let any = |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
    assert_eq!(refused(&ek_with(any)), usage("that of another purpose"));

    let signing = refused(&ek_with(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]));
    assert_eq!(
        signing,
        EkCertificateError::KeyUsage {
            found: "Digital Signature".to_owned()
        }
    );
    assert!(
        verify(&ek_with(|params| params.key_usages.clear())).is_ok(),
        "a key usage is not obligatory"
    );

    // What a CA above it says counts too.
    let above = |oid: &'static [u64]| both_ways(&chain(1, |_, params| params.extended_key_usages = extended_key_usage(oid)));
    for verified in above(&[2, 23, 133, 8, 1]) {
        assert!(verified.is_ok());
    }
    let [configured, sent] = above(&[2, 23, 133, 8, 3]);
    assert!(configured.unwrap_err().is_unknown_issuer(), "it is not loaded");
    assert_eq!(sent, Err(usage("right, but that of a CA above it is another")));
}

#[test]
fn a_digest_is_read_from_ek_certificates_only() {
    let digest = |change: &dyn Fn(&mut CertificateParams)| ek_certificate::unverified_digest(&ek_with(change));
    // By any CA.
    let (theirs, params) = (p256(), ca_params("Their Root"));
    let foreign = ek_params().signed_by(&*EK, &Issuer::from_params(&params, &theirs)).unwrap();
    assert_eq!(ek_certificate::unverified_digest(foreign.der()), digest(&|_| {}));
    assert!(digest(&|_| {}).is_ok());
    let error = digest(&|params| params.extended_key_usages.clear()).unwrap_err();
    assert!(matches!(error, EkCertificateError::ExtendedKeyUsage { .. }), "{error}");
    let error = digest(&|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]).unwrap_err();
    assert!(matches!(error, EkCertificateError::KeyUsage { .. }), "{error}");
    let error = digest(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)).unwrap_err();
    assert_eq!(error, EkCertificateError::IsCa);
}

#[test]
fn attack_03_ca_certificate_is_refused_as_ek() {
    let ca = ek_with(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert_eq!(refused(&ca), EkCertificateError::IsCa);
}

#[test]
fn attack_03_ek_cannot_issue_certificates() {
    let middle = ek_with(|params| params.distinguished_name = named("An EK"));
    let mut params = ek_params();
    params.distinguished_name = named("An EK");
    let leaf = ek_params().signed_by(&p256(), &Issuer::from_params(&params, &*EK)).unwrap();
    assert_eq!(
        ek_certificate::verify(leaf.der(), &[&middle], &roots(), NOW),
        Err(EkCertificateError::SentIssuerNotCa {
            subject: "CN=An EK".to_owned(),
            lacks: "basicConstraints with CA:TRUE",
        })
    );
}

#[test]
fn attack_23_unknown_critical_extensions_are_refused() {
    let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    unknown.set_criticality(true);
    assert_eq!(
        refused(&ek_with(|params| params.custom_extensions.push(unknown))),
        EkCertificateError::CriticalExtension
    );
}

/// SHA-1 and SHA-224: the algorithm is refused whatever the signature is.
#[test]
fn attack_06_weak_signature_algorithms_are_refused() {
    static RSA_CA: LazyLock<KeyPair> = LazyLock::new(|| rsa(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048));
    let relabelled = |certificate: &[u8], oid: &[u8], last: u8| {
        let mut altered = certificate.to_vec();
        while let Some(at) = altered.windows(oid.len()).position(|window| window == oid) {
            altered[at + oid.len() - 1] = last;
        }
        altered
    };
    let algorithm = |found: &str| EkCertificateError::SignatureAlgorithm { found: found.to_owned() };
    let ecdsa_with_sha256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    assert_eq!(
        refused(&relabelled(&ek_with(|_| {}), &ecdsa_with_sha256, 0x01)),
        algorithm("1.2.840.10045.4.3.1")
    );

    let (certificates, _) = chain(1, |_, _| {});
    let intermediate = relabelled(&certificates[0], &ecdsa_with_sha256, 0x01);
    assert_eq!(
        ca_refused(root(), vec![intermediate.into()]),
        EkRootProblem::SignatureAlgorithm("1.2.840.10045.4.3.1".to_owned())
    );

    let rsa_with_sha256 = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    let roots = EkRoots::new(vec![ca_params("RSA Root").self_signed(&*RSA_CA).unwrap().into()], vec![]).unwrap();
    let leaf = ek_params()
        .signed_by(&*EK, &Issuer::from_params(&ca_params("RSA Root"), &*RSA_CA))
        .unwrap();
    let error = ek_certificate::verify(&relabelled(leaf.der(), &rsa_with_sha256, 0x05), &[], &roots, NOW);
    assert_eq!(error, Err(algorithm("1.2.840.113549.1.1.5")));
}

#[test]
fn attack_03_keys_outside_the_ek_templates_are_refused() {
    let key = |found: &str| EkCertificateError::Key { found: found.to_owned() };
    let mut params = ek_params();
    params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    assert_eq!(refused(&issued(&params, &PublicHalf::rsa(1024))), key("RSA-1024"));
    assert_eq!(refused(&issued(&params, &PublicHalf::rsa(8192))), key("RSA-8192"));
    assert!(verify(&issued(&params, &PublicHalf::rsa(2048))).is_ok());
    let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA256).unwrap();
    assert_eq!(
        refused(&issued(&params, &p521)),
        key("an elliptic curve key on another curve, or compressed")
    );
    let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    assert_eq!(refused(&issued(&params, &ed25519)), key("of algorithm 1.3.101.112"));
    // An RSA key under an algorithm identifier of another form: rsaEncryption has NULL for its parameters, and nothing else.
    let mut certificate = issued(&params, &PublicHalf::rsa(2048)).to_vec();
    let rsa_encryption = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    assert!(ek_certificate::unverified_key(&certificate).is_ok());
    let at = certificate.windows(11).position(|window| window == rsa_encryption).unwrap();
    certificate[at + 9] = 0x04;
    assert_eq!(
        ek_certificate::unverified_key(&certificate),
        Err(key("of algorithm 1.2.840.113549.1.1.1"))
    );
    let point = |first: u8, length: usize| PublicHalf(&rcgen::PKCS_ECDSA_P256_SHA256, [vec![first], vec![3; length]].concat());
    assert_eq!(
        refused(&issued(&params, &point(2, 32))),
        key("an elliptic curve key on another curve, or compressed")
    );
    assert_eq!(refused(&issued(&params, &point(4, 63))), key("a P-256 point of 63 bytes"));
    assert_eq!(refused(&issued(&params, &point(4, 65))), key("a P-256 point of 65 bytes"));
    assert!(verify(&issued(&params, &point(4, 64))).is_ok());
}
