//! The command `attest-gateway token create`: makes or imports a token.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use attest_gateway::credentials::tokens::{self, Created, Draft, GRACE_SECONDS, Imported, Rotation, TokenRecord};
use attest_gateway::settings::Settings;
use attest_log::Earns;
use attest_log::admin::{By, Verb};
use attest_system::clock::rfc3339;
use ipnet::IpNet;
use zeroize::Zeroizing;

use super::token_output::{SHOWN, TokenOutput, TokenOutputOptions, describe};
use super::{now, unpublished};
use crate::commands::acting::change_store_as;
use crate::commands::durations::{LONGEST_SECONDS, seconds, seconds_or_none};
use crate::commands::output;

/// Default lifetime of a token, in seconds.
const LIFETIME_SECONDS: u64 = 24 * 3600;
/// Largest file that a token is taken from: the manifest of a Secret, with what an API server adds.
const IMPORT_LIMIT_BYTES: usize = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Pool of the token (repeatable).
    #[arg(long, required = true)]
    pool: Vec<String>,
    /// Name of the token, for commands and the attestation log [default: the pool and a random suffix].
    #[arg(long)]
    name: Option<String>,
    /// Number of uses [default: no limit]. A machine with attest-node uses the token once, even if it reboots during its first boot.
    /// Without attest-node each fetch is a use.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    uses: Option<u32>,
    /// With --uses: time after a use in which further fetches from the same address cost no use [default: 0]. For machines without
    /// attest-node that reboot during their first boot. Machines behind one NAT or balancer share an address.
    #[arg(long, value_parser = seconds, requires = "uses")]
    again: Option<u64>,
    /// Lifetime of the token: a number with s, m, h or d [default: 24h; with --rotate-every, twice that and the grace period].
    #[arg(long, value_parser = seconds)]
    ttl: Option<u64>,
    /// Network from which it may be used, such as 192.0.2.0/24 or 2001:db8::/48 (repeatable) [default: any].
    #[arg(long, value_parser = attest_gateway::network::network)]
    network: Vec<IpNet>,
    /// Have the running gateway replace the token at this interval.
    #[arg(long, value_parser = seconds, requires = "into")]
    rotate_every: Option<u64>,
    /// With --rotate-every: grace period of the previous token [default: 24h].
    #[arg(long, value_parser = seconds_or_none, requires = "rotate_every")]
    grace: Option<u64>,
    /// With --rotate-every: folder for NAME.token, NAME.secret.yaml and NAME-POOL.ign. The gateway's user must be able to write there.
    #[arg(long, requires = "rotate_every", value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Import a token from this file (- is standard input) instead of creating one. The file holds the token, the manifest of a Secret
    /// with the token under `token`, or the manifest of a Kubernetes bootstrap token, whose expiry is kept. The token needs 128 random
    /// bits: 22 characters of Base64, or 32 hexadecimal digits. It is not printed again.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    #[command(flatten)]
    shape: TokenOutputOptions,
}

pub(super) fn create(config: &Path, arguments: &Create) -> anyhow::Result<()> {
    // Before this becomes the state's owner.
    let by = By::this_process();
    let settings = Settings::load(config)?;
    let pools: BTreeSet<String> = arguments.pool.iter().cloned().collect();
    for pool in &pools {
        let grants = attest_pool::grants(&super::super::pool_folder(&settings, pool)?)?;
        if grants.token == Earns::Refuse {
            output::print_note(format_args!(
                "pool {pool} accepts no tokens yet; set grants.token = \"full\" in its pool.toml"
            ));
        }
    }
    arguments.shape.check(&settings, &pools, None)?;
    if arguments.uses.is_some() && arguments.again.is_none() {
        pools
            .iter()
            .filter_map(|pool| fetches_twice(&settings, pool))
            .for_each(|why| output::print_note(format_args!("{why}")));
    }
    let rotation = rotation(&settings, arguments)?;
    let standard = rotation.as_ref().map_or(LIFETIME_SECONDS, |rotation| {
        // Twice, so that the token outlives a time in which it cannot be rotated.
        rotation.every.saturating_mul(2).saturating_add(rotation.grace).min(LONGEST_SECONDS)
    });
    let imported = arguments.from_file.as_deref().map(imported).transpose()?;
    let expires = imported.as_ref().and_then(Imported::expires);
    // One moment for both: a lifetime that is counted from a later one would end later than the token does where it is from.
    let made = now();
    let lifetime = lifetime(arguments.ttl, standard, expires, made.as_secs())?;
    if expires.is_some() && rotation.is_some() {
        bail!(
            "--rotate-every cannot rotate a bootstrap token of Kubernetes, which expires in the cluster: import it without --rotate-every"
        );
    }
    let draft = |name| Draft {
        name,
        pools: pools.clone(),
        lifetime,
        uses: arguments.uses,
        again: arguments.again,
        networks: arguments.network.clone(),
        rotation,
    };
    let brought = imported.is_some();
    let (ca, first) = (settings.tls.ca.clone(), pools.first().cloned().unwrap_or_default());
    let verb = if brought { Verb::TokenImport } else { Verb::TokenCreate };
    let created = change_store_as(by.clone(), config, verb, |store| async move {
        let name = match &arguments.name {
            Some(name) => name.clone(),
            None => tokens::free_name(&*store, &first).await?,
        };
        Ok(match imported {
            Some(token) => tokens::import(&*store, draft(name), token, &ca, made).await?,
            None => tokens::create(&*store, draft(name), &ca, made).await?,
        })
    })?;
    describe(&created.record, if brought { "imported; it is not shown again" } else { SHOWN });
    if !brought || arguments.shape.format != TokenOutput::Token {
        match arguments.shape.show(&settings, &created) {
            Err(error) if brought => return Err(error.context("the token was imported, but could not be printed in the form of --format")),
            Err(error) => return Err(lost(config, by, &created, error)),
            Ok(()) => {}
        }
    }
    created.published.map_err(unpublished)
}

