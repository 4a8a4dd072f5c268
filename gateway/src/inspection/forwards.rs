//! What there is to say of those who are sent the attestation log's records. Nobody is asked.

use super::Finding;
use crate::forward::{Forwarder, check_token};
use crate::settings::Settings;

pub(super) fn inspect(settings: &Settings, findings: &mut Vec<Finding>) {
    for forward in &settings.forwards {
        let (name, to) = (&forward.name, &forward.to);
        findings.push(match (Forwarder::open(settings, forward, name.clone()), check_token(forward)) {
            (Ok(_), Ok(())) => Finding::Good(format!("the attestation log's records go to {name}, {to}")),
            // No node waits for a receiver, and none for its token.
            (Ok(_), Err(error)) => Finding::Degraded(format!("{error}; it is sent nothing until that is there")),
            (Err(error), _) => Finding::Error(error.to_string()),
        });
        if to.is_open() {
            findings.push(Finding::Warning(format!(
                "attestation_log.forward {name:?}: whoever is between this machine and {to} can read who was attested, and can alter what is sent: use https or syslog+tls"
            )));
        }
    }
}
