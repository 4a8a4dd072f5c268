#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use super::*;
use attest_ignition::SpecVersion;
use attest_log::ConfigSet;
use attest_pool::SAMPLE;
use attest_pool::folder::FileReader;

/// Time long after every write of a test.
const LATER: Clock = Clock::Fixed(10_000_000_000);

fn config(state: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{{"path":"/etc/state","contents":{{"source":"data:,{state}"}}}}]}}}}"#
    )
}

/// Pools `a` and `b`, and files outside their folders that `a` uses.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for pool in ["pools/a", "pools/b"] {
            for set in ["full", "pre-approved"] {
                fixture.write(&format!("{pool}/{set}/config.ign"), &config("first"));
            }
            fixture.write(&format!("{pool}/pool.toml"), SAMPLE);
        }
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    async fn open(&self, clock: Clock) -> LivePools {
        let live = LivePools::open(&self.path("pools"), clock, Arc::default(), NeededState::default())
            .await
            .unwrap();
        assert_eq!(live.unserved(), []);
        self.tick();
        live
    }

    /// Waits until the file system's time is another one.
    fn tick(&self) {
        let probe = || {
            self.write("probe", "");
            changed(&self.path("probe"))
        };
        let before = probe();
        while probe() == before {}
    }
}

fn changed(path: &Path) -> (i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ctime(), metadata.ctime_nsec())
}

fn pool(live: &LivePools, name: &str) -> Arc<Pool> {
    match live.get(name) {
        Lookup::Pool(pool) => pool,
        other => panic!("{name}: {other:?}"),
    }
}

async fn judged(live: &LivePools, occasion: ReloadCause) -> Vec<String> {
    live.reload(occasion, None).await.into_iter().collect()
}

#[tokio::test]
async fn reloads_only_pools_with_changed_files() {
    let fixture = Fixture::new();
    let live = fixture.open(LATER).await;
    let before = ["a", "b"].map(|name| pool(&live, name));
    assert_eq!(judged(&live, ReloadCause::Change).await, [""; 0]);
    fixture.write("pools/a/full/config.ign", &config("second"));
    assert_eq!(judged(&live, ReloadCause::Change).await, ["a"]);
    assert!(!Arc::ptr_eq(&pool(&live, "a"), &before[0]) && Arc::ptr_eq(&pool(&live, "b"), &before[1]));
    assert_eq!(judged(&live, ReloadCause::Revalidation).await, [""; 0]);
    // At the administrator's word everything is, and what comes to the same stays what it was.
    assert_eq!(judged(&live, ReloadCause::Signal).await, ["a", "b"]);
    assert!(Arc::ptr_eq(&pool(&live, "b"), &before[1]));
    // One that is broken is read until it is well.
    fixture.write("pools/b/full/config.ign", "{");
    for occasion in [ReloadCause::Change, ReloadCause::Revalidation] {
        assert_eq!(judged(&live, occasion).await, ["b"]);
    }
    assert!(live.broken_sources()["b"].contains("config.ign"));
    fixture.write("pools/b/full/config.ign", &config("first"));
    assert_eq!(judged(&live, ReloadCause::Change).await, ["b"]);
    assert_eq!(live.broken_sources(), BTreeMap::new());
    assert!(
        Arc::ptr_eq(&pool(&live, "b"), &before[1]),
        "its last good state is what it says again"
    );
    assert_eq!(judged(&live, ReloadCause::Change).await, [""; 0]);
    // The folders of those that were not read are watched still.
    assert!(live.watched().contains(&fixture.path("pools/b/full")));
}

