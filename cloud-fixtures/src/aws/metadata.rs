//! The instance metadata service, version 2 only: <http://169.254.169.254>.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use data_encoding::BASE64;

use super::legacy_documents::WeakAuthority;
use super::{AwsInstance, RegionAuthority, RoleSession};
use crate::clock::StandInClock;
use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};

/// Allowed lifetimes of an IMDSv2 token, in seconds.
const TTL_SECONDS: std::ops::RangeInclusive<u64> = 1..=21600;

struct AwsMetadataState {
    instance: Mutex<AwsInstance>,
    user_data: Mutex<Option<Vec<u8>>>,
    authority: Arc<RegionAuthority>,
    weak: Mutex<Option<WeakAuthority>>,
    session: Mutex<Option<RoleSession>>,
    /// Tokens, each with its expiry in seconds since 1970.
    tokens: Mutex<BTreeMap<String, u64>>,
    clock: StandInClock,
}

/// A metadata service for one instance, by IMDSv2.
pub struct AwsMetadataServer {
    server: TestServer,
    state: Arc<AwsMetadataState>,
}

impl Deref for AwsMetadataServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl AwsMetadataServer {
    /// Starts a server on a port of its own. Without a session the instance has no profile.
    #[must_use]
    pub fn start(instance: AwsInstance, authority: Arc<RegionAuthority>, session: Option<RoleSession>) -> Self {
        Self::start_at(loopback(), instance, authority, session)
    }

    /// Starts a server at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, instance: AwsInstance, authority: Arc<RegionAuthority>, session: Option<RoleSession>) -> Self {
        let state = Arc::new(AwsMetadataState {
            instance: Mutex::new(instance),
            user_data: Mutex::default(),
            authority,
            weak: Mutex::default(),
            session: Mutex::new(session),
            tokens: Mutex::default(),
            clock: StandInClock::system(),
        });
        let server = TestServer::start(address, None, {
            let state = state.clone();
            move |request| state.answer(request)
        });
        Self { server, state }
    }

    /// Sets the instance's user data.
    pub fn set_user_data(&self, user_data: Option<&[u8]>) {
        *self.state.user_data.lock().unwrap() = user_data.map(<[u8]>::to_vec);
    }

    /// Changes the facts about the instance.
    pub fn change_instance(&self, change: impl FnOnce(&mut AwsInstance)) {
        change(&mut self.state.instance.lock().unwrap());
    }

    /// Sets or removes the instance's profile.
    pub fn set_session(&self, session: Option<RoleSession>) {
        *self.state.session.lock().unwrap() = session;
    }

    /// Returns the clock by which its tokens expire.
    #[must_use]
    pub fn clock(&self) -> &StandInClock {
        &self.state.clock
    }
}

impl AwsMetadataState {
    fn answer(&self, request: &HttpRequest) -> ServerAnswer {
        self.unmarked(request).with("server", "EC2ws")
    }

    fn unmarked(&self, request: &HttpRequest) -> ServerAnswer {
        match (request.method.as_str(), request.path()) {
            ("PUT", "/latest/api/token") => self.token(request),
            ("GET", path) => {
                let token = request.header("x-aws-ec2-metadata-token").unwrap_or_default();
                let holds = self.tokens.lock().unwrap().get(token).is_some_and(|end| self.clock.now() < *end);
                if !holds {
                    return refused(401, "Unauthorized");
                }
                // The newest and every dated version are the same here.
                match path.trim_start_matches('/').split_once('/') {
                    Some((version, rest)) if is_version(version) => self.metadata(rest),
                    _ => refused(404, "Not Found"),
                }
            }
            _ => refused(405, "Method Not Allowed"),
        }
    }

    fn token(&self, request: &HttpRequest) -> ServerAnswer {
        if request.header("x-forwarded-for").is_some() {
            return refused(403, "Forbidden");
        }
        let ttl = request.header("x-aws-ec2-metadata-token-ttl-seconds");
        let Some(ttl) = ttl.and_then(|ttl| ttl.parse().ok()).filter(|ttl| TTL_SECONDS.contains(ttl)) else {
            return refused(400, "Bad Request");
        };
        let token = BASE64.encode(&crate::random::<42>());
        self.tokens.lock().unwrap().insert(token.clone(), self.clock.now() + ttl);
        text(token).with("x-aws-ec2-metadata-token-ttl-seconds", &ttl.to_string())
    }

    fn metadata(&self, path: &str) -> ServerAnswer {
        let instance = self.instance.lock().unwrap().clone();
        let session = self.session.lock().unwrap().clone();
        let document = RegionAuthority::text(&instance.identity_document());
        match (path, session) {
            ("user-data", _) => match &*self.user_data.lock().unwrap() {
                Some(data) => ServerAnswer::new(200, "application/octet-stream", data.clone()),
                None => refused(404, "Not Found"),
            },
            ("dynamic/instance-identity/document", _) => text(document),
            ("dynamic/instance-identity/rsa2048", _) => text(self.authority.sign_text(&document)),
            ("dynamic/instance-identity/pkcs7", _) => text(self.weak(|weak| weak.dsa(document.as_bytes()))),
            ("dynamic/instance-identity/signature", _) => text(self.weak(|weak| weak.signature(document.as_bytes()))),
            ("meta-data/instance-id", _) => text(instance.instance_id),
            ("meta-data/ami-id", _) => text(instance.image_id),
            ("meta-data/instance-type", _) => text(instance.instance_type),
            ("meta-data/local-ipv4", _) => text(instance.private_ip),
            ("meta-data/placement/region", _) => text(instance.region),
            ("meta-data/placement/availability-zone", _) => text(instance.availability_zone),
            ("meta-data/iam/security-credentials/" | "meta-data/iam/security-credentials", Some(session)) => text(session.role),
            (path, Some(session)) if path.strip_prefix("meta-data/iam/security-credentials/") == Some(&session.role) => {
                text(serde_json::to_string_pretty(&session.credentials()).unwrap())
            }
            _ => refused(404, "Not Found"),
        }
    }

    /// Signs with the weak authority, which is created at its first use, because no client of this project needs it.
    fn weak(&self, sign: impl FnOnce(&WeakAuthority) -> String) -> String {
        sign(self.weak.lock().unwrap().get_or_insert_default())
    }
}

fn is_version(version: &str) -> bool {
    version == "latest" || version == "1.0" || version.len() == 10 && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn text(text: impl Into<String>) -> ServerAnswer {
    ServerAnswer::new(200, "text/plain", text.into())
}

fn refused(status: u16, what: &str) -> ServerAnswer {
    let body = format!("<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html><body><h1>{status} - {what}</h1></body></html>\n");
    ServerAnswer::new(status, "text/html", body)
}
