//! The kernel's random numbers, without which nothing can be encrypted. A machine that has just been switched on, and has neither a
//! processor nor a device that makes them, may wait minutes for the first ones (random(7)).

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::rand;

use crate::console;
use crate::wait::WAY_OUT;

/// Interval between messages. Nearly every machine has random numbers at once, and prints none.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Extension of systemd's start timeout, requested with each message.
const EXTEND: Duration = Duration::from_secs(60);

/// Waits for them, and says so.
pub fn wait() {
    let ready = || {
        let _ = rand::fill(&mut [0]);
    };
    wait_until(ready, SAY_EVERY, |waited| {
        console::print_line(&format!(
            "waiting for the kernel's random numbers for {} s so far; add a virtio-rng device to a virtual machine, or random.trust_cpu=on to the kernel command line; {WAY_OUT}",
            waited.as_secs()
        ));
        console::extend(EXTEND, "Waiting for the kernel's random numbers");
    });
}

fn wait_until(ready: impl FnOnce() + Send + 'static, every: Duration, mut tell: impl FnMut(Duration)) {
    let (sender, receiver) = mpsc::sync_channel(1);
    let started = Instant::now();
    let asks = thread::Builder::new().name("random".to_owned()).spawn(move || {
        ready();
        // The receiver is there until this has come.
        let _ = sender.send(());
    });
    // Without a thread, whoever needs them first waits for them in silence.
    while asks.is_ok() && receiver.recv_timeout(every) == Err(mpsc::RecvTimeoutError::Timeout) {
        tell(started.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_wait_is_silent_when_entropy_is_ready() {
        let mut said = 0;
        wait_until(|| (), Duration::from_secs(3600), |_| said += 1);
        assert_eq!(said, 0);
        wait();
    }

    #[test]
    fn entropy_wait_reports_the_elapsed_time() {
        let (let_go, held) = mpsc::channel::<()>();
        let mut let_go = Some(let_go);
        let mut said = Vec::new();
        let every = Duration::from_millis(5);
        let until_let_go = move || {
            let _ = held.recv();
        };
        wait_until(until_let_go, every, |waited| {
            said.push(waited);
            if said.len() == 3 {
                let_go.take();
            }
        });
        assert!(
            said.len() >= 3 && said.is_sorted() && said.iter().all(|waited| *waited >= every),
            "{said:?}"
        );
    }
}
