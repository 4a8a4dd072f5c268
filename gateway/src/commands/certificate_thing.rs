//! Certificates in the records of administrators' acts.

use attest_certificates::Certificate;
use attest_log::admin::ValueChange;

/// Returns a certificate in its role, before and after an act.
pub(super) fn thing(role: &str, before: Option<&Certificate>, after: Option<&Certificate>) -> ValueChange {
    let told = |certificate: Option<&Certificate>| certificate.map(Certificate::description);
    ValueChange {
        kind: "certificate".to_owned(),
        id: role.to_owned(),
        before: told(before),
        after: told(after),
    }
}
