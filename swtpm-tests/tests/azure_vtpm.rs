//! A TPM emulator set up as Azure's vTPM is: what attest-node reads of it and quotes is what the verifier takes.

use attest::azure::vtpm::{
    self, AK_CERTIFICATE_NV_INDEX, AK_HANDLE, AkRoots, AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmSubject, Expected, VmId,
};
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::protocol::{Blob, HexDigest};
use attest::tpm::ek_certificate::EkKey;
use attest::tpm::wire::{KeyParameters, Public as Area};
use attest::{HashAlg, PcrSelection, SpkiSha256, UnixTime};
use attest_node::tpm::{AkKind, Tpm};
use cloud_fixtures::azure::vtpm::{VtpmCas, measured, nv_contents};
use swtpm_tests::{Endorsement, Folder, TpmServer};
use tss_esapi::Context;
use tss_esapi::attributes::NvIndexAttributesBuilder;
use tss_esapi::handles::{NvIndexTpmHandle, ObjectHandle, PcrHandle, PersistentTpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::dynamic_handles::Persistent;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth, Provision};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{DigestValues, MaxNvBuffer, NvPublicBuilder};

const VM_ID: &str = "b1310a36-d400-46f6-82cb-6217df846586";
const SERVER_KEY: SpkiSha256 = SpkiSha256([7; 32]);
const NONCE: [u8; 32] = [9; 32];
/// Bytes written by one command: a TPM's NV buffer has 512 at the least.
const CHUNK_BYTES: usize = 512;

/// Puts Azure's key and its certificate where Azure does, and the vmId into PCR 6.
fn set_up(tpm: &mut Tpm, cas: &VtpmCas) {
    let ek = tpm.endorsement_key(attest_node::tpm::EkChoice::Auto).unwrap();
    let area = {
        let mut keys = tpm.attester_of(&ek, AkKind::Rsa2048, Hierarchy::Endorsement).unwrap();
        let (ak, area) = (keys.ak_handle(), keys.ak_public().to_vec());
        let persistent = PersistentTpmHandle::new(AK_HANDLE).unwrap();
        with_password(keys.tpm().context(), |context| {
            context.evict_control(Provision::Owner, ObjectHandle::from(ak), Persistent::Persistent(persistent))
        })
        .unwrap();
        area
    };
    let KeyParameters::Rsa { modulus, .. } = Area::parse(&area).unwrap().key else {
        panic!("the AK is RSA");
    };
    let spki = EkKey::Rsa {
        n: modulus,
        e: vec![1, 0, 1],
    };
    let certificate = cas.certify_spki("f859864a6a31.TrustedVM.Azure.windows.net", &spki.spki_der());
    write_nv(tpm.context(), &nv_contents(&certificate)[..2048]);
    for text in measured(VM_ID) {
        let mut digests = DigestValues::new();
        let digest = HashAlg::Sha256.digest(&[&text]);
        digests.set(HashingAlgorithm::Sha256, digest.as_ref().to_vec().try_into().unwrap());
        with_password(tpm.context(), |context| context.pcr_extend(PcrHandle::Pcr6, digests)).unwrap();
    }
}

fn with_password<T>(context: &mut Context, commands: impl FnOnce(&mut Context) -> T) -> T {
    context.execute_with_session(Some(AuthSession::Password), commands)
}

fn write_nv(context: &mut Context, contents: &[u8]) {
    let attributes = NvIndexAttributesBuilder::new()
        .with_owner_read(true)
        .with_owner_write(true)
        .with_auth_read(true)
        .with_auth_write(true)
        .with_no_da(true)
        .build()
        .unwrap();
    let public = NvPublicBuilder::new()
        .with_nv_index(NvIndexTpmHandle::new(AK_CERTIFICATE_NV_INDEX).unwrap())
        .with_index_name_algorithm(HashingAlgorithm::Sha256)
        .with_index_attributes(attributes)
        .with_data_area_size(contents.len())
        .build()
        .unwrap();
    with_password(context, |context| {
        let index = context.nv_define_space(Provision::Owner, None, public).unwrap();
        for (number, part) in contents.chunks(CHUNK_BYTES).enumerate() {
            let offset = u16::try_from(number * CHUNK_BYTES).unwrap();
            context
                .nv_write(NvAuth::Owner, index, MaxNvBuffer::try_from(part).unwrap(), offset)
                .unwrap();
        }
    });
}

#[test]
fn what_the_node_reads_of_azures_vtpm_is_what_the_verifier_takes() {
    let folder = Folder::new().unwrap();
    let server = TpmServer::start(folder.path(), Endorsement::None).unwrap();
    let cas = VtpmCas::global();
    let mut tpm = Tpm::open(&server.tcti()).unwrap();
    assert!(tpm.azure_ak().unwrap().is_none(), "no key of Azure's yet");
    set_up(&mut tpm, &cas);

    let ak = tpm.azure_ak().unwrap().unwrap();
    let pcrs: Vec<u8> = (0..8).collect();
    let extra_data = qualifying_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY);
    let quote = tpm.azure_quote(&extra_data, HashAlg::Sha256, &pcrs).unwrap();
    let subject = AzureVtpmSubject {
        attester: AzureVtpmAttester {
            ak_public: Blob(ak.public),
            ak_certificate: Blob(ak.certificate),
            ak_intermediates: Vec::new(),
            vm_id: VmId::try_from(VM_ID.to_owned()).unwrap(),
        },
        selection: PcrSelection::new(HashAlg::Sha256, pcrs).unwrap(),
    };
    let evidence = AzureVtpmEvidence {
        quoted: Blob(quote.quoted),
        signature: Blob(quote.signature),
        pcrs: quote
            .pcrs
            .iter()
            .map(|(pcr, value)| (*pcr, HexDigest::new(value).unwrap()))
            .collect(),
        event_log: None,
    };
    let roots = AkRoots::new(vec![cas.root()], cas.intermediates()).unwrap();
    let expected = Expected {
        nonce: &NONCE,
        purpose: PURPOSE_CONFIG,
        pool: "worker",
        server_keys: &[SERVER_KEY],
    };
    let verify = |subject: &AzureVtpmSubject| vtpm::verify(subject, &evidence, &expected, &roots, UnixTime::now());
    assert_eq!(verify(&subject).unwrap().identity(), format!("azure-vtpm:{VM_ID}"));
    let mut other = subject.clone();
    other.attester.vm_id = VmId::try_from("3c18c97a-0d2a-4565-969d-166cdcef26a3".to_owned()).unwrap();
    assert_eq!(verify(&other).unwrap_err().code(), "azure-vtpm-vm-id");
    // The key stays, as Azure's does, and is there after the node's next start.
    drop(tpm);
    assert!(Tpm::open(&server.tcti()).unwrap().azure_ak().unwrap().is_some());
}
