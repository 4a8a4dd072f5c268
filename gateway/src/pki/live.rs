//! TLS configuration for new connections. It changes as a whole or not at all, and open connections continue unchanged.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use attest::SpkiSha256;
use attest_certificates::kubelet::{Authorities, AuthoritiesError};
use attest_certificates::source;
use attest_system::clock::Clock;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{CipherSuite, ServerConfig};

use super::{ServingCertificate, ServingError};
use crate::credentials::kubelet::PossessionVerifier;
use crate::settings::TlsSettings;

/// Time for which evidence for a replaced server key is accepted: as long as the longest challenge can be answered.
const RETIRED_KEY_SECONDS: u64 = 900;
/// Time after the start in which kubelets wait for client CAs that the cluster has not named yet. An API that returns within it has not
/// cost a kubelet its config. A gateway without the right to ask never gets them, and that has to show.
const CLIENT_AUTHORITIES_AWAITED_SECONDS: u64 = 600;
/// Most of these keys: a CA or certificate that changes more often within a quarter of an hour is being tried out.
const RETIRED_LIMIT_KEYS: usize = 16;

/// Error in loading the TLS configuration.
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
    /// Time at which it was opened, in seconds since 1970.
    since: u64,
    /// Keys that were replaced, each with the time until which evidence for it is accepted.
    retired: Mutex<Vec<(SpkiSha256, u64)>>,
}

/// State for new connections.
#[derive(Debug)]
pub struct Current {
    /// Certificate and CAs, checked.
    pub serving: ServingCertificate,
    /// Configuration of rustls with this certificate.
    pub config: Arc<ServerConfig>,
    /// Digest of all that was read for it.
    read: [u8; 32],
    /// CAs that may sign client certificates of kubelets, also for connections that are open already.
    pub client_authorities: Authorities,
    /// Set if the cluster provides these CAs and has not done so yet.
    client_authorities_untold: bool,
}

