//! The Instance Metadata Service, <http://169.254.169.254/metadata>.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use data_encoding::BASE64;
use serde_json::{Value, json};

use super::{AzureAuthority, AzureMachine};
use crate::clock::StandInClock;
use crate::server::{HttpRequest, ServerAnswer, TestServer, loopback};

/// Supported versions of the API, the newest first.
const VERSIONS: [&str; 7] = [
    "2023-07-01",
    "2021-12-13",
    "2021-02-01",
    "2021-01-01",
    "2020-09-01",
    "2019-06-01",
    "2018-10-01",
];

/// Maximum length of a nonce, which has letters and digits: `nonce` of `Attested_GetDocument` in Microsoft's `imds.json`
/// (Azure/azure-rest-api-specs, `specification/imds/data-plane/InstanceMetadataService/stable/2021-01-01`). SPIRE uses 32 of them
/// (spiffe/spire, `pkg/server/plugin/nodeattestor/azureimds/imds.go`).
const NONCE_LIMIT_CHARACTERS: usize = 32;

struct AzureMetadataState {
    machine: Mutex<AzureMachine>,
    user_data: Mutex<Option<Vec<u8>>>,
    authority: Mutex<Arc<AzureAuthority>>,
    /// The document that is returned repeatedly, with any nonce; set by the first request.
    repeated: Mutex<Option<Option<Value>>>,
    clock: StandInClock,
}

/// A metadata service for one machine, by IMDS's protocol.
pub struct AzureMetadataServer {
    server: TestServer,
    state: Arc<AzureMetadataState>,
}

impl Deref for AzureMetadataServer {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl AzureMetadataServer {
    /// Starts a server on a port of its own.
    #[must_use]
    pub fn start(machine: AzureMachine, authority: Arc<AzureAuthority>) -> Self {
        Self::start_at(loopback(), machine, authority)
    }

    /// Starts a server at an address.
    #[must_use]
    pub fn start_at(address: SocketAddr, machine: AzureMachine, authority: Arc<AzureAuthority>) -> Self {
        let state = Arc::new(AzureMetadataState {
            machine: Mutex::new(machine),
            user_data: Mutex::default(),
            authority: Mutex::new(authority),
            repeated: Mutex::default(),
            clock: StandInClock::system(),
        });
        let server = TestServer::start(address, None, {
            let state = state.clone();
            move |request| state.answer(request)
        });
        Self { server, state }
    }

    /// Sets the machine's user data. IMDS returns it in Base64.
    pub fn set_user_data(&self, user_data: Option<&[u8]>) {
        *self.state.user_data.lock().unwrap() = user_data.map(<[u8]>::to_vec);
    }

    /// Changes the facts about the machine.
    pub fn change_machine(&self, change: impl FnOnce(&mut AzureMachine)) {
        change(&mut self.state.machine.lock().unwrap());
    }

    /// Replaces the authority that signs.
    pub fn set_authority(&self, authority: Arc<AzureAuthority>) {
        *self.state.authority.lock().unwrap() = authority;
    }

    /// Sets whether it returns the next document repeatedly, with any nonce, like Azure's does for some seconds.
    pub fn set_repeating(&self, repeating: bool) {
        *self.state.repeated.lock().unwrap() = repeating.then_some(None);
    }

    /// Returns the clock that dates its documents.
    #[must_use]
    pub fn clock(&self) -> &StandInClock {
        &self.state.clock
    }
}

impl AzureMetadataState {
    fn answer(&self, request: &HttpRequest) -> ServerAnswer {
        self.unmarked(request).with("server", "IMDS/150.870.65.1854")
    }

    fn unmarked(&self, request: &HttpRequest) -> ServerAnswer {
        let Some(path) = request.path().strip_prefix("/metadata/") else {
            return refused(404, json!({"error": "Not found"}));
        };
        if request.header("metadata") != Some("true") || request.header("x-forwarded-for").is_some() {
            return refused(
                400,
                json!({"error": "Bad request. Required metadata header not specified or not correct"}),
            );
        }
        let versions = VERSIONS.iter().take(3).collect::<Vec<_>>();
        match request.parameter("api-version").as_deref() {
            None => {
                let error = "Bad request. api-version was not specified in the request";
                return refused(400, json!({"error": error, "newest-versions": versions}));
            }
            Some(version) if !VERSIONS.contains(&version) => {
                let error = "Bad request. api-version is invalid or was not specified in the request.";
                return refused(400, json!({"error": error, "newest-versions": versions}));
            }
            Some(_) => {}
        }
        if request.method != "GET" {
            return refused(405, json!({"error": "Method not allowed"}));
        }
        match path.trim_end_matches('/') {
            "attested/document" => self.attested(request),
            "instance" => json_answer(&self.instance()),
            path => match path.strip_prefix("instance/") {
                Some(path) => instance_part(&self.instance(), path, request.parameter("format").as_deref()),
                None => refused(404, json!({"error": "Not found"})),
            },
        }
    }

    fn instance(&self) -> Value {
        let machine = self.machine.lock().unwrap().clone();
        let user_data = self.user_data.lock().unwrap().clone().unwrap_or_default();
        json!({
            "compute": {
                "azEnvironment": "AzurePublicCloud",
                "customData": "",
                "location": machine.location,
                "name": machine.name,
                "osType": "Linux",
                "resourceGroupName": machine.resource_group,
                "sku": machine.sku,
                "subscriptionId": machine.subscription_id,
                "userData": BASE64.encode(&user_data),
                "vmId": machine.vm_id,
                "vmSize": "Standard_D2s_v5",
            },
            "network": {"interface": []},
        })
    }

    fn attested(&self, request: &HttpRequest) -> ServerAnswer {
        let nonce = request.parameter("nonce");
        if let Some(nonce) = &nonce
            && !((1..=NONCE_LIMIT_CHARACTERS).contains(&nonce.len()) && nonce.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        {
            return refused(
                400,
                json!({"error": "Bad request. nonce has to be up to 32 alphanumeric characters"}),
            );
        }
        let fresh = || self.machine.lock().unwrap().document(nonce.as_deref(), self.clock.now());
        let document = match &mut *self.repeated.lock().unwrap() {
            None => fresh(),
            Some(repeated) => repeated.get_or_insert_with(fresh).clone(),
        };
        let signature = self.authority.lock().unwrap().sign(&document);
        json_answer(&json!({"encoding": "pkcs7", "signature": signature}))
    }
}

/// Returns a part of the instance: objects as JSON, single values as text, if the format is text.
fn instance_part(instance: &Value, path: &str, format: Option<&str>) -> ServerAnswer {
    match (instance.pointer(&format!("/{path}")), format) {
        (None, _) => refused(404, json!({"error": "Not found"})),
        (Some(Value::String(value)), Some("text")) => ServerAnswer::new(200, "text/plain; charset=utf-8", value.as_str()),
        (Some(part @ (Value::Object(_) | Value::Array(_))), None | Some("json")) => json_answer(part),
        _ => refused(400, json!({"error": "Bad request. The format is not supported for this"})),
    }
}

fn json_answer(value: &Value) -> ServerAnswer {
    ServerAnswer::new(200, "application/json; charset=utf-8", value.to_string())
}

fn refused(status: u16, error: Value) -> ServerAnswer {
    ServerAnswer::new(status, "application/json; charset=utf-8", error.to_string())
}
