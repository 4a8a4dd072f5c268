//! A store on etcd that is read as it is at one revision, whoever writes to it meanwhile.

use std::path::Path;
use std::sync::Arc;

use etcd_client::GetOptions;
use tokio::time::Instant;

use super::super::engine::{KeyRange, KeyValue};
use super::super::house::Source;
use super::super::known::Known;
use super::super::{StoreError, StoreMark};
use super::identity::Found;
use super::keys::Keys;
use super::members::Members;
use super::opened::pair;
use super::{MOST_ANSWER_BYTES, Threads, identity, set_back};
use crate::settings::EtcdSettings;

/// What a store on etcd holds at one moment.
pub(in super::super) struct Moment {
    below: Arc<Below>,
    store: StoreMark,
    revision: i64,
}

/// How what is below a prefix is read, by who is not async.
pub(super) struct Below {
    pub threads: Threads,
    pub settings: EtcdSettings,
    pub members: Members,
    pub keys: Keys,
}

impl Below {
    pub(super) fn of(settings: &EtcdSettings) -> Result<Self, StoreError> {
        Ok(Self {
            threads: Threads::start(&settings.place())?,
            settings: settings.clone(),
            members: Members::of(settings)?,
            keys: Keys::below(&settings.prefix),
        })
    }

    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// The store that is there, and the revision at which it was looked at.
    pub(super) fn look(self: &Arc<Self>) -> Result<(Option<Found>, i64), StoreError> {
        let below = Arc::clone(self);
        self.threads
            .wait(async move { identity::look_at(&below.settings, &below.members, below.until()).await })
    }

    /// The first of a range at this revision; 0 is now.
    pub(super) fn page(self: &Arc<Self>, range: &KeyRange, most: usize, revision: i64) -> Result<Vec<KeyValue>, StoreError> {
        let (from, until) = (self.keys.of(&range.from), self.keys.of(&range.until));
        let options = GetOptions::new()
            .with_range(until)
            .with_limit(i64::try_from(most).unwrap_or(i64::MAX))
            .with_revision(revision);
        let below = Arc::clone(self);
        self.threads.wait(async move {
            let asked = below.members.ask(below.until(), |client| {
                let (from, options) = (from.clone(), options.clone());
                async move {
                    let mut client = client.kv_client().max_decoding_message_size(MOST_ANSWER_BYTES);
                    client.get(from, Some(options)).await
                }
            });
            let answer = asked.await.map_err(|failure| below.members.explain(&failure, false))?;
            answer.kvs().iter().map(|found| pair(&below.keys, found)).collect()
        })
    }
}

impl Moment {
    pub(in super::super) fn of(settings: &EtcdSettings, beside: &Path) -> Result<Self, StoreError> {
        // Known first: what is found is then at least as new.
        let known = Known::beside(beside)?;
        let below = Arc::new(Below::of(settings)?);
        let (found, revision) = below.look()?;
        let place = Path::new(&below.members.place);
        set_back::check(&known, place, found.as_ref())?;
        let Some(Found { mark: store, .. }) = found else {
            return Err(StoreError::Lost {
                path: place.to_owned(),
                known: "what it holds was asked for".to_owned(),
            });
        };
        Ok(Self { below, store, revision })
    }
}

impl Source for Moment {
    fn store(&self) -> StoreMark {
        self.store.clone()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.below.page(range, most, self.revision)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        let (found, _) = self.below.look()?;
        let found = found.ok_or_else(|| StoreError::Replaced(self.below.members.place.clone().into()))?;
        Ok(found.mark)
    }
}

/// On which hosts gateways serve on the store.
pub(in super::super) fn served_by(settings: &EtcdSettings) -> Result<Vec<String>, StoreError> {
    let below = Arc::new(Below::of(settings)?);
    let (from, until) = (below.keys.replica(""), below.keys.replica("\u{10ffff}"));
    let asking = Arc::clone(&below);
    below.threads.wait(async move {
        let options = GetOptions::new().with_range(until);
        let asked = asking.members.ask(asking.until(), |mut client| {
            let (from, options) = (from.clone(), options.clone());
            async move { client.get(from, Some(options)).await }
        });
        let answer = asked.await.map_err(|failure| asking.members.explain(&failure, false))?;
        Ok(answer.kvs().iter().map(|found| super::presence::host(found.value())).collect())
    })
}
