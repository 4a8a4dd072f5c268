//! Machine of each cloud, as its metadata server describes it, with a software TPM, and its evidence for a challenge.

use std::sync::{Arc, LazyLock};

use attest::aws::nitro_tpm::expected_user_data;
use attest::aws::sts::expected_server_id;
use attest::azure::attested_document::ImdsNonce;
use attest::azure::vtpm::{AzureVtpmAttester, AzureVtpmEvidence, VmId};
use attest::challenge::Subject;
use attest::gcp::Audience;
use attest::nonce::qualifying_data;
use attest::protocol::{
    Attester, AzureEvidence, BearerText, Blob, ChallengeRequest, ChallengeResponse, Evidence, EvidenceRequest, GcpEvidence, HexDigest,
    IdentityDocumentEvidence, NitroTpmEvidence, Nothing, SecretText, StsEvidence, Task, TokenEvidence,
};
use attest::{Kind, SpkiSha256, UnixTime};
use attest_gateway::credentials::challenges::OpenedChallenge;
use attest_gateway::credentials::seal::SealKeyRing;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rsa::KeySize;
use cloud_fixtures::aws::{self, NitroAuthority, NitroDocument, RegionAuthority, RoleSession};
use cloud_fixtures::azure::vtpm::{Vtpm, VtpmCas, ak_params, nv_contents};
use cloud_fixtures::azure::{self, AzureAuthority};
use cloud_fixtures::google::{self, JwtSigner};
use cloud_fixtures::{clock, random};

use crate::support::{Answer, Case, Gateway, POOL};

/// Google's key for identity tokens.
pub static GOOGLE: LazyLock<Arc<JwtSigner>> = LazyLock::new(|| Arc::new(JwtSigner::new(KeySize::Rsa2048)));
/// The region's key for identity documents.
pub static REGION: LazyLock<RegionAuthority> = LazyLock::new(|| RegionAuthority::new(1));
/// AWS's CAs of NitroTPM documents.
pub static NITRO: LazyLock<NitroAuthority> = LazyLock::new(NitroAuthority::new);
/// Azure's CAs of attested documents.
pub static AZURE: LazyLock<AzureAuthority> = LazyLock::new(|| AzureAuthority::new("eastus"));

/// Azure's CAs of the AKs of vTPMs.
pub static AZURE_VTPM: LazyLock<VtpmCas> = LazyLock::new(VtpmCas::global);
/// The vTPM of the machine in Azure.
static VTPM_OF_AZURE: LazyLock<Arc<Vtpm>> = LazyLock::new(|| Arc::new(Vtpm::new(&azure::AzureMachine::default().vm_id)));

/// Time since the instances were started, in seconds.
pub const STARTED: u64 = 60;

/// Machine that is in every cloud at once: the requested kind of evidence selects one.
pub struct Machine {
    pub google: google::GoogleInstance,
    pub signer: Arc<JwtSigner>,
    pub aws: aws::AwsInstance,
    pub claimant: [u8; 32],
    pub session: RoleSession,
    pub azure: azure::AzureMachine,
    pub vtpm: Arc<Vtpm>,
    pub token: String,
    pub tpm: Option<Case>,
    pub ek_certificate: Option<Vec<u8>>,
    pub name: Option<String>,
    pub pool: String,
}

impl Machine {
    pub fn new() -> Self {
        let now = clock::now();
        let aws = aws::AwsInstance::example(now - STARTED);
        Self {
            google: google::GoogleInstance::example(now - STARTED),
            signer: GOOGLE.clone(),
            claimant: [0x33; 32],
            session: RoleSession::for_instance(&aws, now),
            aws,
            azure: azure::AzureMachine::default(),
            vtpm: VTPM_OF_AZURE.clone(),
            token: String::new(),
            tpm: None,
            ek_certificate: None,
            name: None,
            pool: POOL.to_owned(),
        }
    }

    /// Returns another process on the same machine with the cloud's evidence, or the machine after its next boot.
    pub fn another() -> Self {
        Self::new().but(|machine| machine.claimant = random())
    }

