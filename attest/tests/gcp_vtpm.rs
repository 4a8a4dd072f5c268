//! Certificates of Shielded VM's vTPM: on a generated CA, what is accepted and one refusal for each thing that can be wrong; and
//! Google's real ones, from the test vectors (`ATTEST_VECTORS`).

use crate::vectors;
use std::path::Path;
use std::sync::LazyLock;

use crate::gcp_authority;
use crate::gcp_authority::{
    GOOGLE, INSTANCE_ID, INSTANCE_NAME, NOW, PROJECT_ID, PROJECT_NUMBER, VtpmCa, ZONE, at, audience, claims, der, der_flag, der_number,
    der_text, ek_params, extension, extension_fields, instance_extension, keys_of,
};
use attest::gcp::{self, GceRules, GcpError};
use attest::tpm::ek_certificate::{self, EkCertificateError, EkKey, EkRoots};
use attest::tpm::vtpm::{self, SecurityProperties, VerifiedInstance, VtpmError, VtpmRoots};
use attest::{EkDigest, UnixTime};
use proptest::prelude::*;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;

static CA: LazyLock<VtpmCa> = LazyLock::new(|| VtpmCa::new(p256()));
static EK: LazyLock<KeyPair> = LazyLock::new(p256);

fn p256() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap()
}

fn roots() -> VtpmRoots {
    VtpmRoots::new(vec![CA.certificate()], vec![]).unwrap()
}

fn verify(certificate: &[u8]) -> Result<VerifiedInstance, VtpmError> {
    vtpm::verify(certificate, &[], &roots(), at(NOW))
}

fn ek_with(alter: impl FnOnce(&mut CertificateParams)) -> Result<VerifiedInstance, VtpmError> {
    let mut params = ek_params();
    alter(&mut params);
    verify(&CA.issue(&params, &*EK))
}

fn with_extension(content: Vec<u8>) -> Result<VerifiedInstance, VtpmError> {
    ek_with(|params| params.custom_extensions = vec![instance_extension(content)])
}

/// The extension with one of its fields replaced.
fn with_field(position: usize, field: Vec<u8>) -> Result<VerifiedInstance, VtpmError> {
    let mut fields = extension_fields();
    fields[position] = field;
    with_extension(extension(&fields))
}

#[test]
fn ek_certificate_identifies_the_instance() {
    let verified = ek_with(|_| {}).unwrap();
    let instance = verified.instance();
    assert_eq!(verified.identity(), format!("gcp:{PROJECT_ID}/{INSTANCE_ID}"));
    assert_eq!((instance.project_id(), instance.project_number()), (PROJECT_ID, PROJECT_NUMBER));
    assert_eq!((instance.zone(), instance.instance_name()), (ZONE, INSTANCE_NAME));
    assert_eq!(verified.key().spki_der(), rcgen::PublicKeyData::subject_public_key_info(&*EK));
    assert_eq!(verified.ek_digest(), &EkDigest::of(verified.key()));
    assert_eq!(verified.root_subject(), "CN=Test EK/AK CA Root");
    assert!(verified.security().is_production && !verified.security().vmtd_always_disabled);
    assert!(verified.certificate_serial().contains(':'));
    let record = serde_json::to_value(&verified).unwrap();
    assert_eq!(record["instance"]["instance_id"], INSTANCE_ID.to_string());
    assert_eq!(record["ek_digest"], verified.ek_digest().to_string());

    // As the older CA makes them.
    let ek_usage = ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1]);
    let older = ek_with(|params| params.extended_key_usages = vec![ek_usage]).unwrap();
    assert_eq!(older.instance(), instance);
    let padded = [CA.issue(&ek_params(), &*EK), vec![0xff; 100]].concat();
    assert_eq!(verify(&padded).unwrap().instance(), instance);
}

/// Most defects of other CAs' certificates would be refused by the TPM's path too; not a missing extended key usage.
#[test]
fn general_verification_requires_extended_key_usage() {
    let certificate = CA.issue(&ek_params(), &*EK);
    let roots = EkRoots::new(vec![CA.certificate()], vec![]).unwrap();
    let found = "absent".to_owned();
    assert_eq!(
        ek_certificate::verify(&certificate, &[], &roots, at(NOW)),
        Err(EkCertificateError::ExtendedKeyUsage { found })
    );
}