#[tokio::test]
async fn detects_every_change_of_a_pools_files() {
    type Change = fn(&Fixture);
    /// Makes a link through which `..1` is served, like in a volume of Kubernetes.
    fn volume(fixture: &Fixture) {
        for (version, state) in [("..1", "first"), ("..2", "second")] {
            fixture.write(&format!("pools/a/volume/{version}/config.ign"), &config(state));
        }
        symlink("..1", fixture.path("pools/a/volume/..data")).unwrap();
        symlink("..data/config.ign", fixture.path("pools/a/volume/config.ign")).unwrap();
        fs::remove_dir_all(fixture.path("pools/a/full")).unwrap();
        symlink("volume", fixture.path("pools/a/full")).unwrap();
    }
    fn link(fixture: &Fixture) {
        for state in ["first", "second"] {
            fixture.write(&format!("elsewhere/{state}.ign"), &config(state));
        }
        fs::remove_file(fixture.path("pools/a/full/config.ign")).unwrap();
        symlink(fixture.path("elsewhere/first.ign"), fixture.path("pools/a/full/config.ign")).unwrap();
    }
    fn outside(fixture: &Fixture) {
        fixture.write("elsewhere/machines", "gcp:p/1\n");
        let toml = format!("{SAMPLE}\n[inventory]\ninstances = {:?}\n", fixture.path("elsewhere/machines"));
        fixture.write("pools/a/pool.toml", &toml);
    }
    let nothing: Change = |_| ();
    let cases: [(&str, Change, Change); 11] = [
        ("a file with the same size and time", nothing, |fixture| {
            let path = fixture.path("pools/a/full/config.ign");
            let before = fs::metadata(&path).unwrap();
            fs::write(&path, config("other")).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
            let after = fs::metadata(&path).unwrap();
            assert_eq!(
                (before.ino(), before.len(), before.modified().unwrap()),
                (after.ino(), after.len(), after.modified().unwrap())
            );
        }),
        ("a file in the place of another", nothing, |fixture| {
            fixture.write("new", &config("other"));
            fs::rename(fixture.path("new"), fixture.path("pools/a/full/config.ign")).unwrap();
        }),
        ("a file that appears", nothing, |fixture| {
            fixture.write(
                "pools/a/full/more.ign",
                r#"{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/more"}]}}"#,
            );
        }),
        (
            "a file that disappears",
            |fixture| fixture.write("pools/a/full/more.ign", &config("second")),
            |fixture| fs::remove_file(fixture.path("pools/a/full/more.ign")).unwrap(),
        ),
        ("a folder that appears", nothing, |fixture| {
            fixture.write(
                "pools/a/machine-configs/a.yaml",
                "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: a\n  labels: {machineconfiguration.openshift.io/role: worker}\n",
            );
        }),
        (
            "a folder in the place of another",
            |fixture| fixture.write("pools/a/new/config.ign", &config("second")),
            |fixture| {
                fs::rename(fixture.path("pools/a/full"), fixture.path("pools/a/old")).unwrap();
                fs::rename(fixture.path("pools/a/new"), fixture.path("pools/a/full")).unwrap();
            },
        ),
        (
            "another pool's folder in the place of this one's",
            |fixture| {
                fixture.write("other/pool.toml", SAMPLE);
                fixture.write("other/pre-approved/config.ign", &config("second"));
                fixture.write("other/full/config.ign", &config("second"));
            },
            |fixture| {
                fs::rename(fixture.path("pools/a"), fixture.path("old")).unwrap();
                fs::rename(fixture.path("other"), fixture.path("pools/a")).unwrap();
            },
        ),
        ("a link that leads elsewhere", link, |fixture| {
            symlink(fixture.path("elsewhere/second.ign"), fixture.path("new")).unwrap();
            fs::rename(fixture.path("new"), fixture.path("pools/a/full/config.ign")).unwrap();
        }),
        ("a file that a link leads to", link, |fixture| {
            fixture.write("elsewhere/first.ign", &config("other"));
        }),
        ("a link to a folder, as Kubernetes swaps it", volume, |fixture| {
            symlink("..2", fixture.path("pools/a/volume/..new")).unwrap();
            fs::rename(fixture.path("pools/a/volume/..new"), fixture.path("pools/a/volume/..data")).unwrap();
        }),
        ("a file that pool.toml names", outside, |fixture| {
            fixture.write("elsewhere/machines", "gcp:p/2\n");
        }),
    ];
    for (case, before, change) in cases {
        let fixture = Fixture::new();
        before(&fixture);
        let live = fixture.open(LATER).await;
        let old = ["a", "b"].map(|name| pool(&live, name));
        assert_eq!(judged(&live, ReloadCause::Change).await, [""; 0], "{case}");
        change(&fixture);
        assert_eq!(judged(&live, ReloadCause::Change).await, ["a"], "{case}");
        assert!(!old[0].same(&pool(&live, "a")), "{case}");
        assert!(Arc::ptr_eq(&old[1], &pool(&live, "b")), "{case}");
        assert_eq!(live.broken_sources(), BTreeMap::new(), "{case}");
    }
}

