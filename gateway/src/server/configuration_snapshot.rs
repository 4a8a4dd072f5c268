//! Configuration snapshot of the gateway, and its drift: since the last start, or while it runs. Files may be changed by hand, without a
//! record of who did it. The gateway finds such changes itself, and records them as its own findings.

mod shown;
mod trusted;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest_log::JournalError;
use attest_log::admin::{self, Act, By, ValueChange, Verb};
use attest_pool::Pool;
use attest_system::files;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{EkRootsInUse, Gateway};
use crate::inspection::{SNAPSHOT_FILE, SNAPSHOT_LIMIT_BYTES, SNAPSHOT_VERSION};
use crate::pki;
use crate::settings::Settings;
use shown::shown;

/// Kinds of things in a snapshot.
const SETTINGS: &str = "settings";
const SETTING: &str = "setting";
const POOL: &str = "pool";
const BROKEN_POOL: &str = "broken_pool";
const CERTIFICATE: &str = "certificate";

/// Longest reason for which a pool is broken that is recorded, in characters.
const REASON_LIMIT_CHARACTERS: usize = 1000;

/// Things by kind and id.
type Things = BTreeMap<(String, String), Value>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedConfiguration {
    v: u32,
    things: Vec<ValueChange>,
}

/// Configuration snapshot that this gateway has recorded.
pub(super) struct ConfigurationSnapshot {
    file: PathBuf,
    recorded: Things,
    /// Settings of `gateway.toml`, keys and roots of clouds, as they were at the start.
    settings: Things,
    google_keys: Option<((String, String), Value)>,
    ek_roots: Arc<EkRootsInUse>,
    pools: Vec<Arc<Pool>>,
    broken: BTreeMap<String, String>,
    tls: Arc<pki::Current>,
    /// Verb of a record that could not be written: it is tried again.
    left: Option<Verb>,
}

impl ConfigurationSnapshot {
    /// Loads the last snapshot, takes that of this start, and records the drift between them.
    pub(super) async fn begin(gateway: &Gateway) -> Self {
        let file = gateway.settings.state.join(SNAPSHOT_FILE);
        // Of a first start, and where that is lost, all of it is recorded.
        let mut recorded = read(&file).unwrap_or_default();
        let mut settings = settings(&gateway.settings);
        settings.extend(trusted::startup_items(gateway));
        warn_of_log_key(gateway, &recorded, &settings);
        if !is_as_recorded(gateway, &recorded, &file) {
            // Which key it had is known to whoever reads the log, too.
            recorded.retain(|name, _| *name == trusted::log_key());
        }
        let mut standing = Self {
            recorded,
            file,
            settings,
            google_keys: trusted::google_keys(gateway),
            ek_roots: gateway.endorsers.ek_roots(),
            pools: gateway.pools.all(),
            broken: gateway.pools.broken_sources(),
            tls: gateway.tls.current(),
            left: None,
        };
        standing.record(gateway, Verb::GatewayStart).await;
        standing
    }

    /// Records drift since the last check.
    pub(super) async fn record_drift(&mut self, gateway: &Gateway) {
        let (pools, broken, tls) = (gateway.pools.all(), gateway.pools.broken_sources(), gateway.tls.current());
        let (google_keys, ek_roots) = (trusted::google_keys(gateway), gateway.endorsers.ek_roots());
        let anchors_known = google_keys == self.google_keys && Arc::ptr_eq(&ek_roots, &self.ek_roots);
        let same = |(a, b): (&Arc<Pool>, &Arc<Pool>)| Arc::ptr_eq(a, b);
        let known = pools.len() == self.pools.len() && pools.iter().zip(&self.pools).all(same);
        let verb = match self.left {
            None if known && broken == self.broken && anchors_known && Arc::ptr_eq(&tls, &self.tls) => return,
            left => left.unwrap_or(Verb::GatewayReload),
        };
        (self.pools, self.broken, self.tls) = (pools, broken, tls);
        (self.google_keys, self.ek_roots) = (google_keys, ek_roots);
        self.record(gateway, verb).await;
    }

