//! One of a pool's two configs, in every spec version: rendered once, when it is asked for, served without copying, and kept for as long as it is asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use attest_ignition::machine_config::Spec;
use attest_ignition::machine_config::appended::{self, Appended};
use attest_ignition::{Config, Inexpressible, SpecVersion};
use bytes::Bytes;
use data_encoding::HEXLOWER;

use super::packed::Packed;

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
    rendered: [Mutex<Slot>; SpecVersion::ALL.len()],
    /// The SHA-256 of everything that a node gets, in the newest version.
    digest: Result<String, Inexpressible>,
}

/// A spec version of a config, while it is asked for.
#[derive(Debug, Default)]
struct Slot {
    rendered: Option<Result<Arc<RenderedConfig>, Inexpressible>>,
    /// Whether somebody has asked for it since it was looked last.
    asked: bool,
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
    /// A config, and if it is of a MachineConfig with another one, that.
    pub(super) fn new(config: Packed, kind: Kind, of_machine_config: Option<Packed>, digest: Result<String, Inexpressible>) -> Self {
        Self {
            config,
            kind,
            of_machine_config,
            rendered: Default::default(),
            digest,
        }
    }

    /// The config in that spec version. Of many who ask for it at once, one renders it, and the others wait.
    ///
    /// # Errors
    /// [`Inexpressible`], if that version has no words for something in it.
    pub fn get(&self, version: SpecVersion) -> Result<Arc<RenderedConfig>, Inexpressible> {
        let place = SpecVersion::ALL.iter().position(|other| *other == version).unwrap_or_default();
        // The place is one of ALL's, and there are as many.
        let Some(slot) = self.rendered.get(place) else {
            unreachable!("there are spec versions")
        };
        let mut slot = locked(slot);
        slot.asked = true;
        slot.rendered.get_or_insert_with(|| self.render(version).map(Arc::new)).clone()
    }

    /// Drops what nobody has asked for since this was called last.
    pub(super) fn forget_unasked(&self) {
        for slot in &self.rendered {
            let mut slot = locked(slot);
            if !std::mem::take(&mut slot.asked) {
                slot.rendered = None;
            }
        }
    }

    /// The versions that it cannot be said in, and why. Nothing of it is kept.
    pub(super) fn inexpressible(&self) -> Vec<Inexpressible> {
        let versions = SpecVersion::ALL.into_iter();
        versions.filter_map(|version| self.render(version).err()).collect()
    }

    fn render(&self, version: SpecVersion) -> Result<RenderedConfig, Inexpressible> {
        let config = self.config(version)?;
        let bytes = match &self.kind {
            Kind::Given(given) if given.contains_key(&version) => given.get(&version).cloned().unwrap_or_default(),
            Kind::Given(given) if given.last_key_value().is_some_and(|(newest, _)| version < *newest) => {
                appended::made_older(config, version)?.express(version)?.into()
            }
            Kind::Plain | Kind::Given(_) => config.express(version)?.into(),
            Kind::Operator(appended) => appended.append(config, self.own()?.as_ref(), version)?.express(version)?.into(),
        };
        let sha256 = sha256(&bytes);
        Ok(RenderedConfig { bytes, sha256, version })
    }

    /// The config, without what its kind adds.
    fn config(&self, version: SpecVersion) -> Result<Config, Inexpressible> {
        unpacked(&self.config, version)
    }

    /// The config of the MachineConfig that it is from, if that is another one.
    fn own(&self) -> Result<Option<Config>, Inexpressible> {
        let own = self.of_machine_config.as_ref();
        own.map(|own| unpacked(own, SpecVersion::NEWEST)).transpose()
    }

    /// What the MachineConfig says that it is from, if it is from one.
    pub(super) fn spec(&self) -> Option<&Spec> {
        self.kind.spec()
    }

    /// The MachineConfig that it is from, whole, as JSON, if it is from one.
    pub(super) fn machine_config(&self) -> Result<Option<Vec<u8>>, Inexpressible> {
        let Kind::Operator(appended) = &self.kind else {
            return Ok(None);
        };
        let config = self.config(SpecVersion::NEWEST)?;
        let content = appended.content(&config, self.own()?.as_ref(), SpecVersion::NEWEST, self.config.size());
        content.map(Some)
    }

