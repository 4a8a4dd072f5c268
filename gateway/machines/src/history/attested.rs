//! The TPMs that have attested, by each kind of evidence that quotes PCRs, and the part of a boot that a refusal is about.

use attest::aws::nitro_tpm::NitroTpmError;
use attest::azure::vtpm::{AzureVtpmError, AzureVtpmRules};
use attest::tpm::requirements::QuotedPcrs;
use attest::tpm::rules::{BootLocation, Check};
use attest::{AppraisalPolicy, Claims, Counters, Kind, NodeIdentity, ReferenceValues, Reject};

/// A TPM that has attested, with its quote.
pub(super) struct AttestedTpm<'c> {
    pub kind: Kind,
    /// Its own identity, or that of its instance.
    pub identity: &'c NodeIdentity,
    pub quoted: QuotedPcrs<'c>,
    /// Its counters, if the evidence contains them.
    pub counters: Option<Counters>,
    /// The pool's checks of the events of its boot.
    pub checks: &'c [Check],
}

pub(super) fn tpms<'c>(claims: &'c Claims, policy: &'c AppraisalPolicy) -> Vec<AttestedTpm<'c>> {
    let instance = claims.instance().unwrap_or_else(|| claims.identity());
    let counters = claims.counters();
    let attested = claims.quotes().into_iter().map(|(kind, quoted)| match kind {
        Kind::Tpm => (kind, claims.identity(), quoted, policy.reference_values()),
        Kind::AzureVtpm => (kind, instance, quoted, policy.azure_vtpm().map(AzureVtpmRules::reference_values)),
        // Of a NitroTPM there are no events.
        _ => (kind, instance, quoted, None),
    });
    attested
        .map(|(kind, identity, quoted, values)| AttestedTpm {
            kind,
            identity,
            quoted,
            // A NitroTPM says none, whoever's stand beside it.
            counters: counters
                .iter()
                .find(|(of, _)| kind != Kind::AwsNitroTpm && *of == identity)
                .map(|(_, counters)| *counters),
            checks: values.map_or(&[], ReferenceValues::boot),
        })
        .collect()
}

/// Returns the part of a boot that a refusal is about, and the kind of evidence that has proven it.
pub(super) fn place(reject: &Reject) -> Option<(Kind, BootLocation)> {
    match reject {
        Reject::Tpm(error) => error.place().map(|place| (Kind::Tpm, place)),
        Reject::AzureVtpm(AzureVtpmError::Tpm(error)) => error.place().map(|place| (Kind::AzureVtpm, place)),
        Reject::AwsNitroTpm(NitroTpmError::PcrMismatch { index, .. }) => Some((Kind::AwsNitroTpm, BootLocation::Pcr(*index))),
        _ => None,
    }
}
