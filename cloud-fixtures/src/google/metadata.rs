//! The metadata server, <http://metadata.google.internal>.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use super::{GoogleInstance, StandInKeys};
use crate::clock::StandInClock;
use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};

struct GoogleMetadataState {
    instance: Mutex<GoogleInstance>,
    user_data: Mutex<Option<Vec<u8>>>,
    keys: Arc<StandInKeys>,
    clock: StandInClock,
}

/// Speaks the protocol of Google's metadata server to one instance.
pub struct GoogleMetadataServer {
    server: TestServer,
    state: Arc<GoogleMetadataState>,
}

impl Deref for GoogleMetadataServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl GoogleMetadataServer {
    /// Starts one on a port of its own.
    #[must_use]
    pub fn start(instance: GoogleInstance, keys: Arc<StandInKeys>) -> Self {
        Self::start_at(loopback(), instance, keys)
    }

    /// Starts one at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, instance: GoogleInstance, keys: Arc<StandInKeys>) -> Self {
        let state = Arc::new(GoogleMetadataState {
            instance: Mutex::new(instance),
            user_data: Mutex::default(),
            keys,
            clock: StandInClock::system(),
        });
        let server = TestServer::start(address, None, {
            let state = state.clone();
            move |request| state.answer(request)
        });
        Self { server, state }
    }

    /// Sets the instance's attribute `user-data`.
    pub fn set_user_data(&self, user_data: Option<&[u8]>) {
        *self.state.user_data.lock().unwrap() = user_data.map(<[u8]>::to_vec);
    }

    /// Makes it another instance.
    pub fn change_instance(&self, change: impl FnOnce(&mut GoogleInstance)) {
        change(&mut self.state.instance.lock().unwrap());
    }

    /// Returns the clock that dates its identity tokens.
    #[must_use]
    pub fn clock(&self) -> &StandInClock {
        &self.state.clock
    }
}

impl GoogleMetadataState {
    fn answer(&self, request: &HttpRequest) -> ServerAnswer {
        let answer = self.unmarked(request);
        // How programs tell that it is Google's.
        answer.with("metadata-flavor", "Google").with("server", "Metadata Server for VM")
    }

    fn unmarked(&self, request: &HttpRequest) -> ServerAnswer {
        if request.header("x-forwarded-for").is_some() {
            return refused(403, "Requests that were forwarded are not answered.");
        }
        if request.method != "GET" {
            return refused(405, "Only GET is answered.");
        }
        let Some(path) = request.path().strip_prefix("/computeMetadata/v1/") else {
            return if request.path() == "/" {
                text("computeMetadata/\n")
            } else {
                not_found()
            };
        };
        if request.header("metadata-flavor") != Some("Google") {
            return refused(403, "Missing required header \"Metadata-Flavor\": \"Google\".");
        }
        let instance = self.instance.lock().unwrap().clone();
        match path {
            "" => text("instance/\noslogin/\nproject/\n"),
            "instance/attributes/user-data" => match &*self.user_data.lock().unwrap() {
                Some(data) => ServerAnswer::new(200, "application/text", data.clone()),
                None => not_found(),
            },
            "instance/id" => text(instance.instance_id.to_string()),
            "instance/name" => text(instance.instance_name),
            "instance/zone" => text(format!("projects/{}/zones/{}", instance.project_number, instance.zone)),
            "instance/service-accounts/default/email" => text(instance.service_account),
            "project/project-id" => text(instance.project_id),
            "project/numeric-project-id" => text(instance.project_number.to_string()),
            _ => {
                let account = path
                    .strip_prefix("instance/service-accounts/")
                    .and_then(|rest| rest.strip_suffix("/identity"));
                match account {
                    Some(account) if account == "default" || account == instance.service_account => self.identity(request, &instance),
                    _ => not_found(),
                }
            }
        }
    }

    fn identity(&self, request: &HttpRequest, instance: &GoogleInstance) -> ServerAnswer {
        let Some(audience) = request.parameter("audience").filter(|audience| !audience.is_empty()) else {
            return refused(400, "non-empty audience parameter required");
        };
        let now = self.clock.now();
        let claims = match request.parameter("format").as_deref() {
            None | Some("standard") => instance.standard_claims(&audience, now),
            Some("full") => {
                let mut claims = instance.claims(&audience, now);
                let licenses = request.parameter("licenses");
                if !licenses.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
                    claims["google"]["compute_engine"].as_object_mut().unwrap().remove("license_id");
                }
                claims
            }
            Some(_) => return refused(400, "format must be one of standard, full"),
        };
        ServerAnswer::new(200, "text/html", self.keys.current().sign(&claims))
    }
}

fn text(text: impl Into<String>) -> ServerAnswer {
    ServerAnswer::new(200, "application/text", text.into())
}

fn refused(status: u16, why: &str) -> ServerAnswer {
    ServerAnswer::new(status, "text/html; charset=UTF-8", format!("<!DOCTYPE html><p>{why}</p>\n"))
}

fn not_found() -> ServerAnswer {
    refused(404, "The requested URL was not found on this server.")
}
