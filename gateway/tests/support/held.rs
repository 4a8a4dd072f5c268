//! A store that keeps requests waiting, so that a test can do something in their midst.

use async_trait::async_trait;
use attest_store::Embedded;
use tokio::sync::Semaphore;

use super::stand_in::{Beside, StandIn};

/// Each use is made durable, and then its request waits until it is let go.
pub type Held = StandIn<Hold>;

#[derive(Debug)]
pub struct Hold {
    made: Semaphore,
    go_on: Semaphore,
}

/// A store that holds each use.
pub fn held(store: Embedded) -> Held {
    let hold = Hold {
        made: Semaphore::new(0),
        go_on: Semaphore::new(0),
    };
    StandIn::new(store, hold)
}

impl Hold {
    /// Waits until one more use was made.
    pub async fn made(&self) {
        self.made.acquire().await.unwrap().forget();
    }

    /// Lets so many requests go on, now or when they come.
    pub fn let_go(&self, requests: usize) {
        self.go_on.add_permits(requests);
    }
}

#[async_trait]
impl Beside for Hold {
    async fn used(&self) {
        self.made.add_permits(1);
        self.go_on.acquire().await.unwrap().forget();
    }
}
