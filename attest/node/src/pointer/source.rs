//! The sources in a pointer config: which may be attestation gateways, and the credentials in their URLs.

use url::Url;
use zeroize::Zeroizing;

/// Longest pool name in a URL, in bytes: the longest Kubernetes object name.
const POOL_LIMIT_BYTES: usize = 253;
/// Query parameter for a provisioning token.
const TOKEN_PARAMETER: &str = "token";

/// Position of a source in `ignition.config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceLocation {
    Replace,
    /// Index in the `merge` list.
    Merge(usize),
}

/// A source that may be an attestation gateway: `https://…/config/<pool>`.
#[derive(Clone, PartialEq, Eq)]
pub struct GatewaySource {
    /// Position in the pointer config.
    pub place: SourceLocation,
    /// The pool: the last element of the path.
    pub pool: String,
    /// Base URL, before `/config/<pool>`: `https://api-int.example:22623`. Neither credentials nor query.
    pub base: String,
}

impl std::fmt::Debug for GatewaySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/config/{} ({:?})", self.base, self.pool, self.place)
    }
}

/// Splits `https://host/prefix/config/pool?…` into `https://host/prefix` and `pool`.
pub(crate) fn gateway_of(source: &str) -> Option<(String, String)> {
    let mut url = Url::parse(source).ok()?;
    if url.scheme() != "https" || !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    // One at the end does not matter to the gateway, nor to a Machine Config Server.
    let path = url.path();
    let (rest, pool) = path.strip_suffix('/').unwrap_or(path).rsplit_once('/')?;
    let prefix = rest.strip_suffix("/config")?.to_owned();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if pool.is_empty() || pool.len() > POOL_LIMIT_BYTES || !pool.bytes().all(plain) {
        return None;
    }
    let pool = pool.to_owned();
    url.set_path(&prefix);
    url.set_query(None);
    url.set_fragment(None);
    Some((url.as_str().trim_end_matches('/').to_owned(), pool))
}

/// The values of its `token` parameters.
pub(super) fn tokens(source: &str) -> Vec<Zeroizing<String>> {
    let Ok(url) = Url::parse(source) else { return Vec::new() };
    // As the gateway reads it: a `+` is a `+`, which Base64 has.
    let query = Zeroizing::new(url.query().unwrap_or_default().replace('+', "%2B"));
    url::form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name == TOKEN_PARAMETER)
        .map(|(_, value)| Zeroizing::new(value.into_owned()))
        .collect()
}

/// The source without its `token` parameters; `None` if it has none, so that a URL is only rewritten when it must be.
pub(super) fn without_token(source: &str) -> Option<String> {
    let mut url = Url::parse(source).ok()?;
    let query = url.query()?;
    let is_token = |pair: &str| url::form_urlencoded::parse(pair.as_bytes()).any(|(name, _)| name == TOKEN_PARAMETER);
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
    if kept.len() == query.split('&').count() {
        return None;
    }
    let kept = kept.join("&");
    url.set_query((!kept.is_empty()).then_some(kept.as_str()));
    Some(url.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_gateway(source: &str, expect: Option<(&str, &str)>) {
        assert_eq!(
            gateway_of(source),
            expect.map(|(base, pool)| (base.to_owned(), pool.to_owned())),
            "{source}"
        );
    }

    #[test]
    fn gateways_are_recognised_by_their_path() {
        check_gateway(
            "https://api-int.example:22623/config/worker",
            Some(("https://api-int.example:22623", "worker")),
        );
        check_gateway(
            "https://10.0.2.2:8443/config/worker?token=x#y",
            Some(("https://10.0.2.2:8443", "worker")),
        );
        check_gateway(
            "https://api-int.example:22623/config/worker?ca=0123456789abcdef,fedcba9876543210",
            Some(("https://api-int.example:22623", "worker")),
        );
        check_gateway("https://[fd00::1]:22623/config/master", Some(("https://[fd00::1]:22623", "master")));
        check_gateway(
            "https://proxy.example/cluster-1/config/gpu.a-b_c",
            Some(("https://proxy.example/cluster-1", "gpu.a-b_c")),
        );
        check_gateway("http://api-int.example:22624/config/worker", None);
        check_gateway("https://user:secret@api-int.example/config/worker", None);
        check_gateway(
            "https://api-int.example/config/worker/",
            Some(("https://api-int.example", "worker")),
        );
        check_gateway("https://api-int.example/config/worker//", None);
        check_gateway("https://api-int.example/config/", None);
        check_gateway("https://api-int.example/config", None);
        check_gateway("https://api-int.example/other/worker", None);
        check_gateway("https://api-int.example/xconfig/worker", None);
        check_gateway("https://api-int.example/config/a%2fb", None);
        check_gateway(&format!("https://api-int.example/config/{}", "a".repeat(254)), None);
        check_gateway("data:,{}", None);
        check_gateway("", None);
    }

    fn check_token(source: &str, expect: Option<&str>) {
        assert_eq!(without_token(source).as_deref(), expect, "{source}");
    }

    #[test]
    fn base64_tokens_are_read_from_the_query() {
        for query in ["a+b/c==", "a%2Bb%2Fc%3D%3D"] {
            let tokens = tokens(&format!("https://a/config/worker?ca=x&token={query}"));
            assert_eq!(
                tokens.iter().map(|token| token.as_str()).collect::<Vec<_>>(),
                ["a+b/c=="],
                "{query}"
            );
        }
    }

    #[test]
    fn tokens_are_removed_from_the_query() {
        check_token("https://a/config/worker", None);
        check_token("https://a/config/worker?a=b", None);
        check_token("https://a/config/worker?tokens=b", None);
        check_token("https://a/config/worker?token=x", Some("https://a/config/worker"));
        check_token("https://a/config/worker?token", Some("https://a/config/worker"));
        check_token("https://a/config/worker?t%6Fken=x", Some("https://a/config/worker"));
        check_token(
            "https://a/config/worker?a=b&token=x&c=%20",
            Some("https://a/config/worker?a=b&c=%20"),
        );
        check_token("https://a/config/worker?ca=0123456789abcdef,fedcba9876543210", None);
        check_token(
            "https://a/config/worker?ca=0123456789abcdef,fedcba9876543210&token=x",
            Some("https://a/config/worker?ca=0123456789abcdef,fedcba9876543210"),
        );
        check_token("https://a/config/worker?token=x&token=y", Some("https://a/config/worker"));
    }
}
