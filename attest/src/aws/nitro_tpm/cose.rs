//! COSE_Sign1 (RFC 9052, 4.2) with ES384: aws-lc-rs verifies the signature, and then the crate aws-nitro-enclaves-cose reads the message. Nothing else
//! imports that crate, and it gets to see nothing that AWS has not signed.

use aws_lc_rs::digest::{Digest, SHA384, digest};
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED, ParsedPublicKey};
use aws_nitro_enclaves_cose::CoseSign1;
use aws_nitro_enclaves_cose::crypto::{Hash, MessageDigest, SignatureAlgorithm, SigningPublicKey};
use aws_nitro_enclaves_cose::error::CoseError;
use ciborium_ll::{Encoder, Header};

use super::cbor::CborReader;
use super::error::NitroTpmError;

/// The tag of a COSE_Sign1. Documents come without it; the specification allows it.
const SIGN1_TAG: u64 = 18;
/// The protected header: the map `{1: -35}`, alg ES384. Documents have nothing else in it, so nothing else is read.
const PROTECTED_ES384: &[u8] = &[0xa1, 0x01, 0x38, 0x22];
/// An ES384 signature: r and s.
const SIGNATURE_BYTES: usize = 96;

/// Most certificates in a document's cabundle. Real documents have four: root, region, zone, instance.
const CABUNDLE_LIMIT: usize = 8;
/// Longest certificate, in bytes: the document's specification (`cert`).
const CERTIFICATE_LIMIT_BYTES: usize = 1024;

/// A document whose signature was not looked at.
pub(super) struct CoseEnvelope<'a> {
    bytes: &'a [u8],
    payload: &'a [u8],
    signature: &'a [u8],
}

/// The part of a payload that may be read before its signature is verified: the certificates, which have to be validated by themselves.
pub(super) struct Unverified<'a> {
    pub(super) certificate: &'a [u8],
    pub(super) cabundle: Vec<&'a [u8]>,
}

/// The bytes that a signature was verified over. Nothing else makes one.
pub(super) struct VerifiedPayload(Vec<u8>);

pub(super) struct LeafKey(ParsedPublicKey);

/// The one signature that was verified, and no other: as the crate takes a key.
struct CoseVerifiedKey<'a> {
    digest: Digest,
    signature: &'a [u8],
}

struct AwsLc;

impl<'a> Unverified<'a> {
    /// Reads the envelope, and the certificates in its payload.
    pub(super) fn read(bytes: &'a [u8]) -> Result<(CoseEnvelope<'a>, Self), NitroTpmError> {
        let envelope = CoseEnvelope::read(bytes)?;
        let unverified = Self::from_payload(envelope.payload)?;
        Ok((envelope, unverified))
    }

    fn from_payload(payload: &'a [u8]) -> Result<Self, NitroTpmError> {
        let cbor = |error| NitroTpmError::Cbor { part: "payload", error };
        let mut reader = CborReader::new(payload);
        let (mut certificate, mut cabundle) = (None, None);
        let mut map = reader.map_of_any_length("the document's map").map_err(cbor)?;
        while reader.has_entry(&mut map).map_err(cbor)? {
            match reader.text("a field's name").map_err(cbor)? {
                "certificate" if certificate.is_some() => return Err(NitroTpmError::FieldRepeated { field: "certificate" }),
                "cabundle" if cabundle.is_some() => return Err(NitroTpmError::FieldRepeated { field: "cabundle" }),
                "certificate" => certificate = Some(bounded(reader.bytes("the certificate").map_err(cbor)?)?),
                "cabundle" => {
                    let found = reader.array("the cabundle").map_err(cbor)?;
                    if found > CABUNDLE_LIMIT {
                        return Err(NitroTpmError::CabundleLength {
                            found,
                            limit: CABUNDLE_LIMIT,
                        });
                    }
                    let certificates = (0..found).map(|_| bounded(reader.bytes("a certificate").map_err(cbor)?));
                    cabundle = Some(certificates.collect::<Result<Vec<_>, _>>()?);
                }
                _ => reader.skip().map_err(cbor)?,
            }
        }
        reader.end().map_err(cbor)?;
        Ok(Self {
            certificate: certificate.ok_or(NitroTpmError::FieldMissing { field: "certificate" })?,
            cabundle: cabundle.ok_or(NitroTpmError::FieldMissing { field: "cabundle" })?,
        })
    }
}

fn bounded(certificate: &[u8]) -> Result<&[u8], NitroTpmError> {
    if certificate.len() > CERTIFICATE_LIMIT_BYTES {
        return Err(NitroTpmError::FieldLength {
            field: "certificate",
            found: certificate.len(),
            limit: CERTIFICATE_LIMIT_BYTES,
        });
    }
    Ok(certificate)
}

