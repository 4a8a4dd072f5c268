//! Group commit: while many records come, the first waits for others to share its fsync.
//!
//! A gateway with little load does not wait: a record is durable as soon as the disk says so. Under heavy load everything waits for the
//! processor, so that waiting for other records costs nothing. Once nearly all requests that may bring a record wait here, no others are
//! waited for.
//!
//! In between, an fsync costs the processor as much as a signature does. So while there are other requests, the disk has a pause after each
//! fsync, some times as long as the fsync took. Records that come meanwhile share the next one; a record that comes alone finds the pause
//! over.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait of the first record. A boot has two records.
const LONGEST: Duration = Duration::from_millis(200);
/// Least number of requests still to come for which records wait, and least number of records that must have come lately. So clients that
/// open connections and do not go on, or ask for answers without a record, delay no record.
const FEW: usize = 16;
/// Time in which they must have come. In a storm, handshakes take turns with records, and keep the processor for longer than [`LONGEST`].
const LATELY: Duration = Duration::from_millis(500);
/// Pause between two checks. A thread that waits is not woken up by each record.
const STEP: Duration = Duration::from_millis(10);
/// Pause after a write, in multiples of its duration.
const PAUSE: u32 = 3;
/// Longest pause after a write: nodes are not to wait much longer for a slow disk.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Least number of requests still to come for which there is such a pause.
const OTHERS: usize = 2;

/// State of the group commit.
pub(super) struct GroupCommit {
    /// Returns the number of requests and handshakes under way: those whose records wait here, and those that may bring one. Connections
    /// that wait to be admitted are not counted: they bring no record while all that may be under way wait here.
    under_way: Box<dyn Fn() -> usize + Send>,
    /// Arrival times of the last [`FEW`] records.
    lately: VecDeque<Instant>,
    /// End and duration of the last write.
    last: Option<(Instant, Duration)>,
}

impl GroupCommit {
    pub(super) fn new(under_way: impl Fn() -> usize + Send + 'static) -> Self {
        Self {
            under_way: Box::new(under_way),
            lately: VecDeque::with_capacity(FEW),
            last: None,
        }
    }

    /// Takes further work while it is worth waiting for, up to `most`. Not all work is a record.
    pub(super) fn gather<T>(&mut self, here: &mut Vec<T>, work: &Receiver<T>, most: usize, is_record: fn(&T) -> bool) {
        self.have_come(here.iter().filter(|work| is_record(work)).count(), Instant::now());
        let pause = self.last.map_or(Duration::ZERO, |(written, took)| {
            pause((self.under_way)(), here.len(), took).saturating_sub(written.elapsed())
        });
        if !pause.is_zero() {
            thread::sleep(pause);
            self.take(here, work, most, is_record);
        }
        let begun = Instant::now();
        while here.len() < most && self.is_worth_it(here.len(), begun, Instant::now()) {
            thread::sleep(STEP);
            self.take(here, work, most, is_record);
        }
    }

    fn take<T>(&mut self, here: &mut Vec<T>, work: &Receiver<T>, most: usize, is_record: fn(&T) -> bool) {
        let mut records = 0;
        let room = most.saturating_sub(here.len());
        here.extend(work.try_iter().take(room).inspect(|work| records += usize::from(is_record(work))));
        self.have_come(records, Instant::now());
    }

    fn have_come(&mut self, many: usize, now: Instant) {
        for _ in 0..many.min(FEW) {
            if self.lately.len() == FEW {
                self.lately.pop_front();
            }
            self.lately.push_back(now);
        }
    }

    fn is_worth_it(&self, here: usize, begun: Instant, now: Instant) -> bool {
        let age = |since: Instant| now.saturating_duration_since(since);
        let many_come = self.lately.len() == FEW && self.lately.front().is_some_and(|first| age(*first) < LATELY);
        many_come && age(begun) < LONGEST && (self.under_way)().saturating_sub(here) >= FEW
    }

    /// Notes that a write that began then has ended.
    pub(super) fn have_written(&mut self, begun: Instant) {
        self.last = Some((Instant::now(), begun.elapsed()));
    }
}

