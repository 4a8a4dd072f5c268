//! A client for the stand-ins: no redirects, no proxies, and hosts at addresses set by the test.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::sync::Once;
use std::time::Duration;

use cloud_fixtures::server::TestServer;

/// Far longer than an answer takes, and short enough for a server that never answers.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: String,
}

impl Answered {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Creates a client that trusts this CA, if given, and resolves these hosts to the server.
pub fn client(server: &TestServer, ca_pem: Option<&str>, hosts: &[&str]) -> reqwest::Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap());
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(PATIENCE);
    if let Some(pem) = ca_pem {
        builder = builder.tls_certs_only([reqwest::Certificate::from_pem(pem.as_bytes()).unwrap()]);
    }
    for host in hosts {
        builder = builder.resolve(host, server.address());
    }
    builder.build().unwrap()
}

/// Sends a request with these headers to a server without TLS.
pub async fn ask(server: &TestServer, method: &str, target: &str, headers: &[(&str, &str)]) -> Answered {
    let client = client(server, None, &[]);
    let mut request = client.request(method.parse().unwrap(), format!("{}{target}", server.url()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    read(request.send().await.unwrap()).await
}

pub async fn read(response: reqwest::Response) -> Answered {
    Answered {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.text().await.unwrap(),
    }
}
