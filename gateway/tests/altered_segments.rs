//! Output of `audit` for altered closed segments: it names each alteration, and no harmless changes.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest_log::{Blobs, CheckpointSigner, DecidedBy, Decision, Journal, LogKey, Record, SegmentLimits, closed_segments};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::support::folder::Folder;
use crate::support::{Gateway, POOL};

/// Segments of two gateways, each closed at every third line.
struct Site {
    gateway: Gateway,
    a: PathBuf,
    b: PathBuf,
}

/// Writes a log of closed segments, compressed, and an open one: lines 1 to 4, 5 to 8, 9 to 12, and 13.
async fn written(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let mut watched = Folder::watched(folder);
    let key = || LogKey::open(&folder.join("log.key")).unwrap();
    fs::write(folder.join("log.pub"), key().public().pem()).unwrap();
    let log = folder.join("attestation.jsonl");
    let limits = SegmentLimits {
        bytes: 1,
        age: Duration::MAX,
        compress_after: Duration::ZERO,
    };
    let open = |limits| {
        let blobs = Blobs::open(&folder.join("evidence")).unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap();
        Journal::open(
            &log,
            CheckpointSigner::new(key(), Some(name), 1000),
            limits,
            blobs,
            std::sync::Arc::new(()),
        )
    };
    let (journal, _) = open(limits).unwrap();
    journal.checkpoint(1_700_000_000).await.unwrap();
    for at in 1_700_000_001..1_700_000_004 {
        for _ in 0..2 {
            journal.record(&refusal(at), Vec::new(), ()).await.unwrap().into_inner();
        }
        journal.checkpoint(at).await.unwrap();
    }
    // Another thread compresses them, one after the other.
    let is_compressed = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "gz");
    let compressed = || closed_segments(&log).unwrap().iter().filter(|file| is_compressed(file)).count();
    watched.comes_to("three are compressed", || compressed() == 3).await;
    drop(journal);
    while open(SegmentLimits::NEVER).is_err() {
        std::thread::yield_now();
    }
}

fn refusal(at: u64) -> Record {
    use std::hash::{BuildHasher, RandomState};
    let id = format!("{:032x}", RandomState::new().hash_one(at));
    let mut record = Record::new(id, Decision::Config, at, "192.0.2.1:7".to_owned(), POOL.to_owned());
    record.code = Some("evidence-required".to_owned());
    record.decided_by = DecidedBy::Policy;
    record.reason = "nothing was shown".to_owned();
    record
}

fn unzipped(file: &Path) -> String {
    io::read_to_string(MultiGzDecoder::new(fs::File::open(file).unwrap())).unwrap()
}

