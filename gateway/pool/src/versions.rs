//! A config of a pool in every spec version. Each is rendered at its first request, served without copying, and kept while it is requested.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use attest_ignition::machine_config::MachineConfigContent;
use attest_ignition::machine_config::appended::{self, Appended};
use attest_ignition::{Config, Inexpressible, SpecVersion};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::packed::Packed;

/// A config as it is served.
#[derive(Debug, Clone)]
pub struct RenderedConfig {
    /// The config as JSON.
    pub bytes: Bytes,
    /// Its SHA-256, hexadecimal: what the record says was served, and the ETag.
    pub sha256: String,
    /// The spec version it is in.
    pub version: SpecVersion,
    gzip: OnceLock<Bytes>,
}

impl RenderedConfig {
    /// Returns the config as gzip, compressed at the first call: some 0.1 s for a megabyte. Calls at the same time wait for the first.
    pub fn gzip(&self) -> &Bytes {
        self.gzip.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            match encoder.write_all(&self.bytes).and_then(|()| encoder.finish()) {
                Ok(compressed) => compressed.into(),
                Err(error) => unreachable!("memory takes all bytes: {error}"),
            }
        })
    }

    /// Returns the config as gzip, if it was compressed before.
    #[must_use]
    pub fn compressed(&self) -> Option<&Bytes> {
        self.gzip.get()
    }
}

/// A config, and how to render it.
#[derive(Debug)]
pub struct Versions {
    config: Packed,
    kind: Conversion,
    /// The config of the MachineConfig that it comes from, if that differs.
    of_machine_config: Option<Packed>,
    rendered: [Mutex<Slot>; SpecVersion::ALL.len()],
    /// SHA-256 of everything that a node gets, in the newest version.
    digest: Result<String, Inexpressible>,
}

/// A rendered spec version of a config, while it is requested.
#[derive(Debug, Default)]
struct Slot {
    rendered: Option<Result<Arc<RenderedConfig>, Inexpressible>>,
    /// Set if it was requested since the last check.
    asked: bool,
}

/// Kind of a config: what is added when it is rendered.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Conversion {
    /// Served as it is, without additions.
    Plain,
    /// Served with the additions of a Machine Config Server.
    Operator(Box<Appended>),
    /// Served as the upstream server gave it, in the versions that it gave.
    Given(BTreeMap<SpecVersion, Bytes>),
}

impl Versions {
    /// Creates a config, with that of its MachineConfig if that differs.
    pub(super) fn new(config: Packed, kind: Conversion, of_machine_config: Option<Packed>, digest: Result<String, Inexpressible>) -> Self {
        Self {
            config,
            kind,
            of_machine_config,
            rendered: Default::default(),
            digest,
        }
    }

    /// Returns the config in that spec version. Of several concurrent requests for it, one renders it, and the others wait.
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

    /// Returns whether any version is rendered: it was requested lately.
    pub(super) fn is_rendered(&self) -> bool {
        self.rendered.iter().any(|slot| matches!(locked(slot).rendered, Some(Ok(_))))
    }

    /// Drops rendered configs that were not requested since the last call.
    pub(super) fn forget_unasked(&self) {
        for slot in &self.rendered {
            let mut slot = locked(slot);
            if !std::mem::take(&mut slot.asked) {
                slot.rendered = None;
            }
        }
    }

    /// Returns the versions that cannot express the config, with reasons. Keeps nothing that it renders for that.
    pub(super) fn inexpressible(&self) -> Vec<Inexpressible> {
        let versions = SpecVersion::ALL.into_iter();
        versions.filter_map(|version| self.render(version).err()).collect()
    }

    fn render(&self, version: SpecVersion) -> Result<RenderedConfig, Inexpressible> {
        let config = self.config(version)?;
        let bytes = match &self.kind {
            Conversion::Given(given) if given.contains_key(&version) => given.get(&version).cloned().unwrap_or_default(),
            Conversion::Given(given) if given.last_key_value().is_some_and(|(newest, _)| version < *newest) => {
                appended::made_older(config, version)?.express(version)?.into()
            }
            Conversion::Plain | Conversion::Given(_) => config.express(version)?.into(),
            Conversion::Operator(appended) => appended.append(config, self.own()?.as_ref(), version)?.express(version)?.into(),
        };
        let sha256 = sha256(&bytes);
        Ok(RenderedConfig {
            bytes,
            sha256,
            version,
            gzip: OnceLock::new(),
        })
    }

    /// Returns the config, without the additions of its kind.
    fn config(&self, version: SpecVersion) -> Result<Config, Inexpressible> {
        unpacked(&self.config, version)
    }

    /// Returns the config of the MachineConfig that it comes from, if that differs.
    fn own(&self) -> Result<Option<Config>, Inexpressible> {
        let own = self.of_machine_config.as_ref();
        own.map(|own| unpacked(own, SpecVersion::NEWEST)).transpose()
    }