    /// Everything that a node gets, in the newest version.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn complete(&self) -> Result<Config, Inexpressible> {
        let config = self.config(SpecVersion::NEWEST)?;
        match &self.kind {
            Kind::Plain | Kind::Given(_) => Ok(config),
            Kind::Operator(appended) => appended.append(config, self.own()?.as_ref(), SpecVersion::NEWEST),
        }
    }

    /// The SHA-256 of that, as JSON.
    pub(super) const fn digest(&self) -> &Result<String, Inexpressible> {
        &self.digest
    }
}

fn locked(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unpacked(config: &Packed, version: SpecVersion) -> Result<Config, Inexpressible> {
    config.config().map_err(|error| Inexpressible {
        version,
        place: "$".to_owned(),
        problem: error.to_string(),
    })
}

pub(super) fn sha256(bytes: &[u8]) -> String {
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

    /// What that leaves out, if it leaves out anything, of a config of about so many bytes.
    pub(super) fn left_out(&self, config: &Config, expected: usize) -> Result<Option<Vec<u8>>, Inexpressible> {
        match self {
            Self::Plain | Self::Given(_) => Ok(None),
            Self::Operator(appended) => appended.content(config, self.own(), SpecVersion::NEWEST, expected).map(Some),
        }
    }

    /// What the MachineConfig says that it is from, if it is from one.
    pub(super) fn spec(&self) -> Option<&Spec> {
        match self {
            Self::Operator(appended) => Some(&appended.machine_config.spec),
            Self::Plain | Self::Given(_) => None,
        }
    }

    /// The config of the MachineConfig that it is from, if that is another one.
    pub(super) const fn own(&self) -> Option<&Config> {
        match self {
            Self::Plain | Self::Given(_) => None,
            Self::Operator(appended) => appended.machine_config.spec.config.as_ref(),
        }
    }

    /// The same, without that: it is packed.
    pub(super) fn without_own(mut self) -> Self {
        if let Self::Operator(appended) = &mut self {
            appended.machine_config.spec.config = None;
        }
        self
    }
}

impl PartialEq for Versions {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config && self.of_machine_config == other.of_machine_config && self.kind == other.kind
    }
}

/// A config that has nothing to share.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(super) fn of(config: Config, kind: Kind) -> Versions {
    let mut packing = super::packed::Packing::default();
    let places = packing.add(&config).unwrap();
    let packed = Packed::new(packing.texts(), places);
    Versions::new(packed, kind, None, Ok(String::new()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn versions() -> Versions {
        of(Config::empty(), Kind::Plain)
    }

    fn kept(versions: &Versions) -> usize {
        versions.rendered.iter().filter(|slot| locked(slot).rendered.is_some()).count()
    }

    #[test]
    fn what_nobody_asks_for_any_longer_goes_and_is_rendered_again() {
        let versions = versions();
        let first = versions.get(SpecVersion::V3_4).unwrap();
        versions.get(SpecVersion::V3_1).unwrap();
        // It was asked for since.
        versions.forget_unasked();
        assert_eq!(kept(&versions), 2);
        assert!(Arc::ptr_eq(&first, &versions.get(SpecVersion::V3_4).unwrap()));
        versions.forget_unasked();
        assert_eq!(kept(&versions), 1, "3.1 was not");
        assert!(Arc::ptr_eq(&first, &versions.get(SpecVersion::V3_4).unwrap()));
        versions.forget_unasked();
        versions.forget_unasked();
        assert_eq!(kept(&versions), 0);
        let again = versions.get(SpecVersion::V3_4).unwrap();
        assert!(!Arc::ptr_eq(&first, &again));
        assert_eq!((&first.bytes, &first.sha256), (&again.bytes, &again.sha256));
    }

    #[test]
    fn of_many_who_ask_at_once_one_renders() {
        let versions = versions();
        let barrier = std::sync::Barrier::new(8);
        let rendered: Vec<_> = std::thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                versions.get(SpecVersion::V3_4).unwrap()
            };
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert!(rendered.iter().all(|other| Arc::ptr_eq(other, &rendered[0])));
    }

    #[test]
    fn looking_which_versions_cannot_say_it_keeps_none() {
        let versions = versions();
        assert_eq!(versions.inexpressible(), []);
        assert_eq!(kept(&versions), 0);
    }
}
