//! Handling of requests to the API.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use hyper::body::{Body as _, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::custom_resources;
use super::kinds::{ResourceKind, SIGNERS, discovery};
use super::objects::{ObjectKey, ObjectStore, Page};
use super::rights::{AccessRequest, ApiUser, authorize};
use super::selectors::ObjectSelector;
use super::status::ApiStatus;
use super::watch::{self, Watch};
use super::{ApiState, Disturbance, Mishap, locked};
use crate::listener::Listener;

/// Largest body: twice what an API server takes.
const BODY_LIMIT_BYTES: usize = 6 * 1024 * 1024;

/// A request to the API, with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRequest {
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    /// Plural name with the subresource, such as `machineconfigpools/status`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// The query as it was sent.
    pub query: String,
    /// Size of its body, in bytes.
    pub bytes: usize,
    /// Status of the response.
    pub status: u16,
    /// Size of the response, in bytes; 0 for a watch, which has no end.
    pub answered_bytes: usize,
}

/// The parts of a path.
struct ResourcePath {
    kind: ResourceKind,
    namespace: String,
    name: String,
    part: Option<String>,
}

pub(super) fn start(address: SocketAddr, tls: Arc<ServerConfig>, shared: Arc<ApiState>) -> Listener {
    let acceptor = TlsAcceptor::from(tls);
    Listener::start(address, move |stream| connection(acceptor.clone(), stream, Arc::clone(&shared)))
}

/// Serves a connection. Errors of the client end the connection, and nothing else.
async fn connection(acceptor: TlsAcceptor, stream: TcpStream, shared: Arc<ApiState>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { answer(shared, request).await.ok_or_else(|| io::Error::other("the test cuts it")) }
    });
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

/// Returns the response; `None` if the connection is to be cut.
async fn answer(shared: Arc<ApiState>, request: Request<Incoming>) -> Option<Response<Body>> {
    let mut recovered = shared.recovered.subscribe();
    let wrong = *locked(&shared.disturbance);
    match wrong {
        Some(Disturbance::Silent | Disturbance::Down) => {
            drop(recovered.changed().await);
            return None;
        }
        Some(Disturbance::Status(code)) => return Some(refused(&ApiStatus::from_code(code))),
        None => {}
    }
    let (head, body) = request.into_parts();
    let body = to_bytes(Body::new(body), BODY_LIMIT_BYTES).await;
    let header = |name| {
        head.headers
            .get(name)
            .and_then(|value: &hyper::header::HeaderValue| value.to_str().ok())
    };
    let user = match locked(&shared.rights).user(header(AUTHORIZATION)) {
        Ok(user) => user,
        Err(status) => return Some(refused(&status)),
    };
    if let Some(found) = discovery(head.uri.path(), &locked(&shared.objects)) {
        return Some(json_response(200, &found));
    }
    let Some(place) = place(head.uri.path()) else {
        return Some(refused(&ApiStatus::no_such_path()));
    };
    let query = head.uri.query().unwrap_or_default().to_owned();
    let Some(verb) = verb(&head.method, &place, &parameter(&query, "watch")) else {
        return Some(refused(&ApiStatus::method_not_allowed()));
    };
    let media_type = header(CONTENT_TYPE)
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .to_owned();
    let bytes = body.as_ref().map_or(0, |body| body.len());
    let result = match body {
        Err(_) => Err(ApiStatus::bad_request("the request's body is too large")),
        Ok(body) if body.is_empty() => Ok(Value::Null),
        Ok(_) if media_type.contains("protobuf") => Err(ApiStatus::media_type()),
        Ok(body) => serde_json::from_slice(&body).map_err(|error| ApiStatus::bad_request(format!("the body is no JSON: {error}"))),
    };
    let agent = header(USER_AGENT).unwrap_or_default().to_owned();
    let request = Wants {
        user: &user,
        verb,
        place: &place,
        query: &query,
        media_type: &media_type,
        form: ObjectDetail::from_accept(header(ACCEPT).unwrap_or_default()),
        agent: &agent,
    };
    let is_write = !matches!(verb, "get" | "list" | "watch");
    let mishap = if is_write { locked(&shared.mishaps).pop_front() } else { None };
    let mishap = mishap.filter(|mishap| *mishap != Mishap::None);
    if mishap == Some(Mishap::Late) {
        let mut through = shared.let_through.subscribe();
        through.borrow_and_update();
        let form = request.form;
        if let Ok(body) = result {
            let held = HeldRequest {
                user,
                verb,
                place,
                query,
                media_type,
                form,
                agent,
                body,
            };
            tokio::spawn(late(shared, through, held));
        }
        return None;
    }
    if mishap == Some(Mishap::NotDone) {
        return None;
    }
    let takes = *locked(&shared.takes);
    if is_write && !takes.is_zero() {
        tokio::time::sleep(takes).await;
    }
    let response = match result.and_then(|body| done(&shared, &request, &body)) {
        Ok(response) => response,
        Err(status) => refused(&status),
    };
    let resource = match &place.part {
        Some(part) => format!("{}/{part}", place.kind.plural),
        None => place.kind.plural.to_owned(),
    };
    let status = response.status().as_u16();
    let answered_bytes = usize::try_from(response.body().size_hint().exact().unwrap_or_default()).unwrap();
    let ResourcePath { namespace, name, .. } = place;
    locked(&shared.asked).push(ResourceRequest {
        user: user.name,
        verb,
        resource,
        namespace,
        name,
        query,
        bytes,
        status,
        answered_bytes,
    });
    // Only now: whoever waits for what has changed may look at what was asked.
    if is_write && status < 300 {
        shared.changed();
    }
    shared.answered.send_modify(|answered| *answered += 1);
    mishap.is_none().then_some(response)
}

