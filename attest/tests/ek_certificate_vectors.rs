//! EK certificates and manufacturers' CAs as they are in the field, from the test vectors (`ATTEST_VECTORS`).

use std::path::Path;
use std::time::Duration;

use crate::vectors::{files_under, vectors};
use attest::tpm::ek_certificate::{self, EkCertificateError, EkKey, EkRootProblem, EkRoots, VerifiedEkCertificate};
use attest::{EkDigest, UnixTime};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Date of verification: 2026-06-01, UTC.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_780_272_000));

/// Reads all certificates of a file, PEM or DER.
fn read(file: &Path) -> Vec<CertificateDer<'static>> {
    let bytes = std::fs::read(file).unwrap();
    let pem: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .map(|certificate| certificate.unwrap())
        .collect();
    if pem.is_empty() { vec![bytes.into()] } else { pem }
}

fn verify(leaf: &[u8], roots: &EkRoots) -> Result<VerifiedEkCertificate, EkCertificateError> {
    ek_certificate::verify(leaf, &[], roots, NOW)
}

fn gce_roots(folder: &Path) -> EkRoots {
    let ca = |name: &str| read(&folder.join("ca").join(name)).remove(0);
    EkRoots::new(
        vec![ca("tpm_ek_root_1.cer"), ca("gcp_ek_ak_ca_root.crt")],
        vec![
            ca("tpm_ek_intermediate_2.crt"),
            ca("tpm_ek_intermediate_3.crt"),
            ca("gcp_ek_ak_ca_intermediate_v3.crt"),
        ],
    )
    .unwrap()
}

#[test]
fn gce_vtpms_are_endorsed() {
    let Some(vectors) = vectors() else { return };
    let folder = vectors.join("ek-certs/gce");
    let roots = gce_roots(&folder);
    for (name, kind) in [("uca_tpm_rsa_enc_cert.pem", "RSA"), ("uca_tpm_ecc_enc_cert.pem", "P-256")] {
        let leaf = read(&folder.join(name)).remove(0);
        let verified = verify(&leaf, &roots).unwrap_or_else(|error| panic!("{name}: {error}"));
        match (kind, verified.key()) {
            ("RSA", EkKey::Rsa { n, e }) => assert_eq!((n.len(), e.as_slice()), (256, [1, 0, 1].as_slice())),
            ("P-256", EkKey::P256 { .. }) => {}
            (_, other) => panic!("{name}: {other:?}"),
        }
        let tpm = verified.tpm();
        assert_eq!(tpm.manufacturer.as_deref(), Some("id:474F4F47"));
        assert_eq!((tpm.model.as_deref(), tpm.version.as_deref()), (Some("vTPM"), Some("id:20160511")));
        assert!(verified.root_subject().contains("tpm_ek_v1_cloud_host_root"));
        // The canonical encoding is the one in the certificate.
        let spki = verified.key().spki_der();
        assert!(leaf.windows(spki.len()).any(|window| window == spki));
        assert_eq!(
            EkDigest::of(verified.key()).as_bytes(),
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &spki).as_ref()
        );

        // With the padding of an NV index, and without a CA that was configured for it.
        assert_eq!(verify(&[&leaf, [0xff; 100].as_slice()].concat(), &roots).as_ref(), Ok(&verified));
        let unknown = verify(&leaf, &EkRoots::default()).unwrap_err();
        assert!(unknown.is_unknown_issuer(), "{unknown}");
    }
}

/// The AK of the same machine: the same CA, and for one of the two generations the same extended key usage.
#[test]
fn attack_03_certificates_of_gce_aks_are_not_eks() {
    let Some(vectors) = vectors() else { return };
    let folder = vectors.join("ek-certs/gce");
    let roots = gce_roots(&folder);
    let refused = |name: &str| verify(&read(&folder.join(name))[0], &roots).unwrap_err();
    for name in ["uca_tpm_rsa_sign_cert.pem", "uca_tpm_ecc_sign_cert.pem"] {
        assert_eq!(
            refused(name),
            EkCertificateError::KeyUsage {
                found: "Digital Signature".to_owned()
            },
            "{name}"
        );
    }
    // The younger CA says nowhere what its certificates are for, so its EK certificates cannot be told from others.
    for name in [
        "pca_tpm_rsa_sign_cert.pem",
        "pca_tpm_ecc_sign_cert.pem",
        "pca_tpm_rsa_enc_cert.pem",
        "pca_tpm_ecc_enc_cert.pem",
    ] {
        assert_eq!(
            refused(name),
            EkCertificateError::ExtendedKeyUsage {
                found: "absent".to_owned()
            },
            "{name}"
        );
    }
}

