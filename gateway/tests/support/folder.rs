//! Waits for what is in a folder: the file system tells of each change.

use std::path::Path;

use futures_util::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};

use super::LIMIT;

/// Told of a folder's files from when it was made on: which there are, and when one is written.
pub struct Folder(EventStream<Vec<u8>>);

impl Folder {
    pub fn watched(folder: &Path) -> Self {
        let watch = Inotify::init().unwrap();
        let of_files = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE | WatchMask::MODIFY;
        watch.watches().add(folder, of_files).unwrap();
        Self(watch.into_event_stream(vec![0; 4096]).unwrap())
    }

    /// Waits until this holds.
    pub async fn comes_to(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        let waited = async {
            while !holds() {
                self.0.next().await.unwrap().unwrap();
            }
        };
        let is_so = tokio::time::timeout(LIMIT, waited).await.is_ok();
        assert!(is_so, "{what}: not within {} s", LIMIT.as_secs());
    }
}
