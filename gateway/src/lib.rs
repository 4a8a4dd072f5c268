//! The attestation gateway: Verifier and Relying Party (RFC 9334) in front of Ignition configs.
//!
//! One request's way through the house:
//!
//! ```text
//! server       accept, limits                           TcpStream
//! admission    a turn for the handshake, and a place    → Handshake, Place
//! server       TLS                                      → TlsStream
//! admission    the body, within memory and time; a turn → Whole → Turn
//! api          decode, strictly                         → EvidenceRequest
//! credentials  the seal is ours                         → Opened
//! attest       kinds, secret, form: nothing is spent    → screened
//! api          what the clouds sign with                → Anchors
//! credentials  spent, before the evidence is verified   → Challenge
//! attest       verify, appraise                         → Claims → AttestationResult
//! policy       what that earns                          → Grant
//! machines     whose the instance is, the node's name   → instance → name
//! api          somebody waits for it still              → given
//! attest-log   one line, durable                        → Recorded<Response>
//! api          only from a Recorded                     → Response
//! ```
//!
//! What the node takes away is a ticket, the grant under the [`credentials`]' seal. With it, a token or a certificate it comes again, and [`pools`] give
//! a config for a grant only.
//!
//! What there is to serve comes another way: [`attest_ignition`] makes configs of files, or of what another server says;
//! [`pools`] holds them, and changes one pool at a time, whole.
//!
//! What must survive a crash or be seen by other replicas is in the store ([`attest_store`]); everything else a request needs it carries itself, under
//! the seal ([`credentials`]).

pub mod admission;
pub mod api;
pub mod certificates;
pub mod cloud;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod credentials;
pub mod inspection;
pub mod machines;
pub mod manifests;
pub mod metrics;
pub mod network;
pub mod pki;
pub mod pointers;
pub mod policy;
pub mod pools;
pub mod probe;
pub mod proposal;
pub mod recording;
pub mod replay;
pub mod secret_manifest;
pub mod server;
pub mod settings;
pub mod watch;
