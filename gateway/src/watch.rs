//! Watching files: which folders change, and who is writing in them. What that is worth is up to who watches: [`crate::pools::watch`] and
//! [`crate::pki::watch`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::future::pending;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::signal::unix::Signal;

/// How long nothing must change before files are read: who changes several files at once is rarely slower.
pub const SETTLE: Duration = Duration::from_millis(200);
/// Room for events, in bytes: some hundred at once; more wait in the kernel.
const EVENT_BUFFER_BYTES: usize = 16 * 1024;

/// Everything that changes what a folder holds, and who writes in it.
fn events() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
        | WatchMask::MOVED_TO
        | WatchMask::MODIFY
        | WatchMask::ATTRIB
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}

/// What the kernel tells of the folders.
#[derive(Debug)]
pub struct Folders {
    watches: Watches,
    watched: BTreeMap<PathBuf, WatchDescriptor>,
    /// Files that somebody is writing, by their folder's watch.
    writing: BTreeSet<(i32, OsString)>,
}

impl Folders {
    /// Watches these folders and no others; whether there were new ones.
    pub fn set(&mut self, folders: BTreeSet<PathBuf>) -> bool {
        let gone: Vec<PathBuf> = self.watched.keys().filter(|folder| !folders.contains(*folder)).cloned().collect();
        for folder in gone {
            // A folder with two paths has one watch.
            if let Some(watch) = self
                .watched
                .remove(&folder)
                .filter(|watch| !self.watched.values().any(|other| other == watch))
            {
                // The kernel has dropped it already if the folder is gone.
                drop(self.watches.remove(watch));
            }
        }
        let mut new = false;
        for folder in folders {
            match self.watches.add(&folder, events()) {
                Ok(watch) => new |= self.watched.insert(folder, watch.clone()) != Some(watch),
                Err(error) => tracing::warn!(
                    "{}: cannot be watched for changes: {error}; SIGHUP has it read again",
                    folder.display()
                ),
            }
        }
        new
    }

    /// Takes in what the kernel has told.
    pub fn event(&mut self, watch: &WatchDescriptor, name: Option<OsString>, mask: EventMask) {
        let id = watch.get_watch_descriptor_id();
        if mask.contains(EventMask::MODIFY) {
            self.writing.insert((id, name.unwrap_or_default()));
        } else if mask.intersects(EventMask::CLOSE_WRITE | EventMask::DELETE | EventMask::MOVED_FROM) {
            self.writing.remove(&(id, name.unwrap_or_default()));
        } else if mask.contains(EventMask::IGNORED) {
            self.watched.retain(|_, other| other != watch);
            self.writing.retain(|(other, _)| *other != id);
        } else if mask.contains(EventMask::Q_OVERFLOW) {
            // Who closed a file meanwhile is not known: its end must not be waited for.
            self.writing.clear();
        }
    }

    /// Where nobody is writing.
    #[must_use]
    pub fn view(&self) -> Quiet {
        let busy = |watch: &WatchDescriptor| self.writing.iter().any(|(id, _)| *id == watch.get_watch_descriptor_id());
        Quiet(
            self.watched
                .iter()
                .filter(|(_, watch)| !busy(watch))
                .map(|(folder, _)| folder.clone())
                .collect(),
        )
    }
}

/// Folders in which nobody is writing, as far as is known: those that are watched, without those where somebody is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiet(BTreeSet<PathBuf>);

impl Quiet {
    /// Whether nobody is writing in any of these.
    #[must_use]
    pub fn covers(&self, folders: &BTreeSet<PathBuf>) -> bool {
        folders.is_subset(&self.0)
    }
}

/// Folders, and the kernel's word of them.
#[derive(Debug)]
pub struct Watched {
    stream: EventStream<Vec<u8>>,
    /// The folders.
    pub folders: Folders,
}

impl Watched {
    /// Watches these folders.
    ///
    /// # Errors
    /// If the kernel cannot watch anything.
    pub fn open(folders: BTreeSet<PathBuf>) -> std::io::Result<Self> {
        let stream = Inotify::init()?.into_event_stream(vec![0; EVENT_BUFFER_BYTES])?;
        let mut watched = Folders {
            watches: stream.watches(),
            watched: BTreeMap::new(),
            writing: BTreeSet::new(),
        };
        watched.set(folders);
        Ok(Self { stream, folders: watched })
    }
}

/// What the kernel tells next: `None` if it tells nothing any longer. Never, where nothing is watched.
pub async fn next(files: &mut Option<Watched>) -> Option<(WatchDescriptor, Option<OsString>, EventMask)> {
    let Some(files) = files else { return pending().await };
    match files.stream.next().await {
        Some(Ok(event)) => Some((event.wd, event.name, event.mask)),
        Some(Err(error)) => {
            tracing::warn!("files are not watched any longer: {error}; SIGHUP has them read again");
            None
        }
        None => None,
    }
}

/// Completes at the administrator's signal.
pub async fn received(hangup: &mut Signal) {
    if hangup.recv().await.is_none() {
        pending().await
    }
}

/// Completes at that time; never, without one.
pub async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => pending().await,
    }
}
