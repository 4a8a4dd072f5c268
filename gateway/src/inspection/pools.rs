//! Inspection of the pools.

use std::collections::BTreeSet;

use attest::Combination;
use attest_log::{ConfigSet, Earns};
use attest_pool::Pool;
use attest_system::clock::rfc3339;

use super::required_evidence::RequiredEvidence;
use super::{Depth, InspectionFinding, clouds};
use crate::cloud::Clouds;
use crate::pools::live::{LivePools, NOT_SERVED, Unserved};
use crate::settings::KubeletApprovalSettings;

/// Context that decides what a pool's settings mean.
pub(super) struct PoolContext<'a> {
    /// Set if the TPMs of any maker are endorsed.
    pub roots: bool,
    /// Set if kubelets are asked for their certificates.
    pub client_ca: bool,
    /// Certificates and keys that cloud evidence is verified against, if they could be read.
    pub clouds: Option<&'a Clouds>,
    /// Evidence of each pool whose `pool.toml` can be read, served or not.
    pub required: &'a [RequiredEvidence],
    /// Set if the cluster says which machines it has made.
    pub machines: bool,
    /// The pools that the cluster's bootstrap tokens are for.
    pub bootstrap_tokens: &'a BTreeSet<String>,
    pub approval: &'a KubeletApprovalSettings,
    pub depth: Depth,
    /// Current time, in seconds since 1970.
    pub now: u64,
}

/// Time before the last reference values of something lapse at which a warning begins, in seconds: two weeks, in which nodes can be rolled.
const LAPSE_WARNING_SECONDS: u64 = 14 * 24 * 3600;

pub(super) fn inspect(pools: &LivePools, known: &PoolContext<'_>, findings: &mut Vec<InspectionFinding>) {
    let unserved = pools.unserved();
    // Another server may be back at any time. What is broken here stays so until somebody comes.
    let hopeless = unserved.len() == pools.names().len() && !unserved.iter().any(|unserved| unserved.elsewhere);
    for misnamed in pools.misnamed() {
        findings.push(InspectionFinding::Degraded(format!("{misnamed}; not served")));
    }
    for Unserved { name, reason, elsewhere } in unserved {
        let text = format!("pool {name}: {reason}; {NOT_SERVED}");
        findings.push(match (hopeless, elsewhere) {
            (true, _) => InspectionFinding::Error(text),
            (false, true) => InspectionFinding::Warning(text),
            (false, false) => InspectionFinding::Degraded(text),
        });
    }
    let takes_tokens = |name: &String| {
        pools
            .all()
            .iter()
            .any(|pool| pool.name() == name && pool.grants.token != Earns::Refuse)
    };
    for name in known.bootstrap_tokens.iter().filter(|name| !takes_tokens(name)) {
        findings.push(InspectionFinding::Warning(format!(
            "cluster.bootstrap_tokens names pool {name}, which is not served, or accepts no tokens: set grants.token in its pool.toml"
        )));
    }
    let names = pools.names();
    let approval = known.approval;
    for name in approval.pools.iter().filter(|name| !names.contains(name)) {
        findings.push(InspectionFinding::Warning(format!(
            "approval.pools names pool {name}, but that pool does not exist: no machine of it is approved"
        )));
    }
    if approval.notes_attested() && !approval.kubelet_keys {
        let exposed = pools.all().into_iter().filter(|pool| pool.gives_bootstrap_credential());
        findings.extend(exposed.map(|pool| {
            InspectionFinding::Error(format!(
                "approval.kubelet_keys is false, and pool {} gives the bootstrap credential to unauthenticated clients (grants.nothing in its pool.toml): any client that fetches it can ask for the name of a machine that boots; set approval.kubelet_keys = true, or grants.nothing = \"refuse\"",
                pool.name()
            ))
        }));
    }
    for pool in pools
        .all()
        .into_iter()
        .filter(|pool| approval.kubelet_keys && approval.pools.iter().any(|name| name == pool.name()))
    {
        let signs_nothing = |kinds: &&Combination| !kinds.kinds().iter().any(|kind| kind.signs_purpose());
        findings.extend(pool.policy.accepts().iter().find(signs_nothing).map(|kinds| {
            InspectionFinding::Warning(format!(
                "pool {}: evidence {kinds} holds no key of the kubelet, so the CSR stays pending if attest-controller has approval.keys = \"attested\"",
                pool.name()
            ))
        }));
    }
    for pool in pools.all() {
        if known.depth == Depth::Thorough {
            describe(&pool, findings);
        }
        if pool.machines.is_some() && !known.machines {
            findings.push(InspectionFinding::Degraded(format!(
                "pool {}: its inventory is the cluster's Machine objects, but cluster.machines is not enabled in gateway.toml: every attestation is answered 503",
                pool.name()
            )));
        }
        findings.extend(lapse(&pool, known.now));
        let without = pool.policy.without_values().into_iter();
        findings.extend(without.map(|words| {
            InspectionFinding::Warning(format!(
                "pool {}: {words}: the pool observes, so it accepts its machines; before it refuses, record values: `attest-audit reference-values record`",
                pool.name()
            ))
        }));
        let warnings = pool.warnings(known.roots, known.client_ca);
        findings.extend(warnings.into_iter().map(InspectionFinding::Warning));
    }
    if let Some(of) = known.clouds {
        let warnings = known.required.iter().flat_map(|pool| clouds::warnings(of, pool));
        findings.extend(warnings.map(InspectionFinding::Warning));
    }
}

/// Returns a finding if all reference values that a rule looks for have lapsed, or will soon.
fn lapse(pool: &Pool, now: u64) -> Option<InspectionFinding> {
    let (at, words) = pool.lapses()?;
    let text = format!(
        "pool {}: the last reference values for {words} expire at {}",
        pool.name(),
        rfc3339(at)
    );
    match now {
        _ if pool.policy.observes() => None,
        now if now >= at => Some(InspectionFinding::Degraded(format!("{text}: its machines are refused"))),
        now if now.saturating_add(LAPSE_WARNING_SECONDS) > at => Some(InspectionFinding::Warning(format!(
            "{text}: from then on its machines are refused, unless a generation is added"
        ))),
        _ => None,
    }
}

/// Describes what a pool's clients earn, how large its configs are, and which nodes cannot get them.
fn describe(pool: &Pool, findings: &mut Vec<InspectionFinding>) {
    findings.push(InspectionFinding::Good(format!(
        "pool {}: attested earns {}, a token {}, a kubelet {}, nothing {}; accepts {}{}",
        pool.name(),
        pool.grants.attested,
        pool.grants.token,
        pool.grants.kubelet,
        pool.grants.nothing,
        pool.policy
            .accepts()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", or "),
        pool.policy
            .selection()
            .map(|selection| format!("; quotes {selection}"))
            .unwrap_or_default()
    )));
    findings.push(InspectionFinding::Good(format!("pool {}: {}", pool.name(), pool.summary())));
    for set in [ConfigSet::PreApproved, ConfigSet::Full] {
        // The newest version that fails says most; older ones fail for that, and for more.
        if let Some(error) = pool.inexpressible(set).last() {
            findings.push(InspectionFinding::Warning(format!(
                "pool {}: nodes whose Ignition reads spec {} or older cannot get the {set} config: {error}",
                pool.name(),
                error.version
            )));
        }
    }
}
