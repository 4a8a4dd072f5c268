//! The command `attest-gateway node`: manages names, instance claims and revocations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::challenge::is_node_name;
use attest_log::admin::Verb;
use attest_machines::enrolment;
use attest_machines::history;
use attest_machines::instances::{self, InstanceRecord};
use attest_machines::revocations::{self, Machine, Revocation};
use attest_system::clock::rfc3339;
use serde_json::json;

use super::acting::{change_store, found};
use super::beginnings::{completed, machine};
use super::{OutputOption, objects, output, table, with_store};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the machines that have attested, with their nodes' names, and those that are revoked; and instances of clouds, with their
    /// claims.
    #[command(
        after_help = "Example:\n  attest-gateway node list\n\nAn instance belongs to the TPM that has attested beside it (tpm:..., nitro-tpm), or, where there was none, to who made up the\nsecret that came with the evidence (claimant:...)."
    )]
    List {
        #[command(flatten)]
        format: OutputOption,
    },
    /// Free a node's name, so that another machine can take it: the explicit re-enrolment after a repair.
    #[command(
        after_help = "Example:\n  attest-gateway node forget worker-7\n\nA name belongs to one machine from its first use, or from `ek add --name`. A name that `ek add` has given stays\nthat machine's: take its EK off the list first, `attest-gateway ek remove DIGEST`, or give it another name,\n`attest-gateway ek add DIGEST --name OTHER --replace`."
    )]
    Forget {
        /// Name that becomes free.
        name: String,
    },
    /// Take a machine's TPM as it is now: forget how far its counters had come, which firmware it had, and what it had booted.
    #[command(
        after_help = "Examples:\n  attest-gateway node forget-history worker-7\n  attest-gateway node forget-history tpm:0f3c…64 digits…9a\n\nFor after its TPM was cleared, or a virtual machine was set back. A pool refuses such a machine if its pool.toml says so in [history];\nwhat it attests next is then compared with nothing. Its name and its instance stay its own."
    )]
    ForgetHistory {
        /// The node's name, the digest of its EK, or its instance, as the log and the lists have it.
        #[arg(value_name = "WHAT")]
        what: String,
    },
    /// Let an instance of a cloud be claimed again: by the node after it was provisioned again, or with another TPM.
    #[command(
        after_help = "Example:\n  attest-gateway node release aws:123456789012/i-0123456789abcdef0\n\nAn instance belongs to who first shows that it is his. Anybody else is refused with `instance-claimed`: look into that first,\nsome other process may have reached the instance's metadata server. The instance's name, if it has one, stays: `attest-gateway node forget`."
    )]
    Release {
        /// The instance, as the log and `node list` have it.
        instance: String,
    },
    /// Revoke a machine: nothing is given to it from now on, whatever it shows. Its certificate stays good for the cluster.
    #[command(
        after_help = "Example:\n  attest-gateway node revoke worker-7 --reason 'disk sold'\n  attest-gateway node revoke 0f3c…64 digits…9a\n  attest-gateway node revoke aws:123456789012/i-0123456789abcdef0\n\nRevoked is everything that the machine is known by: its name, its TPM, its instance; what that is, is printed. It counts for the\nnext request, also on connections that are open: a challenge, an attestation, a ticket and a kubelet's client certificate are refused\nwith `node-revoked`. Provisioning tokens are not touched: `attest-gateway token revoke`."
    )]
    Revoke {
        /// The node's name (what its certificate says after `system:node:`), the digest of its EK, or its instance, as the log and the lists have it.
        #[arg(value_name = "WHAT")]
        what: String,
        /// Reason, for the attestation log; the node does not see it.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Also if nothing is known of such a machine: it has yet to come.
        #[arg(long)]
        anyway: bool,
    },
    /// Take a revocation back, with those that were made together with it.
    #[command(
        after_help = "Example:\n  attest-gateway node restore worker-7\n\nIf another machine has taken the name of one that stays revoked:\n  attest-gateway node restore --only worker-7\n  attest-gateway ek add 0f3c…64 digits…9a --name worker-7 --replace"
    )]
    Restore {
        /// The name, digest or instance that was revoked.
        #[arg(value_name = "WHAT")]
        what: String,
        /// Nothing but this name or identity.
        #[arg(long)]
        only: bool,
    },
}

