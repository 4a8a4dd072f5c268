//! `cloud-stand-in`: a cloud's metadata service with its own signing authority, for trying things by hand and for VMs.

#![allow(clippy::unwrap_used, reason = "a stand-in for tests")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use cloud_fixtures::server::{HttpRequest, TestServer};
use cloud_fixtures::{aws, azure, clock, google};

/// Simulates a cloud's metadata service, until it is killed.
///
/// Each run generates a new signing authority. The files that a gateway needs to trust it are written into a directory. Requests are
/// printed, with the status of their responses.
#[derive(Parser)]
#[command(after_help = "Example:\n  cloud-stand-in google --listen 127.0.0.1:8080 --user-data pointer.ign --state /tmp/google")]
struct Arguments {
    #[command(subcommand)]
    cloud: StandInCloud,
}

#[derive(Subcommand)]
enum StandInCloud {
    /// Google Compute Engine; writes jwks.json, instance.json
    Google {
        #[command(flatten)]
        common: Common,
        /// Also serve Google's issuer (accounts.google.com, www.googleapis.com) over TLS here; writes outgoing-ca.pem
        #[arg(long, value_name = "ADDR")]
        issuer_listen: Option<SocketAddr>,
    },
    /// EC2; writes aws-region-certificates/<region>.pem, instance.json
    Aws {
        #[command(flatten)]
        common: Common,
        /// Also serve the region's STS over TLS here; writes outgoing-ca.pem
        #[arg(long, value_name = "ADDR")]
        sts_listen: Option<SocketAddr>,
    },
    /// Azure; writes azure-roots/root.pem, azure-intermediates/intermediate.pem, instance.json
    Azure {
        #[command(flatten)]
        common: Common,
        /// Also serve the intermediate's certificate as www.microsoft.com does here; then no intermediate is written
        #[arg(long, value_name = "ADDR")]
        issuers_listen: Option<SocketAddr>,
    },
}

#[derive(Args)]
struct Common {
    /// Address on which the metadata service listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A file with the machine's user data: the pointer
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// The directory for what a gateway has to trust; made if it is not there
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
}

impl Common {
    fn user_data(&self) -> std::io::Result<Option<Vec<u8>>> {
        self.user_data.as_ref().map(std::fs::read).transpose()
    }

    fn write(&self, file: &str, content: &str) -> std::io::Result<()> {
        let file = self.state.join(file);
        std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(file, content)
    }
}

fn main() -> std::io::Result<()> {
    let now = clock::now();
    // Servers stop when they are dropped.
    match Arguments::parse().cloud {
        StandInCloud::Google { common, issuer_listen } => {
            let (keys, instance) = (google::StandInKeys::new(), google::GoogleInstance::example(now));
            common.write("jwks.json", &keys.jwks().to_string())?;
            common.write("instance.json", &format!("{:#}\n", instance.claims("example", now)))?;
            let issuer = issuer_listen.map(|address| google::IdentityProvider::start_at(address, keys.clone()));
            if let Some(issuer) = &issuer {
                common.write("outgoing-ca.pem", issuer.ca_pem())?;
                print("issuer", issuer);
            }
            let metadata = google::GoogleMetadataServer::start_at(common.listen, instance, keys);
            metadata.set_user_data(common.user_data()?.as_deref());
            print("metadata", &metadata);
            wait()
        }
        StandInCloud::Aws { common, sts_listen } => {
            let (authority, instance) = (Arc::new(aws::RegionAuthority::new(1)), aws::AwsInstance::example(now));
            let file = format!("aws-region-certificates/{}.pem", instance.region);
            common.write(&file, &authority.certificate_pem())?;
            common.write("instance.json", &format!("{:#}\n", instance.identity_document()))?;
            let session = aws::RoleSession::for_instance(&instance, now);
            let sts = sts_listen.map(|address| aws::StsServer::start_at(address, &instance.region, vec![session.clone()]));
            if let Some(sts) = &sts {
                common.write("outgoing-ca.pem", sts.ca_pem())?;
                print("sts", sts);
            }
            let metadata = aws::AwsMetadataServer::start_at(common.listen, instance, authority, Some(session));
            metadata.set_user_data(common.user_data()?.as_deref());
            print("metadata", &metadata);
            wait()
        }
        StandInCloud::Azure { common, issuers_listen } => {
            let machine = azure::AzureMachine::default();
            let authority = Arc::new(azure::AzureAuthority::new(&machine.location));
            common.write("azure-roots/root.pem", &authority.root_pem())?;
            common.write("instance.json", &format!("{:#}\n", machine.document(None, now)))?;
            let issuers = issuers_listen.map(|address| azure::Aia::start_at(address, authority.intermediate()));
            match &issuers {
                Some(issuers) => print("issuers", issuers),
                None => common.write("azure-intermediates/intermediate.pem", &authority.intermediate_pem())?,
            }
            let metadata = azure::AzureMetadataServer::start_at(common.listen, machine, authority);
            metadata.set_user_data(common.user_data()?.as_deref());
            print("metadata", &metadata);
            wait()
        }
    }
}

/// Says where a server is, and from then on what it is asked. Only the path: queries and headers hold secrets.
fn print(name: &'static str, server: &TestServer) {
    println!("{name}: {}", server.url());
    server.observe(move |request: &HttpRequest, status| println!("{name}: {} {} {status}", request.method, request.path()));
}

fn wait() -> ! {
    loop {
        std::thread::park();
    }
}
