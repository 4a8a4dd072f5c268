//! `attest-gateway token`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::UnixTime;
use attest_gateway::audit::admin::Verb;
use attest_gateway::certificates::source;
use attest_gateway::clock::{Clock, lasting, rfc3339};
use attest_gateway::credentials::tokens::{
    self, Created, Draft, GRACE_SECONDS, Imported, RotateOptions, Rotated, Rotation, State, TokenRecord,
};
use attest_gateway::pointers::Pointer;
use attest_gateway::policy::Earns;
use attest_gateway::settings::Settings;
use ipnet::IpNet;
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::acting::{change_store, found};
use super::{table, with_store};

/// How long a token is good unless the administrator says otherwise.
const LIFETIME_SECONDS: u64 = 24 * 3600;
/// Longest time that can be asked for, as long as certificates live.
const LONGEST_SECONDS: u64 = 3650 * 86_400;

/// Largest file that a token is taken from: the manifest of a Secret, with what an API server adds.
const IMPORT_LIMIT_BYTES: usize = 64 * 1024;
/// What is said before a new token.
const SHOWN: &str = "it is shown this once:";

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a provisioning token and print it. It is shown this once; only its hash is kept.
    #[command(
        after_help = "Example: a token for one machine, good for a day\n  attest-gateway token create --pool worker --name rack7 --uses 1 --ttl 24h\n\nExample: a token that is replaced every month, and written to where the next pointer is made of it\n  attest-gateway token create --pool worker --name fleet --network 192.0.2.0/24 --rotate-every 30d --into /var/lib/attestation-gateway/tokens\n\nExample: a token that is in pointers already\n  oc -n openshift-config get secret machineconfig-auth -o yaml | attest-gateway token create --pool worker --name old --ttl 30d --from-file -\n\nThe pool must accept tokens: grants.token in its pool.toml."
    )]
    Create(Box<Create>),
    /// Replace a token: print a new one of the same name, for the same pools, networks and number of uses. The one before is good for the
    /// grace period still.
    #[command(
        after_help = "Example: the next token, as a pointer config\n  attest-gateway token rotate rack7 --output pointer > worker.ign\n\nExample: the token has leaked\n  attest-gateway token rotate rack7 --grace 0s"
    )]
    Rotate(Box<Rotate>),
    /// List the tokens: what they are called, good for and worth, not their text.
    #[command(
        after_help = "Example:\n  attest-gateway token list\n\nSTATE is current; previous, of a token that was rotated and is good still; expired; or spent."
    )]
    List,
    /// Make every token of a name worthless, current and previous. Takes effect at once, on a running gateway too.
    #[command(after_help = "Example:\n  attest-gateway token revoke rack7")]
    Revoke {
        /// What the token was called when it was made.
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub struct Create {
    /// The pool it is for; may be repeated.
    #[arg(long, required = true)]
    pool: Vec<String>,
    /// What you call it: the attestation log names it so [default: the pool and something random].
    #[arg(long)]
    name: Option<String>,
    /// How many machines it is good for: how often it can be used. A machine that keeps a claimant, as attest-node does, and boots again within its first
    /// boot uses it once; of others, each fetch counts [default: no limit].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    uses: Option<u32>,
    /// With --uses: for how long after a use another one from the same address is the same machine, and costs nothing: for machines without attest-node
    /// that boot again within their first boot. Behind NAT or a balancer all machines have one address, and what runs on a machine has it too
    /// [default: not at all].
    #[arg(long, value_parser = seconds, requires = "uses")]
    again: Option<u64>,
    /// How long it is good: a number with s, m, h or d [default: 24h; with --rotate-every, twice that and the grace period].
    #[arg(long, value_parser = seconds)]
    ttl: Option<u64>,
    /// From where it may be used, such as 192.0.2.0/24 or 2001:db8::/48; may be repeated [default: from everywhere].
    #[arg(long, value_parser = attest_gateway::network::network)]
    network: Vec<IpNet>,
    /// Have the serving gateway replace it by itself, that often.
    #[arg(long, value_parser = seconds, requires = "into")]
    rotate_every: Option<u64>,
    /// With --rotate-every: how long the one before is good still [default: 24h].
    #[arg(long, value_parser = seconds_or_none, requires = "rotate_every")]
    grace: Option<u64>,
    /// With --rotate-every: the folder for NAME.token, NAME.secret.yaml and NAME-POOL.ign. The gateway must be able to write there.
    #[arg(long, requires = "rotate_every", value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Take this token instead of making one: a file with it (- is standard input), or with the manifest of a Secret that has it under
    /// `token`. At least 128 random bits: 22 characters of Base64, or 32 hexadecimal digits. Where you have it from, it stays; it is not printed again.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, clap::Args)]
pub struct Rotate {
    /// What the token is called.
    name: String,
    /// How long the one before is good still: a number with s, m, h or d. 0s makes it worthless at once [default: as it was created, or 24h].
    #[arg(long, value_parser = seconds_or_none)]
    grace: Option<u64>,
    /// How long the new one is good [default: as long as the one before was].
    #[arg(long, value_parser = seconds)]
    ttl: Option<u64>,
    #[command(flatten)]
    shape: Shape,
}

/// What is printed.
#[derive(Debug, clap::Args)]
struct Shape {
    /// The token; the Secret machineconfig-auth for the namespace openshift-config; or a pointer config with the token.
    #[arg(long, value_enum, default_value = "token")]
    output: Output,
    /// In pointers: how nodes reach the gateway [default: the certificate's first name, and the port of `listen`].
    #[arg(long)]
    url: Option<Url>,
    /// With --output pointer: which of the token's pools.
    #[arg(long, value_name = "POOL")]
    for_pool: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Token,
    Secret,
    Pointer,
}

/// A duration such as `90m`, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    match seconds_or_none(text)? {
        0 => Err(format!("between 1s and {}", lasting(LONGEST_SECONDS))),
        seconds => Ok(seconds),
    }
}

