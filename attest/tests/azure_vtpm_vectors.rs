//! vTPMs of real machines of Azure's, from the test vectors (`ATTEST_VECTORS`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::vectors::{files_under, vectors};
use attest::azure::vtpm::{AkCertificate, AkRoots, VmId, is_measured, verify_certificate};
use attest::protocol::HexDigest;
use attest::tpm::ak::AkPublic;
use attest::tpm::pcr::PcrValues;
use attest::tpm::quote::{self, ExpectedQuote};
use attest::{HashAlg, PcrSelection, SpkiSha256, UnixTime};
use rustls_pki_types::CertificateDer;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Date of verification: 2026-07-29, UTC.
const JULY: u64 = 1_785_283_200;
/// Date of verification: 2027-08-01, UTC.
const A_YEAR_LATER: u64 = 1_817_078_400;

/// Returns the folder of the vectors; prints a note if it does not exist.
fn folder() -> Option<PathBuf> {
    let folder = vectors()?.join("azure/vtpm");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("SKIPPED: no {}", folder.display());
    None
}

/// Microsoft's root of 2023 and the intermediates at hand.
fn roots(folder: &Path) -> AkRoots {
    let read = |start: &str| {
        let files = files_under(folder, ".der").into_iter();
        let of_role = files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with(start));
        of_role
            .map(|file| CertificateDer::from(std::fs::read(file).unwrap()))
            .collect::<Vec<_>>()
    };
    let (roots, intermediates) = (read("root-"), read("intermediate-"));
    assert_eq!((roots.len(), intermediates.len()), (1, 3));
    AkRoots::new(roots, intermediates).unwrap()
}

fn certificate(machine: &Path, roots: &AkRoots, now: u64) -> Result<AkCertificate, &'static str> {
    let certificate = std::fs::read(machine.join("ak_certificate.bin")).unwrap();
    verify_certificate(&certificate, &[], roots, at(now)).map_err(|error| error.code())
}

#[test]
fn recorded_azure_certificates_chain_to_the_root() {
    let Some(folder) = folder() else { return };
    let roots = roots(&folder);
    for (machine, name, confidential) in [
        ("trusted-2026-07", "f859864a6a31", false),
        ("confidential-2025-12", "353c6d9a70bc", true),
        ("confidential-2026-06", "2ede2d532aaf", true),
    ] {
        let machine = folder.join(machine);
        let verified = certificate(&machine, &roots, JULY).unwrap();
        assert_eq!((verified.name(), verified.is_confidential()), (name, confidential));
        assert_eq!(
            verified.root_sha256().to_string(),
            "e6c596b17f8ffefba5c300f714cfb1260c6028704ecf7becc4ab5018efb00e95"
        );
        assert_eq!(certificate(&machine, &roots, A_YEAR_LATER), Err("azure-vtpm-certificate"));
        assert_eq!(certificate(&machine, &AkRoots::default(), JULY), Err("azure-vtpm-not-endorsed"));
    }
}

/// Their quotes are over 32 zeros, so nothing of the gateway's is answered by them.
#[test]
fn recorded_quotes_verify_and_prove_the_vm_id() {
    let Some(folder) = folder() else { return };
    let roots = roots(&folder);
    let machines = ["confidential-2025-12", "confidential-2026-06"].map(|name| folder.join(name));
    let vm_ids = machines.each_ref().map(|machine| {
        let text = std::fs::read_to_string(machine.join("vm_id.txt")).unwrap();
        VmId::try_from(text).unwrap()
    });
    for (index, machine) in machines.iter().enumerate() {
        let read = |name: &str| std::fs::read(machine.join(name)).unwrap();
        let ak = AkPublic::parse(&read("ak_public.bin")).unwrap();
        certificate(machine, &roots, JULY).unwrap().check_key(&ak).unwrap();
        let pcrs: BTreeMap<u8, HexDigest> = serde_json::from_slice(&read("pcrs.json")).unwrap();
        // All 24 are signed: more than a gateway asks for, which is what it says.
        let asked = PcrSelection::new(HashAlg::Sha256, 0..16).unwrap();
        let of_asked: BTreeMap<u8, HexDigest> = pcrs.clone().into_iter().filter(|(pcr, _)| *pcr < 16).collect();
        let verify = |extra_data: [u8; 32]| {
            let expected = ExpectedQuote {
                extra_data: &[(SpkiSha256([0; 32]), extra_data)],
                selection: &asked,
                pcrs: PcrValues::presented(&of_asked, &asked).unwrap(),
            };
            let refused = quote::verify(&ak, &read("quoted.bin"), &read("signature.bin"), &expected);
            refused.map(|_| ()).map_err(|error| error.code())
        };
        assert_eq!(verify([0; 32]), Err("quote-selection"));
        assert_eq!(verify([1; 32]), Err("quote-extra-data"));
        let quoted = attest::tpm::wire::QuoteAttest::parse(&read("quoted.bin")).unwrap();
        ak.check_hierarchy(&quoted.qualified_signer).unwrap();
        let all: Vec<&[u8]> = pcrs.values().map(HexDigest::as_bytes).collect();
        assert_eq!(quoted.pcr_digest, HashAlg::Sha256.digest(&all).as_ref());

        assert!(is_measured(&vm_ids[index], HashAlg::Sha256, &pcrs, None));
        assert!(!is_measured(&vm_ids[1 - index], HashAlg::Sha256, &pcrs, None));
        let other = certificate(&machines[1 - index], &roots, JULY).unwrap();
        assert_eq!(other.check_key(&ak).map_err(|error| error.code()), Err("azure-vtpm-other-key"));
    }
}
