use std::fs;

use attest_log::{ChainBeginning, ChainProgress, CheckpointSigner, LogKey, Why};
use attest_store::Embedded;

use super::*;

struct Site {
    folder: tempfile::TempDir,
    store: Embedded,
    signer: CheckpointSigner,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let key = LogKey::open(&folder.path().join("log.key")).unwrap();
        Self {
            folder,
            store,
            signer: CheckpointSigner::new(key, Some("gw"), 1),
        }
    }

    fn chain(after: Vec<Point>) -> ChainProgress {
        let begins = ChainBeginning {
            why: Why::New,
            before: None,
            after,
        };
        ChainProgress::begin(begins).unwrap()
    }

    /// A checkpoint as the chain's next line.
    fn checkpoint(&self, chain: &mut ChainProgress, at: u64) -> String {
        let (id, count, head) = chain.head();
        let record = self.signer.sign(id, count, head, at, None).unwrap();
        let line = chain.link(&serde_json::to_vec(&record).unwrap()).unwrap();
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    fn signs<'g>(&self, chain: &'g str) -> Signs<'g> {
        let key = self.signer.key();
        Signs { chain, key }
    }

    /// Returns the site with another key, as if log.key was replaced.
    fn with_another_key(self) -> Self {
        let key = LogKey::open(&self.folder.path().join("another.key")).unwrap();
        Self {
            signer: CheckpointSigner::new(key, Some("gw"), 1),
            ..self
        }
    }

    async fn keep(&self, line: &str) -> CheckpointUpdate {
        keep(&self.store, line).await.unwrap()
    }

    /// Returns how many required checkpoints a log of these lines lacks.
    async fn missing(&self, lines: &[&str]) -> usize {
        let log = self.folder.path().join("log");
        let text: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
        fs::write(&log, text).unwrap();
        missing(&self.store, &log, self.signs("")).await.unwrap().len()
    }
}

#[tokio::test]
async fn stores_the_last_checkpoint_of_a_chain() {
    let site = Site::new();
    let mut chain = Site::chain(Vec::new());
    let [first, second] = [1, 2].map(|at| site.checkpoint(&mut chain, at));
    assert_eq!(site.keep(&first).await, CheckpointUpdate::Kept);
    assert_eq!(site.keep(&second).await, CheckpointUpdate::Kept);
    assert_eq!(site.keep(&second).await, CheckpointUpdate::Kept);
    assert_eq!(site.keep(&first).await, CheckpointUpdate::Behind);
    let all = last_checkpoints(&site.store).await.unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].text, second);
}

#[tokio::test]
async fn orders_checkpoints_of_two_keys_within_a_second() {
    let site = Site::new();
    let mut chain = Site::chain(Vec::new());
    let first = site.checkpoint(&mut chain, 7);
    site.keep(&first).await;
    let site = site.with_another_key();
    let second = site.checkpoint(&mut chain, 7);
    site.keep(&second).await;
    let all = last_checkpoints(&site.store).await.unwrap();
    let of = |text: &str| all.iter().find(|kept| kept.text == text).unwrap();
    assert!(of(&second).is_later_than(of(&first)));
    assert!(!of(&first).is_later_than(of(&second)) && !of(&first).is_later_than(of(&first)));
}

#[tokio::test]
async fn reports_a_log_without_its_last_checkpoint() {
    let site = Site::new();
    let mut chain = Site::chain(Vec::new());
    let lines = [1, 2, 3, 4].map(|at| site.checkpoint(&mut chain, at));
    let [a, b, c, d] = lines.each_ref().map(String::as_str);
    assert_eq!(site.missing(&[]).await, 0, "nothing is known of any");
    site.keep(c).await;
    for whole in [&[a, b, c][..], &[a, b, c, d], &[c], &[c, d], &[d], &["older", c]] {
        assert_eq!(site.missing(whole).await, 0, "{}", whole.len());
    }
    let altered = c.replace("chain had", "chain  had");
    for short in [
        &[][..],
        &[a],
        &[a, b],
        &["other"],
        &[a, b, &altered],
        &[a, b, &altered, d],
        &[&altered],
    ] {
        assert_eq!(site.missing(short).await, 1, "{}", short.len());
    }
    // The log of another gateway's state.
    let other = Site::new().checkpoint(&mut Site::chain(Vec::new()), 1);
    assert_eq!(site.missing(&[&other]).await, 1);
}

