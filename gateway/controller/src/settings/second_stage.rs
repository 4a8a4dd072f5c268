//! The gateway whose pre-approved configs become MachineConfigs.

use attest_store::section::Fault;
use serde::Deserialize;
use url::{Host, Url};

/// Gateway from which the configs are fetched. Its CAs are those of `pointers.authorities`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondStageSettings {
    /// The gateway, as nodes reach it: `https://host:port`.
    pub url: Url,
    /// Address to connect to instead, as `host:port`. The certificate must still be for the URL's host.
    pub address: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SecondStageSection {
    enabled: bool,
    url: Option<Url>,
    address: Option<String>,
}

pub(super) fn checked(section: SecondStageSection) -> Result<Option<SecondStageSettings>, Fault> {
    if !section.enabled {
        return Ok(None);
    }
    let url = section.url.ok_or_else(|| ("second_stage.url", "not set".to_owned(), ALLOWED))?;
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    if url.scheme() != "https" || !url.has_host() || !plain || !matches!(url.path(), "" | "/") {
        return Err(("second_stage.url", format!("{:?}", url.as_str()), ALLOWED));
    }
    if let Some(address) = section.address.as_ref().filter(|address| !is_address(address)) {
        let allowed = "expected a host name or address and a port, such as \"attest-gateway.attest-gateway.svc:22625\"";
        return Err(("second_stage.address", format!("{address:?}"), allowed));
    }
    if let (Some(address), false) = (&section.address, matches!(url.host(), Some(Host::Domain(_)))) {
        let allowed = "allowed only if second_stage.url has a host name";
        return Err(("second_stage.address", format!("{address:?}"), allowed));
    }
    Ok(Some(SecondStageSettings {
        url,
        address: section.address,
    }))
}

const ALLOWED: &str = "expected the gateway's URL for nodes, such as \"https://api-int.example.com:22623\"";

fn is_address(address: &str) -> bool {
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    address.rsplit_once(':').is_some_and(|(host, last)| !host.is_empty() && port(last))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<SecondStageSettings>, String> {
        let section: SecondStageSection = toml::from_str(text).map_err(|error| error.to_string())?;
        checked(section).map_err(|(key, found, allowed)| format!("{key} is {found}; {allowed}"))
    }

    #[test]
    fn second_stage_is_disabled_by_default() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("url = \"https://a\""), Ok(None));
        let settings = parse("enabled = true\nurl = \"https://a:1\"\naddress = \"b:2\"").unwrap().unwrap();
        assert_eq!((settings.url.as_str(), settings.address.as_deref()), ("https://a:1/", Some("b:2")));
    }

    #[test]
    fn rejects_an_invalid_gateway_address() {
        for (text, expected) in [
            ("", "second_stage.url is not set"),
            ("url = \"http://a\"", "second_stage.url is"),
            ("url = \"https://a/b\"", "second_stage.url is"),
            ("url = \"https://u@a\"", "second_stage.url is"),
            ("url = \"https://a\"\naddress = \"b\"", "second_stage.address is"),
            ("url = \"https://a\"\naddress = \":1\"", "second_stage.address is"),
            ("url = \"https://a\"\naddress = \"b:0\"", "second_stage.address is"),
            ("url = \"https://192.0.2.1\"\naddress = \"b:1\"", "second_stage.address is"),
        ] {
            let error = parse(&format!("enabled = true\n{text}")).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
