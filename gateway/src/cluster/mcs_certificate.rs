//! The MCS certificate, its key and the MCS CA as the cluster has them, for its own Machine Config Server and its pointers.
//!
//! The Secret `machine-config-server-tls`, and the ConfigMap `machine-config-server-ca`, or where that is not (before OpenShift 4.19, and where the operator
//! does not rotate) `root-ca` in `kube-system`: in that order, as the operator looks for them (machine-config-operator 7ff337a, `pkg/operator/sync.go`:
//! `getMCSCABundle`; `manifests/machineconfigserver/daemonset.yaml`).
//!
//! More clients may write the ConfigMap than the Secret: machine-config-daemon, whose account's token each node has, may change every
//! ConfigMap of that namespace (`manifests/machineconfigdaemon/role.yaml`). So of its CAs only one is taken that has signed the Secret's
//! certificate. When that certificate is replaced by one of another CA, the earlier CA is kept while the ConfigMap has it.
//!
//! All three are one file, so that it has what fits together whenever the power fails: the manifest of a Secret.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attest_certificates::secret_manifest;
use attest_certificates::{Certificate, source};
use attest_cluster_api::cached_object::{Bundle, CachedContent, ObjectName, One, secret};
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_system::clock::Clock;
use attest_system::files::{PRIVATE, PUBLIC};
use serde_json::Value;
use zeroize::Zeroizing;

use super::copies::{CopiedFile, Text, now_and_then};
use crate::pki::ServingCertificate;
use crate::settings::TlsSettings;

const NAMESPACE: &str = "openshift-machine-config-operator";
const TLS: ObjectName = ObjectName {
    what: "MCS certificate",
    namespace: NAMESPACE,
    name: "machine-config-server-tls",
};
const CA: ObjectName = ObjectName {
    what: "MCS CA",
    namespace: NAMESPACE,
    name: "machine-config-server-ca",
};
const ROOT_CA: ObjectName = ObjectName {
    what: "root CA",
    namespace: "kube-system",
    name: "root-ca",
};
/// Name of certificate and CA in messages.
const ALL: &str = "MCS certificate and CA";

/// A Secret's certificate and key, neither looked at yet.
#[derive(Clone)]
struct Pair {
    certificate: Option<Text>,
    key: Option<Text>,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pair(…)")
    }
}

impl CachedContent for Pair {
    const KIND: &'static str = "Secret";
    const PLURAL: &'static str = "secrets";

    fn read(_: &str, object: &Value) -> Self {
        let value = |key| secret(object, key).map(Arc::new);
        Self {
            certificate: value("tls.crt"),
            key: value("tls.key"),
        }
    }
}

/// State at the API; for the CAs, with the object that has them.
struct ClusterCertificate {
    pair: Option<Pair>,
    bundle: Option<(ObjectName, Bundle)>,
}

/// Most CAs that are looked at, the newest: an operator's bundle has one, and two while they change. Each costs a signature for each name.
const AUTHORITIES_LIMIT: usize = 16;
/// Pause between two looks: each node may write the ConfigMap, as often as it likes.
const PAUSE: Duration = Duration::from_millis(100);

/// Contents of the files: all of it, and the CAs alone for pools from another server.
struct CertificateFiles {
    all: Zeroizing<String>,
    authorities: String,
    /// Fingerprints of CAs that the ConfigMap has, and that are not taken: the rest of their content is untrusted.
    left: Vec<String>,
}

