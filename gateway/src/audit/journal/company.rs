//! Whose records share an fsync: while many requests are under way, more records are about to come, and the first waits for them.
//!
//! A gateway that has little to do waits for nobody: what is recorded is durable as soon as the disk says so. In a storm the processor is what all wait
//! for, so that a record waits for others at no one's cost; and once nearly all requests that are under way wait here, nobody else is waited for.
//!
//! In between, an fsync costs the processor as much as a signature does. So while there are others the disk has a pause after each, as long as it took
//! some times over, and who comes meanwhile shares the next: a record that comes alone finds the pause over.

use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use super::writer::Work;

/// How long the first waits at most. A boot has two records.
const LONGEST: Duration = Duration::from_millis(200);
/// So few requests that have not come yet are not waited for.
const FEW: usize = 16;
/// Between two looks. Who waits is not woken up by each that comes.
const STEP: Duration = Duration::from_millis(10);
/// The pause after records were written, in times of what that took.
const PAUSE: u32 = 3;
/// And at most: a disk that is slow is not to have nodes wait for it much longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// For so few requests that have not come yet there is none.
const OTHERS: usize = 2;

/// Who else is there.
pub(super) struct Company {
    /// How many requests are under way: those whose records wait here, and those that may bring one.
    under_way: Box<dyn Fn() -> usize + Send>,
    /// When the last records were written, and how long that took.
    last: Option<(Instant, Duration)>,
}

impl Company {
    pub(super) fn new(under_way: impl Fn() -> usize + Send + 'static) -> Self {
        Self {
            under_way: Box::new(under_way),
            last: None,
        }
    }

    /// Takes what comes while it is worth waiting for, so many at most.
    pub(super) fn gather(&self, here: &mut Vec<Work>, work: &Receiver<Work>, most: usize) {
        let take = |here: &mut Vec<Work>| here.extend(work.try_iter().take(most.saturating_sub(here.len())));
        let pause = self.last.map_or(Duration::ZERO, |(written, took)| {
            pause((self.under_way)(), here.len(), took).saturating_sub(written.elapsed())
        });
        if !pause.is_zero() {
            thread::sleep(pause);
            take(here);
        }
        let begun = Instant::now();
        while here.len() < most && is_worth_it((self.under_way)(), here.len(), begun.elapsed()) {
            thread::sleep(STEP);
            take(here);
        }
    }

    /// Records were written, which was begun then.
    pub(super) fn have_written(&mut self, begun: Instant) {
        self.last = Some((Instant::now(), begun.elapsed()));
    }
}

/// How long after records were written, which took so long, the next are not yet.
fn pause(under_way: usize, here: usize, took: Duration) -> Duration {
    match under_way.saturating_sub(here) {
        ..OTHERS => Duration::ZERO,
        OTHERS.. => took.saturating_mul(PAUSE).min(LONGEST_PAUSE),
    }
}

fn is_worth_it(under_way: usize, here: usize, waited: Duration) -> bool {
    waited < LONGEST && under_way.saturating_sub(here) >= FEW
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    fn probe() -> Work {
        Work::Probe(oneshot::channel().0)
    }

    #[test]
    fn few_are_not_waited_for_and_nobody_for_long() {
        let short = Duration::from_millis(1);
        assert!(is_worth_it(FEW + 1, 1, short) && is_worth_it(1000, 1, short));
        for few in [0, 1, FEW] {
            assert!(!is_worth_it(few, 1, short), "{few}");
        }
        assert!(!is_worth_it(500, 490, short));
        assert!(!is_worth_it(1000, 1, LONGEST));
    }

    #[test]
    fn who_comes_while_many_are_under_way_comes_along() {
        let (sender, work) = mpsc::channel();
        let left = AtomicUsize::new(5);
        let company = Company::new(move || {
            // Each look finds another one; with the last nobody is under way any longer who has not come.
            let more = left.fetch_sub(1, Ordering::Relaxed);
            let sent = sender.send(probe()).is_ok();
            if sent && more > 1 { 100 } else { 0 }
        });
        let mut here = vec![probe()];
        company.gather(&mut here, &work, 100);
        assert_eq!((here.len(), work.try_iter().count()), (5, 1));
        // Of more than there is room for, the others come next.
        let (sender, work) = mpsc::channel();
        let company = Company::new(move || (0..3).filter(|_| sender.send(probe()).is_ok()).count() * 100);
        let mut here = vec![probe()];
        company.gather(&mut here, &work, 6);
        assert_eq!((here.len(), work.try_iter().count()), (6, 1));
    }

    #[test]
    fn the_disk_has_a_pause_while_there_are_others() {
        let took = Duration::from_millis(2);
        assert_eq!(pause(OTHERS + 1, 1, took), took * PAUSE);
        assert_eq!(pause(1000, 1, Duration::from_secs(1)), LONGEST_PAUSE);
        for few in [0, 1, OTHERS] {
            assert_eq!(pause(few, 1, took), Duration::ZERO, "{few}");
        }
    }

    #[test]
    fn who_comes_in_a_pause_comes_along() {
        let here_when = |last: Option<(Instant, Duration)>| {
            let (sender, work) = mpsc::channel();
            // Whoever looks finds another one, and that more than it are under way.
            let under_way = move || OTHERS + usize::from(sender.send(probe()).is_ok());
            let company = Company {
                under_way: Box::new(under_way),
                last,
            };
            let mut here = vec![probe()];
            company.gather(&mut here, &work, 100);
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
    fn nobody_is_waited_for_for_ever() {
        let (_sender, work) = mpsc::channel();
        let mut here = vec![probe()];
        Company::new(|| 1000).gather(&mut here, &work, 100);
        assert_eq!(here.len(), 1);
    }
}
