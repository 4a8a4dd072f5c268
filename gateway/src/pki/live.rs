//! What is shown to nodes at the moment. It changes as a whole or not at all, and connections that are open go on as they are.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use attest::SpkiSha256;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use super::{Serving, ServingError};
use crate::clock::Clock;
use crate::kubelet::{Authorities, AuthoritiesError, PossessionVerifier};
use crate::settings::TlsSettings;

/// How long evidence is taken that was made for a key which has been replaced: as long as the longest challenge can be answered.
const RETIRED_KEY_SECONDS: u64 = 900;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The files cannot be used.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The client CAs cannot be used.
    #[error("tls.client_ca: {0}")]
    ClientAuthorities(#[from] AuthoritiesError),
    /// rustls does not take them.
    #[error("TLS: {0}")]
    Unusable(#[from] rustls::Error),
}

/// The serving certificate in use, and how to get to a newer one.
#[derive(Debug)]
pub struct LiveTls {
    files: TlsSettings,
    clock: Clock,
    current: ArcSwap<Current>,
    /// Keys that were in use until a moment ago, and until when evidence for them is taken.
    retired: Mutex<Vec<(SpkiSha256, u64)>>,
}

/// What new connections get.
#[derive(Debug)]
pub struct Current {
    /// The certificate, checked.
    pub serving: Serving,
    /// TLS by it.
    pub config: Arc<ServerConfig>,
    /// The CAs whose word is taken for kubelets, for connections that are open already too.
    pub client_authorities: Authorities,
}

impl LiveTls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn open(files: &TlsSettings, clock: Clock) -> Result<Self, TlsError> {
        let current = Current::load(files, clock)?;
        Ok(Self {
            files: files.clone(),
            clock,
            current: ArcSwap::from_pointee(current),
            retired: Mutex::default(),
        })
    }

    /// What new connections get.
    #[must_use]
    pub fn current(&self) -> Arc<Current> {
        self.current.load_full()
    }

    /// Keys that nodes may have seen: the one in use first.
    #[must_use]
    pub fn server_keys(&self) -> Vec<SpkiSha256> {
        let now = self.clock.now().as_secs();
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let retired = retired.iter().filter(|(_, until)| now <= *until).map(|(key, _)| *key);
        let current = self.current.load();
        let current = current.serving.certificate().map(|certificate| certificate.key);
        current
            .into_iter()
            .chain(retired)
            .chain(self.files.previous_keys.iter().copied())
            .collect()
    }

    /// Reads the files again. What they hold is used for new connections if it is good; otherwise all stays as it was.
    ///
    /// # Errors
    /// [`TlsError`], with the old state kept.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = Current::load(&self.files, self.clock)?;
        let old = self.current.swap(Arc::new(new));
        let until = self.clock.now().as_secs().saturating_add(RETIRED_KEY_SECONDS);
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|(_, until)| self.clock.now().as_secs() <= *until);
        retired.extend(old.serving.certificate().map(|certificate| (certificate.key, until)));
        Ok(())
    }
}

impl Current {
    fn load(files: &TlsSettings, clock: Clock) -> Result<Self, TlsError> {
        let serving = Serving::load(files, clock.now())?;
        let client_authorities = match &files.client_ca {
            Some(path) => Authorities::load(path)?,
            None => Authorities::default(),
        };
        let config = server_config(&serving, &client_authorities)?;
        Ok(Self {
            serving,
            config,
            client_authorities,
        })
    }
}

/// 1.2 and 1.3, hybrid post-quantum key exchange first, no resumption.
fn server_config(serving: &Serving, client_authorities: &Authorities) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = if client_authorities.is_empty() {
        WebPkiClientVerifier::no_client_auth()
    } else {
        Arc::new(PossessionVerifier::new(client_authorities, Arc::clone(&provider)))
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(serving.certified_key())));
    // A booting node comes once. Resumption would save nothing here, would let it go on seeing a certificate that was replaced, and
    // would carry a client certificate over from an earlier handshake.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    // What Ignition speaks, and all that is needed.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
