//! Evidence of a node's identity: how it is asked for, verified and appraised.
//!
//! The roles are those of RFC 9334 (RATS). A node (the *Attester*) sends [`Evidence`](protocol::Evidence); the gateway (the
//! *Verifier*) verifies it against [`Endorsements`] into [`Claims`], and appraises those against [`ReferenceValues`] into an
//! [`AttestationResult`]. What that earns the node is the gateway's decision (the *Relying Party*), not this crate's.
//!
//! ```text
//! ChallengeRequest --Challenge::issue--> Challenge + Task          (gateway; the challenge is sealed and handed to the node)
//! Submission       --verify-----------> Claims                     (what was proven)
//! Claims           --appraise---------> AttestationResult          (that it is what the pool accepts)
//! ```
//!
//! The messages are those of [`attest_wire`], which a node links without this crate.
//!
//! Nothing here does I/O, reads a clock or awaits: time is an argument, so that a recorded decision can be made again later.
//! [`Claims`] and [`AttestationResult`] have no public constructor: to hold one is to have verified.

#![deny(unreachable_pub)]

pub mod advice;
pub mod appraisal;
pub mod aws;
pub mod azure;
pub mod challenge;
pub mod claims;
pub mod combination;
pub mod condition;
pub mod endorsements;
pub mod evidence;
pub mod gcp;
pub mod inventory;
pub mod judged_requirement;
pub mod kinds;
pub mod machine_objects;
pub mod new_values;
mod observation;
pub mod pkcs7;
mod quotes;
pub mod reference_sets;
pub mod reject;
pub mod token;
pub mod tpm;
pub mod verified;
pub mod withheld;
pub mod x509;

pub use appraisal::{AppraisalPolicy, AttestationResult, appraise};
pub use attest_wire::{EkDigest, HashAlg, Kind, SpkiSha256, nonce, protocol, purpose, release, values};
pub use aws::sts::StsCall;
pub use challenge::{Challenge, NewChallenge, Subject};
pub use claims::{Claims, NodeIdentity};
pub use combination::Combination;
pub use endorsements::Endorsements;
pub use evidence::{Submission, screen, verify};
pub use inventory::Inventory;
pub use judged_requirement::JudgedRequirement;
pub use kinds::{Counters, Pcrs};
pub use machine_objects::{MachineObject, MachineSets, NamedMachine};
pub use reject::Reject;
pub use rustls_pki_types::UnixTime;
pub use tpm::ek_certificate::{EkRoots, EkRootsError};
pub use tpm::pcr::PcrSelection;
pub use tpm::reference_values::ReferenceValues;
pub use tpm::{EndorsedBy, TpmClaims, TpmEvidenceError};
pub use verified::Verified;
pub use withheld::Withheld;
