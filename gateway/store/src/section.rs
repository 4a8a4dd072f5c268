//! The section `[store]` of a settings file: which engine keeps the store, and how it is reached.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use crate::settings::{ClusterAccess, EngineSettings, EtcdSettings, KubernetesSettings};

/// A key, the value found, and the values allowed.
pub type Fault = (&'static str, String, &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EngineSection {
    Embedded,
    Etcd,
    Kubernetes,
}

/// The section, not checked.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSection {
    /// File with the key by which programs with one store encrypt the seal's keys there.
    pub key_file: Option<PathBuf>,
    engine: EngineSection,
    endpoints: Vec<String>,
    prefix: String,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    timeout_seconds: u32,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self {
            key_file: None,
            engine: EngineSection::Embedded,
            endpoints: Vec::new(),
            prefix: "attest-gateway".to_owned(),
            ca: None,
            certificate: None,
            key: None,
            user: None,
            password_file: None,
            // Longer than etcd takes to elect a leader, shorter than Ignition waits for an answer.
            timeout_seconds: 5,
        }
    }
}

/// Access of a program to the seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealAccess {
    /// The program opens and makes seals: for a shared store it needs the key file.
    Held,
    /// The program has no seal, and must not have the key file.
    None,
}

impl StoreSection {
    /// Checks the section of a file in this folder, for a program that reaches the cluster's API in this way.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn checked(self, folder: &Path, cluster: Option<&ClusterAccess>, seal: SealAccess) -> Result<EngineSettings, Fault> {
        if let (SealAccess::None, Some(path)) = (seal, &self.key_file) {
            let allowed = "for gateways only: remove it, since this program does not use the seal";
            return Err(("store.key_file", path.display().to_string(), allowed));
        }
        match self.engine {
            EngineSection::Embedded => without_etcd(&self).map(|()| EngineSettings::Embedded),
            EngineSection::Etcd => etcd(self, folder, seal),
            EngineSection::Kubernetes => kubernetes(self, cluster, seal),
        }
    }
}

/// Refuses settings of etcd while another engine is chosen: they are a mistake.
fn without_etcd(section: &StoreSection) -> Result<(), Fault> {
    let said = [
        ("store.endpoints", !section.endpoints.is_empty()),
        ("store.ca", section.ca.is_some()),
        ("store.certificate", section.certificate.is_some()),
        ("store.key", section.key.is_some()),
        ("store.user", section.user.is_some()),
        ("store.password_file", section.password_file.is_some()),
    ];
    match said.into_iter().find(|(_, said)| *said) {
        None => Ok(()),
        Some((key, _)) => Err((key, "set".to_owned(), "for etcd only: set engine = \"etcd\", or remove it")),
    }
}

/// Checks the settings that gateways with one store have to share.
fn shares_a_key(section: &StoreSection, seal: SealAccess) -> Result<(), Fault> {
    if seal == SealAccess::Held && section.key_file.is_none() {
        let allowed = "gateways that share a store share this key: create the file with `attest-gateway store create-key`, and copy it to each gateway";
        return Err(("store.key_file", "not set".to_owned(), allowed));
    }
    Ok(())
}

fn timeout(seconds: u32) -> Result<Duration, Fault> {
    if seconds == 0 || seconds > 60 {
        return Err(("store.timeout_seconds", seconds.to_string(), "1 to 60"));
    }
    Ok(Duration::from_secs(seconds.into()))
}

fn kubernetes(section: StoreSection, cluster: Option<&ClusterAccess>, seal: SealAccess) -> Result<EngineSettings, Fault> {
    without_etcd(&section)?;
    let Some(cluster) = cluster else {
        let allowed = "engine \"kubernetes\" needs the cluster's API: set cluster.api";
        return Err(("cluster.api", "not set".to_owned(), allowed));
    };
    shares_a_key(&section, seal)?;
    // With what is added to it, it is shorter than 253, as names of objects are.
    if !is_label(&section.prefix) {
        let allowed = "the prefix of object names has 1 to 63 of a-z, 0-9 and '-', with no '-' at either end";
        return Err(("store.prefix", format!("{:?}", section.prefix), allowed));
    }
    Ok(EngineSettings::Kubernetes(KubernetesSettings {
        cluster: cluster.clone(),
        name: section.prefix,
        timeout: timeout(section.timeout_seconds)?,
    }))
}

