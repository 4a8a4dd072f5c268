//! Values that an administrator gives for a cluster, and that go into manifests unchanged. They are limited to what the API accepts there,
//! so that none can add YAML of its own.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use attest::challenge::is_pool_name;

/// Longest name of a namespace: a label of RFC 1123.
const NAMESPACE_LIMIT_BYTES: usize = 63;
/// Longest reference of an image that is accepted: a name of 255 characters, a tag of 128, and a digest.
const IMAGE_LIMIT_BYTES: usize = 512;

/// A value that no manifest could have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// No namespace could be called so.
    #[error(
        "{0:?} is not a valid namespace: at most {NAMESPACE_LIMIT_BYTES} lower-case letters, digits and '-', with no '-' at either end"
    )]
    Namespace(String),
    /// A node would have to guess what is meant.
    #[error("{0:?} is not an image reference with a registry and a tag or digest, such as registry.example.com/attest-gateway@sha256:…")]
    Image(String),
    /// No name that a certificate is for.
    #[error("{0:?} is not a DNS name, such as api-int.mycluster.example.com; an IP address is not allowed")]
    Host(String),
    /// No pointer could ask for it.
    #[error("{0:?} is not a valid pool name")]
    Pool(String),
}

/// Namespace of the gateway's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(String);

/// The gateway's image, with its registry, and a tag or digest: a short name is whichever registry a node asks first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayImage(String);

/// The name that pointers and the Machine Config Server's certificate have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host(String);

/// A pool that the gateway serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolName(String);

impl FromStr for Namespace {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match text.len() <= NAMESPACE_LIMIT_BYTES && is_label(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(BadValue::Namespace(text.to_owned())),
        }
    }
}

impl FromStr for GatewayImage {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let clean = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@');
        let whole = || {
            let (registry, rest) = text.split_once('/')?;
            let registry_is_one = registry.contains(['.', ':']) || registry == "localhost";
            let starts = |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric());
            let (name, version) = rest.split_once(['@', ':'])?;
            (registry_is_one && starts(registry) && starts(name) && starts(version)).then_some(())
        };
        match text.len() <= IMAGE_LIMIT_BYTES && text.chars().all(clean) && whole().is_some() {
            true => Ok(Self(text.to_owned())),
            false => Err(BadValue::Image(text.to_owned())),
        }
    }
}

impl FromStr for Host {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let named = text.contains('.') && text.parse::<IpAddr>().is_err() && text.split('.').all(is_label);
        match named && rustls_pki_types::DnsName::try_from(text).is_ok() {
            true => Ok(Self(text.to_owned())),
            false => Err(BadValue::Host(text.to_owned())),
        }
    }
}

impl FromStr for PoolName {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match is_pool_name(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(BadValue::Pool(text.to_owned())),
        }
    }
}

/// Returns a text as a string of TOML, with any characters.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

macro_rules! shown {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
shown!(Namespace, GatewayImage, Host, PoolName);

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn accepted_values_are_printed_unchanged() {
        let image = |text: &str| assert_eq!(text.parse::<GatewayImage>().unwrap().to_string(), text);
        image("registry.example.com/attest-gateway:0.1.0");
        image("registry.example.com:5000/a/b@sha256:0123");
        image("localhost/attest-gateway:dev");
        let namespace = |text: &str| assert_eq!(text.parse::<Namespace>().unwrap().to_string(), text);
        namespace("attest-gateway");
        namespace("a");
        namespace(&"a".repeat(63));
        assert_eq!("api-int.example.com".parse::<Host>().unwrap().to_string(), "api-int.example.com");
        assert_eq!("worker".parse::<PoolName>().unwrap().to_string(), "worker");
    }

    #[test]
    fn refuses_ambiguous_images_and_yaml_injection() {
        let image = |text: &str| assert!(text.parse::<GatewayImage>().is_err(), "{text:?}");
        image("");
        image("attest-gateway");
        image("attest-gateway:0.1.0");
        image("library/attest-gateway:0.1.0");
        image("registry.example.com/attest-gateway");
        image("registry.example.com/attest-gateway:");
        image("registry.example.com/attest-gateway@");
        image("registry.example.com/:0.1.0");
        image("-registry.example.com/a:1");
        image("registry.example.com/a:1\n  hostPID: true");
        image("registry.example.com/a:1 #");
        image("registry.example.com/a:1\"");
        image(&format!("registry.example.com/a:{}", "1".repeat(512)));
        let namespace = |text: &str| assert!(text.parse::<Namespace>().is_err(), "{text:?}");
        for text in ["", "-a", "a-", "A", "a.b", "a_b", "a\n", "a: b", &"a".repeat(64)] {
            namespace(text);
        }
        let host = |text: &str| assert!(text.parse::<Host>().is_err(), "{text:?}");
        for text in [
            "",
            "api-int",
            "192.0.2.5",
            "a..b",
            ".a.b",
            "a.b.",
            "A.example.com",
            "a.b:22623",
            "a.b/",
            "a.b\"",
            "a.b\nx",
        ] {
            host(text);
        }
        host(&format!("{}.example.com", "a".repeat(64)));
        let pool = |text: &str| assert!(text.parse::<PoolName>().is_err(), "{text:?}");
        for text in ["", "..", ".worker", "a/b", "a\n", "Worker"] {
            pool(text);
        }
    }
}
