//! The Attestation Key: signs quotes, and nothing that did not come from inside its TPM.

use std::fmt;

use aws_lc_rs::signature::{self, UnparsedPublicKey};

use super::error::TpmEvidenceError;
use super::wire::{Attributes, Curve, Digest, HashAlg, KeyParameters, Public, SymmetricCipher, TpmScheme, TpmSignature};

/// Required attributes. Without any of these, software other than the TPM could choose what the AK signs, or hold the AK. The attack: a
/// TPMS_ATTEST made in software and signed by an unrestricted key.
const REQUIRED: u32 =
    Attributes::FIXED_TPM | Attributes::FIXED_PARENT | Attributes::SENSITIVE_DATA_ORIGIN | Attributes::RESTRICTED | Attributes::SIGN;
/// Attributes that an AK may have. The node decides how use of its AK is authorised, and whether it has noDA. Without noDA a TPM in
/// dictionary-attack lockout does not sign, which weakens no proof.
const OPTIONAL: u32 = Attributes::ST_CLEAR | Attributes::USER_WITH_AUTH | Attributes::ADMIN_WITH_POLICY | Attributes::NO_DA;

/// An object's Name (TPM 2.0 Part 1, 16): hash algorithm and digest of its public area.
#[derive(Clone, PartialEq, Eq)]
pub struct TpmName(Vec<u8>);

impl TpmName {
    fn from_public_area(name_alg: HashAlg, area: &[u8]) -> Self {
        let digest: Digest = name_alg.digest(&[area]);
        let mut name = name_alg.id().to_be_bytes().to_vec();
        name.extend_from_slice(digest.as_ref());
        Self(name)
    }

    /// The Qualified Name of a primary object of a hierarchy (TPM 2.0 Part 1, "Qualified Name"): the hierarchy's handle stands for the
    /// Qualified Name of a parent, and it is hashed with the object's own nameAlg.
    fn qualified_name(&self, name_alg: HashAlg, hierarchy: Hierarchy) -> Self {
        let handle = hierarchy.handle().to_be_bytes();
        let digest: Digest = name_alg.digest(&[&handle, &self.0]);
        let mut name = name_alg.id().to_be_bytes().to_vec();
        name.extend_from_slice(digest.as_ref());
        Self(name)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TpmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TpmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A hierarchy of a TPM (TPM 2.0 Part 2, "TPM_RH").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hierarchy {
    /// The hierarchy of the endorsement seed, which the manufacturer has put in.
    Endorsement,
    /// The hierarchy of the owner, who can clear it.
    Owner,
    /// The hierarchy of the firmware.
    Platform,
    /// The null hierarchy: gone at the next reset.
    Null,
}

impl Hierarchy {
    const ALL: [Self; 4] = [Self::Endorsement, Self::Owner, Self::Platform, Self::Null];

    const fn handle(self) -> u32 {
        match self {
            Self::Owner => 0x4000_0001,
            Self::Null => 0x4000_0007,
            Self::Endorsement => 0x4000_000b,
            Self::Platform => 0x4000_000c,
        }
    }
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endorsement => "endorsement",
            Self::Owner => "owner",
            Self::Platform => "platform",
            Self::Null => "null",
        })
    }
}

/// An AK whose attributes and algorithm were checked. That it lives in an endorsed TPM is proven by
/// [credential activation](super::credential) alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AkPublic {
    name: TpmName,
    name_alg: HashAlg,
    scheme: TpmScheme,
    key: KeyParameters,
}

impl AkPublic {
    /// Reads and checks a TPMT_PUBLIC, and computes its Name from its bytes.
    ///
    /// # Errors
    /// [`TpmEvidenceError::Wire`], [`TpmEvidenceError::AkAttributes`] and [`TpmEvidenceError::AkAlgorithm`].
    pub fn parse(bytes: &[u8]) -> Result<Self, TpmEvidenceError> {
        let area = Public::parse(bytes).map_err(|error| TpmEvidenceError::Wire {
            structure: "the AK's TPMT_PUBLIC",
            error,
        })?;
        if !area.attributes.has(REQUIRED) || area.attributes.0 & !(REQUIRED | OPTIONAL) != 0 {
            return Err(TpmEvidenceError::AkAttributes {
                field: "objectAttributes",
                found: format!("{:#010x}", area.attributes.0),
                required: "fixedTPM, fixedParent, sensitiveDataOrigin, restricted and sign, optionally also stClear, userWithAuth, adminWithPolicy and noDA",
            });
        }
        if area.symmetric != SymmetricCipher::Null {
            return Err(TpmEvidenceError::AkAttributes {
                field: "symmetric cipher",
                found: format!("{:?}", area.symmetric),
                required: "none",
            });
        }
        check_algorithm(&area)?;
        Ok(Self {
            name: TpmName::from_public_area(area.name_alg, bytes),
            name_alg: area.name_alg,
            scheme: area.scheme,
            key: area.key,
        })
    }

