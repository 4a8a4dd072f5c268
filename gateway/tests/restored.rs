//! A revocation that is taken back while somebody else revokes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attest_machines::revocations::{self, restore, revoke};
use attest_store::engine::{Engine, Work};
use attest_store::through::Through;
use attest_store::{Embedded, StoreError};

/// An engine on which somebody revokes before one of the next transactions.
#[derive(Debug)]
struct Revoking {
    engine: Embedded,
    /// These.
    whom: BTreeSet<String>,
    /// How many are left alone before.
    before: AtomicUsize,
}

#[async_trait]
impl Through for Revoking {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        let left = self
            .before
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left == Ok(1) {
            revoke(&self.engine, &self.whom, 2, Some("stolen")).await?;
        }
        self.engine.transact(work).await
    }
}

fn all(who: &[&str]) -> BTreeSet<String> {
    who.iter().map(|who| (*who).to_owned()).collect()
}

#[tokio::test]
async fn attack_28_a_revocation_that_comes_while_an_earlier_one_is_taken_back_stands() {
    let machine = all(&["worker-7", "tpm:aa", "gcp:p/1"]);
    let others = all(&["tpm:aa", "worker-8"]);
    for (whom, who) in [(&machine, "worker-7"), (&others, "worker-7"), (&others, "tpm:aa")] {
        // Each one that it takes, and one more.
        for before in 2..=5 {
            let folder = tempfile::tempdir().unwrap();
            let store = Revoking {
                engine: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
                whom: whom.clone(),
                before: AtomicUsize::new(0),
            };
            revoke(&store, &machine, 1, None).await.unwrap();
            store.before.store(before, Ordering::Relaxed);
            let restored = restore(&store, who, false).await;
            if store.before.load(Ordering::Relaxed) > 0 {
                assert_eq!(restored.unwrap(), machine);
                continue;
            }
            let revoked = revocations::list(&store.engine).await.unwrap();
            let stands = |who: &String| revoked.get(who).is_some_and(|revocation| revocation.at == 2);
            assert!(whom.iter().all(stands), "before {before}: {revoked:?}");
            match restored {
                Ok(restored) => assert!(restored.is_disjoint(whom), "{restored:?}"),
                Err(refused) => assert!(matches!(refused, StoreError::Changed { .. }), "{refused}"),
            }
        }
    }
}
