//! Tests with other processes that change a store while it is moved.

use super::*;

fn entry(id: &str) -> StoreEntry {
    StoreEntry {
        id: id.to_owned(),
        value: "{}".to_owned(),
    }
}

/// Returns the entry of a store that was moved to another one.
fn gone(to: &str) -> Moved {
    Moved {
        id: schema::new_id().unwrap(),
        to: to.to_owned(),
    }
}

async fn each_engine(test: impl AsyncFn(&EtcdServer, &Place)) {
    let etcd = EtcdServer::start();
    for engine in [Some((&etcd, "from")), None] {
        let from = Place::new(engine);
        fill(&from).await;
        test(&etcd, &from).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_concurrent_migrations_succeeds() {
    each_engine(async |_, from| {
        if matches!(from.settings.engine, EngineSettings::Embedded) {
            // Its file is locked.
            let _first = source(&from.settings).unwrap();
            return;
        }
        let (mut first, mut second) = (source(&from.settings).unwrap(), source(&from.settings).unwrap());
        let (to, elsewhere) = (gone("there"), gone("elsewhere"));
        first.move_to(&to).unwrap();
        // An answer was lost, and it is asked again.
        first.move_to(&to).unwrap();
        assert!(matches!(second.store_now(), Err(StoreError::Replaced(_))));
        let refused = second.move_to(&elsewhere);
        assert!(
            matches!(&refused, Err(ExportError::Store(StoreError::Moved { to, .. })) if to == "there"),
            "{refused:?}"
        );
        assert_eq!(source(&from.settings).unwrap().moved(), Some(&to));
        assert_eq!(existing_store(&from.settings).unwrap(), None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn export_reads_one_snapshot_despite_concurrent_writes() {
    each_engine(async |_, from| {
        let store = from.open().unwrap();
        let mut source = source(&from.settings).unwrap();
        if !matches!(from.settings.engine, EngineSettings::Embedded) {
            assert!(store.insert(EntryKind::Name, entry("new")).await.unwrap().is_none());
        }
        let mut keys = Vec::new();
        let each = |pair: &KeyValue| {
            keys.push(pair.key.clone());
            Ok(())
        };
        let read = walk(|range| source.page(range, 500), each).unwrap();
        assert_eq!(usize::try_from(read.count).unwrap(), keys.len());
        assert!(keys.contains(&"entry/name/worker-1".to_owned()) && !keys.contains(&"entry/name/new".to_owned()));
        assert_eq!(source.page(&super::super::super::everything(), 10).unwrap().len(), 10);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_migration_if_the_etcd_store_changed() {
    let etcd = EtcdServer::start();
    let from = Place::new(Some((&etcd, "from")));
    fill(&from).await;
    let id = existing_store(&from.settings).unwrap().unwrap().id;
    for key in ["from/schema".to_owned(), format!("from/set-back/{id}")] {
        let mut source = source(&from.settings).unwrap();
        etcd.ctl(&["put", &key, "2 0.2.0"]);
        source.move_to(&gone("there")).unwrap_err();
        match key.as_str() {
            "from/schema" => etcd.ctl(&["put", &key, "1 0.1.0"]),
            _ => etcd.ctl(&["del", &key]),
        };
        assert_eq!(
            existing_store(&from.settings).unwrap().map(|mark| mark.id),
            Some(id.clone()),
            "{key}"
        );
    }
    // It is a store from before, and somebody knows that.
    let mark = |mark| StoreMark {
        id: id.clone(),
        mark,
        wrote: None,
    };
    replace_mark(&from.settings.file, &mark(90_000)).unwrap();
    assert!(matches!(
        source(&from.settings).map(drop),
        Err(ExportError::Store(StoreError::Older { .. }))
    ));
    replace_mark(&from.settings.file, &mark(0)).unwrap();
    drop(source(&from.settings).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_revert_onto_a_newly_accepted_store() {
    let etcd = EtcdServer::start();
    let from = Place::new(Some((&etcd, "from")));
    fill(&from).await;
    source(&from.settings).unwrap().move_to(&gone("there")).unwrap();
    let mut moved = source(&from.settings).unwrap();
    AnyStore::accept(&from.settings, |_| Ok::<_, StoreError>(())).unwrap();
    let accepted = existing_store(&from.settings).unwrap();
    assert!(matches!(moved.undo_move(), Err(ExportError::WentOn)));
    assert_eq!(existing_store(&from.settings).unwrap(), accepted);
}

/// Something is done while what has arrived is looked through.
struct LookedThrough<'t, F>(&'t mut dyn MigrationTarget, Option<F>);

impl<F: FnOnce()> MigrationTarget for LookedThrough<'_, F> {
    fn expected_store(&self) -> &ExpectedStore {
        self.0.expected_store()
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        self.0.put(pair)
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        if let Some(first) = self.1.take() {
            first();
        }
        self.0.page(range, most)
    }

    fn finish(&mut self, from: &StoreMark, schema: StoreSchema, id: &str) -> Result<StoreMark, StoreError> {
        self.0.finish(from, schema, id)
    }
}

/// A line is recorded by then, and secrets may be worthless.
#[tokio::test(flavor = "multi_thread")]
async fn skips_the_prior_step_if_migration_is_impossible() {
    let etcd = EtcdServer::start();
    let (from, to) = (Place::new(Some((&etcd, "from"))), Place::new(None));
    fill(&from).await;
    let store = from.open().unwrap();
    let runtime = tokio::runtime::Handle::current();
    let write = || {
        let written = tokio::task::block_in_place(|| runtime.block_on(store.put(EntryKind::Name, entry("new"))));
        written.unwrap();
    };
    let moving = |meanwhile: &dyn Fn(), alone: &dyn Fn() -> Result<(), ExportError>| {
        let (mut source, mut target) = (source(&from.settings).unwrap(), target(&to.settings).unwrap());
        let becomes = becomes(&*source, &from.settings, &to.settings).unwrap();
        let told = Cell::new(false);
        let moved = move_over(
            &mut *source,
            &mut LookedThrough(&mut *target, Some(meanwhile)),
            &becomes,
            alone,
            |_| {
                told.set(true);
                Ok::<_, ExportError>(())
            },
        );
        assert!(!told.get());
        moved.unwrap_err()
    };
    assert!(matches!(moving(&write, &|| Ok(())), ExportError::WentOn));
    let served = || {
        Err(ExportError::Served {
            place: String::new(),
            hosts: String::new(),
        })
    };
    assert!(matches!(moving(&|| (), &served), ExportError::Served { .. }));
    assert!(from.holds().await && !to.holds().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_a_mismatched_expected_store_mark_once() {
    let etcd = EtcdServer::start();
    let (from, to) = (Place::new(None), Place::new(Some((&etcd, "to"))));
    fill(&from).await;
    let now = copied(&from, &to).unwrap().accepted.now;
    let beside = &to.settings.file;
    let other = StoreMark {
        id: schema::new_id().unwrap(),
        mark: 7,
        wrote: None,
    };
    let mark_file = to.settings.file.with_file_name("store.mark");
    // Of another store, of none, and what nobody can read.
    for known in [Some(Some(other)), Some(None), None] {
        match &known {
            Some(Some(mark)) => replace_mark(beside, mark).unwrap(),
            Some(None) => std::fs::remove_file(&mark_file).unwrap(),
            None => std::fs::write(&mark_file, "x").unwrap(),
        }
        for is_told in [true, false] {
            let told = Cell::new(false);
            let again = copy(&from.settings, &to.settings, |replacement| {
                told.set(true);
                assert_eq!(replacement.known, known.clone().flatten());
                Ok::<_, ExportError>(())
            });
            assert_eq!(again.unwrap().accepted.now, now);
            assert_eq!(told.get(), is_told, "{known:?}");
            assert_eq!(
                super::super::super::super::expected_store::ExpectedStore::load(beside)
                    .unwrap()
                    .expected(),
                Some(&now)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_migration_removes_keys_deleted_at_the_source() {
    let etcd = EtcdServer::start();
    let (from, to) = (Place::new(None), Place::new(Some((&etcd, "to"))));
    fill(&from).await;
    broken_off(&from.settings, &to.settings, Step::Put(700));
    let store = from.open().unwrap();
    for name in store.list(EntryKind::Name).await.unwrap().iter().take(3) {
        assert!(store.remove(EntryKind::Name, &name.id).await.unwrap());
    }
    drop(store);
    assert_eq!(copied(&from, &to).unwrap().contents.unwrap().count, 1197);
}