/// Result of a reload.
#[derive(Debug)]
pub enum CertificateReload {
    /// The files are what they were.
    Unchanged,
    /// Something else is used from now on.
    Changed {
        /// State that was used before.
        old: Arc<Current>,
        /// State that is used from now on.
        new: Arc<Current>,
    },
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
            since: clock.now().as_secs(),
            retired: Mutex::default(),
        })
    }

    /// Returns the state for new connections.
    #[must_use]
    pub fn current(&self) -> Arc<Current> {
        self.current.load_full()
    }

    /// Returns whether kubelets have to wait for the CAs that verify their certificates: the cluster has not named them yet, and still may.
    #[must_use]
    pub fn awaits_client_authorities(&self, current: &Current) -> bool {
        let waited = self.clock.now().as_secs().saturating_sub(self.since);
        current.client_authorities_untold && waited < CLIENT_AUTHORITIES_AWAITED_SECONDS
    }

    /// Returns the keys that nodes may have seen: the one in use first.
    #[must_use]
    pub fn server_keys(&self) -> Vec<SpkiSha256> {
        let now = self.clock.now().as_secs();
        // Held while what is current is read: a key is one or the other.
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.load();
        let current = current.serving.certificate().map(|certificate| certificate.key);
        let retired = retired.iter().filter(|(_, until)| now <= *until).map(|(key, _)| *key);
        let mut keys = Vec::new();
        for key in current.into_iter().chain(retired).chain(self.files.previous_keys.iter().copied()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Returns the settings with the paths of the files.
    #[must_use]
    pub const fn files(&self) -> &TlsSettings {
        &self.files
    }

    /// Reads the files again. What they hold is used for new connections if it is good; otherwise all stays as it was.
    ///
    /// # Errors
    /// [`TlsError`], with the old state kept.
    pub fn reload(&self) -> Result<CertificateReload, TlsError> {
        if Current::digest(&self.files) == self.current.load().read {
            return Ok(CertificateReload::Unchanged);
        }
        let new = Arc::new(Current::load(&self.files, self.clock)?);
        let now = self.clock.now().as_secs();
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.current.swap(Arc::clone(&new));
        let key = |current: &Current| current.serving.certificate().map(|certificate| certificate.key);
        if let Some(old) = key(&old).filter(|old| Some(*old) != key(&new)) {
            retired.retain(|(key, until)| *key != old && now <= *until);
            retired.push((old, now.saturating_add(RETIRED_KEY_SECONDS)));
            let surplus = retired.len().saturating_sub(RETIRED_LIMIT_KEYS);
            retired.drain(..surplus);
        }
        drop(retired);
        Ok(CertificateReload::Changed { old, new })
    }
}

impl Current {
    fn load(files: &TlsSettings, clock: Clock) -> Result<Self, TlsError> {
        // Before anything is read: what changes meanwhile is then found to be a change.
        let read = Self::digest(files);
        let serving = ServingCertificate::load(files, clock.now())?;
        let client_authorities_untold = files.client_ca_of_cluster && files.client_ca.as_ref().is_some_and(|path| !path.exists());
        let client_authorities = match &files.client_ca {
            Some(path) if !client_authorities_untold => Authorities::load(path)?,
            _ => Authorities::default(),
        };
        // Who asks for a certificate before it can judge one knows who is to wait.
        let asks = client_authorities_untold || !client_authorities.is_empty();
        let config = server_config(&serving, asks.then_some(&client_authorities))?;
        Ok(Self {
            serving,
            config,
            client_authorities,
            client_authorities_untold,
            read,
        })
    }

    fn digest(files: &TlsSettings) -> [u8; 32] {
        let paths = [&files.ca, &files.certificate, &files.key].into_iter().chain(&files.client_ca);
        source::digest(paths.map(PathBuf::as_path))
    }
}

/// Builds the TLS configuration: 1.2 and 1.3, hybrid post-quantum key exchange first, the cipher suite with SHA-256 first, no resumption.
/// Without CAs, clients are not asked for a certificate.
fn server_config(serving: &ServingCertificate, client_authorities: Option<&Authorities>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut provider = aws_lc_rs::default_provider();
    // Processors compute SHA-256, and not SHA-384. Go's clients, as Ignition is one, ask for it first; others get it by the server's order.
    let fast = CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != fast);
    let provider = Arc::new(provider);
    let verifier: Arc<dyn ClientCertVerifier> = match client_authorities {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(authorities) => Arc::new(PossessionVerifier::new(authorities, Arc::clone(&provider))),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(serving.certified_key())));
    config.ignore_client_order = true;
    // A booting node comes once. Resumption would save nothing here, would let it go on seeing a certificate that was replaced, and
    // would carry a client certificate over from an earlier handshake.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    // What Ignition speaks, and all that is needed.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use rustls::time_provider::TimeProvider;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, UnixTime};

    use super::*;
    use crate::pki::{self, GatewayNames};

    const NOW: u64 = 1_800_000_000;

    fn files(folder: &Path) -> TlsSettings {
        TlsSettings {
            ca: folder.join("mcs-ca.crt"),
            certificate: folder.join("mcs.crt"),
            key: folder.join("mcs.key"),
            previous_keys: Vec::new(),
            client_ca: None,
            client_ca_of_cluster: false,
            serving_of_cluster: false,
        }
    }

    /// Makes another CA, another certificate and another key where the files lie.
    fn replace(files: &TlsSettings) {
        let folder = tempfile::tempdir().unwrap();
        let new = self::files(folder.path());
        let names = GatewayNames {
            hosts: vec!["localhost".to_owned()],
            addresses: Vec::new(),
        };
        pki::create(&new, &names, Clock::Fixed(NOW).now()).unwrap();
        for (from, to) in [(&new.ca, &files.ca), (&new.certificate, &files.certificate), (&new.key, &files.key)] {
            fs::copy(from, to).unwrap();
        }
    }

    #[test]
    fn waits_a_limited_time_for_cluster_client_cas() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files(folder.path());
        replace(&files);
        let awaits = |live: &LiveTls| live.awaits_client_authorities(&live.current());
        assert!(!awaits(&LiveTls::open(&files, Clock::Fixed(NOW)).unwrap()));
        files.client_ca = Some(folder.path().join("kubelet-client-ca.crt"));
        // A file that somebody else was to write is missing, and no gateway waits for that.
        assert!(LiveTls::open(&files, Clock::Fixed(NOW)).is_err());
        files.client_ca_of_cluster = true;
        let mut live = LiveTls::open(&files, Clock::Fixed(NOW)).unwrap();
        for (seconds, expected) in [
            (0, true),
            (CLIENT_AUTHORITIES_AWAITED_SECONDS - 1, true),
            (CLIENT_AUTHORITIES_AWAITED_SECONDS, false),
        ] {
            live.clock = Clock::Fixed(NOW + seconds);
            assert_eq!(awaits(&live), expected, "{seconds}");
        }
        live.clock = Clock::Fixed(NOW);
        fs::copy(&files.ca, folder.path().join("kubelet-client-ca.crt")).unwrap();
        live.reload().unwrap();
        assert!(!awaits(&live));
    }

    /// Clock of a client at the time of the certificates.
    #[derive(Debug)]
    struct ClientTime;

    impl TimeProvider for ClientTime {
        fn current_time(&self) -> Option<UnixTime> {
            Some(UnixTime::since_unix_epoch(Duration::from_secs(NOW)))
        }
    }

    #[test]
    fn negotiates_sha256_with_clients_that_prefer_sha384() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        replace(&files);
        let live = LiveTls::open(&files, Clock::Fixed(NOW)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        assert_eq!(provider.cipher_suites[0].suite(), CipherSuite::TLS13_AES_256_GCM_SHA384);
        let client = ClientConfig::builder_with_details(provider, Arc::new(ClientTime))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(Arc::clone(&live.current().config)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut sent.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            sent.clear();
            server.write_tls(&mut sent).unwrap();
            client.read_tls(&mut sent.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        let suite = client.negotiated_cipher_suite().map(|suite| suite.suite());
        assert_eq!(suite, Some(CipherSuite::TLS13_AES_128_GCM_SHA256));
    }

    #[test]
    fn accepts_the_replaced_key_for_a_challenge_lifetime() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        replace(&files);
        let mut live = LiveTls::open(&files, Clock::Fixed(NOW)).unwrap();
        let [first] = live.server_keys()[..] else { panic!("one key") };
        replace(&files);
        live.reload().unwrap();
        let [second, retired] = live.server_keys()[..] else {
            panic!("two keys")
        };
        assert_eq!(retired, first);
        assert_ne!(second, first);
        live.clock = Clock::Fixed(NOW + RETIRED_KEY_SECONDS);
        assert_eq!(live.server_keys(), [second, first]);
        live.clock = Clock::Fixed(NOW + RETIRED_KEY_SECONDS + 1);
        assert_eq!(live.server_keys(), [second]);
        // Who rotates without end does not collect keys without end.
        for _ in 0..=RETIRED_LIMIT_KEYS + 1 {
            replace(&files);
            live.reload().unwrap();
        }
        assert_eq!(live.server_keys().len(), 1 + RETIRED_LIMIT_KEYS);
    }
}
