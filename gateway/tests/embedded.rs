//! Conformance of the embedded store with the suite for all stores.

use std::sync::Arc;

use async_trait::async_trait;
use attest_store::{Embedded, Store};
use rusqlite::Connection;

use crate::conformance::{self, Place};

/// Store in one file, which several processes open.
struct SqliteFile {
    folder: tempfile::TempDir,
}

/// Open write transaction that never ends.
struct Writing {
    _connection: Connection,
}

#[async_trait]
impl Place for SqliteFile {
    async fn empty() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(Embedded::open(&self.folder.path().join("gateway.db")).unwrap())
    }

    async fn hold(&self) -> Box<dyn Send> {
        let connection = Connection::open(self.folder.path().join("gateway.db")).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Box::new(Writing { _connection: connection })
    }
}

conformance::conforms!(SqliteFile);
