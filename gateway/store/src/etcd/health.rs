//! Health report of an etcd cluster, for administrators who set up a gateway on it.

use etcd_client::{AlarmAction, AlarmType};
use tokio::time::Instant;

use super::super::threads::Threads;
use super::super::{StoreError, StoreHealth};
use super::Etcd;
use super::members::Members;
use crate::settings::EtcdSettings;

/// The quota of the backend, unless etcd says another: `--quota-backend-bytes`.
const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Share of the quota from which on there is a warning, in percent.
const QUOTA_WARNING_PERCENT: u64 = 80;

impl Etcd {
    /// Asks every member how it is.
    ///
    /// # Errors
    /// [`StoreError`] if a file that the settings name cannot be read. A member that does not answer is a warning.
    pub fn health(settings: &EtcdSettings) -> Result<StoreHealth, StoreError> {
        let (place, settings) = (settings.place(), settings.clone());
        Threads::start("etcd", &place)?.wait(async move {
            let members = Members::from_settings(&settings)?;
            let mut health = StoreHealth::default();
            statuses(&members, Instant::now() + settings.timeout, &mut health).await;
            alarms(&members, Instant::now() + settings.timeout, &mut health).await;
            Ok(health)
        })
    }
}

async fn statuses(members: &Members, until: Instant, health: &mut StoreHealth) {
    for (endpoint, status) in members.ask_each(until, |mut client| async move { client.status().await }).await {
        let status = match status {
            Ok(status) => status,
            Err(failure) => {
                health.warnings.push(members.explain(&failure, false).to_string());
                continue;
            }
        };
        let (size, quota) = (status.db_size().unsigned_abs(), status.db_size_quota().unsigned_abs());
        let (quota, by) = match quota {
            0 => (DEFAULT_QUOTA_BYTES, "the default"),
            quota => (quota, "its own"),
        };
        health.good.push(format!(
            "{endpoint}: etcd {}, {} of {} MiB of its quota ({by}) used",
            status.version(),
            size >> 20,
            quota >> 20
        ));
        if size.saturating_mul(100) >= quota.saturating_mul(QUOTA_WARNING_PERCENT) {
            health.warnings.push(format!(
                "{endpoint}: {} of {} MiB of its quota ({by}) are used; when it is full, etcd refuses writes: compact and defragment it \
                 (etcdctl compact, defrag); --auto-compaction-retention keeps it small",
                size >> 20,
                quota >> 20
            ));
        }
        health
            .warnings
            .extend(status.errors().iter().map(|error| format!("{endpoint}: {error}")));
    }
}

async fn alarms(members: &Members, until: Instant, health: &mut StoreHealth) {
    let asked = members.ask(until, |mut client| async move {
        client.alarm(AlarmAction::Get, AlarmType::None, None).await
    });
    let Ok(answer) = asked.await else { return };
    for alarm in answer.alarms() {
        let what = match alarm.alarm() {
            AlarmType::Nospace => "its quota is used up (NOSPACE): compact and defragment it, then etcdctl alarm disarm",
            AlarmType::Corrupt => "its data is damaged (CORRUPT): remove the member and add it again",
            AlarmType::None => continue,
        };
        health
            .warnings
            .push(format!("{}: member {:x}: {what}", members.place, alarm.member_id()));
    }
}
