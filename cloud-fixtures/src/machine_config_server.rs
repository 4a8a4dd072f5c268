//! A cluster's Machine Config Server: it serves the full config to unauthenticated clients, with TLS on 22623 and without on 22624.
//!
//! Its responses are those of `pkg/server/api.go` and `pkg/server/server.go` in `openshift/machine-config-operator`, described in its
//! `docs/MachineConfigServer.md`. The spec version for each `Accept` was measured with the real server.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};

/// A pool's full config in a spec version.
type VersionedConfig = dyn Fn(&str) -> Vec<u8> + Send + Sync;

/// The server of one control-plane host. It listens on all addresses.
pub struct MachineConfigServer {
    /// Server with TLS, on port 22623.
    pub with_tls: TestServer,
    /// Server without TLS, on port 22624.
    pub plain: TestServer,
}

impl MachineConfigServer {
    /// Starts a server with one pool, and these PEM files.
    #[must_use]
    pub fn start(certificate: &Path, key: &Path, pool: &'static str, config: Arc<VersionedConfig>) -> Self {
        let start = |port: u16, tls| start((Ipv6Addr::UNSPECIFIED, port).into(), tls, pool, Arc::clone(&config));
        Self {
            with_tls: start(22623, Some(tls(certificate, key))),
            plain: start(22624, None),
        }
    }

    /// Starts only the server with TLS, on any port of the loopback interface, for a gateway on the same machine.
    #[must_use]
    pub fn start_tls_only(certificate: &Path, key: &Path, pool: &'static str, config: Arc<VersionedConfig>) -> TestServer {
        start(loopback(), Some(tls(certificate, key)), pool, config)
    }
}

fn start(address: SocketAddr, tls: Option<Arc<ServerConfig>>, pool: &'static str, config: Arc<VersionedConfig>) -> TestServer {
    TestServer::start(address, tls, move |request: &HttpRequest| answer(request, pool, &*config))
}

/// Returns a configuration with TLS from 1.2, HTTP/1.1 only.
fn tls(certificate: &Path, key: &Path) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap());
    Arc::new(config.unwrap())
}

fn answer(request: &HttpRequest, pool: &str, config: &VersionedConfig) -> ServerAnswer {
    let empty = |status| ServerAnswer {
        status,
        headers: Vec::new(),
        body: Vec::new(),
    };
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return empty(405);
    }
    // The last element of the path is the pool.
    match request.path().rsplit_once('/') {
        Some(("", "healthz")) => return empty(200),
        Some(("/config", asked)) if asked == pool => {}
        Some(("/config", _)) => return empty(500),
        _ => return empty(404),
    }
    match served(request.header("accept").unwrap_or_default()) {
        Ok(version) => ServerAnswer::new(200, "application/json", config(&version)),
        Err(status) => empty(status),
    }
}

/// Returns the spec version that is served for this `Accept` header, or the status.
fn served(accept: &str) -> Result<String, u16> {
    let Some((_, asked)) = accept.split_once("version=") else {
        return Ok("2.2.0".to_owned());
    };
    let asked = asked.split([',', ';', '-']).next().unwrap_or_default().trim();
    let numbers: Vec<u32> = asked.split('.').map_while(|part| part.parse().ok()).collect();
    match *numbers {
        [2, 2..=4, _] => Ok("2.2.0".to_owned()),
        [3, 0, _] => Err(500),
        [3, minor @ 1..=5, _] => Ok(format!("3.{minor}.0")),
        [3, _, _] => Ok("3.5.0".to_owned()),
        [_, _, _] => Err(400),
        _ => Ok("2.2.0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiates_the_ignition_version() {
        let accept = |version: &str| format!("application/vnd.coreos.ignition+json;version={version}, */*;q=0.1");
        for (asked, expected) in [
            ("2.1.0", Err(400)),
            ("2.4.0", Ok("2.2.0")),
            ("3.0.0", Err(500)),
            ("3.1.0", Ok("3.1.0")),
            ("3.5.0-experimental", Ok("3.5.0")),
            ("3.9.0", Ok("3.5.0")),
            ("4.0.0", Err(400)),
            ("x", Ok("2.2.0")),
        ] {
            assert_eq!(served(&accept(asked)), expected.map(str::to_owned), "{asked}");
        }
        assert_eq!(served("*/*"), Ok("2.2.0".to_owned()));
    }
}
