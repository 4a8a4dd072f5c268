//! Record of a serving gateway, by its id. Its own log settles, or gives back, what its decisions depend on. If two had one id, because
//! `state/` was copied, one would give back what the other has served. So the second does not start.
//!
//! A gateway that was killed may start again before its end is noticed. It then finds its own record, and has to tell it from that of a
//! running copy. So the record has its origin: the kernel's boot, and the state folder's device and inode there. No two folders have the
//! same. The lock on the folder's attestation log proves that no other process serves from it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::schema::StoreSchema;
use crate::{StoreError, StoreUser};

/// Time for which a process that is not heard of keeps what it holds. No leader task is as urgent.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// Interval of checks whether another process is heard of.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time limit for waiting for another process: an election gives its lease some seconds more.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Record of a gateway that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServingEntry {
    v: u8,
    /// Random: of no two processes the same.
    session: String,
    /// Location of its state; `None` if the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<StatePlace>,
    /// Name of its host, for messages.
    pub host: String,
    pub release: String,
    /// Number of the newest schema that it knows.
    pub schema: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StatePlace {
    boot: String,
    device: u64,
    inode: u64,
}

impl ServingEntry {
    /// Returns the record of a process with this session and state folder.
    pub(crate) fn new(session: &str, state: &Path) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let place = boot.and_then(|boot| {
            let folder = fs::metadata(state).ok()?;
            Some(StatePlace {
                boot: boot.trim().to_owned(),
                device: folder.dev(),
                inode: folder.ino(),
            })
        });
        Self {
            v: 1,
            session: session.to_owned(),
            place,
            host: host_of_this(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            schema: StoreSchema::newest().number,
        }
    }

    pub(crate) fn read(value: &str) -> Option<Self> {
        serde_json::from_str(value).ok()
    }

    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns whether a process that has ended has put this value: it held the lock that this process holds.
    pub(crate) fn was_here(&self, value: &str) -> bool {
        self.place.is_some() && Self::read(value).is_some_and(|other| other.place == self.place)
    }

    /// The second of two.
    pub(crate) fn copied(replica: &str, host: &str, place: &str) -> StoreError {
        StoreError::Copied {
            replica: replica.to_owned(),
            host: host.to_owned(),
            place: place.to_owned(),
        }
    }
}

pub(crate) fn host_of_this() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the process that has put this value.
pub(crate) fn user(value: &str) -> StoreUser {
    match ServingEntry::read(value) {
        Some(ServingEntry { host, release, schema, .. }) => StoreUser { host, release, schema },
        None => StoreUser {
            host: "another host".to_owned(),
            release: "unknown".to_owned(),
            schema: 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_page_states_the_lease_duration() {
        let said = format!("not heard of for {} s, another takes over", LEASE.as_secs());
        assert!(include_str!("../../../../docs/how-to/replicas.md").contains(&said), "{said}");
    }
}
