//! The command `attest-gateway node`: frees names, releases instance claims, and revokes machines.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_log::admin::Verb;
use attest_machines::enrolment;
use attest_machines::history;
use attest_machines::instances;
use attest_machines::revocations::{self, Machine};

use super::acting::{change_store, found};
use super::beginnings::{completed, machine};
use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Free a node's name, so that another machine can take it.
    #[command(
        after_help = "Example: the machine of worker-7 was replaced\n  attest-gateway node forget worker-7\n\nA name belongs to one machine from its first use. A name that the allowlist gives is not freed by this command: remove the EK, or give\nit another name.\n  attest-gateway ek remove DIGEST\n  attest-gateway ek add DIGEST --name OTHER --replace"
    )]
    Forget {
        /// Name to free.
        name: String,
    },
    /// Forget the history of a machine's TPM: counters, firmware and boots.
    #[command(
        after_help = "Example: the TPM of worker-7 was cleared\n  attest-gateway node forget-history worker-7\n\nExample: a virtual machine was rolled back; its TPM is named by its identity\n  attest-gateway node forget-history tpm:17bdc2c5a7e04f3d9b6185c2d0e7f4a31c58b96e2f07d4a8137be95c60f2d84a\n\nA pool with [history] in its pool.toml refuses a TPM whose counters, firmware or event log went backwards or changed. After this\ncommand the next attestation is compared with nothing. The machine keeps its name and its instance."
    )]
    ForgetHistory {
        /// Name of the node, digest of its EK, or its instance, as the log and `machines list` print it.
        #[arg(value_name = "WHAT")]
        what: String,
    },
    /// Release the claim of a cloud instance, so that it can be claimed again.
    #[command(
        after_help = "Example:\n  attest-gateway node release aws:123456789012/i-0123456789abcdef0\n\nAn instance belongs to its first claimant; other claimants are refused with instance-claimed. Find out first who the other claimant\nis: another process may have reached the instance's metadata server.\n\nThe instance keeps its name. To free it: attest-gateway node forget NAME."
    )]
    Release {
        /// The instance, as the log and `machines list` print it.
        instance: String,
    },
    /// Revoke a machine: gateways refuse it. The cluster still accepts its certificate.
    #[command(
        after_help = "Example: revoke a machine by its node name, its EK or its instance\n  attest-gateway node revoke worker-7 --reason 'disk sold'\n  attest-gateway node revoke 17bdc2c5a7e04f3d9b6185c2d0e7f4a31c58b96e2f07d4a8137be95c60f2d84a\n  attest-gateway node revoke aws:123456789012/i-0123456789abcdef0\n\nThe command revokes the machine's name, TPM and instance together, and prints them. Running gateways refuse the machine's next\nrequest with node-revoked: challenge, attestation, ticket and kubelet certificate.\n\nProvisioning tokens stay valid. To revoke one: attest-gateway token revoke NAME."
    )]
    Revoke {
        /// Name of the node (without `system:node:`), digest of its EK, or its instance, as the log and `machines list` print it.
        #[arg(value_name = "WHAT")]
        what: String,
        /// Reason, for the attestation log; the node does not see it.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Revoke a machine that the store does not know yet.
        #[arg(long)]
        anyway: bool,
    },
    /// Take a revocation back, with all that were made together with it.
    #[command(
        after_help = "Example:\n  attest-gateway node restore worker-7\n\nExample: another machine has taken the name, and the old machine stays revoked\n  attest-gateway node restore --only worker-7\n  attest-gateway ek add DIGEST --name worker-7 --replace"
    )]
    Restore {
        /// The name, digest or instance that was revoked.
        #[arg(value_name = "WHAT")]
        what: String,
        /// Restore only this name or identity, and leave the others revoked.
        #[arg(long)]
        only: bool,
    },
}

/// Longest reason, in characters: every record of a refusal contains it.
const REASON_LIMIT_CHARACTERS: usize = 200;

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Release { instance } => {
            let given = instance.clone();
            let released = change_store(config, Verb::NodeRelease, |store| async move {
                let all = instances::list(&*store).await?.into_iter().map(|(instance, _)| instance);
                let instance = completed(&given, all)?;
                found(instances::release(&*store, &instance).await?, || {
                    format!("instance {instance:?} is not claimed; `attest-gateway machines show` lists the claims of a machine")
                })?;
                Ok(instance)
            })?;
            output::done(format_args!("released: instance {released}; its next attestation claims it"))?;
        }
        Command::Forget { name } => {
            let wanted = name.clone();
            change_store(config, Verb::NodeForget, |store| async move {
                found(enrolment::forget_name(&*store, &wanted).await?, || {
                    format!("no node is named {wanted:?}; to list all nodes: `attest-gateway machines list`")
                })
            })?;
            output::done(format_args!("forgotten: node {name}; another machine can take the name"))?;
        }
        Command::ForgetHistory { what } => {
            let given = what.clone();
            let forgotten = change_store(config, Verb::NodeForgetHistory, |store| async move {
                let who = named(&machine(&*store, &given).await?)?;
                found(history::forget(&*store, &who).await?, || {
                    format!("the store has no history of {who}; to list all machines: `attest-gateway machines list`")
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
                    format!("{what:?} is not revoked; to list all revocations: `attest-gateway machines list`")
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
        format!("{what:?} is no node name (worker-7, not system:node:worker-7), no EK digest (64 hexadecimal digits) and no instance (aws:…, aws-nitrotpm:…, gcp:…, azure:…, azure-vtpm:…); to list all machines: `attest-gateway machines list`")
    })
}

fn together(all: &BTreeSet<String>) -> String {
    all.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn revoke(config: &Path, what: &str, reason: Option<&str>, anyway: bool) -> anyhow::Result<()> {
    let length = reason.map_or(0, |reason| reason.chars().count());
    if length > REASON_LIMIT_CHARACTERS {
        bail!("--reason has {length} characters; use at most {REASON_LIMIT_CHARACTERS}");
    }
    let revoked = change_store(config, Verb::NodeRevoke, |store| async move {
        let who = named(&machine(&*store, what).await?)?;
        let Machine { all, seen } = revocations::machine(&*store, &who).await?;
        if !seen && !anyway {
            bail!(
                "the store knows no machine {who}; nothing was revoked. To list known machines: `attest-gateway machines list`; \
                 to revoke it in advance, add --anyway"
            );
        }
        // Revoking it once more keeps the reason.
        let before = revocations::list(&*store).await?.remove(&who).and_then(|before| before.reason);
        let reason = reason.or(before.as_deref());
        Ok(revocations::revoke_machine(&*store, &who, all, super::now(), reason).await?)
    })?;
    output::done(format_args!("revoked: {}", together(&revoked)))?;
    Ok(())
}
