//! Common parts of all simulated servers: a thread of its own, a record of its requests, and faults that a test switches on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes, to_bytes};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::listener::Listener;

/// Largest request body that is read: far beyond any that these protocols have.
const REQUEST_LIMIT_BYTES: usize = 1024 * 1024;

/// Body of an answer that is too large for every reader.
pub const HUGE_BYTES: usize = 16 * 1024 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

/// A request to the server.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// HTTP method, such as `GET`.
    pub method: String,
    /// Path and query, as they were sent.
    pub target: String,
    /// Names in lower case, in the order of the request.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// Returns the first header of this name (in lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the path without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Returns a parameter of the query, decoded.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        url::form_urlencoded::parse(query.as_bytes())
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.into_owned())
    }

    /// Returns the host of the request, without a port.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.header("host").unwrap_or_default();
        host.split(':').next().unwrap_or_default()
    }
}

#[derive(Debug, Clone)]
pub struct ServerAnswer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl ServerAnswer {
    /// Creates a response of this status and type.
    #[must_use]
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.into(),
        }
    }

    /// Returns the response with another header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// Fault of a server, switched on by a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFault {
    /// It refuses connections, and closes the existing ones. It always concerns the whole server.
    Down,
    /// It accepts requests and never responds.
    Slow,
    /// It responds 200 with meaningless bytes.
    Garbage,
    /// It responds 200 with [`HUGE_BYTES`] in chunks, without a length.
    Huge,
    /// It responds 302 with this location.
    Redirect(String),
    /// It responds with this status, and a text.
    Status(u16),
}

/// A fault that was switched on.
struct ActiveFault {
    /// Prefix of the targets that the fault concerns.
    prefix: String,
    fault: ServerFault,
    /// Number of requests that it will still concern; `None` for all.
    left: Option<usize>,
}

type Handler = dyn Fn(&HttpRequest) -> ServerAnswer + Send + Sync;
type RequestObserver = dyn Fn(&HttpRequest, u16) + Send + Sync;

#[derive(Default)]
struct ServerState {
    requests: Mutex<Vec<HttpRequest>>,
    /// The faults; the last one that fits is used.
    faults: Mutex<Vec<ActiveFault>>,
    observer: Mutex<Option<Box<RequestObserver>>>,
}

/// A server that runs until it is dropped. It has a thread of its own, so that it serves tests with a runtime and without.
pub struct TestServer {
    listener: Listener,
    scheme: &'static str,
    shared: Arc<ServerState>,
}

/// Returns the loopback address, with any port.
#[must_use]
pub fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

