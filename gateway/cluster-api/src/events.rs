//! Events for `kubectl describe` of objects that are in no namespace: one event for each reason, once.

use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};

use super::{ClusterClient, ClusterError};

/// Namespace for events of objects that are in no namespace (`legacyValidateEvent` in `pkg/apis/core/validation/events.go`, and client-go's
/// recorder).
const NAMESPACE: &str = "default";
/// Longest text of an event, in characters: `NoteLengthLimit` of the newer API of events has 1 kB.
const MESSAGE_LIMIT_CHARACTERS: usize = 900;
/// Bytes of an object's name in the name of an event. Object names have at most 253 characters.
const NAME_LIMIT_BYTES: usize = 200;
/// Maximum number of events per minute, so that a client which creates thousands of objects does not create as many events. Further events
/// are written later.
const EVENTS_LIMIT: u32 = 120;
const MINUTE: Duration = Duration::from_secs(60);

/// The object of an event.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub name: &'a str,
    pub uid: &'a str,
}

/// Reason and severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventText {
    /// The reason, as one word.
    pub reason: &'static str,
    /// Set if an administrator should look into it.
    pub warning: bool,
}

/// Writer of events, with a rate limit.
#[derive(Debug)]
pub struct Events {
    /// The program that writes the events.
    component: &'static str,
    begun: Instant,
    written: u32,
}

impl Events {
    /// Creates a writer whose events name this program as their source.
    #[must_use]
    pub fn new(component: &'static str) -> Self {
        Self {
            component,
            begun: Instant::now(),
            written: 0,
        }
    }

    /// Takes a place in this minute's rate limit; returns whether there was one.
    fn take(&mut self) -> bool {
        if self.begun.elapsed() > MINUTE {
            (self.begun, self.written) = (Instant::now(), 0);
        }
        let room = self.written < EVENTS_LIMIT;
        self.written += u32::from(room);
        room
    }

    /// Writes an event about an object, at this time, in seconds since 1970. Returns whether it is written; `false` if the rate limit is
    /// reached. A repeated event is not written again, by any gateway, because its name is derived from its content.
    pub async fn post(
        &mut self,
        cluster: &ClusterClient,
        about: About<'_>,
        said: EventText,
        text: &str,
        now: u64,
    ) -> Result<bool, ClusterError> {
        self.post_repeated(cluster, about, said, text, (now, 0)).await
    }

    /// Writes an event as [`Events::post`] does, for the `repetition`th time. Each repetition is an event of its own, since the API removes
    /// events after an hour or three.
    pub async fn post_repeated(
        &mut self,
        cluster: &ClusterClient,
        about: About<'_>,
        said: EventText,
        text: &str,
        (now, repetition): (u64, u64),
    ) -> Result<bool, ClusterError> {
        if !self.take() {
            return Ok(false);
        }
        let events: Api<Event> = Api::namespaced(cluster.client(), NAMESPACE);
        let event = event(self.component, about, said, text, (now, repetition));
        match cluster.ask("events", events.create(&PostParams::default(), &event)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_status(409) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

fn event(component: &str, about: About<'_>, said: EventText, text: &str, (now, repetition): (u64, u64)) -> Event {
    let at = i64::try_from(now).ok().and_then(|now| Timestamp::from_second(now).ok()).map(Time);
    let message: String = text.chars().take(MESSAGE_LIMIT_CHARACTERS).collect();
    Event {
        metadata: ObjectMeta {
            name: Some(name(about, said, &message, repetition)),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        // Without a namespace, as whoever looks for it asks for one without.
        involved_object: ObjectReference {
            api_version: Some(about.api_version.to_owned()),
            kind: Some(about.kind.to_owned()),
            name: Some(about.name.to_owned()),
            uid: Some(about.uid.to_owned()),
            ..ObjectReference::default()
        },
        reason: Some(said.reason.to_owned()),
        message: Some(message),
        type_: Some(if said.warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource {
            component: Some(component.to_owned()),
            host: None,
        }),
        reporting_component: Some(component.to_owned()),
        first_timestamp: at.clone(),
        last_timestamp: at,
        count: Some(1),
        ..Event::default()
    }
}

/// Returns a name that is unique to this event of this object.
fn name(about: About<'_>, said: EventText, message: &str, repetition: u64) -> String {
    let mut context = Context::new(&SHA256);
    for part in [about.uid, said.reason, message, &repetition.to_string()] {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest: String = data_encoding::HEXLOWER.encode(context.finish().as_ref()).chars().take(16).collect();
    let of: String = about.name.chars().take(NAME_LIMIT_BYTES).collect();
    format!("{}.{digest}", of.trim_end_matches(['.', '-']))
}
