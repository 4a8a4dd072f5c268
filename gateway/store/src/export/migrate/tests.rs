//! Tests that one of both is the store, wherever a copy is interrupted.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod interleaved;

use std::cell::Cell;
use std::path::Path;

use cloud_fixtures::etcd::EtcdServer;
use tempfile::TempDir;

use super::super::super::engine::{KeyRange, KeyValue};
use super::super::super::schema::StoreSchema;
use super::super::super::{AnyStore, EntryKind, Store, StoreEntry, StoreError};
use super::*;
use crate::settings::{EngineSettings, EtcdSettings, StoreSettings};

/// Place that a store can have.
struct Place {
    settings: StoreSettings,
    _folder: TempDir,
}

impl Place {
    /// Creates a place in a file, or below this prefix.
    fn new(etcd: Option<(&EtcdServer, &str)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = StoreSettings {
            engine: EngineSettings::Embedded,
            file: folder.path().join("gateway.db"),
        };
        if let Some((etcd, prefix)) = etcd {
            settings.engine = EngineSettings::Etcd(EtcdSettings {
                endpoints: vec![etcd.endpoint()],
                prefix: prefix.to_owned(),
                ca: None,
                identity: None,
                user: None,
                timeout: std::time::Duration::from_secs(20),
            });
        }
        Self { settings, _folder: folder }
    }

    fn open(&self) -> Result<AnyStore, StoreError> {
        AnyStore::open(&self.settings)
    }

    /// Returns whether it is the store, and has the original content.
    async fn holds(&self) -> bool {
        // Whoever opens nothing begins a store.
        let Ok(true) = AnyStore::exists(&self.settings) else { return false };
        let Ok(store) = self.open() else { return false };
        store.get(EntryKind::Name, "worker-1").await.unwrap().is_some()
    }

    fn was_moved(&self) -> bool {
        matches!(self.open(), Err(StoreError::Moved { .. }))
    }
}

async fn fill(place: &Place) {
    let store = place.open().unwrap();
    let names = (0..1200).map(|number| StoreEntry {
        id: format!("worker-{number}"),
        value: "{}".to_owned(),
    });
    for page in names.collect::<Vec<_>>().chunks(100) {
        assert!(store.change(EntryKind::Name, Vec::new(), page.to_vec()).await.unwrap());
    }
}

/// Step at which a migration is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// After this number of keys has arrived.
    Put(usize),
    BeforeMove,
    AfterMove,
    BeforeFinish,
    AfterFinish,
}

const STEPS: [Step; 6] = [
    Step::Put(0),
    Step::Put(700),
    Step::BeforeMove,
    Step::AfterMove,
    Step::BeforeFinish,
    Step::AfterFinish,
];

/// Source or target that fails at a step.
struct Breaks<T: ?Sized> {
    at: Step,
    puts: Cell<usize>,
    inner: Box<T>,
}

impl<T: ?Sized> Breaks<T> {
    fn at(at: Step, inner: Box<T>) -> Self {
        let puts = Cell::new(0);
        Self { at, puts, inner }
    }

    fn step(&self, step: Step) -> Result<(), StoreError> {
        match self.at == step {
            true => Err(StoreError::Closed),
            false => Ok(()),
        }
    }
}

impl MigrationSource for Breaks<dyn MigrationSource> {
    fn store(&self) -> StoreMark {
        self.inner.store()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.inner.page(range, most)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        self.inner.store_now()
    }

    fn schema(&self) -> StoreSchema {
        self.inner.schema()
    }

    fn moved(&self) -> Option<&Moved> {
        self.inner.moved()
    }

    fn move_to(&mut self, to: &Moved) -> Result<(), ExportError> {
        self.step(Step::BeforeMove)?;
        self.inner.move_to(to)?;
        Ok(self.step(Step::AfterMove)?)
    }

    fn undo_move(&mut self) -> Result<(), ExportError> {
        self.inner.undo_move()
    }
}

impl MigrationTarget for Breaks<dyn MigrationTarget> {
    fn expected_store(&self) -> &ExpectedStore {
        self.inner.expected_store()
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        self.step(Step::Put(self.puts.get()))?;
        self.puts.set(self.puts.get() + 1);
        self.inner.put(pair)
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.inner.page(range, most)
    }

    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError> {
        self.step(Step::BeforeFinish)?;
        let finished = self.inner.finish(from, schema, id)?;
        self.step(Step::AfterFinish)?;
        Ok(finished)
    }
}

fn broken_off(from: &StoreSettings, to: &StoreSettings, at: Step) {
    let (mut source, mut target) = (Breaks::at(at, source(from).unwrap()), Breaks::at(at, target(to).unwrap()));
    let becomes = becomes(&source, from, to).unwrap();
    let moved = move_over(&mut source, &mut target, &becomes, || alone(from), |_| Ok::<_, ExportError>(()));
    assert!(matches!(moved, Err(ExportError::Store(StoreError::Closed))), "{at:?}: {moved:?}");
}

