//! OpenStack's metadata service: the OpenStack API, without the EC2-compatible one.
//!
//! Paths are those of Nova's documentation (<https://docs.openstack.org/nova/latest/user/metadata.html>), statuses those of its request
//! handler (`nova/api/metadata/handler.py` in <https://github.com/openstack/nova>).

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};

/// Versions of the API; all give the same.
const VERSIONS: [&str; 3] = ["2017-02-22", "2018-08-27", "latest"];

/// Metadata service of one instance.
pub struct OpenStackMetadataServer {
    server: TestServer,
    user_data: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Deref for OpenStackMetadataServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl OpenStackMetadataServer {
    /// Starts one on a port of its own.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at(loopback())
    }

    /// Starts one at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr) -> Self {
        let user_data = Arc::<Mutex<Option<Vec<u8>>>>::default();
        let server = TestServer::start(address, None, {
            let user_data = user_data.clone();
            move |request| answer(request, user_data.lock().unwrap().as_deref())
        });
        Self { server, user_data }
    }

    /// Sets the instance's user data.
    pub fn set_user_data(&self, user_data: Option<&[u8]>) {
        *self.user_data.lock().unwrap() = user_data.map(<[u8]>::to_vec);
    }
}

fn answer(request: &HttpRequest, user_data: Option<&[u8]>) -> ServerAnswer {
    let text = |text: String| ServerAnswer::new(200, "text/plain; charset=UTF-8", text);
    let path = request.path().trim_end_matches('/');
    let file = path
        .strip_prefix("/openstack")
        .map(|rest| rest.trim_start_matches('/').split_once('/'));
    match (path, file) {
        ("/openstack", _) => text(VERSIONS.join("\n")),
        (_, Some(Some((version, "meta_data.json")))) if VERSIONS.contains(&version) => ServerAnswer::new(
            200,
            "application/json",
            "{\"uuid\": \"d8e02d56-2648-49a3-bf97-6be8f1204f38\", \"name\": \"worker-0\"}",
        ),
        (_, Some(Some((version, "user_data")))) if VERSIONS.contains(&version) => match user_data {
            Some(data) => ServerAnswer::new(200, "application/octet-stream", data.to_vec()),
            None => not_found(),
        },
        _ => not_found(),
    }
}

fn not_found() -> ServerAnswer {
    ServerAnswer::new(404, "text/html; charset=UTF-8", "<html><title>404 Not Found</title></html>\n")
}
