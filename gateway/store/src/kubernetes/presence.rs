//! Keys that only one process holds at a time: to serve as one of several gateways, and to lead a work.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::fence::Fence;
use super::super::remote::leadership::Leadership;
use super::super::remote::locked;
use super::super::remote::serving::{LOOK_EVERY, ServingEntry, WAIT_LIMIT, user};
use super::super::{StoreError, StoreUser, keys, schema};
use super::Kubernetes;
use super::liveness::expire;
use super::open_store::Leads;
use super::plan::Change;

/// Prefix of the keys of leaders.
const LEADER: &str = "leader/";

/// Returns the processes that use the store: session, number of the last change, and the process.
pub(super) fn users(head: &super::head::Head) -> Vec<(String, u64, StoreUser)> {
    let sessions = head.sessions.iter().flat_map(|(id, session)| {
        let holds = session.holds.iter().filter(|(key, _)| key.starts_with(keys::SERVING));
        holds.map(|(_, value)| (id.clone(), session.number, user(value)))
    });
    sessions.collect()
}

/// Current holder of a key: its session, the number of its last change, and its host.
type InTheWay = Option<(String, u64, String)>;

/// Returns a change that takes the key if no process holds it. It also replaces a leftover holder; `is_left` decides that by the value, and
/// by whether it is this process's own.
fn hold(key: String, value: String, is_left: impl Fn(&str, bool) -> bool + Send + 'static) -> (Change, Arc<Mutex<InTheWay>>) {
    let way = Arc::new(Mutex::new(None));
    let found = Arc::clone(&way);
    let change: Change = Box::new(move |head, context| {
        expire(head, context);
        *locked(&found) = None;
        let holder = head.holder(&key).map(|(session, value)| (session.to_owned(), value.to_owned()));
        match holder {
            Some((session, of)) if session == context.session && of == value => return false,
            Some((session, of)) if is_left(&of, session == context.session) => match head.sessions.get_mut(&session) {
                Some(own) if session == context.session => drop(own.holds.remove(&key)),
                _ => head.forget(&session),
            },
            Some((session, of)) => {
                let number = head.sessions.get(&session).map_or(0, |session| session.number);
                *locked(&found) = Some((session, number, user(&of).host));
                return false;
            }
            None => {}
        }
        if let Some(own) = head.sessions.get_mut(context.session) {
            own.holds.insert(key.clone(), value.clone());
        }
        true
    });
    (change, way)
}

impl Kubernetes {
    /// Uses the store as the process with this id, as long as it is heard of.
    pub(super) async fn begin_to_serve(&self, id: &str, state: &Path) -> Result<(), StoreError> {
        let opened = &self.open.opened;
        let key = keys::serving(id);
        let serving = ServingEntry::new(&opened.session, state);
        let text = serving.text();
        let (begun, mut first) = (Instant::now(), None);
        loop {
            let own = serving.clone();
            let was_here = move |value: &str, _: bool| own.was_here(value);
            let (change, way) = hold(key.clone(), text.clone(), was_here);
            self.do_change(change).await?;
            let Some((session, number, host)) = locked(&way).clone() else {
                // It is the same for whoever asks again.
                let _ = opened.serving.set((key, text));
                return Ok(());
            };
            let copied = || ServingEntry::copied(id, &host, &opened.place.place);
            match &first {
                None => {
                    tracing::warn!(
                        "a gateway on {host} serves, or served, as replica {id}: waiting up to {} s for its session to expire",
                        WAIT_LIMIT.as_secs()
                    );
                    first = Some((session, number));
                }
                Some(seen) if *seen != (session, number) => return Err(copied()),
                Some(_) if begun.elapsed() > WAIT_LIMIT => return Err(copied()),
                Some(_) => {}
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Leads a work, if no process leads it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn acquire_lease(&self, work: &str) -> Result<Option<Leadership>, StoreError> {
        let (key, value) = (format!("{LEADER}{work}"), schema::new_id()?);
        let opened = Arc::clone(&self.open.opened);
        // What this process has been given by a commit of which it was not told, or has given up, nobody else would take from it.
        let is_left = move |value: &str, is_own: bool| is_own && !locked(&opened.leads).iter().any(|leads| leads.value == value);
        let (change, way) = hold(key.clone(), value.clone(), is_left);
        self.do_change(change).await?;
        if locked(&way).is_some() {
            return Ok(None);
        }
        let (tell, lost) = watch::channel(false);
        let fence = Fence::held(work, &key, &value);
        let leads = Leads {
            key: key.clone(),
            value: value.clone(),
            lost: tell,
        };
        locked(&self.open.opened.leads).push(leads);
        // The committer hears of it: from here on it is to be kept.
        self.wake();
        let store = self.clone();
        Ok(Some(Leadership::new(fence, lost, move || store.abandon(key, value))))
    }

    /// Leads this no more.
    fn abandon(&self, key: String, value: String) {
        locked(&self.open.opened.leads).retain(|leads| leads.value != value);
        let change: Change = Box::new(move |head, context| {
            let is_own = head.holder(&key) == Some((context.session, &value));
            if is_own && let Some(own) = head.sessions.get_mut(context.session) {
                own.holds.remove(&key);
            }
            is_own
        });
        self.change_later(change);
    }
}
