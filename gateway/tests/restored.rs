//! A revocation is undone while another process revokes.

use std::collections::BTreeSet;

use attest_machines::revocations::{self, restore, revoke};
use attest_store::Embedded;

fn all(who: &[&str]) -> BTreeSet<String> {
    who.iter().map(|who| (*who).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_a_revocation_survives_a_concurrent_restore() {
    let machine = all(&["worker-7", "tpm:aa", "gcp:p/1"]);
    let others = all(&["tpm:aa", "worker-8"]);
    // Whether what is taken back may be the later revocation: it goes by the same name then, and comes first.
    for (whom, who, may_go) in [
        (&machine, "worker-7", true),
        (&others, "worker-7", false),
        (&others, "tpm:aa", true),
    ] {
        for round in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
            revoke(&store, &machine, 1, None).await.unwrap();
            let revokes = revoke(&store, whom, 2, Some("stolen"));
            let restored = match round {
                0 => {
                    revokes.await.unwrap();
                    restore(&store, who, false).await
                }
                1 => {
                    let restored = restore(&store, who, false).await;
                    assert_eq!(*restored.as_ref().unwrap(), machine);
                    revokes.await.unwrap();
                    restored
                }
                round if round % 2 == 0 => {
                    let (revoked, restored) = tokio::join!(revokes, restore(&store, who, false));
                    revoked.unwrap();
                    restored
                }
                _ => {
                    let (restored, revoked) = tokio::join!(restore(&store, who, false), revokes);
                    revoked.unwrap();
                    restored
                }
            };
            let restored = restored.unwrap();
            let revoked = revocations::list(&store).await.unwrap();
            let stands = |who: &String| revoked.get(who).is_some_and(|revocation| revocation.at == 2);
            if whom.iter().all(stands) {
                continue;
            }
            // It is taken back as a whole, and whoever has done so is told.
            assert!(may_go && round != 1, "{who}, round {round}: {revoked:?}");
            assert!(!whom.iter().any(stands) && restored.is_superset(whom), "{restored:?} {revoked:?}");
        }
    }
}
