//! Administrative acts: the log records all changes by commands and by the gateway itself.

mod commands;
mod found;
mod interrupted;
mod tokens;
mod trusted;

use attest_store::{Store, StoreEntry};
use serde_json::Value;

use crate::support::Gateway;
use crate::support::kubelet::embedded;

/// Returns the outbox of a gateway that is not running.
async fn waiting(gateway: &Gateway) -> Vec<StoreEntry> {
    embedded(gateway).outbox(None, 1000).await.unwrap()
}

/// Returns the acts in the outbox, without their ids.
async fn acts_waiting(gateway: &Gateway) -> Vec<Value> {
    let waiting = waiting(gateway).await.into_iter();
    waiting.map(|act| serde_json::from_str(&act.value).unwrap()).collect()
}