/// An STM TPM below an intermediate with critical certificatePolicies, which webpki by itself refuses.
#[test]
fn an_stmicroelectronics_tpm_is_endorsed() {
    let Some(vectors) = vectors() else { return };
    let ca = |name: &str| read(&vectors.join("ek-roots/keylime").join(name)).remove(0);
    let leaf = read(&vectors.join("ek-certs/keylime-real/st_ecdsa_sha256_der.der")).remove(0);
    let roots = EkRoots::new(vec![ca("STM_ECC_01RT.pem")], vec![ca("STM_ECC_01I.pem")]).unwrap();
    let verified = verify(&leaf, &roots).unwrap();
    assert!(matches!(verified.key(), EkKey::P256 { .. }));
    assert_eq!(verified.tpm().model.as_deref(), Some("ST33HTPHAHB4"));
    assert!(
        verified.root_subject().contains("STM TPM ECC Root CA 01"),
        "{}",
        verified.root_subject()
    );

    let after_all = UnixTime::since_unix_epoch(Duration::from_secs(2_200_000_000));
    assert!(matches!(
        ek_certificate::verify(&leaf, &[], &roots, after_all),
        Err(EkCertificateError::Expired { .. })
    ));
    let mut flipped = leaf.to_vec();
    flipped[200] ^= 1;
    assert_eq!(verify(&flipped, &roots).unwrap_err(), EkCertificateError::Signature);
    // Without its root the intermediate is worth nothing.
    let error = EkRoots::new(vec![ca("STM_RSA_RT.pem")], vec![ca("STM_ECC_01I.pem")]).unwrap_err();
    assert!(matches!(error.problem, EkRootProblem::IssuerMissing { .. }), "{error}");
}

/// Strict DER parsers refuse Nuvoton's names for the order of their SETs.
#[test]
fn nuvoton_root_is_accepted() {
    let Some(vectors) = vectors() else { return };
    let root = read(&vectors.join("ek-certs/keylime-real/nuvoton_ecdsa_sha256_der.der")).remove(0);
    assert!(EkRoots::is_self_issued(&root));
    assert!(EkRoots::new(vec![root.clone()], vec![]).is_ok());
    assert_eq!(
        verify(&root, &EkRoots::new(vec![root.clone()], vec![]).unwrap()),
        Err(EkCertificateError::IsCa)
    );
}

/// Every manufacturer's CA can be a root, and every one below a root that is here, and not signed with SHA-1, an intermediate.
#[test]
fn manufacturers_cas_load() {
    let Some(vectors) = vectors() else { return };
    let files = files_under(&vectors.join("ek-roots/keylime"), ".pem");
    let certificates: Vec<_> = files.iter().flat_map(|file| read(file)).collect();
    let (_, refused) = EkRoots::load(certificates.clone(), vec![]);
    assert_eq!(refused, []);

    let (roots, intermediates): (Vec<_>, Vec<_>) = certificates
        .into_iter()
        .partition(|certificate| EkRoots::is_self_issued(certificate));
    assert_eq!((roots.len(), intermediates.len()), (11, 40));
    let (_, refused) = EkRoots::load(roots, intermediates);
    let (sha1, orphans): (Vec<_>, Vec<_>) = refused
        .iter()
        .partition(|error| matches!(&error.problem, EkRootProblem::SignatureAlgorithm(_)));
    let sha1_with_rsa = EkRootProblem::SignatureAlgorithm("1.2.840.113549.1.1.5".to_owned());
    assert!(
        sha1.iter()
            .all(|error| error.problem == sha1_with_rsa && error.subject.contains("CN=IFX TPM EK "))
    );
    // The roots above these are not among the vectors: GlobalSign's ECC root in STM's case.
    let of_its_own = |problem: &EkRootProblem| matches!(problem, EkRootProblem::IssuerMissing { .. });
    assert!(orphans.iter().all(|error| match &error.problem {
        // STM's intermediate, whose root is here.
        EkRootProblem::IssuerUnusable { unusable, .. } => of_its_own(&unusable.problem),
        problem => of_its_own(problem),
    }));
    let names: Vec<_> = orphans.iter().map(|error| error.subject.rsplit_once("CN=").unwrap().1).collect();
    let expected = [
        "Aliyun TPM EKMF CA",
        "Nationz TPM Manufacturing CA 001",
        "STM TPM ECC Intermediate CA 01",
        "STM TPM ECC Root CA 01",
    ];
    assert_eq!(names, expected);
}

