//! Certificates of an EK's issuers in the TPM's NV memory, as Intel's on-die CA keeps them there.

use std::fs;
use std::path::Path;

use attest::UnixTime;
use attest::tpm::ek_certificate::{self, EkRoots};
use attest_node::tpm::{EkChoice, TpmDevice, TpmError};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use swtpm_tests::{EkAuthority, TestEndorsement, TestFolder, TpmServer};
use tss_esapi::Context;
use tss_esapi::attributes::{NvIndexAttributes, NvIndexAttributesBuilder};
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{NvAuth, Provision};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Auth, MaxNvBuffer, NvPublicBuilder};

/// Size of the first NV index: it ends in the middle of a certificate.
const FIRST_BYTES: usize = 1000;
/// Maximum of bytes in one write command.
const CHUNK_BYTES: usize = 512;

/// Defines an NV index with this content.
fn write(context: &mut Context, index: u32, attributes: NvIndexAttributes, content: &[u8]) {
    let handle = NvIndexTpmHandle::new(index).unwrap();
    let public = NvPublicBuilder::new()
        .with_nv_index(handle)
        .with_index_name_algorithm(HashingAlgorithm::Sha256)
        .with_index_attributes(attributes)
        .with_data_area_size(content.len())
        .build()
        .unwrap();
    context.execute_with_session(Some(AuthSession::Password), |context| {
        let index = context.nv_define_space(Provision::Owner, Some(Auth::default()), public).unwrap();
        let index: NvIndexHandle = index;
        for (number, part) in content.chunks(CHUNK_BYTES).enumerate() {
            let offset = u16::try_from(number * CHUNK_BYTES).unwrap();
            let part = MaxNvBuffer::try_from(part).unwrap();
            context.nv_write(NvAuth::NvIndex(index), index, part, offset).unwrap();
        }
    });
}

fn attributes(readable: bool) -> NvIndexAttributes {
    let writable = NvIndexAttributesBuilder::new().with_auth_write(true).with_no_da(true);
    let attributes = match readable {
        true => writable.with_auth_read(true).with_owner_read(true),
        false => writable.with_policy_read(true),
    };
    attributes.build().unwrap()
}

fn read_pem(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn completes_a_chain_by_the_issuers_in_nv() {
    let folder = TestFolder::new().unwrap();
    let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
    let server = TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
    let mut tpm = TpmDevice::open(&server.tcti()).unwrap();
    let [root, issuer] = authority.certificates().map(|file| read_pem(&file));
    let roots = EkRoots::new(vec![root.clone()], Vec::new()).unwrap();
    let certificate = tpm.endorsement_key(EkChoice::Rsa).unwrap().certificate.unwrap();
    let verified = |sent: &[Vec<u8>]| {
        let sent: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        ek_certificate::verify(&certificate, &sent, &roots, UnixTime::now())
    };
    let none = tpm.intermediates().unwrap();
    assert!(none.certificates.is_empty() && none.unread.is_none());
    assert!(verified(&none.certificates).unwrap_err().is_unknown_issuer());

    // Concatenated over two indexes, with padding at the end.
    let chain = [root.as_ref(), issuer.as_ref(), &[0xff; 40]].concat();
    let (first, second) = chain.split_at(FIRST_BYTES);
    write(tpm.context(), 0x01c0_0100, attributes(true), first);
    write(tpm.context(), 0x01c0_0101, attributes(true), second);
    let read = tpm.intermediates().unwrap();
    assert_eq!((read.certificates.len(), &read.unread), (2, &None));
    assert_eq!(read.certificates, [root.to_vec(), issuer.to_vec()]);
    verified(&read.certificates).unwrap();
}

#[test]
fn an_unreadable_index_of_issuers_is_named() {
    let folder = TestFolder::new().unwrap();
    let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
    let server = TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
    let mut tpm = TpmDevice::open(&server.tcti()).unwrap();
    let [root, issuer] = authority.certificates().map(|file| read_pem(&file));
    write(tpm.context(), 0x01c0_0100, attributes(true), &root);
    write(tpm.context(), 0x01c0_0101, attributes(false), &issuer);
    let read = tpm.intermediates().unwrap();
    assert_eq!(read.certificates, [root.to_vec()]);
    let unread = read.unread.unwrap();
    assert!(
        unread.index == 0x01c0_0101 && matches!(unread.error, TpmError::Command { .. }),
        "{unread}"
    );
    let said = unread.to_string();
    assert!(
        said.starts_with("the certificates of the EK's issuers in NV index 0x01c00101 could not be read: "),
        "{said}"
    );
}
