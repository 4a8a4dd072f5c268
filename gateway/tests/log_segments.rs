//! Segments of the attestation log: closed, compressed, and one log despite concurrent events.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_log::{
    Blobs, CheckpointLine, CheckpointSigner, Decision, Journal, JournalError, LineHash, LogKey, Record, SegmentLimits, closed_segments,
    link_of,
};
use flate2::read::MultiGzDecoder;

use crate::support::killed_child::killed_after;
use crate::support::{Gateway, LIMIT, POOL, bearer};

/// Number of kills of the journal's process.
const KILLS: usize = 60;
/// Environment variable with the folder in which a child writes.
const CHILD_VARIABLE: &str = "ATTEST_SEGMENTS_CHILD";
const LOG: &str = "attestation.jsonl";
/// Limits for segments of a few lines.
const LIMITS: SegmentLimits = SegmentLimits {
    bytes: 2000,
    age: Duration::from_secs(3600),
    compress_after: Duration::ZERO,
};

fn open(folder: &Path, limits: SegmentLimits) -> Journal {
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    let signer = || CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), None, 1000);
    loop {
        match Journal::open(&folder.join(LOG), signer(), limits, blobs.clone(), Arc::new(())) {
            Err(JournalError::InUse(_)) => std::thread::yield_now(),
            opened => return opened.unwrap().0,
        }
    }
}

async fn write(journal: &Journal, id: &str, at: u64) {
    let record = Record::new(id.to_owned(), Decision::Config, at, "peer".to_owned(), POOL.to_owned());
    journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
}

fn text(file: &Path) -> String {
    let opened = fs::File::open(file).unwrap();
    if file.extension().is_some_and(|extension| extension == "gz") {
        return io::read_to_string(MultiGzDecoder::new(opened)).unwrap();
    }
    io::read_to_string(opened).unwrap()
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    closed_segments(&folder.join(LOG)).unwrap()
}

/// Returns the lines of a log in all of its files. Verifies that they are one chain, and that each segment ends with a checkpoint and is
/// followed by one.
fn whole(folder: &Path) -> Vec<String> {
    let mut files: Vec<String> = segments(folder).iter().map(|file| text(file)).collect();
    for closed in &files {
        serde_json::from_str::<CheckpointLine>(closed.lines().last().unwrap()).unwrap();
    }
    // As the process was killed it may have left half a line, or closed one file and not given the next its name.
    let open = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    files.push(open[..open.rfind('\n').map_or(0, |end| end + 1)].to_owned());
    for next in files[1..].iter().filter(|text| !text.is_empty()) {
        serde_json::from_str::<CheckpointLine>(next.lines().next().unwrap()).unwrap();
    }
    let lines: Vec<String> = files.iter().flat_map(|text| text.lines().map(str::to_owned)).collect();
    for (number, (before, line)) in (2..).zip(lines.iter().zip(&lines[1..])) {
        let link = link_of(line.as_bytes()).unwrap().unwrap();
        assert_eq!((link.number, link.previous), (number, LineHash::of(before.as_bytes())));
    }
    lines
}

/// Waits until all closed segments are compressed. Returns their paths.
fn compressed(folder: &Path) -> Vec<PathBuf> {
    // Whoever opens the log waits until whoever compresses is done.
    open(folder, SegmentLimits::NEVER).compress_closed();
    drop(open(folder, SegmentLimits::NEVER));
    segments(folder)
}

#[tokio::test]
async fn segments_are_closed_by_size_or_age() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path(), LIMITS);
    let closed = || segments(folder.path()).len();
    write(&journal, "a", 100).await;
    journal.checkpoint(100).await.unwrap();
    assert_eq!(closed(), 0);
    for number in 0..5 {
        write(&journal, &number.to_string(), 101).await;
    }
    // It is looked when a checkpoint is due, and then only.
    assert_eq!(closed(), 0);
    journal.checkpoint(102).await.unwrap();
    assert_eq!(closed(), 1);
    // One that begins is not closed again, however often that is asked, and however old it is.
    for at in [103, 200_000] {
        journal.checkpoint(at).await.unwrap();
        assert_eq!(closed(), 1);
    }
    write(&journal, "b", 200_001).await;
    journal.checkpoint(200_002).await.unwrap();
    assert_eq!(closed(), 2, "by its age");
    assert!(!journal.is_moved());
    drop(journal);
    let names: Vec<String> = compressed(folder.path())
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert!(names.iter().all(|name| name.ends_with(".gz")), "{names:?}");
    assert!(names[0].starts_with("attestation.jsonl.19700101T000140Z-") && names[0].contains("-000000000001."));
    assert_eq!(whole(folder.path()).len(), 12);
    for file in segments(folder.path()).iter().chain([&folder.path().join(LOG)]) {
        assert_eq!(
            fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o600,
            "{}",
            file.display()
        );
    }
}

#[tokio::test]
async fn a_symlinked_log_is_never_closed() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), folder.path().join(LOG)).unwrap();
    let journal = open(folder.path(), LIMITS);
    for number in 0..6 {
        write(&journal, &number.to_string(), 100).await;
    }
    journal.checkpoint(100).await.unwrap();
    assert_eq!(segments(folder.path()), [] as [PathBuf; 0]);
    assert_eq!(whole(folder.path()).len(), 7);
}

#[tokio::test]
async fn opening_the_log_waits_for_compression() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path(), LIMITS);
    for number in 0..6 {
        write(&journal, &number.to_string(), 100).await;
    }
    journal.checkpoint(100).await.unwrap();
    drop(journal);
    let [zipped] = &compressed(folder.path())[..] else { panic!() };
    // As if it had been killed before that was compressed.
    let segment = zipped.with_extension("");
    fs::write(&segment, text(zipped)).unwrap();
    fs::remove_file(zipped).unwrap();
    // Whoever opens the log waits until whoever compresses is gone.
    drop(open(folder.path(), LIMITS));
    drop(open(folder.path(), LIMITS));
    assert_eq!(segments(folder.path()), [segment]);
    assert_eq!(compressed(folder.path()), std::slice::from_ref(zipped));
}

