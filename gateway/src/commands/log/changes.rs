//! Waits for changes of a folder, which the kernel reports if it can, and notices when a reader has gone.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inotify::{Inotify, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::commands::output::ReaderState;

/// Size of the buffer for the kernel's events; they only say that something has changed.
const EVENTS_BYTES: usize = 16 * 1024;
/// Interval of looks for changes that the kernel does not report: the folder was replaced, or others write it over a network.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Interval of looks if the kernel reports nothing at all.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// Watch on a folder: see the module.
pub(crate) struct FileChanges {
    folder: PathBuf,
    inotify: Option<Inotify>,
}

impl FileChanges {
    pub(crate) fn read(folder: &Path) -> Self {
        let mut changes = Self {
            folder: folder.to_owned(),
            inotify: Inotify::init().ok(),
        };
        changes.watch();
        changes
    }

    /// Watches the folder that has the name now. If it is watched already, that changes nothing.
    fn watch(&mut self) {
        let events = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM | WatchMask::DELETE;
        if let Some(told) = &self.inotify {
            // It is looked every now and then all the same.
            drop(told.watches().add(&self.folder, events));
        }
    }

    /// Waits until something has changed, or until the next look is due. Waits for `at_least` in any case, unless the reader of `output` is
    /// gone.
    pub(crate) fn wait(&mut self, output: &impl AsFd, at_least: Duration) -> ReaderState {
        if !at_least.is_zero() && is_gone(output, None, at_least) {
            return ReaderState::Gone;
        }
        let Some(told) = &mut self.inotify else {
            return reader(is_gone(output, None, POLL_EVERY));
        };
        let gone = is_gone(output, Some(told), LOOK_EVERY);
        // Nothing that it has told is left, nor anything that it has not.
        drop(told.read_events(&mut [0; EVENTS_BYTES]));
        self.watch();
        reader(gone)
    }
}

const fn reader(gone: bool) -> ReaderState {
    if gone { ReaderState::Gone } else { ReaderState::There }
}

/// Waits until the kernel reports something, until the reader of `output` is gone, or for `limit`; returns whether the reader is gone.
fn is_gone(output: &impl AsFd, told: Option<&Inotify>, limit: Duration) -> bool {
    // What is always said of a descriptor: that its other end is gone.
    let mut events = vec![PollFd::new(output, PollFlags::empty())];
    events.extend(told.map(|told| PollFd::new(told, PollFlags::IN)));
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut events, limit.as_ref()) {
        Ok(_) => events
            .first()
            .is_some_and(|output| output.revents().intersects(PollFlags::ERR | PollFlags::HUP)),
        // A signal: it is looked again.
        Err(_) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn wait_reports_file_changes_and_a_closed_reader() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let mut changes = FileChanges::read(&state);
        let (reader, output) = std::io::pipe().unwrap();
        std::fs::write(state.join("a"), "").unwrap();
        let begun = Instant::now();
        assert_eq!(changes.wait(&output, Duration::ZERO), ReaderState::There);
        assert!(begun.elapsed() < LOOK_EVERY);
        // Another folder has its name: that is seen by looking, and what changes there is told of from then on.
        std::fs::rename(&state, folder.path().join("old")).unwrap();
        std::fs::create_dir(&state).unwrap();
        assert_eq!(changes.wait(&output, Duration::ZERO), ReaderState::There);
        std::fs::write(state.join("a"), "").unwrap();
        let begun = Instant::now();
        assert_eq!(changes.wait(&output, Duration::ZERO), ReaderState::There);
        assert!(begun.elapsed() < LOOK_EVERY);
        // So long at least, however much changes.
        std::fs::write(state.join("a"), "b").unwrap();
        let begun = Instant::now();
        assert_eq!(changes.wait(&output, Duration::from_millis(50)), ReaderState::There);
        assert!(begun.elapsed() >= Duration::from_millis(50));
        drop(reader);
        assert_eq!(changes.wait(&output, Duration::ZERO), ReaderState::Gone);
        assert_eq!(changes.wait(&output, LOOK_EVERY), ReaderState::Gone);
    }
}