#[test]
fn attack_03_only_google_ek_certificates_are_accepted() {
    let usage = |usages: Vec<KeyUsagePurpose>| ek_with(|params| params.key_usages = usages);
    assert!(usage(vec![KeyUsagePurpose::KeyEncipherment]).is_ok());
    let none = usage(vec![]).unwrap_err();
    assert_eq!(
        none,
        VtpmError::Usage {
            found: "no key usage".to_owned()
        }
    );
    for usages in [
        vec![KeyUsagePurpose::DigitalSignature],
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment],
        vec![KeyUsagePurpose::DataEncipherment],
    ] {
        let error = usage(usages).unwrap_err();
        assert!(
            matches!(error, VtpmError::Usage { .. }) && error.code() == "gcp-vtpm-certificate",
            "{error}"
        );
    }
    let server = ek_with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]).unwrap_err();
    let expected = EkCertificateError::ExtendedKeyUsage {
        found: "that of another purpose".to_owned(),
    };
    assert_eq!(server, VtpmError::Certificate(expected));

    let somebody = VtpmCa::new(p256());
    let forged = verify(&somebody.issue(&ek_params(), &*EK)).unwrap_err();
    assert_eq!(
        forged,
        VtpmError::Certificate(EkCertificateError::Signature),
        "the name is Google's, the key is not"
    );
    let mut named = VtpmCa::new(p256());
    named.1 = gcp_authority::ca_params("Somebody");
    let unknown = verify(&named.issue(&ek_params(), &*EK)).unwrap_err();
    assert_eq!(unknown.code(), "gcp-vtpm-not-endorsed");
    let with_own_ca = vtpm::verify(&named.issue(&ek_params(), &*EK), &[&named.certificate()], &roots(), at(NOW)).unwrap_err();
    assert_eq!(with_own_ca.code(), "gcp-vtpm-not-endorsed");
    // A machine's EK key signs another certificate.
    let below = VtpmCa(p256(), ek_params());
    let not_a_ca = vtpm::verify(
        &below.issue(&ek_params(), &*EK),
        &[&CA.issue(&ek_params(), &below.0)],
        &roots(),
        at(NOW),
    );
    assert!(matches!(not_a_ca, Err(VtpmError::Certificate(_))), "{not_a_ca:?}");
    let ca = verify(&CA.certificate()).unwrap_err();
    assert_eq!(ca, VtpmError::Certificate(EkCertificateError::IsCa));
    let late = vtpm::verify(&CA.issue(&ek_params(), &*EK), &[], &roots(), at(2_700_000_000)).unwrap_err();
    assert!(matches!(late, VtpmError::Certificate(EkCertificateError::Expired { .. })), "{late}");
}

#[test]
fn each_altered_extension_field_is_refused() {
    let unreadable = |result: Result<VerifiedInstance, VtpmError>| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, VtpmError::Extension { .. }) && error.code() == "gcp-vtpm-no-instance",
            "{error}"
        );
    };
    let form = |result: Result<VerifiedInstance, VtpmError>, name: &str| {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, VtpmError::Instance(GcpError::ClaimForm { field, .. }) if *field == name),
            "{error}"
        );
    };
    form(with_field(0, der_text("")), "zone");
    form(with_field(0, der_text("Europe")), "zone");
    form(with_field(1, der_number(0)), "project_number");
    form(with_field(2, der_text("a/b")), "project_id");
    form(with_field(3, der_number(0)), "instance_id");
    form(with_field(4, der_text("a\u{1b}b")), "instance_name");
    unreadable(with_field(0, der_number(1)));
    unreadable(with_field(1, der_text("1")));
    unreadable(with_field(1, der(0x02, &[&[0x80]])));
    unreadable(with_field(1, der(0x02, &[&[0, 1]])));
    unreadable(with_field(1, der(0x02, &[&[]])));
    unreadable(with_field(1, der(0x02, &[&[1; 9]])));
    unreadable(with_field(3, der(0x02, &[&[0xff]])));
    unreadable(with_field(3, der(0x02, &[&[0x7f; 9]])));
    unreadable(with_field(4, der(0x0c, &[&[0xff, 0xfe]])));
    unreadable(with_field(4, der(0x13, &[b"worker-7"])));
    unreadable(with_field(2, [&[0x0c, 0x81, 15], PROJECT_ID.as_bytes()].concat()));
    for missing in 0..5 {
        let mut fields = extension_fields();
        fields.remove(missing);
        unreadable(with_extension(extension(&fields)));
    }
    let more = [extension_fields(), vec![der_text("more")]].concat();
    unreadable(with_extension(extension(&more)));
    unreadable(with_extension([extension(&extension_fields()), vec![5, 0]].concat()));
    unreadable(with_extension(Vec::new()));
    unreadable(with_extension(der(0x31, &[&extension_fields().concat()])));
    unreadable(with_extension(der_text("x")));

    let absent = ek_with(|params| params.custom_extensions.clear()).unwrap_err();
    assert_eq!(absent, VtpmError::ExtensionMissing);
    let twice = ek_with(|params| params.custom_extensions.push(params.custom_extensions[0].clone())).unwrap_err();
    assert_eq!(twice.code(), "gcp-vtpm-certificate");
}

