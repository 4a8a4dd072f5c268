//! Attested documents, and the CAs of the metadata service that signs them.

use rcgen::{CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, KeyUsagePurpose, RsaKeySize, SanType};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::clock::{american, with_hyphen};
use crate::der::{OID, SEQUENCE, der};
use crate::pem;
use crate::pkcs7::{Pkcs7Key, TestMessage, ca_params, issued, params};

/// URL of the issuer's certificate, as the signer's certificate names it: a host and folder where Microsoft publishes certificates.
pub const ISSUER_URL: &str = "http://www.microsoft.com/pkiops/certs/Test%20TLS%20Intermediate.crt";

/// Lifetime of a document: six hours.
const LIFETIME_SECONDS: u64 = 6 * 3600;

/// Returns parameters like those of the certificates of Azure's metadata services.
#[must_use]
pub fn metadata_params(names: &[&str]) -> CertificateParams {
    let mut params = params("metadata.azure.com", 77);
    params.subject_alt_names = names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

/// Returns the extension `authorityInfoAccess` with these URLs as `caIssuers`, after one for OCSP.
#[must_use]
pub fn access(urls: &[&str]) -> CustomExtension {
    let entry = |method: u8, url: &str| {
        let oid = der(OID, &[&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, method]]);
        der(SEQUENCE, &[&oid, &der(0x86, &[url.as_bytes()])])
    };
    let mut entries = vec![entry(1, "http://oneocsp.microsoft.com/ocsp")];
    entries.extend(urls.iter().map(|url| entry(2, url)));
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], der(SEQUENCE, &[&entries.concat()]))
}

/// A virtual machine, as Azure knows it.
#[derive(Debug, Clone)]
pub struct AzureMachine {
    /// UUID of the subscription.
    pub subscription_id: String,
    /// UUID of the machine.
    pub vm_id: String,
    /// Name, such as `worker-7`.
    pub name: String,
    /// Location, such as `eastus`. It is not in the document, but in the signer's certificate.
    pub location: String,
    pub resource_group: String,
    /// SKU of the Marketplace image, or empty.
    pub sku: String,
}

impl Default for AzureMachine {
    fn default() -> Self {
        Self {
            subscription_id: "8a205152-b25a-417f-a676-80465535a6c9".to_owned(),
            vm_id: "b1310a36-d400-46f6-82cb-6217df846586".to_owned(),
            name: "worker-7".to_owned(),
            location: "eastus".to_owned(),
            resource_group: "cluster".to_owned(),
            sku: "20_04-lts-gen2".to_owned(),
        }
    }
}

impl AzureMachine {
    /// Returns the document for a nonce, made at this time (seconds since 1970). Without a nonce Azure uses the time of expiry.
    #[must_use]
    pub fn document(&self, nonce: Option<&str>, created: u64) -> Value {
        let expires = created + LIFETIME_SECONDS;
        json!({
            "licenseType": "",
            "nonce": nonce.map_or_else(|| with_hyphen(expires), str::to_owned),
            "plan": { "name": "", "product": "", "publisher": "" },
            "sku": self.sku,
            "subscriptionId": self.subscription_id,
            "timeStamp": { "createdOn": american(created), "expiresOn": american(expires) },
            "vmId": self.vm_id,
        })
    }
}

/// The metadata service of one location: a root, an intermediate, and a signer whose certificate names the location.
pub struct AzureAuthority {
    root: CertificateDer<'static>,
    intermediate: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    intermediate_key: Pkcs7Key,
    signer: Pkcs7Key,
}

impl AzureAuthority {
    /// Generates keys and certificates. The signer's names are `<location>.metadata.azure.com` and `metadata.azure.com`; its issuer's
    /// certificate is at [`ISSUER_URL`].
    #[must_use]
    pub fn new(location: &str) -> Self {
        Self::with(&[&format!("{location}.metadata.azure.com"), "metadata.azure.com"], &[ISSUER_URL])
    }

    /// Generates them with other names and other URLs of the issuer.
    #[must_use]
    pub fn with(names: &[&str], issuer_urls: &[&str]) -> Self {
        let [root_key, intermediate_key, signer] = std::array::from_fn(|_| Pkcs7Key::new(RsaKeySize::_2048));
        let (root, intermediate) = (ca_params("Test Root", 1), ca_params(INTERMEDIATE_NAME, 2));
        let mut leaf = metadata_params(names);
        leaf.custom_extensions = vec![access(issuer_urls)];
        Self {
            root: root.self_signed(&root_key.pair).unwrap().into(),
            leaf: issued(&leaf, &signer, &intermediate, &intermediate_key),
            intermediate: issued(&intermediate, &intermediate_key, &root, &root_key),
            intermediate_key,
            signer,
        }
    }

    #[must_use]
    pub const fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// Returns the root's certificate, for a gateway's directory of roots.
    #[must_use]
    pub fn root_pem(&self) -> String {
        pem(&self.root)
    }

    #[must_use]
    pub const fn intermediate(&self) -> &CertificateDer<'static> {
        &self.intermediate
    }

    /// Returns the intermediate's certificate, for a gateway's directory of intermediates.
    #[must_use]
    pub fn intermediate_pem(&self) -> String {
        pem(&self.intermediate)
    }

    /// Returns the signer's certificate, in DER.
    #[must_use]
    pub const fn leaf(&self) -> &CertificateDer<'static> {
        &self.leaf
    }

    #[must_use]
    pub const fn signer(&self) -> &Pkcs7Key {
        &self.signer
    }

    /// Issues another certificate for the signer's key, by the intermediate.
    #[must_use]
    pub fn issue(&self, params: &CertificateParams) -> CertificateDer<'static> {
        issued(params, &self.signer, &ca_params(INTERMEDIATE_NAME, 2), &self.intermediate_key)
    }

    /// Returns the `signature` of IMDS's response: a PKCS#7 message in Base64.
    #[must_use]
    pub fn sign(&self, document: &Value) -> String {
        self.sign_text(&document.to_string())
    }

    /// Signs any content in the same way.
    #[must_use]
    pub fn sign_text(&self, content: &str) -> String {
        data_encoding::BASE64.encode(&self.message(content.as_bytes()).sign(&self.signer))
    }

    /// Returns the message before it is signed; everything in it can be changed.
    #[must_use]
    pub fn message(&self, content: &[u8]) -> TestMessage {
        TestMessage::azure(content, &self.leaf)
    }
}

const INTERMEDIATE_NAME: &str = "Test TLS Intermediate";
