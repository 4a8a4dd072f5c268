//! `attest-gateway token`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use attest_gateway::tokens::{self, TokenRecord};
use attest_gateway::{clock, settings::Settings};

use super::{now, table, with_store};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a provisioning token and print it. It is shown this once; only its hash is kept.
    #[command(
        after_help = "Example: a token for one machine, good for a day\n  attest-gateway token create --pool worker --name rack7 --uses 1 --ttl 24h\n\nThe pool must accept tokens: grants.token in its pool.toml."
    )]
    Create {
        /// The pool it is for.
        #[arg(long)]
        pool: String,
        /// What you call it: the attestation log names it so.
        #[arg(long, default_value = "unnamed")]
        name: String,
        /// How many fetches it is good for [default: no limit].
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        uses: Option<u32>,
        /// How long it is good: a number with s, m, h or d.
        #[arg(long, default_value = "24h", value_parser = seconds)]
        ttl: u64,
    },
    /// List the tokens: what they are called and good for, not their text.
    #[command(after_help = "Example:\n  attest-gateway token list")]
    List,
    /// Make every token of a name worthless. Takes effect at once, on a running gateway too.
    #[command(after_help = "Example:\n  attest-gateway token revoke rack7")]
    Revoke {
        /// What the token was called when it was made.
        name: String,
    },
}

/// A duration such as `90m`, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let unit = text.chars().last().ok_or("empty")?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err("use a number with s, m, h or d, such as 24h".to_owned()),
    };
    let number: u64 = text
        .trim_end_matches(unit)
        .parse()
        .map_err(|_| "use a number with s, m, h or d, such as 24h".to_owned())?;
    number
        .checked_mul(factor)
        .filter(|seconds| (1..=10 * 365 * 86_400).contains(seconds))
        .ok_or_else(|| "between 1s and 3650d".to_owned())
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create { pool, name, uses, ttl } => create(config, pool, name, *uses, *ttl)?,
        Command::List => {
            let all = with_store(config, |store| async move { Ok(tokens::list(&store).await?) })?;
            let rows: Vec<[String; 5]> = all
                .into_iter()
                .map(|token| {
                    let uses = token.uses.map_or_else(|| "any".to_owned(), |uses| uses.to_string());
                    [
                        token.name,
                        token.pool,
                        uses,
                        clock::rfc3339(token.created),
                        clock::rfc3339(token.expires),
                    ]
                })
                .collect();
            print!("{}", table(["TOKEN", "POOL", "USES", "CREATED", "EXPIRES"], &rows));
        }
        Command::Revoke { name } => {
            let wanted = name.clone();
            let revoked = with_store(config, |store| async move { Ok(tokens::revoke(&store, &wanted).await?) })?;
            if revoked == 0 {
                bail!("there is no token named {name:?}");
            }
            println!("revoked: {revoked} of name {name:?}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(config: &Path, pool: &str, name: &str, uses: Option<u32>, ttl: u64) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let grants = attest_gateway::pools::grants(&super::pool_folder(&settings, pool)?)?;
    if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
        bail!("a token's name has 1 to 63 printable characters");
    }
    if grants.token == attest_gateway::policy::Earns::Refuse {
        eprintln!("pool {pool} accepts no tokens yet: set grants.token = \"full\" in its pool.toml");
    }
    let created = now();
    let record = TokenRecord {
        name: name.to_owned(),
        pool: pool.to_owned(),
        created,
        expires: created.saturating_add(ttl),
        uses,
    };
    let made = with_store(config, |store| async move { Ok(tokens::create(&store, record).await?) })?;
    eprintln!(
        "token {name:?} for pool {pool}, good until {}, {}; it is shown this once:",
        clock::rfc3339(made.record.expires),
        uses.map_or_else(|| "any number of times".to_owned(), |uses| format!("{uses} times"))
    );
    println!("{}", *made.text);
    Ok(())
}