/// AMD's intermediates spell the root's name in other string types, so do those of STM the name of theirs; one of Intel's CAs is signed under an
/// algorithm with NULL parameters.
#[test]
fn cas_whose_names_or_algorithms_are_spelled_differently_chain() {
    let Some(vectors) = vectors() else { return };
    let ca = |name: &str| read(&vectors.join("faults/names").join(name)).remove(0);
    for chain in [
        ["amd_root_ecc.pem", "amd_ssp_1.pem"].as_slice(),
        &["globalsign_ecc_root.pem", "st_ecc_root_01.pem", "st_ecc384_intermediate_01.pem"],
        &["intel_ondie_root.pem", "intel_ondie_csme_intermediate.pem", "intel_ebg_issuing.pem"],
    ] {
        let all: Vec<_> = chain.iter().map(|name| ca(name)).collect();
        let (root, below) = all.split_first().unwrap();
        assert!(EkRoots::is_self_issued(root));
        let (_, refused) = EkRoots::load(vec![root.clone()], below.to_vec());
        assert_eq!(refused, [], "{chain:?}");
        // It is the issuer's signature that is taken, and no other.
        let mut forged = below.last().unwrap().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        let (_, refused) = EkRoots::load(vec![root.clone()], [&below[..below.len() - 1], &[forged.into()]].concat());
        assert!(matches!(refused[0].problem, EkRootProblem::IssuerSignature { .. }), "{refused:?}");
        // Nor does another maker's root.
        let (_, refused) = EkRoots::load(
            vec![ca("intel_ondie_root.pem"), ca("amd_root_ecc.pem")],
            vec![below.last().unwrap().clone()],
        );
        assert_eq!(refused.is_empty(), chain.len() == 2, "{refused:?}");
    }
}

/// STM's RSA TPMs, two CAs below GlobalSign's root.
#[test]
fn a_chain_of_configured_intermediates_is_validated_in_any_order() {
    let Some(vectors) = vectors() else { return };
    let ca = |name: &str| read(&vectors.join("ek-roots/keylime").join(name)).remove(0);
    let below = vec![ca("STM_RSA_02I.pem"), ca("STM_RSA_RT.pem"), ca("STM_RSA_07I.pem")];
    assert!(EkRoots::new(vec![ca("GS_TPM_RT.pem")], below.clone()).is_ok());
    let (_, refused) = EkRoots::load(vec![ca("INTEL_RT.pem")], below);
    assert_eq!(refused.len(), 3);
    assert!(EkRoots::new(vec![ca("INTEL_RT.pem")], vec![ca("INTEL_I.pem")]).is_ok());
}

/// Nuvoton's TPMs since 2023: an issuing CA on P-384 below a root on P-521.
#[test]
fn nuvotons_root_on_p521_endorses_its_issuing_ca() {
    let Some(vectors) = vectors() else { return };
    let ca = |name: &str| read(&vectors.join("ek-roots/makers").join(name)).remove(0);
    let (root, issuing) = (ca("NPCTxxxECC521RootCA.pem"), ca("NPCTxxxECC384LeafCA012110.pem"));
    let roots = EkRoots::new(vec![root.clone()], vec![issuing.clone()]).unwrap();
    assert!(roots.makers().keys().all(|maker| maker.contains("Nuvoton")), "{:?}", roots.makers());
    // It is the root's signature that is taken, and no other.
    let mut forged = issuing.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let error = EkRoots::new(vec![root], vec![forged.into()]).unwrap_err();
    assert!(matches!(error.problem, EkRootProblem::IssuerSignature { .. }), "{error}");
}
