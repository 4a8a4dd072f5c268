//! Which firmware a TPM had when it attested last. Its counters are beside it ([`super::enrolment`]).

use attest::NodeIdentity;

use super::enrolment::kept_by;
use crate::store::{Entry, EntryKind, Store, StoreError};

/// How the id begins under which it is kept, among the counters: an entry of its own, because earlier releases read those as they know them, and two releases
/// may serve one store.
const PREFIX: &str = "firmware:";

fn id(identity: &NodeIdentity) -> String {
    format!("{PREFIX}{}", kept_by(identity))
}

/// Of a TPM that attests: the firmware that it had when it attested last, if it has, and the one that it has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Firmware {
    before: Option<u64>,
    now: u64,
}

impl Firmware {
    /// Of a TPM that says that it has this version now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn seen(store: &dyn Store, identity: &NodeIdentity, now: u64) -> Result<Self, StoreError> {
        let entry = store.get(EntryKind::Clock, &id(identity)).await?;
        let before = entry.and_then(|entry| entry.value.parse().ok());
        Ok(Self { before, now })
    }

    /// A line for the administrator if it is older than it was: somebody has put a version there whose holes are known, or something else answers in the
    /// TPM's place.
    #[must_use]
    pub fn alert(&self) -> Option<String> {
        let (before, now) = (self.before?, self.now);
        (now < before).then(|| {
            format!(
                "the TPM's firmware went from version {before:#018x} back to {now:#018x}: somebody has put an older one there, or this is not the TPM it was"
            )
        })
    }

    /// Remembers it, now that the TPM has attested, if it is another than before: most boots write nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn note(&self, store: &dyn Store, identity: &NodeIdentity) -> Result<(), StoreError> {
        if self.before == Some(self.now) {
            return Ok(());
        }
        let entry = Entry {
            id: id(identity),
            value: self.now.to_string(),
        };
        store.note(EntryKind::Clock, entry).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest::protocol::HexDigest;

    use super::*;
    use crate::machines::enrolment::attested_tpms;
    use crate::store::Embedded;

    fn node(byte: u8) -> NodeIdentity {
        NodeIdentity::of_tpm(HexDigest::from([byte; 32]).try_into().unwrap())
    }

    #[tokio::test]
    async fn a_firmware_that_goes_back_is_told_and_one_that_goes_on_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        let told = async |version| {
            let firmware = Firmware::seen(&store, &node(1), version).await.unwrap();
            firmware.note(&store, &node(1)).await.unwrap();
            firmware.alert().is_some()
        };
        for (version, back) in [
            (5, false),
            (5, false),
            (7, false),
            (6, true),
            (6, false),
            (u64::MAX, false),
            (0, true),
        ] {
            assert_eq!(told(version).await, back, "{version}");
        }
        let another = Firmware::seen(&store, &node(2), 0).await.unwrap();
        assert_eq!(another.alert(), None, "another TPM");
        // It is none of the TPMs that have attested.
        assert!(attested_tpms(&store).await.unwrap().is_empty());
        let other = Entry {
            id: id(&node(1)),
            value: "no version".to_owned(),
        };
        store.note(EntryKind::Clock, other).await.unwrap();
        assert!(!told(3).await && told(2).await);
    }
}
