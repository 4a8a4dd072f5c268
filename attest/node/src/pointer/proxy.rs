//! The proxy by which Ignition fetches, if the pointer names one: `ignition.proxy`, as Go's `golang.org/x/net/http/httpproxy` reads it.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use url::{Host, Url};

/// Proxy settings for https, with their exemptions.
#[derive(Debug, Default)]
pub(super) struct Proxy {
    https: bool,
    /// Entries of `noProxy`, in lower case.
    exempt: Vec<String>,
}

impl Proxy {
    /// Reads `ignition.proxy`. Its `httpProxy` is for http only.
    pub(super) fn read(proxy: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(|text| text.trim().to_ascii_lowercase());
        let named = |name: &str| proxy.get(name).and_then(text).is_some_and(|url| !url.is_empty());
        let exempt = proxy
            .get("noProxy")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        // Ignition joins them by commas, at which Go splits.
        let entries = exempt
            .iter()
            .filter_map(text)
            .flat_map(|entry| entry.split(',').map(str::to_owned).collect::<Vec<_>>());
        Self {
            https: named("httpsProxy"),
            exempt: entries
                .map(|entry| entry.trim().to_owned())
                .filter(|entry| !entry.is_empty())
                .collect(),
        }
    }

    /// Returns whether Ignition uses the proxy for this URL.
    pub(super) fn is_for(&self, url: &str) -> bool {
        let Ok(url) = Url::parse(url) else { return false };
        let port = url.port_or_known_default().unwrap_or_default();
        self.https
            && match url.host() {
                None => false,
                Some(Host::Domain(name)) => {
                    let name = name.trim_end_matches('.').to_ascii_lowercase();
                    name != "localhost" && !self.exempt.iter().any(|entry| exempts_name(entry, &name, port))
                }
                Some(Host::Ipv4(address)) => self.is_for_address(address.into(), port),
                Some(Host::Ipv6(address)) => self.is_for_address(address.into(), port),
            }
    }

    fn is_for_address(&self, address: IpAddr, port: u16) -> bool {
        !address.is_loopback() && !self.exempt.iter().any(|entry| exempts_address(entry, address, port))
    }
}

/// `*`, `example.com` (and what is below it), `.example.com` and `*.example.com` (only that), each with a port or without.
fn exempts_name(entry: &str, name: &str, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    let Some(entry) = for_port(entry, port) else { return false };
    let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
    match entry.strip_prefix('.') {
        Some(domain) => name.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
        None => name == entry || name.strip_suffix(entry).is_some_and(|rest| rest.ends_with('.')),
    }
}

/// `*`, `192.0.2.1`, `192.0.2.0/24`; an address with a port or without.
fn exempts_address(entry: &str, address: IpAddr, port: u16) -> bool {
    let is = |text: &str| text.trim_matches(['[', ']']).parse() == Ok(address);
    entry == "*"
        || entry.parse::<IpNet>().is_ok_and(|network| network.contains(&address))
        || is(entry)
        || for_port(entry, port).is_some_and(is)
}

/// An entry without its port; `None` if that is another one.
fn for_port(entry: &str, port: u16) -> Option<&str> {
    match entry.rsplit_once(':').map(|(host, found)| (host, found.parse::<u16>())) {
        Some((host, Ok(found))) if !host.contains(':') || host.ends_with(']') => (found == port).then_some(host),
        _ => Some(entry),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(proxy: &Value, url: &str, expect: bool) {
        assert_eq!(Proxy::read(proxy).is_for(url), expect, "{proxy} {url}");
    }

    #[test]
    fn http_proxy_does_not_apply_to_gateways() {
        check(&json!({"httpProxy": "http://proxy:3128"}), "https://gateway:22623", false);
        check(&json!({"httpsProxy": "http://proxy:3128"}), "https://gateway:22623", true);
        check(&json!({"httpsProxy": ""}), "https://gateway:22623", false);
        check(&json!({"httpsProxy": null}), "https://gateway:22623", false);
        check(&json!({}), "https://gateway:22623", false);
    }

    #[test]
    fn no_proxy_entries_bypass_the_proxy() {
        let exempt = |entry: &str, url: &str, expect: bool| {
            check(
                &json!({"httpsProxy": "http://proxy:3128", "noProxy": ["other.example", entry]}),
                url,
                !expect,
            );
        };
        let api = "https://api-int.example.com:22623";
        exempt("api-int.example.com", api, true);
        exempt("API-INT.example.com", api, true);
        exempt("example.com", api, true);
        exempt(".example.com", api, true);
        exempt("*.example.com", api, true);
        exempt("a.example, example.com", api, true);
        exempt("example.com:22623", api, true);
        exempt("example.com:443", api, false);
        exempt("ample.com", api, false);
        exempt(".api-int.example.com", api, false);
        exempt("*", api, true);
        exempt("example.com:443", "https://example.com", true);
        exempt("192.0.2.0/24", "https://192.0.2.7:22623", true);
        exempt("192.0.2.7", "https://192.0.2.7:22623", true);
        exempt("192.0.2.7:22623", "https://192.0.2.7:22623", true);
        exempt("192.0.2.7:443", "https://192.0.2.7:22623", false);
        exempt("192.0.3.0/24", "https://192.0.2.7:22623", false);
        exempt("fd00::/8", "https://[fd00::1]:22623", true);
        exempt("fd00::1", "https://[fd00::1]:22623", true);
        exempt("[fd00::1]:22623", "https://[fd00::1]:22623", true);
        exempt("*", "https://192.0.2.7:22623", true);
        exempt("x", "https://127.0.0.1:22623", true);
        exempt("x", "https://[::1]:22623", true);
        exempt("x", "https://localhost:22623", true);
    }
}
