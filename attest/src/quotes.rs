//! Quoted PCRs of each kind of evidence that has them, and the measured boots that they prove.
//!
//! This is not part of the modules of the kinds: they do not know event logs, which belong to the TPM.

use std::collections::BTreeMap;

use crate::ReferenceValues;
use crate::appraisal::AppraisalPolicy;
use crate::claims::Claims;
use crate::kinds::Kind;
use crate::tpm::TpmClaims;
use crate::tpm::measured_boot::MeasuredBoot;
use crate::tpm::requirements::QuotedPcrs;
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// Drops what was quoted beyond what is asked for, if all of that was quoted.
fn drop_further(pcrs: &mut BTreeMap<u8, HexDigest>, bank: HashAlg, values: &ReferenceValues) {
    let wanted = values.quoted();
    if bank == values.bank() && wanted.iter().all(|index| pcrs.contains_key(index)) {
        pcrs.retain(|index, _| wanted.contains(index));
    }
}

impl Claims {
    /// Returns the quoted PCRs of each kind of evidence that quotes them, and the result of the event log shown with it.
    #[must_use]
    pub fn quotes(&self) -> Vec<(Kind, QuotedPcrs<'_>)> {
        let tpm = self.tpm().map(|tpm| (Kind::Tpm, TpmClaims::quoted(tpm)));
        // Of the one bank that its documents have; there is no event log.
        let nitro = self.aws_nitro_tpm().map(|nitro| {
            let quoted = QuotedPcrs {
                bank: HashAlg::Sha384,
                pcrs: &nitro.document.pcrs,
                event_log: None,
            };
            (Kind::AwsNitroTpm, quoted)
        });
        let vtpm = self.azure_vtpm().map(|vtpm| (Kind::AzureVtpm, vtpm.quoted()));
        [tpm, nitro, vtpm].into_iter().flatten().collect()
    }

    /// The claims without the PCRs that were quoted beyond those that a policy asks for: for a policy that is asked about, and did not ask for the quote. The
    /// boot stays as the whole quote has proven it.
    #[must_use]
    pub fn without_further_pcrs(mut self, policy: &AppraisalPolicy) -> Self {
        if let (Some(tpm), Some(values)) = (&mut self.proven.tpm, policy.reference_values()) {
            drop_further(&mut tpm.pcrs, tpm.pcr_bank, values);
        }
        if let (Some(vtpm), Some(rules)) = (&mut self.proven.azure_vtpm, policy.azure_vtpm()) {
            let (pcrs, bank) = vtpm.pcrs_mut();
            drop_further(pcrs, bank, rules.reference_values());
        }
        self
    }

    /// Returns the measured boot of each quote that proves one with an event log. Two keys of one TPM may quote different PCRs: then each
    /// proves its own part.
    #[must_use]
    pub fn measured_boots(&self) -> Vec<(Kind, &MeasuredBoot)> {
        let quotes = self.quotes().into_iter();
        quotes.filter_map(|(kind, quoted)| Some((kind, quoted.boot()?))).collect()
    }

    /// Returns the measured boot, if one quote proves it, or all that do prove the same.
    #[must_use]
    pub fn measured_boot(&self) -> Option<&MeasuredBoot> {
        let boots = self.measured_boots();
        let ((_, first), others) = boots.split_first()?;
        others.iter().all(|(_, other)| other == first).then_some(*first)
    }
}
