//! Rules for CAs: for those that the administrator configures, and for those that a node sends.

use super::*;

#[test]
fn path_lengths_are_enforced_in_every_ca() {
    let limited = |to: u8| {
        move |position: usize, params: &mut CertificateParams| {
            if position == 0 {
                params.is_ca = IsCa::Ca(BasicConstraints::Constrained(to));
            }
        }
    };
    for result in both_ways(&chain(2, limited(1))) {
        assert!(result.is_ok());
    }
    for result in both_ways(&chain(2, limited(0))) {
        assert!(matches!(result, Err(EkCertificateError::PathLength { .. })), "{result:?}");
    }
    // The root's own, whoever the intermediate comes from.
    let mut params = ca_params("Test TPM Root");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let root: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
    let (certificates, leaf) = chain(1, |_, _| {});
    let error = EkCertificateError::PathLength {
        certificate: "CA \"CN=Test TPM Root\"".to_owned(),
    };
    let configured = EkRoots::new(vec![root.clone()], certificates.clone()).unwrap();
    assert_eq!(ek_certificate::verify(&leaf, &[], &configured, NOW), Err(error.clone()));
    let roots = EkRoots::new(vec![root], vec![]).unwrap();
    assert_eq!(ek_certificate::verify(&leaf, &[&certificates[0]], &roots, NOW), Err(error));
    assert!(ek_certificate::verify(&ek_with(|_| {}), &[], &roots, NOW).is_ok());
}

#[test]
fn validity_dates_of_intermediates_are_enforced() {
    let expired = |_: usize, params: &mut CertificateParams| params.not_after = date_time_ymd(2025, 1, 1);
    let early = |_: usize, params: &mut CertificateParams| params.not_before = date_time_ymd(2030, 1, 1);
    for result in both_ways(&chain(1, expired)) {
        assert!(matches!(result, Err(EkCertificateError::Expired { .. })), "{result:?}");
    }
    for result in both_ways(&chain(1, early)) {
        assert!(matches!(result, Err(EkCertificateError::NotYetValid { .. })), "{result:?}");
    }
}

/// A CA renewed with the same name and key: the expired certificate does not block the valid one.
#[test]
fn renewed_root_is_accepted_despite_the_expired_one() {
    let mut expired = ca_params("Test TPM Root");
    expired.not_after = date_time_ymd(2025, 1, 1);
    let expired: CertificateDer<'static> = expired.self_signed(&*CA_KEY).unwrap().into();
    for both in [[expired.clone(), root()], [root(), expired]] {
        let roots = EkRoots::new(both.to_vec(), vec![]).unwrap();
        assert!(ek_certificate::verify(&ek_with(|_| {}), &[], &roots, NOW).is_ok());
    }
}

#[test]
fn name_constraints_are_not_ignored() {
    let constrained = |params: &mut CertificateParams| {
        let permitted_subtrees = vec![GeneralSubtree::DirectoryName(named("Somebody else"))];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees,
            excluded_subtrees: vec![],
        });
    };
    for result in both_ways(&chain(1, |_, params| constrained(params))) {
        assert_eq!(result, Err(EkCertificateError::NameConstraints));
    }
    let mut params = ca_params("Test TPM Root");
    constrained(&mut params);
    let root: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
    let roots = EkRoots::new(vec![root.clone()], vec![]).unwrap();
    assert_eq!(
        ek_certificate::verify(&ek_with(|_| {}), &[], &roots, NOW),
        Err(EkCertificateError::NameConstraints)
    );
    let issuer = "CN=Test TPM Root".to_owned();
    assert_eq!(ca_refused(root, chain(1, |_, _| {}).0), EkRootProblem::NameConstraints { issuer });
}

#[test]
fn critical_policies_are_accepted_in_configured_cas_only() {
    let policies = |critical: bool, oid: &'static [u64]| {
        let any_policy = der(0x30, &[&der(0x30, &[&der(0x06, &[&[0x55, 0x1d, 0x20, 0x00]])])]);
        let mut extension = CustomExtension::from_oid_content(oid, any_policy);
        extension.set_criticality(critical);
        move |_: usize, params: &mut CertificateParams| params.custom_extensions.push(extension.clone())
    };
    let [configured, sent] = both_ways(&chain(1, policies(true, &[2, 5, 29, 32])));
    assert!(configured.is_ok());
    assert_eq!(sent, Err(EkCertificateError::CriticalExtension), "only configured CAs get this far");
    // policyConstraints would give the policies an effect, and any other critical extension is unknown.
    for oid in [[2, 5, 29, 36].as_slice(), &[1, 2, 3, 4]] {
        let oid: &'static [u64] = oid.to_vec().leak();
        assert!(matches!(
            ca_refused(root(), chain(1, policies(true, oid)).0),
            EkRootProblem::CriticalExtension(_)
        ));
    }
    // Nor do they have to be critical to have that effect: policyConstraints, policyMappings, inhibitAnyPolicy.
    let policy = [0x06, 0x01, 0x29];
    let mapping = der(0x30, &[&der(0x30, &[&policy, &policy])]);
    for (last, content) in [
        (36, vec![0x30, 0x03, 0x80, 0x01, 0x00]),
        (33, mapping),
        (54, vec![0x02, 0x01, 0x00]),
    ] {
        let extension = CustomExtension::from_oid_content(&[2, 5, 29, last], content);
        assert_eq!(
            ca_refused(root(), chain(1, |_, params| params.custom_extensions.push(extension.clone())).0),
            EkRootProblem::CriticalExtension(format!("2.5.29.{last}"))
        );
    }
}

