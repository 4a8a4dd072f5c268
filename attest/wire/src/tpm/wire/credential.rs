use super::{BUFFER_LIMIT_BYTES, TpmReader, WireError, put_sized};

/// The longest outer HMAC.
const HMAC_LIMIT_BYTES: usize = 64;
/// Longest encrypted `TPM2B_DIGEST`, in bytes.
const IDENTITY_LIMIT_BYTES: usize = 2 + 64;

/// TPM2B_ID_OBJECT (Part 2, 12.4.3): what TPM2_ActivateCredential takes as credentialBlob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdObject {
    /// Outer HMAC over the encrypted identity and the Name of the object it is for.
    pub integrity: Vec<u8>,
    /// Encrypted credential, a `TPM2B_DIGEST`.
    pub encrypted_identity: Vec<u8>,
}

impl IdObject {
    /// Reads a TPM2B_ID_OBJECT, all of `bytes`.
    ///
    /// # Errors
    /// [`WireError`] for bytes that are not one.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let inner = TpmReader::all(bytes, |reader| {
            reader.sized("TPM2B_ID_OBJECT", 2 + HMAC_LIMIT_BYTES + IDENTITY_LIMIT_BYTES)
        })?;
        let mut reader = TpmReader::new(inner);
        let integrity = reader.sized("integrityHMAC", HMAC_LIMIT_BYTES)?.to_vec();
        let encrypted_identity = reader.rest();
        if encrypted_identity.len() > IDENTITY_LIMIT_BYTES {
            return Err(WireError::TooLarge {
                field: "encIdentity",
                found: encrypted_identity.len(),
                limit: IDENTITY_LIMIT_BYTES,
            });
        }
        Ok(Self {
            integrity,
            encrypted_identity: encrypted_identity.to_vec(),
        })
    }

    /// Encodes the structure as `TPM2B_ID_OBJECT`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut inner = Vec::with_capacity(2 + HMAC_LIMIT_BYTES + IDENTITY_LIMIT_BYTES);
        put_sized(&mut inner, &self.integrity);
        inner.extend_from_slice(&self.encrypted_identity);
        let mut out = Vec::with_capacity(2 + inner.len());
        put_sized(&mut out, &inner);
        out
    }
}

/// TPM2B_ENCRYPTED_SECRET (Part 2, 11.4.33): the seed, encrypted to the EK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncryptedSecret {
    /// OAEP ciphertext for an RSA EK.
    Rsa(Vec<u8>),
    /// Ephemeral point (TPMS_ECC_POINT) for an ECC EK.
    Ecc {
        /// Coordinate x of the point, big-endian.
        x: Vec<u8>,
        /// Coordinate y of the point, big-endian.
        y: Vec<u8>,
    },
}

impl EncryptedSecret {
    /// Reads a TPM2B_ENCRYPTED_SECRET for an RSA EK, all of `bytes`.
    ///
    /// # Errors
    /// [`WireError`] for bytes that are not one.
    pub fn parse_rsa(bytes: &[u8]) -> Result<Self, WireError> {
        TpmReader::all(bytes, |reader| reader.sized("secret", BUFFER_LIMIT_BYTES)).map(|ciphertext| Self::Rsa(ciphertext.to_vec()))
    }

    /// Reads a TPM2B_ENCRYPTED_SECRET for an ECC EK, all of `bytes`.
    ///
    /// # Errors
    /// [`WireError`] for bytes that are not one.
    pub fn parse_ecc(bytes: &[u8]) -> Result<Self, WireError> {
        let inner = TpmReader::all(bytes, |reader| reader.sized("secret", BUFFER_LIMIT_BYTES))?;
        TpmReader::all(inner, |reader| {
            let x = reader.sized("x", 48)?.to_vec();
            let y = reader.sized("y", 48)?.to_vec();
            Ok(Self::Ecc { x, y })
        })
    }

    /// Encodes the structure as `TPM2B_ENCRYPTED_SECRET`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut inner = Vec::with_capacity(BUFFER_LIMIT_BYTES);
        match self {
            Self::Rsa(ciphertext) => inner.extend_from_slice(ciphertext),
            Self::Ecc { x, y } => {
                put_sized(&mut inner, x);
                put_sized(&mut inner, y);
            }
        }
        let mut out = Vec::with_capacity(2 + inner.len());
        put_sized(&mut out, &inner);
        out
    }
}
