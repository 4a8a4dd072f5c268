//! A loaded EK and AK, which activate credentials and sign quotes.

use std::str::FromStr;

use attest_wire::tpm::wire::HashAlg;
use tss_esapi::attributes::ObjectAttributesBuilder;
use tss_esapi::constants::SessionType;
use tss_esapi::handles::{AuthHandle, KeyHandle, SessionHandle};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::key_bits::RsaKeyBits;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Digest, DigestList, EccPoint, EccScheme, EncryptedSecret, HashScheme, IdObject, KeyDerivationFunctionScheme, Public, PublicBuilder,
    PublicEccParametersBuilder, PublicKeyRsa, PublicParameters, PublicRsaParametersBuilder, RsaExponent, RsaScheme, SymmetricDefinition,
    SymmetricDefinitionObject,
};
use zeroize::Zeroizing;

use super::ek::{EkOrigin, EndorsementKey, marshal};
use super::ek_policy::EkAuthorization;
use super::error::Doing as _;
use super::hash::hashing_algorithm;
use super::retry::{EMPTY_PASSWORD, UNAUTHORIZED};
use super::{TpmDevice, TpmError};
use crate::deadline::Deadline;

/// Largest TPM2B that the gateway sends: an RSA-4096 secret.
const SIZED_LIMIT_BYTES: usize = 512;

/// Kind of attestation key to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AkKind {
    /// P-256, ECDSA with SHA-256.
    EccP256,
    /// P-384, ECDSA with SHA-384.
    EccP384,
    /// RSA-2048, RSASSA with SHA-256.
    Rsa2048,
}

impl AkKind {
    const ALL: [(Self, &'static str); 3] = [
        (Self::EccP256, "ecc-p256"),
        (Self::EccP384, "ecc-p384"),
        (Self::Rsa2048, "rsa-2048"),
    ];

    /// The hash of its scheme, with which quotes hash the PCR values, too.
    pub(super) const fn hash(self) -> HashAlg {
        match self {
            Self::EccP256 | Self::Rsa2048 => HashAlg::Sha256,
            Self::EccP384 => HashAlg::Sha384,
        }
    }

    /// Returns the template of a key that signs only data made by the TPM itself (restricted), was made in this TPM and never leaves it.
    fn template(self) -> Result<Public, tss_esapi::Error> {
        let attributes = ObjectAttributesBuilder::new()
            .with_fixed_tpm(true)
            .with_fixed_parent(true)
            .with_sensitive_data_origin(true)
            .with_user_with_auth(true)
            // Its empty password is no secret: nobody guesses it. Without this, each reset without TPM2_Shutdown after its use counts as a failed guess (TPM 2.0
            // Part 1, "Dictionary Attack Protection"), and a TPM in lockout does not let it be used.
            .with_no_da(true)
            .with_restricted(true)
            .with_sign_encrypt(true)
            .build()?;
        let hash = hashing_algorithm(self.hash());
        let public = PublicBuilder::new()
            .with_name_hashing_algorithm(hash)
            .with_object_attributes(attributes);
        let scheme = HashScheme::new(hash);
        match self {
            Self::EccP256 => ecdsa(public, EccCurve::NistP256, scheme),
            Self::EccP384 => ecdsa(public, EccCurve::NistP384, scheme),
            Self::Rsa2048 => public
                .with_public_algorithm(PublicAlgorithm::Rsa)
                .with_rsa_parameters(
                    PublicRsaParametersBuilder::new()
                        .with_symmetric(SymmetricDefinitionObject::Null)
                        .with_scheme(RsaScheme::RsaSsa(scheme))
                        .with_key_bits(RsaKeyBits::Rsa2048)
                        .with_exponent(RsaExponent::default())
                        .with_is_signing_key(true)
                        .with_restricted(true)
                        .build()?,
                )
                .with_rsa_unique_identifier(PublicKeyRsa::default())
                .build(),
        }
    }
}

fn ecdsa(public: PublicBuilder, curve: EccCurve, scheme: HashScheme) -> Result<Public, tss_esapi::Error> {
    let parameters = PublicEccParametersBuilder::new()
        .with_symmetric(SymmetricDefinitionObject::Null)
        .with_ecc_scheme(EccScheme::EcDsa(scheme))
        .with_curve(curve)
        .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
        .with_is_signing_key(true)
        .with_restricted(true)
        .build()?;
    public
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_ecc_parameters(parameters)
        .with_ecc_unique_identifier(EccPoint::default())
        .build()
}

impl FromStr for AkKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|(_, name)| *name == text)
            .map(|(kind, _)| kind)
            .ok_or_else(|| format!("{text:?} is not one of ecc-p256, ecc-p384, rsa-2048"))
    }
}