#[test]
fn cas_that_cannot_endorse_are_refused_when_loaded() {
    let root_with = |alter: fn(&mut CertificateParams)| {
        let mut params = ca_params("Test TPM Root");
        alter(&mut params);
        let certificate: CertificateDer<'static> = params.self_signed(&*CA_KEY).unwrap().into();
        ca_refused(certificate, vec![])
    };
    assert_eq!(root_with(|params| params.is_ca = IsCa::NoCa), EkRootProblem::NotCa);
    assert_eq!(root_with(|params| params.is_ca = IsCa::ExplicitNoCa), EkRootProblem::NotCa);
    assert_eq!(
        root_with(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]),
        EkRootProblem::KeyUsage("CRL Sign".to_owned())
    );
    assert_eq!(
        root_with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
        EkRootProblem::ExtendedKeyUsage { required: "2.23.133.8.1" }
    );
    assert_eq!(
        root_with(|params| params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 3])),
        EkRootProblem::ExtendedKeyUsage { required: "2.23.133.8.1" }
    );
    let mut params = ca_params("Test TPM Root");
    params.extended_key_usages = extended_key_usage(&[2, 23, 133, 8, 1]);
    assert!(EkRoots::new(vec![params.self_signed(&*CA_KEY).unwrap().into()], vec![]).is_ok());
    let of_224_bits = PublicHalf(&rcgen::PKCS_ECDSA_P256_SHA256, [vec![4], vec![3; 56]].concat());
    assert_eq!(
        ca_refused(issued(&ca_params("Weak"), &of_224_bits), vec![]),
        EkRootProblem::Key("an elliptic curve key of 224 bits".to_owned())
    );
    assert!(matches!(ca_refused(vec![0x30, 0x00].into(), vec![]), EkRootProblem::Malformed(_)));
    assert!(matches!(
        ca_refused([&root(), [0xff].as_slice()].concat().into(), vec![]),
        EkRootProblem::Malformed(_)
    ));
    assert_eq!(
        ca_refused(issued(&ca_params("Weak"), &PublicHalf::rsa(1024)), vec![]),
        EkRootProblem::Key("RSA-1024".to_owned())
    );

    let orphan: CertificateDer<'static> = {
        let key = p256();
        ca_params("Orphan")
            .signed_by(&p256(), &Issuer::from_params(&ca_params("Gone"), &key))
            .unwrap()
            .into()
    };
    assert_eq!(
        ca_refused(root(), vec![orphan]),
        EkRootProblem::IssuerMissing {
            issuer: "CN=Gone".to_owned()
        }
    );
    let forged: CertificateDer<'static> = {
        let key = p256();
        ca_params("Forged")
            .signed_by(&p256(), &Issuer::from_params(&ca_params("Test TPM Root"), &key))
            .unwrap()
            .into()
    };
    assert_eq!(
        ca_refused(root(), vec![forged.clone()]),
        EkRootProblem::IssuerSignature {
            issuer: "CN=Test TPM Root".to_owned()
        }
    );
    let (usable, refused) = EkRoots::load(vec![root()], vec![forged]);
    assert_eq!((usable.is_empty(), refused.len(), refused[0].role), (false, 1, "intermediate"));
}

#[test]
fn ca_certificate_size_is_limited() {
    let key = rsa(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048);
    let with = |padding: usize| -> CertificateDer<'static> {
        let mut params = ca_params("Large");
        params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![0; padding])];
        params.self_signed(&key).unwrap().into()
    };
    let around = with(4096).len() - 4096;
    let largest = with(CERTIFICATE_LIMIT_BYTES - around);
    assert_eq!(largest.len(), CERTIFICATE_LIMIT_BYTES);
    assert!(EkRoots::new(vec![largest], vec![]).is_ok());
    for more in [1, 1000] {
        let larger = with(CERTIFICATE_LIMIT_BYTES - around + more);
        assert!(matches!(ca_refused(larger, vec![]), EkRootProblem::Malformed(_)));
    }
}

#[test]
fn root_is_recognised_as_self_issued() {
    assert!(EkRoots::is_self_issued(&root()));
    assert!(!EkRoots::is_self_issued(&ek_with(|_| {})));
    assert!(!EkRoots::is_self_issued(b"nothing"));
}