#[tokio::test]
async fn finds_the_last_checkpoint_in_rotated_segments() {
    let site = Site::new();
    let mut chain = Site::chain(Vec::new());
    let [a, b, c] = [1, 2, 3].map(|at| site.checkpoint(&mut chain, at) + "\n");
    site.keep(b.trim_end()).await;
    let beside = |name: &str, bytes: &[u8]| fs::write(site.folder.path().join(name), bytes).unwrap();
    beside("log.1", format!("{a}{b}").as_bytes());
    assert_eq!(site.missing(&[]).await, 0);
    // Beside it copies that are not whole, or cannot be read.
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut zipped, a.as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    beside("log.2", a.as_bytes());
    beside("log.3.gz", &zipped[..zipped.len() - 4]);
    beside("log.4.gz", b"no gzip");
    assert_eq!(site.missing(&[]).await, 0);
    let altered = b.replace("chain had", "chain  had");
    beside("log.1", format!("{a}{altered}{c}").as_bytes());
    for log in [&[][..], &[c.trim_end()]] {
        assert_eq!(site.missing(log).await, 1);
    }
    fs::remove_file(site.folder.path().join("log.1")).unwrap();
    assert_eq!(site.missing(&[]).await, 1);
    assert_eq!(site.missing(&[c.trim_end()]).await, 0, "the log begins after it");
}

#[tokio::test]
async fn deleting_a_finished_chain_is_not_reported() {
    let site = Site::new();
    let old = site.checkpoint(&mut Site::chain(Vec::new()), 1);
    site.keep(&old).await;
    // As after lines of an older release.
    let new = site.checkpoint(&mut Site::chain(Vec::new()), 2);
    site.keep(&new).await;
    assert_eq!(site.missing(&[&new]).await, 0);
    let all = last_checkpoints(&site.store).await.unwrap();
    let standing: Vec<&str> = required_checkpoints(&all).map(|kept| kept.text.as_str()).collect();
    assert_eq!(standing, [new.as_str()]);
    // Another gateway's is not over.
    let mut another = Site::new();
    another.store = site.store;
    let other = another.checkpoint(&mut Site::chain(Vec::new()), 3);
    another.keep(&other).await;
    assert_eq!(
        attest_log::required_checkpoints(&last_checkpoints(&another.store).await.unwrap()).count(),
        2
    );
}

#[tokio::test]
async fn a_replaced_chain_is_reported_once() {
    let site = Site::new();
    let mut lost = Site::chain(Vec::new());
    site.keep(&site.checkpoint(&mut lost, 1)).await;
    let log = site.folder.path().join("log");
    fs::write(&log, "").unwrap();
    for at in 2..40 {
        let after = missing(&site.store, &log, site.signs("")).await.unwrap();
        assert_eq!(after.len(), 1, "{at}");
        let mut new = Site::chain(after);
        let line = site.checkpoint(&mut new, at);
        site.keep(&line).await;
        assert_eq!(site.missing(&[&line]).await, 0);
        // A later checkpoint says no more why its chain has begun.
        let line = site.checkpoint(&mut new, at);
        site.keep(&line).await;
        assert_eq!(site.missing(&[&line]).await, 0);
        fs::write(&log, "").unwrap();
    }
    assert!(last_checkpoints(&site.store).await.unwrap().len() <= 1 + SUPERSEDED_LIMIT + 1);
}

fn abandoned() -> Abandoned {
    Abandoned {
        at: 7,
        by: "root on gw-9".to_owned(),
    }
}

fn required(all: &[LastCheckpoint]) -> Vec<&str> {
    required_checkpoints(all).map(|kept| kept.text.as_str()).collect()
}