#[tokio::test]
async fn the_chain_continues_after_a_renamed_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join(LOG);
    let journal = open(folder.path(), LIMITS);
    write(&journal, "a", 100).await;
    journal.checkpoint(100).await.unwrap();
    drop(journal);
    // Whoever holds the lock has let go.
    drop(open(folder.path(), LIMITS));
    fs::rename(&log, folder.path().join("attestation.jsonl-20261122")).unwrap();
    let journal = open(folder.path(), LIMITS);
    write(&journal, "b", 101).await;
    let link = link_of(fs::read(&log).unwrap().trim_ascii_end()).unwrap().unwrap();
    assert_eq!((link.number, link.begins), (3, None));
}

/// Process that [`kills_lose_or_duplicate_no_records`] kills, not a test by itself. It prints the acknowledged records.
#[tokio::test]
async fn child_that_closes() {
    let Some(folder) = std::env::var_os(CHILD_VARIABLE) else { return };
    let journal = open(Path::new(&folder), LIMITS);
    for number in 0_u64.. {
        let id = format!("{}-{number}", std::process::id());
        write(&journal, &id, 100).await;
        let said = rustix::io::write(io::stderr(), format!("acknowledged {id}\n").as_bytes());
        said.unwrap();
        if number % 3 == 2 {
            journal.checkpoint(100).await.unwrap();
        }
    }
}

#[test]
fn kills_lose_or_duplicate_no_records() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeSet::new();
    for kill in 0..KILLS {
        // So many more or less, that it is killed before, while and after a segment is closed.
        let before = 1 + kill * 7 % 23;
        acknowledged.extend(killed_after(
            before,
            "log_segments::child_that_closes",
            CHILD_VARIABLE,
            folder.path(),
        ));
    }
    drop(open(folder.path(), SegmentLimits::NEVER));
    assert!(compressed(folder.path()).len() > KILLS / 3);
    let lines = whole(folder.path());
    let ids: Vec<String> = lines
        .iter()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let recorded: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(recorded.len(), lines.len(), "each once");
    let mut said = acknowledged.iter().filter_map(|line| line.strip_prefix("acknowledged "));
    assert_eq!(said.find(|id| !recorded.contains(id)), None, "it was acknowledged, and is lost");
    assert!(acknowledged.len() > KILLS);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_reads_many_segments_as_one_log() {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2\ncompress_after_seconds = 0\n[ticket]\nuses = 20");
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    let ticket = gateway.ticket().await;
    let fetch = async |gateway: &Gateway| gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
    for _ in 0..8 {
        fetch(&gateway).await;
    }
    let state = gateway.path("state");
    let begun = Instant::now();
    while segments(&state).len() < 2 {
        assert!(begun.elapsed() < LIMIT);
        tokio::task::yield_now().await;
    }
    // Moved by somebody else, as ever; while it is being closed there is none for a moment.
    let [log, moved] = ["attestation.jsonl", "attestation.jsonl-moved"].map(|name| state.join(name));
    while let Err(error) = fs::rename(&log, &moved) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        tokio::task::yield_now().await;
    }
    gateway.hang_up();
    gateway.line(|line| line.contains("the attestation log was moved; started a new file"));
    for _ in 0..6 {
        fetch(&gateway).await;
    }
    let audited = |gateway: &Gateway, options: &[&str]| gateway.command(&[&["log", "audit"], options].concat());
    let own = audited(&gateway, &[]);
    assert!(own.contains("whole") && own.contains("15 as recorded, 0 different"), "{own}");
    gateway.terminate();
    gateway.wait();
    gateway.run();
    fetch(&gateway).await;
    let own = audited(&gateway, &[]);
    assert!(own.contains("whole") && own.contains("16 as recorded, 0 different"), "{own}");
    // A log is named, and its segments are read with it; the file that was moved has to be named, too.
    let [log, moved] = [&log, &moved].map(|path| path.to_str().unwrap());
    let both = audited(&gateway, &["--log", log, "--log", moved, "--checkpoints", &gateway.checkpoints()]);
    assert!(both.contains("whole") && both.contains("16 as recorded, 0 different"), "{both}");
    let one = gateway.try_command(&["log", "audit", "--log", log]);
    assert!(!one.status.success() && String::from_utf8_lossy(&one.stdout).contains("missing between"));
    // A segment that is named, too, is read once, however its name is spelled.
    let segment = segments(&state)[1].clone();
    let spelled = state.join("../state").join(segment.file_name().unwrap());
    for named in [&segment, &spelled] {
        let checkpoints = gateway.checkpoints();
        let both = [
            "--log",
            log,
            "--log",
            moved,
            "--log",
            named.to_str().unwrap(),
            "--checkpoints",
            &checkpoints,
        ];
        for options in [both, [both[4], both[5], both[0], both[1], both[2], both[3], both[6], both[7]]] {
            let said = audited(&gateway, &options);
            assert!(said.contains("whole") && said.contains("16 as recorded, 0 different"), "{said}");
        }
    }
    // And one is missed.
    let bytes = fs::read(&segment).unwrap();
    fs::remove_file(&segment).unwrap();
    let short = gateway.try_command(&["log", "audit"]);
    assert!(!short.status.success() && String::from_utf8_lossy(&short.stdout).contains("missing between"));
    fs::File::create(&segment).unwrap().write_all(&bytes).unwrap();
    audited(&gateway, &[]);
}