/// A link whose target changes to the same file in other folders: changes happen in these folders from now on, so they have to be watched.
#[tokio::test]
async fn watches_new_folders_of_a_retargeted_symlink() {
    let fixture = Fixture::new();
    fixture.write("one/config.ign", &config("second"));
    fs::create_dir(fixture.path("two")).unwrap();
    fs::hard_link(fixture.path("one/config.ign"), fixture.path("two/config.ign")).unwrap();
    symlink("one", fixture.path("way")).unwrap();
    fs::remove_file(fixture.path("pools/a/full/config.ign")).unwrap();
    symlink(fixture.path("way/config.ign"), fixture.path("pools/a/full/config.ign")).unwrap();
    let live = fixture.open(LATER).await;
    let two = fs::canonicalize(fixture.path("two")).unwrap();
    assert!(!live.watched().contains(&two));
    symlink("two", fixture.path("new")).unwrap();
    fs::rename(fixture.path("new"), fixture.path("way")).unwrap();
    assert_eq!(judged(&live, ReloadCause::Change).await, ["a"]);
    assert!(live.watched().contains(&two));
}

/// The file system's clock is coarse: two writes within one of its ticks cannot be told apart.
#[tokio::test]
async fn rereads_a_file_modified_just_before_reading() {
    let fixture = Fixture::new();
    let (written, _) = changed(&fixture.path("pools/b/pool.toml"));
    let at = |seconds: i64| Clock::Fixed((written + seconds).try_into().unwrap());
    let live = fixture.open(at(1)).await;
    assert_eq!(judged(&live, ReloadCause::Change).await, ["a", "b"]);
    let live = fixture.open(at(60)).await;
    assert_eq!(judged(&live, ReloadCause::Change).await, [""; 0]);
}

#[tokio::test]
async fn a_machine_in_two_inventories_breaks_both_pools() {
    let fixture = Fixture::new();
    let toml = |pool: &str| format!("{SAMPLE}\n[inventory]\ninstances = {:?}\n", fixture.path(pool).join("machines"));
    for (pool, machine) in [("a", "gcp:p/1\n"), ("b", "gcp:p/2\n")] {
        fixture.write(&format!("{pool}/machines"), machine);
        fixture.write(&format!("pools/{pool}/pool.toml"), &toml(pool));
    }
    let live = fixture.open(LATER).await;
    let before = ["a", "b"].map(|name| pool(&live, name));
    assert_eq!(judged(&live, ReloadCause::Change).await, [""; 0]);
    fixture.write("b/machines", "gcp:p/2\ngcp:p/1\n");
    assert_eq!(judged(&live, ReloadCause::Change).await, ["b"]);
    let broken = live.broken_sources();
    assert!(broken["a"].contains("gcp:p/1") && broken["b"].contains("gcp:p/1"), "{broken:?}");
    // As long as it lasts, and what else may happen.
    live.reload(ReloadCause::Change, None).await;
    assert_eq!(live.broken_sources(), broken);
    fixture.write("b/machines", "gcp:p/2\n");
    assert_eq!(judged(&live, ReloadCause::Change).await, ["a", "b"]);
    assert_eq!(live.broken_sources(), BTreeMap::new());
    for (name, before) in ["a", "b"].iter().zip(&before) {
        assert!(Arc::ptr_eq(&pool(&live, name), before));
    }
}

#[tokio::test]
async fn replaced_states_are_few_and_short_lived() {
    let fixture = Fixture::new();
    let state = |text: &str| {
        fixture.write("pools/a/full/config.ign", &config(text));
        let read = FileReader::default().pool(&fixture.path("pools/a")).unwrap();
        Arc::new(Pool::from_folder("a", read).unwrap())
    };
    let render = |live: &Live| {
        let pool = live.pool.as_ref().unwrap();
        pool.check_expressible(ConfigSet::Full, SpecVersion::V3_4).unwrap();
    };
    let mut live = Live::default().replaced(state("0"), 100);
    assert_eq!((live.since, live.previous.len()), (100, 0));
    // Nobody has asked for it, so nobody was promised it.
    live = live.replaced(state("1"), 101);
    assert_eq!((live.since, live.previous.len()), (101, 0));
    render(&live);
    // Another policy with the same configs replaces nothing that was promised.
    live = live.replaced(state("1"), 102);
    assert_eq!((live.since, live.previous.len()), (101, 0));
    for number in 2..9 {
        render(&live);
        live = live.replaced(state(&number.to_string()), 101 + number);
    }
    assert_eq!((live.since, live.previous.len()), (109, 4));
    render(&live);
    live = live.replaced(state("last"), 2000);
    assert_eq!((live.since, live.previous.len()), (2000, 1), "the others are too old");
}