fn copied(from: &Place, to: &Place) -> Result<CopiedStore, ExportError> {
    copy(&from.settings, &to.settings, |_| Ok(()))
}

async fn one_of_both_is_the_store(new: impl Fn() -> (Place, Place)) {
    for step in STEPS {
        for undone in [false, true] {
            let (from, to) = new();
            fill(&from).await;
            let opened = from.open().unwrap();
            broken_off(&from.settings, &to.settings, step);
            let is_moved = matches!(step, Step::AfterMove | Step::BeforeFinish | Step::AfterFinish);
            let is_whole = step == Step::AfterFinish;
            assert_eq!(
                (from.was_moved(), from.holds().await, to.holds().await),
                (is_moved, !is_moved, is_whole),
                "{step:?}"
            );
            // Who had it open, and stood still meanwhile, goes on with what is the store, and with nothing else.
            let entry = StoreEntry {
                id: "later".to_owned(),
                value: "{}".to_owned(),
            };
            let written = opened.insert(EntryKind::Name, entry).await;
            match is_moved {
                false => assert!(written.unwrap().is_none(), "{step:?}"),
                true => assert!(matches!(written, Err(StoreError::Moved { .. })), "{step:?}: {written:?}"),
            }
            let read = opened.get(EntryKind::Name, "worker-1").await;
            assert_eq!(matches!(read, Err(StoreError::Moved { .. })), is_moved, "{step:?}: {read:?}");
            drop(opened);
            if undone {
                taken_back(&from, &to, is_moved, is_whole).await;
            }
            // Done again it comes to its end, wherever it was.
            let copied_again = copied(&from, &to).unwrap();
            assert_eq!(copied_again.contents.is_none(), is_whole, "{step:?}");
            assert_eq!(Store::store_mark(&to.open().unwrap()).unwrap().id, copied_again.accepted.now.id);
            assert_eq!((from.was_moved(), to.holds().await), (true, true), "{step:?}");
            assert!(undo(&from.settings, &to.settings).is_err());
            // Once more is nothing more.
            assert!(copied(&from, &to).unwrap().contents.is_none());
        }
    }
}

