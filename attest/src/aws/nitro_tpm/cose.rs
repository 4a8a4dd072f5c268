//! COSE_Sign1 (RFC 9052, 4.2) with ES384: the crate aws-nitro-enclaves-cose reads it and builds what is signed, aws-lc-rs
//! verifies the signature.

use aws_lc_rs::digest::{Digest, SHA384, digest};
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED, ParsedPublicKey};
use aws_nitro_enclaves_cose::CoseSign1;
use aws_nitro_enclaves_cose::crypto::{Hash, MessageDigest, SignatureAlgorithm, SigningPublicKey};
use aws_nitro_enclaves_cose::error::CoseError;

use super::cbor::Reader;
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
pub(super) struct Envelope(CoseSign1);

/// What may be read from a payload before its signature is verified: the certificates, which have to be validated by
/// themselves.
pub(super) struct Unverified<'a> {
    pub(super) certificate: &'a [u8],
    pub(super) cabundle: Vec<&'a [u8]>,
}

/// The bytes that a signature was verified over. Nothing else makes one.
pub(super) struct VerifiedPayload(Vec<u8>);

/// The leaf's key, as COSE verifies with it.
pub(super) struct LeafKey(ParsedPublicKey);

struct AwsLc;

impl<'a> Unverified<'a> {
    /// Reads the envelope, and the certificates in its payload.
    pub(super) fn read(bytes: &'a [u8]) -> Result<(Envelope, Self), NitroTpmError> {
        let payload = check_envelope(bytes)?;
        let sign1 = CoseSign1::from_bytes(bytes).map_err(|error| NitroTpmError::Cose {
            problem: error.to_string(),
        })?;
        Ok((Envelope(sign1), Self::of_payload(payload)?))
    }

    fn of_payload(payload: &'a [u8]) -> Result<Self, NitroTpmError> {
        let cbor = |error| NitroTpmError::Cbor { part: "payload", error };
        let mut reader = Reader::new(payload);
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

/// Checks the envelope's form byte by byte, before a general parser gets to see it, and gives its payload.
fn check_envelope(bytes: &[u8]) -> Result<&[u8], NitroTpmError> {
    let cbor = |error| NitroTpmError::Cbor { part: "COSE_Sign1", error };
    let mut reader = Reader::new(bytes);
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
    Ok(payload)
}

impl Envelope {
    /// Verifies the signature and gives the bytes that it is over.
    pub(super) fn verify(&self, key: &LeafKey) -> Result<VerifiedPayload, NitroTpmError> {
        match self.0.get_payload::<AwsLc>(Some(key)) {
            Ok(payload) => Ok(VerifiedPayload(payload)),
            Err(CoseError::UnverifiedSignature) => Err(NitroTpmError::Signature),
            Err(error) => Err(NitroTpmError::Cose {
                problem: error.to_string(),
            }),
        }
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

impl SigningPublicKey for LeafKey {
    fn get_parameters(&self) -> Result<(SignatureAlgorithm, MessageDigest), CoseError> {
        Ok((SignatureAlgorithm::ES384, MessageDigest::Sha384))
    }

    fn verify(&self, digest: &[u8], signature: &[u8]) -> Result<bool, CoseError> {
        let digest =
            Digest::import_less_safe(digest, &SHA384).map_err(|_| CoseError::UnsupportedError("a digest that is no SHA-384".to_owned()))?;
        Ok(self.0.verify_digest_sig(&digest, signature).is_ok())
    }
}
