use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use attest_machines::instances::InstanceRecord;
use attest_machines::revocations;
use attest_system::advised_commands::runnable;
use attest_system::clock::rfc3339;
use serde::Serialize;

use super::super::EVERY_POOL;
use super::super::beginnings::machine;
use super::super::{OutputOption, output, visible};
use super::state::{self, ListedMachine, LogPart, MachineList, MachineRow, RevokedRow};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: a machine by its node name, its EK or its instance\n  attest-gateway machines show worker-7\n  attest-gateway machines show 17bdc2c5\n  attest-gateway machines show aws:123456789012/i-0123456789abcdef0\n\nAn instance belongs to the TPM that attested together with it (tpm:…, aws-nitrotpm:…). Without a TPM it belongs to the first-boot\nsecret that came with its first evidence (claimant:…)."
)]
pub(crate) struct Arguments {
    /// Name of the node, or its identity or instance, or the first 8 characters or more of one.
    #[arg(value_name = "WHAT")]
    what: String,
    #[command(flatten)]
    log: LogPart,
    #[command(flatten)]
    format: OutputOption,
}

/// All that is known of a machine, for programs.
#[derive(Debug, Serialize)]
struct Details<'m> {
    #[serde(flatten)]
    machine: MachineRow<'m>,
    /// Cloud instances of the machine, with their holders.
    claims: Vec<HolderRow<'m>>,
    /// Revocations of its names and identities.
    revocations: Vec<RevokedName<'m>>,
}

#[derive(Debug, Serialize)]
struct HolderRow<'m> {
    instance: &'m str,
    holder: &'m str,
    since: String,
    from: &'m str,
}

#[derive(Debug, Serialize)]
struct RevokedName<'m> {
    who: &'m str,
    #[serde(flatten)]
    revoked: RevokedRow<'m>,
}

pub(super) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let given = &arguments.what;
    let (machines, who) = state::read(config, &arguments.log, async |store| {
        let found = machine(store, given).await?;
        Ok(revocations::named(&found).unwrap_or(found))
    })?;
    let holder = machines
        .claims
        .iter()
        .find(|(instance, _)| *instance == who)
        .map(|(_, record)| record.holder.as_str());
    let is_it = |machine: &&ListedMachine| {
        let attested = machine.status.attestation.as_ref();
        let identities = [machine.identity(), attested.and_then(|attestation| attestation.instance.as_deref())];
        machine.name() == Some(who.as_str())
            || identities.contains(&Some(who.as_str()))
            || machine.identity().is_some_and(|identity| holder == Some(identity))
    };
    let found = machines.all.iter().find(is_it);
    let machine =
        found.with_context(|| format!("no machine is known as {given:?}; to list all machines: `attest-gateway machines list`"))?;
    let details = details(machine, &machines);
    if arguments.format.is_json() {
        output::json(&details)?;
    } else {
        output::print(runnable(&text(machine, &details)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn details<'m>(machine: &'m ListedMachine, all: &'m MachineList) -> Details<'m> {
    let attested = machine.status.attestation.as_ref();
    let instance = attested.and_then(|attestation| attestation.instance.as_deref());
    let is_its = |instance_of: &str, record: &InstanceRecord| {
        machine
            .identity()
            .is_some_and(|identity| instance_of == identity || record.holder == identity)
            || instance == Some(instance_of)
    };
    let claims: Vec<HolderRow<'_>> = all
        .claims
        .iter()
        .filter(|(instance, record)| is_its(instance, record))
        .map(|(instance, record)| HolderRow {
            instance,
            holder: &record.holder,
            since: rfc3339(record.at),
            from: &record.peer,
        })
        .collect();
    let own: Vec<&str> = [machine.name(), machine.identity(), instance]
        .into_iter()
        .flatten()
        .chain(claims.iter().map(|claim| claim.instance))
        .collect();
    let revoked = all.revoked.iter().filter(|(who, _)| own.contains(&who.as_str()));
    Details {
        machine: machine.row(),
        revocations: revoked
            .map(|(who, revocation)| RevokedName {
                who,
                revoked: revocation.into(),
            })
            .collect(),
        claims,
    }
}

fn text(machine: &ListedMachine, details: &Details<'_>) -> String {
    let status = &machine.status;
    let mut lines = vec![
        ("name", machine.name().unwrap_or("-").to_owned()),
        ("identity", machine.identity().unwrap_or("-").to_owned()),
        ("state", status.state.map(|state| format!("{state:?}")).unwrap_or_default()),
    ];
    lines.extend(status.attestation.as_ref().map(|attestation| {
        let instance = attestation
            .instance
            .as_ref()
            .map(|instance| format!(", {instance}"))
            .unwrap_or_default();
        let said = format!(
            "{} by {} for pool {}{instance} (record {})",
            attestation.at, attestation.by, attestation.pool, attestation.record
        );
        ("attested", said)
    }));
    lines.extend(status.refusal.as_ref().map(|refusal| {
        let said = format!(
            "{} {} for pool {} (record {})",
            refusal.at, refusal.code, refusal.pool, refusal.record
        );
        ("refused", said)
    }));
    lines.extend(status.config.as_ref().map(|config| {
        let said = format!(
            "{} {} of pool {}, sha256 {} (record {})",
            config.at, config.set, config.pool, config.sha256, config.record
        );
        ("config", said)
    }));
    lines.extend(status.waiting.as_ref().map(|question| {
        (
            "waiting",
            format!("for question {question}; to read it: `attest-gateway waiting show {question}`"),
        )
    }));
    lines.extend(machine.stored.listed.as_ref().map(|record| {
        let pools = match record.pools.as_slice() {
            [] => EVERY_POOL.to_owned(),
            pools => pools.join(" "),
        };
        let removed = record.removed.map(|at| format!(", removed at {}", rfc3339(at))).unwrap_or_default();
        let name = record.name.as_ref().map(|name| format!(", name {name}")).unwrap_or_default();
        let note = record.note.as_ref().map(|note| format!(", note: {note}")).unwrap_or_default();
        (
            "allowlist",
            format!("since {}, pools {pools}{name}{removed}{note}", rfc3339(record.added)),
        )
    }));
    lines.extend(details.claims.iter().map(|claim| {
        (
            "instance",
            format!(
                "{} belongs to {} since {}, from {}",
                claim.instance, claim.holder, claim.since, claim.from
            ),
        )
    }));
    lines.extend(
        details
            .revocations
            .iter()
            .map(|RevokedName { who, revoked }| ("revoked", revoked.text(who))),
    );
    lines
        .into_iter()
        .map(|(what, said)| format!("{what:<10} {}\n", visible(&said)))
        .collect()
}
