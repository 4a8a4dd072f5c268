//! What there is to say of those who are sent the attestation log's records. Nobody is asked.

use super::Finding;
use crate::forward::Forwarder;
use crate::settings::Settings;

pub(super) fn inspect(settings: &Settings, findings: &mut Vec<Finding>) {
    for forward in &settings.forwards {
        let (name, to) = (&forward.name, &forward.to);
        match Forwarder::open(settings, forward, name.clone()) {
            Ok(_) => findings.push(Finding::Good(format!("the attestation log's records go to {name}, {to}"))),
            Err(error) => findings.push(Finding::Error(error.to_string())),
        }
        if to.is_open() {
            findings.push(Finding::Warning(format!(
                "attestation_log.forward {name:?}: whoever is between this machine and {to} can read who was attested, and can alter what is sent: use https or syslog+tls"
            )));
        }
    }
}