impl<'a> CoseEnvelope<'a> {
    /// Checks the form byte by byte, before a general parser gets to see it.
    fn read(bytes: &'a [u8]) -> Result<Self, NitroTpmError> {
        let cbor = |error| NitroTpmError::Cbor { part: "COSE_Sign1", error };
        let mut reader = CborReader::new(bytes);
        if let Some(found) = reader.tag().map_err(cbor)?
            && found != SIGN1_TAG
        {
            return Err(NitroTpmError::Tag { found });
        }
        let found = reader.array("the array of a COSE_Sign1").map_err(cbor)?;
        if found != 4 {
            return Err(NitroTpmError::Cose {
                problem: format!("{found} elements, a COSE_Sign1 has 4"),
            });
        }
        let protected = reader.bytes("the protected header").map_err(cbor)?;
        if protected != PROTECTED_ES384 {
            return Err(NitroTpmError::Algorithm {
                // A header of another length is no algorithm at all, and may be long.
                found: data_encoding::HEXLOWER.encode(protected.get(..16).unwrap_or(protected)),
                accepted: data_encoding::HEXLOWER.encode(PROTECTED_ES384),
            });
        }
        let mut unprotected = reader.map("the unprotected header").map_err(cbor)?;
        if reader.has_entry(&mut unprotected).map_err(cbor)? {
            return Err(NitroTpmError::Unprotected);
        }
        let payload = reader.bytes("the payload").map_err(cbor)?;
        let signature = reader.bytes("the signature").map_err(cbor)?;
        if signature.len() != SIGNATURE_BYTES {
            return Err(NitroTpmError::SignatureLength {
                found: signature.len(),
                needed: SIGNATURE_BYTES,
            });
        }
        reader.end().map_err(cbor)?;
        Ok(Self { bytes, payload, signature })
    }

    /// Verifies the signature and gives the bytes that it is over.
    pub(super) fn verify(&self, key: &LeafKey) -> Result<VerifiedPayload, NitroTpmError> {
        let digest = digest(&SHA384, &signed(self.payload)?);
        key.0
            .verify_digest_sig(&digest, self.signature)
            .map_err(|_| NitroTpmError::Signature)?;
        let verified = CoseVerifiedKey {
            digest,
            signature: self.signature,
        };
        let sign1 = CoseSign1::from_bytes(self.bytes).map_err(cose)?;
        match sign1.get_payload::<AwsLc>(Some(&verified)) {
            Ok(payload) => Ok(VerifiedPayload(payload)),
            Err(CoseError::UnverifiedSignature) => Err(NitroTpmError::Signature),
            Err(error) => Err(cose(error)),
        }
    }
}

/// Returns the signed bytes (RFC 9052, 4.4): the `Sig_structure`.
fn signed(payload: &[u8]) -> Result<Vec<u8>, NitroTpmError> {
    let mut structure = Vec::with_capacity(payload.len() + 32);
    let mut encoder = Encoder::from(&mut structure);
    encoder.push(Header::Array(Some(4))).map_err(cose)?;
    encoder.text("Signature1", None).map_err(cose)?;
    encoder.bytes(PROTECTED_ES384, None).map_err(cose)?;
    encoder.bytes(&[], None).map_err(cose)?;
    encoder.bytes(payload, None).map_err(cose)?;
    Ok(structure)
}

fn cose(error: impl std::fmt::Display) -> NitroTpmError {
    NitroTpmError::Cose {
        problem: error.to_string(),
    }
}

impl VerifiedPayload {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl LeafKey {
    /// A P-384 key from its uncompressed point; `None` for anything else.
    pub(super) fn new(point: &[u8]) -> Option<Self> {
        ParsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).ok().map(Self)
    }
}

impl Hash for AwsLc {
    fn hash(algorithm: MessageDigest, data: &[u8]) -> Result<Vec<u8>, CoseError> {
        match algorithm {
            MessageDigest::Sha384 => Ok(digest(&SHA384, data).as_ref().to_vec()),
            other => Err(CoseError::UnsupportedError(format!("{other:?}"))),
        }
    }
}

impl SigningPublicKey for CoseVerifiedKey<'_> {
    fn get_parameters(&self) -> Result<(SignatureAlgorithm, MessageDigest), CoseError> {
        Ok((SignatureAlgorithm::ES384, MessageDigest::Sha384))
    }

    fn verify(&self, digest: &[u8], signature: &[u8]) -> Result<bool, CoseError> {
        Ok(self.digest.as_ref() == digest && self.signature == signature)
    }
}
