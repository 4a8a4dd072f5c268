//! Agreement with a node about how its config is sent. Its pointer says what was agreed, and Ignition stops the boot if the config is sent
//! in another way. So the ticket has it, and every gateway that takes the ticket keeps to it.

use attest::UnixTime;
use attest::protocol::{ConfigCompression, ConfigFormats};
use attest_ignition::SpecVersion;
use attest_pool::Pool;

use super::accept;
use super::problem::Refusal;
use crate::credentials::tickets::{ConfigPromise, TicketConfig};
use crate::pools::PreparedConfig;
use crate::settings::TicketSettings;

/// The oldest spec version with SHA-256 in `verification.hash` (Ignition's migration guide, from 3.0.0 to 3.1.0).
const HASHED_FROM: SpecVersion = SpecVersion::V3_1;

/// Forms of its config that a node's pointer can name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WantedFormats {
    compression: Option<ConfigCompression>,
    /// Spec version that the node's Ignition reads, if its pointer takes a hash.
    spec_version: Option<SpecVersion>,
}

impl WantedFormats {
    /// Reads what a node has sent.
    ///
    /// # Errors
    /// `malformed-request`, if the spec version is none of 3.1.0 or newer.
    pub(super) fn read(formats: Option<&ConfigFormats>) -> Result<Self, Refusal> {
        let Some(ConfigFormats { compression, spec_version }) = formats else {
            return Ok(Self::default());
        };
        let readable = |text: &String| {
            let version = accept::readable(text).filter(|version| *version >= HASHED_FROM);
            version.ok_or_else(|| Refusal::malformed("config.spec_version is not 3.1.0 or a later 3.x"))
        };
        Ok(Self {
            compression: *compression,
            spec_version: spec_version.as_ref().map(readable).transpose()?,
        })
    }

    /// Agrees on the way in which a pool's config for attested nodes is sent. A config that the node's spec version cannot express has no
    /// hash: it is sent in the version that Ignition asks for.
    pub(super) async fn agree(self, pool: &Pool, settings: &TicketSettings, now: UnixTime) -> TicketConfig {
        let mut agreed = TicketConfig {
            compression: self.compression,
            promise: None,
        };
        let (Some(set), Some(version)) = (pool.grants.attested.set(), self.spec_version) else {
            return agreed;
        };
        if let Ok(prepared) = PreparedConfig::new(pool, set, version) {
            if agreed.compression.is_some() {
                // Before Ignition waits for it.
                prepared.compress().await;
            }
            agreed.promise = Some(ConfigPromise {
                set,
                spec_version: version,
                sha256: prepared.sha256().to_owned(),
                at: now.as_secs(),
                wait_until: now.as_secs().saturating_add(settings.lifetime.as_secs()),
            });
        }
        agreed
    }
}