/// As [`seconds`], or `0s`.
fn seconds_or_none(text: &str) -> Result<u64, String> {
    let usage = || "use a number with s, m, h or d, such as 24h".to_owned();
    let unit = text.chars().last().ok_or_else(usage)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(usage()),
    };
    let number = text
        .strip_suffix(unit)
        .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let number: u64 = number.and_then(|number| number.parse().ok()).ok_or_else(usage)?;
    number
        .checked_mul(factor)
        .filter(|seconds| *seconds <= LONGEST_SECONDS)
        .ok_or_else(|| format!("at most {}", lasting(LONGEST_SECONDS)))
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(arguments) => create(config, arguments)?,
        Command::Rotate(arguments) => rotate(config, arguments)?,
        Command::List => list(config)?,
        Command::Revoke { name } => {
            let wanted = name.clone();
            let revoked = change_store(config, Verb::TokenRevoke, |store| async move {
                let revoked = tokens::revoke(&*store, &wanted).await?;
                found(revoked > 0, || format!("there is no token named {wanted:?}"))?;
                Ok(revoked)
            })?;
            println!("revoked: {revoked} of name {name:?}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(config: &Path, arguments: &Create) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let pools: BTreeSet<String> = arguments.pool.iter().cloned().collect();
    for pool in &pools {
        let grants = attest_gateway::pools::grants(&super::pool_folder(&settings, pool)?)?;
        if grants.token == Earns::Refuse {
            eprintln!("pool {pool} accepts no tokens yet: set grants.token = \"full\" in its pool.toml");
        }
    }
    arguments.shape.check(&settings, &pools, None)?;
    if arguments.uses.is_some() && arguments.again.is_none() {
        pools
            .iter()
            .filter_map(|pool| fetches_twice(&settings, pool))
            .for_each(|why| eprintln!("{why}"));
    }
    let rotation = rotation(&settings, arguments)?;
    let standard = rotation.as_ref().map_or(LIFETIME_SECONDS, |rotation| {
        // Twice, so that the token outlives a time in which it cannot be rotated.
        rotation.every.saturating_mul(2).saturating_add(rotation.grace).min(LONGEST_SECONDS)
    });
    let draft = |name| Draft {
        name,
        pools: pools.clone(),
        lifetime: arguments.ttl.unwrap_or(standard),
        uses: arguments.uses,
        again: arguments.again,
        networks: arguments.network.clone(),
        rotation,
    };
    let imported = arguments.from_file.as_deref().map(imported).transpose()?;
    let brought = imported.is_some();
    let (ca, first) = (settings.tls.ca.clone(), pools.first().cloned().unwrap_or_default());
    let verb = if brought { Verb::TokenImport } else { Verb::TokenCreate };
    let created = change_store(config, verb, |store| async move {
        let name = match &arguments.name {
            Some(name) => name.clone(),
            None => tokens::free_name(&*store, &first).await?,
        };
        Ok(match imported {
            Some(token) => tokens::import(&*store, draft(name), token, &ca, now()).await?,
            None => tokens::create(&*store, draft(name), &ca, now()).await?,
        })
    })?;
    describe(&created.record, if brought { "it is the one that you have" } else { SHOWN });
    if brought && arguments.shape.output == Output::Token {
        return created.published.map_err(unpublished);
    }
    arguments.shape.show(&settings, &created)
}

/// What is to be said of a pool whose machines fetch more than once in their first boot. Nothing of one that cannot be read at the moment: that is
/// said elsewhere.
fn fetches_twice(settings: &Settings, pool: &str) -> Option<String> {
    let why = super::pool(settings, pool).ok()?.boots_again()?;
    Some(format!(
        "pool {pool}: its full config has {why}, so that its machines boot again within their first boot, and fetch twice: without attest-node in their \
         initramfs each takes two of the uses; --again 15m takes the second from the same address for the same machine (docs/tokens.md)"
    ))
}

/// Reads a token that was made elsewhere.
fn imported(file: &Path) -> anyhow::Result<Imported> {
    let name = || {
        if file == Path::new("-") {
            "standard input".to_owned()
        } else {
            file.display().to_string()
        }
    };
    let bytes = Zeroizing::new(super::pointer::read(file, IMPORT_LIMIT_BYTES)?);
    let text = std::str::from_utf8(&bytes)
        .ok()
        .with_context(|| format!("{}: is no text", name()))?;
    Imported::read(text).with_context(name)
}

/// How the token rotates by itself, if it is to.
fn rotation(settings: &Settings, arguments: &Create) -> anyhow::Result<Option<Rotation>> {
    let (Some(every), Some(into)) = (arguments.rotate_every, &arguments.into) else {
        return Ok(None);
    };
    let folder = into
        .canonicalize()
        .with_context(|| format!("{}; make the folder first, for the gateway's user", into.display()))?;
    if !folder.is_dir() {
        bail!("{} is no folder", folder.display());
    }
    Ok(Some(Rotation {
        every,
        grace: arguments.grace.unwrap_or(GRACE_SECONDS),
        into: folder,
        url: super::pointer::base_url(settings, arguments.shape.url.as_ref())?,
        replica: None,
    }))
}

fn rotate(config: &Path, arguments: &Rotate) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let Rotate { name, grace, ttl, shape } = arguments;
    let options = RotateOptions {
        grace: *grace,
        lifetime: *ttl,
    };
    let settings = &settings;
    let (wanted, ca) = (name.clone(), settings.tls.ca.clone());
    let Rotated { created, previous_until } = change_store(config, Verb::TokenRotate, |store| async move {
        // What cannot be shown afterwards must be known before anything changes.
        let known = tokens::list(&*store).await?;
        if let Some((record, _)) = known.iter().find(|(record, _)| record.name == wanted && record.is_current()) {
            shape.check(settings, &record.pools, record.rotation.as_ref())?;
        }
        Ok(tokens::rotate(&*store, &wanted, options, &ca, now()).await?)
    })?;
    match previous_until {
        Some(until) => eprintln!("token {name:?}: the one before is good until {}", rfc3339(until)),
        None => eprintln!("token {name:?}: the one before is worthless from this moment on"),
    }
    describe(&created.record, SHOWN);
    shape.show(settings, &created)
}

