//! The attestation gateway: Verifier and Relying Party (RFC 9334) in front of Ignition configs.
//!
//! One request's way through the house:
//!
//! ```text
//! server    accept, limits, TLS              TcpStream → TlsStream → request
//! api       decode, bounded                  → EvidenceRequest
//! challenges  open the seal, spend           → Challenge            (attest)
//!           attest::verify                   → Claims               (attest)
//! machines  the node's name                  → name
//!           attest::appraise                 → AttestationResult    (attest)
//! policy    what that earns                  → Grant
//! tickets   the right, sealed                → ticket               later: ticket → Grant again
//! pools     only with a Grant                → RenderedConfig
//! audit     one line, durable                → Recorded<Outcome>
//! api       only from a Recorded<Outcome>    → Response
//! ```
//!
//! What there is to serve comes another way: [`machine_config`] and [`ignition`] make configs of files, or of what another server says;
//! [`pools`] holds them, and changes one pool at a time, whole.
//!
//! What must survive a crash or be seen by other replicas is in [`store`]; everything else a request needs it carries itself, under
//! the seal ([`credentials`]).

pub mod admission;
pub mod api;
pub mod audit;
mod causes;
pub mod certificates;
pub mod clock;
pub mod cloud;
pub mod credentials;
pub mod files;
pub mod ignition;
pub mod inspection;
pub mod machine_config;
pub mod machines;
pub mod metrics;
pub mod pki;
pub mod pointers;
pub mod policy;
pub mod pools;
pub mod probe;
pub mod secret_manifest;
pub mod server;
pub mod settings;
pub mod store;
pub mod watch;
