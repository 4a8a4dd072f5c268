//! Threads of a store's own, and what processes of one machine do one after the other.

use std::fs::File;
use std::path::Path;

use attest_system::files;
use rustix::fs::{FlockOperation, flock};
use tokio::runtime::{Builder, Handle, Runtime};

use super::StoreError;

/// The store's own, so that it can be used and dropped anywhere.
pub(super) struct Threads {
    pub handle: Handle,
    runtime: Option<Runtime>,
}

impl Threads {
    pub(super) fn start(name: &'static str, place: &str) -> Result<Self, StoreError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build();
        let runtime = runtime.map_err(|source| StoreError::Io {
            path: place.to_owned().into(),
            source,
        })?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Waits for it, in a function that is not async: what is opened is opened at the start.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.handle.spawn(async move { drop(sender.send(work.await)) });
        receiver.recv().map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Without waiting: it may be dropped where waiting is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// Does what only one process of this machine may do at a time.
pub(super) fn under_lock<T>(beside: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let folder = files::folder(beside);
    let io = |source| StoreError::Io {
        path: folder.to_owned(),
        source,
    };
    let lock = File::open(folder).map_err(io)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
    work()
}