fn etcd(section: StoreSection, folder: &Path, seal: SealAccess) -> Result<EngineSettings, Fault> {
    if !cfg!(feature = "etcd") {
        let allowed = "this program was built without etcd: build it with the feature `etcd`, or use \"embedded\"";
        return Err(("store.engine", "\"etcd\"".to_owned(), allowed));
    }
    shares_a_key(&section, seal)?;
    let StoreSection {
        endpoints,
        prefix,
        ca,
        certificate,
        key,
        user,
        password_file,
        timeout_seconds,
        key_file: _,
        engine: _,
    } = section;
    let encrypted = scheme(&endpoints)?;
    let is_name = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !prefix.trim_start_matches('/').split('/').all(is_name) {
        let allowed = "names of letters, digits, \"-\", \"_\" and \".\", with \"/\" between them";
        return Err(("store.prefix", format!("{prefix:?}"), allowed));
    }
    if encrypted && ca.is_none() {
        return Err(("store.ca", "not set".to_owned(), "https needs the CAs of etcd's certificates"));
    }
    if !encrypted && let Some(path) = ca.as_ref().or(certificate.as_ref()).or(key.as_ref()) {
        let allowed = "for https only: use https in store.endpoints";
        return Err(("store.ca, store.certificate or store.key", path.display().to_string(), allowed));
    }
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((folder.join(certificate), folder.join(key))),
        (None, None) => None,
        (Some(_), None) => return Err(("store.key", "not set".to_owned(), "a client certificate needs its key")),
        (None, Some(_)) => return Err(("store.certificate", "not set".to_owned(), "a key needs its client certificate")),
    };
    let user = match (user, password_file) {
        (Some(user), Some(file)) => Some((user, folder.join(file))),
        (None, None) => None,
        (Some(_), None) => return Err(("store.password_file", "not set".to_owned(), "a user needs a password")),
        (None, Some(_)) => return Err(("store.user", "not set".to_owned(), "a password needs its user")),
    };
    Ok(EngineSettings::Etcd(EtcdSettings {
        endpoints,
        prefix,
        ca: ca.map(|path| folder.join(path)),
        identity,
        user,
        timeout: timeout(timeout_seconds)?,
    }))
}

/// Returns whether the endpoints speak TLS; refuses a mixture.
fn scheme(endpoints: &[String]) -> Result<bool, Fault> {
    const ALLOWED: &str = "the members of the etcd cluster: \"https://HOST:PORT\" for each, or \"http://HOST:PORT\" for each";
    if endpoints.is_empty() {
        return Err(("store.endpoints", "[]".to_owned(), ALLOWED));
    }
    let mut encrypted = Vec::new();
    for endpoint in endpoints {
        let wrong = || ("store.endpoints", format!("{endpoint:?}"), ALLOWED);
        let url = Url::parse(endpoint).map_err(|_| wrong())?;
        let bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let nobody = url.username().is_empty() && url.password().is_none();
        // A port is said, also one that is the scheme's own.
        let port = endpoint
            .trim_end_matches('/')
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !bare || !nobody || !port || !matches!(url.scheme(), "http" | "https") {
            return Err(wrong());
        }
        encrypted.push(url.scheme() == "https");
    }
    if encrypted.iter().any(|one| Some(one) != encrypted.first()) {
        return Err(("store.endpoints", format!("{endpoints:?}"), ALLOWED));
    }
    Ok(encrypted.first() == Some(&true))
}

/// Returns whether it is a label of RFC 1123, as names of namespaces are.
#[must_use]
pub fn is_label(text: &str) -> bool {
    const LIMIT: usize = 63;
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LIMIT).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}