    /// Returns whether the AK is the RSA key with this modulus and public exponent, big-endian.
    #[must_use]
    pub fn is_rsa_key(&self, modulus: &[u8], exponent: &[u8]) -> bool {
        matches!(&self.key, KeyParameters::Rsa { modulus: own, .. } if own == modulus) && exponent == EXPONENT
    }

    /// The AK's Name, recomputed.
    #[must_use]
    pub const fn name(&self) -> &TpmName {
        &self.name
    }

    /// The Qualified Name that the AK has as a primary object of a hierarchy.
    #[must_use]
    pub fn qualified_name(&self, hierarchy: Hierarchy) -> TpmName {
        self.name.qualified_name(self.name_alg, hierarchy)
    }

    /// Checks that the AK, which has signed this Qualified Name, is a primary object of the endorsement hierarchy. For any other AK the TPM
    /// obfuscates resetCount, restartCount and firmwareVersion in what it signs (TPM 2.0 Part 1, "Attestation Data"): a reset could be
    /// hidden, or be made to look as if it had not been.
    ///
    /// # Errors
    /// [`TpmEvidenceError::AkHierarchy`].
    pub fn check_hierarchy(&self, qualified_signer: &[u8]) -> Result<(), TpmEvidenceError> {
        let is = |hierarchy: &Hierarchy| self.qualified_name(*hierarchy).as_bytes() == qualified_signer;
        match Hierarchy::ALL.into_iter().find(is) {
            Some(Hierarchy::Endorsement) => Ok(()),
            found => Err(TpmEvidenceError::AkHierarchy {
                found: found.map_or_else(
                    || "below another object".to_owned(),
                    |hierarchy| format!("a primary object of the {hierarchy} hierarchy"),
                ),
                qualified_signer: data_encoding::HEXLOWER.encode(qualified_signer),
            }),
        }
    }

    /// The hash of the AK's scheme: also the hash of a quote's pcrDigest (TPM 2.0 Part 3, TPM2_Quote).
    #[must_use]
    pub const fn hash(&self) -> HashAlg {
        match self.scheme {
            // `check_algorithm` lets no AK without a scheme pass.
            TpmScheme::Null => HashAlg::Sha256,
            TpmScheme::RsaSsa(hash) | TpmScheme::RsaPss(hash) | TpmScheme::Ecdsa(hash) => hash,
        }
    }

    /// Verifies a TPMT_SIGNATURE over `message` and gives the message back as what was proven.
    ///
    /// # Errors
    /// [`TpmEvidenceError::Wire`], [`TpmEvidenceError::SignatureScheme`] and [`TpmEvidenceError::Signature`].
    pub fn verify<'m>(&self, message: &'m [u8], signature: &[u8]) -> Result<SignedByAk<'m>, TpmEvidenceError> {
        let signature = TpmSignature::parse(signature).map_err(|error| TpmEvidenceError::Wire {
            structure: "TPMT_SIGNATURE",
            error,
        })?;
        if signature.scheme() != self.scheme {
            return Err(TpmEvidenceError::SignatureScheme {
                signature: format!("{:?}", signature.scheme()),
                ak: format!("{:?}", self.scheme),
            });
        }
        let verified = match (&self.key, &signature) {
            (KeyParameters::Rsa { modulus, .. }, TpmSignature::Rsa { scheme, signature }) => {
                verify_rsa(*scheme, modulus, message, signature)
            }
            (KeyParameters::Ecc { curve, x, y }, TpmSignature::Ecdsa { scheme, r, s }) => {
                verify_ecdsa(*scheme, *curve, (x, y), message, (r, s))
            }
            _ => None,
        };
        verified.map(|()| SignedByAk(message)).ok_or(TpmEvidenceError::Signature)
    }
}

