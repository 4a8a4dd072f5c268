//! The command `attest-gateway token rotate`: replaces a token.

use std::path::Path;

use attest_gateway::credentials::tokens::{self, RotateOptions, Rotated, Rotation, TokenRecord};
use attest_gateway::settings::Settings;
use attest_log::admin::Verb;
use attest_system::clock::rfc3339;

use super::token_output::{SHOWN, TokenOutputOptions, describe};
use super::{now, unpublished};
use crate::commands::acting::change_store;
use crate::commands::durations::{seconds, seconds_or_none};
use crate::commands::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Rotate {
    /// Name of the token.
    name: String,
    /// Grace period of the previous token: a number with s, m, h or d; 0s revokes it at once [default: that of its creation, or 24h].
    #[arg(long, value_parser = seconds_or_none)]
    grace: Option<u64>,
    /// Lifetime of the new token [default: that of the previous token].
    #[arg(long, value_parser = seconds)]
    ttl: Option<u64>,
    #[command(flatten)]
    shape: TokenOutputOptions,
}

pub(super) fn rotate(config: &Path, arguments: &Rotate) -> anyhow::Result<()> {
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
        Some(until) => output::print_note(format_args!("token {name:?}: the previous token is valid until {}", rfc3339(until))),
        None => output::print_note(format_args!("token {name:?}: the previous token is invalid from now on")),
    }
    describe(&created.record, SHOWN);
    shape.show(settings, &created).map_err(|error| lost(&created.record, error))?;
    created.published.map_err(unpublished)
}

/// Adds to an error that the new token was not delivered. The one before ends all the same, and nothing else can replace it.
fn lost(TokenRecord { name, rotation, .. }: &TokenRecord, error: anyhow::Error) -> anyhow::Error {
    error.context(match rotation {
        Some(Rotation { into, .. }) => format!("token {name:?} was rotated, but cannot be printed; its files are in {}", into.display()),
        None => format!(
            "token {name:?} was rotated, but the new token cannot be printed and is lost; rotate it again: `attest-gateway token rotate {name}`"
        ),
    })
}