impl ClusterCertificate {
    /// Returns the files to serve from, if nodes would take them now; `known` are the CAs that were taken before.
    fn made(&self, clock: Clock, known: &[Certificate]) -> Result<CertificateFiles, String> {
        let pair = self.pair.as_ref().ok_or_else(|| format!("there is no Secret {TLS}"))?;
        let (certificate, key) = match (&pair.certificate, &pair.key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, _) => return Err(format!("Secret {TLS} has no tls.crt")),
            (_, None) => return Err(format!("Secret {TLS} has no tls.key")),
        };
        let (of, bundle) = self
            .bundle
            .as_ref()
            .ok_or_else(|| format!("there is neither ConfigMap {CA} nor {ROOT_CA}"))?;
        let bundle = bundle
            .0
            .as_ref()
            .ok_or_else(|| format!("ConfigMap {of} has neither ca-bundle.crt nor ca.crt"))?;
        let mut said = source::certificates_in(bundle).map_err(|problem| format!("ConfigMap {of}: {problem}"))?;
        // The operator puts a new one first; a pointer, and the stages of a rotation, have the newest last.
        said.sort_by_key(|ca| ca.not_before);
        said.drain(..said.len().saturating_sub(AUTHORITIES_LIMIT));
        let chain = source::certificates_in(certificate).map_err(|problem| format!("Secret {TLS}: tls.crt {problem}"))?;
        let keys = source::keys_in(key).map_err(|problem| format!("Secret {TLS}: tls.key {problem}"))?;
        // As messages name them; what is read is here already.
        let named = TlsSettings {
            ca: format!("ConfigMap {of}").into(),
            certificate: format!("Secret {TLS}").into(),
            key: format!("Secret {TLS}: tls.key").into(),
            previous_keys: Vec::new(),
            client_ca: None,
            client_ca_of_cluster: false,
            serving_of_cluster: true,
        };
        let now = clock.now();
        let is_taken =
            |ca: &Certificate| known.contains(ca) || ServingCertificate::signer(&named, std::slice::from_ref(ca), &chain, now).is_ok();
        let (taken, left): (Vec<_>, Vec<_>) = said.iter().cloned().partition(is_taken);
        // With none of them it is said what is wrong with all.
        let authorities = if taken.is_empty() { said } else { taken };
        let pem = |all: &[Certificate]| all.iter().map(Certificate::pem).collect::<String>();
        let (of_authorities, of_chain) = (pem(&authorities), pem(&chain));
        ServingCertificate::from_contents(&named, authorities, chain, keys, now).map_err(|error| error.to_string())?;
        let data = [
            ("ca.crt", of_authorities.as_bytes()),
            ("tls.crt", of_chain.as_bytes()),
            ("tls.key", key.as_bytes()),
        ];
        Ok(CertificateFiles {
            all: secret_manifest::secret(TLS.namespace, TLS.name, &data),
            authorities: of_authorities,
            left: left.iter().map(|ca| ca.fingerprint.short()).collect(),
        })
    }
}

/// Returns the CAs of the present file.
fn current_authorities(path: &Path) -> Vec<Certificate> {
    source::authorities(path).unwrap_or_default()
}

/// Returns the path of the CAs alone, next to the file that has all of it.
fn authorities_path(path: &Path) -> PathBuf {
    path.with_file_name("machine-config-server-ca.crt")
}