/// Bytes that an AK signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedByAk<'m>(&'m [u8]);

impl<'m> SignedByAk<'m> {
    #[must_use]
    pub const fn bytes(self) -> &'m [u8] {
        self.0
    }
}

fn check_algorithm(area: &Public) -> Result<(), TpmEvidenceError> {
    let refused = |found: String| Err(TpmEvidenceError::AkAlgorithm { found });
    match (&area.key, area.scheme) {
        (
            KeyParameters::Rsa {
                key_bits: 2048,
                exponent: 0 | 65537,
                modulus,
            },
            TpmScheme::RsaSsa(_) | TpmScheme::RsaPss(_),
        ) if modulus.len() == 256 && modulus.first().is_some_and(|byte| byte & 0x80 != 0) => Ok(()),
        (KeyParameters::Ecc { curve: Curve::P256, .. }, TpmScheme::Ecdsa(HashAlg::Sha256))
        | (KeyParameters::Ecc { curve: Curve::P384, .. }, TpmScheme::Ecdsa(HashAlg::Sha384)) => Ok(()),
        (
            KeyParameters::Rsa {
                key_bits,
                exponent,
                modulus,
            },
            scheme,
        ) => refused(format!(
            "RSA-{key_bits} (modulus of {} bytes, exponent {exponent}) with {scheme:?}",
            modulus.len()
        )),
        (KeyParameters::Ecc { curve, .. }, scheme) => refused(format!("{curve:?} with {scheme:?}")),
    }
}

/// 65537, the only exponent accepted.
const EXPONENT: [u8; 3] = [1, 0, 1];

fn verify_rsa(scheme: TpmScheme, modulus: &[u8], message: &[u8], signature: &[u8]) -> Option<()> {
    let parameters = match scheme {
        TpmScheme::RsaSsa(HashAlg::Sha256) => &signature::RSA_PKCS1_2048_8192_SHA256,
        TpmScheme::RsaSsa(HashAlg::Sha384) => &signature::RSA_PKCS1_2048_8192_SHA384,
        TpmScheme::RsaSsa(HashAlg::Sha512) => &signature::RSA_PKCS1_2048_8192_SHA512,
        TpmScheme::RsaPss(HashAlg::Sha256) => &signature::RSA_PSS_2048_8192_SHA256,
        TpmScheme::RsaPss(HashAlg::Sha384) => &signature::RSA_PSS_2048_8192_SHA384,
        TpmScheme::RsaPss(HashAlg::Sha512) => &signature::RSA_PSS_2048_8192_SHA512,
        TpmScheme::Null | TpmScheme::Ecdsa(_) => return None,
    };
    signature::RsaPublicKeyComponents {
        n: modulus,
        e: &EXPONENT[..],
    }
    .verify(parameters, message, signature)
    .ok()
}

fn verify_ecdsa(scheme: TpmScheme, curve: Curve, (x, y): (&[u8], &[u8]), message: &[u8], (r, s): (&[u8], &[u8])) -> Option<()> {
    let algorithm: &'static signature::EcdsaVerificationAlgorithm = match (curve, scheme) {
        (Curve::P256, TpmScheme::Ecdsa(HashAlg::Sha256)) => &signature::ECDSA_P256_SHA256_FIXED,
        (Curve::P384, TpmScheme::Ecdsa(HashAlg::Sha384)) => &signature::ECDSA_P384_SHA384_FIXED,
        _ => return None,
    };
    let length = curve.coordinate_bytes();
    // A scalar longer than the curve's is no signature on it.
    if r.len() > length || s.len() > length {
        return None;
    }
    let fixed = |value: &[u8], out: &mut Vec<u8>| {
        out.resize(out.len() + length - value.len(), 0);
        out.extend_from_slice(value);
    };
    let mut point = vec![0x04];
    fixed(x, &mut point);
    fixed(y, &mut point);
    let mut signature = Vec::with_capacity(2 * length);
    fixed(r, &mut signature);
    fixed(s, &mut signature);
    UnparsedPublicKey::new(algorithm, point).verify(message, &signature).ok()
}