/// Executes a late write once it is let through.
async fn late(shared: Arc<ApiState>, mut through: tokio::sync::watch::Receiver<u64>, wants: HeldRequest) {
    if through.changed().await.is_ok() {
        let HeldRequest {
            user,
            verb,
            place,
            query,
            media_type,
            form,
            agent,
            body,
        } = wants;
        let request = Wants {
            user: &user,
            verb,
            place: &place,
            query: &query,
            media_type: &media_type,
            form,
            agent: &agent,
        };
        drop(done(&shared, &request, &body));
        shared.changed();
    }
}

/// A write that is done later.
struct HeldRequest {
    user: ApiUser,
    verb: &'static str,
    place: ResourcePath,
    query: String,
    media_type: String,
    form: ObjectDetail,
    agent: String,
    body: Value,
}

struct Wants<'a> {
    user: &'a ApiUser,
    verb: &'static str,
    place: &'a ResourcePath,
    query: &'a str,
    media_type: &'a str,
    form: ObjectDetail,
    /// User agent of the client.
    agent: &'a str,
}

/// Form in which an object is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectDetail {
    Whole,
    Metadata,
    /// For kinds of a CustomResourceDefinition. Others are returned whole, and also the events of watches.
    Table,
}

impl ObjectDetail {
    /// Parses the `Accept` header: the first media type counts. Of the parameters, only `as=PartialObjectMetadata`, `as=Table` and their
    /// lists are supported.
    fn from_accept(accept: &str) -> Self {
        let first = accept.split(',').next().unwrap_or_default();
        if first.contains("as=PartialObjectMetadata") {
            Self::Metadata
        } else if first.contains("as=Table") {
            Self::Table
        } else {
            Self::Whole
        }
    }

    pub(super) fn project(self, object: &Value) -> Value {
        match self {
            Self::Whole | Self::Table => object.clone(),
            Self::Metadata => json!({"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": object["metadata"]}),
        }
    }
}

/// Group of `PartialObjectMetadata` and tables.
const META: &str = "meta.k8s.io/v1";

/// Returns the object of a list or a watch whose selector has one name. Permission for that object suffices then (`NewRequestInfo` in
/// `staging/src/k8s.io/apiserver/pkg/endpoints/request/requestinfo.go`; <https://kubernetes.io/docs/reference/access-authn-authz/rbac/>,
/// "Referring to resources").
fn chosen(wants: &Wants<'_>) -> Option<String> {
    let fields = parameter(wants.query, "fieldSelector");
    let name = fields.strip_prefix("metadata.name=").filter(|name| !name.contains([',', '=']))?;
    ["list", "watch"].contains(&wants.verb).then(|| name.to_owned())
}