#[test]
fn security_properties_are_parsed() {
    let with = |content: &[&[u8]]| with_field(5, der(0xa0, &[&der(0x30, content)]));
    let flag = |number: u8, flag: bool| der(0xa0 + number, &[&der_flag(flag)]);
    let all = with(&[
        &der(0xa0, &[&der_number(7)]),
        &flag(1, true),
        &flag(2, true),
        &flag(3, true),
        &flag(4, true),
        &flag(5, true),
    ]);
    let expected = SecurityProperties {
        security_version: 7,
        is_production: true,
        tpm_data_always_encrypted: true,
        suspend_resume_always_disabled: true,
        vmtd_always_disabled: true,
        always_in_yarn: true,
    };
    assert_eq!(all.unwrap().security(), expected);
    let only = with(&[&flag(1, true)]).unwrap().security();
    assert_eq!((only.security_version, only.is_production, only.always_in_yarn), (0, true, false));

    assert_eq!(with(&[&flag(1, false)]).unwrap_err(), VtpmError::NotProduction);
    assert_eq!(with(&[]).unwrap_err(), VtpmError::NotProduction);
    assert_eq!(
        with_extension(extension(&extension_fields()[..5])).unwrap_err(),
        VtpmError::NotProduction
    );
    let unreadable = |result: Result<VerifiedInstance, VtpmError>| {
        assert!(matches!(result, Err(VtpmError::Extension { .. })), "{result:?}");
    };
    unreadable(with(&[&flag(1, true), &flag(1, true)]));
    unreadable(with(&[&flag(2, true), &flag(1, true)]));
    unreadable(with(&[&flag(1, true), &flag(6, true)]));
    unreadable(with(&[&der(0xa1, &[&[1, 1, 1]])]));
    for empty in [0x01, 0x02, 0x03, 0x04, 0x05, 0x0c, 0x30] {
        unreadable(with(&[&der(0xa1, &[&[empty, 0]])]));
        unreadable(with(&[&der(0xa0, &[&[empty, 0]])]));
    }
    unreadable(with(&[&der(0xa1, &[&[0x21, 1, 0xff]])]));
    unreadable(with(&[&der(0xa1, &[&[1, 2, 0xff, 0xff]])]));
    unreadable(with(&[&der(0xa1, &[&der_number(1)])]));
    unreadable(with(&[&der(0xa1, &[&der_flag(true), &der_flag(true)])]));
    unreadable(with(&[&der(0xa1, &[])]));
    unreadable(with(&[&der(0x81, &[&[0xff]])]));
    unreadable(with_field(5, der(0xa0, &[])));
    unreadable(with_field(5, der(0xa1, &[&der(0x30, &[])])));
}

#[test]
fn certificate_must_match_ek_and_identity_token() {
    let verified = ek_with(|_| {}).unwrap();
    assert_eq!(verified.check_ek(verified.ek_digest()), Ok(()));
    let other = verify(&CA.issue(&ek_params(), &p256())).unwrap();
    let mismatch = verified.check_ek(other.ek_digest()).unwrap_err();
    assert_eq!(
        mismatch,
        VtpmError::EkMismatch {
            certificate: verified.ek_digest().to_string(),
            presented: other.ek_digest().to_string(),
        }
    );
    let token = |name: &str, value: serde_json::Value| {
        let mut claims = claims();
        claims["google"]["compute_engine"][name] = value;
        gcp::verify(GOOGLE.sign(&claims).as_bytes(), &keys_of(&GOOGLE), &[audience()], at(NOW)).unwrap()
    };
    let same = token("zone", json!(ZONE));
    assert_eq!(verified.check_identity(&same), Ok(()));
    assert_eq!(verified.identity(), same.identity());
    for (name, value) in [
        ("instance_id", json!("1")),
        ("project_id", json!("other")),
        ("project_number", json!(1)),
    ] {
        let error = verified.check_identity(&token(name, value)).unwrap_err();
        assert_eq!(error.code(), "gcp-instance-mismatch", "{name}");
    }
    // The certificate is as old as the instance: it may have been renamed since.
    assert_eq!(verified.check_identity(&token("instance_name", json!("renamed"))), Ok(()));
}

