//! Cloud with one machine in it, and a gateway's settings for that cloud.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use cloud_fixtures::server::TestServer;
use cloud_fixtures::{aws, azure, clock, google};
use swtpm_tests::{TestCloud, TestGateway};

/// Metadata server of the machine.
pub enum Metadata {
    Gcp(google::GoogleMetadataServer),
    Aws(aws::AwsMetadataServer),
    Azure(azure::AzureMetadataServer),
}

pub struct Estate {
    pub metadata: Metadata,
    /// Identity of the machine.
    pub identity: String,
    /// Section of `pool.toml` that accepts the machine.
    rules: &'static str,
    /// Sections for the gateway's `gateway.toml`.
    settings: String,
    /// Files of trust anchors for the gateway, by name.
    trusted: Vec<(&'static str, String)>,
    /// Servers that the gateway connects to; they run until this is dropped.
    _asked: Box<dyn Any>,
}

impl Estate {
    pub fn new(cloud: TestCloud) -> Self {
        match cloud {
            TestCloud::Gcp => Self::gcp(),
            TestCloud::Aws => Self::aws(),
            TestCloud::Azure => Self::azure(),
        }
    }

    /// Creates an estate whose gateway fetches the keys from a stand-in of Google's, by discovery.
    fn gcp() -> Self {
        let (keys, instance) = (google::StandInKeys::new(), google::GoogleInstance::example(clock::now()));
        let issuer = google::IdentityProvider::start(Arc::clone(&keys));
        Self {
            identity: format!("gcp:{}/{}", instance.project_id, instance.instance_id),
            rules: "[gcp]\nprojects = [{ id = \"example-project\", number = 739419398126 }]\n",
            settings: outgoing(&["accounts.google.com", "www.googleapis.com"], issuer.address(), true),
            trusted: vec![("outgoing-ca.pem", issuer.ca_pem().to_owned())],
            metadata: Metadata::Gcp(google::GoogleMetadataServer::start(instance, keys)),
            _asked: Box::new(issuer),
        }
    }

    /// Creates an estate whose instance has a role, with an STS for it.
    fn aws() -> Self {
        let (authority, instance) = (Arc::new(aws::RegionAuthority::new(1)), aws::AwsInstance::example(clock::now()));
        let session = aws::RoleSession::for_instance(&instance, clock::now());
        let sts = aws::StsServer::start(&instance.region, vec![session.clone()]);
        Self {
            identity: format!("aws:{}/{}", instance.account, instance.instance_id),
            rules: "[aws_identity_document]\naccounts = [\"123456789012\"]\nregions = [\"eu-central-1\"]\n\
                    [aws_sts]\naccounts = [\"123456789012\"]\nregions = [\"eu-central-1\"]\nroles = [\"worker-role\"]\n",
            settings: outgoing(&["sts.eu-central-1.amazonaws.com"], sts.address(), true),
            trusted: vec![
                ("outgoing-ca.pem", sts.ca_pem().to_owned()),
                ("aws-region-certificates/eu-central-1.pem", authority.certificate_pem()),
            ],
            metadata: Metadata::Aws(aws::AwsMetadataServer::start(instance, authority, Some(session))),
            _asked: Box::new(sts),
        }
    }

    /// Creates an estate whose gateway has the root only, and fetches the CA in between.
    fn azure() -> Self {
        let machine = azure::AzureMachine::default();
        let authority = Arc::new(azure::AzureAuthority::new(&machine.location));
        let issuers = azure::Aia::start(authority.intermediate());
        Self {
            identity: format!("azure:{}/{}", machine.subscription_id, machine.vm_id),
            rules: "[azure]\nsubscriptions = [\"8a205152-b25a-417f-a676-80465535a6c9\"]\nmax_age_seconds = 300\n",
            settings: outgoing(&["www.microsoft.com"], issuers.address(), false),
            trusted: vec![("azure-roots/root.pem", authority.root_pem())],
            metadata: Metadata::Azure(azure::AzureMetadataServer::start(machine, authority)),
            _asked: Box::new(issuers),
        }
    }

    /// Makes the sample pool accept these kinds of evidence of this machine, together; from the gateway's next start on.
    pub fn accept(&self, kinds: &[&str], gateway: &TestGateway) {
        for (name, pem) in &self.trusted {
            gateway.write(name, pem).unwrap();
        }
        gateway.add_settings(&self.settings).unwrap();
        gateway
            .add_to_pool(&format!("[attestation]\naccepts = [{kinds:?}]\n{}", self.rules))
            .unwrap();
    }
}

/// Returns settings that connect these hosts to this address.
fn outgoing(hosts: &[&str], address: SocketAddr, tls: bool) -> String {
    let ca = if tls { "ca = \"outgoing-ca.pem\"\n" } else { "" };
    let hosts: String = hosts.iter().map(|host| format!("{host:?} = \"{address}\"\n")).collect();
    format!("[outgoing]\n{ca}[outgoing.connect]\n{hosts}")
}

impl Metadata {
    pub fn cloud(&self) -> TestCloud {
        match self {
            Self::Gcp(_) => TestCloud::Gcp,
            Self::Aws(_) => TestCloud::Aws,
            Self::Azure(_) => TestCloud::Azure,
        }
    }

    pub fn server(&self) -> &TestServer {
        match self {
            Self::Gcp(server) => server,
            Self::Aws(server) => server,
            Self::Azure(server) => server,
        }
    }

    pub fn set_user_data(&self, data: &str) {
        let data = Some(data.as_bytes());
        match self {
            Self::Gcp(server) => server.set_user_data(data),
            Self::Aws(server) => server.set_user_data(data),
            Self::Azure(server) => server.set_user_data(data),
        }
    }
}
