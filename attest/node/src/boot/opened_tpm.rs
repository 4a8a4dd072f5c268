//! Opens this node's means of attestation: the TPM, and the cloud's evidence.

use std::collections::BTreeSet;

use attest_wire::Kind;

use super::BootOptions;
use crate::attestation::cloud::{CloudEvidence, CloudMeans, NitroTpmSource, OwnTpm};
use crate::attestation::means::TpmMeans;
use crate::cloud::nitro_tpm;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::first_boot_secret::FirstBootSecret;
use crate::first_boot_secret::state::ClaimFolder;
use crate::platform::CloudInstance;
use crate::tpm::{AkKind, EndorsementKey, IssuerCertificates, TpmDevice, TpmError};

/// A TPM with the EK that it attests by.
pub(crate) struct OpenedTpm {
    tpm: TpmDevice,
    ek: EndorsementKey,
    intermediates: IssuerCertificates,
}

pub(crate) fn open(settings: &BootOptions, deadline: Deadline) -> Result<OpenedTpm, TpmError> {
    let mut tpm = TpmDevice::open_until(&settings.tcti, deadline)?;
    let ek = tpm.endorsement_key(settings.ek)?;
    let intermediates = if ek.certificate.is_some() {
        tpm.intermediates()?
    } else {
        IssuerCertificates::default()
    };
    Ok(OpenedTpm { tpm, ek, intermediates })
}

impl OpenedTpm {
    /// Returns the EK that it attests by.
    pub(crate) const fn ek(&self) -> &EndorsementKey {
        &self.ek
    }

    /// Returns the TPM, for questions about it.
    pub(crate) const fn device(&mut self) -> &mut TpmDevice {
        &mut self.tpm
    }

    pub(crate) fn means<'a>(&'a mut self, settings: &BootOptions) -> Result<(TpmMeans<'a>, Vec<String>), TpmError> {
        let ak = match settings.ak {
            Some(ak) => ak,
            None if self.tpm.can_make(AkKind::EccP256)? => AkKind::EccP256,
            None => AkKind::Rsa2048,
        };
        let keys = self.tpm.attester(&self.ek, ak)?;
        Ok(TpmMeans::new(&self.ek, self.intermediates.clone(), keys, &settings.event_log))
    }
}

/// Finds the evidence of the cloud that this instance runs in.
pub(crate) fn cloud_means<'a>(
    settings: &BootOptions,
    instance: &'a CloudInstance,
    takes: &BTreeSet<Kind>,
    has_tpm: bool,
    claimants: &mut FirstBootSecret,
    deadline: Deadline,
) -> Result<CloudEvidence<'a>, Failure> {
    let state = ClaimFolder::new(&settings.state);
    let program = nitro_tpm::find(&settings.nitro_tpm_attest, std::env::var_os("PATH").as_deref());
    let nitro_tpm = program.filter(|_| has_tpm).map(|program| NitroTpmSource {
        program,
        folder: state.input(),
    });
    let own_tpm = OwnTpm {
        nitro_tpm,
        tcti: has_tpm.then(|| settings.tcti.clone()),
        event_log: settings.event_log.clone(),
    };
    CloudMeans::find(instance, takes, own_tpm, claimants, deadline)
}
