//! A vTPM's evidence, verified step by step; nothing used before it is verified.

use std::collections::BTreeMap;

use rustls_pki_types::UnixTime;
use serde::Serialize;

use super::certificate::{AkCertificate, AkRoots, verify_certificate};
use super::{AzureVtpmError, AzureVtpmEvidence, AzureVtpmSubject, VM_ID_PCR, VmId, is_measured};
use crate::azure::attested_document::VerifiedAttestedDocument;
use crate::kinds::Counters;
use crate::nonce::{EvidenceBinding, SpkiSha256};
use crate::tpm::EventLogClaims;
use crate::tpm::requirements::QuotedPcrs;
use crate::tpm::verifier::{self, ShownQuote};
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// Values that a quote has to be bound to.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedBinding<'a> {
    pub nonce: &'a [u8],
    pub purpose: &'a str,
    pub pool: &'a str,
    /// Keys that the node may have seen this server use.
    pub server_keys: &'a [SpkiSha256],
}

impl<'a> From<EvidenceBinding<'a>> for ExpectedBinding<'a> {
    fn from(binding: EvidenceBinding<'a>) -> Self {
        Self {
            nonce: binding.nonce,
            purpose: binding.purpose,
            pool: binding.pool,
            server_keys: binding.server_keys,
        }
    }
}

/// Proof from a vTPM's evidence. Only [`verify`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedAzureVtpm {
    vm_id: VmId,
    #[serde(skip_serializing_if = "Option::is_none")]
    subscription_id: Option<String>,
    certificate: AkCertificate,
    ak_name: String,
    #[serde(flatten)]
    quoted: QuotedState,
    #[serde(skip)]
    server_key: SpkiSha256,
}

/// State that the vTPM has signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct QuotedState {
    pub(super) pcr_bank: HashAlg,
    pub(super) pcrs: BTreeMap<u8, HexDigest>,
    clock_ms: u64,
    reset_count: u32,
    restart_count: u32,
    clock_safe: bool,
    firmware_version: u64,
    pub(super) event_log: Option<EventLogClaims>,
}

impl VerifiedAzureVtpm {
    /// Returns the stable identity of the node: `azure:<subscription>/<vmId>` if an attested document of the same machine was shown too.
    /// Without a known subscription, it is `azure-vtpm:<vmId>`.
    #[must_use]
    pub fn identity(&self) -> String {
        match &self.subscription_id {
            Some(subscription) => format!("azure:{subscription}/{}", self.vm_id),
            None => format!("azure-vtpm:{}", self.vm_id),
        }
    }

    /// The machine, as the firmware has measured it.
    #[must_use]
    pub const fn vm_id(&self) -> &VmId {
        &self.vm_id
    }

    /// Returns the certificate that Azure has issued for the AK.
    #[must_use]
    pub const fn certificate(&self) -> &AkCertificate {
        &self.certificate
    }

    /// Returns the quoted PCRs and their values.
    #[must_use]
    pub const fn pcrs(&self) -> &BTreeMap<u8, HexDigest> {
        &self.quoted.pcrs
    }

    /// Returns the result of replaying the event log, if there was one.
    #[must_use]
    pub const fn event_log(&self) -> Option<&EventLogClaims> {
        self.quoted.event_log.as_ref()
    }

    /// The server key that the node saw.
    #[must_use]
    pub const fn server_key(&self) -> &SpkiSha256 {
        &self.server_key
    }

    pub(super) const fn counters(&self) -> Counters {
        Counters {
            reset_count: self.quoted.reset_count,
            restart_count: self.quoted.restart_count,
            clock_ms: self.quoted.clock_ms,
            clock_safe: self.quoted.clock_safe,
            firmware_version: self.quoted.firmware_version,
        }
    }

    /// The PCRs that were quoted, and their bank.
    pub(crate) const fn pcrs_mut(&mut self) -> (&mut BTreeMap<u8, HexDigest>, HashAlg) {
        (&mut self.quoted.pcrs, self.quoted.pcr_bank)
    }

    /// Returns the quoted state, for comparison with reference values.
    #[must_use]
    pub const fn quoted(&self) -> QuotedPcrs<'_> {
        QuotedPcrs {
            bank: self.quoted.pcr_bank,
            pcrs: &self.quoted.pcrs,
            event_log: self.quoted.event_log.as_ref(),
        }
    }

    /// Takes the subscription from an attested document of the same machine. From one of another machine it takes nothing: the two then have
    /// different identities, which nothing accepts.
    #[must_use]
    pub fn with_document(mut self, document: &VerifiedAttestedDocument) -> Self {
        if document.vm_id.as_str() == self.vm_id.as_str() {
            self.subscription_id = Some(document.subscription_id.clone());
        }
        self
    }
}

/// Verifies `evidence` as the answer to what was asked of `subject`, at `now`: first the quote, whose signature costs least, then the
/// certificate of the key that made it.
///
/// # Errors
/// [`AzureVtpmError`]: one variant for each thing that can be wrong.
pub fn verify(
    subject: &AzureVtpmSubject,
    evidence: &AzureVtpmEvidence,
    expected: &ExpectedBinding<'_>,
    roots: &AkRoots,
    now: UnixTime,
) -> Result<VerifiedAzureVtpm, AzureVtpmError> {
    let (attester, selection) = (&subject.attester, &subject.selection);
    let binding = EvidenceBinding {
        nonce: expected.nonce,
        purpose: expected.purpose,
        pool: expected.pool,
        server_keys: expected.server_keys,
    };
    let answer = ShownQuote {
        ak_public: attester.ak_public.as_ref(),
        quoted: evidence.quoted.as_ref(),
        signature: evidence.signature.as_ref(),
        pcrs: &evidence.pcrs,
    };
    let (ak, quote) = verifier::quoted(&binding, selection, &answer)?;

    let intermediates: Vec<&[u8]> = attester.ak_intermediates.iter().map(AsRef::as_ref).collect();
    let certificate = verify_certificate(attester.ak_certificate.as_ref(), &intermediates, roots, now)?;
    certificate.check_key(&ak)?;

    let (bank, log) = (selection.bank(), evidence.event_log.as_ref().map(AsRef::as_ref));
    if !is_measured(&attester.vm_id, bank, &evidence.pcrs, log) {
        let quoted = evidence.pcrs.get(&VM_ID_PCR);
        return Err(AzureVtpmError::VmId {
            vm_id: attester.vm_id.clone(),
            quoted: quoted.map_or_else(|| "not quoted".to_owned(), ToString::to_string),
        });
    }
    Ok(VerifiedAzureVtpm {
        vm_id: attester.vm_id.clone(),
        subscription_id: None,
        certificate,
        ak_name: ak.name().to_string(),
        quoted: QuotedState {
            pcr_bank: bank,
            pcrs: evidence.pcrs.clone(),
            clock_ms: quote.clock.clock_ms,
            reset_count: quote.clock.reset_count,
            restart_count: quote.clock.restart_count,
            clock_safe: quote.clock.safe,
            firmware_version: quote.firmware_version,
            event_log: log.map(|log| verifier::explain(log, bank, &evidence.pcrs)),
        },
        server_key: quote.server_key,
    })
}