/// Checks once whether all of it can be read.
pub(super) async fn check_access(cluster: &ClusterClient) -> [(&'static str, Result<(), ClusterError>); 3] {
    tokio::join!(
        TLS.check_access::<Pair>(cluster),
        CA.check_access::<Bundle>(cluster),
        ROOT_CA.check_access::<Bundle>(cluster)
    )
    .into()
}

/// Has the files say what the cluster says, asked for once.
///
/// # Errors
/// The reason why they do not.
pub(super) async fn first(cluster: &ClusterClient, path: &Path, clock: Clock) -> Result<(), String> {
    let told = |error: ClusterError| error.to_string();
    let pair = TLS.ask(cluster).await.map_err(told)?;
    let mut bundle = CA.ask(cluster).await.map_err(told)?.map(|bundle| (CA, bundle));
    if bundle.is_none() {
        bundle = ROOT_CA.ask(cluster).await.map_err(told)?.map(|bundle| (ROOT_CA, bundle));
    }
    let CertificateFiles { all, authorities, .. } = ClusterCertificate { pair, bundle }.made(clock, &current_authorities(path))?;
    CopiedFile::new(ALL, path.to_owned(), PRIVATE).write(all).await?;
    let beside = CopiedFile::new(ALL, authorities_path(path), PUBLIC);
    beside.write(Zeroizing::new(authorities)).await.map(drop)
}

/// Keeps the files as the cluster has it, for as long as it is polled.
pub async fn keep_mcs_certificate(cluster: Arc<ClusterClient>, path: PathBuf, clock: Clock) {
    let (pair, keep_pair) = TLS.keep::<Pair>(&cluster);
    let (ca, keep_ca) = CA.keep::<Bundle>(&cluster);
    let (root_ca, keep_root_ca) = ROOT_CA.keep::<Bundle>(&cluster);
    let told = CertificateWatches { pair, ca, root_ca };
    tokio::join!(keep_pair.run(), keep_ca.run(), keep_root_ca.run(), told.follow(path, clock));
}

struct CertificateWatches {
    pair: One<Pair>,
    ca: One<Bundle>,
    root_ca: One<Bundle>,
}

impl CertificateWatches {
    async fn follow(mut self, path: PathBuf, clock: Clock) {
        let mut authorities = CopiedFile::new(ALL, authorities_path(&path), PUBLIC);
        let mut all = CopiedFile::new(ALL, path.clone(), PRIVATE);
        let mut left = Vec::new();
        let mut every = now_and_then();
        loop {
            tokio::select! {
                () = self.pair.changed() => {}
                () = self.ca.changed() => {}
                () = self.root_ca.changed() => {}
                _ = every.tick() => {}
            }
            let Some(said) = self.inputs() else { continue };
            match said.made(clock, &current_authorities(&path)) {
                Err(problem) => all.take(Err(problem)).await,
                Ok(made) => {
                    if left != made.left && !made.left.is_empty() {
                        tracing::warn!(
                            "cluster: MCS CA: ignoring CAs that did not sign the certificate in Secret {TLS}: {}",
                            made.left.join(", ")
                        );
                    }
                    left = made.left;
                    all.take(Ok(made.all)).await;
                    authorities.take(Ok(Zeroizing::new(made.authorities))).await;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the state at the API, once enough of it is known to judge it.
    fn inputs(&self) -> Option<ClusterCertificate> {
        let (pair, ca) = (self.pair.now()?, self.ca.now()?);
        let bundle = match ca {
            Some(ca) => Some((CA, ca)),
            None => self.root_ca.now()?.map(|root_ca| (ROOT_CA, root_ca)),
        };
        Some(ClusterCertificate { pair, bundle })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest::UnixTime;

    use super::*;
    use crate::pki::issue::{self, Algorithm, CertificateRequest, GatewayNames, SigningKey};

    const NOW: u64 = 1_800_000_000;
    const CLOCK: Clock = Clock::Fixed(NOW);

    /// A CA that was made so many seconds before now, and a certificate by it.
    struct Of {
        ca: String,
        certificate: String,
        key: String,
    }

    fn certificate_at(name: &str, age: u64) -> Of {
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW - age));
        let key = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
        let ca = issue::authority(name, key, 10, now).unwrap();
        let names = GatewayNames {
            hosts: vec!["api-int.example.com".to_owned()],
            addresses: Vec::new(),
        };
        let made = issue::serving(&ca.certificate, &ca.key, &names, &CertificateRequest::default(), now).unwrap();
        Of {
            ca: ca.certificate.pem(),
            certificate: made.certificate.pem(),
            key: made.key.pem().to_string(),
        }
    }

    fn inputs(certificate: &str, key: &str, bundle: &str) -> ClusterCertificate {
        let text = |text: &str| Some(Arc::new(Zeroizing::new(text.to_owned())));
        ClusterCertificate {
            pair: Some(Pair {
                certificate: text(certificate),
                key: text(key),
            }),
            bundle: Some((CA, Bundle(Some(bundle.to_owned())))),
        }
    }

    #[test]
    fn keeps_issuing_cas_listed_in_the_config_map() {
        let (one, other, alien) = (certificate_at("one", 60), certificate_at("other", 0), certificate_at("alien", 30));
        let known = |of: &[&Of]| -> Vec<Certificate> {
            let pem: String = of.iter().map(|of| of.ca.as_str()).collect();
            source::certificates_in(&pem).unwrap_or_default()
        };
        let check = |by: &Of, bundle: &[&Of], before: &[&Of], expect: &[&Of], left: usize| {
            let bundle: String = bundle.iter().map(|of| of.ca.as_str()).collect();
            let made = inputs(&by.certificate, &by.key, &bundle).made(CLOCK, &known(before)).unwrap();
            assert_eq!(made.authorities, expect.iter().map(|of| of.ca.as_str()).collect::<String>());
            assert_eq!(made.left.len(), left);
        };
        check(&one, &[&one], &[], &[&one], 0);
        // Who may write the ConfigMap alone brings no CA into pointers.
        check(&one, &[&alien, &one], &[&one], &[&one], 1);
        check(&one, &[&other, &one], &[&one], &[&one], 1);
        // The newest last, wherever the operator has it; the one before for as long as it is there.
        check(&other, &[&other, &one], &[&one], &[&one, &other], 0);
        check(&other, &[&other, &one], &[], &[&other], 1);
        check(&other, &[&other], &[&one, &other], &[&other], 0);
    }

    #[test]
    fn refuses_invalid_certificates_without_printing_the_key() {
        let (one, other, old) = (
            certificate_at("one", 60),
            certificate_at("other", 0),
            certificate_at("old", 11 * 86_400),
        );
        let both = format!("{}{}", other.ca, one.ca);
        assert!(inputs(&one.certificate, &one.key, &both).made(CLOCK, &[]).is_ok());
        let refused = |said: ClusterCertificate, expect: &str| {
            let problem = said.made(CLOCK, &[]).err().unwrap();
            assert!(problem.contains(expect), "{expect}: {problem}");
            assert!(!problem.contains(&one.key[40..60]), "{problem}");
        };
        refused(
            inputs(&one.certificate, &other.key, &both),
            "tls.key does not hold the private key of Secret",
        );
        refused(inputs(&one.certificate, &one.key, &other.ca), "refuse Secret");
        refused(inputs(&old.certificate, &old.key, &old.ca), "is valid from");
        refused(inputs(&one.certificate, &one.key[..80], &both), "tls.key");
        refused(inputs(&one.certificate, "", &both), "tls.key holds no private key");
        refused(inputs("", &one.key, &both), "tls.crt holds no certificate");
        refused(
            inputs(&one.certificate, &one.key, "no PEM"),
            "machine-config-server-ca: holds no certificate",
        );
        refused(inputs(&one.ca, &one.key, &both), "tls.key does not hold the private key of Secret");
        let without = |change: fn(&mut ClusterCertificate)| {
            let mut said = inputs(&one.certificate, &one.key, &both);
            change(&mut said);
            said
        };
        refused(without(|said| said.pair = None), "there is no Secret");
        refused(without(|said| said.pair.as_mut().unwrap().certificate = None), "has no tls.crt");
        refused(without(|said| said.pair.as_mut().unwrap().key = None), "has no tls.key");
        refused(without(|said| said.bundle = None), "there is neither ConfigMap");
        refused(
            without(|said| said.bundle = Some((ROOT_CA, Bundle(None)))),
            "kube-system/root-ca has neither",
        );
    }

    #[test]
    fn generated_file_serves_as_ca_certificate_and_key() {
        let one = certificate_at("one", 60);
        let made = inputs(&one.certificate, &one.key, &one.ca).made(CLOCK, &[]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcs.yaml");
        std::fs::write(&path, made.all.as_str()).unwrap();
        let files = TlsSettings {
            ca: path.clone(),
            certificate: path.clone(),
            key: path,
            previous_keys: Vec::new(),
            client_ca: None,
            client_ca_of_cluster: false,
            serving_of_cluster: true,
        };
        let serving = ServingCertificate::load(&files, CLOCK.now()).unwrap();
        assert_eq!(serving.authority().pem(), one.ca);
        assert_eq!(serving.certificate().unwrap().pem(), one.certificate);
    }

    #[test]
    fn debug_output_of_a_pair_hides_the_key() {
        let object = serde_json::json!({"data": {"tls.crt": "YQ==", "tls.key": "aHVudGVyMg=="}});
        let pair = Pair::read("n", &object);
        assert_eq!(pair.key.as_ref().unwrap().as_str(), "hunter2");
        assert!(!format!("{pair:?}").contains("hunter2"));
        for wrong in [
            serde_json::json!({"data": {"tls.key": 7, "tls.crt": ["YQ=="]}}),
            serde_json::json!({"data": "x"}),
            serde_json::json!(null),
            serde_json::json!({"data": {"tls.key": "YWFh".repeat(1_400_000)}}),
        ] {
            let pair = Pair::read("n", &wrong);
            assert!(pair.key.is_none() && pair.certificate.is_none());
        }
    }
}
