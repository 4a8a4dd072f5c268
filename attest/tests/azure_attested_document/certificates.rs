//! Tests of the signer's certificate: the metadata service's, with a chain to a configured root.

use super::*;

/// Returns the reason for which a signer with this certificate is refused.
fn certificate_refused(certificate: &CertificateDer<'static>, trust: &AzureTrust) -> ChainError {
    let message = TestMessage::azure(document().to_string().as_bytes(), certificate);
    match verified_by(&message, &SIGNER, trust).unwrap_err() {
        AttestedDocumentError::Chain { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn attack_12_embedded_certificates_are_not_searched() {
    let content = document().to_string();
    // Somebody signs, and puts a real certificate of Azure's into the bag beside their own.
    let theirs = region_certificate(&OTHER, 9);
    let both = vec![LEAF.to_vec(), theirs.to_vec()];
    let message = |signer: &CertificateDer<'static>, bag: Vec<Vec<u8>>| {
        TestMessage::azure(content.as_bytes(), signer).but(|message| message.certificates = bag)
    };
    let code = |message: &TestMessage| verified_by(message, &OTHER, &TRUST).unwrap_err().code();
    assert_eq!(
        code(&message(&theirs, both.clone())),
        "azure-document-certificate",
        "their own is chained"
    );
    assert_eq!(code(&message(&LEAF, both)), "azure-document-signature", "the key is not theirs");
    assert_eq!(code(&message(&theirs, vec![LEAF.to_vec()])), "azure-document-signer");
    assert_eq!(code(&message(&LEAF, vec![])), "azure-document-signer");
    // Theirs has the real one's issuer and serial number.
    let namesake = issued(&metadata_params(&NAMES), &OTHER, &ca_params("Intermediate", 2), &OTHER);
    assert_eq!(
        code(&message(&LEAF, vec![LEAF.to_vec(), namesake.to_vec()])),
        "azure-document-signer"
    );
    assert_eq!(code(&message(&LEAF, vec![namesake.to_vec()])), "azure-document-certificate");
    // Two signers.
    let second = message(&theirs, vec![]).signer_info(&OTHER);
    let two = message(&LEAF, vec![LEAF.to_vec(), theirs.to_vec()]).but(|message| message.extra_signers = vec![second]);
    assert_eq!(verified_by(&two, &SIGNER, &TRUST).unwrap_err().code(), "azure-document-signer");
    // An intermediate in the bag completes no chain.
    let message = message(&LEAF, vec![LEAF.to_vec(), INTERMEDIATE_CA.to_vec()]);
    let error = verified_by(&message, &SIGNER, &trust(vec![])).unwrap_err();
    assert!(error.is_unknown_issuer() && error.code() == "azure-document-issuer", "{error}");
    assert!(verified_by(&message, &SIGNER, &TRUST).is_ok());
}

#[test]
fn attack_12_certificates_of_other_services_are_refused() {
    let refused = |alter: fn(&mut CertificateParams)| certificate_refused(&leaf(alter), &TRUST);
    let names = |names: &'static [&'static str]| {
        let mut params = metadata_params(names);
        params.serial_number = None;
        certificate_refused(&issued(&params, &SIGNER, &ca_params("Intermediate", 2), &INTERMEDIATE), &TRUST)
    };
    for other in [
        &[][..],
        &["www.example.com"],
        &["evilmetadata.azure.com"],
        &["metadata.azure.com.example.com"],
        &["metadata.azure.us"],
        &["azure.com"],
    ] {
        assert!(matches!(names(other), ChainError::Names { .. }), "{other:?}");
    }
    // The common name is not a name.
    assert!(matches!(
        refused(|params| params.subject_alt_names.clear()),
        ChainError::Names { .. }
    ));
    assert_eq!(refused(|params| params.extended_key_usages.clear()), ChainError::ServerAuth);
    assert_eq!(
        refused(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
        ChainError::ServerAuth
    );
    assert!(matches!(
        refused(|params| params.key_usages = vec![KeyUsagePurpose::KeyEncipherment]),
        ChainError::KeyUsage { .. }
    ));
    assert!(matches!(
        refused(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
        ChainError::Path(_)
    ));
    let critical = |params: &mut CertificateParams| {
        let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        unknown.set_criticality(true);
        params.custom_extensions.push(unknown);
    };
    assert!(matches!(refused(critical), ChainError::Path(_)));
    // Signed by itself, and by somebody of the intermediate's name.
    let alone: CertificateDer<'static> = metadata_params(&NAMES).self_signed(&SIGNER.pair).unwrap().into();
    assert!(matches!(certificate_refused(&alone, &TRUST), ChainError::UnknownIssuer { .. }));
    let forged = issued(&metadata_params(&NAMES), &SIGNER, &ca_params("Intermediate", 2), &OTHER);
    assert!(matches!(certificate_refused(&forged, &TRUST), ChainError::Path(_)));
}

#[test]
fn every_certificate_of_the_chain_must_be_valid() {
    let check = |message: &TestMessage, trust: &AzureTrust, now: u64| {
        verify(
            data_encoding::BASE64.encode(&message.sign(&SIGNER)).as_bytes(),
            trust,
            &NONCE,
            at(now),
        )
    };
    let year =
        |params: &mut CertificateParams| (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 12, 31));
    let (first, last) = (20_454 * 86_400, 20_818 * 86_400);
    let short_root: CertificateDer<'static> = {
        let mut params = ca_params("Root", 1);
        year(&mut params);
        params.self_signed(&ROOT.pair).unwrap().into()
    };
    let of_leaf = (
        TestMessage::azure(document().to_string().as_bytes(), &leaf(year)),
        trust(vec![INTERMEDIATE_CA.clone()]),
    );
    let of_intermediate = (message(&document()), trust(vec![intermediate(year)]));
    let short = AzureTrust::new(vec![AzureCloud::Public], &[short_root], vec![INTERMEDIATE_CA.clone()]).unwrap();
    for (message, trust) in [of_leaf, of_intermediate, (message(&document()), short)] {
        assert!(check(&message, &trust, first).is_ok() && check(&message, &trust, last).is_ok());
        for now in [first - 1, last + 1] {
            assert_eq!(check(&message, &trust, now).unwrap_err().code(), "azure-document-certificate");
        }
    }
}

#[test]
fn only_configured_azure_clouds_are_accepted() {
    let clouds = [
        (AzureCloud::Public, "metadata.azure.com"),
        (AzureCloud::UsGovernment, "metadata.azure.us"),
        (AzureCloud::China, "metadata.azure.cn"),
    ];
    for (cloud, domain) in clouds {
        assert_eq!(cloud.domain(), domain);
        let regional = format!("Region1.{domain}");
        let certificate = issued(
            &metadata_params(&[&regional, domain]),
            &SIGNER,
            &ca_params("Intermediate", 2),
            &INTERMEDIATE,
        );
        let message = TestMessage::azure(document().to_string().as_bytes(), &certificate);
        for (configured, _) in clouds {
            let trust = AzureTrust::new(vec![configured], std::slice::from_ref(&*ROOT_CA), vec![INTERMEDIATE_CA.clone()]).unwrap();
            let verified = verified_by(&message, &SIGNER, &trust);
            assert_eq!(verified.is_ok(), configured == cloud);
            if let Ok(verified) = verified {
                assert_eq!((verified.cloud, verified.location.as_deref()), (cloud, Some("region1")));
            }
        }
    }
    let none = AzureTrust::new(vec![], std::slice::from_ref(&*ROOT_CA), vec![INTERMEDIATE_CA.clone()]).unwrap();
    assert!(none.clouds().is_empty() && matches!(certificate_refused(&LEAF, &none), ChainError::Names { .. }));
}

#[test]
fn location_comes_from_exactly_one_certificate_name() {
    let location = |names: &[&str]| {
        let certificate = issued(&metadata_params(names), &SIGNER, &ca_params("Intermediate", 2), &INTERMEDIATE);
        let message = TestMessage::azure(document().to_string().as_bytes(), &certificate);
        verified_by(&message, &SIGNER, &TRUST)
            .unwrap()
            .location
            .as_deref()
            .map(str::to_owned)
    };
    assert_eq!(location(&["metadata.azure.com"]), None);
    assert_eq!(location(&["*.metadata.azure.com"]), None);
    assert_eq!(location(&["a.b.metadata.azure.com"]), None);
    assert_eq!(location(&["eastus.metadata.azure.com", "westus.metadata.azure.com"]), None);
    assert_eq!(location(&["EastUS.metadata.azure.com", "other.example"]).as_deref(), Some("eastus"));
}

#[test]
fn attack_19_azure_cas_are_limited_and_validated() {
    let problem = |roots: &[CertificateDer<'static>], intermediates: Vec<CertificateDer<'static>>| {
        let error = AzureTrust::new(vec![AzureCloud::Public], roots, intermediates).unwrap_err();
        (error.role, error.problem)
    };
    let root = || vec![ROOT_CA.clone()];
    assert_eq!(problem(std::slice::from_ref(&*LEAF), vec![]), ("root", AzureCaProblem::NotCa));
    assert_eq!(problem(&root(), vec![LEAF.clone()]), ("intermediate", AzureCaProblem::NotCa));
    assert!(matches!(
        problem(&root(), vec![vec![0x30, 0x00].into()]).1,
        AzureCaProblem::Malformed(_)
    ));
    let behind = [&INTERMEDIATE_CA, &[0][..]].concat();
    assert!(matches!(problem(&root(), vec![behind.into()]).1, AzureCaProblem::Malformed(_)));
    assert!(matches!(
        problem(&root(), vec![vec![0x30; 9000].into()]).1,
        AzureCaProblem::Malformed(_)
    ));
    assert_eq!(
        problem(&vec![ROOT_CA.clone(); ROOTS_LIMIT + 1], vec![]),
        ("root", AzureCaProblem::TooMany(ROOTS_LIMIT))
    );
    // The same one is counted once.
    assert!(
        TRUST
            .clone()
            .with_intermediates(vec![INTERMEDIATE_CA.clone(); 2 * INTERMEDIATES_LIMIT])
            .is_ok()
    );
    let many: Vec<_> = (0..=INTERMEDIATES_LIMIT)
        .map(|n| {
            let mut altered = INTERMEDIATE_CA.to_vec();
            *altered.last_mut().unwrap() = u8::try_from(n).unwrap();
            CertificateDer::from(altered)
        })
        .collect();
    assert_eq!(
        problem(&root(), many),
        ("intermediate", AzureCaProblem::TooMany(INTERMEDIATES_LIMIT))
    );
}

/// Chains of the configured CAs, as long and as branched as an attacker can make them.
#[test]
fn attack_19_long_chains_terminate() {
    let cas: Vec<CertificateParams> = (0..30).map(|n| ca_params(&format!("CA {n}"), n)).collect();
    let key = &*INTERMEDIATE;
    let mut intermediates = Vec::new();
    for (n, ca) in cas.iter().enumerate() {
        let above = if n == 0 { ca_params("Root", 1) } else { cas[n - 1].clone() };
        intermediates.push(issued(ca, key, &above, if n == 0 { &ROOT } else { key }));
    }
    let trust = trust(intermediates);
    for (n, fits) in [(0, true), (2, true), (20, false), (29, false)] {
        let certificate = issued(&metadata_params(&NAMES), &SIGNER, &cas[n], key);
        let message = TestMessage::azure(document().to_string().as_bytes(), &certificate);
        assert_eq!(verified_by(&message, &SIGNER, &trust).is_ok(), fits, "{n}");
    }
    // Everybody has issued everybody: all have one name and one key.
    let same = ca_params("Same", 0);
    let branched: Vec<_> = (0..60)
        .map(|n| {
            let mut params = ca_params("Same", n);
            params.not_after = date_time_ymd(2041, 1, 1);
            issued(&params, key, &same, key)
        })
        .collect();
    let trust = self::trust(branched);
    let certificate = issued(&metadata_params(&NAMES), &SIGNER, &same, key);
    let message = TestMessage::azure(document().to_string().as_bytes(), &certificate);
    assert!(verified_by(&message, &SIGNER, &trust).is_err());
}

#[test]
fn path_length_of_a_root_is_enforced() {
    let mut params = ca_params("Root", 1);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let root: CertificateDer<'static> = params.self_signed(&ROOT.pair).unwrap().into();
    let trust = AzureTrust::new(vec![AzureCloud::Public], &[root], vec![INTERMEDIATE_CA.clone()]).unwrap();
    assert!(matches!(certificate_refused(&LEAF, &trust), ChainError::Path(_)));
}

#[test]
fn attack_19_only_allowlisted_issuer_urls_are_used() {
    let urls_of = |urls: &[&str]| {
        let certificate = leaf(|params| params.custom_extensions = vec![access(urls)]);
        let message = TestMessage::azure(document().to_string().as_bytes(), &certificate).sign(&SIGNER);
        let urls = issuer_urls(data_encoding::BASE64.encode(&message).as_bytes()).unwrap();
        assert_eq!(urls, IssuerUrls::from_certificate(&certificate));
        let allowed: Vec<String> = urls.allowed.iter().map(|url| url.as_str().to_owned()).collect();
        (allowed, urls.refused)
    };
    let real = "http://www.microsoft.com/pkiops/certs/Microsoft%20TLS%20G2%20RSA%20CA%20OCSP%2002.crt";
    let evil = "http://169.254.169.254/latest/meta-data";
    assert_eq!(urls_of(&[real]), (vec![real.to_owned()], vec![]));
    assert_eq!(urls_of(&[evil, real]), (vec![real.to_owned()], vec![evil.to_owned()]));
    assert_eq!(urls_of(&["http://evil.example/\u{1b}[31m"]).1, ["http://evil.example/\\u{1b}[31m"]);
    let (allowed, refused) = urls_of(&[real; 20]);
    assert_eq!((allowed.len(), refused.len()), (URLS_LIMIT, 0));
    assert_eq!(urls_of(&[]), (vec![], vec![]));
    assert_eq!(IssuerUrls::from_certificate(b"nothing"), IssuerUrls::default());
    assert!(issuer_urls(b"nothing").is_err());
}

#[test]
fn fetched_intermediates_complete_a_chain() {
    let without = trust(vec![]);
    assert!(
        verified_by(&message(&document()), &SIGNER, &without)
            .unwrap_err()
            .is_unknown_issuer()
    );
    let fetched = without.with_intermediates(vec![INTERMEDIATE_CA.clone()]).unwrap();
    assert!(verified_by(&message(&document()), &SIGNER, &fetched).is_ok());
    // But they are not trusted: a root that was fetched is none.
    let theirs: CertificateDer<'static> = ca_params("Their Root", 1).self_signed(&OTHER.pair).unwrap().into();
    let trust = trust(vec![theirs]);
    let certificate = issued(&metadata_params(&NAMES), &SIGNER, &ca_params("Their Root", 1), &OTHER);
    assert!(matches!(
        certificate_refused(&certificate, &trust),
        ChainError::UnknownIssuer { .. }
    ));
}

#[test]
fn attack_06_weak_algorithms_are_refused() {
    let weak = message(&document()).but(|message| {
        message.digest_algorithm = algorithm(SHA1, NULL);
        message.digest_algorithms = vec![algorithm(SHA1, NULL)];
    });
    assert_eq!(verified_by(&weak, &SIGNER, &TRUST).unwrap_err().code(), "azure-document-algorithm");
}
