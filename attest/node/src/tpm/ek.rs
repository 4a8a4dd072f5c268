//! Endorsement keys: which the TPM has, and which one to attest with.
//!
//! The manufacturer certifies a key that the TPM derives from its endorsement seed by a template of the TCG EK Credential
//! Profile (2.6, annex B). Often the key is also kept at a persistent handle, which saves deriving it.

use std::fmt;

use attest_wire::EkDigest;
use attest_wire::protocol::HexDigest;
use tss_esapi::handles::{KeyHandle, ObjectHandle, PersistentTpmHandle, TpmHandle};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::key_bits::RsaKeyBits;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::structures::Public;
use tss_esapi::traits::Marshall as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::ek_policy::EkAuthorization;
use super::ek_template::{TEMPLATES, Template, UNCERTIFIED_TEMPLATES};
use super::error::Doing as _;
use super::retry::{EMPTY_PASSWORD, UNAUTHORIZED};
use super::{EkChoice, TpmDevice, TpmError, nv};

/// Persistent handles of endorsement keys (TCG Registry of Reserved TPM 2.0 Handles and Localities, 2.3.1).
const PERSISTENT: std::ops::RangeInclusive<u32> = 0x8101_0000..=0x8101_ffff;
/// Most persistent keys looked at: TPMs keep seven at the least and a few dozen at the most.
const PERSISTENT_LIMIT: usize = 32;

/// Origin of an EK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EkOrigin {
    /// Kept in the TPM at this handle.
    Persistent(u32),
    /// Derived from the endorsement seed.
    Created(&'static Template),
}

impl fmt::Display for EkOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Persistent(handle) => write!(f, "persistent at {handle:#010x}"),
            Self::Created(template) => write!(f, "made from template {}", template.label),
        }
    }
}

/// An EK of this TPM.
#[derive(Debug, Clone)]
pub struct EndorsementKey {
    pub origin: EkOrigin,
    /// Type of the key: `RSA-2048 (L-1)`.
    pub label: &'static str,
    /// Public area of the key (`TPMT_PUBLIC`).
    pub public: Vec<u8>,
    /// Its name in allowlists.
    pub digest: EkDigest,
    /// Its certificate as stored in NV (DER, padding included).
    pub certificate: Option<Vec<u8>>,
    /// A certificate in NV that could not be read: of this key, or of one that is preferred to it.
    pub unread: Option<UnreadCertificate>,
    pub(super) authorization: EkAuthorization,
}

impl EndorsementKey {
    /// Returns the NV index from which the certificate was read.
    #[must_use]
    pub fn certificate_index(&self) -> Option<u32> {
        self.certificate.as_ref()?;
        let template = TEMPLATES.iter().find(|template| template.label == self.label);
        template.map(|template| template.certificate_index)
    }
}

/// An EK certificate that is in NV memory and could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the EK certificate in NV index {index:#010x} could not be read: {error}")]
pub struct UnreadCertificate {
    /// The NV index that has the certificate.
    pub index: u32,
    /// The error of the attempt to read it.
    pub error: TpmError,
}

/// A key that may turn out to be the EK wanted once the TPM has produced it.
struct EkCandidate {
    origin: EkOrigin,
    label: &'static str,
    certificate: Option<Vec<u8>>,
    /// The key that the certificate is about.
    certified: Option<EkDigest>,
    unread: Option<UnreadCertificate>,
}

impl TpmDevice {
    /// Every EK that the TPM has or can make, the preferred one first. Slow: makes those that are not persistent.
    ///
    /// # Errors
    /// [`TpmError::Command`], [`TpmError::Busy`], [`TpmError::Lockout`]; [`TpmError::NoEndorsementKey`] if the TPM has no EK of the kind
    /// asked for.
    pub fn endorsement_keys(&mut self, choice: EkChoice) -> Result<Vec<EndorsementKey>, TpmError> {
        let mut keys: Vec<EndorsementKey> = Vec::new();
        for candidate in self.candidates(choice)? {
            match self.produce(candidate) {
                Ok(key) if keys.iter().all(|known| known.digest != key.digest) => keys.push(key),
                Err(error) if error.is_temporary() => return Err(error),
                _ => {}
            }
        }
        if keys.is_empty() {
            Err(TpmError::NoEndorsementKey { choice: choice.name() })
        } else {
            Ok(keys)
        }
    }

