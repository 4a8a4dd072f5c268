//! A TPM emulator set up as Azure's vTPM is: what attest-node reads of it and quotes is what the verifier takes.

use std::fs;
use std::thread;
use std::time::Duration;

use attest::azure::vtpm::{
    self, AK_CERTIFICATE_NV_INDEX, AK_HANDLE, AkRoots, AzureVtpmAttester, AzureVtpmEvidence, AzureVtpmSubject, ExpectedBinding, VmId,
};
use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::protocol::{Blob, HexDigest};
use attest::tpm::ek_certificate::EkKey;
use attest::tpm::wire::{KeyParameters, Public as Area};
use attest::{HashAlg, PcrSelection, SpkiSha256, UnixTime};
use attest_node::tpm::{AkKind, TpmDevice, TpmError};
use cloud_fixtures::azure::vtpm::{VtpmCas, measured, nv_contents};
use cloud_fixtures::pem;
use cloud_fixtures::server::ServerFault;
use swtpm_tests::{Process, Programs, TestCloud, TestEndorsement, TestFolder, TestGateway, TpmServer};
use tss_esapi::Context;
use tss_esapi::attributes::NvIndexAttributesBuilder;
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle, ObjectHandle, PcrHandle, PersistentTpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::dynamic_handles::Persistent;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth, Provision};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Auth, DigestValues, MaxNvBuffer, NvPublicBuilder};

use crate::estate::Estate;

const VM_ID: &str = "b1310a36-d400-46f6-82cb-6217df846586";
const SERVER_KEY: SpkiSha256 = SpkiSha256([7; 32]);
const NONCE: [u8; 32] = [9; 32];
/// Maximum of bytes in one write command: a TPM's NV buffer has 512 at the least.
const CHUNK_BYTES: usize = 512;
/// Size of the NV index: the maximum of this TPM emulator. Azure's have 4096 bytes.
const NV_BYTES: usize = 2048;
/// Password of the NV index. Azure's is random.
const PASSWORD: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// Maximum duration of attest-node, which ends long before, unless something is wrong.
const NODE_LIMIT: Duration = Duration::from_secs(90);

/// Sets up the TPM like Azure: its key, an NV index for the key's certificate, and the vmId in PCR 6. Returns the content to write to the
/// index.
fn set_up(tpm: &mut TpmDevice, cas: &VtpmCas) -> Vec<u8> {
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
    define_nv(tpm.context());
    for text in measured(VM_ID) {
        let mut digests = DigestValues::new();
        let digest = HashAlg::Sha256.digest(&[&text]);
        digests.set(HashingAlgorithm::Sha256, digest.as_ref().to_vec().try_into().unwrap());
        with_password(tpm.context(), |context| context.pcr_extend(PcrHandle::Pcr6, digests)).unwrap();
    }
    nv_contents(&certificate)[..NV_BYTES].to_vec()
}

fn with_password<T>(context: &mut Context, commands: impl FnOnce(&mut Context) -> T) -> T {
    context.execute_with_session(Some(AuthSession::Password), commands)
}

fn nv_index() -> NvIndexTpmHandle {
    NvIndexTpmHandle::new(AK_CERTIFICATE_NV_INDEX).unwrap()
}

/// Defines the NV index like Azure's firmware before the machine starts. Only the firmware has its password; the owner may read it
/// (microsoft/openvmm `vm/devices/tpm/tpm_lib`, `nv_define_space` and `platform_akcert_attributes`).
fn define_nv(context: &mut Context) {
    let attributes = NvIndexAttributesBuilder::new()
        .with_owner_read(true)
        .with_auth_read(true)
        .with_auth_write(true)
        .with_platform_create(true)
        .with_no_da(true)
        .build()
        .unwrap();
    let public = NvPublicBuilder::new()
        .with_nv_index(nv_index())
        .with_index_name_algorithm(HashingAlgorithm::Sha256)
        .with_index_attributes(attributes)
        .with_data_area_size(NV_BYTES)
        .build()
        .unwrap();
    let password = Auth::try_from(PASSWORD.as_slice()).unwrap();
    with_password(context, |context| {
        context.nv_define_space(Provision::Platform, Some(password), public)
    })
    .unwrap();
}

/// Writes the NV index like Azure's host once it has the certificate.
fn write_nv(context: &mut Context, contents: &[u8]) {
    let index = context
        .execute_without_session(|context| context.tr_from_tpm_public(nv_index().into()))
        .unwrap();
    context.tr_set_auth(index, Auth::try_from(PASSWORD.as_slice()).unwrap()).unwrap();
    let index = NvIndexHandle::from(index);
    for (number, part) in contents.chunks(CHUNK_BYTES).enumerate() {
        let offset = u16::try_from(number * CHUNK_BYTES).unwrap();
        let part = MaxNvBuffer::try_from(part).unwrap();
        with_password(context, |context| context.nv_write(NvAuth::NvIndex(index), index, part, offset)).unwrap();
    }
}