/// An EK and an AK, loaded; both are released when this is dropped.
///
/// The AK is a primary object of the endorsement hierarchy: in the others the TPM obfuscates resetCount, restartCount and
/// firmwareVersion in quotes (TPM 2.0 Part 1, "Attestation Data").
#[derive(Debug)]
pub struct Attester<'tpm> {
    pub(super) tpm: &'tpm mut TpmDevice,
    origin: EkOrigin,
    authorization: EkAuthorization,
    ek: KeyHandle,
    pub(super) ak: KeyHandle,
    pub(super) kind: AkKind,
    ak_public: Vec<u8>,
}

impl TpmDevice {
    /// Loads the EK and makes an AK.
    ///
    /// # Errors
    /// [`TpmError::Command`], also for a TPM that cannot make such an AK.
    pub fn attester(&mut self, ek: &EndorsementKey, ak: AkKind) -> Result<Attester<'_>, TpmError> {
        self.attester_of(ek, ak, Hierarchy::Endorsement)
    }

    /// Returns an attester with an AK of any hierarchy. Gateways accept the endorsement hierarchy only: this is for tests of that.
    ///
    /// # Errors
    /// The same as for [`TpmDevice::attester`].
    pub fn attester_of(&mut self, ek: &EndorsementKey, ak: AkKind, hierarchy: Hierarchy) -> Result<Attester<'_>, TpmError> {
        let (ek_handle, _) = self.load_ek(ek.origin)?;
        match self.make_ak(ak, hierarchy) {
            Ok((ak_handle, ak_public)) => Ok(Attester {
                tpm: self,
                origin: ek.origin,
                authorization: ek.authorization,
                ek: ek_handle,
                ak: ak_handle,
                kind: ak,
                ak_public,
            }),
            Err(error) => {
                self.unload_ek(ek.origin, ek_handle);
                Err(error)
            }
        }
    }

    /// Returns whether this TPM supports the algorithms of such an AK (`TPM2_TestParms`).
    ///
    /// # Errors
    /// [`TpmError::Busy`] and [`TpmError::Lockout`]: it is not known.
    pub fn can_make(&mut self, kind: AkKind) -> Result<bool, TpmError> {
        let parameters = match kind.template() {
            Ok(Public::Rsa { parameters, .. }) => PublicParameters::Rsa(parameters),
            Ok(Public::Ecc { parameters, .. }) => PublicParameters::Ecc(parameters),
            _ => return Ok(false),
        };
        let tested = self.run("asking which keys the TPM can make", UNAUTHORIZED, |context| {
            context.test_parms(parameters)
        });
        match tested {
            Ok(()) => Ok(true),
            Err(error) if error.is_temporary() => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn make_ak(&mut self, kind: AkKind, hierarchy: Hierarchy) -> Result<(KeyHandle, Vec<u8>), TpmError> {
        let template = kind.template().doing("writing the template of an attestation key")?;
        let handle = self.create_primary("making the attestation key", hierarchy, &template)?;
        let public = self
            .run("reading the attestation key", UNAUTHORIZED, |context| context.read_public(handle))
            .and_then(|(public, _, _)| marshal(&public));
        match public {
            Ok(public) => Ok((handle, public)),
            Err(error) => {
                self.flush(handle.into());
                Err(error)
            }
        }
    }
}

impl Attester<'_> {
    /// Returns the AK's public area (`TPMT_PUBLIC`).
    #[must_use]
    pub fn ak_public(&self) -> &[u8] {
        &self.ak_public
    }

    /// The AK's handle in [`Attester::tpm`]'s context.
    #[must_use]
    pub const fn ak_handle(&self) -> KeyHandle {
        self.ak
    }

    /// The TPM that holds both keys.
    pub const fn tpm(&mut self) -> &mut TpmDevice {
        self.tpm
    }

    /// Sets the deadline until which a command is repeated that the TPM cannot run now.
    pub const fn retry_until(&mut self, deadline: Deadline) {
        self.tpm.retry_until(deadline);
    }

    /// TPM2_ActivateCredential: recovers the secret that was made for this EK and this AK.
    ///
    /// # Arguments
    /// TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET, sizes included.
    ///
    /// # Errors
    /// [`TpmError::Structure`] for bytes that are no such structures; [`TpmError::Command`] if the TPM refuses, which it does
    /// for a credential that was made for another key.
    pub fn activate(&mut self, credential_blob: &[u8], encrypted_secret: &[u8]) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        const DOING: &str = "activating the credential";
        let blob = IdObject::try_from(unsized_bytes("TPM2B_ID_OBJECT", credential_blob)?).doing(DOING)?;
        let secret = EncryptedSecret::try_from(unsized_bytes("TPM2B_ENCRYPTED_SECRET", encrypted_secret)?).doing(DOING)?;
        let (ak, ek) = (self.ak, self.ek);
        let activate = |tpm: &mut TpmDevice, ek_session: AuthSession| {
            tpm.run(DOING, (Some(AuthSession::Password), Some(ek_session), None), |context| {
                context.activate_credential(ak, ek, blob.clone(), secret.clone())
            })
        };
        let activated = match self.authorization {
            EkAuthorization::Password => activate(self.tpm, AuthSession::Password)?,
            EkAuthorization::Policy { hash, either } => self.tpm.with_policy(hash, either, activate)?,
        };
        Ok(Zeroizing::new(activated.to_vec()))
    }
}

