//! Certificates and keys as they are found in files: one certificate and what people ask about it, PEM and manifests, folders of what the
//! administrator trusts. That one is here says nothing of whether it is to be trusted.

#![deny(unreachable_pub)]

mod certificate;
pub mod cloud_roots;
pub mod ek_roots;
pub mod folder;
pub mod kubelet;
pub mod secret_manifest;
pub mod source;

pub use certificate::{Certificate, Fingerprint};
