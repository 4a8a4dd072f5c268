//! The command `attest-gateway token`: manages provisioning tokens.

mod create;
mod rotate;
mod token_output;

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest::UnixTime;
use attest_gateway::credentials::tokens::{self, TokenRecord, TokenState};
use attest_gateway::settings::Settings;
use attest_log::admin::Verb;
use attest_system::clock::{Clock, lasting, rfc3339};
use ipnet::IpNet;

use super::acting::{change_store, found};
use super::{OutputOption, output, with_store};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a provisioning token and print it. It cannot be shown again.
    #[command(
        after_help = "Example: a token for one machine, valid for a day\n  attest-gateway token create --pool worker --name rack7 --uses 1 --ttl 24h\n\nExample: a token that the gateway replaces every month, in a folder that your provisioning reads\n  attest-gateway token create --pool worker --name fleet --network 192.0.2.0/24 --rotate-every 30d --into /var/lib/attest-gateway/tokens\n\nExample: import a token that pointers carry already\n  oc -n openshift-config get secret machineconfig-auth -o yaml | attest-gateway token create --pool worker --name old --ttl 30d --from-file -\n\nThe pool must accept tokens: set grants.token in its pool.toml."
    )]
    Create(Box<create::Create>),
    /// Replace a token by a new one with the same name, pools, networks and uses.
    ///
    /// The previous token stays valid for the grace period.
    #[command(
        after_help = "Example: print the next token as a pointer config\n  attest-gateway token rotate rack7 --format pointer > worker.ign\n\nExample: the token has leaked; invalidate it at once\n  attest-gateway token rotate rack7 --grace 0s"
    )]
    Rotate(Box<rotate::Rotate>),
    /// List the tokens with pools, state and uses, without their text.
    #[command(
        after_help = "Example:\n  attest-gateway token list\n\nSTATE is current, previous (rotated, and valid for its grace period), expired or spent."
    )]
    List {
        #[command(flatten)]
        format: OutputOption,
    },
    /// Revoke all tokens of a name, current and previous.
    #[command(after_help = "Example:\n  attest-gateway token revoke rack7\n\nRunning gateways refuse the token from now on.")]
    Revoke {
        /// Name of the token.
        name: String,
    },
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(arguments) => create::create(config, arguments)?,
        Command::Rotate(arguments) => rotate::rotate(config, arguments)?,
        Command::List { format } => list(config, *format)?,
        Command::Revoke { name } => {
            let settings = Settings::load(config)?;
            if tokens::is_followed(name) && settings.cluster.is_some_and(|cluster| !cluster.bootstrap_tokens.is_empty()) {
                bail!(
                    "token {name:?} is imported from the cluster's bootstrap tokens, and would be imported again: delete its Secret in kube-system instead"
                );
            }
            let wanted = name.clone();
            let revoked = change_store(config, Verb::TokenRevoke, |store| async move {
                let revoked = tokens::revoke(&*store, &wanted).await?;
                found(revoked > 0, || {
                    format!(
                        "no token is named {}; to list all tokens: `attest-gateway token list`",
                        tokens::shown_name(&wanted)
                    )
                })?;
                Ok(revoked)
            })?;
            output::done(format_args!("revoked: {revoked} tokens named {name:?}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unpublished(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!(
        "the token is valid, but not all of its files could be written; the running gateway will rotate the token again: {error}"
    )
}

fn list(config: &Path, format: OutputOption) -> anyhow::Result<()> {
    let all = with_store(config, |store| async move { Ok(tokens::list(&store).await?) })?;
    let rows: Vec<[String; 8]> = all.into_iter().map(|(token, used)| row(token, used, now())).collect();
    let head = ["NAME", "POOLS", "STATE", "USES", "NETWORKS", "CREATED", "EXPIRES", "ROTATES"];
    super::list(format, head, &rows)
}

fn row(token: TokenRecord, used: u32, now: UnixTime) -> [String; 8] {
    let state = match token.state(used, now) {
        TokenState::Current => "current".to_owned(),
        TokenState::Previous => format!("previous until {}", rfc3339(token.expires)),
        TokenState::Expired => "expired".to_owned(),
        TokenState::Spent => "spent".to_owned(),
    };
    let again = token
        .again
        .map_or_else(String::new, |again| format!(", again for {}", lasting(again)));
    let uses = token
        .uses
        .map_or_else(|| used.to_string(), |limit| format!("{used} of {limit}{again}"));
    let networks = if token.networks.is_empty() {
        "any".to_owned()
    } else {
        join(&token.networks)
    };
    let rotates = token.rotates_at().map_or_else(|| "-".to_owned(), rfc3339);
    let [created, ends] = [token.created, token.ends()].map(rfc3339);
    [
        token.name,
        token.pools.into_iter().collect::<Vec<_>>().join(","),
        state,
        uses,
        networks,
        created,
        ends,
        rotates,
    ]
}

fn join(networks: &[IpNet]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn now() -> UnixTime {
    Clock::System.now()
}
