//! Running gateway, TPMs on this machine, and common assertions about refusals. Shared by the attack tests.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;

use attest::HashAlg;
use attest::protocol::{Attester as Presented, ChallengeRequest, EvidenceResponse, HexDigest, TpmAttester, TpmEvidence};
use attest_node::tpm::{Attester, EkChoice, EndorsementKey, TpmDevice};
use aws_lc_rs::digest;
use swtpm_tests::{Client, EkAuthority, IssuedChallenge, LogRecord, POOL, Reply, TestEndorsement, TestFolder, TestGateway, TpmServer};
use tss_esapi::Context;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{Data, SignatureScheme};
use tss_esapi::traits::Marshall as _;
use tss_esapi::tss2_esys::{TPML_PCR_SELECTION, TPMS_PCR_SELECTION};

pub const SHA1_BANK: u16 = 0x0004;
pub const SHA256_BANK: u16 = 0x000b;

/// In the order of their end: the gateway and the TPM before the folder.
pub struct Bench {
    pub gateway: TestGateway,
    pub client: Client,
    pub authority: EkAuthority,
    /// TPM endorsed by `authority`, which the gateway trusts.
    pub server: TpmServer,
    pub folder: TestFolder,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a gateway whose folder was prepared before.
    pub fn with(prepare: impl FnOnce(&TestGateway)) -> Self {
        let folder = TestFolder::new().unwrap();
        let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
        let mut gateway = TestGateway::on_free_port(&folder.path().join("gateway")).unwrap();
        gateway.trust(&authority).unwrap();
        gateway.refuse_at_once().unwrap();
        prepare(&gateway);
        gateway.start(None).unwrap();
        Self {
            client: Client::new(&gateway).unwrap(),
            server: TpmServer::start(folder.path(), TestEndorsement::By(&authority)).unwrap(),
            gateway,
            authority,
            folder,
        }
    }

    pub fn tpm(&self) -> TpmDevice {
        TpmDevice::open(&self.server.tcti()).unwrap()
    }

    /// Starts another TPM of the authority that the gateway trusts.
    pub fn second_tpm(&self) -> TpmServer {
        TpmServer::start(&self.folder.path().join("second"), TestEndorsement::By(&self.authority)).unwrap()
    }

    /// Adds a pool to the folder; the running gateway does not know it yet.
    pub fn add_pool(&self, name: &str) {
        let pools = self.gateway.folder().join("pools");
        let status = std::process::Command::new("cp")
            .arg("-r")
            .args([pools.join(POOL), pools.join(name)])
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub fn asked(&self, request: &ChallengeRequest) -> IssuedChallenge {
        self.client.challenged(request).unwrap()
    }

    /// Attests correctly, and gets a ticket.
    pub fn trusts(&self, attester: &mut Attester<'_>, request: &ChallengeRequest) -> EvidenceResponse {
        let asked = self.asked(request);
        let evidence = honest(attester, &asked);
        self.client.evidence(&asked.answered(evidence)).unwrap().json().unwrap()
    }

    /// Attests correctly except for one change, and is refused.
    pub fn refuses_altered(
        &self,
        attester: &mut Attester<'_>,
        request: &ChallengeRequest,
        code: &str,
        alter: impl FnOnce(&mut TpmEvidence, &mut Attester<'_>, &IssuedChallenge),
    ) {
        let asked = self.asked(request);
        let mut evidence = honest(attester, &asked);
        alter(&mut evidence, attester, &asked);
        self.refuses(&asked, evidence, code);
    }

    /// Verifies that the evidence earns nothing but this refusal.
    pub fn refuses(&self, asked: &IssuedChallenge, evidence: TpmEvidence, code: &str) {
        self.recorded_refusal("evidence", code, || self.client.evidence(&asked.answered(evidence)).unwrap());
    }

    /// Verifies that the request does not even get a challenge.
    pub fn refuses_request(&self, request: &ChallengeRequest, code: &str) {
        self.recorded_refusal("challenge", code, || self.client.challenge(request).unwrap());
    }

    /// Verifies that one request gets one refusal and one record of it, and that its sender still gets the pre-approved config only.
    fn recorded_refusal(&self, decision: &str, code: &str, request: impl FnOnce() -> Reply) {
        let before = self.gateway.records().unwrap().len();
        let reply = request();
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.code(), code, "HTTP {}: {body}", reply.status);
        assert!([400, 403].contains(&reply.status), "HTTP {}: {body}", reply.status);
        assert!(!body.contains("ticket."), "{body}");
        let records = self.gateway.records().unwrap().split_off(before);
        let [record] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!(
            (record.decision(), record.verdict(), record.code(), record.grant()),
            (decision, "refused", Some(code), None),
            "{record:?}"
        );
        self.gives_only_pre_approved();
    }

    /// Verifies that an unauthenticated client gets the pre-approved config.
    pub fn gives_only_pre_approved(&self) {
        self.gives("pre-approved", None);
    }

    /// Verifies the config that this credential earns, in the answer and in the log.
    pub fn gives(&self, grant: &str, bearer: Option<&str>) {
        let config: serde_json::Value = self.client.config(POOL, bearer).unwrap().json().unwrap();
        assert_eq!(config, self.gateway.pool_config(grant).unwrap());
        let record = self.last_record();
        assert_eq!(
            (record.decision(), record.verdict(), record.grant()),
            ("config", "served", Some(grant))
        );
    }

    /// Verifies that the config is refused, in the answer and in the log.
    pub fn refuses_config(&self, pool: &str, bearer: &str, code: &str) {
        let reply = self.client.config(pool, Some(bearer)).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (403, code));
        let record = self.last_record();
        assert_eq!(
            (record.decision(), record.verdict(), record.code(), record.grant()),
            ("config", "refused", Some(code), None)
        );
    }

