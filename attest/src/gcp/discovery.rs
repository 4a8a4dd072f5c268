//! Location of the keys of Google's identity tokens: OpenID Connect Discovery 1.0.

use serde::Deserialize;
use url::Url;

use crate::gcp::ISSUER;
use crate::gcp::error::printable;

/// URL of Google's discovery document.
pub const DISCOVERY_URL: &str = "https://accounts.google.com/.well-known/openid-configuration";

/// Largest discovery document that is read, in bytes. Google's has about 1.3 KiB.
pub const DISCOVERY_LIMIT_BYTES: usize = 64 * 1024;

/// Hosts from which keys are accepted. Other hosts of Google are not safe: on `storage.googleapis.com` any customer publishes.
const KEY_HOSTS: [&str; 3] = ["www.googleapis.com", "oauth2.googleapis.com", "accounts.google.com"];

/// Path of the keys of service accounts, on the same hosts: the holder of such a key could sign for any instance.
const SERVICE_ACCOUNTS: &str = "/service_accounts/";

/// Reason why a discovery document cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    #[error("the discovery document has {bytes} bytes, at most {DISCOVERY_LIMIT_BYTES} are read")]
    TooLarge { bytes: usize },
    /// The bytes are not a discovery document.
    #[error("the discovery document cannot be read: {problem}")]
    Malformed { problem: String },
    /// The document is that of another issuer.
    #[error("the discovery document is that of {found:?}, not of {ISSUER:?}")]
    Issuer { found: String },
    /// The URL of the keys is not one that keys of identity tokens are accepted from.
    #[error("the discovery document names {found:?} as the location of the keys; only https URLs at {} are accepted", KEY_HOSTS.join(", "))]
    KeysUrl {
        /// URL of the keys in the document.
        found: String,
    },
}

/// The relevant fields of the document. It comes over TLS and is not signed, so nothing else of it is read.
#[derive(Deserialize)]
struct DiscoveryMetadata {
    issuer: String,
    jwks_uri: Url,
}

/// The URL of the JWK set, from the answer at [`DISCOVERY_URL`].
///
/// # Errors
/// [`DiscoveryError`].
pub fn keys_url(document: &[u8]) -> Result<String, DiscoveryError> {
    if document.len() > DISCOVERY_LIMIT_BYTES {
        return Err(DiscoveryError::TooLarge { bytes: document.len() });
    }
    let metadata: DiscoveryMetadata = serde_json::from_slice(document).map_err(|error| DiscoveryError::Malformed {
        problem: printable(&error.to_string()),
    })?;
    if metadata.issuer != ISSUER {
        return Err(DiscoveryError::Issuer {
            found: printable(&metadata.issuer),
        });
    }
    let url = metadata.jwks_uri;
    let allowed = url.scheme() == "https"
        && url.host_str().is_some_and(|host| KEY_HOSTS.contains(&host))
        && url.port().is_none()
        && url.username().is_empty()
        && url.password().is_none()
        && url.fragment().is_none()
        && !url.path().contains(SERVICE_ACCOUNTS);
    if allowed {
        Ok(url.as_str().to_owned())
    } else {
        Err(DiscoveryError::KeysUrl {
            found: printable(url.as_str()),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::gcp::JWKS_URL;

    fn document(issuer: &str, keys: &str) -> String {
        serde_json::json!({
            "issuer": issuer,
            "authorization_endpoint": "https://accounts.google.com/o/oauth2/v2/auth",
            "device_authorization_endpoint": "https://oauth2.googleapis.com/device/code",
            "token_endpoint": "https://oauth2.googleapis.com/token",
            "userinfo_endpoint": "https://openidconnect.googleapis.com/v1/userinfo",
            "revocation_endpoint": "https://oauth2.googleapis.com/revoke",
            "jwks_uri": keys,
            "response_types_supported": ["code", "token", "id_token", "none"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "scopes_supported": ["openid", "email", "profile"],
            "claims_supported": ["aud", "email", "exp", "iat", "iss", "sub"],
            "grant_types_supported": ["authorization_code"]
        })
        .to_string()
    }

    #[test]
    fn discovery_document_yields_the_jwks_url() {
        assert_eq!(keys_url(document(ISSUER, JWKS_URL).as_bytes()).unwrap(), JWKS_URL);
    }

    #[test]
    fn attack_16_another_issuers_document_is_refused() {
        for issuer in [
            "https://accounts.google.com/",
            "https://accounts.google.com.evil.example",
            "http://accounts.google.com",
            "https://evil.example",
        ] {
            let error = keys_url(document(issuer, JWKS_URL).as_bytes()).unwrap_err();
            assert_eq!(error, DiscoveryError::Issuer { found: issuer.to_owned() });
        }
    }

    #[test]
    fn attack_16_jwks_url_elsewhere_is_rejected() {
        for url in [
            "http://www.googleapis.com/oauth2/v3/certs",
            "https://www.googleapis.com:8443/oauth2/v3/certs",
            "https://www.googleapis.com.evil.example/oauth2/v3/certs",
            "https://evil.example/oauth2/v3/certs",
            "https://evil.example@www.googleapis.com/oauth2/v3/certs",
            "https://www.googleapis.com@evil.example/oauth2/v3/certs",
            "https://storage.googleapis.com/bucket/certs",
            "https://www.googleapis.com/service_accounts/v1/jwk/a@b.iam.gserviceaccount.com",
            "https://169.254.169.254/certs",
            "file:///etc/passwd",
        ] {
            let error = keys_url(document(ISSUER, url).as_bytes()).unwrap_err();
            assert!(matches!(error, DiscoveryError::KeysUrl { .. }), "{url}: {error}");
        }
    }

    #[test]
    fn attack_23_malformed_discovery_document_is_rejected() {
        for document in [
            "",
            "{}",
            "[]",
            "<html>",
            r#"{"issuer":"https://accounts.google.com"}"#,
            &document(ISSUER, "no url"),
        ] {
            let error = keys_url(document.as_bytes()).unwrap_err();
            assert!(matches!(error, DiscoveryError::Malformed { .. }), "{document}: {error}");
        }
        let bytes = DISCOVERY_LIMIT_BYTES + 1;
        assert_eq!(keys_url(&vec![b' '; bytes]).unwrap_err(), DiscoveryError::TooLarge { bytes });
    }
}
