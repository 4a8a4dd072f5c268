//! Who takes records.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use super::batch::Sent;
use super::http::Http;
use super::syslog::Syslog;
use crate::settings::{ForwardSettings, Receiver};

/// For one delivery, its connection included: then it is tried again.
pub(super) const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// A receiver that the settings name cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("attestation_log.forward {name:?}: {path}: {problem}")]
    File { name: String, path: PathBuf, problem: String },
    #[error("attestation_log.forward {name:?}: {problem}")]
    Client { name: String, problem: String },
}

/// Why records were not taken. Nothing secret is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub why: String,
    /// Fewer at once may be taken.
    pub too_many: bool,
}

impl Refused {
    pub(super) fn because(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            too_many: false,
        }
    }
}

#[async_trait]
pub(super) trait Sink: Send {
    /// Gives it these records, in this order: all of them are taken, or all are given again.
    async fn give(&mut self, records: &[Sent]) -> Result<(), Refused>;
}

pub(super) fn open(settings: &ForwardSettings, host: String) -> Result<Box<dyn Sink>, OpenError> {
    let name = &settings.name;
    Ok(match &settings.to {
        Receiver::Http { url, ca, token_file } => Box::new(Http::open(name, url, ca.as_deref(), token_file.clone())?),
        other => Box::new(Syslog::open(name, other, host)?),
    })
}

/// Whether what a receiver is told by is there. Without it nothing is sent.
///
/// # Errors
/// [`OpenError::File`].
pub fn check_token(settings: &ForwardSettings) -> Result<(), OpenError> {
    match &settings.to {
        Receiver::Http {
            token_file: Some(token_file),
            ..
        } => Http::check_token(&settings.name, token_file),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_says_how_long_an_answer_is_waited_for() {
        let said = format!("no answer within {} s", DELIVERY_LIMIT.as_secs());
        assert!(include_str!("../../../docs/configuration.md").contains(&said), "{said}");
    }
}