    pub fn last_record(&self) -> LogRecord {
        self.gateway.records().unwrap().pop().unwrap()
    }
}

/// Returns the EK that attest-node would choose.
pub fn endorsement_key(tpm: &mut TpmDevice) -> EndorsementKey {
    tpm.endorsement_key(EkChoice::Auto).unwrap()
}

/// Returns the challenge request that attest-node would send.
pub fn request(ek: &EndorsementKey, ak_public: &[u8]) -> ChallengeRequest {
    ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: POOL.to_owned(),
        name: None,
        attester: Presented::from(TpmAttester {
            ek_public: ek.public.clone().into(),
            ek_certificate: ek.certificate.clone().map(Into::into),
            ek_certificate_unread: false,
            ek_intermediates: Vec::new(),
            ak_public: ak_public.to_vec().into(),
        }),
    }
}

pub fn named(request: &ChallengeRequest, name: &str) -> ChallengeRequest {
    ChallengeRequest {
        name: Some(name.to_owned()),
        ..request.clone()
    }
}

/// Returns the evidence that attest-node would send.
pub fn honest(attester: &mut Attester<'_>, asked: &IssuedChallenge) -> TpmEvidence {
    let task = asked.task();
    let secret = attester
        .activate(task.credential_blob.as_ref(), task.encrypted_secret.as_ref())
        .unwrap();
    let bank: HashAlg = task.pcr_bank.parse().unwrap();
    let quote = attester.quote(&asked.extra_data(), bank, &task.pcrs).unwrap();
    TpmEvidence {
        secret_sha256: HexDigest::from(sha256(&secret)),
        quoted: quote.quoted.into(),
        signature: quote.signature.into(),
        pcrs: hex_values(&quote.pcrs),
        event_log: None,
    }
}

pub fn hex_values(pcrs: &BTreeMap<u8, Vec<u8>>) -> BTreeMap<u8, HexDigest> {
    pcrs.iter().map(|(pcr, value)| (*pcr, HexDigest::new(value).unwrap())).collect()
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().unwrap()
}

/// Runs a command that needs one empty password.
pub fn with_password<T>(tpm: &mut TpmDevice, command: impl FnOnce(&mut Context) -> T) -> T {
    tpm.context().execute_with_session(Some(AuthSession::Password), command)
}

/// Quotes any selection, including repeated and unordered banks, and replaces the honest quote by it.
pub fn quote_instead(evidence: &mut TpmEvidence, attester: &mut Attester<'_>, extra_data: &[u8], banks: &[(u16, &[u8])]) {
    let mut selection = TPML_PCR_SELECTION {
        count: banks.len().try_into().unwrap(),
        ..Default::default()
    };
    for (slot, (bank, pcrs)) in selection.pcrSelections.iter_mut().zip(banks) {
        *slot = TPMS_PCR_SELECTION {
            hash: *bank,
            sizeofSelect: 3,
            pcrSelect: [0; 4],
        };
        pcrs.iter().for_each(|pcr| slot.pcrSelect[usize::from(pcr / 8)] |= 1 << (pcr % 8));
    }
    let ak = attester.ak_handle();
    let data = Data::try_from(extra_data.to_vec()).unwrap();
    let quote = |context: &mut Context| context.quote(ak, data, SignatureScheme::Null, selection.try_into().unwrap());
    let (quoted, signature) = with_password(attester.tpm(), quote).unwrap();
    evidence.quoted = quoted.marshall().unwrap().into();
    evidence.signature = signature.marshall().unwrap().into();
}

/// Extends a PCR of the sha256 bank.
pub fn extend(tpm: &mut TpmDevice, pcr: u8, value: [u8; 32]) {
    use tss_esapi::handles::PcrHandle;
    use tss_esapi::interface_types::algorithm::HashingAlgorithm;
    let mut digests = tss_esapi::structures::DigestValues::new();
    digests.set(HashingAlgorithm::Sha256, value.to_vec().try_into().unwrap());
    let handle = PcrHandle::try_from(u32::from(pcr)).unwrap();
    with_password(tpm, |context| context.pcr_extend(handle, digests)).unwrap();
}
