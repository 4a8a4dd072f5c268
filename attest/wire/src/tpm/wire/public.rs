use super::{BUFFER_LIMIT_BYTES, HashAlg, TpmReader, WireError, put_sized};

const ALG_RSA: u16 = 0x0001;
const ALG_AES: u16 = 0x0006;
const ALG_NULL: u16 = 0x0010;
const ALG_RSASSA: u16 = 0x0014;
const ALG_RSAPSS: u16 = 0x0016;
const ALG_ECDSA: u16 = 0x0018;
const ALG_ECC: u16 = 0x0023;
const ALG_CFB: u16 = 0x0043;

/// TPMA_OBJECT (Part 2, 8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes(pub u32);

impl Attributes {
    /// The object's loaded form can never leave this TPM's hierarchy.
    pub const FIXED_TPM: u32 = 1 << 1;
    /// Its saved contexts are worth nothing after a TPM Restart, as after a Reset: stricter than without.
    pub const ST_CLEAR: u32 = 1 << 2;
    /// The parent cannot change.
    pub const FIXED_PARENT: u32 = 1 << 4;
    /// The TPM made the private part.
    pub const SENSITIVE_DATA_ORIGIN: u32 = 1 << 5;
    /// The password or an HMAC session authorises use.
    pub const USER_WITH_AUTH: u32 = 1 << 6;
    /// Administration needs the policy.
    pub const ADMIN_WITH_POLICY: u32 = 1 << 7;
    /// Not subject to dictionary-attack protection.
    pub const NO_DA: u32 = 1 << 10;
    /// Signs only what the TPM made; decrypts only what the TPM understands.
    pub const RESTRICTED: u32 = 1 << 16;
    /// The private part may decrypt.
    pub const DECRYPT: u32 = 1 << 17;
    /// The private part may sign.
    pub const SIGN: u32 = 1 << 18;

    /// Returns whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// TPMT_SYM_DEF_OBJECT: none, or AES in CFB mode (what storage keys use).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymmetricCipher {
    /// No symmetric cipher (`TPM_ALG_NULL`).
    Null,
    /// AES-128 in CFB mode.
    Aes128Cfb,
    /// AES-256 in CFB mode.
    Aes256Cfb,
}

impl SymmetricCipher {
    fn read(reader: &mut TpmReader<'_>) -> Result<Self, WireError> {
        match reader.u16("symmetric algorithm")? {
            ALG_NULL => Ok(Self::Null),
            ALG_AES => {
                let bits = reader.u16("symmetric key bits")?;
                let mode = reader.u16("symmetric mode")?;
                match (bits, mode) {
                    (128, ALG_CFB) => Ok(Self::Aes128Cfb),
                    (256, ALG_CFB) => Ok(Self::Aes256Cfb),
                    (_, ALG_CFB) => Err(WireError::Unsupported {
                        field: "symmetric key bits",
                        found: bits.into(),
                    }),
                    _ => Err(WireError::Unsupported {
                        field: "symmetric mode",
                        found: mode.into(),
                    }),
                }
            }
            found => Err(WireError::Unsupported {
                field: "symmetric algorithm",
                found: found.into(),
            }),
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        let words: &[u16] = match self {
            Self::Null => &[ALG_NULL],
            Self::Aes128Cfb => &[ALG_AES, 128, ALG_CFB],
            Self::Aes256Cfb => &[ALG_AES, 256, ALG_CFB],
        };
        words.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
    }
}

/// The signing scheme that a public area fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TpmScheme {
    /// TPM_ALG_NULL: not fixed, or a key that does not sign.
    Null,
    /// Scheme `RSASSA-PKCS1-v1_5` with this hash.
    RsaSsa(HashAlg),
    /// Scheme RSASSA-PSS with this hash.
    RsaPss(HashAlg),
    Ecdsa(HashAlg),
}

impl TpmScheme {
    fn read(reader: &mut TpmReader<'_>) -> Result<Self, WireError> {
        let hash = |reader: &mut TpmReader<'_>| HashAlg::read(reader, "scheme hash");
        match reader.u16("scheme")? {
            ALG_NULL => Ok(Self::Null),
            ALG_RSASSA => hash(reader).map(Self::RsaSsa),
            ALG_RSAPSS => hash(reader).map(Self::RsaPss),
            ALG_ECDSA => hash(reader).map(Self::Ecdsa),
            found => Err(WireError::Unsupported {
                field: "scheme",
                found: found.into(),
            }),
        }
    }

    pub(super) fn write(self, out: &mut Vec<u8>) {
        let (scheme, hash) = match self {
            Self::Null => (ALG_NULL, None),
            Self::RsaSsa(hash) => (ALG_RSASSA, Some(hash)),
            Self::RsaPss(hash) => (ALG_RSAPSS, Some(hash)),
            Self::Ecdsa(hash) => (ALG_ECDSA, Some(hash)),
        };
        out.extend_from_slice(&scheme.to_be_bytes());
        if let Some(hash) = hash {
            out.extend_from_slice(&hash.id().to_be_bytes());
        }
    }
}

/// The elliptic curves that this verifier handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256 (`TPM_ECC_NIST_P256`, 0x0003).
    P256,
    /// NIST P-384 (`TPM_ECC_NIST_P384`, 0x0004).
    P384,
}

