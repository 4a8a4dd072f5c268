//! Node with a TPM in software that makes all requests of `attest-node` and Ignition. It asks for a challenge, activates the credential,
//! sends its evidence, and fetches its config. Each step may go to another gateway.

use std::collections::BTreeMap;

use attest::nonce::qualifying_data;
use attest::protocol::{ChallengeRequest, ChallengeResponse, ConfigCompression, ConfigFormats, EvidenceRequest, HexDigest};
use attest::tpm::ak::AkPublic;
use attest::{HashAlg, SpkiSha256};

use super::soft_tpm::activation::SoftTpm;
use super::soft_tpm::maker::Maker;
use super::soft_tpm::pcr_digest;
use super::{Answer, Case, POOL, SPEC, SoftKey, accept, bearer, challenge_request, digest, tpm};

pub struct Node {
    tpm: SoftTpm,
    case: Case,
    formats: Option<ConfigFormats>,
}

impl Node {
    /// Creates a new machine.
    pub fn new() -> Self {
        let tpm = SoftTpm::p256();
        let case = self::tpm().but(|case| case.ek_area = tpm.ek.clone());
        Self { tpm, case, formats: None }
    }

    /// Makes it offer what `attest-node` offers: a compressed config, and a hash of it.
    pub fn takes_compressed_configs(&mut self) {
        self.formats = Some(ConfigFormats {
            compression: Some(ConfigCompression::Gzip),
            spec_version: Some(SPEC.to_owned()),
        });
    }

    /// Like [`Node::new`], with a TPM of this manufacturer.
    pub fn made_by(maker: &Maker) -> Self {
        let mut node = Self::new();
        node.case.ek_certificate = Some(maker.certificate(&node.tpm.ek));
        node
    }

    /// Creates a machine with this TPM and this AK, and with the certificate of its manufacturer.
    pub fn from_parts(tpm: SoftTpm, ak: SoftKey, ek_certificate: Vec<u8>) -> Self {
        let mut case = Case::new(ak);
        case.ek_area = tpm.ek.clone();
        case.ek_certificate = Some(ek_certificate);
        Self { tpm, case, formats: None }
    }

    /// Sets the event log, which need not be valid if the pool only records it.
    pub fn with_event_log(mut self, log: Vec<u8>) -> Self {
        self.case.event_log = Some(log);
        self
    }

    /// Boots the machine: sets its event log, and the values of its PCRs.
    pub fn has_booted(&mut self, log: Vec<u8>, pcrs: &BTreeMap<u8, HexDigest>) {
        let quoted = pcrs.iter().filter(|(pcr, _)| self.case.pcrs.contains_key(pcr));
        self.case.pcrs = quoted.map(|(pcr, value)| (*pcr, value.clone())).collect();
        let values = self.case.pcrs.iter().map(|(pcr, value)| (*pcr, value.as_bytes().to_vec()));
        self.case.quoted.pcr_digest = pcr_digest(&self.case.ak, &values.collect());
        self.case.event_log = Some(log);
    }

    /// Makes it send no event log from this call on.
    pub fn sends_no_event_log(&mut self) {
        self.case.event_log = None;
    }

    /// Makes its TPM quote these PCRs, which have these values, from this call on.
    pub fn quotes(&mut self, pcrs: &BTreeMap<u8, HexDigest>) {
        let values = pcrs.iter().map(|(pcr, value)| (*pcr, value.as_bytes().to_vec()));
        let Case { selection, quoted, .. } = Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, values.clone().collect());
        (self.case.selection, self.case.quoted.selection) = (selection, quoted.selection);
        self.case.pcrs = pcrs.clone();
        self.case.quoted.pcr_digest = pcr_digest(&self.case.ak, &values.collect());
    }

    /// Returns the argument of `ek add`.
    pub fn ek(&self) -> String {
        digest(&self.case)
    }

    /// Asks the gateway with this base URL for a challenge.
    pub fn challenge(&self, client: &reqwest::Client, gateway: &str) -> reqwest::RequestBuilder {
        let request = client.post(format!("{gateway}/v1/attest/challenge"));
        request.json(&self.challenge_request())
    }

    /// Returns the node's challenge request.
    pub fn challenge_request(&self) -> ChallengeRequest {
        challenge_request(&self.case, POOL)
    }

    /// Returns the answer to a challenge on a connection to a server with this key.
    pub fn evidence(&mut self, challenged: &Answer, server_key: &SpkiSha256) -> EvidenceRequest {
        self.answer(serde_json::from_slice(&challenged.body).unwrap(), server_key)
    }

    /// Returns the evidence for this challenge.
    pub fn answer(&mut self, challenged: ChallengeResponse, server_key: &SpkiSha256) -> EvidenceRequest {
        let ak = AkPublic::parse(&self.case.ak_area.to_bytes()).unwrap();
        let secret = self.tpm.activate(&challenged.task.tpm.unwrap(), ak.name()).unwrap();
        self.case.secret_sha256 = HashAlg::Sha256.digest(&[&secret]).as_ref().try_into().unwrap();
        self.case.quoted.extra_data = qualifying_data(challenged.nonce.as_ref(), &challenged.purpose, POOL, server_key).to_vec();
        EvidenceRequest {
            challenge: challenged.challenge,
            evidence: self.case.evidence(),
            config: self.formats.clone(),
        }
    }

    pub fn send(client: &reqwest::Client, gateway: &str, evidence: &EvidenceRequest) -> reqwest::RequestBuilder {
        client.post(format!("{gateway}/v1/attest/evidence")).json(evidence)
    }

    /// Requests a config like Ignition, with a ticket or a token.
    pub fn config(client: &reqwest::Client, gateway: &str, credential: &str) -> reqwest::RequestBuilder {
        let request = client.get(format!("{gateway}/config/{POOL}")).header("accept", accept(SPEC));
        request.header("authorization", bearer(credential))
    }
}