    /// The EK to attest with: the first of [`TpmDevice::endorsement_keys`], without making the others.
    ///
    /// # Errors
    /// [`TpmError::Command`] with the error of the first candidate; [`TpmError::Busy`], [`TpmError::Lockout`];
    /// [`TpmError::NoEndorsementKey`] if the TPM has no EK.
    pub fn endorsement_key(&mut self, choice: EkChoice) -> Result<EndorsementKey, TpmError> {
        let mut first_error = None;
        for candidate in self.candidates(choice)? {
            match self.produce(candidate) {
                Ok(key) => return Ok(key),
                // Another key would be another identity.
                Err(error) if error.is_temporary() => return Err(error),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(TpmError::NoEndorsementKey { choice: choice.name() }))
    }

    /// Returns certified keys first, then persistent ones, then those that every TPM can make.
    fn candidates(&mut self, choice: EkChoice) -> Result<Vec<EkCandidate>, TpmError> {
        let persistent = self.persistent_keys()?;
        let written = self.handles(*nv::CERTIFICATES.start(), *nv::CERTIFICATES.end())?;
        let (mut candidates, mut unread) = (Vec::new(), None);
        for template in TEMPLATES
            .iter()
            .filter(|template| choice.allows(template.family) && written.contains(&template.certificate_index))
        {
            let index = template.certificate_index;
            let read = self.nv_read(index).and_then(|certificate| match certified_key(&certificate) {
                Some(certified) => Ok((certificate, certified)),
                None => Err(TpmError::Unexpected {
                    what: "bytes that are not a certificate",
                }),
            });
            let (certificate, certified) = match read {
                Ok(read) => read,
                Err(error @ TpmError::Busy { .. }) => return Err(error),
                // In lockout too: an EK works in it, and one on an allowlist needs no certificate.
                Err(error) => {
                    unread = unread.or(Some(UnreadCertificate { index, error }));
                    continue;
                }
            };
            let origin = persistent
                .iter()
                .find(|(_, public)| digest(public).is_ok_and(|digest| digest == certified))
                .map_or(EkOrigin::Created(template), |(handle, _)| EkOrigin::Persistent(*handle));
            candidates.push(EkCandidate {
                origin,
                label: template.label,
                certificate: Some(certificate),
                certified: Some(certified),
                // Of an EK that would come before this one.
                unread: unread.clone(),
            });
        }
        let uncertified = |origin, label| EkCandidate {
            origin,
            label,
            certificate: None,
            certified: None,
            unread: unread.clone(),
        };
        for (handle, public) in &persistent {
            let (family, label) = kind(public);
            if choice.allows(family) && digest(public).is_ok() {
                candidates.push(uncertified(EkOrigin::Persistent(*handle), label));
            }
        }
        for template in TEMPLATES
            .iter()
            .take(UNCERTIFIED_TEMPLATES)
            .filter(|template| choice.allows(template.family))
        {
            candidates.push(uncertified(EkOrigin::Created(template), template.label));
        }
        Ok(candidates)
    }

    fn persistent_keys(&mut self) -> Result<Vec<(u32, Public)>, TpmError> {
        let mut keys = Vec::new();
        for handle in self
            .handles(*PERSISTENT.start(), *PERSISTENT.end())?
            .into_iter()
            .take(PERSISTENT_LIMIT)
        {
            let object = match self.open_persistent(handle) {
                Ok(object) => object,
                Err(error) if error.is_temporary() => return Err(error),
                Err(_) => continue,
            };
            let public = self.run("reading a persistent key", UNAUTHORIZED, |context| context.read_public(object));
            self.close(object.into());
            match public {
                Ok((public, _, _)) => keys.push((handle, public)),
                Err(error) if error.is_temporary() => return Err(error),
                // A key of a kind that tss-esapi does not know is no EK of ours.
                Err(_) => {}
            }
        }
        Ok(keys)
    }

    fn produce(&mut self, candidate: EkCandidate) -> Result<EndorsementKey, TpmError> {
        let (handle, public) = self.load_ek(candidate.origin)?;
        self.unload_ek(candidate.origin, handle);
        let digest = digest(&public)?;
        if candidate.certified.is_some_and(|certified| certified != digest) {
            return Err(TpmError::Unexpected {
                what: "an endorsement key that is not the one in its certificate",
            });
        }
        let authorization = EkAuthorization::from_public(&public);
        let EkCandidate {
            origin,
            label,
            certificate,
            unread,
            ..
        } = candidate;
        Ok(EndorsementKey {
            origin,
            label,
            public: marshal(&public)?,
            digest,
            certificate,
            unread,
            authorization,
        })
    }

    /// Makes an EK usable; to be given back by [`TpmDevice::unload_ek`].
    pub(super) fn load_ek(&mut self, origin: EkOrigin) -> Result<(KeyHandle, Public), TpmError> {
        const DOING: &str = "reading the endorsement key";
        let handle = match origin {
            EkOrigin::Persistent(handle) => self.open_persistent(handle)?,
            EkOrigin::Created(template) => match self.created_ek.take() {
                Some((known, handle)) if known == template => {
                    self.created_ek = Some((known, handle));
                    handle
                }
                other => {
                    if let Some((_, handle)) = other {
                        self.flush(handle.into());
                    }
                    let public = template.public().doing("writing the template of an endorsement key")?;
                    let handle = self.create_primary("making the endorsement key", Hierarchy::Endorsement, &public)?;
                    self.created_ek = Some((template, handle));
                    handle
                }
            },
        };
        match self.run(DOING, UNAUTHORIZED, |context| context.read_public(handle)) {
            Ok((public, _, _)) => Ok((handle, public)),
            Err(error) => {
                self.unload_ek(origin, handle);
                Err(error)
            }
        }
    }

    /// Unloads an EK; one that was created stays loaded for the next use.
    pub(super) fn unload_ek(&mut self, origin: EkOrigin, handle: KeyHandle) {
        if let EkOrigin::Persistent(_) = origin {
            self.close(handle.into());
        }
    }

    pub(super) fn open_persistent(&mut self, handle: u32) -> Result<KeyHandle, TpmError> {
        const DOING: &str = "opening a persistent key";
        let handle = TpmHandle::from(PersistentTpmHandle::new(handle).doing(DOING)?);
        self.open_handle(handle, DOING).map(|object: ObjectHandle| object.into())
    }

    /// A primary object in a hierarchy, whose password is empty unless an owner took it.
    pub(super) fn create_primary(&mut self, doing: &'static str, hierarchy: Hierarchy, template: &Public) -> Result<KeyHandle, TpmError> {
        let created = self.run(doing, EMPTY_PASSWORD, |context| {
            context.create_primary(hierarchy, template.clone(), None, None, None, None)
        });
        created.map(|created| created.key_handle)
    }
}

fn digest(public: &Public) -> Result<EkDigest, TpmError> {
    EkDigest::from_public_area(&marshal(public)?).map_err(TpmError::EndorsementKey)
}

/// Returns the digest of a certificate's key; bytes after the certificate in NV are padding.
fn certified_key(certificate: &[u8]) -> Option<EkDigest> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let spki = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate.public_key().raw);
    EkDigest::try_from(HexDigest::new(spki.as_ref())?).ok()
}

/// Marshals a [`Public`] as `TPMT_PUBLIC`, which is `TPM2B_PUBLIC` without its size.
pub(super) fn marshal(public: &Public) -> Result<Vec<u8>, TpmError> {
    public.marshall().doing("writing a public area")
}

fn kind(public: &Public) -> (EkChoice, &'static str) {
    match public {
        Public::Rsa { parameters, .. } => (
            EkChoice::Rsa,
            match parameters.key_bits() {
                RsaKeyBits::Rsa2048 => "RSA-2048",
                RsaKeyBits::Rsa3072 => "RSA-3072",
                RsaKeyBits::Rsa4096 => "RSA-4096",
                RsaKeyBits::Rsa1024 => "RSA-1024",
            },
        ),
        Public::Ecc { parameters, .. } => (
            EkChoice::Ecc,
            match parameters.ecc_curve() {
                EccCurve::NistP256 => "ECC P-256",
                EccCurve::NistP384 => "ECC P-384",
                EccCurve::NistP521 => "ECC P-521",
                _ => "ECC",
            },
        ),
        _ => (EkChoice::Auto, "unknown"),
    }
}