impl Curve {
    const fn id(self) -> u16 {
        match self {
            Self::P256 => 0x0003,
            Self::P384 => 0x0004,
        }
    }

    /// Length of a coordinate in bytes.
    #[must_use]
    pub const fn coordinate_bytes(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
        }
    }

    fn read(reader: &mut TpmReader<'_>) -> Result<Self, WireError> {
        match reader.u16("curve")? {
            0x0003 => Ok(Self::P256),
            0x0004 => Ok(Self::P384),
            found => Err(WireError::Unsupported {
                field: "curve",
                found: found.into(),
            }),
        }
    }
}

/// TPMU_PUBLIC_PARMS together with TPMU_PUBLIC_ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyParameters {
    Rsa {
        /// Size of the modulus in bits, as the area states it.
        key_bits: u16,
        /// 0 stands for 65537.
        exponent: u32,
        /// Modulus of the key, big-endian.
        modulus: Vec<u8>,
    },
    Ecc {
        curve: Curve,
        /// The point's x, big-endian, as the TPM wrote it (leading zeros may be missing).
        x: Vec<u8>,
        /// The point's y, encoded like x.
        y: Vec<u8>,
    },
}

/// TPMT_PUBLIC of an RSA or ECC key (Part 2, 12.2.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// Hash of the object's Name.
    pub name_alg: HashAlg,
    /// Operations that the object may perform.
    pub attributes: Attributes,
    /// Policy digest; empty, or as long as a digest of `name_alg`.
    pub auth_policy: Vec<u8>,
    /// Cipher with which a storage key protects its children.
    pub symmetric: SymmetricCipher,
    pub scheme: TpmScheme,
    pub key: KeyParameters,
}

impl Public {
    /// Reads a TPMT_PUBLIC, all of `bytes`.
    ///
    /// # Errors
    /// [`WireError`] for bytes that are not one, and for algorithms that this verifier does not handle.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        TpmReader::all(bytes, Self::read)
    }

    /// Reads a `TPM2B_PUBLIC`, all of `bytes`, as `TPM2_CreatePrimary` and tpm2-tools return it.
    ///
    /// # Errors
    /// The same as [`Public::parse`].
    pub fn parse_sized(bytes: &[u8]) -> Result<Self, WireError> {
        let area = TpmReader::all(bytes, |reader| reader.sized("TPM2B_PUBLIC", 2 * BUFFER_LIMIT_BYTES))?;
        Self::parse(area)
    }

    fn read(reader: &mut TpmReader<'_>) -> Result<Self, WireError> {
        let kind = reader.u16("type")?;
        if kind != ALG_RSA && kind != ALG_ECC {
            return Err(WireError::Unsupported {
                field: "type",
                found: kind.into(),
            });
        }
        let name_alg = HashAlg::read(reader, "nameAlg")?;
        let attributes = Attributes(reader.u32("objectAttributes")?);
        let auth_policy = reader.sized("authPolicy", name_alg.digest_bytes())?.to_vec();
        let symmetric = SymmetricCipher::read(reader)?;
        let scheme = TpmScheme::read(reader)?;
        let key = if kind == ALG_RSA {
            KeyParameters::Rsa {
                key_bits: reader.u16("keyBits")?,
                exponent: reader.u32("exponent")?,
                modulus: reader.sized("modulus", BUFFER_LIMIT_BYTES)?.to_vec(),
            }
        } else {
            let curve = Curve::read(reader)?;
            // No restricted key has a KDF scheme (Part 2, 12.2.3.6: "shall be TPM_ALG_NULL").
            match reader.u16("kdf")? {
                ALG_NULL => {}
                found => {
                    return Err(WireError::Unsupported {
                        field: "kdf",
                        found: found.into(),
                    });
                }
            }
            let limit = curve.coordinate_bytes();
            KeyParameters::Ecc {
                curve,
                x: reader.sized("x", limit)?.to_vec(),
                y: reader.sized("y", limit)?.to_vec(),
            }
        };
        Ok(Self {
            name_alg,
            attributes,
            auth_policy,
            symmetric,
            scheme,
            key,
        })
    }

    /// Encodes the structure as `TPMT_PUBLIC`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BUFFER_LIMIT_BYTES);
        let kind = if matches!(self.key, KeyParameters::Rsa { .. }) {
            ALG_RSA
        } else {
            ALG_ECC
        };
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&self.name_alg.id().to_be_bytes());
        out.extend_from_slice(&self.attributes.0.to_be_bytes());
        put_sized(&mut out, &self.auth_policy);
        self.symmetric.write(&mut out);
        self.scheme.write(&mut out);
        match &self.key {
            KeyParameters::Rsa {
                key_bits,
                exponent,
                modulus,
            } => {
                out.extend_from_slice(&key_bits.to_be_bytes());
                out.extend_from_slice(&exponent.to_be_bytes());
                put_sized(&mut out, modulus);
            }
            KeyParameters::Ecc { curve, x, y } => {
                out.extend_from_slice(&curve.id().to_be_bytes());
                out.extend_from_slice(&ALG_NULL.to_be_bytes());
                put_sized(&mut out, x);
                put_sized(&mut out, y);
            }
        }
        out
    }
}
