use std::path::Path;
use std::sync::Barrier;

use super::*;

/// Returns a log of about this length: the measurements of a model, and somewhere in it this machine's own.
fn log(model: u8, machine: u64, length: usize) -> Vec<u8> {
    let event = |content: &[u8]| Blobs::name(content).into_bytes();
    let mut log = Vec::new();
    for number in 0..length / 64 {
        let own = number % (length / 256) == 3;
        log.extend(event(format!("{model} {number} {}", if own { machine } else { 0 }).as_bytes()));
    }
    log
}

fn site() -> (tempfile::TempDir, Blobs) {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path()).unwrap();
    (folder, blobs)
}

fn file(folder: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    Path::new(folder.path()).join(format!("{name}.gz"))
}

/// Returns the form in which a log is recorded, and writes its blob to disk.
fn store_log(likenesses: &DeltaBases, blobs: &Blobs, log: &[u8]) -> Likened {
    let likened = likenesses.liken(log.to_vec(), true);
    let (name, content) = &likened.blob;
    blobs.put(name, content).unwrap();
    likened
}

fn read(blobs: &Blobs, likened: &Likened) -> Result<Vec<u8>, DeltaError> {
    event_log(blobs, &likened.sha256, likened.difference.as_ref())
}

#[test]
fn similar_event_log_round_trips_as_a_delta() {
    // A dictionary is of use as a whole, however long it is: what differs stands everywhere in the log.
    for length in [16, 34, 64, 128, 256, 1000].map(|kibibytes| kibibytes * 1024) {
        let ((folder, blobs), likenesses) = (site(), DeltaBases::default());
        let (first, second) = (log(1, 1, length), log(1, 2, length));
        let base = store_log(&likenesses, &blobs, &first);
        assert_eq!((base.difference.clone(), &base.blob.0), (None, &base.sha256));
        let likened = store_log(&likenesses, &blobs, &second);
        assert_eq!(likened.sha256, Blobs::name(&second));
        let difference = likened.difference.as_ref().unwrap();
        assert!(difference.zstd.0.len() < length / 40 + 600, "{length}: {}", difference.zstd.0.len());
        assert_eq!(
            (&difference.from, &likened.blob.0, &*likened.blob.1),
            (&base.sha256, &base.sha256, &first[..])
        );
        assert!(Arc::ptr_eq(&likened.blob.1, &base.blob.1), "nothing is copied");
        assert_eq!(
            (read(&blobs, &base).unwrap(), read(&blobs, &likened).unwrap()),
            (first.clone(), second)
        );
        // The same once more is the blob that is there.
        let again = store_log(&likenesses, &blobs, &first);
        assert!(again.difference.is_none() && Arc::ptr_eq(&again.blob.1, &base.blob.1));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn compressor_is_reused_and_reset_after_failure() {
    let ((_folder, blobs), likenesses) = (site(), DeltaBases::default());
    for machine in 1..6 {
        for model in 1..4 {
            let log = log(model, machine, 8192 + 64 * usize::from(model));
            let likened = store_log(&likenesses, &blobs, &log);
            // The first of a model is like none of those before.
            assert_eq!(likened.difference.is_none(), machine == 1);
            assert_eq!(read(&blobs, &likened).unwrap(), log);
        }
    }
    assert_eq!(likenesses.compressors.0.lock().unwrap().len(), 1);
}

#[test]
fn reports_an_event_log_that_cannot_be_reconstructed() {
    let ((folder, blobs), likenesses) = (site(), DeltaBases::default());
    let base = store_log(&likenesses, &blobs, &log(1, 1, 8192));
    let likened = store_log(&likenesses, &blobs, &log(1, 2, 8192));
    let other = store_log(&likenesses, &blobs, &log(2, 1, 8192));
    assert!(other.difference.is_none());
    let difference = likened.difference.clone().unwrap();
    let said = |difference: &LogDifference| event_log(&blobs, &likened.sha256, Some(difference)).unwrap_err().to_string();
    let with = |zstd: Vec<u8>| LogDifference {
        from: difference.from.clone(),
        zstd: Blob(zstd),
    };
    // Whatever byte of it is altered, and wherever it ends.
    for place in 0..difference.zstd.0.len() {
        let mut altered = difference.zstd.0.clone();
        altered[place] ^= 1;
        // A bit of the head may mean nothing.
        if let Ok(found) = event_log(&blobs, &likened.sha256, Some(&with(altered))) {
            assert_eq!(found, log(1, 2, 8192));
        }
        assert!(event_log(&blobs, &likened.sha256, Some(&with(difference.zstd.0[..place].to_vec()))).is_err());
    }
    let mut altered = difference.zstd.0.clone();
    *altered.last_mut().unwrap() ^= 1;
    for (altered, what) in [
        (altered, ""),
        (b"no frame".to_vec(), "its difference is altered"),
        (Vec::new(), "does not have that SHA-256"),
        (difference.zstd.0.repeat(2), "does not have that SHA-256"),
    ] {
        let said = said(&with(altered));
        assert!(
            said.contains(&likened.sha256) && said.contains(&base.sha256) && said.contains(what),
            "{said}"
        );
    }
    // It is the difference to another log.
    let from_other = LogDifference {
        from: other.sha256.clone(),
        ..difference.clone()
    };
    assert!(said(&from_other).contains(&other.sha256));
    // The log that it is like was altered; it is missing.
    let path = file(&folder, &base.sha256);
    std::fs::copy(file(&folder, &other.sha256), &path).unwrap();
    assert!(said(&difference).contains(&format!("{}.gz: the content does not have", base.sha256)));
    std::fs::remove_file(&path).unwrap();
    assert!(said(&difference).contains(&format!("{}.gz: No such file", base.sha256)));
}

#[test]
fn delta_is_not_decompressed_beyond_the_content_limit() {
    let ((_folder, blobs), likenesses) = (site(), DeltaBases::default());
    let base = store_log(&likenesses, &blobs, &log(1, 1, 8192));
    let limit = EVENT_LOG_LIMIT_BYTES;
    let read = |zstd: Vec<u8>, sha256: &str| {
        let from = base.sha256.clone();
        event_log(&blobs, sha256, Some(&LogDifference { from, zstd: Blob(zstd) }))
    };
    let zeros = vec![0; limit + 1];
    let frame = |length: usize| zstd::bulk::compress(&zeros[..length], LEVEL).unwrap();
    assert!(read(frame(limit), &Blobs::name(&zeros[..limit])).is_ok());
    // One frame, several, and one that does not say how long it is.
    let streamed = zstd::stream::encode_all(&*zeros, LEVEL).unwrap();
    assert!(Decompressor::upper_bound(&streamed).is_none());
    let several = [frame(limit), frame(1)].concat();
    for (zstd, what) in [
        (frame(limit + 1), "more than 4194304"),
        (several, "more than 4194304"),
        (streamed, "too small"),
    ] {
        let error = read(zstd, &Blobs::name(&zeros)).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn delta_must_be_base64() {
    let line = |difference: serde_json::Value| {
        let basis = serde_json::json!({"allowlisted": false, "event_log_sha256": "ab", "event_log_difference": difference});
        serde_json::from_value::<super::super::Basis>(basis)
    };
    let read = line(serde_json::json!({"from": "cd", "zstd": "AQI="})).unwrap();
    assert_eq!(read.event_log_difference.unwrap().zstd.0, [1, 2]);
    for wrong in [
        serde_json::json!({"from": "cd", "zstd": "no base64!"}),
        serde_json::json!({"from": "cd"}),
        serde_json::json!({"zstd": "AQI="}),
        serde_json::json!({"from": "cd", "zstd": "AQI=", "more": 1}),
    ] {
        line(wrong).unwrap_err();
    }
    // Of a log that is kept whole.
    let whole = serde_json::json!({"allowlisted": false, "event_log_sha256": "ab"});
    let whole: super::super::Basis = serde_json::from_value(whole).unwrap();
    assert!(whole.event_log_difference.is_none());
}

#[test]
fn concurrent_similar_logs_share_one_whole_base() {
    const TOGETHER: usize = 16;
    for _ in 0..20 {
        let (likenesses, barrier) = (DeltaBases::default(), Barrier::new(TOGETHER));
        // More others than a log is compared with, of the same length.
        for model in 10..16 {
            assert!(likenesses.liken(log(model, 1, 8192), true).difference.is_none());
        }
        let whole = std::thread::scope(|scope| {
            let boots = (0..TOGETHER).map(|machine| {
                let (likenesses, barrier) = (&likenesses, &barrier);
                scope.spawn(move || {
                    let log = log(1, u64::try_from(machine).unwrap(), 8192);
                    barrier.wait();
                    likenesses.liken(log, true).difference.is_none()
                })
            });
            let boots: Vec<_> = boots.collect();
            boots
                .into_iter()
                .filter(|_| true)
                .map(|boot| boot.join().unwrap())
                .filter(|whole| *whole)
                .count()
        });
        assert_eq!(whole, 1);
        assert_eq!(likenesses.lock().by_use.len(), 7);
    }
}

#[test]
fn evicts_the_least_recently_used_delta_base() {
    let likenesses = DeltaBases::default();
    let is_whole = |model: u8, machine: u64| {
        let length = 2048 + 256 * usize::from(model);
        likenesses.liken(log(model, machine, length), true).difference.is_none()
    };
    let limit = u8::try_from(BASES_LIMIT).unwrap();
    assert!((0..limit).all(|model| is_whole(model, 1)));
    assert!(!is_whole(0, 2), "it is used");
    assert!(is_whole(limit, 1));
    assert_eq!(likenesses.lock().by_use.len(), BASES_LIMIT);
    assert!(!is_whole(0, 3) && !is_whole(limit, 2));
    assert!(is_whole(1, 2), "it has gone");
}

#[test]
fn unsuitable_logs_are_not_used_as_delta_base() {
    let likenesses = DeltaBases::default();
    let mut dictionary = log(1, 1, 8192);
    dictionary[..4].copy_from_slice(&DICTIONARY_MAGIC);
    for (log, is_trusted) in [
        (log(1, 1, 8192), false),
        (log(1, 1, 512), true),
        (log(1, 1, BASE_BYTES.end() + 64), true),
        (dictionary, true),
        (Vec::new(), true),
    ] {
        let likened = likenesses.liken(log.clone(), is_trusted);
        assert_eq!((likened.difference, &*likened.blob.1), (None, &log[..]));
        assert!(likenesses.lock().by_use.is_empty());
    }
    assert!(likenesses.liken(log(1, 1, 8192), true).difference.is_none());
    // Whoever is refused is compared with those that are held.
    assert!(likenesses.liken(log(1, 2, 8192), false).difference.is_some());
    // One that begins as a dictionary does is no worse than any.
    let mut odd = log(1, 3, 8192);
    odd[..4].copy_from_slice(&DICTIONARY_MAGIC);
    assert!(likenesses.liken(odd, true).difference.is_some());
}
