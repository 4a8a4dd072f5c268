//! The key of a serving gateway: every request requires it to be there.

use std::sync::atomic::{AtomicBool, AtomicI64};

use etcd_client::{Compare, CompareOp, TxnOp};
use tokio::sync::Notify;

use super::requests::get;

/// The key of a gateway that serves.
#[derive(Debug)]
pub(super) struct ReplicaKey {
    pub name: String,
    pub value: String,
    /// Id of the lease, or 0.
    pub lease: AtomicI64,
    pub over: AtomicBool,
    /// A request was refused because the key is not there.
    pub missed: Notify,
}

impl ReplicaKey {
    pub(super) fn new(name: String, value: String) -> Self {
        Self {
            name,
            value,
            lease: AtomicI64::new(0),
            over: AtomicBool::new(false),
            missed: Notify::new(),
        }
    }

    /// What each request wants.
    pub(super) fn compare_exists(&self) -> Compare {
        Compare::value(self.name.as_str(), CompareOp::Equal, self.value.as_str())
    }

    pub(super) fn get(&self) -> TxnOp {
        get(&self.name)
    }

    /// Returns whether this is the key's current value; if not, has it put again.
    pub(super) fn is_own(&self, found: Option<&str>) -> bool {
        let own = found == Some(self.value.as_str());
        if !own {
            self.missed.notify_one();
        }
        own
    }
}