    fn files(&self) -> Things {
        let pools = self
            .pools
            .iter()
            .map(|pool| ((POOL.to_owned(), pool.name().to_owned()), pool.configuration_snapshot()));
        // What is served of it is what was: that somebody wants it otherwise is said all the same.
        let broken = self.broken.iter().map(|(name, reason)| {
            let reason: String = reason.chars().take(REASON_LIMIT_CHARACTERS).collect();
            ((BROKEN_POOL.to_owned(), name.clone()), json!({ "reason": reason }))
        });
        let serving = &self.tls.serving;
        let shown = serving.chain().iter().map(|certificate| ("tls.certificate", certificate));
        let authorities = serving.authorities().iter().map(|certificate| ("tls.ca", certificate));
        let of_kubelets = self
            .tls
            .client_authorities
            .certificates()
            .map(|certificate| ("tls.client_ca", certificate));
        let certificates = shown.chain(authorities).chain(of_kubelets).map(|(role, certificate)| {
            (
                (CERTIFICATE.to_owned(), format!("{role} {}", certificate.fingerprint)),
                certificate.description(),
            )
        });
        pools.chain(broken).chain(certificates).collect()
    }

    async fn record(&mut self, gateway: &Gateway, verb: Verb) {
        let mut now = self.files();
        now.extend(self.settings.clone());
        now.extend(self.google_keys.clone());
        now.extend(trusted::ek_roots(&self.ek_roots));
        let mut things = differences(&self.recorded, &now);
        let again = self.left.take().is_some();
        if things.is_empty() {
            return;
        }
        let before = (!self.recorded.is_empty()).then(|| digest(&self.recorded));
        things.push(admin::snapshot_change(before, digest(&now)));
        match record_all(gateway, verb, &things).await {
            Ok(()) => {
                self.recorded = now;
                self.write();
            }
            Err(error) => {
                self.left = Some(verb);
                if !again {
                    tracing::error!(%error, "cannot record the configuration snapshot in the attestation log; retrying");
                }
            }
        }
    }

    fn write(&self) {
        let things = self.recorded.iter().map(|((kind, id), value)| ValueChange {
            kind: kind.clone(),
            id: id.clone(),
            before: None,
            after: Some(value.clone()),
        });
        let known = RecordedConfiguration {
            v: SNAPSHOT_VERSION,
            things: things.collect(),
        };
        let written = serde_json::to_string(&known).map_err(std::io::Error::from);
        let written = written.and_then(|text| files::replace(&self.file, files::PRIVATE, &text).map_err(|error| error.source));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot save the configuration snapshot to {}; the next start records it again", self.file.display());
        }
    }
}

/// Returns whether the file's snapshot is the one that the log says was recorded last. If not, or if the log does not say, all of the
/// snapshot is recorded again: an attacker who can write the file could hide drift.
fn is_as_recorded(gateway: &Gateway, recorded: &Things, file: &Path) -> bool {
    if recorded.is_empty() {
        return true;
    }
    let log = gateway.settings.attestation_log();
    match admin::last_snapshot_digest(&log, gateway.journal.key()) {
        Ok(Some(said)) if said == digest(recorded) => return true,
        Ok(Some(_)) => tracing::warn!(
            "{} differs from the last configuration snapshot in the attestation log: the gateway was killed before saving it, or the file was altered; recording all settings again",
            file.display()
        ),
        Ok(None) => tracing::info!("no recent configuration snapshot in the attestation log; recording all settings again"),
        Err(error) => {
            tracing::warn!(%error, "cannot read the last configuration snapshot in the attestation log; recording all settings again");
        }
    }
    false
}