fn done(shared: &Arc<ApiState>, wants: &Wants<'_>, body: &Value) -> Result<Response<Body>, ApiStatus> {
    let ResourcePath {
        kind,
        namespace,
        name,
        part,
    } = wants.place;
    let part = part.as_deref();
    let chosen = chosen(wants);
    let wanted = AccessRequest {
        verb: wants.verb,
        kind: *kind,
        subresource: part,
        namespace,
        name: chosen.as_deref().unwrap_or(name),
    };
    let mut objects = locked(&shared.objects);
    authorize(&objects, wants.user, wanted)?;
    if !custom_resources::exists(&objects, *kind) {
        return Err(ApiStatus::no_such_path());
    }
    objects.written_by(manager(wants));
    let is_table = wants.form == ObjectDetail::Table && kind.is_custom();
    if part.is_some_and(|part| !kind.subresources.contains(&part)) {
        return Err(ApiStatus::no_such_path());
    }
    if part == Some("approval") && ["update", "patch"].contains(&wants.verb) {
        admit_approval(&objects, wants.user, *kind, name)?;
    }
    let key: ObjectKey = (*kind, namespace.clone(), name.clone());
    let within = (!namespace.is_empty()).then_some(namespace.as_str());
    let selector = || {
        ObjectSelector::parse(
            *kind,
            &parameter(wants.query, "labelSelector"),
            &parameter(wants.query, "fieldSelector"),
        )
    };
    let object = match wants.verb {
        "list" => {
            // From its cache an API answers with the whole list (kubernetes/kubernetes#70735).
            let is_of_cache = parameter(wants.query, "resourceVersion") == "0";
            let limit = if is_of_cache {
                0
            } else {
                parameter(wants.query, "limit").parse().unwrap_or_default()
            };
            let selector = selector()?;
            let page = objects.list(*kind, within, &selector, limit, from(&parameter(wants.query, "continue"))?)?;
            let list = list(*kind, &page, &selector, wants.form);
            return Ok(match (is_table, list["items"].as_array()) {
                (true, Some(items)) => json_response(200, &custom_resources::table(&objects, *kind, &list["metadata"], items)),
                _ => json_response(200, &list),
            });
        }
        "watch" => {
            let watch = Watch::new(*kind, within, selector()?, (wants.query, wants.form), &objects)?;
            drop(objects);
            return Ok(watch::stream(watch, Arc::clone(shared)));
        }
        "get" => {
            let found = objects
                .get(*kind, namespace, name)
                .ok_or_else(|| ApiStatus::not_found(*kind, name))?;
            if is_table {
                let metadata = json!({"resourceVersion": found["metadata"]["resourceVersion"]});
                return Ok(json_response(
                    200,
                    &custom_resources::table(&objects, *kind, &metadata, std::slice::from_ref(found)),
                ));
            }
            return Ok(json_response(200, &wants.form.project(found)));
        }
        "create" => objects.create(*kind, namespace, body.clone(), wants.user)?,
        "update" => objects.replace(&key, part, body.clone())?,
        "patch" => objects.patch(&key, part, wants.media_type, body, wants.user)?,
        _ => objects.delete(&key, body)?,
    };
    drop(objects);
    if wants.verb == "delete" && object["metadata"]["deletionTimestamp"].is_null() {
        let details = json!({"name": name, "group": kind.group, "kind": kind.plural, "uid": object["metadata"]["uid"]});
        return Ok(json_response(
            200,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
        ));
    }
    Ok(json_response(
        if wants.verb == "create" { 201 } else { 200 },
        &wants.form.project(&object),
    ))
}

/// Returns the field manager that the request names, or else the beginning of its user agent (`managerOrUserAgent` in
/// `staging/src/k8s.io/apiserver/pkg/endpoints/handlers/create.go`).
fn manager(wants: &Wants<'_>) -> String {
    let said = parameter(wants.query, "fieldManager");
    match said.is_empty() {
        true => wants.agent.split('/').next().unwrap_or_default().to_owned(),
        false => said,
    }
}