    /// Returns the spec of the MachineConfig that it comes from, if there is one.
    pub(super) fn spec(&self) -> Option<&MachineConfigContent> {
        self.kind.spec()
    }

    /// Returns the whole MachineConfig that it comes from, as JSON, if there is one.
    pub(super) fn machine_config(&self) -> Result<Option<Vec<u8>>, Inexpressible> {
        let Conversion::Operator(appended) = &self.kind else {
            return Ok(None);
        };
        let config = self.config(SpecVersion::NEWEST)?;
        let content = appended.content(&config, self.own()?.as_ref(), SpecVersion::NEWEST, self.config.size());
        content.map(Some)
    }

    /// Returns everything that a node gets, in the newest version.
    ///
    /// # Errors
    /// [`Inexpressible`].
    pub fn complete(&self) -> Result<Config, Inexpressible> {
        let config = self.config(SpecVersion::NEWEST)?;
        match &self.kind {
            Conversion::Plain | Conversion::Given(_) => Ok(config),
            Conversion::Operator(appended) => appended.append(config, self.own()?.as_ref(), SpecVersion::NEWEST),
        }
    }

    /// Returns the SHA-256 of that, as JSON.
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

impl Conversion {
    /// Returns everything that a node gets, in the newest version, without the contents that only repeat the rest.
    pub(super) fn outline(&self, config: Config) -> Result<Config, Inexpressible> {
        match self {
            Self::Plain | Self::Given(_) => Ok(config),
            Self::Operator(appended) => appended.outline(config),
        }
    }

    /// Returns the contents that [`Conversion::outline`] leaves out, if any. `expected` is the approximate size of the config, in bytes.
    pub(super) fn left_out(&self, config: &Config, expected: usize) -> Result<Option<Vec<u8>>, Inexpressible> {
        match self {
            Self::Plain | Self::Given(_) => Ok(None),
            Self::Operator(appended) => appended.content(config, self.own(), SpecVersion::NEWEST, expected).map(Some),
        }
    }

    /// Returns the spec of the MachineConfig that it comes from, if there is one.
    pub(super) fn spec(&self) -> Option<&MachineConfigContent> {
        match self {
            Self::Operator(appended) => Some(&appended.machine_config.spec),
            Self::Plain | Self::Given(_) => None,
        }
    }

    /// Returns the config of the MachineConfig that it comes from, if that differs.
    pub(super) const fn own(&self) -> Option<&Config> {
        match self {
            Self::Plain | Self::Given(_) => None,
            Self::Operator(appended) => appended.machine_config.spec.config.as_ref(),
        }
    }

    /// Returns the same without that config, which is packed separately.
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

/// Builds a config that shares nothing.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub(super) fn unshared(config: Config, kind: Conversion) -> Versions {
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
        unshared(Config::empty(), Conversion::Plain)
    }

    fn cached_count(versions: &Versions) -> usize {
        versions.rendered.iter().filter(|slot| locked(slot).rendered.is_some()).count()
    }

    #[test]
    fn evicts_unused_versions_and_renders_them_again() {
        let versions = versions();
        let first = versions.get(SpecVersion::V3_4).unwrap();
        versions.get(SpecVersion::V3_1).unwrap();
        // It was asked for since.
        versions.forget_unasked();
        assert_eq!(cached_count(&versions), 2);
        assert!(Arc::ptr_eq(&first, &versions.get(SpecVersion::V3_4).unwrap()));
        versions.forget_unasked();
        assert_eq!(cached_count(&versions), 1, "3.1 was not");
        assert!(Arc::ptr_eq(&first, &versions.get(SpecVersion::V3_4).unwrap()));
        versions.forget_unasked();
        versions.forget_unasked();
        assert_eq!(cached_count(&versions), 0);
        let again = versions.get(SpecVersion::V3_4).unwrap();
        assert!(!Arc::ptr_eq(&first, &again));
        assert_eq!((&first.bytes, &first.sha256), (&again.bytes, &again.sha256));
    }

    #[test]
    fn compresses_a_rendered_version_once() {
        let versions = versions();
        assert!(!versions.is_rendered());
        let rendered = versions.get(SpecVersion::V3_4).unwrap();
        assert!(versions.is_rendered());
        assert!(rendered.compressed().is_none());
        let compressed = rendered.gzip().clone();
        assert_eq!(rendered.compressed().unwrap().as_ptr(), compressed.as_ptr());
        assert_eq!(versions.get(SpecVersion::V3_4).unwrap().gzip().as_ptr(), compressed.as_ptr());
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*compressed), &mut plain).unwrap();
        assert_eq!(plain, rendered.bytes);
    }

    #[test]
    fn concurrent_requests_render_a_version_once() {
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
    fn checking_inexpressible_versions_caches_nothing() {
        let versions = versions();
        assert_eq!(versions.inexpressible(), []);
        assert_eq!(cached_count(&versions), 0);
    }
}
