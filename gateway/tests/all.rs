//! Tests of the program as a whole, over TLS: one crate, so that their common code is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod admin;
mod admission;
mod alerts;
mod altered_logs;
mod altered_segments;
mod attestation;
mod audit;
mod authentication;
mod authorities;
mod backup;
mod balancers;
mod bench_report;
#[path = "../../attest/tests/measured_boot/machine.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod booted;
mod certificates;
mod cli;
mod clock;
mod cloud_anchors;
mod cloud_evidence;
#[cfg(feature = "cluster")]
mod cluster;
mod compressed;
mod conditions;
mod conflicts;
mod conformance;
mod ek_roots;
mod embedded;
mod endorsement;
mod enrolled;
mod etcd;
mod event_logs;
mod examples;
#[path = "../benches/firmware/mod.rs"]
mod firmware;
mod first_boot;
mod fleets;
mod foreign_removal;
mod forwarding;
mod full_disk;
mod handshakes;
mod history;
mod hold;
mod inspection;
mod inventory;
mod journal;
mod killed;
mod killed_while_removing;
mod kubelet;
#[path = "../../attest/tests/log_builder/mod.rs"]
mod log_builder;
mod log_by_openssl;
mod log_chain;
mod log_checkpoints;
mod log_commands;
mod log_of_store;
mod log_retention;
mod log_segments;
mod machines;
mod manifests;
mod mcs;
mod metrics;
mod mixed_releases;
mod newer_release;
mod newer_seal;
mod night_pages;
#[cfg(feature = "cluster")]
mod objects;
mod observe;
mod output;
mod owner;
mod pointers;
mod probe;
mod proposal;
mod recorded;
mod reference_values;
mod rehearsal;
#[cfg(feature = "cluster")]
mod release_fixtures;
mod reload;
mod reloaded;
mod remote;
mod replicas;
mod report;
mod reports;
mod restored;
mod returned_uses;
mod revocation;
mod rotation;
mod second_stage;
mod served_configs;
mod service_manager;
mod shared_seal;
mod store;
mod strange_files;
mod support;
mod token_import;
mod tokens;
mod torn;
mod transport;
mod uncertain_commit;
mod unfinished;
mod upgrade;
#[path = "../../attest/tests/vectors/mod.rs"]
mod vectors;
mod waiting;
mod waiting_observed;