/// Warns that the log's key was replaced.
fn warn_of_log_key(gateway: &Gateway, recorded: &Things, now: &Things) {
    let name = trusted::log_key();
    let public = |things: &Things| things.get(&name).and_then(|key| key.get("public")?.as_str().map(str::to_owned));
    if let (Some(before), Some(now)) = (public(recorded), public(now))
        && before != now
    {
        tracing::warn!(
            "{} has changed: its public key is {now}, and was {before}. If nobody replaced it, the old file was lost and the gateway created a new key. Give auditors both public keys and the gateway's name (`attest-gateway log show-key`)",
            gateway.settings.log_key().display()
        );
    }
}

/// Returns a digest over all things.
fn digest(things: &Things) -> String {
    let all: Vec<_> = things.iter().collect();
    sha256(&serde_json::to_vec(&all).unwrap_or_default())
}

/// Records all of it, in as many lines as it takes. A gateway that is stopped in between records it again.
async fn record_all(gateway: &Gateway, verb: Verb, things: &[ValueChange]) -> Result<(), JournalError> {
    let at = gateway.clock.now().as_secs();
    let by = By::gateway(gateway.settings.checkpoints.name.as_deref());
    for act in Act::all_done(verb, at, &by, things) {
        admin::record(&gateway.journal, act, at).await?;
    }
    Ok(())
}

/// Returns the snapshot that was recorded last; `None` if that is not known.
fn read(file: &Path) -> Option<Things> {
    let text = match files::read_text(file, SNAPSHOT_LIMIT_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(%error, "cannot read {}; cannot determine what changed since the last start", file.display());
            return None;
        }
    };
    let Some(known) = serde_json::from_str(&text)
        .ok()
        .filter(|known: &RecordedConfiguration| known.v == SNAPSHOT_VERSION)
    else {
        tracing::warn!(
            "{} is not a configuration snapshot of this release; cannot determine what changed since the last start",
            file.display()
        );
        return None;
    };
    let things = known.things.into_iter();
    let things = things.filter_map(|thing| Some(((thing.kind, thing.id), thing.after?)));
    Some(things.collect())
}

/// Returns the differences; first the things that were removed.
fn differences(before: &Things, now: &Things) -> Vec<ValueChange> {
    let keys = before.keys().chain(now.keys().filter(|key| !before.contains_key(*key)));
    let thing = |key: &(String, String)| {
        let (before, after) = (before.get(key).cloned(), now.get(key).cloned());
        let (kind, id) = key.clone();
        (before != after).then_some(ValueChange { kind, id, before, after })
    };
    keys.filter_map(thing).collect()
}

/// Returns the settings in `gateway.toml`, key by key, and a digest over them.
fn settings(settings: &Settings) -> Things {
    let said: BTreeMap<&String, Value> = settings.set_values.iter().map(|(key, value)| (key, shown(value))).collect();
    let digest = sha256(&serde_json::to_vec(&said).unwrap_or_default());
    let mut things: Things = said
        .into_iter()
        .map(|(key, value)| ((SETTING.to_owned(), key.clone()), value))
        .collect();
    things.insert((SETTINGS.to_owned(), "gateway.toml".to_owned()), json!({ "sha256": digest }));
    things
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn drift_lists_added_removed_and_changed_entries() {
        let things = |all: &[(&str, u64)]| -> Things {
            let all = all.iter();
            all.map(|(id, value)| (("pool".to_owned(), (*id).to_owned()), json!(value)))
                .collect()
        };
        let found = differences(&things(&[("a", 1), ("b", 1), ("c", 1)]), &things(&[("b", 1), ("c", 2), ("d", 1)]));
        let told: Vec<_> = found.into_iter().map(|thing| (thing.id, thing.before, thing.after)).collect();
        let one = |value: u64| Some(json!(value));
        assert_eq!(
            told,
            [
                ("a".to_owned(), one(1), None),
                ("c".to_owned(), one(1), one(2)),
                ("d".to_owned(), None, one(1))
            ]
        );
    }
}