/// Says what a new token is good for.
fn describe(record: &TokenRecord, text: &str) {
    let TokenRecord {
        name,
        pools,
        expires,
        uses,
        again,
        networks,
        rotation,
        ..
    } = record;
    let plural = if pools.len() == 1 { "pool" } else { "pools" };
    let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
    let uses = uses.map_or_else(|| "any number of times".to_owned(), |uses| format!("{uses} times"));
    let again = again.map_or_else(String::new, |again| {
        format!(", and for {} after each of them from the same address", lasting(again))
    });
    let from = if networks.is_empty() {
        String::new()
    } else {
        format!(", from {}", join(networks))
    };
    eprintln!(
        "token {name:?} for {plural} {}, good until {}, {uses}{again}{from}; {text}",
        pools.join(", "),
        rfc3339(*expires)
    );
    if let Some(Rotation { every, grace, into, .. }) = rotation {
        eprintln!(
            "it is in {}, and is replaced there every {}; the one before is good for {} then",
            into.display(),
            lasting(*every),
            lasting(*grace)
        );
    }
}

impl Shape {
    /// Fails if this cannot be shown of a token for these pools: before there is a token that would be lost.
    fn check(&self, settings: &Settings, pools: &BTreeSet<String>, rotation: Option<&Rotation>) -> anyhow::Result<()> {
        if self.output == Output::Pointer {
            self.pointer(settings, pools, rotation, None)?;
        }
        Ok(())
    }

