//! What the events of a log mean, on generated logs: everything here runs without the vectors.

use crate::log_builder::{EV_SEPARATOR, LogBuilder, SHA256};
use attest::HashAlg;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{MeasuredBoot, NotProven};

/// A log with the quote that it leads to, read.
fn boot(log: &LogBuilder) -> MeasuredBoot {
    let bytes = log.build();
    let log_read = EventLog::parse(&bytes).unwrap();
    MeasuredBoot::of(&log_read.check_against(HashAlg::Sha256, &log.pcrs(HashAlg::Sha256)).unwrap())
}

#[test]
fn a_log_without_secure_boots_variables_proves_nothing_about_it() {
    let log = LogBuilder::new(&[SHA256]).event(7, EV_SEPARATOR, &[0; 4]);
    assert!(matches!(boot(&log).secure_boot(), Err(NotProven::Missing { pcr: 7, .. })));
}
