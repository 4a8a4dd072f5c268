//! Section `[upstream]` of `pool.toml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use attest::SpkiSha256;
use serde::Deserialize;
use url::{Host, Url};

use super::Include;

/// Default time after which a change in the cluster is noticed, in seconds.
const REVALIDATE_SECONDS: u32 = 300;
/// Minimum: with less, the gateway would keep a Machine Config Server busy, since a fetch takes it most of a second.
const REVALIDATE_SECONDS_LEAST: u32 = 10;
/// Maximum, a day: with more, nodes would join with an outdated config.
const REVALIDATE_SECONDS_LIMIT: u32 = 86_400;

/// Source of a pool's full config, and the selection of the pre-approved one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "UpstreamFile")]
pub struct UpstreamSettings {
    /// The Machine Config Server: `https://host:port`.
    pub url: Url,
    /// The pool's name there; `None` if it is the same as here.
    pub pool: Option<String>,
    /// Path of the CA that must have issued its certificate, in PEM.
    pub ca: PathBuf,
    /// Pinned keys: its certificate must have one of them, if there are any.
    pub keys_sha256: Vec<SpkiSha256>,
    /// Address to connect to, if the name in the URL resolves to this gateway. The certificate must still be for that name.
    pub address: Option<SocketAddr>,
    /// Interval at which to look for a change, in seconds.
    pub revalidate_seconds: u32,
    /// Selection of the pre-approved config.
    pub include: Include,
}

/// Reason why the settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSettings {
    /// Not a URL. The value is not shown: it may contain a password.
    #[error("url: {0}")]
    Url(#[from] url::ParseError),
    /// A URL with other parts than scheme, host and port.
    #[error("url must be https://host:port, without path or query")]
    UrlParts,
    /// A name that cannot be a pool's.
    #[error("pool: a pool's name has lower-case letters, digits, '-' and '.' only, at most 63")]
    Pool,
    /// An address although the URL contains one already.
    #[error("url has an address already: remove address")]
    AddressOfAddress,
    /// Port 0, which cannot be connected to.
    #[error("address has port 0")]
    AddressPort,
    /// An interval that is too short or too long.
    #[error("revalidate_seconds is {0}; allowed are {REVALIDATE_SECONDS_LEAST} to {REVALIDATE_SECONDS_LIMIT}")]
    Revalidate(u32),
}

impl UpstreamSettings {
    /// Returns the settings with the CA's path relative to the pool's folder.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.ca = folder.join(self.ca);
        self
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamFile {
    url: String,
    pool: Option<String>,
    ca: PathBuf,
    #[serde(default)]
    keys_sha256: Vec<SpkiSha256>,
    address: Option<SocketAddr>,
    #[serde(default = "revalidate_seconds")]
    revalidate_seconds: u32,
    #[serde(default)]
    include: Include,
}

const fn revalidate_seconds() -> u32 {
    REVALIDATE_SECONDS
}

impl TryFrom<UpstreamFile> for UpstreamSettings {
    type Error = BadSettings;

    fn try_from(file: UpstreamFile) -> Result<Self, BadSettings> {
        let url = Url::parse(&file.url)?;
        let bare = url.username().is_empty() && url.password().is_none() && url.path() == "/" && url.query().is_none();
        if url.scheme() != "https" || !bare || url.fragment().is_some() || url.port() == Some(0) {
            return Err(BadSettings::UrlParts);
        }
        if file.pool.as_deref().is_some_and(|pool| !attest::challenge::is_pool_name(pool)) {
            return Err(BadSettings::Pool);
        }
        if let Some(address) = file.address {
            if !matches!(url.host(), Some(Host::Domain(_))) {
                return Err(BadSettings::AddressOfAddress);
            }
            if address.port() == 0 {
                return Err(BadSettings::AddressPort);
            }
        }
        if !(REVALIDATE_SECONDS_LEAST..=REVALIDATE_SECONDS_LIMIT).contains(&file.revalidate_seconds) {
            return Err(BadSettings::Revalidate(file.revalidate_seconds));
        }
        Ok(Self {
            url,
            pool: file.pool,
            ca: file.ca,
            keys_sha256: file.keys_sha256,
            address: file.address,
            revalidate_seconds: file.revalidate_seconds,
            include: file.include,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<UpstreamSettings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Parses the minimal settings, with other lines.
    fn with(lines: &str) -> Result<UpstreamSettings, String> {
        parse(&format!(
            "url = \"https://api-int.example.com:22623\"\nca = \"mcs-ca.crt\"\n{lines}"
        ))
    }

    #[test]
    fn defaults_and_paths_relative_to_the_pool_folder() {
        let settings = with("").unwrap().in_folder(Path::new("/pools/worker"));
        assert_eq!(settings.url.as_str(), "https://api-int.example.com:22623/");
        assert_eq!(settings.ca, Path::new("/pools/worker/mcs-ca.crt"));
        assert_eq!((settings.revalidate_seconds, settings.pool.as_deref()), (300, None));
        assert!(settings.keys_sha256.is_empty() && settings.include.is_empty());
    }

    #[test]
    fn refuses_invalid_upstream_values() {
        let check = |line: &str, expected: Result<(), &str>| match (with(line), expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(part)) => assert!(error.contains(part), "{line}: {error}"),
            (other, _) => panic!("{line}: {other:?}"),
        };
        let digest = "0a".repeat(32);
        check(&format!("keys_sha256 = [\"{digest}\"]"), Ok(()));
        check("keys_sha256 = [\"0a\"]", Err("64"));
        check("pool = \"worker-gpu\"", Ok(()));
        check("pool = \"../admin\"", Err("pool"));
        check("address = \"10.0.0.5:22623\"", Ok(()));
        check("address = \"[fd00::5]:22623\"", Ok(()));
        check("address = \"10.0.0.5\"", Err("address"));
        check("address = \"10.0.0.5:0\"", Err("port 0"));
        check("revalidate_seconds = 10", Ok(()));
        check("revalidate_seconds = 9", Err("revalidate_seconds is 9"));
        check("revalidate_seconds = 86400", Ok(()));
        check("revalidate_seconds = 86401", Err("revalidate_seconds"));
        check("[include]\nfiles = [\"/etc/a\"]", Ok(()));
        check("[include]\nfiles = [\"/etc/a*\"]", Err("/etc/a*"));
        check("[include]\nfile = [\"/etc/a\"]", Err("file"));
        check("proxy = \"a\"", Err("proxy"));
    }

    #[test]
    fn refuses_an_upstream_url_other_than_https_origin() {
        let check = |url: &str, good: bool| {
            let settings = parse(&format!("ca = \"a\"\nurl = \"{url}\""));
            assert_eq!(settings.is_ok(), good, "{url}: {settings:?}");
        };
        check("https://a", true);
        check("https://a:1/", true);
        check("https://[::1]:1", true);
        check("http://a", false);
        check("https://a/config", false);
        check("https://a/?b", false);
        check("https://a/#b", false);
        check("https://u@a/", false);
        check("https://:p@a/", false);
        check("https://a:0", false);
        check("a:22623", false);
        check("", false);
        let error = parse("ca = \"a\"\nurl = \"https://10.0.0.5:1\"\naddress = \"10.0.0.6:1\"").unwrap_err();
        assert!(error.contains("remove address"), "{error}");
    }
}
