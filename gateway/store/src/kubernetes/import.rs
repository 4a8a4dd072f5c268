//! A store on objects that takes what another holds.
//!
//! An import arrives leaf by leaf. Until it is complete, the head names the process that imports. A process that opens such a store reports
//! it as incomplete, and a new import replaces that name by its own. One change makes it a store; it requires that its own process is still
//! named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::Instant;

use super::super::engine::{KeyRange, KeyValue};
use super::super::expected_store::{self, ExpectedStore};
use super::super::migration::{ExportError, MigrationTarget};
use super::super::remote::set_back::RollbackStatement;
use super::super::schema::{self, StoreSchema};
use super::super::threads::under_lock;
use super::super::{StoreError, StoreMark};
use super::head::{Head, LeafReference};
use super::leaves::{self, LEAF_BYTES};
use super::opening::begin;
use super::pages::KubernetesPages;
use super::view::{Pairs, View};
use crate::settings::KubernetesSettings;

/// An import, which is not a store yet.
pub(crate) struct KubernetesImport {
    below: Arc<KubernetesPages>,
    /// The store's file, if it were embedded: files next to it tell what is known of the store.
    mark_path: PathBuf,
    expected: ExpectedStore,
    /// The session that this process has put there.
    session: String,
    /// Pairs that were not sent yet.
    waiting: Pairs,
    bytes: usize,
    last: Option<String>,
    /// Pairs that were sent, as they are read again.
    view: View,
}

impl KubernetesImport {
    /// Begins an import, where there is nothing, or another import that was not completed.
    pub(crate) fn begin(settings: &KubernetesSettings, beside: &Path) -> Result<Self, ExportError> {
        let below = KubernetesPages::open(settings)?;
        let session = schema::new_id()?;
        let mut head = Head::new(String::new())?;
        head.taking = Some(session.clone());
        let begun = head.clone();
        let there = below.wait(|below| async move { below.begin(&begun).await })?;
        if let Some(keys) = there {
            return Err(ExportError::NotEmpty(keys));
        }
        Ok(Self {
            mark_path: beside.to_owned(),
            expected: ExpectedStore::load(beside).or_else(|_| ExpectedStore::but_for_file(beside))?,
            session,
            waiting: Pairs::new(),
            bytes: 0,
            last: None,
            view: View::new(head),
            below,
        })
    }

    /// Aborts a running import of any process: removes what has arrived.
    pub(crate) fn abandon(settings: &KubernetesSettings) -> Result<(), StoreError> {
        KubernetesPages::open(settings)?.wait(|below| async move { below.abandon().await })
    }

    fn send_waiting(&mut self) -> Result<(), StoreError> {
        let pairs = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        let Some(first) = pairs.keys().next() else { return Ok(()) };
        let leaves = &self.view.head.leaves;
        let name = format!("{}-{}-{}", self.below.place.name, self.session, leaves.len());
        let mut leaf = LeafReference {
            from: if leaves.is_empty() { String::new() } else { first.clone() },
            name: name.clone(),
            sha256: String::new(),
        };
        leaf.sha256 = self.below.wait(|below| async move {
            let made = below.place.create_leaf(&name, &pairs, below.until()).await;
            made.map_err(|failure| below.error(&failure))
        })?;
        Arc::make_mut(&mut self.view.head).leaves.push(leaf);
        Ok(())
    }
}