/// Checks that a user who approves or denies a request has the permission to do so for its signer.
fn admit_approval(objects: &ObjectStore, user: &ApiUser, kind: ResourceKind, name: &str) -> Result<(), ApiStatus> {
    let request = objects.get(kind, "", name).ok_or_else(|| ApiStatus::not_found(kind, name))?;
    let signer = request["spec"]["signerName"].as_str().unwrap_or_default();
    let wanted = AccessRequest {
        verb: "approve",
        kind: SIGNERS,
        subresource: None,
        namespace: "",
        name: signer,
    };
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    authorize(objects, user, wanted).map_err(|_| ApiStatus::forbidden(kind, name, &why))
}

/// Parses a path: `/api/v1/…` or `/apis/GROUP/VERSION/…`, and then `[namespaces/NAMESPACE/]PLURAL[/NAME[/PART]]`.
fn place(path: &str) -> Option<ResourcePath> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match &*parts {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, plural, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..] if ResourceKind::find(group, version, plural).is_some() => (*namespace, *plural, rest),
        [plural, rest @ ..] => ("", *plural, rest),
        [] => return None,
    };
    let kind = ResourceKind::find(group, version, plural)?;
    let (name, part) = match rest {
        [] => ("", None),
        [name] => (*name, None),
        [name, part] => (*name, Some((*part).to_owned())),
        _ => return None,
    };
    // An object of a namespace has one in its path.
    if (kind.namespaced && namespace.is_empty() && !name.is_empty()) || (!kind.namespaced && !namespace.is_empty()) {
        return None;
    }
    Some(ResourcePath {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        part,
    })
}

fn verb(method: &Method, place: &ResourcePath, watch: &str) -> Option<&'static str> {
    match (method, place.name.is_empty()) {
        (&Method::GET, true) if matches!(watch, "true" | "1") => Some("watch"),
        (&Method::GET, true) => Some("list"),
        (&Method::GET, false) => Some("get"),
        (&Method::POST, true) => Some("create"),
        (&Method::PUT, false) => Some("update"),
        (&Method::PATCH, false) => Some("patch"),
        (&Method::DELETE, false) => Some("delete"),
        _ => None,
    }
}

/// Returns a parameter of the query; empty if it is missing.
pub(super) fn parameter(query: &str, name: &str) -> String {
    let mut parameters = url::form_urlencoded::parse(query.as_bytes());
    parameters
        .find(|(found, _)| found == name)
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

fn list(kind: ResourceKind, page: &Page, selector: &ObjectSelector, form: ObjectDetail) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(((_, namespace, name), left)) = &page.next {
        let next = json!([page.revision, kind.plural, namespace, name]).to_string();
        metadata["continue"] = json!(data_encoding::BASE64URL_NOPAD.encode(next.as_bytes()));
        // Unknown where there is a selector (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/list-meta>).
        if selector.is_empty() {
            metadata["remainingItemCount"] = json!(left);
        }
    }
    let items: Vec<Value> = page.items.iter().map(|item| form.project(item)).collect();
    let (of, api_version) = match form {
        ObjectDetail::Whole | ObjectDetail::Table => (format!("{}List", kind.kind), kind.api_version()),
        ObjectDetail::Metadata => ("PartialObjectMetadataList".to_owned(), META.to_owned()),
    };
    json!({"kind": of, "apiVersion": api_version, "metadata": metadata, "items": items})
}

/// Parses the position at which a list continues.
fn from(token: &str) -> Result<Option<(u64, ObjectKey)>, ApiStatus> {
    if token.is_empty() {
        return Ok(None);
    }
    let read = || {
        let token = data_encoding::BASE64URL_NOPAD.decode(token.as_bytes()).ok()?;
        let (revision, plural, namespace, name): (u64, String, String, String) = serde_json::from_slice(&token).ok()?;
        let kind = super::kinds::KINDS.into_iter().find(|kind| kind.plural == plural)?;
        Some((revision, (kind, namespace, name)))
    };
    read().map(Some).ok_or_else(|| ApiStatus::bad_request("continue key is not valid"))
}

fn json_response(status: u16, value: &Value) -> Response<Body> {
    let builder = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    builder.body(Body::from(value.to_string())).unwrap()
}

fn refused(status: &ApiStatus) -> Response<Body> {
    let mut response = json_response(status.code, &status.json());
    if status.code == 429 {
        response.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    response
}