async fn taken_back(from: &Place, to: &Place, is_moved: bool, is_whole: bool) {
    let undone = undo(&from.settings, &to.settings);
    match (is_moved, is_whole) {
        (false, _) => assert!(matches!(undone, Err(ExportError::NotMoved(_))), "{undone:?}"),
        (true, true) => assert!(matches!(undone, Err(ExportError::Whole { .. })), "{undone:?}"),
        (true, false) => {
            undone.unwrap();
            assert!(from.holds().await && !to.holds().await);
            let store = from.open().unwrap();
            store
                .put(
                    EntryKind::Name,
                    StoreEntry {
                        id: "after".to_owned(),
                        value: "{}".to_owned(),
                    },
                )
                .await
                .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_migration_to_etcd_leaves_exactly_one_store() {
    let (etcd, number) = (EtcdServer::start(), Cell::new(0));
    one_of_both_is_the_store(|| {
        number.set(number.get() + 1);
        (Place::new(None), Place::new(Some((&etcd, &format!("to/{}", number.get())))))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_migration_from_etcd_leaves_exactly_one_store() {
    let (etcd, number) = (EtcdServer::start(), Cell::new(0));
    one_of_both_is_the_store(|| {
        number.set(number.get() + 1);
        (Place::new(Some((&etcd, &format!("from/{}", number.get())))), Place::new(None))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_migration_resumes_only_to_its_target() {
    let etcd = EtcdServer::start();
    let (from, to, elsewhere) = (
        Place::new(None),
        Place::new(Some((&etcd, "to"))),
        Place::new(Some((&etcd, "elsewhere"))),
    );
    fill(&from).await;
    broken_off(&from.settings, &to.settings, Step::AfterMove);
    for refused in [
        copied(&from, &elsewhere).map(drop),
        undo(&from.settings, &elsewhere.settings).map(drop),
    ] {
        assert!(
            matches!(&refused, Err(ExportError::Store(StoreError::Moved { to, .. })) if to.ends_with("below to")),
            "{refused:?}"
        );
    }
    let mut text = Vec::new();
    assert!(matches!(
        super::super::export(&from.settings, &mut text),
        Err(ExportError::Store(StoreError::Moved { .. }))
    ));
    // The administrator's last way out, when what was moved is lost: another store, of which a line is told.
    AnyStore::accept(&from.settings, |_| Ok::<_, StoreError>(())).unwrap();
    assert!(from.holds().await);
}

/// A process was paused after the source had recorded its new place. Once the copy was reverted, it makes no store of what it has taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_migration_cannot_finish_after_its_revert() {
    let etcd = EtcdServer::start();
    let (from, to) = (Place::new(None), Place::new(Some((&etcd, "to"))));
    fill(&from).await;
    let (mut moving, mut target) = (source(&from.settings).unwrap(), target(&to.settings).unwrap());
    let becomes = becomes(&*moving, &from.settings, &to.settings).unwrap();
    let moved = move_over(
        &mut *moving,
        &mut StandsStill(&mut *target, || {
            undo(&from.settings, &to.settings).unwrap();
        }),
        &becomes,
        || alone(&from.settings),
        |_| Ok::<_, ExportError>(()),
    );
    assert!(moved.is_err(), "{moved:?}");
    assert_eq!(etcd.ctl(&["get", "--prefix", "to/"]), "");
    assert!(from.holds().await);
}

/// Something is done before it is finished.
struct StandsStill<'t, F>(&'t mut dyn MigrationTarget, F);

impl<F: Fn()> MigrationTarget for StandsStill<'_, F> {
    fn expected_store(&self) -> &ExpectedStore {
        self.0.expected_store()
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        self.0.put(pair)
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.0.page(range, most)
    }

    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError> {
        (self.1)();
        self.0.finish(from, schema, id)
    }
}

/// Both engines have one state folder, as in a gateway that moves from one to the other. It names either store as the known one.
#[tokio::test(flavor = "multi_thread")]
async fn migration_within_one_state_folder_resumes() {
    let etcd = EtcdServer::start();
    for (undone, to_a_file) in [(false, true), (true, true), (false, false), (true, false)] {
        let prefix = format!("{undone}-{to_a_file}");
        let (mut from, mut to) = (Place::new(Some((&etcd, &prefix))), Place::new(None));
        to.settings.file = from.settings.file.clone();
        if !to_a_file {
            std::mem::swap(&mut from, &mut to);
        }
        fill(&from).await;
        broken_off(&from.settings, &to.settings, Step::AfterMove);
        if to_a_file {
            // Killed after the new name was written down, and before the file was whole.
            let Some(moved) = source(&from.settings).unwrap().moved().cloned() else {
                panic!("it was moved")
            };
            replace_mark(
                &from.settings.file,
                &StoreMark {
                    id: moved.id,
                    mark: 90_000,
                    wrote: None,
                },
            )
            .unwrap();
        }
        if undone {
            undo(&from.settings, &to.settings).unwrap();
            assert!(from.holds().await);
        }
        copied(&from, &to).unwrap();
        assert!(to.holds().await);
        let said = from.open().unwrap_err().to_string();
        assert!(said.contains("was migrated to"), "{said}");
    }
}

/// The change comes between the last check and the deciding step.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_migration_after_a_concurrent_write_or_start() {
    let etcd = EtcdServer::start();
    for (number, etcd_source) in [(1, true), (2, false)] {
        let prefix = format!("from/{number}");
        let from = Place::new(etcd_source.then_some((&etcd, &prefix)));
        let to = Place::new(Some((&etcd, &format!("to/{number}"))));
        fill(&from).await;
        let store = from.open().unwrap();
        let runtime = tokio::runtime::Handle::current();
        let refused = tokio::task::block_in_place(|| {
            copy(&from.settings, &to.settings, |_| {
                runtime
                    .block_on(store.put(
                        EntryKind::Name,
                        StoreEntry {
                            id: "new".to_owned(),
                            value: "{}".to_owned(),
                        },
                    ))
                    .unwrap();
                Ok::<_, ExportError>(())
            })
        });
        assert!(matches!(refused, Err(ExportError::WentOn)), "{refused:?}");
        assert!(from.holds().await && !to.holds().await);
        if etcd_source {
            let key = format!("{prefix}/replica/0123456789abcdef");
            let refused = copy(&from.settings, &to.settings, |_| {
                etcd.ctl(&["put", &key, "{}"]);
                Ok::<_, ExportError>(())
            });
            assert!(matches!(refused, Err(ExportError::Served { .. })), "{refused:?}");
            etcd.ctl(&["del", &key]);
            assert!(from.holds().await && !to.holds().await);
        }
        drop(store);
        copied(&from, &to).unwrap();
    }
}

#[test]
fn normalizes_the_location_of_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings {
        engine: EngineSettings::Embedded,
        file: folder.path().join(".").join("x").join("..").join("gateway.db"),
    };
    std::fs::create_dir(folder.path().join("x")).unwrap();
    let expected = std::fs::canonicalize(folder.path()).unwrap().join("gateway.db");
    assert_eq!(Path::new(&place(&settings)), expected);
}
