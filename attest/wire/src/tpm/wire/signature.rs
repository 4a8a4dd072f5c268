use super::{BUFFER_LIMIT_BYTES, HashAlg, TpmReader, TpmScheme, WireError, put_sized};

const ALG_RSASSA: u16 = 0x0014;
const ALG_RSAPSS: u16 = 0x0016;
const ALG_ECDSA: u16 = 0x0018;
/// Longest r or s: a P-384 scalar.
const SCALAR_LIMIT_BYTES: usize = 48;

/// TPMT_SIGNATURE (Part 2, 11.3.4) of the schemes an AK may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TpmSignature<'a> {
    /// Signature by `RSASSA` or `RSAPSS`.
    Rsa {
        /// [`TpmScheme::RsaSsa`] or [`TpmScheme::RsaPss`], with its hash.
        scheme: TpmScheme,
        /// Signature value, big-endian integer.
        signature: &'a [u8],
    },
    Ecdsa {
        /// [`TpmScheme::Ecdsa`] with its hash.
        scheme: TpmScheme,
        /// r, big-endian, leading zeros may be missing.
        r: &'a [u8],
        /// s, encoded like `r`: big-endian, leading zeros may be missing.
        s: &'a [u8],
    },
}

impl<'a> TpmSignature<'a> {
    /// Reads a TPMT_SIGNATURE, all of `bytes`.
    ///
    /// # Errors
    /// [`WireError`] for bytes that are not one, and for schemes that this verifier does not handle.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        TpmReader::all(bytes, |reader| {
            let algorithm = reader.u16("sigAlg")?;
            match algorithm {
                ALG_RSASSA | ALG_RSAPSS => {
                    let hash = HashAlg::read(reader, "signature hash")?;
                    let scheme = if algorithm == ALG_RSASSA {
                        TpmScheme::RsaSsa(hash)
                    } else {
                        TpmScheme::RsaPss(hash)
                    };
                    Ok(Self::Rsa {
                        scheme,
                        signature: reader.sized("signature", BUFFER_LIMIT_BYTES)?,
                    })
                }
                ALG_ECDSA => {
                    let scheme = TpmScheme::Ecdsa(HashAlg::read(reader, "signature hash")?);
                    let r = reader.sized("signatureR", SCALAR_LIMIT_BYTES)?;
                    let s = reader.sized("signatureS", SCALAR_LIMIT_BYTES)?;
                    Ok(Self::Ecdsa { scheme, r, s })
                }
                found => Err(WireError::Unsupported {
                    field: "sigAlg",
                    found: found.into(),
                }),
            }
        })
    }

    /// The scheme the signature was made with.
    #[must_use]
    pub const fn scheme(&self) -> TpmScheme {
        match self {
            Self::Rsa { scheme, .. } | Self::Ecdsa { scheme, .. } => *scheme,
        }
    }

    /// Encodes the structure as `TPMT_SIGNATURE`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BUFFER_LIMIT_BYTES);
        self.scheme().write(&mut out);
        match self {
            Self::Rsa { signature, .. } => put_sized(&mut out, signature),
            Self::Ecdsa { r, s, .. } => {
                put_sized(&mut out, r);
                put_sized(&mut out, s);
            }
        }
        out
    }
}
