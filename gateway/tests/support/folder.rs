//! Waits for changes of a folder, by notifications of the file system.

use std::path::Path;

use futures_util::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};

use super::LIMIT;

/// Notifications of new, removed and written files in a folder, from the watch's start on.
pub struct Folder(EventStream<Vec<u8>>);

impl Folder {
    pub fn watched(folder: &Path) -> Self {
        let watch = Inotify::init().unwrap();
        let of_files = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE | WatchMask::MODIFY;
        watch.watches().add(folder, of_files).unwrap();
        Self(watch.into_event_stream(vec![0; 4096]).unwrap())
    }

    /// Waits until this condition holds.
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