impl KubernetesPages {
    /// Puts this state where nothing is, or where something is taken; or says how many keys are there.
    async fn begin(&self, begun: &Head) -> Result<Option<u64>, StoreError> {
        let until = Instant::now() + self.timeout;
        loop {
            let there = self.place.head(self.until()).await.map_err(|failure| self.error(&failure))?;
            match there {
                Some(there) if there.commit == begun.commit => break,
                Some(there) if there.taking.is_some() => self.swap(&there, begun, until).await?,
                Some(_) => {
                    let everything = KeyRange {
                        from: String::new(),
                        until: '\u{10ffff}'.to_string(),
                    };
                    let whole = self.whole().await?;
                    let keys = whole.and_then(|view| view.count(&everything).ok()).unwrap_or_default();
                    // A store that holds nothing is there, too.
                    return Ok(Some(keys.max(1)));
                }
                None => begin(&self.place, begun, self.until()).await?,
            }
            if Instant::now() >= until {
                return Err(self.replaced());
            }
        }
        // What is there by now is no store's, and will be none's.
        let own = begun.taking.clone().unwrap_or_default();
        let left = self.leaves().await?.into_iter().filter(|name| !name.contains(&own));
        self.remove(left).await?;
        Ok(None)
    }

    async fn abandon(&self) -> Result<(), StoreError> {
        let until = Instant::now() + self.timeout;
        let mut nobody = Head::new(String::new())?;
        nobody.taking = Some(schema::new_id()?);
        loop {
            // Those of whoever begins something after this are not among them.
            let left = self.leaves().await?;
            let there = self.place.head(self.until()).await.map_err(|failure| self.error(&failure))?;
            match there {
                Some(there) if there.commit == nobody.commit => {
                    self.remove(left).await?;
                    let gone = self.place.delete_head(&nobody.commit, self.until()).await;
                    return gone.map_err(|failure| self.error(&failure));
                }
                Some(there) if there.taking.is_some() => self.swap(&there, &nobody, until).await?,
                _ => return Ok(()),
            }
            if Instant::now() >= until {
                return Err(self.replaced());
            }
        }
    }

    /// Makes a store of what this session has imported.
    async fn finish(&self, session: &str, whole: &Head) -> Result<(), StoreError> {
        let until = Instant::now() + self.timeout;
        loop {
            let there = self.place.head(self.until()).await.map_err(|failure| self.error(&failure))?;
            match there {
                // An answer was lost.
                Some(there) if there.id == whole.id => return Ok(()),
                Some(there) if there.taking.as_deref() == Some(session) && Instant::now() < until => {
                    self.swap(&there, whole, until).await?
                }
                _ => return Err(self.replaced()),
            }
        }
    }
}

impl MigrationTarget for KubernetesImport {
    fn expected_store(&self) -> &ExpectedStore {
        &self.expected
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        if self.last.as_ref().is_some_and(|last| *last >= pair.key) {
            return Err(StoreError::Key { key: pair.key.clone() });
        }
        let bytes = pair.key.len() + pair.value.len();
        if self.bytes + bytes > LEAF_BYTES {
            self.send_waiting()?;
        }
        self.bytes += bytes;
        self.last = Some(pair.key.clone());
        self.waiting.insert(pair.key.clone(), pair.value.clone());
        Ok(())
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.send_waiting()?;
        loop {
            let missing = match self.view.page(range, most) {
                Ok(page) => return Ok(page),
                Err(missing) => missing,
            };
            let mut view = self.view.clone();
            let (found, gone) = self.below.wait(|below| async move {
                let gone = below.fetch(&mut view, Some(&missing), below.until()).await?;
                Ok((view, gone))
            })?;
            if let Some(name) = gone {
                return Err(self.below.error(&leaves::lost(&name)));
            }
            self.view = found;
        }
    }

    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError> {
        self.send_waiting()?;
        let mut whole = Head::new(id.to_owned())?;
        whole.set_schema(schema);
        whole.leaves.clone_from(&self.view.head.leaves);
        whole.mark = self.expected.furthest().max(from.mark).saturating_add(1);
        let instead_of = [Some(from), self.expected.expected()].into_iter().flatten();
        whole.replaced = instead_of.map(|mark| mark.id.clone()).collect();
        whole.replaced.dedup();
        let (now, session) = (whole.mark(), self.session.clone());
        self.below.wait(|below| async move { below.finish(&session, &whole).await })?;
        under_lock(&self.mark_path, || expected_store::replace_mark(&self.mark_path, &now))?;
        Ok(now)
    }
}
