//! The clouds' side of cloud evidence, for tests: signing authorities whose private keys the test holds, and servers that speak the clouds'
//! protocols. They do not use the verifier `attest`, and so are an independent implementation. Also a real etcd, a real haproxy, a Machine
//! Config Server, and an API of Kubernetes.
//!
//! All functions panic on unexpected conditions: this crate is for tests, and a panic is how a test fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::as_conversions,
    clippy::missing_panics_doc,
    reason = "a stand-in for tests"
)]

pub mod aws;
pub mod azure;
pub mod clock;
pub mod der;
pub mod etcd;
pub mod google;
pub mod haproxy;
pub mod kubernetes;
mod listener;
pub mod machine_config_server;
pub mod openstack;
pub mod pkcs7;
pub mod port;
pub mod server;
pub mod tampering;
pub mod tls;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use rcgen::{DistinguishedName, DnType};

/// Returns the name `O=Test, CN=<common name>`.
#[must_use]
pub fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Test");
    name.push(DnType::CommonName, common_name);
    name
}

#[must_use]
pub fn pem(certificate: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(certificate);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Returns random bytes from the system.
#[must_use]
pub fn random<const LENGTH: usize>() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    SystemRandom::new().fill(&mut bytes).unwrap();
    bytes
}
