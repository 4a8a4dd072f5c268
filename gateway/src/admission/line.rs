//! A line: who is next. Sources take turns, so that one with a thousand in it makes another wait for one of them and not for all.

use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::Source;

/// Those who wait for a `T`. How many they are is bounded by who can ask: a connection asks for one thing at a time.
#[derive(Debug)]
pub(super) struct Line<T> {
    waiting: HashMap<Source, VecDeque<oneshot::Sender<T>>>,
    /// The sources that wait, each once; the next one first.
    order: VecDeque<Source>,
    length: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            order: VecDeque::new(),
            length: 0,
        }
    }
}

impl<T> Line<T> {
    /// How many wait, some of those who have gone included.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// One more waits.
    pub(super) fn wait(&mut self, source: Source) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let waiting = self.waiting.entry(source).or_default();
        if waiting.is_empty() {
            self.order.push_back(source);
        } else {
            // Those who have gone would only be counted.
            while waiting.back().is_some_and(oneshot::Sender::is_closed) {
                waiting.pop_back();
                self.length -= 1;
            }
        }
        waiting.push_back(sender);
        self.length += 1;
        receiver
    }

    /// Who is next. It may have gone.
    pub(super) fn next(&mut self) -> Option<oneshot::Sender<T>> {
        let source = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&source)?;
        while waiting.front().is_some_and(oneshot::Sender::is_closed) && waiting.len() > 1 {
            waiting.pop_front();
            self.length -= 1;
        }
        let next = waiting.pop_front();
        self.length -= usize::from(next.is_some());
        if waiting.is_empty() {
            self.waiting.remove(&source);
        } else {
            self.order.push_back(source);
        }
        next
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(number: u32) -> Source {
        Ipv4Addr::from_bits(number).into()
    }

    /// Who is served, in order, when these have asked one after the other, and some of them have gone.
    fn order(asked: &[u32], gone: &[usize]) -> Vec<u32> {
        let mut line = Line::default();
        let mut receivers: Vec<_> = asked.iter().map(|number| Some(line.wait(source(*number)))).collect();
        assert_eq!(line.length(), asked.len());
        gone.iter().for_each(|place| receivers[*place] = None);
        let mut served = Vec::new();
        while let Some(next) = line.next() {
            if next.send(()).is_ok() {
                let place = receivers
                    .iter_mut()
                    .position(|receiver| receiver.as_mut().is_some_and(|receiver| receiver.try_recv().is_ok()));
                served.push(asked[place.unwrap()]);
            }
        }
        assert!(line.length() == 0 && line.waiting.is_empty() && line.order.is_empty());
        served
    }

    #[test]
    fn sources_take_turns() {
        assert_eq!(order(&[1, 1, 1, 1, 2, 3, 3], &[]), [1, 2, 3, 1, 3, 1, 1]);
    }

    #[test]
    fn who_has_gone_is_passed_over() {
        assert_eq!(order(&[1, 1, 1, 2], &[0]), [1, 2, 1]);
        assert!(order(&[1, 2, 3], &[0, 1, 2]).is_empty());
        assert_eq!(order(&[1, 2, 3], &[1]), [1, 3]);
    }

    #[test]
    fn who_comes_and_goes_without_end_is_not_counted_for_ever() {
        let mut line = Line::<()>::default();
        let first = line.wait(source(1));
        for _ in 0..1000 {
            drop(line.wait(source(1)));
        }
        assert!(line.length() <= 2);
        drop(first);
    }
}