    /// Returns the machine with one change.
    pub fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the challenge request that offers these kinds.
    pub fn request(&self, offer: &[Kind]) -> ChallengeRequest {
        let there = |kind| offer.contains(&kind).then_some(Nothing {});
        let tpm = offer.contains(&Kind::Tpm).then(|| {
            let mut attester = self.tpm.as_ref().unwrap().attester();
            attester.ek_certificate = self.ek_certificate.clone().map(Blob);
            attester
        });
        let claimant_sha256 = offer.iter().any(|kind| kind.is_of_a_cloud()).then(|| sha256(&self.claimant));
        ChallengeRequest {
            kubelet_key_sha256: None,
            rehearsal: false,
            pool: self.pool.clone(),
            name: self.name.clone(),
            attester: Attester {
                tpm,
                gcp: there(Kind::Gcp),
                aws_identity_document: there(Kind::AwsIdentityDocument),
                aws_nitro_tpm: there(Kind::AwsNitroTpm),
                aws_sts: there(Kind::AwsSts),
                azure: there(Kind::Azure),
                azure_vtpm: offer.contains(&Kind::AzureVtpm).then(|| self.vtpm_attester()),
                token: there(Kind::Token),
                claimant_sha256,
            },
        }
    }

    /// Requests a challenge that offers these kinds.
    pub async fn ask(&self, gateway: &Gateway, offer: &[Kind]) -> Asked {
        self.ask_with(gateway, &self.request(offer)).await
    }

    /// Requests a challenge with this request.
    pub async fn ask_with(&self, gateway: &Gateway, request: &ChallengeRequest) -> Asked {
        let answer = gateway.post("/v1/attest/challenge", request).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", String::from_utf8_lossy(&answer.body));
        let response: ChallengeResponse = serde_json::from_slice(&answer.body).unwrap();
        let seal = SealKeyRing::open(&gateway.path("state/seal.key")).unwrap();
        let challenge = OpenedChallenge::open(&seal, &response.challenge, UnixTime::now())
            .unwrap()
            .peek()
            .clone();
        Asked {
            challenge: response.challenge,
            task: response.task,
            subject: challenge.subject,
            nonce: response.nonce.0,
            purpose: response.purpose,
            pool: self.pool.clone(),
            key: SpkiSha256::from_certificate(&gateway.certificate()).unwrap(),
        }
    }

    /// Returns all requested evidence.
    pub fn evidence(&self, asked: &Asked) -> Evidence {
        let Task {
            tpm,
            gcp,
            aws_identity_document,
            aws_nitro_tpm,
            aws_sts,
            azure,
            azure_vtpm,
            token,
        } = &asked.task;
        Evidence {
            tpm: tpm.as_ref().and_then(|_| self.quote(asked).tpm),
            gcp: gcp.as_ref().map(|_| gcp_evidence(self.identity_token(asked))),
            aws_identity_document: aws_identity_document.map(|_| self.document(REGION.sign(&self.aws.identity_document()))),
            aws_nitro_tpm: aws_nitro_tpm.map(|_| nitro_evidence(self.nitro_document(asked).document())),
            aws_sts: aws_sts.map(|_| sts_evidence(&self.presigned(asked))),
            azure: azure.map(|_| azure_evidence(AZURE.sign(&self.attested_document(asked)))),
            azure_vtpm: azure_vtpm.as_ref().map(|task| self.vtpm_evidence(asked, &task.pcrs)),
            token: token.map(|_| TokenEvidence {
                token: SecretText::new(self.token.clone().into()),
            }),
            claimant: asked
                .task
                .kinds()
                .iter()
                .any(|kind| kind.is_of_a_cloud())
                .then(|| Blob(self.claimant.to_vec())),
        }
    }

    /// Returns a quote. Its secret is taken from the challenge, as if the TPM had activated the credential.
    fn quote(&self, asked: &Asked) -> Evidence {
        let case = self.tpm.as_ref().unwrap();
        let mut quoted = case.quoted();
        quoted.extra_data = asked.binding().to_vec();
        let quoted = quoted.to_bytes();
        let mut evidence = case.evidence();
        let tpm = evidence.tpm.as_mut().unwrap();
        tpm.secret_sha256 = asked.subject.tpm.as_ref().unwrap().secret_sha256.clone();
        tpm.signature = Blob(case.ak.sign(&quoted));
        tpm.quoted = Blob(quoted);
        evidence
    }

    pub fn identity_token(&self, asked: &Asked) -> String {
        let claims = self.google.claims(asked.audience().as_str(), clock::now());
        self.signer.sign(&claims)
    }

    pub fn document(&self, pkcs7: String) -> IdentityDocumentEvidence {
        IdentityDocumentEvidence { pkcs7: BearerText(pkcs7) }
    }

    pub fn nitro_document(&self, asked: &Asked) -> NitroDocument {
        let user_data = expected_user_data(&asked.nonce, &asked.purpose, &asked.pool, &asked.key);
        NITRO.document(&self.aws.instance_id, &self.aws.region, &asked.nonce, &user_data, clock::now())
    }

