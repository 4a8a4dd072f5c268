//! Shielded VM's vTPM: to which instance an EK belongs, said by Google's certificate for it.
//!
//! Google has issued EK certificates from two hierarchies. Both name the instance in the extension [`INSTANCE_OID`]:
//!
//! - the older one (`tpm_ek_root_1`) by the TCG's profile: extended key usage tcg-kp-EKCertificate, empty subject. The same CA
//!   certifies AKs under the same extended key usage; only the key usage tells them apart;
//! - the younger one (`EK/AK CA Root`) without any extended key usage and without the TPM's make: so
//!   [`crate::tpm::ek_certificate`] refuses it, for of other makers' CAs a certificate without an extended key usage says nothing.
//!   Here the critical key usage has to be there, and the instance extension, which Google's EK/AK CAs alone put in.
//!
//! This is safe for Google's CAs only: any other configured CA could put any instance into that extension. Hence [`VtpmRoots`].

mod error;

use rustls_pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use x509_parser::asn1_rs::{self, Any, Class, FromDer, Tag, Utf8String};
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::Oid;

use crate::gcp::printable;
use crate::gcp::{GceInstance, GcpError, VerifiedIdentity};
use crate::tpm::ek::EkDigest;
use crate::tpm::ek_certificate::{self, EkCertificateError, EkKey, EkRoots, EkRootsError};
use crate::values::HexDigest;

pub use error::{ADVICE, VtpmError};

/// CloudComputeInstanceIdentifier: Google's extension that names the instance.
pub const INSTANCE_OID: &str = "1.3.6.1.4.1.11129.2.1.21";

/// The object identifier as the content of its DER encoding.
const INSTANCE_OID_DER: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xd6, 0x79, 0x02, 0x01, 0x15];

/// Largest extension that is read, in bytes. Real ones have about 110.
const EXTENSION_LIMIT_BYTES: usize = 1024;

/// Google's CAs for vTPMs, and no others: their certificates are trusted to name instances.
#[derive(Debug, Clone)]
pub struct VtpmRoots(EkRoots);

impl VtpmRoots {
    /// Takes `roots` as trusted, and `intermediates`, in any order, below them.
    ///
    /// # Errors
    /// [`EkRootsError`] for the first certificate that could not be used.
    pub fn new(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> Result<Self, EkRootsError> {
        EkRoots::new(roots, intermediates).map(Self)
    }

    /// Like [`VtpmRoots::new`], but leaves out what cannot be used, which is always safe, and says why.
    #[must_use]
    pub fn load(roots: Vec<CertificateDer<'static>>, intermediates: Vec<CertificateDer<'static>>) -> (Self, Vec<EkRootsError>) {
        let (roots, refused) = EkRoots::load(roots, intermediates);
        (Self(roots), refused)
    }
}

/// An EK that Google has certified as an instance's. Only [`verify`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedInstance {
    instance: GceInstance,
    security: SecurityProperties,
    ek_digest: EkDigest,
    #[serde(skip)]
    key: EkKey,
    certificate_serial: String,
    root_subject: String,
    root_sha256: HexDigest,
}

/// Google's statements about the vTPM's environment when the certificate was issued. Absent fields are zero and false.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SecurityProperties {
    pub security_version: u64,
    pub is_production: bool,
    pub tpm_data_always_encrypted: bool,
    pub suspend_resume_always_disabled: bool,
    pub vmtd_always_disabled: bool,
    pub always_in_yarn: bool,
}

impl VerifiedInstance {
    #[must_use]
    pub const fn instance(&self) -> &GceInstance {
        &self.instance
    }

    /// The stable identity of the node: [`GceInstance::identity`].
    #[must_use]
    pub fn identity(&self) -> String {
        self.instance.identity()
    }

    /// Google's properties of the vTPM.
    #[must_use]
    pub const fn security(&self) -> SecurityProperties {
        self.security
    }

    /// The EK, by its digest.
    #[must_use]
    pub const fn ek_digest(&self) -> &EkDigest {
        &self.ek_digest
    }

    #[must_use]
    pub const fn key(&self) -> &EkKey {
        &self.key
    }

    /// The certificate's serial number: bytes in hexadecimal, separated by colons.
    #[must_use]
    pub fn certificate_serial(&self) -> &str {
        &self.certificate_serial
    }

    /// Subject of the configured root that the chain leads to.
    #[must_use]
    pub fn root_subject(&self) -> &str {
        &self.root_subject
    }

    /// SHA-256 over that root's certificate.
    #[must_use]
    pub const fn root_sha256(&self) -> &HexDigest {
        &self.root_sha256
    }