/// Revokes a token that could not be shown, so that it was not delivered. One that is in a folder is not lost.
fn lost(config: &Path, by: By, created: &Created, error: anyhow::Error) -> anyhow::Error {
    let TokenRecord { name, rotation, .. } = &created.record;
    if let Some(Rotation { into, .. }) = rotation {
        return error.context(format!("cannot print token {name:?}; its files are in {}", into.display()));
    }
    let revoked = change_store_as(by, config, Verb::TokenRevoke, async |store| {
        Ok(tokens::withdraw(&*store, created).await?)
    });
    error.context(match revoked {
        Ok(()) => format!("cannot print token {name:?}; it was revoked: run the command again"),
        Err(failed) => format!(
            "cannot print token {name:?}, and cannot revoke it ({}); revoke it: `attest-gateway token revoke {name}`",
            attest_command_line::in_full(&failed)
        ),
    })
}

/// Returns a warning about a pool whose machines fetch more than once in their first boot. `None` for a pool that cannot be read at the
/// moment, which is reported elsewhere.
fn fetches_twice(settings: &Settings, pool: &str) -> Option<String> {
    let why = super::super::pool(settings, pool).ok()?.reboot_cause()?;
    Some(format!(
        "pool {pool}: its full config has {why}, so its machines reboot during their first boot and fetch twice. Without attest-node in their \
         initramfs each machine spends two uses; with --again 15m the second fetch from the same address is free (docs/how-to/tokens.md)"
    ))
}

/// Returns the lifetime in seconds: not beyond the token's expiry at its origin.
fn lifetime(asked: Option<u64>, standard: u64, expires: Option<u64>, now: u64) -> anyhow::Result<u64> {
    let Some(expires) = expires else {
        return Ok(asked.unwrap_or(standard));
    };
    let left = expires.saturating_sub(now);
    if left == 0 {
        bail!("the token expired at {}: import another one", rfc3339(expires));
    }
    Ok(asked.map_or(left, |asked| asked.min(left)).min(LONGEST_SECONDS))
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
    let bytes = Zeroizing::new(super::super::pointer::read(file, IMPORT_LIMIT_BYTES)?);
    let text = std::str::from_utf8(&bytes)
        .ok()
        .with_context(|| format!("{}: not a text file", name()))?;
    Imported::read(text).with_context(name)
}

/// Returns the settings of the token's automatic rotation, if it has one.
fn rotation(settings: &Settings, arguments: &Create) -> anyhow::Result<Option<Rotation>> {
    let (Some(every), Some(into)) = (arguments.rotate_every, &arguments.into) else {
        return Ok(None);
    };
    let folder = into
        .canonicalize()
        .with_context(|| format!("--into {}: create the folder first, owned by the gateway's user", into.display()))?;
    if !folder.is_dir() {
        bail!("--into {}: not a folder", folder.display());
    }
    Ok(Some(Rotation {
        every,
        grace: arguments.grace.unwrap_or(GRACE_SECONDS),
        into: folder,
        url: super::super::pointer::base_url(settings, arguments.shape.url.as_ref())?,
        replica: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_token_lifetime_is_capped_by_its_source() {
        let standard = LIFETIME_SECONDS;
        let check = |asked, expires, expected: Option<u64>| {
            assert_eq!(lifetime(asked, standard, expires, 1000).ok(), expected, "{asked:?} {expires:?}");
        };
        check(None, None, Some(standard));
        check(Some(60), None, Some(60));
        check(None, Some(1100), Some(100));
        check(Some(60), Some(1100), Some(60));
        check(Some(600), Some(1100), Some(100));
        check(None, Some(1000 + 3 * standard), Some(3 * standard));
        check(None, Some(u64::MAX), Some(LONGEST_SECONDS));
        check(Some(60), Some(1000), None);
        check(None, Some(0), None);
    }
}
