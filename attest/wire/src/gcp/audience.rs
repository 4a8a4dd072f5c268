use url::form_urlencoded;

use crate::nonce::{SpkiSha256, qualifying_data};

/// The metadata server's name. It is link-local: `169.254.169.254`.
pub const METADATA_HOST: &str = "metadata.google.internal";

/// The header without which the metadata server answers nothing.
pub const METADATA_HEADER: (&str, &str) = ("Metadata-Flavor", "Google");

/// Audience of an identity token: this gateway, this purpose, this pool, this challenge and the server key that the node saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audience(String);

impl Audience {
    /// `<gateway>/<purpose>/<pool>/<qualifying data>`, with the [`qualifying_data`] of TPM quotes in hexadecimal. Both ends compute it.
    ///
    /// `gateway` is the gateway's own name, the same for all its nodes. The other parts are legible for people; the qualifying data binds
    /// them, each with its length.
    #[must_use]
    pub fn new(gateway: &str, purpose: &str, pool: &str, nonce: &[u8], server_key: &SpkiSha256) -> Self {
        let qualifying_data = data_encoding::HEXLOWER.encode(&qualifying_data(nonce, purpose, pool, server_key));
        Self(format!("{gateway}/{purpose}/{pool}/{qualifying_data}"))
    }

    /// The part that binds it to its challenge: hexadecimal digits, which are written in one way.
    #[must_use]
    pub fn binding(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the value of the `aud` claim.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns path and query of the node's request to [`METADATA_HOST`], with [`METADATA_HEADER`]. The answer is the identity token, and
/// nothing else.
#[must_use]
pub fn request_path(audience: &Audience) -> String {
    let audience: String = form_urlencoded::byte_serialize(audience.as_str().as_bytes()).collect();
    format!("/computeMetadata/v1/instance/service-accounts/default/identity?audience={audience}&format=full&licenses=TRUE")
}
