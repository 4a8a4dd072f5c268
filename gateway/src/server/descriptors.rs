//! File descriptors: one for each connection, and some for the rest.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::settings::Limits;

/// File descriptors for the store, the log, outgoing requests, and connections of balancers that have not sent their header.
const REST: usize = 1536;

/// Raises the limit to the most connections that there may be, or to the hard limit. Without them the gateway cannot accept, and nodes wait
/// in the kernel.
pub(super) fn raise(limits: &Limits) {
    let wanted = wanted(limits);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let limit = Rlimit {
        current: Some(raised),
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files to {wanted}");
    } else if raised < wanted {
        tracing::warn!(
            "limits.connections and limits.waiting need {wanted} file descriptors, but only {raised} are allowed: raise the hard limit (LimitNOFILE= of the unit), or lower these settings"
        );
    }
}

fn wanted(limits: &Limits) -> u64 {
    let all = limits.connections.saturating_add(limits.waiting).saturating_add(REST);
    u64::try_from(all).unwrap_or(u64::MAX)
}
