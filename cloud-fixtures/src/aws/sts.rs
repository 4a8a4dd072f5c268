//! STS of one region: it verifies signatures itself, and returns the caller's identity.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::session::{BODY, RoleSession, sts_host};
use super::sigv4::{ALGORITHM, SigV4Request};
use crate::clock::{StandInClock, compact};
use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};
use crate::tls::TestCa;

/// Maximum difference of the time of signing from AWS's.
pub const SKEW_SECONDS: u64 = 15 * 60;

struct StsState {
    region: String,
    sessions: Mutex<Vec<RoleSession>>,
    change: Mutex<Option<Box<StsChange>>>,
    clock: StandInClock,
}

type StsChange = dyn Fn(&mut Value) + Send;

/// A region's STS over TLS, with a CA of its own.
pub struct StsServer {
    server: TestServer,
    state: Arc<StsState>,
    ca_pem: String,
}

impl Deref for StsServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl StsServer {
    /// Starts a server on a port of its own. It knows the credentials of these sessions.
    #[must_use]
    pub fn start(region: &str, sessions: Vec<RoleSession>) -> Self {
        Self::start_at(loopback(), region, sessions)
    }

    /// Starts a server at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, region: &str, sessions: Vec<RoleSession>) -> Self {
        let ca = TestCa::new("Stand-in CA");
        let state = Arc::new(StsState {
            region: region.to_owned(),
            sessions: Mutex::new(sessions),
            change: Mutex::default(),
            clock: StandInClock::system(),
        });
        let server = TestServer::start(address, Some(ca.server(&[&sts_host(region)])), {
            let state = state.clone();
            move |request| state.answer(request)
        });
        Self {
            server,
            state,
            ca_pem: ca.pem(),
        }
    }

    /// Returns the CA of its certificate.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Adds a session whose credentials it knows.
    pub fn add(&self, session: RoleSession) {
        self.state.sessions.lock().unwrap().push(session);
    }

    /// Alters its answers: the object with `Account`, `Arn` and `UserId`.
    pub fn change_answers(&self, change: impl Fn(&mut Value) + Send + 'static) {
        *self.state.change.lock().unwrap() = Some(Box::new(change));
    }

    #[must_use]
    pub fn clock(&self) -> &StandInClock {
        &self.state.clock
    }
}

/// Status, code and message of an error.
type StsRefusal = (u16, &'static str, String);

impl StsState {
    fn answer(&self, request: &HttpRequest) -> ServerAnswer {
        let json = request.header("accept") == Some("application/json");
        let id = "01234567-89ab-cdef-0123-456789abcdef";
        let (status, body) = match self.caller(request) {
            Ok(mut caller) => {
                if let Some(change) = &*self.change.lock().unwrap() {
                    change(&mut caller);
                }
                let body = if json {
                    json!({"GetCallerIdentityResponse": {"GetCallerIdentityResult": caller, "ResponseMetadata": {"RequestId": id}}})
                        .to_string()
                } else {
                    let field = |name: &str| format!("<{name}>{}</{name}>", caller[name].as_str().unwrap_or_default());
                    format!(
                        "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult>{}{}{}\
                         </GetCallerIdentityResult></GetCallerIdentityResponse>",
                        field("Arn"),
                        field("UserId"),
                        field("Account")
                    )
                };
                (200, body)
            }
            Err((status, code, message)) => {
                let body = if json {
                    json!({"Error": {"Code": code, "Message": message, "Type": "Sender"}, "RequestId": id}).to_string()
                } else {
                    format!(
                        "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
                    )
                };
                (status, body)
            }
        };
        let content_type = if json { "application/json" } else { "text/xml" };
        ServerAnswer::new(status, content_type, body).with("x-amzn-requestid", id)
    }

    fn caller(&self, request: &HttpRequest) -> Result<Value, StsRefusal> {
        let refused = |code, message: &str| Err((403, code, message.to_owned()));
        if request.host() != sts_host(&self.region) {
            return Err((404, "NotFound", format!("{} is not here", request.host())));
        }
        if (request.method.as_str(), request.target.as_str(), request.body.as_slice()) != ("POST", "/", BODY.as_bytes()) {
            return Err((
                400,
                "InvalidAction",
                "This stand-in knows GetCallerIdentity by POST only".to_owned(),
            ));
        }
        let Some(authorization) = request.header("authorization") else {
            return refused("MissingAuthenticationToken", "Request is missing Authentication Token");
        };
        let incomplete = || {
            let message = "Authorization header requires 'Credential', 'SignedHeaders' and 'Signature'";
            (403, "IncompleteSignature", message.to_owned())
        };
        let authorization = Authorization::parse(authorization).ok_or_else(incomplete)?;
        let date = request.header("x-amz-date").ok_or_else(incomplete)?;

        let sessions = self.sessions.lock().unwrap();
        let known = |session: &&RoleSession| session.access_key_id == authorization.access_key_id;
        let session = sessions.iter().find(known);
        let Some(session) = session.filter(|session| request.header("x-amz-security-token") == Some(&session.token)) else {
            return refused("InvalidClientTokenId", "The security token included in the request is invalid");
        };

        let mut headers = Vec::new();
        for name in authorization.signed_headers.split(';') {
            let values: Vec<&str> = request
                .headers
                .iter()
                .filter(|(found, _)| found == name)
                .map(|(_, value)| value.as_str())
                .collect();
            headers.push((name.to_owned(), values.join(",")));
        }
        // AWS wants these signed, whatever else is.
        let signed = |name: &str| headers.iter().any(|(found, _)| found == name);
        let must_be_signed = |name: &str| name == "host" || name.starts_with("x-amz-");
        if let Some((name, _)) = request.headers.iter().find(|(name, _)| must_be_signed(name) && !signed(name)) {
            return Err((403, "SignatureDoesNotMatch", format!("'{name}' must be a signed header")));
        }
        let signed = SigV4Request {
            method: &request.method,
            headers: &headers,
            body: &request.body,
            date,
            region: &self.region,
            service: "sts",
        };
        if signed.scope() != authorization.scope {
            return refused("SignatureDoesNotMatch", "Credential should be scoped to a valid region");
        }
        if signed.signature(&session.secret_access_key) != authorization.signature {
            return refused("SignatureDoesNotMatch", "The request signature we calculated does not match");
        }
        // Times of this form are in order as texts.
        let now = self.clock.now();
        if date < compact(now - SKEW_SECONDS).as_str() || date > compact(now + SKEW_SECONDS).as_str() {
            return refused("SignatureDoesNotMatch", "Signature expired, or not yet current");
        }
        if session.expires < now {
            return refused("ExpiredToken", "The security token included in the request is expired");
        }
        Ok(json!({"Account": session.account, "Arn": session.arn, "UserId": session.user_id}))
    }
}

struct Authorization<'a> {
    access_key_id: &'a str,
    scope: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

impl<'a> Authorization<'a> {
    fn parse(header: &'a str) -> Option<Self> {
        let parts = header.strip_prefix(ALGORITHM)?;
        let part = |name: &str| {
            let mut parts = parts.split(',').map(str::trim);
            parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
        };
        let (access_key_id, scope) = part("Credential")?.split_once('/')?;
        Some(Self {
            access_key_id,
            scope,
            signed_headers: part("SignedHeaders")?,
            signature: part("Signature")?,
        })
    }
}
