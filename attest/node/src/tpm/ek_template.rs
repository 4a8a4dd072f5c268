//! Templates of endorsement keys (TCG EK Credential Profile 2.6, annex B).

use tss_esapi::abstraction::ek::create_ek_public_from_default_template_2;
use tss_esapi::abstraction::{AsymmetricAlgorithmSelection, DefaultKey, KeyCustomization};
use tss_esapi::attributes::ObjectAttributesBuilder;
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::key_bits::RsaKeyBits;
use tss_esapi::structures::{Digest, EccPoint, Public, PublicKeyRsa};

use super::ek_choice::EkChoice;
use super::ek_policy::POLICY_B_SHA256;

/// A template of the EK Credential Profile and the NV index of its key's certificate.
#[derive(Debug, PartialEq, Eq)]
pub struct Template {
    /// Kind of key and the template's name in the profile.
    pub label: &'static str,
    /// NV index of the certificate.
    pub certificate_index: u32,
    pub(super) family: EkChoice,
    key: AsymmetricAlgorithmSelection,
    /// Templates H-1 and H-2 differ from L-1 and L-2 in policy, attributes and unique field.
    high: bool,
}

const fn rsa(label: &'static str, certificate_index: u32, bits: RsaKeyBits, high: bool) -> Template {
    Template {
        label,
        certificate_index,
        family: EkChoice::Rsa,
        key: AsymmetricAlgorithmSelection::Rsa(bits),
        high,
    }
}

const fn ecc(label: &'static str, certificate_index: u32, curve: EccCurve, high: bool) -> Template {
    Template {
        label,
        certificate_index,
        family: EkChoice::Ecc,
        key: AsymmetricAlgorithmSelection::Ecc(curve),
        high,
    }
}

/// Templates in order of preference: the most common first, the slowest on a TPM last.
pub(super) static TEMPLATES: [Template; 7] = [
    rsa("RSA-2048 (L-1)", 0x01c0_0002, RsaKeyBits::Rsa2048, false),
    ecc("ECC P-256 (L-2)", 0x01c0_000a, EccCurve::NistP256, false),
    rsa("RSA-2048 (H-1)", 0x01c0_0012, RsaKeyBits::Rsa2048, true),
    ecc("ECC P-256 (H-2)", 0x01c0_0014, EccCurve::NistP256, true),
    ecc("ECC P-384 (H-3)", 0x01c0_0016, EccCurve::NistP384, true),
    rsa("RSA-3072 (H-6)", 0x01c0_001c, RsaKeyBits::Rsa3072, true),
    rsa("RSA-4096 (H-7)", 0x01c0_001e, RsaKeyBits::Rsa4096, true),
];

/// Number of [`TEMPLATES`] that every TPM is expected to be able to make: L-1 and L-2.
pub(super) const UNCERTIFIED_TEMPLATES: usize = 2;

/// Attribute by which H-1 and H-2 differ from the low templates, besides policy and unique field.
struct HighRange;

impl KeyCustomization for HighRange {
    fn attributes(&self, attributes: ObjectAttributesBuilder) -> ObjectAttributesBuilder {
        attributes.with_user_with_auth(true)
    }
}

impl Template {
    /// The public area to create the key from.
    pub(super) fn public(&self) -> Result<Public, tss_esapi::Error> {
        let small = matches!(
            self.key,
            AsymmetricAlgorithmSelection::Rsa(RsaKeyBits::Rsa2048) | AsymmetricAlgorithmSelection::Ecc(EccCurve::NistP256)
        );
        if !(self.high && small) {
            return create_ek_public_from_default_template_2(self.key, DefaultKey);
        }
        let auth_policy = Digest::try_from(POLICY_B_SHA256.as_slice())?;
        Ok(match create_ek_public_from_default_template_2(self.key, HighRange)? {
            Public::Rsa {
                object_attributes,
                name_hashing_algorithm,
                parameters,
                ..
            } => {
                let unique = PublicKeyRsa::default();
                Public::Rsa {
                    object_attributes,
                    name_hashing_algorithm,
                    auth_policy,
                    parameters,
                    unique,
                }
            }
            Public::Ecc {
                object_attributes,
                name_hashing_algorithm,
                parameters,
                ..
            } => {
                let unique = EccPoint::default();
                Public::Ecc {
                    object_attributes,
                    name_hashing_algorithm,
                    auth_policy,
                    parameters,
                    unique,
                }
            }
            other => other,
        })
    }
}