    pub fn presigned(&self, asked: &Asked) -> serde_json::Value {
        self.session.presigned(&self.aws.region, &asked.server_id(), clock::now())
    }

    /// Returns a vTPM's AK and its certificate.
    pub fn vtpm_attester(&self) -> AzureVtpmAttester {
        let certificate = AZURE_VTPM.certify(&ak_params("f859864a6a31.TrustedVM.Azure.windows.net"), &self.vtpm.ak.pair);
        AzureVtpmAttester {
            ak_public: Blob(self.vtpm.ak_public()),
            ak_certificate: Blob(nv_contents(&certificate)),
            ak_intermediates: Vec::new(),
            vm_id: VmId::try_from(self.azure.vm_id.clone()).unwrap(),
        }
    }

    /// Returns the vTPM's quote of these PCRs.
    pub fn vtpm_evidence(&self, asked: &Asked, pcrs: &[u8]) -> AzureVtpmEvidence {
        let quoted = self.vtpm.quoted(&asked.binding(), pcrs);
        let value = |pcr: &u8| (*pcr, HexDigest::new(&self.vtpm.pcrs[pcr]).unwrap());
        AzureVtpmEvidence {
            signature: Blob(self.vtpm.sign(&quoted)),
            quoted: Blob(quoted),
            pcrs: pcrs.iter().map(value).collect(),
            event_log: None,
        }
    }

    pub fn attested_document(&self, asked: &Asked) -> serde_json::Value {
        let nonce = ImdsNonce::derive(&asked.binding());
        self.azure.document(Some(nonce.as_str()), clock::now())
    }

    /// Requests a challenge, and sends its answer.
    pub async fn attest(&self, gateway: &Gateway, offer: &[Kind]) -> Answer {
        self.attest_altered(gateway, offer, |_, _| ()).await
    }

    /// Like [`Machine::attest`], with altered evidence.
    pub async fn attest_altered(&self, gateway: &Gateway, offer: &[Kind], alter: impl FnOnce(&mut Evidence, &Asked)) -> Answer {
        let asked = self.ask(gateway, offer).await;
        let mut evidence = self.evidence(&asked);
        alter(&mut evidence, &asked);
        asked.show(gateway, evidence).await
    }
}

/// Challenge, and the parameters of its answer. Evidence follows the changes that a test makes here.
#[derive(Clone)]
pub struct Asked {
    challenge: String,
    pub task: Task,
    subject: Subject,
    pub nonce: Vec<u8>,
    pub purpose: String,
    pub pool: String,
    pub key: SpkiSha256,
}

impl Asked {
    /// Returns the challenge with one change.
    pub fn but(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut other = self.clone();
        change(&mut other);
        other
    }

    pub fn audience(&self) -> Audience {
        let gateway = &self.task.gcp.as_ref().unwrap().gateway;
        Audience::new(gateway, &self.purpose, &self.pool, &self.nonce, &self.key)
    }

    pub fn binding(&self) -> [u8; 32] {
        qualifying_data(&self.nonce, &self.purpose, &self.pool, &self.key)
    }

    pub fn server_id(&self) -> String {
        expected_server_id(&self.nonce, &self.purpose, &self.pool, &self.key)
    }

    /// Returns the request's body with this evidence.
    pub fn body(&self, evidence: Evidence) -> EvidenceRequest {
        EvidenceRequest {
            challenge: self.challenge.clone(),
            evidence,
            config: None,
        }
    }

    pub async fn show(&self, gateway: &Gateway, evidence: Evidence) -> Answer {
        gateway.post("/v1/attest/evidence", &self.body(evidence)).await
    }
}

pub fn gcp_evidence(token: String) -> GcpEvidence {
    GcpEvidence { token: BearerText(token) }
}

pub fn nitro_evidence(document: Vec<u8>) -> NitroTpmEvidence {
    NitroTpmEvidence { document: Blob(document) }
}

pub fn sts_evidence(request: &serde_json::Value) -> StsEvidence {
    StsEvidence {
        request: serde_json::from_value(request.clone()).unwrap(),
    }
}

pub fn azure_evidence(signature: String) -> AzureEvidence {
    AzureEvidence {
        signature: BearerText(signature),
    }
}

pub fn sha256(bytes: &[u8]) -> HexDigest {
    HexDigest::new(digest(&SHA256, bytes).as_ref()).unwrap()
}