impl TestServer {
    /// Starts a server at an address, with TLS if a configuration is given.
    #[must_use]
    pub fn start(
        address: SocketAddr,
        tls: Option<Arc<rustls::ServerConfig>>,
        handler: impl Fn(&HttpRequest) -> ServerAnswer + Send + Sync + 'static,
    ) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (shared, handler): (_, Arc<Handler>) = (Arc::<ServerState>::default(), Arc::new(handler));
        let service = Service {
            shared: shared.clone(),
            handler,
            tls: tls.map(TlsAcceptor::from),
        };
        Self {
            listener: Listener::start(address, move |stream| service.clone().connection(stream)),
            scheme,
            shared,
        }
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns its URL, `http://127.0.0.1:<port>` or `https://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address())
    }

    /// Returns every request so far, including those answered by a fault.
    #[must_use]
    pub fn requests(&self) -> Vec<HttpRequest> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.shared.requests.lock().unwrap().clear();
    }

    /// Calls the observer for each request, with the status of the response, 0 for none.
    pub fn observe(&self, observer: impl Fn(&HttpRequest, u16) + Send + Sync + 'static) {
        *self.shared.observer.lock().unwrap() = Some(Box::new(observer));
    }

    /// Switches on a fault, before it returns.
    pub fn fail(&self, fault: ServerFault) {
        self.fail_at("", fault);
    }

    /// Switches on a fault like [`Self::fail`], for targets with this prefix.
    pub fn fail_at(&self, prefix: &str, fault: ServerFault) {
        if fault == ServerFault::Down {
            return self.listener.down();
        }
        self.inject_fault(prefix, fault, None);
    }

    /// Switches on a fault like [`Self::fail_at`], for so many requests.
    pub fn fail_times(&self, prefix: &str, fault: ServerFault, times: usize) {
        assert_ne!(fault, ServerFault::Down, "it gets no requests");
        self.inject_fault(prefix, fault, Some(times));
    }

    fn inject_fault(&self, prefix: &str, fault: ServerFault, left: Option<usize>) {
        let prefix = prefix.to_owned();
        self.shared.faults.lock().unwrap().push(ActiveFault { prefix, fault, left });
    }

    /// Switches off all faults, before it returns. The server listens at the same port as before.
    pub fn recover(&self) {
        self.shared.faults.lock().unwrap().clear();
        self.listener.up();
    }
}

#[derive(Clone)]
struct Service {
    shared: Arc<ServerState>,
    handler: Arc<Handler>,
    tls: Option<TlsAcceptor>,
}

impl Service {
    /// Serves a connection. Errors of the client end the connection, and nothing else.
    async fn connection(self, stream: TcpStream) {
        match self.tls.clone() {
            None => self.serve(stream).await,
            Some(acceptor) => {
                if let Ok(stream) = acceptor.accept(stream).await {
                    self.serve(stream).await;
                }
            }
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| self.answer(request));
        let connection = http1::Builder::new()
            .title_case_headers(true)
            .serve_connection(TokioIo::new(stream), service);
        drop(connection.await);
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Result<hyper::Response<Body>, axum::Error> {
        let (head, body) = request.into_parts();
        let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let request = HttpRequest {
            method: head.method.to_string(),
            target: head.uri.path_and_query().map_or_else(|| head.uri.to_string(), ToString::to_string),
            headers: head.headers.iter().map(header).collect(),
            body: to_bytes(Body::new(body), REQUEST_LIMIT_BYTES).await?.to_vec(),
        };
        self.shared.requests.lock().unwrap().push(request.clone());
        let fault = self.fault(&request.target);
        let response = match &fault {
            None => response((self.handler)(&request)),
            Some(fault) => fault.response(),
        };
        if let Some(observer) = &*self.shared.observer.lock().unwrap() {
            observer(&request, response.as_ref().map_or(0, |response| response.status().as_u16()));
        }
        match response {
            Some(response) => Ok(response),
            None => std::future::pending().await,
        }
    }

    fn fault(&self, target: &str) -> Option<ServerFault> {
        let mut faults = self.shared.faults.lock().unwrap();
        let fits = |wrong: &&mut ActiveFault| target.starts_with(&wrong.prefix) && wrong.left != Some(0);
        let wrong = faults.iter_mut().rev().find(fits)?;
        wrong.left = wrong.left.map(|left| left - 1);
        Some(wrong.fault.clone())
    }
}

fn response(answer: ServerAnswer) -> Option<hyper::Response<Body>> {
    let mut builder = hyper::Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        builder = builder.header(name, value);
    }
    Some(builder.body(Body::from(answer.body)).unwrap())
}

impl ServerFault {
    /// Returns the response; `None` if there is never one.
    fn response(&self) -> Option<hyper::Response<Body>> {
        let json = "application/json";
        match self {
            Self::Down | Self::Slow => None,
            Self::Garbage => response(ServerAnswer::new(200, json, b"\x00\xff{garbage".as_slice())),
            Self::Huge => {
                let chunk = Bytes::from(vec![b' '; CHUNK_BYTES]);
                let chunks = std::iter::repeat_n(chunk, HUGE_BYTES / CHUNK_BYTES).map(Ok::<_, axum::Error>);
                let body = Body::from_stream(futures_util::stream::iter(chunks));
                let builder = hyper::Response::builder().header("content-type", json);
                Some(builder.body(body).unwrap())
            }
            Self::Redirect(location) => response(ServerAnswer::new(302, "text/plain", "").with("location", location)),
            Self::Status(status) => response(ServerAnswer::new(*status, "text/plain", "a fault")),
        }
    }
}