    /// Joins with the TPM's evidence, which has proven, for this moment, that its AK is in the TPM with the EK `proven`.
    ///
    /// # Errors
    /// [`VtpmError::EkMismatch`] if the certificate is about another EK.
    pub fn check_ek(&self, proven: &EkDigest) -> Result<(), VtpmError> {
        if self.ek_digest == *proven {
            return Ok(());
        }
        Err(VtpmError::EkMismatch {
            certificate: self.ek_digest.to_string(),
            presented: proven.to_string(),
        })
    }

    /// Joins with an identity token: both have to be about the same instance.
    ///
    /// # Errors
    /// [`GcpError::InstanceMismatch`].
    pub fn check_identity(&self, identity: &VerifiedIdentity) -> Result<(), GcpError> {
        let names = |instance: &GceInstance| format!("{} (project {})", instance.identity(), instance.project_number());
        let (certificate, identity_token) = (names(&self.instance), names(&identity.instance));
        if certificate == identity_token {
            return Ok(());
        }
        Err(GcpError::InstanceMismatch {
            identity_token,
            certificate,
        })
    }
}

/// Verifies the EK certificate of a vTPM, for use at `now`, and reads which instance it is for.
///
/// The path is validated as every EK certificate's ([`crate::tpm::ek_certificate`]). `intermediates` may complete a chain, and are
/// never trusted by themselves.
///
/// # Errors
/// [`VtpmError`].
pub fn verify(certificate: &[u8], intermediates: &[&[u8]], roots: &VtpmRoots, now: UnixTime) -> Result<VerifiedInstance, VtpmError> {
    let path =
        ek_certificate::verify_path(certificate, intermediates, &roots.0, ek_certificate::USAGE, now).map_err(VtpmError::Certificate)?;

    // From here on the bytes are what Google signed.
    let (_, leaf) = X509Certificate::from_der(path.leaf).map_err(malformed)?;
    check_usage(&leaf)?;
    let key = ek_certificate::unverified_key(path.leaf).map_err(VtpmError::Certificate)?;
    let oid = Oid::new(INSTANCE_OID_DER.into());
    let extension = leaf.get_extension_unique(&oid).map_err(malformed)?;
    let (instance, security) = parse_extension(extension.ok_or(VtpmError::ExtensionMissing)?.value)?;
    if !security.is_production {
        return Err(VtpmError::NotProduction);
    }
    Ok(VerifiedInstance {
        instance,
        security,
        ek_digest: EkDigest::of(&key),
        key,
        certificate_serial: leaf.raw_serial_as_string(),
        root_subject: path.root_subject.to_owned(),
        root_sha256: path.root_sha256.into(),
    })
}

fn malformed(problem: impl ToString) -> VtpmError {
    VtpmError::Certificate(EkCertificateError::Malformed {
        problem: printable(&problem.to_string()),
    })
}

/// An EK's certificate, by what both hierarchies have: the key usage, which has to be there and must not be an AK's. webpki has
/// checked the extended key usage, where there is one.
fn check_usage(leaf: &X509Certificate<'_>) -> Result<(), VtpmError> {
    let usage = leaf.key_usage().map_err(malformed)?;
    match usage.map(|usage| usage.value) {
        None => Err(VtpmError::Usage {
            found: "no key usage".to_owned(),
        }),
        Some(usage) if usage.digital_signature() || !(usage.key_encipherment() || usage.key_agreement()) => Err(VtpmError::Usage {
            found: format!("key usage {}", printable(&usage.to_string())),
        }),
        Some(_) => Ok(()),
    }
}

/// Reads the content of the extension [`INSTANCE_OID`]. Says nothing about trust: [`verify`] does.
///
/// It is a DER SEQUENCE of zone, project number, project id, instance id, instance name, and then, in certificates since 2020, the
/// security properties, tagged `[0]`; those are a SEQUENCE of values tagged `[0]` to `[5]`, in this order, each of which may be
/// absent. Anything else in it is refused.
///
/// # Errors
/// [`VtpmError::Extension`], [`VtpmError::Instance`].
pub fn parse_extension(content: &[u8]) -> Result<(GceInstance, SecurityProperties), VtpmError> {
    if content.len() > EXTENSION_LIMIT_BYTES {
        return Err(unreadable(format!(
            "{} bytes, at most {EXTENSION_LIMIT_BYTES} are read",
            content.len()
        )));
    }
    let mut all = Elements(content);
    let mut fields = all.sequence("the extension")?;
    all.end("the extension")?;

    let zone = fields.text("zone")?;
    let project_number = fields.value("projectNumber")?;
    let project_id = fields.text("projectId")?;
    let instance_id: u64 = fields.value("instanceId")?;
    let instance_name = fields.text("instanceName")?;
    let security = match fields.tagged(0, "securityProperties")? {
        Some(properties) => security_properties(properties)?,
        None => SecurityProperties::default(),
    };
    fields.end("the extension's SEQUENCE")?;
    let instance = GceInstance::new(project_id, project_number, zone, instance_id.to_string(), instance_name)?;
    Ok((instance, security))
}

