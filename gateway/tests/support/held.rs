//! Store that keeps requests waiting, so that a test can act in the middle of one.

use async_trait::async_trait;
use attest_store::{Embedded, Mode};
use tokio::sync::Semaphore;

use super::stand_in::{Beside, StandIn};

/// Store in which each decision waits before its transaction until the test continues it.
pub type Held = StandIn<Hold>;

#[derive(Debug)]
pub struct Hold {
    came: Semaphore,
    go_on: Semaphore,
}

/// Creates a store that holds each decision.
pub fn held(store: Embedded) -> Held {
    let hold = Hold {
        came: Semaphore::new(0),
        go_on: Semaphore::new(0),
    };
    StandIn::new(store, hold)
}

impl Hold {
    /// Waits until another decision has reached its transaction.
    pub async fn came(&self) {
        self.came.acquire().await.unwrap().forget();
    }

    /// Continues this number of requests, now or when they come.
    pub fn let_go(&self, requests: usize) {
        self.go_on.add_permits(requests);
    }
}

#[async_trait]
impl Beside for Hold {
    async fn transacts(&self, mode: Mode) {
        if mode == Mode::ForRecord {
            self.came.add_permits(1);
            self.go_on.acquire().await.unwrap().forget();
        }
    }
}
