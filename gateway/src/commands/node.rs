//! `attest-gateway node`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest::challenge::is_node_name;
use attest_gateway::clock::rfc3339;
use attest_gateway::enrolment::{self, Revocation};
use attest_gateway::instances::{self, InstanceRecord};

use super::{table, with_store};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the names of nodes, the machines they belong to, and who is revoked; and instances of clouds, with who has claimed each.
    #[command(
        after_help = "Example:\n  attest-gateway node list\n\nAn instance belongs to the TPM that has attested beside it (tpm:..., nitro-tpm), or, where there was none, to who made up the\nsecret that came with the evidence (claimant:...)."
    )]
    List,
    /// Free a node's name, so that another machine can take it: the explicit re-enrolment after a repair.
    #[command(
        after_help = "Example:\n  attest-gateway node forget worker-7\n\nA name belongs to one machine from its first use, or from `ek add --name`. If an allowlisted EK was given the name,\nremove that EK too: `attest-gateway ek remove`."
    )]
    Forget {
        /// The name.
        name: String,
    },
    /// Let an instance of a cloud be claimed anew: by the node after it was provisioned again, or with another TPM.
    #[command(
        after_help = "Example:\n  attest-gateway node release aws:123456789012/i-0123456789abcdef0\n\nAn instance belongs to who first shows that it is his. Anybody else is refused with `instance-claimed`: look into that first,\nsome other process may have reached the instance's metadata server. The instance's name, if it has one, stays: `attest-gateway node forget`."
    )]
    Release {
        /// The instance, as the log and `node list` have it.
        instance: String,
    },
    /// Revoke a node: nothing is given to it from now on, whatever it shows. Its certificate stays good for the cluster.
    #[command(
        after_help = "Example:\n  attest-gateway node revoke worker-7 --reason 'disk sold'\n\nIt counts for the next request, also on connections that are open. A kubelet's client certificate, an attestation and a\nticket are refused with `node-revoked`. Nodes without a name, and provisioning tokens, are not touched: `attest-gateway token revoke`."
    )]
    Revoke {
        /// The node's name: what its certificate says after `system:node:`.
        name: String,
        /// Why, for the attestation log; the node is not told.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Take a revocation back.
    #[command(after_help = "Example:\n  attest-gateway node restore worker-7")]
    Restore {
        /// The node's name.
        name: String,
    },
}

/// Longest reason, in characters: it stands in every record of a refusal.
const REASON_LIMIT_CHARACTERS: usize = 200;

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List => {
            let (names, revoked, instances) = with_store(config, |store| async move {
                let (names, revoked) = (enrolment::names(&store).await?, enrolment::revoked(&store).await?);
                Ok((names, revoked, instances::list(&store).await?))
            })?;
            print!("{}", table(["NODE", "IDENTITY", "STATE"], &rows(names, revoked)));
            if !instances.is_empty() {
                let row = |(instance, record): (String, InstanceRecord)| [instance, record.holder, rfc3339(record.at), record.peer];
                let rows: Vec<[String; 4]> = instances.into_iter().map(row).collect();
                print!("\n{}", table(["INSTANCE", "BELONGS TO", "SINCE", "FROM"], &rows));
            }
        }
        Command::Release { instance } => {
            let wanted = instance.clone();
            if !with_store(config, |store| async move { Ok(instances::release(&store, &wanted).await?) })? {
                bail!("nobody has claimed {instance:?}; `attest-gateway node list` shows who has claimed what");
            }
            println!("released: {instance}");
        }
        Command::Forget { name } => {
            let wanted = name.clone();
            if !with_store(config, |store| async move { Ok(enrolment::forget_name(&store, &wanted).await?) })? {
                bail!("there is no node named {name:?}");
            }
            println!("forgotten: {name}");
        }
        Command::Revoke { name, reason } => {
            if !is_node_name(name) {
                bail!("{name:?} is no node's name; name worker-7, not system:node:worker-7");
            }
            let length = reason.as_deref().map_or(0, |reason| reason.chars().count());
            if length > REASON_LIMIT_CHARACTERS {
                bail!("the reason has {length} characters, at most {REASON_LIMIT_CHARACTERS} are kept");
            }
            let revocation = Revocation {
                at: super::now(),
                reason: reason.clone(),
            };
            let wanted = name.clone();
            with_store(
                config,
                |store| async move { Ok(enrolment::revoke(&store, &wanted, &revocation).await?) },
            )?;
            println!("revoked: {name}");
        }
        Command::Restore { name } => {
            let wanted = name.clone();
            if !with_store(config, |store| async move { Ok(enrolment::restore(&store, &wanted).await?) })? {
                bail!("there is no revoked node named {name:?}");
            }
            println!("restored: {name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One row for each name: those of machines that have attested, and those that are revoked, whether a machine has them or not.
fn rows(names: Vec<(String, String)>, mut revoked: BTreeMap<String, Revocation>) -> Vec<[String; 3]> {
    let state = |revocation: Revocation| {
        let at = rfc3339(revocation.at);
        revocation
            .reason
            .map_or_else(|| format!("revoked {at}"), |reason| format!("revoked {at}: {reason}"))
    };
    let mut rows: Vec<[String; 3]> = names
        .into_iter()
        .map(|(name, identity)| {
            let state = revoked.remove(&name).map_or_else(|| "known".to_owned(), state);
            [name, identity, state]
        })
        .collect();
    rows.extend(
        revoked
            .into_iter()
            .map(|(name, revocation)| [name, "-".to_owned(), state(revocation)]),
    );
    rows.sort();
    rows
}