#[test]
fn attack_17_a_recycled_name_is_another_identity() {
    let (first, second) = (ek_with(|_| {}).unwrap(), with_field(3, der_number(INSTANCE_ID + 1)).unwrap());
    assert_eq!(first.instance().instance_name(), second.instance().instance_name());
    assert_ne!(first.identity(), second.identity());
}

#[test]
fn vtpm_rules_apply_and_unprovable_ones_refuse() {
    let verified = ek_with(|_| {}).unwrap();
    let check = |more: &str, expect: Result<(), &str>| {
        let text = format!("projects = [{{ id = \"{PROJECT_ID}\", number = {PROJECT_NUMBER} }}]\n{more}");
        let rules: GceRules = toml::from_str(&text).unwrap();
        assert_eq!(
            gcp::appraise_vtpm(verified.instance(), &rules).map_err(|error| error.code()),
            expect,
            "{more}"
        );
    };
    check("", Ok(()));
    check("zones = [\"europe-west3-a\"]\ninstance_names = [\"worker-*\"]", Ok(()));
    check("zones = [\"europe-west3-b\"]", Err("gcp-location-refused"));
    check("instance_names = [\"master-*\"]", Err("gcp-name-refused"));
    for rule in ["service_accounts = [\"a@b\"]", "licenses = [\"1\"]", "max_instance_age_seconds = 1"] {
        check(rule, Err("gcp-rule-not-provable"));
    }
    let none: GceRules = toml::from_str("projects = []").unwrap();
    assert_eq!(
        gcp::appraise_vtpm(verified.instance(), &none).unwrap_err().code(),
        "gcp-project-refused"
    );
}

#[test]
fn attack_19_certificate_and_extension_sizes_are_limited() {
    let long = "a".repeat(100);
    let large = der(0x0c, &[long.as_bytes()]).repeat(12);
    assert!(matches!(vtpm::parse_extension(&large), Err(VtpmError::Extension { .. })));
    let certificate = CA.issue(&ek_params(), &*EK);
    let many: Vec<&[u8]> = vec![&certificate; 9];
    assert_eq!(
        vtpm::verify(&certificate, &many, &roots(), at(NOW)).unwrap_err().code(),
        "gcp-vtpm-certificate"
    );
    assert!(verify(&vec![0x30; 9000]).is_err());
}

#[test]
fn attack_23_zeroed_byte_never_panics() {
    let content = extension(&extension_fields());
    for position in 0..content.len() {
        let mut altered = content.clone();
        altered[position] = 0;
        let _ = vtpm::parse_extension(&altered);
    }
}

#[test]
fn attack_23_every_truncation_and_bit_flip_is_refused() {
    let content = extension(&extension_fields());
    for length in 0..content.len() {
        assert!(vtpm::parse_extension(&content[..length]).is_err(), "{length}");
    }
    let (certificate, roots) = (CA.issue(&ek_params(), &*EK), roots());
    let expected = vtpm::verify(&certificate, &[], &roots, at(NOW)).unwrap();
    for length in 0..certificate.len() {
        assert!(verify(&certificate[..length]).is_err(), "{length}");
    }
    for position in 0..certificate.len() {
        for bit in 0..8 {
            let mut flipped = certificate.clone();
            flipped[position] ^= 1 << bit;
            let result = vtpm::verify(&flipped, &[], &roots, at(NOW));
            assert!(result.is_err(), "bit {bit} of byte {position}");
        }
    }
    assert_eq!(vtpm::verify(&certificate, &[], &roots, at(NOW)), Ok(expected));
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), position in 0usize..100, byte: u8) {
        let _ = vtpm::parse_extension(&bytes);
        prop_assert!(verify(&bytes).is_err());
        let mut content = extension(&extension_fields());
        let position = position % content.len();
        content[position] = byte;
        let _ = vtpm::parse_extension(&content);
    }
}

/// Date of verification: 2026-06-01, UTC.
const JUNE: u64 = 1_780_272_000;

