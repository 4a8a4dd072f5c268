//! What the cluster's machine sets carry: they make machines that no gateway has seen yet.

use attest_gateway::pki::install::Today;
use attest_gateway::settings::Settings;

#[cfg(not(feature = "cluster"))]
pub(super) fn status(_: &Settings, _: &Today) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(not(feature = "cluster"))]
pub(super) fn refuse_unless_safe(_: &Settings, _: &Today) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(feature = "cluster")]
pub(super) use asked::{refuse_unless_safe, status};

#[cfg(feature = "cluster")]
mod asked {
    use std::sync::Arc;

    use anyhow::{Context, bail};
    use attest_certificates::{Fingerprint, source};
    use attest_cluster_api::Cluster;
    use attest_gateway::cluster::pointers::{self, Here, MachineSet, State};
    use attest_system::clock::Clock;

    use super::{Settings, Today};
    use crate::commands::{output, table};

    type Found = Vec<(MachineSet, State)>;

    /// What each machine set's pointer is; nothing if nobody keeps them.
    fn look(settings: &Settings, today: &Today) -> anyhow::Result<Option<Found>> {
        let Some(of_cluster) = settings.cluster.as_ref().filter(|cluster| cluster.pointers) else {
            return Ok(None);
        };
        let here = Here {
            authorities: today.authorities.clone(),
            chain: source::certificates(&settings.tls.certificate)?,
            pools: attest_pool::folders(&settings.pools)?.pools.into_keys().collect(),
            now: Clock::System.now(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = runtime.block_on(async {
            let cluster = Cluster::open(&of_cluster.access, Clock::System, Arc::new(())).await?;
            pointers::look(&cluster, &of_cluster.machine_namespace, &here).await
        });
        found.map(Some).context("the cluster's machine sets")
    }

    /// Those whose machines would not trust the newest CA.
    fn in_the_way(found: &Found, newest: Option<Fingerprint>) -> Found {
        let lacks = |carried: &[Fingerprint]| !newest.is_some_and(|newest| carried.contains(&newest));
        let is = |state: &State| match state {
            State::Current => false,
            State::Behind(carried) => lacks(carried),
            // Others carry none of this gateway's CAs, or lead elsewhere.
            State::Left(_, carried) => !carried.is_empty() && lacks(carried),
            State::Unread(_) => true,
        };
        found.iter().filter(|(_, state)| is(state)).cloned().collect()
    }

    pub(in crate::commands::ca) fn status(settings: &Settings, today: &Today) -> anyhow::Result<()> {
        match look(settings, today) {
            Ok(None) => Ok(()),
            Ok(Some(found)) if found.is_empty() => output::line("\nmachine sets: the cluster has none"),
            Ok(Some(found)) => output::print(format_args!("\n{}", rows(&found))),
            Err(error) => output::line(format_args!("\nmachine sets: {error:#}")),
        }
    }

    pub(in crate::commands::ca) fn refuse_unless_safe(settings: &Settings, today: &Today) -> anyhow::Result<()> {
        let found = look(settings, today).context("not safe, as nobody knows (--force goes on regardless)")?;
        let newest = today.authorities.last().map(|ca| ca.fingerprint);
        let in_the_way = in_the_way(&found.unwrap_or_default(), newest);
        if !in_the_way.is_empty() {
            bail!(
                "not safe: machine sets whose pointers do not carry the CA {}:\n{}A gateway that serves writes those that are its own within a minute. Or use --force.",
                newest.map_or_else(String::new, |newest| newest.short()),
                rows(&in_the_way)
            );
        }
        Ok(())
    }

    fn rows(found: &Found) -> String {
        let rows: Vec<[String; 5]> = found
            .iter()
            .map(|(set, state)| {
                let shorts = |carried: &[Fingerprint]| carried.iter().map(Fingerprint::short).collect::<Vec<_>>().join(" ");
                let (carries, note) = match state {
                    State::Current => ("what pointers carry now".to_owned(), String::new()),
                    State::Behind(carried) => (shorts(carried), "to be written".to_owned()),
                    State::Left(why, carried) => (shorts(carried), format!("left: {why}")),
                    State::Unread(why) => (String::new(), why.clone()),
                };
                [
                    format!("{} {}", set.kind, set.name),
                    set.replicas.to_string(),
                    set.secret.to_string(),
                    carries,
                    note,
                ]
            })
            .collect();
        table(["MACHINE SET", "REPLICAS", "SECRET", "POINTER CARRIES", "NOTE"], &rows)
    }
}
