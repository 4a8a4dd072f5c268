//! Google's OpenID Connect issuer: where its keys are published.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::StandInKeys;
use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};
use crate::tls::TestCa;

/// The host of the discovery document.
pub const ISSUER_HOST: &str = "accounts.google.com";
/// The host of the keys.
pub const KEYS_HOST: &str = "www.googleapis.com";
/// Path of the discovery document.
pub const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";
pub const KEYS_PATH: &str = "/oauth2/v3/certs";

struct IdentityProviderState {
    keys: Arc<StandInKeys>,
    discovery: Mutex<Value>,
    max_age_seconds: Mutex<u64>,
}

/// Both of Google's hosts at one address, over TLS by a CA of its own.
pub struct IdentityProvider {
    server: TestServer,
    state: Arc<IdentityProviderState>,
    ca_pem: String,
}

impl Deref for IdentityProvider {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl IdentityProvider {
    /// Starts one on a port of its own.
    #[must_use]
    pub fn start(keys: Arc<StandInKeys>) -> Self {
        Self::start_at(loopback(), keys)
    }

    /// Starts one at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, keys: Arc<StandInKeys>) -> Self {
        let ca = TestCa::new("Stand-in CA");
        let state = Arc::new(IdentityProviderState {
            keys,
            discovery: Mutex::new(discovery()),
            max_age_seconds: Mutex::new(3600),
        });
        let server = TestServer::start(address, Some(ca.server(&[ISSUER_HOST, KEYS_HOST])), {
            let state = state.clone();
            move |request| state.answer(request)
        });
        Self {
            server,
            state,
            ca_pem: ca.pem(),
        }
    }

    /// Returns the CA of its certificate.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Sets the cache lifetime of its responses, in seconds; initially 3600.
    pub fn set_max_age(&self, seconds: u64) {
        *self.state.max_age_seconds.lock().unwrap() = seconds;
    }

    /// Alters the discovery document: another issuer, another `jwks_uri`.
    pub fn change_discovery(&self, change: impl FnOnce(&mut Value)) {
        change(&mut self.state.discovery.lock().unwrap());
    }
}

impl IdentityProviderState {
    fn answer(&self, request: &HttpRequest) -> ServerAnswer {
        let body = match (request.method.as_str(), request.host(), request.path()) {
            ("GET", ISSUER_HOST, DISCOVERY_PATH) => self.discovery.lock().unwrap().clone(),
            ("GET", KEYS_HOST, KEYS_PATH) => self.keys.jwks(),
            _ => return ServerAnswer::new(404, "text/html; charset=UTF-8", "Not Found"),
        };
        let kept = format!(
            "public, max-age={}, must-revalidate, no-transform",
            self.max_age_seconds.lock().unwrap()
        );
        ServerAnswer::new(200, "application/json; charset=UTF-8", serde_json::to_string_pretty(&body).unwrap()).with("cache-control", &kept)
    }
}

/// Returns a discovery document with the fields of Google's that a reader of keys needs.
fn discovery() -> Value {
    json!({
        "issuer": format!("https://{ISSUER_HOST}"),
        "authorization_endpoint": format!("https://{ISSUER_HOST}/o/oauth2/v2/auth"),
        "token_endpoint": "https://oauth2.googleapis.com/token",
        "userinfo_endpoint": "https://openidconnect.googleapis.com/v1/userinfo",
        "revocation_endpoint": "https://oauth2.googleapis.com/revoke",
        "jwks_uri": format!("https://{KEYS_HOST}{KEYS_PATH}"),
        "response_types_supported": ["code", "token", "id_token", "none"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "scopes_supported": ["openid", "email", "profile"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        "claims_supported": ["aud", "email", "email_verified", "exp", "iat", "iss", "sub"],
    })
}