impl Drop for Attester<'_> {
    fn drop(&mut self) {
        self.tpm.flush(self.ak.into());
        self.tpm.unload_ek(self.origin, self.ek);
    }
}

impl TpmDevice {
    /// Runs commands with a session in which PolicySecret(endorsement) holds, and then PolicyOR of these two digests, if there are any.
    fn with_policy<T>(
        &mut self,
        hash: HashingAlgorithm,
        either: Option<[&'static [u8]; 2]>,
        commands: impl FnOnce(&mut Self, AuthSession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        const DOING: &str = "authorising the use of the endorsement key";
        let session = self
            .run(DOING, UNAUTHORIZED, |context| {
                context.start_auth_session(None, None, None, SessionType::Policy, SymmetricDefinition::AES_128_CFB, hash)
            })?
            .ok_or(TpmError::Unexpected { what: "no session" })?;
        let result = self.satisfy(session, either, DOING).and_then(|()| commands(self, session));
        self.flush(SessionHandle::from(session).into());
        result
    }

    fn satisfy(&mut self, session: AuthSession, either: Option<[&'static [u8]; 2]>, doing: &'static str) -> Result<(), TpmError> {
        let policy = PolicySession::try_from(session).doing(doing)?;
        self.run(doing, EMPTY_PASSWORD, |context| {
            let (nonce, digest, reference) = Default::default();
            context.policy_secret(policy, AuthHandle::Endorsement, nonce, digest, reference, None)
        })?;
        let Some(either) = either else { return Ok(()) };
        let mut digests = DigestList::new();
        for digest in either {
            digests.add(Digest::try_from(digest).doing(doing)?).doing(doing)?;
        }
        self.run(doing, UNAUTHORIZED, |context| context.policy_or(policy, digests.clone()))
    }
}

/// Returns the content of a TPM2B: tss-esapi's buffers are without the size.
fn unsized_bytes(structure: &'static str, bytes: &[u8]) -> Result<Vec<u8>, TpmError> {
    let malformed = |expected| TpmError::Structure {
        structure,
        found: bytes.len(),
        expected,
    };
    let (size, content) = bytes.split_first_chunk::<2>().ok_or_else(|| malformed(2))?;
    let size = usize::from(u16::from_be_bytes(*size));
    if size > SIZED_LIMIT_BYTES {
        return Err(malformed(SIZED_LIMIT_BYTES));
    }
    if content.len() == size {
        Ok(content.to_vec())
    } else {
        Err(malformed(size + 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expect: Option<&[u8]>) {
        assert_eq!(unsized_bytes("TPM2B_ID_OBJECT", bytes).ok().as_deref(), expect);
    }

    #[test]
    fn sized_structures_are_parsed_exactly() {
        check(&[0, 0], Some(&[]));
        check(&[0, 1, 7], Some(&[7]));
        check(&[], None);
        check(&[0], None);
        check(&[0, 2, 7], None);
        check(&[0, 1, 7, 7], None);
        check(&[[0xff, 0xff].as_slice(), &[0; 0xffff]].concat(), None);
    }
}
