//! Whose records share an fsync: while many requests are under way, more records are about to come, and the first waits for them.
//!
//! A gateway that has little to do waits for nobody: what is recorded is durable as soon as the disk says so. In a storm the processor is what all wait
//! for, so that a record waits for others at no one's cost; and once nearly all requests that are under way wait here, nobody else is waited for.

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

/// How many requests are under way: those whose records wait here, and those that may bring one.
pub(super) struct Company(Box<dyn Fn() -> usize + Send>);

impl Company {
    pub(super) fn new(under_way: impl Fn() -> usize + Send + 'static) -> Self {
        Self(Box::new(under_way))
    }

    /// Takes what comes while it is worth waiting for, so many at most.
    pub(super) fn gather(&self, here: &mut Vec<Work>, work: &Receiver<Work>, most: usize) {
        let begun = Instant::now();
        while here.len() < most && is_worth_it((self.0)(), here.len(), begun.elapsed()) {
            thread::sleep(STEP);
            here.extend(work.try_iter().take(most - here.len()));
        }
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
    fn nobody_is_waited_for_for_ever() {
        let (_sender, work) = mpsc::channel();
        let mut here = vec![probe()];
        Company::new(|| 1000).gather(&mut here, &work, 100);
        assert_eq!(here.len(), 1);
    }
}
