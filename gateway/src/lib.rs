//! The attestation gateway: Verifier and Relying Party (RFC 9334) in front of Ignition configs.
//!
//! `docs/architecture.md` says what each module is for. One request's way:
//!
//! ```text
//! server       accept, limits                           TcpStream
//! admission    a turn for the handshake, a connection   → Handshake, Place
//! server       TLS                                      → TlsStream
//! admission    the body, within memory and time; a turn → Whole → Turn
//! api          strict JSON                              → EvidenceRequest
//! credentials  the seal is this gateway's               → Opened
//! attest       kinds, secret, form: nothing is spent    → screened
//! api          keys and certificates of clouds          → Anchors
//! credentials  the first answer to this challenge       → Attempt
//! attest       verify, appraise                         → Claims → AttestationResult
//! api          one transaction: Grant, instance, name   → decide
//! api          the client still waits                   → given
//! attest-log   one line, durable                        → Recorded<Response>
//! api          only from a Recorded                     → Response
//! ```
//!
//! The node takes a sealed ticket away ([`credentials`]). Ignition shows it, a token, a certificate, or nothing; [`pools`] give a config for a
//! [`policy::Grant`] only.
//!
//! Configs come another way: [`attest_ignition`] renders them from files, or from the answer of another server. [`pools`] serves them, and
//! swaps one pool at a time, as a whole.
//!
//! The store ([`attest_store`]) has what must survive a crash and what replicas share. A request carries everything else itself, sealed.

#![deny(unreachable_pub)]

pub mod admission;
pub mod api;
pub mod cloud;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod credentials;
pub mod inspection;
pub mod machine_status;
pub mod manifests;
pub mod metrics;
pub mod network;
pub mod pki;
pub mod policy;
pub mod pools;
pub mod probe;
pub mod recording;
pub mod server;
pub mod settings;
pub mod sightings;
pub mod watch;