fn pem(file: &Path) -> CertificateDer<'static> {
    let bytes = std::fs::read(file).unwrap();
    CertificateDer::from_pem_slice(&bytes).unwrap_or_else(|_| bytes.into())
}

fn real(folder: &Path) -> VtpmRoots {
    let ca = |name: &str| pem(&folder.join("ca").join(name));
    let intermediates = [
        "tpm_ek_intermediate_2.crt",
        "tpm_ek_intermediate_3.crt",
        "gcp_ek_ak_ca_intermediate_v3.crt",
    ];
    VtpmRoots::new(
        vec![ca("tpm_ek_root_1.cer"), ca("gcp_ek_ak_ca_root.crt")],
        intermediates.map(ca).to_vec(),
    )
    .unwrap()
}

#[test]
fn real_ek_certificates_identify_their_instance() {
    let Some(vectors) = vectors::vectors() else { return };
    let folder = vectors.join("ek-certs/gce");
    let roots = real(&folder);
    let now: UnixTime = at(JUNE);
    for (name, instance_id, instance_name, root) in [
        (
            "uca_tpm_rsa_enc_cert.pem",
            "5780156274199835632",
            "cs-debug",
            "tpm_ek_v1_cloud_host_root",
        ),
        (
            "uca_tpm_ecc_enc_cert.pem",
            "5780156274199835632",
            "cs-debug",
            "tpm_ek_v1_cloud_host_root",
        ),
        ("pca_tpm_rsa_enc_cert.pem", "218557372616137117", "cs-debug-pca", "EK/AK CA Root"),
        ("pca_tpm_ecc_enc_cert.pem", "218557372616137117", "cs-debug-pca", "EK/AK CA Root"),
    ] {
        let certificate = pem(&folder.join(name));
        let verified = vtpm::verify(&certificate, &[], &roots, now).unwrap_or_else(|error| panic!("{name}: {error}"));
        let instance = verified.instance();
        assert_eq!((instance.zone(), instance.region()), ("us-central1-a", "us-central1"));
        assert_eq!(instance.project_id(), "google.com:wuale-gcp-testing");
        assert_eq!(instance.project_number(), 0x1b_5a47_5c69);
        assert_eq!((instance.instance_id(), instance.instance_name()), (instance_id, instance_name));
        assert_eq!(verified.identity(), format!("gcp:google.com:wuale-gcp-testing/{instance_id}"));
        let expected = SecurityProperties {
            is_production: true,
            tpm_data_always_encrypted: true,
            ..SecurityProperties::default()
        };
        assert_eq!(verified.security(), expected);
        assert!(verified.root_subject().contains(root), "{}", verified.root_subject());
        assert_eq!(matches!(verified.key(), EkKey::Rsa { .. }), name.contains("rsa"));

        let mut flipped = certificate.to_vec();
        flipped[300] ^= 1;
        assert!(vtpm::verify(&flipped, &[], &roots, now).is_err());
        let nobody = vtpm::verify(&certificate, &[], &self::roots(), now).unwrap_err();
        assert_eq!(nobody.code(), "gcp-vtpm-not-endorsed");
    }
}

#[test]
fn how_to_lists_the_google_cas() {
    let Some(vectors) = vectors::vectors() else { return };
    let page = include_str!("../../docs/how-to/gcp.md");
    for end in [".crt", ".cer"] {
        for file in vectors::files_under(&vectors.join("ek-certs/gce/ca"), end) {
            let sha256 = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &pem(&file));
            let sha256 = data_encoding::HEXLOWER.encode(sha256.as_ref());
            assert!(page.contains(&sha256), "{} {sha256}", file.display());
        }
    }
}

#[test]
fn attack_03_real_ak_certificates_are_refused() {
    let Some(vectors) = vectors::vectors() else { return };
    let folder = vectors.join("ek-certs/gce");
    let roots = real(&folder);
    for name in [
        "uca_tpm_rsa_sign_cert.pem",
        "uca_tpm_ecc_sign_cert.pem",
        "pca_tpm_rsa_sign_cert.pem",
        "pca_tpm_ecc_sign_cert.pem",
    ] {
        let error = vtpm::verify(&pem(&folder.join(name)), &[], &roots, at(JUNE)).unwrap_err();
        let found = "key usage Digital Signature".to_owned();
        assert_eq!(error, VtpmError::Usage { found }, "{name}");
    }
}