    /// The pointer config; it says the same of the gateway as those that are written into a folder.
    fn pointer(
        &self,
        settings: &Settings,
        pools: &BTreeSet<String>,
        rotation: Option<&Rotation>,
        token: Option<&str>,
    ) -> anyhow::Result<Value> {
        let mut wanted = pools
            .iter()
            .filter(|pool| self.for_pool.as_ref().is_none_or(|wanted| wanted == *pool));
        let (Some(pool), None) = (wanted.next(), wanted.next()) else {
            let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
            bail!("a pointer is for one pool: use --for-pool with one of {}", pools.join(", "));
        };
        let url = self.url.as_ref().or(rotation.map(|rotation| &rotation.url));
        let authorities = source::authorities(&settings.tls.ca)?;
        let pointer = Pointer {
            base: &super::pointer::base_url(settings, url)?,
            pool,
            authorities: &authorities,
            token,
        };
        Ok(pointer.render()?)
    }

    /// Prints what is asked for.
    fn show(&self, settings: &Settings, created: &Created) -> anyhow::Result<()> {
        let Created { text, record, published } = created;
        match self.output {
            Output::Token => println!("{}", **text),
            Output::Secret => print!("{}", *tokens::auth_secret(text)),
            Output::Pointer => println!("{:#}", self.pointer(settings, &record.pools, record.rotation.as_ref(), Some(text))?),
        }
        match published {
            Ok(()) => Ok(()),
            Err(error) => Err(unpublished(error)),
        }
    }
}

fn unpublished(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("the token is good, but its files have not all changed, and the serving gateway will rotate it again: {error}")
}

fn list(config: &Path) -> anyhow::Result<()> {
    let all = with_store(config, |store| async move { Ok(tokens::list(&store).await?) })?;
    let rows: Vec<[String; 8]> = all.into_iter().map(|(token, used)| row(token, used, now())).collect();
    let head = ["NAME", "POOLS", "STATE", "USES", "NETWORKS", "CREATED", "EXPIRES", "ROTATES"];
    print!("{}", table(head, &rows));
    Ok(())
}

fn row(token: TokenRecord, used: u32, now: UnixTime) -> [String; 8] {
    let state = match token.state(used, now) {
        State::Current => "current".to_owned(),
        State::Previous => format!("previous until {}", rfc3339(token.expires)),
        State::Expired => "expired".to_owned(),
        State::Spent => "spent".to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_with_a_unit() {
        for (text, expected) in [("90s", 90), ("2m", 120), ("24h", 86_400), ("3650d", 3650 * 86_400)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        assert_eq!(seconds_or_none("0s"), Ok(0));
        for bad in [
            "",
            "s",
            "0s",
            "24",
            "h24",
            "24hh",
            "+24h",
            "-1h",
            "1.5h",
            "3651d",
            "18446744073709551615d",
            "1 h",
            "1w",
        ] {
            seconds(bad).unwrap_err();
        }
    }
}
