//! A server that takes records, as it is told to.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::serve::Listener;
use cloud_fixtures::port::Port;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::{Gateway, LIMIT};

/// Waits until something is so.
pub async fn until(so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !so() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.unwrap();
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    Status(u16),
    /// None: it takes no more than so many lines.
    AtMost(usize),
    /// None, ever.
    Never,
}

#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    requests: Vec<HeaderMap>,
    answers: VecDeque<Answer>,
}

/// It serves until it is dropped.
pub struct Receiver {
    port: Port,
    seen: Arc<Mutex<Seen>>,
    task: Option<JoinHandle<()>>,
}

impl Receiver {
    /// One that is not there yet.
    pub fn away() -> Self {
        Self {
            port: Port::reserve(),
            seen: Arc::default(),
            task: None,
        }
    }

    /// Serves by TLS, with the certificate of this gateway.
    pub async fn begin_tls(&mut self, gateway: &Gateway) {
        let listener = TcpListener::bind(self.port.address()).await.unwrap();
        let acceptor = acceptor(gateway);
        self.serve(Tls { listener, acceptor });
    }

    pub async fn begin(&mut self) {
        let listener = TcpListener::bind(self.port.address()).await.unwrap();
        self.serve(listener);
    }

    fn serve(&mut self, listener: impl Listener<Addr = SocketAddr>) {
        let router = axum::Router::new()
            .fallback(take)
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(Arc::clone(&self.seen));
        self.task = Some(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }));
    }

    pub fn will(&self, answers: &[Answer]) {
        self.seen.lock().unwrap().answers.extend(answers);
    }

    /// From now on it answers what it has not been asked yet.
    pub fn relents(&self) {
        self.seen.lock().unwrap().answers.clear();
    }

    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/in", self.port.address())
    }

    /// What it has taken.
    pub fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().lines.clone()
    }

    pub fn requests(&self) -> Vec<HeaderMap> {
        self.seen.lock().unwrap().requests.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn take(State(seen): State<Arc<Mutex<Seen>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(text.ends_with('\n'), "half a line");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let answer = {
        let mut seen = seen.lock().unwrap();
        seen.requests.push(headers);
        let answer = match seen.answers.pop_front() {
            Some(Answer::AtMost(most)) if lines.len() > most => {
                seen.answers.push_front(Answer::AtMost(most));
                Some(Answer::Status(413))
            }
            Some(Answer::AtMost(most)) => {
                seen.answers.push_front(Answer::AtMost(most));
                None
            }
            answer => answer,
        };
        if answer.is_none() {
            seen.lines.extend(lines);
        }
        answer
    };
    match answer {
        Some(Answer::Status(status)) => StatusCode::from_u16(status).unwrap(),
        Some(Answer::Never) => std::future::pending().await,
        _ => StatusCode::NO_CONTENT,
    }
}

/// TLS with the certificate of this gateway.
pub fn acceptor(gateway: &Gateway) -> TlsAcceptor {
    let pem = fs::read(gateway.path("tls/mcs.crt")).unwrap();
    let chain = CertificateDer::pem_slice_iter(&pem);
    let key = PrivateKeyDer::from_pem_slice(&fs::read(gateway.path("tls/mcs.key")).unwrap()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    TlsAcceptor::from(Arc::new(config.with_single_cert(chain.map(Result::unwrap).collect(), key).unwrap()))
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
