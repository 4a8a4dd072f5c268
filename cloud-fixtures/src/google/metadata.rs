//! The metadata server, <http://metadata.google.internal>.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use super::{Instance, Keys};
use crate::clock::Clock;
use crate::server::{Answer, Request, Server, loopback};

struct State {
    instance: Mutex<Instance>,
    user_data: Mutex<Option<Vec<u8>>>,
    keys: Arc<Keys>,
    clock: Clock,
}

/// Speaks the protocol of Google's metadata server to one instance.
pub struct MetadataServer {
    server: Server,
    state: Arc<State>,
}

impl Deref for MetadataServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl MetadataServer {
    /// Starts one on a port of its own.
    #[must_use]
    pub fn start(instance: Instance, keys: Arc<Keys>) -> Self {
        Self::start_at(loopback(), instance, keys)
    }

    /// Starts one at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, instance: Instance, keys: Arc<Keys>) -> Self {
        let state = Arc::new(State {
            instance: Mutex::new(instance),
            user_data: Mutex::default(),
            keys,
            clock: Clock::system(),
        });
        let server = Server::start(address, None, {
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
    pub fn change_instance(&self, change: impl FnOnce(&mut Instance)) {
        change(&mut self.state.instance.lock().unwrap());
    }

    /// Returns the clock that dates its identity tokens.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.state.clock
    }
}

impl State {
    fn answer(&self, request: &Request) -> Answer {
        let answer = self.unmarked(request);
        // How programs tell that it is Google's.
        answer.with("metadata-flavor", "Google").with("server", "Metadata Server for VM")
    }

    fn unmarked(&self, request: &Request) -> Answer {
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
                Some(data) => Answer::new(200, "application/text", data.clone()),
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

    fn identity(&self, request: &Request, instance: &Instance) -> Answer {
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
        Answer::new(200, "text/html", self.keys.current().sign(&claims))
    }
}

fn text(text: impl Into<String>) -> Answer {
    Answer::new(200, "application/text", text.into())
}

fn refused(status: u16, why: &str) -> Answer {
    Answer::new(status, "text/html; charset=UTF-8", format!("<!DOCTYPE html><p>{why}</p>\n"))
}

fn not_found() -> Answer {
    refused(404, "The requested URL was not found on this server.")
}
