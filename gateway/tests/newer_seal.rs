//! Seal keys that a newer release has written, at a gateway of this release.

use attest_gateway::credentials::seal::SealError;
use serde_json::json;

use crate::shared_seal::{DAY, HOUR, KEEP, NOW, Site, opens, sealed};

#[tokio::test]
async fn keeps_seal_keys_when_a_newer_release_rotates() {
    let site = Site::new();
    let (seal, other) = (site.replica(NOW).await, site.replica(NOW).await);
    let text = sealed(&seal);
    // The newer one rotates, and an hour later its key seals.
    other.maintain(NOW + 30 * DAY - HOUR, KEEP).await.unwrap();
    other.maintain(NOW + 30 * DAY, KEEP).await.unwrap();
    let newer = sealed(&other);
    let mut document = site.document().await;
    document["v"] = 3.into();
    let (old, new) = ("the release that wrote it, or a newer one", "release 0.9.0 or a newer one");
    for (member, reader) in [
        (json!({}), old),
        (json!({ "unknown": 1 }), old),
        (json!({ "release": "0.9.0" }), new),
    ] {
        document.as_object_mut().unwrap().extend(member.as_object().unwrap().clone());
        site.put(document.to_string()).await;
        for _ in 0..2 {
            // As each five minutes.
            let refused = seal.maintain(NOW + 30 * DAY, KEEP).await.unwrap_err();
            assert!(matches!(&refused, SealError::Version(newer) if newer.found == 3), "{refused}");
            let said = refused.to_string();
            assert!(
                said.contains("version 3") && said.ends_with(&format!("reads 2: run {reader}")),
                "{said}"
            );
        }
        // What it knows goes on; whether the other is a key nobody can say, and that is no refusal.
        assert!(opens(&seal, &text) && opens(&seal, &sealed(&seal)));
        assert!(!opens(&seal, &newer));
        seal.refresh_for(&newer).await.unwrap_err();
        // It does not start again, and leaves all as it is.
        assert!(matches!(site.try_replica(NOW + 30 * DAY).await, Err(SealError::Version(newer)) if newer.found == 3));
        assert_eq!(site.entry().await.unwrap().value, document.to_string());
    }
}
