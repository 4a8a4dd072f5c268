//! One of a pool's two configs, in every spec version: rendered once, when it is first asked for, and served without copying.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::body::Bytes;
use data_encoding::HEXLOWER;

use super::packed::{Kept, Packed};
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
    config: Packed,
    kind: Kind,
    /// The config of the MachineConfig that it is from, if that is another one.
    of_machine_config: Option<Packed>,
    rendered: [OnceLock<Result<RenderedConfig, Inexpressible>>; SpecVersion::ALL.len()],
    digest: OnceLock<Result<String, Inexpressible>>,
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
    #[cfg(test)]
    pub(super) fn new(config: Config, kind: Kind) -> Self {
        match Self::sharing(&config, kind, &mut Kept::default()) {
            Ok(versions) => versions,
            Err(error) => unreachable!("a config can be packed: {error}"),
        }
    }

    /// A config that shares with others what they have, too.
    pub(super) fn sharing(config: &Config, mut kind: Kind, kept: &mut Kept) -> Result<Self, serde_json::Error> {
        let of_machine_config = match &mut kind {
            // It would be there twice.
            Kind::Operator(appended) => appended.machine_config.spec.config.take().filter(|own| own != config),
            Kind::Plain | Kind::Given(_) => None,
        };
        Ok(Self {
            config: Packed::of(config, kept)?,
            kind,
            of_machine_config: of_machine_config.map(|own| Packed::of(&own, kept)).transpose()?,
            rendered: [const { OnceLock::new() }; SpecVersion::ALL.len()],
            digest: OnceLock::new(),
        })
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
        let config = self.config(version)?;
        let bytes = match &self.kind {
            Kind::Given(given) if given.contains_key(&version) => given.get(&version).cloned().unwrap_or_default(),
            Kind::Given(given) if given.last_key_value().is_some_and(|(newest, _)| version < *newest) => {
                appended::made_older(config, version)?.express(version)?.into()
            }
            Kind::Plain | Kind::Given(_) => config.express(version)?.into(),
            Kind::Operator(appended) => self.whole(appended, &config)?.append(config, version)?.express(version)?.into(),
        };
        let sha256 = sha256(&bytes);
        Ok(RenderedConfig { bytes, sha256, version })
    }

    /// The config, without what its kind adds.
    fn config(&self, version: SpecVersion) -> Result<Config, Inexpressible> {
        unpacked(&self.config, version)
    }

    /// What there is to add, with the config of the MachineConfig.
    fn whole(&self, appended: &Appended, config: &Config) -> Result<Appended, Inexpressible> {
        let mut appended = appended.clone();
        let own = self.of_machine_config.as_ref().map(|own| unpacked(own, SpecVersion::NEWEST));
        appended.machine_config.spec.config = Some(own.transpose()?.unwrap_or_else(|| config.clone()));
        Ok(appended)
    }

    /// What the MachineConfig says that it is from, if it is from one.
    pub(super) fn spec(&self) -> Option<&Spec> {
        match &self.kind {
            Kind::Operator(appended) => Some(&appended.machine_config.spec),
            Kind::Plain | Kind::Given(_) => None,
        }
    }

    /// Everything that a node gets, in the newest version.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn complete(&self) -> Result<Config, Inexpressible> {
        let config = self.config(SpecVersion::NEWEST)?;
        match &self.kind {
            Kind::Plain | Kind::Given(_) => Ok(config),
            Kind::Operator(appended) => self.whole(appended, &config)?.append(config, SpecVersion::NEWEST),
        }
    }

    /// The SHA-256 of that, as JSON.
    pub(super) fn digest(&self) -> &Result<String, Inexpressible> {
        self.digest
            .get_or_init(|| Ok(sha256(&self.complete()?.express(SpecVersion::NEWEST)?)))
    }
}

fn unpacked(config: &Packed, version: SpecVersion) -> Result<Config, Inexpressible> {
    config.config().map_err(|error| Inexpressible {
        version,
        place: "$".to_owned(),
        problem: error.to_string(),
    })
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

impl Kind {
    /// Everything that a node gets, in the newest version, but for the contents of what repeats the rest.
    pub(super) fn outline(&self, config: Config) -> Result<Config, Inexpressible> {
        match self {
            Self::Plain | Self::Given(_) => Ok(config),
            Self::Operator(appended) => appended.outline(config),
        }
    }
}

impl PartialEq for Versions {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config && self.of_machine_config == other.of_machine_config && self.kind == other.kind
    }
}