#[tokio::test]
async fn attack_52_requires_the_previous_keys_checkpoint_until_abandoned() {
    let site = Site::new();
    let mut chain = Site::chain(Vec::new());
    let [a, b] = [1, 2].map(|at| site.checkpoint(&mut chain, at));
    site.keep(&b).await;
    let id = chain.head().0.to_owned();
    let log = site.folder.path().join("log");
    let site = site.with_another_key();
    // Signed again from the first line on, and longer than it was.
    let mut forged = ChainProgress::after(a.as_bytes()).unwrap();
    let lines = [2, 3, 4].map(|at| site.checkpoint(&mut forged, at));
    fs::write(&log, [a.as_str(), &lines[0], &lines[1], &lines[2], ""].join("\n")).unwrap();
    let signs = site.signs(&id);
    assert_eq!(missing(&site.store, &log, signs).await.unwrap().len(), 1);
    assert_eq!(site.keep(&lines[2]).await, CheckpointUpdate::Kept);
    let all = last_checkpoints(&site.store).await.unwrap();
    let mut both = required(&all);
    both.sort_unstable();
    let mut expected = [b.as_str(), lines[2].as_str()];
    expected.sort_unstable();
    assert_eq!(both, expected);
    assert_eq!(missing(&site.store, &log, signs).await.unwrap().len(), 1);
    assert_eq!(checkpoints_by_other_keys(&site.store, "another", signs).await.unwrap().len(), 1);
    // A chain that the new key begins takes the place of none by the old one.
    let point = all.iter().find(|kept| kept.text == b).unwrap().point();
    site.keep(&site.checkpoint(&mut Site::chain(vec![point]), 5)).await;
    assert!(required(&last_checkpoints(&site.store).await.unwrap()).contains(&b.as_str()));
    // Where the lines are the ones that were signed, nothing is missing.
    let mut chain = ChainProgress::after(b.as_bytes()).unwrap();
    let honest = site.checkpoint(&mut chain, 3);
    fs::write(&log, [a.as_str(), &b, &honest, ""].join("\n")).unwrap();
    let missed = missing(&site.store, &log, signs).await.unwrap();
    assert!(missed.iter().all(|point| point.chain != id || point.number > 2), "{missed:?}");
    let is_old = |kept: &LastCheckpoint| kept.text == b;
    let AbandonOutcome::Done(done) = abandon(&site.store, is_old, None, abandoned()).await.unwrap() else {
        panic!("not given up");
    };
    assert_eq!(done.len(), 1);
    let all = last_checkpoints(&site.store).await.unwrap();
    assert!(!required(&all).contains(&b.as_str()));
    let old = all.iter().find(|kept| kept.text == b).unwrap();
    assert_eq!(old.abandoned, Some(abandoned()), "it stays");
    assert!(checkpoints_by_other_keys(&site.store, "gw", signs).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_abandoned_chain_is_required_after_new_checkpoints() {
    let site = Site::new();
    let mut first = Site::chain(Vec::new());
    site.keep(&site.checkpoint(&mut first, 1)).await;
    let mut second = Site::chain(Vec::new());
    let [a, b] = [2, 3].map(|at| site.checkpoint(&mut second, at));
    site.keep(&a).await;
    let is_second = |kept: &LastCheckpoint| kept.text == a;
    let AbandonOutcome::Done(done) = abandon(&site.store, is_second, None, abandoned()).await.unwrap() else {
        panic!("not given up");
    };
    // With the one that it alone has taken the place of.
    assert_eq!(done.len(), 2);
    let all = last_checkpoints(&site.store).await.unwrap();
    assert!(required(&all).is_empty());
    assert_eq!(all.iter().filter(|kept| kept.abandoned == Some(abandoned())).count(), 2);
    // The same gateway finds that it has lost it.
    assert_eq!(site.missing(&[]).await, 1);
    // Its last line is kept once more at each start.
    site.keep(&a).await;
    assert_eq!(required(&last_checkpoints(&site.store).await.unwrap()), [a.as_str()]);
    let AbandonOutcome::Done(_) = abandon(&site.store, is_second, None, abandoned()).await.unwrap() else {
        panic!("not given up");
    };
    site.keep(&b).await;
    assert_eq!(required(&last_checkpoints(&site.store).await.unwrap()), [b.as_str()]);
}

#[tokio::test]
async fn abandoned_chains_outlive_pruned_superseded_chains() {
    let site = Site::new();
    let first = site.checkpoint(&mut Site::chain(Vec::new()), 1);
    site.keep(&first).await;
    let AbandonOutcome::Done(_) = abandon(&site.store, |kept| kept.text == first, None, abandoned()).await.unwrap() else {
        panic!("not given up");
    };
    for at in 2..40 {
        site.keep(&site.checkpoint(&mut Site::chain(Vec::new()), at)).await;
    }
    assert!(last_checkpoints(&site.store).await.unwrap().iter().any(|kept| kept.text == first));
}
