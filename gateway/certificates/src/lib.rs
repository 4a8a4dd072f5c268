//! Certificates and keys from files: parsed certificates, PEM and manifests, folders of trusted certificates. Parsing says nothing about
//! whether to trust a certificate.

#![deny(unreachable_pub)]

mod certificate;
pub mod cloud_roots;
pub mod ek_bundle;
pub mod ek_import;
pub mod ek_roots;
pub mod folder;
pub mod kubelet;
pub mod secret_manifest;
pub mod source;

pub use certificate::{Certificate, Fingerprint};
