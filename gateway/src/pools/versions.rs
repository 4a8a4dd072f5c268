//! One of a pool's two configs, in every spec version: rendered once, when it is first asked for, and served without copying.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::body::Bytes;
use data_encoding::HEXLOWER;

use crate::ignition::{Config, Inexpressible, SpecVersion};
use crate::machine_config::Spec;
use crate::machine_config::appended::{self, Appended};

/// A config as it is served.
#[derive(Debug, Clone)]
pub struct RenderedConfig {
    /// The JSON.
    pub bytes: Bytes,
    /// Its SHA-256, hexadecimal: what the record says was served, and the ETag.
    pub sha256: String,
    /// The spec version it is in.
    pub version: SpecVersion,
}

/// A config, and how it becomes what is served.
#[derive(Debug)]
pub struct Versions {
    config: Config,
    kind: Kind,
    rendered: [OnceLock<Result<RenderedConfig, Inexpressible>>; SpecVersion::ALL.len()],
}

/// How a config becomes what is served.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// As it is.
    Plain,
    /// With what a Machine Config Server adds.
    Operator(Box<Appended>),
    /// As another server gave it, where it did.
    Given(BTreeMap<SpecVersion, Bytes>),
}

impl Versions {
    pub(super) const fn new(config: Config, kind: Kind) -> Self {
        Self {
            config,
            kind,
            rendered: [const { OnceLock::new() }; SpecVersion::ALL.len()],
        }
    }

    /// The config in that spec version.
    ///
    /// # Errors
    /// [`Inexpressible`], if that version has no words for something in it.
    pub fn get(&self, version: SpecVersion) -> Result<&RenderedConfig, &Inexpressible> {
        let place = SpecVersion::ALL.iter().position(|other| *other == version).unwrap_or_default();
        // The place is one of ALL's, and there are as many.
        let Some(rendered) = self.rendered.get(place).or(self.rendered.first()) else {
            unreachable!("there are spec versions")
        };
        rendered.get_or_init(|| self.render(version)).as_ref()
    }

    fn render(&self, version: SpecVersion) -> Result<RenderedConfig, Inexpressible> {
        let bytes = match &self.kind {
            Kind::Given(given) if given.contains_key(&version) => given.get(&version).cloned().unwrap_or_default(),
            Kind::Given(given) if given.last_key_value().is_some_and(|(newest, _)| version < *newest) => {
                appended::made_older(self.config.clone(), version)?.express(version)?.into()
            }
            Kind::Plain | Kind::Given(_) => self.config.express(version)?.into(),
            Kind::Operator(appended) => appended.append(self.config.clone(), version)?.express(version)?.into(),
        };
        let sha256 = HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes).as_ref());
        Ok(RenderedConfig { bytes, sha256, version })
    }

    /// What the MachineConfig says that it is from, if it is from one.
    pub(super) fn spec(&self) -> Option<&Spec> {
        match &self.kind {
            Kind::Operator(appended) => Some(&appended.machine_config.spec),
            Kind::Plain | Kind::Given(_) => None,
        }
    }

    /// Everything that a node gets, in the newest version.
    #[must_use]
    pub fn complete(&self) -> Config {
        match &self.kind {
            Kind::Plain | Kind::Given(_) => self.config.clone(),
            // What can go wrong there, goes wrong in old versions only.
            Kind::Operator(appended) => appended
                .append(self.config.clone(), SpecVersion::NEWEST)
                .unwrap_or_else(|_| self.config.clone()),
        }
    }
}

impl PartialEq for Versions {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config && self.kind == other.kind
    }
}
