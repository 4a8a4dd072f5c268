//! AWS STS, GetCallerIdentity: the node signs a request with its role's credentials, the gateway sends it, and AWS answers whose
//! credentials they are.
//!
//! **Proves**: that the sender holds, now, credentials of an instance profile's role in an account, and for which instance AWS
//! has issued them.
//!
//! **Does not prove**: that the sender is that instance. Any process that reads the credentials there can sign. A principal that may assume
//! the role by other means can choose the name of the session, which names the instance. So the role's trust policy must name only
//! `ec2.amazonaws.com`. The measured boot is not covered.
//!
//! **Freshness**: the request has a signed header of our own, [`SERVER_ID_HEADER`], that holds what binds it to the challenge's
//! nonce, the purpose, the pool and the gateway's key; and it is signed within [`DATE_SKEW_LIMIT_SECONDS`] of the gateway's clock.
//!
//! The danger is the call itself: it must go to AWS and nowhere else, and ask what we mean to ask. So nothing of the node's
//! request is forwarded that was not compared with the one request that is accepted ([`check`]). The HTTP call is built from a
//! [`CheckedRequest`], which only [`check`] makes: POST, no redirects, the caller's own TLS roots.

mod answer;
mod document;
mod error;
mod kind;
mod request;
mod rules;
mod time;

/// Values that a request must be bound to.
pub use crate::nonce::EvidenceBinding as Expected;

pub use answer::{ANSWER_LIMIT_BYTES, StsResponse, verify_answer};
pub use attest_wire::aws::sts::{
    BODY, SECURITY_TOKEN_LIMIT_BYTES, SERVER_ID_HEADER, SIGNED_HEADERS, SignedHeader, SignedRequest, Sts, StsEvidence, expected_server_id,
};
pub use document::{Caller, VerifiedSts};
pub use error::{ADVICE, StsError};
pub use kind::StsCall;
pub use request::{CheckedRequest, DATE_SKEW_LIMIT_SECONDS, check};
pub use rules::{StsRules, StsRulesError, appraise};
