//! Tests with evidence from outside of the crate: one crate, so that shared code is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod aws_identity_document;
mod azure_attested_document;
mod azure_vtpm;
mod azure_vtpm_kind;
mod azure_vtpm_vectors;
mod boot_complete;
mod boot_rules;
mod chosen;
mod cloud_document_vectors;
mod condition;
mod credential;
mod ek_certificate;
mod ek_certificate_vectors;
mod endorsement;
mod event_log;
mod event_log_rule;
mod event_log_vectors;
mod evidence_kinds;
mod gcp;
mod gcp_authority;
mod gcp_rules;
mod gcp_vtpm;
mod known_chains;
mod kubelet_key;
mod log_builder;
mod measured_boot;
mod measured_boot_vectors;
mod nitro_authority;
mod nitro_tpm;
mod nitro_tpm_vectors;
mod observe;
mod pkcs7;
mod prediction;
mod recorded_boots;
mod reference_sets;
mod refusals;
mod sts;
mod support;
mod tpm_vectors;
mod tpm_verify;
mod vectors;
mod wire;
