//! Man-in-the-middle server: it ends the node's TLS connection, opens its own to the gateway, and forwards every byte.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{IpAddr, PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::gateway::{TestGateway, client_tls};

/// Relay that listens until the process ends.
pub struct Relay {
    port: u16,
}

impl Relay {
    /// Starts a relay with its own key and a certificate of the gateway's MCS CA. No node can tell it from the gateway.
    pub fn start(gateway: &TestGateway) -> Result<Self> {
        let acceptor = TlsAcceptor::from(Arc::new(server_tls(gateway)?));
        let mut client = client_tls(&gateway.ca())?;
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connector = TlsConnector::from(Arc::new(client));
        let target = ("127.0.0.1", gateway.port());
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
                sender.send(listener.local_addr()?.port())?;
                loop {
                    let (node, _) = listener.accept().await?;
                    let (acceptor, connector) = (acceptor.clone(), connector.clone());
                    tokio::spawn(async move {
                        let mut node = acceptor.accept(node).await?;
                        let name = ServerName::IpAddress(IpAddr::V4([127, 0, 0, 1].into()));
                        let mut gateway = connector.connect(name, TcpStream::connect(target).await?).await?;
                        tokio::io::copy_bidirectional(&mut node, &mut gateway).await
                    });
                }
            })
        });
        Ok(Self {
            port: receiver.recv().context("the relay does not listen")?,
        })
    }

    /// Returns the port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn server_tls(gateway: &TestGateway) -> Result<rustls::ServerConfig> {
    let ca_key = gateway.ca().with_extension("key");
    let ca_key = KeyPair::from_pem(&fs::read_to_string(&ca_key).with_context(|| format!("reading {}", ca_key.display()))?)?;
    let ca = Issuer::from_ca_cert_pem(&fs::read_to_string(gateway.ca())?, ca_key)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&key, &ca)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| anyhow::anyhow!("{error}"))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider().into();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