/// Longest reason, in characters: every record of a refusal contains it.
const REASON_LIMIT_CHARACTERS: usize = 200;

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List { format } => {
            let (names, tpms, revoked, instances) = with_store(config, |store| async move {
                let (names, tpms) = (enrolment::names(&store).await?, enrolment::attested_tpms(&store).await?);
                Ok((names, tpms, revocations::list(&store).await?, instances::list(&store).await?))
            })?;
            let nodes = rows(names, tpms, revoked);
            let claim = |(instance, record): (String, InstanceRecord)| [instance, record.holder, rfc3339(record.at), record.peer];
            let claims: Vec<[String; 4]> = instances.into_iter().map(claim).collect();
            let (node_columns, claim_columns) = (["NODE", "IDENTITY", "STATE"], ["INSTANCE", "BELONGS TO", "SINCE", "FROM"]);
            if format.is_json() {
                output::json(&json!({ "nodes": objects(node_columns, &nodes), "instances": objects(claim_columns, &claims) }))?;
            } else {
                output::print(table(node_columns, &nodes))?;
                if !claims.is_empty() {
                    output::print(format_args!("\n{}", table(claim_columns, &claims)))?;
                }
            }
        }
        Command::Release { instance } => {
            let given = instance.clone();
            let released = change_store(config, Verb::NodeRelease, |store| async move {
                let all = instances::list(&*store).await?.into_iter().map(|(instance, _)| instance);
                let instance = completed(&given, all)?;
                found(instances::release(&*store, &instance).await?, || {
                    format!("instance {instance:?} has no claim; to list all claims: `attest-gateway node list`")
                })?;
                Ok(instance)
            })?;
            output::done(format_args!("released: {released}"))?;
        }
        Command::Forget { name } => {
            let wanted = name.clone();
            change_store(config, Verb::NodeForget, |store| async move {
                found(enrolment::forget_name(&*store, &wanted).await?, || {
                    format!("no node is named {wanted:?}; to list all nodes: `attest-gateway node list`")
                })
            })?;
            output::done(format_args!("forgotten: {name}"))?;
        }
        Command::ForgetHistory { what } => {
            let given = what.clone();
            let forgotten = change_store(config, Verb::NodeForgetHistory, |store| async move {
                let who = named(&machine(&*store, &given).await?)?;
                found(history::forget(&*store, &who).await?, || {
                    format!("{who} has no history; to list the machines that have attested: `attest-gateway node list`")
                })?;
                Ok(who)
            })?;
            output::done(format_args!("history forgotten: {forgotten}"))?;
        }
        Command::Revoke { what, reason, anyway } => revoke(config, what, reason.as_deref(), *anyway)?,
        Command::Restore { what, only } => {
            let (given, only) = (what.clone(), *only);
            let restored = change_store(config, Verb::NodeRestore, |store| async move {
                let listed = machine(&*store, &given).await?;
                // As it stands in the list, too.
                let who = revocations::named(&listed).unwrap_or(listed);
                let restored = revocations::restore(&*store, &who, only).await?;
                found(!restored.is_empty(), || {
                    format!("{what:?} is not revoked; `attest-gateway node list` shows who is")
                })?;
                Ok(restored)
            })?;
            output::done(format_args!("restored: {}", together(&restored)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn named(what: &str) -> anyhow::Result<String> {
    revocations::named(what).with_context(|| {
        format!("{what:?} is neither a node name (worker-7, not system:node:worker-7), nor an EK's digest of 64 digits, nor an instance (aws:…, aws-nitrotpm:…, gcp:…, azure:…, azure-vtpm:…)")
    })
}

fn together(all: &BTreeSet<String>) -> String {
    all.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn revoke(config: &Path, what: &str, reason: Option<&str>, anyway: bool) -> anyhow::Result<()> {
    let length = reason.map_or(0, |reason| reason.chars().count());
    if length > REASON_LIMIT_CHARACTERS {
        bail!("the reason has {length} characters, at most {REASON_LIMIT_CHARACTERS} are kept");
    }
    let revoked = change_store(config, Verb::NodeRevoke, |store| async move {
        let who = named(&machine(&*store, what).await?)?;
        let Machine { all, seen } = revocations::machine(&*store, &who).await?;
        if !seen && !anyway {
            bail!(
                "no machine is known by {who}, and nothing was revoked. To list known machines: `attest-gateway node list`, `attest-gateway ek list`; \
                 to revoke it in advance: --anyway"
            );
        }
        Ok(revocations::revoke_machine(&*store, &who, all, super::now(), reason).await?)
    })?;
    output::done(format_args!("revoked: {}", together(&revoked)))?;
    Ok(())
}

/// Returns one row for each name of a machine or a revocation, for each machine without a name, and for each other revoked identity.
fn rows(names: Vec<(String, String)>, tpms: BTreeSet<String>, mut revoked: BTreeMap<String, Revocation>) -> Vec<[String; 3]> {
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
    let named: BTreeSet<String> = rows.iter().map(|[_, identity, _]| identity.clone()).collect();
    for tpm in tpms.difference(&named) {
        let state = revoked.remove(tpm).map_or_else(|| "known".to_owned(), state);
        rows.push(["-".to_owned(), tpm.clone(), state]);
    }
    for (who, revocation) in revoked {
        let state = state(revocation);
        rows.push(if is_node_name(&who) {
            [who, "-".to_owned(), state]
        } else if named.contains(&who)
            && rows
                .iter()
                .any(|[_, identity, known]| *identity == who && known.starts_with("revoked"))
        {
            // Its name says so already.
            continue;
        } else {
            ["-".to_owned(), who, state]
        });
    }
    rows.sort();
    rows
}
