//! The keys that Google signs identity tokens with, and those that it publishes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use aws_lc_rs::rsa::KeySize;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use super::JwtSigner;

/// Shared by a metadata server, which signs, and an identity provider, which publishes.
pub struct StandInKeys(Mutex<GoogleKeysState>);

struct GoogleKeysState {
    /// The last one signs.
    signers: Vec<Arc<JwtSigner>>,
    hidden: BTreeSet<String>,
}

fn generate() -> Arc<JwtSigner> {
    let id: [u8; 20] = crate::random();
    Arc::new(JwtSigner::with_id(KeySize::Rsa2048, &HEXLOWER.encode(&id)))
}

impl StandInKeys {
    /// Creates a set with one new key.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let signers = vec![generate()];
        Arc::new(Self(Mutex::new(GoogleKeysState {
            signers,
            hidden: BTreeSet::new(),
        })))
    }

    /// Returns the key that signs.
    #[must_use]
    pub fn current(&self) -> Arc<JwtSigner> {
        self.0.lock().unwrap().signers.last().unwrap().clone()
    }

    /// Makes another key sign. It is published together with the older ones.
    pub fn rotate(&self) -> Arc<JwtSigner> {
        let signer = generate();
        self.0.lock().unwrap().signers.push(signer.clone());
        signer
    }

    /// Stops publishing all keys but the one that signs.
    pub fn retire(&self) {
        let signers = &mut self.0.lock().unwrap().signers;
        signers.drain(..signers.len() - 1);
    }

    /// Stops publishing a key, whether or not it signs.
    pub fn hide(&self, kid: &str) {
        self.0.lock().unwrap().hidden.insert(kid.to_owned());
    }

    /// Publishes a key again.
    pub fn show(&self, kid: &str) {
        self.0.lock().unwrap().hidden.remove(kid);
    }

    /// Returns the published keys, as a JWK set.
    #[must_use]
    pub fn jwks(&self) -> Value {
        let state = self.0.lock().unwrap();
        let shown = state.signers.iter().filter(|signer| !state.hidden.contains(signer.kid()));
        json!({ "keys": shown.map(|signer| signer.jwk(signer.kid())).collect::<Vec<_>>() })
    }
}