/// Returns the pause between a write that took so long and the next one.
fn pause(under_way: usize, here: usize, took: Duration) -> Duration {
    match under_way.saturating_sub(here) {
        ..OTHERS => Duration::ZERO,
        OTHERS.. => took.saturating_mul(PAUSE).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn many() -> Vec<()> {
        vec![(); FEW]
    }

    fn is_record(_: &()) -> bool {
        true
    }

    /// Evaluates the wait rule for so many requests under way and records here, of which the last came so long after the first.
    fn is_worth_it(coming: usize, here: usize, came_after: Duration, waited: Duration) -> bool {
        let mut company = GroupCommit::new(move || coming);
        let begun = Instant::now();
        (0..here).for_each(|one| company.have_come(1, begun + if one == 0 { Duration::ZERO } else { came_after }));
        company.is_worth_it(here, begun, begun + waited)
    }

    #[test]
    fn waits_only_for_many_records_and_not_long() {
        let short = Duration::from_millis(1);
        let worth = |coming, here| is_worth_it(coming, here, Duration::ZERO, short);
        assert!(worth(2 * FEW, FEW) && worth(1000, FEW));
        for few in [0, FEW, 2 * FEW - 1] {
            assert!(!worth(few, FEW), "{few}");
        }
        assert!(!worth(500, 490));
        assert!(!is_worth_it(1000, FEW, Duration::ZERO, LONGEST));
    }

    #[test]
    fn does_not_wait_while_few_records_arrive() {
        let long = LONGEST - Duration::from_millis(1);
        assert!(is_worth_it(10_000, FEW, Duration::ZERO, long));
        assert!(!is_worth_it(10_000, FEW - 1, Duration::ZERO, long));
        // They may have come before this wait began, if not long before.
        let (mut company, now) = (GroupCommit::new(|| 10_000), Instant::now());
        company.have_come(FEW, now);
        for (ago, worth) in [(LONGEST, true), (LATELY - Duration::from_millis(1), true), (LATELY, false)] {
            assert_eq!(company.is_worth_it(1, now + ago, now + ago), worth, "{ago:?}");
        }
        // Those of a minute ago.
        let mut company = GroupCommit::new(|| 10_000);
        let now = Instant::now();
        company.have_come(1000, now);
        assert!(company.is_worth_it(1, now, now + long));
        let later = now + Duration::from_secs(60);
        company.have_come(1, later);
        assert!(!company.is_worth_it(1, later, later));
        // Of those that come, the last are remembered.
        company.have_come(FEW - 2, later);
        assert!(!company.is_worth_it(1, later, later));
        company.have_come(1, later);
        assert!(company.is_worth_it(1, later, later));
        assert_eq!(company.lately.len(), FEW);
    }

    #[test]
    fn commit_includes_records_that_arrive_during_the_wait() {
        let (sender, work) = mpsc::channel();
        let left = AtomicUsize::new(5);
        let mut company = GroupCommit::new(move || {
            // Each look finds another one; with the last nobody is under way any longer who has not come.
            let more = left.fetch_sub(1, Ordering::Relaxed);
            let sent = sender.send(()).is_ok();
            if sent && more > 1 { 100 } else { 0 }
        });
        let mut here = many();
        company.gather(&mut here, &work, 100, is_record);
        assert_eq!((here.len(), work.try_iter().count()), (FEW + 4, 1));
        // Of more than there is room for, the others come next.
        let (sender, work) = mpsc::channel();
        let mut company = GroupCommit::new(move || (0..3).filter(|_| sender.send(()).is_ok()).count() * 100);
        let mut here = many();
        company.gather(&mut here, &work, FEW + 5, is_record);
        assert_eq!((here.len(), work.try_iter().count()), (FEW + 5, 1));
    }

    #[test]
    fn pause_between_fsyncs_grows_with_other_requests() {
        let took = Duration::from_millis(2);
        assert_eq!(pause(OTHERS + 1, 1, took), took * PAUSE);
        assert_eq!(pause(1000, 1, Duration::from_secs(1)), LONGEST_PAUSE);
        for few in [0, 1, OTHERS] {
            assert_eq!(pause(few, 1, took), Duration::ZERO, "{few}");
        }
    }

    #[test]
    fn commit_includes_records_that_arrive_during_a_pause() {
        let here_when = |last: Option<(Instant, Duration)>| {
            let (sender, work) = mpsc::channel();
            // Whoever looks finds another one, and that more than it are under way.
            let under_way = move || OTHERS + usize::from(sender.send(()).is_ok());
            let mut company = GroupCommit {
                last,
                ..GroupCommit::new(under_way)
            };
            let mut here = vec![()];
            company.gather(&mut here, &work, 100, is_record);
            here.len()
        };
        let long = Duration::from_secs(60);
        // As if they were written after this: nothing of the pause is over.
        assert_eq!(here_when(Some((Instant::now() + long, long))), 2);
        // Nothing was written lately, or ever.
        let before = Instant::now().checked_sub(long);
        assert_eq!(here_when(before.map(|before| (before, Duration::from_millis(2)))), 1);
        assert_eq!(here_when(None), 1);
    }

    #[test]
    fn waits_for_records_only() {
        let (sender, work) = mpsc::channel();
        let (mut company, mut here) = (GroupCommit::new(|| 1000), many());
        many().into_iter().for_each(|other| sender.send(other).unwrap());
        // As if the last write ended after this: nothing of the pause is over.
        company.last = Some((Instant::now() + Duration::from_secs(60), LONGEST_PAUSE));
        company.gather(&mut here, &work, 100, |()| false);
        assert_eq!((here.len(), company.lately.len()), (2 * FEW, 0));
    }

    #[test]
    fn group_commit_wait_is_limited() {
        let (_sender, work) = mpsc::channel();
        let mut here = many();
        GroupCommit::new(|| 1000).gather(&mut here, &work, 100, is_record);
        assert_eq!(here.len(), FEW);
    }
}
