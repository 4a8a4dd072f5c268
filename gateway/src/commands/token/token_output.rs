//! Output of a new token, whose text is nowhere else.

use std::collections::BTreeSet;

use anyhow::bail;
use attest_certificates::source;
use attest_gateway::credentials::tokens::{self, Created, Rotation, TokenRecord};
use attest_gateway::settings::Settings;
use attest_pointers::PointerOptions;
use attest_system::clock::{lasting, rfc3339};
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::super::output::{self, ReaderState};
use super::super::pointer::base_url;
use super::join;

/// Remark that precedes a new token.
pub(super) const SHOWN: &str = "it is shown only now:";

/// Form in which a token is printed.
#[derive(Debug, clap::Args)]
pub(crate) struct TokenOutputOptions {
    /// Print the token, the Secret machineconfig-auth of the namespace openshift-config, or a pointer config with the token.
    #[arg(long, value_enum, value_name = "FORM", default_value = "token")]
    pub(super) format: TokenOutput,
    /// URL of the gateway in pointers [default: `pointer_url` of gateway.toml; else the certificate's first name and the port of `listen`].
    #[arg(long)]
    pub(super) url: Option<Url>,
    /// With --format pointer: pool of the pointer, one of the token's pools.
    #[arg(long, value_name = "POOL")]
    for_pool: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum TokenOutput {
    Token,
    Secret,
    Pointer,
}

/// Says what a new token is good for.
pub(super) fn describe(record: &TokenRecord, text: &str) {
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
        format!(", free again from the same address for {} after each", lasting(again))
    });
    let from = if networks.is_empty() {
        String::new()
    } else {
        format!(", from {}", join(networks))
    };
    output::print_note(format_args!(
        "token {name:?} for {plural} {}, valid until {}, {uses}{again}{from}; {text}",
        pools.join(", "),
        rfc3339(*expires)
    ));
    if let Some(Rotation { every, grace, into, .. }) = rotation {
        output::print_note(format_args!(
            "token {name:?} is in {}; the gateway replaces it there every {}, and accepts the previous token for {}",
            into.display(),
            lasting(*every),
            lasting(*grace)
        ));
    }
}

impl TokenOutputOptions {
    /// Fails if this cannot be shown of a token for these pools: before there is a token that would be lost.
    pub(super) fn check(&self, settings: &Settings, pools: &BTreeSet<String>, rotation: Option<&Rotation>) -> anyhow::Result<()> {
        if self.format == TokenOutput::Pointer {
            self.pointer(settings, pools, rotation, None)?;
        }
        Ok(())
    }

    /// Returns the pointer config; it says the same of the gateway as those that are written into a folder.
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
            bail!("a pointer names one pool: add --for-pool with one of {}", pools.join(", "));
        };
        let url = self.url.as_ref().or(rotation.map(|rotation| &rotation.url));
        let authorities = source::authorities(&settings.tls.ca)?;
        let pointer = PointerOptions {
            base: &base_url(settings, url)?,
            pool,
            authorities: &authorities,
            token,
        };
        Ok(pointer.render()?)
    }

    /// Prints the token in the form that is asked for, which delivers it.
    ///
    /// # Errors
    /// If it could not be written, or its reader is gone.
    pub(super) fn show(&self, settings: &Settings, created: &Created) -> anyhow::Result<()> {
        let Created { text, record, .. } = created;
        let shown = match self.format {
            TokenOutput::Token => format!("{}\n", **text),
            TokenOutput::Secret => tokens::auth_secret(text).to_string(),
            TokenOutput::Pointer => format!(
                "{:#}\n",
                self.pointer(settings, &record.pools, record.rotation.as_ref(), Some(text))?
            ),
        };
        match output::write(Zeroizing::new(shown).as_bytes())? {
            ReaderState::There => Ok(()),
            ReaderState::Gone => bail!("standard output was closed"),
        }
    }
}
