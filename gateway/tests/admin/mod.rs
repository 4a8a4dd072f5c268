//! Who did what: what commands change, and the gateway of itself, stands in the log.

mod commands;
mod found;
mod interrupted;
mod tokens;
mod trusted;

use attest_store::{Entry, Store};
use serde_json::Value;

use crate::support::Gateway;
use crate::support::kubelet::embedded;

/// What waits in the outbox of a gateway that does not serve.
async fn waiting(gateway: &Gateway) -> Vec<Entry> {
    embedded(gateway).outbox(None, 1000).await.unwrap()
}

/// What waits, without its ids.
async fn acts_waiting(gateway: &Gateway) -> Vec<Value> {
    let waiting = waiting(gateway).await.into_iter();
    waiting.map(|act| serde_json::from_str(&act.value).unwrap()).collect()
}