fn security_properties(mut tagged: Elements<'_>) -> Result<SecurityProperties, VtpmError> {
    let mut fields = tagged.sequence("securityProperties")?;
    tagged.end("securityProperties")?;
    let properties = SecurityProperties {
        security_version: fields.optional(0, "securityVersion")?,
        is_production: fields.flag(1, "isProduction")?,
        tpm_data_always_encrypted: fields.flag(2, "tpmDataAlwaysEncrypted")?,
        suspend_resume_always_disabled: fields.flag(3, "suspendResumeAlwaysDisabled")?,
        vmtd_always_disabled: fields.flag(4, "vmtdAlwaysDisabled")?,
        always_in_yarn: fields.flag(5, "alwaysInYarn")?,
    };
    fields.end("securityProperties")?;
    Ok(properties)
}

fn unreadable(problem: impl ToString) -> VtpmError {
    VtpmError::Extension {
        problem: printable(&problem.to_string()),
    }
}

/// DER elements, one after the other.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    fn value<T: FromDer<'a, asn1_rs::Error>>(&mut self, name: &'static str) -> Result<T, VtpmError> {
        if !has_shortest_length(self.0) {
            return Err(unreadable(format!("{name}: its length is absent, or longer than DER writes it")));
        }
        let (rest, value) = T::from_der(self.0).map_err(|error| unreadable(format!("{name}: {error}")))?;
        self.0 = rest;
        Ok(value)
    }

    fn text(&mut self, name: &'static str) -> Result<String, VtpmError> {
        self.value::<Utf8String<'a>>(name).map(|text| text.string())
    }

    fn sequence(&mut self, name: &'static str) -> Result<Self, VtpmError> {
        let any: Any<'a> = self.value(name)?;
        if any.header.class() != Class::Universal || any.header.tag() != Tag::Sequence || !any.header.constructed() {
            return Err(unreadable(format!("{name} is not a SEQUENCE")));
        }
        Ok(Self(any.data))
    }

    /// The element with the explicit tag `[number]`, if it is the next one.
    fn tagged(&mut self, number: u32, name: &'static str) -> Result<Option<Self>, VtpmError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let before = self.0;
        let any: Any<'a> = self.value(name)?;
        if any.header.class() == Class::ContextSpecific && any.header.tag() == Tag(number) && any.header.constructed() {
            return Ok(Some(Self(any.data)));
        }
        self.0 = before;
        Ok(None)
    }

    fn optional<T: FromDer<'a, asn1_rs::Error> + Default>(&mut self, number: u32, name: &'static str) -> Result<T, VtpmError> {
        let Some(mut tagged) = self.tagged(number, name)? else {
            return Ok(T::default());
        };
        let value = tagged.value(name)?;
        tagged.end(name)?;
        Ok(value)
    }

    /// asn1-rs looks at a BOOLEAN's first byte before it looks whether it is one, and whether there is a byte.
    fn flag(&mut self, number: u32, name: &'static str) -> Result<bool, VtpmError> {
        let Some(mut tagged) = self.tagged(number, name)? else {
            return Ok(false);
        };
        let any: Any<'a> = tagged.value(name)?;
        tagged.end(name)?;
        let is_boolean = any.header.class() == Class::Universal && any.header.tag() == Tag::Boolean && !any.header.constructed();
        match (is_boolean, any.data) {
            (true, [0]) => Ok(false),
            (true, [0xff]) => Ok(true),
            _ => Err(unreadable(format!("{name} is not a BOOLEAN"))),
        }
    }

    fn end(&self, name: &'static str) -> Result<(), VtpmError> {
        match self.0.len() {
            0 => Ok(()),
            bytes => Err(unreadable(format!("{bytes} bytes follow in or after {name}"))),
        }
    }
}

/// Returns whether the first element's length is in the only form that DER allows. asn1-rs accepts longer ones.
fn has_shortest_length(element: &[u8]) -> bool {
    match element.get(1..) {
        Some([0..=0x7f, ..]) => true,
        Some([0x81, length, ..]) => *length >= 0x80,
        Some([0x82, high, ..]) => *high != 0,
        _ => false,
    }
}
