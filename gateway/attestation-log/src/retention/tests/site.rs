//! A log with closed segments, and what of it is there.

use super::*;

/// Records are of the first thousand seconds.
pub(crate) const NOW: u64 = 10_000;
/// Rule by which segments of the first hundred seconds may go.
pub(crate) const RULE: RetentionRule = RetentionRule {
    age: Some(Duration::from_secs(NOW - 100)),
    bytes: None,
};
pub(crate) const LIMITS: SegmentLimits = SegmentLimits {
    bytes: 1,
    age: Duration::MAX,
    compress_after: Duration::ZERO,
};

pub(crate) struct Site {
    pub folder: tempfile::TempDir,
    pub decisions: Decisions,
}

/// A journal and its retention, which end with a process.
pub(crate) struct Process {
    pub journal: Journal,
    pub blobs: Blobs,
    pub retention: Retention,
}

impl Site {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let decisions = Decisions::default();
        Self { folder, decisions }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("attestation.jsonl")
    }

    pub(crate) fn key(&self) -> LogKey {
        LogKey::open(&self.path("log.key")).unwrap()
    }

    pub(crate) fn open(&self, rule: RetentionRule) -> Process {
        let blobs = Blobs::open(&self.path("evidence")).unwrap();
        let journal = loop {
            let signer = CheckpointSigner::new(self.key(), Some("gw"), 1000);
            match Journal::open(&self.log(), signer, LIMITS, blobs.clone(), std::sync::Arc::new(())) {
                Err(JournalError::InUse(_)) => std::thread::yield_now(),
                opened => break opened.unwrap().0,
            }
        };
        journal.compress_closed();
        let retention = Retention::new(self.log(), rule, vec![blobs.clone()]);
        Process { journal, blobs, retention }
    }

    /// Writes segments of the seconds up to 50, up to 150 and up to 250, and a log. Blob `a` is only the first segment's; blob `b` is also
    /// the second's.
    pub(crate) async fn written(&self) -> Process {
        let process = self.open(RULE);
        process.journal.checkpoint(1).await.unwrap();
        for (at, blobs) in [(40, &["a", "b"][..]), (150, &["b"]), (250, &["c"])] {
            process.record(at, blobs).await;
            process.journal.checkpoint(at + 10).await.unwrap();
        }
        // What was closed is compressed.
        process.journal.run_exclusive(|| ()).await.unwrap();
        process
    }

    /// Returns the number of closed segments among those that were written first: others are closed where the log records a removal.
    pub(crate) fn segments(&self) -> usize {
        let first = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let number = name.trim_end_matches(".gz").rsplit('-').next().unwrap();
            number.parse::<u64>().unwrap() < 9
        };
        closed_segments(&self.log()).unwrap().iter().filter(|path| first(path)).count()
    }

    /// Returns those of these blobs that exist.
    pub(crate) fn blobs<'n>(&self, names: &[&'n str]) -> Vec<&'n str> {
        let blobs = Blobs::open(&self.path("evidence")).unwrap();
        let there = |name: &&&str| blobs.has(&Blobs::name(name.as_bytes()));
        names.iter().filter(there).copied().collect()
    }

    /// Opens every file of the log. Meanwhile another thread compresses closed ones, so that a listing may miss both names of one.
    pub(crate) fn opened(&self) -> Vec<(PathBuf, FileLines<Bytes>)> {
        loop {
            let listed = closed_segments(&self.log()).unwrap();
            let files = listed.iter().cloned().chain([self.log()]);
            let opened: io::Result<Vec<_>> = files.map(|path| Ok((path.clone(), lines_of(&path)?))).collect();
            match opened {
                Ok(opened) if closed_segments(&self.log()).unwrap() == listed => return opened,
                Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Returns the report of an audit.
    pub(crate) fn report(&self) -> VerificationReport {
        let mut verifier = LogVerifier::new(VerificationContext {
            keys: [self.key().public()].into(),
            ..VerificationContext::default()
        });
        for (path, mut lines) in self.opened() {
            verifier.file(&path.display().to_string());
            each(&mut lines, |line| verifier.line(line));
        }
        let kept = kept_file(&self.log());
        verifier.kept_file("checkpoints.jsonl");
        if kept.exists() {
            each_line(&kept, |line| verifier.kept_line(line));
        }
        verifier.finish()
    }

    /// Asserts that there are no findings, and returns the lines that were removed.
    pub(crate) fn removed(&self) -> Vec<(u64, u64)> {
        let report = self.report();
        assert_eq!(report.findings, []);
        let removed = |note: &Note| match note {
            Note::Removed { from, to, .. } => Some((*from, *to)),
            _ => None,
        };
        report.notes.iter().filter_map(removed).collect()
    }
}

impl Process {
    pub(crate) async fn record(&self, at: u64, blobs: &[&str]) {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let id = format!("{:032x}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut record = Record::new(id, Decision::Config, at, "peer".to_owned(), "worker".to_owned());
        let named: LargeParts = blobs
            .iter()
            .map(|blob| (Blobs::name(blob.as_bytes()), blob.as_bytes().into()))
            .collect();
        record.basis = Some(Box::new(Basis {
            client_authorities: named.iter().map(|(name, _)| name.clone()).collect(),
            ..Basis::default()
        }));
        self.journal.record(&record, named, ()).await.unwrap().into_inner();
    }

    pub(crate) async fn run_retention(&self, site: &Site) -> Result<Option<RetainedSegments>, RetentionError> {
        self.retention
            .run(&self.journal, &site.decisions, Clock::Fixed(NOW))
            .await
            .into_result()
    }
}

pub(crate) fn each_line(path: &Path, with: impl FnMut(&[u8])) {
    each(&mut lines_of(path).unwrap(), with);
}

pub(crate) fn each(lines: &mut FileLines<Bytes>, mut with: impl FnMut(&[u8])) {
    while let Some(LineContent::Line(line)) = lines.read().unwrap() {
        with(line);
    }
}

/// Counts the lines that record the removal of each segment.
pub(crate) fn removal_records(site: &Site) -> BTreeMap<String, usize> {
    let mut said = BTreeMap::new();
    let mut say = |line: &[u8]| {
        let line: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        if let Some(segment) = line["removed"]["segment"].as_str() {
            *said.entry(segment.to_owned()).or_default() += 1;
        }
    };
    for (_, mut lines) in site.opened() {
        each(&mut lines, &mut say);
    }
    said
}
