use serde::Serialize;
use url::form_urlencoded;

use crate::gcp::Instance;
use crate::nonce::{SpkiSha256, qualifying_data};

/// The metadata server's name. It is link-local: `169.254.169.254`.
pub const METADATA_HOST: &str = "metadata.google.internal";

/// The header without which the metadata server answers nothing.
pub const METADATA_HEADER: (&str, &str) = ("Metadata-Flavor", "Google");

/// Whom an identity token is for: this gateway, this purpose, this pool, this challenge and the server key that the node saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audience(String);

impl Audience {
    /// `<gateway>/<purpose>/<pool>/<qualifying data>`, with the [`qualifying_data`] of TPM quotes in hexadecimal. Both ends compute it.
    ///
    /// `gateway` is the gateway's own name, the same for all its nodes. The other parts are legible for people; what binds them, each
    /// with its length, is the qualifying data.
    #[must_use]
    pub fn new(gateway: &str, purpose: &str, pool: &str, nonce: &[u8], server_key: &SpkiSha256) -> Self {
        let qualifying_data = data_encoding::HEXLOWER.encode(&qualifying_data(nonce, purpose, pool, server_key));
        Self(format!("{gateway}/{purpose}/{pool}/{qualifying_data}"))
    }

    /// The `aud` claim.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the node asks [`METADATA_HOST`] for, with [`METADATA_HEADER`]: path and query. The answer is the identity token, and nothing else.
#[must_use]
pub fn request_path(audience: &Audience) -> String {
    let audience: String = form_urlencoded::byte_serialize(audience.as_str().as_bytes()).collect();
    format!("/computeMetadata/v1/instance/service-accounts/default/identity?audience={audience}&format=full&licenses=TRUE")
}

/// What an identity token has proven. Only [`crate::gcp::verify`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifiedIdentity {
    pub(super) instance: Instance,
    pub(super) created: u64,
    pub(super) confidentiality: Option<u64>,
    pub(super) licenses: Vec<String>,
    pub(super) service_account: ServiceAccount,
    pub(super) issued: u64,
    pub(super) expires: u64,
    pub(super) key_id: String,
}

/// The service account that the instance runs as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceAccount {
    /// Its unique id: a decimal number.
    pub id: String,
    /// Its email address.
    pub email: String,
}

impl VerifiedIdentity {
    /// The instance.
    #[must_use]
    pub const fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The stable identity of the node: [`Instance::identity`].
    #[must_use]
    pub fn identity(&self) -> String {
        self.instance.identity()
    }

    /// When the instance was created, in seconds since 1970.
    #[must_use]
    pub const fn created(&self) -> u64 {
        self.created
    }

    /// `instance_confidentiality`: 1 for a Confidential VM, in Google's own words; `None` where it does not say.
    #[must_use]
    pub const fn confidentiality(&self) -> Option<u64> {
        self.confidentiality
    }

    /// Codes of the licences of the images that the instance's disks were made of.
    #[must_use]
    pub fn licenses(&self) -> &[String] {
        &self.licenses
    }

    /// The service account.
    #[must_use]
    pub const fn service_account(&self) -> &ServiceAccount {
        &self.service_account
    }

    /// When Google signed, in seconds since 1970.
    #[must_use]
    pub const fn issued(&self) -> u64 {
        self.issued
    }

    /// Until when it is valid, in seconds since 1970.
    #[must_use]
    pub const fn expires(&self) -> u64 {
        self.expires
    }

    /// The key it was signed with.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }
}
