//! Checkpoints: signed lines in which a gateway states the number of lines of its log's chain, and the hash of the last of them.

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::chain::{LineHash, Link, UncoveredLines};
use super::log_key::LogPublicKey;

/// First line of the signed text: no signature over anything else is valid for a checkpoint.
const DOMAIN: &str = "attest-gateway/v1/log-checkpoint";

/// Signed statement of a gateway about the state of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The name of the gateway that signed.
    pub replica: String,
    /// The number of lines of the chain before this one.
    pub count: u64,
    /// The hash of the last of them.
    pub head: LineHash,
    /// Lines before it that its gateway found unsigned when it started. The gateway was killed after it had written them, or another
    /// program wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<UncoveredLines>,
    /// The key that has signed it.
    pub key: LogPublicKey,
    pub signature: CheckpointSignature,
}

/// A signature's bytes, in Base64 where they are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSignature(pub(super) Vec<u8>);

impl Serialize for CheckpointSignature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for CheckpointSignature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        BASE64
            .decode(text.as_bytes())
            .map(Self)
            .map_err(|_| de::Error::custom("expected Base64"))
    }
}

impl Checkpoint {
    /// Returns whether its key has signed that this chain had come so far at this time.
    #[must_use]
    pub fn is_signed(&self, chain: &str, at: u64) -> bool {
        let Self {
            replica,
            count,
            head,
            found,
            key,
            signature,
        } = self;
        key.has_signed(text(replica, chain, *count, *head, at, *found).as_bytes(), &signature.0)
    }
}

/// Returns the text that is signed: six lines, and a seventh if unsigned lines were found.
pub(super) fn text(replica: &str, chain: &str, count: u64, head: LineHash, at: u64, found: Option<UncoveredLines>) -> String {
    let found = found
        .map(|UncoveredLines { first, last }| format!("{first} {last}\n"))
        .unwrap_or_default();
    format!("{DOMAIN}\n{replica}\n{chain}\n{count}\n{head}\n{at}\n{found}")
}

/// A line that holds a checkpoint, read: a file of its own, or what the store keeps of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CheckpointLine {
    pub at: u64,
    pub chain: Link,
    pub checkpoint: Checkpoint,
}

impl CheckpointLine {
    /// Parses a line, if this key has signed it for its place in the chain.
    pub(super) fn signed_by(key: LogPublicKey, line: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(line).ok()?;
        let Self { at, chain, checkpoint } = &read;
        let here = checkpoint.count.checked_add(1) == Some(chain.number) && checkpoint.head == chain.previous;
        (here && checkpoint.key == key && checkpoint.is_signed(&chain.id, *at)).then_some(read)
    }
}
