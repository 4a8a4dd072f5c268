//! Layout of a store's keys in etcd.
//!
//! ```text
//! <prefix>/schema           the schema of what is below, and the first release that knows it
//! <prefix>/taking           in place of schema and store, while an import runs
//! <prefix>/store            the store's identity, and the mark that it began with
//! <prefix>/mark             put by each commit that writes: the number of puts gives the mark
//! <prefix>/wrote/<replica>  put by each commit of one gateway that writes: counts its commits
//! <prefix>/set-back/<id>    put when a gateway finds that this store was rolled back: no gateway uses it
//! <prefix>/committer/<id>   the last commit of one process, which gives the outcome of one whose answer was lost; goes with its lease
//! <prefix>/leader/<work>    the leader of a work; goes with its lease
//! <prefix>/replica/<id>     a gateway that serves, and from where; goes with its lease
//! <prefix>/kv/<key>         the store's content: only this is exported and moved
//! ```

use super::super::keys::SERVING;

/// Prefix of those keys of a [`super::super::engine::Transaction`] that are not part of the store's content.
pub(super) const LEADER: &str = "leader/";

/// The prefix, without a `/` at its end.
#[derive(Debug, Clone)]
pub(super) struct KeyPrefix(String);

impl KeyPrefix {
    pub(super) fn below(prefix: &str) -> Self {
        Self(prefix.trim_end_matches('/').to_owned())
    }

    pub(super) fn schema(&self) -> String {
        format!("{}/schema", self.0)
    }

    pub(super) fn identity(&self) -> String {
        format!("{}/store", self.0)
    }

    pub(super) fn taking(&self) -> String {
        format!("{}/taking", self.0)
    }

    pub(super) fn mark(&self) -> String {
        format!("{}/mark", self.0)
    }

    /// Returns the key of one gateway, or the prefix of all of them.
    pub(super) fn wrote(&self, replica: &str) -> String {
        format!("{}/wrote/{replica}", self.0)
    }

    /// Returns the key of one store, or the prefix of all that were here.
    pub(super) fn set_back(&self, store: &str) -> String {
        format!("{}/set-back/{store}", self.0)
    }

    pub(super) fn committer(&self, id: &str) -> String {
        format!("{}/committer/{id}", self.0)
    }

    pub(super) fn replica(&self, id: &str) -> String {
        format!("{}/{SERVING}{id}", self.0)
    }

    /// Returns the etcd key for a transaction's key.
    pub(super) fn full_key(&self, key: &str) -> String {
        if key.starts_with(LEADER) || key.starts_with(SERVING) {
            format!("{}/{key}", self.0)
        } else {
            format!("{}/kv/{key}", self.0)
        }
    }

    /// Returns the transaction's key for an etcd key.
    pub(super) fn without<'k>(&self, stored: &'k str) -> &'k str {
        let below = stored.strip_prefix(self.0.as_str()).unwrap_or(stored);
        below.strip_prefix("/kv/").unwrap_or(below)
    }

    /// Everything: from here, until there.
    pub(super) fn all(&self) -> (String, String) {
        (format!("{}/", self.0), format!("{}0", self.0))
    }
}