fn zipped(text: &str, level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Returns the name without `.gz` at its end.
fn plain(file: &Path) -> PathBuf {
    file.with_extension("")
}

impl Site {
    async fn new() -> Self {
        let gateway = Gateway::init();
        let (a, b) = (gateway.path("a"), gateway.path("b"));
        written(&a).await;
        written(&b).await;
        Self { gateway, a, b }
    }

    fn segments(folder: &Path) -> Vec<PathBuf> {
        closed_segments(&folder.join("attestation.jsonl")).unwrap()
    }

    /// Alters a copy of a's log. Returns whether `audit` finds it sound, and its output.
    fn after(&self, alter: impl FnOnce(&Path, &[PathBuf])) -> (bool, String) {
        let given = self.gateway.path("given");
        drop(fs::remove_dir_all(&given));
        fs::create_dir(&given).unwrap();
        let log = self.a.join("attestation.jsonl");
        for file in Self::segments(&self.a).iter().chain([&log]) {
            fs::copy(file, given.join(file.file_name().unwrap())).unwrap();
        }
        let holds = self.gateway.path("last.checkpoint");
        fs::write(&holds, fs::read_to_string(&log).unwrap().lines().last().unwrap()).unwrap();
        alter(&given.join("attestation.jsonl"), &Self::segments(&given));
        let keys = [&self.a, &self.b].map(|folder| folder.join("log.pub"));
        let mut arguments = vec!["log", "audit", "--log", given.to_str().unwrap(), "--holds", holds.to_str().unwrap()];
        for key in &keys {
            arguments.extend(["--log-key", key.to_str().unwrap()]);
        }
        let output = self.gateway.try_command(&arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }
}

#[tokio::test]
async fn recompressing_a_segment_keeps_the_chain_whole() {
    let site = Site::new().await;
    let good = |what: &str, alter: &dyn Fn(&Path, &[PathBuf])| {
        let (sound, text) = site.after(alter);
        assert!(sound && text.contains("whole") && text.contains("6 as recorded"), "{what}: {text}");
    };
    good("nothing", &|_, _| {});
    good("compressed otherwise", &|_, files| {
        fs::write(&files[1], zipped(&unzipped(&files[1]), Compression::best())).unwrap();
    });
    good("not compressed", &|_, files| {
        fs::write(plain(&files[1]), unzipped(&files[1])).unwrap();
        fs::remove_file(&files[1]).unwrap();
    });
    good("both, while it is compressed", &|_, files| {
        fs::write(plain(&files[1]), unzipped(&files[1])).unwrap();
    });
    good("both, and the compressed one not whole", &|_, files| {
        fs::write(plain(&files[1]), unzipped(&files[1])).unwrap();
        fs::write(&files[1], "").unwrap();
    });
    good("two that have each other's name", &|_, files| {
        let [first, second] = [0, 1].map(|index| fs::read(&files[index]).unwrap());
        fs::write(&files[0], second).unwrap();
        fs::write(&files[1], first).unwrap();
    });
    good("two in one", &|_, files| {
        let both = [fs::read(&files[0]).unwrap(), fs::read(&files[1]).unwrap()].concat();
        fs::write(&files[0], both).unwrap();
        fs::remove_file(&files[1]).unwrap();
    });
    good("another program's name", &|log, files| {
        fs::rename(&files[1], log.with_extension("jsonl.1.gz")).unwrap();
    });
    good("what was begun when it was killed", &|log, files| {
        fs::write(log.with_extension("gz.new"), &fs::read(&files[0]).unwrap()[..20]).unwrap();
        fs::write(log.with_extension("next"), "half a li").unwrap();
    });
}

#[tokio::test]
async fn every_alteration_of_a_closed_segment_is_named() {
    let site = Site::new().await;
    let others = Site::segments(&site.b);
    let says = |what: &str, expected: &str, alter: &dyn Fn(&Path, &[PathBuf])| {
        let (sound, text) = site.after(alter);
        (sound || !text.contains(expected)).then(|| format!("{what}: {expected:?} is not in:\n{text}"))
    };
    let edit = |file: &Path, from: &str, to: &str| {
        let text = unzipped(file);
        let altered = text.replacen(from, to, 1);
        assert_ne!(altered, text, "{from}");
        fs::write(file, zipped(&altered, Compression::fast())).unwrap();
    };
    let missed = [
        says("the first is gone", "missing before line", &|_, files| {
            fs::remove_file(&files[0]).unwrap()
        }),
        says("one in the middle", "missing between", &|_, files| {
            fs::remove_file(&files[1]).unwrap()
        }),
        says("the last closed one", "missing between", &|_, files| {
            fs::remove_file(&files[2]).unwrap()
        }),
        says("all closed ones", "missing before line", &|_, files| {
            files.iter().for_each(|file| fs::remove_file(file).unwrap());
        }),
        says("the open one", "shortened after line", &|log, _| fs::remove_file(log).unwrap()),
        says("one with nothing in it", "missing between", &|_, files| {
            fs::write(&files[1], zipped("", Compression::fast())).unwrap();
        }),
        says("one twice", "doubled: ", &|log, files| {
            fs::copy(&files[1], log.with_extension("jsonl.2.gz")).map(drop).unwrap();
        }),
        says("one in another's place", "doubled: ", &|_, files| {
            fs::copy(&files[0], &files[1]).map(drop).unwrap();
        }),
        says("another gateway's in its place", "missing before line", &|_, files| {
            fs::copy(&others[1], &files[1]).map(drop).unwrap();
        }),
        says("another gateway's lines within it", "spliced: ", &|_, files| {
            let (own, other) = (unzipped(&files[1]), unzipped(&others[1]));
            let (first, rest) = own.split_once('\n').unwrap();
            let other = other.lines().nth(1).unwrap();
            fs::write(&files[1], zipped(&format!("{first}\n{other}\n{rest}"), Compression::fast())).unwrap();
        }),
        says("a line", "altered at line", &|_, files| {
            edit(&files[1], "nothing was", "something was")
        }),
        says("a checkpoint", "checkpoint false", &|_, files| {
            edit(&files[1], "\"replica\":\"a\"", "\"replica\":\"b\"");
        }),
        says("its last line is gone", "missing between", &|_, files| {
            let text = unzipped(&files[1]);
            let end = text.trim_end().rfind('\n').unwrap() + 1;
            fs::write(&files[1], zipped(&text[..end], Compression::fast())).unwrap();
        }),
        says("it is cut off within a line", "cut off within the line", &|_, files| {
            let text = unzipped(&files[1]);
            fs::write(&files[1], zipped(&text[..text.len() - 9], Compression::fast())).unwrap();
        }),
        says("its compressed bytes are cut off", "cannot be read: ", &|_, files| {
            let bytes = fs::read(&files[1]).unwrap();
            fs::write(&files[1], &bytes[..bytes.len() / 2]).unwrap();
        }),
        says("its compressed bytes are altered", "cannot be read: ", &|_, files| {
            let mut bytes = fs::read(&files[1]).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x55;
            fs::write(&files[1], bytes).unwrap();
        }),
        says("it is nothing that was compressed", "cannot be read: ", &|_, files| {
            fs::write(&files[1], unzipped(&files[1])).unwrap();
        }),
        says("one beside it that is read in its place", "altered at line", &|_, files| {
            let altered = unzipped(&files[1]).replacen("nothing was", "something was", 1);
            fs::write(plain(&files[1]), altered).unwrap();
        }),
    ];
    let missed: Vec<String> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[tokio::test]
async fn a_damaged_segment_does_not_stop_the_audit() {
    let site = Site::new().await;
    let name = Site::segments(&site.a)[1].file_name().unwrap().to_str().unwrap().to_owned();
    let damages: [&dyn Fn(Vec<u8>) -> Vec<u8>; 3] = [&|bytes| bytes[..bytes.len() - 5].to_vec(), &|bytes| bytes[..4].to_vec(), &|_| {
        b"no gzip".to_vec()
    }];
    for damage in damages {
        let (sound, text) = site.after(|_, files| {
            let damaged = damage(fs::read(&files[1]).unwrap());
            fs::write(&files[1], damaged).unwrap();
        });
        assert!(!sound && text.contains(&name) && text.contains("cannot be read"), "{text}");
        // What the others hold is judged: each but the damaged one has two decisions.
        let judged = ["4 as recorded", "5 as recorded", "6 as recorded"];
        assert!(
            judged.iter().any(|judged| text.contains(judged)) && text.contains("NOT WHOLE"),
            "{text}"
        );
        // Also when it is named by itself, beside another gateway's log.
        let damaged = site.gateway.path("given").join(&name);
        let keys = [&site.a, &site.b].map(|folder| folder.join("log.pub").to_str().unwrap().to_owned());
        let (damaged, other) = (damaged.to_str().unwrap(), site.b.to_str().unwrap());
        let output = site
            .gateway
            .try_command(&["log", "audit", "--log", damaged, other, "--log-key", &keys[0], &keys[1]]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("  whole") && text.contains("cannot be read"), "{text}");
    }
}
