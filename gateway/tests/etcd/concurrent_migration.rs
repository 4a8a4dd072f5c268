//! Exports and imports while other processes write and import.

use std::cell::RefCell;
use std::io::{BufRead, Cursor, Read, Write};

use attest_gateway::settings::Settings;
use attest_store::{AcceptedStore, Contents, EntryKind, ExportError, Store, StoreEntry, export, import};

use super::export::gateway;
use super::*;
use crate::support::Gateway;

fn settings_of(gateway: &Gateway) -> Settings {
    Settings::load(&gateway.path("etcd.toml")).unwrap()
}

fn exported(settings: &Settings) -> (String, Contents) {
    let mut text = Vec::new();
    let contents = export(&settings.store, &mut text).unwrap().contents;
    (String::from_utf8(text).unwrap(), contents)
}

/// Writer that stores its data, and runs a step at this length.
struct Interleaved<F> {
    text: Vec<u8>,
    at: usize,
    then: Option<F>,
}

impl<F: FnOnce()> Write for Interleaved<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(bytes);
        if self.text.len() >= self.at
            && let Some(then) = self.then.take()
        {
            then();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_a_snapshot_despite_concurrent_writes() {
    let site = Site::start();
    let gateway = gateway(&site);
    let store = site.open("one");
    let names: Vec<StoreEntry> = (0..3000)
        .map(|number| StoreEntry {
            id: format!("worker-{number:04}"),
            value: "{}".to_owned(),
        })
        .collect();
    for page in names.chunks(100) {
        assert!(store.change(EntryKind::Name, Vec::new(), page.to_vec()).await.unwrap());
    }
    let settings = settings_of(&gateway);
    let (before, contents) = exported(&settings);
    // When the first keys are written down, and the last ones are not read yet, the last ones change.
    let mut out = Interleaved {
        text: Vec::new(),
        at: 1000,
        then: Some(|| {
            let key = |name: &str| format!("a/gateway/kv/entry/name/{name}");
            let (last, another) = (key("worker-2999"), key("worker-9999"));
            let value = site.etcd.ctl(&["get", "--print-value-only", &last]);
            site.etcd.ctl(&["put", &another, value.trim()]);
            site.etcd.ctl(&["del", &last]);
            site.etcd.ctl(&["put", &key("worker-2998"), "changed"]);
        }),
    };
    let meanwhile = export(&settings.store, &mut out).unwrap();
    assert!(out.then.is_none());
    assert_eq!(meanwhile.contents, contents);
    assert_eq!(String::from_utf8(out.text).unwrap(), before);
    assert_ne!(exported(&settings).1, contents, "and then it is otherwise");
}

/// File with a step that runs while it is read.
struct Interrupted {
    text: Cursor<Vec<u8>>,
    at: u64,
    then: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Read for Interrupted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.text.read(buffer)
    }
}

impl BufRead for Interrupted {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        let then = if self.text.position() >= self.at { self.then.take() } else { None };
        if let Some(then) = then {
            then();
        }
        self.text.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.text.consume(count);
    }
}

/// Returns a store with this number of entries of this name, as a file.
fn file(name: &str, entries: usize) -> String {
    let (folder, runtime) = (
        tempfile::tempdir().unwrap(),
        tokio::runtime::Builder::new_current_thread().build().unwrap(),
    );
    let store = attest_store::Embedded::open(&folder.path().join("gateway.db")).unwrap();
    let names = (0..entries).map(|number| StoreEntry {
        id: format!("{name}-{number:04}"),
        value: "{}".to_owned(),
    });
    assert!(
        runtime
            .block_on(store.change(EntryKind::Name, Vec::new(), names.collect()))
            .unwrap()
    );
    let mut settings = Settings::defaults(folder.path()).unwrap();
    settings.store.file = folder.path().join("gateway.db");
    exported(&settings).0
}

/// Runs two concurrent imports into one store: the second starts at this point of the first, and wins.
fn second_comes(site: &Site, at: impl Fn(usize) -> u64, before_the_end: bool) {
    let (first, second) = (gateway(site), gateway(site));
    let (first, second) = (settings_of(&first), settings_of(&second));
    let (of_first, of_second) = (file("first", 2500), file("second", 700));
    for settings in [&first, &second] {
        std::fs::create_dir_all(&settings.state).unwrap();
    }
    let take_second = {
        let (settings, text) = (second.clone(), of_second.clone());
        move || {
            let open = || Ok::<Box<dyn BufRead>, _>(Box::new(Cursor::new(text.clone().into_bytes())));
            import(&settings.store, open, |_| Ok::<_, ExportError>(())).unwrap();
        }
    };
    let then: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::new(Some(Box::new(take_second)));
    let reads = RefCell::new(0);
    let open = || {
        *reads.borrow_mut() += 1;
        // It is looked through first, and taken then.
        let then = if *reads.borrow() == 2 && !before_the_end {
            then.take()
        } else {
            None
        };
        Ok::<Box<dyn BufRead>, _>(Box::new(Interrupted {
            text: Cursor::new(of_first.clone().into_bytes()),
            at: at(of_first.len()),
            then: RefCell::new(then),
        }))
    };
    let taken: Result<(AcceptedStore, Contents), ExportError> = import(&first.store, open, |_| {
        if let Some(then) = then.take() {
            then();
        }
        Ok(())
    });
    assert!(matches!(taken, Err(ExportError::Store(StoreError::Replaced(_)))), "{taken:?}");
    let keys = site.etcd.ctl(&["get", "--prefix", "--keys-only", "a/gateway/"]);
    assert!(!keys.contains("first-"), "nothing of the first one is there");
    let (text, _) = exported(&second);
    let lines = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&text), lines(&of_second));
}

#[test]
fn the_later_of_two_concurrent_imports_wins() {
    let site = Site::start();
    for before_the_end in [false, true] {
        for at in [0, 2, 10] {
            site.etcd.ctl(&["del", "--prefix", ""]);
            second_comes(&site, |length| u64::try_from(length).unwrap() * at / 10, before_the_end);
        }
    }
}