#[test]
fn verifier_accepts_an_azure_vtpm_quote() {
    let folder = TestFolder::new().unwrap();
    let server = TpmServer::start(folder.path(), TestEndorsement::None).unwrap();
    let cas = VtpmCas::global();
    let mut tpm = TpmDevice::open(&server.tcti()).unwrap();
    assert!(tpm.azure_ak().unwrap().is_none(), "no key of Azure's yet");
    let contents = set_up(&mut tpm, &cas);
    let unwritten = TpmError::Unwritten {
        index: AK_CERTIFICATE_NV_INDEX,
    };
    assert_eq!(tpm.azure_ak().unwrap_err(), unwritten);
    write_nv(tpm.context(), &contents);

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
    let expected = ExpectedBinding {
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
    assert!(TpmDevice::open(&server.tcti()).unwrap().azure_ak().unwrap().is_some());
}

/// Creates a gateway for this machine, by both of its kinds of evidence.
fn gateway(folder: &TestFolder, estate: &Estate, cas: &VtpmCas) -> TestGateway {
    let mut gateway = TestGateway::on_free_port(&folder.path().join("gateway")).unwrap();
    estate.accept(&["azure", "azure-vtpm"], &gateway);
    gateway
        .add_to_pool("[azure_vtpm]\n[azure_vtpm.pcrs]\n\"0-7\" = \"not checked\"\n")
        .unwrap();
    gateway.write("azure-vtpm-roots/root.pem", &pem(&cas.root())).unwrap();
    for intermediate in cas.intermediates() {
        gateway.write("azure-vtpm-roots/intermediate.pem", &pem(&intermediate)).unwrap();
    }
    gateway.start(None).unwrap();
    let pointer = gateway.pointer_to("127.0.0.1", gateway.port(), None).unwrap();
    estate.metadata.set_user_data(&pointer);
    gateway
}

/// Runs the program like in an Azure machine with this TPM. Returns its exit code, and its console output.
fn attest_node(folder: &TestFolder, estate: &Estate, tpm: &TpmServer) -> (Option<i32>, String) {
    let file = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir_all(file("dmi")).unwrap();
    fs::write(file("dmi/chassis_asset_tag"), "7783-7084-3265-9085-8269-3286-77\n").unwrap();
    fs::write(file("cmdline"), "ignition.platform.id=azure\n").unwrap();
    let arguments = [
        ("--dmi", file("dmi")),
        ("--cmdline", file("cmdline")),
        ("--metadata", estate.metadata.server().url()),
        ("--out", file("user.ign")),
        ("--state", file("state")),
        ("--first-boot-secret-on", "none".to_owned()),
        ("--event-log", file("no-event-log")),
        ("--tcti", tpm.tcti()),
    ];
    let options = arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    let arguments = std::iter::once("attest".to_owned()).chain(options);
    let mut node = Process::spawn(&Programs::build().unwrap().node, arguments, &folder.path().join("node.log"), None).unwrap();
    (node.wait(NODE_LIMIT).unwrap().code(), node.lines().join("\n"))
}

/// The node's first TPM command about the NV index with the certificate.
const NV_READ_PUBLIC: &str = " 80 01 00 00 00 0E 00 00 01 69 01 C1 01 D0";
const VM_ID_PATH: &str = "/metadata/instance/compute/vmId";
/// Number of failed attempts: the pauses between them, and before the next one, are 6.4 s at least.
const GONE_TIMES: usize = 6;

/// Azure provides the certificate of the vTPM's key and the metadata service's data while the machine boots.
#[test]
fn attests_although_azure_vtpm_data_comes_late() {
    let folder = TestFolder::new().unwrap();
    let (estate, cas) = (Estate::new(TestCloud::Azure), VtpmCas::global());
    let gateway = gateway(&folder, &estate, &cas);
    let server = TpmServer::start(folder.path(), TestEndorsement::None).unwrap();
    let contents = set_up(&mut TpmDevice::open(&server.tcti()).unwrap(), &cas);
    let metadata = estate.metadata.server();
    metadata.fail_times(VM_ID_PATH, ServerFault::Status(410), GONE_TIMES);
    let looks_for_it = |line: &str| line.starts_with(NV_READ_PUBLIC);
    let (code, lines) = thread::scope(|scope| {
        scope.spawn(|| {
            server.process().wait_line(NODE_LIMIT, looks_for_it).unwrap();
            write_nv(TpmDevice::open(&server.tcti()).unwrap().context(), &contents);
        });
        attest_node(&folder, &estate, &server)
    });
    let asked = metadata.requests();
    let asked = asked.iter().filter(|request| request.target.starts_with(VM_ID_PATH)).count();
    assert_eq!(asked, GONE_TIMES + 1);
    let looked = server.process().lines().iter().filter(|line| looks_for_it(line)).count();
    assert!(looked >= 3, "the node in vain, what writes it, and the node: {looked}");
    assert_eq!(code, Some(0), "{lines}");
    let said = format!("attested as {} by azure + azure-vtpm to https://127.0.0.1:", estate.identity);
    assert!(lines.contains(&said) && lines.lines().count() == 1, "{lines}");
    let records = gateway.records().unwrap();
    let record = records.last().unwrap();
    assert_eq!((record.verdict(), record.identity()), ("trusted", Some(estate.identity.as_str())));
    assert_eq!(record.text("/claims/azure_vtpm/vm_id"), Some(VM_ID));
}
